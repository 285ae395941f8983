//! Rails of a session: which rail sends what, how rails are opened and ended, and timers.
//!
//! The caller opens rails and ends idle ones. Rail 0, on which the session began or was resumed, stays.

use super::frame::{FrameKind, Header};
use super::handshake::{Handshake, HandshakeOp};
use super::rail::Rail;
use super::retry::Retry;
use super::{ACK_BYTES, ACK_DELAY_NS, ProtocolViolation, Role, Session};
use crate::message::FileRange;
use std::io::IoSlice;

/// Slices that a rail sends at a time.
pub const MAX_IO_SLICES: usize = 4;
/// One more rail is wanted after the rails were full this often while [`BACKLOG_BYTES`] waited.
const BACKLOG_ROUNDS: u32 = 64;
const BACKLOG_BYTES: u64 = 256 << 10;
/// A rail that was unused for this long is ended, and unused memory is released, ns.
const IDLE_NS: u64 = 1_000_000_000;

impl Session {
    // ---- bytes ------------------------------------------------------------------------------------------------------

    /// Whether a rail has something to send, or something can be assigned to one.
    pub fn has_outgoing(&self) -> bool {
        self.is_up()
            && (self.assigned_to < self.log.end()
                || self.should_ack(self.now)
                || self.rails.iter().flatten().any(|rail| !rail.is_free() || rail.end_received && !rail.end_sent))
    }

    /// What a rail sends next, as slices, up to a range of a file. [`Session::sent`] then reports how many of the bytes were sent.
    pub fn outgoing<'a>(&'a mut self, slot: usize, out: &mut [IoSlice<'a>; MAX_IO_SLICES]) -> usize {
        self.outgoing_with_file(slot, out).0
    }

    /// What a rail sends next: slices, and the range of a file behind them, if there is one. Its bytes count as those of slices do.
    pub fn outgoing_with_file<'a>(
        &'a mut self,
        slot: usize,
        out: &mut [IoSlice<'a>; MAX_IO_SLICES],
    ) -> (usize, Option<FileRange>) {
        self.assign(slot);
        let Some(rail) = &self.rails[slot] else { return (0, None) };
        let (mut n, mut file) = (0, None);
        if !rail.control().is_empty() {
            out[0] = IoSlice::new(rail.control());
            n = 1;
        }
        if !rail.run.is_empty() {
            let first = n;
            n += self.log.pieces(rail.run.start, rail.run.end, &mut out[n..]);
            if self.log.has_files() {
                let sliced = out[first..n].iter().map(|slice| slice.len() as u64).sum::<u64>();
                file = self.log.file_at(rail.run.start + sliced, rail.run.end);
            }
        }
        (n, file)
    }

    /// `n` bytes of [`Session::outgoing`] were sent.
    pub fn sent(&mut self, slot: usize, n: usize) {
        if let Some(rail) = &mut self.rails[slot] {
            rail.sent(n);
        }
    }

    /// A rail accepts no more bytes at the moment.
    pub fn blocked(&mut self) {
        if self.log.end() - self.assigned_to >= BACKLOG_BYTES {
            self.backlog_rounds = self.backlog_rounds.saturating_add(1);
        }
    }

    /// Where bytes of a rail are to be received; `None` if it must wait for other rails.
    pub fn space(&mut self, slot: usize) -> Option<&mut [u8]> {
        self.rails[slot].as_mut().map(Rail::space).filter(|space| !space.is_empty())
    }

    /// Bytes without which nothing that was received on a rail can be processed: those that the frame at its front lacks, 1 where
    /// none has begun.
    pub fn missing_bytes(&self, slot: usize) -> usize {
        self.rails[slot].as_ref().map_or(1, Rail::missing_bytes)
    }

    /// `n` bytes were received into [`Session::space`].
    pub fn received(&mut self, slot: usize, n: usize) {
        if let Some(rail) = &mut self.rails[slot] {
            rail.received(n);
        }
    }

    /// Assigns to a free rail what it sends next: a bare frame if one is due, then a run of the log.
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

    /// Whether an acknowledgement is due.
    fn should_ack(&self, now: u64) -> bool {
        let owed = self.expected - self.acked_to;
        self.ack_now || owed >= ACK_BYTES || owed > 0 && now >= self.unacked_since.saturating_add(ACK_DELAY_NS)
    }

    // ---- time -------------------------------------------------------------------------------------------------------

    /// Runs timers. Returns false when the session was not resumed in time and is lost.
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

    /// When [`Session::tick`] must be called even if nothing arrives.
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

    /// A rail has broken: all rails and their connections are void.
    pub fn lost(&mut self, now: u64) {
        if self.retry.is_none() {
            self.retry = Some(Retry::new(now));
        }
        self.rails = Default::default();
        self.borrowed_frame = None;
        (self.sample, self.round_trip) = (None, u64::MAX);
        (self.backlog_rounds, self.rail_requested) = (0, false);
    }

    /// Whether both sides have sent END on a rail, so that its connection may be closed. Returns true once.
    pub fn has_ended(&mut self, slot: usize) -> bool {
        let over = self.rails[slot].as_ref().is_some_and(|rail| rail.end_sent && rail.end_received && rail.is_free());
        if over && self.borrowed_frame.is_none_or(|(borrowed_frame, ..)| borrowed_frame != slot) {
            self.rails[slot] = None;
            return true;
        }
        false
    }

    /// The handshake with which the called side asks the caller whether it knows the session.
    pub fn question(&self) -> Handshake {
        self.handshake(HandshakeOp::Probe, self.epoch)
    }

    /// The handshake for a new connection, when an attempt is due: of the caller to resume, of the called side to ask whether the
    /// caller knows the session.
    pub fn attempt(&mut self, now: u64) -> Option<Handshake> {
        if !self.retry.as_mut()?.attempt(now) {
            return None;
        }
        if self.role == Role::Called {
            return Some(self.question());
        }
        // A new epoch: of two connections the later one counts.
        self.epoch = self.epoch.wrapping_add(1);
        Some(self.handshake(HandshakeOp::Resume, self.epoch))
    }

    /// Whether one more rail would help.
    pub fn wants_rail(&self) -> bool {
        self.is_up()
            && (self.backlog_rounds >= BACKLOG_ROUNDS || self.rail_requested)
            && self.rails.iter().any(Option::is_none)
    }

    /// The caller's handshake for one more rail.
    pub fn another(&mut self) -> Handshake {
        (self.backlog_rounds, self.rail_requested) = (0, false);
        self.handshake(HandshakeOp::Rail, self.epoch)
    }

    fn handshake(&self, op: HandshakeOp, epoch: u32) -> Handshake {
        Handshake { op, epoch, expected: self.expected, ..self.own }
    }

    /// The other side has answered a connection with `Welcome`; `asked` is the request. Returns the slot of the rail. `None`: the
    /// answer is too late.
    pub fn welcomed(
        &mut self,
        asked: HandshakeOp,
        reply: &Handshake,
        now: u64,
    ) -> Result<Option<usize>, ProtocolViolation> {
        if reply.session != self.own.session || reply.node != self.peer {
            return Err(ProtocolViolation("WELCOME from another node or to another session"));
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

    /// A connection for this session has arrived. Returns the slot of its rail, on which the answer is sent first. After
    /// [`HandshakeOp::Resume`] all earlier connections are void. `None`: the request is not possible.
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
        // Against the end of the log and not `assigned_to`, which goes back with every resumption.
        if handshake.expected < self.log.front() || handshake.expected > self.log.end() {
            return Err(ProtocolViolation("handshake that expects a position outside the log"));
        }
        Ok(())
    }

    /// Continues over a first rail, from the position that the other side expects.
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
