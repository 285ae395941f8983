//! What becomes of a long message: its owner takes it, copies it, lends it, gives it back, or throws it away.

use super::{Body, DISCARDED, RendezvousReceives, State, TAKEN, complete};
use crate::message::credit::RxCredit;
use crate::message::packet::{CopyAssist, Head, Kind, RemoteAddress};
use crate::message::slab::SlabId;
use crate::message::{BodyTransfer, Callbacks, CopyRequest, Outcome, Packets, Status};

impl RendezvousReceives {
    /// A receive takes it. False when it is gone: its link broke before it was there.
    #[must_use]
    pub fn take<O: Callbacks>(
        &mut self,
        owner: &mut O,
        rx_credit: &mut RxCredit,
        record: SlabId,
        operation: u64,
        capacity: u64,
    ) -> bool {
        let Some(index) = self.pool.find(record) else { return false };
        let Some(transfer) = self.pool.get_mut(index) else { return false };
        let take = transfer.length.min(capacity);
        transfer.state = State::Receiving { operation, take };
        match &mut transfer.body {
            Body::Eager { store, units } => {
                rx_credit.free(std::mem::take(units));
                let store = std::mem::take(store);
                let fits = take.min(store.len() as u64) as usize;
                if fits > 0 {
                    owner.place(operation, 0, &store[..fits]);
                }
                self.advance(owner, index);
            }
            Body::Rendezvous { .. } if take == 0 => self.advance(owner, index),
            Body::Rendezvous { place, route, .. } => {
                let &mut RemoteAddress { address, key } = place;
                let want = if key == 0 { owner.choose_transfer(take, address != 0) } else { BodyTransfer::Copy };
                match want {
                    BodyTransfer::Copy if address != 0 => {
                        transfer.state = State::Copying { operation, take, assist: None };
                        owner.copy(CopyRequest { record, operation, address, key, length: take });
                        return true;
                    }
                    BodyTransfer::Copy => {}
                    BodyTransfer::Pieces(wanted) => *route = wanted,
                }
                self.pull(index);
            }
        }
        true
    }

    /// The owner has copied it, or was not allowed to: then it is pulled. On a broken link it has failed.
    pub fn copied<O: Callbacks>(&mut self, owner: &mut O, record: SlabId, done: bool, broken: bool) {
        let Some(index) = self.pool.find(record) else { return };
        self.unschedule(index);
        let Some(transfer) = self.pool.get_mut(index) else { return };
        let State::Copying { operation, take, .. } = transfer.state else { return };
        transfer.state = State::Receiving { operation, take };
        if broken {
            owner.completed(operation, Outcome { status: Status::LinkDown, length: 0 });
            self.remove(index);
        } else if done {
            transfer.received = take;
            self.advance(owner, index);
        } else {
            self.pull(index);
        }
    }

    /// The owner copies it to this address, and the sender may, too: it is told.
    pub fn offer_copy_assist(&mut self, record: SlabId, address: u64, copy_id: u32) {
        let Some(index) = self.pool.find(record) else { return };
        let Some(transfer) = self.pool.get_mut(index) else { return };
        if let State::Copying { take: length, assist, .. } = &mut transfer.state {
            *assist = Some(CopyAssist { address, length: *length, copy_id });
            self.schedule(index);
        }
    }

    /// The owner sees it where it is: the receive ends, and the sender waits until the message is given back. On a broken link it has
    /// failed. True: it is lent.
    pub fn loan_in_place<O: Callbacks>(&mut self, owner: &mut O, record: SlabId, broken: bool) -> bool {
        let Some(index) = self.pool.find(record) else { return false };
        self.unschedule(index);
        let Some(transfer) = self.pool.get_mut(index) else { return false };
        let State::Copying { operation, take, .. } = transfer.state else { return false };
        if broken {
            owner.completed(operation, Outcome { status: Status::LinkDown, length: 0 });
            self.remove(index);
            return false;
        }
        transfer.state = State::Receiving { operation, take };
        complete(owner, transfer);
        transfer.state = State::Loaned;
        true
    }

    /// The program looks no more at a message that was lent. After the link broke there is none.
    pub fn release_loan(&mut self, record: SlabId) {
        let Some(index) = self.pool.find(record) else { return };
        if self.pool.get(index).is_some_and(|transfer| matches!(transfer.state, State::Loaned)) {
            self.finish(index, TAKEN);
        }
    }

    /// The same, and FIN goes at once, if there is room.
    pub fn release_loan_now<P: Packets>(&mut self, packets: &mut P, rx_credit: &mut RxCredit, record: SlabId) {
        let Some(index) = self.pool.find(record) else { return };
        let Some(transfer) = self.pool.get(index) else { return };
        if !matches!(transfer.state, State::Loaned) {
            return;
        }
        let head = Head { to: transfer.number, own: TAKEN, grant: rx_credit.next() };
        if transfer.queued || !packets.put(Kind::Fin as u8, &[&head.write()]) {
            return self.finish(index, TAKEN);
        }
        rx_credit.mark_sent(head.grant);
        self.remove(index);
    }

    /// Nobody will take it.
    pub fn discard(&mut self, rx_credit: &mut RxCredit, record: SlabId) {
        let Some(index) = self.pool.find(record) else { return };
        let Some(transfer) = self.pool.get_mut(index) else { return };
        match &mut transfer.body {
            Body::Rendezvous { .. } => self.finish(index, DISCARDED),
            Body::Eager { store, units } => {
                rx_credit.free(std::mem::take(units));
                *store = Vec::new();
                transfer.state = State::Discarding;
                if transfer.received == transfer.length {
                    self.remove(index);
                }
            }
        }
    }

    /// Pulls it, now or when others are done.
    fn pull(&mut self, index: u32) {
        let Some(transfer) = self.pool.get_mut(index) else { return };
        let State::Receiving { take, .. } = transfer.state else { return };
        if self.pulling < self.max_pulls {
            self.pulling += 1;
            transfer.pulling = true;
            if let Body::Rendezvous { until, .. } = &mut transfer.body {
                *until = take.min(self.ahead);
            }
            self.schedule(index);
        } else {
            self.pool.append(&mut self.waiting_to_pull, 0, index);
        }
    }

    pub(super) fn finish(&mut self, index: u32, word: u16) {
        let Some(transfer) = self.pool.get_mut(index) else { return };
        transfer.state = State::FinDue(word);
        if std::mem::take(&mut transfer.pulling) {
            self.pulling -= 1;
            if let Some(next) = self.waiting_to_pull.first() {
                self.pool.unlink(&mut self.waiting_to_pull, 0, next);
                self.pull(next);
            }
        }
        self.schedule(index);
    }
}
