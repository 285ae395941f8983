//! Startpoints: copies, bytes and text, and the driver that requests take.

use super::handles::{self, Attached, OpenEndpoint, OpenStartpoint};
use super::{EBADMSG, errno, errno_at, limit, may_wait};
use crate::messages::abi::{bytes, write, write_handle};
use crate::messages::nodes::text;
use crate::messages::{Deadline, EINVAL, Errno, call};
use crate::{EPROTO, guard};
use motet_rsr::Startpoint;
use std::ffi::c_char;
use std::sync::{Mutex, PoisonError};

/// struct motet_rsr_way.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawWay {
    size: usize,
    driver: [u8; 16],
    rejected: [u8; 16],
    errno: i32,
    chosen: u32,
    by_peer: u32,
    endpoints: u32,
}

/// A copy of the startpoint of a handle.
pub fn startpoint(handle: u64) -> Result<Startpoint, Errno> {
    Ok(handles::find::<OpenStartpoint>(handle)?.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// Gives a startpoint to the caller.
///
/// # Safety
/// `out` is null or may be written.
pub unsafe fn give(startpoint: Startpoint, out: *mut u64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        write_handle(out, 0)?;
        write_handle(out, handles::insert(Mutex::new(startpoint))?)
    }
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_startpoint_open(endpoint: u64, out: *mut u64) -> i32 {
    call(|| {
        let start = handles::find::<OpenEndpoint>(endpoint)?.endpoint.startpoint().map_err(errno)?;
        // SAFETY: the caller's promise.
        unsafe { give(start, out) }.map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_startpoint_copy(from: u64, out: *mut u64) -> i32 {
    call(|| {
        let copy = startpoint(from)?;
        // SAFETY: the caller's promise.
        unsafe { give(copy, out) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_rsr_startpoint_close(handle: u64) -> i32 {
    call(|| handles::remove_if::<OpenStartpoint>(handle, |_| Ok(())).map(|_| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_rsr_startpoint_bind(to: u64, other: u64) -> i32 {
    call(|| {
        let (found, other) = (handles::find::<OpenStartpoint>(to)?, startpoint(other)?);
        found.lock().unwrap_or_else(PoisonError::into_inner).bind(&other).map_err(|_| EINVAL)?;
        Ok(0)
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_choose(handle: u64, driver: *const c_char) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let driver = if driver.is_null() { None } else { Some(unsafe { text(driver) }?) };
        let found = handles::find::<OpenStartpoint>(handle)?;
        found.lock().unwrap_or_else(PoisonError::into_inner).choose(driver).map_err(|_| EINVAL)?;
        Ok(0)
    })
}

/// Copies bytes to the caller's memory with `after` behind them, if there is room, and returns their number.
unsafe fn copy_out(from: &[u8], after: &[u8], into: *mut u8, size: usize) -> isize {
    if from.len() + after.len() <= size && !into.is_null() {
        // SAFETY: the caller's promise: `size` bytes may be written.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), into, from.len());
            std::ptr::copy_nonoverlapping(after.as_ptr(), into.add(from.len()), after.len());
        }
    }
    from.len() as isize
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_startpoint_bytes(handle: u64, into: *mut u8, size: usize) -> isize {
    guard(EPROTO, || match startpoint(handle) {
        // SAFETY: the caller's promise.
        Ok(start) => unsafe { copy_out(&start.to_bytes(), &[], into, size) },
        Err(errno) => -(errno as isize),
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_startpoint_text(handle: u64, into: *mut u8, size: usize) -> isize {
    guard(EPROTO, || match startpoint(handle) {
        // SAFETY: the caller's promise.
        Ok(start) => unsafe { copy_out(start.to_text().as_bytes(), &[0], into, size) },
        Err(errno) => -(errno as isize),
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_startpoint_from_bytes(from: *const u8, length: usize, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let start = Startpoint::from_bytes(unsafe { bytes(from, length) }?).map_err(|_| EBADMSG)?;
        // SAFETY: the caller's promise.
        unsafe { give(start, out) }.map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_startpoint_from_text(from: *const c_char, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let start = unsafe { text(from) }?.parse().map_err(|_| EBADMSG)?;
        // SAFETY: the caller's promise.
        unsafe { give(start, out) }.map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_way_of(rsr: u64, start: u64, which: u32, deadline: i64, out: *mut RawWay) -> i32 {
    call(|| {
        may_wait()?;
        let (found, start, deadline) = (handles::find::<Attached>(rsr)?, startpoint(start)?, Deadline(deadline));
        let endpoints = start.endpoints() as u32;
        let one = start.split().into_iter().nth(which as usize).ok_or(EINVAL)?;
        let way = found.rsr.ways(&one, limit(deadline)).pop().ok_or(EINVAL)?;
        let way = way.map_err(|error| errno_at(deadline, error))?;
        let name = |name: &str| {
            let mut bytes = [0; 16];
            let length = name.len().min(15);
            bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
            bytes
        };
        let (rejected, errno) = way.rejected.last().map_or(("", 0), |(name, error)| (&**name, -error.errno()));
        let (driver, rejected, size) = (name(way.driver), name(rejected), size_of::<RawWay>());
        let (chosen, by_peer) = (way.chosen.into(), way.by_peer.into());
        // SAFETY: the caller's promise.
        unsafe { write(out, RawWay { size, driver, rejected, errno, chosen, by_peer, endpoints }) }.map(|()| 0)
    })
}
