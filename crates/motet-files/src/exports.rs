//! How clients find a server: a Unix socket `NAME.sock` in a directory that only the user may enter.
//!
//! A client sends one line of JSON, [`Query`]; the server answers with one line, [`Info`], and may pass the descriptor of the exported directory with it. Only
//! processes of the same user are answered; exports for others have a socket for them (`members`). The address of the server contains a secret: a client learns it here and nowhere else.

pub mod members;
mod socket;

use crate::Result;
use motet_session::api::Export;
use motet_session::paths::{PathError, check_name, existing_exports_folder, exports_folder};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg, sockopt,
};
use rustix::process::getuid;
use serde::{Deserialize, Serialize};
pub use socket::Bound;
use socket::Socket;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Longest query and answer, bytes.
const MAX_LINE_BYTES: u64 = 16 << 10;
/// How long either side waits for the other.
const LIMIT: Duration = Duration::from_secs(2);

/// What a client asks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Query {
    /// It wants the exported directory itself.
    pub root: bool,
    /// The server shall listen for other hosts at this address of its host.
    pub listen: Option<IpAddr>,
}

/// What a server says about its export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// The name of the export.
    pub name: String,
    /// The directory.
    pub directory: String,
    /// The server's process.
    pub process: u32,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether clients of this host may use the directory without the server.
    pub direct: bool,
    /// Whether requests are executed as the users that they name, or all as the server's user.
    #[serde(default)]
    pub identities: bool,
    /// The address of the server, with a secret.
    pub address: String,
    /// Sessions of clients.
    pub clients: usize,
    /// Files that they have open.
    pub open_files: usize,
    /// Owners of locks on them.
    #[serde(default)]
    pub locks: usize,
    /// Requests since the server started.
    pub requests: u64,
    /// Bytes that clients have read.
    pub bytes_read: u64,
    /// Bytes that clients have written.
    pub bytes_written: u64,
    /// What reads the storage, and what O_DIRECT has brought, in words.
    #[serde(default)]
    pub storage: String,
}

/// What is shown of an export: all but its address, which contains a secret.
impl From<Info> for Export {
    fn from(info: Info) -> Self {
        Self {
            name: info.name,
            directory: info.directory,
            process: info.process,
            read_only: info.read_only,
            clients: info.clients as u64,
            open_files: info.open_files as u64,
            locks: info.locks as u64,
            direct: info.direct,
            requests: info.requests,
            bytes_read: info.bytes_read,
            bytes_written: info.bytes_written,
            storage: info.storage,
        }
    }
}

/// What a server answers with.
pub trait Exported: Send + Sync + 'static {
    /// Describes the export, after the server listens at `listen`.
    fn info(&self, listen: Option<IpAddr>) -> Result<Info>;
    /// The directory, if clients of this host may use it without the server.
    fn root(&self) -> Option<BorrowedFd<'_>>;
}

/// The socket of a running server. Dropping it removes the socket.
#[derive(Debug)]
pub struct Publication {
    _socket: Socket,
}

impl Publication {
    /// Makes the socket of the export `name`. EADDRINUSE: a running server has the name.
    pub fn bind(name: &str) -> Result<Bound> {
        Bound::at(socket_path(name)?)
    }

    /// Answers clients that ask for the export.
    pub fn start(bound: Bound, exported: Arc<impl Exported>) -> Result<Self> {
        let socket = bound.answer("files-exports", move |stream| answer(stream, &*exported))?;
        Ok(Self { _socket: socket })
    }
}

fn answer(stream: &UnixStream, exported: &impl Exported) -> Result<()> {
    if sockopt::socket_peercred(stream)?.uid != getuid() {
        return Err(Errno::ACCESS.into());
    }
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let mut line = String::new();
    BufReader::new(stream.take(MAX_LINE_BYTES)).read_line(&mut line)?;
    let query: Query = serde_json::from_str(&line)?;
    let mut text = serde_json::to_vec(&exported.info(query.listen)?)?;
    text.push(b'\n');
    let root = if query.root { exported.root() } else { None };
    let sent = send_with(stream, &text, root)?;
    (&mut &*stream).write_all(&text[sent..])
}

fn send_with(stream: &UnixStream, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS.into());
    }
    Ok(retry_on_intr(|| sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL))?)
}

/// An export of this host that was found.
#[derive(Debug)]
pub struct Found {
    /// What its server says.
    pub info: Info,
    /// The directory, if it was asked for and its server allows it.
    pub root: Option<OwnedFd>,
}

/// Asks the server of an export of this host. ENOENT: there is none.
pub fn ask(name: &str, query: &Query) -> Result<Found> {
    ask_at(&socket_path(name)?, query)
}

/// The exports of this host whose servers answer.
pub fn list(listen: Option<IpAddr>) -> Result<Vec<Info>> {
    let Some(directory) = existing_exports_folder() else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "sock")
            && let Ok(export) = ask_at(&path, &Query { root: false, listen })
        {
            found.push(export.info);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn ask_at(path: &Path, query: &Query) -> Result<Found> {
    let stream = loop {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // The socket of a server that was killed.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Err(Errno::NOENT.into()),
            connected => break connected?,
        }
    };
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let mut line = serde_json::to_vec(query)?;
    line.push(b'\n');
    (&stream).write_all(&line)?;
    let mut bytes = vec![0; MAX_LINE_BYTES as usize];
    let (mut length, root) = receive_with(&stream, &mut bytes)?;
    while length > 0 && bytes[length - 1] != b'\n' && length < bytes.len() {
        match (&stream).read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            // A signal does not end the search for an export.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Found { info: serde_json::from_slice(&bytes[..length])?, root })
}

fn receive_with(stream: &UnixStream, bytes: &mut [u8]) -> Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        recvmsg(stream.as_fd(), &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut root = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            root = descriptors.into_iter().next();
        }
    }
    Ok((received.bytes, root))
}

fn socket_path(name: &str) -> Result<PathBuf> {
    check_name("export", name).map_err(unusable)?;
    Ok(exports_folder().map_err(unusable)?.join(format!("{name}.sock")))
}

fn unusable(error: PathError) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::PermissionDenied, error.to_string())
}
