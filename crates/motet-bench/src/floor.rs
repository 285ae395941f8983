//! The best that this machine allows: a cache line sent from one CPU to another, and a copy by one core.
//!
//! The floor has modes that change within seconds with the placement of virtual CPUs. It is sampled before and after every
//! repetition, so that a repetition during which it changed is recognised.

use crate::place::{Cpus, pin};
use crate::stats::median;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The largest floor of the fast mode, ns. A ratio between a spinning path and TCP counts in that mode only.
pub const FAST_MAX_NS: f64 = 60.0;
/// The largest floor of two CPUs that share a cache, ns.
pub const NEAR_MAX_NS: f64 = 100.0;
/// Two samples that differ by more than this factor belong to different modes.
const SAME_MODE: f64 = 1.3;

/// A word alone in a pair of cache lines, as the adjacent line may be prefetched.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// How a word is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// A plain store: the floor of every ratio.
    Store,
    /// A locked exchange. It drains the store buffer at once, so the line arrives sooner. It is shown for comparison.
    Exchange,
}

/// ns for one way of a cache line from one CPU to the other and back: the median of some blocks of round trips.
pub fn one_way(cpus: &Cpus, write: Write) -> f64 {
    match write {
        Write::Store => ping_pong(cpus, |word, turn| word.store(turn, Ordering::Release)),
        Write::Exchange => ping_pong(cpus, |word, turn| {
            word.swap(turn, Ordering::AcqRel);
        }),
    }
}

fn ping_pong(cpus: &Cpus, write: impl Fn(&AtomicU64, u64) + Sync) -> f64 {
    const BLOCKS: u64 = 24;
    const ROUND_TRIPS: u64 = 500;
    let (there, back) = (Line::default(), Line::default());
    let blocks = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(cpus.pair[1]);
            for turn in 1..=BLOCKS * ROUND_TRIPS {
                while there.0.load(Ordering::Acquire) != turn {
                    spin_loop();
                }
                write(&back.0, turn);
            }
        });
        let near = scope.spawn(|| {
            pin(cpus.pair[0]);
            let mut blocks = Vec::with_capacity(BLOCKS as usize);
            let mut turn = 0;
            for _ in 0..BLOCKS {
                let start = Instant::now();
                for _ in 0..ROUND_TRIPS {
                    turn += 1;
                    write(&there.0, turn);
                    while back.0.load(Ordering::Acquire) != turn {
                        spin_loop();
                    }
                }
                blocks.push(start.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64 / 2.0);
            }
            blocks
        });
        near.join().unwrap_or_default()
    });
    median(&blocks[blocks.len().min(2)..]) // the first blocks wait for the other thread to start
}

/// The distance of two CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distance {
    /// They share a cache.
    Near,
    /// They share no cache.
    Far,
}

impl Distance {
    /// Both distances.
    pub const ALL: [Distance; 2] = [Distance::Near, Distance::Far];

    /// The distance in words.
    pub fn words(self) -> &'static str {
        match self {
            Distance::Near => "near CPUs",
            Distance::Far => "far CPUs",
        }
    }
}

/// The floor before and after one repetition.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FloorSamples {
    /// Before, ns.
    pub before: f64,
    /// After, ns.
    pub after: f64,
}

impl FloorSamples {
    /// The floor of the repetition: `None` when the mode changed meanwhile.
    pub fn steady(&self) -> Option<f64> {
        let (low, high) = (self.before.min(self.after), self.before.max(self.after));
        (low > 0.0 && high <= low * SAME_MODE).then_some((low + high) / 2.0)
    }

    /// The distance of the CPUs during the whole repetition; `None` if it changed meanwhile.
    pub fn distance(&self) -> Option<Distance> {
        match (self.before <= NEAR_MAX_NS, self.after <= NEAR_MAX_NS) {
            (true, true) => Some(Distance::Near),
            (false, false) => Some(Distance::Far),
            _ => None,
        }
    }

    /// Whether the whole repetition saw the fast mode.
    pub fn fast(&self) -> bool {
        self.before.max(self.after) <= FAST_MAX_NS
    }
}

/// Seconds that one CPU takes to copy `size` bytes, `buffers` pairs of buffers in turn (1: in the cache if they fit there).
pub fn copy(cpu: usize, size: usize, buffers: usize, time: Duration) -> f64 {
    std::thread::scope(|scope| {
        let body = move || {
            pin(cpu);
            let mut pairs: Vec<_> = (0..buffers).map(|_| (vec![1u8; size], vec![2u8; size])).collect();
            in_blocks(size, time, |turn| {
                let (from, into) = &mut pairs[turn % buffers];
                black_box(&mut *into).copy_from_slice(black_box(from));
            })
        };
        scope.spawn(body).join().unwrap_or(f64::NAN)
    })
}

/// The median time of `step` in seconds, timed in blocks of about 16 MiB.
pub fn in_blocks(size: usize, time: Duration, mut step: impl FnMut(usize)) -> f64 {
    let count = ((16 << 20) / size).clamp(1, 4096);
    let (mut turn, mut blocks) = (0, Vec::new());
    let start = Instant::now();
    let mut warm = true;
    while warm || blocks.is_empty() || start.elapsed() < time {
        let block = Instant::now();
        for _ in 0..count {
            step(turn);
            turn += 1;
        }
        if !warm {
            blocks.push(block.elapsed().as_secs_f64() / count as f64);
        }
        warm = warm && start.elapsed() < time / 5;
    }
    median(&blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_change_is_recognised() {
        let fast = FloorSamples { before: 52.0, after: 58.0 };
        assert_eq!(fast.steady(), Some(55.0));
        assert!(fast.fast());
        let slow = FloorSamples { before: 240.0, after: 255.0 };
        assert!(slow.steady().is_some() && !slow.fast());
        assert_eq!(FloorSamples { before: 52.0, after: 250.0 }.steady(), None);
    }

    #[test]
    fn distance_is_near_far_or_changed() {
        let distance = |before, after| FloorSamples { before, after }.distance();
        assert_eq!(distance(52.0, 98.0), Some(Distance::Near));
        assert_eq!(distance(240.0, 101.0), Some(Distance::Far));
        assert_eq!((distance(52.0, 240.0), distance(240.0, 52.0)), (None, None));
    }
}
