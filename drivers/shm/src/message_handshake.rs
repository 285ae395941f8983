//! What two nodes say when they meet: one message each way, of fixed size.
//!
//! The caller's greeting comes with the memory of the link and the rope of its bell, the answer with the rope of the other's.

use motet_engine::message::transport::NodeId;
use motet_engine::reason::{ALL, Reason};
use motet_wire::stream::segment;

/// Bytes of either message.
pub const SIZE: usize = 40;
const GREETING: u64 = u64::from_le_bytes(*b"MOTETgrt");
const ANSWER: u64 = u64::from_le_bytes(*b"MOTETans");

/// What the caller says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// Who calls.
    pub caller: NodeId,
    /// Lines of each lane.
    pub lines: u32,
    /// Bytes of each ring.
    pub ring: u32,
    /// Its sleepers' barriers reach other processes, and theirs it.
    pub barrier: bool,
}

/// What the other says: who it is, and whether lanes need fences, or why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer(pub Result<NodeId, Reason>);

impl Greeting {
    /// As bytes.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut bytes = frame(GREETING);
        bytes[12..16].copy_from_slice(&self.lines.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.caller.0);
        bytes[32] = u8::from(self.barrier);
        bytes[36..40].copy_from_slice(&self.ring.to_le_bytes());
        bytes
    }

    /// From bytes that a peer sent.
    pub fn decode(bytes: &[u8]) -> Result<Self, Reason> {
        let bytes = check(bytes, GREETING)?;
        let caller = NodeId(bytes[16..32].try_into().map_err(|_| Reason::BAD_OFFER)?);
        Ok(Self { caller, lines: half(bytes, 12), ring: half(bytes, 36), barrier: bytes[32] == 1 })
    }
}

impl Answer {
    /// As bytes.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut bytes = frame(ANSWER);
        match self.0 {
            Ok(id) => bytes[16..32].copy_from_slice(&id.0),
            Err(reason) => bytes[12..16].copy_from_slice(&(reason.0 + 1).to_le_bytes()),
        }
        bytes
    }

    /// From bytes that a peer sent.
    pub fn decode(bytes: &[u8]) -> Self {
        Self(check(bytes, ANSWER).and_then(|bytes| match half(bytes, 12) {
            0 => Ok(NodeId(bytes[16..32].try_into().map_err(|_| Reason::BAD_OFFER)?)),
            code => Err(ALL.iter().copied().find(|known| known.0 == code - 1).unwrap_or(Reason::BAD_OFFER)),
        }))
    }
}

fn frame(magic: u64) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    bytes[0..8].copy_from_slice(&magic.to_le_bytes());
    bytes[8..12].copy_from_slice(&segment::VERSION.to_le_bytes());
    bytes
}

/// Magic, version, length: in this order, so that another version differs from garbage whatever its length.
fn check(bytes: &[u8], magic: u64) -> Result<&[u8; SIZE], Reason> {
    let head = bytes.get(..12).ok_or(Reason::BAD_OFFER)?;
    if u64::from_le_bytes(head[0..8].try_into().map_err(|_| Reason::BAD_OFFER)?) != magic {
        return Err(Reason::BAD_OFFER);
    }
    if u32::from_le_bytes(head[8..12].try_into().map_err(|_| Reason::BAD_OFFER)?) != segment::VERSION {
        return Err(Reason::VERSION);
    }
    bytes.try_into().map_err(|_| Reason::BAD_OFFER)
}

fn half(bytes: &[u8; SIZE], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_come_back_as_they_were() {
        let greeting = Greeting { caller: NodeId([7; 16]), lines: 128, ring: 65536, barrier: true };
        assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
        for answer in [Ok(NodeId([9; 16])), Err(Reason::FASTEST), Err(Reason::NO_MEMORY)] {
            assert_eq!(Answer::decode(&Answer(answer).encode()), Answer(answer));
        }
        for length in 0..SIZE {
            assert_eq!(Greeting::decode(&greeting.encode()[..length]), Err(Reason::BAD_OFFER));
        }
        let mut other = [greeting.encode().to_vec(), vec![0; 9]].concat();
        other[8] ^= 1;
        assert_eq!(Greeting::decode(&other), Err(Reason::VERSION));
        assert_eq!(Answer::decode(&greeting.encode()), Answer(Err(Reason::BAD_OFFER)));
    }
}
