//! Virtual time: it moves by a fixed step whenever it is read, and when a test says so. Nothing ever waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A clock; clones show the same time. One tick is one nanosecond.
#[derive(Debug, Clone)]
pub struct Clock {
    now: Arc<AtomicU64>,
    step: u64,
}

impl Clock {
    /// A clock that moves by `step` ns at every look.
    pub fn new(step: u64) -> Self {
        Self { now: Arc::new(AtomicU64::new(1)), step }
    }

    /// Looks: the time before the step.
    pub fn look(&self) -> u64 {
        self.now.fetch_add(self.step, Relaxed)
    }

    /// The time, unmoved.
    pub fn time(&self) -> u64 {
        self.now.load(Relaxed)
    }

    /// Moves on by `ns`.
    pub fn advance(&self, ns: u64) {
        self.now.fetch_add(ns, Relaxed);
    }
}
