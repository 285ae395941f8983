//! A connection that has come in and has not said yet what for. Anyone may connect, so it costs this record and nothing more.

use crate::socket;
use motet_proto::message::session::handshake::{HANDSHAKE_BYTES, Handshake, HandshakeError};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::io::Errno;
use std::net::SocketAddr;

/// A guest says what for within so long, ns.
const LIMIT: u64 = 3_000_000_000;

/// What a guest has said.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// Not all of it yet.
    Pending,
    /// This.
    Handshake(Handshake),
    /// It speaks another version, and should be told.
    Version,
    /// Nothing of use; it goes.
    Nonsense,
}

/// A guest.
#[derive(Debug)]
pub struct Guest {
    pub(crate) fd: PrivateFd,
    pub(crate) from: SocketAddr,
    bytes: [u8; HANDSHAKE_BYTES],
    got: usize,
    until: u64,
}

impl Guest {
    /// It has just come.
    pub fn new(fd: PrivateFd, from: SocketAddr, now: u64) -> Self {
        Self { fd, from, bytes: [0; HANDSHAKE_BYTES], got: 0, until: now.saturating_add(LIMIT) }
    }

    /// Our own end of its connection.
    pub fn near(&self) -> motet_sys::rustix::io::Result<SocketAddr> {
        socket::own_address(&self.fd)
    }

    /// When it has taken too long.
    pub fn due(&self) -> u64 {
        self.until
    }

    /// Listens to it. Nothing of it that is not a handshake from its first byte on is waited for.
    pub fn step(&mut self, now: u64) -> Said {
        // Not a byte more than the handshake: what follows is the session's.
        match socket::receive(&self.fd, &mut self.bytes[self.got..]) {
            Ok(0) => return Said::Nonsense,
            Ok(n) => self.got += n,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return Said::Nonsense,
        }
        if self.got < HANDSHAKE_BYTES {
            let hope = now < self.until && Handshake::may_begin(&self.bytes[..self.got]);
            return if hope { Said::Pending } else { Said::Nonsense };
        }
        match Handshake::decode(&self.bytes) {
            Ok(handshake) => Said::Handshake(handshake),
            Err(HandshakeError::Version) => Said::Version,
            Err(HandshakeError::Foreign) => Said::Nonsense,
        }
    }

    /// Answers and lets it go. A fresh socket takes 64 bytes.
    pub fn answer(self, handshake: &Handshake) {
        let _ = socket::send(&self.fd, &[std::io::IoSlice::new(&handshake.encode())]);
    }
}
