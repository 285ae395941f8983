//! RMA operations on regions of both nodes, and what must hold.
//!
//! The front of a region is for small operations, the back has slots for long ones, one operation at a time each. The initiator keeps a
//! copy of the region on which every small operation is executed as it *starts*, so every fetched value, and the region at the end,
//! show loss, repetition and disorder.

use crate::side_memory::{Own, Running, Theirs};
use crate::simulation::Simulation;
use motet_proto::message::atomic::{Atomic, Datatype, Operation};
use motet_proto::message::packet::RemoteAddress;
use motet_proto::message::regions::Revoked;
use motet_proto::message::rma::format::RegionInfo;
use motet_proto::message::rma::{CopyTo, PutBuffer};
use motet_proto::message::{Get, Put, Rejected, Rights, Status, Update};

/// Bytes of the front and of a slot, and number of slots.
pub const FRONT_BYTES: usize = 320;
pub const SLOT_BYTES: usize = 4000;
pub const SLOT_COUNT: usize = 3;
pub const REGION_BYTES: usize = FRONT_BYTES + SLOT_BYTES * SLOT_COUNT;

impl Simulation {
    /// A region of `side` that the other side knows.
    pub fn register(&mut self, side: usize, rights: Rights) -> usize {
        let bytes: Vec<u8> = (0..REGION_BYTES).map(|at| (at * 7 + side) as u8).collect();
        let random = self.prng.next();
        let own = &mut self.nodes[side].side.remote;
        let name = own.own.len();
        let key = own.regions.register(name as u64, REGION_BYTES as u64, rights, random).unwrap();
        own.own.push(Own { bytes: bytes.clone(), key, revoked: false, ended: false, left: REGION_BYTES });
        let theirs = Theirs { key, expected: bytes, busy: [false; SLOT_COUNT], denied: false };
        self.nodes[1 - side].side.remote.theirs.push(theirs);
        name
    }

    /// A random operation on a random region.
    pub fn operate(&mut self, side: usize) {
        let regions = self.nodes[side].side.remote.theirs.len() as u64;
        if regions == 0 {
            return;
        }
        let region = self.prng.below(regions) as usize;
        let small = !self.prng.one_in(5);
        let at = self.prng.below(FRONT_BYTES as u64);
        let length = self.prng.below((FRONT_BYTES as u64 - at).min(257)) as usize;
        let slot = self.prng.below(SLOT_COUNT as u64) as usize;
        let long = 600 + self.prng.below((SLOT_BYTES - 700) as u64) as usize;
        let start = FRONT_BYTES + slot * SLOT_BYTES + self.prng.below(90) as usize;
        let done = match self.prng.below(3) {
            0 if small => self.put(side, region, at, length, None),
            0 => self.put(side, region, start as u64, long, Some(slot)),
            1 if small => self.get(side, region, at, length as u64, None),
            1 => self.get(side, region, start as u64, long as u64, Some(slot)),
            _ if at == 0 => self.look(side, region),
            _ => self.change(side, region, at),
        };
        assert!(done != Err(Rejected::LinkDown) || self.nodes[side].link.broken().is_some());
    }

    pub fn put(
        &mut self,
        side: usize,
        region: usize,
        at: u64,
        length: usize,
        slot: Option<usize>,
    ) -> Result<PutBuffer, Rejected> {
        let operation = self.fresh();
        let outside = self.prng.one_in(20) && !self.calm;
        let shown = self.prng.one_in(2);
        let body: Vec<u8> = (0..length).map(|at| (operation as usize * 11 + at + (at >> 8)) as u8).collect();
        let node = &mut self.nodes[side];
        let theirs = &mut node.side.remote.theirs[region];
        if slot.is_some_and(|slot| theirs.busy[slot]) {
            return Err(Rejected::WouldBlock);
        }
        let offset = if outside { REGION_BYTES as u64 + 1 - length.min(1) as u64 } else { at };
        let place = if shown { RemoteAddress { address: operation, key: 7 } } else { RemoteAddress::default() };
        let (front, back) = body.split_at(length / 2);
        let put = Put { key: theirs.key, offset, body: &[front, back], operation, place };
        self.transports[side].now = self.now;
        let begun = node.link.put(&mut self.transports[side], &put);
        if let Ok(begun) = begun {
            assert_eq!(begun == PutBuffer::InUse, slot.is_some(), "{length}");
            if !outside {
                theirs.expected[at as usize..at as usize + length].copy_from_slice(&body);
            }
            if let Some(slot) = slot {
                theirs.busy[slot] = true;
            }
            let status = Some(if outside { Status::OutOfBounds } else { Status::Done });
            let length = length as u64;
            let running = Running { region, slot, status, body, length, ..Running::default() };
            node.side.remote.running.insert(operation, running);
        }
        self.after(side);
        begun
    }

    pub fn get(
        &mut self,
        side: usize,
        region: usize,
        at: u64,
        length: u64,
        slot: Option<usize>,
    ) -> Result<PutBuffer, Rejected> {
        let operation = self.fresh();
        let (outside, direct) = (self.prng.one_in(20) && !self.calm, self.prng.one_in(2));
        let node = &mut self.nodes[side];
        let theirs = &mut node.side.remote.theirs[region];
        if slot.is_some_and(|slot| theirs.busy[slot]) {
            return Err(Rejected::WouldBlock);
        }
        let offset = if outside { u64::MAX - length / 2 } else { at };
        let length = if outside { length.max(1) } else { length };
        let get = Get { key: theirs.key, offset, length, operation, direct };
        self.transports[side].now = self.now;
        let begun = node.link.get(&mut self.transports[side], &get);
        if begun.is_ok() {
            if let Some(slot) = slot {
                theirs.busy[slot] = true;
            }
            let status = Some(if outside { Status::OutOfBounds } else { Status::Done });
            let expected =
                if outside { Vec::new() } else { theirs.expected[at as usize..(at + length) as usize].to_vec() };
            let running = Running { region, slot, status, expected, length, ..Running::default() };
            node.side.remote.running.insert(operation, running);
        }
        self.after(side);
        begun.map(|()| PutBuffer::Reusable)
    }

    /// Asks for the address of a region.
    pub fn look(&mut self, side: usize, region: usize) -> Result<PutBuffer, Rejected> {
        let operation = self.fresh();
        let node = &mut self.nodes[side];
        self.transports[side].now = self.now;
        let begun = node.link.query_region(&mut self.transports[side], node.side.remote.theirs[region].key, operation);
        if begun.is_ok() {
            let place = RemoteAddress { address: region as u64 + 1, key: 9 };
            let expected = RegionInfo { place, length: REGION_BYTES as u64, rights: Rights::ALL }.write().to_vec();
            let (status, length) = (Some(Status::Done), expected.len() as u64);
            let running = Running { region, status, expected, length, ..Running::default() };
            node.side.remote.running.insert(operation, running);
        }
        self.after(side);
        begun.map(|()| PutBuffer::Reusable)
    }

    /// An atomic in the front of a region.
    pub fn change(&mut self, side: usize, region: usize, at: u64) -> Result<PutBuffer, Rejected> {
        let operation = self.fresh();
        let kind = Operation::ALL[self.prng.below(Operation::ALL.len() as u64) as usize];
        let datatype = Datatype::ALL[self.prng.below(Datatype::ALL.len() as u64) as usize];
        let size = datatype.size();
        let at = at as usize / size * size;
        let count = (1 + self.prng.below(5) as u32).min(((FRONT_BYTES - at) / size) as u32);
        let mut values = |none: bool| -> Vec<u8> {
            let length = if none { 0 } else { count as usize * size };
            (0..length).map(|_| [0, 1, 255, 7][self.prng.below(4) as usize]).collect()
        };
        let (operand, compare) = (values(kind == Operation::Read), values(!kind.compares()));
        let fetch = kind == Operation::Read || self.prng.one_in(2);
        let atomic = Atomic { operation: kind, datatype, count, operand: &operand, compare: &compare };
        let node = &mut self.nodes[side];
        let theirs = &mut node.side.remote.theirs[region];
        let update = Update { key: theirs.key, offset: at as u64, atomic, fetch, operation };
        self.transports[side].now = self.now;
        let begun = node.link.atomic(&mut self.transports[side], &update);
        let fits = atomic.check(at as u64, fetch).is_ok();
        assert_eq!(begun == Err(Rejected::InvalidAtomic), !fits || count == 0);
        if begun.is_ok() {
            let length = atomic.length();
            let mut expected = vec![0; if fetch { length } else { 0 }];
            atomic.apply(&mut theirs.expected[at..at + length], &mut expected).unwrap();
            let (status, length) = (Some(Status::Done), length as u64);
            let running = Running { region, status, expected, length, ..Running::default() };
            node.side.remote.running.insert(operation, running);
        }
        self.after(side);
        begun.map(|()| PutBuffer::Reusable)
    }

    pub fn fence(&mut self, side: usize) {
        let operation = self.fresh();
        let node = &mut self.nodes[side];
        if node.link.broken().is_none() {
            node.side.remote.running.insert(operation, Running { fence: true, ..Running::default() });
            assert_eq!(node.link.fence(&mut node.side, operation), Ok(()));
        }
        self.after(side);
    }

    /// Executes a copy between the processes. The memory that is read or written must still be valid.
    pub fn copy_memory(&mut self, side: usize, allowed: bool) {
        let at = self.prng.below(self.nodes[side].side.remote.copies.len() as u64) as usize;
        let request = self.nodes[side].side.remote.copies.swap_remove(at);
        let whole = |world: &Self| world.nodes.iter().all(|node| node.link.broken().is_none());
        let there = &self.nodes[1 - side].side.remote;
        let bytes = match request.to {
            CopyTo::Operation(_) => {
                let own = &there.own[request.from.address as usize - 1];
                assert!(!own.ended || !whole(self), "a region stays while it is copied from");
                let at = request.from.key as usize;
                Some(own.bytes[at..at + request.length as usize].to_vec())
            }
            CopyTo::Region { .. } => there.running.get(&request.from.address).map(|running| running.body.clone()),
        };
        assert!(bytes.is_some() || !whole(self), "a put's bytes stay until it ends");
        let done = allowed && bytes.is_some();
        *self.seen.entry(format!("copy {done} {}", matches!(request.to, CopyTo::Operation(_)))).or_default() += 1;
        let node = &mut self.nodes[side];
        if let (true, Some(bytes)) = (done, bytes) {
            match request.to {
                CopyTo::Operation(operation) => assert!(node.side.remote_place(operation, 0, &bytes)),
                CopyTo::Region { region, at } => {
                    let own = &mut node.side.remote.own[region as usize];
                    assert!(!own.ended, "a region stays while it is copied to");
                    own.bytes[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                }
            }
        }
        node.link.copied_remote(&mut node.side, request.record, done);
        self.after(side);
    }

    /// Revokes a region; `told`: the peer may have direct access.
    pub fn revoke(&mut self, side: usize, region: usize, told: bool) {
        let node = &mut self.nodes[side];
        let own = &node.side.remote.own[region];
        let key = own.key;
        if own.revoked {
            return;
        }
        if told {
            let broken = node.link.broken().is_some();
            let refused = node.link.revoke(&mut node.side, key);
            assert_eq!(refused, if broken { Err(Rejected::LinkDown) } else { Ok(()) });
        }
        let own = &mut node.side.remote.own[region];
        own.revoked = true;
        match node.side.remote.regions.revoke(key) {
            Some(Revoked::Ended) => own.ended = true,
            Some(Revoked::StillHeld(holds)) => assert!(holds > 0),
            None => panic!("it was there"),
        }
        self.after(side);
    }

    pub fn direct_access_stopped(&mut self, side: usize) {
        let node = &mut self.nodes[side];
        if let Some(key) = node.side.remote.forgets.pop() {
            node.link.direct_access_stopped(key);
        }
    }

    /// Checks the RMA operations that have completed.
    pub fn check_memory(&mut self, side: usize) {
        for (operation, running, outcome) in std::mem::take(&mut self.nodes[side].side.remote.ended) {
            let status = outcome.status;
            let kind = match &running {
                Running { fence: true, .. } => "fence",
                Running { slot: Some(_), body, .. } if body.is_empty() => "long get",
                Running { slot: Some(_), .. } => "long put",
                Running { expected, .. } if expected.is_empty() => "small",
                _ => "value",
            };
            *self.seen.entry(format!("{kind} {status:?}")).or_default() += 1;
            if running.fence {
                assert!(matches!(status, Status::Done | Status::LinkDown));
                continue;
            }
            let revoked = self.nodes[1 - side].side.remote.own[running.region].revoked;
            let theirs = &mut self.nodes[side].side.remote.theirs[running.region];
            if let Some(slot) = running.slot {
                theirs.busy[slot] = false;
            }
            match status {
                Status::LinkDown => continue,
                Status::AccessDenied => {
                    assert!(revoked, "only a revoked region is denied");
                    theirs.denied |= running.slot.is_none();
                }
                _ => {
                    assert!(running.slot.is_some() || !theirs.denied, "{operation} has passed one that was denied");
                    assert_eq!(Some(status), running.status, "{operation}");
                }
            }
            if status != Status::Done {
                assert_eq!(outcome.length, 0);
                continue;
            }
            assert_eq!(outcome.length, running.length);
            assert!(running.got == running.expected, "the bytes of {operation}");
            if running.slot.is_some() && !running.body.is_empty() && !revoked {
                // Delivery complete: the bytes are in the region at this time.
                let bytes = &self.nodes[1 - side].side.remote.own[running.region].bytes;
                let found = bytes.windows(running.body.len()).any(|bytes| bytes == running.body);
                assert!(found, "{operation} is in the region when it ends");
            }
        }
        let broken = self.nodes.iter().any(|node| node.link.broken().is_some());
        for own in self.nodes[1 - side].side.remote.own.iter().filter(|own| own.ended) {
            assert!(broken || !self.nodes[side].side.remote.forgets.contains(&own.key), "ends before it is forgotten");
        }
        let [ours, of_peer] = self.nodes[side].link.requests();
        assert!(ours.max(of_peer) <= self.limits.requests);
    }

    /// No operation is in progress: all have completed, and regions are as if each operation was executed when it started.
    pub fn finish_memory(&mut self) {
        for side in [0, 1] {
            let (here, there) = (&self.nodes[side].side.remote, &self.nodes[1 - side].side.remote);
            assert!(here.running.is_empty(), "operations end: {:?}", here.running.keys());
            assert!(here.copies.is_empty() && here.forgets.is_empty());
            for (own, theirs) in there.own.iter().zip(&here.theirs) {
                assert_eq!(own.ended, own.revoked, "revoked regions end");
                assert!(own.revoked || self.reset || own.bytes == theirs.expected);
            }
            assert_eq!(self.nodes[side].link.requests(), [0, 0]);
        }
    }
}
