//! Sealed memfds and their mappings.

use motet_wire::mapping::Mapping;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Makes a memfd of exactly `size` bytes, the first `dense` of them allocated now (no SIGBUS later), mapped, with `head`
/// written at its start.
pub fn create(name: &str, size: usize, head: &[u8], dense: usize) -> Result<(OwnedFd, Mapping), Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags)?, // before Linux 6.3
        other => other?,
    };
    rustix::fs::ftruncate(&fd, size as u64)?;
    if dense > 0 {
        rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, dense as u64)?;
    }
    rustix::io::pwrite(&fd, head, 0)?;
    let mapping = map(&fd, size)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok((fd, mapping))
}

/// Maps `size` bytes, shared, left out of core dumps. The mapping is never undone.
pub fn map(fd: impl AsFd, size: usize) -> Result<Mapping, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice; nothing of ours is replaced.
    let base = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, fd, 0)?
    };
    // SAFETY: advice on the mapping just made; DONTDUMP does not change its contents.
    let _ = unsafe { rustix::mm::madvise(base, size, Advice::LinuxDontDump) };
    // SAFETY: just mapped, page-aligned, and no code of ours ever unmaps it.
    Ok(unsafe { Mapping::new(base.cast(), size) })
}

/// What a memfd from a peer really is: its size, the bytes that have pages, and whether it is sealed against resizing.
pub fn inspect(fd: impl AsFd) -> Result<(u64, u64, bool), Errno> {
    let seals = rustix::fs::fcntl_get_seals(fd.as_fd())?;
    let stat = rustix::fs::fstat(fd.as_fd())?;
    Ok((stat.st_size as u64, stat.st_blocks as u64 * 512, seals.contains(SealFlags::SHRINK | SealFlags::GROW)))
}

/// Allocates pages of a sparse memfd.
pub fn allocate(fd: impl AsFd, offset: u64, length: u64) -> Result<(), Errno> {
    rustix::fs::fallocate(fd, FallocateFlags::empty(), offset, length)
}

/// The first bytes of a file, in a private copy.
pub fn head<const N: usize>(fd: impl AsFd) -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    match rustix::io::pread(fd, &mut bytes, 0)? {
        n if n == N => Ok(bytes),
        _ => Err(Errno::INVAL),
    }
}

/// Brings all pages of a mapping into being, writable, now; false when there is no memory for them.
pub fn populate(mapping: Mapping) -> bool {
    // SAFETY: a Mapping stays mapped; populating does not change contents.
    unsafe { rustix::mm::madvise(mapping.base().cast(), mapping.length(), Advice::LinuxPopulateWrite) }.is_ok()
}

/// Gives all pages of a shared mapping back to the system; they read as zero afterwards.
pub fn give_back(mapping: Mapping) {
    // SAFETY: a Mapping is memory that a peer can write at any time, so nobody relies on its contents.
    let _ = unsafe { rustix::mm::madvise(mapping.base().cast(), mapping.length(), Advice::LinuxRemove) };
}

/// Anonymous private memory, every page touched now.
pub fn anonymous(size: usize) -> Result<*mut u8, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, flags)? };
    Ok(base.cast())
}

/// Ends a mapping made by [`anonymous`].
pub(crate) fn unmap(base: *mut u8, size: usize) {
    // SAFETY: called by the pool with a block that it owns and that nobody refers to any more.
    let _ = unsafe { rustix::mm::munmap(base.cast(), size) };
}

/// 16 random bytes.
pub fn nonce() -> [u8; 16] {
    let mut bytes = [0u8; 16];
    // SAFETY: getrandom writes at most 16 bytes into the 16 that we hand it.
    let _ = unsafe { syscalls::syscall!(syscalls::Sysno::getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
    bytes
}
