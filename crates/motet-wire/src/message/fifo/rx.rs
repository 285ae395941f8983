//! The end of a lane that receives.

use super::{Broken, CONTINUATION, Fence, IN_LINE, Lane, Line, MOST, WORDS, Word, find_asleep, lines_of};
use crate::sync::Ordering;

/// Where a packet is copied before anybody looks at it: private memory, of any packet's size in whole lines.
#[repr(align(64))]
pub struct Buffer([u8; lines_of(MOST) as usize * IN_LINE]);

impl Buffer {
    /// An empty one.
    pub const fn new() -> Self {
        Self([0; lines_of(MOST) as usize * IN_LINE])
    }
}

impl Buffer {
    /// All of it: the last packet that was received into it, and behind that whatever was there before.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new()
    }
}

/// What a packet says of itself; its bytes are in the buffer that it was copied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// As it was put.
    pub kind: u8,
    /// As it was put, without the highest bit.
    pub flags: u8,
    /// Lines that follow it.
    more: u8,
    length: u16,
}

impl Packet {
    /// Lines that make it whole.
    #[inline(always)]
    pub fn more(&self) -> u8 {
        self.more
    }

    /// Its bytes, of the buffer that it was received into.
    #[inline(always)]
    pub fn bytes<'a>(&self, buffer: &'a Buffer) -> &'a [u8] {
        &buffer.0[..usize::from(self.length).min(MOST)]
    }
}

/// What a look at the next packet's line has found.
#[derive(Debug, Clone, Copy)]
pub enum Glance {
    /// Nothing.
    Nothing,
    /// A packet that is whole and of this line, without flags.
    Short(Short),
    /// The same with flags.
    Flagged(Short),
    /// Anything else: [`Consumer::peek`].
    Other,
}

/// A packet of one line, where it lies. Its words are the peer's to change: whoever looks at them reads each once.
#[derive(Debug, Clone, Copy)]
pub struct Short {
    line: &'static Line,
    /// As it was put.
    pub kind: u8,
    /// As it was put.
    pub flags: u8,
    length: u8,
}

impl Short {
    /// Bytes, at most [`IN_LINE`].
    #[inline(always)]
    pub fn length(&self) -> usize {
        usize::from(self.length)
    }

    /// The bytes from `8 * at` on, little-endian, for an `at` below 7; 0 beyond. Behind the packet's end they are whatever.
    #[inline(always)]
    pub fn word(&self, at: usize) -> u64 {
        self.line.payload.get(at).map_or(0, |word| u64::from_le(word.load(Ordering::Relaxed)))
    }

    /// All bytes from the one that is `8 * AT` on.
    #[inline(always)]
    pub fn behind<const AT: usize>(&self) -> [u8; IN_LINE] {
        let mut bytes = [0; IN_LINE];
        for at in AT..WORDS {
            bytes[8 * (at - AT)..][..8].copy_from_slice(&self.word(at).to_le_bytes());
        }
        bytes
    }
}

/// So many packets in a row, each there when it was looked for, make a run, in which lines are fetched so far ahead. Outside of one that
/// would take lines from a producer that is about to write them. (Streams of lines alone: 22 to 14 ns each.)
const RUN: u32 = 4;
const AHEAD: u64 = 8;

/// The end that receives.
#[derive(Debug)]
pub struct Consumer {
    pub(super) lane: Lane,
    /// Lines consumed.
    pub(super) head: u64,
    /// The same as the producer can know.
    pub(super) published: u64,
    /// How many more than that before it is told.
    lag: u64,
    most: usize,
    fence: Fence,
    /// The producer is to be woken.
    wake: bool,
    /// Packets in a row that were there when they were looked for.
    run: u32,
}

impl Consumer {
    pub(super) fn new(lane: Lane) -> Self {
        let lag = lane.lines.len() as u64 / 8;
        Self { lane, head: 0, published: 0, lag, most: lane.most(), fence: lane.fence(), wake: false, run: 0 }
    }

    /// The next packet, copied into `buffer`, if there is one. Spin on this, not on [`Consumer::is_empty`]: the load that sees the
    /// word is then the one that is used, which is worth 10 to 20 ns (docs/hot-path.md).
    #[inline(always)]
    pub fn poll(&mut self, buffer: &mut Buffer) -> Result<Option<Packet>, Broken> {
        let Some(packet) = self.peek(buffer)? else { return Ok(None) };
        if packet.more > 0 && !self.follows(packet.more)? {
            return Ok(None); // not all of it is there
        }
        self.consume(&packet);
        Ok(Some(packet))
    }

    /// Looks at the next packet where it is, and leaves it there: for who expects short ones ([`Consumer::consume_short`]).
    #[inline(always)]
    pub fn glance(&mut self) -> Glance {
        let line = self.lane.line(self.head);
        let word = Word(line.word.load(Ordering::Acquire)); // edge: publish -> poll
        if !word.is_at(self.head) {
            self.run = 0;
            self.tell(0);
            return Glance::Nothing;
        }
        match word.short() {
            Some((kind, length)) if usize::from(length) <= IN_LINE => {
                let short = Short { line, kind, flags: word.flags(), length };
                if short.flags == 0 { Glance::Short(short) } else { Glance::Flagged(short) }
            }
            _ => Glance::Other,
        }
    }

    /// Takes the short packet that [`Consumer::glance`] has just seen.
    #[inline(always)]
    pub fn consume_short(&mut self) {
        self.head += 1;
        self.went_on();
    }

    /// The next packet, copied as [`Consumer::poll`] does, and left where it is: it comes again, unless it is consumed. One that is open may
    /// not be whole.
    #[inline(always)]
    pub fn peek(&mut self, buffer: &mut Buffer) -> Result<Option<Packet>, Broken> {
        let line = self.lane.line(self.head);
        let word = Word(line.word.load(Ordering::Acquire)); // edge: publish -> poll
        if !word.is_at(self.head) {
            self.run = 0;
            self.tell(0);
            return Ok(None);
        }
        let length = word.length();
        if length > self.most || word.flags() & CONTINUATION != 0 || word.more() > 0 && length > IN_LINE {
            return Err(Broken);
        }
        copy(line, &mut buffer.0, 0);
        if length > IN_LINE {
            self.rest(word, lines_of(length), buffer)?;
        }
        Ok(Some(Packet { kind: word.kind(), flags: word.flags(), more: word.more(), length: length as u16 }))
    }

    /// Whether so many lines have followed the open packet that is the next one.
    #[inline]
    pub fn follows(&self, more: u8) -> Result<bool, Broken> {
        let position = self.head + u64::from(more);
        let word = Word(self.lane.line(position).word.load(Ordering::Acquire)); // edge: publish -> poll
        match word.is_at(position) {
            true if word == Word::follows(position) => Ok(true),
            true => Err(Broken),
            false => Ok(false),
        }
    }

    /// Takes the packet that [`Consumer::peek`] has just seen, which is whole.
    #[inline(always)]
    pub fn consume(&mut self, packet: &Packet) {
        self.head += lines_of(usize::from(packet.length)) + u64::from(packet.more);
        self.went_on();
    }

    #[inline(always)]
    fn went_on(&mut self) {
        self.run = self.run.saturating_add(1);
        if self.run > RUN {
            // The producer is ahead: the lines to come are on their way while this one is looked at.
            self.lane.line(self.head + AHEAD).fetch();
        }
        self.tell(self.lag);
    }

    /// Copies the lines behind a packet's first.
    #[inline(never)]
    fn rest(&self, word: Word, lines: u64, buffer: &mut Buffer) -> Result<(), Broken> {
        for ahead in 1..lines {
            let line = self.lane.line(self.head + ahead);
            if line.word.load(Ordering::Relaxed) != word.behind(self.head, ahead).0 {
                return Err(Broken);
            }
            copy(line, &mut buffer.0, ahead as usize);
        }
        Ok(())
    }

    /// Tells the producer how far this end is, when that is more than `lag` lines behind.
    #[inline(always)]
    fn tell(&mut self, lag: u64) {
        if self.head - self.published > lag {
            self.published = self.head;
            // edge: consumed -> still_full
            self.lane.control.consumer.consumed.store(self.head, Ordering::Release);
            self.fence.before_look();
            // edge: starved <-> consumed
            self.wake |= find_asleep(&self.lane.control.consumer.starved);
        }
    }

    /// Something else than lines has become free for the producer, which may sleep until it is.
    pub fn freed(&mut self) {
        self.fence.before_look();
        // edge: starved <-> consumed
        self.wake |= find_asleep(&self.lane.control.consumer.starved);
    }

    /// Whether the producer sleeps until this end gets on, and it has: wake it. Said once.
    #[inline(always)]
    pub fn take_wake(&mut self) -> bool {
        std::mem::take(&mut self.wake)
    }

    /// Whether the next packet has begun. Nothing is said to the producer where it has not.
    #[inline(always)]
    pub fn has_begun(&self) -> bool {
        Word(self.lane.line(self.head).word.load(Ordering::Relaxed)).is_at(self.head)
    }

    /// The same after a packet: where none follows, a run ends.
    #[inline(always)]
    pub fn goes_on(&mut self) -> bool {
        let begun = self.has_begun();
        if !begun {
            self.run = 0;
        }
        begun
    }

    /// Whether there is nothing to receive, or nothing whole.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        let word = Word(self.lane.line(self.head).word.load(Ordering::Relaxed));
        !word.is_at(self.head) || word.more() > 0 && self.follows(word.more()) == Ok(false)
    }

    /// Says that this end is about to sleep until it is woken. True: it may; the next put says [`super::Put::Wake`]. False:
    /// there is something to receive, and nothing is said any longer.
    ///
    /// `barrier` must be a memory barrier on this CPU and on those that run the producer (`membarrier`). It is not called where
    /// the lane was prepared with [`Fence::Both`].
    pub fn begin_sleep(&mut self, barrier: impl FnOnce()) -> bool {
        if self.announce_sleep() {
            barrier();
        }
        self.confirm_sleep()
    }

    /// The first half of [`Consumer::begin_sleep`], for who sleeps over many lanes: one barrier, after this on all of them, serves
    /// all. True: this lane needs it.
    pub fn announce_sleep(&mut self) -> bool {
        self.tell(0);
        self.lane.control.sleep.asleep.store(1, Ordering::Relaxed);
        self.fence.before_sleep()
    }

    /// The second half, after the barrier.
    pub fn confirm_sleep(&mut self) -> bool {
        // edge: asleep <-> publish
        if self.is_empty() {
            return true;
        }
        self.end_sleep();
        false
    }

    /// This end is awake, woken or not.
    pub fn end_sleep(&mut self) {
        self.lane.control.sleep.asleep.store(0, Ordering::Relaxed);
    }

    /// Lines consumed so far.
    pub fn head(&self) -> u64 {
        self.head
    }
}

/// Copies the payload of a packet's line `at`, whole: what is not the packet's is not looked at.
#[inline(always)]
fn copy(line: &Line, into: &mut [u8], at: usize) {
    if let Some(into) = into.get_mut(at * IN_LINE..(at + 1) * IN_LINE) {
        for (slot, bytes) in line.payload.iter().zip(into.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&slot.load(Ordering::Relaxed).to_ne_bytes());
        }
    }
}
