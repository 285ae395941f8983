//! How long a wait spins before it sleeps in the kernel.
//!
//! A wait spins while that pays. It yields the CPU at intervals, and at once if the last yield ran another thread. It sleeps if neither has helped. Failed
//! spins are followed by waits that sleep at once, about twice as many each time.

use motet_sys::{clock, cpu_contention};

/// Polls before the first reading of the clock: a peer that runs answers within these.
const EAGER: u32 = 256;
/// Polls between two readings of the clock.
const LOOKS: u32 = 32;
/// Time between two yields, ns.
const YIELD: u64 = 5_000;
/// A yield that took longer than this ran another thread, ns.
const LENT: u64 = 1_500;
/// A yield that took longer than this ran a thread that computes, ns.
const HOG: u64 = 200_000;
/// Failed spins are followed by up to `2^FAILED - 1` waits without a spin.
const FAILED: u32 = 8;

/// What a node has learnt from its earlier waits.
#[derive(Debug, Default)]
pub struct SpinPolicy {
    failed: u32,
    skip: u32,
    lent: bool,
}

/// The next step of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Poll again.
    Look,
    /// Yield the CPU, then poll again.
    Yield,
    /// Sleep in the kernel.
    Sleep,
}

/// The spin of one wait.
#[derive(Debug)]
pub struct Spin {
    looks: u32,
    start: u64,
    yielded: u64,
    budget: u64,
    first: bool,
}

fn ticks(ns: u64) -> u64 {
    ns * clock::ticks_per_1024ns() / 1024
}

impl SpinPolicy {
    /// Begins a wait that spins for at most `ns`.
    #[inline(always)]
    pub fn begin(&mut self, ns: u64) -> Spin {
        let budget = if self.skip > 0 { self.skipped() } else { ns };
        Spin { looks: 0, start: 0, yielded: 0, budget, first: self.lent }
    }

    #[cold]
    fn skipped(&mut self) -> u64 {
        self.skip -= 1;
        0
    }

    /// Number of polls with which a wait that spins for at most `ns` begins, whatever the clock says.
    #[inline(always)]
    pub fn looks(&self, ns: u64) -> u32 {
        if self.skip > 0 || self.lent || ns == 0 { 1 } else { EAGER }
    }

    /// Notes that what was waited for has arrived without a sleep.
    #[inline(always)]
    pub fn paid(&mut self) {
        self.failed = 0;
    }

    /// Notes a spin that has failed.
    pub fn failed(&mut self) {
        self.failed = (self.failed + 1).min(FAILED);
        self.skip = (1 << self.failed) - 1;
    }

    /// Notes a sleep of `ns`. If it was so short that a spin would have been better, fewer of the next waits sleep at once.
    pub fn slept(&mut self, ns: u64) {
        const WAKE_UP: u64 = 20_000;
        if ns < WAKE_UP {
            self.skip /= 4;
            self.failed /= 2;
        }
    }

    /// Yields the CPU, and notes what ran meanwhile. True: a thread that computes, so that a sleep is better.
    pub fn lend(&mut self) -> bool {
        let took = cpu_contention::yield_now();
        self.lent = took > ticks(LENT) && took <= ticks(HOG);
        took > ticks(HOG)
    }
}

impl Spin {
    /// The next step after an empty poll.
    #[inline(always)]
    pub fn next(&mut self) -> Next {
        self.looks += 1;
        if self.looks < EAGER && self.budget > 0 && !self.first {
            std::hint::spin_loop();
            return Next::Look;
        }
        self.late()
    }

    #[cold]
    fn late(&mut self) -> Next {
        if self.budget == 0 {
            return Next::Sleep;
        }
        if std::mem::take(&mut self.first) {
            return Next::Yield;
        }
        if !self.looks.is_multiple_of(LOOKS) {
            std::hint::spin_loop();
            return Next::Look;
        }
        let now = clock::ticks();
        if self.start == 0 {
            (self.start, self.yielded) = (now, now);
        }
        if now.wrapping_sub(self.start) > ticks(self.budget) {
            return Next::Sleep;
        }
        if now.wrapping_sub(self.yielded) > ticks(YIELD) {
            self.yielded = now;
            return Next::Yield;
        }
        Next::Look
    }

    /// Starts the spin anew, because something has arrived, though not what is waited for.
    #[inline(always)]
    pub fn again(&mut self) {
        (self.looks, self.start) = (0, 0);
    }

    /// Ends the spin: the wait sleeps after the next empty poll.
    pub fn give_up(&mut self) {
        self.budget = 0;
        self.looks = EAGER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_in_vain_become_sleeps_and_one_that_pays_spins_again() {
        let mut pace = SpinPolicy::default();
        let sleeps_at_once = |pace: &mut SpinPolicy| pace.begin(1_000_000).next() == Next::Sleep;
        assert!(!sleeps_at_once(&mut pace));
        for round in 1..12u32 {
            pace.failed();
            let skipped = (0..1000).take_while(|_| sleeps_at_once(&mut pace)).count();
            assert_eq!(skipped, (1 << round.min(FAILED)) - 1);
        }
        pace.paid();
        assert!(!sleeps_at_once(&mut pace));
    }

    #[test]
    fn a_wait_looks_yields_and_sleeps_in_the_end() {
        let mut pace = SpinPolicy::default();
        let mut spin = pace.begin(200_000);
        let mut seen = [0u64; 3];
        loop {
            let next = spin.next();
            seen[next as usize] += 1;
            match next {
                Next::Yield => drop(pace.lend()),
                Next::Sleep => break,
                Next::Look => {}
            }
        }
        assert!(seen[Next::Look as usize] >= u64::from(EAGER) - 1 && seen[Next::Yield as usize] > 0);
    }
}
