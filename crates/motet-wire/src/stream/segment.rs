//! A segment: one sealed memfd that holds the slots of one pair of processes.
//!
//! ```text
//!   0     SegmentHead (magic, version, geometry, nonce) · room for a ready set · room for message slots
//!   4096  slot 0, slot 1, ...
//!   then  large rings of slot 0, of slot 1, ..., from a multiple of their size (or of 2 MiB) on
//! ```
//!
//! Only the head has pages from the start. Each end allocates the pages that it accesses first: both ends the slot's control page, the receiver
//! of a direction its ring, before the gate opens. So a ring is in the memory of its receiver's NUMA node, and an idle slot takes one page.
//!
//! The receiver of a segment trusts nothing in it. It takes size and seals from the kernel, reads the geometry once into a private copy, and
//! requires it to agree with the size to the byte ([`Geometry::check`]).

use crate::stream::slot::Slot;

/// First eight bytes of every segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MOTETseg");
/// Version of every layout in this crate that a peer maps, and of the connection establishment except for its exchange of versions.
///
/// `--cfg motet_next_version` is only for tests of unequal versions: it builds the next version, with other layouts.
pub const VERSION: u32 = 4 + cfg!(motet_next_version) as u32;
/// Bytes before the first slot.
pub const HEAD: usize = 4096;
/// Smallest and largest ring, bytes.
pub const RING_RANGE: std::ops::RangeInclusive<usize> = 4096..=1 << 24;
/// Smallest and largest large ring, bytes.
pub const BULK_RANGE: std::ops::RangeInclusive<usize> = 4096..=1 << 26;
/// Bytes of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;
/// Most slots in one segment.
pub const MAX_SLOTS: usize = 1024;

/// Sizes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Slots in the segment.
    pub slots: usize,
    /// Bytes of each ring, a power of two.
    pub ring: usize,
    /// Bytes of each large ring, a power of two; 0: none. Their pages are allocated when a stream needs them.
    pub bulk: usize,
}

/// Why a segment was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The magic number is another one.
    Magic,
    /// The layout version is another one.
    Version(u32),
    /// The sizes are out of range or disagree with the file.
    Geometry,
    /// The slot number is beyond the segment.
    Slot,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Magic => f.write_str("the segment does not start with Motet's magic number"),
            Self::Version(v) => write!(f, "the segment has layout version {v}, this library has {VERSION}"),
            Self::Geometry => f.write_str("the segment's sizes are out of range or disagree with its file"),
            Self::Slot => f.write_str("the slot number is beyond the segment"),
        }
    }
}

impl std::error::Error for Refused {}

/// Words at the start of a segment that [`Geometry::encode`] writes.
pub const HEAD_WORDS: usize = 8;

impl Geometry {
    /// Bytes of the whole segment.
    pub const fn bytes(&self) -> usize {
        if self.bulk == 0 { self.dense() } else { self.bulk(self.slots) }
    }

    /// Bytes of the segment without the large rings: the most memory that it takes without bulk data.
    pub const fn dense(&self) -> usize {
        HEAD + self.slots * Slot::size(self.ring)
    }

    /// Offset of a slot's large rings, if there are any. It is a multiple of their size or of a huge page, as huge pages require.
    pub const fn bulk(&self, index: usize) -> usize {
        let unit = match self.bulk {
            0 => 1,
            bulk if bulk < HUGE_PAGE => bulk,
            _ => HUGE_PAGE,
        };
        self.dense().next_multiple_of(unit) + index * 2 * self.bulk
    }

    /// Offset of a slot.
    pub fn slot(&self, index: usize) -> Result<usize, Refused> {
        if index < self.slots { Ok(HEAD + index * Slot::size(self.ring)) } else { Err(Refused::Slot) }
    }

    /// The index of the slot that begins at an offset.
    pub fn index(&self, offset: usize) -> Option<usize> {
        let index = offset.checked_sub(HEAD)? / Slot::size(self.ring);
        (self.slot(index) == Ok(offset)).then_some(index)
    }

    /// The head of a new segment.
    pub fn encode(&self, nonce: [u8; 16]) -> [u8; HEAD_WORDS * 8] {
        let mut head = [0; HEAD_WORDS * 8];
        head[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        head[8..12].copy_from_slice(&VERSION.to_le_bytes());
        head[12..16].copy_from_slice(&(self.slots as u32).to_le_bytes());
        head[16..24].copy_from_slice(&(self.ring as u64).to_le_bytes());
        head[24..40].copy_from_slice(&nonce);
        head[40..48].copy_from_slice(&(self.bulk as u64).to_le_bytes());
        head
    }

    /// Checks the head of a segment whose file has `size` bytes, from a private copy of its first bytes.
    pub fn check(head: &[u8; HEAD_WORDS * 8], size: u64) -> Result<(Self, [u8; 16]), Refused> {
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap());
        let half = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        if word(0) != MAGIC {
            return Err(Refused::Magic);
        }
        if half(8) != VERSION {
            return Err(Refused::Version(half(8)));
        }
        let slots = half(12) as usize;
        let ring = usize::try_from(word(16)).map_err(|_| Refused::Geometry)?;
        if slots == 0 || slots > MAX_SLOTS || !ring.is_power_of_two() || !RING_RANGE.contains(&ring) {
            return Err(Refused::Geometry);
        }
        let bulk = usize::try_from(word(40)).map_err(|_| Refused::Geometry)?;
        if bulk != 0 && (!bulk.is_power_of_two() || !BULK_RANGE.contains(&bulk)) {
            return Err(Refused::Geometry);
        }
        let geometry = Self { slots, ring, bulk };
        if geometry.bytes() as u64 != size {
            return Err(Refused::Geometry);
        }
        Ok((geometry, head[24..40].try_into().unwrap()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn encoded_head_is_decoded_unchanged() {
        let geometry = Geometry { slots: 3, ring: 65536, bulk: 1 << 20 };
        let head = geometry.encode([7; 16]);
        assert_eq!(Geometry::check(&head, geometry.bytes() as u64), Ok((geometry, [7; 16])));
        assert_eq!(Geometry::check(&head, geometry.bytes() as u64 + 1), Err(Refused::Geometry));
        assert_eq!(geometry.slot(3), Err(Refused::Slot));
        for index in 0..3 {
            let offset = geometry.slot(index).unwrap();
            assert_eq!([offset, offset + 4096].map(|at| geometry.index(at)), [Some(index), None]);
            assert!(geometry.bulk(index) >= geometry.dense() && geometry.bulk(index).is_multiple_of(geometry.bulk));
        }
        assert_eq!((geometry.index(0), geometry.index(geometry.dense())), (None, None));
        let without = Geometry { bulk: 0, ..geometry };
        assert_eq!((without.bulk(0), without.bytes()), (without.dense(), without.dense()));
    }

    proptest! {
        #[test]
        fn arbitrary_head_is_refused_or_fits_its_file(bytes in proptest::collection::vec(any::<u8>(), HEAD_WORDS * 8),
                                                magic in any::<bool>(), size in 0u64..1 << 40) {
            let mut head: [u8; HEAD_WORDS * 8] = bytes.try_into().unwrap();
            if magic {
                head[..12].copy_from_slice(&Geometry { slots: 1, ring: 4096, bulk: 0 }.encode([0; 16])[..12]);
            }
            if let Ok((geometry, _)) = Geometry::check(&head, size) {
                prop_assert_eq!(geometry.bytes() as u64, size);
            }
        }
    }
}
