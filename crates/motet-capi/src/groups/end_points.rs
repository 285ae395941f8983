//! Start points and end points.

use super::abi::RawStartPoint;
use super::{errno, handles};
use crate::messages::abi::{bytes, write_handle};
use crate::messages::node_handles::{in_handler, run_handler};
use crate::messages::{EDEADLK, EINVAL, call};
use crate::user_pointer::UserPointer;
use motet_group::{Circuit, EndPoint, StartPoint};
use std::ffi::c_void;

/// MOTET_ANY_NUMBER.
const ANY_NUMBER: u64 = u64::MAX;

/// The type `motet_end_point_handler`.
pub type Function = unsafe extern "C" fn(from: u32, tag: u32, *const u8, usize, *mut c_void);

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_end_point_open(
    circuit: u64,
    number: u64,
    function: Option<Function>,
    user: *mut c_void,
    start: *mut RawStartPoint,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { write_handle(out, 0) }?;
        let (function, user) = (function.ok_or(EINVAL)?, UserPointer(user));
        let found = handles::find::<Circuit>(circuit)?;
        let number = (number != ANY_NUMBER).then_some(number);
        let run = move |from: usize, tag: u32, body: &[u8]| {
            // SAFETY: `motet_group.h` says what the function may rely on; the body stays for the call.
            run_handler(|| unsafe { function(from as u32, tag, body.as_ptr(), body.len(), user.pointer()) });
        };
        let point = found.object.end_point(number, run).map_err(errno)?;
        let StartPoint { rank, number } = point.start_point();
        let handle = handles::insert(point, found.pin.clone())?;
        // SAFETY: the caller's promise.
        unsafe {
            if !start.is_null() {
                start.write(RawStartPoint { number, rank, reserved: 0 });
            }
            write_handle(out, handle)
        }
        .map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_end_point_close(end_point: u64) -> i32 {
    call(|| {
        if in_handler() && !handles::find::<EndPoint>(end_point)?.object.is_running_here() {
            return Err(EDEADLK);
        }
        let found = handles::remove::<EndPoint>(end_point)?;
        found.object.close();
        Ok(0)
    })
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_circuit_send_to(
    circuit: u64,
    to: *const RawStartPoint,
    tag: u32,
    body: *const u8,
    length: usize,
) -> i32 {
    call(|| {
        if in_handler() {
            return Err(EDEADLK);
        }
        // SAFETY: the caller's promise: it points to a start point, if it is not null.
        let to = unsafe { to.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: the caller's promise.
        let body = unsafe { bytes(body, length) }?;
        let to = StartPoint { rank: to.rank, number: to.number };
        handles::find::<Circuit>(circuit)?.object.send_to(to, tag, body).map(|()| 0).map_err(errno)
    })
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_circuit_dropped(circuit: u64, out: *mut u64) -> i32 {
    call(|| {
        let found = handles::find::<Circuit>(circuit)?;
        // SAFETY: the caller's promise.
        unsafe { write_handle(out, found.object.dropped()) }.map(|()| 0)
    })
}
