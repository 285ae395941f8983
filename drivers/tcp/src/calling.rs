//! Going to another node: one connection, one greeting, one answer.

use crate::dial::{Dial, Dialed, Failure};
use crate::door::Door;
use crate::link::Link;
use crate::node::Node;
use motet_engine::message::medium::{Calling, Identity, Medium, Met, NodeId};
use motet_engine::reason::Reason;
use motet_proto::message::session::greeting::{Greeting, Wish};
use motet_proto::message::session::{LARGEST, Role, Session};
use motet_sys::fds::PrivateFd;
use motet_sys::{clock, memory};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

/// On the way to another node.
#[derive(Debug)]
pub struct Call {
    node: Arc<Node>,
    address: SocketAddr,
    dial: Dial,
    /// Where the other can ask for us.
    door: Option<Arc<Mutex<Door>>>,
    over: bool,
}

impl Call {
    /// Begins to call a node at `ADDRESS:PORT`.
    pub fn new(identity: &Identity, address: &str) -> Result<Self, Reason> {
        let address: SocketAddr = address.parse().map_err(|_| Reason::NO_SUCH_NODE)?;
        let node = Node::of(identity.id);
        let greeting = Greeting {
            wish: Wish::New,
            epoch: 0,
            node: identity.id.0,
            session: memory::nonce().map_err(|_| Reason::NO_RANDOM)?,
            expected: 0,
            largest: LARGEST as u32,
            port: 0,
        };
        let mut dial = Dial::new(&address, greeting, clock::nanoseconds()).map_err(|_| Reason::NO_SUCH_NODE)?;
        let (port, door) = dial.own_address().map_or((0, None), |own| node.door(own));
        dial.name_port(port);
        Ok(Self { node, address, dial, door, over: false })
    }

    fn met(&self, fd: PrivateFd, reply: &Greeting, now: u64) -> Result<Met, Reason> {
        match reply.wish {
            Wish::Welcome => {}
            Wish::Version => return Err(Reason::VERSION),
            _ => return Err(Reason::NO_SUCH_NODE),
        }
        let own = *self.dial.greeting();
        let session = Session::new(Role::Caller, own, reply, now).map_err(|_| Reason::BROKEN)?;
        let mailbox = self.node.enter(own.session, false).ok_or(Reason::NO_MEMORY)?;
        let link =
            Link::new(session, Role::Caller, fd, (self.node.clone(), mailbox), Some(self.address), self.door.clone());
        let link = link.map_err(|_| {
            self.node.leave(own.session);
            Reason::NO_MEMORY
        })?;
        Ok(Met { peer: NodeId(reply.node), medium: Medium::Frames(Box::new(link)) })
    }
}

impl Calling for Call {
    fn step(&mut self, now: u64) -> Option<Result<Met, Reason>> {
        if self.over {
            return Some(Err(Reason::NO_SUCH_NODE));
        }
        let outcome = match self.dial.step(now) {
            Dialed::Pending => return None,
            Dialed::Answered(fd, reply) => self.met(fd, &reply, now),
            Dialed::Failed(Failure::Version) => Err(Reason::VERSION),
            Dialed::Nobody | Dialed::Failed(_) => Err(Reason::NO_SUCH_NODE),
        };
        self.over = true;
        Some(outcome)
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.dial.set().descriptor())
    }
}
