//! Single copy with a receiver that is stopped, a peer process that is replaced, and a peer that writes false claims.

mod support;

use motet_driver_loopback::memory::ExposedSlot;
use motet_driver_loopback::plan::{Fault, Plan, When};
use motet_proto::copy_mode::CopyModeSelector;
use motet_proto::{
    ECONNRESET,
    stream::{gate, rx, single_copy, tx},
};
use motet_wire::stream::slot::Transfer;
use motet_wire::stream::slot::transfer::{ACTIVE, CUT, IDLE};
use motet_wire::sync::Ordering::Relaxed;
use std::cell::Cell;
use std::rc::Rc;
use support::prng::Prng;
use support::{RECEIVE_WITHOUT_SLEEP, World, bytes};

/// Two pieces, the first of `FIRST_PIECE_BYTES` bytes.
const TRANSFER_BYTES: usize = 60_000;
const FIRST_PIECE_BYTES: usize = 32_768;
const MILLISECOND: u64 = 1_000_000;

const SEND: tx::Request = tx::Request { kernel_only: false, nonblocking: true, large: 1, large_far: 1, half: 0 };

/// A connection on which end 1 shows a buffer and stops, so that end 0 can send by single copy.
fn waiting(plan: Plan) -> (Box<World>, Vec<u8>) {
    let memory = ExposedSlot::new(4096).unwrap();
    let world = World::new(&memory, Prng(1), 3000, plan);
    world.single_copy();
    let buf = vec![0; TRANSFER_BYTES];
    // End 0 learns that it may copy: it posts a buffer and withdraws it.
    let near = &world.sides[0];
    assert!(single_copy::post(&near.record, &near.slot, &mut world.platform(0, 1), &[0; TRANSFER_BYTES]));
    assert!(single_copy::withdraw(&near.slot));
    let far = &world.sides[1];
    assert!(gate::raise(&far.record, &far.slot, &mut world.platform(1, 1), || true));
    assert!(single_copy::post(&far.record, &far.slot, &mut world.platform(1, 1), &buf));
    (world, buf)
}

/// The shared words of the transfer.
fn shared(world: &World) -> &Transfer {
    &world.sides[1].slot.inward().transfer
}

/// End 1 goes on: receives `expected` bytes of the transfer, then the rest of the payload.
fn goes_on(world: &World, mut buf: Vec<u8>, expected: usize) {
    let far = &world.sides[1];
    assert!(!single_copy::withdraw(&far.slot));
    assert_eq!(single_copy::receive(&far.record, &far.slot, &mut world.platform(1, 1), &mut buf), Ok(expected));
    assert_eq!(shared(world).state.load(Relaxed), IDLE);
    assert!(buf[..expected] == bytes(0, 0, expected));
    far.received.set(expected as u64);
    while world.undelivered(1) > 0 || world.sides[0].sent.get() < TRANSFER_BYTES as u64 {
        let left = TRANSFER_BYTES - world.sides[0].sent.get() as usize;
        if left > 0 && world.send(0, left, SEND) == tx::Step::Kernel {
            world.send_on(0, false);
        }
        if world.receive(1, 1, 5000, RECEIVE_WITHOUT_SLEEP) == rx::Step::Kernel {
            world.receive_on(1, 1, false);
        }
    }
    assert_eq!(far.received.get(), TRANSFER_BYTES as u64);
}

#[test]
fn sender_chooses_single_copy_size_by_cpu_distance() {
    const NEVER_BYTES: usize = usize::MAX;
    for (far, large, large_far, goes) in [
        (false, 1, NEVER_BYTES, true),
        (false, NEVER_BYTES, 1, false),
        (true, 1, NEVER_BYTES, false),
        (true, NEVER_BYTES, 1, true),
    ] {
        let (world, _buf) = waiting(Plan::new());
        let tx = &world.sides[0].record.tx;
        let copying = CopyModeSelector(&tx.copy_mode);
        copying.start();
        while far && !copying.cpus_are_far() {
            let rate = if copying.is_non_temporal() { 16_000 } else { 3_000 };
            copying.note_put(|| 1024, 1 << 20, (1 << 20) * 1000 / rate, || 0);
        }
        tx.copy_mode.bytes_until_retry.store(1, Relaxed);
        let step = world.send(0, TRANSFER_BYTES, tx::Request { large, large_far, ..SEND });
        assert_eq!(step == tx::Step::Done(TRANSFER_BYTES), goes, "{step:?}");
        assert_eq!(tx.single_copy_bytes.load(Relaxed), if goes { TRANSFER_BYTES as u64 } else { 0 });
        assert_eq!(copying.cpus_are_far(), far && !goes, "a single copy counts towards the next trial");
    }
}

#[test]
fn sender_cuts_transfer_of_stopped_receiver() {
    for (nonblocking, limit) in [(true, 2 * MILLISECOND), (false, 25 * MILLISECOND)] {
        let (world, buf) = waiting(Plan::new());
        shared(&world).next.fetch_add(1, Relaxed);
        let start = world.clock.time();
        let step = world.send(0, TRANSFER_BYTES, tx::Request { nonblocking, ..SEND });
        assert!(matches!(step, tx::Step::Done(1..=4096)), "the ring took what fits: {step:?}");
        assert!(world.clock.time() - start < limit, "{} ns", world.clock.time() - start);
        assert_eq!(world.sides[0].record.tx.lock.load(Relaxed), 0, "a close need not wait");
        assert_eq!(shared(&world).state.load(Relaxed), CUT);
        goes_on(&world, buf, 0);
    }
}

#[test]
fn late_receiver_keeps_only_finished_pieces() {
    let (mut world, mut buf) = waiting(Plan::new());
    // The second piece is claimed while the sender copies the first.
    world.on_copy = Some(Box::new(|world| {
        shared(world).next.compare_exchange(1, 2, Relaxed, Relaxed).ok();
    }));
    assert_eq!(world.send(0, TRANSFER_BYTES, SEND), tx::Step::Done(FIRST_PIECE_BYTES));
    assert_eq!(shared(&world).state.load(Relaxed), CUT);
    world.send(0, TRANSFER_BYTES - FIRST_PIECE_BYTES, SEND);
    // The receiver resumes: the sender's memory holds something else.
    buf[FIRST_PIECE_BYTES..].fill(0xee);
    shared(&world).finished.fetch_add(1, Relaxed);
    goes_on(&world, buf, FIRST_PIECE_BYTES);
}

#[test]
fn receiver_that_finishes_in_time_gets_everything() {
    let (mut world, mut buf) = waiting(Plan::new());
    let (data, to) = (bytes(0, 0, TRANSFER_BYTES), buf.as_mut_ptr() as u64);
    world.on_copy = Some(Box::new(move |world| {
        if shared(world).next.compare_exchange(1, 2, Relaxed, Relaxed).is_ok() {
            assert!(write_as_receiver(to + FIRST_PIECE_BYTES as u64, &data[FIRST_PIECE_BYTES..]));
            shared(world).finished.fetch_add(1, Relaxed);
        }
    }));
    assert_eq!(world.send(0, TRANSFER_BYTES, SEND), tx::Step::Done(TRANSFER_BYTES));
    goes_on(&world, buf, TRANSFER_BYTES);
}

/// Writes to the receiver's memory, as a copy by the receiver would.
fn write_as_receiver(address: u64, from: &[u8]) -> bool {
    let mut end = motet_driver_loopback::end::End::pair(
        motet_driver_loopback::pipe::Connection::new(motet_driver_loopback::clock::Clock::new(1), 1, Plan::new()),
        &motet_driver_loopback::clock::Clock::new(1),
    );
    motet_proto::stream::Platform::write_peer_memory(&mut end[0], std::process::id(), address, from)
}

#[test]
fn nothing_is_written_to_process_with_reused_pid() {
    let (world, buf) = waiting(Plan::new());
    world.replaced.set(true);
    assert_eq!(world.send(0, TRANSFER_BYTES, SEND), tx::Step::Failed(ECONNRESET));
    assert!(buf.iter().all(|&byte| byte == 0));
}

/// A transfer of `data` that end 0 has begun and does not continue; its process ends 50 ms later.
fn begun(data: &[u8]) -> (Box<World>, Vec<u8>) {
    let (world, buf) = waiting(Plan::new().with(0, When::Time(50 * MILLISECOND), Fault::Kill));
    let transfer = shared(&world);
    transfer.from.store(data.as_ptr() as u64, Relaxed);
    transfer.length.store(TRANSFER_BYTES as u64, Relaxed);
    transfer.piece.store(FIRST_PIECE_BYTES as u64, Relaxed);
    transfer.state.store(ACTIVE, Relaxed);
    (world, buf)
}

#[test]
fn bytes_read_from_process_with_reused_pid_are_dropped() {
    let data = bytes(0, 0, TRANSFER_BYTES);
    let (world, mut buf) = begun(&data);
    let far = &world.sides[1];
    world.replaced.set(true);
    let came = single_copy::receive(&far.record, &far.slot, &mut world.platform(1, 1), &mut buf);
    assert_eq!(came, Err(ECONNRESET));
    assert_eq!(shared(&world).finished.load(Relaxed), 0);
}

#[test]
fn peer_replaced_before_first_block_is_never_copied_from() {
    let memory = ExposedSlot::new(4096).unwrap();
    let world = World::new(&memory, Prng(1), 3000, Plan::new());
    world.single_copy();
    world.replaced.set(true);
    let far = &world.sides[1];
    assert!(!single_copy::post(&far.record, &far.slot, &mut world.platform(1, 1), &[0; TRANSFER_BYTES]));
}

#[test]
fn claim_counter_set_back_ends_transfer() {
    let copies = Rc::new(Cell::new(0));
    let lie = |copies: Rc<Cell<u32>>| {
        Box::new(move |world: &World| {
            copies.set(copies.get() + 1);
            shared(world).next.store(0, Relaxed);
        })
    };
    let (mut world, _buf) = waiting(Plan::new());
    world.on_copy = Some(lie(copies.clone()));
    assert_eq!(world.send(0, TRANSFER_BYTES, SEND), tx::Step::Failed(ECONNRESET));
    assert_eq!(copies.replace(0), 1);

    let data = bytes(0, 0, TRANSFER_BYTES);
    let (mut world, mut buf) = begun(&data);
    world.on_copy = Some(lie(copies.clone()));
    let far = &world.sides[1];
    let came = single_copy::receive(&far.record, &far.slot, &mut world.platform(1, 1), &mut buf);
    assert_eq!((came, copies.get()), (Err(ECONNRESET), 1));
}

/// A blocking send of a block without a waiting receiver. The receiver shows its memory after it has read the beginning (`comes`), or never. Returns the
/// bytes that were sent ahead or by single copy, and `tx.single_copy_skips`.
fn sent_ahead(comes: bool) -> (u64, u32) {
    const ASK: tx::Request = tx::Request { nonblocking: false, ..SEND };
    let (mut world, shown) = waiting(Plan::new());
    assert!(single_copy::withdraw(&world.sides[1].slot));
    let tx::Step::Done(ahead) = world.send(0, TRANSFER_BYTES, ASK) else { panic!("the gate is open") };
    assert!(ahead <= 16 << 10);
    assert_eq!(world.receive(1, 1, ahead, RECEIVE_WITHOUT_SLEEP), rx::Step::Done(ahead));
    if comes {
        world.weave = 1;
        world.scribble = Some(Box::new(move |world: &World| {
            let far = &world.sides[1];
            if shared(world).state.load(Relaxed) == IDLE {
                single_copy::post(&far.record, &far.slot, &mut world.platform(1, 1), &shown);
            }
        }));
    }
    assert!(matches!(world.send(0, TRANSFER_BYTES - ahead - 1, ASK), tx::Step::Done(1..)));
    let tx = &world.sides[0].record.tx;
    (tx.single_copy_bytes.load(Relaxed) + ahead as u64, tx.single_copy_skips.load(Relaxed))
}

#[test]
fn block_beginning_is_sent_ahead_of_single_copy() {
    assert_eq!(sent_ahead(true), (TRANSFER_BYTES as u64 - 1, 0), "the beginning ahead, the rest by single copy");
    let (copied, skips) = sent_ahead(false);
    assert!(copied <= 16 << 10 && skips % 256 == 1, "the next one does not wait: {skips:x}");
}
