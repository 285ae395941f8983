//! The record of one operation: its memory, and what is known of it so far.

use super::CompletionOptions;
use crate::message::Channel;
use crate::message::loaned::PeerBytes;
use motet_proto::message::matching::Ticket;
use motet_proto::message::slab::SlabId;
use motet_proto::message::{Outcome, Status};
use motet_sys::user_memory::OperationMemory;
use motet_wire::message::fifo::payload_ring::RingSpan;
use smallvec::SmallVec;

/// What the node must know to cancel it.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A receive that waits, or has been matched.
    Receive(Option<Ticket>),
    /// A message that is not all gone.
    Send(Option<SlabId>),
}

/// What a receive in place sees.
#[derive(Debug, Default)]
pub enum Seen {
    /// It is none.
    #[default]
    Nothing,
    /// Nothing yet, or a copy of at most so many bytes.
    Wanted {
        /// Bytes.
        most: u64,
    },
    /// The sender's memory; the protocol's name for the message.
    LoanedMessage(PeerBytes, SlabId),
}

/// What most operations have not: apart, so that a record is short.
#[derive(Debug, Default)]
struct Rare {
    more: Vec<OperationMemory>,
    seen: Seen,
}

/// Headers of a message: few bytes lie in the record.
pub type Headers = SmallVec<[u8; 16]>;

/// One operation.
#[derive(Debug)]
pub struct Operation {
    /// Its body, or where that goes.
    pub memory: OperationMemory,
    /// What it is.
    pub kind: Kind,
    /// On which channel, where it is on one.
    pub channel: Option<Channel>,
    /// Nobody waits for it any more.
    pub detached: bool,
    /// It is still posted, but has part of the message that will be its own: its memory is not as it was.
    pub begun: bool,
    /// The program has no name for it: it was posted without a record.
    pub(super) nameless: bool,
    /// It has completed, and is in its completion queue until it is polled.
    pub(super) reported: bool,
    rare: Option<Box<Rare>>,
    pub(super) options: CompletionOptions,
    pub(super) outcome: Option<Outcome>,
    pub(super) tag: u64,
    pub(super) full: u64,
    pub(super) headers: Headers,
}

impl Default for Operation {
    fn default() -> Self {
        Self::new(OperationMemory::Owned(Vec::new()), Kind::Receive(None), None, CompletionOptions::default())
    }
}

impl Operation {
    /// One that has just begun.
    #[inline(always)]
    pub fn new(memory: OperationMemory, kind: Kind, channel: Option<Channel>, options: CompletionOptions) -> Self {
        let (outcome, tag, full, headers) = (None, 0, 0, Headers::new());
        let (detached, begun, nameless, reported, rare) = (false, false, false, false, None);
        Self { memory, kind, channel, detached, begun, nameless, reported, rare, options, outcome, tag, full, headers }
    }

    /// The rest of a gathered body.
    pub fn rest(&self) -> &[OperationMemory] {
        self.rare.as_ref().map_or(&[], |rare| &rare.more)
    }

    /// Has this be the rest of its body; what was.
    pub fn exchange_rest(&mut self, more: Vec<OperationMemory>) -> Vec<OperationMemory> {
        match &mut self.rare {
            None if more.is_empty() => more,
            rare => std::mem::replace(&mut rare.get_or_insert_default().more, more),
        }
    }

    /// Of a receive in place: what it sees.
    #[inline(always)]
    pub fn seen(&self) -> &Seen {
        self.rare.as_ref().map_or(&Seen::Nothing, |rare| &rare.seen)
    }

    /// It is a receive in place, and sees this.
    pub fn sees(&mut self, seen: Seen) {
        self.rare.get_or_insert_default().seen = seen;
    }

    /// The same, which is the program's then.
    pub(super) fn take_seen(&mut self) -> Seen {
        self.rare.as_mut().map_or(Seen::Nothing, |rare| std::mem::take(&mut rare.seen))
    }

    /// Whether nothing of its end is the program's to keep: no memory of its own, and no message in place.
    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        self.rare.is_none() && !matches!(&self.memory, OperationMemory::Owned(bytes) if !bytes.is_empty())
    }

    /// Whether its end is nothing but reported, and not yet that.
    #[inline(always)]
    pub(super) fn is_unrecorded(&self) -> bool {
        self.rare.is_none() && !self.reported && !self.detached && !self.options.quiet
    }

    /// The program's word for it.
    pub fn context(&self) -> u64 {
        self.options.context
    }

    /// How it has ended.
    #[inline(always)]
    pub(super) fn status(&self, outcome: Outcome) -> Status {
        if self.rare.is_none() { outcome.status } else { self.status_in_place(outcome) }
    }

    #[cold]
    fn status_in_place(&self, Outcome { status, length }: Outcome) -> Status {
        let held = if let OperationMemory::Owned(bytes) = &self.memory { bytes.len() as u64 } else { u64::MAX };
        match self.seen() {
            Seen::Wanted { .. } if held < length => Status::Exhausted, // there was no memory for the copy
            _ => status,
        }
    }

    /// Room for the copy that a receive in place gets after all. Where there is no memory for it, the receive fails with its end.
    #[cold]
    pub fn make_room(&mut self) {
        let &Seen::Wanted { most } = self.seen() else { return };
        let length = usize::try_from(self.full.min(most)).unwrap_or(usize::MAX);
        let OperationMemory::Owned(bytes) = &mut self.memory else { return };
        if bytes.is_empty() && bytes.try_reserve_exact(length).is_ok() {
            bytes.resize(length, 0);
        }
    }

    /// Bytes for the buffer; a receive in place has none before the first of them comes.
    #[inline(always)]
    pub fn place(&mut self, at: usize, bytes: &[u8]) {
        if self.memory.fill(at, bytes) < bytes.len() {
            self.place_in_room(at, bytes);
        }
    }

    /// The same of bytes that lie in a ring.
    pub fn place_span(&mut self, at: usize, run: RingSpan) {
        if self.memory.len() < at + run.len() {
            self.make_room();
        }
        self.memory.write(at, run.len(), |into| run.read(into));
    }

    #[cold]
    fn place_in_room(&mut self, at: usize, bytes: &[u8]) {
        self.make_room();
        self.memory.fill(at, bytes);
    }

    /// Shows bytes of a body, which may lie in several pieces.
    pub fn body(&self, at: usize, length: usize, put: &mut dyn FnMut(&[&[u8]]) -> bool) -> bool {
        let mut parts = SmallVec::<[&[u8]; 8]>::new();
        let (mut skip, mut left) = (at, length);
        for memory in std::iter::once(&self.memory).chain(self.rest()) {
            let bytes = memory.bytes(skip, left);
            skip = skip.saturating_sub(memory.len());
            left -= bytes.len();
            if !bytes.is_empty() {
                parts.push(bytes);
            }
        }
        put(&parts)
    }
}
