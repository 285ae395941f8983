//! Sends: waiting, injected, started.

use super::abi::{self, RawCompletionOptions, RawOutgoing};
use super::node_handles::{NodeRef, enter, in_handler};
use super::{Deadline, EDEADLK, EINVAL, Errno, call, channel, errno};
use crate::abi::IoVec;
use motet_api::node::{Error, Mode, OperationMemory, Outgoing, UserMemory, blocking};

/// Most vectors of one body (IOV_MAX).
const MAX_IOVECS: usize = 1024;
/// Most vectors that are gathered without an allocation.
const MAX_STACK_IOVECS: usize = 16;

/// The caller's vectors of a body.
///
/// # Safety
/// `iov` points to `count` vectors.
unsafe fn vectors<'a>(iov: *const IoVec, count: i32) -> Result<&'a [IoVec], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if count <= MAX_IOVECS && !iov.is_null() => {
            // SAFETY: the caller's promise.
            Ok(unsafe { std::slice::from_raw_parts(iov, count) })
        }
        _ => Err(EINVAL),
    }
}

/// Runs `f` with the parts of a body.
///
/// # Safety
/// `iov` points to `count` vectors, whose memory is readable for the call.
#[inline(always)]
unsafe fn gathered<R>(iov: *const IoVec, count: i32, f: impl FnOnce(&[&[u8]]) -> R) -> Result<R, Errno> {
    // SAFETY: the caller's promise, here and below.
    let vectors = unsafe { vectors(iov, count) }?;
    if let [vector] = vectors {
        // SAFETY: as above.
        return Ok(f(&[unsafe { abi::bytes(vector.base, vector.length) }?]));
    }
    let mut few: [&[u8]; MAX_STACK_IOVECS] = [&[]; MAX_STACK_IOVECS];
    if let Some(parts) = few.get_mut(..vectors.len()) {
        for (part, vector) in parts.iter_mut().zip(vectors) {
            // SAFETY: as above.
            *part = unsafe { abi::bytes(vector.base, vector.length) }?;
        }
        return Ok(f(parts));
    }
    // SAFETY: as above.
    let parts = vectors.iter().map(|vector| unsafe { abi::bytes(vector.base, vector.length) });
    Ok(f(&parts.collect::<Result<Vec<_>, _>>()?))
}

/// Sends, and waits until the deadline.
#[inline(always)]
fn send(entered: &NodeRef, message: &Outgoing<'_>, body: &[&[u8]], deadline: Deadline) -> Result<i32, Errno> {
    let node = &entered.node;
    if message.mode != Mode::Synchronous {
        let sent = match deadline.is_now() {
            true => node.try_inject(message, body),
            false => node.inject(message, body, deadline.at()),
        };
        match sent {
            Err(Error::TooLong) if message.mode == Mode::Automatic => {}
            sent => return sent.map(|()| 0).map_err(|error| deadline.errno(error)),
        }
    }
    if in_handler() {
        return Err(EDEADLK);
    }
    blocking::send_until(node, message, body, deadline.at()).map(|()| 0).map_err(|error| deadline.errno(error))
}

/// A message without headers.
///
/// # Safety
/// The body is readable.
#[inline(always)]
unsafe fn send_without_headers(
    node: u64,
    (to, tag, mode): (u64, u64, Mode),
    (body, length): (*const u8, usize),
    deadline: i64,
) -> Result<i32, Errno> {
    // SAFETY: the caller's promise.
    let body = unsafe { abi::bytes(body, length) }?;
    let message = Outgoing { channel: channel(to), tag, headers: &[], mode };
    send(&enter(node)?, &message, &[body], Deadline(deadline))
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_send(
    node: u64,
    to: u64,
    tag: u64,
    body: *const u8,
    length: usize,
    deadline: i64,
) -> i32 {
    // SAFETY: the caller's promise.
    call(|| unsafe { send_without_headers(node, (to, tag, Mode::Automatic), (body, length), deadline) })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_inject(
    node: u64,
    to: u64,
    tag: u64,
    body: *const u8,
    length: usize,
    deadline: i64,
) -> i32 {
    // SAFETY: the caller's promise.
    call(|| unsafe { send_without_headers(node, (to, tag, Mode::Inject), (body, length), deadline) })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_sendv(
    node: u64,
    message: *const RawOutgoing,
    body: *const IoVec,
    count: i32,
    deadline: i64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        unsafe {
            let message = abi::outgoing(message)?;
            gathered(body, count, |body| send(&entered, &message, body, Deadline(deadline)))?
        }
    })
}

/// A vector as memory of an operation.
fn operation_memory(vector: &IoVec) -> Result<OperationMemory, Errno> {
    let possible = vector.length <= isize::MAX as usize && (vector.length == 0 || !vector.base.is_null());
    if !possible {
        return Err(EINVAL);
    }
    // SAFETY: `motet.h` requires the caller to keep the bytes unchanged until the operation completes.
    Ok(OperationMemory::User(unsafe { UserMemory::new(vector.base, vector.length) }))
}

/// # Safety
/// The caller keeps what `motet.h` requires: the body stays valid until the operation completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_send_start(
    node: u64,
    message: *const RawOutgoing,
    body: *const IoVec,
    count: i32,
    options: *const RawCompletionOptions,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let (message, options) = unsafe {
            abi::write_handle(out, 0)?;
            (abi::outgoing(message)?, abi::completion_options(options)?)
        };
        if message.mode == Mode::Inject {
            // SAFETY: the caller's promise.
            let sent = unsafe { gathered(body, count, |body| entered.node.try_inject(&message, body)) }?;
            return sent.map(|()| 0).map_err(errno);
        }
        // SAFETY: the caller's promise.
        let vectors = unsafe { vectors(body, count) }?;
        let first = vectors.first().map_or(Ok(OperationMemory::Owned(Vec::new())), operation_memory)?;
        let more = vectors.iter().skip(1).map(operation_memory).collect::<Result<Vec<_>, _>>()?;
        let begun = entered.node.start_send(&message, first, more, options).map_err(|(error, ..)| errno(error))?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, begun.map_or(0, |operation| operation.0.into())) }.map(|()| 0)
    })
}
