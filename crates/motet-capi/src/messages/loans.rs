//! Loans: messages that are sent without a copy, and received in place.

use super::abi::{self, RawCompletion, RawCompletionOptions, RawOutgoing, RawSource};
use super::memory_handles;
use super::node_entry::MemoryHandle;
use super::node_handles::enter;
use super::receive::accept;
use super::{Deadline, EAGAIN, EBADF, EINVAL, call, errno};
use motet_api::node::{CompletionOptions, Error, Loan, Mode};

fn a_loan(memory: MemoryHandle) -> Result<Loan, MemoryHandle> {
    if let MemoryHandle::Loan(loan) = memory { Ok(loan) } else { Err(memory) }
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_loan_alloc(node: u64, length: usize, memory: *mut *mut u8, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe {
            abi::write_handle(out, 0)?;
            abi::write_pointer(memory, std::ptr::null_mut())?;
        }
        let entered = enter(node)?;
        let mut loan = entered.node.alloc(length).map_err(errno)?;
        let base = loan.as_mut_ptr();
        let handle = memory_handles::insert(&entered, MemoryHandle::Loan(loan))?;
        // SAFETY: as above.
        unsafe {
            abi::write_pointer(memory, base)?;
            abi::write_handle(out, handle).map(|()| 0)
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_loan_free(node: u64, loan: u64) -> i32 {
    call(|| memory_handles::remove(&*enter(node)?, loan, a_loan).map(|_| 0))
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_loan_send(
    node: u64,
    message: *const RawOutgoing,
    loan: u64,
    length: usize,
    options: *const RawCompletionOptions,
    deadline: i64,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let (message, options) = unsafe {
            if !out.is_null() {
                abi::write_handle(out, 0)?;
            } else if !options.is_null() {
                return Err(EINVAL); // the operation's handle would be lost
            }
            (abi::outgoing(message)?, abi::completion_options(options)?)
        };
        if message.mode != Mode::Automatic {
            return Err(EINVAL);
        }
        let (number, block) = memory_handles::take(&entered, loan, a_loan)?;
        if length > block.len() {
            memory_handles::put_back(&entered, number, MemoryHandle::Loan(block));
            return Err(EINVAL);
        }
        let (options, deadline) = ((!out.is_null()).then_some(options), Deadline(deadline));
        match entered.node.send_loan(&message, block, length, options, deadline.at()) {
            Ok(operation) => {
                memory_handles::forget(&entered, number);
                match out.is_null() {
                    true => Ok(0),
                    // SAFETY: the caller's promise.
                    false => unsafe { abi::write_handle(out, operation.map_or(0, |name| name.0.into())) }.map(|()| 0),
                }
            }
            Err((error, block)) => {
                match block {
                    Some(block) => memory_handles::put_back(&entered, number, MemoryHandle::Loan(block)),
                    None => memory_handles::forget(&entered, number),
                }
                Err(deadline.errno(error))
            }
        }
    })
}

// ---- in place --------------------------------------------------------------------------------------------------------

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_receive_in_place(
    node: u64,
    source: *const RawSource,
    max: u64,
    deadline: i64,
    into: *mut RawCompletion,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (room, (from, tag, ignore)) = unsafe { (abi::check(into)?, abi::source(source)?) };
        if !abi::has_loan_fields(room) {
            return Err(EINVAL); // the struct has no field for the message, so it could not be released
        }
        let (entered, deadline) = (enter(node)?, Deadline(deadline));
        let node = &entered.node;
        if deadline.is_now() {
            node.progress().map_err(errno)?;
            node.peek(from, tag, ignore).map_err(errno)?.ok_or(EAGAIN)?;
        }
        let operation = node.post_in_place(from, tag, ignore, max, CompletionOptions::default()).map_err(errno)?;
        let mut waited = node.wait_for(operation, deadline.at());
        if matches!(waited, Err(Error::TimedOut)) {
            // Without a message the receive completes at once; with one, when the message is here.
            node.cancel(operation).map_err(errno)?;
            waited = node.wait_for(operation, None);
        }
        let mut completion = waited.map_err(|error| {
            let _ = node.detach(operation);
            deadline.errno(error)
        })?;
        if completion.status == motet_api::node::Status::Cancelled {
            return Err(deadline.errno(Error::TimedOut));
        }
        let mut fields = memory_handles::completion_fields(&entered, &mut completion, true);
        fields.operation = 0;
        let status = fields.status;
        // SAFETY: as above.
        unsafe { fields.write(into, room) };
        Ok(status)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_post_in_place(
    node: u64,
    source: *const RawSource,
    max: u64,
    options: *const RawCompletionOptions,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let ((from, tag, ignore), options) = unsafe {
            abi::write_handle(out, 0)?;
            (abi::source(source)?, abi::completion_options(options)?)
        };
        let posted = entered.node.post_in_place(from, tag, ignore, max, options).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, posted.0.into()) }.map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_accept_in_place(
    node: u64,
    message: u64,
    max: u64,
    options: *const RawCompletionOptions,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let options = unsafe {
            abi::write_handle(out, 0)?;
            abi::completion_options(options)?
        };
        let operation = accept(&entered, message, |held| entered.node.accept_in_place(held, max, options))?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, operation.0.into()) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_message_release(node: u64, lent: u64) -> i32 {
    call(|| {
        let entered = enter(node)?;
        let held = memory_handles::remove(&entered, lent, |memory| match memory {
            held @ (MemoryHandle::LoanedMessage(_) | MemoryHandle::Copy(_)) => Ok(held),
            other => Err(other),
        });
        match held? {
            MemoryHandle::LoanedMessage(lent) => entered.node.release_loan(lent).map(|()| 0).map_err(errno),
            MemoryHandle::Copy(bytes) => {
                drop(bytes);
                Ok(0)
            }
            MemoryHandle::Loan(_) | MemoryHandle::Mapping(_) => Err(EBADF),
        }
    })
}
