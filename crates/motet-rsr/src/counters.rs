//! Counts of what a process has done with requests.

use crate::options::Counts;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counts; [`Counts`] says what each is.
#[derive(Debug, Default)]
pub struct Counters {
    pub no_endpoint: AtomicU64,
    pub no_handler: AtomicU64,
    pub malformed: AtomicU64,
    pub too_long: AtomicU64,
    pub incomplete: AtomicU64,
    pub late_replies: AtomicU64,
    pub panics: AtomicU64,
    pub foreign: AtomicU64,
}

/// Counts one.
#[inline]
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    /// The counts now; `handled`: those that threads count.
    pub fn read(&self, handled: u64) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            handled,
            no_endpoint: of(&self.no_endpoint),
            no_handler: of(&self.no_handler),
            malformed: of(&self.malformed),
            too_long: of(&self.too_long),
            incomplete: of(&self.incomplete),
            late_replies: of(&self.late_replies),
            panics: of(&self.panics),
            foreign: of(&self.foreign),
        }
    }
}
