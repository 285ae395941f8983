//! What the owner does with a long message: receive, copy, loan, release, discard.

use super::{Body, FIN_DISCARDED, FIN_RECEIVED, ReceiveState, RendezvousReceives, complete};
use crate::message::credit::RxCredit;
use crate::message::packet::{CopyAssist, Head, Kind, RemoteAddress};
use crate::message::slab::SlabId;
use crate::message::{BodyTransfer, Callbacks, CopyRequest, Outcome, Packets, Status};

impl RendezvousReceives {
    /// A receive takes the message. Returns false when the message is gone, because its link went down before it was whole.
    #[must_use]
    pub fn take<O: Callbacks>(
        &mut self,
        owner: &mut O,
        rx_credit: &mut RxCredit,
        record: SlabId,
        operation: u64,
        capacity: u64,
    ) -> bool {
        let Some(index) = self.slab.find(record) else { return false };
        let Some(transfer) = self.slab.get_mut(index) else { return false };
        let take = transfer.length.min(capacity);
        transfer.state = ReceiveState::Receiving { operation, take };
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
                        transfer.state = ReceiveState::Copying { operation, take, assist: None };
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

    /// The owner has copied the message, or could not: then it is requested in pieces. On a link that is down the receive has
    /// failed.
    pub fn copied<O: Callbacks>(&mut self, owner: &mut O, record: SlabId, done: bool, broken: bool) {
        let Some(index) = self.slab.find(record) else { return };
        self.unschedule(index);
        let Some(transfer) = self.slab.get_mut(index) else { return };
        let ReceiveState::Copying { operation, take, .. } = transfer.state else { return };
        transfer.state = ReceiveState::Receiving { operation, take };
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

    /// The owner copies the message to this address and the sender may copy a part: COPY_ASSIST is due.
    pub fn offer_copy_assist(&mut self, record: SlabId, address: u64, copy_id: u32) {
        let Some(index) = self.slab.find(record) else { return };
        let Some(transfer) = self.slab.get_mut(index) else { return };
        if let ReceiveState::Copying { take: length, assist, .. } = &mut transfer.state {
            *assist = Some(CopyAssist { address, length: *length, copy_id });
            self.schedule(index);
        }
    }

    /// Completes the receive with a reference to the sender's memory, which the sender keeps until the loan is released. Returns
    /// whether it is loaned; on a link that is down the receive has failed.
    pub fn loan_in_place<O: Callbacks>(&mut self, owner: &mut O, record: SlabId, broken: bool) -> bool {
        let Some(index) = self.slab.find(record) else { return false };
        self.unschedule(index);
        let Some(transfer) = self.slab.get_mut(index) else { return false };
        let ReceiveState::Copying { operation, take, .. } = transfer.state else { return false };
        if broken {
            owner.completed(operation, Outcome { status: Status::LinkDown, length: 0 });
            self.remove(index);
            return false;
        }
        transfer.state = ReceiveState::Receiving { operation, take };
        complete(owner, transfer);
        transfer.state = ReceiveState::Loaned;
        true
    }

    /// Releases a loaned message. After the link went down there is none.
    pub fn release_loan(&mut self, record: SlabId) {
        let Some(index) = self.slab.find(record) else { return };
        if self.slab.get(index).is_some_and(|transfer| matches!(transfer.state, ReceiveState::Loaned)) {
            self.finish(index, FIN_RECEIVED);
        }
    }

    /// Releases a loaned message and sends FIN at once, if there is room.
    pub fn release_loan_now<P: Packets>(&mut self, packets: &mut P, rx_credit: &mut RxCredit, record: SlabId) {
        let Some(index) = self.slab.find(record) else { return };
        let Some(transfer) = self.slab.get(index) else { return };
        if !matches!(transfer.state, ReceiveState::Loaned) {
            return;
        }
        let head = Head { to: transfer.number, own: FIN_RECEIVED, grant: rx_credit.next_grant() };
        if transfer.queued || !packets.put(Kind::Fin as u8, &[&head.write()]) {
            return self.finish(index, FIN_RECEIVED);
        }
        rx_credit.mark_sent(head.grant);
        self.remove(index);
    }

    /// Discards the message.
    pub fn discard(&mut self, rx_credit: &mut RxCredit, record: SlabId) {
        let Some(index) = self.slab.find(record) else { return };
        let Some(transfer) = self.slab.get_mut(index) else { return };
        match &mut transfer.body {
            Body::Rendezvous { .. } => self.finish(index, FIN_DISCARDED),
            Body::Eager { store, units } => {
                rx_credit.free(std::mem::take(units));
                *store = Vec::new();
                transfer.state = ReceiveState::Discarding;
                if transfer.received == transfer.length {
                    self.remove(index);
                }
            }
        }
    }

    /// Requests pieces, at once or when fewer messages are requested.
    fn pull(&mut self, index: u32) {
        let Some(transfer) = self.slab.get_mut(index) else { return };
        let ReceiveState::Receiving { take, .. } = transfer.state else { return };
        if self.pulling < self.max_pulls {
            self.pulling += 1;
            transfer.pulling = true;
            if let Body::Rendezvous { until, .. } = &mut transfer.body {
                *until = take.min(self.ahead);
            }
            self.schedule(index);
        } else {
            self.slab.append(&mut self.waiting_to_pull, 0, index);
        }
    }

    /// The transfer has ended: FIN is due with this status.
    pub(super) fn finish(&mut self, index: u32, word: u16) {
        let Some(transfer) = self.slab.get_mut(index) else { return };
        transfer.state = ReceiveState::FinDue(word);
        if std::mem::take(&mut transfer.pulling) {
            self.pulling -= 1;
            if let Some(next) = self.waiting_to_pull.first() {
                self.slab.unlink(&mut self.waiting_to_pull, 0, next);
                self.pull(next);
            }
        }
        self.schedule(index);
    }
}
