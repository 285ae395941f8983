//! The sockets of a server, and its connections.

use crate::connection::Connection;
use crate::negotiation::{Export, negotiate};
use crate::stream::Stream;
use motet_files::accepting::{Ending, accept_until};
use motet_session::unix_socket::connect_to;
use rustix::fs::{Mode, chmod};
use std::collections::HashMap;
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Connections at the same time; further clients are disconnected.
const MAX_CONNECTIONS: usize = 32;
/// How long a server at the wanted socket may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// How long a client may be silent during the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long a server that ends waits for requests that it has received.
const END_LIMIT: Duration = Duration::from_secs(2);
/// Directories of one process, in which sockets are made.
const MAX_PRIVATE_DIRECTORIES: u32 = 100;
/// Bytes of the send buffer of a Unix socket.
const SEND_BUFFER_BYTES: usize = 1 << 20;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket, which is made for its user alone.
    Unix(PathBuf),
    /// A TCP address. Everybody who reaches it can use the disk.
    Tcp(SocketAddr),
}

#[derive(Debug)]
enum Listener {
    Unix(UnixListener, PathBuf),
    Tcp(TcpListener),
}

/// A running server. Dropping it ends it: requests that were received are answered, within two seconds.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    export: Export,
    listener: Listener,
    ending: Ending,
    connections: Mutex<Connections>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Connections {
    streams: HashMap<u64, Arc<Stream>>,
    next: u64,
}

impl Server {
    /// Starts to serve one disk. AddrInUse: another server listens there.
    pub fn start(export: Export, listen: &Listen) -> Result<Self> {
        let listener = match listen {
            Listen::Unix(path) => Listener::Unix(listen_at(path)?, path.clone()),
            Listen::Tcp(address) => Listener::Tcp(TcpListener::bind(address)?),
        };
        let ending = Ending::default();
        let shared =
            Arc::new(Shared { export, listener, ending, connections: Mutex::default(), ended: Condvar::new() });
        let accepting = Arc::clone(&shared);
        let thread = Builder::new().name("nbd-accept".to_owned()).spawn(move || accepting.accept())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The address that clients connect to, as a URI.
    pub fn uri(&self) -> Result<String> {
        let name = escaped(self.shared.export.name.as_bytes());
        Ok(match &self.shared.listener {
            Listener::Unix(_, path) => {
                let path = std::path::absolute(path)?;
                format!("nbd+unix:///{name}?socket={}", escaped(path.as_os_str().as_encoded_bytes()))
            }
            Listener::Tcp(listener) => format!("nbd://{}/{name}", listener.local_addr()?),
        })
    }

    /// How many clients are connected.
    pub fn clients(&self) -> usize {
        self.shared.connections().streams.len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.ending.begin();
        if let Listener::Unix(_, path) = &shared.listener {
            let _ = fs::remove_file(path);
        }
        // Wakes the thread from accept().
        let _ = rustix::net::shutdown(&shared.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        shared.shut_down(Shutdown::Read);
        if !shared.wait_for_end(Some(END_LIMIT)) {
            // What waits for the server of files, or for a client that does not read, is given up.
            shared.export.blocks.shut_down();
            shared.shut_down(Shutdown::Both);
            shared.wait_for_end(None);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Listener {
    fn accept(&self) -> Result<Stream> {
        Ok(match self {
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                // What the system allows, so that long replies are sent with few waits.
                rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BUFFER_BYTES)?;
                Stream::Unix(stream)
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                // The connection of a host that is gone ends.
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                Stream::Tcp(stream)
            }
        })
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>) {
        accept_until(&self.ending, || self.listener.accept(), |stream| self.begin(stream));
    }

    /// Starts the thread of a connection, unless there are too many.
    fn begin(self: &Arc<Self>, stream: Stream) {
        let stream = Arc::new(stream);
        let mut connections = self.connections();
        if connections.streams.len() >= MAX_CONNECTIONS {
            return;
        }
        let number = connections.next;
        connections.next += 1;
        connections.streams.insert(number, Arc::clone(&stream));
        drop(connections);
        let entry = Entry { shared: Arc::clone(self), number };
        let serve = move || {
            // A client that breaks off disturbs no other one.
            let _ = entry.shared.serve(&stream);
        };
        // Without a thread the entry is dropped, and the client disconnected.
        let _ = Builder::new().name("nbd-work".to_owned()).spawn(serve);
    }

    fn serve(&self, stream: &Stream) -> Result<()> {
        stream.set_limit(Some(HANDSHAKE_LIMIT))?;
        let agreed = negotiate(&mut &*stream, &self.export)?;
        stream.set_limit(None)?;
        if let Some(agreed) = agreed {
            Connection::serve(stream, &*self.export.blocks, agreed);
        }
        Ok(())
    }

    fn shut_down(&self, which: Shutdown) {
        self.connections().streams.values().for_each(|stream| stream.shut_down(which));
    }

    /// Waits until there is no connection; false: not within `limit`.
    fn wait_for_end(&self, limit: Option<Duration>) -> bool {
        let end = limit.map(|limit| Instant::now() + limit);
        let mut connections = self.connections();
        while !connections.streams.is_empty() {
            connections = match end {
                None => self.ended.wait(connections).unwrap_or_else(PoisonError::into_inner),
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.ended.wait_timeout(connections, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }
}

/// The entry of a connection in the table, which ends with its thread.
struct Entry {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.connections().streams.remove(&self.number);
        self.shared.ended.notify_all();
    }
}

/// Listens at a Unix socket that only its user can open, from its first moment on. The socket of a server that was killed is replaced.
fn listen_at(path: &Path) -> Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(existing) if !existing.file_type().is_socket() => {
            return Err(Error::new(ErrorKind::AlreadyExists, "it exists and is not a socket"));
        }
        // One that accepts nothing is one, too.
        Ok(_) if connect_to(path, CONNECT_LIMIT).map_or_else(|error| error.kind() == ErrorKind::TimedOut, |_| true) => {
            return Err(ErrorKind::AddrInUse.into());
        }
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let private = private_directory(parent)?;
    let socket = private.join("s");
    let made = UnixListener::bind(&socket).and_then(|listener| {
        chmod(&socket, Mode::RUSR | Mode::WUSR)?;
        fs::rename(&socket, path)?;
        Ok(listener)
    });
    if made.is_err() {
        let _ = fs::remove_file(&socket);
    }
    let _ = fs::remove_dir(&private);
    made
}

/// Makes a directory that only its user can enter.
fn private_directory(parent: &Path) -> Result<PathBuf> {
    let mut number = 0;
    loop {
        let path = parent.join(format!(".nbd-{}-{number}", std::process::id()));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            // Of another server of this process, or of one that was killed.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < MAX_PRIVATE_DIRECTORIES => number += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Escapes what has a meaning in a URI.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}
