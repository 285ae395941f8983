//! Whether others compute where this process waits.
//!
//! Whoever spins yields now and then, and a yield that meets somebody who computes lasts as long as that one's slice: milliseconds, where a
//! sleep and its wake-up take microseconds. So after two such yields soon after each other the process sleeps in its waits for some
//! time, and longer each time that the next attempt meets the same: what is lost to attempts is bounded by one part in 128.

use crate::{clock, thread};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// A yield that lasts so long (ns) has met somebody who computes: who does for less comes to an end before a sleep would have paid, too.
const SLICE: u64 = 1_000_000;

/// Waits sleep for so many times as long as the yield before them; at first, and at most.
const FIRST: u64 = 8;
const MOST: u64 = 128;
/// Longest time without an attempt, ns.
const LONGEST: u64 = 1_000_000_000;

/// What is known of it. Threads race here: the worst that comes of it is an attempt too many.
#[derive(Debug)]
pub struct Crowd {
    /// Until when (ticks) nobody spins; 0: they may.
    until: AtomicU64,
    /// The last such time: its end, and how many times the yield it was (0: there was but one yield). Another one within `length` ticks
    /// of its end follows soon.
    ended: AtomicU64,
    length: AtomicU64,
    times: AtomicU64,
}

/// This process's.
static CROWD: Crowd = Crowd::new();
/// Whether nobody is ever noted.
static IGNORED: AtomicBool = AtomicBool::new(false);

/// From now on nobody who computes is noted: a setting for tests, whose waits do not depend on who has the CPUs.
pub fn ignore() {
    IGNORED.store(true, Relaxed);
}

/// Whether to sleep rather than spin.
#[inline(always)]
pub fn is_here() -> bool {
    CROWD.is_here(clock::ticks)
}

/// Lets others have this CPU; how long it was gone, ticks. It is noted where that was long. A virtual CPU may also be taken away by its
/// host, which is no sign of anybody here: where it would count, the kernel is asked who it was.
pub fn yield_now() -> u64 {
    let began = clock::ticks();
    let before = CROWD.counts(began).then(thread::displaced).flatten();
    thread::yield_now();
    let took = clock::ticks().saturating_sub(began);
    let ticks_per_1024ns = clock::ticks_per_1024ns();
    if took > (SLICE * ticks_per_1024ns) >> 10
        && before.is_none_or(|before| thread::displaced() != Some(before))
        && !IGNORED.load(Relaxed)
    {
        CROWD.met(began, began + took, ticks_per_1024ns);
    }
    took
}

impl Crowd {
    /// Nobody has been met.
    pub const fn new() -> Self {
        let [until, ended, length, times] = [const { AtomicU64::new(0) }; 4];
        Self { until, ended, length, times }
    }

    /// Whether somebody was met twice lately. `now` is asked only where that may be.
    #[inline(always)]
    pub fn is_here(&self, now: impl FnOnce() -> u64) -> bool {
        self.until.load(Relaxed) != 0 && self.was_here(now())
    }

    #[cold]
    fn was_here(&self, now: u64) -> bool {
        if now < self.until.load(Relaxed) {
            return true;
        }
        self.until.store(0, Relaxed);
        false
    }

    /// Whether somebody met by a yield that begins now would be the second one.
    #[inline(always)]
    pub fn counts(&self, now: u64) -> bool {
        let length = self.length.load(Relaxed);
        length != 0 && now.wrapping_sub(self.ended.load(Relaxed)) < length
    }

    /// A yield that began at `began` and lasted until `now` has met somebody who computes.
    #[cold]
    pub fn met(&self, began: u64, now: u64, ticks_per_1024ns: u64) {
        let took = now.saturating_sub(began);
        let Some(since) = began.checked_sub(self.ended.load(Relaxed)) else { return }; // another thread has met the same one
        let again = since < self.length.load(Relaxed);
        let times = if again { (self.times.load(Relaxed) * 2).clamp(FIRST, MOST) } else { 0 };
        let length = (took * times).min((LONGEST * ticks_per_1024ns) >> 10);
        self.times.store(times, Relaxed);
        self.length.store(length.max(took * FIRST), Relaxed);
        self.ended.store(now + length, Relaxed);
        self.until.store(if again { now + length } else { 0 }, Relaxed);
    }
}

impl Default for Crowd {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One tick is a nanosecond.
    const NS: u64 = 1024;

    #[test]
    fn a_yield_that_lasts_is_followed_by_sleeps_and_by_more_of_them_each_time() {
        let crowd = Crowd::new();
        assert!(!crowd.is_here(|| unreachable!("nobody was met")));
        let (mut now, took) = (20_000_000, 4_000_000);
        crowd.met(now - 10_000_000, now - 6_000_000, NS);
        assert!(!crowd.is_here(|| unreachable!("met once, maybe by chance")));
        assert!(crowd.counts(now) && !crowd.counts(now + 50_000_000), "the next one counts, if it comes soon");
        let mut lasted = Vec::new();
        for _ in 0..7 {
            crowd.met(now, now + took, NS);
            now += took;
            let end = crowd.ended.load(Relaxed);
            assert!(crowd.is_here(|| end - 1) && !crowd.is_here(|| end));
            lasted.push((end - now) / took);
            now = end + 10;
        }
        assert_eq!(lasted, [8, 16, 32, 64, 128, 128, 128]);
    }

    #[test]
    fn one_that_is_met_by_chance_costs_little() {
        let crowd = Crowd::new();
        crowd.met(0, 300_000, NS);
        // The next one comes long after.
        crowd.met(100_000_000, 100_300_000, NS);
        assert!(!crowd.is_here(|| unreachable!("by chance")));
        // Two threads that met the same one count once.
        crowd.met(100_100_000, 100_400_000, NS);
        assert!(!crowd.is_here(|| unreachable!("the same")));
        // Soon after each other, for however long.
        crowd.met(1 << 40, (1 << 40) + 500_000_000, NS);
        crowd.met((1 << 40) + 600_000_000, (1 << 40) + 1_100_000_000, NS);
        let end = (1 << 40) + 1_100_000_000 + LONGEST;
        assert!(crowd.is_here(|| end - 1) && !crowd.is_here(|| end));
    }
}
