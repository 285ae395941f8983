//! When a wait spins before it sleeps in the kernel: the rules of streams and of nodes.
//!
//! - A spin polls for a while before it reads the clock: a peer that runs answers within these polls.
//! - Failed spins are followed by waits that do not spin, about twice as many each time ([`Backoff`]).
//! - A sleep that ends soon should have been a spin: fewer of the next waits sleep at once.
//! - The length of a yield tells what ran meanwhile ([`YieldOutcome`]). After a hand-over the next wait yields first. After a thread that
//!   computes, a sleep is better.
//!
//! What it is not: a loop. There are three of those, because what they poll and who runs meanwhile differ: one gate in the memory of a stream,
//! without a lock ([`crate::stream::spin`]); the gates of several streams and the caller's poll of the kernel (the engine's `stream::wait`);
//! the links of a node, under its lock, for all threads that wait (the engine's `message::spin_policy`).

use motet_wire::sync::{AtomicU32, Ordering::Relaxed};

/// Polls before the first reading of the clock.
pub const POLLS_BEFORE_CLOCK: u32 = 200;
/// Polls between two readings of the clock.
pub const POLLS_PER_CLOCK_READ: u32 = 32;
/// Time between two looks at what is not polled, ns: the kernel, and whether another thread wants the CPU.
pub const PROBE_INTERVAL_NS: u64 = 5_000;
/// A sleep in the kernel shorter than this (ns) should have been a spin.
pub const QUICK_WAKE_UP_NS: u64 = 20_000;
/// Failed spins in a row that count. They are followed by up to `2^MAX_FAILURES - 1` waits without a spin.
pub const MAX_FAILURES: u32 = 9;
/// A yield that takes longer than this (ns) ran another thread.
const MIN_HAND_OVER_NS: u64 = 1_500;
/// A yield that takes longer than this (ns) ran a thread that computes.
const MAX_HAND_OVER_NS: u64 = 200_000;

/// The two words that keep count of failed spins, wherever they are: in the record of a stream, which forked processes share, or in a process.
/// Several threads may use them. A count that is lost costs one spin or one sleep.
#[derive(Debug, Clone, Copy)]
pub struct Backoff<'a> {
    /// Waits that will not spin.
    pub skips: &'a AtomicU32,
    /// Failed spins in a row, up to a limit.
    pub failures: &'a AtomicU32,
}

impl Backoff<'_> {
    /// Whether the next wait spins. Counts a wait that does not.
    #[inline(always)]
    pub fn take_turn(self) -> bool {
        match self.skips.load(Relaxed) {
            0 => true,
            skips => self.skip_one(skips),
        }
    }

    #[cold]
    fn skip_one(self, skips: u32) -> bool {
        self.skips.store(skips - 1, Relaxed);
        false
    }

    /// Whether the last spin failed.
    #[inline(always)]
    pub fn has_failed(self) -> bool {
        self.failures.load(Relaxed) != 0
    }

    /// Notes that a spin has succeeded.
    #[inline(always)]
    pub fn note_success(self) {
        self.failures.store(0, Relaxed);
    }

    /// Notes that a spin has failed. `max`: failed spins in a row that count, usually [`MAX_FAILURES`].
    pub fn note_failure(self, max: u32) {
        let failures = (self.failures.load(Relaxed) + 1).min(max);
        self.failures.store(failures, Relaxed);
        self.skips.store((1 << failures) - 1, Relaxed);
    }

    /// Notes that the spin under way fails expensively: its failure counts four times.
    pub fn weigh_failure(self) {
        self.failures.store(self.failures.load(Relaxed) + 3, Relaxed);
    }

    /// Notes that a sleep ended within [`QUICK_WAKE_UP_NS`].
    pub fn note_quick_wake_up(self) {
        self.skips.store(self.skips.load(Relaxed) / 4, Relaxed);
        self.failures.store(self.failures.load(Relaxed) / 2, Relaxed);
    }
}

/// What ran during a yield.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum YieldOutcome {
    /// No other thread.
    Alone,
    /// A thread that soon gave the CPU back: the threads of this program, or its peers, hand work to each other.
    HandOver,
    /// A thread that computes.
    Computation,
}

impl YieldOutcome {
    /// The outcome of a yield that took `ticks` of a clock with so many ticks in 1024 ns.
    pub fn of(ticks: u64, ticks_per_1024ns: u64) -> Self {
        let longer_than = |ns: u64| ticks > (ns * ticks_per_1024ns) >> 10;
        match (longer_than(MIN_HAND_OVER_NS), longer_than(MAX_HAND_OVER_NS)) {
            (_, true) => Self::Computation,
            (true, false) => Self::HandOver,
            (false, false) => Self::Alone,
        }
    }
}

/// Whether a success after `spun` counts as a failure, because a sleep would have been as quick and would have left the CPU to others. Both in any
/// unit.
#[inline(always)]
pub fn is_late(spun: u64, budget: u64) -> bool {
    spun > 2 * budget
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_double_the_skips_until_a_success() {
        let [skips, failures] = [const { AtomicU32::new(0) }; 2];
        let backoff = Backoff { skips: &skips, failures: &failures };
        for round in 1..=MAX_FAILURES + 2 {
            backoff.note_failure(MAX_FAILURES);
            let skipped = (0..1000).take_while(|_| !backoff.take_turn()).count();
            assert_eq!(skipped, (1 << round.min(MAX_FAILURES)) - 1);
        }
        backoff.note_failure(6);
        assert_eq!((skips.load(Relaxed), failures.load(Relaxed)), (63, 6));
        backoff.note_quick_wake_up();
        assert_eq!((skips.load(Relaxed), failures.load(Relaxed)), (15, 3));
        backoff.note_success();
        assert!(!backoff.has_failed());
        backoff.weigh_failure();
        backoff.note_failure(MAX_FAILURES);
        assert_eq!((skips.load(Relaxed), failures.load(Relaxed)), (15, 4));
    }

    #[test]
    fn yield_length_tells_what_ran() {
        let of = |ns: u64| YieldOutcome::of(2 * ns, 2048);
        assert_eq!([0, 1_500].map(of), [YieldOutcome::Alone; 2]);
        assert_eq!([1_501, 200_000].map(of), [YieldOutcome::HandOver; 2]);
        assert_eq!(of(200_001), YieldOutcome::Computation);
    }
}
