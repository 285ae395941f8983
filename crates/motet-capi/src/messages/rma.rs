//! Gets, puts, atomics and fences: started, or waited for.
//!
//! Where a region is open the engine does them within the call, and there is no operation, unless a group wants its end.

use super::abi::{self, NoticeShape};
use super::node_handles::{Entered, enter, is_handling};
use super::{Deadline, EAGAIN, EDEADLK, EINVAL, ETIMEDOUT, Errno, call, errno, number};
use motet_api::node::{
    Atomic, Datatype, Error, Key, LinkId, Memory, Notice, Operation, OperationId, Span, Status, Target,
};

/// struct motet_remote.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Remote {
    size: usize,
    link: u64,
    key: u64,
    offset: u64,
}

/// struct motet_atomic.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AtomicShape {
    size: usize,
    operation: u32,
    datatype: u32,
    count: u32,
    reserved: u32,
    operand: *const u8,
    compare: *const u8,
    before: *mut u8,
}

/// Where in whose memory, by the caller's struct.
///
/// # Safety
/// As of [`abi::read`].
#[inline(always)]
unsafe fn target(from: *const Remote) -> Result<Target, Errno> {
    // SAFETY: the caller's promise.
    let Remote { link, key, offset, .. } = unsafe { abi::read(from) }?;
    Ok(Target { link: LinkId(number(link)?), key: Key(key), offset })
}

/// An operation for which a call waits: it has none of the caller's memory when this is dropped.
struct Begun<'a> {
    entered: &'a Entered,
    operation: OperationId,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let _ = self.entered.node.detach(self.operation);
    }
}

/// Waits for an operation. `kept`: its bytes are the peer's to fetch until it has ended, so nobody leaves before.
fn wait(
    entered: &Entered,
    link: LinkId,
    operation: OperationId,
    deadline: Deadline,
    kept: impl FnOnce() -> bool,
) -> Result<i32, Errno> {
    let begun = Begun { entered, operation };
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
        Status::Broken => {
            let gone = node.link_info(link).ok().and_then(|info| info.gone);
            Err(Error::of_status(status, gone).map_or(ETIMEDOUT, errno))
        }
        status => Ok(abi::status(status)),
    }
}

/// Before a call begins what it has to wait for.
fn may_wait(entered: &Entered, link: LinkId, deadline: Deadline) -> Result<(), Errno> {
    if is_handling() {
        return Err(EDEADLK);
    }
    if deadline.is_now() {
        entered.node.remote_limits(link).map_err(errno)?;
        return Err(EAGAIN);
    }
    Ok(())
}

/// Bytes to be put, for the call and for an operation.
///
/// # Safety
/// `length` bytes from `from` are readable: for the call, and, if an operation begins with them, until that has ended.
unsafe fn source<'a>(from: *const u8, length: usize) -> Result<(&'a [u8], Memory), Errno> {
    // SAFETY: the caller's promise; a put only reads.
    unsafe { Ok((abi::bytes(from, length)?, Memory::Span(abi::span(from.cast_mut(), length)?))) }
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_put(
    node: u64,
    to: *const Remote,
    from: *const u8,
    length: usize,
    deadline: i64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise; the memory is not used after this call (`wait`).
        let ((bytes, memory), to) = unsafe { (source(from, length)?, target(to)?) };
        let Target { link, key, offset } = to;
        let entered = enter(node)?;
        if entered.node.store(link, key, offset, bytes).map_err(errno)? {
            return Ok(0);
        }
        let deadline = Deadline(deadline);
        may_wait(&entered, link, deadline)?;
        let begun = entered.node.put_by(to, memory, Notice::default(), deadline.at());
        let begun = begun.map_err(|error| deadline.errno(error))?;
        let kept = || entered.node.remote_limits(link).is_ok_and(|limits| length > limits.put);
        wait(&entered, link, begun, deadline, kept)
    })
}

/// # Safety
/// See `motet.h`: the bytes stay until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_put_start(
    node: u64,
    to: *const Remote,
    from: *const u8,
    length: usize,
    notice: *const NoticeShape,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (notice, (bytes, memory), Target { link, key, offset }) = unsafe {
            abi::put(out, 0)?;
            (abi::notice(notice)?, source(from, length)?, target(to)?)
        };
        let entered = enter(node)?;
        if notice.group.is_none() && entered.node.store(link, key, offset, bytes).map_err(errno)? {
            return Ok(0);
        }
        let begun = entered.node.put(link, key, offset, memory, notice).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::put(out, begun.0.into()) }.map(|()| 0)
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_get(
    node: u64,
    at: *const Remote,
    into: *mut u8,
    length: usize,
    deadline: i64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise; the memory is not used after this call (`wait`).
        let (span, at) = unsafe { (abi::span(into, length)?, target(at)?) };
        let Target { link, key, offset } = at;
        let entered = enter(node)?;
        if span.write(0, length, |bytes| entered.node.load(link, key, offset, bytes)).map_err(errno)? {
            return Ok(0);
        }
        let deadline = Deadline(deadline);
        may_wait(&entered, link, deadline)?;
        let begun = entered.node.get_by(at, Memory::Span(span), Notice::default(), deadline.at());
        wait(&entered, link, begun.map_err(|error| deadline.errno(error))?, deadline, || false)
    })
}

/// # Safety
/// See `motet.h`: the buffer stays until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_get_start(
    node: u64,
    at: *const Remote,
    into: *mut u8,
    length: usize,
    notice: *const NoticeShape,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (notice, span, Target { link, key, offset }) = unsafe {
            abi::put(out, 0)?;
            (abi::notice(notice)?, abi::span(into, length)?, target(at)?)
        };
        let entered = enter(node)?;
        let load = |bytes: &mut [u8]| entered.node.load(link, key, offset, bytes);
        if notice.group.is_none() && span.write(0, length, load).map_err(errno)? {
            return Ok(0);
        }
        let begun = entered.node.get(link, key, offset, Memory::Span(span), notice).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::put(out, begun.0.into()) }.map(|()| 0)
    })
}

// ---- atomics ---------------------------------------------------------------------------------------------------------

/// An atomic, and where the values before go.
///
/// # Safety
/// As of [`abi::read`]; operand and compare are readable during `'a`, `before` is writable until the operation has ended.
unsafe fn atomic<'a>(at: *const Remote, from: *const AtomicShape) -> Result<(Target, Atomic<'a>, Span), Errno> {
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
    let before = match asked.before.is_null() {
        true => Span::EMPTY,
        // SAFETY: the caller's promise.
        false => unsafe { abi::span(asked.before, length) }?,
    };
    let atomic = Atomic { operation: *operation, datatype: *datatype, count: asked.count, operand, compare };
    atomic.check(to.offset, !before.is_empty()).map_err(|_| EINVAL)?;
    Ok((to, atomic, before))
}

/// Does it at once, where the region is open.
fn change(entered: &Entered, to: Target, atomic: &Atomic<'_>, before: Span) -> Result<bool, Errno> {
    let Target { link, key, offset } = to;
    let change = |before: &mut [u8]| entered.node.change(link, key, offset, atomic, before);
    before.write(0, before.len(), change).map_err(errno)
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_atomic(
    node: u64,
    at: *const Remote,
    asked: *const AtomicShape,
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
        let (before, notice) = (Memory::Span(before), Notice::default());
        let begun = entered.node.atomic_by(to, &atomic, before, notice, deadline.at());
        wait(&entered, to.link, begun.map_err(|error| deadline.errno(error))?, deadline, || false)
    })
}

/// # Safety
/// See `motet.h`: the place for values before stays until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_atomic_start(
    node: u64,
    at: *const Remote,
    asked: *const AtomicShape,
    notice: *const NoticeShape,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let ((to, atomic, before), notice) = unsafe {
            abi::put(out, 0)?;
            (atomic(at, asked)?, abi::notice(notice)?)
        };
        if notice.group.is_none() && change(&entered, to, &atomic, before)? {
            return Ok(0);
        }
        let Target { link, key, offset } = to;
        let begun = entered.node.atomic(link, key, offset, &atomic, Memory::Span(before), notice);
        // SAFETY: as above.
        unsafe { abi::put(out, begun.map_err(errno)?.0.into()) }.map(|()| 0)
    })
}

// ---- fences ----------------------------------------------------------------------------------------------------------

#[unsafe(no_mangle)]
pub extern "C" fn motet_region_fence(node: u64, link: u64, deadline: i64) -> i32 {
    call(|| {
        let (entered, link) = (enter(node)?, LinkId(number(link)?));
        let begun = entered.node.fence(link, Notice::default()).map_err(errno)?;
        wait(&entered, link, begun, Deadline(deadline), || false)
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_region_fence_start(
    node: u64,
    link: u64,
    notice: *const NoticeShape,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let notice = unsafe {
            abi::put(out, 0)?;
            abi::notice(notice)?
        };
        let begun = enter(node)?.node.fence(LinkId(number(link)?), notice).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::put(out, begun.0.into()) }.map(|()| 0)
    })
}
