//! A virtual clock: it advances by a fixed step at each read, and when a test advances it. Nothing ever waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A virtual clock; clones share the time. One tick is one nanosecond.
#[derive(Debug, Clone)]
pub struct Clock {
    now: Arc<AtomicU64>,
    step: u64,
}

impl Clock {
    /// A clock that advances by `step` ns at each [`Clock::read`].
    pub fn new(step: u64) -> Self {
        Self { now: Arc::new(AtomicU64::new(1)), step }
    }

    /// Returns the time, then advances by the step.
    pub fn read(&self) -> u64 {
        self.now.fetch_add(self.step, Relaxed)
    }

    /// Returns the time without a step.
    pub fn time(&self) -> u64 {
        self.now.load(Relaxed)
    }

    /// Advances by `ns`.
    pub fn advance(&self, ns: u64) {
        self.now.fetch_add(ns, Relaxed);
    }
}
