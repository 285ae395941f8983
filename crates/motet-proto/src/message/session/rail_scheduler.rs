//! Rails of a session: which of them sends what, how they come and go, and what is due when.
//!
//! The caller opens rails and ends those that idle; rail 0 is the one on which the session began or was resumed, and stays.

use super::frame::{FrameKind, Header};
use super::handshake::{Handshake, HandshakeOp};
use super::rail::Rail;
use super::retry::Retry;
use super::{ACK_BYTES, ACK_DELAY_NS, ProtocolViolation, Role, Session};
use std::io::IoSlice;

/// Pieces that a rail sends at a time.
pub const MAX_IO_SLICES: usize = 4;
/// A rail more when the rails were full so often while so much waited.
const BACKLOG_ROUNDS: u32 = 64;
const BACKLOG_BYTES: u64 = 256 << 10;
/// A rail that was not needed for so long is ended; memory that was not, given back.
const IDLE_NS: u64 = 1_000_000_000;

impl Session {
    // ---- bytes ------------------------------------------------------------------------------------------------------

    /// Whether any rail has something to send, or may be given something.
    pub fn has_outgoing(&self) -> bool {
        self.is_up()
            && (self.assigned_to < self.log.end()
                || self.should_ack(self.now)
                || self.rails.iter().flatten().any(|rail| !rail.is_free() || rail.end_received && !rail.end_sent))
    }

    /// What a rail sends next: pieces of its front, of which [`Session::sent`] then says how many bytes have gone.
    pub fn outgoing<'a>(&'a mut self, slot: usize, out: &mut [IoSlice<'a>; MAX_IO_SLICES]) -> usize {
        self.assign(slot);
        let Some(rail) = &self.rails[slot] else { return 0 };
        let mut n = 0;
        if !rail.control().is_empty() {
            out[0] = IoSlice::new(rail.control());
            n = 1;
        }
        if !rail.run.is_empty() {
            n += self.log.pieces(rail.run.start, rail.run.end, &mut out[n..]);
        }
        n
    }

    /// So many bytes of what `outgoing` gave have gone.
    pub fn sent(&mut self, slot: usize, n: usize) {
        if let Some(rail) = &mut self.rails[slot] {
            rail.sent(n);
        }
    }

    /// The rail takes no more now.
    pub fn blocked(&mut self) {
        if self.log.end() - self.assigned_to >= BACKLOG_BYTES {
            self.backlog_rounds = self.backlog_rounds.saturating_add(1);
        }
    }

    /// Where bytes of a rail are to be received; nothing if it must wait for other rails.
    pub fn space(&mut self, slot: usize) -> Option<&mut [u8]> {
        self.rails[slot].as_mut().map(Rail::space).filter(|space| !space.is_empty())
    }

    /// Bytes without which nothing can be done about what has come on a rail: those that the frame at its front missing_bytes, 1 where none has
    /// begun.
    pub fn missing_bytes(&self, slot: usize) -> usize {
        self.rails[slot].as_ref().map_or(1, Rail::missing_bytes)
    }

    /// So many bytes have come into what `space` gave.
    pub fn received(&mut self, slot: usize, n: usize) {
        if let Some(rail) = &mut self.rails[slot] {
            rail.received(n);
        }
    }

    /// Gives a free rail its next bytes: what is owed in answer, then a run of the log.
    fn assign(&mut self, slot: usize) {
        let should_ack = self.should_ack(self.now);
        let request_rail = self.role == Role::Called && self.wants_rail();
        let Some(rail) = &mut self.rails[slot] else { return };
        if !rail.is_free() || rail.end_sent {
            return;
        }
        if rail.end_received {
            rail.send_bare(Header::bare(FrameKind::End, self.expected));
        } else if should_ack {
            rail.send_bare(Header::bare(FrameKind::Acknowledgement, self.expected));
            self.acked_to = self.expected;
            self.ack_now = false;
        } else if request_rail {
            rail.send_bare(Header::bare(FrameKind::More, self.expected));
            self.backlog_rounds = 0;
        }
        if !rail.end_sent && self.assigned_to < self.log.end() {
            let end = self.log.run(self.assigned_to);
            rail.run = self.assigned_to..end;
            (rail.last_used, self.last_used) = (self.now, self.now);
            self.assigned_to = end;
            self.sample.get_or_insert((end, self.now));
        }
        if self.assigned_to == self.log.end() {
            self.backlog_rounds = 0;
        }
    }

    /// Whether the other side should be acked_to now what has come.
    fn should_ack(&self, now: u64) -> bool {
        let owed = self.expected - self.acked_to;
        self.ack_now || owed >= ACK_BYTES || owed > 0 && now >= self.unacked_since.saturating_add(ACK_DELAY_NS)
    }

    // ---- time -------------------------------------------------------------------------------------------------------

    /// Lets time pass. False: the session was not resumed in time, it is over.
    pub fn tick(&mut self, now: u64) -> bool {
        self.now = now;
        if let Some(retry) = &self.retry {
            return !retry.is_over(now);
        }
        if self.borrowed_frame.is_none() && now >= self.last_used.saturating_add(IDLE_NS) {
            if self.log.memory() + self.rails.iter().flatten().map(Rail::memory).sum::<usize>() > 0 {
                self.log.trim();
                self.rails.iter_mut().flatten().for_each(Rail::trim);
            }
            self.last_used = now;
        }
        if self.role == Role::Caller {
            for rail in self.rails[1..].iter_mut().flatten() {
                if !rail.end_sent && rail.is_free() && now >= rail.last_used.saturating_add(IDLE_NS) {
                    rail.send_bare(Header::bare(FrameKind::End, self.expected));
                }
            }
        }
        true
    }

    /// When `tick` must be called although nothing has come.
    pub fn due(&self) -> Option<u64> {
        if let Some(retry) = &self.retry {
            return Some(retry.due());
        }
        let answer = (self.expected > self.acked_to).then(|| self.unacked_since.saturating_add(ACK_DELAY_NS));
        let idle = (self.memory() > 0).then(|| self.last_used.saturating_add(IDLE_NS));
        let extra = self.rails[1..].iter().flatten().filter(|rail| !rail.end_sent);
        let extra =
            extra.map(|rail| rail.last_used.saturating_add(IDLE_NS)).min().filter(|_| self.role == Role::Caller);
        [answer, idle, extra].into_iter().flatten().min()
    }

    // ---- rails ------------------------------------------------------------------------------------------------------

    /// A rail has broken: all of them are void, and so are their connections.
    pub fn lost(&mut self, now: u64) {
        if self.retry.is_none() {
            self.retry = Some(Retry::new(now));
        }
        self.rails = Default::default();
        self.borrowed_frame = None;
        (self.sample, self.round_trip) = (None, u64::MAX);
        (self.backlog_rounds, self.rail_requested) = (0, false);
    }

    /// Whether both ends have said that nothing more goes over this rail: its connection may be closed. True once.
    pub fn has_ended(&mut self, slot: usize) -> bool {
        let over = self.rails[slot].as_ref().is_some_and(|rail| rail.end_sent && rail.end_received && rail.is_free());
        if over && self.borrowed_frame.is_none_or(|(borrowed_frame, ..)| borrowed_frame != slot) {
            self.rails[slot] = None;
            return true;
        }
        false
    }

    /// The called side's handshake, to ask at the caller's whether it knows the session.
    pub fn question(&self) -> Handshake {
        self.handshake(HandshakeOp::Probe, self.epoch)
    }

    /// The caller's handshake for a new connection, when an attempt is due. The called side's, to ask whether the other still
    /// knows the session.
    pub fn attempt(&mut self, now: u64) -> Option<Handshake> {
        if !self.retry.as_mut()?.attempt(now) {
            return None;
        }
        if self.role == Role::Called {
            return Some(self.question());
        }
        // Never one that the other side may have seen: of two connections the later one counts.
        self.epoch = self.epoch.wrapping_add(1);
        Some(self.handshake(HandshakeOp::Resume, self.epoch))
    }

    /// Whether a rail more would help.
    pub fn wants_rail(&self) -> bool {
        self.is_up()
            && (self.backlog_rounds >= BACKLOG_ROUNDS || self.rail_requested)
            && self.rails.iter().any(Option::is_none)
    }

    /// The caller's handshake for one rail more.
    pub fn another(&mut self) -> Handshake {
        (self.backlog_rounds, self.rail_requested) = (0, false);
        self.handshake(HandshakeOp::Rail, self.epoch)
    }

    fn handshake(&self, op: HandshakeOp, epoch: u32) -> Handshake {
        Handshake { op, epoch, expected: self.expected, ..self.own }
    }

    /// The other side has welcomed a connection for which `asked` was said: the slot of its rail. `None`: it comes too late.
    pub fn welcomed(
        &mut self,
        asked: HandshakeOp,
        reply: &Handshake,
        now: u64,
    ) -> Result<Option<usize>, ProtocolViolation> {
        if reply.session != self.own.session || reply.node != self.peer {
            return Err(ProtocolViolation("a welcome to another session"));
        }
        if reply.epoch != self.epoch {
            return Ok(None);
        }
        match asked {
            HandshakeOp::Resume if !self.is_up() => self.resume(reply, None, now).map(Some),
            HandshakeOp::Rail if self.is_up() => Ok(self.add(None, now)),
            _ => Ok(None),
        }
    }

    /// A connection has come for this session; the slot of its rail, on which the answer is the first to be sent. After
    /// [`HandshakeOp::Resume`] all earlier connections are void. `None`: it is not to be had.
    pub fn visited(&mut self, handshake: &Handshake, now: u64) -> Result<Option<usize>, ProtocolViolation> {
        if self.role != Role::Called || handshake.session != self.own.session || handshake.node != self.peer {
            return Ok(None);
        }
        match handshake.op {
            HandshakeOp::Resume if handshake.epoch > self.epoch => {
                self.check(handshake)?;
                self.epoch = handshake.epoch;
                let reply = self.handshake(HandshakeOp::Welcome, self.epoch).encode();
                self.resume(handshake, Some(reply), now).map(Some)
            }
            HandshakeOp::Rail if handshake.epoch == self.epoch && self.is_up() => {
                let reply = self.handshake(HandshakeOp::Welcome, self.epoch).encode();
                Ok(self.add(Some(reply), now))
            }
            _ => Ok(None),
        }
    }

    fn check(&self, handshake: &Handshake) -> Result<(), ProtocolViolation> {
        // What was kept and may have been sent: `assigned_to` goes back with every resumption, the end of the log does not.
        if handshake.expected < self.log.front() || handshake.expected > self.log.end() {
            return Err(ProtocolViolation("a handshake that expects what is not to be had"));
        }
        Ok(())
    }

    /// Goes on over a first rail, from where the other side says.
    fn resume(
        &mut self,
        handshake: &Handshake,
        reply: Option<[u8; super::handshake::HANDSHAKE_BYTES]>,
        now: u64,
    ) -> Result<usize, ProtocolViolation> {
        self.check(handshake)?;
        self.lost(now);
        self.retry = None;
        self.log.release(handshake.expected);
        self.assigned_to = handshake.expected;
        self.acked_to = self.expected;
        self.ack_now = false;
        self.last_used = now;
        self.rails[0] = Some(Rail::new(reply, now));
        Ok(0)
    }

    fn add(&mut self, reply: Option<[u8; super::handshake::HANDSHAKE_BYTES]>, now: u64) -> Option<usize> {
        let slot = self.rails.iter().position(Option::is_none)?;
        self.rails[slot] = Some(Rail::new(reply, now));
        Some(slot)
    }
}
