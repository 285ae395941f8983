//! The state of one link, and what its owner may ask of it.
//!
//! The record that holds channels, credit and long messages together: opening, closing and accepting channels, accepting messages, and
//! the end of a link. Sending is in [`super::tx`], arrival in [`super::rx`].

use super::channels::{CLOSE_RECEIVE, CLOSE_SEND, Channels};
use super::credit::{MAX_WINDOW, RxCredit, TxCredit, UNIT_BYTES};
use super::matching::{Scope, Source};
use super::packet::Hello;
use super::rendezvous::Payload;
use super::rendezvous::receiver::RendezvousReceives;
use super::rendezvous::sender::RendezvousSends;
use super::rma::state::RmaState;
use super::slab::{MAX_RECORDS, SlabId};
use super::{
    Callbacks, ChannelId, Envelope, Event, Limits, Outcome, Packets, ProtocolViolation, Reception, Rejected, Status,
    UnexpectedMessage,
};

/// One side of a link between two nodes.
#[derive(Debug)]
pub struct Link {
    /// The owner's name for the link.
    pub(super) source: u32,
    pub(super) limits: Limits,
    pub(super) phase: LinkPhase,
    /// Whether HELLO was sent, and whether it was received.
    pub(super) hello_sent: bool,
    pub(super) hello_received: bool,
    pub(super) channels: Channels,
    pub(super) tx_credit: TxCredit,
    pub(super) rx_credit: RxCredit,
    pub(super) rendezvous_tx: RendezvousSends,
    pub(super) rendezvous_rx: RendezvousReceives,
    /// Gets, puts and atomics; `None` before the first.
    pub(super) remote: Option<Box<RmaState>>,
    /// Gets, puts and atomics of this side that the peer allows at a time.
    pub(super) requests: u32,
    /// When the last packet arrived, by the owner's clock.
    pub(super) last_packet_at: u64,
}

/// Whether a link is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkPhase {
    Up,
    /// The peer broke the protocol, or the transport failed.
    Down(ProtocolViolation),
}

impl Link {
    /// A link from whose peer nothing has arrived yet. `source` is the owner's name for the link.
    pub fn new(source: u32, limits: Limits, now: u64) -> Self {
        let [max_rendezvous, channels, requests] =
            [limits.max_rendezvous, limits.channels, limits.requests].map(|most| most.min(MAX_RECORDS));
        let limits = Limits { max_rendezvous, channels, requests, ..limits };
        let window = (limits.window / UNIT_BYTES as u64).min(u64::from(MAX_WINDOW)) as u32;
        Self {
            source,
            limits,
            phase: LinkPhase::Up,
            hello_sent: false,
            hello_received: false,
            channels: Channels::new(limits.channels),
            tx_credit: TxCredit::default(),
            rx_credit: RxCredit::new(window),
            rendezvous_tx: RendezvousSends::default(),
            rendezvous_rx: RendezvousReceives::new(limits.max_rendezvous, limits.max_pulls.max(1), limits.ahead.max(1)),
            remote: None,
            requests: 0,
            last_packet_at: now,
        }
    }

    /// The HELLO of this side.
    pub(super) fn hello(&self) -> Hello {
        let window = (self.limits.window / UNIT_BYTES as u64).min(u64::from(MAX_WINDOW)) as u32;
        let Limits { max_rendezvous, channels, requests, .. } = self.limits;
        Hello { window, max_rendezvous, channels, requests }
    }

    /// Whether the limits of the peer are known, so that channels can be opened.
    pub fn is_hello_received(&self) -> bool {
        self.hello_received
    }

    /// Why the link is down, if it is.
    pub fn broken(&self) -> Option<ProtocolViolation> {
        match self.phase {
            LinkPhase::Up => None,
            LinkPhase::Down(broken) => Some(broken),
        }
    }

    /// The time of the last packet if no channel is open and no operation is in progress. An owner may close such a link.
    pub fn idle_since(&self) -> Option<u64> {
        let empty = self.channels.size().0 == 0 && self.rendezvous_rx.size().0 == 0 && self.rendezvous_tx.size().0 == 0;
        (empty && self.remote.as_ref().is_none_or(|remote| remote.is_idle())).then_some(self.last_packet_at)
    }

    /// Bytes that the link holds beside those that the window pays for, and the bytes of the window in use.
    pub fn bytes(&self) -> (usize, usize) {
        let records = self.channels.size().1 + self.rendezvous_rx.size().1 + self.rendezvous_tx.size().1;
        let records = records + self.remote.as_ref().map_or(0, |remote| remote.bytes());
        (records, self.rx_credit.used() as usize * UNIT_BYTES)
    }

    /// Number of channels, of long messages that arrive, and of long messages that are sent.
    pub fn counts(&self) -> [u32; 3] {
        [self.channels.size().0, self.rendezvous_rx.size().0, self.rendezvous_tx.size().0]
    }

    // ---- channels ---------------------------------------------------------------------------------------------------

    /// Opens a channel to a service of the peer: [`Event::Opened`] or [`Event::Refused`] follows.
    pub fn open(&mut self, service: u64, reception: Reception) -> Result<ChannelId, Rejected> {
        self.up()?;
        self.channels.open(service, reception)
    }

    /// Accepts a channel that the peer has offered.
    pub fn accept_channel(&mut self, channel: ChannelId, reception: Reception) -> Result<(), Rejected> {
        self.up()?;
        self.channels.accept(channel, reception)
    }

    /// Sends no more on a channel; messages still arrive.
    pub fn close(&mut self, channel: ChannelId) -> Result<(), Rejected> {
        self.channels.close(channel, CLOSE_SEND).map(drop)
    }

    /// Neither sends nor receives on a channel any more: waiting and further messages are discarded, posted receives complete, and
    /// the scope is removed. Refuses a channel that was only offered. Every channel must be released.
    pub fn release<O: Callbacks>(&mut self, owner: &mut O, channel: ChannelId) -> Result<(), Rejected> {
        let known = self.channels.known(channel).ok_or(Rejected::Closed)?;
        let (reception, released) = (known.reception, known.is_released());
        if let (Reception::Matched(scope), false) = (reception, released) {
            end(owner, scope, Status::Closed);
            while let Some(message) = owner.matching().drain(scope) {
                self.discard(message);
            }
            owner.matching().remove_source(Source::One(scope));
        }
        self.channels.close(channel, CLOSE_SEND | CLOSE_RECEIVE).map(drop)
    }

    // ---- messages that were found in the table or delivered ---------------------------------------------------------

    /// Gives an unexpected message to a receive, which completes at once or later. The message must be of this link: see
    /// [`UnexpectedMessage::source`].
    pub fn accept<O: Callbacks>(&mut self, owner: &mut O, message: UnexpectedMessage, operation: u64, capacity: u64) {
        if let Some(record) = message.long {
            owner.matched(operation, &envelope(&message));
            if !self.rendezvous_rx.take(owner, &mut self.rx_credit, record, operation, capacity) {
                owner.completed(operation, Outcome { status: Status::LinkDown, length: 0 });
            }
            return;
        }
        self.rx_credit.free(message.units);
        let body = Payload::InPacket(message.body().unwrap_or(&[]));
        land(owner, operation, capacity, &envelope(&message), body);
    }

    /// Discards an unexpected message.
    pub fn discard(&mut self, message: UnexpectedMessage) {
        self.rx_credit.free(message.units);
        if let Some(record) = message.long {
            self.rendezvous_rx.discard(&mut self.rx_credit, record);
        }
    }

    /// Reports the end of the copy that [`Callbacks::copy`] requested. If it was not possible (`done` is false), the body is
    /// transferred in pieces.
    pub fn copied<O: Callbacks>(&mut self, owner: &mut O, record: SlabId, done: bool) {
        let broken = self.broken().is_some();
        self.rendezvous_rx.copied(owner, record, done, broken);
    }

    /// The owner copies to this address of its process and the sender may copy a part: COPY_ASSIST is sent. Before [`Link::copied`]
    /// the owner makes sure that the sender writes there no more.
    pub fn offer_copy_assist(&mut self, record: SlabId, address: u64, copy_id: u32) {
        self.rendezvous_rx.offer_copy_assist(record, address, copy_id);
    }

    /// Completes a receive with a reference to the sender's memory instead of a copy. The program may read the message until
    /// [`Link::release_loan`]. Returns false when the link is down, and so is the receive.
    pub fn loan_in_place<O: Callbacks>(&mut self, owner: &mut O, record: SlabId) -> bool {
        let broken = self.broken().is_some();
        self.rendezvous_rx.loan_in_place(owner, record, broken)
    }

    /// Releases a loaned message: it belongs to its sender again. Does nothing when the link is down.
    pub fn release_loan(&mut self, record: SlabId) {
        self.rendezvous_rx.release_loan(record);
    }

    /// Releases a loaned message and sends FIN at once, if there is room.
    pub fn release_loan_now<P: Packets>(&mut self, packets: &mut P, record: SlabId) {
        self.rendezvous_rx.release_loan_now(packets, &mut self.rx_credit, record);
    }

    // ---- the end ----------------------------------------------------------------------------------------------------

    /// Ends the link, because the transport failed or the owner closes it: every operation completes with [`Status::LinkDown`],
    /// except copies in progress, which complete when they are reported. On each channel waiting messages can still be received, up
    /// to the first that is not whole, until the channel is released: received messages never have a gap.
    pub fn reset<O: Callbacks>(&mut self, owner: &mut O, why: ProtocolViolation) {
        if self.broken().is_some() {
            return;
        }
        self.phase = LinkPhase::Down(why);
        self.rendezvous_tx.fail(owner);
        for channel in self.channels.fail() {
            let Some(known) = self.channels.known(channel) else { continue };
            if let Reception::Matched(scope) = known.reception {
                end(owner, scope, Status::LinkDown);
                self.cut(owner, scope);
            }
            owner.event(channel, Event::LinkDown);
        }
        self.rendezvous_rx.fail(owner, &mut self.rx_credit);
        if let Some(remote) = &mut self.remote {
            remote.fail(owner);
        }
        owner.unblocked();
    }

    /// Keeps the waiting messages of a scope before the first that is not whole.
    fn cut<O: Callbacks>(&mut self, owner: &mut O, scope: Scope) {
        let mut whole = Vec::new();
        while let Some(message) = owner.matching().drain(scope) {
            if message.long.is_some_and(|record| !self.rendezvous_rx.is_whole(record)) {
                self.discard(message);
                break;
            }
            whole.push(message);
        }
        while let Some(message) = owner.matching().drain(scope) {
            self.discard(message);
        }
        for message in whole {
            if let Err(message) = owner.matching().add_unexpected(scope, message) {
                self.discard(message);
            }
        }
    }

    pub(super) fn up(&self) -> Result<(), Rejected> {
        if self.broken().is_some() { Err(Rejected::LinkDown) } else { Ok(()) }
    }
}

/// Places a whole body into the buffer of a receive and completes the receive.
#[inline(always)]
pub(super) fn land<O: Callbacks>(
    owner: &mut O,
    operation: u64,
    capacity: u64,
    envelope: &Envelope<'_>,
    body: Payload<'_>,
) {
    let run = match body {
        Payload::InPacket(body) => return owner.received(operation, capacity, envelope, body),
        Payload::InRing(run) => run,
    };
    owner.matched(operation, envelope);
    let fits = capacity.min(run.len() as u64);
    if fits > 0 {
        owner.place_span(operation, 0, run.first(fits as usize));
    }
    let status = if fits < run.len() as u64 { Status::Truncated } else { Status::Done };
    owner.completed(operation, Outcome { status, length: fits });
}

/// Completes the receives of a scope in which no more messages arrive.
pub(super) fn end<O: Callbacks>(owner: &mut O, scope: Scope, status: Status) {
    while let Some(receive) = owner.matching().end_source(Source::One(scope), status) {
        let operation = owner.start_receive(receive);
        owner.completed(operation, Outcome { status, length: 0 });
    }
}

fn envelope(message: &UnexpectedMessage) -> Envelope<'_> {
    let &UnexpectedMessage { source, channel, tag, length, .. } = message;
    Envelope { source, channel, tag, length, headers: message.headers() }
}
