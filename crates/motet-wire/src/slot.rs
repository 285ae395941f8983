//! One slot of a segment: both directions of one connection.
//!
//! ```text
//!   0     direction 0 (offerer -> other):  gate 64 · mark 64 · consumer 64 · transfer 64 x 4
//!   1024  direction 1 (other -> offerer):  the same
//!   2048  SlotHead: which connection this is, and which ends have left
//!   4096  ring of direction 0
//!   4096 + ring  ring of direction 1
//! ```

use crate::gate::{ConsumerLine, GateLine, MarkLine};
use crate::mapping::Mapping;
use crate::ring::Ring;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicUsize};

/// Bytes before the rings.
pub const CONTROL: usize = 4096;

/// Everything of one direction.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Lines {
    /// The mode word and its short payload.
    pub gate: GateLine,
    /// What TCP precedes the ring.
    pub mark: MarkLine,
    /// The consumer's index.
    pub consumer: ConsumerLine,
    /// The meeting point for large transfers.
    pub transfer: Transfer,
}

/// Where a receiver that already waits shows its memory, so that large payload needs one copy only.
///
/// State: IDLE -> POSTED (consumer) -> ACTIVE (producer) -> DONE (producer, all pieces copied) -> IDLE (consumer).
/// Addresses are those of the writer's own process: the other side only ever hands them to `process_vm_readv/writev`
/// together with the pid that the kernel attested, so a lie harms the liar.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Transfer {
    /// One of [`transfer`]'s states.
    pub state: AtomicU32,
    _pad: AtomicU32,
    /// Consumer's memory: address.
    pub into: AtomicU64,
    /// Bytes the consumer can take.
    pub into_length: AtomicU64,
    /// Ring position and TCP bytes at which the consumer waits: the producer must be there too.
    pub at: [AtomicU64; 2],
    _line0: [AtomicU64; 3],
    /// Producer's memory: address.
    pub from: AtomicU64,
    /// Bytes agreed on.
    pub length: AtomicU64,
    /// Bytes of a piece.
    pub piece: AtomicU64,
    _line1: [AtomicU64; 5],
    /// Next piece to copy, claimed by either side.
    pub next: AtomicU64,
    _line2: [AtomicU64; 7],
    /// Pieces finished by the producer / by the consumer.
    pub finished: [AtomicU64; 2],
    /// Address of a word of the producer's that holds the slot's cookies mixed: whoever can read it may copy.
    pub proof: AtomicU64,
    /// 1 when the consumer could read the producer's proof.
    pub may_copy: AtomicU32,
    _pad1: AtomicU32,
    _line3: [AtomicU64; 4],
}

/// States of a [`Transfer`].
pub mod transfer {
    /// Nobody waits.
    pub const IDLE: u32 = 0;
    /// The consumer waits and has shown its memory.
    pub const POSTED: u32 = 1;
    /// The producer copies; the consumer may help.
    pub const ACTIVE: u32 = 2;
    /// All bytes are there.
    pub const DONE: u32 = 3;
}

impl Transfer {
    /// Back to nothing; only while no peer is attached.
    pub fn reset(&self) {
        self.state.store(transfer::IDLE, Ordering::Relaxed);
        self.proof.store(0, Ordering::Relaxed);
        self.may_copy.store(0, Ordering::Relaxed);
    }
}

impl Default for Transfer {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            state: AtomicU32::new(0),
            _pad: AtomicU32::new(0),
            into: zero(),
            into_length: zero(),
            at: [zero(), zero()],
            _line0: [(); 3].map(|()| zero()),
            from: zero(),
            length: zero(),
            piece: zero(),
            _line1: [(); 5].map(|()| zero()),
            next: zero(),
            _line2: [(); 7].map(|()| zero()),
            finished: [zero(), zero()],
            proof: zero(),
            may_copy: AtomicU32::new(0),
            _pad1: AtomicU32::new(0),
            _line3: [(); 4].map(|()| zero()),
        }
    }
}

/// Which connection a slot carries.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SlotHead {
    /// SO_COOKIE of the offerer's socket and of the other end's.
    pub cookies: [AtomicU64; 2],
    /// Non-zero while that end (0 offerer, 1 other) uses the slot.
    pub attached: [AtomicU32; 2],
    /// Non-zero once that end has left for good.
    pub left: [AtomicU32; 2],
}

#[repr(C)]
struct Control {
    lines: [DirectionPage; 2],
    head: SlotHead,
}

#[repr(C, align(1024))]
struct DirectionPage {
    lines: Lines,
}

/// A place for a [`Slot`] that threads read without a lock.
#[derive(Debug, Default)]
pub struct SlotCell {
    base: AtomicPtr<u8>,
    bulk: AtomicPtr<u8>,
    /// log2 of both rings and the end.
    shape: AtomicUsize,
}

impl SlotCell {
    /// The slot that is here.
    #[inline(always)]
    pub fn slot(&self) -> Option<Slot> {
        let base = self.base.load(Acquire);
        let (shape, bulk) = (self.shape.load(Relaxed), self.bulk.load(Relaxed));
        (!base.is_null()).then_some(Slot {
            base,
            bulk,
            ring: 1 << (shape >> 8 & 0xff),
            bulk_size: 1 << (shape >> 16 & 0xff),
            end: shape & 1,
        })
    }

    /// Puts a slot here, or none. Ranges are never unmapped, so a reader that still holds the old one does no harm.
    pub fn set(&self, slot: Option<Slot>) {
        if let Some(slot) = slot {
            let log = |size: usize| size.trailing_zeros() as usize;
            self.shape.store(log(slot.bulk_size) << 16 | log(slot.ring) << 8 | slot.end, Relaxed);
            self.bulk.store(slot.bulk, Relaxed);
        }
        self.base.store(slot.map_or(std::ptr::null_mut(), |slot| slot.base), Release);
    }
}

/// A mapped slot, seen from one end.
#[derive(Debug, Clone, Copy)]
pub struct Slot {
    base: *mut u8,
    ring: usize,
    /// The two large rings, or null.
    bulk: *mut u8,
    bulk_size: usize,
    end: usize,
}

// SAFETY: a Slot points into a range that stays mapped for the life of the process; all its fields are atomics or
// reached through `Ring`.
unsafe impl Send for Slot {}
// SAFETY: as above.
unsafe impl Sync for Slot {}

impl Slot {
    /// Bytes of one slot with rings of `ring` bytes.
    pub const fn size(ring: usize) -> usize {
        CONTROL + 2 * ring
    }

    /// The slot at `offset` of a mapping; `end` 0 is the offerer, 1 the other. `None` when it does not fit, is not aligned,
    /// or the ring is no power of two.
    pub fn over(mapping: Mapping, offset: usize, ring: usize, end: usize) -> Option<Self> {
        let base = mapping.at(offset, Self::size(ring))?;
        (offset.is_multiple_of(4096) && ring.is_power_of_two() && end < 2).then_some(Self {
            base,
            ring,
            bulk: std::ptr::null_mut(),
            bulk_size: 1,
            end,
        })
    }

    /// The same with two large rings of `size` bytes each at `offset`. `None` as for [`Slot::over`].
    pub fn with_bulk(self, mapping: Mapping, offset: usize, size: usize) -> Option<Self> {
        let bulk = mapping.at(offset, size.checked_mul(2)?)?;
        (offset.is_multiple_of(4096) && size.is_power_of_two()).then_some(Self { bulk, bulk_size: size, ..self })
    }

    /// The large ring that this end receives from, as memory to populate or give back.
    pub fn bulk_memory(&self) -> Option<Mapping> {
        self.bulk_of(1 - self.end)
    }

    /// The large ring that this end sends into.
    pub fn bulk_out_memory(&self) -> Option<Mapping> {
        self.bulk_of(self.end)
    }

    fn bulk_of(&self, direction: usize) -> Option<Mapping> {
        // SAFETY: `with_bulk` checked that both large rings lie in a mapping that stays.
        (!self.bulk.is_null())
            .then(|| unsafe { Mapping::new(self.bulk.add(direction * self.bulk_size), self.bulk_size) })
    }

    /// Where it lies in this process.
    pub fn address(&self) -> usize {
        self.base as usize
    }

    /// Which end this is: 0 the offerer, 1 the other.
    pub fn end(&self) -> usize {
        self.end
    }

    #[inline(always)]
    fn control(&self) -> &Control {
        const { assert!(size_of::<Control>() <= CONTROL) };
        // SAFETY: `over` checked that the slot lies in a mapping that stays; Control is made of atomics, valid for any bytes.
        unsafe { &*self.base.cast::<Control>() }
    }

    /// The direction that this end sends into.
    #[inline(always)]
    pub fn outward(&self) -> &Lines {
        &self.control().lines[self.end].lines
    }

    /// The direction that this end receives from.
    #[inline(always)]
    pub fn inward(&self) -> &Lines {
        &self.control().lines[1 - self.end].lines
    }

    /// The ring of [`Slot::outward`]; `wide`: the large one, if there is one.
    #[inline(always)]
    pub fn out_ring(&self, wide: bool) -> Ring {
        self.ring_of(self.end, wide)
    }

    /// The ring of [`Slot::inward`].
    #[inline(always)]
    pub fn in_ring(&self, wide: bool) -> Ring {
        self.ring_of(1 - self.end, wide)
    }

    /// Which connection this is.
    pub fn head(&self) -> &SlotHead {
        &self.control().head
    }

    /// Makes the slot as new, for the connection named by the two cookies. Only the offerer, before it offers it.
    pub fn prepare(&self, cookies: [u64; 2]) {
        for direction in &self.control().lines {
            direction.lines.gate.reset();
            direction.lines.mark.reset();
            direction.lines.consumer.reset();
            direction.lines.transfer.reset();
        }
        let head = self.head();
        for flag in head.attached.iter().chain(&head.left) {
            flag.store(0, Ordering::Relaxed);
        }
        for (word, cookie) in head.cookies.iter().zip(cookies) {
            word.store(cookie, Ordering::Release);
        }
    }

    #[inline(always)]
    fn ring_of(&self, direction: usize, wide: bool) -> Ring {
        if wide && !self.bulk.is_null() {
            // SAFETY: `with_bulk` checked that both large rings lie in the mapping and that their size is a power of two.
            return unsafe { Ring::new(self.bulk.add(direction * self.bulk_size), self.bulk_size) };
        }
        // SAFETY: `over` checked that CONTROL + 2 * ring bytes are mapped and that ring is a power of two.
        unsafe { Ring::new(self.base.add(CONTROL + direction * self.ring), self.ring) }
    }
}
