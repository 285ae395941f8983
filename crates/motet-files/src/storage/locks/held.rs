//! What one owner has locked in one file, and how many ranges that may be.

use super::Through;
use crate::Result;
use crate::locked_ranges::Ranges;
use crate::protocol::{LockKind, LockRange};
use crate::storage::lock_calls::Description;
use crate::storage::quota::{Quota, Taken};
use rustix::io::Errno;

/// Ranges that all owners of a client have locked, or of all clients of another user. The system looks at each lock of a file for each call.
pub const MAX_RANGES: usize = 16 << 10;
/// Shared ranges of an owner that go over to another description, in one series of calls of the system, when it locks something exclusively. All clients wait
/// meanwhile, and each call takes the longer the more locks the file has.
pub const MAX_WIDENED: usize = 64;

/// What an owner has locked in a file. With it the locks of the system go: when it is dropped, which takes one call of the system that looks at all locks of the
/// file.
#[derive(Debug)]
pub struct Held {
    /// Has the locks of the system.
    pub description: Description,
    taken: Taken,
    /// The open file through which it has last locked something.
    pub opened: u64,
    /// The ranges.
    pub ranges: Ranges,
}

impl Held {
    /// The first lock.
    pub fn new(through: &Through<'_>, range: &LockRange) -> Result<Self> {
        has_room(through.quota, 0, 1)?;
        // As fcntl(2) says if there is no room for further locks.
        let taken = through.quota.take().map_err(|_| Errno::NOLCK)?;
        let description = Description::of(through.descriptor, through.flags, range.kind)?;
        description.set(range)?;
        let mut held = Self { description, taken, opened: through.opened, ranges: Ranges::default() };
        held.note(range);
        Ok(held)
    }

    /// Whether a lock, or the release of a part of one, leaves no more ranges than may be. One that makes them no more always does.
    fn has_room(&self, range: &LockRange) -> Result<()> {
        has_room(self.taken.quota(), self.ranges.len(), self.ranges.len_with(range))
    }

    /// Locks a range that no other client has.
    pub fn lock(&mut self, through: &Through<'_>, range: &LockRange) -> Result<()> {
        self.has_room(range)?;
        if !self.description.serves(range.kind, through.flags) {
            self.widen(through, range.kind)?;
        }
        self.description.set(range)?;
        self.opened = through.opened;
        self.note(range);
        Ok(())
    }

    /// Releases a part of what is locked. ENOLCK: it would leave too many ranges.
    pub fn release(&mut self, range: &LockRange) -> Result<()> {
        self.has_room(range)?;
        self.description.set(range)?;
        self.note(range);
        Ok(())
    }

    /// The system has this lock, or has it no more.
    fn note(&mut self, range: &LockRange) {
        let before = self.ranges.len();
        self.ranges.lock(*range);
        self.taken.quota().count_ranges(before, self.ranges.len());
    }

    /// Goes over to a description that can have locks of each kind. Both have the shared locks for a moment, so that they are never free. ENOLCK: they are too many.
    fn widen(&mut self, through: &Through<'_>, kind: LockKind) -> Result<()> {
        let has_exclusive = self.ranges.iter().any(|range| range.kind == LockKind::Exclusive);
        if has_exclusive && kind == LockKind::Exclusive {
            // It has one already through a file that is open for reading alone, and keeps the description of that.
            return Ok(());
        }
        if self.ranges.len() > MAX_WIDENED {
            return Err(Errno::NOLCK.into());
        }
        let wider = Description::of(through.descriptor, through.flags, kind)?;
        if !wider.serves_all() || has_exclusive {
            return Err(Errno::NOLCK.into());
        }
        self.ranges.iter().try_for_each(|range| wider.set(range))?;
        self.description = wider;
        Ok(())
    }
}

/// With its description the locks of the system go.
impl Drop for Held {
    fn drop(&mut self) {
        self.taken.quota().count_ranges(self.ranges.len(), 0);
    }
}

/// Whether a client may have `after` ranges in place of `before`. ENOLCK: it has too many.
fn has_room(quota: &Quota, before: usize, after: usize) -> Result<()> {
    let grows = after > before;
    if grows && quota.locked_ranges() + (after - before) > MAX_RANGES { Err(Errno::NOLCK.into()) } else { Ok(()) }
}
