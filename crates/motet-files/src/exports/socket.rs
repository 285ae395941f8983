//! A Unix socket of a server, with a thread that answers who connects. It has a path, or an abstract name, which goes with the server's process however that ends.
//! Dropping it removes the socket.

use crate::Result;
use crate::accepting::{Ending, accept_until};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

/// The socket.
#[derive(Debug)]
pub struct Socket {
    /// `None`: it has an abstract name.
    file: Option<SocketFile>,
    listener: UnixListener,
    ending: Ending,
    thread: Option<JoinHandle<()>>,
}

/// A socket without the thread that answers.
#[derive(Debug)]
pub struct Bound {
    file: Option<SocketFile>,
    listener: UnixListener,
}

/// The path of a socket.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Locked while the server runs, so that only one has the name.
    _lock: File,
}

impl Bound {
    /// Makes the socket, in place of one of a server that was killed. EADDRINUSE: a running server has the name.
    pub fn at(path: PathBuf) -> Result<Self> {
        let lock = File::create(path.with_extension("lock"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(Errno::ADDRINUSE.into()),
            locked => locked?,
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        Ok(Self { file: Some(SocketFile { path, _lock: lock }), listener })
    }

    /// Makes the socket under an abstract name. EADDRINUSE: a process has the name.
    pub fn named(name: &str) -> Result<Self> {
        Ok(Self { file: None, listener: UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)? })
    }

    /// Calls `answer` for each connection, in a thread of this name. A client that breaks off, or asks nonsense, concerns no other client.
    pub fn answer(self, thread: &str, answer: impl Fn(&UnixStream) -> Result<()> + Send + 'static) -> Result<Socket> {
        let accepting = self.listener.try_clone()?;
        let ending = Ending::default();
        let until = ending.clone();
        let run = move || accept_until(&until, || accepting.accept(), |(stream, _)| drop(answer(&stream)));
        let thread = thread::Builder::new().name(thread.to_owned()).spawn(run)?;
        Ok(Socket { file: self.file, listener: self.listener, ending, thread: Some(thread) })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(SocketFile { path, .. }) = &self.file {
            let _ = fs::remove_file(path);
        }
        self.ending.begin();
        // Wakes the thread from accept().
        let _ = shutdown(&self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if let Some(SocketFile { path, .. }) = &self.file {
            let _ = fs::remove_file(path.with_extension("lock"));
        }
    }
}
