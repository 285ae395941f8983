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
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
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
        let lock = lock(&path.with_extension("lock"))?;
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

/// Locks the file of this name, which may be new. EADDRINUSE: another process has locked it.
fn lock(path: &Path) -> Result<File> {
    loop {
        let file = File::create(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(Errno::ADDRINUSE.into()),
            locked => locked?,
        }
        // A server that ends removes the file; the next one makes another.
        let found = fs::metadata(path);
        let own = file.metadata()?;
        if found.is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino())) {
            return Ok(file);
        }
    }
}

/// Removes the sockets in a folder whose servers were killed.
pub fn remove_dead(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let paths = entries.flatten().map(|entry| entry.path());
    for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "lock")) {
        if let Ok(_lock) = lock(&path) {
            let _ = fs::remove_file(path.with_extension("sock"));
            let _ = fs::remove_file(&path);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_killed_servers_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let dead = Bound::at(at("dead.sock")).unwrap();
        let held = dead.file.as_ref().unwrap().path.clone();
        drop(dead); // as a kill would: the files stay
        assert!(held.exists() && at("dead.lock").exists());
        let running = Bound::at(at("running.sock")).unwrap();
        remove_dead(folder.path());
        assert!(!held.exists() && !at("dead.lock").exists());
        assert!(at("running.sock").exists() && at("running.lock").exists());
        assert_eq!(Bound::at(at("running.sock")).unwrap_err().kind(), ErrorKind::AddrInUse);
        drop(running);
    }

    #[test]
    fn removed_lock_file_gives_no_second_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let first = lock(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let second = lock(&path).unwrap();
        assert_ne!(first.metadata().unwrap().ino(), second.metadata().unwrap().ino());
        assert_eq!(lock(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    }
}
