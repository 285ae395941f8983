//! The one message of the rendezvous: which connection an offered slot is for. It travels with the memfd.

use motet_wire::segment;

/// "MOTETofr".
const MAGIC: u64 = u64::from_le_bytes(*b"MOTETofr");
/// Bytes of an offer.
pub const SIZE: usize = 64;

/// An offer, as the accepting end makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// SO_NETNS_COOKIE of the offerer.
    pub netns: u64,
    /// SO_COOKIE of the offerer's TCP socket.
    pub offerer: u64,
    /// SO_COOKIE of the TCP socket that the offer is for.
    pub other: u64,
    /// Slot in the segment.
    pub slot: u32,
    /// The segment's nonce: a segment that is mapped already is not mapped again.
    pub nonce: [u8; 16],
}

/// Why a message is no offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// Wrong length or magic.
    Malformed,
    /// Another layout version.
    Version(u32),
}

impl Offer {
    /// As bytes.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut m = [0; SIZE];
        m[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        m[8..12].copy_from_slice(&segment::VERSION.to_le_bytes());
        m[12..16].copy_from_slice(&self.slot.to_le_bytes());
        m[16..24].copy_from_slice(&self.netns.to_le_bytes());
        m[24..32].copy_from_slice(&self.offerer.to_le_bytes());
        m[32..40].copy_from_slice(&self.other.to_le_bytes());
        m[40..56].copy_from_slice(&self.nonce);
        m
    }

    /// From bytes that a peer sent.
    pub fn decode(bytes: &[u8]) -> Result<Self, Bad> {
        let m: &[u8; SIZE] = bytes.try_into().map_err(|_| Bad::Malformed)?;
        let word = |at: usize| u64::from_le_bytes(m[at..at + 8].try_into().unwrap());
        let half = |at: usize| u32::from_le_bytes(m[at..at + 4].try_into().unwrap());
        if word(0) != MAGIC {
            return Err(Bad::Malformed);
        }
        if half(8) != segment::VERSION {
            return Err(Bad::Version(half(8)));
        }
        Ok(Self {
            netns: word(16),
            offerer: word(24),
            other: word(32),
            slot: half(12),
            nonce: m[40..56].try_into().unwrap(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_comes_back_as_it_was() {
        let offer = Offer { netns: 1, offerer: 2, other: 3, slot: 4, nonce: [5; 16] };
        let bytes = offer.encode();
        assert_eq!(Offer::decode(&bytes), Ok(offer));
        for n in 0..SIZE {
            assert_eq!(Offer::decode(&bytes[..n]), Err(Bad::Malformed), "truncated to {n}");
        }
        let mut other = bytes;
        other[8] = 9;
        assert_eq!(Offer::decode(&other), Err(Bad::Version(9)));
    }
}
