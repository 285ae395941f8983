//! Regions: memory of this node that peers access by key, and mappings of theirs.

use super::abi;
use super::memory_handles;
use super::node_entry::MemoryHandle;
use super::node_handles::{enter, in_handler};
use super::{Deadline, EAGAIN, EBADF, EDEADLK, EINVAL, EOPNOTSUPP, Errno, call, errno, number};
use motet_api::node::{Key, LinkId, Mapped, Rights};
use motet_engine::message::regions::SharedBytes;
use motet_engine::message::{Error, Node};
use motet_sys::private_fds;

/// enum motet_region_rights.
const RIGHTS: u32 = Rights::ALL.0 as u32;

/// struct motet_region_mapping.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawMapping {
    size: usize,
    base: *mut u8,
    length: u64,
    rights: u32,
    reserved: u32,
}

/// struct motet_region_limits.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawRegionLimits {
    size: usize,
    put: u64,
    operands: u64,
    fetched: u64,
}

fn rights(asked: u32) -> Result<Rights, Errno> {
    if asked == 0 || asked & !RIGHTS != 0 { Err(EINVAL) } else { Ok(Rights(asked as u8)) }
}

/// Registers the caller's memory with `add`.
///
/// # Safety
/// The caller keeps what `motet.h` requires: the memory stays valid until the region has ended.
unsafe fn register(
    node: u64,
    base: *mut u8,
    length: usize,
    asked: u32,
    out: *mut u64,
    add: impl FnOnce(&Node, SharedBytes, Rights) -> Result<Key, Error>,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { abi::write_handle(out, 0) }?;
        let (entered, rights) = (enter(node)?, rights(asked)?);
        if base.is_null() || length == 0 || length > isize::MAX as usize {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise: the bytes stay valid until `motet_region_revoke` has returned 0 or the node is closed, after which
        // the engine does not use them; and they are writable if `rights` has PUT or ATOMIC.
        let memory = unsafe { SharedBytes::new(base, length) };
        let key = add(&entered.node, memory, rights).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, key.0) }.map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires: the memory stays valid until the region has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_register(
    node: u64,
    base: *mut u8,
    length: usize,
    asked: u32,
    out: *mut u64,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { register(node, base, length, asked, out, |node, memory, rights| node.register(memory, rights, None)) }
}

/// # Safety
/// The caller keeps what `motet.h` requires: the memory stays valid until the region has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_register_iova(
    node: u64,
    base: *mut u8,
    length: usize,
    first: u64,
    asked: u32,
    out: *mut u64,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        register(node, base, length, asked, out, |node, memory, rights| node.register_from(memory, first, rights))
    }
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_alloc(
    node: u64,
    length: usize,
    asked: u32,
    base: *mut *mut u8,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe {
            abi::write_handle(out, 0)?;
            abi::write_pointer(base, std::ptr::null_mut())?;
        }
        let (entered, rights) = (enter(node)?, rights(asked)?);
        if length == 0 || length > isize::MAX as usize {
            return Err(EINVAL);
        }
        let (view, key) = entered.node.alloc_region(length, rights).map_err(errno)?;
        // SAFETY: as above.
        unsafe {
            abi::write_pointer(base, view.base())?;
            abi::write_handle(out, key.0).map(|()| 0)
        }
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_register_file(
    node: u64,
    file: i32,
    offset: u64,
    length: u64,
    asked: u32,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { abi::write_handle(out, 0) }?;
        let (entered, rights) = (enter(node)?, rights(asked)?);
        if file < 0 || private_fds::is_private(file) {
            return Err(EBADF); // the kernel checks whether any other number is an open file
        }
        let key = entered.node.register_file(private_fds::borrow(file), offset, length, rights).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, key.0) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_region_sync(node: u64, key: u64, offset: u64, length: u64) -> i32 {
    call(|| enter(node)?.node.sync_region(Key(key), offset, length).map(|()| 0).map_err(errno))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_region_revoke(node: u64, key: u64, deadline: i64) -> i32 {
    call(|| {
        let deadline = Deadline(deadline);
        let revoked = enter(node)?.node.revoke(Key(key), deadline.at());
        revoked.map(|()| 0).map_err(|error| deadline.errno(error))
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_link_region_limits(node: u64, link: u64, into: *mut RawRegionLimits) -> i32 {
    call(|| {
        let limits = enter(node)?.node.remote_limits(LinkId(number(link)?)).map_err(errno)?;
        let (put, operands, fetched) = (limits.put as u64, limits.operands as u64, limits.fetched as u64);
        // SAFETY: the caller's promise.
        unsafe { abi::write(into, RawRegionLimits { size: 0, put, operands, fetched }) }.map(|()| 0)
    })
}

// ---- mappings --------------------------------------------------------------------------------------------------------

fn a_mapping(memory: MemoryHandle) -> Result<Mapped, MemoryHandle> {
    if let MemoryHandle::Mapping(view) = memory { Ok(view) } else { Err(memory) }
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_open(
    node: u64,
    link: u64,
    key: u64,
    deadline: i64,
    sight: *mut RawMapping,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe {
            abi::write_handle(out, 0)?;
            abi::read(sight)?;
        }
        let (entered, link, key, deadline) = (enter(node)?, LinkId(number(link)?), Key(key), Deadline(deadline));
        let mut mapped = entered.node.mapped(link, key).map_err(errno)?;
        if mapped.is_none() {
            if deadline.is_now() {
                return Err(EAGAIN);
            }
            if in_handler() {
                return Err(EDEADLK);
            }
            entered.node.open_region(link, key, deadline.at()).map_err(|error| deadline.errno(error))?;
            mapped = entered.node.mapped(link, key).map_err(errno)?;
        }
        let mapped = mapped.ok_or(EOPNOTSUPP)?;
        let (view, rights) = (mapped.view(), mapped.rights().0.into());
        let handle = memory_handles::insert(&entered, MemoryHandle::Mapping(mapped))?;
        let found = RawMapping { size: 0, base: view.base(), length: view.length() as u64, rights, reserved: 0 };
        // SAFETY: as above.
        unsafe {
            abi::write(sight, found)?;
            abi::write_handle(out, handle).map(|()| 0)
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_region_close(node: u64, view: u64) -> i32 {
    call(|| memory_handles::remove(&*enter(node)?, view, a_mapping).map(|_| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_region_is_valid(node: u64, view: u64) -> i32 {
    call(|| {
        let entered = enter(node)?;
        let (link, key) = memory_handles::inspect(&entered, view, |memory| match memory {
            MemoryHandle::Mapping(mapped) => Some((mapped.link(), mapped.key())),
            _ => None,
        })?;
        let found = entered.node.mapped(link, key);
        Ok(found.is_ok_and(|mapped| mapped.is_some()).into())
    })
}
