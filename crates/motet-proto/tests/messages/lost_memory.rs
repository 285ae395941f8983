//! Memory that is gone: a file that was cut short. Accesses to it end as out of bounds, in order, and nothing else is affected.

use crate::rma::{WIDE, connected, exchange, get, put, runs};
use crate::rma_model::{FRONT_BYTES, SLOT_BYTES};
use crate::side_memory::Running;
use crate::simulation::Simulation;
use motet_proto::message::atomic::{Atomic, Datatype, Operation};
use motet_proto::message::{Status, Update};

/// The status with which an operation must complete.
fn ends(world: &mut Simulation, operation: u64, status: Status) {
    world.nodes[0].side.remote.running.get_mut(&operation).unwrap().status = Some(status);
}

/// Fetches and adds in the front of the region.
fn add(world: &mut Simulation, offset: u64, status: Status) {
    let operation = world.fresh();
    let node = &mut world.nodes[0];
    let theirs = &node.side.remote.theirs[0];
    let (datatype, count) = (Datatype::U64, 1);
    let atomic = Atomic { operation: Operation::Sum, datatype, count, operand: &[1; 8], compare: &[] };
    let update = Update { key: theirs.key, offset, atomic, fetch: true, operation };
    assert_eq!(node.link.atomic(&mut world.transports[0], &update), Ok(()));
    let at = offset as usize;
    let expected = theirs.expected[at..at + 8].to_vec();
    let running = Running { status: Some(status), expected, length: 8, ..Running::default() };
    node.side.remote.running.insert(operation, running);
}

#[test]
fn small_operations_on_lost_memory_fail_in_order() {
    let mut world = connected(WIDE);
    world.nodes[1].side.remote.own[0].left = 100;
    for (offset, status) in
        [(0, Status::Done), (96, Status::OutOfBounds), (92, Status::Done), (200, Status::OutOfBounds)]
    {
        let before = world.nodes[1].side.remote.own[0].bytes.clone();
        let operation = put(&mut world, offset, 8, false);
        ends(&mut world, operation, status);
        if status == Status::Done {
            let (at, body) = (offset as usize, world.nodes[0].side.remote.running[&operation].body.clone());
            world.nodes[0].side.remote.theirs[0].expected[at..at + 8].copy_from_slice(&body);
        }
        let operation = get(&mut world, offset, 8, false);
        ends(&mut world, operation, status);
        exchange(&mut world);
        let changed = world.nodes[1].side.remote.own[0].bytes != before;
        assert_eq!(changed, status == Status::Done, "{offset}");
    }
    add(&mut world, 200, Status::OutOfBounds);
    exchange(&mut world);
    assert!(
        world.nodes[0].side.remote.running.is_empty() && world.nodes.iter().all(|node| node.link.broken().is_none())
    );
    world.finish_memory();
}

#[test]
fn long_operations_end_at_the_first_lost_piece() {
    let (at, length) = (FRONT_BYTES as u64, SLOT_BYTES as u64);
    for shown in [true, false] {
        let mut world = connected(WIDE);
        let operations = [put(&mut world, at, SLOT_BYTES, shown), get(&mut world, at + length, length, shown)];
        operations.iter().for_each(|&operation| ends(&mut world, operation, Status::OutOfBounds));
        world.nodes[1].side.remote.own[0].left = FRONT_BYTES + SLOT_BYTES / 2;
        exchange(&mut world);
        for side in [0, 1] {
            while !world.nodes[side].side.remote.copies.is_empty() {
                world.copy_memory(side, false); // the system cannot copy lost memory either
                exchange(&mut world);
            }
        }
        for operation in operations {
            assert!(!runs(&world, operation));
        }
        assert_eq!(world.seen.get("long put OutOfBounds"), Some(&1), "{:?}", world.seen);
        assert_eq!(world.seen.get("long get OutOfBounds"), Some(&1), "{:?}", world.seen);
        let operation = get(&mut world, 0, 200, false);
        exchange(&mut world);
        assert!(!runs(&world, operation), "the link goes on");
    }
}
