//! Bytes per second.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Bytes per second.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rate {
    /// Bytes sent per second.
    pub sent: u64,
    /// Bytes received per second.
    pub received: u64,
}

impl Rate {
    /// The rate of bytes that were moved in a time.
    pub fn of(bytes: (u64, u64), elapsed: Duration) -> Self {
        let per_second = |bytes: u64| (bytes as f64 / elapsed.as_secs_f64().max(1e-3)) as u64;
        Self { sent: per_second(bytes.0), received: per_second(bytes.1) }
    }

    /// Both directions together.
    pub fn both(self) -> u64 {
        self.sent.saturating_add(self.received)
    }
}

impl std::ops::AddAssign for Rate {
    fn add_assign(&mut self, other: Self) {
        self.sent = self.sent.saturating_add(other.sent);
        self.received = self.received.saturating_add(other.received);
    }
}
