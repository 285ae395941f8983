//! A named Unix socket of a server, with a thread that answers who connects. Dropping it removes the socket.

use crate::Result;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

/// The socket.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
    listener: UnixListener,
    thread: Option<JoinHandle<()>>,
    /// Locked while the server runs, so that only one has the name.
    _lock: File,
}

/// A socket without the thread that answers.
#[derive(Debug)]
pub struct Bound {
    path: PathBuf,
    listener: UnixListener,
    lock: File,
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
        Ok(Self { path, listener, lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `answer` for each connection, in a thread of this name. A client that breaks off, or asks nonsense, concerns no other client.
    pub fn answer(self, thread: &str, answer: impl Fn(&UnixStream) -> Result<()> + Send + 'static) -> Result<Socket> {
        let accepting = self.listener.try_clone()?;
        let run = move || {
            while let Ok((stream, _)) = accepting.accept() {
                let _ = answer(&stream);
            }
        };
        let thread = thread::Builder::new().name(thread.to_owned()).spawn(run)?;
        Ok(Socket { path: self.path, listener: self.listener, thread: Some(thread), _lock: self.lock })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Wakes the thread from accept().
        let _ = shutdown(&self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(self.path.with_extension("lock"));
    }
}
