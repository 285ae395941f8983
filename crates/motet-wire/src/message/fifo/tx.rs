//! The sending end of a FIFO.

use super::{
    Broken, CELL_PAYLOAD, CONTINUATION, Cell, Fifo, MAX_CONTINUATIONS, SleepFence, Word, cells_of, scatter_gather,
    take_sleeper,
};
use crate::sync::Ordering;

/// Result of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// The packet is in the FIFO.
    Published,
    /// The packet is in the FIFO, and the consumer sleeps: the caller must wake it. One put for each sleep returns this.
    Wake,
    /// No room: nothing was written. Try again when the consumer has made progress.
    Full,
    /// Longer than [`Fifo::max_packet`]: nothing was written.
    TooLong,
}

/// The sending end of a FIFO.
#[derive(Debug)]
pub struct FifoTx {
    pub(super) fifo: Fifo,
    /// Cells written.
    pub(super) tail: u64,
    /// Cells consumed, as last read from the consumer's line.
    pub(super) consumed: u64,
    max_packet: usize,
    fence: SleepFence,
}

impl FifoTx {
    pub(super) fn new(fifo: Fifo) -> Self {
        Self { fifo, tail: 0, consumed: 0, max_packet: fifo.max_packet(), fence: fifo.fence() }
    }

    /// Puts one packet that consists of `parts` in order. The highest bit of `flags` is reserved for the FIFO and is ignored.
    #[inline(always)]
    pub fn try_put(&mut self, kind: u8, flags: u8, parts: &[&[u8]]) -> Result<PutOutcome, Broken> {
        let length = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
        if length > CELL_PAYLOAD {
            return self.put_multi_cell(kind, flags, parts, length);
        }
        if self.full(1) && self.still_full(1)? {
            return Ok(PutOutcome::Full);
        }
        let cell = self.fifo.cell(self.tail);
        let mut slots = cell.payload.iter();
        scatter_gather::words(parts, |word| {
            if let Some(slot) = slots.next() {
                slot.store(word, Ordering::Relaxed);
            }
        });
        Ok(self.publish(Word::first(self.tail, length, kind, flags & !CONTINUATION), 1))
    }

    /// Puts a packet of one cell: two words (in little-endian order) and a body of at most [`CELL_PAYLOAD`] - 16 bytes.
    #[inline(always)]
    pub fn try_put_cell(&mut self, kind: u8, head: [u64; 2], body: &[u8]) -> Result<PutOutcome, Broken> {
        debug_assert!(body.len() + 16 <= CELL_PAYLOAD);
        if self.full(1) && self.still_full(1)? {
            return Ok(PutOutcome::Full);
        }
        let cell = self.fifo.cell(self.tail);
        match <[u8; 8]>::try_from(body) {
            // The most common body. Only its own words are stored: a burst of packets is limited by the stores.
            Ok(word) => cell.fill([head[0].to_le(), head[1].to_le(), u64::from_ne_bytes(word)]),
            Err(_) => fill(cell, head, [&[], body]),
        }
        Ok(self.publish_in(cell, Word::first(self.tail, 16 + body.len(), kind, 0), 1))
    }

    /// Puts a packet of one cell: two words (in little-endian order) and a body of two parts, together at most [`CELL_PAYLOAD`] - 16 bytes.
    #[inline(always)]
    pub fn try_put_cell_parts(&mut self, kind: u8, head: [u64; 2], parts: [&[u8]; 2]) -> Result<PutOutcome, Broken> {
        let length = parts[0].len() + parts[1].len();
        debug_assert!(length + 16 <= CELL_PAYLOAD);
        if self.full(1) && self.still_full(1)? {
            return Ok(PutOutcome::Full);
        }
        let cell = self.fifo.cell(self.tail);
        match parts.map(<[u8; 8]>::try_from) {
            // The most common body of a library with headers.
            [Ok(header), Ok(word)] => {
                let [header, word] = [header, word].map(u64::from_ne_bytes);
                cell.fill([head[0].to_le(), head[1].to_le(), header, word]);
            }
            _ => fill(cell, head, parts),
        }
        Ok(self.publish_in(cell, Word::first(self.tail, 16 + length, kind, 0), 1))
    }

    /// Puts a packet of one cell whose last `in_ring` bytes are in the payload ring: two words, and that number.
    #[inline(always)]
    pub fn try_put_ring_header(
        &mut self,
        kind: u8,
        flags: u8,
        head: [u64; 2],
        in_ring: u32,
    ) -> Result<PutOutcome, Broken> {
        if self.full(1) && self.still_full(1)? {
            return Ok(PutOutcome::Full);
        }
        let cell = self.fifo.cell(self.tail);
        cell.fill([head[0].to_le(), head[1].to_le(), u64::from(in_ring).to_le()]);
        Ok(self.publish_in(cell, Word::first(self.tail, 16 + size_of::<u32>(), kind, flags & !CONTINUATION), 1))
    }

    /// Puts an open packet of one cell. `continuations` calls of [`FifoTx::put_continuation`] complete it; nothing else may be put before that.
    #[inline]
    pub fn try_put_open(&mut self, kind: u8, flags: u8, bytes: &[u8], continuations: u8) -> Result<PutOutcome, Broken> {
        debug_assert!(bytes.len() <= CELL_PAYLOAD && continuations <= MAX_CONTINUATIONS);
        let cells = 1 + u64::from(continuations);
        if self.full(cells) && self.still_full(cells)? {
            return Ok(PutOutcome::Full);
        }
        let cell = self.fifo.cell(self.tail);
        for (slot, bytes) in cell.payload.iter().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            slot.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        Ok(self.publish(Word::open(self.tail, bytes.len(), continuations, kind, flags & !CONTINUATION), 1))
    }

    /// Puts the next continuation cell of an open packet. [`FifoTx::try_put_open`] has reserved room for it.
    #[inline]
    pub fn put_continuation(&mut self) -> PutOutcome {
        self.publish(Word::open_continuation(self.tail), 1)
    }

    /// Puts a packet of several cells. The word of the first one, which is stored last, makes it visible.
    #[inline(never)]
    fn put_multi_cell(&mut self, kind: u8, flags: u8, parts: &[&[u8]], length: usize) -> Result<PutOutcome, Broken> {
        if length > self.max_packet {
            return Ok(PutOutcome::TooLong);
        }
        let cells = cells_of(length);
        if self.full(cells) && self.still_full(cells)? {
            return Ok(PutOutcome::Full);
        }
        let word = Word::first(self.tail, length, kind, flags & !CONTINUATION);
        let mut ahead = 0;
        scatter_gather::cells(parts, |bytes| {
            let cell = self.fifo.cell(self.tail + ahead);
            if ahead > 0 {
                cell.word.store(word.continuation(self.tail, ahead).0, Ordering::Relaxed);
            }
            for (slot, bytes) in cell.payload.iter().zip(bytes.as_chunks().0) {
                slot.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
            }
            ahead += 1;
        });
        Ok(self.publish(word, cells))
    }

    /// Stores the word of the next cell, which publishes a packet of `cells` cells.
    #[inline(always)]
    fn publish(&mut self, word: Word, cells: u64) -> PutOutcome {
        self.publish_in(self.fifo.cell(self.tail), word, cells)
    }

    /// [`FifoTx::publish`] for a caller that has the next cell at hand.
    #[inline(always)]
    fn publish_in(&mut self, cell: &Cell, word: Word, cells: u64) -> PutOutcome {
        // edge: publish -> poll (the payload, and the words of the other cells)
        cell.word.store(word.0, Ordering::Release);
        self.tail += cells;
        self.after_publish()
    }

    /// The producer's half of "asleep <-> publish": either this load sees that the consumer sleeps, or its last poll sees the word stored before.
    #[inline(always)]
    fn after_publish(&self) -> PutOutcome {
        self.fence.before_check();
        // edge: asleep <-> publish
        if take_sleeper(&self.fifo.control.sleep.asleep) { PutOutcome::Wake } else { PutOutcome::Published }
    }

    /// Announces that this end is about to sleep until the consumer makes room; the consumer then wakes it ([`super::FifoRx::take_wake`]). True: the
    /// caller must execute the barrier of [`super::FifoRx::begin_sleep`]. If it finds no room after that, it may sleep.
    pub fn announce_wait(&mut self) -> bool {
        // edge: starved <-> consumed
        self.fifo.control.consumer.starved.store(1, Ordering::Relaxed);
        self.fence.before_sleep()
    }

    /// Withdraws the announcement of a sleep.
    pub fn end_wait(&mut self) {
        self.fifo.control.consumer.starved.store(0, Ordering::Relaxed);
    }

    /// Bytes of the longest packet.
    #[inline(always)]
    pub fn max_packet(&self) -> usize {
        self.max_packet
    }

    /// Whether a packet of `length` bytes can be put now. Reads the consumer's line only if the last known value leaves no room.
    pub fn room(&mut self, length: usize) -> Result<bool, Broken> {
        let cells = cells_of(length);
        Ok(length <= self.max_packet && (!self.full(cells) || !self.still_full(cells)?))
    }

    /// Bytes of the free cells. A sequence of packets fits if all of them fill their cells but for the last packet.
    pub fn free(&mut self) -> Result<usize, Broken> {
        // The caller may need more than the longest packet, so the last known value is not good enough.
        if self.tail != self.consumed {
            self.still_full(1)?;
        }
        Ok((self.fifo.cells.len() as u64 - (self.tail - self.consumed)) as usize * CELL_PAYLOAD)
    }

    /// Cells written so far.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Whether there is no room for `cells` cells according to the last known value.
    #[inline(always)]
    fn full(&self, cells: u64) -> bool {
        self.tail + cells - self.consumed > self.fifo.cells.len() as u64
    }

    /// Whether there is no room for `cells` cells, after reading the consumer's line.
    #[cold]
    #[inline(never)]
    fn still_full(&mut self, cells: u64) -> Result<bool, Broken> {
        // edge: consumed -> still_full (cells that were read may be overwritten)
        let consumed = self.fifo.control.consumer.consumed.load(Ordering::Acquire);
        if consumed < self.consumed || consumed > self.tail {
            return Err(Broken);
        }
        self.consumed = consumed;
        Ok(self.full(cells))
    }
}

/// Writes two words and two parts to a cell, as much as it has room for.
#[inline(never)]
fn fill(cell: &Cell, head: [u64; 2], parts: [&[u8]; 2]) {
    cell.fill(head.map(u64::to_le));
    let mut slots = cell.payload.iter().skip(2);
    scatter_gather::words(&parts, |word| {
        if let Some(slot) = slots.next() {
            slot.store(word, Ordering::Relaxed);
        }
    });
}
