//! Single copy between two address spaces (process_vm_readv, process_vm_writev).

use crate::{Errno, errno};
use motet_wire::shared_memory::SharedBytes;
use syscalls::{Sysno, syscall};

#[repr(C)]
struct IoVec {
    base: u64,
    length: u64,
}

/// Copies from `address` in process `pid` into `into`; returns the bytes copied.
pub fn read_from(pid: u32, address: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let local = IoVec { base: into.as_mut_ptr() as u64, length: into.len() as u64 };
    let remote = IoVec { base: address, length: into.len() as u64 };
    // SAFETY: the kernel writes only within `into`; the remote address is checked by the kernel.
    unsafe { syscall!(Sysno::process_vm_readv, pid, &raw const local, 1, &raw const remote, 1, 0) }.map_err(errno)
}

/// Copies from `address` in process `pid` into shared memory; returns the bytes copied.
pub fn read_into_shared(pid: u32, address: u64, into: &SharedBytes) -> Result<usize, Errno> {
    let local = IoVec { base: into.base() as u64, length: into.length() as u64 };
    let remote = IoVec { base: address, length: into.length() as u64 };
    // SAFETY: the kernel writes only within the view. Its maker has promised that the memory stays mapped and that no reference to it exists.
    unsafe { syscall!(Sysno::process_vm_readv, pid, &raw const local, 1, &raw const remote, 1, 0) }.map_err(errno)
}

/// Copies `from` to `address` in process `pid`; returns the bytes copied.
pub fn write_to(pid: u32, address: u64, from: &[u8]) -> Result<usize, Errno> {
    let local = IoVec { base: from.as_ptr() as u64, length: from.len() as u64 };
    let remote = IoVec { base: address, length: from.len() as u64 };
    // SAFETY: the kernel only reads `from`; what it writes is the other process's memory, which that process offered.
    unsafe { syscall!(Sysno::process_vm_writev, pid, &raw const local, 1, &raw const remote, 1, 0) }.map_err(errno)
}
