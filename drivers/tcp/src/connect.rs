//! Connects to another node: one connection attempt with a handshake for a new session, then a link.

use crate::acceptor::Acceptor;
use crate::admission::{self, PeerOwner};
use crate::link::TcpLink;
use crate::node::LocalNode;
use crate::outgoing::{AttemptError, AttemptOutcome, OutgoingConnection};
use crate::session_table::Origin;
use motet_engine::message::transport::{Connected, Connector, Identity, NodeId, Secret, Transport};
use motet_engine::reason::Reason;
use motet_proto::message::session::handshake::{Handshake, HandshakeOp};
use motet_proto::message::session::{MAX_PACKET_BYTES, Role, Session};
use motet_sys::private_fds::PrivateFd;
use motet_sys::{clock, memory};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

/// A connection to another node that is being established.
#[derive(Debug)]
pub struct NodeConnector {
    node: Arc<LocalNode>,
    address: SocketAddr,
    /// The secret of the address. Without one, only a process of our user on this host is accepted as the peer.
    secret: Option<Secret>,
    /// The address of this end.
    local: Option<SocketAddr>,
    attempt: OutgoingConnection,
    /// Where the peer can ask whether this node still exists.
    acceptor: Option<Arc<Mutex<Acceptor>>>,
    done: bool,
}

impl NodeConnector {
    /// Begins to connect to the node at `[SECRET@]ADDRESS:PORT`.
    pub fn new(identity: &Identity, address: &str) -> Result<Self, Reason> {
        let (secret, address) = admission::parse_address(address).ok_or(Reason::NO_SUCH_NODE)?;
        let node = LocalNode::of(identity);
        let handshake = Handshake {
            op: HandshakeOp::New,
            epoch: 0,
            node: identity.id.0,
            session: memory::nonce().map_err(|_| Reason::NO_RANDOM)?,
            expected: 0,
            secret: secret.map_or(0, |secret| secret.caller),
            largest: MAX_PACKET_BYTES as u32,
            port: 0,
        };
        let attempt = OutgoingConnection::new(&address, handshake, clock::nanoseconds());
        let mut attempt = attempt.map_err(|_| Reason::NO_SUCH_NODE)?;
        let local = attempt.local_address();
        let (port, acceptor) = local.map_or((0, None), |own| node.acceptor_at(own.ip()));
        attempt.set_handshake_port(port);
        Ok(Self { node, address, secret, local, attempt, acceptor, done: false })
    }

    /// Checks that the answer is the node's: once a node has ended, another process may listen at its port.
    fn authenticate(&self, reply: &Handshake) -> Result<(), Reason> {
        let knows_secret = self.secret.is_some_and(|secret| secret.matches_answer(reply.secret));
        match self.local.map_or(PeerOwner::Unknown, |local| admission::peer_owner(local, self.address)) {
            owner if admission::is_admitted(owner, knows_secret, self.node.sessions.has_other_users()) => Ok(()),
            PeerOwner::OtherUser(_) => Err(Reason::OTHER_USER),
            _ => Err(Reason::BAD_SECRET),
        }
    }

    fn establish(&self, fd: PrivateFd, reply: &Handshake, now: u64) -> Result<Connected, Reason> {
        match reply.op {
            HandshakeOp::Admitted => self.authenticate(reply)?,
            HandshakeOp::NotPermitted => return Err(self.authenticate(reply).err().unwrap_or(Reason::BAD_SECRET)),
            HandshakeOp::Version => return Err(Reason::VERSION),
            _ => return Err(Reason::NO_SUCH_NODE),
        }
        let own = *self.attempt.handshake();
        let session = Session::new(Role::Caller, own, reply, now).map_err(|_| Reason::BROKEN)?;
        let mailbox = self.node.sessions.add(own.session, Origin::Own).ok_or(Reason::NO_MEMORY)?;
        let (address, acceptor) = (Some(self.address), self.acceptor.clone());
        let link = TcpLink::new(session, Role::Caller, fd, (self.node.clone(), mailbox), address, acceptor);
        let link = link.map_err(|_| {
            self.node.sessions.remove(own.session);
            Reason::NO_MEMORY
        })?;
        Ok(Connected { peer: NodeId(reply.node), transport: Transport::Packet(Box::new(link)) })
    }
}

impl Connector for NodeConnector {
    fn step(&mut self, now: u64) -> Option<Result<Connected, Reason>> {
        if self.done {
            return Some(Err(Reason::NO_SUCH_NODE));
        }
        let outcome = match self.attempt.step(now) {
            AttemptOutcome::Pending => return None,
            AttemptOutcome::Answered(fd, reply) => self.establish(fd, &reply, now),
            AttemptOutcome::Failed(AttemptError::Version) => Err(Reason::VERSION),
            AttemptOutcome::NoListener | AttemptOutcome::Failed(_) => Err(Reason::NO_SUCH_NODE),
        };
        self.done = true;
        Some(outcome)
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.attempt.set().descriptor())
    }
}
