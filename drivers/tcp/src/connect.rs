//! Going to another node: one connection, one handshake, one answer.

use crate::acceptor::Door;
use crate::admission::{self, Other};
use crate::dial::{Dial, Dialed, Failure};
use crate::link::Link;
use crate::session_table::Node;
use motet_engine::message::transport::{Connected, Connector, Identity, NodeId, Secret, Transport};
use motet_engine::reason::Reason;
use motet_proto::message::session::handshake::{Handshake, HandshakeOp};
use motet_proto::message::session::{MAX_PACKET_BYTES, Role, Session};
use motet_sys::private_fds::PrivateFd;
use motet_sys::{clock, memory};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

/// On the way to another node.
#[derive(Debug)]
pub struct Call {
    node: Arc<Node>,
    address: SocketAddr,
    /// What the address has; without it only a process of our user on this host is called.
    secret: Option<Secret>,
    /// Our own end.
    near: Option<SocketAddr>,
    dial: Dial,
    /// Where the other can ask for us.
    door: Option<Arc<Mutex<Door>>>,
    over: bool,
}

impl Call {
    /// Begins to call a node at `[SECRET@]ADDRESS:PORT`.
    pub fn new(identity: &Identity, address: &str) -> Result<Self, Reason> {
        let (secret, address) = admission::place(address).ok_or(Reason::NO_SUCH_NODE)?;
        let node = Node::of(identity);
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
        let mut dial = Dial::new(&address, handshake, clock::nanoseconds()).map_err(|_| Reason::NO_SUCH_NODE)?;
        let near = dial.near();
        let (port, door) = near.map_or((0, None), |own| node.door(own.ip()));
        dial.name_port(port);
        Ok(Self { node, address, secret, near, dial, door, over: false })
    }

    /// Which node was reached: a process that listens at a node's port after that node's end must not be taken for it.
    fn is_known(&self, reply: &Handshake) -> Result<(), Reason> {
        let right = self.secret.is_some_and(|secret| secret.is_answered(reply.secret));
        match self.near.map_or(Other::Unknown, |near| admission::other_end(near, self.address)) {
            Other::AnotherUser => Err(Reason::OTHER_USER),
            other if admission::may(other, right) => Ok(()),
            _ => Err(Reason::BAD_SECRET),
        }
    }

    fn met(&self, fd: PrivateFd, reply: &Handshake, now: u64) -> Result<Connected, Reason> {
        match reply.op {
            HandshakeOp::Admitted => self.is_known(reply)?,
            HandshakeOp::NotPermitted => return Err(self.is_known(reply).err().unwrap_or(Reason::BAD_SECRET)),
            HandshakeOp::Version => return Err(Reason::VERSION),
            _ => return Err(Reason::NO_SUCH_NODE),
        }
        let own = *self.dial.handshake();
        let session = Session::new(Role::Caller, own, reply, now).map_err(|_| Reason::BROKEN)?;
        let mailbox = self.node.enter(own.session, false).ok_or(Reason::NO_MEMORY)?;
        let link =
            Link::new(session, Role::Caller, fd, (self.node.clone(), mailbox), Some(self.address), self.door.clone());
        let link = link.map_err(|_| {
            self.node.leave(own.session);
            Reason::NO_MEMORY
        })?;
        Ok(Connected { peer: NodeId(reply.node), transport: Transport::Packet(Box::new(link)) })
    }
}

impl Connector for Call {
    fn step(&mut self, now: u64) -> Option<Result<Connected, Reason>> {
        if self.over {
            return Some(Err(Reason::NO_SUCH_NODE));
        }
        let outcome = match self.dial.step(now) {
            Dialed::Pending => return None,
            Dialed::Answered(fd, reply) => self.met(fd, &reply, now),
            Dialed::Failed(Failure::Version) => Err(Reason::VERSION),
            Dialed::NoListener | Dialed::Failed(_) => Err(Reason::NO_SUCH_NODE),
        };
        self.over = true;
        Some(outcome)
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.dial.set().descriptor())
    }
}
