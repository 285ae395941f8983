//! How long a wait of a node spins before it sleeps in the kernel, by the rules of [`motet_proto::spin_policy`].
//!
//! A wait polls, yields the CPU at intervals, and sleeps if neither has helped. It makes no step itself: the thread that waits polls the links and
//! unlocks the node for a yield.

use motet_proto::spin_policy::{
    Backoff, MAX_FAILURES, POLLS_BEFORE_CLOCK, POLLS_PER_CLOCK_READ, PROBE_INTERVAL_NS, QUICK_WAKE_UP_NS, YieldOutcome,
};
use motet_sys::clock::{self, ticks_of};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What a node has learnt from its earlier waits.
#[derive(Debug, Default)]
pub struct SpinPolicy {
    skips: AtomicU32,
    failures: AtomicU32,
    yield_first: bool,
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

impl SpinPolicy {
    /// Begins a wait that spins for at most `ns`.
    #[inline(always)]
    pub fn begin(&mut self, ns: u64) -> Spin {
        let budget = if self.backoff().take_turn() { ns } else { 0 };
        Spin { polls: 0, start: 0, yielded: 0, budget, yield_first: self.yield_first }
    }

    #[inline(always)]
    fn backoff(&self) -> Backoff<'_> {
        Backoff { skips: &self.skips, failures: &self.failures }
    }

    /// Number of polls with which a wait that spins for at most `ns` begins, whatever the clock says.
    #[inline(always)]
    pub fn eager_polls(&self, ns: u64) -> u32 {
        if self.skips.load(Relaxed) > 0 || self.yield_first || ns == 0 { 1 } else { POLLS_BEFORE_CLOCK }
    }

    /// Notes that what was waited for has arrived without a sleep.
    #[inline(always)]
    pub fn note_success(&mut self) {
        self.backoff().note_success();
    }

    /// Notes a spin that has failed.
    pub fn note_failure(&mut self) {
        self.backoff().note_failure(MAX_FAILURES);
    }

    /// Notes a sleep of `ns`.
    pub fn note_sleep(&mut self, ns: u64) {
        if ns < QUICK_WAKE_UP_NS {
            self.backoff().note_quick_wake_up();
        }
    }

    /// Notes a yield of the wait that took so many ticks.
    pub fn note_yield(&mut self, spin: &mut Spin, ticks: u64) {
        let outcome = YieldOutcome::of(ticks, clock::ticks_per_1024ns());
        self.yield_first = outcome == YieldOutcome::HandOver;
        if outcome == YieldOutcome::Computation {
            spin.exhaust();
        }
    }
}

impl Spin {
    /// The next step after an empty poll.
    #[inline(always)]
    pub fn next(&mut self) -> SpinStep {
        self.polls += 1;
        if self.polls < POLLS_BEFORE_CLOCK && self.budget > 0 && !self.yield_first {
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
        if now.wrapping_sub(self.start) > ticks_of(self.budget) {
            return SpinStep::Sleep;
        }
        if now.wrapping_sub(self.yielded) > ticks_of(PROBE_INTERVAL_NS) {
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
    fn exhaust(&mut self) {
        self.budget = 0;
        self.polls = POLLS_BEFORE_CLOCK;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_sys::cpu_contention;

    #[test]
    fn failed_spins_become_sleeps_until_one_succeeds() {
        let mut policy = SpinPolicy::default();
        let sleeps_at_once = |policy: &mut SpinPolicy| policy.begin(1_000_000).next() == SpinStep::Sleep;
        assert!(!sleeps_at_once(&mut policy));
        policy.note_failure();
        policy.note_failure();
        assert_eq!((0..1000).take_while(|_| sleeps_at_once(&mut policy)).count(), 3);
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
                SpinStep::Yield => policy.note_yield(&mut spin, cpu_contention::yield_now()),
                SpinStep::Sleep => break,
                SpinStep::Poll => {}
            }
        }
        assert!(
            seen[SpinStep::Poll as usize] >= u64::from(POLLS_BEFORE_CLOCK) - 1 && seen[SpinStep::Yield as usize] > 0
        );
    }
}
