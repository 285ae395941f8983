//! Waiting for other nodes: whoever comes is a guest until it has said what for.

use crate::guest::{Guest, Said};
use crate::link::Link;
use crate::node::{Node, Visit};
use crate::socket::{self, Set};
use motet_engine::message::medium::{Identity, Listening, Medium, Met, NodeId};
use motet_engine::reason::Reason;
use motet_proto::message::session::greeting::{Greeting, Wish};
use motet_proto::message::session::{LARGEST, Role, Session};
use motet_sys::fds::PrivateFd;
use motet_sys::rustix::io::Errno;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Guests at a time: one more, and the one that came first goes.
const GUESTS: usize = 64;
/// Connections that are taken in one step.
const TAKEN: usize = 64;
/// Without descriptors or memory for guests the listener does not look for so long, ns.
const PAUSE: u64 = 100_000_000;

/// Waits for others.
#[derive(Debug)]
pub struct Listener {
    fd: PrivateFd,
    address: SocketAddr,
    set: Set,
    node: Arc<Node>,
    guests: Vec<Guest>,
    /// Until when no guests are taken.
    paused: Option<u64>,
}

impl Listener {
    /// Begins to listen where the node wants to be found.
    pub fn new(identity: &Identity) -> Result<Self, Reason> {
        let wanted = identity.listen.ok_or(Reason::NO_MESSAGES)?;
        let begin = || {
            let (fd, address) = socket::listen(&wanted)?;
            let set = Set::new()?;
            set.add(&fd)?;
            Ok((fd, address, set))
        };
        let (fd, address, set) = begin().map_err(|errno: Errno| match errno {
            Errno::ADDRINUSE => Reason::NAME_TAKEN,
            Errno::ACCESS | Errno::PERM => Reason::NOT_PERMITTED,
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => Reason::NO_MEMORY,
            _ => Reason::NO_SUCH_NODE,
        })?;
        let node = Node::of(identity.id);
        node.listens(address.port());
        Ok(Self { fd, address, set, node, guests: Vec::new(), paused: None })
    }

    fn greeting(&self, wish: Wish, to: &Greeting) -> Greeting {
        let (node, port) = (self.node.id().0, self.node.port());
        Greeting { wish, epoch: to.epoch, node, session: to.session, expected: 0, largest: LARGEST as u32, port }
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

    /// A guest has said what for.
    fn serve(&self, guest: Guest, greeting: &Greeting, now: u64) -> Option<Met> {
        self.set.remove(&guest.fd);
        match greeting.wish {
            Wish::New => return self.meet(guest, greeting, now),
            Wish::Resume | Wish::Rail => match self.node.find(&greeting.session) {
                Some(mailbox) if mailbox.is_called() => {
                    mailbox.leave(Visit { fd: guest.fd, greeting: *greeting, from: guest.from });
                }
                _ => guest.answer(&self.greeting(Wish::Unknown, greeting)),
            },
            Wish::Probe => {
                let known = self.node.find(&greeting.session).is_some();
                let wish = if known { Wish::Welcome } else { Wish::Unknown };
                guest.answer(&self.greeting(wish, greeting));
            }
            // Answers to nothing.
            Wish::Welcome | Wish::Unknown | Wish::Version | Wish::Refused => {}
        }
        None
    }

    /// A new session.
    fn meet(&self, guest: Guest, greeting: &Greeting, now: u64) -> Option<Met> {
        let own = self.greeting(Wish::Welcome, greeting);
        let refused = Greeting { wish: Wish::Refused, ..own };
        // A node has no link to itself.
        let session = Session::new(Role::Called, own, greeting, now).ok().filter(|_| greeting.node != own.node);
        let (Some(session), Some(mailbox)) = (session, self.node.enter(greeting.session, true)) else {
            guest.answer(&refused);
            return None;
        };
        let back = (greeting.port != 0).then(|| SocketAddr::new(guest.from.ip(), greeting.port));
        match Link::new(session, Role::Called, guest.fd, self.node.clone(), mailbox, back) {
            Ok(link) => Some(Met { peer: NodeId(greeting.node), medium: Medium::Frames(Box::new(link)) }),
            Err(_) => {
                self.node.leave(greeting.session);
                None
            }
        }
    }
}

impl Listening for Listener {
    fn descriptor(&self) -> RawFd {
        self.set.descriptor()
    }

    fn step(&mut self, now: u64) -> Option<Met> {
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
                    if let Some(met) = self.serve(guest, &greeting, now) {
                        return Some(met); // the others are still readable
                    }
                }
                Said::Version => {
                    let nobody = Greeting {
                        wish: Wish::Version,
                        epoch: 0,
                        node: self.node.id().0,
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

    fn due(&self) -> Option<u64> {
        self.guests.iter().map(Guest::due).chain(self.paused).min()
    }

    fn address(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.node.listens(0);
    }
}
