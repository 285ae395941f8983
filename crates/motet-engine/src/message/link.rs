//! One link of a node: the protocol's state, the transport, and the packets that go between them.
//!
//! When a link is polled is decided in [`super::progress`].

use super::copy_strategy::CopyChooser;
use super::message_state::{ChannelTable, LinkCallbacks, MessageState};
use super::packets::{MAX_RING_PACKET_BYTES, PacketTx, RxPacket, ShmTx};
use super::regions::segments::Segments;
use super::transport::{Lost, NodeId, PacketTransport, ShmTransport, Transport};
use super::{LinkId, MessageLimits, fast_receive, pipelined, regions};
use crate::reason::Reason;
use motet_proto::message::{ChannelId, Link, ProtocolViolation, Rejected, UNKNOWN_REGION_KEY};
use motet_sys::{memory, socket};
use motet_wire::message::fifo::payload_ring::{BODY_IN_RING, PayloadTx};
use motet_wire::message::fifo::{Packet, Peeked};
use std::os::fd::{AsFd, AsRawFd};

/// Most packets taken from one link before the next link has its turn.
const MAX_PACKETS_PER_POLL: usize = 32;
/// Most pieces of long messages that one flush sends.
const MAX_PIECES_PER_FLUSH: usize = 16;
/// Empty polls after which a link counts as idle.
pub(super) const IDLE_POLLS: u32 = 20_000;
/// Most bytes that one step of a single copy copies.
pub(super) const MAX_COPY_STEP_BYTES: usize = 256 << 10;

/// A link that is up, or that is gone and was not closed or forgotten yet.
pub struct LinkState {
    /// The protocol's state.
    pub proto: Link,
    /// The state that the protocol's callbacks use.
    pub channel_table: ChannelTable,
    /// The transport that carries the packets; `None` once it is lost.
    pub transport: Option<Transport>,
    /// The node at the other end.
    pub peer: NodeId,
    /// The driver's name.
    pub driver: &'static str,
    /// Why the link is gone; `None` while it is up.
    pub gone: Option<Reason>,
    /// The peer has opened it. The node forgets such a link once it is gone and the program holds nothing of it.
    pub accepted: bool,
    /// Polls since the last packet.
    pub empty_polls: u32,
    /// Position of the FIFO's head when [`LinkState::count_empty_polls`] was last called.
    pub last_head: u64,
    /// It is an active link: every round polls it.
    pub is_active: bool,
    /// When the pages of the payload ring are to be released, ns, and the ring's tail at present: a ring that is written meanwhile keeps its pages.
    pub trim: Option<(u64, u64)>,
    /// A send has found no room, and no poll has seen room since.
    pub tx_blocked: bool,
    /// The peer's process has ended or has closed the link, which is gone once all packets of the peer are taken.
    pub peer_closed: bool,
    /// Counts of the single copies out of the peer's memory.
    pub copy_counts: CopyCounts,
}

/// The result of a poll of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PollResult {
    /// No packet has arrived.
    Empty,
    /// Packets have arrived and were handled.
    Handled,
    /// A message for a handler has arrived: run the handler, then poll again.
    RunHandler,
}

pub(super) const BROKEN_FIFO: ProtocolViolation = ProtocolViolation("inconsistent FIFO or payload ring");
pub(super) const PEER_IS_GONE: ProtocolViolation = ProtocolViolation("the peer is gone");

/// Counts of the single copies that a link has made out of its peer's memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct CopyCounts {
    /// Number of bodies copied, and their bytes.
    pub done: [u64; 2],
    /// Number of bodies that could not be copied: they were transferred in pieces.
    pub refused: u64,
    /// Number of the copied bodies of which the peer has copied a part.
    pub assisted: u64,
}

impl CopyCounts {
    /// Counts the end of a copy of `length` bytes; `copied`: it has succeeded.
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
        let single_copy = if shm { regions::MIN_SINGLE_COPY_BYTES } else { u64::MAX };
        let copy_chooser = match &transport {
            Transport::SharedMemory(shm) => CopyChooser::new(shm.pid != 0, shm.process.is_some(), limits.body_path),
            Transport::Packet(_) => CopyChooser::none(),
        };
        let channel_table = ChannelTable { single_copy, segments, copy_chooser, ..ChannelTable::default() };
        Self { proto, channel_table, transport: Some(transport), ..Self::empty(peer, driver) }
    }

    /// A link without a transport, which reserves the link's number until the transport is registered.
    pub fn empty(peer: NodeId, driver: &'static str) -> Self {
        let (proto, channel_table) = (Link::new(0, MessageLimits::default().of(true), 0), ChannelTable::default());
        Self {
            proto,
            channel_table,
            transport: None,
            peer,
            driver,
            gone: None,
            accepted: false,
            empty_polls: 0,
            last_head: 0,
            is_active: false,
            trim: None,
            tx_blocked: false,
            peer_closed: false,
            copy_counts: CopyCounts::default(),
        }
    }

    /// Whether the link needs nothing but polls.
    #[inline(always)]
    pub fn is_idle(&self) -> bool {
        !self.peer_closed && !self.tx_blocked && !self.channel_table.has_copies() && !self.proto.is_due()
    }

    /// Notes that `rounds` rounds have passed since the last call: they count as empty polls if nothing has arrived in the FIFO meanwhile.
    pub fn count_empty_polls(&mut self, rounds: u32) {
        let Some(head) = self.shm().map(|shm| shm.fifo_rx.head()) else { return };
        self.empty_polls = if head == self.last_head { self.empty_polls.saturating_add(rounds) } else { 0 };
        self.last_head = head;
    }

    /// Whether the link has shared memory and is not idle.
    pub fn is_polled_in_memory(&mut self) -> bool {
        self.empty_polls <= IDLE_POLLS && self.shm().is_some()
    }

    /// Whether its transport is shared memory.
    pub fn is_shm(&self) -> bool {
        matches!(self.transport, Some(Transport::SharedMemory(_)))
    }

    /// When the link must be polled although nothing arrives, ns.
    pub fn due(&self) -> Option<u64> {
        match &self.transport {
            Some(Transport::Packet(packet_transport)) => packet_transport.due(),
            _ => self.trim.map(|(due, _)| due),
        }
    }

    /// Schedules the release of the payload ring's pages, because the link is not polled for a while: [`LinkState::trim`] releases them if the ring
    /// stays unused.
    pub fn schedule_trim(&mut self, now: u64) {
        const TRIM_DELAY_NS: u64 = 1_000_000_000;
        let used = self.shm().map(|shm| &shm.payload_rings.0).filter(|ring| ring.is_used()).map(PayloadTx::tail);
        self.trim = used.map(|tail| (now.saturating_add(TRIM_DELAY_NS), tail));
    }

    /// Releases the pages of the payload ring if that is due. A ring that has been used since [`LinkState::schedule_trim`] keeps its pages for now, because
    /// allocating them again costs more than the transfers through them.
    pub fn trim(&mut self, now: u64) {
        let Some((_, tail)) = self.trim.filter(|&(due, _)| due <= now) else { return };
        let unused = |ring: &mut PayloadTx| ring.tail() == tail && ring.trim(memory::release_pages_at);
        let trimmed = self.shm().is_none_or(|shm| unused(&mut shm.payload_rings.0));
        self.trim = None;
        if !trimmed {
            self.schedule_trim(now);
        }
    }

    /// Runs `f` with the protocol, the sending half of the transport, and the protocol's callbacks. Then wakes the peer if it sleeps.
    #[inline(always)]
    pub fn with<R>(
        &mut self,
        id: LinkId,
        messages: &mut MessageState,
        f: impl FnOnce(&mut Link, &mut PacketTx<'_>, &mut LinkCallbacks<'_>) -> R,
    ) -> R {
        let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
        let mut packets = match &mut self.transport {
            Some(Transport::SharedMemory(shm)) => {
                PacketTx::Fifo(ShmTx::new(&mut shm.fifo_tx, &mut shm.payload_rings.0, &shm.copy_mode))
            }
            Some(Transport::Packet(packet_transport)) => PacketTx::Packet(&mut **packet_transport),
            None => PacketTx::Lost,
        };
        let result = f(&mut self.proto, &mut packets, &mut callbacks);
        let PacketTx::Fifo(ShmTx { wake, broken, .. }) = packets else { return result };
        if broken {
            self.take_down(id, messages, Reason::BROKEN, BROKEN_FIFO);
        } else if wake {
            self.wake();
        }
        result
    }

    /// Sends a message in one packet, or does nothing and returns why. The first `headers` bytes of `all` are its headers.
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
            return self.with(id, messages, |proto, packets, _| proto.send_short(packets, channel, tag, headers, all));
        };
        let mut tx = ShmTx::new(&mut shm.fifo_tx, &mut shm.payload_rings.0, &shm.copy_mode);
        let sent = self.proto.send_short(&mut tx, channel, tag, headers, all);
        let ShmTx { wake, broken, .. } = tx;
        if broken {
            self.take_down(id, messages, Reason::BROKEN, BROKEN_FIFO);
        } else if wake {
            self.wake();
        }
        sent
    }

    /// Rings the doorbell of the peer, if the link has one.
    #[cold]
    pub(super) fn wake(&self) {
        if let Some(Transport::SharedMemory(shm)) = &self.transport {
            shm.ring_doorbell();
        }
    }

    /// Polls the link: handles the packets that have arrived, at most [`MAX_PACKETS_PER_POLL`] of them and no further than the first message for a handler.
    #[inline(always)]
    pub fn poll(&mut self, id: LinkId, messages: &mut MessageState, rx_packet: &mut RxPacket, now: u64) -> PollResult {
        match &mut self.transport {
            Some(Transport::SharedMemory(shm)) => {
                let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
                let polled = take_from_fifo(shm, &mut self.proto, &mut callbacks, rx_packet, now);
                let broken = match polled {
                    Ok(PollResult::Empty) => {
                        self.empty_polls = self.empty_polls.saturating_add(1);
                        return PollResult::Empty;
                    }
                    Ok(polled) => {
                        self.empty_polls = 0;
                        return polled;
                    }
                    Err(broken) => broken,
                };
                self.take_down(id, messages, Reason::BROKEN, broken);
                PollResult::Handled
            }
            Some(Transport::Packet(_)) => self.poll_packet_transport(id, messages, rx_packet, now),
            None => PollResult::Empty,
        }
    }

    /// Polls a link over a packet transport.
    fn poll_packet_transport(
        &mut self,
        id: LinkId,
        messages: &mut MessageState,
        rx_packet: &mut RxPacket,
        now: u64,
    ) -> PollResult {
        let Some(Transport::Packet(packet_transport)) = &mut self.transport else { return PollResult::Empty };
        let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
        let taken = take_packets(&mut **packet_transport, &mut self.proto, &mut callbacks, rx_packet, now);
        match taken {
            Ok(PollResult::Empty) => self.empty_polls = self.empty_polls.saturating_add(1),
            Ok(_) => self.empty_polls = 0,
            Err(PollFailure::Peer(broken)) => self.take_down(id, messages, Reason::BROKEN, broken),
            Err(PollFailure::Transport(Lost(reason))) => self.take_down(id, messages, reason, PEER_IS_GONE),
        }
        taken.unwrap_or(PollResult::Handled)
    }

    /// Sends the packets that are due, as far as there is room.
    pub fn flush(&mut self, id: LinkId, messages: &mut MessageState) {
        if self.proto.is_due() && self.transport.is_some() {
            self.with(id, messages, |proto, packets, callbacks| proto.flush(packets, callbacks, MAX_PIECES_PER_FLUSH));
        }
    }

    /// Has the threads woken whose sends found no room, once there is room in the FIFO.
    #[cold]
    pub fn check_room(&mut self, messages: &mut MessageState) {
        let full = self.shm().is_some_and(|shm| shm.fifo_tx.room(1) == Ok(false));
        if !full {
            self.tx_blocked = false;
            messages.wake_pending = true;
        }
    }

    /// Drops the transport and completes everything on the link with a failure. `reason` is recorded for the program, `broken` for the protocol.
    #[cold]
    pub fn take_down(&mut self, id: LinkId, messages: &mut MessageState, reason: Reason, broken: ProtocolViolation) {
        self.end_cooperative_copy();
        if let Some(shm) = self.shm() {
            // Shutdown, because another process (a forked child) may have the descriptor too; and before any memory is released.
            let _ = socket::shutdown(shm.control.as_fd().as_raw_fd(), 2);
        }
        self.gone.get_or_insert(if broken == UNKNOWN_REGION_KEY { Reason::UNKNOWN_REGION_KEY } else { reason });
        self.channel_table.assists.clear();
        self.channel_table.segments.reset();
        self.transport = None;
        self.peer_closed = false; // otherwise every round would end the link again, and no thread could sleep
        let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
        self.proto.reset(&mut callbacks, broken);
        while let Some(pending) = callbacks.channel_table.copies.pop_front() {
            self.proto.copied(&mut callbacks, pending.request.record, false);
        }
        while let Some((request, _)) = callbacks.channel_table.remote_copies.pop_front() {
            self.proto.copied_remote(&mut callbacks, request.record, false);
        }
        messages.wake_pending = true;
        self.schedule_forget(id, messages);
    }

    /// Has the next round check whether the link can be forgotten, if the peer has opened it and it is gone. Called when the program may hold less of
    /// the link than before.
    pub fn schedule_forget(&self, id: LinkId, messages: &mut MessageState) {
        if self.accepted && self.gone.is_some() {
            messages.ended_links.push(id);
        }
    }

    /// Whether the program may still use a link that is gone: it has a channel to close, or messages wait to be received.
    pub fn is_held(&self) -> bool {
        self.channel_table.is_held() || self.proto.bytes().1 > 0
    }

    /// Closes all channels of the link on this side: receives that wait on them complete, and messages that wait are discarded.
    pub fn release_channels(&mut self, id: LinkId, messages: &mut MessageState) {
        let channels: Vec<_> = self.channel_table.channels.iter().flatten().map(|(channel, _)| *channel).collect();
        let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
        for channel in channels {
            let _ = self.proto.release(&mut callbacks, channel);
        }
    }

    /// Ends the link after the peer's process has ended or has closed it. All packets of the peer have been taken.
    #[cold]
    pub fn end_after_peer(&mut self, id: LinkId, messages: &mut MessageState) {
        self.take_down(id, messages, Reason::PEER_GONE, PEER_IS_GONE);
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

/// Handles the packets that have arrived in the FIFO.
#[inline(always)]
fn take_from_fifo(
    shm: &mut ShmTransport,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    rx_packet: &mut RxPacket,
    now: u64,
) -> Result<PollResult, ProtocolViolation> {
    let mut polled = PollResult::Empty;
    for _ in 0..MAX_PACKETS_PER_POLL {
        match shm.fifo_rx.peek_cell() {
            Peeked::Nothing => break,
            Peeked::SingleCell(short) if fast_receive::take(&short, proto, callbacks, now) => {
                shm.fifo_rx.consume_cell();
                polled = PollResult::Handled;
                if callbacks.messages.operations.blocking_has_completed() {
                    break; // a thread waits for this message and will receive the next one itself
                }
                continue;
            }
            Peeked::SingleCell(_) | Peeked::FlaggedCell(_) | Peeked::Other => {}
        }
        let Some(packet) = shm.fifo_rx.peek(&mut rx_packet.fifo).map_err(|_| BROKEN_FIFO)? else { break };
        rx_packet.is_long = false;
        if packet.continuations() > 0
            && !shm.fifo_rx.has_continuations(packet.continuations()).map_err(|_| BROKEN_FIFO)?
        {
            let is_pipelined = packet.flags & BODY_IN_RING != 0;
            if !is_pipelined || !pipelined::take(shm, proto, callbacks, &packet, packet.bytes(&rx_packet.fifo), now)? {
                break; // the packet is not complete
            }
        } else if packet.flags & BODY_IN_RING == 0 {
            shm.fifo_rx.consume(&packet);
            proto.arrived(callbacks, packet.kind, packet.bytes(&rx_packet.fifo), now)?;
        } else {
            shm.fifo_rx.consume(&packet);
            take_from_ring(shm, proto, callbacks, packet, rx_packet, now)?;
        }
        polled = PollResult::Handled;
        if callbacks.messages.handler_message.is_some() {
            polled = PollResult::RunHandler;
            break;
        }
        if callbacks.messages.operations.blocking_has_completed() {
            break; // a thread waits for this message and will receive the next one itself
        }
    }
    if shm.fifo_rx.take_wake() {
        shm.ring_doorbell();
    }
    Ok(polled)
}

/// Handles a packet whose first bytes are in the FIFO and whose other bytes are in the payload ring; the FIFO also holds the number of the latter.
#[inline(never)]
fn take_from_ring(
    shm: &mut ShmTransport,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    packet: Packet,
    rx_packet: &mut RxPacket,
    now: u64,
) -> Result<(), ProtocolViolation> {
    let ring = &mut shm.payload_rings.1;
    let (front, ring_span) = ring.split_packet(packet.bytes(&rx_packet.fifo)).map_err(|_| BROKEN_FIFO)?;
    let result = if proto.reads_from_ring(packet.kind, front) {
        proto.arrived_in_ring(callbacks, packet.kind, front, ring_span, now)
    } else if ring_span.len() > MAX_RING_PACKET_BYTES {
        Err(BROKEN_FIFO)
    } else {
        rx_packet.long.clear();
        rx_packet.long.extend_from_slice(front);
        rx_packet.long.resize(front.len() + ring_span.len(), 0);
        ring_span.read(&mut rx_packet.long[front.len()..]);
        rx_packet.is_long = true;
        proto.arrived(callbacks, packet.kind, &rx_packet.long, now)
    };
    ring.release(ring_span.len());
    shm.fifo_rx.notify_freed();
    result
}

/// Why a poll of a packet transport has failed.
#[derive(Clone, Copy)]
enum PollFailure {
    /// The peer has violated the protocol.
    Peer(ProtocolViolation),
    /// The transport is lost.
    Transport(Lost),
}

/// Handles the packets that have arrived on a packet transport.
fn take_packets(
    packet_transport: &mut dyn PacketTransport,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    rx_packet: &mut RxPacket,
    now: u64,
) -> Result<PollResult, PollFailure> {
    let mut polled = PollResult::Empty;
    for _ in 0..MAX_PACKETS_PER_POLL {
        let Some((kind, bytes)) = packet_transport.poll(now).map_err(PollFailure::Transport)? else { break };
        proto.arrived(callbacks, kind, bytes, now).map_err(PollFailure::Peer)?;
        polled = PollResult::Handled;
        if callbacks.messages.handler_message.is_some() {
            rx_packet.long.clear();
            rx_packet.long.extend_from_slice(bytes);
            rx_packet.is_long = true;
            polled = PollResult::RunHandler;
            break;
        }
        if callbacks.messages.operations.blocking_has_completed() {
            break;
        }
    }
    // After the packets have been handled, so that the answers to them go along.
    packet_transport.progress(now).map_err(PollFailure::Transport)?;
    Ok(polled)
}
