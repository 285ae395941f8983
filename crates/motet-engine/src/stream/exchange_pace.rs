//! The time between the waits of an exchange, which decides whether a spin can pay at all.

use motet_sys::clock::{self, ticks_of};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Waits that are further apart than this (ns) gain nothing by spinning: the peer sleeps, and its wake-up takes longer.
const MAX_GAP_NS: u64 = 5_000_000;
/// The limit (ns) if the peer is on this CPU: it answers as quickly over TCP, without a yield of this thread.
const MAX_GAP_SAME_CPU_NS: u64 = 50_000;
/// One in so many waits spins nevertheless, because the peer may have moved to another CPU.
const TRIAL_INTERVAL: u64 = 32;

/// When a thread last waited, in ticks.
#[derive(Debug, Default)]
pub struct ExchangePace(AtomicU64);

impl ExchangePace {
    /// No thread has waited.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Notes a wait. True: it follows the last one soon enough for a spin. `near` is called if that depends on whether the peer is on this CPU.
    pub fn is_quick(&self, near: impl FnOnce() -> bool) -> bool {
        let now = clock::ticks();
        let since = now.wrapping_sub(self.0.swap(now, Relaxed));
        since < ticks_of(MAX_GAP_NS)
            && (since < ticks_of(MAX_GAP_SAME_CPU_NS) || (now >> 8).is_multiple_of(TRIAL_INTERVAL) || !near())
    }
}
