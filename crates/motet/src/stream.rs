//! A stream as Rust programs use it.

use motet_engine::stream::UpgradeParams;
use motet_engine::stream::engine::Handle;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A byte stream on a TCP connection, carried by the fastest wire that both ends have.
#[derive(Debug)]
pub struct Stream {
    handle: Handle,
    tcp: TcpStream,
}

/// What carries a stream's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// The kernel's TCP.
    Tcp,
    /// Shared memory.
    SharedMemory,
}

/// Bytes by path, and the reason for the path.
#[derive(Debug, Clone, Copy)]
pub struct Stats {
    /// What carries payload.
    pub path: Path,
    /// A code of [`crate::reason::text`]: why no faster path.
    pub reason: u32,
    /// Bytes sent over the wire, and over TCP since the upgrade.
    pub sent: (u64, u64),
    /// Bytes received over the wire, and over TCP since the upgrade.
    pub received: (u64, u64),
}

fn engine() -> io::Result<&'static motet_engine::Engine> {
    crate::engine().ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

fn error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

impl Stream {
    /// A stream on a connection that this end made.
    pub fn connected(tcp: TcpStream) -> io::Result<Self> {
        Self::new(tcp, true)
    }

    /// A stream on a connection that this end accepted.
    pub fn accepted(tcp: TcpStream) -> io::Result<Self> {
        Self::new(tcp, false)
    }

    fn new(tcp: TcpStream, connected: bool) -> io::Result<Self> {
        let handle = engine()?.upgrade(tcp.as_raw_fd(), UpgradeParams { connected, lazy: false }).map_err(error)?;
        Ok(Self { handle, tcp })
    }

    /// The TCP connection.
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Sends as [`Write::write`] does; returns bytes.
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        engine()?.send(self.handle, &[IoSlice::new(data)], 0).map_err(error)
    }

    /// Receives into `data`; 0 is end of file.
    pub fn recv(&self, data: &mut [u8]) -> io::Result<usize> {
        engine()?.recv(self.handle, &mut [IoSliceMut::new(data)], 0).map_err(error)
    }

    /// Blocking calls fail with `TimedOut` after this instant; `None` never.
    pub fn set_deadline(&self, deadline: Option<Instant>) -> io::Result<()> {
        let now = motet_engine::now();
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let at = left.map_or(0, |left: Duration| now.saturating_add(left.as_nanos() as u64).max(1));
        let (record, _) = engine()?.look_up(self.handle).ok_or_else(|| error(9))?;
        record.lifecycle.deadline_ns.store(at, Relaxed);
        Ok(())
    }

    /// Makes the call that is blocked on the stream, or the next one that would block, fail with `Interrupted`.
    pub fn wake(&self) {
        if let Ok(engine) = engine() {
            engine.wake(self.handle);
        }
    }

    /// Whether a receive would return at once.
    pub fn readable(&self) -> io::Result<bool> {
        engine()?.readable(self.handle).map_err(error)
    }

    /// Half-close.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => 0,
            Shutdown::Write => 1,
            Shutdown::Both => 2,
        };
        engine()?.shutdown(self.handle, how).map_err(error)
    }

    /// Bytes by path, and why.
    pub fn stats(&self) -> io::Result<Stats> {
        let engine = engine()?;
        let (record, local) = engine.look_up(self.handle).ok_or_else(|| error(9))?;
        let ((sent, received), (tcp_sent, tcp_received)) = (record.fast_bytes(), record.tcp_bytes());
        Ok(Stats {
            path: if local.slot.slot().is_some() { Path::SharedMemory } else { Path::Tcp },
            reason: record.lifecycle.reason.load(Relaxed),
            sent: (sent, tcp_sent),
            received: (received, tcp_received),
        })
    }
}

/// Waits until one of the streams is readable; returns its index.
pub fn wait_any(streams: &[&Stream], deadline: Option<Instant>) -> io::Result<usize> {
    let handles: Vec<Handle> = streams.iter().map(|s| s.handle).collect();
    let at = deadline.map(|d| motet_engine::now() + d.saturating_duration_since(Instant::now()).as_nanos() as u64);
    engine()?.wait_any(&handles, at).map_err(error)
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Ok(engine) = engine() {
            let _ = engine.close(self.handle);
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv(buf)
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.send(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
