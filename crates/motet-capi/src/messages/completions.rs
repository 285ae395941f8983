//! Completions: of one operation, of any of several, of a completion queue.

use super::abi::{self, CompletionFields, RawCompletion, RawCqCounters};
use super::memory_handles;
use super::node_entry::NodeEntry;
use super::node_handles::{NodeRef, enter};
use super::{Deadline, EAGAIN, EINVAL, Errno, call, errno, number};
use motet_api::node::{Completion, CompletionRef, CqId, Error, OperationId};

fn operation(handle: u64) -> Result<OperationId, Errno> {
    number(handle).map(OperationId)
}

#[inline(always)]
pub fn cq(handle: u64) -> Result<CqId, Errno> {
    number(handle).map(CqId)
}

/// Writes a completion to a struct of `room` bytes.
///
/// # Safety
/// The requirements of [`abi::CompletionFields::write`].
unsafe fn write_completion(entered: &NodeEntry, mut completion: Completion, into: *mut RawCompletion, room: usize) {
    let fields = memory_handles::completion_fields(entered, &mut completion, abi::has_loan_fields(room));
    // SAFETY: the caller's promise.
    unsafe { fields.write(into, room) };
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_operation_test(node: u64, handle: u64, into: *mut RawCompletion) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let room = unsafe { abi::check(into) }?;
        let entered = enter(node)?;
        let ended = entered.node.test(operation(handle)?).map_err(errno)?;
        let Some(completion) = ended else { return Ok(0) };
        // SAFETY: as above.
        unsafe { write_completion(&entered, completion, into, room) };
        Ok(1)
    })
}

/// Waits for an operation; with deadline 0 makes one round of progress and tests it.
fn wait_for(entered: &NodeRef, operation: OperationId, deadline: Deadline) -> Result<Completion, Errno> {
    if !deadline.is_now() {
        return entered.node.wait_for(operation, deadline.at()).map_err(errno);
    }
    if let Some(completion) = entered.node.test(operation).map_err(errno)? {
        return Ok(completion);
    }
    entered.node.progress().map_err(errno)?;
    entered.node.test(operation).map_err(errno)?.ok_or(EAGAIN)
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_operation_wait(node: u64, handle: u64, deadline: i64, into: *mut RawCompletion) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let room = unsafe { abi::check(into) }?;
        let entered = enter(node)?;
        let completion = wait_for(&entered, operation(handle)?, Deadline(deadline))?;
        // SAFETY: as above.
        unsafe { write_completion(&entered, completion, into, room) };
        Ok(0)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_operation_wait_any(
    node: u64,
    operations: *const u64,
    count: u32,
    deadline: i64,
    into: *mut RawCompletion,
) -> i32 {
    call(|| {
        if operations.is_null() || count == 0 || i32::try_from(count).is_err() {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise, of both.
        let (room, handles) = unsafe { (abi::check(into)?, std::slice::from_raw_parts(operations, count as usize)) };
        // An unknown handle becomes a number that no operation has.
        let numbers: Vec<_> =
            handles.iter().map(|&handle| operation(handle).unwrap_or(OperationId(u32::MAX))).collect();
        let (entered, deadline) = (enter(node)?, Deadline(deadline));
        if deadline.is_now() {
            entered.node.progress().map_err(errno)?;
        }
        let waited = entered.node.wait_any(&numbers, deadline.at());
        let (at, completion) = waited.map_err(|error| deadline.errno(error))?;
        // SAFETY: as above.
        unsafe { write_completion(&entered, completion, into, room) };
        Ok(at as i32)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_operation_cancel(node: u64, handle: u64) -> i32 {
    call(|| enter(node)?.node.cancel(operation(handle)?).map(|()| 0).map_err(errno))
}

// ---- completion queues ------------------------------------------------------------------------------------------------

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_cq_new(node: u64, out: *mut u64) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        unsafe {
            abi::write_handle(out, 0)?;
            abi::write_handle(out, entered.node.add_cq().map_err(errno)?.0.into())?;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_cq_free(node: u64, handle: u64) -> i32 {
    call(|| enter(node)?.node.remove_cq(cq(handle)?).map(|()| 0).map_err(errno))
}

/// The caller's array of completions. Only the first element's `size` is read; it is the distance of the elements.
#[derive(Clone, Copy)]
pub struct CompletionArray {
    pub first: *mut RawCompletion,
    pub distance: usize,
}

impl CompletionArray {
    /// # Safety
    /// The array has more than `at` elements.
    #[inline(always)]
    pub unsafe fn at(self, at: usize) -> *mut RawCompletion {
        // SAFETY: the caller's promise.
        unsafe { self.first.byte_add(at * self.distance) }
    }
}

/// Writes completions up to a total of `max`, one by one, because they own memory that the program must get. `taken` are written
/// already; returns the total.
///
/// # Safety
/// The array has at least `max` elements.
#[cold]
#[inline(never)]
pub unsafe fn deliver_owned(
    entered: &NodeEntry,
    cq: CqId,
    array: CompletionArray,
    mut taken: usize,
    max: usize,
) -> usize {
    while taken < max {
        let Some(completion) = entered.node.test_cq(cq).unwrap_or(None) else { break };
        // SAFETY: the caller's promise.
        unsafe { write_completion(entered, completion, array.at(taken), array.distance) };
        taken += 1;
    }
    taken
}

/// Waits for the first completion, then writes up to `max`.
///
/// # Safety
/// The array has at least `max` elements, and `max` is not 0.
#[inline(never)]
unsafe fn wait_cq(
    entered: &NodeRef,
    cq: CqId,
    array: CompletionArray,
    max: usize,
    deadline: Deadline,
) -> Result<usize, Errno> {
    let first = entered.node.wait_cq(cq, deadline.at()).map_err(errno)?;
    // SAFETY: the caller's promise.
    unsafe {
        write_completion(entered, first, array.at(0), array.distance);
        Ok(deliver_owned(entered, cq, array, 1, max))
    }
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_cq_wait(
    node: u64,
    handle: u64,
    array: *mut RawCompletion,
    max: u32,
    deadline: i64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let array = CompletionArray { first: array, distance: unsafe { abi::distance(array) }? };
        if max == 0 {
            return Err(EINVAL);
        }
        let (entered, cq, deadline) = (enter(node)?, cq(handle)?, Deadline(deadline));
        let max = max.min(i32::MAX as u32) as usize;
        if !deadline.is_now() {
            // SAFETY: the caller's promise: `max` elements, and `max` is not 0.
            return Ok(unsafe { wait_cq(&entered, cq, array, max, deadline) }? as i32);
        }
        let mut taken = 0;
        let taken_now = entered.node.poll_cq(cq, max, |ended: &CompletionRef<'_>| {
            // SAFETY: the caller's promise: at most `max` completions are written.
            unsafe { CompletionFields::of_completed(ended).write(array.at(taken), array.distance) };
            taken += 1;
        });
        if taken_now.map_err(errno)?.1 && taken < max {
            // SAFETY: as above.
            taken = unsafe { deliver_owned(&entered, cq, array, taken, max) };
        }
        if taken == 0 { Err(EAGAIN) } else { Ok(taken as i32) }
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_cq_counts(node: u64, handle: u64, into: *mut RawCqCounters) -> i32 {
    call(|| {
        let [succeeded, failed, outstanding] = enter(node)?.node.cq_counts(cq(handle)?).map_err(errno)?;
        // SAFETY: the caller's promise.
        unsafe { abi::write(into, RawCqCounters { size: 0, succeeded, failed, outstanding }) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_cq_wait_counts(node: u64, handle: u64, done: u64, failed: u64, deadline: i64) -> i32 {
    call(|| {
        let (entered, cq, deadline) = (enter(node)?, cq(handle)?, Deadline(deadline));
        if deadline.is_now() {
            entered.node.progress().map_err(errno)?;
            let counts = entered.node.cq_counts(cq).map_err(errno)?;
            return if counts[0] >= done || counts[1] > failed { Ok(0) } else { Err(EAGAIN) };
        }
        entered.node.wait_counts(cq, done, failed, deadline.at()).map(|()| 0).map_err(errno)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_cq_signal(node: u64, handle: u64) -> i32 {
    call(|| {
        let signalled: Result<(), Error> = enter(node)?.node.signal_cq(cq(handle)?);
        signalled.map(|()| 0).map_err(errno)
    })
}
