//! The initiator: operations of this side in progress, and how answers change them.
//!
//! Small operations are queued in the order in which they were started, which is that of their answers. Long ones are found by number,
//! and each has a place in the order of starting. Fences complete when no operation that was started before is left. Keys and bounds
//! are checked by the target.

use super::format::{COPIED, NOT_COPIED, OF_PUT, status};
use super::{CopyTo, RemoteCopy, RemoteRecord, room};
use crate::message::gather::put;
use crate::message::packet::{Head, Kind, RemoteAddress};
use crate::message::slab::{IntrusiveList, Slab, SlabId};
use crate::message::{Callbacks, Outcome, Packets, ProtocolViolation, Rejected, Status};
use std::collections::VecDeque;

/// Lists of long operations: puts that may send and gets that owe GET_FIN; and all, in the order in which they were started.
const DUE_LIST: usize = 0;
const ORDER_LIST: usize = 1;
/// Records of small operations that are kept when none is in progress.
const MAX_IDLE_RECORDS: usize = 256;

/// A small operation.
#[derive(Debug)]
struct Small {
    operation: u64,
    length: u64,
    serial: u64,
    /// Bytes of the value that answers it; 0: ACK answers it.
    result: u32,
}

/// A long operation.
#[derive(Debug)]
struct Long {
    operation: u64,
    length: u64,
    serial: u64,
    /// Bytes sent of a put, or received of a get.
    moved: u64,
    state: InitiatorState,
    queued: bool,
}

/// The state of a long operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InitiatorState {
    /// A put: bytes may be sent up to `until`.
    Put { until: u64 },
    /// A get whose bytes may arrive. `direct`: the target may send the address of the bytes instead.
    Get { direct: bool },
    /// A get: the owner copies.
    Copying,
    /// A get: the owner could not copy; GET_FIN is due.
    NotCopied,
    /// A get: the owner has copied and the operation has completed; GET_FIN is due.
    Copied,
}

#[derive(Debug)]
struct Fence {
    operation: u64,
    serial: u64,
}

/// The operations of this side on the peer's regions.
#[derive(Debug, Default)]
pub struct Initiator {
    small: VecDeque<Small>,
    long: Slab<Long, 2>,
    sending: IntrusiveList,
    get_fins: IntrusiveList,
    order: IntrusiveList,
    fences: VecDeque<Fence>,
    /// The serial number of the next operation.
    serial: u64,
    /// Whether an operation was rejected since the last completion.
    refused: bool,
    broken: bool,
}

impl Initiator {
    // ---- beginning --------------------------------------------------------------------------------------------------

    /// Whether the peer has a record for one more operation.
    #[inline]
    pub fn may_begin(&mut self, most: u32) -> bool {
        let may = self.under_way() < most;
        self.refused |= !may;
        may
    }

    /// Operations for which the peer has, or may have, a record.
    #[inline]
    pub fn under_way(&self) -> u32 {
        self.small.len() as u32 + self.long.count()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let small = self.small.capacity() * size_of::<Small>();
        small + self.long.bytes() + self.fences.capacity() * size_of::<Fence>()
    }

    fn next(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// A small operation was sent.
    #[inline]
    pub fn add_small(&mut self, operation: u64, length: u64, result: u32) {
        let serial = self.next();
        self.small.push_back(Small { operation, length, serial, result });
    }

    /// Starts a long put, or a long get that may be `direct`, by a packet that `put` sends. Does nothing if there is no room.
    pub fn add_long(
        &mut self,
        operation: u64,
        length: u64,
        get: Option<bool>,
        put: impl FnOnce(SlabId) -> bool,
    ) -> Result<(), Rejected> {
        let state = get.map_or(InitiatorState::Put { until: 0 }, |direct| InitiatorState::Get { direct });
        let serial = self.next();
        let long = Long { operation, length, serial, moved: 0, state, queued: false };
        let number = self.long.insert(long).ok_or(Rejected::WouldBlock)?;
        if !put(number) {
            self.long.remove(number.index());
            return Err(Rejected::WouldBlock);
        }
        self.long.append(&mut self.order, ORDER_LIST, number.index());
        Ok(())
    }

    /// Completes when no operation that was started before is left.
    pub fn fence<O: Callbacks>(&mut self, owner: &mut O, operation: u64) {
        let serial = self.next();
        self.fences.push_back(Fence { operation, serial });
        self.settle(owner);
    }

    // ---- answers ----------------------------------------------------------------------------------------------------

    /// ACK: `count` of the oldest small operations are done.
    pub fn on_ack<O: Callbacks>(&mut self, owner: &mut O, count: u32) -> Result<(), ProtocolViolation> {
        if count == 0 || count as usize > self.small.len() {
            return Err(ProtocolViolation("ACK or FETCH_REPLY without an operation in progress"));
        }
        for _ in 0..count {
            if self.small.front().is_none_or(|small| small.result > 0) {
                return Err(ProtocolViolation("ACK for an operation that fetches a value"));
            }
            self.end_small(owner, Status::Done);
        }
        self.settle(owner);
        Ok(())
    }

    /// FETCH_REPLY: the value of the oldest small operation, or the reason of its failure.
    pub fn on_fetch_reply<O: Callbacks>(
        &mut self,
        owner: &mut O,
        code: u16,
        value: &[u8],
    ) -> Result<(), ProtocolViolation> {
        let small =
            self.small.front().ok_or(ProtocolViolation("ACK or FETCH_REPLY without an operation in progress"))?;
        let status = status(code)?;
        let length = if status == Status::Done { small.result as usize } else { 0 };
        if value.len() != length || status == Status::Done && length == 0 {
            return Err(ProtocolViolation("FETCH_REPLY with a value of another length"));
        }
        if length > 0 {
            owner.place(small.operation, 0, value);
        }
        self.end_small(owner, status);
        self.settle(owner);
        Ok(())
    }

    fn end_small<O: Callbacks>(&mut self, owner: &mut O, status: Status) {
        let Some(Small { operation, length, .. }) = self.small.pop_front() else { return };
        owner.completed(operation, Outcome { status, length: if status == Status::Done { length } else { 0 } });
    }

    /// PUT_CTS: the target accepts bytes of a put up to `until`.
    pub fn on_put_cts(&mut self, number: SlabId, until: u64) -> Result<(), ProtocolViolation> {
        let long = self.long.get_by_id(number).ok_or(ProtocolViolation("PUT_CTS for an unknown request"))?;
        match &mut long.state {
            InitiatorState::Put { until: before } if *before < until && until <= long.length => *before = until,
            _ => return Err(ProtocolViolation("PUT_CTS for bytes beyond the put, or requested before")),
        }
        self.schedule(number.index());
        Ok(())
    }

    /// GET_ADDR: the bytes of a get may be copied from this address.
    pub fn on_get_addr<O: Callbacks>(
        &mut self,
        owner: &mut O,
        number: SlabId,
        place: RemoteAddress,
    ) -> Result<(), ProtocolViolation> {
        let long = self.long.get_by_id(number).ok_or(ProtocolViolation("GET_ADDR for an unknown request"))?;
        if long.state != (InitiatorState::Get { direct: true }) || long.moved > 0 || place.address == 0 {
            return Err(ProtocolViolation("GET_ADDR for a request that is not a direct get, or address 0"));
        }
        long.state = InitiatorState::Copying;
        let (record, to) = (RemoteRecord::Get(number), CopyTo::Operation(long.operation));
        owner.copy_remote(RemoteCopy { record, to, from: place, length: long.length });
        Ok(())
    }

    /// The owner has copied the bytes of a get, or could not.
    pub fn copied<O: Callbacks>(&mut self, owner: &mut O, number: SlabId, done: bool, broken: bool) {
        let Some(long) = self.long.get_by_id(number).filter(|long| long.state == InitiatorState::Copying) else {
            return;
        };
        if broken {
            self.end_long(owner, number.index(), Status::LinkDown);
        } else if done {
            long.state = InitiatorState::Copied;
            let (operation, length) = (long.operation, long.length);
            self.long.unlink(&mut self.order, ORDER_LIST, number.index());
            owner.completed(operation, Outcome { status: Status::Done, length });
            self.schedule(number.index());
        } else {
            long.state = InitiatorState::NotCopied;
            self.schedule(number.index());
        }
        self.settle(owner);
    }

    /// BYTES of a get.
    pub fn piece<O: Callbacks>(
        &mut self,
        owner: &mut O,
        number: SlabId,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), ProtocolViolation> {
        let long = self.long.get_by_id(number).filter(|long| matches!(long.state, InitiatorState::Get { .. }));
        let long = long.ok_or(ProtocolViolation("BYTES for an unknown get"))?;
        let end = at.checked_add(bytes.len() as u64);
        let end = end.filter(|&end| at == long.moved && at < end && end <= long.length);
        long.moved = end.ok_or(ProtocolViolation("BYTES of a get out of order or beyond its length"))?;
        owner.place(long.operation, at, bytes);
        if long.moved == long.length {
            self.end_long(owner, number.index(), Status::Done);
            self.settle(owner);
        }
        Ok(())
    }

    /// PUT_FIN: a put has ended, or a get has failed.
    pub fn on_put_fin<O: Callbacks>(
        &mut self,
        owner: &mut O,
        number: SlabId,
        code: u16,
    ) -> Result<(), ProtocolViolation> {
        let status = status(code)?;
        let long = self.long.get_by_id(number).ok_or(ProtocolViolation("PUT_FIN for an unknown request"))?;
        let fits = match long.state {
            // Everything requested was sent, so that no BYTES are in flight to a number that becomes free.
            InitiatorState::Put { until } => {
                long.moved == until && (status != Status::Done || [0, long.length].contains(&until))
            }
            InitiatorState::Get { .. } => status != Status::Done,
            _ => false,
        };
        if !fits {
            return Err(ProtocolViolation("PUT_FIN while bytes are still to be transferred"));
        }
        self.end_long(owner, number.index(), status);
        self.settle(owner);
        Ok(())
    }

    fn end_long<O: Callbacks>(&mut self, owner: &mut O, index: u32, status: Status) {
        self.long.unlink(&mut self.order, ORDER_LIST, index);
        let Some(long) = self.remove(index) else { return };
        let length = if status == Status::Done { long.length } else { 0 };
        owner.completed(long.operation, Outcome { status, length });
    }

    /// Removes an operation that has left the order.
    fn remove(&mut self, index: u32) -> Option<Long> {
        let long = self.long.get(index)?;
        if long.queued {
            let list = if let InitiatorState::Put { .. } = long.state { &mut self.sending } else { &mut self.get_fins };
            self.long.unlink(list, DUE_LIST, index);
        }
        self.long.remove(index)
    }

    /// Continues after the end of an operation: completes fences and reports that operations may be started again.
    fn settle<O: Callbacks>(&mut self, owner: &mut O) {
        if self.small.is_empty() && self.small.capacity() > MAX_IDLE_RECORDS {
            self.small = VecDeque::new();
        }
        if !self.fences.is_empty() {
            let small = self.small.front().map_or(u64::MAX, |small| small.serial);
            let long = self.order.first().and_then(|index| self.long.get(index));
            let oldest = small.min(long.map_or(u64::MAX, |long| long.serial));
            let status = if self.broken { Status::LinkDown } else { Status::Done };
            while let Some(fence) = self.fences.front()
                && fence.serial < oldest
            {
                let operation = fence.operation;
                self.fences.pop_front();
                owner.completed(operation, Outcome { status, length: 0 });
            }
        }
        if std::mem::take(&mut self.refused) {
            owner.unblocked();
        }
    }

    // ---- packets due ------------------------------------------------------------------------------------------------

    fn schedule(&mut self, index: u32) {
        let Some(long) = self.long.get_mut(index) else { return };
        if !std::mem::replace(&mut long.queued, true) {
            let list = if let InitiatorState::Put { .. } = long.state { &mut self.sending } else { &mut self.get_fins };
            self.long.append(list, DUE_LIST, index);
        }
    }

    /// Whether a packet is due.
    #[inline]
    pub fn is_due(&self) -> bool {
        !self.sending.is_empty() || !self.get_fins.is_empty()
    }

    /// Sends the GET_FIN packets that are due. Returns false when there is no room for more.
    pub fn flush<P: Packets, O: Callbacks>(&mut self, packets: &mut P, owner: &mut O) -> bool {
        while let Some(index) = self.get_fins.first() {
            let number = self.long.number(index);
            let Some(long) = self.long.get_mut(index) else { return true };
            let own = if long.state == InitiatorState::Copied { COPIED } else { NOT_COPIED };
            if !packets.put(Kind::GetFin as u8, &[&Head { to: number, own, grant: 0 }.write()]) {
                return false;
            }
            if own == COPIED {
                self.remove(index);
                self.settle(owner);
            } else {
                (long.state, long.queued) = (InitiatorState::Get { direct: false }, false);
                self.long.unlink(&mut self.get_fins, DUE_LIST, index);
            }
        }
        true
    }

    /// Sends bytes of puts, one piece of each in turn.
    pub fn flush_bytes<P: Packets, O: Callbacks>(
        &mut self,
        packets: &mut P,
        owner: &mut O,
        reserve: usize,
        pieces: &mut usize,
    ) {
        while let Some(index) = self.sending.first() {
            let number = self.long.number(index);
            let Some(long) = self.long.get_mut(index) else { return };
            let InitiatorState::Put { until } = long.state else { return };
            if *pieces == 0 {
                return;
            }
            let Some(length) = room(packets, until - long.moved, reserve) else { return };
            let head = Head { to: number, own: OF_PUT, grant: 0 }.write_word(long.moved);
            let gone =
                owner.body(long.operation, long.moved, length, &mut |body| put(packets, Kind::Bytes, &head, &[], body));
            if !gone {
                return;
            }
            *pieces -= 1;
            long.moved += length as u64;
            long.queued = false;
            let more = long.moved < until;
            self.long.unlink(&mut self.sending, DUE_LIST, index);
            if more {
                self.schedule(index); // after the others
            }
        }
    }

    /// The link is down: everything completes but copies in progress and the fences behind them.
    pub fn fail<O: Callbacks>(&mut self, owner: &mut O) {
        self.broken = true;
        while !self.small.is_empty() {
            self.end_small(owner, Status::LinkDown);
        }
        for index in self.long.indices() {
            match self.long.get(index).map(|long| long.state) {
                Some(InitiatorState::Copying) | None => {}
                Some(InitiatorState::Copied) => drop(self.remove(index)),
                Some(_) => self.end_long(owner, index, Status::LinkDown),
            }
        }
        self.settle(owner);
    }
}
