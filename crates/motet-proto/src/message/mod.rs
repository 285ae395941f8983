//! The message protocol: one link between two nodes.
//!
//! What it is: a [`Link`] is the state that one side keeps for a link: its channels, the messages that are longer than a
//! packet, and the credits of both directions. What arrives is handed to it packet by packet ([`Link::arrived`]); what it
//! has to say goes through [`Packets`]; what its owner must do or know (place bytes, copy, complete, deliver) goes through
//! [`Callbacks`]. Receives and messages wait for each other in a [`matching::Table`], which is the owner's and serves all of its
//! links.
//!
//! What it is not: it does no I/O, reads no clock, spawns and locks nothing, and asks for no memory on the way of a short
//! message for which a receive or a handler waits. How packets travel is the medium's matter: in order, whole, once, or not
//! at all any more.
//!
//! Everything that a peer can write is checked before it is used; a peer that breaks the protocol breaks its link
//! ([`ProtocolViolation`]) and costs at most what [`Limits`] allow. Formats, sequences and the invariants M1 to M9: `docs/messages.md`.
//!
//! Memory of the other side is got, put and changed through [`rma`], on the same link.
//!
//! To follow a message read downwards: [`tx`] (send) → [`packet`] → [`rx`] (arrive) → [`matching`] →, when it is
//! long, [`rendezvous`].

pub mod atomic;
pub mod channels;
pub mod credit;
pub mod fast_path;
pub mod header_stack;
pub mod link;
pub mod matching;
pub mod packet;
pub mod pipelined;
pub mod regions;
pub mod rendezvous;
pub mod rma;
pub mod rx;
pub mod session;
pub mod slab;
pub mod tx;

pub use channels::Reception;
pub use link::Link;
pub use matching::{Table, UnexpectedMessage};
use motet_wire::message::fifo::payload_ring::RingSpan;
pub use regions::{Key, Regions, Rights};
pub use rma::{Get, Memory, Put, Update};
use slab::SlabId;
pub use tx::{Mode, Send, Sent};

/// The peer broke the protocol; the link is broken for good. Says which rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtocolViolation(pub &'static str);

/// It has used the key of a region that this side never made.
pub const UNKNOWN_REGION_KEY: ProtocolViolation = ProtocolViolation("a region's key that was never given out");

impl std::fmt::Display for ProtocolViolation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the peer broke the protocol: {}", self.0)
    }
}

impl std::error::Error for ProtocolViolation {}

/// A call that did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    /// Not now: no room, no credit, or the channel is not open yet. [`Callbacks::unblocked`] says when credit has come.
    WouldBlock,
    /// The channel does not take this any more, or is unknown, as a region may be; or the peer has no regions for others.
    Closed,
    /// The headers are too long, or such a message or row of elements cannot go like this at all.
    TooLong,
    /// An atomic that makes no sense.
    InvalidAtomic,
    /// The link is down.
    LinkDown,
}

/// How an operation has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// As asked.
    Done,
    /// The message was longer than the buffer, which is full.
    Truncated,
    /// It was cancelled.
    Cancelled,
    /// The other side does not send, or not receive, on this channel any more.
    Closed,
    /// There are too many of its kind.
    Exhausted,
    /// The peer has no such region, not any more, or does not let this side do that with it.
    AccessDenied,
    /// The peer's region ends before that.
    OutOfBounds,
    /// The peer's region does not do such an atomic there.
    InvalidAtomic,
    /// The link is down.
    LinkDown,
}

/// The end of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// How.
    pub status: Status,
    /// Bytes of the body that were sent, or are in the buffer.
    pub length: u64,
}

/// A channel, by this side's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub(crate) SlabId);

impl ChannelId {
    /// As a number, for those who hand it through a foreign interface.
    pub fn number(self) -> u32 {
        self.0.0
    }

    /// The channel of a number that anybody may have made up: every use of it is checked.
    pub fn from_number(number: u32) -> Self {
        Self(SlabId(number))
    }

    /// Where records of this channel lie: small, and reused once it is gone.
    #[inline(always)]
    pub fn index(self) -> usize {
        self.0.index() as usize
    }
}

/// What a message says of itself.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    /// The link's name for itself.
    pub source: u32,
    /// On which channel it came.
    pub channel: ChannelId,
    /// Its tag.
    pub tag: u64,
    /// Bytes of its body.
    pub length: u64,
    /// Its headers, the outermost first.
    pub headers: &'a [u8],
}

/// What a handler gets.
#[derive(Debug)]
pub enum Arrival<'a> {
    /// All of the body, for the time of the call.
    Whole(&'a [u8]),
    /// A message that is longer than a packet: give it a buffer with [`Link::accept`], or discard it, now or later.
    Long(UnexpectedMessage),
}

/// Bytes of a message lie in the sender's process and may be copied from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRequest {
    /// For [`Link::copied`].
    pub record: SlabId,
    /// The receive; its buffer must stay until `copied` has been called, even if the link breaks.
    pub operation: u64,
    /// What the sender said of where the bytes are.
    pub address: u64,
    /// And of how they may be read.
    pub key: u64,
    /// Bytes, to the front of the buffer.
    pub length: u64,
}

/// How the owner wants an announced message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyTransfer {
    /// In pieces.
    Pieces(packet::Route),
    /// Copied from where it is, if the sender shows it: [`Callbacks::copy`] follows.
    Copy,
}

/// The peer copies from a message of ours, and lets us copy some of it into its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssistRequest {
    /// The send, whose body it is.
    pub operation: u64,
    /// Where the peer wants it, how many bytes, and which copy it is.
    pub shared: packet::CopyAssist,
}

/// What happens to a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The peer would like it, for this service: [`Link::accept_channel`] or [`Link::release`].
    Offered(u64),
    /// The peer has taken it.
    Opened,
    /// The peer will not have it. It stays until it is released, as after the following.
    Refused,
    /// A message waits in its scope, where none waited for it.
    Queued,
    /// The peer sends no more.
    EndOfMessages,
    /// The peer receives no more: nothing can be sent.
    NotReceived,
    /// The link is down.
    LinkDown,
}

/// The medium, as a link sees it: packets arrive whole, once and in order.
pub trait Packets {
    /// Most bytes of a packet, at least [`packet::MIN_PACKET_BYTES`]; always the same.
    fn largest(&self) -> usize;
    /// Bytes that surely fit now: pieces of long messages leave some of them to others.
    fn room(&mut self) -> usize;
    /// Sends a packet of all `parts` together; false, and nothing is sent, when there is no room.
    fn put(&mut self, kind: u8, parts: &[&[u8]]) -> bool;
    /// Bytes of the longest piece of a long message, at most [`Packets::largest`] less its head unless the medium has another way
    /// for them; always the same.
    fn longest_piece(&self) -> usize {
        self.largest() - packet::MESSAGE
    }
    /// Whether pieces go another way than packets, so that all of a long body is better in pieces.
    fn has_piece_path(&self) -> bool {
        false
    }
    /// Whether a piece fits now, and leaves `reserve` bytes to others.
    fn piece_fits(&mut self, length: usize, reserve: usize) -> bool {
        self.room() >= packet::MESSAGE + length + reserve
    }
    /// Sends a piece: a head and a gathered body, by the route that its receiver wants.
    fn put_piece(&mut self, head: &[u8; packet::MESSAGE], body: &[&[u8]], route: packet::Route) -> bool {
        let _ = route;
        tx::put(self, packet::Kind::Piece, head, &[], body)
    }
    /// The same of two little-endian words and a body: a medium may have a shorter way for it.
    #[inline(always)]
    fn put_words(&mut self, kind: u8, head: [u64; 2], body: &[u8]) -> bool {
        let [first, second] = head.map(u64::to_le_bytes);
        self.put(kind, &[&first, &second, body])
    }
}

/// Who has the link: the engine, or a test. None of these may call the link.
pub trait Callbacks: Memory {
    /// What it keeps with a posted receive.
    type Buffer: Copy;
    /// The table for all links of this owner.
    fn matching(&mut self) -> &mut Table<Self::Buffer>;
    /// A receive has left the table otherwise than by [`Link::match_message`]: the owner's name for it from now on.
    #[inline]
    fn start_receive(&mut self, receive: matching::Receive<Self::Buffer>) -> u64 {
        receive.operation
    }
    /// A message for a handler.
    fn deliver(&mut self, envelope: &Envelope<'_>, arrival: Arrival<'_>);
    /// A receive has got this message; its bytes, if any, and its completion follow.
    fn matched(&mut self, operation: u64, envelope: &Envelope<'_>);
    /// A receive has got this message, all of whose body is here: as the three calls that this stands for.
    #[inline]
    fn received(&mut self, operation: u64, capacity: u64, envelope: &Envelope<'_>, body: &[u8]) {
        self.matched(operation, envelope);
        let fits = capacity.min(body.len() as u64);
        if fits > 0 {
            self.place(operation, 0, &body[..fits as usize]);
        }
        let status = if fits < body.len() as u64 { Status::Truncated } else { Status::Done };
        self.completed(operation, Outcome { status, length: fits });
    }
    /// Bytes for the buffer of a receive, of a get, or of an atomic that fetches; they fit.
    fn place(&mut self, operation: u64, at: u64, bytes: &[u8]);
    /// The same of bytes that lie in a ring.
    fn place_span(&mut self, operation: u64, at: u64, run: RingSpan) {
        let mut bytes = vec![0; run.len()];
        run.read(&mut bytes);
        self.place(operation, at, &bytes);
    }
    /// How a receive should get so many bytes of an announced message, which the sender shows or not; [`Callbacks::body_received`] follows when they
    /// are there.
    fn choose_transfer(&mut self, length: u64, shown: bool) -> BodyTransfer {
        let _ = length;
        if shown { BodyTransfer::Copy } else { BodyTransfer::Pieces(packet::Route::Any) }
    }
    /// All bytes of such a message are there.
    fn body_received(&mut self, length: u64) {
        let _ = length;
    }
    /// Copy this, then call [`Link::copied`].
    fn copy(&mut self, request: CopyRequest);
    /// The receiver lets us copy some of this.
    fn assist_copy(&mut self, request: AssistRequest) {
        let _ = request;
    }
    /// Calls `put` once with the bytes of a send's or a put's body from `at` on, `length` of them; returns what that returns.
    fn body(&mut self, operation: u64, at: u64, length: usize, put: &mut dyn FnMut(&[&[u8]]) -> bool) -> bool;
    /// An operation has ended: its memory is its user's again. Once for each that began (invariant M8).
    fn completed(&mut self, operation: u64, outcome: Outcome);
    /// Something happened to a channel.
    fn event(&mut self, channel: ChannelId, event: Event);
    /// A send that was refused may be tried again.
    fn unblocked(&mut self);
}

/// What this side allows, which bounds what a peer can cost it (invariant M7), and how it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of eager messages that nobody has taken yet, with their records.
    pub window: u64,
    /// Announced messages, and eager ones still arriving, at a time.
    pub max_rendezvous: u32,
    /// Channels that the peer may have opened at a time.
    pub channels: u32,
    /// Bytes that may be pulled ahead for one message.
    pub ahead: u64,
    /// Messages that are pulled at a time.
    pub max_pulls: u32,
    /// Bytes of room that pieces of long messages leave to other packets.
    pub reserve: usize,
    /// Longest eager body, and longest put that goes at once.
    pub eager: u64,
    /// Gets, puts and atomics of the peer on regions of this side at a time; 0: it has none for peers.
    pub requests: u32,
}
