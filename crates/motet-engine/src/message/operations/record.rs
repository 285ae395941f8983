//! The record of one operation: its memory, and what is known of it so far.

use super::Notice;
use crate::message::Channel;
use crate::message::loans::Part;
use motet_proto::message::Outcome;
use motet_proto::message::matching::Ticket;
use motet_proto::message::pool::Number;
use motet_sys::span::Memory;
use motet_wire::lane::bulk::Run;
use smallvec::SmallVec;

/// What the node must know to cancel it.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A receive that waits, or has been matched.
    Receive(Option<Ticket>),
    /// A message that is not all gone.
    Send(Option<Number>),
}

/// What a receive in place sees.
#[derive(Debug)]
pub enum Seen {
    /// It is none.
    Nothing,
    /// Nothing yet, or a copy of at most so many bytes.
    Wanted {
        /// Bytes.
        most: u64,
    },
    /// The sender's memory; the protocol's name for the message.
    Lent(Part, Number),
}

/// One operation.
#[derive(Debug)]
pub struct Operation {
    /// Its body, or where that goes.
    pub memory: Memory,
    /// The rest of a gathered body.
    pub more: Vec<Memory>,
    /// What it is.
    pub kind: Kind,
    /// On which channel, where it is on one.
    pub channel: Option<Channel>,
    /// Nobody waits for it any more.
    pub detached: bool,
    /// Of a receive in place: what it sees.
    pub seen: Seen,
    pub(super) notice: Notice,
    pub(super) outcome: Option<Outcome>,
    pub(super) tag: u64,
    pub(super) full: u64,
    pub(super) headers: Vec<u8>,
}

impl Default for Operation {
    fn default() -> Self {
        Self::new(Memory::Owned(Vec::new()), Kind::Receive(None), None, Notice::default())
    }
}

impl Operation {
    /// One that has just begun.
    pub fn new(memory: Memory, kind: Kind, channel: Option<Channel>, notice: Notice) -> Self {
        let (outcome, tag, full) = (None, 0, 0);
        let (more, headers) = (Vec::new(), Vec::new());
        let (detached, seen) = (false, Seen::Nothing);
        Self { memory, more, kind, channel, detached, seen, notice, outcome, tag, full, headers }
    }

    /// Room for the copy that a receive in place gets after all. Where there is no memory for it, the receive fails with its end.
    #[cold]
    pub fn make_room(&mut self) {
        let (Seen::Wanted { most }, Memory::Owned(bytes)) = (&self.seen, &mut self.memory) else { return };
        let length = usize::try_from(self.full.min(*most)).unwrap_or(usize::MAX);
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
    pub fn place_run(&mut self, at: usize, run: Run) {
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
        for memory in std::iter::once(&self.memory).chain(&self.more) {
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
