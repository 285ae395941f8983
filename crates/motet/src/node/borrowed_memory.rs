//! Operations on memory that a call borrows.
//!
//! The only file of this crate with `unsafe`. An operation gets the address of a borrowed slice; no call returns, not even by a panic, before
//! the operation has completed or the memory was taken away from it.
#![allow(unsafe_code)]

use super::{
    Completion, CompletionOptions, CqId, EngineNode, Error, Node, OperationId, OperationMemory, Outgoing,
    ReceiveResult, RecvFrom, Status,
};
use motet_engine::message::regions::SharedBytes;
use motet_engine::message::send_cancel::Recall;
use motet_sys::user_memory::UserMemory;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// How long a send whose deadline has passed waits for the peer to release its body, ns. A peer answers when it makes progress. One that makes
/// none for so long may be stopped, and would block the caller; a peer that is only busy should not lose its link.
const RECALL_TIMEOUT_NS: u64 = 3_000_000_000;

/// Takes the borrowed memory away from its operation when dropped.
struct Borrow<'a> {
    node: &'a EngineNode,
    user: User,
}

/// The operation that uses the memory.
enum User {
    Operation(OperationId),
    /// The blocking receive from this source.
    Blocking(RecvFrom),
}

impl Drop for Borrow<'_> {
    fn drop(&mut self) {
        let _ = match self.user {
            User::Operation(operation) => self.node.detach(operation),
            User::Blocking(from) => self.node.abandon_blocking(from),
        };
    }
}

/// The engine's node, which handlers and tasks get, as this crate's.
#[inline(always)]
pub(super) fn node_of(node: &EngineNode) -> &Node {
    // SAFETY: `Node` is `repr(transparent)` over the engine's node.
    unsafe { &*std::ptr::from_ref(node).cast() }
}

/// A shared node of the engine, as this crate's.
pub(super) fn shared_node_of(node: Arc<EngineNode>) -> Arc<Node> {
    // SAFETY: `Node` is `repr(transparent)` over the engine's node, so both have one layout.
    unsafe { Arc::from_raw(Arc::into_raw(node).cast()) }
}

/// Words as the memory of a region, which keeps a reference to them.
pub(super) fn words(words: &Arc<[AtomicU64]>) -> SharedBytes {
    let base = words.as_ptr().cast_mut().cast();
    // SAFETY: the caller keeps a clone of the `Arc` with the region, and atomics may be written through shared references.
    unsafe { SharedBytes::new(base, size_of_val::<[AtomicU64]>(words)) }
}

/// Static bytes as the memory of a send.
pub(super) fn forever(body: &'static [u8]) -> OperationMemory {
    // SAFETY: the bytes are static and never written; a send only reads them, and does not return its memory.
    OperationMemory::User(unsafe { UserMemory::new(body.as_ptr().cast_mut(), body.len()) })
}

/// Passes a slice as memory of a receive to `with`.
#[inline(always)]
pub(super) fn lent<R>(buffer: &mut [u8], with: impl FnOnce(UserMemory) -> R) -> R {
    // SAFETY: the slice is borrowed for the call. `with` is `receive`, which does not return before its operation has completed or `Borrow` has
    // taken the memory away from it.
    with(unsafe { UserMemory::new(buffer.as_mut_ptr(), buffer.len()) })
}

/// Receives into memory that is valid during the call.
#[inline(always)]
pub(super) fn receive(
    node: &EngineNode,
    selector: (RecvFrom, u64, u64),
    span: UserMemory,
    headers: Option<&mut Vec<u8>>,
    deadline: Option<u64>,
) -> Result<ReceiveResult, Error> {
    receive_or(node, selector, span, headers, (CqId::NONE, deadline))
}

/// Receives into memory that is valid during the call. Ends as after the deadline when a completion queue has a completion or was signalled, unless
/// another thread uses the blocking receive.
#[inline(always)]
pub(super) fn receive_or(
    node: &EngineNode,
    selector: (RecvFrom, u64, u64),
    span: UserMemory,
    mut headers: Option<&mut Vec<u8>>,
    (cq, deadline): (CqId, Option<u64>),
) -> Result<ReceiveResult, Error> {
    let borrow = Borrow { node, user: User::Blocking(selector.0) };
    match node.receive_or(selector, span, &mut headers, (cq, deadline)) {
        Ok(got) if got.status != Status::Cancelled => {
            std::mem::forget(borrow);
            Ok(got)
        }
        other => receive_after_error(borrow, other, selector, span, headers, deadline),
    }
}

/// Completes a blocking receive whose wait has failed, or that was cancelled.
#[cold]
#[inline(never)]
fn receive_after_error(
    borrow: Borrow<'_>,
    mut got: Result<ReceiveResult, Error>,
    selector: (RecvFrom, u64, u64),
    span: UserMemory,
    mut headers: Option<&mut Vec<u8>>,
    deadline: Option<u64>,
) -> Result<ReceiveResult, Error> {
    let node = borrow.node;
    if let Err(error) = got {
        got = match error {
            Error::Full => {
                std::mem::forget(borrow); // the blocking receive is another thread's
                return receive_by_operation(node, selector, span, headers, deadline);
            }
            Error::TimedOut | Error::Interrupted => {
                // A receive without a message completes at once; one that has matched completes when its message is here; one whose
                // channel was closed has completed already.
                match node.cancel_blocking(selector.0) {
                    Ok(()) | Err(Error::Unknown | Error::Closed) => node.wait_blocking(&mut headers, None),
                    Err(error) => return Err(error),
                }
            }
            Error::WouldBlock | Error::NoNode(_) => return Err(error), // in a handler, or the node was shut down: `borrow` takes the memory away
            error => {
                std::mem::forget(borrow); // no receive was started
                return Err(error);
            }
        };
    }
    let got = got?;
    std::mem::forget(borrow);
    if got.status == Status::Cancelled { Err(Error::TimedOut) } else { Ok(got) }
}

/// Receives by an operation, because another thread uses the blocking receive.
#[cold]
fn receive_by_operation(
    node: &EngineNode,
    (from, tag, ignore): (RecvFrom, u64, u64),
    span: UserMemory,
    headers: Option<&mut Vec<u8>>,
    deadline: Option<u64>,
) -> Result<ReceiveResult, Error> {
    let operation = node.post(from, tag, ignore, OperationMemory::User(span), CompletionOptions::default())?;
    let borrow = Borrow { node, user: User::Operation(operation) };
    let mut waited = node.wait_for(operation, deadline);
    if matches!(waited, Err(Error::TimedOut)) {
        node.cancel_receive(operation)?;
        waited = node.wait_for(operation, None);
    }
    let Completion { status, length, tag, message_length, headers: pushed, channel, .. } = waited?;
    std::mem::forget(borrow);
    if let Some(headers) = headers {
        *headers = pushed;
    }
    if status == Status::Cancelled {
        return Err(Error::TimedOut);
    }
    Ok(ReceiveResult { status, length, tag, message_length, channel })
}

/// Sends a message of slices that cannot leave at once.
#[cold]
pub(super) fn send(
    node: &EngineNode,
    message: &Outgoing<'_>,
    body: &[&[u8]],
    deadline: Option<u64>,
) -> Result<(), Error> {
    let mut parts = body.iter().map(|part| {
        // SAFETY: the slice is borrowed for the call, and a send only reads. When the call returns, the operation has completed or `Borrow` has
        // taken the memory away from it.
        OperationMemory::User(unsafe { UserMemory::new(part.as_ptr().cast_mut(), part.len()) })
    });
    let memory = parts.next().unwrap_or(OperationMemory::Owned(Vec::new()));
    let Some(operation) = node.send(message, memory, parts.collect(), CompletionOptions::default(), deadline)? else {
        return Ok(());
    };
    let borrow = Borrow { node, user: User::Operation(operation) };
    let completion = match node.wait_for(operation, deadline) {
        Err(Error::TimedOut) => match recall(node, operation)? {
            Some(completion) => completion,
            None => {
                std::mem::forget(borrow);
                return Ok(());
            }
        },
        waited => waited?,
    };
    std::mem::forget(borrow);
    if completion.status == Status::Cancelled {
        return Err(Error::TimedOut);
    }
    let gone = node.link_info(message.channel.link).ok().and_then(|info| info.gone);
    Error::of_status(completion.status, gone).map_or(Ok(()), Err)
}

/// Recalls a send whose deadline has passed. `None`: the message continues on its way and does not need the memory.
#[cold]
fn recall(node: &EngineNode, operation: OperationId) -> Result<Option<Completion>, Error> {
    match node.recall(operation)? {
        Recall::ContinuesFromCopy => return Ok(None),
        Recall::Requested => {}
    }
    match node.wait_for(operation, Some(super::deadline_in(RECALL_TIMEOUT_NS))) {
        Err(Error::TimedOut) => {
            node.abort_link(operation)?;
            node.wait_for(operation, None).map(Some) // it has completed
        }
        waited => waited.map(Some),
    }
}
