//! Detects oversubscribed CPUs: another thread computes on the CPU on which this process waits.
//!
//! A thread that spins also yields its CPU from time to time. If another thread computes there, a yield lasts for that thread's time slice:
//! milliseconds, where a sleep and its wake-up take microseconds. After two long yields in short succession all waits of the process sleep
//! instead of spinning, for a period that is a multiple of the yield. If the next yield is long again, the period doubles: at most one
//! part in 128 of the time is lost to trial yields.

use crate::{clock, thread};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// A yield of this length or more is long, ns. A shorter one ends before a sleep would have paid.
const LONG_YIELD_NS: u64 = 1_000_000;

/// Length of a sleep period in lengths of the yield before it: first value and largest value.
const MIN_SLEEP_FACTOR: u64 = 8;
const MAX_SLEEP_FACTOR: u64 = 128;
/// Longest sleep period, ns.
const MAX_SLEEP_PERIOD_NS: u64 = 1_000_000_000;

/// The state of the detector. Threads update it without a lock: a lost update costs one trial yield.
#[derive(Debug)]
pub struct CpuContention {
    /// End of the current sleep period, ticks; 0: waits may spin.
    sleep_until: AtomicU64,
    /// End of the latest sleep period, or of the latest long yield if none followed, ticks.
    last_end: AtomicU64,
    /// A long yield within this time after `last_end` is a repeat, ticks; 0: there was no long yield.
    repeat_window: AtomicU64,
    /// Length of the latest sleep period in lengths of its yield; 0: there was one long yield and no sleep period.
    factor: AtomicU64,
}

/// The detector of this process.
static THIS_PROCESS: CpuContention = CpuContention::new();
/// Long yields are not recorded.
static DISABLED: AtomicBool = AtomicBool::new(false);

/// Stops recording long yields: for tests, whose waits must not depend on other load.
pub fn disable() {
    DISABLED.store(true, Relaxed);
}

/// Whether waits should sleep instead of spinning.
#[inline(always)]
pub fn is_contended() -> bool {
    THIS_PROCESS.is_contended(clock::ticks)
}

/// Yields the CPU; returns how long that took, ticks. A long yield is recorded, unless the CPU was taken away by the host of a virtual
/// machine: where a long yield would start a sleep period, the kernel's count of involuntary switches tells the two apart.
pub fn yield_now() -> u64 {
    let began = clock::ticks();
    let before = THIS_PROCESS.is_repeat(began).then(thread::involuntary_switches).flatten();
    thread::yield_now();
    let took = clock::ticks().saturating_sub(began);
    let ticks_per_1024ns = clock::ticks_per_1024ns();
    if took > (LONG_YIELD_NS * ticks_per_1024ns) >> 10
        && before.is_none_or(|before| thread::involuntary_switches() != Some(before))
        && !DISABLED.load(Relaxed)
    {
        THIS_PROCESS.record_long_yield(began, began + took, ticks_per_1024ns);
    }
    took
}

impl CpuContention {
    /// No contention seen.
    pub const fn new() -> Self {
        let [sleep_until, last_end, repeat_window, factor] = [const { AtomicU64::new(0) }; 4];
        Self { sleep_until, last_end, repeat_window, factor }
    }

    /// Whether a sleep period lasts at `now`, ticks. `now` is called only if one was started.
    #[inline(always)]
    pub fn is_contended(&self, now: impl FnOnce() -> u64) -> bool {
        self.sleep_until.load(Relaxed) != 0 && self.is_contended_slow(now())
    }

    #[cold]
    fn is_contended_slow(&self, now: u64) -> bool {
        if now < self.sleep_until.load(Relaxed) {
            return true;
        }
        self.sleep_until.store(0, Relaxed);
        false
    }

    /// Whether a long yield that begins at `now`, ticks, would start a sleep period.
    #[inline(always)]
    pub fn is_repeat(&self, now: u64) -> bool {
        let repeat_window = self.repeat_window.load(Relaxed);
        repeat_window != 0 && now.wrapping_sub(self.last_end.load(Relaxed)) < repeat_window
    }

    /// Records a long yield from `began` to `now`, ticks. A second one in short succession starts a sleep period.
    #[cold]
    pub fn record_long_yield(&self, began: u64, now: u64, ticks_per_1024ns: u64) {
        let took = now.saturating_sub(began);
        let Some(since) = began.checked_sub(self.last_end.load(Relaxed)) else { return }; // a yield of another thread at the same time
        let is_repeat = since < self.repeat_window.load(Relaxed);
        let factor =
            if is_repeat { (self.factor.load(Relaxed) * 2).clamp(MIN_SLEEP_FACTOR, MAX_SLEEP_FACTOR) } else { 0 };
        let period = (took * factor).min((MAX_SLEEP_PERIOD_NS * ticks_per_1024ns) >> 10);
        self.factor.store(factor, Relaxed);
        self.repeat_window.store(period.max(took * MIN_SLEEP_FACTOR), Relaxed);
        self.last_end.store(now + period, Relaxed);
        self.sleep_until.store(if is_repeat { now + period } else { 0 }, Relaxed);
    }
}

impl Default for CpuContention {
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
    fn repeated_long_yields_double_the_sleep_period() {
        let contention = CpuContention::new();
        assert!(!contention.is_contended(|| unreachable!("no long yield")));
        let (mut now, took) = (20_000_000, 4_000_000);
        contention.record_long_yield(now - 10_000_000, now - 6_000_000, NS);
        assert!(!contention.is_contended(|| unreachable!("one long yield may be chance")));
        assert!(
            contention.is_repeat(now) && !contention.is_repeat(now + 50_000_000),
            "a repeat is one that follows soon"
        );
        let mut factors = Vec::new();
        for _ in 0..7 {
            contention.record_long_yield(now, now + took, NS);
            now += took;
            let end = contention.last_end.load(Relaxed);
            assert!(contention.is_contended(|| end - 1) && !contention.is_contended(|| end));
            factors.push((end - now) / took);
            now = end + 10;
        }
        assert_eq!(factors, [8, 16, 32, 64, 128, 128, 128]);
    }

    #[test]
    fn single_long_yields_start_no_sleep_period() {
        let contention = CpuContention::new();
        contention.record_long_yield(0, 300_000, NS);
        // The next one is long after.
        contention.record_long_yield(100_000_000, 100_300_000, NS);
        assert!(!contention.is_contended(|| unreachable!("chance")));
        // Two yields of two threads at the same time count once.
        contention.record_long_yield(100_100_000, 100_400_000, NS);
        assert!(!contention.is_contended(|| unreachable!("one contention")));
        // In short succession, the longest period.
        contention.record_long_yield(1 << 40, (1 << 40) + 500_000_000, NS);
        contention.record_long_yield((1 << 40) + 600_000_000, (1 << 40) + 1_100_000_000, NS);
        let end = (1 << 40) + 1_100_000_000 + MAX_SLEEP_PERIOD_NS;
        assert!(contention.is_contended(|| end - 1) && !contention.is_contended(|| end));
    }
}
