//! How far apart the waits of an exchange are: whether spinning has anything to gain at all.

use motet_sys::clock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Waits that are further apart than this (ns) gain nothing by spinning: the peer sleeps by now, and its wake-up takes longer.
const LIVELY: u64 = 5_000_000;
/// The same where the peer is on this very CPU: it answers as soon over TCP, and is spared to be lent the CPU once more.
const LIVELY_NEAR: u64 = 50_000;
/// One of so many waits spins all the same, as the peer may have moved to another CPU.
const ANYWAY: u64 = 32;

/// When a thread last waited, ticks.
#[derive(Debug, Default)]
pub struct Pace(AtomicU64);

impl Pace {
    /// Nobody has.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Notes a wait; whether it comes soon enough after the last one to spin. `near` is asked if that depends on where the peer is.
    pub fn is_lively(&self, near: impl FnOnce() -> bool) -> bool {
        let now = clock::ticks();
        let since = now.wrapping_sub(self.0.swap(now, Relaxed));
        since < ticks(LIVELY) && (since < ticks(LIVELY_NEAR) || (now >> 8).is_multiple_of(ANYWAY) || !near())
    }
}

/// So many ns in ticks.
pub fn ticks(ns: u64) -> u64 {
    (ns * clock::ticks_per_1024ns()) >> 10
}
