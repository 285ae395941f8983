//! Regions: a region of this side, and operations on regions of the peer.

use super::{BODY, LIMITS, Side, Unlimited};
use motet_proto::message::atomic::{Atomic, Datatype, Operation};
use motet_proto::message::packet::{Head, Kind, RemoteAddress};
use motet_proto::message::regions::Revoked;
use motet_proto::message::rma::{CopyTo, PutBytes, RemoteCopy, format};
use motet_proto::message::slab::SlabId;
use motet_proto::message::{Get, Key, Link, Memory, Put, Regions, Rights, Status, Update};

/// Bytes of every region, and of every long get.
pub const REGION: usize = 3000;
/// The first key; further ones follow it.
const FIRST_KEY: u64 = 0x0012_3456_789a_bcde;
/// The key of the first region. It is constant, so that inputs contain it; further ones have the next generations.
pub const KEY: Key = Key(FIRST_KEY);
/// Number of steps in this module.
pub const STEPS: u8 = 9;

/// Regions of this side, and requests to its owner.
#[derive(Debug, Default)]
pub struct Ours {
    pub regions: Regions,
    /// Key, whether it was revoked, and whether it was released, by region id.
    pub known: Vec<(Key, bool, bool)>,
    pub copies: Vec<RemoteCopy>,
    pub forgets: Vec<Key>,
}

impl Ours {
    /// With one region.
    pub fn new() -> Self {
        let mut ours = Self::default();
        ours.register();
        ours
    }

    fn register(&mut self) {
        let name = self.known.len() as u64;
        let key = self.regions.register(name, REGION as u64, Rights::ALL, FIRST_KEY + name);
        self.known.push((key.expect("few regions"), false, false));
    }

    fn reached(&self, region: u64, at: u64, length: u64) {
        assert!(!self.known[region as usize].1, "no access begins after the end");
        assert!(at.checked_add(length).is_some_and(|end| end <= REGION as u64), "and none is outside");
    }
}

/// The error for a part of a region that is gone, as of a file that was cut short.
fn lost(at: u64) -> Result<(), Status> {
    if (2000..2100).contains(&at) { Err(Status::OutOfBounds) } else { Ok(()) }
}

impl Memory for Side {
    fn regions(&mut self) -> &mut Regions {
        &mut self.memory.regions
    }

    fn region_write(&mut self, region: u64, at: u64, bytes: &[u8]) -> Result<(), Status> {
        self.memory.reached(region, at, bytes.len() as u64);
        lost(at)
    }

    fn region_read(&mut self, region: u64, at: u64, length: usize, put: PutBytes<'_>) -> Result<bool, Status> {
        self.memory.reached(region, at, length as u64);
        lost(at)?;
        Ok(put(&[&[0; REGION][..length]]))
    }

    fn region_atomic(&mut self, region: u64, at: u64, atomic: &Atomic<'_>, result: &mut [u8]) -> Result<(), Status> {
        self.memory.reached(region, at, atomic.length() as u64);
        let target = &mut [0; REGION][..atomic.length()];
        assert_eq!(atomic.apply(target, result), Ok(()), "it was checked");
        lost(at)
    }

    fn region_address(&mut self, region: u64, at: u64, length: u64) -> RemoteAddress {
        self.memory.reached(region, at, length);
        RemoteAddress { address: at % 2, key: 0 }
    }

    fn region_mapping(&mut self, region: u64) -> RemoteAddress {
        self.memory.reached(region, 0, REGION as u64);
        RemoteAddress { address: 1, key: 1 }
    }

    fn copy_remote(&mut self, request: RemoteCopy) {
        match request.to {
            CopyTo::Operation(operation) => {
                assert!(self.operations.contains(&operation) && request.length == REGION as u64);
            }
            CopyTo::Region { region, at } => self.memory.reached(region, at, request.length),
        }
        self.memory.copies.push(request);
    }

    fn stop_direct_access(&mut self, key: Key) -> bool {
        let now = key.0.is_multiple_of(2);
        if !now {
            self.memory.forgets.push(key);
        }
        now
    }

    fn region_released(&mut self, region: u64) {
        let held = |copy: &RemoteCopy| matches!(copy.to, CopyTo::Region { region: name, .. } if name == region);
        assert!(!self.memory.copies.iter().any(held), "a region stays while it is copied to");
        let (_, revoked, ended) = &mut self.memory.known[region as usize];
        assert!(*revoked && !std::mem::replace(ended, true), "it ends once, after it was revoked");
    }
}

/// A step of this side: put, long put, get, atomic, fence, copy, stop direct access, revoke, query.
pub fn own_step(link: &mut Link, side: &mut Side, step: u8, operation: u64) {
    let key = KEY;
    let begun = match step {
        0 | 1 => {
            let body: &[&[u8]] = &[&[0; BODY][..if step == 0 { 8 } else { BODY }]];
            link.put(&mut Unlimited, &Put { key, offset: 0, body, operation, place: RemoteAddress::default() }).is_ok()
        }
        2 => {
            let length = if operation.is_multiple_of(2) { 8 } else { REGION as u64 };
            link.get(&mut Unlimited, &Get { key, offset: 0, length, operation, direct: true }).is_ok()
        }
        3 => {
            let (kind, datatype, count) = (Operation::Sum, Datatype::U64, 1);
            let atomic = Atomic { operation: kind, datatype, count, operand: &[1; 8], compare: &[] };
            link.atomic(&mut Unlimited, &Update { key, offset: 0, atomic, fetch: true, operation }).is_ok()
        }
        4 if link.broken().is_none() => {
            side.operations.push(operation);
            link.fence(side, operation).expect("a link that works");
            false // it may have completed already
        }
        5 if !side.memory.copies.is_empty() => {
            let request = side.memory.copies.remove(0);
            link.copied_remote(side, request.record, operation.is_multiple_of(2));
            false
        }
        6 => {
            if let Some(key) = side.memory.forgets.pop() {
                link.direct_access_stopped(key);
            }
            false
        }
        7 => {
            let name = side.memory.known.len() - 1;
            let key = side.memory.known[name].0;
            let _told = link.revoke(side, key);
            side.memory.known[name].1 = true;
            if side.memory.regions.revoke(key) == Some(Revoked::Ended) {
                side.memory.known[name].2 = true;
            }
            side.memory.register();
            false
        }
        8 => link.query_region(&mut Unlimited, key, operation).is_ok(),
        _ => false,
    };
    if begun {
        side.operations.push(operation);
    }
}

/// Checks after every step.
pub fn check(link: &Link, side: &Side) {
    assert!(link.requests().into_iter().all(|count| count <= LIMITS.requests));
    assert!(side.memory.forgets.len() <= 16, "revocations that wait are bounded");
}

/// The link is gone and copies are reported: all revoked regions must be released.
pub fn finish(link: &mut Link, side: &mut Side) {
    for request in std::mem::take(&mut side.memory.copies) {
        link.copied_remote(side, request.record, true);
    }
    assert_eq!(link.requests(), [0, 0]);
    assert!(side.memory.known.iter().all(|&(_, revoked, ended)| revoked == ended), "revoked regions end");
}

/// Well-formed exchanges. `step` makes a step of this module, `of` a packet of the peer.
pub fn seeds(step: impl Fn(u8) -> Vec<u8>, flush: &[u8], of: impl Fn(Kind, &[u8]) -> Vec<u8>) -> Vec<Vec<u8>> {
    let flush = || flush.to_vec();
    let head = |to: u32, own: u16| Head { to: SlabId(to), own, grant: 0 };
    let one = 1 << 20;
    let at = |head: Head, bytes: &[u8]| [&format::write_at(head, KEY, 0)[..], bytes].concat();
    let change = |kind: Operation, values: &[u8]| {
        let (operation, datatype) = (kind, Datatype::U64);
        let atomic = Atomic { operation, datatype, count: 1, operand: values, compare: &[] };
        of(Kind::Atomic, &at(format::atomic_head(&atomic, true), values))
    };
    let range = |offset, length| format::Range { key: KEY, offset, length };
    let put = |place| of(Kind::PutLong, &range(0, 2000).write_at(head(one, 0), place));
    let get = |offset| of(Kind::GetLong, &range(offset, 1000).write(head(one, 1)));
    let bytes =
        |own, at: u64, length: usize| of(Kind::Bytes, &[&head(one, own).write_word(at)[..], &vec![1; length]].concat());
    let bare = |kind, to, own| of(kind, &head(to, own).write());
    let place = RemoteAddress { address: 9, key: 1 };
    let word = |kind, to, word: u64| of(kind, &head(to, 0).write_word(word));
    let there = || of(Kind::GetAddr, &format::write_place(head(one, 0), place));
    let small = [
        of(Kind::Put, &at(head(0, 0), &[1; 8])),
        of(Kind::Get, &at(head(8, 0), &[])),
        change(Operation::Sum, &[1; 8]),
        change(Operation::SwapMasked, &[1; 16]),
    ];
    vec![
        [small.concat(), flush()].concat(),
        [
            put(RemoteAddress::default()),
            flush(),
            bytes(0, 0, 600),
            flush(),
            bytes(0, 600, 900),
            flush(),
            bytes(0, 1500, 500),
        ]
        .concat(),
        [put(place), step(5), flush(), get(1), flush(), bare(Kind::GetFin, one, 0)].concat(),
        [get(0), flush(), get(1), flush(), bare(Kind::GetFin, one, 1), flush()].concat(),
        [
            step(0),
            step(4),
            step(3),
            bare(Kind::Ack, 1, 0),
            of(Kind::FetchReply, &[&head(0, 0).write()[..], &[1; 8]].concat()),
        ]
        .concat(),
        [step(1), word(Kind::PutCts, one, 1000), flush(), word(Kind::PutCts, one, 3000), flush(), flush(), flush()]
            .concat(),
        [step(1), step(4), bare(Kind::PutFin, one, 1), step(0), of(Kind::FetchReply, &head(0, 2).write())].concat(),
        // Whether a copy succeeds depends on the step's number.
        [step(2), there(), step(6), step(5), flush()].concat(),
        [vec![step(2), there(), step(5), flush()], (0..5).map(|n| bytes(1, n * 600, 600)).collect()].concat().concat(),
        [of(Kind::Get, &at(head(format::REGION_INFO_BYTES as u32, format::QUERY_REGION), &[])), flush()].concat(),
        [step(8), of(Kind::FetchReply, &[&head(0, 0).write()[..], &[1; format::REGION_INFO_BYTES]].concat())].concat(),
        [word(Kind::Revoke, 0, 4), word(Kind::Revoke, 0, 5), flush(), step(6), flush()].concat(),
        [step(7), flush(), word(Kind::Revoked, 0, KEY.0)].concat(),
    ]
}
