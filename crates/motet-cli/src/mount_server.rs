//! `motet serve-mount`: serves the mount that a `motet run --files` makes for its program. Only `motet run` starts it.
//!
//! It is no child of the program, has no terminal, and is not in the program's mount namespace. It ends when the mount has ended: the kernel takes that down with
//! the last process of the namespace. [`MountServer`] is the side of `motet run`; the two talk over a Unix socket, in lines of JSON.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::Args;
use motet_files::client::Client;
use motet_files::uses::{self, Announced};
use motet_fuse::private::Private;
use motet_sys::inherited::only_standard_descriptors;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::exit_error::{FAILED, Failure, Outcome};
use crate::limits;
use crate::mount::{self, THREADS, VALIDITY};

/// Longest line, bytes.
const MAX_LINE_BYTES: usize = 4096;
/// What is sent with the descriptor of the device: it was opened in the server's user namespace, or in another one.
const SAME_USER_NAMESPACE: u8 = b's';
const OTHER_USER_NAMESPACE: u8 = b'o';

/// Serve the mount of a program, for `motet run --files`
#[derive(Debug, Args)]
pub struct Arguments {
    /// The export
    export: String,

    /// Where the program sees it
    #[arg(long)]
    at: String,

    /// Serve; without it, start a process that serves, and end
    #[arg(long)]
    detached: bool,
}

/// What the server answers, in a line each time.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// It is connected to the export.
    Connected {
        /// The export refuses changes.
        read_only: bool,
        /// Why it does not use the directory itself, or nothing.
        way: String,
    },
    /// The mount is served.
    Serving,
    /// It has failed, with this exit code and text.
    Failed(u8, String),
}

/// A server of a mount, seen from `motet run`.
#[derive(Debug)]
pub struct MountServer {
    socket: UnixStream,
    /// Whether the export refuses changes.
    pub read_only: bool,
    /// How the server reaches the export, in words.
    pub way: String,
}

impl MountServer {
    /// Starts a server that is connected to the export. It must not inherit a mount namespace that it has to outlive.
    pub fn start(export: &str, at: &Path) -> Outcome<Self> {
        let failed =
            |error: std::io::Error| Failure::new(FAILED, format!("the process that serves the mount: {error}"));
        let (socket, of_server) = UnixStream::pair().map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["serve-mount", "--at"]).arg(at).args(["--", export]).stdin(OwnedFd::from(of_server));
        // Its own parent ends at once, so that the program gets no child that it has not started.
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().map_err(failed)?;
        drop(command);
        if !status.success() {
            return Err(failed(std::io::Error::other(status.to_string())));
        }
        match receive(&socket)? {
            Answer::Connected { read_only, way } => Ok(Self { socket, read_only, way }),
            answer => Err(unexpected(answer)),
        }
    }

    /// Hands over the device of a mount; returns when it is served.
    pub fn serve(&self, device: BorrowedFd<'_>, same_user_namespace: bool) -> Outcome<()> {
        let kind = [if same_user_namespace { SAME_USER_NAMESPACE } else { OTHER_USER_NAMESPACE }];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [device];
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&self.socket, &[IoSlice::new(&kind)], &mut ancillary, SendFlags::NOSIGNAL)
            .map_err(|error| Failure::new(FAILED, format!("the process that serves the mount: {error}")))?;
        match receive(&self.socket)? {
            Answer::Serving => Ok(()),
            answer => Err(unexpected(answer)),
        }
    }
}

/// One line from the server. It takes as long as the server needs to find the export, which bounds that itself.
fn receive(mut socket: &UnixStream) -> Outcome<Answer> {
    let ended = || Failure::new(FAILED, "the process that serves the mount has ended");
    let mut line = Vec::new();
    let mut byte = [0];
    while line.last() != Some(&b'\n') {
        if line.len() == MAX_LINE_BYTES || socket.read(&mut byte).map_err(|_| ended())? == 0 {
            return Err(ended());
        }
        line.push(byte[0]);
    }
    serde_json::from_slice(&line).map_err(|_| ended())
}

fn unexpected(answer: Answer) -> Failure {
    match answer {
        Answer::Failed(code, message) => Failure::new(code, message),
        other => Failure::new(FAILED, format!("the process that serves the mount: {other:?}")),
    }
}

/// The command.
pub fn run(arguments: &Arguments) -> Outcome {
    if !arguments.detached {
        return detach(arguments);
    }
    // Not std's own, which reads ahead.
    let socket = rustix::stdio::stdin().try_clone_to_owned().map(UnixStream::from);
    let socket = socket.map_err(|error| Failure::new(FAILED, error.to_string()))?;
    match serve(arguments, &socket) {
        Ok(()) => Ok(0),
        Err(Failure { code, message }) => {
            // `motet run` says it.
            let _ = send(&socket, &Answer::Failed(code, message.chars().take(1000).collect()));
            Ok(code)
        }
    }
}

/// Starts the process that serves, in a session of its own and with no descriptor but its socket.
fn detach(arguments: &Arguments) -> Outcome {
    let failed = |error: std::io::Error| Failure::new(FAILED, error.to_string());
    let _ = rustix::process::setsid();
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["serve-mount", "--detached", "--at", &arguments.at, "--", &arguments.export]).current_dir("/");
    only_standard_descriptors(&mut command).spawn().map_err(failed)?;
    Ok(0)
}

fn serve(arguments: &Arguments, socket: &UnixStream) -> Outcome<()> {
    let export = &*arguments.export;
    let failed = |error: std::io::Error| Failure::new(FAILED, format!("export {export}: {error}"));
    limits::prepare_to_serve().map_err(failed)?;
    // The kernel has applied the programs' own masks.
    rustix::process::umask(rustix::fs::Mode::empty());
    let client = Client::named(export, None).map_err(|error| mount::not_connected(export, error))?;
    let way = if client.is_direct() { "the directory itself" } else { "messages to its server" }.to_owned();
    send(socket, &Answer::Connected { read_only: client.is_read_only(), way }).map_err(failed)?;
    let Some((device, same_user_namespace)) = receive_device(socket).map_err(failed)? else {
        // `motet run` has ended without a mount.
        client.close();
        return Ok(());
    };
    let mount = Private::start(client.clone(), device, VALIDITY, THREADS, same_user_namespace).map_err(failed)?;
    // Without it the mount works, and is not listed.
    let announced = Announced::start(client.clone(), "run", export, &arguments.at, &uses::why(&client, export));
    send(socket, &Answer::Serving).map_err(failed)?;
    let waited = mount.wait();
    drop(announced);
    client.close();
    waited.map_err(failed)
}

fn send(mut socket: &UnixStream, answer: &Answer) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    socket.write_all(&line)
}

/// The device that `motet run` hands over, and whether it was opened in the user namespace of this process; `None`: there is none.
fn receive_device(socket: &UnixStream) -> std::io::Result<Option<(OwnedFd, bool)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut kind = [0];
    let received = recvmsg(socket.as_fd(), &mut [IoSliceMut::new(&mut kind)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let device = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.into_iter().next(),
        _ => None,
    });
    Ok(device.map(|device| (device, kind[0] == SAME_USER_NAMESPACE)))
}
