//! What a process says about the export that it uses: a mount, or a disk.
//!
//! It answers at a Unix socket `PID-NUMBER.use` in the directory in which the servers have theirs: a reader that connects gets one line of JSON, an [`ExportUse`]. A process that
//! was killed answers nothing, so nothing of it is shown; the next reader removes its socket.

use crate::Result;
use crate::accepting::{Ending, accept_until};
use crate::client::Client;
use crate::exports::{self, Query, line_until};
use motet_session::api::ExportUse;
use motet_session::paths::{existing_exports_folder, exports_folder};
use motet_session::unix_socket::connect_to;
use rustix::net::{Shutdown, shutdown, sockopt};
use rustix::process::getuid;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The end of the names of these sockets.
const EXTENSION: &str = "use";
/// How long either side waits for the other.
const LIMIT: Duration = Duration::from_millis(500);
/// Processes that do not answer, such as stopped ones, keep a reader no longer than about this.
const LIMIT_OF_ALL: Duration = Duration::from_secs(2);
/// No more of them are read.
const MAX_USES: usize = 1024;

/// A use that is announced. Dropping it ends that.
#[derive(Debug)]
pub struct Announced {
    path: PathBuf,
    listener: UnixListener,
    ending: Ending,
    thread: Option<JoinHandle<()>>,
}

impl Announced {
    /// Announces what a client does.
    pub fn start(client: Client, front: &str, export: &str, at: &str, why: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = exports_folder().map_err(|error| std::io::Error::other(error.to_string()))?;
        let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (new, path) = (folder.join(format!("{name}.new")), folder.join(format!("{name}.{EXTENSION}")));
        // What an earlier process of this number has left.
        let _ = fs::remove_file(&new);
        let listener = UnixListener::bind(&new)?;
        // It has its name only when it answers: a socket that refuses is one of a process that has ended.
        fs::rename(&new, &path)?;
        let accepting = listener.try_clone()?;
        let (front, export, at, why) = (front.to_owned(), export.to_owned(), at.to_owned(), why.to_owned());
        let direct = client.is_direct();
        let ending = Ending::default();
        let until = ending.clone();
        let thread = thread::Builder::new().name("files-uses".to_owned()).spawn(move || {
            accept_until(
                &until,
                || accepting.accept(),
                |(stream, _)| {
                    let totals = client.totals();
                    let told = ExportUse {
                        process: 0,
                        front: front.clone(),
                        export: export.clone(),
                        at: at.clone(),
                        direct,
                        why: why.clone(),
                        open_files: totals.open_files as u64,
                        locks: totals.locks as u64,
                        requests: totals.requests,
                        bytes_read: totals.bytes_read,
                        bytes_written: totals.bytes_written,
                        storage: client.direct_opens(),
                    };
                    // One that breaks off concerns no other.
                    let _ = answer(&stream, &told);
                },
            );
        })?;
        Ok(Self { path, listener, ending, thread: Some(thread) })
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        self.ending.begin();
        // Wakes the thread from accept().
        let _ = shutdown(&self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: &UnixStream, told: &ExportUse) -> Result<()> {
    if sockopt::socket_peercred(stream)?.uid != getuid() {
        return Ok(());
    }
    stream.set_write_timeout(Some(LIMIT))?;
    let mut line = serde_json::to_vec(told)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// The uses of exports by processes of this user on this host.
pub fn list() -> Vec<ExportUse> {
    let Some(folder) = existing_exports_folder() else { return Vec::new() };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let sockets = entries.flatten().map(|entry| entry.path());
    let sockets = sockets.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
    let began = Instant::now();
    let sockets = sockets.take(MAX_USES).take_while(|_| began.elapsed() < LIMIT_OF_ALL);
    let mut uses: Vec<ExportUse> = sockets.filter_map(|path| ask(&path).ok()).collect();
    uses.sort_by(|a, b| (&a.export, a.process, &a.at).cmp(&(&b.export, b.process, &b.at)));
    uses
}

fn ask(path: &Path) -> Result<ExportUse> {
    let stream = match connect_to(path, LIMIT) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let _ = fs::remove_file(path);
            return Err(error);
        }
        connected => connected?,
    };
    let process = sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero().get();
    let line = line_until(&stream, Vec::new(), Instant::now() + LIMIT)?;
    let told: ExportUse = serde_json::from_slice(&line)?;
    Ok(ExportUse { process: process.unsigned_abs(), ..told })
}

/// Why a client of this export uses the directory itself, or messages.
pub fn why(client: &Client, export: &str) -> String {
    if client.is_direct() {
        return "it is on this host, and its server allows that".to_owned();
    }
    if let Some((host, _)) = export.split_once(':') {
        return format!("it is asked for at host {host}");
    }
    match exports::ask(export, &Query::default()) {
        Ok(found) if found.info.direct => "the directory itself could not be used".to_owned(),
        Ok(_) => "its server does not allow the use of the directory itself (--no-direct, or striped files)".to_owned(),
        Err(_) => "it is on another host".to_owned(),
    }
}
