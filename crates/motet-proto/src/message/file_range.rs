//! A range of an open file as the body of a message: named here, and read by the transport that sends it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A range of an open file. Clones name the same file.
#[derive(Clone)]
pub struct FileRange {
    file: Arc<OwnedFd>,
    offset: u64,
    length: u64,
}

impl FileRange {
    /// `length` bytes of the file from `offset` on. `None`: beyond what a file can have.
    pub fn new(file: OwnedFd, offset: u64, length: u64) -> Option<Self> {
        let end = offset.checked_add(length).filter(|&end| i64::try_from(end).is_ok());
        end.map(|_| Self { file: Arc::new(file), offset, length })
    }

    /// The file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where it begins in the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its length, bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The part from `at` on, at most `length` bytes.
    #[must_use]
    pub fn part(&self, at: u64, length: u64) -> Self {
        let at = at.min(self.length);
        Self { file: Arc::clone(&self.file), offset: self.offset + at, length: length.min(self.length - at) }
    }
}

impl fmt::Debug for FileRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "FileRange({}..{})", self.offset, self.offset + self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_within_the_range() {
        let file = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let range = FileRange::new(file(), 100, 50).unwrap();
        for (at, length, expected) in [(0, 50, (100, 50)), (10, 5, (110, 5)), (40, 100, (140, 10)), (60, 1, (150, 0))] {
            let part = range.part(at, length);
            assert_eq!((part.offset(), part.len()), expected);
        }
        assert!(FileRange::new(file(), u64::MAX, 1).is_none());
        assert!(FileRange::new(file(), i64::MAX as u64, 1).is_none());
    }
}
