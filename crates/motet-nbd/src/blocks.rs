//! What a disk must be able to do.

pub use motet_files::client::Transfer;
use std::io::Result;

/// A part of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub length: u64,
    /// It occupies no space, and reads as zeroes.
    pub is_hole: bool,
}

/// How zeroes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zeroing {
    /// They may become a hole.
    pub may_be_hole: bool,
    /// EOPNOTSUPP if they have to be written like other data.
    pub fast_only: bool,
}

/// A disk. All offsets and lengths are bytes, and lie within the size that the disk had when the client connected.
pub trait Blocks: Send + Sync + 'static {
    /// Its size, bytes.
    fn size(&self) -> Result<u64>;

    /// Whether it refuses changes.
    fn is_read_only(&self) -> bool;

    /// Fills `buffer` from `offset` on. EIO: the disk has become shorter.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()>;

    /// Writes all of `data` at `offset`.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()>;

    /// Waits until all that was written is on the disk.
    fn sync(&self) -> Result<()>;

    /// Writes zeroes.
    fn zero(&self, offset: u64, length: u64, how: Zeroing) -> Result<()>;

    /// The data are not needed any more.
    fn trim(&self, offset: u64, length: u64) -> Result<()>;

    /// The parts from `offset` on, in order, at most `most` of them and at most `length` bytes together; at least one.
    fn status(&self, offset: u64, length: u64, most: usize) -> Result<Vec<Extent>>;

    /// Makes several short transfers, in any order; returns the result of each.
    fn transfer(&self, transfers: &mut [Transfer<'_>]) -> Vec<Result<()>> {
        let one = |transfer: &mut Transfer<'_>| match transfer {
            Transfer::Read(offset, into) => self.read_at(into, *offset),
            Transfer::Write(offset, data) => self.write_at(data, *offset),
        };
        transfers.iter_mut().map(one).collect()
    }

    /// Ends calls that wait, so that they fail with ESHUTDOWN.
    fn shut_down(&self) {}
}
