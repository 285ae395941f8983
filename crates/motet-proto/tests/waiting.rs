//! When a wait spins and when it does not: the spins are counted, in virtual time.

mod support;

use motet_driver_loopback::memory::ExposedSlot;
use motet_driver_loopback::plan::Plan;
use motet_proto::{
    EAGAIN, EINTR,
    stream::{Patience, exchange, gate, rx, spin, tx},
};
use motet_wire::sync::Ordering::Relaxed;
use std::cell::Cell;
use std::rc::Rc;
use support::prng::Prng;
use support::{RECEIVE_WITHOUT_SLEEP, SEND, SLEEP, Side, World};

const SPIN: rx::Request = rx::Request { spin: 30_000, ..SLEEP };

fn world() -> Box<World> {
    let memory = ExposedSlot::new(4096).unwrap();
    World::new(&memory, Prng(1), 100_000, Plan::new())
}

/// A receive that finds nothing, sleeps, and is woken by 10 bytes over TCP.
fn wait_without_success(world: &World) {
    assert_eq!(world.receive(1, 1, 100, SPIN), rx::Step::Kernel);
    world.clock.advance(1_000_000);
    assert_eq!(world.send(0, 10, SEND), tx::Step::Kernel);
    assert!(world.send_on(0, false) && world.receive_on(1, 1, true));
}

fn misses(world: &World) -> u64 {
    world.sides[1].record.events.spin_misses.load(Relaxed)
}

#[test]
fn failed_spins_become_rare() {
    let world = world();
    (0..3000).for_each(|_| wait_without_success(&world));
    // After the nth the next 2^n - 1 waits go straight to the kernel, 511 at most.
    let spins = misses(&world);
    assert!((9..=15).contains(&spins), "{spins} spins in 3000 waits");
    assert_eq!(world.sides[1].record.events.raised.load(Relaxed), spins, "the gate opens for a spin alone");
}

#[test]
fn successful_spin_makes_next_waits_spin() {
    let world = world();
    (0..100).for_each(|_| wait_without_success(&world));
    let me = &world.sides[1];
    let before = misses(&world);
    me.record.rx.spin_skips.store(0, Relaxed);
    spin::note_spin_success(&me.record);
    (0..2).for_each(|_| wait_without_success(&world));
    assert_eq!(
        (misses(&world) - before, me.record.rx.failed_spins.load(Relaxed)),
        (1, 1),
        "as if none had failed before"
    );
}

#[test]
fn short_sleep_makes_next_waits_spin() {
    let world = world();
    (0..600).for_each(|_| wait_without_success(&world));
    let me = &world.sides[1];
    let (skip, failed) = (me.record.rx.spin_skips.load(Relaxed), me.record.rx.failed_spins.load(Relaxed));
    assert!(skip > 4 && failed > 4);
    assert_eq!(world.receive(1, 1, 100, SPIN), rx::Step::Kernel);
    assert_eq!(world.send(0, 10, SEND), tx::Step::Kernel);
    assert!(world.send_on(0, false) && world.receive_on(1, 1, true));
    assert!(me.record.rx.spin_skips.load(Relaxed) <= skip / 4 && me.record.rx.failed_spins.load(Relaxed) == failed / 2);
}

#[test]
fn failed_polls_on_contended_cpus_become_rare() {
    let world = world();
    world.contended.set(true);
    let soon = || {
        assert_eq!(world.receive(1, 1, 100, SPIN), rx::Step::Kernel);
        assert_eq!(world.send(0, 10, SEND), tx::Step::Kernel);
        assert!(world.send_on(0, false) && world.receive_on(1, 1, true));
    };
    (0..6300).for_each(|_| soon());
    // After the nth the next 2^n - 1 waits go straight to the kernel, 63 at most.
    let looks = misses(&world);
    assert!((98..=106).contains(&looks), "{looks} looks in 6300 waits");
    let me = &world.sides[1];
    assert!(me.record.rx.failed_spins.load(Relaxed) == 6);
    // The other threads have gone: the next short sleep is evidence for spinning again.
    world.contended.set(false);
    soon();
    assert_eq!(me.record.rx.failed_spins.load(Relaxed), 3);
}

#[test]
fn peer_waiting_for_this_cpu_gets_it() {
    let world = world();
    let me = &world.sides[1];
    let yields = |there: u32| {
        me.slot.outward().consumer.cpu.store(there, Relaxed);
        me.record.rx.same_cpu.store(0, Relaxed);
        let before = world.calls.get();
        assert!(motet_proto::stream::gate::raise(&me.record, &me.slot, &mut world.platform(1, 1), || true));
        spin::spin(&me.record, &me.slot, &mut world.platform(1, 1), 30_000, false);
        (world.calls.get() - before, me.record.rx.same_cpu.load(Relaxed))
    };
    let (own, other) = (1 + 1, 1); // CPUs are published plus one; end 1 runs on CPU 1
    let (far, near) = (yields(other), yields(own));
    assert_eq!((far.1, near.1), (0, 1));
    assert!(near.0 < far.0, "each look at the gate is followed by a yield: {near:?} {far:?}");
}

#[test]
fn long_send_lets_peer_that_waits_on_this_cpu_run() {
    let world = world();
    let (me, peer) = (&world.sides[0], &world.sides[1]);
    world.yield_ns.set(1000);
    let yields = |length: usize| {
        assert!(gate::raise(&peer.record, &peer.slot, &mut world.platform(1, 1), || true));
        let before = world.clock.time();
        assert!(matches!(world.send(0, length, SEND), tx::Step::Done(_)));
        let took = world.clock.time() - before;
        assert!(matches!(world.receive(1, 1, length, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(_)));
        took >= 1000
    };
    assert!(!yields(6000), "the peer is on another CPU");
    me.slot.outward().consumer.cpu.store(1, Relaxed); // plus one; end 0 runs on CPU 0
    assert!(yields(6000));
    assert_eq!(peer.slot.outward().consumer.cpu.load(Relaxed), 1, "the peer knows where this end runs");
    assert!(!yields(60), "short sends are made in one turn");
    world.contended.set(true);
    assert!(!yields(6000), "another thread would keep the CPU");
}

#[test]
fn wait_begins_with_yield_if_cpu_is_soon_returned() {
    let world = world();
    let me = &world.sides[1];
    // Returns how long a failed spin took, and whether the next one will begin with a yield. Other threads have the CPU for `yield_ns` at every yield.
    let spin = |yield_ns: u64| {
        world.yield_ns.set(yield_ns);
        let before = world.clock.time();
        assert!(motet_proto::stream::gate::raise(&me.record, &me.slot, &mut world.platform(1, 1), || true));
        assert_eq!(
            spin::spin(&me.record, &me.slot, &mut world.platform(1, 1), 30_000, false),
            spin::SpinResult::BudgetSpent
        );
        (world.clock.time() - before, me.record.rx.yield_returned.load(Relaxed))
    };
    let alone = spin(0);
    assert_eq!(alone.1, 0, "no other thread was there");
    assert_eq!(spin(10_000).1, 1);
    let (after, again) = (spin(0), spin(0));
    assert!(after.0 > alone.0, "no yield before the spin: {after:?} {alone:?}");
    assert_eq!((after.1, again), (0, alone), "a yield without effect is the last");
    spin(10_000);
    assert_eq!(spin(1_000_000).1, 0, "a thread that computes does not get the CPU first");
}

#[test]
fn wait_for_answer_begins_when_peer_has_read_request() {
    let lasts = |reads: bool| {
        let mut world = world();
        let due = Rc::new(Cell::new(u64::MAX));
        world.weave = 1;
        let then = due.clone();
        world.scribble = Some(Box::new(move |world: &World| {
            if world.clock.time() >= then.get() {
                then.set(u64::MAX);
                assert_eq!(world.receive(0, 1, 4096, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(4096));
            }
        }));
        let [peer, me] = &world.sides;
        assert!(motet_proto::stream::gate::raise(&peer.record, &peer.slot, &mut world.platform(0, 1), || true));
        assert_eq!(world.send(1, 4096, SEND), tx::Step::Done(4096));
        assert!(motet_proto::stream::gate::raise(&me.record, &me.slot, &mut world.platform(1, 1), || true));
        let began = world.clock.time();
        if reads {
            due.set(began + 20_000);
        }
        assert_eq!(
            spin::spin(&me.record, &me.slot, &mut world.platform(1, 1), 30_000, false),
            spin::SpinResult::BudgetSpent
        );
        world.clock.time() - began
    };
    let (alone, read) = (lasts(false), lasts(true));
    assert!(alone < 40_000 && read > 50_000, "{alone} {read} ns");
}

#[test]
fn long_kernel_receive_may_take_longer_and_count_as_short() {
    let world = world();
    (0..600).for_each(|_| wait_without_success(&world));
    let me = &world.sides[1];
    let skip = me.record.rx.spin_skips.load(Relaxed);
    assert!(skip > 4);
    for (length, left) in [(10, skip - 1), (50_000, (skip - 2) / 4)] {
        assert_eq!(world.receive(1, 1, length, SPIN), rx::Step::Kernel);
        world.clock.advance(30_000);
        assert_eq!(world.send(0, length, SEND), tx::Step::Kernel);
        assert!(world.send_on(0, false) && world.receive_on(1, 1, true));
        assert_eq!(me.record.rx.spin_skips.load(Relaxed), left, "{length} bytes");
    }
}

/// A receive of end 1 after many empty polls, beside threads that compute, where receives rest for 300 ms. The peer sends 10 bytes after `sends_after`
/// ns. Returns the receive's step, its duration in ms, and whether its gate is open at the end.
fn rests(expires: bool, sends_after: u64, interrupted: bool) -> (rx::Step, u64, bool) {
    let mut world = world();
    world.contended.set(true);
    (0..200).for_each(|_| wait_without_success(&world));
    world.patience.set(Patience { ns: 300_000_000, expires });
    world.interrupted.set(interrupted);
    let began = world.clock.time();
    let due = Cell::new(began + sends_after);
    world.weave = 1;
    world.scribble = Some(Box::new(move |world: &World| {
        if world.clock.time() >= due.get() {
            due.set(u64::MAX);
            assert_eq!(world.send(0, 10, SEND), tx::Step::Done(10), "the gate is open");
        }
    }));
    let step = world.receive(1, 1, 100, SPIN);
    (step, (world.clock.time() - began) / 1_000_000, world.gate_is_up(1))
}

#[test]
fn resting_receive_finds_payload_behind_open_gate() {
    for ms in [0, 1, 10, 250] {
        let (step, took, open) = rests(false, ms * 1_000_000, false);
        assert_eq!((step, open), (rx::Step::Done(10), true), "after {ms} ms");
        assert!((ms..=ms + 2).contains(&took), "{took} of {ms} ms");
    }
}

#[test]
fn rest_ends_in_kernel_or_by_timeout_or_signal() {
    assert_eq!(rests(false, u64::MAX / 2, false), (rx::Step::Kernel, 300, false), "invariant 5");
    let (step, took, _) = rests(true, u64::MAX / 2, false);
    assert_eq!((step, took), (rx::Step::Failed(EAGAIN), 300));
    let (step, took, _) = rests(false, u64::MAX / 2, true);
    assert_eq!((step, took), (rx::Step::Failed(EINTR), 0));
}

/// Receives what the peer has sent, on either path.
fn receive_all(world: &World, side: usize) {
    while world.undelivered(side) > 0 {
        if world.receive(side, 1, 4096, RECEIVE_WITHOUT_SLEEP) == rx::Step::Kernel {
            assert!(world.receive_on(side, 1, true));
        }
    }
}

/// Sends a request of 50 bytes to a peer that sleeps in the kernel, or polls (`peer_looks`), and its answer. Returns whether the gate for the answer
/// opened.
fn gate_opens_for_answer(world: &World, peer_looks: bool, answer: usize) -> bool {
    let raise = |side: usize| {
        let Side { record, slot, .. } = &world.sides[side];
        motet_proto::stream::gate::raise(record, slot, &mut world.platform(side, 1), || true)
    };
    let close = |side: usize| {
        let Side { record, slot, .. } = &world.sides[side];
        assert!(motet_proto::stream::gate::close_gate(record, slot, &mut world.platform(side, 1)));
    };
    let send = |side: usize, length: usize| {
        for _ in 0..length.div_ceil(2048) {
            match world.send(side, length.min(2048), SEND) {
                tx::Step::Kernel => assert!(world.send_on(side, false)),
                step => assert_eq!(step, tx::Step::Done(length.min(2048))),
            }
            receive_all(world, 1 - side);
        }
    };
    if peer_looks {
        raise(0);
    }
    send(1, 50);
    let opens = raise(1);
    close(0);
    send(0, answer);
    close(1);
    opens
}

#[test]
fn exchange_with_closed_gate_stays_on_tcp_both_ways() {
    let world = world();
    let count = |times: usize, peer_looks: bool, answer: usize| {
        (0..times).filter(|_| gate_opens_for_answer(&world, peer_looks, answer)).count()
    };
    let first = count(100, false, 200);
    assert_eq!(first, 15, "after 16 requests that found a closed gate it stays closed");
    let later = count(2560, false, 200);
    assert_eq!(later, 10, "one trial in 256");
    // The peer's answers found closed gates, too: each side may wait for the other's trial, and the first request that finds an open gate ends that.
    count(257, true, 200);
    assert_eq!(count(100, true, 200), 100);
}

/// An epoll set does not poll such a stream, nor opens its gate, except for one trial in 256 deliveries.
#[test]
fn epoll_sets_leave_exchange_with_closed_gate_to_kernel() {
    let world = world();
    let record = &world.sides[1].record;
    assert!(!exchange::is_left_to_kernel(record) && !exchange::stays_left_to_kernel(record), "a new stream is polled");
    for _ in 0..20 {
        gate_opens_for_answer(&world, false, 200);
    }
    let polled = (0..2560).filter(|_| {
        let left = exchange::stays_left_to_kernel(record);
        assert!(left || gate_opens_for_answer(&world, false, 200), "the gate opens in a trial");
        !left
    });
    assert_eq!(polled.count(), 10);
    // A trial that finds the peer's gate open ends that.
    while exchange::stays_left_to_kernel(record) {}
    assert!(gate_opens_for_answer(&world, true, 200) && gate_opens_for_answer(&world, true, 200));
    assert!(!exchange::is_left_to_kernel(record));
}

#[test]
fn bulk_answer_uses_open_gate_despite_tcp_requests() {
    let world = world();
    let opened = (0..100).filter(|_| gate_opens_for_answer(&world, false, 40 << 10)).count();
    assert_eq!(opened, 100);
}

#[test]
fn sender_that_must_not_block_waits_no_longer_than_its_bytes_paid_for() {
    let mut world = world();
    let receiver = &world.sides[1];
    assert!(gate::raise(&receiver.record, &receiver.slot, &mut world.platform(1, 1), || true));
    assert_eq!(world.send(0, 4096, SEND), tx::Step::Done(4096), "the ring is full, and pays for 4.1 us");
    let spilled = |world: &World| world.sides[0].record.events.spilled.load(Relaxed);
    let read_at = Rc::new(Cell::new(world.clock.time() + 3_000));
    let then = read_at.clone();
    world.weave = 1;
    world.scribble = Some(Box::new(move |world: &World| {
        if world.clock.time() >= then.get() {
            then.set(u64::MAX);
            assert_eq!(world.receive(1, 1, 100, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(100));
        }
    }));
    assert_eq!((world.send(0, 100, SEND), spilled(&world)), (tx::Step::Done(100), 0));
    // About 1.2 us are left, less than the 2 us that every such sender waits.
    let began = world.clock.time();
    read_at.set(began + 3_000);
    assert_ne!(world.send(0, 100, SEND), tx::Step::Done(100));
    let waited = world.clock.time() - began;
    assert_eq!(spilled(&world), 1);
    assert!((2_000..3_000).contains(&waited), "{waited} ns");
}
