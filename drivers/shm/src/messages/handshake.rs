//! The handshake of two nodes: one message of fixed size each way.
//!
//! The [`Handshake`] of the connecting node carries the memfd of the link and the node's receive doorbell, the [`Answer`] the receive doorbell
//! of the listening node.

use motet_engine::message::transport::NodeId;
use motet_engine::reason::{ALL, Reason};
use motet_wire::stream::segment;

/// Bytes of either message.
pub const HANDSHAKE_BYTES: usize = 40;
const HANDSHAKE_MAGIC: u64 = u64::from_le_bytes(*b"MOTETgrt");
const ANSWER_MAGIC: u64 = u64::from_le_bytes(*b"MOTETans");

/// The message of the connecting node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake {
    /// The connecting node.
    pub node: NodeId,
    /// Cells of each FIFO.
    pub cells: u32,
    /// Bytes of each payload ring.
    pub ring: u32,
    /// The process is registered for global memory barriers (membarrier).
    pub barrier: bool,
}

/// The answer of the listening node: its number, or why it does not accept the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer(pub Result<NodeId, Reason>);

impl Handshake {
    /// Encodes the message.
    pub fn encode(&self) -> [u8; HANDSHAKE_BYTES] {
        let mut bytes = frame(HANDSHAKE_MAGIC);
        bytes[12..16].copy_from_slice(&self.cells.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.node.0);
        bytes[32] = u8::from(self.barrier);
        bytes[36..40].copy_from_slice(&self.ring.to_le_bytes());
        bytes
    }

    /// Decodes bytes that a peer sent.
    pub fn decode(bytes: &[u8]) -> Result<Self, Reason> {
        let bytes = check(bytes, HANDSHAKE_MAGIC)?;
        let node = NodeId(bytes[16..32].try_into().map_err(|_| Reason::BAD_OFFER)?);
        Ok(Self { node, cells: u32_at(bytes, 12), ring: u32_at(bytes, 36), barrier: bytes[32] == 1 })
    }
}

impl Answer {
    /// Encodes the message.
    pub fn encode(&self) -> [u8; HANDSHAKE_BYTES] {
        let mut bytes = frame(ANSWER_MAGIC);
        match self.0 {
            Ok(id) => bytes[16..32].copy_from_slice(&id.0),
            Err(reason) => bytes[12..16].copy_from_slice(&(reason.0 + 1).to_le_bytes()),
        }
        bytes
    }

    /// Decodes bytes that a peer sent.
    pub fn decode(bytes: &[u8]) -> Self {
        Self(check(bytes, ANSWER_MAGIC).and_then(|bytes| match u32_at(bytes, 12) {
            0 => Ok(NodeId(bytes[16..32].try_into().map_err(|_| Reason::BAD_OFFER)?)),
            code => Err(ALL.iter().copied().find(|known| known.0 == code - 1).unwrap_or(Reason::BAD_OFFER)),
        }))
    }
}

fn frame(magic: u64) -> [u8; HANDSHAKE_BYTES] {
    let mut bytes = [0; HANDSHAKE_BYTES];
    bytes[0..8].copy_from_slice(&magic.to_le_bytes());
    bytes[8..12].copy_from_slice(&segment::VERSION.to_le_bytes());
    bytes
}

/// Checks magic, version and length, in this order: so a message of another version is recognized whatever its length.
fn check(bytes: &[u8], magic: u64) -> Result<&[u8; HANDSHAKE_BYTES], Reason> {
    let head = bytes.get(..12).ok_or(Reason::BAD_OFFER)?;
    if u64::from_le_bytes(head[0..8].try_into().map_err(|_| Reason::BAD_OFFER)?) != magic {
        return Err(Reason::BAD_OFFER);
    }
    if u32::from_le_bytes(head[8..12].try_into().map_err(|_| Reason::BAD_OFFER)?) != segment::VERSION {
        return Err(Reason::VERSION);
    }
    bytes.try_into().map_err(|_| Reason::BAD_OFFER)
}

fn u32_at(bytes: &[u8; HANDSHAKE_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_decoded_equal_encoded() {
        let handshake = Handshake { node: NodeId([7; 16]), cells: 128, ring: 65536, barrier: true };
        assert_eq!(Handshake::decode(&handshake.encode()), Ok(handshake));
        for answer in [Ok(NodeId([9; 16])), Err(Reason::FASTEST), Err(Reason::NO_MEMORY)] {
            assert_eq!(Answer::decode(&Answer(answer).encode()), Answer(answer));
        }
        for length in 0..HANDSHAKE_BYTES {
            assert_eq!(Handshake::decode(&handshake.encode()[..length]), Err(Reason::BAD_OFFER));
        }
        let mut other = [handshake.encode().to_vec(), vec![0; 9]].concat();
        other[8] ^= 1;
        assert_eq!(Handshake::decode(&other), Err(Reason::VERSION));
        assert_eq!(Answer::decode(&handshake.encode()), Answer(Err(Reason::BAD_OFFER)));
    }
}
