//! What a registration cache counts: what it gave out, and why it kept nothing.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// What a cache has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Leases on a registration that was there.
    pub hits: u64,
    /// Registrations made to be kept.
    pub kept: u64,
    /// Registrations for one lease: the cache does not keep any ([`super::Cache::standing`]).
    pub not_keeping: u64,
    /// Likewise: this memory cannot be watched.
    pub unwatchable: u64,
    /// Likewise: memory was taken away meanwhile, or it could not be told whether.
    pub unsettled: u64,
    /// Likewise: too large, or all that is kept is in use.
    pub full: u64,
    /// Registrations given up as their pages went.
    pub stale: u64,
    /// Registrations given up for room.
    pub evicted: u64,
    /// Times that everything was given up, as more happened than is remembered.
    pub missed: u64,
}

/// The same as they are counted.
#[derive(Debug, Default)]
pub struct Counters([AtomicU64; 9]);

/// Which.
#[derive(Debug, Clone, Copy)]
pub enum Count {
    /// See [`Counts`].
    Hits,
    /// See [`Counts`].
    Kept,
    /// See [`Counts`].
    NotKeeping,
    /// See [`Counts`].
    Unwatchable,
    /// See [`Counts`].
    Unsettled,
    /// See [`Counts`].
    Full,
    /// See [`Counts`].
    Stale,
    /// See [`Counts`].
    Evicted,
    /// See [`Counts`].
    Missed,
}

impl Counters {
    /// So many more.
    pub fn add(&self, what: Count, number: u64) {
        self.0[what as usize].fetch_add(number, Relaxed);
    }
    /// All, as they are now.
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
