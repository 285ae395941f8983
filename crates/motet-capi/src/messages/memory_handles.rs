//! Handles of memory: loans, messages that were received in place, mapped regions of peers.
//!
//! What it is: one table for each node, so that a handle of one kind is never one of another. An empty entry is a loan that is being sent
//! at this moment. What it is not: handles of anything else are the engine's numbers, except for claimed messages.

use super::abi::{CompletionFields, InPlaceBody};
use super::node_entry::{MemoryHandle, NodeEntry};
use super::{EBADF, ECHILD, ENOBUFS, Errno, number};
use motet_api::node::{Completion, Status};
use motet_proto::message::slab::SlabId;

/// Stores memory and returns its handle. When the table is full the memory is dropped, which returns it to its owner.
pub fn insert(entry: &NodeEntry, memory: MemoryHandle) -> Result<u64, Errno> {
    entry.memory_handles().insert(Some(memory)).map(|number| number.0.into()).ok_or(ENOBUFS)
}

/// The number of a handle. A forked child has no handles: all are the parent's.
fn known(entry: &NodeEntry, handle: u64) -> Result<SlabId, Errno> {
    if entry.node.is_inherited() { Err(ECHILD) } else { number(handle).map(SlabId) }
}

/// Reads the memory of a handle.
pub fn inspect<T>(entry: &NodeEntry, handle: u64, at: impl FnOnce(&MemoryHandle) -> Option<T>) -> Result<T, Errno> {
    let number = known(entry, handle)?;
    entry.memory_handles().get_by_id(number).and_then(|place| at(place.as_ref()?)).ok_or(EBADF)
}

/// Takes the memory of a handle if it is of this kind. The entry stays until it is freed ([`forget`]) or restored ([`put_back`]).
pub fn take<T>(
    entry: &NodeEntry,
    handle: u64,
    kind: impl FnOnce(MemoryHandle) -> Result<T, MemoryHandle>,
) -> Result<(SlabId, T), Errno> {
    let number = known(entry, handle)?;
    let mut memory_handles = entry.memory_handles();
    let place = memory_handles.get_by_id(number).ok_or(EBADF)?;
    match kind(place.take().ok_or(EBADF)?) {
        Ok(taken) => Ok((number, taken)),
        Err(other) => {
            *place = Some(other);
            Err(EBADF)
        }
    }
}

/// Frees an entry.
pub fn forget(entry: &NodeEntry, number: SlabId) {
    let mut memory_handles = entry.memory_handles();
    if let Some(index) = memory_handles.find(number) {
        memory_handles.remove(index);
    }
}

/// Restores memory that [`take`] returned.
pub fn put_back(entry: &NodeEntry, number: SlabId, memory: MemoryHandle) {
    if let Some(place) = entry.memory_handles().get_by_id(number) {
        *place = Some(memory);
    }
}

/// Takes the memory of a handle and frees the entry.
pub fn remove<T>(
    entry: &NodeEntry,
    handle: u64,
    kind: impl FnOnce(MemoryHandle) -> Result<T, MemoryHandle>,
) -> Result<T, Errno> {
    let (number, taken) = take(entry, handle, kind)?;
    forget(entry, number);
    Ok(taken)
}

/// The values of a completion. The message of a receive in place gets a handle if `wanted`; otherwise, because the program cannot get the
/// handle, it is released.
pub fn completion_fields<'a>(entry: &NodeEntry, completion: &'a mut Completion, wanted: bool) -> CompletionFields<'a> {
    let whole = matches!(completion.status, Status::Done | Status::Truncated);
    let found = match (completion.loaned.take(), completion.memory.take()) {
        (Some(lent), _) => Some((lent.as_ptr(), MemoryHandle::LoanedMessage(lent))),
        (None, Some(mut bytes)) if !bytes.is_empty() => {
            bytes.truncate(completion.length as usize);
            Some((bytes.as_ptr(), MemoryHandle::Copy(bytes)))
        }
        _ => None,
    };
    let mut fields = CompletionFields::of(completion);
    fields.in_place = Some(InPlaceBody::default());
    match found {
        Some((body, memory)) if whole && wanted => match insert(entry, memory) {
            Ok(loaned) => fields.in_place = Some(InPlaceBody { loaned, body }),
            Err(errno) => fields.status = -errno,
        },
        Some((_, memory)) => release(entry, memory),
        None => {}
    }
    fields
}

/// Releases a message that the program cannot get.
pub fn release(entry: &NodeEntry, memory: MemoryHandle) {
    if let MemoryHandle::LoanedMessage(lent) = memory {
        let _ = entry.node.release_loan(lent); // in a forked child it is the parent's
    }
}
