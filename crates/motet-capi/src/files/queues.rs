//! Batches, and completion queues.

use super::abi::{Array, RawCompletion, RawRequest};
use super::handles::{self, OpenClient, OpenFile, OpenQueue};
use super::{errno, may_wait};
use crate::messages::abi::write_handle;
use crate::messages::{Deadline, EAGAIN, EINVAL, Errno, call};
use motet_files::client::{Completed, CompletionQueue, OperationMemory, Submission, Transfer};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// enum motet_file_operation.
const READ: u32 = 1;
const WRITE: u32 = 2;
const SYNC: u32 = 3;
const DATASYNC: u32 = 4;

/// How many elements an array may have.
fn elements(count: u32) -> Result<usize, Errno> {
    i32::try_from(count).map(i32::unsigned_abs).map(|count| count as usize).map_err(|_| EINVAL)
}

/// Bytes, or a negative errno.
fn result(result: &std::io::Result<usize>) -> i64 {
    match result {
        Ok(count) => *count as i64,
        Err(error) => -i64::from(errno(error)),
    }
}

/// # Safety
/// The caller keeps what `motet_file.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_file_transfer(file: u64, requests: *mut RawRequest, count: u32) -> i32 {
    call(|| {
        may_wait()?;
        let open = handles::find::<OpenFile>(file)?;
        let count = elements(count)?;
        if count == 0 {
            return Ok(0);
        }
        // SAFETY: the caller's promise.
        let array = unsafe { Array::new(requests) }?;
        let mut transfers = Vec::with_capacity(count);
        for at in 0..count {
            // SAFETY: the caller's promise: `count` elements, whose memory no one else uses during the call.
            let (request, memory) = unsafe {
                let request = array.get(at);
                (request, request.memory()?)
            };
            let (base, length) = (OperationMemory::User(memory).address() as usize as *mut u8, memory.len());
            transfers.push(match request.operation {
                READ if length == 0 => Transfer::Read(request.offset, &mut []),
                // SAFETY: as above; the memory is not null and of no impossible length.
                READ => Transfer::Read(request.offset, unsafe { std::slice::from_raw_parts_mut(base, length) }),
                WRITE if length == 0 => Transfer::Write(request.offset, &[]),
                // SAFETY: as above.
                WRITE => Transfer::Write(request.offset, unsafe { std::slice::from_raw_parts(base, length) }),
                _ => return Err(EINVAL),
            });
        }
        let results = open.file.transfer(&mut transfers);
        for (at, found) in results.iter().enumerate() {
            // SAFETY: as above.
            unsafe { array.set_result(at, result(found)) };
        }
        Ok(results.iter().filter(|found| found.is_ok()).count() as i32)
    })
}

/// # Safety
/// The caller keeps what `motet_file.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_file_cq_open(files: u64, outstanding: u32, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { write_handle(out, 0) }?;
        let open = handles::find::<OpenClient>(files)?;
        let user = Arc::clone(&open.users);
        let queue = CompletionQueue::new(&open.client, outstanding as usize).map_err(|error| errno(&error))?;
        // SAFETY: as above.
        unsafe { write_handle(out, handles::insert(OpenQueue { queue, _user: user })?) }.map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet_file.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_file_submit(cq: u64, file: u64, requests: *const RawRequest, count: u32) -> i32 {
    call(|| {
        may_wait()?;
        let (open, file) = (handles::find::<OpenQueue>(cq)?, handles::find::<OpenFile>(file)?);
        let count = elements(count)?;
        if count == 0 {
            return Ok(0);
        }
        // SAFETY: the caller's promise; nothing is written to the elements.
        let array = unsafe { Array::new(requests.cast_mut()) }?;
        for at in 0..count {
            // SAFETY: the caller's promise: `count` elements.
            let request = unsafe { array.get(at) };
            // SAFETY: the caller's promise: the memory is this request's until its completion is taken.
            let submitted = unsafe { submission(&request) }.and_then(|submission| {
                let submitted = open.queue.submit(&file.file, submission, request.user as usize as u64);
                submitted.map_err(|(error, _)| errno(&error))
            });
            match submitted {
                Ok(()) => {}
                Err(errno) if at == 0 => return Err(errno),
                Err(_) => return Ok(at as i32),
            }
        }
        Ok(count as i32)
    })
}

/// What a request asks for.
///
/// # Safety
/// The requirements of `UserMemory::new` hold for its memory.
unsafe fn submission(request: &RawRequest) -> Result<Submission, Errno> {
    let offset = request.offset;
    Ok(match request.operation {
        // SAFETY: the caller's promise.
        READ => Submission::Read { offset, into: OperationMemory::User(unsafe { request.memory() }?) },
        // SAFETY: the caller's promise.
        WRITE => Submission::Write { offset, data: OperationMemory::User(unsafe { request.memory() }?) },
        SYNC => Submission::Sync { data_only: false },
        DATASYNC => Submission::Sync { data_only: true },
        _ => return Err(EINVAL),
    })
}

/// # Safety
/// The caller keeps what `motet_file.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_file_cq_wait(cq: u64, into: *mut RawCompletion, max: u32, deadline: i64) -> i32 {
    call(|| {
        may_wait()?;
        let open = handles::find::<OpenQueue>(cq)?;
        let max = elements(max)?;
        if max == 0 {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise.
        let array = unsafe { Array::new(into) }?;
        let deadline = Deadline(deadline);
        let first = if deadline.is_now() {
            open.queue.poll().map_err(|error| errno(&error))?.ok_or(EAGAIN)?
        } else {
            let left = deadline.at().map(|at| Duration::from_nanos(at.saturating_sub(motet_engine::now())));
            open.queue.wait(left).map_err(|error| errno(&error))?
        };
        let write = |at: usize, Completed { user_data, result: found, .. }: Completed| {
            // SAFETY: the caller's promise: there is room for `max` completions.
            unsafe { array.set(at, user_data as usize as *mut c_void, result(&found)) };
        };
        write(0, first);
        let mut taken = 1;
        while taken < max
            && let Ok(Some(next)) = open.queue.poll()
        {
            write(taken, next);
            taken += 1;
        }
        Ok(taken as i32)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_file_cq_close(cq: u64) -> i32 {
    call(|| {
        may_wait()?;
        let open = handles::remove_if::<OpenQueue>(cq, |_| Ok(()))?;
        open.queue.close();
        Ok(0)
    })
}
