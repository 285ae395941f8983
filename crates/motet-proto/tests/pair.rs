//! Both ends of the protocol under a virtual clock: random schedules keep every byte in order in both directions, and lose no wake-up.
//!
//! A failure names its seed. `MOTET_SEED=n cargo test -p motet-proto --test pair` runs that seed alone; `MOTET_SEEDS=n` runs `n` seeds.

mod support;

use motet_driver_loopback::memory::ExposedSlot;
use motet_driver_loopback::plan::{Fault, Plan, When};
use motet_wire::sync::Ordering::Relaxed;
use std::panic::{AssertUnwindSafe, catch_unwind};
use support::World;
use support::prng::Prng;
use support::schedule;

/// Number of seeds of each test.
const SEEDS: u64 = 3000;

/// Runs `one` for every seed, or for the one that MOTET_SEED names.
fn each_seed(first: u64, one: impl Fn(u64, &ExposedSlot)) {
    let memory = ExposedSlot::new(4096).unwrap();
    if let Some(seed) = std::env::var("MOTET_SEED").ok().and_then(|s| s.parse().ok()) {
        return one(seed, &memory);
    }
    let seeds = std::env::var("MOTET_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(SEEDS);
    for seed in first..first + seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| one(seed, &memory))) {
            eprintln!("failed with MOTET_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

fn run(world: &World, steps: u64) {
    for _ in 0..steps {
        let side = world.prng.borrow_mut().below(2) as usize;
        world.calls.set(0);
        schedule::step(world, side);
        world.check();
    }
    world.calls.set(0);
    schedule::finish(world);
}

#[test]
fn random_schedule_keeps_byte_order() {
    each_seed(0, |seed, memory| {
        let mut world = World::new(memory, Prng(seed), 3000, Plan::new());
        world.readers = 1 + seed as usize % 2;
        run(&world, 120);
    });
}

#[test]
fn interleaved_steps_keep_byte_order() {
    each_seed(1_000_000, |seed, memory| {
        let mut world = World::new(memory, Prng(seed), 700, Plan::new());
        world.weave = 2 + seed % 12;
        world.readers = 1 + seed as usize % 2;
        run(&world, 120);
    });
}

/// Readers outside the engine find every byte in TCP, in order, as soon as they have the descriptor.
#[test]
fn handed_over_descriptors_keep_byte_order() {
    let handed_over = std::cell::Cell::new(0);
    each_seed(5_000_000, |seed, memory| {
        let mut world = World::new(memory, Prng(seed), 4200 + 400 * (seed as usize % 12), Plan::new());
        world.hands_over = true;
        world.weave = if seed % 3 == 0 { 0 } else { 2 + seed % 12 };
        world.readers = 1 + seed as usize % 2;
        run(&world, 160);
        handed_over.set(handed_over.get() + world.sides.iter().filter(|side| side.handed_over.get()).count());
    });
    if std::env::var_os("MOTET_SEED").is_none() {
        assert!(handed_over.get() > 500, "only {} descriptors were handed over", handed_over.get());
    }
}

#[test]
fn single_copy_keeps_byte_order() {
    let copied = std::cell::Cell::new(0);
    each_seed(2_000_000, |seed, memory| {
        let mut world = World::new(memory, Prng(seed), 50_000, Plan::new());
        world.weave = 2 + seed % 30;
        world.single_copy();
        run(&world, 120);
        let copies = |side: usize| world.sides[side].record.events.single_copy.load(Relaxed);
        copied.set(copied.get() + copies(0) + copies(1));
    });
    if std::env::var_os("MOTET_SEED").is_none() {
        assert!(copied.get() > 100, "only {} transfers by single copy", copied.get());
    }
}

#[test]
fn planned_faults_keep_byte_order() {
    each_seed(3_000_000, |seed, memory| {
        let mut prng = Prng(seed);
        let mut plan = Plan::new();
        for _ in 0..6 {
            let when = match prng.below(3) {
                0 => When::Send(prng.below(20)),
                1 => When::Byte(prng.below(20_000)),
                _ => When::Time(prng.below(3_000_000)),
            };
            let fault = match prng.below(4) {
                0 => Fault::Hold(prng.below(400_000)),
                1 => Fault::Short { most: 1 + prng.below(9) as usize, times: 1 + prng.below(50) },
                2 => Fault::ReverseWakeups,
                _ => Fault::Again(prng.below(40)),
            };
            plan = plan.with(prng.below(2) as usize, when, fault);
        }
        let mut world = World::new(memory, prng, 1500, plan);
        world.weave = 10;
        world.readers = 1 + seed as usize % 2;
        run(&world, 150);
    });
}

#[test]
fn changes_between_rings_keep_byte_order() {
    let memory = ExposedSlot::with_bulk(4096, 16384).unwrap();
    let wide = std::cell::Cell::new(0);
    each_seed(4_000_000, |seed, _| {
        let mut world = World::new(&memory, Prng(seed), 5000, Plan::new());
        world.weave = 3 + seed % 12;
        world.readers = 1 + seed as usize % 2;
        world.most = 20_000;
        for side in &world.sides {
            side.record.rx.bulk_scores.store(motet_proto::stream::bulk::BULK_SCORE, Relaxed); // as after many large receives
        }
        run(&world, 120);
        wide.set(wide.get() + world.sides.iter().filter(|s| s.record.tx.wide.load(Relaxed) != 0).count());
    });
    if std::env::var_os("MOTET_SEED").is_none() {
        assert!(wide.get() > 500, "only {} streams ended in the large ring", wide.get());
    }
}

/// The random schedules reach the paths that they are meant to test.
#[test]
fn schedules_reach_every_path() {
    let memory = ExposedSlot::new(4096).unwrap();
    let (mut raised, mut spilled, mut downgraded, mut lost_puts, mut ring, mut tcp) = (0, 0, 0, 0, 0, 0);
    for seed in 0..300 {
        let mut world = World::new(&memory, Prng(seed), 700, Plan::new());
        world.weave = 6;
        run(&world, 120);
        for side in &world.sides {
            let n = |a: &std::sync::atomic::AtomicU64| a.load(Relaxed);
            raised += n(&side.record.events.raised);
            spilled += n(&side.record.events.spilled);
            downgraded += n(&side.record.events.downgraded);
            lost_puts += n(&side.record.events.lost_puts);
            ring += side.record.fast_bytes().0;
            tcp += side.record.tcp_bytes().0;
        }
    }
    let reached = format!(
        "{raised} raised, {spilled} spilled, {downgraded} downgraded, {lost_puts} lost puts, {ring} and {tcp} bytes"
    );
    assert!(raised > 1000 && spilled > 20 && downgraded > 300 && ring > 100_000 && tcp > 100_000, "{reached}");
    println!("{reached}");
}
