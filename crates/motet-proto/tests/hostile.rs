//! A hostile peer that writes anything anywhere in the shared slot, between steps and in the middle of them. It causes no panic, no access out of
//! bounds and no endless loop; at worst garbage in its own stream, or a reset.
//!
//! A failure names its seed; `MOTET_SEED=n` runs that one alone.

mod support;

use motet_driver_loopback::memory::ExposedSlot;
use motet_driver_loopback::plan::{Fault, Plan};
use motet_proto::{
    EAGAIN, ECONNRESET,
    stream::{bulk, gate, rx, tx},
};
use motet_wire::stream::record::State;
use motet_wire::sync::Ordering::Relaxed;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use support::prng::Prng;
use support::{RECEIVE_WITHOUT_SLEEP, SEND, SLEEP, ThreadState, World};

const SEEDS: u64 = 4000;
/// Bytes with the words of both directions.
const CONTROL: u64 = 2304;

/// Overwrites one to three words with anything, with a value near the present one, or with some bits changed.
fn scribble(memory: &ExposedSlot, prng: &mut Prng) {
    for _ in 0..1 + prng.below(3) {
        // Mostly the words that matter: the first four lines of each direction, and those for large transfers.
        let at = match prng.below(8) {
            0 => prng.below(memory.size() as u64),
            1 | 2 => prng.below(CONTROL / 8) * 8,
            3 => prng.below(2) * 1024 + 192 + prng.below(32) * 8,
            _ => prng.below(2) * 1024 + prng.below(3) * 64 + prng.below(3) * 8,
        } as usize;
        let now = memory.word(at);
        let value = match prng.below(10) {
            0 => prng.next(),
            1 => 0,
            2 => u64::MAX,
            3 => now ^ 1,
            4 => now ^ 1 << prng.below(64),
            5 => now.wrapping_add(prng.below(200)),
            6 => now.wrapping_sub(prng.below(200)),
            7 => now.wrapping_add(prng.below(10_000) << 1),
            8 => memory.word((at + 64) % memory.size()),
            _ => u64::from(prng.next() as u32),
        };
        memory.write(at, &value.to_ne_bytes());
    }
}

/// One random step of the honest end: a send, a receive, or a change of the gate.
fn honest(world: &World) {
    let me = &world.sides[0];
    let draw = |n| world.prng.borrow_mut().below(n);
    let length = world.prng.borrow_mut().size(20_000);
    if me.record.state() == State::Broken {
        return;
    }
    match draw(12) {
        0..=3 => {
            if me.threads[0].get() == ThreadState::Idle {
                let half = if draw(2) == 0 { 0 } else { usize::MAX };
                world.send(
                    0,
                    length,
                    tx::Request {
                        kernel_only: draw(6) == 0,
                        nonblocking: draw(2) == 0,
                        large: 700,
                        large_far: 700,
                        half,
                    },
                );
            } else {
                world.send_on(0, false);
            }
        }
        4..=8 => {
            if me.threads[1].get() == ThreadState::Idle {
                let spin = if draw(3) == 0 { 0 } else { 3000 };
                let ask = if draw(3) == 0 { RECEIVE_WITHOUT_SLEEP } else { rx::Request { spin, large: 700, ..SLEEP } };
                world.receive(0, 1, length, rx::Request { peek: draw(8) == 0, ..ask });
            } else {
                world.receive_on(0, 1, false);
            }
        }
        9 => world.before_sleep(0, 0),
        10 => {
            gate::raise(&me.record, &me.slot, &mut world.platform(0, 1), || true);
            let _ = rx::ready(&me.record, &me.slot);
        }
        _ => {
            gate::close_gate(&me.record, &me.slot, &mut world.platform(0, 1));
        }
    }
}

fn one(seed: u64, memory: &Rc<ExposedSlot>) {
    let mut world = World::new(memory, Prng(seed), 3000, Plan::new());
    world.single_copy();
    world.weave = 3 + seed % 20;
    world.sides[0].record.rx.bulk_scores.store(if seed.is_multiple_of(2) { bulk::BULK_SCORE } else { 0 }, Relaxed);
    let (shared, dice) = (memory.clone(), std::cell::RefCell::new(Prng(!seed)));
    world.scribble = Some(Box::new(move |world| {
        let mut dice = dice.borrow_mut();
        scribble(&shared, &mut dice);
        // A peer that sends nonsense and never leaves may make a call wait; the call must end when the peer leaves.
        if world.calls.get() > 100_000 {
            world.sides[1].end.connection(|c| c.inject(1, Fault::Kill));
        }
        let data = [dice.next() as u8; 100];
        let n = dice.below(100) as usize;
        if dice.one_in(3) {
            let _ = world.sides[1].end.connection(|c| c.send(1, &data[..n]));
        }
    }));
    for _ in 0..60 {
        world.calls.set(0);
        honest(&world);
        scribble(memory, &mut world.prng.borrow_mut());
        let failed = world.sides[0].failed.get();
        assert!(matches!(failed, None | Some(EAGAIN | ECONNRESET | 32)), "{failed:?}");
        world.sides[0].failed.set(None);
    }
}

#[test]
fn random_writes_end_in_garbage_or_reset() {
    let memory = Rc::new(ExposedSlot::with_bulk(4096, 16384).unwrap());
    if let Some(seed) = std::env::var("MOTET_SEED").ok().and_then(|s| s.parse().ok()) {
        return one(seed, &memory);
    }
    let seeds = std::env::var("MOTET_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(SEEDS);
    for seed in 0..seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| one(seed, &memory))) {
            eprintln!("failed with MOTET_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

/// Offsets of the words in the slot: end 0 sends into direction 0 and receives from direction 1.
const MODE_OFFSET: usize = 0;
const CONSUMER_OFFSET: usize = 128;
const INWARD_GATE_OFFSET: usize = 1024;

fn pair() -> (ExposedSlot, Box<World>) {
    let memory = ExposedSlot::new(4096).unwrap();
    let world = World::new(&memory, Prng(1), 3000, Plan::new());
    (memory, world)
}

#[test]
fn tail_beyond_ring_resets() {
    for tail in [4097u64, 1 << 40, u64::MAX >> 1] {
        let (memory, world) = pair();
        memory.write(INWARD_GATE_OFFSET + MODE_OFFSET, &(tail << 2 | 1).to_ne_bytes());
        assert_eq!(world.receive(0, 1, 10, RECEIVE_WITHOUT_SLEEP), rx::Step::Failed(ECONNRESET), "{tail}");
        assert_eq!(world.sides[0].record.state(), State::Broken);
    }
}

#[test]
fn endless_take_back_does_not_block_nonblocking_receive() {
    for (alive, expected) in [(true, EAGAIN), (false, ECONNRESET)] {
        let memory = Rc::new(ExposedSlot::new(4096).unwrap());
        let mut world = World::new(&memory, Prng(1), 3000, Plan::new());
        let (shared, n) = (memory.clone(), std::cell::Cell::new(0u64));
        let ahead = move || {
            // Moves head and tail together: the ring always holds a byte, and it has always just been taken back.
            n.set(n.get() + 1);
            shared.write(INWARD_GATE_OFFSET + MODE_OFFSET, &((n.get() + 1) << 2 | 1).to_ne_bytes());
            shared.write(INWARD_GATE_OFFSET + CONSUMER_OFFSET, &(n.get() << 1).to_ne_bytes());
        };
        ahead();
        world.at_lock = Some(Box::new(ahead));
        if !alive {
            world.sides[1].end.connection(|c| c.inject(1, Fault::Kill));
        }
        let ask = if alive { RECEIVE_WITHOUT_SLEEP } else { SLEEP };
        assert_eq!(world.receive(0, 1, 10, ask), rx::Step::Failed(expected));
    }
}

#[test]
fn foreign_mode_word_resets() {
    let (memory, world) = pair();
    memory.write(MODE_OFFSET, &(3u64 << 2 | 1).to_ne_bytes());
    assert_eq!(world.send(0, 10, SEND), tx::Step::Failed(ECONNRESET));
}

#[test]
fn head_ahead_or_back_resets() {
    for head in [5000u64, u64::MAX >> 1] {
        let (memory, world) = pair();
        assert!(gate::raise(&world.sides[1].record, &world.sides[1].slot, &mut world.platform(1, 1), || true));
        assert_eq!(world.send(0, 4096, SEND), tx::Step::Done(4096));
        memory.write(CONSUMER_OFFSET, &(head << 1).to_ne_bytes());
        assert_eq!(world.send(0, 10, SEND), tx::Step::Failed(ECONNRESET), "{head}");
    }
    let (memory, world) = pair();
    assert!(gate::raise(&world.sides[1].record, &world.sides[1].slot, &mut world.platform(1, 1), || true));
    assert_eq!(world.send(0, 100, SEND), tx::Step::Done(100));
    memory.write(CONSUMER_OFFSET, &(101u64 << 1).to_ne_bytes());
    world.before_sleep(0, 0);
    assert_eq!(world.sides[0].record.state(), State::Broken, "bytes were taken back that were never sent");
}

#[test]
fn small_ring_over_large_ring_bytes_resets() {
    let memory = ExposedSlot::with_bulk(4096, 16384).unwrap();
    let world = World::new(&memory, Prng(1), 3000, Plan::new());
    world.sides[1].record.rx.bulk_scores.store(bulk::BULK_SCORE, Relaxed);
    assert!(gate::raise(&world.sides[1].record, &world.sides[1].slot, &mut world.platform(1, 1), || true));
    assert_eq!(world.send(0, 16384, SEND), tx::Step::Done(16384));
    memory.write(MODE_OFFSET, &(16384u64 << 2 | 1).to_ne_bytes());
    assert_eq!(world.send(0, 10, SEND), tx::Step::Failed(ECONNRESET));
}

#[test]
fn mark_in_the_past_resets() {
    let (memory, world) = pair();
    assert_eq!(world.send(1, 10, tx::Request { kernel_only: true, ..SEND }), tx::Step::Kernel);
    assert!(world.send_on(1, false));
    assert_eq!(world.receive(0, 1, 10, RECEIVE_WITHOUT_SLEEP), rx::Step::Kernel);
    assert!(world.receive_on(0, 1, false));
    assert!(gate::raise(&world.sides[0].record, &world.sides[0].slot, &mut world.platform(0, 1), || true));
    assert_eq!(world.send(1, 10, SEND), tx::Step::Done(10));
    memory.write(INWARD_GATE_OFFSET + 64, &3u64.to_ne_bytes());
    assert_eq!(
        world.receive(0, 1, 10, RECEIVE_WITHOUT_SLEEP),
        rx::Step::Failed(ECONNRESET),
        "TCP bytes would be out of order"
    );
}
