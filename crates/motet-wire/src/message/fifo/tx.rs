//! The end of a lane that sends.

use super::{Broken, CONTINUATION, Fence, IN_LINE, Lane, Line, MORE, Word, find_asleep, lines_of, scatter_gather};
use crate::sync::Ordering;

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The consumer has it, or will when it looks.
    Published,
    /// The same, and the consumer has said that it sleeps: wake it. Said to one put of those that find it asleep.
    Wake,
    /// No room: nothing was written. There will be when the consumer has got on.
    Full,
    /// Longer than [`Lane::most`]: nothing was written, nor ever will be.
    TooLong,
}

/// The end that sends.
#[derive(Debug)]
pub struct Producer {
    pub(super) lane: Lane,
    /// Lines written.
    pub(super) tail: u64,
    /// Lines consumed, as far as this end has asked.
    pub(super) consumed: u64,
    most: usize,
    fence: Fence,
}

impl Producer {
    pub(super) fn new(lane: Lane) -> Self {
        Self { lane, tail: 0, consumed: 0, most: lane.most(), fence: lane.fence() }
    }

    /// Puts one packet, the parts one after the other. Of `flags` the highest bit is the lane's own and is dropped.
    #[inline(always)]
    pub fn try_put(&mut self, kind: u8, flags: u8, parts: &[&[u8]]) -> Result<Put, Broken> {
        let length = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
        if length > IN_LINE {
            return self.put_long(kind, flags, parts, length);
        }
        if self.full(1) && self.still_full(1)? {
            return Ok(Put::Full);
        }
        let line = self.lane.line(self.tail);
        let mut slots = line.payload.iter();
        scatter_gather::words(parts, |word| {
            if let Some(slot) = slots.next() {
                slot.store(word, Ordering::Relaxed);
            }
        });
        Ok(self.publish(Word::first(self.tail, length, kind, flags & !CONTINUATION), 1))
    }

    /// Puts a packet of one line: two words (little-endian on the way) and a body of at most [`IN_LINE`] - 16 bytes.
    #[inline(always)]
    pub fn try_put_line(&mut self, kind: u8, head: [u64; 2], body: &[u8]) -> Result<Put, Broken> {
        debug_assert!(body.len() + 16 <= IN_LINE);
        if self.full(1) && self.still_full(1)? {
            return Ok(Put::Full);
        }
        let line = self.lane.line(self.tail);
        match <[u8; 8]>::try_from(body) {
            // What most short messages are. No more words than it has: whoever sends many at a time waits for its stores.
            Ok(word) => line.fill([head[0].to_le(), head[1].to_le(), u64::from_ne_bytes(word)]),
            Err(_) => fill(line, head, [&[], body]),
        }
        Ok(self.publish_in(line, Word::first(self.tail, 16 + body.len(), kind, 0), 1))
    }

    /// The same with a body of two parts.
    #[inline(always)]
    pub fn try_put_line_of(&mut self, kind: u8, head: [u64; 2], parts: [&[u8]; 2]) -> Result<Put, Broken> {
        let length = parts[0].len() + parts[1].len();
        debug_assert!(length + 16 <= IN_LINE);
        if self.full(1) && self.still_full(1)? {
            return Ok(Put::Full);
        }
        let line = self.lane.line(self.tail);
        match parts.map(<[u8; 8]>::try_from) {
            // What a library that has headers sends most often.
            [Ok(header), Ok(word)] => {
                let [header, word] = [header, word].map(u64::from_ne_bytes);
                line.fill([head[0].to_le(), head[1].to_le(), header, word]);
            }
            _ => fill(line, head, parts),
        }
        Ok(self.publish_in(line, Word::first(self.tail, 16 + length, kind, 0), 1))
    }

    /// Puts a packet of one line whose last bytes lie elsewhere: two words, and how many bytes those are.
    #[inline(always)]
    pub fn try_put_front(&mut self, kind: u8, flags: u8, head: [u64; 2], behind: u32) -> Result<Put, Broken> {
        if self.full(1) && self.still_full(1)? {
            return Ok(Put::Full);
        }
        let line = self.lane.line(self.tail);
        line.fill([head[0].to_le(), head[1].to_le(), u64::from(behind).to_le()]);
        Ok(self.publish_in(line, Word::first(self.tail, 16 + size_of::<u32>(), kind, flags & !CONTINUATION), 1))
    }

    /// Puts an open packet of one line: `more` times [`Producer::follow`] makes it whole, and nothing else may be put before.
    #[inline]
    pub fn try_put_open(&mut self, kind: u8, flags: u8, bytes: &[u8], more: u8) -> Result<Put, Broken> {
        debug_assert!(bytes.len() <= IN_LINE && more <= MORE);
        let lines = 1 + u64::from(more);
        if self.full(lines) && self.still_full(lines)? {
            return Ok(Put::Full);
        }
        let line = self.lane.line(self.tail);
        for (slot, bytes) in line.payload.iter().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            slot.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        Ok(self.publish(Word::open(self.tail, bytes.len(), more, kind, flags & !CONTINUATION), 1))
    }

    /// The next line of an open packet: there is room for it.
    #[inline]
    pub fn follow(&mut self) -> Put {
        self.publish(Word::follows(self.tail), 1)
    }

    /// A packet of several lines; only the first one's word makes it visible.
    #[inline(never)]
    fn put_long(&mut self, kind: u8, flags: u8, parts: &[&[u8]], length: usize) -> Result<Put, Broken> {
        if length > self.most {
            return Ok(Put::TooLong);
        }
        let lines = lines_of(length);
        if self.full(lines) && self.still_full(lines)? {
            return Ok(Put::Full);
        }
        let word = Word::first(self.tail, length, kind, flags & !CONTINUATION);
        let mut ahead = 0;
        scatter_gather::lines(parts, |bytes| {
            let line = self.lane.line(self.tail + ahead);
            if ahead > 0 {
                line.word.store(word.behind(self.tail, ahead).0, Ordering::Relaxed);
            }
            for (slot, bytes) in line.payload.iter().zip(bytes.as_chunks().0) {
                slot.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
            ahead += 1;
        });
        Ok(self.publish(word, lines))
    }

    #[inline(always)]
    fn publish(&mut self, word: Word, lines: u64) -> Put {
        self.publish_in(self.lane.line(self.tail), word, lines)
    }

    /// The same, where the line is known.
    #[inline(always)]
    fn publish_in(&mut self, line: &Line, word: Word, lines: u64) -> Put {
        // edge: publish -> poll (all payload, and the words of the lines behind)
        line.word.store(word.0, Ordering::Release);
        self.tail += lines;
        self.after_publish()
    }

    /// The producer's half of "asleep <-> publish": the word above is stored before `asleep` is loaded, or the sleeper sees it.
    #[inline(always)]
    fn after_publish(&self) -> Put {
        self.fence.before_look();
        // edge: asleep <-> publish
        if find_asleep(&self.lane.control.sleep.asleep) { Put::Wake } else { Put::Published }
    }

    /// Says that this end is about to sleep until the consumer gets on, which then wakes it ([`super::Consumer::take_wake`]). After
    /// this, and the barrier (as for [`super::Consumer::begin_sleep`]) if it is true that one is needed, whoever still finds no room
    /// may sleep.
    pub fn announce_wait(&mut self) -> bool {
        // edge: starved <-> consumed
        self.lane.control.consumer.starved.store(1, Ordering::Relaxed);
        self.fence.before_sleep()
    }

    /// This end waits no longer.
    pub fn end_wait(&mut self) {
        self.lane.control.consumer.starved.store(0, Ordering::Relaxed);
    }

    /// The longest packet, bytes.
    #[inline(always)]
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether a packet of so many bytes can be put now; asks the consumer only when it seems that it cannot.
    pub fn room(&mut self, length: usize) -> Result<bool, Broken> {
        let lines = lines_of(length);
        Ok(length <= self.most && (!self.full(lines) || !self.still_full(lines)?))
    }

    /// Bytes of packets that surely fit now, one after the other in lines that are full but for the last.
    pub fn free(&mut self) -> Result<usize, Broken> {
        // Whoever asks may want more than the longest packet: what was free at the last look is not an answer.
        if self.tail != self.consumed {
            self.still_full(1)?;
        }
        Ok((self.lane.lines.len() as u64 - (self.tail - self.consumed)) as usize * IN_LINE)
    }

    /// Lines written so far.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    #[inline(always)]
    fn full(&self, lines: u64) -> bool {
        self.tail + lines - self.consumed > self.lane.lines.len() as u64
    }

    /// The same after a look at the consumer's line.
    #[cold]
    #[inline(never)]
    fn still_full(&mut self, lines: u64) -> Result<bool, Broken> {
        // edge: consumed -> still_full (what was read may be written over)
        let consumed = self.lane.control.consumer.consumed.load(Ordering::Acquire);
        if consumed < self.consumed || consumed > self.tail {
            return Err(Broken);
        }
        self.consumed = consumed;
        Ok(self.full(lines))
    }
}

/// Two words and two parts, as much as a line has room for.
#[inline(never)]
fn fill(line: &Line, head: [u64; 2], parts: [&[u8]; 2]) {
    line.fill(head.map(u64::to_le));
    let mut slots = line.payload.iter().skip(2);
    scatter_gather::words(&parts, |word| {
        if let Some(slot) = slots.next() {
            slot.store(word, Ordering::Relaxed);
        }
    });
}
