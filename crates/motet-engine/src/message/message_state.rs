//! The state of messages that all links of a node share, and the callbacks of the protocol ([`Callbacks`]) that change it.
//!
//! [`MessageState`] holds the matching table, the operations, and the work that the node does after the protocol has returned: a message for a
//! handler, channels that a peer opens. The callbacks call neither code of the program nor a link.

use super::copy_strategy::{CopyChooser, CopyStrategy};
use super::operations::{Buffer, Operations};
use super::regions::local::LocalRegions;
use super::regions::segments::Segments;
use super::single_copy::pending::{CooperativeCopy, CopyAssist, PendingCopy};
use super::{Channel, Error, LinkId};
use motet_proto::message::matching::{Receive, Scope};
use motet_proto::message::packet::{self, Route};
use motet_proto::message::rma::RemoteCopy;
use motet_proto::message::{
    Arrival, AssistRequest, BodyTransfer, Callbacks, ChannelId, CopyRequest, Envelope, Event, FileRange, Outcome,
    Reception, Status, Table, UnexpectedMessage,
};
use motet_sys::shm_pool::{ShmBlock, ShmPool};
use motet_sys::{clock, memory};
use motet_wire::message::fifo::payload_ring::RingSpan;
use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The state of messages that all links of a node share.
pub struct MessageState {
    /// The matching table: posted receives and unexpected messages.
    pub table: Table<Buffer>,
    /// The operations that the program has started, and the completion queues.
    pub operations: Operations,
    /// The regions of this node.
    pub local_regions: LocalRegions,
    /// The pool of shared memory for loans and regions.
    pub pool: Arc<ShmPool>,
    /// A message for a handler, which runs before the next packet is handled.
    pub handler_message: Option<HandlerMessage>,
    /// Channels that peers ask to open, each with its service; a round answers them.
    pub open_requests: VecDeque<(Channel, u64)>,
    /// Links that peers have opened, that are gone, and that a round is to check: it forgets those of which the program holds nothing.
    pub ended_links: Vec<LinkId>,
    /// Values of the program, to be dropped without the node's lock.
    pub deferred_drops: Vec<Box<dyn Any + Send>>,
    /// Something has happened that a thread may wait for: waiting threads must be woken.
    pub wake_pending: bool,
    /// An unexpected message has arrived, which a thread may wait to probe.
    pub new_unexpected: bool,
}

/// A message for a handler.
pub struct HandlerMessage {
    /// The channel on which it arrived.
    pub channel: Channel,
    /// Its tag.
    pub tag: u64,
    /// Its headers and body, as far as they have arrived.
    pub content: HandlerContent,
}

/// The headers and the body of a message for a handler, as far as they have arrived.
pub enum HandlerContent {
    /// The whole message: its headers and its body are these ranges of the packet that has just arrived.
    Whole(Range<usize>, Range<usize>),
    /// A message whose body has not arrived.
    Long(UnexpectedMessage),
}

/// The engine's state of one channel, in addition to the protocol's.
#[derive(Debug)]
pub struct ChannelState {
    /// The phase of the channel.
    pub phase: ChannelPhase,
    /// How the protocol receives its messages.
    pub reception: Reception,
    /// The number of the handler that gets its messages; `u32::MAX` if there is none.
    pub handler: u32,
    /// The program has opened or accepted the channel, and must close it.
    pub is_held: bool,
}

/// The phase of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelPhase {
    /// This side has asked to open the channel; the peer has not answered.
    Opening,
    /// Messages may be sent.
    Open,
    /// The peer has refused the channel.
    Refused,
    /// The link of the channel is gone.
    Broken,
}

/// The part of a link's state that the protocol's callbacks use.
#[derive(Default)]
pub struct ChannelTable {
    /// The channels by index. Each has its number, because an index is used again.
    pub channels: Vec<Option<(ChannelId, ChannelState)>>,
    /// Chooses how the bodies of long messages are transferred to this side.
    pub copy_chooser: CopyChooser,
    /// The next body to be copied was chosen to be copied with the peer's help.
    pub wants_assist: bool,
    /// Bodies of messages to be copied out of the peer's memory.
    pub copies: VecDeque<PendingCopy>,
    /// The copy of the first of these bodies, if the peer may help with it.
    pub cooperative_copy: Option<CooperativeCopy>,
    /// The number of the last cooperative copy.
    pub copy_id: u32,
    /// Of the first body to be copied, only chunks that the peer has claimed are missing.
    pub waits_for_assist: bool,
    /// The position in the payload ring of a pipelined message whose sender did not go on in time: it is taken once it is complete.
    pub late_message: Option<u64>,
    /// Bodies in this process that the peer copies with the help of this side.
    pub assists: VecDeque<CopyAssist>,
    /// Puts and gets whose bytes are to be copied between the processes, each with the bytes that are done.
    pub remote_copies: VecDeque<(RemoteCopy, u64)>,
    /// Segments of either node that the other node may map.
    pub segments: Segments,
    /// Shortest get or put for which the peer gets the address of the region's bytes, to copy them; `u64::MAX` if the link has no shared memory.
    pub single_copy: u64,
}

impl ChannelTable {
    /// Whether copies between the two processes are under way or waiting.
    #[inline(always)]
    pub fn has_copies(&self) -> bool {
        !self.copies.is_empty() || !self.remote_copies.is_empty() || !self.assists.is_empty()
    }

    /// Whether this process has bytes to copy, so that the thread that makes progress may not sleep.
    pub fn must_copy(&self) -> bool {
        let mine = !self.copies.is_empty() && !self.waits_for_assist;
        mine || !self.remote_copies.is_empty() || !self.assists.is_empty()
    }

    /// The state of a channel; `None`: there is no such channel.
    pub fn channel_state(&mut self, channel: ChannelId) -> Option<&mut ChannelState> {
        let (known, state) = self.channels.get_mut(channel.index())?.as_mut()?;
        (*known == channel).then_some(state)
    }

    /// Adds a channel.
    pub fn insert(&mut self, channel: ChannelId, state: ChannelState) {
        if self.channels.len() <= channel.index() {
            self.channels.resize_with(channel.index() + 1, || None);
        }
        self.channels[channel.index()] = Some((channel, state));
    }

    /// Whether the program has a channel on this link that it must close.
    pub fn is_held(&self) -> bool {
        self.channels.iter().flatten().any(|(_, state)| state.is_held)
    }

    /// Removes a channel.
    pub fn remove(&mut self, channel: ChannelId) {
        let known = self.channels.get_mut(channel.index());
        if let Some(place) = known.filter(|place| place.as_ref().is_some_and(|(known, _)| *known == channel)) {
            *place = None;
        }
        if self.channels.iter().all(Option::is_none) {
            self.channels = Vec::new();
        }
    }
}

impl MessageState {
    /// An empty state, with a randomly keyed matching table and a pool of `pool` bytes.
    pub fn new(pool: usize) -> Result<Self, Error> {
        let seed = memory::nonce().map_err(Error::NoNode)?;
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| seed[at + n]));
        Ok(Self {
            table: Table::new([half(0), half(8)]),
            operations: Operations::new(),
            local_regions: LocalRegions::default(),
            pool: ShmPool::new(pool),
            handler_message: None,
            open_requests: VecDeque::new(),
            ended_links: Vec::new(),
            deferred_drops: Vec::new(),
            wake_pending: false,
            new_unexpected: false,
        })
    }
}

impl MessageState {
    /// Whether a round has more to do than to poll the links.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        !self.open_requests.is_empty() || !self.deferred_drops.is_empty() || !self.ended_links.is_empty()
    }

    /// Takes a block of the pool: the one that was released last, if it suits `length`.
    #[inline]
    pub fn take_block(&mut self, length: usize) -> Option<ShmBlock> {
        if let Some(spare) = self.operations.take_spare() {
            match spare.reuse(length) {
                Ok(block) => return Some(block),
                Err(other) => drop(other), // back to the pool, which may need its memory for the new block
            }
        }
        self.pool.take(length).ok()
    }
}

/// The callbacks of one link, for the time of a call of the protocol.
pub struct LinkCallbacks<'a> {
    /// The state that all links share.
    pub messages: &'a mut MessageState,
    /// The state of this link.
    pub channel_table: &'a mut ChannelTable,
    /// The number of this link.
    pub link: LinkId,
}

impl<'a> LinkCallbacks<'a> {
    /// The callbacks of the link `link`.
    #[inline(always)]
    pub fn of(messages: &'a mut MessageState, channel_table: &'a mut ChannelTable, link: LinkId) -> Self {
        Self { messages, channel_table, link }
    }

    fn channel(&self, id: ChannelId) -> Channel {
        Channel { link: self.link, id }
    }
}

impl Callbacks for LinkCallbacks<'_> {
    type Buffer = Buffer;

    #[inline(always)]
    fn matching(&mut self) -> &mut Table<Buffer> {
        &mut self.messages.table
    }

    #[inline(always)]
    fn start_receive(&mut self, receive: Receive<Buffer>) -> u64 {
        self.messages.operations.name_of(receive)
    }

    fn deliver(&mut self, envelope: &Envelope<'_>, arrival: Arrival<'_>) {
        let content = match arrival {
            Arrival::Whole(body) => {
                let start = packet::MESSAGE_HEAD_BYTES + envelope.headers.len();
                HandlerContent::Whole(packet::MESSAGE_HEAD_BYTES..start, start..start + body.len())
            }
            Arrival::Long(unexpected) => HandlerContent::Long(unexpected),
        };
        self.messages.handler_message =
            Some(HandlerMessage { channel: self.channel(envelope.channel), tag: envelope.tag, content });
    }

    #[inline(always)]
    fn matched(&mut self, operation: u64, envelope: &Envelope<'_>) {
        let channel = self.channel(envelope.channel);
        self.messages.operations.matched(operation, channel, envelope);
    }

    #[inline(always)]
    fn received(&mut self, operation: u64, capacity: u64, envelope: &Envelope<'_>, body: &[u8]) {
        let channel = self.channel(envelope.channel);
        self.messages.operations.receive((operation, capacity), channel, envelope, body);
        self.messages.wake_pending = true;
    }

    #[inline(always)]
    fn place(&mut self, operation: u64, at: u64, bytes: &[u8]) {
        if let Some(operation) = self.messages.operations.get(operation) {
            operation.place(at as usize, bytes);
        }
    }

    fn place_span(&mut self, operation: u64, at: u64, ring_span: RingSpan) {
        if let Some(operation) = self.messages.operations.get(operation) {
            operation.place_span(at as usize, ring_span);
        }
    }

    fn choose_transfer(&mut self, length: u64, has_address: bool) -> BodyTransfer {
        let strategy = self.channel_table.copy_chooser.choose(length, has_address, clock::ticks());
        self.channel_table.wants_assist = strategy == Some(CopyStrategy::CooperativeCopy);
        match (strategy, self.channel_table.copy_chooser.is_measuring()) {
            (None, _) => BodyTransfer::Pieces(Route::Any),
            (Some(CopyStrategy::RingCached), false) => BodyTransfer::Pieces(Route::Cached),
            (Some(CopyStrategy::RingCached), true) => BodyTransfer::Pieces(Route::MeasureCached),
            (Some(CopyStrategy::RingNonTemporal), false) => BodyTransfer::Pieces(Route::NonTemporal),
            (Some(CopyStrategy::RingNonTemporal), true) => BodyTransfer::Pieces(Route::MeasureNonTemporal),
            (Some(CopyStrategy::SingleCopy | CopyStrategy::CooperativeCopy), _) => BodyTransfer::Copy,
        }
    }

    fn body_received(&mut self, length: u64) {
        self.channel_table.copy_chooser.note_received(length, clock::ticks(), clock::ticks_per_1024ns());
    }

    fn copy(&mut self, request: CopyRequest) {
        let assisted = request.key == 0 && self.channel_table.wants_assist;
        self.channel_table.copies.push_back(PendingCopy { request, done: 0, assisted });
    }

    fn assist_copy(&mut self, request: AssistRequest) {
        self.channel_table.assists.push_back(CopyAssist { request, done: 0 });
    }

    fn body(&mut self, operation: u64, at: u64, length: usize, put: &mut dyn FnMut(&[&[u8]]) -> bool) -> bool {
        match self.messages.operations.get(operation) {
            Some(operation) => operation.body(at as usize, length, put),
            None => match self.messages.operations.loan(operation) {
                Some(loan) => put(&[loan.get(at as usize..).and_then(|rest| rest.get(..length)).unwrap_or(&[])]),
                None => put(&[]),
            },
        }
    }

    fn file_body(&mut self, operation: u64) -> Option<&FileRange> {
        self.messages.operations.get(operation).and_then(|operation| operation.file())
    }

    #[inline(always)]
    fn completed(&mut self, operation: u64, outcome: Outcome) {
        self.messages.operations.complete(operation, outcome);
        self.messages.wake_pending = true;
    }

    fn event(&mut self, channel: ChannelId, event: Event) {
        self.messages.wake_pending = true;
        let phase = match event {
            Event::Offered(service) => return self.messages.open_requests.push_back((self.channel(channel), service)),
            Event::Opened => ChannelPhase::Open,
            Event::Refused => ChannelPhase::Refused,
            Event::LinkDown => ChannelPhase::Broken,
            Event::Queued | Event::EndOfMessages | Event::NotReceived => return,
        };
        if let Some(state) = self.channel_table.channel_state(channel) {
            state.phase = phase;
        }
    }

    fn unblocked(&mut self) {
        self.messages.wake_pending = true;
    }
}

/// Completes the receives that wait in a scope as closed, and removes the scope. For channels that could not be opened.
pub fn close_scope(messages: &mut MessageState, scope: Scope) {
    use motet_proto::message::matching::Source;
    while let Some(receive) = messages.table.end_source(Source::One(scope), Status::Closed) {
        let operation = messages.operations.name_of(receive);
        messages.operations.complete(operation, Outcome { status: Status::Closed, length: 0 });
    }
    messages.table.remove_source(Source::One(scope));
}
