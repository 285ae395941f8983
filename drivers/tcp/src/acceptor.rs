//! A door: a listening socket, and those who knock.
//!
//! What it is: who comes in is a guest until it has said what for; connections for sessions are handed to their links, who asks
//! whether a session is known is answered, and a new session needs permission ([`crate::admission`]). A node that listens has one for all. One that only calls has one behind each address
//! it calls from, so that a peer whose connections have ended can ask whether there is a caller left: where there is none, the
//! kernel of its host says so at once. What it is not: it brings no links about; who wants one is handed to the door's owner.

use crate::incoming::{Guest, Said};
use crate::session_table::{Node, Visit};
use crate::socket::{self, Set};
use motet_proto::message::session::MAX_PACKET_BYTES;
use motet_proto::message::session::handshake::{Handshake, HandshakeOp};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::io::{Errno, Result};
use std::net::SocketAddr;

/// Guests that have not said everything yet, at a time: one more, and the one that came first goes. The kernel hands over only those who
/// have said something, and a handshake comes whole, so a guest that waits here is an odd one.
const GUESTS: usize = 64;
/// Connections that are taken in one step: at one step in 10 ms more than 10 000 strangers a second.
const TAKEN: usize = 256;
/// Without descriptors or memory for guests the door is not looked at for so long, ns.
const PAUSE: u64 = 100_000_000;

/// A door.
#[derive(Debug)]
pub struct Door {
    fd: PrivateFd,
    address: SocketAddr,
    set: Set,
    guests: Vec<Guest>,
    /// Until when no guests are taken.
    paused: Option<u64>,
}

impl Door {
    /// Begins to listen.
    pub fn new(wanted: &SocketAddr) -> Result<Self> {
        let (fd, address) = socket::listen(wanted)?;
        let set = Set::new()?;
        set.add(&fd)?;
        Ok(Self { fd, address, set, guests: Vec::new(), paused: None })
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Readable when `step` would do something.
    pub fn set(&self) -> &Set {
        &self.set
    }

    /// When `step` must be called although no connection has arrived.
    pub fn due(&self) -> Option<u64> {
        self.guests.iter().map(Guest::due).chain(self.paused).min()
    }

    /// Takes who has come, and answers. Who would like a new session, and may, is returned with what it has said: there may be more.
    pub fn step(&mut self, node: &Node, now: u64) -> Option<(Guest, Handshake)> {
        let mut i = 0;
        while i < self.guests.len() {
            match self.guests[i].step(now) {
                Said::Pending => i += 1,
                said => {
                    let guest = self.guests.remove(i);
                    self.set.remove(&guest.fd);
                    let new = hear(node, guest, said);
                    if new.is_some() {
                        return new; // the others are still readable
                    }
                }
            }
        }
        self.take_guests(node, now)
    }

    /// Each is read as it is accepted: a connection that has sent its handshake neither waits behind silent ones nor is dropped for them.
    fn take_guests(&mut self, node: &Node, now: u64) -> Option<(Guest, Handshake)> {
        if let Some(until) = self.paused {
            if now < until {
                return None;
            }
            self.paused = self.set.add(&self.fd).is_err().then(|| now.saturating_add(PAUSE));
        }
        for _ in 0..TAKEN {
            match socket::accept(&self.fd) {
                Ok((fd, from)) => {
                    let mut guest = Guest::new(fd, from, now);
                    match guest.step(now) {
                        Said::Pending => self.keep(guest),
                        said => {
                            let new = hear(node, guest, said);
                            if new.is_some() {
                                return new;
                            }
                        }
                    }
                }
                Err(Errno::AGAIN) => return None,
                // The connection is gone again.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO | Errno::NOTCONN) => {}
                Err(_) => {
                    self.set.remove(&self.fd);
                    self.paused = Some(now.saturating_add(PAUSE));
                    return None;
                }
            }
        }
        None
    }

    /// Waits for the rest of what it says.
    fn keep(&mut self, guest: Guest) {
        if self.guests.len() == GUESTS {
            self.guests.remove(0);
        }
        if self.set.add(&guest.fd).is_ok() {
            self.guests.push(guest);
        }
    }
}

/// A guest has said this: who may begin a session is returned.
fn hear(node: &Node, guest: Guest, said: Said) -> Option<(Guest, Handshake)> {
    match said {
        Said::Handshake(handshake) if handshake.op != HandshakeOp::New => serve(node, guest, &handshake),
        Said::Handshake(handshake) if node.admits(&guest, &handshake) => return Some((guest, handshake)),
        Said::Handshake(handshake) => guest.answer(&reply(node, HandshakeOp::NotPermitted, &handshake)),
        Said::Version => {
            let (op, id, session) = (HandshakeOp::Version, node.id().0, [0; 16]);
            guest.answer(&Handshake { op, epoch: 0, node: id, session, expected: 0, secret: 0, largest: 0, port: 0 });
        }
        Said::Nonsense | Said::Pending => {}
    }
    None
}

/// What a node says to a handshake. To those who may not come in it says nothing of itself.
pub fn reply(node: &Node, op: HandshakeOp, to: &Handshake) -> Handshake {
    let (epoch, session, largest) = (to.epoch, to.session, MAX_PACKET_BYTES as u32);
    let (id, port) = if op == HandshakeOp::NotPermitted { ([0; 16], 0) } else { (node.id().0, node.port()) };
    let secret = if op == HandshakeOp::Admitted { node.secret().answer } else { 0 };
    Handshake { op, epoch, node: id, session, expected: 0, secret, largest, port }
}

/// A guest has said what for, and it is no new session.
fn serve(node: &Node, guest: Guest, handshake: &Handshake) {
    match handshake.op {
        HandshakeOp::Resume | HandshakeOp::Rail => match node.find(&handshake.session) {
            Some(mailbox) if mailbox.is_called() => {
                socket::prepare(&guest.fd);
                mailbox.leave(Visit { fd: guest.fd, handshake: *handshake, from: guest.from });
            }
            _ => guest.answer(&reply(node, HandshakeOp::Unknown, handshake)),
        },
        HandshakeOp::Probe => {
            let known = node.find(&handshake.session).is_some();
            guest.answer(&reply(node, if known { HandshakeOp::Welcome } else { HandshakeOp::Unknown }, handshake));
        }
        // Answers to nothing, and what was heard before.
        HandshakeOp::New
        | HandshakeOp::Admitted
        | HandshakeOp::Welcome
        | HandshakeOp::Unknown
        | HandshakeOp::Version
        | HandshakeOp::Refused
        | HandshakeOp::NotPermitted => {}
    }
}
