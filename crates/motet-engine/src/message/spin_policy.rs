//! How long a wait spins before it sleeps in the kernel.
//!
//! A wait spins while that pays. It yields the CPU at intervals, and at once if the last yield ran another thread. It sleeps if neither has helped. Failed
//! spins are followed by waits that sleep at once, about twice as many each time.

use motet_sys::{clock, cpu_contention};

/// Polls before the first reading of the clock: a peer that runs answers within these.
const EAGER_POLLS: u32 = 256;
/// Polls between two readings of the clock.
const POLLS_PER_CLOCK_READ: u32 = 32;
/// Time between two yields, ns.
const YIELD_INTERVAL_NS: u64 = 5_000;
/// A yield that took longer than this ran another thread, ns.
const MIN_USEFUL_YIELD_NS: u64 = 1_500;
/// A yield that took longer than this ran a thread that computes, ns.
const MAX_USEFUL_YIELD_NS: u64 = 200_000;
/// Failed spins are followed by up to `2^MAX_FAILURES - 1` waits without a spin.
const MAX_FAILURES: u32 = 8;

/// What a node has learnt from its earlier waits.
#[derive(Debug, Default)]
pub struct SpinPolicy {
    failures: u32,
    skip: u32,
    yield_is_useful: bool,
}

/// The next step of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpinStep {
    /// Poll again.
    Poll,
    /// Yield the CPU, then poll again.
    Yield,
    /// Sleep in the kernel.
    Sleep,
}

/// The spin of one wait.
#[derive(Debug)]
pub struct Spin {
    polls: u32,
    start: u64,
    yielded: u64,
    budget: u64,
    yield_first: bool,
}

fn ticks(ns: u64) -> u64 {
    ns * clock::ticks_per_1024ns() / 1024
}

impl SpinPolicy {
    /// Begins a wait that spins for at most `ns`.
    #[inline(always)]
    pub fn begin(&mut self, ns: u64) -> Spin {
        let budget = if self.skip > 0 { self.skip_one() } else { ns };
        Spin { polls: 0, start: 0, yielded: 0, budget, yield_first: self.yield_is_useful }
    }

    #[cold]
    fn skip_one(&mut self) -> u64 {
        self.skip -= 1;
        0
    }

    /// Number of polls with which a wait that spins for at most `ns` begins, whatever the clock says.
    #[inline(always)]
    pub fn eager_polls(&self, ns: u64) -> u32 {
        if self.skip > 0 || self.yield_is_useful || ns == 0 { 1 } else { EAGER_POLLS }
    }

    /// Notes that what was waited for has arrived without a sleep.
    #[inline(always)]
    pub fn note_success(&mut self) {
        self.failures = 0;
    }

    /// Notes a spin that has failed.
    pub fn note_failure(&mut self) {
        self.failures = (self.failures + 1).min(MAX_FAILURES);
        self.skip = (1 << self.failures) - 1;
    }

    /// Notes a sleep of `ns`. If it was so short that a spin would have been better, fewer of the next waits sleep at once.
    pub fn note_sleep(&mut self, ns: u64) {
        const WAKE_UP_NS: u64 = 20_000;
        if ns < WAKE_UP_NS {
            self.skip /= 4;
            self.failures /= 2;
        }
    }

    /// Yields the CPU, and notes what ran meanwhile. True: a thread that computes, so that a sleep is better.
    pub fn yield_cpu(&mut self) -> bool {
        let took = cpu_contention::yield_now();
        self.yield_is_useful = took > ticks(MIN_USEFUL_YIELD_NS) && took <= ticks(MAX_USEFUL_YIELD_NS);
        took > ticks(MAX_USEFUL_YIELD_NS)
    }
}

impl Spin {
    /// The next step after an empty poll.
    #[inline(always)]
    pub fn next(&mut self) -> SpinStep {
        self.polls += 1;
        if self.polls < EAGER_POLLS && self.budget > 0 && !self.yield_first {
            std::hint::spin_loop();
            return SpinStep::Poll;
        }
        self.next_slow()
    }

    #[cold]
    fn next_slow(&mut self) -> SpinStep {
        if self.budget == 0 {
            return SpinStep::Sleep;
        }
        if std::mem::take(&mut self.yield_first) {
            return SpinStep::Yield;
        }
        if !self.polls.is_multiple_of(POLLS_PER_CLOCK_READ) {
            std::hint::spin_loop();
            return SpinStep::Poll;
        }
        let now = clock::ticks();
        if self.start == 0 {
            (self.start, self.yielded) = (now, now);
        }
        if now.wrapping_sub(self.start) > ticks(self.budget) {
            return SpinStep::Sleep;
        }
        if now.wrapping_sub(self.yielded) > ticks(YIELD_INTERVAL_NS) {
            self.yielded = now;
            return SpinStep::Yield;
        }
        SpinStep::Poll
    }

    /// Starts the spin anew, because something has arrived, though not what is waited for.
    #[inline(always)]
    pub fn restart(&mut self) {
        (self.polls, self.start) = (0, 0);
    }

    /// Ends the spin: the wait sleeps after the next empty poll.
    pub fn exhaust(&mut self) {
        self.budget = 0;
        self.polls = EAGER_POLLS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_spins_become_sleeps_until_one_succeeds() {
        let mut policy = SpinPolicy::default();
        let sleeps_at_once = |policy: &mut SpinPolicy| policy.begin(1_000_000).next() == SpinStep::Sleep;
        assert!(!sleeps_at_once(&mut policy));
        for round in 1..12u32 {
            policy.note_failure();
            let skipped = (0..1000).take_while(|_| sleeps_at_once(&mut policy)).count();
            assert_eq!(skipped, (1 << round.min(MAX_FAILURES)) - 1);
        }
        policy.note_success();
        assert!(!sleeps_at_once(&mut policy));
    }

    #[test]
    fn wait_polls_then_yields_then_sleeps() {
        let mut policy = SpinPolicy::default();
        let mut spin = policy.begin(200_000);
        let mut seen = [0u64; 3];
        loop {
            let next = spin.next();
            seen[next as usize] += 1;
            match next {
                SpinStep::Yield => drop(policy.yield_cpu()),
                SpinStep::Sleep => break,
                SpinStep::Poll => {}
            }
        }
        assert!(seen[SpinStep::Poll as usize] >= u64::from(EAGER_POLLS) - 1 && seen[SpinStep::Yield as usize] > 0);
    }
}
