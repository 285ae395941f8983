//! The time limit of one call, over all of its steps.

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

    /// What is left, at most `most`.
    pub fn at_most(self, most: Duration) -> Duration {
        self.left().map_or(most, |left| left.min(most))
    }

    /// Whether it has passed.
    pub fn has_passed(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}
