//! The numbered invariants of the stream protocol, one by one, and what happens when the peer dies.

mod support;

use motet_driver_loopback::end::End;
use motet_driver_loopback::memory::ExposedSlot;
use motet_driver_loopback::plan::{Fault, Plan};
use motet_proto::{
    EAGAIN, ECONNRESET,
    stream::{gate, rx, tx},
};
use motet_wire::stream::record::State;
use motet_wire::sync::Ordering::Relaxed;
use support::prng::Prng;
use support::{RECEIVE_WITHOUT_SLEEP, SEND, SLEEP, ThreadState, World};

const KERNEL_ONLY: tx::Request = tx::Request { kernel_only: true, ..SEND };

fn world(room: usize) -> Box<World> {
    let memory = ExposedSlot::new(4096).unwrap();
    World::new(&memory, Prng(1), room, Plan::new())
}

fn raise(world: &World, side: usize) -> bool {
    gate::raise(&world.sides[side].record, &world.sides[side].slot, &mut world.platform(side, 1), || true)
}

fn put(world: &World, side: usize, length: usize) {
    assert_eq!(world.send(side, length, SEND), tx::Step::Done(length));
}

fn send_tcp(world: &World, side: usize, length: usize) {
    assert_eq!(world.send(side, length, KERNEL_ONLY), tx::Step::Kernel);
    assert!(world.send_on(side, false));
}

fn mark(world: &World, to: usize) -> u64 {
    world.sides[to].slot.inward().mark.mark.load(Relaxed)
}

#[test]
fn invariant_1_ring_rises_only_over_an_empty_ring() {
    let world = world(1000);
    assert!(raise(&world, 1));
    put(&world, 0, 60);
    let me = &world.sides[1];
    assert!(!gate::close_gate_over_bytes(&me.record, &me.slot, &mut world.platform(1, 2)));
    assert!(!world.gate_is_up(1));
    assert!(!raise(&world, 1), "60 bytes are unread");
    assert_eq!(world.receive(1, 1, 59, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(59));
    assert!(!raise(&world, 1), "one byte is unread");
    assert_eq!(world.receive(1, 1, 1, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(1));
    assert!(raise(&world, 1));
}

/// The producer returns ring bytes to TCP and sends more there, while the consumer has read a part of what precedes them. A receive with room takes all: the
/// program may conclude that nothing is left, and the kernel has reported its bytes.
#[test]
fn invariant_8_short_receive_leaves_nothing() {
    let world = world(10_000);
    send_tcp(&world, 0, 3000);
    assert!(raise(&world, 1));
    put(&world, 0, 1000);
    assert_eq!(world.receive(1, 1, 500, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(500));
    world.before_sleep(0, 0);
    send_tcp(&world, 0, 2000);
    assert_eq!(world.receive(1, 1, 9999, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(5500));
    assert_eq!(world.receive(1, 1, 9999, RECEIVE_WITHOUT_SLEEP), rx::Step::Kernel);
}

#[test]
fn receive_with_room_takes_tcp_and_ring_in_one_call() {
    let world = world(1000);
    send_tcp(&world, 0, 10);
    assert!(raise(&world, 1));
    put(&world, 0, 30);
    put(&world, 0, 300);
    let peek = rx::Request { peek: true, ..RECEIVE_WITHOUT_SLEEP };
    assert_eq!(world.receive(1, 1, 25, peek), rx::Step::Done(25));
    assert_eq!(world.receive(1, 1, 35, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(35), "ten of TCP, 25 of the ring");
    assert_eq!(world.receive(1, 1, 100, peek), rx::Step::Done(100));
    assert_eq!(world.receive(1, 1, 400, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(305), "the ring's rest");
    assert_eq!(world.undelivered(1), 0);
}

#[test]
fn invariant_2_only_first_put_of_epoch_writes_mark() {
    let world = world(1000);
    send_tcp(&world, 0, 10);
    assert!(raise(&world, 1));
    assert_eq!(mark(&world, 1), 0, "no put yet");
    put(&world, 0, 5);
    assert_eq!(mark(&world, 1), 10);
    put(&world, 0, 50);
    assert_eq!(mark(&world, 1), 10);
    send_tcp(&world, 0, 7);
    assert_eq!((mark(&world, 1), world.in_ring(1)), (65, 0), "unread bytes go to TCP first, and the mark with them");
    assert_eq!(world.receive(1, 1, 100, RECEIVE_WITHOUT_SLEEP), rx::Step::Kernel);
    assert!(world.receive_on(1, 1, false));
    assert_eq!(world.undelivered(1), 0);
    assert!(raise(&world, 1));
    put(&world, 0, 1);
    assert_eq!(mark(&world, 1), 72, "the next epoch");
}

#[test]
fn invariant_3_nothing_goes_over_tcp_while_ring_is_set() {
    let world = world(1000);
    assert!(raise(&world, 1));
    assert_eq!(world.send(0, 10, KERNEL_ONLY), tx::Step::Kernel);
    assert!(!world.gate_is_up(1), "the sender clears RING first");
    // During the kernel send the receiver may open the gate: nothing enters the ring before the send has ended.
    assert!(raise(&world, 1));
    let (record, slot) = (&world.sides[0].record, &world.sides[0].slot);
    let two = [std::io::IoSlice::new(&[1, 2])];
    let step = tx::begin(record, Some(slot), &mut world.platform(0, 2), &two, SEND);
    assert_eq!(step, tx::Step::Kernel, "another thread");
    tx::end(record, &mut world.platform(0, 2), 0);
    assert!(!world.gate_is_up(1));
    assert!(world.send_on(0, false));
    // A full ring spills: the gate closes, and unread bytes go to TCP first. Nothing overtakes bytes for which TCP has no room.
    assert_eq!(world.receive(1, 1, 10, RECEIVE_WITHOUT_SLEEP), rx::Step::Kernel);
    assert!(world.receive_on(1, 1, false));
    assert!(raise(&world, 1));
    put(&world, 0, 4096);
    assert_eq!(world.send(0, 100, SEND), tx::Step::Full);
    assert!(!world.gate_is_up(1));
    assert_eq!((world.in_ring(1), world.sides[0].record.events.spilled.load(Relaxed)), (3096, 1));
    assert_eq!(world.send(0, 100, SEND), tx::Step::Full);
    assert_eq!(world.receive(1, 1, 3000, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(3000), "TCP, and then the ring");
    assert_eq!(world.send(0, 100, SEND), tx::Step::Full, "TCP is full again");
    assert_eq!(world.receive(1, 1, 3000, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(1096));
    assert_eq!(world.send(0, 100, SEND), tx::Step::Kernel);
    assert!(world.send_on(0, false));
}

#[test]
fn invariant_4_ring_stays_set_only_on_evidence() {
    let world = world(1000);
    let me = &world.sides[1];
    // Two interposed waits' worth of evidence: the third receive that finds nothing closes the gate.
    me.record.rx.evidence_left.store(2, Relaxed);
    assert!(raise(&world, 1));
    for open in [true, true, false] {
        assert_eq!(world.receive(1, 1, 10, RECEIVE_WITHOUT_SLEEP), rx::Step::Failed(EAGAIN));
        assert_eq!(world.gate_is_up(1), open);
    }
    // Without RING a receive goes to the kernel; only a blocking one (an interposed wait) opens the gate again.
    assert_eq!(world.receive(1, 1, 10, RECEIVE_WITHOUT_SLEEP), rx::Step::Kernel);
    assert!(world.receive_on(1, 1, false));
    assert!(!world.gate_is_up(1));
    // It stays closed if the stream must stay on TCP.
    me.record.lifecycle.tcp_only.store(1, Relaxed);
    assert!(!raise(&world, 1));
    assert_eq!(world.receive(1, 1, 10, rx::Request { spin: 1000, ..SLEEP }), rx::Step::Kernel);
    assert!(!world.gate_is_up(1));
}

#[test]
fn invariant_5_ring_is_never_set_while_a_thread_sleeps() {
    let world = world(1000);
    assert!(raise(&world, 1));
    assert_eq!(world.receive(1, 1, 10, SLEEP), rx::Step::Kernel);
    assert!(!world.gate_is_up(1), "the sleeper closes it");
    assert!(!raise(&world, 1), "another thread does not open it");
    assert_eq!(world.receive(1, 2, 10, SLEEP), rx::Step::Kernel);
    send_tcp(&world, 0, 3);
    assert!(world.receive_on(1, 1, true));
    assert!(!raise(&world, 1), "the second sleeper is still there");
    send_tcp(&world, 0, 3);
    assert!(world.receive_on(1, 2, true));
    assert!(raise(&world, 1));
    // A thread does not sleep if bytes are in the ring.
    put(&world, 0, 9);
    let me = &world.sides[1];
    assert!(!gate::enter_kernel(&me.record, &me.slot, &mut world.platform(1, 2)));
    assert_eq!(me.record.rx.kernel_calls.load(Relaxed), 0);
    // `allowed` is asked under the lock and may refuse (a set with a sleeper).
    assert_eq!(world.receive(1, 1, 10, SLEEP), rx::Step::Done(9));
    assert!(gate::close_gate(&me.record, &me.slot, &mut world.platform(1, 2)));
    assert!(!gate::raise(&me.record, &me.slot, &mut world.platform(1, 2), || false));
    assert!(!world.gate_is_up(1));
}

#[test]
fn invariant_6_unread_bytes_go_back_to_tcp_before_a_sleep() {
    let world = world(40);
    assert!(raise(&world, 1));
    put(&world, 0, 30);
    world.sides[1].threads[1].set(ThreadState::Blind); // its reader waits where the protocol cannot see it
    world.before_sleep(0, 0);
    assert!(world.receive_on(1, 1, true), "the kernel wakes it");
    assert_eq!((world.in_ring(1), mark(&world, 1)), (0, 30));
    assert_eq!(world.receive(1, 1, 100, RECEIVE_WITHOUT_SLEEP), rx::Step::Kernel);
    assert!(world.receive_on(1, 1, false));
    assert_eq!(world.undelivered(1), 0);

    // Bytes that TCP does not accept stay in the ring; the mark moves by those that it accepted.
    assert!(raise(&world, 1));
    put(&world, 0, 60);
    world.before_sleep(0, 0);
    assert_eq!((world.in_ring(1), mark(&world, 1)), (20, 70));
    assert_eq!(world.receive(1, 1, 100, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(60));

    // Before TCP bytes follow the ring, it is emptied.
    assert!(raise(&world, 1));
    put(&world, 0, 10);
    send_tcp(&world, 0, 5);
    assert_eq!(world.in_ring(1), 0);
    assert!(world.sides[1].end.connection(|c| c.readable(1)));
    assert_eq!(world.receive(1, 1, 100, RECEIVE_WITHOUT_SLEEP), rx::Step::Kernel);
    assert!(world.receive_on(1, 1, false));
    assert_eq!(world.undelivered(1), 0);
}

/// A reader outside the engine gets from TCP what was in the ring, whatever the producer does meanwhile.
#[test]
fn unread_bytes_of_handed_over_descriptor_arrive_over_tcp() {
    for (room, at_once) in [(1000, 60), (40, 40), (10, 10)] {
        let world = world(room);
        assert!(raise(&world, 1));
        put(&world, 0, 60);
        world.hand_over(1, true);
        assert_eq!(world.in_ring(1), 60 - at_once, "as much as TCP takes");
        assert!(!raise(&world, 1));
        while world.undelivered(1) > 0 {
            assert!(world.read_elsewhere(1, 7) > 0, "the producer has to do nothing but its next call");
            world.before_sleep(0, 0);
        }
        send_tcp(&world, 0, 5);
        assert_eq!(world.read_elsewhere(1, 100), 5);
    }
}

/// Otherwise not all bytes could be returned, and a reader outside the engine would wait for them while the producer sleeps or has ended.
#[test]
fn ring_holds_no_more_than_tcp_has_room_for() {
    let memory = ExposedSlot::new(1 << 16).unwrap();
    let world = World::new(&memory, Prng(1), 1 << 20, Plan::new());
    world.certain_room.set(5000);
    assert!(raise(&world, 1));
    assert_eq!(world.send(0, 6000, SEND), tx::Step::Done(5000));
    world.certain_room.set(7000); // another process has read from TCP
    assert_eq!(world.send(0, 6000, SEND), tx::Step::Done(2000));
    assert_eq!(world.send(0, 6000, SEND), tx::Step::Kernel, "unread bytes go first");
    assert_eq!(world.in_ring(1), 0);
    assert!(world.send_on(0, false));
    let full = self::world(1000);
    full.certain_room.set(100);
    assert!(raise(&full, 1));
    assert_eq!(full.send(0, 50, SEND), tx::Step::Kernel, "not worth it");
    assert!(full.send_on(0, false));
}

#[test]
fn hand_over_leaves_return_to_producer_with_claim() {
    let world = world(1000);
    assert!(raise(&world, 1));
    put(&world, 0, 60);
    assert_eq!(world.sides[0].slot.outward().consumer.claim(), Some(0));
    world.hand_over(1, true);
    assert_eq!(world.in_ring(1), 60);
    world.sides[0].slot.outward().consumer.release(0);
    send_tcp(&world, 0, 5);
    assert_eq!(world.read_elsewhere(1, 100), 65, "first what was in the ring");
}

/// A thread that may spin waits for a peer that is reading. A thread that may not sleeps, and the reader may go on where Motet cannot see it.
#[test]
fn invariant_6_sleeper_without_spin_leaves_nothing_in_ring() {
    for ask in [SLEEP, rx::Request { spin: 1000, kernel_only: true, ..SLEEP }] {
        let world = world(10_000);
        assert!(raise(&world, 1));
        put(&world, 0, 3000);
        assert_eq!(world.receive(1, 1, 2000, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(2000));
        assert_eq!(world.receive(0, 0, 10, ask), rx::Step::Kernel);
        assert_eq!(world.in_ring(1), 0);
    }
}

#[test]
fn invariant_6_consumer_in_mid_receive_finds_claim() {
    // The producer takes 50 bytes back after the consumer has read 20 of them.
    let world = world(1000);
    assert!(raise(&world, 1));
    put(&world, 0, 50);
    assert_eq!(world.receive(1, 1, 20, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(20));
    world.before_sleep(0, 0);
    assert_eq!(world.sides[0].record.tx.returned_bytes.load(Relaxed), 30);
    assert_eq!(
        world.receive(1, 1, 100, RECEIVE_WITHOUT_SLEEP),
        rx::Step::Kernel,
        "the ring is empty now, and the mark read anew"
    );
    assert!(world.receive_on(1, 1, false));
    assert_eq!(world.undelivered(1), 0);
    assert_eq!(world.sides[1].record.rx.returned_bytes.load(Relaxed), 30);
    assert!(raise(&world, 1), "a new epoch can begin");
}

#[test]
fn invariant_7_no_lock_is_held_across_a_sleep() {
    let world = world(20);
    assert!(raise(&world, 1));
    assert_eq!(world.receive(1, 1, 10, SLEEP), rx::Step::Kernel);
    assert_eq!(world.send(0, 100, SEND), tx::Step::Kernel);
    world.check();
    // Another thread of each process goes on while the first sleeps.
    let me = &world.sides[1];
    assert!(gate::close_gate(&me.record, &me.slot, &mut world.platform(1, 2)));
    assert!(
        !tx::take_back(&world.sides[0].record, &world.sides[0].slot, &mut world.platform(0, 2))
            || world.in_ring(1) == 0
    );
    world.check();
}

#[test]
fn consumer_that_keeps_claim_breaks_stream() {
    let world = world(1000);
    assert!(raise(&world, 1));
    put(&world, 0, 60);
    assert_eq!(world.sides[1].slot.inward().consumer.claim(), Some(0));
    world.yield_ns.set(1_000_000); // at each yield
    assert_eq!(world.send(0, 10, KERNEL_ONLY), tx::Step::Failed(ECONNRESET));
    assert_eq!(world.sides[0].record.state(), State::Broken);
}

#[test]
fn lock_of_dead_holder_breaks_stream() {
    for half in 0..2 {
        let world = world(1000);
        let me = &world.sides[0];
        let lock = if half == 0 { &me.record.tx.lock } else { &me.record.rx.lock };
        lock.store(u64::from(End::process(7)) << 32 | 1, Relaxed); // a forked child that was killed
        if half == 0 {
            assert_eq!(world.send(0, 10, SEND), tx::Step::Failed(ECONNRESET));
        } else {
            rx::end(&me.record, &mut world.platform(0, 1), 0);
        }
        assert_eq!(me.record.state(), State::Broken);
        assert_eq!(lock.load(Relaxed), 0);
    }
}

#[test]
fn thread_that_finds_its_own_lock_gets_eagain() {
    use motet_proto::stream::Platform;
    let world = world(1000);
    let record = &world.sides[0].record;
    record.tx.lock.store(world.platform(0, 0).lock_token(), Relaxed); // a signal handler in the middle of a send
    assert_eq!(world.send(0, 10, SEND), tx::Step::Failed(EAGAIN));
    assert_eq!(record.state(), State::Attached);
}

#[test]
fn producer_killed_with_claim_causes_error_not_hang() {
    for ask in [RECEIVE_WITHOUT_SLEEP, SLEEP] {
        let world = world(1000);
        assert!(raise(&world, 1));
        put(&world, 0, 60);
        assert!(world.sides[0].slot.outward().gate.lower_by_producer(60).is_ok());
        assert_eq!(world.sides[0].slot.outward().consumer.claim(), Some(0));
        let killed = world.clock.time();
        world.sides[0].end.connection(|c| c.inject(0, Fault::Kill));
        assert_eq!(world.receive(1, 1, 100, ask), rx::Step::Failed(ECONNRESET));
        assert!(world.clock.time() - killed < 100_000_000, "within 100 ms");
        assert_eq!(world.sides[1].record.state(), State::Broken);
    }
}

#[test]
fn ring_bytes_of_killed_producer_are_delivered() {
    let world = world(1000);
    assert!(raise(&world, 1));
    put(&world, 0, 60);
    world.sides[0].shut.set(true);
    world.sides[0].end.connection(|c| c.inject(0, Fault::Kill));
    assert_eq!(world.receive(1, 1, 100, SLEEP), rx::Step::Done(60));
    assert_eq!(world.receive(1, 1, 100, rx::Request { spin: 1000, ..SLEEP }), rx::Step::Kernel);
    assert!(world.receive_on(1, 1, true), "end of file");
    assert!(world.sides[1].eof.get());
}

#[test]
fn sender_notices_missing_reader_within_100_ms() {
    for fault in [Fault::Kill, Fault::KillUnread, Fault::Reset] {
        let world = world(100_000);
        assert!(raise(&world, 1));
        put(&world, 0, 10);
        let killed = world.clock.time();
        world.sides[1].end.connection(|c| c.inject(1, fault));
        loop {
            match world.send(0, 10, SEND) {
                tx::Step::Done(_) => world.clock.advance(1_000_000),
                tx::Step::Kernel => {
                    assert!(world.send_on(0, false));
                    assert!(world.sides[0].failed.get().is_some(), "{fault:?}");
                    break;
                }
                tx::Step::Full | tx::Step::Failed(_) => break,
            }
            assert!(world.clock.time() - killed < 100_000_000, "{fault:?}");
        }
    }
}

#[test]
fn threads_are_woken_in_any_order() {
    for plan in [Plan::new(), Plan::new().with(0, motet_driver_loopback::plan::When::Always, Fault::ReverseWakeups)] {
        let memory = ExposedSlot::new(4096).unwrap();
        let world = World::new(&memory, Prng(1), 1000, plan);
        assert_eq!(world.receive(1, 1, 4, SLEEP), rx::Step::Kernel);
        assert_eq!(world.receive(1, 2, 4, SLEEP), rx::Step::Kernel);
        send_tcp(&world, 0, 8);
        let mut order = [1, 2];
        if world.sides[1].end.connection(|c| c.readable(1) && c.reverses_wakeups()) {
            order.reverse();
        }
        assert!(order.into_iter().all(|thread| world.receive_on(1, thread, true)));
        assert_eq!(world.undelivered(1), 0);
        assert!(raise(&world, 1), "both have left the kernel");
    }
}
