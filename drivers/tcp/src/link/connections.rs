//! How a link's connections come and go: rails more, and a first one again after a break.

use super::Link;
use crate::acceptor::reply;
use crate::dial::{Dial, Dialed, Failure};
use motet_engine::message::transport::Lost;
use motet_engine::reason::Reason;
use motet_proto::message::session::Role;
use motet_proto::message::session::handshake::{Handshake, HandshakeOp};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::io::Errno;

/// The door is looked at so often, ns.
const LOOK: u64 = 1_000_000;
/// A session that has outlived a refusal at its caller's door by so long, ns, has its caller somewhere else.
const OUTLIVED: u64 = 1_000_000_000;

impl Link {
    /// Whatever is due. Costs a few loads when nothing is.
    pub(super) fn connections_step(&mut self, now: u64) -> Result<(), Lost> {
        if self.mailbox.is_full() {
            self.visits(now)?;
        }
        if self.door.is_some() && now >= self.stepped.saturating_add(LOOK) {
            self.step_door(now);
        }
        if !self.session.tick(now) {
            return Err(self.end(Reason::PEER_GONE));
        }
        if self.dial.is_none() {
            if !self.session.is_up() {
                self.dial_again(now)?;
            } else if self.role == Role::Caller && self.session.wants_rail() {
                let handshake = self.session.another();
                self.dial(handshake, now)?;
            } else if self.role == Role::Called && !self.asked {
                self.asked = true;
                self.dial(self.session.question(), now)?;
            }
        }
        if self.dial.is_some() {
            self.dialed(now)?;
        }
        Ok(())
    }

    /// Answers who asks for us. Another link may be doing so.
    fn step_door(&mut self, now: u64) {
        self.stepped = now;
        let Some(mut door) = self.door.as_ref().and_then(|door| door.try_lock().ok()) else { return };
        let is_due = door.due().is_some_and(|due| due <= now);
        if door.set().is_ready() || is_due {
            while let Some((guest, handshake)) = door.step(&self.node, now) {
                guest.answer(&reply(&self.node, HandshakeOp::Refused, &handshake));
            }
        }
    }

    /// A connection has broken: all are void.
    pub(super) fn broke(&mut self, now: u64) {
        if self.refused.is_some_and(|at| now > at.saturating_add(OUTLIVED)) {
            self.address = None;
        }
        self.session.lost(now);
        self.sockets.fill_with(|| None);
        self.dial = None;
    }

    /// The link is over.
    pub(super) fn end(&mut self, reason: Reason) -> Lost {
        self.lost = Some(reason);
        self.sockets.fill_with(|| None);
        self.dial = None;
        self.node.leave(self.session.number());
        Lost(reason)
    }

    fn dial_again(&mut self, now: u64) -> Result<(), Lost> {
        if self.address.is_some()
            && let Some(handshake) = self.session.attempt(now)
        {
            self.dial(handshake, now)?;
        }
        Ok(())
    }

    fn dial(&mut self, handshake: Handshake, now: u64) -> Result<(), Lost> {
        let Some(address) = &self.address else { return Ok(()) };
        match Dial::new(address, handshake, now) {
            Ok(dial) => {
                // Where the set cannot hold it, it is stepped by time alone.
                let _ = self.set.add(dial.set());
                self.dial = Some(dial);
                Ok(())
            }
            Err(Errno::CONNREFUSED) => self.no_listener(handshake.op, now),
            Err(_) => Ok(()),
        }
    }

    /// Goes on with the connection that is on its way.
    fn dialed(&mut self, now: u64) -> Result<(), Lost> {
        let Some(dial) = &mut self.dial else { return Ok(()) };
        let asked = dial.handshake().op;
        let outcome = dial.step(now);
        if matches!(outcome, Dialed::Pending) {
            return Ok(());
        }
        self.dial = None;
        match outcome {
            Dialed::Answered(fd, reply) if reply.op == HandshakeOp::Welcome => self.welcomed(asked, fd, &reply, now),
            Dialed::Answered(_, reply) if reply.op == HandshakeOp::Unknown && !self.session.is_up() => {
                Err(self.end(Reason::PEER_GONE)) // the node has forgotten, or is another one
            }
            Dialed::NoListener | Dialed::Failed(Failure::Foreign | Failure::Version) => self.no_listener(asked, now),
            _ => Ok(()),
        }
    }

    /// No node answers at the other node's address.
    fn no_listener(&mut self, asked: HandshakeOp, now: u64) -> Result<(), Lost> {
        match asked {
            _ if !self.session.is_up() => return Err(self.end(Reason::PEER_GONE)),
            HandshakeOp::Probe => self.refused = Some(now),
            _ => {}
        }
        Ok(())
    }

    fn welcomed(&mut self, asked: HandshakeOp, fd: PrivateFd, reply: &Handshake, now: u64) -> Result<(), Lost> {
        if asked == HandshakeOp::Probe {
            return Ok(()); // there is a caller: it will come when it has to
        }
        match self.session.welcomed(asked, reply, now) {
            Ok(Some(slot)) => self.joined(slot, fd, now),
            Ok(None) => Ok(()),
            Err(_) => Err(self.end(Reason::BROKEN)),
        }
    }

    /// Connections that have come for this session.
    fn visits(&mut self, now: u64) -> Result<(), Lost> {
        for visit in self.mailbox.take() {
            match self.session.visited(&visit.handshake, now) {
                Ok(Some(slot)) => {
                    if visit.handshake.op == HandshakeOp::Resume {
                        self.sockets.fill_with(|| None);
                        self.dial = None;
                    }
                    self.joined(slot, visit.fd, now)?;
                }
                Ok(None) => {}
                Err(_) => return Err(self.end(Reason::BROKEN)),
            }
        }
        Ok(())
    }

    fn joined(&mut self, slot: usize, fd: PrivateFd, now: u64) -> Result<(), Lost> {
        if self.install(slot, fd).is_err() {
            self.broke(now);
        }
        self.flush(false);
        Ok(())
    }
}
