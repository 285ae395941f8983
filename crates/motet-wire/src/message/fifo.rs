//! A lane: one direction of messages between two processes, in memory that both map.
//!
//! What it is: a ring of self-validating lines. A packet of up to [`IN_LINE`] bytes is one cache line, and that line is all
//! that changes hands: no index is read or written by both ends while there is room. What it is not: it does not wait, wake,
//! allocate or know what a packet means; each end belongs to one caller at a time, who holds whatever lock that takes.
//!
//! ```text
//!   0    Head: lines, how the sleeper is fenced     written before the lane is offered, read once by each end
//!   128  ConsumerLine: lines consumed                written by the consumer, now and then; read when there is no room
//!                      starved                       written by a producer that sleeps until there is room
//!   256  SleepLine: asleep                           written around a sleep; looked at by the producer after each put
//!   384  line 0, line 1, …                           each 64 bytes: word · 56 bytes of payload
//!
//!   word = stamp 32 (position of the line + 1) | length 13 (of the packet) | more 3 | kind 8 | flags 8
//! ```
//!
//! A longer packet takes the lines that follow, around the end of the ring if need be. Each has a word of its own, so payload
//! of an earlier lap is never where a word is expected. The first line's word is written last: whoever sees it has the whole
//! packet, and a producer that dies before has shown nothing.
//!
//! A packet of one line may be *open*: so many more lines without payload follow it, each when something else that belongs to the
//! packet is there (bytes in a ring, [`payload_ring`]), so that both ends copy at the same time. It is whole with the last of them.
//!
//! Positions count lines since the lane was prepared and do not wrap; a stamp is the low half of one. The line of a position
//! held the position one lap before until it is written, so a stamp that matches is never an old one.
//!
//! Everything that the peer can write is hostile: words are read once, lengths and stamps checked, positions compared with
//! private copies; what does not match is [`Broken`]. A poll looks at no more lines than one packet may have.

pub mod chunk_claims;
#[cfg(not(loom))]
pub mod payload_ring;
mod rx;
mod scatter_gather;
#[cfg(all(test, not(loom)))]
mod tests;
mod tx;

pub use rx::{Buffer, Consumer, Glance, Packet, Short};
pub use tx::{Producer, Put};

pub use crate::stream::gate::Broken;

use crate::mapping::Mapping;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of a line.
const LINE: usize = 64;
/// Words of payload in a line; few where a model checker tries every order of them.
const WORDS: usize = if cfg!(loom) { 2 } else { 7 };
/// Bytes of payload in a line: a packet of so many is one line.
pub const IN_LINE: usize = 8 * WORDS;
/// The longest packet of a lane that has room for it ([`Lane::most`]).
pub const MOST: usize = 4096;
/// Most lines that follow an open packet.
pub const MORE: u8 = 7;
/// Lines of a lane, unless somebody knows better. Both directions, 16 KiB, stay in a core's first-level cache: a line that has
/// gone to the second one costs 15 to 50 ns more to hand over, a third of the floor (docs/hot-path.md).
pub const LINES: usize = 128;
/// Bytes before the lines.
const CONTROL: usize = 384;

/// A line that is not the first of its packet. The other flags are the callers'.
pub(crate) const CONTINUATION: u8 = 0x80;

/// One line of the ring, written by the producer.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Line {
    pub(crate) word: AtomicU64,
    pub(crate) payload: [AtomicU64; WORDS],
}

/// The word of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    #[inline(always)]
    pub(crate) fn first(position: u64, length: usize, kind: u8, flags: u8) -> Self {
        let stamp = position.wrapping_add(1) & 0xffff_ffff;
        Self(stamp | (length as u64) << 32 | u64::from(kind) << 48 | u64::from(flags) << 56)
    }

    /// The same of an open packet.
    #[inline(always)]
    fn open(position: u64, length: usize, more: u8, kind: u8, flags: u8) -> Self {
        Self(Self::first(position, length, kind, flags).0 | u64::from(more) << 45)
    }

    /// That of a line which follows an open packet.
    #[inline(always)]
    fn follows(position: u64) -> Self {
        Self::first(position, 0, 0, CONTINUATION)
    }

    /// Lines that follow.
    #[inline(always)]
    fn more(self) -> u8 {
        (self.0 >> 45) as u8 & 7
    }

    /// Whether this is the word of the line at `position`.
    #[inline(always)]
    pub(crate) fn is_at(self, position: u64) -> bool {
        self.0 as u32 == (position as u32).wrapping_add(1)
    }

    /// The word of the packet's line `ahead` lines behind its first.
    #[inline(always)]
    pub(crate) fn behind(self, position: u64, ahead: u64) -> Self {
        Self::first(position + ahead, self.length(), self.kind(), self.flags() | CONTINUATION)
    }

    #[inline(always)]
    pub(crate) fn length(self) -> usize {
        (self.0 >> 32) as usize & 0x1fff
    }

    /// Kind and length, of a packet that is the first line, is not open and has less than 256 bytes.
    #[inline(always)]
    fn short(self) -> Option<(u8, u8)> {
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

/// Lines of a packet of `length` bytes.
#[inline(always)]
pub(crate) const fn lines_of(length: usize) -> u64 {
    if length <= IN_LINE { 1 } else { length.div_ceil(IN_LINE) as u64 }
}

/// What both ends must know; never written again once the lane is offered.
#[repr(C, align(128))]
#[derive(Debug)]
struct Head {
    fenced: AtomicU32,
}

/// How far the consumer is, and whether the producer sleeps until it gets on: looked at by the consumer whenever it writes here.
#[repr(C, align(128))]
#[derive(Debug)]
struct ConsumerLine {
    consumed: AtomicU64,
    starved: AtomicU32,
}

/// Whether the consumer sleeps. On a line of its own: the producer's look after each put costs nothing while it does not change.
#[repr(C, align(128))]
#[derive(Debug)]
struct SleepLine {
    asleep: AtomicU32,
}

/// Everything of a lane but its lines.
#[repr(C)]
#[derive(Debug)]
pub struct Control {
    head: Head,
    consumer: ConsumerLine,
    sleep: SleepLine,
}

impl Control {
    /// That of a lane that nothing has gone through.
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

impl Line {
    /// A line that was never written.
    pub fn new() -> Self {
        Self { word: AtomicU64::new(0), payload: [(); WORDS].map(|()| AtomicU64::new(0)) }
    }

    /// Writes the first words of its payload.
    #[inline(always)]
    fn fill<const N: usize>(&self, words: [u64; N]) {
        for (slot, word) in self.payload.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
    }

    /// It will be looked at soon.
    #[inline(always)]
    pub(crate) fn fetch(&self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch touches nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>((&raw const *self).cast());
        }
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

/// How a consumer that goes to sleep and a producer that has just put something make sure that one of them sees the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// The sleeper's barrier reaches the producer's CPU, too (`membarrier`): a put has none of its own.
    Asymmetric,
    /// Both have a full fence: for systems without that. Each put pays for it.
    Both,
}

impl Fence {
    /// Between a store that a sleeper must see and the look at whether there is one: the half of whoever does not sleep.
    ///
    /// The sleeper's barrier runs on this CPU, too, between any two instructions: either before the look, which then finds the
    /// sleeper, or after it, and then the store before it has left for the sleeper to see. Only the compiler must keep the two in
    /// order. Loom knows no such barrier: there it is a fence on both sides.
    #[inline(always)]
    fn before_look(self) {
        match self {
            #[cfg(not(loom))]
            Fence::Asymmetric => std::sync::atomic::compiler_fence(Ordering::SeqCst),
            #[cfg(loom)]
            Fence::Asymmetric => fence(Ordering::SeqCst),
            Fence::Both => fence(Ordering::SeqCst),
        }
    }

    /// Between a sleeper's word and its last look. True: it takes the barrier that reaches the other side's CPU.
    fn before_sleep(self) -> bool {
        if self == Fence::Both {
            fence(Ordering::SeqCst);
        }
        self == Fence::Asymmetric
    }
}

/// Takes a sleeper's word down. True for one of those who find it: that one wakes it.
#[inline(always)]
fn find_asleep(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) == 1 && word.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// A lane in memory that stays mapped.
#[derive(Debug, Clone, Copy)]
pub struct Lane {
    control: &'static Control,
    lines: &'static [Line],
}

impl Lane {
    /// Bytes of a lane of so many lines.
    pub const fn size(lines: usize) -> usize {
        CONTROL + lines * LINE
    }

    /// The lane at `offset` of a mapping. `None` when it does not fit, is not aligned to 128 bytes, or `lines` is no power of
    /// two from 4 to 2^24.
    pub fn over(mapping: Mapping, offset: usize, lines: usize) -> Option<Self> {
        const { assert!(size_of::<Control>() == CONTROL && size_of::<Line>() == LINE || cfg!(loom)) };
        if !(lines.is_power_of_two() && (4..=1 << 24).contains(&lines) && offset.is_multiple_of(128)) {
            return None;
        }
        let base = mapping.at(offset, Self::size(lines))?;
        // SAFETY: `at` checked that the bytes lie in a mapping, which by the promise of `Mapping::new` is page-aligned and stays
        // until the process ends; Control and Line are made of atomics, valid for any bytes, whoever writes them.
        let (control, ring) =
            unsafe { (&*base.cast::<Control>(), std::slice::from_raw_parts(base.add(CONTROL).cast::<Line>(), lines)) };
        Self::of(control, ring)
    }

    /// The lane made of these. `None` when the lines are no power of two from 4 to 2^24.
    pub fn of(control: &'static Control, lines: &'static [Line]) -> Option<Self> {
        let known = lines.len().is_power_of_two() && (4..=1 << 24).contains(&lines.len());
        known.then_some(Self { control, lines })
    }

    /// Makes the lane as new. Only whoever offers it, before that.
    pub fn prepare(&self, fence: Fence) {
        for line in self.lines {
            line.word.store(0, Ordering::Relaxed);
        }
        self.control.consumer.consumed.store(0, Ordering::Relaxed);
        self.control.consumer.starved.store(0, Ordering::Relaxed);
        self.control.sleep.asleep.store(0, Ordering::Relaxed);
        self.control.head.fenced.store(u32::from(fence == Fence::Both), Ordering::Release);
    }

    /// The longest packet, bytes. It has room whenever the consumer has found the lane empty.
    pub fn most(&self) -> usize {
        MOST.min(self.lines.len() / 4 * 3 * IN_LINE)
    }

    /// The producing end of a lane that nothing has gone through yet. One at a time, in one of the two processes.
    pub fn producer(self) -> Producer {
        Producer::new(self)
    }

    /// The consuming end of a lane that nothing has gone through yet. One at a time, in the other process.
    pub fn consumer(self) -> Consumer {
        Consumer::new(self)
    }

    fn fence(&self) -> Fence {
        if self.control.head.fenced.load(Ordering::Acquire) == 0 { Fence::Asymmetric } else { Fence::Both }
    }

    /// The line of a position.
    #[inline(always)]
    fn line(&self, position: u64) -> &'static Line {
        let at = position as usize & (self.lines.len() - 1);
        // SAFETY: `of` checked that the number of lines is a power of two, so `at` is less.
        unsafe { self.lines.get_unchecked(at) }
    }
}
