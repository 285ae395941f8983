//! The connections of a link: further rails, reconnection after a break, and the probe for a caller that may be gone.

use super::TcpLink;
use crate::acceptor::{Admitted, reply};
use crate::outgoing::{AttemptError, AttemptOutcome, OutgoingConnection};
use motet_engine::message::transport::Lost;
use motet_engine::reason::Reason;
use motet_proto::message::session::Role;
use motet_proto::message::session::handshake::{Handshake, HandshakeOp};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::io::Errno;

/// How often the shared acceptor is polled, ns.
const ACCEPTOR_POLL_INTERVAL_NS: u64 = 1_000_000;
/// A session that lives this long after its caller's port refused a probe, ns, has its caller elsewhere (behind address translation, for
/// example): a refusal at that port says nothing about the caller.
const REFUSAL_VALID_NS: u64 = 1_000_000_000;

impl TcpLink {
    /// Does what is due. Costs a few loads when nothing is.
    pub(super) fn connections_step(&mut self, now: u64) -> Result<(), Lost> {
        if self.mailbox.has_connections() {
            self.take_delivered(now)?;
        }
        if self.acceptor.is_some() && now >= self.acceptor_stepped_at.saturating_add(ACCEPTOR_POLL_INTERVAL_NS) {
            self.step_acceptor(now);
        }
        if !self.session.tick(now) {
            return Err(self.finish(Reason::PEER_GONE));
        }
        if self.attempt.is_none() {
            if !self.session.is_up() {
                self.reconnect(now)?;
            } else if self.role == Role::Caller && self.session.wants_rail() {
                let handshake = self.session.another();
                self.start_attempt(handshake, now)?;
            } else if self.role == Role::Called && !self.probed {
                self.probed = true;
                self.start_attempt(self.session.question(), now)?;
            }
        }
        if self.attempt.is_some() {
            self.step_attempt(now)?;
        }
        Ok(())
    }

    /// Answers peers that ask for this node, unless another link does so at the moment. New sessions are refused: the node does not listen.
    fn step_acceptor(&mut self, now: u64) {
        self.acceptor_stepped_at = now;
        let Some(mut acceptor) = self.acceptor.as_ref().and_then(|acceptor| acceptor.try_lock().ok()) else { return };
        let is_due = acceptor.due().is_some_and(|due| due <= now);
        if acceptor.set().is_ready() || is_due {
            while let Some(Admitted { incoming, handshake, .. }) = acceptor.step(&self.node.sessions, now) {
                incoming.answer(&reply(&self.node.sessions, HandshakeOp::Refused, &handshake));
            }
        }
    }

    /// Handles a broken connection: drops all connections of the session. The caller connects again.
    pub(super) fn connection_broke(&mut self, now: u64) {
        if self.probe_refused_at.is_some_and(|at| now > at.saturating_add(REFUSAL_VALID_NS)) {
            self.address = None;
        }
        self.session.lost(now);
        self.sockets.fill_with(|| None);
        self.attempt = None;
    }

    /// Ends the link.
    pub(super) fn finish(&mut self, reason: Reason) -> Lost {
        self.lost = Some(reason);
        self.sockets.fill_with(|| None);
        self.attempt = None;
        self.node.sessions.remove(self.session.number());
        Lost(reason)
    }

    fn reconnect(&mut self, now: u64) -> Result<(), Lost> {
        // Also without an address: an attempt that is never made would stay due, and no thread could sleep until the session is lost.
        if let Some(handshake) = self.session.attempt(now) {
            self.start_attempt(handshake, now)?;
        }
        Ok(())
    }

    fn start_attempt(&mut self, handshake: Handshake, now: u64) -> Result<(), Lost> {
        let Some(address) = &self.address else { return Ok(()) };
        match OutgoingConnection::new(address, handshake, now) {
            Ok(attempt) => {
                // Without its place in the set, the attempt is stepped by time alone.
                let _ = self.set.add(attempt.set());
                self.attempt = Some(attempt);
                Ok(())
            }
            Err(Errno::CONNREFUSED) => self.no_listener(handshake.op, now),
            Err(_) => Ok(()),
        }
    }

    /// Makes progress with the connection attempt.
    fn step_attempt(&mut self, now: u64) -> Result<(), Lost> {
        let Some(attempt) = &mut self.attempt else { return Ok(()) };
        let op = attempt.handshake().op;
        let outcome = attempt.step(now);
        if matches!(outcome, AttemptOutcome::Pending) {
            return Ok(());
        }
        self.attempt = None;
        match outcome {
            AttemptOutcome::Answered(fd, reply) if reply.op == HandshakeOp::Welcome => {
                self.welcomed(op, fd, &reply, now)
            }
            AttemptOutcome::Answered(_, reply) if reply.op == HandshakeOp::Unknown && !self.session.is_up() => {
                Err(self.finish(Reason::PEER_GONE)) // the node has dropped the session, or is another node
            }
            AttemptOutcome::NoListener | AttemptOutcome::Failed(AttemptError::Foreign | AttemptError::Version) => {
                self.no_listener(op, now)
            }
            _ => Ok(()),
        }
    }

    /// No node of this version answers at the peer's address.
    fn no_listener(&mut self, op: HandshakeOp, now: u64) -> Result<(), Lost> {
        match op {
            _ if !self.session.is_up() => return Err(self.finish(Reason::PEER_GONE)),
            HandshakeOp::Probe => self.probe_refused_at = Some(now),
            _ => {}
        }
        Ok(())
    }

    /// The peer has accepted the connection of the attempt.
    fn welcomed(&mut self, op: HandshakeOp, fd: PrivateFd, reply: &Handshake, now: u64) -> Result<(), Lost> {
        if op == HandshakeOp::Probe {
            return Ok(()); // the caller exists, and will connect again when it needs to
        }
        match self.session.welcomed(op, reply, now) {
            Ok(Some(slot)) => self.attach(slot, fd, now),
            Ok(None) => Ok(()),
            Err(_) => Err(self.finish(Reason::BROKEN)),
        }
    }

    /// Takes the connections that the acceptor has delivered for this session.
    fn take_delivered(&mut self, now: u64) -> Result<(), Lost> {
        for connection in self.mailbox.take() {
            match self.session.visited(&connection.handshake, now) {
                Ok(Some(slot)) => {
                    if connection.handshake.op == HandshakeOp::Resume {
                        self.sockets.fill_with(|| None);
                        self.attempt = None;
                    }
                    self.attach(slot, connection.fd, now)?;
                }
                Ok(None) => {}
                Err(_) => return Err(self.finish(Reason::BROKEN)),
            }
        }
        Ok(())
    }

    /// Adds a connection as the rail `slot`.
    fn attach(&mut self, slot: usize, fd: PrivateFd, now: u64) -> Result<(), Lost> {
        if self.add_connection(slot, fd).is_err() {
            self.connection_broke(now);
        }
        self.flush(false);
        Ok(())
    }
}
