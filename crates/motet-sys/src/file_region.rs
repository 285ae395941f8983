//! A range of a regular file that peers read and write through this process (docs/adr/0020).
//!
//! What it is: [`FileRegion`]. Any process that may write to a file can truncate it at any time, its disk may be full, and its blocks may
//! be unreadable. A load or store in a mapping of the file then raises SIGBUS, which kills the process. So this code never loads from the
//! mapping or stores to it: bytes are moved by pread, pwrite and process_vm_readv, which return an error in those cases. The exception is a
//! memfd that is sealed against shrinking: it is memory, and [`FileRegion::memory`] gives a view of it.
//!
//! What it is not: atomic. It takes no locks; several system calls are one step only for callers that share a lock. Access rights of
//! peers are checked by the engine.

use crate::memory::{self, Access};
use crate::private_fds::{self, PrivateFd};
use crate::process_vm;
use crate::shm_pool::segment::address_ranges;
use motet_wire::mapping::Mapping;
use motet_wire::shared_memory::SharedBytes;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::MsyncFlags;
use rustix::process::Resource;
use std::ffi::c_void;

const PAGE_BYTES: usize = 4096;

/// Why bytes of a region could not be read, written or synchronized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileError {
    /// The bytes are outside of the region, or behind the end of the file, which has been truncated.
    BeyondEnd,
    /// The error of a system call.
    System(Errno),
}

impl From<Errno> for FileError {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

/// How a region is mapped.
#[derive(Debug)]
enum RegionMapping {
    /// Not mapped: the system refuses that.
    None,
    /// A file that can shrink: for system calls only.
    Pages(FilePages),
    /// Memory that cannot shrink.
    Memory { mapping: Mapping, view: SharedBytes },
}

/// The mapping of the whole pages around a region.
#[derive(Debug)]
struct FilePages {
    base: *mut c_void,
    size: usize,
    /// Offset of the region in the first page.
    skew: usize,
}

// SAFETY: the value owns the address range, and no code loads from it or stores to it; system calls may name it from any thread.
unsafe impl Send for FilePages {}
// SAFETY: the address range is used by system calls only, which any thread may make.
unsafe impl Sync for FilePages {}

impl Drop for FilePages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map_pages` for this value, and no reference to the pages exists.
        let _ = unsafe { rustix::mm::munmap(self.base, self.size) };
    }
}

/// A range of bytes of a regular file.
#[derive(Debug)]
pub struct FileRegion {
    file: PrivateFd,
    /// Offset of the region in the file.
    at: u64,
    length: usize,
    /// The region may be written.
    writes: bool,
    map: RegionMapping,
}

impl FileRegion {
    /// `length` bytes of a file from offset `at` on, for reads, writes or both. The region keeps a duplicate of the descriptor.
    ///
    /// Errors: ISDIR (a directory), SPIPE (a pipe, socket, device or anything else but a regular file), BADF (opened with O_PATH), OPNOTSUPP
    /// (hugetlbfs), INVAL (zero bytes, O_APPEND with writes, or O_DIRECT), ACCESS (refused by the descriptor's mode or by a seal), RANGE (not
    /// inside the file), FBIG (beyond RLIMIT_FSIZE), and the system's.
    pub fn open(file: impl AsFd, at: u64, length: u64, reads: bool, writes: bool) -> Result<Self, Errno> {
        let file = file.as_fd();
        let end = at.saturating_add(length);
        let sealed = check(file, end, reads, writes)?;
        let bytes = usize::try_from(length).ok().filter(|length| *length <= isize::MAX as usize).ok_or(Errno::RANGE)?;
        if bytes == 0 {
            return Err(Errno::INVAL);
        }
        let file = PrivateFd::new(private_fds::duplicate(file)?);
        let map = if sealed { map_memory(&file, at, bytes, writes) } else { map_pages(&file, at, bytes, writes) };
        Ok(Self { file, at, length: bytes, writes, map })
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.length
    }

    /// A view of the region if it is memory that cannot shrink. After the region is dropped the view shows zeros or another mapping.
    pub fn memory(&self) -> Option<SharedBytes> {
        if let RegionMapping::Memory { view, .. } = self.map { Some(view) } else { None }
    }

    /// The address in this process from which peers copy these bytes by a system call. `None`: the file is not mapped, or is too short.
    pub fn address(&self, at: usize, length: usize) -> Option<u64> {
        let base = match &self.map {
            RegionMapping::None => return None,
            RegionMapping::Pages(pages) => pages.base as u64 + pages.skew as u64,
            RegionMapping::Memory { view, .. } => view.base() as u64,
        };
        self.check(at, length).ok().map(|_| base + at as u64)
    }

    /// Reads all bytes of `into` from `at` on. After an error its contents are unspecified.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), FileError> {
        let mut from = self.file_offset(at, into.len())?;
        let mut left = into;
        while !left.is_empty() {
            match rustix::io::pread(&self.file, &mut *left, from) {
                Ok(0) => return Err(FileError::BeyondEnd),
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

    /// Writes all bytes at `at`. A truncated file is not extended. If the file is truncated during the call it may be extended, at most to
    /// the end of this region. After an error a part of the bytes may have been written.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), FileError> {
        let mut to = self.check(at, bytes.len())?;
        let mut left = bytes;
        while !left.is_empty() {
            match rustix::io::pwrite(&self.file, left, to) {
                Ok(0) => return Err(FileError::System(Errno::IO)),
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

    /// Copies bytes from `address` in process `pid` to `at`; returns how many. After an error the caller has to move the bytes in another
    /// way: the region has no writable mapping, or the copy failed on either side.
    pub fn copy_from(&self, pid: u32, address: u64, at: usize, length: usize) -> Result<usize, FileError> {
        self.check(at, length)?;
        let copied = match &self.map {
            RegionMapping::Pages(pages) if self.writes => {
                // SAFETY: `check` has shown that the range is inside the pages, which are mapped writable as long as `self`. The view is used
                // by this call only, and by the kernel only, which turns faults into an error.
                let into = unsafe { SharedBytes::new(pages.base.cast::<u8>().add(pages.skew + at), length) };
                process_vm::read_into_shared(pid, address, &into)
            }
            RegionMapping::Memory { view, .. } if self.writes => {
                process_vm::read_into_shared(pid, address, &view.part(at, length).map_err(|_| FileError::BeyondEnd)?)
            }
            _ => return Err(FileError::System(Errno::OPNOTSUPP)),
        };
        let copied = copied.map_err(|errno| FileError::System(Errno::from_raw_os_error(errno)))?;
        // If the file was truncated meanwhile, bytes behind its new end in its last page were written and are lost.
        self.check(at, length).map(|_| copied)
    }

    /// Waits until these bytes and their metadata are on the disk. [`FileError::BeyondEnd`]: the file is too short; what it has of them is
    /// on the disk.
    pub fn sync(&self, at: usize, length: usize) -> Result<(), FileError> {
        self.file_offset(at, length)?;
        match &self.map {
            _ if length == 0 => {}
            RegionMapping::Pages(pages) => {
                let start = (pages.skew + at) & !(PAGE_BYTES - 1);
                let size = (pages.skew + at + length).next_multiple_of(PAGE_BYTES) - start;
                // SAFETY: whole pages inside the mapping; msync changes no contents. It writes all dirty pages of the file in the range, also
                // those that pwrite made dirty.
                unsafe { rustix::mm::msync(pages.base.byte_add(start), size, MsyncFlags::SYNC) }?;
            }
            _ => rustix::fs::fdatasync(&self.file)?,
        }
        self.check(at, length).map(|_| ())
    }

    /// The offset in the file of bytes of the region.
    fn file_offset(&self, at: usize, length: usize) -> Result<u64, FileError> {
        let end = at.checked_add(length).filter(|&end| end <= self.length);
        end.map(|_| self.at + at as u64).ok_or(FileError::BeyondEnd)
    }

    /// The offset in the file of bytes of the region, if the file is long enough at this moment.
    fn check(&self, at: usize, length: usize) -> Result<u64, FileError> {
        let offset = self.file_offset(at, length)?;
        if offset + length as u64 <= size(self.file.as_fd())? { Ok(offset) } else { Err(FileError::BeyondEnd) }
    }
}

impl Drop for FileRegion {
    fn drop(&mut self) {
        if let RegionMapping::Memory { mapping, .. } = self.map {
            address_ranges().retire(mapping);
        }
    }
}

fn size(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    rustix::fs::fstat(file).map(|stat| u64::try_from(stat.st_size).unwrap_or(0))
}

/// Checks that a file can be a region up to `end`. Returns whether it is memory that cannot shrink.
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
        return Err(Errno::OPNOTSUPP); // hugetlbfs has no pwrite
    }
    let access = flags & OFlags::ACCMODE;
    let seals = rustix::fs::fcntl_get_seals(file).unwrap_or(SealFlags::empty());
    let sealed = seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE);
    if reads && access == OFlags::WRONLY || writes && (access == OFlags::RDONLY || sealed) {
        return Err(Errno::ACCESS);
    }
    if end > size(file)? {
        return Err(Errno::RANGE); // also every offset that the kernel cannot have
    }
    // A write beyond this limit raises SIGXFSZ, which kills the process.
    if writes && rustix::process::getrlimit(Resource::Fsize).current.is_some_and(|limit| end > limit) {
        return Err(Errno::FBIG);
    }
    // With O_APPEND pwrite ignores its offset; with O_DIRECT it writes whole blocks only.
    if flags.contains(OFlags::DIRECT) || writes && flags.contains(OFlags::APPEND) {
        return Err(Errno::INVAL);
    }
    Ok(kind == TMPFS && seals.contains(SealFlags::SHRINK) && access != OFlags::WRONLY)
}

fn access(writes: bool) -> Access {
    if writes { Access::Write } else { Access::Read }
}

/// Maps memory that cannot shrink, from its beginning. Sizes are rounded so that address ranges can be reused.
fn map_memory(file: &PrivateFd, at: u64, length: usize, writes: bool) -> RegionMapping {
    let start = usize::try_from(at).ok();
    let size = start.and_then(|at| at.checked_add(length)?.max(PAGE_BYTES).checked_next_power_of_two());
    let (Some(at), Some(size)) = (start, size) else { return RegionMapping::None };
    let Ok(mapping) = address_ranges().map_with_access(file, size, PAGE_BYTES, access(writes)) else {
        return RegionMapping::None;
    };
    match SharedBytes::of(mapping, at, length) {
        Some(view) => RegionMapping::Memory { mapping, view },
        None => RegionMapping::None,
    }
}

/// Maps the pages around a range of a file, for system calls only. If the system refuses, the region is not mapped.
fn map_pages(file: &PrivateFd, at: u64, length: usize, writes: bool) -> RegionMapping {
    let skew = (at % PAGE_BYTES as u64) as usize;
    let Some(size) = length.checked_add(skew).and_then(|size| size.checked_next_multiple_of(PAGE_BYTES)) else {
        return RegionMapping::None;
    };
    let base = memory::map_file(file, at - skew as u64, size, access(writes));
    base.map_or(RegionMapping::None, |base| RegionMapping::Pages(FilePages { base, size, skew }))
}

#[cfg(test)]
#[path = "file_region_tests.rs"]
mod tests;
