//! The locks that a client's owners have, so that they can be taken again at a restarted server.

use crate::locked_ranges::Ranges;
use crate::protocol::{LockKind, LockRange};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The locks on one file. All its open files of a client share them: a lock belongs to its owner, through whichever of them it was set.
#[derive(Debug, Default)]
pub struct LockNotes(Mutex<HashMap<u64, Noted>>);

/// What an owner has locked.
#[derive(Debug, Default)]
struct Noted {
    /// The open file through which it has last locked something.
    opened: u64,
    ranges: Ranges,
}

impl LockNotes {
    fn owners(&self) -> MutexGuard<'_, HashMap<u64, Noted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a lock that the server has granted or released through an open file.
    pub fn note(&self, opened: u64, owner: u64, range: &LockRange) {
        let mut owners = self.owners();
        let noted = owners.entry(owner).or_default();
        noted.ranges.lock(*range);
        if range.kind != LockKind::Unlocked {
            noted.opened = opened;
        }
        if noted.ranges.is_empty() {
            owners.remove(&owner);
        }
    }

    /// Whether an owner has locks.
    pub fn has(&self, owner: u64) -> bool {
        self.owners().contains_key(&owner)
    }

    /// The owners that have last locked something through an open file, with their locks.
    pub fn through(&self, opened: u64) -> Vec<(u64, Ranges)> {
        let owners = self.owners();
        owners
            .iter()
            .filter(|(_, noted)| noted.opened == opened)
            .map(|(owner, noted)| (*owner, noted.ranges.clone()))
            .collect()
    }

    /// An open file is closed, and the server has released these.
    pub fn closed(&self, opened: u64) {
        self.owners().retain(|_, noted| noted.opened != opened);
    }
}
