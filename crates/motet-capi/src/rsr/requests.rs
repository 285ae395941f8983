//! Requests and calls.

use super::data::{RawReader, with_data};
use super::handles::{self, Attached};
use super::startpoints::startpoint;
use super::{errno_at, limit, may_wait};
use crate::messages::nodes::text;
use crate::messages::{Deadline, EINVAL, Errno, call};
use motet_rsr::Handler;
use std::ffi::c_char;
use std::ptr;

/// The handler that a caller names.
///
/// # Safety
/// `name` is null or ends with a zero, and stays during `'a`.
unsafe fn handler<'a>(name: *const c_char, number: u32) -> Result<Handler<'a>, Errno> {
    // SAFETY: the caller's promise.
    Ok(if name.is_null() { Handler::Number(number) } else { Handler::Name(unsafe { text(name) }?) })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_request(
    rsr: u64,
    start: u64,
    name: *const c_char,
    number: u32,
    buffer: u64,
    deadline: i64,
) -> i32 {
    call(|| {
        may_wait()?;
        let (found, start, deadline) = (handles::find::<Attached>(rsr)?, startpoint(start)?, Deadline(deadline));
        // SAFETY: the caller's promise.
        let handler = unsafe { handler(name, number) }?;
        with_data(buffer, |buffer| {
            let sent = found.rsr.request(&start, handler, buffer, limit(deadline));
            sent.map_err(|error| errno_at(deadline, error))
        })
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_call(
    rsr: u64,
    start: u64,
    name: *const c_char,
    number: u32,
    buffer: u64,
    deadline: i64,
    out: *mut *mut RawReader,
) -> i32 {
    call(|| {
        may_wait()?;
        // SAFETY: the caller's promise.
        let out = unsafe { out.as_mut() }.ok_or(EINVAL)?;
        *out = ptr::null_mut();
        let (found, start, deadline) = (handles::find::<Attached>(rsr)?, startpoint(start)?, Deadline(deadline));
        // SAFETY: the caller's promise.
        let handler = unsafe { handler(name, number) }?;
        with_data(buffer, |buffer| {
            let reply = found.rsr.call(&start, handler, buffer, limit(deadline));
            *out = Box::into_raw(Box::new(RawReader::of_reply(reply.map_err(|error| errno_at(deadline, error))?)));
            Ok(())
        })
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_reader_free(reply: *mut RawReader) {
    if !reply.is_null() {
        // SAFETY: the caller's promise: `motet_rsr_call` has made it.
        drop(unsafe { Box::from_raw(reply) });
    }
}
