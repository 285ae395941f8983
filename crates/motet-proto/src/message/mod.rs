//! The message protocol: one link between two nodes.
//!
//! A [`Link`] is the state that one side keeps for a link: its channels, the messages that are longer than a packet, and the credit of
//! both directions. Arriving packets are passed to [`Link::arrived`]. Outgoing packets go through [`Packets`]. What the owner of the
//! link must do or know (place bytes, copy, complete, deliver) goes through [`Callbacks`]. Posted receives and unexpected messages wait
//! in a [`matching::Table`], which belongs to the owner and serves all of its links.
//!
//! This module does no I/O, reads no clock, spawns nothing, takes no lock, and allocates nothing for a short message for which a
//! receive or a handler waits. The transport below delivers packets whole, once and in order, until it fails.
//!
//! Everything that a peer can write is checked before it is used. A peer that breaks the protocol breaks its link
//! ([`ProtocolViolation`]) and costs at most what [`Limits`] allow. Formats, sequences and the invariants M1 to M10:
//! `docs/messages.md`.
//!
//! Remote memory access (get, put, atomics) uses the same link: [`rma`].
//!
//! Reading order for a message: [`tx`] (send), [`packet`], [`rx`] (arrival), [`matching`], and for a long message [`rendezvous`].

pub mod atomic;
pub mod channels;
pub mod credit;
pub mod fast_path;
pub mod file_range;
mod gather;
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
pub use file_range::FileRange;
pub use link::Link;
pub use matching::{Table, UnexpectedMessage};
use motet_wire::message::fifo::payload_ring::RingSpan;
pub use regions::{Key, Regions, Rights};
pub use rma::{Get, Memory, Put, Update};
use slab::SlabId;
pub use tx::{Mode, Send, Sent};

/// The peer broke the protocol, and the link is down for good. The text names the packet and the rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtocolViolation(pub &'static str);

/// The peer used a region key that this side never gave out.
pub const UNKNOWN_REGION_KEY: ProtocolViolation =
    ProtocolViolation("access with a region key that was never given out");

impl std::fmt::Display for ProtocolViolation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the peer broke the protocol: {}", self.0)
    }
}

impl std::error::Error for ProtocolViolation {}

/// Why a call was rejected. A rejected call has done nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    /// Not possible at the moment: no room, no credit, or the channel is not open yet. [`Callbacks::unblocked`] reports when to try
    /// again.
    WouldBlock,
    /// The channel is unknown or closed in this direction, the region is unknown, or the peer offers no remote memory.
    Closed,
    /// The headers are too long, or the message or the atomic does not fit this way of sending.
    TooLong,
    /// The atomic is malformed: see [`atomic::Atomic::check`].
    InvalidAtomic,
    /// The link is down.
    LinkDown,
}

/// The result of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Done,
    /// The message was longer than the buffer. The buffer is full.
    Truncated,
    /// The operation was cancelled.
    Cancelled,
    /// The peer no longer sends, or no longer receives, on this channel.
    Closed,
    /// The table has no free record for the operation.
    Exhausted,
    /// The peer has no such region (any more), or the region does not grant this right.
    AccessDenied,
    /// The access exceeds the bounds of the peer's region.
    OutOfBounds,
    /// The peer's region does not support this atomic at this offset.
    InvalidAtomic,
    /// The link is down.
    LinkDown,
}

/// The completion of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The result.
    pub status: Status,
    /// Bytes of the body that were sent, or that are in the buffer.
    pub length: u64,
}

/// A channel, named by the number that this side gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub(crate) SlabId);

impl ChannelId {
    /// The id as a number, for foreign interfaces.
    pub fn number(self) -> u32 {
        self.0.0
    }

    /// A channel id from an untrusted number. Every use of the id is checked.
    pub fn from_number(number: u32) -> Self {
        Self(SlabId(number))
    }

    /// An index for tables of per-channel records: small, and reused once the channel is gone.
    #[inline(always)]
    pub fn index(self) -> usize {
        self.0.index() as usize
    }
}

/// The description of an arrived message.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    /// The name that the owner gave to the link.
    pub source: u32,
    /// The channel on which the message arrived.
    pub channel: ChannelId,
    /// The tag.
    pub tag: u64,
    /// Bytes of the body.
    pub length: u64,
    /// The headers, outermost first.
    pub headers: &'a [u8],
}

/// The body of a message for a handler.
#[derive(Debug)]
pub enum Arrival<'a> {
    /// The whole body, valid during the call.
    Whole(&'a [u8]),
    /// A message longer than a packet: give it a buffer with [`Link::accept`], or discard it, at once or later.
    Long(UnexpectedMessage),
}

/// A single copy: the body is in the sender's memory and the owner copies it from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRequest {
    /// The record to pass to [`Link::copied`].
    pub record: SlabId,
    /// The receive. Its buffer must stay valid until [`Link::copied`] has been called, even if the link breaks.
    pub operation: u64,
    /// The address of the body, as given by the sender.
    pub address: u64,
    /// The key that gives access to the address, as given by the sender.
    pub key: u64,
    /// Bytes to copy to the front of the buffer.
    pub length: u64,
}

/// How the body of a rendezvous message is to be transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyTransfer {
    /// In pieces that the sender puts into packets.
    Pieces(packet::Route),
    /// By a single copy, if the sender has given an address: [`Callbacks::copy`] follows.
    Copy,
}

/// The peer copies a body of this side and asks for help: this side may copy a part into the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssistRequest {
    /// The send whose body is copied.
    pub operation: u64,
    /// The destination, its length, and the number of the copy.
    pub shared: packet::CopyAssist,
}

/// A state change of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The peer opens a channel to this service: answer with [`Link::accept_channel`] or [`Link::release`].
    Offered(u64),
    /// The peer has accepted the channel.
    Opened,
    /// The peer has refused the channel. The channel stays until it is released, as after the following events.
    Refused,
    /// An unexpected message was queued in a scope that had none.
    Queued,
    /// The peer sends no more messages.
    EndOfMessages,
    /// The peer receives no more messages: nothing can be sent.
    NotReceived,
    /// The link is down.
    LinkDown,
}

/// The packet transport below a link. It delivers packets whole, once and in order.
pub trait Packets {
    /// Size limit of a packet, at least [`packet::MIN_PACKET_BYTES`]; constant.
    fn largest(&self) -> usize;
    /// Bytes that certainly fit at the moment. Pieces of long messages leave some of them to other packets.
    fn room(&mut self) -> usize;
    /// Sends the concatenation of `parts` as one packet. Returns false, and sends nothing, when there is no room.
    fn put(&mut self, kind: u8, parts: &[&[u8]]) -> bool;
    /// Size limit of a piece of a long message; constant. At most [`Packets::largest`] less the head, unless the transport has a
    /// separate path for pieces.
    fn longest_piece(&self) -> usize {
        self.largest() - packet::MESSAGE_HEAD_BYTES
    }
    /// Whether pieces have a path of their own, so that all of a long body should be sent in pieces.
    fn has_piece_path(&self) -> bool {
        false
    }
    /// Whether a piece fits at the moment and leaves `reserve` bytes to other packets.
    fn piece_fits(&mut self, length: usize, reserve: usize) -> bool {
        self.room() >= packet::MESSAGE_HEAD_BYTES + length + reserve
    }
    /// Sends a piece: a head and a gathered body, by the route that the receiver asked for.
    fn put_piece(&mut self, head: &[u8; packet::MESSAGE_HEAD_BYTES], body: &[&[u8]], route: packet::Route) -> bool {
        let _ = route;
        gather::put(self, packet::Kind::Piece, head, &[], body)
    }
    /// Whether [`Packets::put_file_piece`] sends pieces of files.
    fn takes_files(&self) -> bool {
        false
    }
    /// Sends a piece whose body is a range of a file, which the transport reads when it sends. Bytes that the file has no more are zeros. Returns
    /// false, and sends nothing, when there is no room.
    fn put_file_piece(&mut self, head: &[u8; packet::MESSAGE_HEAD_BYTES], body: FileRange) -> bool {
        let _ = (head, body);
        false
    }
    /// Sends a packet of two little-endian words and a body. A transport may override it with a shorter path.
    #[inline(always)]
    fn put_words(&mut self, kind: u8, head: [u64; 2], body: &[u8]) -> bool {
        let [first, second] = head.map(u64::to_le_bytes);
        self.put(kind, &[&first, &second, body])
    }
}

/// Implemented by the owner of a link: the engine, or a test. No callback may call the link.
pub trait Callbacks: Memory {
    /// What the owner stores with a posted receive.
    type Buffer: Copy;
    /// The matching table for all links of this owner.
    fn matching(&mut self) -> &mut Table<Self::Buffer>;
    /// A receive has left the table by another way than [`Link::match_message`]. Returns the owner's name for the operation from
    /// here on.
    #[inline]
    fn start_receive(&mut self, receive: matching::Receive<Self::Buffer>) -> u64 {
        receive.operation
    }
    /// Delivers a message to a handler.
    fn deliver(&mut self, envelope: &Envelope<'_>, arrival: Arrival<'_>);
    /// A message was matched with a receive. Its bytes, if any, and the completion follow.
    fn matched(&mut self, operation: u64, envelope: &Envelope<'_>);
    /// A message was matched with a receive and its whole body is here. Stands for [`Callbacks::matched`], [`Callbacks::place`] and
    /// [`Callbacks::completed`].
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
    /// Writes bytes into the buffer of a receive, a get, or a fetching atomic. They fit.
    fn place(&mut self, operation: u64, at: u64, bytes: &[u8]);
    /// Writes bytes of a payload ring into the buffer of a receive. They fit.
    fn place_span(&mut self, operation: u64, at: u64, run: RingSpan) {
        let mut bytes = vec![0; run.len()];
        run.read(&mut bytes);
        self.place(operation, at, &bytes);
    }
    /// Chooses how `length` bytes of a rendezvous message are transferred; `shown`: the sender has given an address.
    /// [`Callbacks::body_received`] follows when they have arrived.
    fn choose_transfer(&mut self, length: u64, shown: bool) -> BodyTransfer {
        let _ = length;
        if shown { BodyTransfer::Copy } else { BodyTransfer::Pieces(packet::Route::Any) }
    }
    /// All bytes of a rendezvous message have arrived in the way that [`Callbacks::choose_transfer`] chose.
    fn body_received(&mut self, length: u64) {
        let _ = length;
    }
    /// Requests a single copy; [`Link::copied`] reports its end.
    fn copy(&mut self, request: CopyRequest);
    /// The receiver asks this side to copy a part of a body.
    fn assist_copy(&mut self, request: AssistRequest) {
        let _ = request;
    }
    /// Calls `put` once with `length` bytes of the body of a send or a put, from `at` on, and returns the result of `put`.
    fn body(&mut self, operation: u64, at: u64, length: usize, put: &mut dyn FnMut(&[&[u8]]) -> bool) -> bool;
    /// The file that is the body of a send, which [`Callbacks::body`] does not know. Only for a transport that takes files.
    fn file_body(&mut self, operation: u64) -> Option<&FileRange> {
        let _ = operation;
        None
    }
    /// An operation has completed and its memory belongs to the user again. Called once for each operation that began (invariant
    /// M8).
    fn completed(&mut self, operation: u64, outcome: Outcome);
    /// The state of a channel has changed.
    fn event(&mut self, channel: ChannelId, event: Event);
    /// A send that was rejected may be tried again.
    fn unblocked(&mut self);
}

/// What this side allows the peer, which bounds the memory that a peer can make it hold (invariant M7), and how this side sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of eager messages that are not received yet, with their records.
    pub window: u64,
    /// Rendezvous messages, and long eager messages that are still arriving, at a time.
    pub max_rendezvous: u32,
    /// Channels that the peer may have open at a time.
    pub channels: u32,
    /// Bytes of one message that are requested (CTS) ahead of those received.
    pub ahead: u64,
    /// Rendezvous messages that are requested in pieces at a time.
    pub max_pulls: u32,
    /// Bytes of room that pieces of long messages leave to other packets.
    pub reserve: usize,
    /// Longest eager body, and longest put that is sent in one packet.
    pub eager: u64,
    /// Gets, puts and atomics of the peer in progress at a time; 0: no remote memory for the peer.
    pub requests: u32,
}
