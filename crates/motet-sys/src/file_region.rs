//! A part of a file that others read and write through this process.
//!
//! What it is: [`FilePart`], a range of bytes of a regular file. A file may be cut short at any time by whoever may write to it, its disk may be
//! full, and its blocks may be unreadable; a load or a store in a mapping of it is then a fault that kills the process (SIGBUS). So no
//! code of ours ever loads from the mapping or stores to it: bytes go by pread and pwrite, or by process_vm_readv, for which all of that
//! is an error. A memfd that is sealed against shrinking is different: it is memory, and [`FilePart::memory`] gives a view of it.
//!
//! What it is not: it takes no locks, so what is done here in several steps is one step only to those who go through the same lock of the
//! caller's. Which peer may do what is the engine's matter (docs/adr/0020).

use crate::memory::{self, Access};
use crate::private_fds::{self, PrivateFd};
use crate::process_vm;
use crate::shm_pool::segment::ranges;
use motet_wire::mapping::Mapping;
use motet_wire::shared_memory::Shared;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::MsyncFlags;
use rustix::process::Resource;
use std::ffi::c_void;

const PAGE: usize = 4096;

/// Why bytes of a part could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The file does not hold them: it has been cut short, or they do not lie in the part.
    Short,
    /// The system refuses, or the disk.
    System(Errno),
}

impl From<Errno> for Lost {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// How a part is mapped.
#[derive(Debug)]
enum Map {
    /// Not at all: the file cannot be mapped, or not for this.
    None,
    /// As a file: for system calls alone.
    Pages(Pages),
    /// As memory, which cannot shrink.
    Memory { mapping: Mapping, view: Shared },
}

/// Whole pages around a part.
#[derive(Debug)]
struct Pages {
    base: *mut c_void,
    size: usize,
    /// Where the part begins in them.
    skew: usize,
}

// SAFETY: an address range of this value's own, which nobody loads from or stores to; the kernel may be asked about it by any thread.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `FilePart::open` and known to nobody else but as a number.
        let _ = unsafe { rustix::mm::munmap(self.base, self.size) };
    }
}

/// Bytes of a file.
#[derive(Debug)]
pub struct FilePart {
    file: PrivateFd,
    at: u64,
    length: usize,
    writes: bool,
    map: Map,
}

impl FilePart {
    /// `length` bytes of a file from `at` on, to be read, written or both. The descriptor is the caller's; a copy of it is kept.
    ///
    /// Errors: ISDIR, SPIPE (a pipe, a socket, a device: anything but a regular file), BADF (opened as a path), OPNOTSUPP (of huge
    /// pages), INVAL (no bytes; opened for appending or past the cache), ACCESS (the descriptor does not allow it, or a seal),
    /// RANGE (they do not lie inside the file), FBIG (this process may not write that far: RLIMIT_FSIZE), and the system's.
    pub fn open(file: impl AsFd, at: u64, length: u64, reads: bool, writes: bool) -> Result<Self, Errno> {
        let file = file.as_fd();
        let end = at.saturating_add(length);
        let sealed = check(file, end, reads, writes)?;
        let bytes = usize::try_from(length).ok().filter(|length| *length <= isize::MAX as usize).ok_or(Errno::RANGE)?;
        if bytes == 0 {
            return Err(Errno::INVAL);
        }
        let file = PrivateFd::new(private_fds::copy(file)?);
        let map = if sealed { map_memory(&file, at, bytes, writes) } else { map_pages(&file, at, bytes, writes) };
        Ok(Self { file, at, length: bytes, writes, map })
    }

    /// Bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// A view of it, if it is memory that cannot shrink. Once the part is gone it shows zeros, or something else.
    pub fn memory(&self) -> Option<Shared> {
        if let Map::Memory { view, .. } = self.map { Some(view) } else { None }
    }

    /// Where others find these bytes in this process, to copy them by a system call; `None`: the file is not mapped, or does not hold them.
    pub fn address(&self, at: usize, length: usize) -> Option<u64> {
        let base = match &self.map {
            Map::None => return None,
            Map::Pages(pages) => pages.base as u64 + pages.skew as u64,
            Map::Memory { view, .. } => view.base() as u64,
        };
        self.check(at, length).ok().map(|_| base + at as u64)
    }

    /// Reads bytes, all or none that count.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), Lost> {
        let mut from = self.place(at, into.len())?;
        let mut left = into;
        while !left.is_empty() {
            match rustix::io::pread(&self.file, &mut *left, from) {
                Ok(0) => return Err(Lost::Short),
                Ok(read) => {
                    from += read as u64;
                    left = left.get_mut(read..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Writes bytes. A file that has been cut short is not made longer; one that is cut short at this moment may be, to where this part
    /// ends at most. After an error some may have been written.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Lost> {
        let mut to = self.check(at, bytes.len())?;
        let mut left = bytes;
        while !left.is_empty() {
            match rustix::io::pwrite(&self.file, left, to) {
                Ok(0) => return Err(Lost::System(Errno::IO)),
                Ok(written) => {
                    to += written as u64;
                    left = left.get(written..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Copies bytes from `address` in process `pid` to `at`; returns how many. Without a mapping for that, or where something fails
    /// on either side, an error: then they are to be had in another way.
    pub fn copy_from(&self, pid: u32, address: u64, at: usize, length: usize) -> Result<usize, Lost> {
        self.check(at, length)?;
        let copied = match &self.map {
            Map::Pages(pages) if self.writes => {
                // SAFETY: inside the pages, which are mapped, and writable, as long as `self`; the view is used for this call alone, and
                // by the kernel alone, which meets faults with an error.
                let into = unsafe { Shared::new(pages.base.cast::<u8>().add(pages.skew + at), length) };
                process_vm::read_into(pid, address, &into)
            }
            Map::Memory { view, .. } if self.writes => {
                process_vm::read_into(pid, address, &view.part(at, length).map_err(|_| Lost::Short)?)
            }
            _ => return Err(Lost::System(Errno::OPNOTSUPP)),
        };
        let copied = copied.map_err(|errno| Lost::System(Errno::from_raw_os_error(errno)))?;
        // The rest of a page behind the file's new end takes bytes, and nobody ever sees them.
        self.check(at, length).map(|_| copied)
    }

    /// Waits until these bytes, and what is needed to find them again, are on the disk. `Short`: so they are, as far as the file has them.
    pub fn sync(&self, at: usize, length: usize) -> Result<(), Lost> {
        self.place(at, length)?;
        match &self.map {
            _ if length == 0 => {}
            Map::Pages(pages) => {
                let start = (pages.skew + at) & !(PAGE - 1);
                let size = (pages.skew + at + length).next_multiple_of(PAGE) - start;
                // SAFETY: whole pages inside the mapping; synchronizing changes nothing. It is the file's dirty pages that are written, by
                // whatever way they have become dirty.
                unsafe { rustix::mm::msync(pages.base.byte_add(start), size, MsyncFlags::SYNC) }?;
            }
            _ => rustix::fs::fdatasync(&self.file)?,
        }
        self.check(at, length).map(|_| ())
    }

    /// Where in the file bytes of the part lie.
    fn place(&self, at: usize, length: usize) -> Result<u64, Lost> {
        let end = at.checked_add(length).filter(|&end| end <= self.length);
        end.map(|_| self.at + at as u64).ok_or(Lost::Short)
    }

    /// The same, if the file has them now.
    fn check(&self, at: usize, length: usize) -> Result<u64, Lost> {
        let place = self.place(at, length)?;
        if place + length as u64 <= size(self.file.as_fd())? { Ok(place) } else { Err(Lost::Short) }
    }
}

impl Drop for FilePart {
    fn drop(&mut self) {
        if let Map::Memory { mapping, .. } = self.map {
            ranges().give_up(mapping);
        }
    }
}

fn size(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    rustix::fs::fstat(file).map(|stat| u64::try_from(stat.st_size).unwrap_or(0))
}

/// Whether a file can be used so up to `end`; true: it is memory that cannot shrink.
fn check(file: BorrowedFd<'_>, end: u64, reads: bool, writes: bool) -> Result<bool, Errno> {
    const TMPFS: u64 = 0x0102_1994;
    const HUGETLBFS: u64 = 0x9584_58f6;
    let flags = rustix::fs::fcntl_getfl(file)?;
    if flags.contains(OFlags::PATH) {
        return Err(Errno::BADF);
    }
    match FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(Errno::ISDIR),
        _ => return Err(Errno::SPIPE),
    }
    let kind = rustix::fs::fstatfs(file)?.f_type as u64;
    if kind == HUGETLBFS {
        return Err(Errno::OPNOTSUPP); // it knows no pwrite
    }
    let access = flags & OFlags::ACCMODE;
    let seals = rustix::fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty());
    let sealed = seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
    if reads && access == OFlags::WRONLY || writes && (access == OFlags::RDONLY || sealed) {
        return Err(Errno::ACCESS);
    }
    if end > size(file)? {
        return Err(Errno::RANGE); // so it is no more than the kernel can have, either
    }
    // Beyond this limit a write is a signal that kills (SIGXFSZ).
    if writes && rustix::process::getrlimit(Resource::Fsize).current.is_some_and(|most| end > most) {
        return Err(Errno::FBIG);
    }
    // With O_APPEND pwrite writes at the end, wherever it is told to; with O_DIRECT only whole blocks.
    if flags.contains(OFlags::DIRECT) || writes && flags.contains(OFlags::APPEND) {
        return Err(Errno::INVAL);
    }
    Ok(kind == TMPFS && seals.contains(SealFlags::SHRINK) && access != OFlags::WRONLY)
}

fn access(writes: bool) -> Access {
    if writes { Access::Write } else { Access::Read }
}

/// Maps memory that cannot shrink, from its beginning. Sizes are rounded so that address ranges can be used again.
fn map_memory(file: &PrivateFd, at: u64, length: usize, writes: bool) -> Map {
    let start = usize::try_from(at).ok();
    let size = start.and_then(|at| at.checked_add(length)?.max(PAGE).checked_next_power_of_two());
    let (Some(at), Some(size)) = (start, size) else { return Map::None };
    let Ok(mapping) = ranges().map_for(file, size, PAGE, access(writes)) else { return Map::None };
    match Shared::of(mapping, at, length) {
        Some(view) => Map::Memory { mapping, view },
        None => Map::None,
    }
}

/// Maps a part of a file, for system calls. Where that is refused there is no mapping.
fn map_pages(file: &PrivateFd, at: u64, length: usize, writes: bool) -> Map {
    let skew = (at % PAGE as u64) as usize;
    let Some(size) = length.checked_add(skew).and_then(|size| size.checked_next_multiple_of(PAGE)) else {
        return Map::None;
    };
    let base = memory::map_file(file, at - skew as u64, size, access(writes));
    base.map_or(Map::None, |base| Map::Pages(Pages { base, size, skew }))
}

#[cfg(test)]
#[path = "file_region_tests.rs"]
mod tests;
