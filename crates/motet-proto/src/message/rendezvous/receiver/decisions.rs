//! What becomes of a long message: its owner takes it, copies it, lends it, gives it back, or throws it away.

use super::{Body, DISCARDED, Inbounds, State, TAKEN, complete};
use crate::message::credit::Grants;
use crate::message::packet::{Head, Kind, Place, Shared};
use crate::message::slab::Number;
use crate::message::{CopyRequest, Outcome, Owner, Packets, Status, Want};

impl Inbounds {
    /// A receive takes it. False when it is gone: its link broke before it was there.
    #[must_use]
    pub fn take<O: Owner>(
        &mut self,
        owner: &mut O,
        grants: &mut Grants,
        record: Number,
        operation: u64,
        capacity: u64,
    ) -> bool {
        let Some(index) = self.pool.find(record) else { return false };
        let Some(inbound) = self.pool.get_mut(index) else { return false };
        let take = inbound.length.min(capacity);
        inbound.state = State::Landing { operation, take };
        match &mut inbound.body {
            Body::Eager { store, units } => {
                grants.free(std::mem::take(units));
                let store = std::mem::take(store);
                let fits = take.min(store.len() as u64) as usize;
                if fits > 0 {
                    owner.place(operation, 0, &store[..fits]);
                }
                self.advance(owner, index);
            }
            Body::Announced { .. } if take == 0 => self.advance(owner, index),
            Body::Announced { place, route, .. } => {
                let &mut Place { address, key } = place;
                let want = if key == 0 { owner.want(take, address != 0) } else { Want::Copy };
                match want {
                    Want::Copy if address != 0 => {
                        inbound.state = State::Copying { operation, take, share: None };
                        owner.copy(CopyRequest { record, operation, address, key, length: take });
                        return true;
                    }
                    Want::Copy => {}
                    Want::Pieces(wanted) => *route = wanted,
                }
                self.pull(index);
            }
        }
        true
    }

    /// The owner has copied it, or was not allowed to: then it is pulled. On a broken link it has failed.
    pub fn copied<O: Owner>(&mut self, owner: &mut O, record: Number, done: bool, broken: bool) {
        let Some(index) = self.pool.find(record) else { return };
        self.owe_nothing(index);
        let Some(inbound) = self.pool.get_mut(index) else { return };
        let State::Copying { operation, take, .. } = inbound.state else { return };
        inbound.state = State::Landing { operation, take };
        if broken {
            owner.completed(operation, Outcome { status: Status::Broken, length: 0 });
            self.remove(index);
        } else if done {
            inbound.received = take;
            self.advance(owner, index);
        } else {
            self.pull(index);
        }
    }

    /// The owner copies it to this address, and the sender may, too: it is told.
    pub fn share(&mut self, record: Number, address: u64, stamp: u32) {
        let Some(index) = self.pool.find(record) else { return };
        let Some(inbound) = self.pool.get_mut(index) else { return };
        if let State::Copying { take: length, share, .. } = &mut inbound.state {
            *share = Some(Shared { address, length: *length, stamp });
            self.owe(index);
        }
    }

    /// The owner sees it where it is: the receive ends, and the sender waits until the message is given back. On a broken link it has
    /// failed. True: it is lent.
    pub fn lent<O: Owner>(&mut self, owner: &mut O, record: Number, broken: bool) -> bool {
        let Some(index) = self.pool.find(record) else { return false };
        self.owe_nothing(index);
        let Some(inbound) = self.pool.get_mut(index) else { return false };
        let State::Copying { operation, take, .. } = inbound.state else { return false };
        if broken {
            owner.completed(operation, Outcome { status: Status::Broken, length: 0 });
            self.remove(index);
            return false;
        }
        inbound.state = State::Landing { operation, take };
        complete(owner, inbound);
        inbound.state = State::Lent;
        true
    }

    /// The program looks no more at a message that was lent. After the link broke there is none.
    pub fn give_back(&mut self, record: Number) {
        let Some(index) = self.pool.find(record) else { return };
        if self.pool.get(index).is_some_and(|inbound| matches!(inbound.state, State::Lent)) {
            self.over(index, TAKEN);
        }
    }

    /// The same, and DONE goes at once, if there is room.
    pub fn give_back_now<P: Packets>(&mut self, packets: &mut P, grants: &mut Grants, record: Number) {
        let Some(index) = self.pool.find(record) else { return };
        let Some(inbound) = self.pool.get(index) else { return };
        if !matches!(inbound.state, State::Lent) {
            return;
        }
        let head = Head { to: inbound.number, own: TAKEN, grant: grants.next() };
        if inbound.queued || !packets.put(Kind::Done as u8, &[&head.write()]) {
            return self.over(index, TAKEN);
        }
        grants.gone(head.grant);
        self.remove(index);
    }

    /// Nobody will take it.
    pub fn discard(&mut self, grants: &mut Grants, record: Number) {
        let Some(index) = self.pool.find(record) else { return };
        let Some(inbound) = self.pool.get_mut(index) else { return };
        match &mut inbound.body {
            Body::Announced { .. } => self.over(index, DISCARDED),
            Body::Eager { store, units } => {
                grants.free(std::mem::take(units));
                *store = Vec::new();
                inbound.state = State::Discarding;
                if inbound.received == inbound.length {
                    self.remove(index);
                }
            }
        }
    }

    /// Pulls it, now or when others are done.
    fn pull(&mut self, index: u32) {
        let Some(inbound) = self.pool.get_mut(index) else { return };
        let State::Landing { take, .. } = inbound.state else { return };
        if self.pulling < self.pulling_most {
            self.pulling += 1;
            inbound.pulling = true;
            if let Body::Announced { until, .. } = &mut inbound.body {
                *until = take.min(self.ahead);
            }
            self.owe(index);
        } else {
            self.pool.append(&mut self.later, 0, index);
        }
    }

    pub(super) fn over(&mut self, index: u32, word: u16) {
        let Some(inbound) = self.pool.get_mut(index) else { return };
        inbound.state = State::Over(word);
        if std::mem::take(&mut inbound.pulling) {
            self.pulling -= 1;
            if let Some(next) = self.later.first() {
                self.pool.unlink(&mut self.later, 0, next);
                self.pull(next);
            }
        }
        self.owe(index);
    }
}
