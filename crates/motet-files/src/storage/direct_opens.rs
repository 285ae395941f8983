//! What became of opens with O_DIRECT: how many use the page cache all the same, and why the last one of them does.

use crate::protocol::Cached;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The opens of a server, or of a client.
#[derive(Debug, Default)]
pub struct DirectOpens(Mutex<(u64, Option<Cached>)>);

impl DirectOpens {
    fn noted(&self) -> MutexGuard<'_, (u64, Option<Cached>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file uses the page cache.
    pub fn note(&self, why: Cached) {
        let (count, last) = &mut *self.noted();
        *count += 1;
        *last = Some(why);
    }
}

/// Nothing if there are none.
impl fmt::Display for DirectOpens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self.noted() {
            (count, Some(why)) => write!(f, "{count} opens with O_DIRECT use the page cache: {why}"),
            _ => Ok(()),
        }
    }
}
