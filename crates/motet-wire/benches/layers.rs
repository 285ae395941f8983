//! The bottom layer alone: copies through the ring, and the gate's steps, in one thread and between two.
//!
//! `cargo bench -p motet-wire`. Two threads run on CPUs 0 and 1; the machine's own floor for their exchange is `floor/two
//! words`, measured by the same means. Criterion's figures are means over time: on a machine that does other work they grow.
#![allow(missing_docs)] // criterion_group! makes an undocumented function

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use motet_wire::stream::gate::{Advance, ConsumerLine, GateLine, INLINE, Mode};
use motet_wire::stream::ring::Ring;
use std::hint::{black_box, spin_loop};
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const RING: usize = 65536;

/// One thread writes a message into the ring and reads it out again: two copies.
fn ring(criterion: &mut Criterion) {
    let mut memory = vec![0u8; RING];
    // SAFETY: `memory` outlives the ring, is as long as said, and is used through the ring only.
    let ring = unsafe { Ring::new(memory.as_mut_ptr(), RING) };
    let mut group = criterion.benchmark_group("ring/write and read");
    for size in [8, 64, 512, 4096, 32768, RING] {
        let (from, mut into) = (vec![1u8; size], vec![0u8; size]);
        let mut at = 0;
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| {
                ring.write(at, &[IoSlice::new(black_box(&from))], 0, size);
                ring.read(at, &mut [IoSliceMut::new(black_box(&mut into))], 0, size);
                at += size as u64;
            });
        });
    }
    group.finish();
}

/// One direction, with both ends' private indices.
#[derive(Default)]
struct Direction {
    gate: GateLine,
    consumer: ConsumerLine,
}

impl Direction {
    fn open() -> Self {
        let direction = Self::default();
        assert!(direction.gate.raise(0));
        direction
    }

    /// Publishes 8 bytes at `tail`.
    #[inline(always)]
    fn put(&self, tail: u64, value: u64) {
        debug_assert_eq!(self.gate.mode(tail), Ok(Mode::Ring));
        self.gate.write_inline(tail, &value.to_ne_bytes());
        assert_eq!(self.gate.publish(tail, 8), Ok(Mode::Ring));
    }

    /// Takes 8 bytes at `head`, once they are there.
    #[inline(always)]
    fn take(&self, head: u64) -> [u8; INLINE] {
        while self.gate.still_waiting(head) {
            spin_loop();
        }
        let mut short = [0; INLINE];
        assert_eq!(self.gate.tail(), (head + 8, true));
        assert!(self.gate.read_inline(head, &mut short).is_some());
        assert_eq!(self.consumer.advance(head, 8), Advance::Done);
        short
    }
}

/// The gate's steps without another CPU: what they cost by themselves.
fn gate(criterion: &mut Criterion) {
    let direction = Direction::open();
    let mut at = 0;
    criterion.bench_function("gate/publish and consume 8 B, one thread", |bencher| {
        bencher.iter(|| {
            direction.put(at, black_box(at));
            black_box(direction.take(at));
            at += 8;
        });
    });
    let idle = Direction::default();
    criterion.bench_function("gate/raise and lower", |bencher| {
        bencher.iter(|| {
            assert!(idle.gate.raise(0));
            assert!(idle.gate.lower_empty(0));
        });
    });
}

/// Time for `rounds` exchanges of two threads: `near` and `far` are told the number of the exchange.
fn between(rounds: u64, near: impl Fn(u64) + Send, far: impl Fn(u64) + Send) -> Duration {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            (0..=rounds).for_each(far);
        });
        let near = scope.spawn(|| {
            pin(0);
            near(0); // the other thread runs now
            let start = Instant::now();
            (1..=rounds).for_each(near);
            start.elapsed()
        });
        near.join().expect("the near thread measures")
    })
}

/// Keeps this thread on one CPU; on a machine that has fewer, anywhere.
fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// A round trip of 8 bytes between two threads, and of bare words, for comparison.
fn round_trip(criterion: &mut Criterion) {
    criterion.bench_function("gate/round trip of 8 B, two threads", |bencher| {
        bencher.iter_custom(|rounds| {
            let (there, back) = (Direction::open(), Direction::open());
            let near = |round: u64| {
                there.put(round * 8, round);
                black_box(back.take(round * 8));
            };
            let far = |round: u64| {
                black_box(there.take(round * 8));
                back.put(round * 8, round);
            };
            between(rounds, near, far)
        });
    });
    #[repr(align(128))]
    struct Word(AtomicU64);
    criterion.bench_function("floor/two words, round trip, two threads", |bencher| {
        bencher.iter_custom(|rounds| {
            let (there, back) = (Word(AtomicU64::new(0)), Word(AtomicU64::new(0)));
            let await_word = |word: &Word, value| {
                while word.0.load(Ordering::Acquire) != value {
                    spin_loop();
                }
            };
            let near = |round: u64| {
                there.0.store(round + 1, Ordering::Release);
                await_word(&back, round + 1);
            };
            let far = |round: u64| {
                await_word(&there, round + 1);
                back.0.store(round + 1, Ordering::Release);
            };
            between(rounds, near, far)
        });
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = ring, gate, round_trip
}
criterion_main!(benches);
