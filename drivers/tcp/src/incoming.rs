//! An incoming connection that has not sent its handshake yet.
//!
//! Any process may connect, so an incoming connection costs this record and its descriptor, and nothing more.

use crate::socket;
use motet_proto::message::session::handshake::{HANDSHAKE_BYTES, Handshake, HandshakeError};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::io::Errno;
use std::net::SocketAddr;

/// An incoming connection is closed when its handshake is not complete after this time, ns.
const HANDSHAKE_TIMEOUT_NS: u64 = 3_000_000_000;

/// What has arrived on an incoming connection.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstMessage {
    /// A part of a handshake, or nothing yet.
    Pending,
    /// A complete handshake.
    Handshake(Handshake),
    /// The handshake of another version; it is answered with [`HandshakeOp::Version`](motet_proto::message::session::handshake::HandshakeOp::Version).
    OtherVersion,
    /// Anything else, the end of the connection, or too late; the connection is closed without an answer.
    Invalid,
}

/// An incoming connection.
#[derive(Debug)]
pub struct IncomingConnection {
    pub(crate) fd: PrivateFd,
    pub(crate) peer: SocketAddr,
    bytes: [u8; HANDSHAKE_BYTES],
    received: usize,
    deadline: u64,
}

impl IncomingConnection {
    /// A connection that was just accepted from `peer`.
    pub fn new(fd: PrivateFd, peer: SocketAddr, now: u64) -> Self {
        let deadline = now.saturating_add(HANDSHAKE_TIMEOUT_NS);
        Self { fd, peer, bytes: [0; HANDSHAKE_BYTES], received: 0, deadline }
    }

    /// The address of this end.
    pub fn local_address(&self) -> motet_sys::rustix::io::Result<SocketAddr> {
        socket::local_address(&self.fd)
    }

    /// When the connection times out.
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Receives without blocking. Bytes that cannot begin a handshake are invalid at once, before the rest arrives.
    pub fn step(&mut self, now: u64) -> FirstMessage {
        // Not a byte beyond the handshake: the next bytes are the session's.
        match socket::receive(&self.fd, &mut self.bytes[self.received..]) {
            Ok(0) => return FirstMessage::Invalid,
            Ok(n) => self.received += n,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return FirstMessage::Invalid,
        }
        if self.received < HANDSHAKE_BYTES {
            let pending = now < self.deadline && Handshake::may_begin(&self.bytes[..self.received]);
            return if pending { FirstMessage::Pending } else { FirstMessage::Invalid };
        }
        match Handshake::decode(&self.bytes) {
            Ok(handshake) => FirstMessage::Handshake(handshake),
            Err(HandshakeError::Version) => FirstMessage::OtherVersion,
            Err(HandshakeError::Foreign) => FirstMessage::Invalid,
        }
    }

    /// Sends an answer and closes the connection. The send buffer of a new socket has room for the 64 bytes.
    pub fn answer(self, handshake: &Handshake) {
        let _ = socket::send(&self.fd, &[std::io::IoSlice::new(&handshake.encode())], false);
    }
}
