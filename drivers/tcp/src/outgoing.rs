//! One connection attempt to another node: connect, send a handshake, receive the answer.
//!
//! A new session ([`crate::connect`]) and a link that adds or renews a connection ([`crate::link`]) use the same attempt.

use crate::socket::{self, PollSet};
use motet_proto::message::session::handshake::{HANDSHAKE_BYTES, Handshake, HandshakeError};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::fd::{AsFd, AsRawFd};
use motet_sys::rustix::io::Errno;
use std::net::SocketAddr;

/// An attempt fails after this time, ns.
const CONNECT_TIMEOUT_NS: u64 = 3_000_000_000;

/// The state of an attempt.
#[derive(Debug)]
pub enum AttemptOutcome {
    /// Not complete yet.
    Pending,
    /// The answer, and the connection, whose next byte is the session's.
    Answered(PrivateFd, Handshake),
    /// The connection was refused: no process listens at the address.
    NoListener,
    /// There was no answer of a node of this version.
    Failed(AttemptError),
}

/// Why an attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptError {
    /// An error of the system or the network, or a timeout.
    Unreachable,
    /// The peer speaks another protocol.
    Foreign,
    /// The peer is a node of another version.
    Version,
}

/// A connection attempt.
#[derive(Debug)]
pub struct OutgoingConnection {
    /// `None` once it is handed over.
    fd: Option<PrivateFd>,
    set: PollSet,
    handshake: Handshake,
    handshake_sent: bool,
    answer: [u8; HANDSHAKE_BYTES],
    received: usize,
    deadline: u64,
}

impl OutgoingConnection {
    /// Begins to connect. An error is the system's.
    pub fn new(address: &SocketAddr, handshake: Handshake, now: u64) -> Result<Self, Errno> {
        let (fd, set) = (socket::connect(address)?, PollSet::new()?);
        set.add(&fd)?;
        set.change(&fd, false, true)?;
        let (answer, deadline) = ([0; HANDSHAKE_BYTES], now.saturating_add(CONNECT_TIMEOUT_NS));
        Ok(Self { fd: Some(fd), set, handshake, handshake_sent: false, answer, received: 0, deadline })
    }

    /// The address of this end, which the peer sees as well unless the network translates addresses.
    pub fn local_address(&self) -> Option<SocketAddr> {
        socket::local_address(self.fd.as_ref()?).ok()
    }

    /// Puts a port into the handshake. Call it before the first [`OutgoingConnection::step`].
    pub fn set_handshake_port(&mut self, port: u16) {
        self.handshake.port = port;
    }

    /// The handshake of this attempt.
    pub fn handshake(&self) -> &Handshake {
        &self.handshake
    }

    /// Readable when `step` would do something.
    pub fn set(&self) -> &PollSet {
        &self.set
    }

    /// When the attempt times out.
    pub fn deadline(&self) -> u64 {
        self.deadline
    }

    /// Makes progress without blocking.
    pub fn step(&mut self, now: u64) -> AttemptOutcome {
        match self.exchange_handshakes() {
            Ok(None) if now < self.deadline => AttemptOutcome::Pending,
            Ok(None) => AttemptOutcome::Failed(AttemptError::Unreachable),
            Ok(Some(handshake)) => match (handshake, self.fd.take()) {
                (Ok(handshake), Some(fd)) => {
                    self.set.remove(&fd);
                    AttemptOutcome::Answered(fd, handshake)
                }
                (Err(HandshakeError::Version), _) => AttemptOutcome::Failed(AttemptError::Version),
                _ => AttemptOutcome::Failed(AttemptError::Foreign),
            },
            Err(Errno::CONNREFUSED) => AttemptOutcome::NoListener,
            Err(_) => AttemptOutcome::Failed(AttemptError::Unreachable),
        }
    }

    /// Sends the handshake once the connection stands, then receives the answer; `None`: not complete yet.
    fn exchange_handshakes(&mut self) -> Result<Option<Result<Handshake, HandshakeError>>, Errno> {
        let Some(fd) = &self.fd else { return Err(Errno::NOTCONN) };
        if !self.handshake_sent {
            let ready =
                motet_sys::socket::poll([(fd.as_fd().as_raw_fd(), motet_sys::socket::WRITABLE_EVENTS)], Some(0));
            if !matches!(ready, Ok([events]) if events != 0) {
                return Ok(None);
            }
            socket::take_error(fd)?;
            // The send buffer of a new socket has room for the 64 bytes.
            if socket::send(fd, &[std::io::IoSlice::new(&self.handshake.encode())], false)? != HANDSHAKE_BYTES {
                return Err(Errno::NOBUFS);
            }
            self.handshake_sent = true;
            self.set.change(fd, true, false)?;
        }
        // Not a byte beyond the handshake: the next bytes are the session's.
        match socket::receive(fd, &mut self.answer[self.received..]) {
            Ok(0) => return Err(Errno::CONNRESET),
            Ok(n) => self.received += n,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        if !Handshake::may_begin(&self.answer[..self.received]) {
            return Ok(Some(Err(HandshakeError::Foreign)));
        }
        Ok((self.received == HANDSHAKE_BYTES).then(|| Handshake::decode(&self.answer)))
    }
}
