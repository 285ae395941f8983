//! The counters of a registration cache: leases by how they were made, and registrations that were given up.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The counters of a cache, read at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Leases on an existing registration.
    pub hits: u64,
    /// Registrations made to be kept.
    pub kept: u64,
    /// Registrations for one lease, because the cache keeps none ([`super::Cache::mode`]).
    pub not_keeping: u64,
    /// Registrations for one lease, because the memory cannot be watched.
    pub unwatchable: u64,
    /// Registrations for one lease, because memory was removed meanwhile, or may have been.
    pub unsettled: u64,
    /// Registrations for one lease, because it is too large or all kept registrations are in use.
    pub full: u64,
    /// Registrations given up because pages were removed.
    pub stale: u64,
    /// Registrations given up to make room.
    pub evicted: u64,
    /// Times that all registrations were given up because events were overwritten.
    pub missed: u64,
}

/// The counters as they are counted.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; 9]);

/// The kinds of counters, by the names of [`Counts`].
#[derive(Debug, Clone, Copy)]
pub enum Count {
    /// [`Counts::hits`].
    Hits,
    /// [`Counts::kept`].
    Kept,
    /// [`Counts::not_keeping`].
    NotKeeping,
    /// [`Counts::unwatchable`].
    Unwatchable,
    /// [`Counts::unsettled`].
    Unsettled,
    /// [`Counts::full`].
    Full,
    /// [`Counts::stale`].
    Stale,
    /// [`Counts::evicted`].
    Evicted,
    /// [`Counts::missed`].
    Missed,
}

impl Counters {
    /// Adds to a counter.
    pub fn add(&self, what: Count, number: u64) {
        self.0[what as usize].fetch_add(number, Relaxed);
    }
    /// Reads all counters.
    pub fn read(&self) -> Counts {
        let of = |what: Count| self.0[what as usize].load(Relaxed);
        Counts {
            hits: of(Count::Hits),
            kept: of(Count::Kept),
            not_keeping: of(Count::NotKeeping),
            unwatchable: of(Count::Unwatchable),
            unsettled: of(Count::Unsettled),
            full: of(Count::Full),
            stale: of(Count::Stale),
            evicted: of(Count::Evicted),
            missed: of(Count::Missed),
        }
    }
}
