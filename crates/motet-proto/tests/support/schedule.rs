//! Random schedules: one random step of one end, and the end of a schedule, after which everything that was sent must have arrived.

use super::{RECEIVE_WITHOUT_SLEEP, SEND, SLEEP, ThreadState, World};
use motet_driver_loopback::plan::Fault;
use motet_proto::stream::{gate, rx, tx};
use motet_wire::sync::Ordering::Relaxed;

/// Buffers of this size and more may go by single copy, where a schedule allows it.
const MIN_SINGLE_COPY_BYTES: usize = 400;
/// After an interposed wait so many receives may find nothing before the gate closes (as in the engine).
const RECEIVES_AFTER_WAIT: u32 = 2;

/// A random step of one end.
pub fn step(world: &World, side: usize) {
    let me = &world.sides[side];
    if me.failed.get().is_some() {
        return;
    }
    let draw = |n| world.prng.borrow_mut().below(n);
    let size = || world.prng.borrow_mut().size(world.most);
    match draw(16) {
        0..=1 if world.hands_over && draw(40) == 0 => world.hand_over(side, draw(3) > 0),
        0..=5 => write(world, side),
        6..=9 => read(world, side, 1),
        10..=11 => read(world, side, world.readers),
        12 => {
            let ask = rx::Request { peek: true, ..RECEIVE_WITHOUT_SLEEP };
            let thread = world.readers;
            if me.threads[thread].get() == ThreadState::Idle
                && world.receive(side, thread, size(), ask) == rx::Step::Kernel
            {
                world.receive_on(side, thread, false);
            }
        }
        13 => {
            gate::raise(&me.record, &me.slot, &mut world.platform(side, 2), || true);
        }
        14 => match draw(4) {
            0 => {
                gate::close_gate(&me.record, &me.slot, &mut world.platform(side, 2));
            }
            1 => world.before_sleep(side, 0),
            2 => {
                let _ = rx::ready(&me.record, &me.slot);
            }
            _ => {
                let fault = match draw(3) {
                    _ if world.hands_over => Fault::Hold(draw(3) * 40_000),
                    0 => Fault::Hold(draw(3) * 40_000),
                    1 => Fault::Short { most: 1 + draw(40) as usize, times: 1 + draw(4) },
                    _ => Fault::Again(draw(3)),
                };
                me.end.connection(|c| c.inject(side, fault));
            }
        },
        _ => world.clock.advance(draw(60_000)),
    }
}

fn write(world: &World, side: usize) {
    let me = &world.sides[side];
    let draw = |n| world.prng.borrow_mut().below(n);
    match me.threads[0].get() {
        ThreadState::Sending(_) => {
            world.send_on(side, draw(3) == 0);
        }
        _ if me.shut.get() => {}
        _ => {
            let length = world.prng.borrow_mut().size(world.most);
            let half = if draw(2) == 0 { 0 } else { usize::MAX };
            let ask = tx::Request {
                kernel_only: draw(8) == 0,
                nonblocking: draw(2) == 0,
                large: MIN_SINGLE_COPY_BYTES,
                large_far: MIN_SINGLE_COPY_BYTES,
                half,
            };
            let step = world.send(side, length, if draw(4) == 0 { SEND } else { ask });
            if step == tx::Step::Kernel && draw(3) > 0 {
                world.send_on(side, false);
            }
        }
    }
}

fn read(world: &World, side: usize, thread: usize) {
    let me = &world.sides[side];
    let draw = |n| world.prng.borrow_mut().below(n);
    if me.threads[thread].get() != ThreadState::Idle {
        world.receive_on(side, thread, true);
        return;
    }
    let length = world.prng.borrow_mut().size(world.most);
    if me.handed_over.get() && draw(2) == 0 {
        world.read_elsewhere(side, length);
        return;
    }
    if thread == world.readers && draw(3) == 0 {
        return go_blind(world, side, thread);
    }
    if draw(3) == 0 {
        if world.receive(side, thread, length, RECEIVE_WITHOUT_SLEEP) == rx::Step::Kernel {
            world.receive_on(side, thread, false);
        }
        return;
    }
    me.record.rx.evidence_left.store(RECEIVES_AFTER_WAIT, Relaxed);
    let spin = if draw(4) == 0 { 0 } else { 4_000 };
    let ask = rx::Request { spin, large: MIN_SINGLE_COPY_BYTES, kernel_only: draw(8) == 0, ..SLEEP };
    world.receive(side, thread, length, ask);
}

/// Receives until nothing is left, then sleeps in the kernel without the protocol's knowledge (a raw epoll_wait, another library).
fn go_blind(world: &World, side: usize, thread: usize) {
    let me = &world.sides[side];
    for _ in 0..1000 {
        let before = me.received.get();
        match world.receive(side, thread, 4096, RECEIVE_WITHOUT_SLEEP) {
            rx::Step::Done(_) => {}
            rx::Step::Kernel => {
                world.receive_on(side, thread, false);
                if me.received.get() == before {
                    break;
                }
            }
            rx::Step::Poll | rx::Step::Failed(_) => break,
        }
        if me.eof.get() {
            return;
        }
    }
    if me.threads[thread].get() == ThreadState::Idle {
        world.before_sleep(side, thread);
        me.threads[thread].set(ThreadState::Blind);
    }
}

/// Ends all sends, closes both ends and reads everything. At the end no bytes may be missing and no side may sleep.
pub fn finish(world: &World) {
    for round in 0.. {
        world.clock.advance(1_000_000);
        let mut done = true;
        for side in 0..2 {
            let me = &world.sides[side];
            me.end.connection(|c| c.inject(side, Fault::Again(0)));
            if me.threads[0].get() != ThreadState::Idle {
                done &= world.send_on(side, true);
            }
            if me.threads[0].get() == ThreadState::Idle && !me.shut.get() {
                done &= world.shut(side);
            }
            for thread in 1..super::THREADS {
                if me.threads[thread].get() != ThreadState::Idle {
                    world.receive_on(side, thread, true);
                } else if thread == 1 && !me.eof.get() && me.handed_over.get() {
                    world.read_elsewhere(side, 3000); // nothing is left to the engine's readers
                } else if thread == 1 && !me.eof.get() {
                    world.receive(side, thread, 3000, SLEEP);
                }
                done &= me.threads[thread].get() == ThreadState::Idle;
            }
            done &= me.eof.get();
            world.check();
        }
        if done {
            break;
        }
        assert!(round < 10_000, "lost wake-up: a side sleeps for ever: {:?}", world.sides);
    }
    for side in 0..2 {
        assert_eq!(world.undelivered(side), 0, "bytes are missing at end {side}");
    }
}
