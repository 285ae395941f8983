//! The state of messages that all links of a node share, and the callbacks of the protocol ([`Callbacks`]) that change it.
//!
//! [`MessageState`] holds the matching table, the operations, and what the node must act on once the protocol has returned: a message for a
//! handler, channels that a peer opens. The callbacks call no user code and no link.

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
    Arrival, AssistRequest, BodyTransfer, Callbacks, ChannelId, CopyRequest, Envelope, Event, Outcome, Reception,
    Status, Table, UnexpectedMessage,
};
use motet_sys::shm_pool::{ShmBlock, ShmPool};
use motet_sys::{clock, memory};
use motet_wire::message::fifo::payload_ring::RingSpan;
use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// What all links share.
pub struct MessageState {
    /// Receives and messages that wait for each other.
    pub table: Table<Buffer>,
    /// What the program has begun.
    pub operations: Operations,
    /// Memory that peers may reach.
    pub regions_here: LocalRegions,
    /// Memory for loans and regions.
    pub pool: Arc<ShmPool>,
    /// A message for a handler, to be run before the next packet is looked at.
    pub handler_message: Option<HandlerMessage>,
    /// Channels that peers would like: link, channel, service.
    pub open_requests: VecDeque<(Channel, u64)>,
    /// Links that peers have begun and that are gone, or of which the program holds less: to be looked at.
    pub ended: Vec<LinkId>,
    /// The program's, to be dropped where no lock is held.
    pub deferred_drops: Vec<Box<dyn Any + Send>>,
    /// Something has happened that a thread may wait for.
    pub wake_pending: bool,
    /// A message has come that no receive waits for: a thread may probe for it.
    pub queued: bool,
}

/// A message for a handler.
pub struct HandlerMessage {
    /// On which channel.
    pub channel: Channel,
    /// Its tag.
    pub tag: u64,
    /// What there is of it.
    pub what: Delivered,
}

/// What there is of a message for a handler.
pub enum Delivered {
    /// All: headers and body, in the packet that has just come.
    Whole(Range<usize>, Range<usize>),
    /// Its body is still to come.
    Long(UnexpectedMessage),
}

/// What a node keeps of one channel, beside the protocol.
#[derive(Debug)]
pub struct Place {
    /// How far it is.
    pub phase: ChannelPhase,
    /// How its messages are received.
    pub reception: Reception,
    /// The program's handler, by its number in the node.
    pub handler: u32,
    /// The program has opened it, or has taken note of it: it is the one who closes it.
    pub taken: bool,
}

/// How far a channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelPhase {
    /// The peer has not answered yet.
    Opening,
    /// Messages may go.
    Open,
    /// The peer does not want it.
    Refused,
    /// The link is gone.
    Broken,
}

/// The part of a link's state that the protocol's callbacks use.
#[derive(Default)]
pub struct ChannelTable {
    /// By the channel's index; a channel's number is used again.
    pub places: Vec<Option<(ChannelId, Place)>>,
    /// How long messages come.
    pub copy_chooser: CopyChooser,
    /// The one that is copied next is with the peer's help.
    pub wants_assist: bool,
    /// Bodies to be copied from the peer's memory.
    pub copies: VecDeque<PendingCopy>,
    /// The first of them, if the peer may help; the last stamp; and whether only the peer's part is missing.
    pub cooperative_copy: Option<CooperativeCopy>,
    pub stamp: u32,
    pub waits_for_assist: bool,
    /// The message that begins at this place of the ring has not come on in time: it is taken when all of it is there.
    pub late: Option<u64>,
    /// Bodies that the peer copies from ours with our help.
    pub assists: VecDeque<CopyAssist>,
    /// The same of puts and gets.
    pub remote_copies: VecDeque<(RemoteCopy, u64)>,
    /// Memory of either node that the other sees.
    pub segments: Segments,
    /// From how many bytes on the peer may copy from our memory by itself.
    pub single_copy: u64,
}

impl ChannelTable {
    /// Whether bytes are to be copied between the processes, or are being copied by the peer.
    #[inline(always)]
    pub fn copies_wait(&self) -> bool {
        !self.copies.is_empty() || !self.remote_copies.is_empty() || !self.assists.is_empty()
    }

    /// Whether some are to be copied by this process: a thread that makes progress may not sleep.
    pub fn must_copy(&self) -> bool {
        let mine = !self.copies.is_empty() && !self.waits_for_assist;
        mine || !self.remote_copies.is_empty() || !self.assists.is_empty()
    }

    /// What is kept of a channel.
    pub fn place(&mut self, channel: ChannelId) -> Option<&mut Place> {
        let (known, place) = self.places.get_mut(channel.index())?.as_mut()?;
        (*known == channel).then_some(place)
    }

    /// Keeps this of a channel.
    pub fn put(&mut self, channel: ChannelId, place: Place) {
        if self.places.len() <= channel.index() {
            self.places.resize_with(channel.index() + 1, || None);
        }
        self.places[channel.index()] = Some((channel, place));
    }

    /// Whether the program has a channel that it must close.
    pub fn is_held(&self) -> bool {
        self.places.iter().flatten().any(|(_, place)| place.taken)
    }

    /// Nothing is kept of a channel any more.
    pub fn forget(&mut self, channel: ChannelId) {
        let known = self.places.get_mut(channel.index());
        if let Some(place) = known.filter(|place| place.as_ref().is_some_and(|(known, _)| *known == channel)) {
            *place = None;
        }
        if self.places.iter().all(Option::is_none) {
            self.places = Vec::new();
        }
    }
}

impl MessageState {
    /// An empty state, with a randomly keyed matching table and a pool of so many bytes.
    pub fn new(pool: usize) -> Result<Self, Error> {
        let seed = memory::nonce().map_err(Error::NoNode)?;
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| seed[at + n]));
        Ok(Self {
            table: Table::new([half(0), half(8)]),
            operations: Operations::new(),
            regions_here: LocalRegions::default(),
            pool: ShmPool::new(pool),
            handler_message: None,
            open_requests: VecDeque::new(),
            ended: Vec::new(),
            deferred_drops: Vec::new(),
            wake_pending: false,
            queued: false,
        })
    }
}

impl MessageState {
    /// Whether a round has more to do than to poll links.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        !self.open_requests.is_empty() || !self.deferred_drops.is_empty() || !self.ended.is_empty()
    }

    /// A block of the pool: the last one that came back, if it is of that size.
    #[inline]
    pub fn take_block(&mut self, length: usize) -> Option<ShmBlock> {
        if let Some(spare) = self.operations.take_spare() {
            match spare.reuse(length) {
                Ok(block) => return Some(block),
                Err(other) => drop(other), // the pool's again, which may need it for this one
            }
        }
        self.pool.take(length).ok()
    }
}

/// The callbacks of one link, for the time of a call.
pub struct LinkCallbacks<'a> {
    /// Of all links.
    pub messages: &'a mut MessageState,
    /// Of this one.
    pub channel_table: &'a mut ChannelTable,
    /// Which.
    pub link: LinkId,
}

impl<'a> LinkCallbacks<'a> {
    /// Of this link.
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
        let what = match arrival {
            Arrival::Whole(body) => {
                let start = packet::MESSAGE + envelope.headers.len();
                Delivered::Whole(packet::MESSAGE..start, start..start + body.len())
            }
            Arrival::Long(held) => Delivered::Long(held),
        };
        self.messages.handler_message =
            Some(HandlerMessage { channel: self.channel(envelope.channel), tag: envelope.tag, what });
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

    fn place_span(&mut self, operation: u64, at: u64, run: RingSpan) {
        if let Some(operation) = self.messages.operations.get(operation) {
            operation.place_span(at as usize, run);
        }
    }

    fn choose_transfer(&mut self, length: u64, shown: bool) -> BodyTransfer {
        let way = self.channel_table.copy_chooser.want(length, shown, clock::ticks());
        self.channel_table.wants_assist = way == Some(CopyStrategy::CooperativeCopy);
        match (way, self.channel_table.copy_chooser.is_trying()) {
            (None, _) => BodyTransfer::Pieces(Route::Any),
            (Some(CopyStrategy::RingCached), false) => BodyTransfer::Pieces(Route::Cached),
            (Some(CopyStrategy::RingCached), true) => BodyTransfer::Pieces(Route::MeasureCached),
            (Some(CopyStrategy::RingNonTemporal), false) => BodyTransfer::Pieces(Route::NonTemporal),
            (Some(CopyStrategy::RingNonTemporal), true) => BodyTransfer::Pieces(Route::MeasureNonTemporal),
            (Some(CopyStrategy::SingleCopy | CopyStrategy::CooperativeCopy), _) => BodyTransfer::Copy,
        }
    }

    fn body_received(&mut self, length: u64) {
        self.channel_table.copy_chooser.landed(length, clock::ticks(), clock::ticks_per_1024ns());
    }

    fn copy(&mut self, request: CopyRequest) {
        let help = request.key == 0 && self.channel_table.wants_assist;
        self.channel_table.copies.push_back(PendingCopy { request, done: 0, help });
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
        if let Some(place) = self.channel_table.place(channel) {
            place.phase = phase;
        }
    }

    fn unblocked(&mut self) {
        self.messages.wake_pending = true;
    }
}

/// Ends the receives that wait in a scope and forgets it: for channels that never came to be.
pub fn abandon(messages: &mut MessageState, scope: Scope) {
    use motet_proto::message::matching::Source;
    while let Some(receive) = messages.table.end_source(Source::One(scope), Status::Closed) {
        let operation = messages.operations.name_of(receive);
        messages.operations.complete(operation, Outcome { status: Status::Closed, length: 0 });
    }
    messages.table.remove_source(Source::One(scope));
}
