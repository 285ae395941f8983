//! Regions: memory of this node's that others reach by key, and theirs by address.

use super::abi;
use super::memory_handles::{self, Holding};
use super::node_handles::{enter, is_handling};
use super::{Deadline, EAGAIN, EBADF, EDEADLK, EINVAL, EOPNOTSUPP, Errno, call, errno, number};
use motet_api::node::{Key, LinkId, Mapped, Rights};
use motet_engine::message::regions::Shared;
use motet_engine::message::{Error, Node};
use motet_sys::private_fds;

/// enum motet_region_rights.
const RIGHTS: u32 = Rights::ALL.0 as u32;

/// struct motet_region_sight.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sight {
    size: usize,
    base: *mut u8,
    length: u64,
    rights: u32,
    reserved: u32,
}

/// struct motet_region_limits.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Limits {
    size: usize,
    put: u64,
    operands: u64,
    fetched: u64,
}

fn rights(asked: u32) -> Result<Rights, Errno> {
    if asked == 0 || asked & !RIGHTS != 0 { Err(EINVAL) } else { Ok(Rights(asked as u8)) }
}

/// Makes a region of the caller's memory in the way that `add` says.
///
/// # Safety
/// See `motet.h`: the memory stays until the region has ended.
unsafe fn register(
    node: u64,
    base: *mut u8,
    length: usize,
    asked: u32,
    out: *mut u64,
    add: impl FnOnce(&Node, Shared, Rights) -> Result<Key, Error>,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { abi::put(out, 0) }?;
        let (entered, rights) = (enter(node)?, rights(asked)?);
        if base.is_null() || length == 0 || length > isize::MAX as usize {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise: the bytes stay until `motet_region_revoke` has returned 0 or the node is closed, after which the
        // engine has no view of them; and they are writable, if `rights` lets anybody write.
        let memory = unsafe { Shared::new(base, length) };
        let key = add(&entered.node, memory, rights).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::put(out, key.0) }.map(|()| 0)
    })
}

/// # Safety
/// See `motet.h`: the memory stays until the region has ended.
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
/// See `motet.h`: the memory stays until the region has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_register_from(
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
/// See `motet.h`.
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
            abi::put(out, 0)?;
            abi::put_pointer(base, std::ptr::null_mut())?;
        }
        let (entered, rights) = (enter(node)?, rights(asked)?);
        if length == 0 || length > isize::MAX as usize {
            return Err(EINVAL);
        }
        let (view, key) = entered.node.alloc_region(length, rights).map_err(errno)?;
        // SAFETY: as above.
        unsafe {
            abi::put_pointer(base, view.base())?;
            abi::put(out, key.0).map(|()| 0)
        }
    })
}

/// # Safety
/// See `motet.h`.
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
        unsafe { abi::put(out, 0) }?;
        let (entered, rights) = (enter(node)?, rights(asked)?);
        if file < 0 || private_fds::is_private(file) {
            return Err(EBADF); // whether another number is that of an open file is the kernel's to say
        }
        let key = entered.node.register_file(private_fds::borrow(file), offset, length, rights).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::put(out, key.0) }.map(|()| 0)
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
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_link_region_limits(node: u64, link: u64, into: *mut Limits) -> i32 {
    call(|| {
        let limits = enter(node)?.node.remote_limits(LinkId(number(link)?)).map_err(errno)?;
        let (put, operands, fetched) = (limits.put as u64, limits.operands as u64, limits.fetched as u64);
        // SAFETY: the caller's promise.
        unsafe { abi::write(into, Limits { size: 0, put, operands, fetched }) }.map(|()| 0)
    })
}

// ---- by address ------------------------------------------------------------------------------------------------------

fn a_view(holding: Holding) -> Result<Mapped, Holding> {
    if let Holding::View(view) = holding { Ok(view) } else { Err(holding) }
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_open(
    node: u64,
    link: u64,
    key: u64,
    deadline: i64,
    sight: *mut Sight,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe {
            abi::put(out, 0)?;
            abi::read(sight)?;
        }
        let (entered, link, key, deadline) = (enter(node)?, LinkId(number(link)?), Key(key), Deadline(deadline));
        let mut mapped = entered.node.mapped(link, key).map_err(errno)?;
        if mapped.is_none() {
            if deadline.is_now() {
                return Err(EAGAIN);
            }
            if is_handling() {
                return Err(EDEADLK);
            }
            entered.node.open_region(link, key, deadline.at()).map_err(|error| deadline.errno(error))?;
            mapped = entered.node.mapped(link, key).map_err(errno)?;
        }
        let mapped = mapped.ok_or(EOPNOTSUPP)?;
        let (view, rights) = (mapped.view(), mapped.rights().0.into());
        let handle = memory_handles::hold(&entered, Holding::View(mapped))?;
        let found = Sight { size: 0, base: view.base(), length: view.length() as u64, rights, reserved: 0 };
        // SAFETY: as above.
        unsafe {
            abi::write(sight, found)?;
            abi::put(out, handle).map(|()| 0)
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_region_close(node: u64, view: u64) -> i32 {
    call(|| memory_handles::take_out(&*enter(node)?, view, a_view).map(|_| 0))
}

/// 1: it is the owner's region as before; 0: it was revoked, or its link is gone.
#[unsafe(no_mangle)]
pub extern "C" fn motet_region_stands(node: u64, view: u64) -> i32 {
    call(|| {
        let entered = enter(node)?;
        let (link, key) = memory_handles::look(&entered, view, |holding| match holding {
            Holding::View(mapped) => Some((mapped.link(), mapped.key())),
            _ => None,
        })?;
        let stands = entered.node.mapped(link, key);
        Ok(stands.is_ok_and(|found| found.is_some()).into())
    })
}
