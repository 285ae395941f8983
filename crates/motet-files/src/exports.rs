//! How clients find a server: a Unix socket `NAME.sock` in a directory that only the user may enter.
//!
//! A client sends one line of JSON, [`Query`]; the server answers with one line, [`Info`], and may pass the descriptor of the exported directory with it. Only
//! processes of the same user are answered; exports for others have a socket for them (`members`). The address of the server contains a secret: a client learns it here and nowhere else.

pub mod members;
mod socket;

use crate::Result;
use motet_session::api::Export;
use motet_session::paths::{PathError, check_name, existing_exports_folder, exports_folder};
use motet_session::unix_socket::connect_to;
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
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest query and answer, bytes.
const MAX_LINE_BYTES: usize = 16 << 10;
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
        let path = socket_path(name)?;
        path.parent().map(socket::remove_dead);
        Bound::at(path)
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
    stream.set_write_timeout(Some(LIMIT))?;
    let query: Query = serde_json::from_slice(&line_until(stream, Vec::new(), Instant::now() + LIMIT)?)?;
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
    let stream = match connect_to(path, LIMIT) {
        // The socket of a server that was killed.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Err(Errno::NOENT.into()),
        connected => connected?,
    };
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let mut line = serde_json::to_vec(query)?;
    line.push(b'\n');
    (&stream).write_all(&line)?;
    let end = Instant::now() + LIMIT;
    let mut bytes = vec![0; MAX_LINE_BYTES];
    let (length, root) = receive_with(&stream, &mut bytes)?;
    bytes.truncate(length);
    let line = if length == 0 { bytes } else { line_until(&stream, bytes, end)? };
    Ok(Found { info: serde_json::from_slice(&line)?, root })
}

/// Reads a line that begins with `line`. It must be complete at `end`: a peer that sends it byte by byte gets no more time.
pub(crate) fn line_until(stream: &UnixStream, mut line: Vec<u8>, end: Instant) -> Result<Vec<u8>> {
    let mut piece = [0; 1024];
    while !line.contains(&b'\n') && line.len() < MAX_LINE_BYTES {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::TIMEDOUT.into());
        }
        stream.set_read_timeout(Some(left))?;
        match (&*stream).read(&mut piece) {
            Ok(0) => break,
            Ok(read) => line.extend_from_slice(&piece[..read]),
            // A signal does not end the search for an export.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    line.truncate(line.iter().position(|&byte| byte == b'\n').unwrap_or(line.len()));
    Ok(line)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_comes_byte_by_byte_gets_no_more_time() {
        let (reader, mut writer) = UnixStream::pair().expect("a pair");
        let trickles = std::thread::spawn(move || {
            while writer.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let end = Instant::now() + Duration::from_millis(500);
        let error = line_until(&reader, Vec::new(), end).expect_err("no line");
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error}");
        drop(reader);
        trickles.join().expect("ends with the connection");
    }

    #[test]
    fn line_in_two_pieces_is_one() {
        let (reader, mut writer) = UnixStream::pair().expect("a pair");
        writer.write_all(b"two}\nmore").expect("room");
        let line = line_until(&reader, b"{one, ".to_vec(), Instant::now() + LIMIT).expect("a line");
        assert_eq!(line, b"{one, two}");
    }
}
