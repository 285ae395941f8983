//! The side that gets, puts and changes: its operations under way, and what the answers do to them.
//!
//! What it is: small operations in the order in which they were begun, which is that of their answers; long ones by number, each
//! with a place in the order of beginning; and fences, which complete when nothing that was begun before is left.
//!
//! What it is not: checks of keys and bounds are the target's.

use super::format::{COPIED, NOT_COPIED, OF_PUT, status};
use super::{CopyTo, RemoteCopy, RemoteRecord, room};
use crate::message::packet::{Head, Kind, Place};
use crate::message::slab::{Fifo, Number, Pool};
use crate::message::tx::put;
use crate::message::{Broken, Outcome, Owner, Packets, Refusal, Status};
use std::collections::VecDeque;

/// Lists of long operations: puts that may send, or gets that owe GOT; and all in the order of their beginning.
const DUE: usize = 0;
const ORDER: usize = 1;
/// Records of small operations that are kept when there are none.
const KEPT: usize = 256;

#[derive(Debug)]
struct Small {
    operation: u64,
    length: u64,
    serial: u64,
    /// Bytes of the value that answers it; 0: TOOK does.
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
    /// It could not: GOT is due.
    NotCopied,
    /// It has: the operation has completed, GOT is due.
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
    long: Pool<Long, 2>,
    sending: Fifo,
    got: Fifo,
    order: Fifo,
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
        put: impl FnOnce(Number) -> bool,
    ) -> Result<(), Refusal> {
        let state = get.map_or(State::Put { until: 0 }, |direct| State::Get { direct });
        let serial = self.next();
        let long = Long { operation, length, serial, moved: 0, state, queued: false };
        let number = self.long.insert(long).ok_or(Refusal::WouldBlock)?;
        if !put(number) {
            self.long.remove(number.index());
            return Err(Refusal::WouldBlock);
        }
        self.long.append(&mut self.order, ORDER, number.index());
        Ok(())
    }

    /// Completes when nothing that was begun before is left.
    pub fn fence<O: Owner>(&mut self, owner: &mut O, operation: u64) {
        let serial = self.next();
        self.fences.push_back(Fence { operation, serial });
        self.settle(owner);
    }

    // ---- answers ----------------------------------------------------------------------------------------------------

    /// TOOK: so many of the oldest small operations are done.
    pub fn took<O: Owner>(&mut self, owner: &mut O, count: u32) -> Result<(), Broken> {
        if count == 0 || count as usize > self.small.len() {
            return Err(Broken("answers to no operations"));
        }
        for _ in 0..count {
            if self.small.front().is_none_or(|small| small.result > 0) {
                return Err(Broken("a value that is missing"));
            }
            self.end_small(owner, Status::Done);
        }
        self.settle(owner);
        Ok(())
    }

    /// RESULT: the value of the oldest small operation, or why it was not done.
    pub fn result<O: Owner>(&mut self, owner: &mut O, code: u16, value: &[u8]) -> Result<(), Broken> {
        let small = self.small.front().ok_or(Broken("answers to no operations"))?;
        let status = status(code)?;
        let length = if status == Status::Done { small.result as usize } else { 0 };
        if value.len() != length || status == Status::Done && length == 0 {
            return Err(Broken("a value of another length"));
        }
        if length > 0 {
            owner.place(small.operation, 0, value);
        }
        self.end_small(owner, status);
        self.settle(owner);
        Ok(())
    }

    fn end_small<O: Owner>(&mut self, owner: &mut O, status: Status) {
        let Some(Small { operation, length, .. }) = self.small.pop_front() else { return };
        owner.completed(operation, Outcome { status, length: if status == Status::Done { length } else { 0 } });
    }

    /// GO: the target takes bytes of a put up to `until`.
    pub fn go(&mut self, number: Number, until: u64) -> Result<(), Broken> {
        let long = self.long.named(number).ok_or(Broken("an answer to no put"))?;
        match &mut long.state {
            State::Put { until: before } if *before < until && until <= long.length => *before = until,
            _ => return Err(Broken("a put of bytes that are not there")),
        }
        self.owe(number.index());
        Ok(())
    }

    /// THERE: the bytes of a get may be copied.
    pub fn there<O: Owner>(&mut self, owner: &mut O, number: Number, place: Place) -> Result<(), Broken> {
        let long = self.long.named(number).ok_or(Broken("an answer to no get"))?;
        if long.state != (State::Get { direct: true }) || long.moved > 0 || place.address == 0 {
            return Err(Broken("a place that was not asked for"));
        }
        long.state = State::Copying;
        let (record, to) = (RemoteRecord::Get(number), CopyTo::Operation(long.operation));
        owner.copy_remote(RemoteCopy { record, to, from: place, length: long.length });
        Ok(())
    }

    /// The owner has copied the bytes of a get, or could not.
    pub fn copied<O: Owner>(&mut self, owner: &mut O, number: Number, done: bool, broken: bool) {
        let Some(long) = self.long.named(number).filter(|long| long.state == State::Copying) else { return };
        if broken {
            self.end_long(owner, number.index(), Status::Broken);
        } else if done {
            long.state = State::Copied;
            let (operation, length) = (long.operation, long.length);
            self.long.unlink(&mut self.order, ORDER, number.index());
            owner.completed(operation, Outcome { status: Status::Done, length });
            self.owe(number.index());
        } else {
            long.state = State::NotCopied;
            self.owe(number.index());
        }
        self.settle(owner);
    }

    /// BYTES of a get.
    pub fn piece<O: Owner>(&mut self, owner: &mut O, number: Number, at: u64, bytes: &[u8]) -> Result<(), Broken> {
        let long = self.long.named(number).filter(|long| matches!(long.state, State::Get { .. }));
        let long = long.ok_or(Broken("bytes of no get"))?;
        let end = at.checked_add(bytes.len() as u64);
        let end = end.filter(|&end| at == long.moved && at < end && end <= long.length);
        long.moved = end.ok_or(Broken("bytes that were not asked for"))?;
        owner.place(long.operation, at, bytes);
        if long.moved == long.length {
            self.end_long(owner, number.index(), Status::Done);
            self.settle(owner);
        }
        Ok(())
    }

    /// OVER: a put has ended, or a get has failed.
    pub fn over<O: Owner>(&mut self, owner: &mut O, number: Number, code: u16) -> Result<(), Broken> {
        let status = status(code)?;
        let long = self.long.named(number).ok_or(Broken("the end of no operation"))?;
        let fits = match long.state {
            // All that it may send has been sent, so that nothing is under way to a number that is free.
            State::Put { until } => {
                long.moved == until && (status != Status::Done || [0, long.length].contains(&until))
            }
            State::Get { .. } => status != Status::Done,
            _ => false,
        };
        if !fits {
            return Err(Broken("an end before its time"));
        }
        self.end_long(owner, number.index(), status);
        self.settle(owner);
        Ok(())
    }

    fn end_long<O: Owner>(&mut self, owner: &mut O, index: u32, status: Status) {
        self.long.unlink(&mut self.order, ORDER, index);
        let Some(long) = self.remove(index) else { return };
        let length = if status == Status::Done { long.length } else { 0 };
        owner.completed(long.operation, Outcome { status, length });
    }

    /// Forgets an operation that has left the order.
    fn remove(&mut self, index: u32) -> Option<Long> {
        let long = self.long.get(index)?;
        if long.queued {
            let list = if let State::Put { .. } = long.state { &mut self.sending } else { &mut self.got };
            self.long.unlink(list, DUE, index);
        }
        self.long.remove(index)
    }

    /// What follows when an operation has ended.
    fn settle<O: Owner>(&mut self, owner: &mut O) {
        if self.small.is_empty() && self.small.capacity() > KEPT {
            self.small = VecDeque::new();
        }
        if !self.fences.is_empty() {
            let small = self.small.front().map_or(u64::MAX, |small| small.serial);
            let long = self.order.first().and_then(|index| self.long.get(index));
            let oldest = small.min(long.map_or(u64::MAX, |long| long.serial));
            let status = if self.broken { Status::Broken } else { Status::Done };
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

    fn owe(&mut self, index: u32) {
        let Some(long) = self.long.get_mut(index) else { return };
        if !std::mem::replace(&mut long.queued, true) {
            let list = if let State::Put { .. } = long.state { &mut self.sending } else { &mut self.got };
            self.long.append(list, DUE, index);
        }
    }

    /// Whether there is something to put.
    #[inline]
    pub fn is_due(&self) -> bool {
        !self.sending.is_empty() || !self.got.is_empty()
    }

    /// Puts the GOTs that are due; false when there is no room for more.
    pub fn flush<P: Packets, O: Owner>(&mut self, packets: &mut P, owner: &mut O) -> bool {
        while let Some(index) = self.got.first() {
            let number = self.long.number(index);
            let Some(long) = self.long.get_mut(index) else { return true };
            let own = if long.state == State::Copied { COPIED } else { NOT_COPIED };
            if !packets.put(Kind::Got as u8, &[&Head { to: number, own, grant: 0 }.write()]) {
                return false;
            }
            if own == COPIED {
                self.remove(index);
                self.settle(owner);
            } else {
                (long.state, long.queued) = (State::Get { direct: false }, false);
                self.long.unlink(&mut self.got, DUE, index);
            }
        }
        true
    }

    /// Puts bytes of puts, one piece of each in turn.
    pub fn flush_bytes<P: Packets, O: Owner>(
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
                self.owe(index); // behind the others
            }
        }
    }

    /// The link is broken: everything completes but copies under way, and fences behind those.
    pub fn fail<O: Owner>(&mut self, owner: &mut O) {
        self.broken = true;
        while !self.small.is_empty() {
            self.end_small(owner, Status::Broken);
        }
        for index in self.long.indices() {
            match self.long.get(index).map(|long| long.state) {
                Some(State::Copying) | None => {}
                Some(State::Copied) => drop(self.remove(index)),
                Some(_) => self.end_long(owner, index, Status::Broken),
            }
        }
        self.settle(owner);
    }
}
