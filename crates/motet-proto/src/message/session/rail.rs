//! One byte stream of a session.
//!
//! Output: a handshake or a bare frame, then the run of the log that this rail sends. Input: a buffer into which bytes are received in
//! large chunks and out of which frames are taken in place. The order between rails is kept by the session.

use super::MAX_PACKET_BYTES;
use super::frame::{FrameKind, HEADER_BYTES, Header};
use super::handshake::HANDSHAKE_BYTES;
use crate::message::ProtocolViolation;
use std::ops::Range;

/// Bytes received at a time while little arrives, and while much arrives.
const SMALL_READ_BYTES: usize = 8 << 10;
const LARGE_READ_BYTES: usize = 256 << 10;

/// A rail.
#[derive(Debug)]
pub(super) struct Rail {
    /// Bytes that are sent before the run. Set only while there is no run, which is at a boundary of frames.
    control: [u8; HANDSHAKE_BYTES],
    control_range: Range<usize>,
    /// The range of the log that this rail sends.
    pub(super) run: Range<u64>,
    /// Whether END was sent, and received.
    pub(super) end_sent: bool,
    pub(super) end_received: bool,
    /// When something numbered was last sent or received.
    pub(super) last_used: u64,
    input: Vec<u8>,
    from: usize,
    to: usize,
    /// Up to where the buffer is filled, unless a frame needs more: then it is filled to the end of that frame, so that nothing has
    /// to be moved.
    soft: usize,
}

impl Rail {
    pub(super) fn new(handshake: Option<[u8; HANDSHAKE_BYTES]>, now: u64) -> Self {
        Self {
            control: handshake.unwrap_or([0; HANDSHAKE_BYTES]),
            control_range: 0..handshake.map_or(0, |_| HANDSHAKE_BYTES),
            run: 0..0,
            end_sent: false,
            end_received: false,
            last_used: now,
            input: Vec::new(),
            from: 0,
            to: 0,
            soft: SMALL_READ_BYTES,
        }
    }

    // ---- out --------------------------------------------------------------------------------------------------------

    /// Whether the rail is at a boundary of frames and has nothing left to send.
    pub(super) fn is_free(&self) -> bool {
        self.run.is_empty() && self.control_range.is_empty()
    }

    /// Sends a bare frame. The rail must be free.
    pub(super) fn send_bare(&mut self, header: Header) {
        self.control[..HEADER_BYTES].copy_from_slice(&header.encode());
        self.control_range = 0..HEADER_BYTES;
        self.end_sent |= header.what == FrameKind::End;
    }

    pub(super) fn control(&self) -> &[u8] {
        &self.control[self.control_range.clone()]
    }

    /// `n` bytes were sent.
    pub(super) fn sent(&mut self, n: usize) {
        let of_control = n.min(self.control_range.len());
        self.control_range.start += of_control;
        self.run.start = (self.run.start + (n - of_control) as u64).min(self.run.end);
    }

    // ---- in ---------------------------------------------------------------------------------------------------------

    /// The header of the frame at the front, and whether the frame is complete.
    pub(super) fn head(&self) -> Result<Option<(Header, bool)>, ProtocolViolation> {
        let Some(bytes) = self.input[self.from..self.to].first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::decode(bytes, MAX_PACKET_BYTES)?;
        Ok(Some((header, self.to - self.from >= header.size())))
    }

    /// Bytes that the frame at the front lacks; 1 where it is complete, or its header is not.
    pub(super) fn missing_bytes(&self) -> usize {
        match self.head() {
            Ok(Some((header, false))) => header.size() - (self.to - self.from),
            _ => 1,
        }
    }

    /// The payload of the complete frame at the front.
    pub(super) fn payload(&self, size: usize) -> &[u8] {
        &self.input[self.from + HEADER_BYTES..self.from + size]
    }

    /// Removes the frame at the front.
    pub(super) fn consume(&mut self, size: usize) {
        self.from += size;
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
    }

    /// Where to receive next; empty when the frame at the front is complete and the buffer is full.
    pub(super) fn space(&mut self) -> &mut [u8] {
        let needed = match self.head() {
            Ok(Some((header, _))) => header.size(),
            _ => HEADER_BYTES,
        };
        if self.from + needed > self.input.len() || self.input.is_empty() {
            self.make_room(needed);
        }
        let end = self.soft.max(self.from + needed).max(self.to);
        &mut self.input[self.to..end]
    }

    #[cold]
    fn make_room(&mut self, needed: usize) {
        self.input.copy_within(self.from..self.to, 0);
        (self.from, self.to) = (0, self.to - self.from);
        // Room beyond the soft end for the rest of a frame. A peer that sends little gets a small buffer.
        let wanted = if self.soft == LARGE_READ_BYTES {
            LARGE_READ_BYTES + HEADER_BYTES + MAX_PACKET_BYTES
        } else {
            self.soft.max(needed)
        };
        if self.input.len() < wanted {
            self.input.resize(wanted, 0);
        }
    }

    /// `n` bytes were received into the space.
    pub(super) fn received(&mut self, n: usize) {
        self.to = (self.to + n).min(self.input.len());
        if self.to >= self.soft && self.soft < LARGE_READ_BYTES {
            self.soft = LARGE_READ_BYTES;
            self.make_room(HEADER_BYTES);
        }
    }

    /// Releases memory that an idle rail does not need.
    pub(super) fn trim(&mut self) {
        if self.from == self.to {
            (self.from, self.to, self.soft, self.input) = (0, 0, SMALL_READ_BYTES, Vec::new());
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.input.capacity()
    }
}
