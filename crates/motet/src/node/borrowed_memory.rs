//! Memory that a caller lends to an operation for the time of a call.
//!
//! The one file of this crate with `unsafe`: the operation gets the address of a borrowed slice, and no call returns, not even by a
//! panic, before the operation has ended or has had the memory taken away.
#![allow(unsafe_code)]

use super::{Completion, Error, From, Got, Inner, Memory, Notice, OperationId, Outgoing, Status};
use motet_engine::message::regions::Shared;
use motet_engine::message::send_cancel::CalledBack;
use motet_sys::user_memory::Span;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// How long a peer that has announced memory of ours may take to let go of it once a send's time is over, ns. It answers whenever it makes
/// progress; one that makes none for so long may be stopped, and would hold the caller for as long as it is. A program that is busy with
/// something else should not lose its links for it, so this is no short time.
const LET_GO: u64 = 3_000_000_000;

/// Takes the memory away from an operation that has not ended.
struct Loan<'a> {
    node: &'a Inner,
    what: Lent,
}

/// Who has the memory.
enum Lent {
    Operation(OperationId),
    /// A blocking receive from there.
    Blocking(From),
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let _ = match self.what {
            Lent::Operation(operation) => self.node.detach(operation),
            Lent::Blocking(from) => self.node.abandon_blocking(from),
        };
    }
}

/// The words of a region. They stay as long as the region, which keeps them.
pub(super) fn words(words: &Arc<[AtomicU64]>) -> Shared {
    let base = words.as_ptr().cast_mut().cast();
    // SAFETY: who gets this keeps a clone of the `Arc` beside it, and atomics may be written through shared references to them.
    unsafe { Shared::new(base, size_of_val::<[AtomicU64]>(words)) }
}

/// Bytes that stay, for a send.
pub(super) fn forever(body: &'static [u8]) -> Memory {
    // SAFETY: the bytes stay for ever and nobody writes them; a send only reads, and gives no span back.
    Memory::Span(unsafe { Span::new(body.as_ptr().cast_mut(), body.len()) })
}

/// A slice as the memory of a receive, to be used in this call only.
#[inline(always)]
pub(super) fn lent<R>(buffer: &mut [u8], with: impl FnOnce(Span) -> R) -> R {
    // SAFETY: the slice is borrowed for the call, and what gets the span here, `receive`, does not return before its operation has
    // ended or `Loan` has taken the span out of it.
    with(unsafe { Span::new(buffer.as_mut_ptr(), buffer.len()) })
}

/// Receives into memory that stays for the time of the call.
#[inline(always)]
pub(super) fn receive(
    node: &Inner,
    selector: (From, u64, u64),
    span: Span,
    mut headers: Option<&mut Vec<u8>>,
    deadline: Option<u64>,
) -> Result<Got, Error> {
    let loan = Loan { node, what: Lent::Blocking(selector.0) };
    match node.receive(selector, span, &mut headers, deadline) {
        Ok(got) if got.status != Status::Cancelled => {
            std::mem::forget(loan);
            Ok(got)
        }
        other => receive_after_all(loan, other, selector, span, headers, deadline),
    }
}

/// Ends a blocking receive whose wait has returned an error, or that has been cancelled.
#[cold]
#[inline(never)]
fn receive_after_all(
    loan: Loan<'_>,
    mut got: Result<Got, Error>,
    selector: (From, u64, u64),
    span: Span,
    mut headers: Option<&mut Vec<u8>>,
    deadline: Option<u64>,
) -> Result<Got, Error> {
    let node = loan.node;
    if let Err(error) = got {
        got = match error {
            Error::Full => {
                std::mem::forget(loan); // it is another thread's
                return receive_by_record(node, selector, span, headers, deadline);
            }
            Error::TimedOut => {
                // A receive without a message ends at once; one that has matched ends when its message has landed; one whose channel
                // has been closed since has ended already.
                match node.cancel_blocking(selector.0) {
                    Ok(()) | Err(Error::Unknown | Error::Closed) => node.wait_blocking(&mut headers, None),
                    Err(error) => return Err(error),
                }
            }
            Error::WouldBlock | Error::NoNode(_) => return Err(error), // in a handler, or shut meanwhile: the loan takes it back
            error => {
                std::mem::forget(loan); // nothing has begun
                return Err(error);
            }
        };
    }
    let got = got?;
    std::mem::forget(loan);
    if got.status == Status::Cancelled { Err(Error::TimedOut) } else { Ok(got) }
}

/// Receives by an operation with a record, because another thread uses the group of blocking receives.
#[cold]
fn receive_by_record(
    node: &Inner,
    (from, tag, ignore): (From, u64, u64),
    span: Span,
    headers: Option<&mut Vec<u8>>,
    deadline: Option<u64>,
) -> Result<Got, Error> {
    let operation = node.post(from, tag, ignore, Memory::Span(span), Notice::default())?;
    let loan = Loan { node, what: Lent::Operation(operation) };
    let mut waited = node.wait_for(operation, deadline);
    if matches!(waited, Err(Error::TimedOut)) {
        node.take_back(operation)?;
        waited = node.wait_for(operation, None);
    }
    let Completion { status, length, tag, full, headers: pushed, channel, .. } = waited?;
    std::mem::forget(loan);
    if let Some(headers) = headers {
        *headers = pushed;
    }
    if status == Status::Cancelled {
        return Err(Error::TimedOut);
    }
    Ok(Got { status, length, tag, full, channel })
}

/// Sends a message of slices that does not go at once.
#[cold]
pub(super) fn send(node: &Inner, message: &Outgoing<'_>, body: &[&[u8]], deadline: Option<u64>) -> Result<(), Error> {
    let mut parts = body.iter().map(|part| {
        // SAFETY: the slice is borrowed for the call, a send only reads, and until the call returns the operation has ended or `Loan`
        // has taken the spans out of it.
        Memory::Span(unsafe { Span::new(part.as_ptr().cast_mut(), part.len()) })
    });
    let memory = parts.next().unwrap_or(Memory::Owned(Vec::new()));
    let Some(operation) = node.send(message, memory, parts.collect(), Notice::default(), deadline)? else {
        return Ok(());
    };
    let loan = Loan { node, what: Lent::Operation(operation) };
    let completion = match node.wait_for(operation, deadline) {
        Err(Error::TimedOut) => match overdue(node, operation)? {
            Some(completion) => completion,
            None => {
                std::mem::forget(loan);
                return Ok(());
            }
        },
        waited => waited?,
    };
    std::mem::forget(loan);
    if completion.status == Status::Cancelled {
        return Err(Error::TimedOut);
    }
    let gone = node.link_info(message.channel.link).ok().and_then(|info| info.gone);
    Error::of_status(completion.status, gone).map_or(Ok(()), Err)
}

/// How a send ends whose time is over. `None`: it goes on by itself, and needs our memory no more.
#[cold]
fn overdue(node: &Inner, operation: OperationId) -> Result<Option<Completion>, Error> {
    match node.call_back(operation)? {
        CalledBack::OnItsWay => return Ok(None),
        CalledBack::Asked => {}
    }
    match node.wait_for(operation, Some(super::in_ns(LET_GO))) {
        Err(Error::TimedOut) => {
            node.give_up(operation)?;
            node.wait_for(operation, None).map(Some) // it has ended
        }
        waited => waited.map(Some),
    }
}
