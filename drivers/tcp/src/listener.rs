//! Listens for other nodes: an acceptor, and a link for each admitted session.

use crate::acceptor::{Acceptor, Admitted, reply};
use crate::link::TcpLink;
use crate::node::LocalNode;
use crate::session_table::Origin;
use crate::socket;
use motet_engine::message::transport::{Connected, Identity, Listener, NodeId, Transport};
use motet_engine::reason::Reason;
use motet_proto::message::session::handshake::{Handshake, HandshakeOp};
use motet_proto::message::session::{Role, Session};
use motet_sys::rustix::io::Errno;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Accepts connections from other nodes.
#[derive(Debug)]
pub struct NodeListener {
    acceptor: Acceptor,
    node: Arc<LocalNode>,
}

impl NodeListener {
    /// Begins to listen at the node's configured address.
    pub fn new(identity: &Identity) -> Result<Self, Reason> {
        let wanted = identity.listen.ok_or(Reason::NO_MESSAGES)?;
        let acceptor = Acceptor::new(&wanted).map_err(|errno: Errno| match errno {
            Errno::ADDRINUSE => Reason::NAME_TAKEN,
            Errno::ACCESS | Errno::PERM => Reason::NOT_PERMITTED,
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => Reason::NO_MEMORY,
            _ => Reason::NO_SUCH_NODE,
        })?;
        let node = LocalNode::of(identity);
        node.sessions.set_listen_address(Some(acceptor.address()));
        Ok(Self { acceptor, node })
    }

    /// Begins a session with an admitted peer.
    fn establish(&self, admitted: Admitted, now: u64) -> Option<Connected> {
        let Admitted { incoming, ref handshake, owner } = admitted;
        let own = reply(&self.node.sessions, HandshakeOp::Admitted, handshake);
        let refused = Handshake { op: HandshakeOp::Refused, secret: 0, ..own };
        // A node has no link to itself.
        let session = Session::new(Role::Called, own, handshake, now).ok().filter(|_| handshake.node != own.node);
        // Only a valid session is added to the table.
        let add = || self.node.sessions.add(handshake.session, Origin::Accepted(owner));
        let added = session.and_then(|session| Some((session, add()?)));
        let Some((session, mailbox)) = added else {
            incoming.answer(&refused);
            return None;
        };
        socket::set_options(&incoming.fd);
        let peer_listener = (handshake.port != 0).then(|| SocketAddr::new(incoming.peer.ip(), handshake.port));
        match TcpLink::new(session, Role::Called, incoming.fd, (self.node.clone(), mailbox), peer_listener, None) {
            Ok(link) => Some(Connected { peer: NodeId(handshake.node), transport: Transport::Packet(Box::new(link)) }),
            Err(_) => {
                self.node.sessions.remove(handshake.session);
                None
            }
        }
    }
}

impl Listener for NodeListener {
    fn descriptor(&self) -> RawFd {
        self.acceptor.set().descriptor()
    }

    fn step(&mut self, now: u64) -> Option<Connected> {
        while let Some(admitted) = self.acceptor.step(&self.node.sessions, now) {
            let connected = self.establish(admitted, now);
            if connected.is_some() {
                return connected;
            }
        }
        None
    }

    fn due(&self) -> Option<u64> {
        self.acceptor.due()
    }

    fn address(&self) -> String {
        self.node.sessions.secret().prefix_to(&self.shown_address())
    }

    fn shown_address(&self) -> String {
        self.acceptor.address().to_string()
    }
}

impl Drop for NodeListener {
    fn drop(&mut self) {
        self.node.sessions.set_listen_address(None);
    }
}
