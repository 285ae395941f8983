//! The time limit of one call, over all of its steps.

use motet::node::deadline_in;
use std::time::{Duration, Instant};

/// When a call ends. `None`: it has no limit.
#[derive(Debug, Clone, Copy)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// So long from now.
    pub fn within(limit: Option<Duration>) -> Self {
        Self(limit.and_then(|limit| Instant::now().checked_add(limit)))
    }

    /// What is left.
    #[inline]
    pub fn left(self) -> Option<Duration> {
        self.0.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// When it passes, in nanoseconds of CLOCK_MONOTONIC, as the engine's calls take it.
    pub fn node_time(self) -> Option<u64> {
        self.left().map(|left| deadline_in(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// What is left, at most `most`.
    pub fn at_most(self, most: Duration) -> Duration {
        self.left().map_or(most, |left| left.min(most))
    }

    /// Whether it has passed.
    pub fn has_passed(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}
