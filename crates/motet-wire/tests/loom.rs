//! The gate of streams under loom, and in `loom/fifo.rs` and `loom/chunk_claims.rs` the FIFO and cooperative copies: every order of two threads'
//! steps on the shared cache lines, with small constants.
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test -p motet-wire --release --test loom`
//!
//! What a model leaves out: one atomic that is written and read without any order of its own (`Relaxed`) represents the bytes of the ring, so
//! only the labelled edges of the gate make it visible. A counter represents TCP and the wake-up by the kernel.
#![cfg(loom)]

#[path = "loom/chunk_claims.rs"]
mod chunk_claims;
#[path = "loom/fifo.rs"]
mod fifo;

use loom::sync::Arc;
use loom::thread;
use motet_wire::stream::gate::{Advance, ConsumerLine, GateLine, INLINE, MarkLine, Mode};
use motet_wire::stream::record::StreamRecord;
use motet_wire::sync::AtomicU64;
use motet_wire::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};

#[derive(Default)]
struct Lines {
    gate: GateLine,
    mark: MarkLine,
    consumer: ConsumerLine,
    /// Represents the bytes in the ring.
    ring: AtomicU64,
    /// Bytes sent over TCP, for which the kernel wakes a sleeper.
    tcp: AtomicU64,
}

/// Checks every order that loom finds, and that each of the `outcomes` (numbers that `body` returns) occurred: a model in which one is missing
/// proves nothing about it.
fn model(outcomes: &[usize], body: impl Fn() -> usize + Sync + Send + 'static) {
    let seen = std::sync::Arc::new(std::sync::Mutex::new(std::collections::BTreeSet::new()));
    let noted = seen.clone();
    loom::model(move || {
        let outcome = body();
        noted.lock().unwrap().insert(outcome);
    });
    for outcome in outcomes {
        assert!(seen.lock().unwrap().contains(outcome), "no order led to outcome {outcome}");
    }
}

/// A put of `n` bytes like that of `tx::begin`: into the ring if RING is set, otherwise over TCP.
fn put(lines: &Lines, tail: &mut u64, n: u64, payload: u64) {
    if lines.gate.mode(*tail) == Ok(Mode::Ring) {
        lines.ring.store(payload, Relaxed);
        lines.mark.mark.store(lines.tcp.load(Relaxed), Relaxed);
        match lines.gate.publish(*tail, n) {
            Ok(Mode::Ring) => return *tail += n,
            Ok(Mode::Tcp | Mode::Wide) => {}
            Err(broken) => panic!("{broken:?}"),
        }
    }
    lines.tcp.fetch_add(n, AcqRel);
}

/// (a) A consumer goes to sleep while a producer publishes: either the consumer sees the bytes, or TCP wakes it.
#[test]
fn no_wake_up_is_lost_between_lower_and_publish() {
    model(&[0, 1], || {
        let lines = Arc::new(Lines::default());
        assert!(lines.gate.raise(0));
        let producer = {
            let lines = lines.clone();
            thread::spawn(move || {
                let mut tail = 0;
                put(&lines, &mut tail, 3, 7);
                tail
            })
        };
        let sleeps = lines.gate.lower_empty(0);
        let tail = producer.join().unwrap();
        if sleeps {
            assert_eq!((tail, lines.tcp.load(Acquire)), (0, 3), "asleep, so the bytes went where the kernel wakes it");
        } else {
            assert_eq!((tail, lines.gate.tail().0), (3, 3), "awake, and the bytes are in the ring");
        }
        usize::from(sleeps)
    });
}

/// (a) A consumer raises the gate, finds nothing, lowers it and sleeps while a producer puts: no byte is left in the ring of a sleeper.
#[test]
fn no_wake_up_is_lost_by_a_consumer_that_raises_again() {
    model(&[0, 1], || {
        let lines = Arc::new(Lines::default());
        let producer = {
            let lines = lines.clone();
            thread::spawn(move || {
                let mut tail = 0;
                put(&lines, &mut tail, 1, 1);
                put(&lines, &mut tail, 1, 2);
            })
        };
        let mut head = 0;
        assert!(lines.gate.raise(0));
        for _ in 0..2 {
            let (tail, _) = lines.gate.tail();
            if tail > head && lines.consumer.advance(head, tail - head) == Advance::Done {
                head = tail;
            }
            thread::yield_now();
        }
        let sleeps = lines.gate.lower_empty(head);
        producer.join().unwrap();
        let in_ring = lines.gate.tail().0 - head;
        assert!(!sleeps || in_ring == 0, "asleep over {in_ring} bytes");
        assert_eq!(head + in_ring + lines.tcp.load(Acquire), 2, "every byte is somewhere once");
        usize::from(head > 0)
    });
}

/// (b) The mark and the payload are visible with the first byte of an epoch.
#[test]
fn mark_is_visible_with_the_first_byte() {
    model(&[0, 1], || {
        let lines = Arc::new(Lines::default());
        assert!(lines.gate.raise(0));
        let producer = {
            let lines = lines.clone();
            thread::spawn(move || {
                lines.ring.store(42, Relaxed);
                lines.mark.mark.store(5, Relaxed);
                assert_eq!(lines.gate.publish(0, 1), Ok(Mode::Ring));
            })
        };
        let seen = lines.gate.tail().0;
        if seen == 1 {
            assert_eq!(lines.mark.mark.load(Relaxed), 5);
            assert_eq!(lines.ring.load(Relaxed), 42);
        }
        producer.join().unwrap();
        seen as usize
    });
}

/// A consumer switches to the large ring while a producer puts into the small one: no byte is in the wrong ring.
#[test]
fn put_during_ring_switch_fails_or_uses_the_right_ring() {
    model(&[0b01, 0b10, 0b11], || {
        let lines = Arc::new(Lines::default());
        assert!(lines.gate.raise(0));
        let producer = {
            let lines = lines.clone();
            thread::spawn(move || {
                let mode = lines.gate.mode(0).unwrap();
                lines.ring.store(if mode == Mode::Wide { 2 } else { 1 }, Relaxed);
                lines.gate.publish_as(0, 1, mode) == Ok(mode)
            })
        };
        let wide = lines.gate.widen(0);
        if lines.gate.tail().0 == 1 {
            assert_eq!(lines.ring.load(Relaxed), if wide { 2 } else { 1 });
        }
        let put = producer.join().unwrap();
        assert_eq!(lines.gate.tail().0, u64::from(put));
        usize::from(put) << 1 | usize::from(wide)
    });
}

/// (c) Claim against advance: each byte is delivered by the ring or by TCP, never by both, never by none.
#[test]
fn claim_and_advance_deliver_each_byte_once() {
    // Bytes from the ring, and 1 more where the consumer met a moved head.
    model(&[1, 2, 3, 4], || {
        let lines = Arc::new(Lines::default());
        assert!(lines.gate.raise(0));
        let mut tail = 0;
        put(&lines, &mut tail, 2, 9);
        put(&lines, &mut tail, 2, 9);
        let producer = {
            let lines = lines.clone();
            thread::spawn(move || {
                lines.gate.lower_by_producer(4).unwrap();
                let head = lines.consumer.claim().expect("the only claim");
                let taken = (4 - head).min(3); // TCP takes three at most
                lines.tcp.fetch_add(taken, Relaxed);
                lines.mark.mark.store(taken, Relaxed);
                lines.consumer.release(head + taken);
                (head, taken)
            })
        };
        let (mut head, mut from_ring, mut moved_to) = (0, 0, None);
        for _ in 0..2 {
            match lines.consumer.advance(head, 2) {
                Advance::Done => {
                    head += 2;
                    from_ring += 2;
                    thread::yield_now();
                }
                Advance::Taken => thread::yield_now(),
                Advance::Moved(to) => {
                    assert_eq!(lines.mark.mark.load(Relaxed), to - head, "the mark travels with the new head");
                    moved_to = Some(to);
                    break;
                }
            }
        }
        let (claimed, taken) = producer.join().unwrap();
        assert_eq!(claimed, from_ring, "what was claimed begins where reading ended");
        assert_eq!(lines.tcp.load(Acquire), taken);
        let settled = lines.consumer.settled().unwrap();
        assert_eq!(settled, claimed + taken);
        assert!(moved_to.is_none_or(|to| to == settled));
        assert_eq!(from_ring + taken + (4 - settled), 4);
        from_ring as usize + usize::from(moved_to.is_some())
    });
}

/// (c) A consumer that gave up because of TAKEN, and a producer that leaves bytes behind: one of the two sees the other.
#[test]
fn consumer_that_found_taken_is_seen_by_the_producer() {
    model(&[0b00, 0b11, 0b10], || {
        let lines = Arc::new(Lines::default());
        let before = lines.consumer.met();
        lines.consumer.claim();
        let consumer = {
            let lines = lines.clone();
            thread::spawn(move || lines.consumer.settle().is_none()) // true: it sleeps
        };
        lines.consumer.release(0); // TCP took nothing
        let looks_again = lines.consumer.met() != before;
        let sleeps = consumer.join().unwrap();
        assert!(!sleeps || looks_again, "the consumer sleeps, and the producer leaves its bytes in the ring");
        usize::from(looks_again) << 1 | usize::from(sleeps)
    });
}

/// (d) A short payload is complete when the tail that covers it is visible.
#[test]
fn short_payload_is_visible_with_its_tail() {
    model(&[0, 10], || {
        let lines = Arc::new(Lines::default());
        assert!(lines.gate.raise(0));
        let producer = {
            let lines = lines.clone();
            thread::spawn(move || {
                lines.gate.write_inline(0, b"0123456789");
                assert_eq!(lines.gate.publish(0, 10), Ok(Mode::Ring));
            })
        };
        let seen = lines.gate.tail().0;
        if seen == 10 {
            let mut out = [0; INLINE];
            let (from, to) = lines.gate.read_inline(0, &mut out).unwrap();
            assert_eq!(&out[from..to], b"0123456789");
        }
        producer.join().unwrap();
        seen as usize
    });
}

/// (d) The line is used again only after the consumer has read it: its head travels to the producer.
#[test]
fn short_payload_is_not_overwritten_before_it_is_read() {
    model(&[5, 10], || {
        let lines = Arc::new(Lines::default());
        assert!(lines.gate.raise(0));
        lines.gate.write_inline(0, b"first");
        assert_eq!(lines.gate.publish(0, 5), Ok(Mode::Ring));
        let producer = {
            let lines = lines.clone();
            thread::spawn(move || {
                if lines.consumer.seen_head() == 5 {
                    lines.gate.write_inline(5, b"other");
                    assert_eq!(lines.gate.publish(5, 5), Ok(Mode::Ring));
                }
            })
        };
        let mut out = [0; INLINE];
        let (from, to) = lines.gate.read_inline(0, &mut out).unwrap();
        assert_eq!(&out[from..to], b"first");
        assert_eq!(lines.consumer.advance(0, 5), Advance::Done);
        producer.join().unwrap();
        lines.gate.tail().0 as usize
    });
}

/// Invariant 5 on two threads of the receiving process: one raises, one goes to sleep, both under the lock of the half as
/// in `motet-proto`; the second of them sees what the first has done.
#[test]
fn raise_and_sleep_exclude_each_other() {
    model(&[0, 1], || {
        let shared = Arc::new((StreamRecord::default(), Lines::default()));
        let locked = |record: &StreamRecord, token: u64, body: &mut dyn FnMut()| {
            while record.rx.lock.compare_exchange(0, token, Acquire, Relaxed).is_err() {
                thread::yield_now();
            }
            body();
            record.rx.lock.store(0, Release);
        };
        let sleeper = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (record, lines) = &*shared;
                locked(record, 1, &mut || {
                    assert!(lines.gate.lower_empty(0));
                    record.rx.kernel_calls.store(record.rx.kernel_calls.load(Relaxed) + 1, Relaxed);
                });
            })
        };
        let (record, lines) = &*shared;
        let mut raised = false;
        locked(record, 2, &mut || {
            if record.rx.kernel_calls.load(Relaxed) == 0 {
                raised = lines.gate.raise(0);
            }
        });
        sleeper.join().unwrap();
        assert!(!lines.gate.tail().1, "RING is set and a thread sleeps");
        usize::from(raised)
    });
}
