//! How many descriptors of this process the files and locks of a client may use, or those of all clients of a user: others need some, too. The ranges that
//! they have locked are counted with them.

use crate::Result;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What may be used, and what is.
#[derive(Debug)]
pub struct Quota {
    most: usize,
    used: AtomicUsize,
    locked_ranges: AtomicUsize,
    /// It is part of this one, which others use, too.
    of: Option<Arc<Self>>,
}

/// A descriptor that is used. It is free again when this is dropped.
#[derive(Debug)]
pub struct Taken(Arc<Quota>);

impl Quota {
    /// One of so many descriptors, which is a part of another one.
    pub fn new(most: usize, of: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self { most, used: AtomicUsize::new(0), locked_ranges: AtomicUsize::new(0), of })
    }

    /// Takes a descriptor. EMFILE: all are used.
    pub fn take(self: &Arc<Self>) -> Result<Taken> {
        self.count()?;
        Ok(Taken(Arc::clone(self)))
    }

    /// The ranges that are locked.
    pub fn locked_ranges(&self) -> usize {
        self.locked_ranges.load(Ordering::Acquire)
    }

    /// There are `now` locked ranges in place of `before`.
    pub fn count_ranges(&self, before: usize, now: usize) {
        self.locked_ranges.fetch_add(now.wrapping_sub(before), Ordering::AcqRel);
    }

    fn count(&self) -> Result<()> {
        let more = |used| (used < self.most).then_some(used + 1);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).map_err(|_| Errno::MFILE)?;
        match self.of.as_ref().map_or(Ok(()), |of| of.count()) {
            Ok(()) => Ok(()),
            refused => {
                self.used.fetch_sub(1, Ordering::AcqRel);
                refused
            }
        }
    }

    fn give_back(&self) {
        self.used.fetch_sub(1, Ordering::AcqRel);
        if let Some(of) = &self.of {
            of.give_back();
        }
    }
}

impl Taken {
    /// Of what it is one.
    pub fn quota(&self) -> &Arc<Quota> {
        &self.0
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_share_what_they_are_parts_of() {
        let whole = Quota::new(3, None);
        let (one, two) = (Quota::new(2, Some(Arc::clone(&whole))), Quota::new(2, Some(Arc::clone(&whole))));
        let taken = [one.take().expect("one"), one.take().expect("two")];
        assert!(one.take().is_err());
        let other = two.take().expect("three");
        assert!(two.take().is_err(), "the whole is used");
        drop(taken);
        let again = [two.take().expect("one is free"), one.take().expect("one is free")];
        assert!(two.take().is_err() && one.take().is_err());
        drop((other, again));
        assert_eq!(whole.used.load(Ordering::Relaxed), 0);
    }
}
