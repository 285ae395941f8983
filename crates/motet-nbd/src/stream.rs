//! A connected socket.

use std::io::{IoSlice, IoSliceMut, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// Of this host.
    Unix(UnixStream),
    /// Of any host.
    Tcp(TcpStream),
}

impl Stream {
    /// Ends one or both directions.
    pub fn shut_down(&self, which: Shutdown) {
        // Fails if the peer is gone already.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(which),
            Self::Tcp(stream) => stream.shutdown(which),
        };
    }

    /// How long a read or write may wait.
    pub fn set_limit(&self, limit: Option<Duration>) -> Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit)),
            Self::Tcp(stream) => stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit)),
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        match self {
            Stream::Unix(stream) => (&mut &*stream).read(buffer),
            Stream::Tcp(stream) => (&mut &*stream).read(buffer),
        }
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Result<usize> {
        match self {
            Stream::Unix(stream) => (&mut &*stream).read_vectored(buffers),
            Stream::Tcp(stream) => (&mut &*stream).read_vectored(buffers),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        match self {
            Stream::Unix(stream) => (&mut &*stream).write(bytes),
            Stream::Tcp(stream) => (&mut &*stream).write(bytes),
        }
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> Result<usize> {
        match self {
            Stream::Unix(stream) => (&mut &*stream).write_vectored(buffers),
            Stream::Tcp(stream) => (&mut &*stream).write_vectored(buffers),
        }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
