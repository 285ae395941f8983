//! Loans: messages that the receiver reads where the sender has put them.

use super::abi::{self, CompletionShape, NoticeShape, OutgoingShape, Source};
use super::memory_handles::{self, Holding};
use super::node_handles::enter;
use super::receive::accept;
use super::{Deadline, EAGAIN, EBADF, EINVAL, call, errno};
use motet_api::node::{Error, Loan, Mode, Notice};

fn a_loan(holding: Holding) -> Result<Loan, Holding> {
    if let Holding::Loan(loan) = holding { Ok(loan) } else { Err(holding) }
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_loan_alloc(node: u64, length: usize, memory: *mut *mut u8, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe {
            abi::put(out, 0)?;
            abi::put_pointer(memory, std::ptr::null_mut())?;
        }
        let entered = enter(node)?;
        let mut loan = entered.node.alloc(length).map_err(errno)?;
        let base = loan.as_mut_ptr();
        let handle = memory_handles::hold(&entered, Holding::Loan(loan))?;
        // SAFETY: as above.
        unsafe {
            abi::put_pointer(memory, base)?;
            abi::put(out, handle).map(|()| 0)
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_loan_free(node: u64, loan: u64) -> i32 {
    call(|| memory_handles::take_out(&*enter(node)?, loan, a_loan).map(|_| 0))
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_loan_send(
    node: u64,
    message: *const OutgoingShape,
    loan: u64,
    length: usize,
    notice: *const NoticeShape,
    deadline: i64,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let (message, told) = unsafe {
            if !out.is_null() {
                abi::put(out, 0)?;
            } else if !notice.is_null() {
                return Err(EINVAL); // nobody would know which operation it is
            }
            (abi::outgoing(message)?, abi::notice(notice)?)
        };
        if message.mode != Mode::Automatic {
            return Err(EINVAL);
        }
        let (number, block) = memory_handles::take(&entered, loan, a_loan)?;
        if length > block.len() {
            memory_handles::put_back(&entered, number, Holding::Loan(block));
            return Err(EINVAL);
        }
        let (told, deadline) = ((!out.is_null()).then_some(told), Deadline(deadline));
        match entered.node.send_loan(&message, block, length, told, deadline.at()) {
            Ok(operation) => {
                memory_handles::forget(&entered, number);
                match out.is_null() {
                    true => Ok(0),
                    // SAFETY: the caller's promise.
                    false => unsafe { abi::put(out, operation.map_or(0, |name| name.0.into())) }.map(|()| 0),
                }
            }
            Err((error, block)) => {
                match block {
                    Some(block) => memory_handles::put_back(&entered, number, Holding::Loan(block)),
                    None => memory_handles::forget(&entered, number),
                }
                Err(deadline.errno(error))
            }
        }
    })
}

// ---- in place --------------------------------------------------------------------------------------------------------

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_receive_in_place(
    node: u64,
    source: *const Source,
    most: u64,
    deadline: i64,
    end: *mut CompletionShape,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (room, (from, tag, ignore)) = unsafe { (abi::check(end)?, abi::source(source)?) };
        if !abi::tells_in_place(room) {
            return Err(EINVAL); // nobody could give it back
        }
        let (entered, deadline) = (enter(node)?, Deadline(deadline));
        let node = &entered.node;
        if deadline.is_now() {
            node.progress().map_err(errno)?;
            node.peek(from, tag, ignore).map_err(errno)?.ok_or(EAGAIN)?;
        }
        let operation = node.post_in_place(from, tag, ignore, most, Notice::default()).map_err(errno)?;
        let mut waited = node.wait_for(operation, deadline.at());
        if matches!(waited, Err(Error::TimedOut)) {
            // Without a message it ends at once; with one it ends when that is here.
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
        let mut told = memory_handles::end_of(&entered, &mut completion, true);
        told.operation = 0;
        let status = told.status;
        // SAFETY: as above.
        unsafe { told.write(end, room) };
        Ok(status)
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_post_in_place(
    node: u64,
    source: *const Source,
    most: u64,
    notice: *const NoticeShape,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let ((from, tag, ignore), notice) = unsafe {
            abi::put(out, 0)?;
            (abi::source(source)?, abi::notice(notice)?)
        };
        let posted = entered.node.post_in_place(from, tag, ignore, most, notice).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::put(out, posted.0.into()) }.map(|()| 0)
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_accept_in_place(
    node: u64,
    message: u64,
    most: u64,
    notice: *const NoticeShape,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let notice = unsafe {
            abi::put(out, 0)?;
            abi::notice(notice)?
        };
        let operation = accept(&entered, message, |held| entered.node.accept_in_place(held, most, notice))?;
        // SAFETY: as above.
        unsafe { abi::put(out, operation.0.into()) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_message_give_back(node: u64, lent: u64) -> i32 {
    call(|| {
        let entered = enter(node)?;
        let held = memory_handles::take_out(&entered, lent, |holding| match holding {
            held @ (Holding::Lent(_) | Holding::Copy(_)) => Ok(held),
            other => Err(other),
        });
        match held? {
            Holding::Lent(lent) => entered.node.give_back(lent).map(|()| 0).map_err(errno),
            Holding::Copy(bytes) => {
                drop(bytes);
                Ok(0)
            }
            Holding::Loan(_) | Holding::View(_) => Err(EBADF),
        }
    })
}
