//! Random schedules of everything that a side can do.

use crate::prng::Prng;
use crate::seeds;
use crate::simulation::{Name, Simulation, TIGHT};
use motet_proto::message::matching::{Scope, Selector, Source};
use motet_proto::message::{Limits, Mode, Packets, Reception, Rejected, Rights, Sent};
use std::collections::BTreeMap;

fn selector(prng: &mut Prng, scope: Scope) -> Selector {
    let ignore = [0, 0, 3, u64::MAX, 1][prng.below(5) as usize];
    Selector { from: Source::One(scope), tag: prng.below(4), ignore }
}

/// Sends in progress: side, operation, number.
pub type Pending = Vec<(usize, u64, motet_proto::message::slab::SlabId)>;

/// One step of one side.
pub fn step(world: &mut Simulation, side: usize, pending: &mut Pending) {
    let draw = world.prng.below(60);
    let ways = world.nodes[side].ways.len();
    let way = if ways > 0 { world.prng.below(ways as u64) as usize } else { 0 };
    match draw {
        0..=8 if ways > 0 => {
            let length = if world.prng.one_in(12) { 0 } else { world.prng.size(9000) as u64 };
            let mode = [Mode::Automatic, Mode::Automatic, Mode::Inject, Mode::Synchronous];
            let mode = mode[world.prng.below(4) as usize];
            let tag = world.prng.below(4);
            let before = world.next + 1;
            match world.send(side, way, tag, length, mode) {
                Ok(Sent::Pending(number)) => pending.push((side, before, number)),
                Ok(Sent::Complete) => assert!(length <= TIGHT.eager && mode != Mode::Synchronous),
                Err(refusal) => {
                    assert!(refusal != Rejected::LinkDown || world.nodes[side].link.broken().is_some(), "{refusal:?}")
                }
            }
        }
        9..=13 if ways > 0 => {
            let Reception::Matched(scope) = world.nodes[side].ways[way].reception else { return };
            if world.nodes[side].side.reads.len() > 40 {
                return;
            }
            let selector = selector(&mut world.prng, scope);
            let capacity = if world.prng.one_in(3) { world.prng.below(3000) } else { 9000 };
            world.post(side, selector, capacity as usize);
        }
        14 if ways > 0 => {
            let Reception::Matched(scope) = world.nodes[side].ways[way].reception else { return };
            let selector = selector(&mut world.prng, scope);
            let node = &mut world.nodes[side];
            let seen = node.side.table.peek(selector).map(|held| held.headers().to_vec());
            let held = node.side.table.claim(selector);
            assert_eq!(seen, held.as_ref().map(|held| held.headers().to_vec()));
            if let Some(held) = held {
                world.claimed.insert(Name::read(held.headers()));
                node.side.held.push(held);
            }
        }
        15 | 16 if !world.nodes[side].side.held.is_empty() => {
            let held = world.nodes[side].side.held.remove(0);
            let take = (!world.prng.one_in(5)).then(|| world.prng.below(9001) as usize);
            world.decide(side, held, take);
        }
        17 => {
            let node = &mut world.nodes[side];
            let Some((&operation, _)) = node.side.reads.iter().find(|read| read.1.ticket.is_some()) else { return };
            let read = node.side.reads.remove(&operation).unwrap();
            let receive = node.side.table.cancel(read.ticket.unwrap()).expect("it waits");
            assert_eq!(receive.operation, operation);
            assert_eq!(node.side.table.cancel(read.ticket.unwrap()), None);
        }
        18 if !pending.is_empty() => {
            let at = world.prng.below(pending.len() as u64) as usize;
            let (side, operation, number) = pending.swap_remove(at);
            if !world.nodes[side].side.sends.contains_key(&operation) {
                return; // completed: its number may be in use again
            }
            if world.nodes[side].link.cancel(number) {
                let name = world.names[&operation];
                if let Some(message) = world.unmatched.get_mut(&name) {
                    message.1 = true;
                }
            }
        }
        19 if world.prng.one_in(3) => {
            let matched = !world.prng.one_in(3);
            let opened = world.open(side, matched);
            assert!(
                opened.is_ok() || world.nodes[side].link.counts()[0] > 0 || !world.nodes[side].link.is_hello_received()
            );
        }
        20 if ways > 0 && world.prng.one_in(12) => {
            let channel = world.nodes[side].ways[way].channel;
            assert!(world.nodes[side].link.close(channel).is_ok());
        }
        21 if ways > 0 && world.prng.one_in(20) => world.release(side, way),
        22..=24 if !world.nodes[side].side.copies.is_empty() => {
            let allowed = !world.prng.one_in(3);
            world.copy(side, allowed);
        }
        25..=31 => drop(world.arrive(side)),
        32..=37 => {
            let pieces = world.prng.below(4) as usize;
            world.flush(side, pieces);
        }
        38 => world.transports[side].delay = world.prng.below(60),
        39 => world.now += world.prng.below(30),
        40..=51 => world.operate(side),
        52 => world.fence(side),
        53..=55 if !world.nodes[side].side.remote.copies.is_empty() => {
            let allowed = !world.prng.one_in(3);
            world.copy_memory(side, allowed);
        }
        56 => world.direct_access_stopped(side),
        57 if world.prng.one_in(10) => {
            let regions = world.nodes[side].side.remote.own.len() as u64;
            let (region, told) = (world.prng.below(regions) as usize, world.prng.one_in(2));
            world.revoke(side, region, told);
            if regions < 40 {
                world.register(side, Rights::ALL);
            }
        }
        58 if !world.nodes[side].side.copies.is_empty() => world.lend(side),
        59 if !world.nodes[side].side.lent.is_empty() => world.give_back(side),
        _ => {}
    }
}

/// Lets everything complete: all receivers take what there is.
pub fn settle(world: &mut Simulation) {
    let mut idle = 0;
    while idle < 3 {
        idle += 1;
        world.now += 100;
        for side in [0, 1] {
            while world.flush(side, 3) && world.transports[side].room() > 1000 {}
            while world.arrive(side) {
                idle = 0;
            }
            while !world.nodes[side].side.copies.is_empty() {
                world.copy(side, true);
                idle = 0;
            }
            while !world.nodes[side].side.lent.is_empty() {
                world.give_back(side);
                idle = 0;
            }
            while !world.nodes[side].side.remote.copies.is_empty() {
                world.copy_memory(side, true);
                idle = 0;
            }
            while !world.nodes[side].side.remote.forgets.is_empty() {
                world.direct_access_stopped(side);
                idle = 0;
            }
            for way in 0..world.nodes[side].ways.len() {
                let Reception::Matched(scope) = world.nodes[side].ways[way].reception else { continue };
                let any = Selector { from: Source::One(scope), tag: 0, ignore: u64::MAX };
                while world.nodes[side].side.table.peek(any).is_some() {
                    world.post(side, any, 9000);
                    idle = 0;
                }
            }
            for held in std::mem::take(&mut world.nodes[side].side.held) {
                world.decide(side, held, Some(9000));
                idle = 0;
            }
        }
    }
}

/// Every operation completes, and all memory is released, once everything put has arrived by `settle`.
pub fn finish(world: &mut Simulation, settle: impl Fn(&mut Simulation)) {
    for side in [0, 1] {
        assert!(world.nodes[side].side.sends.is_empty(), "sends end: {:?}", world.nodes[side].side.sends.keys());
        while !world.nodes[side].ways.is_empty() {
            world.release(side, 0);
        }
    }
    settle(world);
    for side in [0, 1] {
        let node = &world.nodes[side];
        assert!(node.side.reads.is_empty(), "receives end");
        assert!(node.side.table.is_empty());
        assert_eq!((node.link.counts(), node.link.bytes().1), ([0; 3], 0), "side {side}");
        assert!(node.side.table.bytes() < 200_000);
    }
}

fn run(seed: u64, limits: Limits, room: usize, resets: bool) -> BTreeMap<String, u64> {
    let mut world = Simulation::new(seed, limits, room);
    for side in [0, 0, 1] {
        world.register(side, Rights::ALL);
    }
    let mut pending = Vec::new();
    let steps = 200 + world.prng.below(2500);
    let end = if resets { world.prng.below(steps) } else { steps };
    for _ in 0..end {
        let side = world.prng.below(2) as usize;
        step(&mut world, side, &mut pending);
    }
    if resets {
        let side = world.prng.below(2) as usize;
        world.break_link(side);
        for _ in 0..world.prng.below(100) {
            step(&mut world, 1 - side, &mut pending);
        }
        world.break_link(1 - side);
        for side in [0, 1] {
            while !world.nodes[side].side.copies.is_empty() {
                world.copy(side, true);
            }
            while !world.nodes[side].side.remote.copies.is_empty() {
                world.copy_memory(side, true);
            }
        }
    }
    settle(&mut world);
    let released = world.lossy;
    let left: Vec<_> = world.unmatched.iter().filter(|(_, message)| !message.1).collect();
    assert!(released || left.is_empty(), "lost: {left:?}");
    finish(&mut world, settle);
    world.finish_memory();
    world.seen
}

#[test]
fn random_schedules_hold_with_tight_limits() {
    seeds(400, |seed| drop(run(seed, TIGHT, 2500, false)));
}

#[test]
fn random_schedules_hold_with_wide_limits() {
    let limits = Limits { window: 1 << 20, max_rendezvous: 100, channels: 50, ahead: 4000, eager: 4000, ..TIGHT };
    seeds(200, |seed| drop(run(seed, limits, 100_000, false)));
}

#[test]
fn random_schedules_hold_with_a_tiny_window() {
    let limits = Limits { window: 0, max_rendezvous: 2, ..TIGHT };
    seeds(100, |seed| drop(run(seed, limits, 2500, false)));
}

#[test]
fn reset_at_any_point_completes_everything() {
    seeds(600, |seed| drop(run(seed, TIGHT, 2500, true)));
}

#[test]
fn schedules_reach_every_result_of_rma_operations() {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    for (seed, resets) in (0..60).flat_map(|seed| [(seed, false), (seed, true)]) {
        for (what, count) in run(seed, TIGHT, 2500, resets) {
            *seen.entry(what).or_default() += count;
        }
    }
    for kind in ["small", "value", "long get", "long put"] {
        for status in ["Done", "AccessDenied", "LinkDown"] {
            // An access that is denied has no value.
            assert!(
                kind == "value" && status == "AccessDenied" || seen.contains_key(&format!("{kind} {status}")),
                "{seen:?}"
            );
        }
    }
    let others = ["small OutOfBounds", "long get OutOfBounds", "long put OutOfBounds", "fence Done", "fence LinkDown"];
    let copies = ["copy true true", "copy true false", "copy false true", "copy false false"];
    let short = ["a message by the fast path"];
    assert!(others.iter().chain(&copies).chain(&short).all(|&what| seen.contains_key(what)), "{seen:?}");
}
