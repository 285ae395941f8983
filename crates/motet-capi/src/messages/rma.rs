//! Gets, puts, atomics and fences: started, or waited for.
//!
//! Where a region is open the engine does them within the call. Then there is no operation, unless a completion queue gets its completion.

use super::abi::{self, RawCompletionOptions};
use super::node_handles::{NodeRef, enter, in_handler};
use super::{Deadline, EAGAIN, EDEADLK, EINVAL, ETIMEDOUT, Errno, call, errno, number};
use motet_api::node::{
    Atomic, CompletionOptions, Datatype, Error, Key, LinkId, Operation, OperationId, OperationMemory, Status, Target,
    UserMemory,
};

/// struct motet_remote_address.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawRemoteAddress {
    size: usize,
    link: u64,
    key: u64,
    offset: u64,
}

/// struct motet_atomic.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawAtomic {
    size: usize,
    operation: u32,
    datatype: u32,
    count: u32,
    reserved: u32,
    operand: *const u8,
    compare: *const u8,
    result: *mut u8,
}

/// The remote address of the caller's struct.
///
/// # Safety
/// The requirements of [`abi::read`].
#[inline(always)]
unsafe fn target(from: *const RawRemoteAddress) -> Result<Target, Errno> {
    // SAFETY: the caller's promise.
    let RawRemoteAddress { link, key, offset, .. } = unsafe { abi::read(from) }?;
    Ok(Target { link: LinkId(number(link)?), key: Key(key), offset })
}

/// An operation for which a call waits. Dropping it takes the caller's memory away from the operation.
struct PendingOperation<'a> {
    entered: &'a NodeRef,
    operation: OperationId,
}

impl Drop for PendingOperation<'_> {
    fn drop(&mut self) {
        let _ = self.entered.node.detach(self.operation);
    }
}

/// Waits for an operation. `kept`: the peer may read the operation's memory until it completes, so the wait goes on after the deadline.
fn wait(
    entered: &NodeRef,
    link: LinkId,
    operation: OperationId,
    deadline: Deadline,
    kept: impl FnOnce() -> bool,
) -> Result<i32, Errno> {
    let begun = PendingOperation { entered, operation };
    let node = &entered.node;
    let mut ended = node.wait_for(operation, deadline.at());
    if matches!(ended, Err(Error::TimedOut)) && kept() {
        ended = node.wait_for(operation, None);
    }
    let status = match ended {
        Ok(completion) => completion.status,
        Err(Error::WouldBlock) => return Err(EDEADLK), // in a handler
        Err(error) => return Err(deadline.errno(error)),
    };
    std::mem::forget(begun);
    match status {
        Status::LinkDown => {
            let gone = node.link_info(link).ok().and_then(|info| info.gone);
            Err(Error::of_status(status, gone).map_or(ETIMEDOUT, errno))
        }
        status => Ok(abi::status(status)),
    }
}

/// Checks that a call may wait: not in a handler, and not with deadline 0.
fn may_wait(entered: &NodeRef, link: LinkId, deadline: Deadline) -> Result<(), Errno> {
    if in_handler() {
        return Err(EDEADLK);
    }
    if deadline.is_now() {
        entered.node.remote_limits(link).map_err(errno)?;
        return Err(EAGAIN);
    }
    Ok(())
}

/// The bytes of a put, as a slice for the call and as memory of an operation.
///
/// # Safety
/// `length` bytes from `from` are readable during the call, and until the operation completes if one is started with them.
unsafe fn source<'a>(from: *const u8, length: usize) -> Result<(&'a [u8], OperationMemory), Errno> {
    // SAFETY: the caller's promise; a put only reads.
    unsafe { Ok((abi::bytes(from, length)?, OperationMemory::User(abi::span(from.cast_mut(), length)?))) }
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_put(
    node: u64,
    to: *const RawRemoteAddress,
    from: *const u8,
    length: usize,
    deadline: i64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise; the memory is not used after this call (`wait`).
        let ((bytes, memory), to) = unsafe { (source(from, length)?, target(to)?) };
        let entered = enter(node)?;
        if entered.node.store(to, bytes).map_err(errno)? {
            return Ok(0);
        }
        let deadline = Deadline(deadline);
        may_wait(&entered, to.link, deadline)?;
        let begun = entered.node.put_until(to, memory, CompletionOptions::default(), deadline.at());
        let begun = begun.map_err(|error| deadline.errno(error))?;
        let kept = || entered.node.remote_limits(to.link).is_ok_and(|limits| length > limits.put);
        wait(&entered, to.link, begun, deadline, kept)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires: the bytes stay until the operation completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_put_start(
    node: u64,
    to: *const RawRemoteAddress,
    from: *const u8,
    length: usize,
    options: *const RawCompletionOptions,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (options, (bytes, memory), to) = unsafe {
            abi::write_handle(out, 0)?;
            (abi::completion_options(options)?, source(from, length)?, target(to)?)
        };
        let entered = enter(node)?;
        if options.cq.is_none() && entered.node.store(to, bytes).map_err(errno)? {
            return Ok(0);
        }
        let begun = entered.node.put(to, memory, options).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, begun.0.into()) }.map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_get(
    node: u64,
    at: *const RawRemoteAddress,
    into: *mut u8,
    length: usize,
    deadline: i64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise; the memory is not used after this call (`wait`).
        let (span, at) = unsafe { (abi::span(into, length)?, target(at)?) };
        let entered = enter(node)?;
        if span.write(0, length, |bytes| entered.node.load(at, bytes)).map_err(errno)? {
            return Ok(0);
        }
        let deadline = Deadline(deadline);
        may_wait(&entered, at.link, deadline)?;
        let begun =
            entered.node.get_until(at, OperationMemory::User(span), CompletionOptions::default(), deadline.at());
        wait(&entered, at.link, begun.map_err(|error| deadline.errno(error))?, deadline, || false)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires: the buffer stays valid until the operation completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_get_start(
    node: u64,
    at: *const RawRemoteAddress,
    into: *mut u8,
    length: usize,
    options: *const RawCompletionOptions,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (options, span, at) = unsafe {
            abi::write_handle(out, 0)?;
            (abi::completion_options(options)?, abi::span(into, length)?, target(at)?)
        };
        let entered = enter(node)?;
        let load = |bytes: &mut [u8]| entered.node.load(at, bytes);
        if options.cq.is_none() && span.write(0, length, load).map_err(errno)? {
            return Ok(0);
        }
        let begun = entered.node.get(at, OperationMemory::User(span), options).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, begun.0.into()) }.map(|()| 0)
    })
}

// ---- atomics ---------------------------------------------------------------------------------------------------------

/// The atomic of the caller's struct, and the memory for its results.
///
/// # Safety
/// The requirements of [`abi::read`]; operand and compare are readable during `'a`, `before` is writable until the operation completes.
unsafe fn atomic<'a>(
    at: *const RawRemoteAddress,
    from: *const RawAtomic,
) -> Result<(Target, Atomic<'a>, UserMemory), Errno> {
    // SAFETY: the caller's promise.
    let (to, asked) = unsafe { (target(at)?, abi::read(from)?) };
    let operation = Operation::ALL.get(asked.operation as usize).ok_or(EINVAL)?;
    let datatype = Datatype::ALL.get(asked.datatype as usize).ok_or(EINVAL)?;
    if asked.count == 0 || asked.reserved != 0 {
        return Err(EINVAL);
    }
    let length = asked.count as usize * datatype.size();
    let [operand, compare] = [(asked.operand, *operation != Operation::Read), (asked.compare, operation.compares())];
    let used = |(bytes, used): (*const u8, bool)| {
        // SAFETY: the caller's promise, of what the operation uses.
        if used { unsafe { abi::bytes(bytes, length) } } else { Ok(&[][..]) }
    };
    let (operand, compare) = (used(operand)?, used(compare)?);
    let before = match asked.result.is_null() {
        true => UserMemory::EMPTY,
        // SAFETY: the caller's promise.
        false => unsafe { abi::span(asked.result, length) }?,
    };
    let atomic = Atomic { operation: *operation, datatype: *datatype, count: asked.count, operand, compare };
    atomic.check(to.offset, !before.is_empty()).map_err(|_| EINVAL)?;
    Ok((to, atomic, before))
}

/// Does the atomic at once if the region is open.
fn change(entered: &NodeRef, to: Target, atomic: &Atomic<'_>, before: UserMemory) -> Result<bool, Errno> {
    let change = |before: &mut [u8]| entered.node.change(to, atomic, before);
    before.write(0, before.len(), change).map_err(errno)
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_atomic(
    node: u64,
    at: *const RawRemoteAddress,
    asked: *const RawAtomic,
    deadline: i64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise; the memory is not used after this call (`wait`).
        let (to, atomic, before) = unsafe { atomic(at, asked) }?;
        if change(&entered, to, &atomic, before)? {
            return Ok(0);
        }
        let deadline = Deadline(deadline);
        may_wait(&entered, to.link, deadline)?;
        let (before, options) = (OperationMemory::User(before), CompletionOptions::default());
        let begun = entered.node.atomic_until(to, &atomic, before, options, deadline.at());
        wait(&entered, to.link, begun.map_err(|error| deadline.errno(error))?, deadline, || false)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires: `result` stays valid until the operation completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_atomic_start(
    node: u64,
    at: *const RawRemoteAddress,
    asked: *const RawAtomic,
    options: *const RawCompletionOptions,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let ((to, atomic, before), options) = unsafe {
            abi::write_handle(out, 0)?;
            (atomic(at, asked)?, abi::completion_options(options)?)
        };
        if options.cq.is_none() && change(&entered, to, &atomic, before)? {
            return Ok(0);
        }
        let begun = entered.node.atomic(to, &atomic, OperationMemory::User(before), options);
        // SAFETY: as above.
        unsafe { abi::write_handle(out, begun.map_err(errno)?.0.into()) }.map(|()| 0)
    })
}

// ---- fences ----------------------------------------------------------------------------------------------------------

#[unsafe(no_mangle)]
pub extern "C" fn motet_region_fence(node: u64, link: u64, deadline: i64) -> i32 {
    call(|| {
        let (entered, link) = (enter(node)?, LinkId(number(link)?));
        let begun = entered.node.fence(link, CompletionOptions::default()).map_err(errno)?;
        wait(&entered, link, begun, Deadline(deadline), || false)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_fence_start(
    node: u64,
    link: u64,
    options: *const RawCompletionOptions,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let options = unsafe {
            abi::write_handle(out, 0)?;
            abi::completion_options(options)?
        };
        let begun = enter(node)?.node.fence(LinkId(number(link)?), options).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, begun.0.into()) }.map(|()| 0)
    })
}
