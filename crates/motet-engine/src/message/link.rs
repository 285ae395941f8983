//! One link of a node: the protocol's state, its transport, and how packets go from one to the other.
//!
//! What it is not: when a link is looked at, is decided in [`super::progress`].

use super::copy_strategy::CopyChooser;
use super::message_state::{ChannelTable, LinkCallbacks, MessageState};
use super::packets::{LONGEST, PacketTx, RxPacket, ShmTx};
use super::regions::segments::Segments;
use super::transport::{Lost, NodeId, PacketTransport, ShmTransport, Transport};
use super::{LinkId, MessageLimits, fast_receive, pipelined, regions};
use crate::reason::Reason;
use motet_proto::message::{ChannelId, Link, ProtocolViolation, Rejected, UNKNOWN_REGION_KEY};
use motet_sys::{memory, socket};
use motet_wire::message::fifo::payload_ring::{BODY_IN_RING, PayloadTx};
use motet_wire::message::fifo::{Packet, Peeked};
use std::os::fd::{AsFd, AsRawFd};

/// Packets taken from one link before others have their turn.
const TURN: usize = 32;
/// Pieces of long messages put at a time.
const PIECES: usize = 16;
/// Empty polls after which a link counts as idle.
pub(super) const IDLE_POLLS: u32 = 20_000;
/// Bytes of a single copy made at a time.
pub(super) const COPY: usize = 256 << 10;

/// A link that is up, or that is down and whose operations have not all completed.
pub struct LinkState {
    /// The protocol.
    pub proto: Link,
    /// What the protocol's callbacks use.
    pub channel_table: ChannelTable,
    /// What carries packets; `None` once it is gone.
    pub transport: Option<Transport>,
    /// Who is at the other end.
    pub peer: NodeId,
    /// The driver's name.
    pub driver: &'static str,
    /// Why the link is gone.
    pub gone: Option<Reason>,
    /// The peer has begun it. Once it is gone, and the program holds nothing of it, it is forgotten.
    pub came: bool,
    /// Looks since something came, and lines taken by the last slow round.
    pub empty_polls: u32,
    /// See `idle`.
    pub taken: u64,
    /// It is among those that are looked at in every round.
    pub is_active: bool,
    /// When the pages of the payload ring are released, unless more than so many bytes have been written by then.
    pub trim: Option<(u64, u64)>,
    /// A send has found no room since it was last seen that there is some.
    pub tx_blocked: bool,
    /// The peer is gone: once nothing of it is left, the link ends.
    pub peer_closed: bool,
    /// What was copied out of the peer's memory.
    pub copies: Copies,
}

/// What a poll has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing has come.
    Silent,
    /// Something has.
    Came,
    /// A message for a handler: run it, then poll again.
    Deliver,
}

pub(super) const BROKEN_LANE: ProtocolViolation = ProtocolViolation("the memory between us makes no sense");
pub(super) const GONE: ProtocolViolation = ProtocolViolation("the peer is gone");

/// What a link has copied out of its peer's memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Copies {
    /// Bodies, and their bytes.
    pub done: [u64; 2],
    /// Those for which the system refused it: they were fetched in pieces.
    pub refused: u64,
    /// Of those copied, bodies of which the peer has copied some.
    pub helped: u64,
}

impl Copies {
    /// One has ended.
    pub fn note(&mut self, copied: bool, length: u64) {
        if copied {
            self.done[0] += 1;
            self.done[1] = self.done[1].wrapping_add(length);
        } else {
            self.refused += 1;
        }
    }
}

impl LinkState {
    /// A link over a new transport.
    pub fn new(id: LinkId, peer: NodeId, transport: Transport, driver: &'static str, limits: &MessageLimits) -> Self {
        let shm = matches!(transport, Transport::SharedMemory(_));
        let proto = Link::new(id.0, limits.of(shm), 0);
        let segments = match &transport {
            Transport::SharedMemory(shm) => Segments::over(shm.control.as_fd().as_raw_fd()),
            Transport::Packet(_) => Segments::default(),
        };
        let single_copy = if shm { regions::COPY } else { u64::MAX };
        let copy_chooser = match &transport {
            Transport::SharedMemory(shm) => CopyChooser::new(shm.pid != 0, shm.process.is_some(), limits.bodies),
            Transport::Packet(_) => CopyChooser::none(),
        };
        let channel_table = ChannelTable { single_copy, segments, copy_chooser, ..ChannelTable::default() };
        Self { proto, channel_table, transport: Some(transport), ..Self::empty(peer, driver) }
    }

    /// The place of a link that is about to be.
    pub fn empty(peer: NodeId, driver: &'static str) -> Self {
        let (proto, channel_table) = (Link::new(0, MessageLimits::default().of(true), 0), ChannelTable::default());
        Self {
            proto,
            channel_table,
            transport: None,
            peer,
            driver,
            gone: None,
            came: false,
            empty_polls: 0,
            taken: 0,
            is_active: false,
            trim: None,
            tx_blocked: false,
            peer_closed: false,
            copies: Copies::default(),
        }
    }

    /// Whether nothing is due for the link but polls.
    #[inline(always)]
    pub fn is_quiet(&self) -> bool {
        !self.peer_closed && !self.tx_blocked && !self.channel_table.copies_wait() && !self.proto.is_due()
    }

    /// So many rounds have gone by: where nothing has arrived meanwhile they count as empty polls.
    pub fn count_empty_polls(&mut self, rounds: u32) {
        let Some(taken) = self.shm().map(|shm| shm.inward.head()) else { return };
        self.empty_polls = if taken == self.taken { self.empty_polls.saturating_add(rounds) } else { 0 };
        self.taken = taken;
    }

    /// Whether something has come lately, and comes through memory.
    pub fn is_polled_in_memory(&mut self) -> bool {
        self.empty_polls <= IDLE_POLLS && self.shm().is_some()
    }

    /// Whether its transport is shared memory.
    pub fn is_shm(&self) -> bool {
        matches!(self.transport, Some(Transport::SharedMemory(_)))
    }

    /// When it must be looked at although nothing comes.
    pub fn due(&self) -> Option<u64> {
        match &self.transport {
            Some(Transport::Packet(packet_transport)) => packet_transport.due(),
            _ => self.trim.map(|(due, _)| due),
        }
    }

    /// The link is not polled for a while: the pages of a payload ring that stays unused are released.
    pub fn rest(&mut self, now: u64) {
        const UNUSED: u64 = 1_000_000_000;
        let used = self.shm().map(|shm| &shm.bulk.0).filter(|ring| ring.is_used()).map(PayloadTx::tail);
        self.trim = used.map(|tail| (now.saturating_add(UNUSED), tail));
    }

    /// Gives them back when it is time. A ring that has been used meanwhile keeps its pages: making them anew costs more than what
    /// goes through them.
    pub fn trim(&mut self, now: u64) {
        let Some((_, tail)) = self.trim.filter(|&(due, _)| due <= now) else { return };
        let unused = |ring: &mut PayloadTx| ring.tail() == tail && ring.trim(memory::release_pages_at);
        let trimmed = self.shm().is_none_or(|shm| unused(&mut shm.bulk.0));
        self.trim = None;
        if !trimmed {
            self.rest(now);
        }
    }

    /// Runs `f` with the protocol, the sending half of the transport, and the protocol's callbacks. Then it wakes the peer if that sleeps.
    #[inline(always)]
    pub fn with<R>(
        &mut self,
        id: LinkId,
        messages: &mut MessageState,
        f: impl FnOnce(&mut Link, &mut PacketTx<'_>, &mut LinkCallbacks<'_>) -> R,
    ) -> R {
        let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
        let mut way = match &mut self.transport {
            Some(Transport::SharedMemory(shm)) => {
                PacketTx::Fifo(ShmTx::new(&mut shm.outward, &mut shm.bulk.0, &shm.copying))
            }
            Some(Transport::Packet(packet_transport)) => PacketTx::Packet(&mut **packet_transport),
            None => PacketTx::Nowhere,
        };
        let result = f(&mut self.proto, &mut way, &mut callbacks);
        let PacketTx::Fifo(ShmTx { wake, broken, .. }) = way else { return result };
        if broken {
            self.lose(id, messages, Reason::BROKEN, BROKEN_LANE);
        } else if wake {
            self.wake();
        }
        result
    }

    /// Sends a message that goes in one packet, or does nothing. The first `headers` bytes of `all` are its headers.
    #[inline(always)]
    pub fn send_short(
        &mut self,
        id: LinkId,
        messages: &mut MessageState,
        channel: ChannelId,
        tag: u64,
        headers: u16,
        all: &[u8],
    ) -> Result<(), Rejected> {
        let Some(Transport::SharedMemory(shm)) = &mut self.transport else {
            return self.with(id, messages, |proto, way, _| proto.send_short(way, channel, tag, headers, all));
        };
        let mut outward = ShmTx::new(&mut shm.outward, &mut shm.bulk.0, &shm.copying);
        let sent = self.proto.send_short(&mut outward, channel, tag, headers, all);
        let ShmTx { wake, broken, .. } = outward;
        if broken {
            self.lose(id, messages, Reason::BROKEN, BROKEN_LANE);
        } else if wake {
            self.wake();
        }
        sent
    }

    /// Wakes the peer.
    #[cold]
    pub(super) fn wake(&self) {
        if let Some(Transport::SharedMemory(shm)) = &self.transport {
            shm.ring();
        }
    }

    /// Takes what has come, up to a turn or the first message for a handler.
    #[inline(always)]
    pub fn look(&mut self, id: LinkId, messages: &mut MessageState, rx_packet: &mut RxPacket, now: u64) -> Look {
        match &mut self.transport {
            Some(Transport::SharedMemory(shm)) => {
                let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
                let look = take_from_lane(shm, &mut self.proto, &mut callbacks, rx_packet, now);
                let broken = match look {
                    Ok(Look::Silent) => {
                        self.empty_polls = self.empty_polls.saturating_add(1);
                        return Look::Silent;
                    }
                    Ok(look) => {
                        self.empty_polls = 0;
                        return look;
                    }
                    Err(broken) => broken,
                };
                self.lose(id, messages, Reason::BROKEN, broken);
                Look::Came
            }
            Some(Transport::Packet(_)) => self.look_at_frames(id, messages, rx_packet, now),
            None => Look::Silent,
        }
    }

    fn look_at_frames(&mut self, id: LinkId, messages: &mut MessageState, rx_packet: &mut RxPacket, now: u64) -> Look {
        let Some(Transport::Packet(packet_transport)) = &mut self.transport else { return Look::Silent };
        let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
        let taken = take_frames(&mut **packet_transport, &mut self.proto, &mut callbacks, rx_packet, now);
        match taken {
            Ok(Look::Silent) => self.empty_polls = self.empty_polls.saturating_add(1),
            Ok(_) => self.empty_polls = 0,
            Err(Failed::Peer(broken)) => self.lose(id, messages, Reason::BROKEN, broken),
            Err(Failed::Transport(Lost(reason))) => self.lose(id, messages, reason, GONE),
        }
        taken.unwrap_or(Look::Came)
    }

    /// Puts what is owed to the peer.
    pub fn flush(&mut self, id: LinkId, messages: &mut MessageState) {
        if self.proto.is_due() && self.transport.is_some() {
            self.with(id, messages, |proto, packets, callbacks| proto.flush(packets, callbacks, PIECES));
        }
    }

    /// Tells those who found no room when there is some.
    #[cold]
    pub fn look_for_room(&mut self, messages: &mut MessageState) {
        let full = self.shm().is_some_and(|shm| shm.outward.room(1) == Ok(false));
        if !full {
            self.tx_blocked = false;
            messages.wake_pending = true;
        }
    }

    /// The transport is lost: everything on the link ends.
    #[cold]
    pub fn lose(&mut self, id: LinkId, messages: &mut MessageState, reason: Reason, broken: ProtocolViolation) {
        self.end_cooperative_copy();
        if let Some(shm) = self.shm() {
            // Now, even if another process (a forked child, say) has the descriptor, and before any memory is released.
            let _ = socket::shutdown(shm.control.as_fd().as_raw_fd(), 2);
        }
        self.gone.get_or_insert(if broken == UNKNOWN_REGION_KEY { Reason::UNKNOWN_REGION_KEY } else { reason });
        self.channel_table.assists.clear();
        self.channel_table.segments.leave();
        self.transport = None;
        self.peer_closed = false; // or it would end in every round, and no thread could sleep
        let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
        self.proto.reset(&mut callbacks, broken);
        while let Some(copying) = callbacks.channel_table.copies.pop_front() {
            self.proto.copied(&mut callbacks, copying.request.record, false);
        }
        while let Some((request, _)) = callbacks.channel_table.remote_copies.pop_front() {
            self.proto.copied_remote(&mut callbacks, request.record, false);
        }
        messages.wake_pending = true;
        self.note_end(id, messages);
    }

    /// One that a peer has begun is gone, or the program holds less of it: whether anything, is seen by the next round.
    pub fn note_end(&self, id: LinkId, messages: &mut MessageState) {
        if self.came && self.gone.is_some() {
            messages.ended.push(id);
        }
    }

    /// Whether the program may still have something of a link that is gone: a channel that it closes, or messages that it takes.
    pub fn is_held(&self) -> bool {
        self.channel_table.is_held() || self.proto.bytes().1 > 0
    }

    /// Ends all of its channels on this side: what waits on them is discarded.
    pub fn release_all(&mut self, id: LinkId, messages: &mut MessageState) {
        let channels: Vec<_> = self.channel_table.places.iter().flatten().map(|(channel, _)| *channel).collect();
        let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
        for channel in channels {
            let _ = self.proto.release(&mut callbacks, channel);
        }
    }

    /// The peer's process has ended, or has closed the link: what it has sent is still taken, then everything ends.
    #[cold]
    pub fn end(&mut self, id: LinkId, messages: &mut MessageState) {
        self.lose(id, messages, Reason::PEER_GONE, GONE);
    }

    /// The shared-memory transport, if the link has one.
    #[inline(always)]
    pub fn shm(&mut self) -> Option<&mut ShmTransport> {
        match &mut self.transport {
            Some(Transport::SharedMemory(shm)) => Some(shm),
            _ => None,
        }
    }
}

#[inline(always)]
fn take_from_lane(
    shm: &mut ShmTransport,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    rx_packet: &mut RxPacket,
    now: u64,
) -> Result<Look, ProtocolViolation> {
    let mut look = Look::Silent;
    for _ in 0..TURN {
        match shm.inward.peek_cell() {
            Peeked::Nothing => break,
            Peeked::SingleCell(short) if fast_receive::take(&short, proto, callbacks, now) => {
                shm.inward.consume_cell();
                look = Look::Came;
                if callbacks.messages.operations.blocking_has_ended() {
                    break; // as below
                }
                continue;
            }
            Peeked::SingleCell(_) | Peeked::FlaggedCell(_) | Peeked::Other => {}
        }
        let Some(packet) = shm.inward.peek(&mut rx_packet.fifo).map_err(|_| BROKEN_LANE)? else { break };
        rx_packet.is_long = false;
        if packet.continuations() > 0
            && !shm.inward.has_continuations(packet.continuations()).map_err(|_| BROKEN_LANE)?
        {
            let early = packet.flags & BODY_IN_RING != 0;
            if !early || !pipelined::take(shm, proto, callbacks, &packet, packet.bytes(&rx_packet.fifo), now)? {
                break; // not all of it is there
            }
        } else if packet.flags & BODY_IN_RING == 0 {
            shm.inward.consume(&packet);
            proto.arrived(callbacks, packet.kind, packet.bytes(&rx_packet.fifo), now)?;
        } else {
            shm.inward.consume(&packet);
            take_from_ring(shm, proto, callbacks, packet, rx_packet, now)?;
        }
        look = Look::Came;
        if callbacks.messages.handler_message.is_some() {
            look = Look::Deliver;
            break;
        }
        if callbacks.messages.operations.blocking_has_ended() {
            break; // a thread waits for it, and then for the next one
        }
    }
    if shm.inward.take_wake() {
        shm.ring();
    }
    Ok(look)
}

/// A packet whose first bytes are in the FIFO; behind them is the number of bytes in the payload ring.
#[inline(never)]
fn take_from_ring(
    shm: &mut ShmTransport,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    packet: Packet,
    rx_packet: &mut RxPacket,
    now: u64,
) -> Result<(), ProtocolViolation> {
    let inward = &mut shm.bulk.1;
    let (front, run) = inward.split_packet(packet.bytes(&rx_packet.fifo)).map_err(|_| BROKEN_LANE)?;
    let result = if proto.reads_from_ring(packet.kind, front) {
        proto.arrived_in_ring(callbacks, packet.kind, front, run, now)
    } else if run.len() > LONGEST {
        Err(BROKEN_LANE)
    } else {
        rx_packet.long.clear();
        rx_packet.long.extend_from_slice(front);
        rx_packet.long.resize(front.len() + run.len(), 0);
        run.read(&mut rx_packet.long[front.len()..]);
        rx_packet.is_long = true;
        proto.arrived(callbacks, packet.kind, &rx_packet.long, now)
    };
    inward.release(run.len());
    shm.inward.notify_freed();
    result
}

/// Why a link is at its end.
#[derive(Clone, Copy)]
enum Failed {
    Peer(ProtocolViolation),
    Transport(Lost),
}

fn take_frames(
    packet_transport: &mut dyn PacketTransport,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    rx_packet: &mut RxPacket,
    now: u64,
) -> Result<Look, Failed> {
    let mut look = Look::Silent;
    for _ in 0..TURN {
        let Some((kind, bytes)) = packet_transport.poll(now).map_err(Failed::Transport)? else { break };
        proto.arrived(callbacks, kind, bytes, now).map_err(Failed::Peer)?;
        look = Look::Came;
        if callbacks.messages.handler_message.is_some() {
            rx_packet.long.clear();
            rx_packet.long.extend_from_slice(bytes);
            rx_packet.is_long = true;
            look = Look::Deliver;
            break;
        }
        if callbacks.messages.operations.blocking_has_ended() {
            break;
        }
    }
    // Behind the packets: what is owed for them goes with it.
    packet_transport.progress(now).map_err(Failed::Transport)?;
    Ok(look)
}
