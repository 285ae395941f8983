//! Waiting for other nodes: a door, and a link for each who comes through it.

use crate::acceptor::{Door, reply};
use crate::incoming::Guest;
use crate::link::Link;
use crate::session_table::Node;
use crate::socket;
use motet_engine::message::transport::{Connected, Identity, Listener, NodeId, Transport};
use motet_engine::reason::Reason;
use motet_proto::message::session::handshake::{Handshake, HandshakeOp};
use motet_proto::message::session::{Role, Session};
use motet_sys::rustix::io::Errno;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Waits for others.
#[derive(Debug)]
pub struct Acceptor {
    door: Door,
    node: Arc<Node>,
}

impl Acceptor {
    /// Begins to listen where the node wants to be found.
    pub fn new(identity: &Identity) -> Result<Self, Reason> {
        let wanted = identity.listen.ok_or(Reason::NO_MESSAGES)?;
        let door = Door::new(&wanted).map_err(|errno: Errno| match errno {
            Errno::ADDRINUSE => Reason::NAME_TAKEN,
            Errno::ACCESS | Errno::PERM => Reason::NOT_PERMITTED,
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => Reason::NO_MEMORY,
            _ => Reason::NO_SUCH_NODE,
        })?;
        let node = Node::of(identity);
        node.listens(Some(door.address()));
        Ok(Self { door, node })
    }

    /// A new session, with a peer that is permitted to have one.
    fn meet(&self, guest: Guest, handshake: &Handshake, now: u64) -> Option<Connected> {
        let own = reply(&self.node, HandshakeOp::Admitted, handshake);
        let refused = Handshake { op: HandshakeOp::Refused, secret: 0, ..own };
        // A node has no link to itself.
        let session = Session::new(Role::Called, own, handshake, now).ok().filter(|_| handshake.node != own.node);
        // In this order: a session that is refused must not be entered.
        let met = session.and_then(|session| Some((session, self.node.enter(handshake.session, true)?)));
        let Some((session, mailbox)) = met else {
            guest.answer(&refused);
            return None;
        };
        socket::prepare(&guest.fd);
        let back = (handshake.port != 0).then(|| SocketAddr::new(guest.from.ip(), handshake.port));
        match Link::new(session, Role::Called, guest.fd, (self.node.clone(), mailbox), back, None) {
            Ok(link) => Some(Connected { peer: NodeId(handshake.node), transport: Transport::Packet(Box::new(link)) }),
            Err(_) => {
                self.node.leave(handshake.session);
                None
            }
        }
    }
}

impl Listener for Acceptor {
    fn descriptor(&self) -> RawFd {
        self.door.set().descriptor()
    }

    fn step(&mut self, now: u64) -> Option<Connected> {
        while let Some((guest, handshake)) = self.door.step(&self.node, now) {
            let met = self.meet(guest, &handshake, now);
            if met.is_some() {
                return met;
            }
        }
        None
    }

    fn due(&self) -> Option<u64> {
        self.door.due()
    }

    fn address(&self) -> String {
        self.node.secret().before(&self.place())
    }

    fn place(&self) -> String {
        self.door.address().to_string()
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.node.listens(None);
    }
}
