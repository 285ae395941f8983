//! Ends of operations: one, any of several, those of a group.

use super::abi::{self, CompletionShape, End, GroupCounts};
use super::memory_handles;
use super::node_handles::{Entered, Record, enter};
use super::{Deadline, EAGAIN, EINVAL, Errno, call, errno, number};
use motet_api::node::{Completion, Ended, Error, GroupId, OperationId};

fn operation(handle: u64) -> Result<OperationId, Errno> {
    number(handle).map(OperationId)
}

#[inline(always)]
pub fn group(handle: u64) -> Result<GroupId, Errno> {
    number(handle).map(GroupId)
}

/// Tells an end, where there is so much room for it.
///
/// # Safety
/// As of [`abi::End::write`].
unsafe fn tell(entered: &Record, mut completion: Completion, end: *mut CompletionShape, room: usize) {
    let told = memory_handles::end_of(entered, &mut completion, abi::tells_in_place(room));
    // SAFETY: the caller's promise.
    unsafe { told.write(end, room) };
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_operation_test(node: u64, handle: u64, end: *mut CompletionShape) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let room = unsafe { abi::check(end) }?;
        let entered = enter(node)?;
        let ended = entered.node.test(operation(handle)?).map_err(errno)?;
        let Some(completion) = ended else { return Ok(0) };
        // SAFETY: as above.
        unsafe { tell(&entered, completion, end, room) };
        Ok(1)
    })
}

/// Waits, or with a deadline of 0 makes one round of progress and looks.
fn wait_for(entered: &Entered, operation: OperationId, deadline: Deadline) -> Result<Completion, Errno> {
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
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_operation_wait(node: u64, handle: u64, deadline: i64, end: *mut CompletionShape) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let room = unsafe { abi::check(end) }?;
        let entered = enter(node)?;
        let completion = wait_for(&entered, operation(handle)?, Deadline(deadline))?;
        // SAFETY: as above.
        unsafe { tell(&entered, completion, end, room) };
        Ok(0)
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_operation_wait_any(
    node: u64,
    operations: *const u64,
    count: u32,
    deadline: i64,
    end: *mut CompletionShape,
) -> i32 {
    call(|| {
        if operations.is_null() || count == 0 || i32::try_from(count).is_err() {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise, of both.
        let (room, handles) = unsafe { (abi::check(end)?, std::slice::from_raw_parts(operations, count as usize)) };
        // No number of the engine's: an operation that is not known has ended.
        let numbers: Vec<_> =
            handles.iter().map(|&handle| operation(handle).unwrap_or(OperationId(u32::MAX))).collect();
        let (entered, deadline) = (enter(node)?, Deadline(deadline));
        if deadline.is_now() {
            entered.node.progress().map_err(errno)?;
        }
        let waited = entered.node.wait_any(&numbers, deadline.at());
        let (at, completion) = waited.map_err(|error| deadline.errno(error))?;
        // SAFETY: as above.
        unsafe { tell(&entered, completion, end, room) };
        Ok(at as i32)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_operation_cancel(node: u64, handle: u64) -> i32 {
    call(|| enter(node)?.node.cancel(operation(handle)?).map(|()| 0).map_err(errno))
}

// ---- groups ----------------------------------------------------------------------------------------------------------

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_group_new(node: u64, out: *mut u64) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        unsafe {
            abi::put(out, 0)?;
            abi::put(out, entered.node.add_group().map_err(errno)?.0.into())?;
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_group_free(node: u64, handle: u64) -> i32 {
    call(|| enter(node)?.node.remove_group(group(handle)?).map(|()| 0).map_err(errno))
}

/// The caller's ends, so far apart. (Only the first one's size is read.)
#[derive(Clone, Copy)]
pub struct Ends {
    pub first: *mut CompletionShape,
    pub distance: usize,
}

impl Ends {
    /// # Safety
    /// There are more than `at`.
    #[inline(always)]
    pub unsafe fn at(self, at: usize) -> *mut CompletionShape {
        // SAFETY: the caller's promise.
        unsafe { self.first.byte_add(at * self.distance) }
    }
}

/// Tells up to `most` more ends, one by one, as something of them is the program's to keep; how many with those `taken` before.
///
/// # Safety
/// There are `most` ends.
#[cold]
#[inline(never)]
pub unsafe fn tell_kept(entered: &Record, group: GroupId, ends: Ends, mut taken: usize, most: usize) -> usize {
    while taken < most {
        let Some(completion) = entered.node.test_group(group).unwrap_or(None) else { break };
        // SAFETY: the caller's promise.
        unsafe { tell(entered, completion, ends.at(taken), ends.distance) };
        taken += 1;
    }
    taken
}

/// Waits for the first, and tells up to `most`.
///
/// # Safety
/// There are `most` ends, at least one.
#[inline(never)]
unsafe fn wait_group(
    entered: &Entered,
    group: GroupId,
    ends: Ends,
    most: usize,
    deadline: Deadline,
) -> Result<usize, Errno> {
    let first = entered.node.wait_group(group, deadline.at()).map_err(errno)?;
    // SAFETY: the caller's promise.
    unsafe {
        tell(entered, first, ends.at(0), ends.distance);
        Ok(tell_kept(entered, group, ends, 1, most))
    }
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_group_wait(
    node: u64,
    handle: u64,
    ends: *mut CompletionShape,
    most: u32,
    deadline: i64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let ends = Ends { first: ends, distance: unsafe { abi::distance(ends) }? };
        if most == 0 {
            return Err(EINVAL);
        }
        let (entered, group, deadline) = (enter(node)?, group(handle)?, Deadline(deadline));
        let most = most.min(i32::MAX as u32) as usize;
        if !deadline.is_now() {
            // SAFETY: the caller's promise: `most` ends, which is not 0.
            return Ok(unsafe { wait_group(&entered, group, ends, most, deadline) }? as i32);
        }
        let mut taken = 0;
        let told = entered.node.take_ends(group, most, |end: &Ended<'_>| {
            // SAFETY: the caller's promise: no more are told than there is room for.
            unsafe { End::of_ended(end).write(ends.at(taken), ends.distance) };
            taken += 1;
        });
        if told.map_err(errno)?.1 && taken < most {
            // SAFETY: as above.
            taken = unsafe { tell_kept(&entered, group, ends, taken, most) };
        }
        if taken == 0 { Err(EAGAIN) } else { Ok(taken as i32) }
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_group_counts(node: u64, handle: u64, into: *mut GroupCounts) -> i32 {
    call(|| {
        let [done, failed, under_way] = enter(node)?.node.group_counts(group(handle)?).map_err(errno)?;
        // SAFETY: the caller's promise.
        unsafe { abi::write(into, GroupCounts { size: 0, done, failed, under_way }) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_group_wait_counts(node: u64, handle: u64, done: u64, failed: u64, deadline: i64) -> i32 {
    call(|| {
        let (entered, group, deadline) = (enter(node)?, group(handle)?, Deadline(deadline));
        if deadline.is_now() {
            entered.node.progress().map_err(errno)?;
            let counts = entered.node.group_counts(group).map_err(errno)?;
            return if counts[0] >= done || counts[1] > failed { Ok(0) } else { Err(EAGAIN) };
        }
        entered.node.wait_counts(group, done, failed, deadline.at()).map(|()| 0).map_err(errno)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_group_signal(node: u64, handle: u64) -> i32 {
    call(|| {
        let signalled: Result<(), Error> = enter(node)?.node.signal_group(group(handle)?);
        signalled.map(|()| 0).map_err(errno)
    })
}
