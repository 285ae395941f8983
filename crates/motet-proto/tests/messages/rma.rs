//! Remote memory: one property at a time, in the smallest exchange that shows it.

use crate::rma_model::{FRONT_BYTES, SLOT_BYTES};
use crate::simulation::{LARGEST, Simulation, TIGHT, Transport};
use motet_proto::message::atomic::{Atomic, Datatype, Operation};
use motet_proto::message::packet::{Head, Kind, RemoteAddress};
use motet_proto::message::rma::{PutBuffer, format};
use motet_proto::message::slab::SlabId;
use motet_proto::message::{
    Get, Key, Limits, Mode, Packets, ProtocolViolation, Put, Rejected, Rights, Status, UNKNOWN_REGION_KEY, Update,
};

pub const WIDE: Limits = Limits { window: 1 << 20, max_rendezvous: 100, reserve: 0, requests: 64, ..TIGHT };

/// Two links after HELLO, with a region each.
pub fn connected(limits: Limits) -> Simulation {
    let mut world = Simulation::new(3, limits, 1 << 20);
    world.calm = true;
    exchange(&mut world);
    for side in [0, 1] {
        world.register(side, Rights::ALL);
    }
    world
}

/// Exchanges packets until only copies are in progress.
pub fn exchange(world: &mut Simulation) {
    for _ in 0..6 {
        for side in [0, 1] {
            while world.flush(side, 8) && world.transports[side].room() > LARGEST {}
            while world.arrive(1 - side) {}
        }
    }
}

fn kinds(lane: &Transport) -> Vec<u8> {
    lane.packets.iter().map(|packet| packet.0).collect()
}

/// A put of node 0, with an address or without.
pub fn put(world: &mut Simulation, offset: u64, length: usize, shown: bool) -> u64 {
    let operation = world.fresh();
    let body: Vec<u8> = (0..length).map(|at| (at * 3 + at / 256) as u8).collect();
    let node = &mut world.nodes[0];
    let place = if shown { RemoteAddress { address: operation, key: 7 } } else { RemoteAddress::default() };
    let key = node.side.remote.theirs[0].key;
    let put = Put { key, offset, body: &[&body], operation, place };
    assert!(node.link.put(&mut world.transports[0], &put).is_ok());
    let status = Some(Status::Done);
    let running =
        crate::side_memory::Running { status, body, length: length as u64, slot: Some(0), ..Default::default() };
    node.side.remote.running.insert(operation, running);
    operation
}

pub fn get(world: &mut Simulation, offset: u64, length: u64, direct: bool) -> u64 {
    let operation = world.fresh();
    let node = &mut world.nodes[0];
    let theirs = &node.side.remote.theirs[0];
    let expected = theirs.expected[offset as usize..(offset + length) as usize].to_vec();
    let get = Get { key: theirs.key, offset, length, operation, direct };
    assert_eq!(node.link.get(&mut world.transports[0], &get), Ok(()));
    let status = Some(Status::Done);
    let running = crate::side_memory::Running { status, expected, length, slot: Some(0), ..Default::default() };
    node.side.remote.running.insert(operation, running);
    operation
}

pub fn runs(world: &Simulation, operation: u64) -> bool {
    world.nodes[0].side.remote.running.contains_key(&operation)
}

#[test]
fn eight_byte_operations_are_one_cell_and_acks_are_joined() {
    let mut world = connected(WIDE);
    let key = world.nodes[0].side.remote.theirs[0].key;
    for offset in 0..20 {
        assert_eq!(world.put(0, 0, offset * 8, 8, None), Ok(PutBuffer::Reusable));
    }
    for (kind, compare) in [(Operation::Sum, &[][..]), (Operation::SwapEqual, &[1; 8][..])] {
        let (datatype, count) = (Datatype::U64, 1);
        let atomic = Atomic { operation: kind, datatype, count, operand: &[1; 8], compare };
        let operation = world.fresh();
        let update = Update { key, offset: 304, atomic, fetch: true, operation };
        assert_eq!(world.nodes[0].link.atomic(&mut world.transports[0], &update), Ok(()));
        let mut expected = vec![0; 8];
        let theirs = &mut world.nodes[0].side.remote.theirs[0];
        atomic.apply(&mut theirs.expected[304..312], &mut expected).unwrap();
        let running =
            crate::side_memory::Running { status: Some(Status::Done), expected, length: 8, ..Default::default() };
        world.nodes[0].side.remote.running.insert(operation, running);
    }
    assert!(world.transports[0].packets.iter().all(|packet| packet.1.len() <= 56));
    let put = world.transports[1].put;
    exchange(&mut world);
    assert_eq!(world.transports[1].put - put, 3, "ACK for all puts, a value each for the others");
    world.finish_memory();
}

#[test]
fn owner_of_written_memory_copies() {
    let mut world = connected(WIDE);
    let at = FRONT_BYTES as u64; // no multiple of three: the address is sent
    let operation = get(&mut world, at, 3000, true);
    exchange(&mut world);
    assert_eq!(world.nodes[0].side.remote.copies.len(), 1);
    world.copy_memory(0, true);
    assert!(!runs(&world, operation), "it ends with the copy");
    world.flush(0, 8);
    assert_eq!(kinds(&world.transports[0]), [Kind::GetFin as u8]);
    let operation = put(&mut world, FRONT_BYTES as u64, 3000, true);
    exchange(&mut world);
    assert!(runs(&world, operation) && world.nodes[1].side.remote.writes == 0);
    world.copy_memory(1, true);
    exchange(&mut world);
    assert!(!runs(&world, operation) && world.nodes[1].side.remote.writes == 0, "in one copy");
}

#[test]
fn pieces_are_sent_where_no_copy_is_possible() {
    let mut world = connected(WIDE);
    let at = FRONT_BYTES as u64;
    for shown in [true, false] {
        let operation = get(&mut world, at, 3000, shown);
        exchange(&mut world);
        if shown {
            world.copy_memory(0, false);
            exchange(&mut world);
        }
        assert!(!runs(&world, operation));
        let operation = put(&mut world, FRONT_BYTES as u64, 3000, shown);
        exchange(&mut world);
        if shown {
            world.copy_memory(1, false);
            exchange(&mut world);
        }
        assert!(!runs(&world, operation));
        let theirs = &mut world.nodes[0].side.remote.theirs[0].expected;
        theirs.copy_from_slice(&world.nodes[1].side.remote.own[0].bytes);
    }
    assert!(world.nodes[1].side.remote.writes > 0);
    world.finish_memory();
}

#[test]
fn messages_and_small_operations_overtake_long_ones() {
    let mut world = connected(Limits { reserve: 600, eager: 100, ..WIDE });
    world.open(0, true).unwrap();
    exchange(&mut world);
    world.transports[0].most = 2000;
    let slots = [FRONT_BYTES, FRONT_BYTES + SLOT_BYTES].map(|at| at as u64);
    let operations =
        [put(&mut world, slots[0], SLOT_BYTES, false), get(&mut world, slots[1], SLOT_BYTES as u64, false)];
    let mut short = 0;
    for _ in 0..100 {
        world.flush(1, 1);
        while world.arrive(0) {}
        world.flush(0, usize::MAX);
        if runs(&world, operations[0]) {
            assert!(world.transports[0].room() >= 600, "room is left");
            assert_eq!(world.put(0, 0, 0, 8, None), Ok(PutBuffer::Reusable), "a small one goes at once");
            short += 1;
        }
        while world.arrive(1) {}
    }
    assert!(short > 3 && !operations.iter().any(|&operation| runs(&world, operation)));
}

#[test]
fn long_puts_and_long_messages_alternate() {
    let mut world = connected(Limits { eager: 4000, ..WIDE });
    world.open(0, true).unwrap();
    exchange(&mut world);
    if world.nodes[1].ways.is_empty() {
        panic!("the seed offers a channel that is refused");
    }
    put(&mut world, FRONT_BYTES as u64, SLOT_BYTES, false);
    exchange_one(&mut world); // PUT_CTS
    assert!(world.send(0, 0, 1, 4000, Mode::Automatic).is_ok());
    let mut seen = Vec::new();
    for _ in 0..4 {
        world.flush(0, 1);
        seen.extend(kinds(&world.transports[0]));
        while world.arrive(1) {}
    }
    let count = |kind: Kind| seen.iter().filter(|&&seen| seen == kind as u8).count();
    assert_eq!((count(Kind::Bytes), count(Kind::Piece)), (2, 2), "{seen:?}");
}

fn exchange_one(world: &mut Simulation) {
    while world.arrive(1) {}
    world.flush(1, 1);
    while world.arrive(0) {}
}

#[test]
fn full_transport_in_both_directions_makes_progress() {
    let mut world = connected(Limits { requests: 40, ..TIGHT });
    for lane in &mut world.transports {
        lane.most = LARGEST;
    }
    let mut begun = [0; 2];
    for _ in 0..3000 {
        for side in [0, 1] {
            while world.get(side, 0, 0, 200, None).is_ok() || world.put(side, 0, 0, 200, None).is_ok() {
                begun[side] += 1;
            }
        }
        for side in [0, 1] {
            world.arrive(side);
            world.flush(side, 1);
        }
    }
    assert!(begun.iter().all(|&begun| begun > 500), "{begun:?}");
    (0..20).for_each(|_| exchange(&mut world));
    world.finish_memory();
}

#[test]
fn request_limit_of_the_peer_blocks_and_unblocks() {
    let mut world = connected(Limits { requests: 3, ..WIDE });
    for _ in 0..3 {
        assert!(world.put(0, 0, 0, 8, None).is_ok());
    }
    assert_eq!(world.put(0, 0, 0, 8, None), Err(Rejected::WouldBlock));
    let before = world.nodes[0].side.unblocked;
    exchange(&mut world);
    assert!(world.nodes[0].side.unblocked > before);
    assert!(world.put(0, 0, 0, 8, None).is_ok());
    // A peer that exceeds the limit breaks its link.
    let key = world.nodes[0].side.remote.theirs[0].key;
    let packet = format::write_at(Head::default(), key, 0);
    let node = &mut world.nodes[1];
    let results: Vec<_> = (0..4).map(|_| node.link.arrived(&mut node.side, Kind::Put as u8, &packet, 0)).collect();
    assert_eq!(results[..3], [Ok(()); 3]);
    assert!(results[3].is_err());
}

#[test]
fn side_without_remote_memory_rejects_operations() {
    let mut world = connected(Limits { requests: 0, ..WIDE });
    assert!(!world.nodes[0].link.has_remote_memory());
    assert_eq!(world.put(0, 0, 0, 8, None), Err(Rejected::Closed));
    assert_eq!(world.get(0, 0, 0, 8, None), Err(Rejected::Closed));
}

#[test]
fn waiting_answers_are_bounded() {
    let limits = Limits { requests: 50, ..WIDE };
    let mut world = connected(limits);
    while world.get(0, 0, 0, format::MAX_REPLY_BYTES as u64, None).is_ok() {}
    while world.flush(0, 8) {}
    while world.arrive(1) {}
    let (bytes, _) = world.nodes[1].link.bytes();
    assert!((40 * format::MAX_REPLY_BYTES..150 * format::MAX_REPLY_BYTES).contains(&bytes), "{bytes}");
    exchange(&mut world);
    let (bytes, _) = world.nodes[1].link.bytes();
    assert!(bytes < 2000, "and given back: {bytes}");
}

#[test]
fn revocation_stops_direct_access_first() {
    let mut world = connected(WIDE);
    world.nodes[0].side.remote.slow = false; // the next revocation is answered late
    world.revoke(1, 0, true);
    exchange(&mut world);
    assert!(!world.nodes[1].side.remote.own[0].ended && world.nodes[0].side.remote.forgets.len() == 1);
    assert!(world.put(0, 0, 0, 8, None).is_ok());
    exchange(&mut world);
    assert!(world.nodes[0].side.remote.theirs[0].denied, "accesses by packets are denied");
    world.direct_access_stopped(0);
    exchange(&mut world);
    assert!(world.nodes[1].side.remote.own[0].ended);
}

#[test]
fn revocation_does_not_wait_for_pieces() {
    let mut world = connected(WIDE);
    let slots = [FRONT_BYTES, FRONT_BYTES + SLOT_BYTES].map(|at| at as u64);
    let operations =
        [put(&mut world, slots[0], SLOT_BYTES, false), get(&mut world, slots[1], SLOT_BYTES as u64, false)];
    exchange_one(&mut world);
    world.flush(0, 1);
    world.arrive(1);
    assert!(world.nodes[1].side.remote.writes > 0 && operations.iter().all(|&operation| runs(&world, operation)));
    world.revoke(1, 0, false);
    assert!(world.nodes[1].side.remote.own[0].ended, "at once");
    for operation in operations {
        world.nodes[0].side.remote.running.get_mut(&operation).unwrap().status = Some(Status::AccessDenied);
    }
    exchange(&mut world);
    assert!(!operations.iter().any(|&operation| runs(&world, operation)));
}

#[test]
fn revocation_waits_for_copies() {
    let mut world = connected(WIDE);
    put(&mut world, (FRONT_BYTES + SLOT_BYTES) as u64, SLOT_BYTES, true);
    get(&mut world, FRONT_BYTES as u64, SLOT_BYTES as u64, true);
    exchange(&mut world);
    world.revoke(1, 0, false);
    for side in [1, 0] {
        assert!(!world.nodes[1].side.remote.own[0].ended);
        world.copy_memory(side, true);
        exchange(&mut world);
    }
    assert!(world.nodes[1].side.remote.own[0].ended);
}

#[test]
fn fence_waits_only_for_earlier_operations() {
    let mut world = connected(WIDE);
    let operation = get(&mut world, FRONT_BYTES as u64, SLOT_BYTES as u64, true);
    world.put(0, 0, 0, 8, None).unwrap();
    world.fence(0);
    let fence = world.next;
    world.put(0, 0, 0, 8, None).unwrap();
    exchange(&mut world);
    assert!(runs(&world, operation) && runs(&world, fence));
    world.put(0, 0, 0, 8, None).unwrap();
    world.copy_memory(0, true);
    assert!(!runs(&world, fence));
    world.fence(0);
    assert!(runs(&world, world.next), "the last put");
    exchange(&mut world);
    world.fence(0);
    assert!(!runs(&world, world.next), "nothing is in progress");
}

#[test]
fn broken_link_leaves_buffers_untouched() {
    let mut world = connected(WIDE);
    let operation = get(&mut world, FRONT_BYTES as u64, SLOT_BYTES as u64, true);
    let other = put(&mut world, (FRONT_BYTES + SLOT_BYTES) as u64, SLOT_BYTES, true);
    exchange(&mut world);
    world.fence(0);
    let fence = world.next;
    world.revoke(1, 0, true);
    world.break_link(0);
    assert!(!runs(&world, other));
    assert!(runs(&world, operation) && runs(&world, fence), "its buffer is written until the copy is reported");
    world.copy_memory(0, true);
    assert!(!runs(&world, operation) && !runs(&world, fence));
    world.break_link(1);
    assert!(!world.nodes[1].side.remote.own[0].ended, "and the region until its copy is");
    world.copy_memory(1, true);
    assert!(world.nodes[1].side.remote.own[0].ended);
}

#[test]
fn answers_without_an_operation_break_the_link() {
    let word = |to: u32, own: u16, word: u64| Head { to: SlabId(to), own, grant: 0 }.write_word(word).to_vec();
    let bare = |to: u32, own: u16| Head { to: SlabId(to), own, grant: 0 }.write().to_vec();
    let there =
        format::write_place(Head { to: SlabId(1 << 20), ..Head::default() }, RemoteAddress { address: 1, key: 0 });
    let packets = [
        (Kind::Ack, bare(2, 0)),
        (Kind::Ack, bare(0, 0)),
        (Kind::FetchReply, bare(0, 0)),
        (Kind::FetchReply, bare(0, 9)),
        (Kind::PutCts, word(1 << 20, 0, 5000)),
        (Kind::PutCts, word(2 << 20, 0, 5)),
        (Kind::Bytes, [word(1 << 20, format::OF_GET, 0), vec![0]].concat()),
        (Kind::Bytes, [word(1 << 20, format::OF_PUT, 0), vec![0]].concat()),
        (Kind::GetAddr, there.to_vec()),
        (Kind::GetFin, bare(1 << 20, 0)),
        (Kind::PutFin, bare(3 << 20, 0)),
        (Kind::Revoked, word(0, 0, 5)),
    ];
    for (kind, packet) in packets {
        let mut world = connected(WIDE);
        put(&mut world, FRONT_BYTES as u64, SLOT_BYTES, false); // number 1 << 20
        world.put(0, 0, 0, 8, None).unwrap();
        let node = &mut world.nodes[0];
        let result = node.link.arrived(&mut node.side, kind as u8, &packet, 0);
        assert!(matches!(result, Err(ProtocolViolation(_))), "{kind:?} {packet:?}");
        assert!(node.side.remote.running.is_empty(), "everything has completed");
    }
}

/// Every kind of packet that names a region, with this key; long operations have this number.
fn with_key(key: Key, number: u32) -> Vec<(Kind, Vec<u8>)> {
    let head = |to: u32, own: u16| Head { to: SlabId(to), own, grant: 0 };
    let range = format::Range { key, offset: 0, length: 600 };
    let sum = u16::from(Operation::Sum as u8) | u16::from(Datatype::U64 as u8) << 8;
    let bytes = [0; 8];
    vec![
        (Kind::Put, [&format::write_at(head(0, 0), key, 0)[..], &bytes].concat()),
        (Kind::Put, format::write_at(head(0, 0), key, 0).to_vec()),
        (Kind::Get, format::write_at(head(8, format::VALUE), key, 0).to_vec()),
        (Kind::Get, format::write_at(head(format::REGION_INFO_BYTES as u32, format::QUERY_REGION), key, 0).to_vec()),
        (Kind::Atomic, [&format::write_at(head(1 << 1, sum), key, 0)[..], &bytes].concat()),
        (Kind::PutLong, range.write_at(head(number, 0), RemoteAddress::default()).to_vec()),
        (Kind::GetLong, range.write(head(number, 0)).to_vec()),
    ]
}

#[test]
fn guessed_key_breaks_the_link_and_late_key_is_denied() {
    for (at, (kind, _)) in with_key(Key(1), 0).into_iter().enumerate() {
        let mut world = connected(WIDE);
        let key = world.nodes[1].side.remote.own[0].key;
        let mut number = 1 << 20;
        let mut arrive = |world: &mut Simulation, key: Key| {
            let node = &mut world.nodes[1];
            number += 1;
            node.link.arrived(&mut node.side, kind as u8, &with_key(key, number)[at].1, 0)
        };
        assert_eq!(arrive(&mut world, key), Ok(()), "{kind:?}: the right one");
        world.revoke(1, 0, false);
        assert_eq!(arrive(&mut world, key), Ok(()), "{kind:?}: it comes late");
        assert_eq!(arrive(&mut world, Key(key.0 ^ 1 << (at * 9))), Err(UNKNOWN_REGION_KEY), "{kind:?}");
        assert_eq!(world.nodes[1].link.broken(), Some(UNKNOWN_REGION_KEY));
        assert!(arrive(&mut world, key).is_err(), "{kind:?}: nothing more of it is heard");
    }
}
