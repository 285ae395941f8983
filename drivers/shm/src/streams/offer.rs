//! The two messages of the stream bootstrap: an [`Offer`] names the connection that a slot is for and carries the memfd, a [`Refusal`]
//! says why an offer was not accepted. Acceptance needs no message: the slot shows it.
//!
//! The first twelve bytes of both, magic and layout version, are the same in every version of Motet, so that a message of another version is
//! recognized.

use motet_engine::reason::{ALL, Reason};
use motet_wire::stream::segment;

/// "MOTETofr".
const OFFER_MAGIC: u64 = u64::from_le_bytes(*b"MOTETofr");
/// "MOTETref".
const REFUSAL_MAGIC: u64 = u64::from_le_bytes(*b"MOTETref");
/// Bytes of an offer.
pub const OFFER_BYTES: usize = 64;
/// Bytes of a refusal.
pub const REFUSAL_BYTES: usize = 16;

/// An offer of the end that accepted the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// SO_NETNS_COOKIE of the offerer.
    pub netns: u64,
    /// SO_COOKIE of the offerer's TCP socket.
    pub offerer: u64,
    /// SO_COOKIE of the TCP socket that the offer is for.
    pub target: u64,
    /// Index of the slot in the segment.
    pub slot: u32,
    /// The segment's nonce, by which the receiver recognizes a segment that it has mapped already.
    pub nonce: [u8; 16],
}

/// Why bytes are not an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferError {
    /// Wrong length or magic.
    Malformed,
    /// Another layout version.
    Version(u32),
}

impl Offer {
    /// Encodes the offer.
    pub fn encode(&self) -> [u8; OFFER_BYTES] {
        let mut m = [0; OFFER_BYTES];
        m[0..8].copy_from_slice(&OFFER_MAGIC.to_le_bytes());
        m[8..12].copy_from_slice(&segment::VERSION.to_le_bytes());
        m[12..16].copy_from_slice(&self.slot.to_le_bytes());
        m[16..24].copy_from_slice(&self.netns.to_le_bytes());
        m[24..32].copy_from_slice(&self.offerer.to_le_bytes());
        m[32..40].copy_from_slice(&self.target.to_le_bytes());
        m[40..56].copy_from_slice(&self.nonce);
        m
    }

    /// Decodes bytes that a peer sent.
    pub fn decode(bytes: &[u8]) -> Result<Self, OfferError> {
        let version = version(bytes, OFFER_MAGIC).ok_or(OfferError::Malformed)?;
        if version != segment::VERSION {
            return Err(OfferError::Version(version));
        }
        let m: &[u8; OFFER_BYTES] = bytes.try_into().map_err(|_| OfferError::Malformed)?;
        let u64_at = |at: usize| u64::from_le_bytes(m[at..at + 8].try_into().unwrap());
        let u32_at = |at: usize| u32::from_le_bytes(m[at..at + 4].try_into().unwrap());
        Ok(Self {
            netns: u64_at(16),
            offerer: u64_at(24),
            target: u64_at(32),
            slot: u32_at(12),
            nonce: m[40..56].try_into().unwrap(),
        })
    }
}

/// The layout version in a message with this magic; `None`: the magic is another one.
fn version(bytes: &[u8], magic: u64) -> Option<u32> {
    let (first, rest) = bytes.split_first_chunk::<8>()?;
    let version = rest.first_chunk::<4>()?;
    (u64::from_le_bytes(*first) == magic).then(|| u32::from_le_bytes(*version))
}

/// Why an offer was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal(pub Reason);

impl Refusal {
    /// Encodes the refusal.
    pub fn encode(&self) -> [u8; REFUSAL_BYTES] {
        let mut m = [0; REFUSAL_BYTES];
        m[0..8].copy_from_slice(&REFUSAL_MAGIC.to_le_bytes());
        m[8..12].copy_from_slice(&segment::VERSION.to_le_bytes());
        m[12..16].copy_from_slice(&self.0.0.to_le_bytes());
        m
    }

    /// Decodes bytes that a peer sent; `None`: they are not a refusal.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        version(bytes, REFUSAL_MAGIC).map(|_| Self::decode(bytes))
    }

    /// Decodes bytes that can only be a refusal: malformed ones become [`Reason::BAD_OFFER`], those of another version [`Reason::VERSION`].
    pub fn decode(bytes: &[u8]) -> Self {
        let known = |code: u32| ALL.iter().copied().find(|reason| reason.0 == code);
        Self(match (version(bytes, REFUSAL_MAGIC), bytes.get(12..16).and_then(|code| code.try_into().ok())) {
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
    fn offer_decoded_equals_encoded() {
        let offer = Offer { netns: 1, offerer: 2, target: 3, slot: 4, nonce: [5; 16] };
        let bytes = offer.encode();
        assert_eq!(Offer::decode(&bytes), Ok(offer));
        for n in 0..OFFER_BYTES {
            assert_eq!(Offer::decode(&bytes[..n]), Err(OfferError::Malformed), "truncated to {n}");
        }
        let mut other = bytes;
        other[8] = 9;
        assert_eq!(Offer::decode(&other), Err(OfferError::Version(9)));
        assert_eq!(Offer::decode(&other[..12]), Err(OfferError::Version(9)), "whatever the length");
        assert_eq!(Offer::decode(&[other.as_slice(), &[0; 64]].concat()), Err(OfferError::Version(9)));
    }

    #[test]
    fn refusal_decoded_equals_encoded() {
        let bytes = Refusal(Reason::MEMORY_LIMIT).encode();
        assert_eq!(Refusal::decode(&bytes), Refusal(Reason::MEMORY_LIMIT));
        for n in 0..REFUSAL_BYTES {
            assert_eq!(Refusal::decode(&bytes[..n]), Refusal(Reason::BAD_OFFER), "truncated to {n}");
        }
        let (mut other, mut unknown) = (bytes, bytes);
        other[8] = other[8].wrapping_add(1);
        unknown[12] = 0xff;
        assert_eq!(Refusal::decode(&other), Refusal(Reason::VERSION));
        assert_eq!(Refusal::decode(&unknown), Refusal(Reason::BAD_OFFER));
    }
}
