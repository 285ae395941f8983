//! Regions over files: peers get from an open file, put into it and change it.
//!
//! This module has the owner's two calls. Peers use such a region like any other, except that it cannot be opened for direct access ([`Node::open_region`]
//! returns false): a process that may map the file can do so without this node.
//!
//! A region is no file system for peers: it is a range of bytes that existed when the region was made, and no peer makes a file longer through it. `bytes`
//! reads and writes the file.
//!
//! A put has completed when its bytes are in the file as every process of the host sees it, by read or by a mapping: they stay when this process dies. They
//! are not on the disk yet; [`Node::sync_region`] writes them there.

use super::bytes::RegionBytes;
use super::local::LocalRegion;
use super::{Error, Node};
use super::{Key, Rights};
use motet_sys::file_region::{FileError, FileRegion};
use motet_sys::rustix::fd::AsFd;
use motet_sys::rustix::io::Errno;

fn error(errno: Errno) -> Error {
    match errno {
        Errno::RANGE => Error::OutOfBounds,
        Errno::ACCESS => Error::AccessDenied,
        errno => Error::File(errno.raw_os_error()),
    }
}

impl Node {
    /// Registers `length` bytes of a file from `offset` on as a region. Neither must be a multiple of anything, but for atomics the offset must be a multiple
    /// of 8. The descriptor stays the caller's. The region keeps the file open, as it was opened, until the region has ended.
    ///
    /// If the file is cut short meanwhile, an access to the missing bytes is refused as out of bounds. If the disk is full or fails, an access is refused as
    /// denied, and [`Node::sync_region`] returns the cause. An access may wait for the disk, and everything of this node with it. An atomic is one step for
    /// all other accesses through this region, and for nothing else, unless the file is a memfd that is sealed against shrinking: that is memory, and changed
    /// by the processor's instructions.
    ///
    /// Errors: [`Error::AccessDenied`]: the file was not opened for this access, or is sealed against it. [`Error::OutOfBounds`]: the file does not have
    /// these bytes. [`Error::InvalidAtomic`]: atomics at another offset. [`Error::File`] with EISDIR or ESPIPE (no regular file), EBADF (O_PATH), EINVAL (no
    /// bytes; O_DIRECT; O_APPEND with a right to write), EFBIG (RLIMIT_FSIZE), EOPNOTSUPP (huge pages), and errors of the system.
    pub fn register_file(&self, file: impl AsFd, offset: u64, length: u64, rights: Rights) -> Result<Key, Error> {
        let atomics = rights.include(Rights::ATOMIC);
        let (reads, writes) = (atomics || rights.include(Rights::GET), atomics || rights.include(Rights::PUT));
        let part = FileRegion::open(file, offset, length, reads, writes).map_err(error)?;
        if atomics && !offset.is_multiple_of(8) {
            return Err(Error::InvalidAtomic);
        }
        self.lock()?
            .messages
            .local_regions
            .add(LocalRegion { bytes: RegionBytes::of(part), first: 0, keep: None, segment: None }, rights)
    }

    /// Waits until bytes of a region over a file are on the disk, with all that is needed to find them again (fdatasync). This covers every put and atomic
    /// that has completed before, by any peer, and everything else that was written there. Other calls on the node go on meanwhile.
    ///
    /// Errors: [`Error::Unknown`]: there is no such region. [`Error::InvalidAtomic`]: the region is not over a file. [`Error::OutOfBounds`]: the range is not
    /// inside the region, or the file has become shorter; the rest of it is on the disk. [`Error::File`]: an error of the system, for example EIO: bytes may
    /// be lost.
    pub fn sync_region(&self, key: Key, offset: u64, length: u64) -> Result<(), Error> {
        let part = {
            let mut node = self.lock()?;
            let (name, _) = node.messages.local_regions.regions.name(key).ok_or(Error::Unknown)?;
            let (bytes, _) = node.messages.local_regions.locate(name, 0).ok_or(Error::Unknown)?;
            bytes.file().ok_or(Error::InvalidAtomic)?.clone()
        };
        let inside = |n| usize::try_from(n).map_err(|_| Error::OutOfBounds);
        part.sync(inside(offset)?, inside(length)?).map_err(|lost| match lost {
            FileError::BeyondEnd => Error::OutOfBounds,
            FileError::System(errno) => Error::File(errno.raw_os_error()),
        })
    }
}
