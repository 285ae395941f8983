//! How often locks were granted on files, so that a lock that its owner has lost is not taken again as if no other client could have had it.
//!
//! A client whose session's files have ended, or whose server was restarted, takes its locks again. It gets them only if no other client was granted a lock on the file since
//! then: the other one may have had this lock, and may have changed what it protects.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files whose grants are known. Beyond them all count as granted.
const MAX_FILES: usize = 64 << 10;

/// A file: its device, and its number there.
pub type FileId = (u64, u64);

/// The grants of a server.
#[derive(Debug, Clone, Default)]
pub struct Grants(Arc<Mutex<Counted>>);

#[derive(Debug, Default)]
struct Counted {
    count: u64,
    files: HashMap<FileId, Last>,
    /// The grants up to this one are not known any more.
    forgotten: u64,
}

/// The last grants on a file.
#[derive(Debug, Clone, Copy)]
struct Last {
    at: u64,
    client: u64,
    /// The last one to any other client.
    to_others: u64,
}

impl Grants {
    /// What is `since` of a client that has lost its locks, also if no other client has had them meanwhile.
    pub const LOST: u64 = u64::MAX;

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counted().count
    }

    /// A lock on a file was granted to a client that had none of it before.
    pub fn note(&self, file: FileId, client: u64) {
        let counted = &mut *self.counted();
        counted.count += 1;
        let at = counted.count;
        if counted.files.len() >= MAX_FILES && !counted.files.contains_key(&file) {
            counted.files.clear();
            counted.forgotten = at - 1;
        }
        let last = counted.files.entry(file).or_insert(Last { at, client, to_others: counted.forgotten });
        if last.client != client {
            (last.client, last.to_others) = (client, last.at);
        }
        last.at = at;
    }

    /// Whether another client than this one may have had a lock on a file since there were so many grants.
    pub fn to_others(&self, file: FileId, client: u64, since: u64) -> bool {
        let counted = self.counted();
        let last = counted
            .files
            .get(&file)
            .map_or(counted.forgotten, |last| if last.client == client { last.to_others } else { last.at });
        since == Self::LOST || last > since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_to_others_are_known_and_forgotten_ones_count() {
        let grants = Grants::default();
        let (file, other) = ((1, 2), (1, 3));
        grants.note(file, 7);
        let since = grants.count();
        grants.note(file, 7);
        grants.note(other, 8);
        assert!(!grants.to_others(file, 7, since) && grants.to_others(file, 7, Grants::LOST));
        assert!(grants.to_others(file, 8, since), "it is not 7");
        grants.note(file, 8);
        grants.note(file, 7);
        assert!(grants.to_others(file, 7, since) && !grants.to_others(file, 7, grants.count()));
        let before = grants.count();
        for inode in 0..=MAX_FILES as u64 {
            grants.note((2, inode), 9);
        }
        assert!(grants.to_others(other, 8, before), "it may have been forgotten");
        assert!(!grants.to_others(other, 8, grants.count()));
    }
}
