//! The receiving end of a FIFO.

use super::{
    Broken, CELL_PAYLOAD, CONTINUATION, Cell, Fifo, MAX_PACKET, SleepFence, WORDS, Word, cells_of, take_sleeper,
};
use crate::sync::Ordering;

/// Private memory to which a packet is copied before it is interpreted. It has room for the longest packet in whole cells.
#[repr(align(64))]
pub struct Buffer([u8; cells_of(MAX_PACKET) as usize * CELL_PAYLOAD]);

impl Buffer {
    /// A zeroed buffer.
    pub const fn new() -> Self {
        Self([0; cells_of(MAX_PACKET) as usize * CELL_PAYLOAD])
    }
}

impl Buffer {
    /// The whole buffer: the last packet received into it, followed by remains of earlier ones.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new()
    }
}

/// A packet's header. Its bytes are in the buffer that it was copied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The kind that the sender gave.
    pub kind: u8,
    /// The flags that the sender gave, without the highest bit.
    pub flags: u8,
    continuations: u8,
    length: u16,
}

impl Packet {
    /// Continuation cells that complete an open packet; 0 for any other.
    #[inline(always)]
    pub fn continuations(&self) -> u8 {
        self.continuations
    }

    /// The packet's bytes, in the buffer that it was received into.
    #[inline(always)]
    pub fn bytes<'a>(&self, buffer: &'a Buffer) -> &'a [u8] {
        &buffer.0[..usize::from(self.length).min(MAX_PACKET)]
    }
}

/// What [`FifoRx::peek_cell`] has found.
#[derive(Debug, Clone, Copy)]
pub enum Peeked {
    /// No packet.
    Nothing,
    /// A complete packet of one cell without flags.
    SingleCell(SingleCell),
    /// A complete packet of one cell with flags.
    FlaggedCell(SingleCell),
    /// Any other packet: use [`FifoRx::peek`].
    Other,
}

/// A packet of one cell, in place. The peer can change its words at any time, so each must be read only once.
#[derive(Debug, Clone, Copy)]
pub struct SingleCell {
    cell: &'static Cell,
    /// The kind that the sender gave.
    pub kind: u8,
    /// The flags that the sender gave.
    pub flags: u8,
    length: u8,
}

impl SingleCell {
    /// Bytes of the packet, at most [`CELL_PAYLOAD`].
    #[inline(always)]
    pub fn length(&self) -> usize {
        usize::from(self.length)
    }

    /// The eight bytes from byte `8 * at` on, little-endian; 0 for an `at` of 7 or more. Bytes after the packet's end are unspecified.
    #[inline(always)]
    pub fn word(&self, at: usize) -> u64 {
        self.cell.payload.get(at).map_or(0, |word| u64::from_le(word.load(Ordering::Relaxed)))
    }

    /// The payload from byte `8 * AT` on, zero-filled at its end. Bytes after the packet's end are unspecified.
    #[inline(always)]
    pub fn bytes_from_word<const AT: usize>(&self) -> [u8; CELL_PAYLOAD] {
        let mut bytes = [0; CELL_PAYLOAD];
        for at in AT..WORDS {
            bytes[8 * (at - AT)..][..8].copy_from_slice(&self.word(at).to_le_bytes());
        }
        bytes
    }
}

/// Packets in a row, each found by the first poll for it, after which cells are prefetched. Earlier that would take cells from a producer that
/// is about to write them.
const PREFETCH_AFTER_PACKETS: u32 = 4;
/// Distance of the prefetch, cells.
const PREFETCH_AHEAD_CELLS: u64 = 8;

/// The receiving end of a FIFO.
#[derive(Debug)]
pub struct FifoRx {
    pub(super) fifo: Fifo,
    /// Cells consumed.
    pub(super) head: u64,
    /// The value of `head` that the producer can read.
    pub(super) published: u64,
    /// Cells by which `published` may be behind while packets arrive.
    max_lag: u64,
    max_packet: usize,
    fence: SleepFence,
    /// The producer sleeps and must be woken.
    wake: bool,
    /// Packets in a row that were found by the first poll for them.
    polls_in_a_row: u32,
}

impl FifoRx {
    pub(super) fn new(fifo: Fifo) -> Self {
        let max_lag = fifo.cells.len() as u64 / 8;
        Self {
            fifo,
            head: 0,
            published: 0,
            max_lag,
            max_packet: fifo.max_packet(),
            fence: fifo.fence(),
            wake: false,
            polls_in_a_row: 0,
        }
    }

    /// Takes the next packet, if there is a complete one, and copies it into `buffer`. Spin on this, not on [`FifoRx::is_empty`]: the load that
    /// sees the word is then also the one whose value is used, which saves 10 to 20 ns (docs/hot-path.md).
    #[inline(always)]
    pub fn poll(&mut self, buffer: &mut Buffer) -> Result<Option<Packet>, Broken> {
        let Some(packet) = self.peek(buffer)? else { return Ok(None) };
        if packet.continuations > 0 && !self.has_continuations(packet.continuations)? {
            return Ok(None); // an open packet that is not complete
        }
        self.consume(&packet);
        Ok(Some(packet))
    }

    /// Looks at the next packet in place, for callers that expect packets of one cell. [`FifoRx::consume_cell`] takes it.
    #[inline(always)]
    pub fn peek_cell(&mut self) -> Peeked {
        let cell = self.fifo.cell(self.head);
        let word = Word(cell.word.load(Ordering::Acquire)); // edge: publish -> poll
        if !word.is_at(self.head) {
            self.polls_in_a_row = 0;
            self.publish_head(0);
            return Peeked::Nothing;
        }
        match word.single_cell() {
            Some((kind, length)) if usize::from(length) <= CELL_PAYLOAD => {
                let short = SingleCell { cell, kind, flags: word.flags(), length };
                if short.flags == 0 { Peeked::SingleCell(short) } else { Peeked::FlaggedCell(short) }
            }
            _ => Peeked::Other,
        }
    }

    /// Takes the packet of one cell that [`FifoRx::peek_cell`] has just returned.
    #[inline(always)]
    pub fn consume_cell(&mut self) {
        self.head += 1;
        self.after_consume();
    }

    /// Copies the next packet into `buffer` without taking it: [`FifoRx::consume`] does. An open packet may be incomplete
    /// ([`FifoRx::has_continuations`]).
    #[inline(always)]
    pub fn peek(&mut self, buffer: &mut Buffer) -> Result<Option<Packet>, Broken> {
        let cell = self.fifo.cell(self.head);
        let word = Word(cell.word.load(Ordering::Acquire)); // edge: publish -> poll
        if !word.is_at(self.head) {
            self.polls_in_a_row = 0;
            self.publish_head(0);
            return Ok(None);
        }
        let length = word.length();
        if length > self.max_packet
            || word.flags() & CONTINUATION != 0
            || word.continuations() > 0 && length > CELL_PAYLOAD
        {
            return Err(Broken);
        }
        copy(cell, &mut buffer.0, 0);
        if length > CELL_PAYLOAD {
            self.copy_other_cells(word, cells_of(length), buffer)?;
        }
        Ok(Some(Packet {
            kind: word.kind(),
            flags: word.flags(),
            continuations: word.continuations(),
            length: length as u16,
        }))
    }

    /// Whether at least `continuations` continuation cells of the next packet, which is open, have arrived.
    #[inline]
    pub fn has_continuations(&self, continuations: u8) -> Result<bool, Broken> {
        let position = self.head + u64::from(continuations);
        let word = Word(self.fifo.cell(position).word.load(Ordering::Acquire)); // edge: publish -> poll
        match word.is_at(position) {
            true if word == Word::open_continuation(position) => Ok(true),
            true => Err(Broken),
            false => Ok(false),
        }
    }

    /// Takes the complete packet that [`FifoRx::peek`] has just returned.
    #[inline(always)]
    pub fn consume(&mut self, packet: &Packet) {
        self.head += cells_of(usize::from(packet.length)) + u64::from(packet.continuations);
        self.after_consume();
    }

    #[inline(always)]
    fn after_consume(&mut self) {
        self.polls_in_a_row = self.polls_in_a_row.saturating_add(1);
        if self.polls_in_a_row > PREFETCH_AFTER_PACKETS {
            // The producer is ahead: the next cells are fetched while this one is processed.
            self.fifo.cell(self.head + PREFETCH_AHEAD_CELLS).prefetch();
        }
        self.publish_head(self.max_lag);
    }

    /// Copies the cells after a packet's first.
    #[inline(never)]
    fn copy_other_cells(&self, word: Word, cells: u64, buffer: &mut Buffer) -> Result<(), Broken> {
        for ahead in 1..cells {
            let cell = self.fifo.cell(self.head + ahead);
            if cell.word.load(Ordering::Relaxed) != word.continuation(self.head, ahead).0 {
                return Err(Broken);
            }
            copy(cell, &mut buffer.0, ahead as usize);
        }
        Ok(())
    }

    /// Publishes `head` to the producer if the published value is more than `lag` cells behind.
    #[inline(always)]
    fn publish_head(&mut self, lag: u64) {
        if self.head - self.published > lag {
            self.published = self.head;
            // edge: consumed -> still_full
            self.fifo.control.consumer.consumed.store(self.head, Ordering::Release);
            self.fence.before_check();
            // edge: starved <-> consumed
            self.wake |= take_sleeper(&self.fifo.control.consumer.starved);
        }
    }

    /// Called when space in the payload ring has become free, for which the producer may sleep.
    pub fn notify_freed(&mut self) {
        self.fence.before_check();
        // edge: starved <-> consumed
        self.wake |= take_sleeper(&self.fifo.control.consumer.starved);
    }

    /// Whether the producer sleeps for room that there is meanwhile: the caller must wake it. Returns true once for each such sleep.
    #[inline(always)]
    pub fn take_wake(&mut self) -> bool {
        std::mem::take(&mut self.wake)
    }

    /// Whether there is a next packet, complete or not. Does not publish `head`.
    #[inline(always)]
    pub fn has_packet(&self) -> bool {
        Word(self.fifo.cell(self.head).word.load(Ordering::Relaxed)).is_at(self.head)
    }

    /// After a packet was taken: whether there is a next one. If not, the count of packets in a row starts again.
    #[inline(always)]
    pub fn has_next_packet(&mut self) -> bool {
        let found = self.has_packet();
        if !found {
            self.polls_in_a_row = 0;
        }
        found
    }

    /// Whether there is no complete packet.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        let word = Word(self.fifo.cell(self.head).word.load(Ordering::Relaxed));
        !word.is_at(self.head) || word.continuations() > 0 && self.has_continuations(word.continuations()) == Ok(false)
    }

    /// Announces that this end is about to sleep. True: it may sleep; the next put returns [`super::PutOutcome::Wake`]. False: there is a
    /// packet, and the announcement is withdrawn.
    ///
    /// `barrier` must be a memory barrier on this CPU and on those that run the producer (`membarrier`). It is not called if the FIFO was
    /// prepared with [`SleepFence::Both`].
    pub fn begin_sleep(&mut self, barrier: impl FnOnce()) -> bool {
        if self.announce_sleep() {
            barrier();
        }
        self.confirm_sleep()
    }

    /// The first half of [`FifoRx::begin_sleep`], for callers that sleep on several FIFOs: one barrier after the announcements on all of them is
    /// enough. True: this FIFO needs the barrier.
    pub fn announce_sleep(&mut self) -> bool {
        self.publish_head(0);
        self.fifo.control.sleep.asleep.store(1, Ordering::Relaxed);
        self.fence.before_sleep()
    }

    /// The second half of [`FifoRx::begin_sleep`], after the barrier. True: the caller may sleep.
    pub fn confirm_sleep(&mut self) -> bool {
        // edge: asleep <-> publish
        if self.is_empty() {
            return true;
        }
        self.end_sleep();
        false
    }

    /// Withdraws the announcement of a sleep: this end is awake.
    pub fn end_sleep(&mut self) {
        self.fifo.control.sleep.asleep.store(0, Ordering::Relaxed);
    }

    /// Cells consumed so far.
    pub fn head(&self) -> u64 {
        self.head
    }
}

/// Copies the whole payload of the cell with index `at` of a packet. Bytes after the packet's end are copied, too, and not interpreted.
#[inline(always)]
fn copy(cell: &Cell, into: &mut [u8], at: usize) {
    if let Some(into) = into.get_mut(at * CELL_PAYLOAD..(at + 1) * CELL_PAYLOAD) {
        for (slot, bytes) in cell.payload.iter().zip(into.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&slot.load(Ordering::Relaxed).to_ne_bytes());
        }
    }
}
