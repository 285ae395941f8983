//! Long messages at the receiver: a record from the first packet until the last byte has landed.
//!
//! What it is: [`Inbounds`], the long messages that come over a link, found by the *sender's* numbers. An eager one ([`FIRST`
//! and its pieces](super::packet::Kind::First)) has paid for its space and is stored until somebody wants it. An announced
//! one stays with its sender: when it has a buffer, the owner copies it out of the sender's memory, or pieces of it are
//! pulled, so many bytes ahead and so many messages at a time, and then DONE lets the sender go (invariant M4). Or the owner sees
//! the sender's memory and lends the message to the program, which gives it back: then DONE follows.
//!
//! What it is not: it matches nothing, and the sender's records are in [`crate::message::tx`].

mod decisions;

use super::payload::Payload;
use crate::message::credit::Grants;
use crate::message::matching::Table;
use crate::message::packet::{Head, Kind, Long, Place, Route, Shared};
use crate::message::slab::Fifo;
use crate::message::slab::Number;
use crate::message::slab::Pool;
use crate::message::{Broken, Outcome, Owner, Packets, Status};

/// Words of DONE: what has become of an announced message.
pub const TAKEN: u16 = 0;
/// Nobody wanted it.
pub const DISCARDED: u16 = 1;
/// Its sender got it back.
pub const CANCELLED: u16 = 2;

/// What happens to a long message.
#[derive(Debug)]
enum State {
    /// Nobody has taken it yet.
    Waiting,
    /// It lands in the buffer of a receive, as far as that goes.
    Landing { operation: u64, take: u64 },
    /// The owner copies it there, and the sender may be asked to copy, too.
    Copying { operation: u64, take: u64, share: Option<Shared> },
    /// Its receive has ended with a reference to the bytes, which are the sender's until the program gives it back.
    Lent,
    /// Nobody wants what is still coming.
    Discarding,
    /// DONE is due with this word.
    Over(u16),
}

/// Where the bytes are.
#[derive(Debug)]
enum Body {
    /// Coming by themselves; stored while nobody has taken the message. Its units are free again once it is taken.
    Eager { store: Vec<u8>, units: u32 },
    /// With the sender. Pieces are wanted up to `until`, by that route, and have been asked for up to `asked`.
    Announced { place: Place, until: u64, asked: u64, route: Route },
}

#[derive(Debug)]
struct Inbound {
    /// The sender's number for it.
    number: Number,
    length: u64,
    received: u64,
    body: Body,
    state: State,
    /// Its place in the matching table.
    kept: Option<Number>,
    /// It is in a list, and of those that may pull.
    queued: bool,
    pulling: bool,
}

/// Long messages on their way to this side.
#[derive(Debug)]
pub struct Inbounds {
    pool: Pool<Inbound, 1>,
    /// By the index in the sender's number: the record and one, 0 for none.
    by_number: Vec<u32>,
    /// Those that owe the sender SHARE, PULL or DONE.
    due: Fifo,
    /// Those that may not pull yet.
    later: Fifo,
    pulling: u32,
    /// Most at a time, most that pull at a time, and bytes that each may have asked for.
    most: u32,
    pulling_most: u32,
    ahead: u64,
}

impl Inbounds {
    /// None yet, with the limits of this side.
    pub fn new(most: u32, pulling_most: u32, ahead: u64) -> Self {
        let (pool, by_number, due, later) = Default::default();
        Self { pool, by_number, due, later, pulling: 0, most, pulling_most, ahead }
    }

    /// Messages, and bytes held for them beside what the window pays for.
    pub fn size(&self) -> (u32, usize) {
        (self.pool.count(), self.pool.bytes() + self.by_number.capacity() * 4)
    }

    /// Whether PULL or DONE is owed.
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    // ---- arrival ----------------------------------------------------------------------------------------------------

    /// A message begins: FIRST with what it costs, or ANNOUNCE with where it is.
    #[inline]
    pub fn begin(&mut self, long: &Long, from: Result<u32, Place>) -> Result<Number, Broken> {
        let at = long.number.index() as usize;
        if at >= self.most as usize || long.number.0 == 0 {
            return Err(Broken("more long messages than allowed"));
        }
        if at >= self.by_number.len() {
            self.by_number.resize(at + 1, 0);
        }
        if self.by_number[at] != 0 {
            return Err(Broken("a long message's number used twice"));
        }
        let body = match from {
            Ok(units) => Body::Eager { store: Vec::new(), units },
            Err(place) => Body::Announced { place, until: 0, asked: 0, route: Route::Any },
        };
        let (number, length, state) = (long.number, long.length, State::Waiting);
        let record = Inbound { number, length, received: 0, body, state, kept: None, queued: false, pulling: false };
        let record = self.pool.insert(record).ok_or(Broken("more long messages than numbers"))?;
        self.by_number[at] = record.index() + 1;
        Ok(record)
    }

    /// It waits in the table.
    pub fn keep(&mut self, record: Number, kept: Number) {
        if let Some(inbound) = self.pool.named(record) {
            inbound.kept = Some(kept);
        }
    }

    fn by_number(&self, number: Number) -> Option<u32> {
        let index = self.by_number.get(number.index() as usize)?.checked_sub(1)?;
        (self.pool.get(index)?.number == number).then_some(index)
    }

    /// A piece has come: the rest of FIRST, or PIECE.
    pub fn piece<O: Owner>(
        &mut self,
        owner: &mut O,
        number: Number,
        at: u64,
        bytes: Payload<'_>,
    ) -> Result<(), Broken> {
        let index = self.by_number(number).ok_or(Broken("a piece of no message"))?;
        let Some(inbound) = self.pool.get_mut(index) else { return Ok(()) };
        let most = match inbound.body {
            Body::Eager { .. } => inbound.length,
            Body::Announced { asked, .. } => asked,
        };
        let end = at.checked_add(bytes.len() as u64).filter(|&end| at == inbound.received && end <= most);
        let end = end.ok_or(Broken("a piece that was not asked for"))?;
        if bytes.is_empty() {
            return Err(Broken("an empty piece"));
        }
        inbound.received = end;
        match (&inbound.state, &mut inbound.body) {
            (&State::Landing { operation, take }, _) if at < take => {
                let fits = (take - at).min(bytes.len() as u64) as usize;
                match bytes {
                    Payload::Here(bytes) => owner.place(operation, at, &bytes[..fits]),
                    Payload::Run(run) => owner.place_run(operation, at, run.front(fits)),
                }
            }
            (State::Waiting, Body::Eager { store, .. }) => {
                if store.capacity() == 0 {
                    store.reserve_exact(inbound.length as usize);
                }
                bytes.append_to(store);
            }
            _ => {}
        }
        self.advance(owner, index);
        Ok(())
    }

    /// What follows when bytes have landed: the end of the message, or further pieces.
    fn advance<O: Owner>(&mut self, owner: &mut O, index: u32) {
        let Some(inbound) = self.pool.get_mut(index) else { return };
        match &mut inbound.body {
            Body::Eager { .. } if inbound.received == inbound.length => {
                let slot = &mut self.by_number[inbound.number.index() as usize];
                if *slot == index + 1 {
                    *slot = 0; // the sender may use the number again
                }
                if !matches!(inbound.state, State::Waiting) {
                    complete(owner, inbound);
                    self.remove(index);
                }
            }
            Body::Eager { .. } => {}
            Body::Announced { place, until, .. } => {
                let State::Landing { take, .. } = inbound.state else { return };
                if inbound.received == take {
                    if place.key == 0 && take > 0 {
                        owner.landed(take);
                    }
                    complete(owner, inbound);
                    self.over(index, TAKEN);
                } else if *until - inbound.received <= self.ahead / 2 && *until < take {
                    *until = take.min(inbound.received.saturating_add(self.ahead));
                    self.owe(index);
                }
            }
        }
    }

    /// Whether all of it is here, with nothing owed to the sender.
    pub fn is_whole(&self, record: Number) -> bool {
        let inbound = self.pool.find(record).and_then(|index| self.pool.get(index));
        inbound.is_some_and(|inbound| matches!(inbound.body, Body::Eager { .. }) && inbound.received == inbound.length)
    }

    /// The sender would like it back. It may have crossed DONE, or be taken: then nothing happens.
    pub fn cancel<B: Copy>(&mut self, table: &mut Table<B>, number: Number) -> Result<(), Broken> {
        if number.index() >= self.most {
            return Err(Broken("more long messages than allowed"));
        }
        let Some(index) = self.by_number(number) else { return Ok(()) };
        let Some(inbound) = self.pool.get_mut(index) else { return Ok(()) };
        if matches!(inbound.body, Body::Eager { .. }) {
            return Err(Broken("an eager message cannot be cancelled"));
        }
        if matches!(inbound.state, State::Waiting) && inbound.kept.is_some_and(|kept| table.withdraw(kept).is_some()) {
            self.over(index, CANCELLED);
        }
        Ok(())
    }

    // ---- packets due ------------------------------------------------------------------------------------------------

    fn owe(&mut self, index: u32) {
        let Some(inbound) = self.pool.get_mut(index) else { return };
        if !std::mem::replace(&mut inbound.queued, true) {
            self.pool.append(&mut self.due, 0, index);
        }
    }

    /// The copy is over before the sender was told of it.
    fn owe_nothing(&mut self, index: u32) {
        let Some(inbound) = self.pool.get_mut(index) else { return };
        if matches!(inbound.state, State::Copying { .. }) && std::mem::take(&mut inbound.queued) {
            self.pool.unlink(&mut self.due, 0, index);
        }
    }

    /// Puts the SHAREs, PULLs and DONEs that are owed; false when there is no room for more.
    pub fn flush<P: Packets>(&mut self, packets: &mut P, grants: &mut Grants) -> bool {
        while let Some(index) = self.due.first() {
            let Some(inbound) = self.pool.get_mut(index) else { return true };
            let grant = grants.next();
            let head = |own| Head { to: inbound.number, own, grant };
            let (put, over) = match (&inbound.state, &mut inbound.body) {
                (&State::Over(word), _) => (packets.put(Kind::Done as u8, &[&head(word).write()]), true),
                (State::Copying { share: Some(shared), .. }, _) => {
                    (packets.put(Kind::Share as u8, &[&shared.write(head(0))]), false)
                }
                (_, Body::Announced { until, asked, route, .. }) => {
                    let put = packets.put(Kind::Pull as u8, &[&head(*route as u16).write_word(*until)]);
                    *asked = if put { *until } else { *asked };
                    (put, false)
                }
                _ => (true, false),
            };
            if !put {
                return false;
            }
            grants.gone(grant);
            inbound.queued = false;
            self.pool.unlink(&mut self.due, 0, index);
            if over {
                self.remove(index);
            }
        }
        true
    }

    /// Forgets a record, which is in no list.
    fn remove(&mut self, index: u32) {
        let Some(inbound) = self.pool.get(index) else { return };
        let number = inbound.number;
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

    /// The link is broken: what is not whole fails, except copies under way, which end with [`Inbounds::copied`].
    pub fn fail<O: Owner>(&mut self, owner: &mut O, grants: &mut Grants) {
        (self.due, self.later, self.pulling) = Default::default();
        for index in self.pool.indices() {
            let Some(inbound) = self.pool.get_mut(index) else { continue };
            (inbound.queued, inbound.pulling) = (false, false);
            match inbound.state {
                State::Waiting if inbound.received == inbound.length && matches!(inbound.body, Body::Eager { .. }) => {
                    continue;
                }
                State::Copying { .. } => continue,
                State::Waiting => drop(inbound.kept.and_then(|kept| owner.matching().withdraw(kept))),
                State::Landing { operation, .. } => {
                    owner.completed(operation, Outcome { status: Status::Broken, length: 0 });
                }
                State::Lent | State::Discarding | State::Over(_) => {}
            }
            if let Body::Eager { units, .. } = inbound.body {
                grants.free(units);
            }
            self.remove(index);
        }
    }
}

/// Tells the owner that a message has landed.
fn complete<O: Owner>(owner: &mut O, inbound: &Inbound) {
    if let State::Landing { operation, take } = inbound.state {
        let status = if take < inbound.length { Status::Truncated } else { Status::Done };
        owner.completed(operation, Outcome { status, length: take });
    }
}
