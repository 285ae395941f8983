//! A door: a listening socket, and those who knock.
//!
//! What it is: who comes in is a guest until it has said what for; connections for sessions are handed to their links, and who asks
//! whether a session is known is told. A node that listens has one for everybody. One that only calls has one behind each address
//! it calls from, so that a peer whose connections have ended can ask whether there is a caller left: where there is none, the
//! kernel of its host says so at once. What it is not: it brings no links about; who wants one is handed to the door's owner.

use crate::guest::{Guest, Said};
use crate::node::{Node, Visit};
use crate::socket::{self, Set};
use motet_proto::message::session::LARGEST;
use motet_proto::message::session::greeting::{Greeting, Wish};
use motet_sys::fds::PrivateFd;
use motet_sys::rustix::io::{Errno, Result};
use std::net::SocketAddr;

/// Guests at a time: one more, and the one that came first goes.
const GUESTS: usize = 64;
/// Connections that are taken in one step.
const TAKEN: usize = 64;
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

    /// When `step` must be called although nobody has come.
    pub fn due(&self) -> Option<u64> {
        self.guests.iter().map(Guest::due).chain(self.paused).min()
    }

    /// Takes who has come, and answers. Who would like a new session is returned, with what it has said.
    pub fn step(&mut self, node: &Node, now: u64) -> Option<(Guest, Greeting)> {
        self.take_guests(now);
        let mut i = 0;
        while i < self.guests.len() {
            let said = self.guests[i].step(now);
            if said == Said::Pending {
                i += 1;
                continue;
            }
            let guest = self.guests.remove(i);
            match said {
                Said::Greeting(greeting) => {
                    self.set.remove(&guest.fd);
                    if greeting.wish == Wish::New {
                        return Some((guest, greeting)); // the others are still readable
                    }
                    serve(node, guest, &greeting);
                }
                Said::Version => {
                    let nobody = Greeting {
                        wish: Wish::Version,
                        epoch: 0,
                        node: node.id().0,
                        session: [0; 16],
                        expected: 0,
                        largest: 0,
                        port: 0,
                    };
                    guest.answer(&nobody);
                }
                Said::Nonsense | Said::Pending => {}
            }
        }
        None
    }

    fn take_guests(&mut self, now: u64) {
        if let Some(until) = self.paused {
            if now < until {
                return;
            }
            self.paused = self.set.add(&self.fd).is_err().then(|| now.saturating_add(PAUSE));
        }
        for _ in 0..TAKEN {
            match socket::accept(&self.fd) {
                Ok((fd, from)) => {
                    if self.guests.len() == GUESTS {
                        self.guests.remove(0);
                    }
                    if self.set.add(&fd).is_ok() {
                        self.guests.push(Guest::new(fd, from, now));
                    }
                }
                Err(Errno::AGAIN) => return,
                // The connection is gone again.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO | Errno::NOTCONN) => {}
                Err(_) => {
                    self.set.remove(&self.fd);
                    self.paused = Some(now.saturating_add(PAUSE));
                    return;
                }
            }
        }
    }
}

/// What a node says to a greeting.
pub fn reply(node: &Node, wish: Wish, to: &Greeting) -> Greeting {
    let (id, port) = (node.id().0, node.port());
    Greeting { wish, epoch: to.epoch, node: id, session: to.session, expected: 0, largest: LARGEST as u32, port }
}

/// A guest has said what for, and it is no new session.
fn serve(node: &Node, guest: Guest, greeting: &Greeting) {
    match greeting.wish {
        Wish::Resume | Wish::Rail => match node.find(&greeting.session) {
            Some(mailbox) if mailbox.is_called() => {
                mailbox.leave(Visit { fd: guest.fd, greeting: *greeting, from: guest.from });
            }
            _ => guest.answer(&reply(node, Wish::Unknown, greeting)),
        },
        Wish::Probe => {
            let known = node.find(&greeting.session).is_some();
            guest.answer(&reply(node, if known { Wish::Welcome } else { Wish::Unknown }, greeting));
        }
        // Answers to nothing, and what its owner has taken.
        Wish::New | Wish::Welcome | Wish::Unknown | Wish::Version | Wish::Refused => {}
    }
}
