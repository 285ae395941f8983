//! Sealed memfds and their mappings, and the address ranges that outlive both.

use crate::limits;
use motet_wire::mapping::Mapping;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;

/// Makes a memfd as [`make`] does, and maps it.
pub fn create(name: &str, size: usize, head: &[u8], dense: usize) -> Result<(OwnedFd, Mapping), Errno> {
    let fd = make(name, size, head, dense)?;
    let mapping = map(&fd, size)?;
    Ok((fd, mapping))
}

/// Makes a memfd of exactly `size` bytes, the first `dense` of them allocated now (no SIGBUS later), with `head` written at
/// its start, sealed against resizing.
pub fn make(name: &str, size: usize, head: &[u8], dense: usize) -> Result<OwnedFd, Errno> {
    let fd = open(name, size)?;
    if !limits::group_has(dense) {
        return Err(Errno::NOMEM);
    }
    if dense > 0 {
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, dense as u64)?;
    }
    rustix::io::pwrite(&fd, head, 0)?;
    seal(&fd, SealFlags::empty())?;
    Ok(fd)
}

/// A memfd of `size` bytes that is not sealed yet. [`Errno::FBIG`] where the process may have no file of that size: the system would
/// answer with a signal.
pub(crate) fn open(name: &str, size: usize) -> Result<OwnedFd, Errno> {
    if !limits::fits_file(size as u64) {
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

/// Seals a memfd against resizing, and against `more`, for good.
pub(crate) fn seal(fd: impl AsFd, more: SealFlags) -> Result<(), Errno> {
    rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | more)
}

/// What may be done in a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading: every view of it is read only.
    Read,
    /// Reading and writing.
    Write,
}

/// Maps `size` bytes, shared, left out of core dumps, never locked. The range is never unmapped; [`Ranges`] may change what lies
/// there.
pub fn map(fd: impl AsFd, size: usize) -> Result<Mapping, Errno> {
    map_aligned(fd, size, PAGE, Access::Write)
}

/// The same at a multiple of `unit`, a power of two.
fn map_aligned(fd: impl AsFd, size: usize, unit: usize, access: Access) -> Result<Mapping, Errno> {
    let base = fresh(size, unit, access, |place| {
        let flags = MapFlags::SHARED | if place.is_null() { MapFlags::empty() } else { MapFlags::FIXED };
        // SAFETY: at an address of the kernel's choice, or over the reserved range that `fresh` says is ours.
        unsafe { rustix::mm::mmap(place, size, ProtFlags::empty(), flags, fd, 0) }
    })?;
    // SAFETY: just mapped, page-aligned, and no code of ours ever unmaps the range.
    Ok(unsafe { Mapping::new(base.cast(), size) })
}

/// Maps `size` bytes of a file from `offset` on, both of whole pages, shared. Unlike [`map`] it is for its caller to unmap, and it is not
/// for loads and stores: they are a fault where the file has ended meanwhile.
pub(crate) fn map_file(fd: impl AsFd, offset: u64, size: usize, access: Access) -> Result<*mut c_void, Errno> {
    fresh(size, PAGE, access, |place| {
        // SAFETY: at an address of the kernel's choice, as `place` is null for a unit of one page.
        unsafe { rustix::mm::mmap(place, size, ProtFlags::empty(), MapFlags::SHARED, fd, offset) }
    })
}

/// A new mapping that `make` makes, without access; then it may be read, and written. In between its lock is taken off: a program
/// that locks all its future memory (mlockall) means its own, and would bring all pages of a sparse segment into being.
fn fresh(
    size: usize,
    unit: usize,
    access: Access,
    make: impl FnOnce(*mut c_void) -> Result<*mut c_void, Errno>,
) -> Result<*mut c_void, Errno> {
    let place = if unit > PAGE { reserve(size, unit)? } else { std::ptr::null_mut() };
    let base = make(place)?;
    // SAFETY: the mapping just made, which nobody else knows of; none of the three changes contents.
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

/// A range of addresses at a multiple of `unit`, with nothing in it.
fn reserve(size: usize, unit: usize) -> Result<*mut c_void, Errno> {
    let whole = size.checked_add(unit).ok_or(Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::empty(), flags)? };
    let before = base.addr().next_multiple_of(unit) - base.addr();
    // SAFETY: both ends of the range just mapped, page-aligned; what is between them stays.
    unsafe {
        let place = base.byte_add(before);
        if before > 0 {
            let _ = rustix::mm::munmap(base, before);
        }
        let _ = rustix::mm::munmap(place.byte_add(size), unit - before);
        Ok(place)
    }
}

/// Puts a new mapping of `size` bytes in the place of another one, in one step.
fn put(base: *mut c_void, size: usize, place: Mapping) -> Result<(), Errno> {
    // SAFETY: `base` was just mapped, and the place is a range whose contents nobody relies on; it stays mapped throughout, as
    // the kernel exchanges the two under its own lock.
    let moved = unsafe { rustix::mm::mremap_fixed(base, size, size, MremapFlags::MAYMOVE, place.base().cast()) };
    if moved.is_err() {
        // SAFETY: nobody else knows of it.
        let _ = unsafe { rustix::mm::munmap(base, size) };
    }
    moved.map(|_| ())
}

/// Whether something is mapped at every one of these addresses, whole pages, whatever it is.
pub fn is_mapped(start: u64, end: u64) -> bool {
    let length = end.saturating_sub(start) as usize;
    let flags = rustix::mm::MsyncFlags::ASYNC;
    // SAFETY: MS_ASYNC does nothing but look at what is mapped (msync(2)).
    unsafe { rustix::mm::msync(std::ptr::without_provenance_mut(start as usize), length, flags) }.is_ok()
}

const PAGE: usize = 4096;

/// Address ranges whose segments are gone, by length, for the next segments of that length.
///
/// A thread that lost a race may still hold a view into a segment that is given up, so its range is never unmapped: zero
/// pages of this process's own take its place at one stroke, and later another segment. What such a thread reads or writes
/// there means nothing (and it checks under a lock whether its stream still is what it was); it never faults.
#[derive(Debug, Default)]
pub struct Ranges {
    spare: BTreeMap<usize, VecDeque<Mapping>>,
    bytes: usize,
}

/// Ranges of one length that wait before the oldest is used again: a straggler most likely meets zeros, not a stranger.
const RESTING: usize = 4;

impl Ranges {
    /// None yet.
    pub const fn new() -> Self {
        Self { spare: BTreeMap::new(), bytes: 0 }
    }

    /// Maps `size` bytes as [`map`] does, where an earlier segment was if there is such a place, at a multiple of `unit`.
    pub fn map(&mut self, fd: impl AsFd, size: usize, unit: usize) -> Result<Mapping, Errno> {
        self.map_for(fd, size, unit, Access::Write)
    }

    /// The same for some access.
    pub fn map_for(&mut self, fd: impl AsFd, size: usize, unit: usize, access: Access) -> Result<Mapping, Errno> {
        let fits = |place: &Mapping| place.base().addr().is_multiple_of(unit);
        let spare = self.spare.get_mut(&size).filter(|spare| spare.len() > RESTING && spare.front().is_some_and(fits));
        let place = spare.and_then(VecDeque::pop_front);
        let new = map_aligned(fd, size, if place.is_none() { unit } else { PAGE }, access);
        let Some(place) = place else { return new };
        match new.and_then(|new| put(new.base().cast(), size, place)) {
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

    /// Gives up what is mapped in `mapping`, pages included, and keeps its range. False: the system refused, nothing has changed.
    ///
    /// The mapping must be a whole one, made by [`map`] or [`Ranges::map`], and not be given up twice.
    pub fn give_up(&mut self, mapping: Mapping) -> bool {
        let (flags, size) = (MapFlags::PRIVATE | MapFlags::NORESERVE, mapping.length());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let zeros = fresh(size, PAGE, Access::Write, |none| unsafe {
            rustix::mm::mmap_anonymous(none, size, ProtFlags::empty(), flags)
        });
        // Nobody may rely on the contents of a segment; the range stays readable and writable, as a Mapping promises.
        if zeros.and_then(|zeros| put(zeros, size, mapping)).is_err() {
            return false;
        }
        self.bytes += size;
        self.spare.entry(size).or_default().push_back(mapping);
        true
    }

    /// Bytes of address space that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// What a memfd from a peer really is: its size, whether it is sealed against resizing, and whether its pages are ordinary memory
/// (and not of a pool that may be empty when one is touched).
pub fn inspect(fd: impl AsFd) -> Result<(u64, bool, bool), Errno> {
    const TMPFS: u64 = 0x0102_1994;
    let seals = rustix::fs::fcntl_get_seals(fd.as_fd())?;
    let ordinary = rustix::fs::fstatfs(fd.as_fd())?.f_type as u64 == TMPFS;
    let size = rustix::fs::fstat(fd.as_fd())?.st_size as u64;
    Ok((size, seals.contains(SealFlags::SHRINK | SealFlags::GROW), ordinary))
}

/// Allocates pages of a sparse memfd.
pub fn allocate(fd: impl AsFd, offset: u64, length: u64) -> Result<(), Errno> {
    if !limits::group_has(length as usize) {
        return Err(Errno::NOMEM);
    }
    rustix::fs::fallocate(fd, FallocateFlags::empty(), offset, length)
}

/// The first bytes of a file, in a private copy.
pub fn head<const N: usize>(fd: impl AsFd) -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    read(fd, &mut bytes)?;
    Ok(bytes)
}

/// So many bytes from the start of a file; an error when it has fewer.
pub fn read(fd: impl AsFd, into: &mut [u8]) -> Result<(), Errno> {
    let wanted = into.len();
    match rustix::io::pread(fd, into, 0)? {
        n if n == wanted => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

/// Brings all pages of a mapping into being, writable, now; false when there is no memory for them.
pub fn populate(mapping: Mapping) -> bool {
    populate_part(mapping, 0, mapping.length())
}

/// The same of `length` bytes at `offset`, a multiple of the page's size; false also when they do not lie inside.
pub fn populate_part(mapping: Mapping, offset: usize, length: usize) -> bool {
    if offset.checked_add(length).is_none_or(|end| end > mapping.length()) || !limits::group_has(length) {
        return false;
    }
    // SAFETY: a part of a Mapping, which stays mapped; populating does not change contents.
    unsafe { rustix::mm::madvise(mapping.base().add(offset).cast(), length, Advice::LinuxPopulateWrite) }.is_ok()
}

/// Asks for huge pages from `offset` on, where the system has them for shared memory; otherwise nothing happens.
pub fn prefer_huge(mapping: Mapping, offset: usize) {
    let Some(length) = mapping.length().checked_sub(offset).filter(|length| *length > 0) else { return };
    // SAFETY: a part of a Mapping, which stays mapped; the advice does not change contents.
    let _ = unsafe { rustix::mm::madvise(mapping.base().add(offset).cast(), length, Advice::LinuxHugepage) };
}

/// Gives all pages of a shared mapping back to the system; they read as zero afterwards.
pub fn give_back(mapping: Mapping) {
    give_back_part(mapping, 0, mapping.length());
}

/// The same of `length` bytes at `offset`, a multiple of the page's size; nothing happens when they do not lie inside.
pub fn give_back_part(mapping: Mapping, offset: usize, length: usize) {
    if offset.checked_add(length).is_none_or(|end| end > mapping.length()) {
        return;
    }
    // SAFETY: a Mapping is memory that a peer can write at any time, so nobody relies on its contents.
    let _ = unsafe { rustix::mm::madvise(mapping.base().add(offset).cast(), length, Advice::LinuxRemove) };
}

/// Anonymous private memory, every page touched now.
pub fn anonymous(size: usize) -> Result<*mut u8, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags)? };
    Ok(base.cast())
}

/// Gives such memory back.
///
/// # Safety
/// It came from [`anonymous`] with this size, and nothing refers to it.
pub unsafe fn give_up_anonymous(memory: *mut u8, size: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { rustix::mm::munmap(memory.cast(), size.max(1)) };
}

/// Ends a mapping made by [`anonymous`].
pub(crate) fn unmap(base: *mut u8, size: usize) {
    // SAFETY: called by the pool with a block that it owns and that nobody refers to any more.
    let _ = unsafe { rustix::mm::munmap(base.cast(), size) };
}

/// 16 random bytes, or why the system gives none (a filter refuses it, say): then there is no key, and nothing that needs one.
pub fn nonce() -> Result<[u8; 16], crate::Errno> {
    const EINTR: i32 = 4;
    let mut bytes = [0u8; 16];
    loop {
        // SAFETY: getrandom writes at most 16 bytes into the 16 that we hand it.
        match unsafe { syscalls::syscall!(syscalls::Sysno::getrandom, bytes.as_mut_ptr(), bytes.len(), 0) } {
            Ok(16) => return Ok(bytes),
            Ok(_) => {} // up to 256 bytes come at once, or none
            Err(e) if e.into_raw() == EINTR => {}
            Err(e) => return Err(e.into_raw()),
        }
    }
}

/// 64 random bits, which are not 0.
pub fn random() -> Result<u64, crate::Errno> {
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
        // SAFETY: a mapping of this test's own.
        unsafe { std::ptr::write_bytes(mapping.base(), byte, mapping.length()) };
    }

    fn first(mapping: Mapping) -> u8 {
        // SAFETY: as above.
        unsafe { mapping.base().read_volatile() }
    }

    #[test]
    fn a_range_that_was_given_up_reads_as_zeros_and_is_used_again() {
        let mut ranges = Ranges::default();
        let segment = |byte: u8, ranges: &mut Ranges| {
            let fd = make("test", SIZE, &[], SIZE).unwrap();
            let mapping = ranges.map(&fd, SIZE, PAGE).unwrap();
            fill(mapping, byte);
            (fd, mapping)
        };
        let (fd, mapping) = segment(7, &mut ranges);
        let other = map(&fd, SIZE).unwrap();
        assert!(ranges.give_up(mapping));
        assert_eq!((first(mapping), first(other), ranges.bytes()), (0, 7, SIZE), "zeros here, the file elsewhere");
        fill(mapping, 9);
        assert_eq!(first(other), 7, "a straggler writes to nobody's memory");
        let mut seen = vec![mapping.base()];
        for round in 0..3 * RESTING {
            let (_, mapping) = segment(1 + round as u8, &mut ranges);
            assert_eq!(first(mapping), 1 + round as u8);
            assert!(ranges.give_up(mapping));
            if !seen.contains(&mapping.base()) {
                seen.push(mapping.base());
            }
        }
        assert_eq!(
            (seen.len(), ranges.bytes()),
            (RESTING + 1, (RESTING + 1) * SIZE),
            "no more than were there at once"
        );
    }
}
