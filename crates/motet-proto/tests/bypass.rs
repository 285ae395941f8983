//! Bytes that bypass Motet: they are counted if their place in the stream is certain, otherwise the connection is reset. And bulk data that bypasses
//! an open gate.

mod support;

use motet_driver_loopback::memory::ExposedSlot;
use motet_driver_loopback::plan::{Fault, Plan};
use motet_proto::{
    EAGAIN, ECONNRESET,
    stream::{gate, rx, tx},
};
use motet_wire::stream::record::State;
use motet_wire::sync::Ordering::Relaxed;
use std::io::IoSliceMut;
use support::prng::Prng;
use support::{RECEIVE_WITHOUT_SLEEP, SEND, World, bytes};

const KERNEL_ONLY: tx::Request = tx::Request { kernel_only: true, ..SEND };

fn world() -> Box<World> {
    let memory = ExposedSlot::new(4096).unwrap();
    World::new(&memory, Prng(1), 1000, Plan::new())
}

fn raise(world: &World) -> bool {
    gate::raise(&world.sides[1].record, &world.sides[1].slot, &mut world.platform(1, 1), || true)
}

fn put(world: &World, length: usize) {
    assert_eq!(world.send(0, length, SEND), tx::Step::Done(length));
}

fn send_tcp(world: &World, length: usize) {
    assert_eq!(world.send(0, length, KERNEL_ONLY), tx::Step::Kernel);
    assert!(world.send_on(0, false));
}

/// The program at end 1 reads from the kernel.
fn read_past(world: &World, length: usize) {
    let (me, mut data) = (&world.sides[1], vec![0; length]);
    let read = me.end.connection(|c| c.receive(1, &mut [IoSliceMut::new(&mut data)], length, false));
    assert_eq!(read, Ok(length));
    assert_eq!(data, bytes(0, me.received.get(), length));
    me.received.set(me.received.get() + length as u64);
}

/// The program at end 0 writes to the kernel.
fn write_past(world: &World, length: usize) {
    let me = &world.sides[0];
    assert_eq!(me.end.connection(|c| c.send(0, &bytes(0, me.sent.get(), length))), Ok(length));
    me.sent.set(me.sent.get() + length as u64);
}

fn receive(world: &World) -> rx::Step {
    world.receive(1, 1, 1000, RECEIVE_WITHOUT_SLEEP)
}

#[test]
fn bytes_read_past_motet_before_the_ring_count() {
    for left in [0, 4] {
        let world = world();
        send_tcp(&world, 30);
        read_past(&world, 30 - left);
        assert!(raise(&world));
        put(&world, 8);
        assert_eq!(receive(&world), rx::Step::Done(left + 8));
        assert_eq!((world.undelivered(1), world.sides[1].record.rx.tcp_bytes.load(Relaxed)), (0, 30));
        put(&world, 8);
        send_tcp(&world, 50); // closes the gate, and takes what is unread along
        assert_eq!(receive(&world), rx::Step::Kernel);
        assert!(world.receive_on(1, 1, false));
        assert_eq!(world.undelivered(1), 0);
    }
}

#[test]
fn bytes_read_past_motet_during_receive_count() {
    let world = world();
    send_tcp(&world, 5);
    assert_eq!(receive(&world), rx::Step::Kernel);
    assert!(world.receive_on(1, 1, false));
    world.sides[0].end.connection(|c| c.inject(0, Fault::Hold(1_000_000)));
    send_tcp(&world, 10);
    assert!(raise(&world));
    put(&world, 8);
    assert_eq!(receive(&world), rx::Step::Failed(motet_proto::EAGAIN), "ten bytes are on their way");
    world.clock.advance(2_000_000);
    read_past(&world, 10);
    assert_eq!(receive(&world), rx::Step::Done(8));
}

#[test]
fn tcp_bytes_after_ring_bytes_allow_reads_past_motet() {
    let world = world();
    send_tcp(&world, 10);
    assert!(raise(&world));
    put(&world, 8);
    send_tcp(&world, 10);
    read_past(&world, 15);
    assert_eq!(receive(&world), rx::Step::Kernel);
    assert!(world.receive_on(1, 1, false));
    assert_eq!(world.undelivered(1), 0);
    assert!(raise(&world));
    put(&world, 8);
    assert_eq!(receive(&world), rx::Step::Done(8));
}

/// TCP bytes that the sender does not know, sent after the ring bytes and read before them: the place of the ring bytes is unknown.
#[test]
fn bytes_read_past_ring_reset_connection() {
    let world = world();
    send_tcp(&world, 10);
    assert!(raise(&world));
    put(&world, 8);
    let (me, peer) = (&world.sides[1], &world.sides[0]);
    assert_eq!(peer.end.connection(|c| c.send(0, &[0; 10])), Ok(10));
    let mut data = [0; 15];
    assert_eq!(me.end.connection(|c| c.receive(1, &mut [IoSliceMut::new(&mut data)], 15, false)), Ok(15));
    assert_eq!(receive(&world), rx::Step::Failed(ECONNRESET));
    assert_eq!(me.record.state(), State::Broken);
}

#[test]
fn bytes_written_past_motet_precede_later_sends() {
    let world = world();
    send_tcp(&world, 10);
    assert!(raise(&world));
    write_past(&world, 7);
    // The sender finds them before it puts anything into the ring, and follows them over TCP.
    assert_eq!(world.send(0, 8, SEND), tx::Step::Kernel);
    assert!(!world.gate_is_up(1));
    assert!(world.send_on(0, false));
    assert_eq!(receive(&world), rx::Step::Kernel);
    assert!(world.receive_on(1, 1, false));
    assert_eq!(world.undelivered(1), 0);
    assert!(raise(&world));
    put(&world, 8);
    assert_eq!(receive(&world), rx::Step::Done(8));
}

#[test]
fn bytes_written_past_motet_need_a_certain_place() {
    for certain in [true, false] {
        let world = world();
        assert!(raise(&world));
        world.sides[1].record.rx.evidence_left.store(9, Relaxed);
        put(&world, 8);
        assert_eq!(receive(&world), rx::Step::Done(8));
        if certain {
            assert_eq!(receive(&world), rx::Step::Failed(motet_proto::EAGAIN), "TCP is seen empty");
        }
        write_past(&world, 7);
        assert_eq!(receive(&world), if certain { rx::Step::Done(7) } else { rx::Step::Failed(ECONNRESET) });
        if certain {
            put(&world, 8);
            assert_eq!(receive(&world), rx::Step::Failed(ECONNRESET), "the count of the mark is wrong now");
        }
    }
}

#[test]
fn ring_bytes_wait_for_tcp_bytes_before_them() {
    let world = world();
    let me = &world.sides[1];
    world.sides[0].end.connection(|c| c.inject(0, Fault::Hold(1_000_000)));
    send_tcp(&world, 10);
    assert!(raise(&world));
    put(&world, 8);
    assert_eq!(rx::missing_tcp_bytes(&me.record, &me.slot), 10);
    assert_eq!(receive(&world), rx::Step::Failed(motet_proto::EAGAIN));
    assert_eq!(rx::missing_tcp_bytes(&me.record, &me.slot), 10);
    world.clock.advance(2_000_000);
    assert_eq!(world.receive(1, 1, 4, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(4));
    assert_eq!(rx::missing_tcp_bytes(&me.record, &me.slot), 6);
    assert_eq!(receive(&world), rx::Step::Done(14));
    assert_eq!(rx::missing_tcp_bytes(&me.record, &me.slot), 0);
}

#[test]
fn tcp_send_takes_unread_ring_bytes_along() {
    let world = world();
    assert!(raise(&world));
    put(&world, 60);
    assert_eq!(world.send(0, 10, KERNEL_ONLY), tx::Step::Kernel);
    assert_eq!(world.in_ring(1), 0);
    assert!(world.send_on(0, false));
    read_past(&world, 70);
    assert!(raise(&world));
    put(&world, 8);
    assert_eq!(receive(&world), rx::Step::Done(8));
}

/// The reader knows the mark of an epoch whose last bytes the sender has taken back, and the program has read these bytes past the engine.
#[test]
fn bytes_taken_back_and_read_past_motet_are_in_order() {
    let world = world();
    send_tcp(&world, 30);
    assert!(raise(&world));
    put(&world, 10);
    read_past(&world, 10);
    assert_eq!(world.receive(1, 1, 4, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(4));
    read_past(&world, 16);
    world.before_sleep(0, 0);
    assert_eq!(world.in_ring(1), 0);
    read_past(&world, 10);
    assert_eq!(receive(&world), rx::Step::Kernel, "nothing is there, and nothing is wrong");
    rx::end(&world.sides[1].record, &mut world.platform(1, 1), 0);
    assert!(raise(&world));
    put(&world, 8);
    assert_eq!(receive(&world), rx::Step::Done(8));
}

/// TCP was full when the sender shut down: the reader can still take what is left in the ring, and the connection does not count as broken.
#[test]
fn ring_bytes_left_at_half_close_stay_readable() {
    let world = world();
    send_tcp(&world, 10);
    assert!(raise(&world));
    put(&world, 20);
    let me = &world.sides[0];
    me.end.connection(|c| c.inject(0, Fault::Again(100)));
    assert!(!tx::take_back(&me.record, &me.slot, &mut world.platform(0, 0)));
    tx::finish(&me.record, &me.slot, &mut world.platform(0, 0));
    me.end.connection(|c| c.finish(0));
    assert!(!tx::take_back(&me.record, &me.slot, &mut world.platform(0, 0)));
    assert_eq!(me.record.state(), State::Attached);
    assert_eq!(receive(&world), rx::Step::Done(30));
}

/// If bulk data needs the kernel (files, for example), receives close the gate. Use of the ring, or a long time behind a closed gate, makes up for it.
#[test]
fn receive_closes_gate_that_bulk_data_bypasses() {
    let world = world();
    let rx = &world.sides[1].record.rx;
    let passes_once = || {
        send_tcp(&world, 1000);
        assert!(raise(&world));
        assert_eq!(receive(&world), rx::Step::Done(1000));
        world.sides[1].slot.inward().gate.tail().1
    };
    let (mut open, mut rounds) = (true, 0);
    while open {
        open = passes_once();
        rounds += 1;
    }
    assert!((1000..1100).contains(&rounds), "shut after {rounds} KB");
    assert!(!passes_once(), "a wait opens it, the next receive shuts it");
    assert!(raise(&world));
    for _ in 0..100 {
        put(&world, 200);
        assert_eq!(receive(&world), rx::Step::Done(200));
    }
    assert_eq!(rx.tcp_past_open_gate.load(Relaxed), 0, "short messages through the ring outweigh the rest");
    rx.tcp_past_open_gate.store(u32::MAX, Relaxed);
    assert!(!passes_once());
    assert!(rx.tcp_past_open_gate.load(Relaxed) < u32::MAX, "the count is bounded");
}

#[test]
fn bytes_being_returned_to_tcp_are_readable() {
    let world = world();
    let ready = || rx::ready(&world.sides[1].record, &world.sides[1].slot);
    assert!(raise(&world) && !ready());
    put(&world, 10);
    assert!(ready());
    // The producer has claimed them: the kernel was asked before, and has none of them yet.
    let producer = &world.sides[0].slot.outward().consumer;
    let first = producer.claim().unwrap();
    assert!(ready());
    producer.release(first);
    // All of them are in TCP, and this end has not noticed.
    send_tcp(&world, 5);
    assert!(ready());
    assert_eq!(receive(&world), rx::Step::Kernel);
    assert!(world.receive_on(1, 1, true) && !ready(), "they are received");
}

/// The producer that has claimed the first byte gives it back after so long, having returned nothing.
fn goes_on_after(world: &mut World, ns: u64) {
    let goes_on_at = world.clock.time() + ns;
    world.weave = 1;
    world.scribble = Some(Box::new(move |world| {
        let producer = &world.sides[0].slot.outward().consumer;
        if world.clock.time() > goes_on_at && producer.settled().is_none() {
            producer.release(0);
        }
    }));
}

/// Where other threads have the CPUs for long, a producer may get none for long: a receive of what was reported as readable waits for it.
#[test]
fn producer_without_a_cpu_during_take_back_is_waited_for() {
    let mut world = world();
    world.yield_ns.set(20_000_000);
    assert!(raise(&world));
    put(&world, 10);
    assert_eq!(world.sides[0].slot.outward().consumer.claim(), Some(0));
    goes_on_after(&mut world, 500_000_000);
    assert!(rx::ready(&world.sides[1].record, &world.sides[1].slot));
    assert_eq!(receive(&world), rx::Step::Done(10));
}

/// A producer whose process is runnable but gets no CPU for longer than that, while this thread has one to itself, gets more time once.
#[test]
fn runnable_producer_gets_more_time() {
    for (lacks_cpu, expected) in [(true, rx::Step::Done(10)), (false, rx::Step::Failed(EAGAIN))] {
        let mut world = world();
        world.lacks_cpu.set(lacks_cpu);
        world.yield_ns.set(1_000);
        assert!(raise(&world));
        put(&world, 10);
        assert_eq!(world.sides[0].slot.outward().consumer.claim(), Some(0));
        goes_on_after(&mut world, 200_000_000);
        assert_eq!(receive(&world), expected);
        assert!(!world.lacks_cpu.get(), "asked once");
    }
}

/// A producer stops after it has returned 1000 of 3000 bytes to TCP: the kernel has reported them as readable, so a receive takes them. Then it goes
/// on, and publishes `mark` as the number of bytes over TCP that precede the ring.
fn producer_stops_and_publishes(world: &World, mark: u64) {
    world.yield_ns.set(1_000_000);
    assert!(raise(world));
    put(world, 3000);
    let (me, lines) = (&world.sides[0], world.sides[0].slot.outward());
    lines.gate.lower_by_producer(3000).unwrap();
    let first = lines.consumer.claim().unwrap();
    assert_eq!(me.end.connection(|c| c.send(0, &bytes(0, 0, 1000))), Ok(1000));
    assert_eq!(receive(world), rx::Step::Done(1000));
    assert_eq!(receive(world), rx::Step::Failed(EAGAIN), "the others are in its hands");
    lines.mark.mark.store(mark, Relaxed);
    lines.consumer.release(first + 1000);
}

#[test]
fn bytes_that_a_stopped_producer_has_returned_are_received() {
    let world = world();
    producer_stops_and_publishes(&world, 1000);
    assert_eq!([receive(&world), receive(&world)], [rx::Step::Done(1000); 2]);
}

#[test]
fn producer_whose_mark_omits_bytes_that_were_received_is_reset() {
    let world = world();
    producer_stops_and_publishes(&world, 500);
    assert_eq!(receive(&world), rx::Step::Failed(ECONNRESET));
    assert_eq!(world.sides[1].record.state(), State::Broken);
}

/// A producer that is stopped with its claim held, or keeps it forever, costs one long receive; after that a program that polls can sleep.
#[test]
fn producer_stopped_during_take_back_is_waited_for_once() {
    let world = world();
    let ready = || rx::ready(&world.sides[1].record, &world.sides[1].slot);
    let lasts = || {
        let began = world.clock.time();
        assert_eq!(receive(&world), rx::Step::Failed(EAGAIN));
        world.clock.time() - began
    };
    world.yield_ns.set(100_000);
    assert!(raise(&world));
    put(&world, 10);
    let producer = &world.sides[0].slot.outward().consumer;
    let first = producer.claim().unwrap();
    assert!(ready());
    let once = lasts();
    assert!(!ready(), "from here on the kernel decides");
    assert!(lasts() < once / 4 && !ready());
    // The producer goes on: its bytes are readable, and the next claim is waited for again.
    producer.release(first);
    assert!(ready());
    assert_eq!(receive(&world), rx::Step::Done(10));
    put(&world, 10);
    let first = producer.claim().unwrap();
    assert!(ready() && lasts() > once / 2);
    producer.release(first);
    assert_eq!(receive(&world), rx::Step::Done(10));
}
