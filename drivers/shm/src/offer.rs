//! The two messages of the rendezvous: which connection an offered slot is for ([`Offer`], with the memfd), and why an offer is
//! not taken ([`Refusal`]). One that is taken needs no answer: the slot says so.
//!
//! The first twelve bytes of both, magic and layout version, are the same in every version of Motet: whatever else a message of
//! another version says, it is known to be one.

use motet_engine::reason::{ALL, Reason};
use motet_wire::stream::segment;

/// "MOTETofr".
const MAGIC: u64 = u64::from_le_bytes(*b"MOTETofr");
/// "MOTETref".
const REFUSAL: u64 = u64::from_le_bytes(*b"MOTETref");
/// Bytes of an offer.
pub const SIZE: usize = 64;
/// Bytes of a refusal.
pub const REFUSAL_SIZE: usize = 16;

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
        let version = version(bytes, MAGIC).ok_or(Bad::Malformed)?;
        if version != segment::VERSION {
            return Err(Bad::Version(version));
        }
        let m: &[u8; SIZE] = bytes.try_into().map_err(|_| Bad::Malformed)?;
        let word = |at: usize| u64::from_le_bytes(m[at..at + 8].try_into().unwrap());
        let half = |at: usize| u32::from_le_bytes(m[at..at + 4].try_into().unwrap());
        Ok(Self {
            netns: word(16),
            offerer: word(24),
            other: word(32),
            slot: half(12),
            nonce: m[40..56].try_into().unwrap(),
        })
    }
}

/// The layout version that a message of this kind names.
fn version(bytes: &[u8], magic: u64) -> Option<u32> {
    let (first, rest) = bytes.split_first_chunk::<8>()?;
    let version = rest.first_chunk::<4>()?;
    (u64::from_le_bytes(*first) == magic).then(|| u32::from_le_bytes(*version))
}

/// Why an offer is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal(pub Reason);

impl Refusal {
    /// As bytes.
    pub fn encode(&self) -> [u8; REFUSAL_SIZE] {
        let mut m = [0; REFUSAL_SIZE];
        m[0..8].copy_from_slice(&REFUSAL.to_le_bytes());
        m[8..12].copy_from_slice(&segment::VERSION.to_le_bytes());
        m[12..16].copy_from_slice(&self.0.0.to_le_bytes());
        m
    }

    /// From bytes that a peer sent, if they are one.
    pub fn from(bytes: &[u8]) -> Option<Self> {
        version(bytes, REFUSAL).map(|_| Self::decode(bytes))
    }

    /// The same of bytes that can be nothing else. Whatever another version says means that it is another version.
    pub fn decode(bytes: &[u8]) -> Self {
        let known = |code: u32| ALL.iter().copied().find(|reason| reason.0 == code);
        Self(match (version(bytes, REFUSAL), bytes.get(12..16).and_then(|code| code.try_into().ok())) {
            (None, _) | (_, None) => Reason::BAD_OFFER,
            (Some(version), _) if version != segment::VERSION => Reason::VERSION,
            (_, Some(code)) => known(u32::from_le_bytes(code)).unwrap_or(Reason::BAD_OFFER),
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
        assert_eq!(Offer::decode(&other[..12]), Err(Bad::Version(9)), "however long its messages are");
        assert_eq!(Offer::decode(&[other.as_slice(), &[0; 64]].concat()), Err(Bad::Version(9)));
    }

    #[test]
    fn a_refusal_comes_back_as_it_was() {
        let bytes = Refusal(Reason::MEMORY_LIMIT).encode();
        assert_eq!(Refusal::decode(&bytes), Refusal(Reason::MEMORY_LIMIT));
        for n in 0..REFUSAL_SIZE {
            assert_eq!(Refusal::decode(&bytes[..n]), Refusal(Reason::BAD_OFFER), "truncated to {n}");
        }
        let (mut other, mut unknown) = (bytes, bytes);
        other[8] = other[8].wrapping_add(1);
        unknown[12] = 0xff;
        assert_eq!(Refusal::decode(&other), Refusal(Reason::VERSION));
        assert_eq!(Refusal::decode(&unknown), Refusal(Reason::BAD_OFFER));
    }
}
