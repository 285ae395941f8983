//! The header of a frame: sixteen bytes before each packet, encoded and decoded.
//!
//! The *position* of a frame is the count of numbered bytes (headers and payload of packets and of the goodbye) that its sender has put
//! before it. The header carries the low half. Decoding checks single fields, never whether a frame fits the state of the session.

use crate::message::ProtocolViolation;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 16;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A packet: numbered.
    Packet = 1,
    /// Only the acknowledgement that every header carries.
    Acknowledgement = 2,
    /// The sender puts no more packets: numbered, so it arrives after the last packet.
    Goodbye = 3,
    /// The sender has much to send and asks for one more rail. Sent by the called side, which cannot open one.
    More = 4,
    /// The last frame of its sender on this rail. The session continues over the others.
    End = 5,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind of the frame.
    pub what: FrameKind,
    /// The kind of the packet.
    pub kind: u8,
    /// Bytes after the header.
    pub length: u32,
    /// Low half of the position of the frame; 0 for frames that are not numbered.
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
        HEADER_BYTES + self.length as usize
    }

    /// Whether the frame belongs to the numbered bytes.
    pub fn is_numbered(&self) -> bool {
        matches!(self.what, FrameKind::Packet | FrameKind::Goodbye)
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.what as u8;
        bytes[1] = self.kind;
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.position.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes
    }

    /// Decodes a header. A packet may have at most `largest` bytes.
    pub fn decode(bytes: &[u8; HEADER_BYTES], largest: usize) -> Result<Self, ProtocolViolation> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let what = match bytes[0] {
            1 => FrameKind::Packet,
            2 => FrameKind::Acknowledgement,
            3 => FrameKind::Goodbye,
            4 => FrameKind::More,
            5 => FrameKind::End,
            _ => return Err(ProtocolViolation("frame of unknown kind")),
        };
        let header = Self { what, kind: bytes[1], length: word(4), position: word(8), acknowledged: word(12) };
        if bytes[2] != 0 || bytes[3] != 0 {
            return Err(ProtocolViolation("frame header with reserved bits set"));
        }
        if header.length as usize > largest {
            return Err(ProtocolViolation("frame longer than the agreed packet size"));
        }
        if what != FrameKind::Packet && (header.length != 0 || header.kind != 0) {
            return Err(ProtocolViolation("payload or packet kind in a frame that is no packet"));
        }
        if !header.is_numbered() && header.position != 0 {
            return Err(ProtocolViolation("position in a frame that is not numbered"));
        }
        Ok(header)
    }
}

/// The position with this low half that is nearest to `near`. A position before 0 wraps, which is beyond any bound.
pub fn full_position(low: u32, near: u64) -> u64 {
    near.wrapping_add_signed(i64::from(low.wrapping_sub(near as u32) as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_restored_from_low_halves() {
        for near in [0u64, 5, 0x7fff_ffff, 0xffff_fff0, 0x1_0000_0000, u64::MAX / 2] {
            for away in [0i64, 1, -1, 1000, -1000, 1 << 30, -(1 << 30)] {
                let position = near.wrapping_add_signed(away);
                assert_eq!(full_position(position as u32, near), position, "{near} {away}");
            }
        }
    }

    #[test]
    fn frame_header_round_trips() {
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
