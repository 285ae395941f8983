//! Long messages at the receiver: a record from the first packet until the last byte has arrived.
//!
//! [`RendezvousReceives`] are the long messages that arrive over a link, found by the *sender's* numbers. The space of an eager one
//! ([`FIRST` and its pieces](super::packet::Kind::First)) is paid for by credit; it is stored until a receive takes it. A rendezvous
//! message stays with its sender. When a receive has a buffer for it, the owner copies it out of the sender's memory, or pieces are
//! requested by CTS, for a limited number of bytes and messages at a time. FIN then frees the sender's body (invariant M4). Instead of
//! a copy the owner may loan the sender's memory to the program; FIN follows when the loan is released.
//!
//! Matching is in [`crate::message::matching`], the records of the sender in `rendezvous/sender.rs`.

mod decisions;

use super::payload::Payload;
use crate::message::credit::RxCredit;
use crate::message::matching::Table;
use crate::message::packet::{CopyAssist, Head, Kind, LongHeader, RemoteAddress, Route};
use crate::message::slab::IntrusiveList;
use crate::message::slab::Slab;
use crate::message::slab::SlabId;
use crate::message::{Callbacks, Outcome, Packets, ProtocolViolation, Status};

/// Status of FIN: the message was received.
pub const FIN_RECEIVED: u16 = 0;
/// Status of FIN: the message was discarded.
pub const FIN_DISCARDED: u16 = 1;
/// Status of FIN: the message was cancelled by its sender.
pub const FIN_CANCELLED: u16 = 2;

/// The state of a long message.
#[derive(Debug)]
enum ReceiveState {
    /// No receive has it yet.
    Unmatched,
    /// Bytes arrive in the buffer of a receive, at most `take`.
    Receiving { operation: u64, take: u64 },
    /// The owner copies it to the buffer; `assist` is the COPY_ASSIST to send.
    Copying { operation: u64, take: u64, assist: Option<CopyAssist> },
    /// Its receive has completed with a reference to the sender's memory.
    Loaned,
    /// Arriving bytes are discarded.
    Discarding,
    /// FIN is due with this status.
    FinDue(u16),
}

/// Where the bytes are.
#[derive(Debug)]
enum Body {
    /// They arrive without a request and are stored while no receive has the message. Its units are free once a receive has it.
    Eager { store: Vec<u8>, units: u32 },
    /// With the sender. Pieces are wanted up to `until`, by `route`, and requested up to `asked`.
    Rendezvous { place: RemoteAddress, until: u64, asked: u64, route: Route },
}

#[derive(Debug)]
struct RendezvousReceive {
    /// The sender's number.
    number: SlabId,
    length: u64,
    received: u64,
    body: Body,
    state: ReceiveState,
    /// The record in the matching table.
    unexpected: Option<SlabId>,
    /// Whether it is in a list, and counts as one of [`RendezvousReceives::max_pulls`].
    queued: bool,
    pulling: bool,
}

/// The long messages that arrive over a link.
#[derive(Debug)]
pub struct RendezvousReceives {
    slab: Slab<RendezvousReceive, 1>,
    /// By the index of the sender's number: the index of the record plus one, 0 for none.
    by_number: Vec<u32>,
    /// Messages that owe the sender COPY_ASSIST, CTS or FIN.
    due: IntrusiveList,
    /// Messages that wait for their turn to be requested.
    waiting_to_pull: IntrusiveList,
    pulling: u32,
    /// Limits: messages, messages requested at a time, and bytes of each requested ahead.
    most: u32,
    max_pulls: u32,
    ahead: u64,
}

impl RendezvousReceives {
    /// No messages; the limits are those of this side.
    pub fn new(most: u32, max_pulls: u32, ahead: u64) -> Self {
        let (slab, by_number, due, waiting_to_pull) = Default::default();
        Self { slab, by_number, due, waiting_to_pull, pulling: 0, most, max_pulls, ahead }
    }

    /// Number of messages, and bytes held for them beside what the window pays for.
    pub fn size(&self) -> (u32, usize) {
        (self.slab.count(), self.slab.bytes() + self.by_number.capacity() * 4)
    }

    /// Whether a packet is due.
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    // ---- arrival ----------------------------------------------------------------------------------------------------

    /// FIRST with its cost in units, or RTS with the address of the body.
    #[inline]
    pub fn begin(&mut self, long: &LongHeader, from: Result<u32, RemoteAddress>) -> Result<SlabId, ProtocolViolation> {
        let at = long.number.index() as usize;
        if at >= self.most as usize || long.number.0 == 0 {
            return Err(ProtocolViolation("FIRST, RTS or CANCEL with a number beyond the limit of HELLO"));
        }
        if at >= self.by_number.len() {
            self.by_number.resize(at + 1, 0);
        }
        if self.by_number[at] != 0 {
            return Err(ProtocolViolation("FIRST or RTS with a number that is in use"));
        }
        let body = match from {
            Ok(units) => Body::Eager { store: Vec::new(), units },
            Err(place) => Body::Rendezvous { place, until: 0, asked: 0, route: Route::Any },
        };
        let (number, length, state) = (long.number, long.length, ReceiveState::Unmatched);
        let record = RendezvousReceive {
            number,
            length,
            received: 0,
            body,
            state,
            unexpected: None,
            queued: false,
            pulling: false,
        };
        let record = self.slab.insert(record).ok_or(ProtocolViolation("FIRST or RTS beyond the number of records"))?;
        self.by_number[at] = record.index() + 1;
        Ok(record)
    }

    /// The message is unexpected and has this record in the matching table.
    pub fn set_unexpected(&mut self, record: SlabId, unexpected: SlabId) {
        if let Some(transfer) = self.slab.get_by_id(record) {
            transfer.unexpected = Some(unexpected);
        }
    }

    fn by_number(&self, number: SlabId) -> Option<u32> {
        let index = self.by_number.get(number.index() as usize)?.checked_sub(1)?;
        (self.slab.get(index)?.number == number).then_some(index)
    }

    /// Payload has arrived: the rest of FIRST, or PIECE.
    pub fn piece<O: Callbacks>(
        &mut self,
        owner: &mut O,
        number: SlabId,
        at: u64,
        bytes: Payload<'_>,
    ) -> Result<(), ProtocolViolation> {
        let index = self.by_number(number).ok_or(ProtocolViolation("PIECE for an unknown message"))?;
        let Some(transfer) = self.slab.get_mut(index) else { return Ok(()) };
        let most = match transfer.body {
            Body::Eager { .. } => transfer.length,
            Body::Rendezvous { asked, .. } => asked,
        };
        let end = at.checked_add(bytes.len() as u64).filter(|&end| at == transfer.received && end <= most);
        let end = end.ok_or(ProtocolViolation("PIECE out of order or beyond what was requested"))?;
        if bytes.is_empty() {
            return Err(ProtocolViolation("PIECE without payload"));
        }
        transfer.received = end;
        match (&transfer.state, &mut transfer.body) {
            (&ReceiveState::Receiving { operation, take }, _) if at < take => {
                let fits = (take - at).min(bytes.len() as u64) as usize;
                match bytes {
                    Payload::InPacket(bytes) => owner.place(operation, at, &bytes[..fits]),
                    Payload::InRing(run) => owner.place_span(operation, at, run.first(fits)),
                }
            }
            (ReceiveState::Unmatched, Body::Eager { store, .. }) => {
                if store.capacity() == 0 {
                    store.reserve_exact(transfer.length as usize);
                }
                bytes.append_to(store);
            }
            _ => {}
        }
        self.advance(owner, index);
        Ok(())
    }

    /// Continues after bytes have arrived: completes the message, or requests more.
    fn advance<O: Callbacks>(&mut self, owner: &mut O, index: u32) {
        let Some(transfer) = self.slab.get_mut(index) else { return };
        match &mut transfer.body {
            Body::Eager { .. } if transfer.received == transfer.length => {
                let slot = &mut self.by_number[transfer.number.index() as usize];
                if *slot == index + 1 {
                    *slot = 0; // the sender may use the number again
                }
                if !matches!(transfer.state, ReceiveState::Unmatched) {
                    complete(owner, transfer);
                    self.remove(index);
                }
            }
            Body::Eager { .. } => {}
            Body::Rendezvous { place, until, .. } => {
                let ReceiveState::Receiving { take, .. } = transfer.state else { return };
                if transfer.received == take {
                    if place.key == 0 && take > 0 {
                        owner.body_received(take);
                    }
                    complete(owner, transfer);
                    self.finish(index, FIN_RECEIVED);
                } else if *until - transfer.received <= self.ahead / 2 && *until < take {
                    *until = take.min(transfer.received.saturating_add(self.ahead));
                    self.schedule(index);
                }
            }
        }
    }

    /// Whether all of the message is here, with nothing owed to the sender.
    pub fn is_whole(&self, record: SlabId) -> bool {
        let transfer = self.slab.find(record).and_then(|index| self.slab.get(index));
        transfer
            .is_some_and(|transfer| matches!(transfer.body, Body::Eager { .. }) && transfer.received == transfer.length)
    }

    /// CANCEL. If the message is already received, or FIN was sent, nothing happens.
    pub fn cancel<B: Copy>(&mut self, table: &mut Table<B>, number: SlabId) -> Result<(), ProtocolViolation> {
        if number.index() >= self.most {
            return Err(ProtocolViolation("FIRST, RTS or CANCEL with a number beyond the limit of HELLO"));
        }
        let Some(index) = self.by_number(number) else { return Ok(()) };
        let Some(transfer) = self.slab.get_mut(index) else { return Ok(()) };
        if matches!(transfer.body, Body::Eager { .. }) {
            return Err(ProtocolViolation("CANCEL of an eager message"));
        }
        if matches!(transfer.state, ReceiveState::Unmatched)
            && transfer.unexpected.is_some_and(|unexpected| table.remove_unexpected(unexpected).is_some())
        {
            self.finish(index, FIN_CANCELLED);
        }
        Ok(())
    }

    // ---- packets due ------------------------------------------------------------------------------------------------

    fn schedule(&mut self, index: u32) {
        let Some(transfer) = self.slab.get_mut(index) else { return };
        if !std::mem::replace(&mut transfer.queued, true) {
            self.slab.append(&mut self.due, 0, index);
        }
    }

    /// Drops a COPY_ASSIST that is still due when the copy has ended.
    fn unschedule(&mut self, index: u32) {
        let Some(transfer) = self.slab.get_mut(index) else { return };
        if matches!(transfer.state, ReceiveState::Copying { .. }) && std::mem::take(&mut transfer.queued) {
            self.slab.unlink(&mut self.due, 0, index);
        }
    }

    /// Sends the COPY_ASSIST, CTS and FIN packets that are due. Returns false when there is no room for more.
    pub fn flush<P: Packets>(&mut self, packets: &mut P, rx_credit: &mut RxCredit) -> bool {
        while let Some(index) = self.due.first() {
            let Some(transfer) = self.slab.get_mut(index) else { return true };
            let grant = rx_credit.next_grant();
            let head = |own| Head { to: transfer.number, own, grant };
            let (put, over) = match (&transfer.state, &mut transfer.body) {
                (&ReceiveState::FinDue(word), _) => (packets.put(Kind::Fin as u8, &[&head(word).write()]), true),
                (ReceiveState::Copying { assist: Some(shared), .. }, _) => {
                    (packets.put(Kind::CopyAssist as u8, &[&shared.write(head(0))]), false)
                }
                (_, Body::Rendezvous { until, asked, route, .. }) => {
                    let put = packets.put(Kind::Cts as u8, &[&head(*route as u16).write_word(*until)]);
                    *asked = if put { *until } else { *asked };
                    (put, false)
                }
                _ => (true, false),
            };
            if !put {
                return false;
            }
            rx_credit.mark_sent(grant);
            transfer.queued = false;
            self.slab.unlink(&mut self.due, 0, index);
            if over {
                self.remove(index);
            }
        }
        true
    }

    /// Removes a record that is in no list.
    fn remove(&mut self, index: u32) {
        let Some(transfer) = self.slab.get(index) else { return };
        let number = transfer.number;
        self.slab.forget(index);
        if let Some(slot) = self.by_number.get_mut(number.index() as usize)
            && *slot == index + 1
        {
            *slot = 0;
        }
        if self.slab.count() == 0 && self.by_number.len() > 64 {
            self.by_number = Vec::new();
        }
    }

    /// The link is down: messages that are not whole fail, except copies in progress, which end with
    /// [`RendezvousReceives::copied`].
    pub fn fail<O: Callbacks>(&mut self, owner: &mut O, rx_credit: &mut RxCredit) {
        (self.due, self.waiting_to_pull, self.pulling) = Default::default();
        for index in self.slab.indices() {
            let Some(transfer) = self.slab.get_mut(index) else { continue };
            (transfer.queued, transfer.pulling) = (false, false);
            match transfer.state {
                ReceiveState::Unmatched
                    if transfer.received == transfer.length && matches!(transfer.body, Body::Eager { .. }) =>
                {
                    continue;
                }
                ReceiveState::Copying { .. } => continue,
                ReceiveState::Unmatched => {
                    drop(transfer.unexpected.and_then(|unexpected| owner.matching().remove_unexpected(unexpected)))
                }
                ReceiveState::Receiving { operation, .. } => {
                    owner.completed(operation, Outcome { status: Status::LinkDown, length: 0 });
                }
                ReceiveState::Loaned | ReceiveState::Discarding | ReceiveState::FinDue(_) => {}
            }
            if let Body::Eager { units, .. } = transfer.body {
                rx_credit.free(units);
            }
            self.remove(index);
        }
    }
}

/// Reports the completion of a receive to the owner.
fn complete<O: Callbacks>(owner: &mut O, transfer: &RendezvousReceive) {
    if let ReceiveState::Receiving { operation, take } = transfer.state {
        let status = if take < transfer.length { Status::Truncated } else { Status::Done };
        owner.completed(operation, Outcome { status, length: take });
    }
}
