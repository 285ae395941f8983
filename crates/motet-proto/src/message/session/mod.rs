//! Sessions: packets over byte streams that may break, delivered exactly once and in order until the session is lost.
//!
//! One side of a *session* between two nodes. A packet that is put becomes a numbered frame in a log (`retransmit_log`) and stays there
//! until the other side acknowledges it. Frames travel over one or several byte streams, *rails* (`rail`), which send runs of the log
//! in turn. When a rail breaks all rails are void. The caller connects again, each side announces the position that it expects next
//! ([`handshake`]), and what is missing is sent again.
//!
//! A session has no sockets and reads no clock: bytes and times are arguments. Connections are made by its owner. Formats:
//! `docs/messages.md`, "Over TCP"; the reasons: `docs/adr/0014`.
//!
//! Frames are delivered in order without a second copy: within a rail positions grow, so the expected frame is at the front of some
//! rail or was not sent yet. Other frames wait where they are, in receive buffers and in the kernel.

pub mod frame;
pub mod handshake;
mod rail;
mod rail_scheduler;
mod retransmit_log;
pub mod retry;

pub use rail_scheduler::MAX_IO_SLICES;

use super::packet::MIN_PACKET_BYTES;
use super::{FileRange, ProtocolViolation};
use frame::{FrameKind, HEADER_BYTES, Header, full_position};
use handshake::{Handshake, HandshakeOp};
use rail::Rail;
use retransmit_log::RetransmitLog;
use retry::Retry;

/// Longest packet that a side accepts: a piece of 64 KiB with its head.
pub const MAX_PACKET_BYTES: usize = (64 << 10) + 64;
/// Limit of the bytes that are put and not acknowledged; the smaller one holds where the round trip is short. The log is written once
/// more than it is sent, so it should stay in a cache; a round trip at `MAX_BYTES_PER_NS` must fit in it.
pub const MAX_UNACKED_BYTES: u64 = 8 << 20;
const MIN_UNACKED_LIMIT_BYTES: u64 = 1 << 20;
/// Bytes per ns that no link exceeds.
const MAX_BYTES_PER_NS: u64 = 8;
/// Bytes that may wait behind the rails.
const MAX_QUEUED_BYTES: u64 = 512 << 10;
/// Most rails of a session.
pub const MAX_RAILS: usize = 4;
/// Received bytes are acknowledged after this many bytes, or after [`ACK_DELAY_NS`]. Each acknowledgement costs both kernels a segment,
/// so they are few: a quarter of the smaller limit of unacknowledged bytes.
const ACK_BYTES: u64 = MIN_UNACKED_LIMIT_BYTES / 4;
const ACK_DELAY_NS: u64 = 20_000_000;

/// The role of this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It began the session and connects again after a break.
    Caller,
    /// It waits for the caller.
    Called,
}

/// One side of a session.
#[derive(Debug)]
pub struct Session {
    role: Role,
    /// The handshake of this side.
    own: Handshake,
    peer: [u8; 16],
    /// Longest packet that both sides accept.
    largest: usize,
    epoch: u32,
    rails: [Option<Rail>; MAX_RAILS],
    /// Set while there is no rail.
    retry: Option<Retry>,
    log: RetransmitLog,
    /// The position up to which the log is assigned to rails.
    assigned_to: u64,
    /// The position at the end of the goodbye of this side; whether the peer's goodbye has arrived.
    goodbye: Option<u64>,
    peer_closed: bool,
    /// A position and the time at which it was sent. The shortest time to its acknowledgement is the round trip, ns.
    sample: Option<(u64, u64)>,
    round_trip: u64,
    /// The position of the next frame, and the position that was acknowledged.
    expected: u64,
    acked_to: u64,
    /// When the first byte that is not acknowledged arrived; whether the acknowledgement is due at once.
    unacked_since: u64,
    ack_now: bool,
    /// The packet that was handed out last, which is still in the buffer of its rail: slot, kind, bytes of the frame.
    borrowed_frame: Option<(usize, u8, usize)>,
    now: u64,
    /// How often rails were full while much waited; whether the other side has asked for a rail.
    backlog_rounds: u32,
    rail_requested: bool,
    /// When something was last put or received, as far as time is known.
    last_used: u64,
}

impl Session {
    /// A session after the first handshake. `own` is the handshake that this side has sent; the connection is rail 0.
    pub fn new(role: Role, own: Handshake, peer: &Handshake, now: u64) -> Result<Self, ProtocolViolation> {
        let largest = (peer.largest as usize).min(MAX_PACKET_BYTES);
        if largest < MIN_PACKET_BYTES || peer.session != own.session || peer.expected != 0 || peer.epoch != 0 {
            return Err(ProtocolViolation("handshake that cannot begin a session"));
        }
        let reply = (role == Role::Called).then(|| Handshake { op: HandshakeOp::Admitted, ..own }.encode());
        Ok(Self {
            role,
            own,
            peer: peer.node,
            largest,
            epoch: 0,
            rails: [Some(Rail::new(reply, now)), None, None, None],
            retry: None,
            log: RetransmitLog::default(),
            assigned_to: 0,
            goodbye: None,
            peer_closed: false,
            sample: None,
            round_trip: u64::MAX,
            expected: 0,
            acked_to: 0,
            unacked_since: now,
            ack_now: false,
            borrowed_frame: None,
            now,
            backlog_rounds: 0,
            rail_requested: false,
            last_used: now,
        })
    }

    /// The id of the other node.
    pub fn peer(&self) -> [u8; 16] {
        self.peer
    }

    /// The id of the session.
    pub fn number(&self) -> [u8; 16] {
        self.own.session
    }

    /// Whether the session has rails.
    pub fn is_up(&self) -> bool {
        self.retry.is_none()
    }

    /// Bytes put, bytes received, and the number of resumptions.
    pub fn counts(&self) -> [u64; 3] {
        [self.log.end(), self.expected, u64::from(self.epoch)]
    }

    /// Bytes of memory for the log and the receive buffers.
    pub fn memory(&self) -> usize {
        self.log.memory() + self.rails.iter().flatten().map(Rail::memory).sum::<usize>()
    }

    /// Bytes that were put and are not acknowledged.
    #[inline]
    pub fn unacknowledged(&self) -> u64 {
        self.log.kept()
    }

    // ---- packets ----------------------------------------------------------------------------------------------------

    /// Longest packet.
    pub fn largest(&self) -> usize {
        self.largest
    }

    /// Longest packet that can be put at the moment; 0 for none.
    pub fn room(&self) -> usize {
        let waiting = self.log.end() - self.assigned_to.min(self.log.end());
        let kept = self.round_trip.saturating_mul(MAX_BYTES_PER_NS).clamp(MIN_UNACKED_LIMIT_BYTES, MAX_UNACKED_BYTES);
        let room = kept.saturating_sub(self.log.kept()).min(MAX_QUEUED_BYTES.saturating_sub(waiting));
        if self.goodbye.is_some() { 0 } else { (room as usize).saturating_sub(HEADER_BYTES) }
    }

    /// Puts a packet. Returns false, and does nothing, when there is no room.
    pub fn put(&mut self, kind: u8, parts: &[&[u8]]) -> bool {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        if length > self.largest || length > self.room() || self.goodbye.is_some() {
            return false;
        }
        self.append(FrameKind::Packet, kind, parts, length);
        true
    }

    /// Puts a packet whose bytes are a head and a range of a file. Returns false, and does nothing, when there is no room.
    pub fn put_file(&mut self, kind: u8, head: &[u8], file: FileRange) -> bool {
        let length = file.len().saturating_add(head.len() as u64);
        if length > self.largest.min(self.room()) as u64 || self.goodbye.is_some() {
            return false;
        }
        let header = self.next_header(FrameKind::Packet, kind, length as usize);
        self.log.append_file(header.encode(), head, file);
        true
    }

    fn append(&mut self, what: FrameKind, kind: u8, parts: &[&[u8]], length: usize) {
        let header = self.next_header(what, kind, length);
        self.log.append(header.encode(), parts, length);
    }

    fn next_header(&mut self, what: FrameKind, kind: u8, length: usize) -> Header {
        // Behind other frames, or without a rail, the frame may wait too long to count as an acknowledgement.
        if self.log.end() == self.assigned_to && self.retry.is_none() {
            self.acked_to = self.expected;
            self.ack_now = false;
        }
        let position = self.log.end() as u32;
        Header { what, kind, length: length as u32, position, acknowledged: self.expected as u32 }
    }

    /// Puts the goodbye. Nothing can be put after it.
    pub fn say_goodbye(&mut self) {
        if self.goodbye.is_none() {
            self.append(FrameKind::Goodbye, 0, &[], 0);
            self.goodbye = Some(self.log.end());
        }
    }

    /// Whether the other side has received everything, the goodbye included, and no acknowledgement is due.
    pub fn is_done(&self) -> bool {
        self.goodbye.is_some() && self.log.kept() == 0 && !(self.ack_now && self.is_up())
    }

    /// Whether the goodbye of the other side has arrived: no further packet follows.
    pub fn is_peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Whether a packet is available: [`Session::packet`] returns it until the next call. An error breaks the session for good.
    pub fn ready(&mut self, now: u64) -> Result<bool, ProtocolViolation> {
        self.now = now;
        if let Some((slot, _, size)) = self.borrowed_frame.take()
            && let Some(rail) = &mut self.rails[slot]
        {
            rail.consume(size);
        }
        for slot in 0..MAX_RAILS {
            if self.take(slot)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The available packet: its kind and its bytes.
    pub fn packet(&self) -> Option<(u8, &[u8])> {
        let (slot, kind, size) = self.borrowed_frame?;
        Some((kind, self.rails[slot].as_ref()?.payload(size)))
    }

    /// Consumes frames at the front of a rail, up to the next packet in order.
    fn take(&mut self, slot: usize) -> Result<bool, ProtocolViolation> {
        while let Some(rail) = &self.rails[slot] {
            let Some((header, complete)) = rail.head()? else { return Ok(false) };
            self.acknowledged(header.acknowledged)?;
            if is_end_received(&self.rails[slot]) || self.peer_closed && header.is_numbered() {
                return Err(ProtocolViolation("frame after END on its rail, or numbered frame after GOODBYE"));
            }
            if !header.is_numbered() {
                self.on_bare(slot, header.what)?;
                continue;
            }
            let size = header.size();
            let ahead = full_position(header.position, self.expected).wrapping_sub(self.expected) as i64;
            if ahead > 0 {
                // It waits for other rails, one of which may still be connecting.
                if ahead as u64 > MAX_UNACKED_BYTES + MAX_PACKET_BYTES as u64 {
                    return Err(ProtocolViolation("frame beyond the window of unacknowledged bytes"));
                }
                return Ok(false);
            }
            if ahead < 0 && ahead + size as i64 > 0 || ahead < -(MAX_UNACKED_BYTES as i64) {
                return Err(ProtocolViolation(
                    "frame that overlaps the expected position, or is older than any unacknowledged one",
                ));
            }
            if !complete {
                return Ok(false);
            }
            let Some(rail) = &mut self.rails[slot] else { return Ok(false) };
            if ahead < 0 {
                rail.consume(size);
                continue;
            }
            (rail.last_used, self.last_used) = (self.now, self.now);
            if self.acked_to == self.expected {
                self.unacked_since = self.now;
            }
            self.expected += size as u64;
            if header.what == FrameKind::Packet {
                self.borrowed_frame = Some((slot, header.kind, size));
                return Ok(true);
            }
            rail.consume(size);
            self.peer_closed = true;
            self.ack_now = true;
        }
        Ok(false)
    }

    /// The other side has received everything up to this position.
    #[inline]
    fn acknowledged(&mut self, low: u32) -> Result<(), ProtocolViolation> {
        let front = self.log.front();
        let to = full_position(low, front);
        let news = to.wrapping_sub(front) as i64;
        if news <= 0 {
            return Ok(()); // acknowledged before by another rail
        }
        if to > self.assigned_to {
            return Err(ProtocolViolation("acknowledgement of bytes that were not sent"));
        }
        self.log.release(to);
        if let Some((position, sent)) = self.sample
            && to >= position
        {
            self.round_trip = self.round_trip.min(self.now.saturating_sub(sent));
            self.sample = None;
        }
        Ok(())
    }

    /// Handles a frame that is not numbered.
    fn on_bare(&mut self, slot: usize, what: FrameKind) -> Result<(), ProtocolViolation> {
        let Some(rail) = &mut self.rails[slot] else { return Ok(()) };
        rail.consume(HEADER_BYTES);
        match what {
            FrameKind::End if slot == 0 => return Err(ProtocolViolation("END on rail 0")),
            FrameKind::End => rail.end_received = true,
            FrameKind::More if self.role == Role::Called => {
                return Err(ProtocolViolation("MORE from the calling side"));
            }
            FrameKind::More => self.rail_requested = true,
            _ => {}
        }
        Ok(())
    }
}

/// Whether the other side has sent END on this rail.
fn is_end_received(rail: &Option<Rail>) -> bool {
    rail.as_ref().is_some_and(|rail| rail.end_received)
}
