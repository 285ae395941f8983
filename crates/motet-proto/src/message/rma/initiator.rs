//! The side that gets, puts and changes: its operations under way, and what the answers do to them.
//!
//! What it is: small operations in the order in which they were begun, which is that of their answers; long ones by number, each
//! with a place in the order of beginning; and fences, which complete when nothing that was begun before is left.
//!
//! What it is not: checks of keys and bounds are the target's.

use super::format::{COPIED, NOT_COPIED, OF_PUT, status};
use super::{CopyTo, RemoteCopy, RemoteRecord, room};
use crate::message::packet::{Head, Kind, RemoteAddress};
use crate::message::slab::{IntrusiveList, Slab, SlabId};
use crate::message::tx::put;
use crate::message::{Callbacks, Outcome, Packets, ProtocolViolation, Rejected, Status};
use std::collections::VecDeque;

/// Lists of long operations: puts that may send, or gets that owe GET_FIN; and all in the order of their beginning.
const DUE: usize = 0;
const ORDER: usize = 1;
/// Records of small operations that are kept when there are none.
const MAX_IDLE_RECORDS: usize = 256;

#[derive(Debug)]
struct Small {
    operation: u64,
    length: u64,
    serial: u64,
    /// Bytes of the value that answers it; 0: ACK does.
    result: u32,
}

#[derive(Debug)]
struct Long {
    operation: u64,
    length: u64,
    serial: u64,
    /// Bytes sent of a put, placed of a get.
    moved: u64,
    state: State,
    queued: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A put: bytes may be sent up to `until`.
    Put { until: u64 },
    /// A get. `direct`: the target may say where the bytes are; until it does, or after it was told to send them, they may come.
    Get { direct: bool },
    /// The owner copies.
    Copying,
    /// It could not: GET_FIN is due.
    NotCopied,
    /// It has: the operation has completed, GET_FIN is due.
    Copied,
}

#[derive(Debug)]
struct Fence {
    operation: u64,
    serial: u64,
}

/// Operations on the peer's regions.
#[derive(Debug, Default)]
pub struct Initiator {
    small: VecDeque<Small>,
    long: Slab<Long, 2>,
    sending: IntrusiveList,
    get_fins: IntrusiveList,
    order: IntrusiveList,
    fences: VecDeque<Fence>,
    /// Of the next operation.
    serial: u64,
    /// One was refused since the last end.
    refused: bool,
    broken: bool,
}

impl Initiator {
    // ---- beginning --------------------------------------------------------------------------------------------------

    /// Whether there is a record for one more at the peer.
    #[inline]
    pub fn may_begin(&mut self, most: u32) -> bool {
        let may = self.under_way() < most;
        self.refused |= !may;
        may
    }

    /// Operations that the peer has, or may have, a record of.
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

    /// A packet is on its way that is all of an operation.
    #[inline]
    pub fn add_small(&mut self, operation: u64, length: u64, result: u32) {
        let serial = self.next();
        self.small.push_back(Small { operation, length, serial, result });
    }

    /// A put, or a get that may be `direct`, announces itself by `put`, or nothing is done.
    pub fn add_long(
        &mut self,
        operation: u64,
        length: u64,
        get: Option<bool>,
        put: impl FnOnce(SlabId) -> bool,
    ) -> Result<(), Rejected> {
        let state = get.map_or(State::Put { until: 0 }, |direct| State::Get { direct });
        let serial = self.next();
        let long = Long { operation, length, serial, moved: 0, state, queued: false };
        let number = self.long.insert(long).ok_or(Rejected::WouldBlock)?;
        if !put(number) {
            self.long.remove(number.index());
            return Err(Rejected::WouldBlock);
        }
        self.long.append(&mut self.order, ORDER, number.index());
        Ok(())
    }

    /// Completes when nothing that was begun before is left.
    pub fn fence<O: Callbacks>(&mut self, owner: &mut O, operation: u64) {
        let serial = self.next();
        self.fences.push_back(Fence { operation, serial });
        self.settle(owner);
    }

    // ---- answers ----------------------------------------------------------------------------------------------------

    /// ACK: so many of the oldest small operations are done.
    pub fn on_ack<O: Callbacks>(&mut self, owner: &mut O, count: u32) -> Result<(), ProtocolViolation> {
        if count == 0 || count as usize > self.small.len() {
            return Err(ProtocolViolation("answers to no operations"));
        }
        for _ in 0..count {
            if self.small.front().is_none_or(|small| small.result > 0) {
                return Err(ProtocolViolation("a value that is missing"));
            }
            self.end_small(owner, Status::Done);
        }
        self.settle(owner);
        Ok(())
    }

    /// FETCH_REPLY: the value of the oldest small operation, or why it was not done.
    pub fn on_fetch_reply<O: Callbacks>(
        &mut self,
        owner: &mut O,
        code: u16,
        value: &[u8],
    ) -> Result<(), ProtocolViolation> {
        let small = self.small.front().ok_or(ProtocolViolation("answers to no operations"))?;
        let status = status(code)?;
        let length = if status == Status::Done { small.result as usize } else { 0 };
        if value.len() != length || status == Status::Done && length == 0 {
            return Err(ProtocolViolation("a value of another length"));
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

    /// PUT_CTS: the target takes bytes of a put up to `until`.
    pub fn on_put_cts(&mut self, number: SlabId, until: u64) -> Result<(), ProtocolViolation> {
        let long = self.long.get_by_id(number).ok_or(ProtocolViolation("an answer to no put"))?;
        match &mut long.state {
            State::Put { until: before } if *before < until && until <= long.length => *before = until,
            _ => return Err(ProtocolViolation("a put of bytes that are not there")),
        }
        self.schedule(number.index());
        Ok(())
    }

    /// GET_ADDR: the bytes of a get may be copied.
    pub fn on_get_addr<O: Callbacks>(
        &mut self,
        owner: &mut O,
        number: SlabId,
        place: RemoteAddress,
    ) -> Result<(), ProtocolViolation> {
        let long = self.long.get_by_id(number).ok_or(ProtocolViolation("an answer to no get"))?;
        if long.state != (State::Get { direct: true }) || long.moved > 0 || place.address == 0 {
            return Err(ProtocolViolation("a place that was not asked for"));
        }
        long.state = State::Copying;
        let (record, to) = (RemoteRecord::Get(number), CopyTo::Operation(long.operation));
        owner.copy_remote(RemoteCopy { record, to, from: place, length: long.length });
        Ok(())
    }

    /// The owner has copied the bytes of a get, or could not.
    pub fn copied<O: Callbacks>(&mut self, owner: &mut O, number: SlabId, done: bool, broken: bool) {
        let Some(long) = self.long.get_by_id(number).filter(|long| long.state == State::Copying) else { return };
        if broken {
            self.end_long(owner, number.index(), Status::LinkDown);
        } else if done {
            long.state = State::Copied;
            let (operation, length) = (long.operation, long.length);
            self.long.unlink(&mut self.order, ORDER, number.index());
            owner.completed(operation, Outcome { status: Status::Done, length });
            self.schedule(number.index());
        } else {
            long.state = State::NotCopied;
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
        let long = self.long.get_by_id(number).filter(|long| matches!(long.state, State::Get { .. }));
        let long = long.ok_or(ProtocolViolation("bytes of no get"))?;
        let end = at.checked_add(bytes.len() as u64);
        let end = end.filter(|&end| at == long.moved && at < end && end <= long.length);
        long.moved = end.ok_or(ProtocolViolation("bytes that were not asked for"))?;
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
        let long = self.long.get_by_id(number).ok_or(ProtocolViolation("the end of no operation"))?;
        let fits = match long.state {
            // All that it may send has been sent, so that nothing is under way to a number that is free.
            State::Put { until } => {
                long.moved == until && (status != Status::Done || [0, long.length].contains(&until))
            }
            State::Get { .. } => status != Status::Done,
            _ => false,
        };
        if !fits {
            return Err(ProtocolViolation("an end before its time"));
        }
        self.end_long(owner, number.index(), status);
        self.settle(owner);
        Ok(())
    }

    fn end_long<O: Callbacks>(&mut self, owner: &mut O, index: u32, status: Status) {
        self.long.unlink(&mut self.order, ORDER, index);
        let Some(long) = self.remove(index) else { return };
        let length = if status == Status::Done { long.length } else { 0 };
        owner.completed(long.operation, Outcome { status, length });
    }

    /// Forgets an operation that has left the order.
    fn remove(&mut self, index: u32) -> Option<Long> {
        let long = self.long.get(index)?;
        if long.queued {
            let list = if let State::Put { .. } = long.state { &mut self.sending } else { &mut self.get_fins };
            self.long.unlink(list, DUE, index);
        }
        self.long.remove(index)
    }

    /// What follows when an operation has ended.
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
            let list = if let State::Put { .. } = long.state { &mut self.sending } else { &mut self.get_fins };
            self.long.append(list, DUE, index);
        }
    }

    /// Whether there is something to put.
    #[inline]
    pub fn is_due(&self) -> bool {
        !self.sending.is_empty() || !self.get_fins.is_empty()
    }

    /// Puts the GOTs that are due; false when there is no room for more.
    pub fn flush<P: Packets, O: Callbacks>(&mut self, packets: &mut P, owner: &mut O) -> bool {
        while let Some(index) = self.get_fins.first() {
            let number = self.long.number(index);
            let Some(long) = self.long.get_mut(index) else { return true };
            let own = if long.state == State::Copied { COPIED } else { NOT_COPIED };
            if !packets.put(Kind::GetFin as u8, &[&Head { to: number, own, grant: 0 }.write()]) {
                return false;
            }
            if own == COPIED {
                self.remove(index);
                self.settle(owner);
            } else {
                (long.state, long.queued) = (State::Get { direct: false }, false);
                self.long.unlink(&mut self.get_fins, DUE, index);
            }
        }
        true
    }

    /// Puts bytes of puts, one piece of each in turn.
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
            let State::Put { until } = long.state else { return };
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
            self.long.unlink(&mut self.sending, DUE, index);
            if more {
                self.schedule(index); // behind the others
            }
        }
    }

    /// The link is broken: everything completes but copies under way, and fences behind those.
    pub fn fail<O: Callbacks>(&mut self, owner: &mut O) {
        self.broken = true;
        while !self.small.is_empty() {
            self.end_small(owner, Status::LinkDown);
        }
        for index in self.long.indices() {
            match self.long.get(index).map(|long| long.state) {
                Some(State::Copying) | None => {}
                Some(State::Copied) => drop(self.remove(index)),
                Some(_) => self.end_long(owner, index, Status::LinkDown),
            }
        }
        self.settle(owner);
    }
}
