//! The FIFO under loom: publish and poll, the full FIFO, and the sleeping ends. Cells have two words of payload here.
//!
//! What these models leave out: the sleeper's barrier that reaches the producer's CPU (`membarrier`). Loom has no such barrier, so there is a
//! full fence on both sides.

use super::model;
use loom::sync::Arc;
use loom::thread;
use motet_wire::message::fifo::{Buffer, CELL_PAYLOAD, Cell, Control, Fifo, FifoRx, FifoTx, PutOutcome, SleepFence};
use motet_wire::sync::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use motet_wire::sync::{AtomicU32, fence};

/// Both ends of a FIFO of four cells. Its memory is leaked, so it stays like a mapping.
fn ends() -> (FifoTx, FifoRx) {
    let cells: Vec<Cell> = (0..4).map(|_| Cell::new()).collect();
    let fifo = Fifo::from_parts(Box::leak(Box::new(Control::new())), cells.leak()).unwrap();
    fifo.prepare(SleepFence::Asymmetric);
    (fifo.tx(), fifo.rx())
}

fn put(producer: &mut FifoTx, kind: u8, length: usize) -> PutOutcome {
    producer.try_put(kind, 0, &[&vec![kind; length]]).unwrap()
}

/// Takes the next packet and returns its kind, which all of its bytes must equal.
fn poll(consumer: &mut FifoRx, length: usize) -> Option<u8> {
    let mut buffer = Buffer::new();
    let packet = consumer.poll(&mut buffer).unwrap()?;
    assert_eq!(packet.bytes(&buffer), vec![packet.kind; length]);
    Some(packet.kind)
}

/// A packet of two cells is visible completely or not at all.
#[test]
fn packet_is_visible_with_its_first_word() {
    model(&[0, 1], || {
        let (mut producer, mut consumer) = ends();
        let producer = thread::spawn(move || put(&mut producer, 5, CELL_PAYLOAD + 1));
        let seen = poll(&mut consumer, CELL_PAYLOAD + 1);
        producer.join().unwrap();
        usize::from(seen.is_some())
    });
}

/// A consumer that sees the continuation cell of an open packet sees the bytes that were written before it.
#[test]
fn open_packet_is_complete_with_its_last_continuation() {
    model(&[0, 1], || {
        let (mut producer, mut consumer) = ends();
        let beside = Arc::new(AtomicU32::new(0));
        let ring = beside.clone();
        let producer = thread::spawn(move || {
            producer.try_put_open(5, 0, &[5], 1).unwrap();
            ring.store(7, Relaxed);
            producer.put_continuation();
        });
        let seen = poll(&mut consumer, 1);
        assert!(seen.is_none() || beside.load(Relaxed) == 7, "complete before its bytes");
        producer.join().unwrap();
        usize::from(seen.is_some())
    });
}

/// Packets arrive in order.
#[test]
fn packets_keep_their_order() {
    model(&[0, 1, 2], || {
        let (mut producer, mut consumer) = ends();
        let producer = thread::spawn(move || {
            put(&mut producer, 1, 3);
            put(&mut producer, 2, 3);
        });
        let seen: Vec<u8> = (0..2).filter_map(|_| poll(&mut consumer, 3)).collect();
        producer.join().unwrap();
        assert!([1, 2].starts_with(&seen), "{seen:?}");
        seen.len()
    });
}

/// A cell is overwritten only after it was read: a full FIFO has room after the consumer has published its head, and not before.
#[test]
fn cell_is_not_overwritten_before_it_is_read() {
    model(&[0, 1], || {
        let (mut producer, mut consumer) = ends();
        assert_eq!(put(&mut producer, 1, CELL_PAYLOAD + 1), PutOutcome::Published);
        assert_eq!(put(&mut producer, 2, CELL_PAYLOAD + 1), PutOutcome::Published);
        let producer = thread::spawn(move || put(&mut producer, 3, CELL_PAYLOAD + 1));
        assert_eq!(poll(&mut consumer, CELL_PAYLOAD + 1), Some(1));
        assert_eq!(poll(&mut consumer, CELL_PAYLOAD + 1), Some(2));
        let third = poll(&mut consumer, CELL_PAYLOAD + 1);
        assert!(third.is_none_or(|kind| kind == 3));
        let put = producer.join().unwrap();
        assert!(third.is_none() || put == PutOutcome::Published);
        usize::from(put == PutOutcome::Published)
    });
}

/// A consumer goes to sleep while a producer puts a packet: the consumer sees the packet, or the producer sees the sleeper.
#[test]
fn no_wake_up_is_lost() {
    model(&[0, 1], || {
        let (mut producer, mut consumer) = ends();
        let producer = thread::spawn(move || put(&mut producer, 1, 1));
        let sleeps = consumer.begin_sleep(|| fence(SeqCst));
        let put = producer.join().unwrap();
        assert!(!sleeps || put == PutOutcome::Wake, "asleep, and not woken");
        usize::from(sleeps)
    });
}

/// A consumer sleeps, wakes by itself, receives and sleeps again while a producer puts two packets: if it sleeps over a packet, it is woken. A
/// doorbell that was rung for an earlier sleep stays rung, as an eventfd does.
#[test]
fn no_wake_up_is_lost_by_a_consumer_that_sleeps_again() {
    model(&[0, 1], || {
        let (mut producer, mut consumer) = ends();
        let doorbell = Arc::new(AtomicU32::new(0));
        let tx_doorbell = doorbell.clone();
        let producer = thread::spawn(move || {
            for kind in [1, 2] {
                if put(&mut producer, kind, 1) == PutOutcome::Wake {
                    tx_doorbell.fetch_add(1, AcqRel);
                }
            }
        });
        if consumer.begin_sleep(|| fence(SeqCst)) {
            consumer.end_sleep();
        }
        poll(&mut consumer, 1);
        let sleeps = consumer.begin_sleep(|| fence(SeqCst));
        producer.join().unwrap();
        let rung = doorbell.load(Acquire) > 0;
        assert!(!sleeps || rung || consumer.is_empty(), "asleep over a packet, and not woken");
        usize::from(sleeps)
    });
}

/// A producer goes to sleep for room while a consumer makes some: the producer sees the room, or the consumer sees the sleeper.
#[test]
fn no_wake_up_of_a_producer_is_lost() {
    model(&[0, 1], || {
        let (mut producer, mut consumer) = ends();
        put(&mut producer, 1, CELL_PAYLOAD + 1);
        put(&mut producer, 2, CELL_PAYLOAD + 1);
        let producer = thread::spawn(move || {
            if producer.announce_wait() {
                fence(SeqCst);
            }
            !producer.room(1).unwrap()
        });
        assert_eq!(poll(&mut consumer, CELL_PAYLOAD + 1), Some(1));
        let wake = consumer.take_wake();
        let sleeps = producer.join().unwrap();
        assert!(!sleeps || wake, "asleep although there is room, and not woken");
        usize::from(sleeps)
    });
}
