//! A slot of a segment: both directions of one connection.
//!
//! ```text
//!   0     direction 0 (offerer -> other):  gate 64 · mark 64 · consumer 64 · transfer 64 x 4
//!   1024  direction 1 (other -> offerer):  gate 64 · mark 64 · consumer 64 · transfer 64 x 4
//!   2048  SlotHead: identity of the connection, ends that have attached and left
//!   4096  ring of direction 0
//!   4096 + ring  ring of direction 1
//! ```

use crate::mapping::Mapping;
use crate::stream::gate::{ConsumerLine, GateLine, MarkLine};
use crate::stream::ring::Ring;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use std::ptr::{from_ref, null, null_mut};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bytes before the rings.
pub const CONTROL: usize = if cfg!(motet_next_version) { 8192 } else { 4096 };

/// The control lines of one direction.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Lines {
    /// The mode word and its short payload.
    pub gate: GateLine,
    /// The number of TCP bytes that precede the ring.
    pub mark: MarkLine,
    /// The consumer's index.
    pub consumer: ConsumerLine,
    /// The words of a large transfer by single copy.
    pub transfer: Transfer,
}

/// The words by which a receiver that waits shows its memory, so that large payload is copied only once.
///
/// State: IDLE -> POSTED (consumer) -> ACTIVE (producer) -> DONE (producer, all pieces copied) -> IDLE (consumer), or
/// ACTIVE -> CUT (producer, which does not wait for a consumer without progress) -> IDLE.
/// Addresses are those of the writer's own process. The other side passes them only to `process_vm_readv/writev` together with the pid that
/// the kernel attested, so a false address harms only its writer.
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
    /// Ring position and TCP bytes at which the consumer waits. The producer must be at the same position.
    pub at: [AtomicU64; 2],
    _line0: [AtomicU64; 3],
    /// Producer's memory: address.
    pub from: AtomicU64,
    /// Bytes agreed on.
    pub length: AtomicU64,
    /// Bytes of a piece.
    pub piece: AtomicU64,
    /// In state CUT: bytes that were copied. The bytes that follow are sent through the ring or TCP.
    pub kept: AtomicU64,
    _line1: [AtomicU64; 4],
    /// Next piece to copy, claimed by either side.
    pub next: AtomicU64,
    _line2: [AtomicU64; 7],
    /// Pieces finished by the consumer.
    pub finished: AtomicU64,
    _reserved: AtomicU64,
    /// Address of a word of the producer that contains a hash of the slot's cookies: a process that can read it may copy.
    pub proof: AtomicU64,
    /// 1: the consumer could read the producer's proof.
    pub may_copy: AtomicU32,
    _pad1: AtomicU32,
    _line3: [AtomicU64; 4],
}

/// States of a [`Transfer`].
pub mod transfer {
    /// No consumer waits.
    pub const IDLE: u32 = 0;
    /// The consumer waits and has shown its memory.
    pub const POSTED: u32 = 1;
    /// The producer copies; the consumer may copy pieces, too.
    pub const ACTIVE: u32 = 2;
    /// All bytes are copied.
    pub const DONE: u32 = 3;
    /// The producer has stopped before the end.
    pub const CUT: u32 = 4;
}

impl Transfer {
    /// Resets the words; only while no peer is attached.
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
            kept: zero(),
            _line1: [(); 4].map(|()| zero()),
            next: zero(),
            _line2: [(); 7].map(|()| zero()),
            finished: zero(),
            _reserved: zero(),
            proof: zero(),
            may_copy: AtomicU32::new(0),
            _pad1: AtomicU32::new(0),
            _line3: [(); 4].map(|()| zero()),
        }
    }
}

/// Identity of the connection that uses a slot, and the ends that have attached and left.
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

/// A cell for a [`Slot`] that threads read without a lock.
///
/// It is one pointer to a description that is never changed or freed. So a reader sees all words of one slot, or none, even if the cell is set
/// and cleared at the same time, and equal pointers always mean the same slot (no ABA problem).
#[derive(Debug, Default)]
pub struct SlotCell(AtomicPtr<Slot>);

impl SlotCell {
    /// The slot in the cell.
    #[inline(always)]
    pub fn slot(&self) -> Option<Slot> {
        // SAFETY: null, or a pointer from `described`, whose target is neither changed nor freed until the process ends.
        unsafe { self.0.load(Acquire).as_ref() }.copied() // edge: describe -> slot
    }

    /// Sets or clears the slot. Mappings are never unmapped, so a reader may still use the old one.
    pub fn set(&self, slot: Option<Slot>) {
        self.0.store(slot.map_or(null_mut(), |slot| from_ref(described(slot)).cast_mut()), Release);
    }
}

/// An entry of a list of descriptions that only grows. On a cache line of its own, as senders and receivers read it.
#[repr(align(64))]
struct Described {
    slot: Slot,
    next: *const Described,
}

/// The lists, by address. They are lock-free, so a fork at any moment leaves the child with consistent lists.
static DESCRIBED: [AtomicPtr<Described>; 4096] = [const { AtomicPtr::new(null_mut()) }; 4096];

/// The unique description of a slot. There is one for each slot that was ever mapped, independent of the number of connections that used it.
fn described(slot: Slot) -> &'static Slot {
    let list = &DESCRIBED[(slot.base as usize / 4096 * 2 + slot.end) % DESCRIBED.len()];
    let mut new = Box::new(Described { slot, next: null() });
    loop {
        let first = list.load(Acquire); // edge: describe -> slot
        let mut at: *const Described = first;
        // SAFETY: null, or a box that was leaked by `into_raw` and published by the exchange below after it was initialised.
        while let Some(known) = unsafe { at.as_ref() } {
            if known.slot == slot {
                return &known.slot;
            }
            at = known.next;
        }
        new.next = first;
        let raw = Box::into_raw(new);
        match list.compare_exchange(first, raw, Release, Relaxed) {
            // SAFETY: the exchange succeeded, so the entry is in the list and is never freed or changed.
            Ok(_) => return unsafe { &(*raw).slot },
            // SAFETY: the exchange failed, so no other thread has the pointer, which `into_raw` has just returned.
            Err(_) => new = unsafe { Box::from_raw(raw) },
        }
    }
}

/// A mapped slot, seen from one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
// SAFETY: as for Send.
unsafe impl Sync for Slot {}

impl Slot {
    /// Bytes of one slot with rings of `ring` bytes.
    pub const fn size(ring: usize) -> usize {
        CONTROL + 2 * ring
    }

    /// The slot at `offset` of a mapping; `end` 0 is the offerer, 1 the other. `None` if it does not fit, is not aligned, or the ring is no power
    /// of two.
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

    /// Adds two large rings of `size` bytes each at `offset`. `None` if they do not fit, are not aligned, or the size is no power of two.
    pub fn with_bulk(self, mapping: Mapping, offset: usize, size: usize) -> Option<Self> {
        let bulk = mapping.at(offset, size.checked_mul(2)?)?;
        (offset.is_multiple_of(4096) && size.is_power_of_two()).then_some(Self { bulk, bulk_size: size, ..self })
    }

    /// The control page, as memory to populate.
    pub fn control_memory(&self) -> Mapping {
        // SAFETY: `over` checked that the slot is in a mapping that stays.
        unsafe { Mapping::new(self.base, CONTROL) }
    }

    /// The ring that this end receives from, as memory to populate or release.
    pub fn ring_memory(&self) -> Mapping {
        // SAFETY: `over` checked that CONTROL + 2 * ring bytes are in a mapping that stays.
        unsafe { Mapping::new(self.base.add(CONTROL + (1 - self.end) * self.ring), self.ring) }
    }

    /// The large ring that this end receives from, as memory to populate or release.
    pub fn bulk_memory(&self) -> Option<Mapping> {
        self.bulk_of(1 - self.end)
    }

    /// The large ring that this end sends into.
    pub fn bulk_out_memory(&self) -> Option<Mapping> {
        self.bulk_of(self.end)
    }

    fn bulk_of(&self, direction: usize) -> Option<Mapping> {
        // SAFETY: `with_bulk` checked that both large rings are in a mapping that stays.
        (!self.bulk.is_null())
            .then(|| unsafe { Mapping::new(self.bulk.add(direction * self.bulk_size), self.bulk_size) })
    }

    /// The address of the slot in this process.
    pub fn address(&self) -> usize {
        self.base as usize
    }

    /// The number of this end: 0 the offerer, 1 the other.
    pub fn end(&self) -> usize {
        self.end
    }

    #[inline(always)]
    fn control(&self) -> &Control {
        const { assert!(size_of::<Control>() <= CONTROL) };
        // SAFETY: `over` checked that the slot is in a mapping that stays; Control is made of atomics, valid for any bytes.
        unsafe { &*self.base.cast::<Control>() }
    }

    /// The control lines of the direction in which this end sends.
    #[inline(always)]
    pub fn outward(&self) -> &Lines {
        &self.control().lines[self.end].lines
    }

    /// The control lines of the direction in which this end receives.
    #[inline(always)]
    pub fn inward(&self) -> &Lines {
        &self.control().lines[1 - self.end].lines
    }

    /// The ring into which this end sends; `wide`: the large one, if there is one.
    #[inline(always)]
    pub fn out_ring(&self, wide: bool) -> Ring {
        self.ring_of(self.end, wide)
    }

    /// The ring from which this end receives; `wide`: the large one, if there is one.
    #[inline(always)]
    pub fn in_ring(&self, wide: bool) -> Ring {
        self.ring_of(1 - self.end, wide)
    }

    /// Identity of the connection, and the ends that have attached and left.
    pub fn head(&self) -> &SlotHead {
        &self.control().head
    }

    /// Resets the slot for the connection with these two cookies. Only the offerer may call this, and only before it offers the slot.
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
            // SAFETY: `with_bulk` checked that both large rings are in the mapping and that their size is a power of two.
            return unsafe { Ring::new(self.bulk.add(direction * self.bulk_size), self.bulk_size) };
        }
        // SAFETY: `over` checked that CONTROL + 2 * ring bytes are mapped and that ring is a power of two.
        unsafe { Ring::new(self.base.add(CONTROL + direction * self.ring), self.ring) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Slots with rings of these sizes, each with large rings, one after the other.
    fn slots(sizes: &[usize]) -> Vec<Slot> {
        let size = |ring: usize| (Slot::size(ring) + 2 * ring).next_multiple_of(4096);
        let total = sizes.iter().map(|&ring| size(ring)).sum::<usize>();
        let layout = std::alloc::Layout::from_size_align(total, 4096).unwrap();
        // SAFETY: a page-aligned block of that size, never freed, is what a mapping promises.
        let mapping = unsafe { Mapping::new(std::alloc::alloc_zeroed(layout), total) };
        let mut at = 0;
        let mut slot = |&ring: &usize| {
            let slot = Slot::over(mapping, at, ring, 0)?.with_bulk(mapping, at + Slot::size(ring), ring);
            at += size(ring);
            slot
        };
        sizes.iter().map(|ring| slot(ring).unwrap()).collect()
    }

    #[test]
    fn reader_of_a_cell_sees_one_slot_whole() {
        let slots = slots(&[4096, 8192, 16384]);
        let (cell, done) = (SlotCell::default(), AtomicBool::new(false));
        let rounds = if cfg!(miri) { 50 } else { 200_000 };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        let seen = cell.slot();
                        assert!(seen.is_none_or(|seen| slots.contains(&seen)), "{seen:?}");
                    }
                });
            }
            for round in 0..rounds {
                cell.set(Some(slots[round % slots.len()]));
                cell.set(None);
            }
            done.store(true, Relaxed);
        });
    }

    #[test]
    fn slot_has_one_description_for_all_threads() {
        let slots = slots(&[4096; 20]);
        let described = || slots.iter().map(|&slot| from_ref(described(slot)) as usize).collect::<Vec<_>>();
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(described)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(all.iter().all(|one| *one == all[0]));
        let far = Slot { end: 1, ..slots[0] };
        assert_ne!(from_ref(super::described(far)) as usize, all[0][0], "the other end's view is another slot");
    }
}
