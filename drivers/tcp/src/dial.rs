//! A connection on its way to another node: until the answer to our handshake has come.

use crate::socket::{self, Set};
use motet_proto::message::session::handshake::{HANDSHAKE_BYTES, Handshake, HandshakeError};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::fd::{AsFd, AsRawFd};
use motet_sys::rustix::io::Errno;
use std::net::SocketAddr;

/// An attempt takes no longer, ns.
const LIMIT: u64 = 3_000_000_000;

/// What has become of it.
#[derive(Debug)]
pub enum Dialed {
    /// Not yet.
    Pending,
    /// An answer, and the connection right behind it.
    Answered(PrivateFd, Handshake),
    /// NoListener listens there.
    NoListener,
    /// Nothing that can be used: no answer, another protocol, another version.
    Failed(Failure),
}

/// Why an attempt has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The system refuses, the way is cut, or it took too long.
    Way,
    /// Something else answers there.
    Foreign,
    /// A node of another version does.
    Version,
}

/// A connection on its way.
#[derive(Debug)]
pub struct Dial {
    /// Taken when it is handed over.
    fd: Option<PrivateFd>,
    set: Set,
    handshake: Handshake,
    greeted: bool,
    answer: [u8; HANDSHAKE_BYTES],
    got: usize,
    until: u64,
}

impl Dial {
    /// Begins. An error is the system's.
    pub fn new(address: &SocketAddr, handshake: Handshake, now: u64) -> Result<Self, Errno> {
        let (fd, set) = (socket::connect(address)?, Set::new()?);
        set.add(&fd)?;
        set.change(&fd, false, true)?;
        let until = now.saturating_add(LIMIT);
        Ok(Self { fd: Some(fd), set, handshake, greeted: false, answer: [0; HANDSHAKE_BYTES], got: 0, until })
    }

    /// Our own end, as the other will see it where nothing translates addresses.
    pub fn near(&self) -> Option<SocketAddr> {
        socket::own_address(self.fd.as_ref()?).ok()
    }

    /// The handshake, which is not said yet, names this port.
    pub fn name_port(&mut self, port: u16) {
        self.handshake.port = port;
    }

    /// What it asks for.
    pub fn handshake(&self) -> &Handshake {
        &self.handshake
    }

    /// Readable when `step` would do something.
    pub fn set(&self) -> &Set {
        &self.set
    }

    /// When it is given up.
    pub fn due(&self) -> u64 {
        self.until
    }

    /// Goes on.
    pub fn step(&mut self, now: u64) -> Dialed {
        match self.go_on() {
            Ok(None) if now < self.until => Dialed::Pending,
            Ok(None) => Dialed::Failed(Failure::Way),
            Ok(Some(handshake)) => match (handshake, self.fd.take()) {
                (Ok(handshake), Some(fd)) => {
                    self.set.remove(&fd);
                    Dialed::Answered(fd, handshake)
                }
                (Err(HandshakeError::Version), _) => Dialed::Failed(Failure::Version),
                _ => Dialed::Failed(Failure::Foreign),
            },
            Err(Errno::CONNREFUSED) => Dialed::NoListener,
            Err(_) => Dialed::Failed(Failure::Way),
        }
    }

    fn go_on(&mut self) -> Result<Option<Result<Handshake, HandshakeError>>, Errno> {
        let Some(fd) = &self.fd else { return Err(Errno::NOTCONN) };
        if !self.greeted {
            let ready = motet_sys::socket::poll([(fd.as_fd().as_raw_fd(), motet_sys::socket::WRITABLE)], Some(0));
            if !matches!(ready, Ok([events]) if events != 0) {
                return Ok(None);
            }
            socket::error(fd)?;
            // A fresh socket takes 64 bytes.
            if socket::send(fd, &[std::io::IoSlice::new(&self.handshake.encode())])? != HANDSHAKE_BYTES {
                return Err(Errno::NOBUFS);
            }
            self.greeted = true;
            self.set.change(fd, true, false)?;
        }
        // Not a byte more: what follows is the session's.
        match socket::receive(fd, &mut self.answer[self.got..]) {
            Ok(0) => return Err(Errno::CONNRESET),
            Ok(n) => self.got += n,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        if !Handshake::may_begin(&self.answer[..self.got]) {
            return Ok(Some(Err(HandshakeError::Foreign)));
        }
        Ok((self.got == HANDSHAKE_BYTES).then(|| Handshake::decode(&self.answer)))
    }
}
