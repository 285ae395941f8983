//! The header of a frame.
//!
//! What it is: sixteen bytes before each packet, written and read. A frame's *position* is the count of numbered bytes
//! (headers and payload of packets and of the goodbye) that its sender has put before it; the header carries the low half.
//! What it is not: reading checks what a header can say by itself, never whether it fits the state of the session.

use crate::message::ProtocolViolation;

/// Bytes of a header.
pub const HEADER: usize = 16;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A packet: numbered.
    Packet = 1,
    /// Nothing but the acknowledgement that every header carries.
    Acknowledgement = 2,
    /// The sender puts no more: numbered, so it comes after the last packet.
    Goodbye = 3,
    /// The sender has much to send and would like one more rail; said by the side that cannot open one.
    More = 4,
    /// The last frame of its sender on this rail; the session goes on over the others.
    End = 5,
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// What follows.
    pub what: FrameKind,
    /// The packet's kind.
    pub kind: u8,
    /// Bytes after the header.
    pub length: u32,
    /// Low half of the frame's position; 0 where it has none.
    pub position: u32,
    /// Low half of the position up to which the sender has received everything.
    pub acknowledged: u32,
}

impl Header {
    /// A frame without payload that is not numbered.
    pub fn bare(what: FrameKind, acknowledged: u64) -> Self {
        Self { what, kind: 0, length: 0, position: 0, acknowledged: acknowledged as u32 }
    }

    /// Bytes of the frame.
    pub fn size(&self) -> usize {
        HEADER + self.length as usize
    }

    /// Whether the frame is part of the numbered bytes.
    pub fn is_numbered(&self) -> bool {
        matches!(self.what, FrameKind::Packet | FrameKind::Goodbye)
    }

    /// As it travels.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.what as u8;
        bytes[1] = self.kind;
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.position.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes
    }

    /// As a peer wrote it; no packet may be longer than `largest`.
    pub fn decode(bytes: &[u8; HEADER], largest: usize) -> Result<Self, ProtocolViolation> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let what = match bytes[0] {
            1 => FrameKind::Packet,
            2 => FrameKind::Acknowledgement,
            3 => FrameKind::Goodbye,
            4 => FrameKind::More,
            5 => FrameKind::End,
            _ => return Err(ProtocolViolation("a frame of no known sort")),
        };
        let header = Self { what, kind: bytes[1], length: word(4), position: word(8), acknowledged: word(12) };
        if bytes[2] != 0 || bytes[3] != 0 {
            return Err(ProtocolViolation("a frame header with bits that nobody knows"));
        }
        if header.length as usize > largest {
            return Err(ProtocolViolation("a frame longer than was agreed"));
        }
        if what != FrameKind::Packet && (header.length != 0 || header.kind != 0) {
            return Err(ProtocolViolation("a frame with a payload that it cannot have"));
        }
        if !header.is_numbered() && header.position != 0 {
            return Err(ProtocolViolation("a position where there is none"));
        }
        Ok(header)
    }
}

/// The position with this low half that lies nearest to `near`. One before 0 wraps, which is beyond any bound.
pub fn full_position(low: u32, near: u64) -> u64 {
    near.wrapping_add_signed(i64::from(low.wrapping_sub(near as u32) as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_halves_become_positions_again() {
        for near in [0u64, 5, 0x7fff_ffff, 0xffff_fff0, 0x1_0000_0000, u64::MAX / 2] {
            for away in [0i64, 1, -1, 1000, -1000, 1 << 30, -(1 << 30)] {
                let position = near.wrapping_add_signed(away);
                assert_eq!(full_position(position as u32, near), position, "{near} {away}");
            }
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let header = Header { what: FrameKind::Packet, kind: 7, length: 300, position: 0xfff0_0001, acknowledged: 9 };
        assert_eq!(Header::decode(&header.encode(), 300), Ok(header));
        assert!(Header::decode(&header.encode(), 299).is_err());
        for (at, value) in [(0, 0), (0, 6), (2, 1), (3, 1)] {
            let mut bytes = header.encode();
            bytes[at] = value;
            assert!(Header::decode(&bytes, 300).is_err(), "byte {at}");
        }
        let more = Header::bare(FrameKind::More, 3);
        assert_eq!(Header::decode(&more.encode(), 300), Ok(more));
        assert!(Header::decode(&Header { length: 1, ..more }.encode(), 300).is_err());
        assert!(Header::decode(&Header { position: 1, ..more }.encode(), 300).is_err());
    }
}
