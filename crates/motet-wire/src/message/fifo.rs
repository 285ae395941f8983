//! The FIFO of messages: one direction between two processes, in memory that both map. (UCX's mm transport has the same word.)
//!
//! What it is: a ring of self-validating cells of 64 bytes. A packet of up to [`CELL_PAYLOAD`] bytes is one cell, which is one cache line, and
//! only that line moves between the CPUs: while there is room, neither end reads or writes an index of the other. What it is not: it does not
//! wait, wake, allocate or interpret packets. Each end is used by one caller at a time; the caller holds the lock that this takes.
//!
//! ```text
//!   0    Head: how the sleeper is fenced            written before the FIFO is offered, read once by each end
//!   128  ConsumerLine: cells consumed               written by the consumer now and then; read when there is no room
//!                      starved                      written by a producer that sleeps until there is room
//!   256  SleepLine: asleep                          written around a sleep; read by the producer after each put
//!   384  cell 0, cell 1, …                          64 bytes each: word · 56 bytes of payload
//!
//!   word = stamp 32 (position of the cell + 1) | length 13 (of the packet) | continuations 3 | kind 8 | flags 8
//! ```
//!
//! A longer packet takes the cells that follow, around the end of the ring if need be. Each of them has a word of its own, so payload of an
//! earlier lap is never where a word is expected. The first cell's word is written last: a consumer that sees it has the whole packet, and a
//! producer that dies before has published nothing.
//!
//! A packet of one cell may be *open*: a number of continuation cells without payload follow it, each when a further part of the packet is in
//! the payload ring ([`payload_ring`]), so that both ends copy at the same time. The packet is complete with the last of them.
//!
//! Positions count cells since the FIFO was prepared and do not wrap; a stamp is the low half of a position. Until a cell is written it has the
//! stamp of one lap before, so a stamp that matches is never an old one.
//!
//! The peer can write everything here, so nothing is trusted: words are read once, lengths and stamps are checked, positions are compared with
//! private copies. What does not match is [`Broken`]. A poll reads at most as many cells as one packet may have.

pub mod chunk_claims;
#[cfg(not(loom))]
pub mod payload_ring;
mod rx;
mod scatter_gather;
#[cfg(all(test, not(loom)))]
mod tests;
mod tx;

pub use rx::{Buffer, FifoRx, Packet, Peeked, SingleCell};
pub use tx::{FifoTx, PutOutcome};

pub use crate::stream::gate::Broken;

use crate::mapping::Mapping;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of a cell.
const CELL_BYTES: usize = 64;
/// Words of payload in a cell. Loom tries every order of their accesses, so there they are few.
const WORDS: usize = if cfg!(loom) { 2 } else { 7 };
/// Bytes of payload in a cell. A packet of at most this size takes one cell.
pub const CELL_PAYLOAD: usize = 8 * WORDS;
/// Bytes of the longest packet of a FIFO with enough cells ([`Fifo::max_packet`]).
pub const MAX_PACKET: usize = 4096;
/// Continuation cells of an open packet, at most.
pub const MAX_CONTINUATIONS: u8 = 7;
/// Cells of a FIFO by default. Both directions take 16 KiB and stay in a core's first-level cache: handing over a cell that has moved to the
/// second-level cache takes 15 to 50 ns longer (docs/hot-path.md).
pub const DEFAULT_CELLS: usize = 128;
/// Bytes before the cells.
const CONTROL_BYTES: usize = 384;

/// Flag of a cell that is not the first of its packet. The other flags belong to the caller.
pub(crate) const CONTINUATION: u8 = 0x80;

/// One cell of the ring, written by the producer.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Cell {
    pub(crate) word: AtomicU64,
    pub(crate) payload: [AtomicU64; WORDS],
}

/// The word of a cell: stamp, length, continuations, kind, flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    /// The word of a packet's first cell.
    #[inline(always)]
    pub(crate) fn first(position: u64, length: usize, kind: u8, flags: u8) -> Self {
        let stamp = position.wrapping_add(1) & 0xffff_ffff;
        Self(stamp | (length as u64) << 32 | u64::from(kind) << 48 | u64::from(flags) << 56)
    }

    /// The word of an open packet's first cell.
    #[inline(always)]
    fn open(position: u64, length: usize, continuations: u8, kind: u8, flags: u8) -> Self {
        Self(Self::first(position, length, kind, flags).0 | u64::from(continuations) << 45)
    }

    /// The word of a continuation cell of an open packet.
    #[inline(always)]
    fn open_continuation(position: u64) -> Self {
        Self::first(position, 0, 0, CONTINUATION)
    }

    /// Continuation cells that follow an open packet; 0 for any other.
    #[inline(always)]
    fn continuations(self) -> u8 {
        (self.0 >> 45) as u8 & 7
    }

    /// Whether this is the word of the cell at `position`.
    #[inline(always)]
    pub(crate) fn is_at(self, position: u64) -> bool {
        self.0 as u32 == (position as u32).wrapping_add(1)
    }

    /// The word of the cell `ahead` cells after the first one of the packet at `position`.
    #[inline(always)]
    pub(crate) fn continuation(self, position: u64, ahead: u64) -> Self {
        Self::first(position + ahead, self.length(), self.kind(), self.flags() | CONTINUATION)
    }

    /// Bytes of the packet. Untrusted.
    #[inline(always)]
    pub(crate) fn length(self) -> usize {
        (self.0 >> 32) as usize & 0x1fff
    }

    /// Kind and length of a packet that is not open and has fewer than 256 bytes, where this is the word of its first cell.
    #[inline(always)]
    fn single_cell(self) -> Option<(u8, u8)> {
        (self.0 & 0x8000_ff00_0000_0000 == 0).then_some((self.kind(), (self.0 >> 32) as u8))
    }

    #[inline(always)]
    pub(crate) fn kind(self) -> u8 {
        (self.0 >> 48) as u8
    }

    #[inline(always)]
    pub(crate) fn flags(self) -> u8 {
        (self.0 >> 56) as u8
    }
}

/// Cells of a packet of `length` bytes.
#[inline(always)]
pub(crate) const fn cells_of(length: usize) -> u64 {
    if length <= CELL_PAYLOAD { 1 } else { length.div_ceil(CELL_PAYLOAD) as u64 }
}

/// What both ends must know. Not written after the FIFO was offered.
#[repr(C, align(128))]
#[derive(Debug)]
struct Head {
    fenced: AtomicU32,
}

/// Cells consumed, and whether the producer sleeps until there are more. One cache line: the consumer reads `starved` whenever it writes `consumed`.
#[repr(C, align(128))]
#[derive(Debug)]
struct ConsumerLine {
    consumed: AtomicU64,
    starved: AtomicU32,
}

/// Whether the consumer sleeps. On a cache line of its own: while it does not change, the producer's check after each put hits its own cache.
#[repr(C, align(128))]
#[derive(Debug)]
struct SleepLine {
    asleep: AtomicU32,
}

/// The control words of a FIFO, before its cells.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    head: Head,
    consumer: ConsumerLine,
    sleep: SleepLine,
}

impl Control {
    /// The control words of an unused FIFO.
    pub fn new() -> Self {
        Self {
            head: Head { fenced: AtomicU32::new(0) },
            consumer: ConsumerLine { consumed: AtomicU64::new(0), starved: AtomicU32::new(0) },
            sleep: SleepLine { asleep: AtomicU32::new(0) },
        }
    }
}

impl Default for Control {
    fn default() -> Self {
        Self::new()
    }
}

impl Cell {
    /// An unused cell.
    pub fn new() -> Self {
        Self { word: AtomicU64::new(0), payload: [(); WORDS].map(|()| AtomicU64::new(0)) }
    }

    /// Writes the first words of the payload.
    #[inline(always)]
    fn fill<const N: usize>(&self, words: [u64; N]) {
        for (slot, word) in self.payload.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
    }

    /// Prefetches the cell for reading.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch touches nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>((&raw const *self).cast());
        }
    }
}

impl Default for Cell {
    fn default() -> Self {
        Self::new()
    }
}

/// How a consumer that goes to sleep and a producer that has just put a packet make sure that one of them sees the other (Dekker's problem).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepFence {
    /// The sleeper executes a barrier on both CPUs (`membarrier`); a put has no fence of its own.
    Asymmetric,
    /// Sleeper and producer each execute a full fence: for systems without `membarrier`. Each put pays for it.
    Both,
}

impl SleepFence {
    /// The half of the end that stays awake: between a store that a sleeper must see and the check for a sleeper.
    ///
    /// With [`SleepFence::Asymmetric`] the sleeper's barrier runs on this CPU, too, between two of its instructions. If it runs before the check,
    /// the check finds the sleeper; if it runs after the check, the store is visible to the sleeper. Only the compiler must keep the two in
    /// order. Loom has no such barrier, so there it is a full fence on both sides.
    #[inline(always)]
    fn before_check(self) {
        match self {
            #[cfg(not(loom))]
            SleepFence::Asymmetric => std::sync::atomic::compiler_fence(Ordering::SeqCst),
            #[cfg(loom)]
            SleepFence::Asymmetric => fence(Ordering::SeqCst),
            SleepFence::Both => fence(Ordering::SeqCst),
        }
    }

    /// The half of the sleeper: between setting its flag and its last poll. True: the caller must execute the barrier of both CPUs.
    fn before_sleep(self) -> bool {
        if self == SleepFence::Both {
            fence(Ordering::SeqCst);
        }
        self == SleepFence::Asymmetric
    }
}

/// Clears a sleeper's flag. True for exactly one of the callers that find it set: that caller wakes the sleeper.
#[inline(always)]
fn take_sleeper(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) == 1 && word.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// A FIFO in memory that stays mapped.
#[derive(Debug, Clone, Copy)]
pub struct Fifo {
    control: &'static Control,
    cells: &'static [Cell],
}

impl Fifo {
    /// Bytes of a FIFO of `cells` cells.
    pub const fn size(cells: usize) -> usize {
        CONTROL_BYTES + cells * CELL_BYTES
    }

    /// The FIFO at `offset` of a mapping. `None` if it does not fit, is not aligned to 128 bytes, or `cells` is no power of two from 4 to 2^24.
    pub fn over(mapping: Mapping, offset: usize, cells: usize) -> Option<Self> {
        const { assert!(size_of::<Control>() == CONTROL_BYTES && size_of::<Cell>() == CELL_BYTES || cfg!(loom)) };
        if !(cells.is_power_of_two() && (4..=1 << 24).contains(&cells) && offset.is_multiple_of(128)) {
            return None;
        }
        let base = mapping.at(offset, Self::size(cells))?;
        // SAFETY: `at` checked that the bytes are in the mapping, which by the contract of `Mapping::new` is page-aligned and stays
        // until the process ends; `offset` is a multiple of 128. Control and Cell are made of atomics and valid for any bytes.
        let (control, ring) = unsafe {
            (&*base.cast::<Control>(), std::slice::from_raw_parts(base.add(CONTROL_BYTES).cast::<Cell>(), cells))
        };
        Self::from_parts(control, ring)
    }

    /// A FIFO of the given memory. `None` if the number of cells is no power of two from 4 to 2^24.
    pub fn from_parts(control: &'static Control, cells: &'static [Cell]) -> Option<Self> {
        let known = cells.len().is_power_of_two() && (4..=1 << 24).contains(&cells.len());
        known.then_some(Self { control, cells })
    }

    /// Resets the FIFO. Only the process that offers it may call this, and only before it does.
    pub fn prepare(&self, fence: SleepFence) {
        for cell in self.cells {
            cell.word.store(0, Ordering::Relaxed);
        }
        self.control.consumer.consumed.store(0, Ordering::Relaxed);
        self.control.consumer.starved.store(0, Ordering::Relaxed);
        self.control.sleep.asleep.store(0, Ordering::Relaxed);
        self.control.head.fenced.store(u32::from(fence == SleepFence::Both), Ordering::Release);
    }

    /// Bytes of the longest packet. There is room for it whenever the consumer has found the FIFO empty.
    pub fn max_packet(&self) -> usize {
        MAX_PACKET.min(self.cells.len() / 4 * 3 * CELL_PAYLOAD)
    }

    /// The sending end of an unused FIFO. There may be one at a time, in one of the two processes.
    pub fn tx(self) -> FifoTx {
        FifoTx::new(self)
    }

    /// The receiving end of an unused FIFO. There may be one at a time, in the other process.
    pub fn rx(self) -> FifoRx {
        FifoRx::new(self)
    }

    /// The fence that [`Fifo::prepare`] was called with.
    fn fence(&self) -> SleepFence {
        if self.control.head.fenced.load(Ordering::Acquire) == 0 { SleepFence::Asymmetric } else { SleepFence::Both }
    }

    /// The cell at a position.
    #[inline(always)]
    fn cell(&self, position: u64) -> &'static Cell {
        let at = position as usize & (self.cells.len() - 1);
        // SAFETY: `from_parts` checked that the number of cells is a power of two, so the mask makes `at` less than it.
        unsafe { self.cells.get_unchecked(at) }
    }
}
