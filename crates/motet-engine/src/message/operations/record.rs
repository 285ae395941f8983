//! The record of one operation: its memory and its state.

use super::CompletionOptions;
use crate::message::Channel;
use crate::message::loaned::PeerBytes;
use motet_proto::message::matching::Ticket;
use motet_proto::message::slab::SlabId;
use motet_proto::message::{FileRange, Outcome, Status};
use motet_sys::user_memory::OperationMemory;
use motet_wire::message::fifo::payload_ring::RingSpan;
use smallvec::SmallVec;

/// The kind of an operation, with what is needed to cancel it.
#[derive(Debug, Clone, Copy)]
pub enum OperationKind {
    /// A receive, with its ticket while it is posted; `None` as soon as it is matched.
    Receive(Option<Ticket>),
    /// A send, with the protocol's number while the message is not sent completely.
    Send(Option<SlabId>),
}

/// The state of a receive in place.
#[derive(Debug, Default)]
pub enum InPlaceState {
    /// The operation is no receive in place.
    #[default]
    NotInPlace,
    /// No message, or a copy of at most `max` bytes.
    Wanted {
        /// Longest copy, bytes.
        max: u64,
    },
    /// The message in the memory of its sender, and its number in the protocol.
    Loaned(PeerBytes, SlabId),
}

/// Fields that most operations do not need, apart from the others so that a record is short.
#[derive(Debug, Default)]
struct RareState {
    more: Vec<OperationMemory>,
    file: Option<FileRange>,
    in_place: InPlaceState,
}

/// The headers of a message. Up to 16 bytes are in the record itself.
pub type Headers = SmallVec<[u8; 16]>;

/// The record of one operation.
#[derive(Debug)]
pub struct Operation {
    /// The body of a send, or the buffer of a receive.
    pub memory: OperationMemory,
    /// The kind of the operation.
    pub kind: OperationKind,
    /// The channel of the operation, if it is known.
    pub channel: Option<Channel>,
    /// The program does not wait for the operation: its completion is discarded.
    pub detached: bool,
    /// The operation is a receive that is still posted although part of its message is in its memory.
    pub begun: bool,
    /// The program has no name for the operation, because it was posted without a record.
    pub(super) nameless: bool,
    /// The operation has completed, and its completion is in the completion queue until it is polled.
    pub(super) is_queued: bool,
    rare: Option<Box<RareState>>,
    pub(super) options: CompletionOptions,
    pub(super) outcome: Option<Outcome>,
    pub(super) tag: u64,
    pub(super) message_length: u64,
    pub(super) headers: Headers,
}

impl Default for Operation {
    fn default() -> Self {
        Self::new(OperationMemory::Owned(Vec::new()), OperationKind::Receive(None), None, CompletionOptions::default())
    }
}

impl Operation {
    /// The record of an operation that has just been started.
    #[inline(always)]
    pub fn new(
        memory: OperationMemory,
        kind: OperationKind,
        channel: Option<Channel>,
        options: CompletionOptions,
    ) -> Self {
        let (outcome, tag, message_length, headers) = (None, 0, 0, Headers::new());
        let (detached, begun, nameless, is_queued, rare) = (false, false, false, false, None);
        Self {
            memory,
            kind,
            channel,
            detached,
            begun,
            nameless,
            is_queued,
            rare,
            options,
            outcome,
            tag,
            message_length,
            headers,
        }
    }

    /// The pieces of a gathered body behind the first one.
    pub fn rest(&self) -> &[OperationMemory] {
        self.rare.as_ref().map_or(&[], |rare| &rare.more)
    }

    /// Replaces the pieces of a gathered body behind the first one, and returns the previous ones.
    pub fn exchange_rest(&mut self, more: Vec<OperationMemory>) -> Vec<OperationMemory> {
        match &mut self.rare {
            None if more.is_empty() => more,
            rare => std::mem::replace(&mut rare.get_or_insert_default().more, more),
        }
    }

    /// The file that is the body of a send.
    pub fn file(&self) -> Option<&FileRange> {
        self.rare.as_ref()?.file.as_ref()
    }

    /// Makes a file the body of a send.
    pub fn set_file(&mut self, file: FileRange) {
        self.rare.get_or_insert_default().file = Some(file);
    }

    /// The state of a receive in place.
    #[inline(always)]
    pub fn in_place(&self) -> &InPlaceState {
        self.rare.as_ref().map_or(&InPlaceState::NotInPlace, |rare| &rare.in_place)
    }

    /// Makes the operation a receive in place with this state.
    pub fn set_in_place(&mut self, in_place: InPlaceState) {
        self.rare.get_or_insert_default().in_place = in_place;
    }

    /// Takes the state of a receive in place, which is the program's from then on.
    pub(super) fn take_in_place(&mut self) -> InPlaceState {
        self.rare.as_mut().map_or(InPlaceState::NotInPlace, |rare| std::mem::take(&mut rare.in_place))
    }

    /// Whether the completion returns neither memory nor a loaned message to the program.
    #[inline(always)]
    pub(super) fn is_reportable(&self) -> bool {
        self.rare.is_none() && !matches!(&self.memory, OperationMemory::Owned(bytes) if !bytes.is_empty())
    }

    /// Whether the completion needs a report and nothing else, and has not been reported.
    #[inline(always)]
    pub(super) fn may_skip_record(&self) -> bool {
        self.rare.is_none() && !self.is_queued && !self.detached && !self.options.errors_only
    }

    /// The program's user data.
    pub fn user_data(&self) -> u64 {
        self.options.user_data
    }

    /// The status of the completion.
    #[inline(always)]
    pub(super) fn status(&self, outcome: Outcome) -> Status {
        if self.rare.is_none() { outcome.status } else { self.status_in_place(outcome) }
    }

    #[cold]
    fn status_in_place(&self, Outcome { status, length }: Outcome) -> Status {
        let held = if let OperationMemory::Owned(bytes) = &self.memory { bytes.len() as u64 } else { u64::MAX };
        match self.in_place() {
            InPlaceState::Wanted { .. } if held < length => Status::Exhausted, // there was no memory for the copy
            _ => status,
        }
    }

    /// Allocates the memory for the copy of a receive in place. Without memory the receive completes with [`Status::Exhausted`].
    #[cold]
    pub fn make_room(&mut self) {
        let &InPlaceState::Wanted { max } = self.in_place() else { return };
        let length = usize::try_from(self.message_length.min(max)).unwrap_or(usize::MAX);
        let OperationMemory::Owned(bytes) = &mut self.memory else { return };
        if bytes.is_empty() && bytes.try_reserve_exact(length).is_ok() {
            bytes.resize(length, 0);
        }
    }

    /// Copies bytes into the buffer. A receive in place has no buffer until its first bytes arrive.
    #[inline(always)]
    pub fn place(&mut self, at: usize, bytes: &[u8]) {
        if self.memory.fill(at, bytes) < bytes.len() {
            self.place_in_room(at, bytes);
        }
    }

    /// Copies bytes from a payload ring into the buffer. A receive in place has no buffer until its first bytes arrive.
    pub fn place_span(&mut self, at: usize, ring_span: RingSpan) {
        if self.memory.len() < at + ring_span.len() {
            self.make_room();
        }
        self.memory.write(at, ring_span.len(), |into| ring_span.read(into));
    }

    #[cold]
    fn place_in_room(&mut self, at: usize, bytes: &[u8]) {
        self.make_room();
        self.memory.fill(at, bytes);
    }

    /// Calls `put` with bytes of the body, which may be in several pieces.
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
