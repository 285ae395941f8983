//! How long a wait stays outside the kernel.
//!
//! It spins while that pays, yields now and then, at once where the last yields ran another thread, and sleeps when neither has helped.
//! Waits that would have been better asleep are followed by waits that sleep at once, twice as many each time.

use motet_sys::{clock, cpu_contention};

/// Looks before the first one at the clock: a peer that runs answers within these.
const EAGER: u32 = 256;
/// Looks between two at the clock.
const LOOKS: u32 = 32;
/// Between two yields, ns.
const YIELD: u64 = 5_000;
/// A yield that took so long (ns) ran another thread, and one that took the second time a thread that computes.
const LENT: u64 = 1_500;
const HOG: u64 = 200_000;
/// Failed spins are followed by up to `2^FAILED - 1` waits without one.
const FAILED: u32 = 8;

/// What a node knows of its waits.
#[derive(Debug, Default)]
pub struct SpinPolicy {
    failed: u32,
    skip: u32,
    lent: bool,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Look again.
    Look,
    /// Yield the CPU, then poll again.
    Yield,
    /// Sleep.
    Sleep,
}

/// One wait.
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
    /// A wait begins, of at most `ns` outside the kernel.
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

    /// Looks that a wait of at most `ns` begins with, whatever the clock says.
    #[inline(always)]
    pub fn looks(&self, ns: u64) -> u32 {
        if self.skip > 0 || self.lent || ns == 0 { 1 } else { EAGER }
    }

    /// What was waited for has come outside the kernel.
    #[inline(always)]
    pub fn paid(&mut self) {
        self.failed = 0;
    }

    /// A spin has failed.
    pub fn failed(&mut self) {
        self.failed = (self.failed + 1).min(FAILED);
        self.skip = (1 << self.failed) - 1;
    }

    /// A sleep was so short (ns) that spinning would have been better.
    pub fn slept(&mut self, ns: u64) {
        const WAKE_UP: u64 = 20_000;
        if ns < WAKE_UP {
            self.skip /= 4;
            self.failed /= 2;
        }
    }

    /// Yields, and remembers what ran meanwhile. True: a thread that computes, so that it is better to sleep.
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

    /// Something has come, though not what was waited for: the wait begins anew.
    #[inline(always)]
    pub fn again(&mut self) {
        (self.looks, self.start) = (0, 0);
    }

    /// Ends the spin with the next poll.
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
