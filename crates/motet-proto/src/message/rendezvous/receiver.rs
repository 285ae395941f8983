//! LongHeader messages at the receiver: a record from the first packet until the last byte has landed.
//!
//! What it is: [`RendezvousReceives`], the long messages that come over a link, found by the *sender's* numbers. An eager one ([`FIRST`
//! and its pieces](super::packet::Kind::First)) has paid for its space and is stored until somebody wants it. An announced
//! one stays with its sender: when it has a buffer, the owner copies it out of the sender's memory, or pieces of it are
//! pulled, so many bytes ahead and so many messages at a time, and then FIN lets the sender go (invariant M4). Or the owner sees
//! the sender's memory and lends the message to the program, which gives it back: then FIN follows.
//!
//! What it is not: it matches nothing, and the sender's records are in [`crate::message::tx`].

mod decisions;

use super::payload::Payload;
use crate::message::credit::RxCredit;
use crate::message::matching::Table;
use crate::message::packet::{CopyAssist, Head, Kind, LongHeader, RemoteAddress, Route};
use crate::message::slab::IntrusiveList;
use crate::message::slab::Slab;
use crate::message::slab::SlabId;
use crate::message::{Callbacks, Outcome, Packets, ProtocolViolation, Status};

/// Words of FIN: what has become of an announced message.
pub const TAKEN: u16 = 0;
/// Nobody wanted it.
pub const DISCARDED: u16 = 1;
/// Its sender got it back.
pub const CANCELLED: u16 = 2;

/// What happens to a long message.
#[derive(Debug)]
enum State {
    /// Nobody has taken it yet.
    Unmatched,
    /// It lands in the buffer of a receive, as far as that goes.
    Receiving { operation: u64, take: u64 },
    /// The owner copies it there, and the sender may be asked to copy, too.
    Copying { operation: u64, take: u64, assist: Option<CopyAssist> },
    /// Its receive has ended with a reference to the bytes, which are the sender's until the program gives it back.
    Loaned,
    /// Nobody wants what is still coming.
    Discarding,
    /// FIN is due with this word.
    FinDue(u16),
}

/// Where the bytes are.
#[derive(Debug)]
enum Body {
    /// Coming by themselves; stored while nobody has taken the message. Its units are free again once it is taken.
    Eager { store: Vec<u8>, units: u32 },
    /// With the sender. Pieces are wanted up to `until`, by that route, and have been asked for up to `asked`.
    Rendezvous { place: RemoteAddress, until: u64, asked: u64, route: Route },
}

#[derive(Debug)]
struct RendezvousReceive {
    /// The sender's number for it.
    number: SlabId,
    length: u64,
    received: u64,
    body: Body,
    state: State,
    /// Its place in the matching table.
    unexpected: Option<SlabId>,
    /// It is in a list, and of those that may pull.
    queued: bool,
    pulling: bool,
}

/// LongHeader messages on their way to this side.
#[derive(Debug)]
pub struct RendezvousReceives {
    pool: Slab<RendezvousReceive, 1>,
    /// By the index in the sender's number: the record and one, 0 for none.
    by_number: Vec<u32>,
    /// Those that owe the sender COPY_ASSIST, CTS or FIN.
    due: IntrusiveList,
    /// Those that may not pull yet.
    waiting_to_pull: IntrusiveList,
    pulling: u32,
    /// Most at a time, most that pull at a time, and bytes that each may have asked for.
    most: u32,
    max_pulls: u32,
    ahead: u64,
}

impl RendezvousReceives {
    /// None yet, with the limits of this side.
    pub fn new(most: u32, max_pulls: u32, ahead: u64) -> Self {
        let (pool, by_number, due, waiting_to_pull) = Default::default();
        Self { pool, by_number, due, waiting_to_pull, pulling: 0, most, max_pulls, ahead }
    }

    /// Messages, and bytes held for them beside what the window pays for.
    pub fn size(&self) -> (u32, usize) {
        (self.pool.count(), self.pool.bytes() + self.by_number.capacity() * 4)
    }

    /// Whether CTS or FIN is owed.
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    // ---- arrival ----------------------------------------------------------------------------------------------------

    /// A message begins: FIRST with what it costs, or RTS with where it is.
    #[inline]
    pub fn begin(&mut self, long: &LongHeader, from: Result<u32, RemoteAddress>) -> Result<SlabId, ProtocolViolation> {
        let at = long.number.index() as usize;
        if at >= self.most as usize || long.number.0 == 0 {
            return Err(ProtocolViolation("more long messages than allowed"));
        }
        if at >= self.by_number.len() {
            self.by_number.resize(at + 1, 0);
        }
        if self.by_number[at] != 0 {
            return Err(ProtocolViolation("a long message's number used twice"));
        }
        let body = match from {
            Ok(units) => Body::Eager { store: Vec::new(), units },
            Err(place) => Body::Rendezvous { place, until: 0, asked: 0, route: Route::Any },
        };
        let (number, length, state) = (long.number, long.length, State::Unmatched);
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
        let record = self.pool.insert(record).ok_or(ProtocolViolation("more long messages than numbers"))?;
        self.by_number[at] = record.index() + 1;
        Ok(record)
    }

    /// It waits in the table.
    pub fn keep(&mut self, record: SlabId, unexpected: SlabId) {
        if let Some(transfer) = self.pool.get_by_id(record) {
            transfer.unexpected = Some(unexpected);
        }
    }

    fn by_number(&self, number: SlabId) -> Option<u32> {
        let index = self.by_number.get(number.index() as usize)?.checked_sub(1)?;
        (self.pool.get(index)?.number == number).then_some(index)
    }

    /// A piece has come: the rest of FIRST, or PIECE.
    pub fn piece<O: Callbacks>(
        &mut self,
        owner: &mut O,
        number: SlabId,
        at: u64,
        bytes: Payload<'_>,
    ) -> Result<(), ProtocolViolation> {
        let index = self.by_number(number).ok_or(ProtocolViolation("a piece of no message"))?;
        let Some(transfer) = self.pool.get_mut(index) else { return Ok(()) };
        let most = match transfer.body {
            Body::Eager { .. } => transfer.length,
            Body::Rendezvous { asked, .. } => asked,
        };
        let end = at.checked_add(bytes.len() as u64).filter(|&end| at == transfer.received && end <= most);
        let end = end.ok_or(ProtocolViolation("a piece that was not asked for"))?;
        if bytes.is_empty() {
            return Err(ProtocolViolation("an empty piece"));
        }
        transfer.received = end;
        match (&transfer.state, &mut transfer.body) {
            (&State::Receiving { operation, take }, _) if at < take => {
                let fits = (take - at).min(bytes.len() as u64) as usize;
                match bytes {
                    Payload::Here(bytes) => owner.place(operation, at, &bytes[..fits]),
                    Payload::RingSpan(run) => owner.place_span(operation, at, run.first(fits)),
                }
            }
            (State::Unmatched, Body::Eager { store, .. }) => {
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

    /// What follows when bytes have landed: the end of the message, or further pieces.
    fn advance<O: Callbacks>(&mut self, owner: &mut O, index: u32) {
        let Some(transfer) = self.pool.get_mut(index) else { return };
        match &mut transfer.body {
            Body::Eager { .. } if transfer.received == transfer.length => {
                let slot = &mut self.by_number[transfer.number.index() as usize];
                if *slot == index + 1 {
                    *slot = 0; // the sender may use the number again
                }
                if !matches!(transfer.state, State::Unmatched) {
                    complete(owner, transfer);
                    self.remove(index);
                }
            }
            Body::Eager { .. } => {}
            Body::Rendezvous { place, until, .. } => {
                let State::Receiving { take, .. } = transfer.state else { return };
                if transfer.received == take {
                    if place.key == 0 && take > 0 {
                        owner.body_received(take);
                    }
                    complete(owner, transfer);
                    self.finish(index, TAKEN);
                } else if *until - transfer.received <= self.ahead / 2 && *until < take {
                    *until = take.min(transfer.received.saturating_add(self.ahead));
                    self.schedule(index);
                }
            }
        }
    }

    /// Whether all of it is here, with nothing owed to the sender.
    pub fn is_whole(&self, record: SlabId) -> bool {
        let transfer = self.pool.find(record).and_then(|index| self.pool.get(index));
        transfer
            .is_some_and(|transfer| matches!(transfer.body, Body::Eager { .. }) && transfer.received == transfer.length)
    }

    /// The sender would like it back. It may have crossed FIN, or be taken: then nothing happens.
    pub fn cancel<B: Copy>(&mut self, table: &mut Table<B>, number: SlabId) -> Result<(), ProtocolViolation> {
        if number.index() >= self.most {
            return Err(ProtocolViolation("more long messages than allowed"));
        }
        let Some(index) = self.by_number(number) else { return Ok(()) };
        let Some(transfer) = self.pool.get_mut(index) else { return Ok(()) };
        if matches!(transfer.body, Body::Eager { .. }) {
            return Err(ProtocolViolation("an eager message cannot be cancelled"));
        }
        if matches!(transfer.state, State::Unmatched)
            && transfer.unexpected.is_some_and(|unexpected| table.withdraw(unexpected).is_some())
        {
            self.finish(index, CANCELLED);
        }
        Ok(())
    }

    // ---- packets due ------------------------------------------------------------------------------------------------

    fn schedule(&mut self, index: u32) {
        let Some(transfer) = self.pool.get_mut(index) else { return };
        if !std::mem::replace(&mut transfer.queued, true) {
            self.pool.append(&mut self.due, 0, index);
        }
    }

    /// The copy is over before the sender was told of it.
    fn unschedule(&mut self, index: u32) {
        let Some(transfer) = self.pool.get_mut(index) else { return };
        if matches!(transfer.state, State::Copying { .. }) && std::mem::take(&mut transfer.queued) {
            self.pool.unlink(&mut self.due, 0, index);
        }
    }

    /// Puts the SHAREs, PULLs and DONEs that are owed; false when there is no room for more.
    pub fn flush<P: Packets>(&mut self, packets: &mut P, rx_credit: &mut RxCredit) -> bool {
        while let Some(index) = self.due.first() {
            let Some(transfer) = self.pool.get_mut(index) else { return true };
            let grant = rx_credit.next();
            let head = |own| Head { to: transfer.number, own, grant };
            let (put, over) = match (&transfer.state, &mut transfer.body) {
                (&State::FinDue(word), _) => (packets.put(Kind::Fin as u8, &[&head(word).write()]), true),
                (State::Copying { assist: Some(shared), .. }, _) => {
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
            self.pool.unlink(&mut self.due, 0, index);
            if over {
                self.remove(index);
            }
        }
        true
    }

    /// Forgets a record, which is in no list.
    fn remove(&mut self, index: u32) {
        let Some(transfer) = self.pool.get(index) else { return };
        let number = transfer.number;
        self.pool.forget(index);
        if let Some(slot) = self.by_number.get_mut(number.index() as usize)
            && *slot == index + 1
        {
            *slot = 0;
        }
        if self.pool.count() == 0 && self.by_number.len() > 64 {
            self.by_number = Vec::new();
        }
    }

    /// The link is broken: what is not whole fails, except copies under way, which end with [`RendezvousReceives::copied`].
    pub fn fail<O: Callbacks>(&mut self, owner: &mut O, rx_credit: &mut RxCredit) {
        (self.due, self.waiting_to_pull, self.pulling) = Default::default();
        for index in self.pool.indices() {
            let Some(transfer) = self.pool.get_mut(index) else { continue };
            (transfer.queued, transfer.pulling) = (false, false);
            match transfer.state {
                State::Unmatched
                    if transfer.received == transfer.length && matches!(transfer.body, Body::Eager { .. }) =>
                {
                    continue;
                }
                State::Copying { .. } => continue,
                State::Unmatched => {
                    drop(transfer.unexpected.and_then(|unexpected| owner.matching().withdraw(unexpected)))
                }
                State::Receiving { operation, .. } => {
                    owner.completed(operation, Outcome { status: Status::LinkDown, length: 0 });
                }
                State::Loaned | State::Discarding | State::FinDue(_) => {}
            }
            if let Body::Eager { units, .. } = transfer.body {
                rx_credit.free(units);
            }
            self.remove(index);
        }
    }
}

/// Tells the owner that a message has landed.
fn complete<O: Callbacks>(owner: &mut O, transfer: &RendezvousReceive) {
    if let State::Receiving { operation, take } = transfer.state {
        let status = if take < transfer.length { Status::Truncated } else { Status::Done };
        owner.completed(operation, Outcome { status, length: take });
    }
}
