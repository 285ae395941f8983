//! How a writer copies payload into a ring that its reader empties: through its caches or around them (by non-temporal stores).
//!
//! The large ring of a stream and the payload ring of a link use it, because only the writer can time its puts. What it is not: the choice between a
//! ring and a single copy. A stream makes that by sizes, since its receiver may show no buffer; of a long message the receiver makes it, and may set the
//! mode of the sender by it (the engine's `message::copy_strategy`).

use motet_wire::copy_mode::CopyMode;
use motet_wire::sync::Ordering::Relaxed;

/// Bytes of large puts, or of large takes, over which a rate is measured.
pub const WINDOW_BYTES: u32 = 1 << 20;

/// Bytes copied in one mode before the other one is tried again; doubled by every trial that changes nothing.
const RETRY_INTERVAL_BYTES: u64 = 16 << 20;
/// At this rate through the caches (MB/s) the other mode is not tried.
const FAST_MB_PER_S: u32 = 12_000;

/// A rate, MB/s, of `bytes` in so many ticks.
pub fn mb_per_s(bytes: u64, ticks: u64, ticks_per_1024ns: u64) -> u32 {
    let rate = u128::from(bytes) * u128::from(ticks_per_1024ns) * 1000 / 1024 / u128::from(ticks.max(1));
    u32::try_from(rate).unwrap_or(u32::MAX)
}

/// Selects the copy mode of large puts: the one that moved more bytes a second when last measured, including the wait for the reader.
///
/// The first windows of a trial only move the ring's cache lines to where they are used; the window after them counts.
pub struct CopyModeSelector<'a>(pub &'a CopyMode);

/// Bit of `mode`: through the caches.
const CACHED: u32 = 1;
/// Bit of `mode`: around the caches, by non-temporal stores.
const NON_TEMPORAL: u32 = 2;
/// Bit of `mode`: the mode in use is a trial, and the other one is the mode to return to.
const TRIAL_FLAG: u32 = 4;
/// Unit in `mode` of the windows that do not count yet.
const SETTLING_WINDOW: u32 = 8;
/// Unit in `mode` of the trials in a row that changed nothing.
const CONFIRMED_TRIAL: u32 = 64;
/// Most trials in a row that are counted.
const MAX_CONFIRMED_TRIALS: u32 = 6;
/// Bit of `mode`: the last window had less than half the rate of the one before.
const RATE_FELL_FLAG: u32 = 1024;

/// The first value of a mode that begins, with the windows that do not count: one around the caches; through them all of the large ring, until its
/// lines are where they are used.
fn start_of(mode: u32) -> u32 {
    mode | (SETTLING_WINDOW * if mode == CACHED { 4 } else { 1 })
}

impl CopyModeSelector<'_> {
    /// Whether the mode in use goes around the caches.
    #[inline(always)]
    pub fn is_non_temporal(&self) -> bool {
        self.0.mode.load(Relaxed) & NON_TEMPORAL != 0
    }

    /// Whether the mode in use goes around the caches, and is no trial.
    #[inline(always)]
    pub fn is_settled_non_temporal(&self) -> bool {
        self.0.mode.load(Relaxed) & (NON_TEMPORAL | TRIAL_FLAG) == NON_TEMPORAL
    }

    /// Whether the two CPUs seem to share no cache: neither mode is fast. (During a trial they count as near, so that payload that could go by single copy
    /// is put into the ring, and timed.)
    #[inline(always)]
    pub fn cpus_are_far(&self) -> bool {
        let state = self.0;
        let mode = state.mode.load(Relaxed);
        let slow = || (1..FAST_MB_PER_S).contains(&state.rates[CACHED as usize - 1].load(Relaxed));
        mode & TRIAL_FLAG == 0
            && (mode & NON_TEMPORAL != 0 || mode & (CONFIRMED_TRIAL - SETTLING_WINDOW) == 0 && slow())
    }

    /// Notes a single copy of `n` bytes. If single copies replace the puts around the caches, no put shows that the CPUs have become near; so these
    /// copies count for the next trial, and begin it.
    #[inline(always)]
    pub fn note_single_copy(&self, n: usize) {
        if self.cpus_are_far() && !self.retry_is_not_due(n as u64) {
            self.begin_trial(self.0.mode.load(Relaxed) % RATE_FELL_FLAG / CONFIRMED_TRIAL);
        }
    }

    /// Sets the mode that the receiver has chosen.
    #[inline(always)]
    pub fn set_mode(&self, around: bool) {
        let mode = if around { NON_TEMPORAL } else { CACHED };
        if self.0.mode.load(Relaxed) != mode {
            self.0.mode.store(mode, Relaxed);
        }
    }

    /// Called before a large put. Begins the first mode before the first one; true if this is the first one.
    #[inline(always)]
    pub fn start(&self) -> bool {
        let first = self.0.mode.load(Relaxed) == 0;
        if first {
            self.0.mode.store(start_of(CACHED), Relaxed);
        }
        first
    }

    /// Notes a large put of `n` bytes that took `ticks` of a clock of this rate. When a window is full it decides anew: by the rate of the puts, or by the
    /// rate at which such bytes have `landed` at the receiver (MB/s; 0: unknown) if that is less.
    #[inline(always)]
    pub fn note_put(&self, ticks_per_1024ns: impl FnOnce() -> u64, n: usize, ticks: u64, landed: impl FnOnce() -> u32) {
        let state = self.0;
        let bytes = state.window_bytes.load(Relaxed).saturating_add(n as u32);
        state.window_bytes.store(bytes, Relaxed);
        state.window_ticks.store(state.window_ticks.load(Relaxed) + ticks, Relaxed);
        if bytes >= WINDOW_BYTES {
            self.decide(ticks_per_1024ns(), bytes, landed());
        }
    }

    #[cold]
    fn decide(&self, ticks_per_1024ns: u64, bytes: u32, landed: u32) {
        let state = self.0;
        let rate = mb_per_s(u64::from(bytes), state.window_ticks.load(Relaxed), ticks_per_1024ns);
        let rate = if landed == 0 { rate } else { rate.min(landed) };
        state.window_bytes.store(0, Relaxed);
        state.window_ticks.store(0, Relaxed);
        let mode = state.mode.load(Relaxed);
        let (here, is_trial, confirmed) =
            (mode & (CACHED | NON_TEMPORAL), mode & TRIAL_FLAG != 0, mode % RATE_FELL_FLAG / CONFIRMED_TRIAL);
        let there = here ^ (CACHED | NON_TEMPORAL);
        let other = state.rates[there as usize - 1].load(Relaxed);
        let is_failing = is_trial && rate < other / 2;
        if mode & (CONFIRMED_TRIAL - SETTLING_WINDOW) != 0 && !is_failing {
            return state.mode.store(mode - SETTLING_WINDOW, Relaxed);
        }
        let before = state.rates[here as usize - 1].load(Relaxed);
        // One such window may be another process's time slice; two mean that the machine has changed.
        let falls = !is_trial && rate < before / 2;
        if falls && mode & RATE_FELL_FLAG == 0 {
            return state.mode.store(mode | RATE_FELL_FLAG, Relaxed);
        }
        state.rates[here as usize - 1].store(rate, Relaxed);
        let fast = here == CACHED && rate >= FAST_MB_PER_S;
        let next = if is_trial {
            let better = fast || rate > other + other / 4;
            let confirmed = if better { 0 } else { (confirmed + 1).min(MAX_CONFIRMED_TRIALS) };
            state.bytes_until_retry.store(RETRY_INTERVAL_BYTES << confirmed, Relaxed);
            (confirmed * CONFIRMED_TRIAL) | if better { here } else { start_of(there) }
        } else if fast || !falls && self.retry_is_not_due(u64::from(bytes)) {
            mode & !RATE_FELL_FLAG
        } else {
            return self.begin_trial(if falls { 0 } else { confirmed });
        };
        state.mode.store(next, Relaxed);
    }

    /// Begins a trial of the mode that is not in use.
    #[cold]
    fn begin_trial(&self, confirmed: u32) {
        let state = self.0;
        let mode = state.mode.load(Relaxed);
        let there = (mode & (CACHED | NON_TEMPORAL)) ^ (CACHED | NON_TEMPORAL);
        state.window_bytes.store(0, Relaxed);
        state.window_ticks.store(0, Relaxed);
        state.mode.store((confirmed * CONFIRMED_TRIAL) | start_of(there) | TRIAL_FLAG, Relaxed);
    }

    /// Counts `bytes` towards the next trial of the other mode; true if it is not due yet.
    fn retry_is_not_due(&self, bytes: u64) -> bool {
        let left = self.0.bytes_until_retry.load(Relaxed).saturating_sub(bytes);
        self.0.bytes_until_retry.store(left, Relaxed);
        left > 0
    }
}
