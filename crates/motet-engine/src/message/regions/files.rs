//! Regions over files: what a node makes of an open file so that peers get from it, put into it and change it.
//!
//! What it is: the owner's two calls. For peers such a region is one as any other, but that it cannot be opened ([`Node::open_region`] says
//! false): a process that may map the file can do so without this node.
//!
//! What it is not: a file system for peers. They see a range of bytes, which was there when the region was made; no peer makes a file longer
//! through it. How the bytes are read and written is `bytes`' matter.
//!
//! A put has ended when its bytes are in the file as every process of the host sees it, by read or by a mapping: they stay when this process
//! dies. They are not on the disk yet; for that is [`Node::sync_region`].

use super::bytes::Bytes;
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
    /// Makes `length` bytes of a file from `offset` on a region; neither need be a multiple of anything, but for atomics the offset must be
    /// one of 8. The descriptor stays the caller's. The region keeps the file open, as it was opened, until it has ended.
    ///
    /// A file may be cut short meanwhile: what reaches the missing bytes is refused as outside. Where the disk is full or fails, an
    /// access is refused as denied, and [`Node::sync_region`] says why. An access may wait for the disk, and everything of
    /// this node with it. An atomic is one step to whatever else goes through this region, and to nothing else, unless the file is a
    /// memfd that is sealed against shrinking: that is memory, and changed by the processor's instructions.
    ///
    /// Errors: [`Error::AccessDenied`]: the file was not opened for that, or is sealed against it. [`Error::OutOfBounds`]: it does not have
    /// these bytes. [`Error::InvalidAtomic`]: atomics at another offset. [`Error::File`] with EISDIR, ESPIPE (no regular file), EBADF (O_PATH), EINVAL
    /// (no bytes; O_DIRECT; O_APPEND and to be written), EFBIG (RLIMIT_FSIZE), EOPNOTSUPP (huge pages), and the system's.
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
            .add(LocalRegion { bytes: Bytes::of(part), first: 0, keep: None, segment: None }, rights)
    }

    /// Waits until bytes of a region over a file are on the disk, with all that is needed to find them again (fdatasync): those of every put and
    /// atomic that had ended before, by any peer, and whatever else was written there. Other calls on the node go on meanwhile.
    ///
    /// Errors: [`Error::Unknown`]: no such region. [`Error::InvalidAtomic`]: it is no file's. [`Error::OutOfBounds`]: not inside the region, or the file
    /// is shorter by now; what is left of it is on the disk. [`Error::File`]: the system's, EIO say: bytes may be lost.
    pub fn sync_region(&self, key: Key, offset: u64, length: u64) -> Result<(), Error> {
        let part = {
            let mut node = self.lock()?;
            let (name, _) = node.messages.local_regions.regions.name(key).ok_or(Error::Unknown)?;
            let (bytes, _) = node.messages.local_regions.place(name, 0).ok_or(Error::Unknown)?;
            bytes.file().ok_or(Error::InvalidAtomic)?.clone()
        };
        let inside = |n| usize::try_from(n).map_err(|_| Error::OutOfBounds);
        part.sync(inside(offset)?, inside(length)?).map_err(|lost| match lost {
            FileError::BeyondEnd => Error::OutOfBounds,
            FileError::System(errno) => Error::File(errno.raw_os_error()),
        })
    }
}
