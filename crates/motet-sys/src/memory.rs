//! Shared memory: sealed memfds, their mappings, and the address ranges that outlive both; random numbers of the kernel.

use crate::limits;
use motet_wire::mapping::Mapping;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;

/// Creates a memfd by [`create_memfd`], and maps it.
pub fn create_mapped(name: &str, size: usize, head: &[u8], dense: usize) -> Result<(OwnedFd, Mapping), Errno> {
    let fd = create_memfd(name, size, head, dense)?;
    let mapping = map(&fd, size)?;
    Ok((fd, mapping))
}

/// Creates a memfd of exactly `size` bytes, sealed against resizing, with `head` written at its start. Its first `dense` bytes are
/// allocated now, so an access to them raises no SIGBUS later.
pub fn create_memfd(name: &str, size: usize, head: &[u8], dense: usize) -> Result<OwnedFd, Errno> {
    let fd = open(name, size)?;
    if !limits::cgroup_has_room(dense) {
        return Err(Errno::NOMEM);
    }
    if dense > 0 {
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, dense as u64)?;
    }
    rustix::io::pwrite(&fd, head, 0)?;
    seal(&fd, SealFlags::empty())?;
    Ok(fd)
}

/// A memfd of `size` bytes that is not sealed yet. [`Errno::FBIG`]: the size is beyond RLIMIT_FSIZE, and the system call would raise a signal.
pub(crate) fn open(name: &str, size: usize) -> Result<OwnedFd, Errno> {
    if !limits::allows_file_size(size as u64) {
        return Err(Errno::FBIG);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?, // before Linux 6.3
        other => other?,
    };
    rustix::fs::ftruncate(&fd, size as u64)?;
    Ok(fd)
}

/// Seals a memfd against resizing, against further seals, and against `more`.
pub(crate) fn seal(fd: impl AsFd, more: SealFlags) -> Result<(), Errno> {
    rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | more)
}

/// Access rights of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Read and write.
    Write,
}

/// Maps `size` bytes, shared, left out of core dumps, never locked. The range is never unmapped; [`AddressRanges`] may replace its
/// contents.
pub fn map(fd: impl AsFd, size: usize) -> Result<Mapping, Errno> {
    map_aligned(fd, size, PAGE_BYTES, Access::Write)
}

/// Maps `size` bytes as [`map`] does, at a multiple of `unit`, a power of two.
fn map_aligned(fd: impl AsFd, size: usize, unit: usize, access: Access) -> Result<Mapping, Errno> {
    let base = map_new(size, unit, access, |place| {
        let flags = MapFlags::SHARED | if place.is_null() { MapFlags::empty() } else { MapFlags::FIXED };
        // SAFETY: at an address of the kernel's choice, or over the range that `map_new` has reserved.
        unsafe { rustix::mm::mmap(place, size, ProtFlags::empty(), flags, fd, 0) }
    })?;
    // SAFETY: just mapped, page-aligned, and no code ever unmaps the range.
    Ok(unsafe { Mapping::new(base.cast(), size) })
}

/// Maps `size` bytes of a file from `offset` on, both of whole pages, shared. Unlike a mapping of [`map`] this one is unmapped by its
/// caller, and is for system calls only: a load or store is a fault if the file has been truncated.
pub(crate) fn map_file(fd: impl AsFd, offset: u64, size: usize, access: Access) -> Result<*mut c_void, Errno> {
    map_new(size, PAGE_BYTES, access, |place| {
        // SAFETY: at an address of the kernel's choice, as `place` is null for a unit of one page.
        unsafe { rustix::mm::mmap(place, size, ProtFlags::empty(), MapFlags::SHARED, fd, offset) }
    })
}

/// Maps memory by `mmap`, which gives no access, then allows `access`. In between the mapping is unlocked: a program that locks all its
/// future memory (mlockall) means its own memory, and the lock would allocate all pages of a sparse segment.
fn map_new(
    size: usize,
    unit: usize,
    access: Access,
    mmap: impl FnOnce(*mut c_void) -> Result<*mut c_void, Errno>,
) -> Result<*mut c_void, Errno> {
    let place = if unit > PAGE_BYTES { reserve_aligned(size, unit)? } else { std::ptr::null_mut() };
    let base = mmap(place)?;
    // SAFETY: the mapping just made, to which no reference exists; none of the three calls changes contents.
    unsafe {
        let _ = rustix::mm::munlock(base, size);
        let _ = rustix::mm::madvise(base, size, Advice::LinuxDontDump);
        let writes = if access == Access::Write { MprotectFlags::WRITE } else { MprotectFlags::empty() };
        if let Err(errno) = rustix::mm::mprotect(base, size, MprotectFlags::READ | writes) {
            let _ = rustix::mm::munmap(base, size);
            return Err(errno);
        }
    }
    Ok(base)
}

/// Reserves a range of addresses at a multiple of `unit`, without access.
fn reserve_aligned(size: usize, unit: usize) -> Result<*mut c_void, Errno> {
    let whole = size.checked_add(unit).ok_or(Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), flags)? };
    let before = base.addr().next_multiple_of(unit) - base.addr();
    // SAFETY: unmaps both ends of the range just mapped, page-aligned. No reference to them exists.
    unsafe {
        let place = base.byte_add(before);
        if before > 0 {
            let _ = rustix::mm::munmap(base, before);
        }
        let _ = rustix::mm::munmap(place.byte_add(size), unit - before);
        Ok(place)
    }
}

/// Moves a new mapping of `size` bytes to the place of another one, in one step.
fn replace_mapping(base: *mut c_void, size: usize, place: Mapping) -> Result<(), Errno> {
    // SAFETY: `base` was just mapped. The place is a Mapping: no code relies on its contents, and it stays mapped throughout, as the kernel
    // exchanges the two under its own lock.
    let moved = unsafe { rustix::mm::mremap_fixed(base, size, size, MremapFlags::MAYMOVE, place.base().cast()) };
    if moved.is_err() {
        // SAFETY: mapped by the caller just now; no reference to it exists.
        let _ = unsafe { rustix::mm::munmap(base, size) };
    }
    moved.map(|_| ())
}

/// Whether all pages of an address range are mapped, by any mapping.
pub fn is_mapped(start: u64, end: u64) -> bool {
    let length = end.saturating_sub(start) as usize;
    let flags = rustix::mm::MsyncFlags::ASYNC;
    // SAFETY: MS_ASYNC only checks that the range is mapped (msync(2)).
    unsafe { rustix::mm::msync(std::ptr::without_provenance_mut(start as usize), length, flags) }.is_ok()
}

const PAGE_BYTES: usize = 4096;

/// Address ranges of retired segments, by length, for reuse by segments of the same length.
///
/// A thread that lost a race may still hold a view into a retired segment, so its range is never unmapped: private zero pages replace the
/// segment in one step, and later another segment does. What such a thread reads or writes there has no effect, because it checks under a
/// lock whether its stream is still the same; and it never faults.
#[derive(Debug, Default)]
pub struct AddressRanges {
    /// Retired ranges by length, the oldest first.
    spare: BTreeMap<usize, VecDeque<Mapping>>,
    /// Bytes of retired ranges.
    bytes: usize,
}

/// Retired ranges of one length before the oldest is reused: a late thread most likely reads zeros, not another segment.
const MIN_SPARE_RANGES: usize = 4;

impl AddressRanges {
    /// No retired ranges.
    pub const fn new() -> Self {
        Self { spare: BTreeMap::new(), bytes: 0 }
    }

    /// Maps `size` bytes as [`map`] does, at a multiple of `unit`; reuses a retired range if there is one.
    pub fn map(&mut self, fd: impl AsFd, size: usize, unit: usize) -> Result<Mapping, Errno> {
        self.map_with_access(fd, size, unit, Access::Write)
    }

    /// Maps `size` bytes with `access`, at a multiple of `unit`; reuses a retired range if there is one.
    pub fn map_with_access(
        &mut self,
        fd: impl AsFd,
        size: usize,
        unit: usize,
        access: Access,
    ) -> Result<Mapping, Errno> {
        let fits = |place: &Mapping| place.base().addr().is_multiple_of(unit);
        let spare =
            self.spare.get_mut(&size).filter(|spare| spare.len() > MIN_SPARE_RANGES && spare.front().is_some_and(fits));
        let place = spare.and_then(VecDeque::pop_front);
        let new = map_aligned(fd, size, if place.is_none() { unit } else { PAGE_BYTES }, access);
        let Some(place) = place else { return new };
        match new.and_then(|new| replace_mapping(new.base().cast(), size, place)) {
            Ok(()) => {
                self.bytes -= size;
                Ok(place)
            }
            Err(errno) => {
                self.spare.entry(size).or_default().push_front(place);
                Err(errno)
            }
        }
    }

    /// Retires a mapping: replaces it by private zero pages, and keeps its range for reuse. False: the system refused, and nothing changed.
    ///
    /// The mapping must be a whole one, made by [`map`] or [`AddressRanges::map`], and not be retired twice.
    pub fn retire(&mut self, mapping: Mapping) -> bool {
        let (flags, size) = (MapFlags::PRIVATE | MapFlags::NORESERVE, mapping.length());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let zeros = map_new(size, PAGE_BYTES, Access::Write, |none| unsafe {
            rustix::mm::mmap_anonymous(none, size, ProtFlags::empty(), flags)
        });
        // No code relies on the contents of a segment. The range stays readable and writable, as a Mapping promises.
        if zeros.and_then(|zeros| replace_mapping(zeros, size, mapping)).is_err() {
            return false;
        }
        self.bytes += size;
        self.spare.entry(size).or_default().push_back(mapping);
        true
    }

    /// Bytes of retired ranges.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Inspects a memfd from a peer: its size, whether it is sealed against resizing, and whether its pages are ordinary memory (and not huge
/// pages, of which the pool may be empty when one is touched).
pub fn inspect(fd: impl AsFd) -> Result<(u64, bool, bool), Errno> {
    const TMPFS: u64 = 0x0102_1994;
    let seals = rustix::fs::fcntl_get_seals(fd.as_fd())?;
    let ordinary = rustix::fs::fstatfs(fd.as_fd())?.f_type as u64 == TMPFS;
    let size = rustix::fs::fstat(fd.as_fd())?.st_size as u64;
    Ok((size, seals.contains(SealFlags::SHRINK | SealFlags::GROW), ordinary))
}

/// Allocates pages of a sparse memfd.
pub fn allocate(fd: impl AsFd, offset: u64, length: u64) -> Result<(), Errno> {
    if !limits::cgroup_has_room(length as usize) {
        return Err(Errno::NOMEM);
    }
    rustix::fs::fallocate(fd, FallocateFlags::empty(), offset, length)
}

/// The first `N` bytes of a file, in a private copy.
pub fn read_head<const N: usize>(fd: impl AsFd) -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    read(fd, &mut bytes)?;
    Ok(bytes)
}

/// Fills `into` from the start of a file. [`Errno::INVAL`]: the file is shorter.
pub fn read(fd: impl AsFd, into: &mut [u8]) -> Result<(), Errno> {
    let wanted = into.len();
    match rustix::io::pread(fd, into, 0)? {
        n if n == wanted => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

/// Allocates all pages of a mapping now, writable. False: there is no memory for them.
pub fn populate(mapping: Mapping) -> bool {
    populate_at(mapping, 0, mapping.length())
}

/// Allocates the pages of `length` bytes at `offset`, a multiple of the page size, writable. False: there is no memory for them, or they are
/// not inside the mapping.
pub fn populate_at(mapping: Mapping, offset: usize, length: usize) -> bool {
    if offset.checked_add(length).is_none_or(|end| end > mapping.length()) || !limits::cgroup_has_room(length) {
        return false;
    }
    // SAFETY: inside a Mapping, which stays mapped; the advice does not change contents.
    unsafe { rustix::mm::madvise(mapping.base().add(offset).cast(), length, Advice::LinuxPopulateWrite) }.is_ok()
}

/// Advises the system to use huge pages from `offset` on. Systems without huge pages for shared memory ignore it.
pub fn advise_huge_pages(mapping: Mapping, offset: usize) {
    let Some(length) = mapping.length().checked_sub(offset).filter(|length| *length > 0) else { return };
    // SAFETY: inside a Mapping, which stays mapped; the advice does not change contents.
    let _ = unsafe { rustix::mm::madvise(mapping.base().add(offset).cast(), length, Advice::LinuxHugepage) };
}

/// Releases all pages of a shared mapping to the system. They read as zero afterwards.
pub fn release_pages(mapping: Mapping) {
    release_pages_at(mapping, 0, mapping.length());
}

/// Releases the pages of `length` bytes at `offset`, a multiple of the page size. They read as zero afterwards. A range that is not inside the
/// mapping is ignored.
pub fn release_pages_at(mapping: Mapping, offset: usize, length: usize) {
    if offset.checked_add(length).is_none_or(|end| end > mapping.length()) {
        return;
    }
    // SAFETY: a Mapping is memory that a peer can write at any time, so no code relies on its contents.
    let _ = unsafe { rustix::mm::madvise(mapping.base().add(offset).cast(), length, Advice::LinuxRemove) };
}

/// Maps `size` bytes of private anonymous memory, with all pages allocated.
pub fn map_anonymous(size: usize) -> Result<*mut u8, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags)? };
    Ok(base.cast())
}

/// Unmaps memory of [`map_anonymous`].
///
/// # Safety
/// The memory came from [`map_anonymous`] with this size, and nothing refers to it.
pub unsafe fn unmap_anonymous(memory: *mut u8, size: usize) {
    // SAFETY: a whole mapping to which nothing refers, as the caller promises.
    let _ = unsafe { rustix::mm::munmap(memory.cast(), size.max(1)) };
}

/// Unmaps a buffer of the buffer pool, made by [`map_anonymous`].
pub(crate) fn unmap_buffer(base: *mut u8, size: usize) {
    // SAFETY: called by the pool only, with a buffer that it owns and to which nothing refers.
    let _ = unsafe { rustix::mm::munmap(base.cast(), size) };
}

/// 16 random bytes. Errors: the system's, where a seccomp filter refuses the call, for example. The caller must not go on without them.
pub fn nonce() -> Result<[u8; 16], crate::Errno> {
    const EINTR: i32 = 4;
    let mut bytes = [0u8; 16];
    loop {
        // SAFETY: getrandom writes at most 16 bytes, into an array of 16.
        match unsafe { syscalls::syscall!(syscalls::Sysno::getrandom, bytes.as_mut_ptr(), bytes.len(), 0) } {
            Ok(16) => return Ok(bytes),
            Ok(_) => {} // not possible for 256 bytes or fewer (getrandom(2))
            Err(e) if e.into_raw() == EINTR => {}
            Err(e) => return Err(e.into_raw()),
        }
    }
}

/// 64 random bits that are not all 0. Errors: those of [`nonce`].
pub fn random_u64() -> Result<u64, crate::Errno> {
    loop {
        let bytes = nonce()?;
        let [low, high] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n])));
        if let Some(word) = [low, high].into_iter().find(|word| *word != 0) {
            return Ok(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 1 << 16;

    fn fill(mapping: Mapping, byte: u8) {
        // SAFETY: mapped by this test.
        unsafe { std::ptr::write_bytes(mapping.base(), byte, mapping.length()) };
    }

    fn first(mapping: Mapping) -> u8 {
        // SAFETY: mapped by this test.
        unsafe { mapping.base().read_volatile() }
    }

    #[test]
    fn retired_range_reads_as_zeros_and_is_reused() {
        let mut ranges = AddressRanges::default();
        let segment = |byte: u8, ranges: &mut AddressRanges| {
            let fd = create_memfd("test", SIZE, &[], SIZE).unwrap();
            let mapping = ranges.map(&fd, SIZE, PAGE_BYTES).unwrap();
            fill(mapping, byte);
            (fd, mapping)
        };
        let (fd, mapping) = segment(7, &mut ranges);
        let other = map(&fd, SIZE).unwrap();
        assert!(ranges.retire(mapping));
        assert_eq!((first(mapping), first(other), ranges.bytes()), (0, 7, SIZE), "zeros here, the file elsewhere");
        fill(mapping, 9);
        assert_eq!(first(other), 7, "a late write does not reach the file");
        let mut seen = vec![mapping.base()];
        for round in 0..3 * MIN_SPARE_RANGES {
            let (_, mapping) = segment(1 + round as u8, &mut ranges);
            assert_eq!(first(mapping), 1 + round as u8);
            assert!(ranges.retire(mapping));
            if !seen.contains(&mapping.base()) {
                seen.push(mapping.base());
            }
        }
        assert_eq!(
            (seen.len(), ranges.bytes()),
            (MIN_SPARE_RANGES + 1, (MIN_SPARE_RANGES + 1) * SIZE),
            "no more ranges than were in use at once"
        );
    }
}
