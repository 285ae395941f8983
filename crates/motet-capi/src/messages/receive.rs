//! Receives: waiting, posted, peek, claim and accept.

use super::abi::{self, CompletionFields, RawCompletion, RawCompletionOptions, RawSource};
use super::node_entry::NodeEntry;
use super::node_handles::{NodeRef, enter};
use super::{Deadline, EAGAIN, EBADF, ENOBUFS, Errno, call, channel, errno, number};
use motet_api::node::{Channel, Error, LinkId, OperationId, OperationMemory, RecvFrom, blocking};
use motet_proto::message::UnexpectedMessage;
use motet_proto::message::slab::{self, SlabId};

/// # Safety
/// The buffer is writable, and `completion` points to a completion or is null.
#[inline(always)]
unsafe fn receive(
    entered: &NodeRef,
    (from, tag, ignore): (RecvFrom, u64, u64),
    (buffer, capacity): (*mut u8, usize),
    deadline: Deadline,
    completion: *mut RawCompletion,
) -> Result<i32, Errno> {
    // SAFETY: the caller's promise; the span is not used after this call.
    let (room, span) = unsafe { (abi::check(completion)?, abi::span(buffer, capacity)?) };
    if deadline.is_now() {
        entered.node.progress().map_err(errno)?;
        entered.node.peek(from, tag, ignore).map_err(errno)?.ok_or(EAGAIN)?;
    }
    let mut headers = Vec::new();
    let got = blocking::receive_until(&entered.node, (from, tag, ignore), span, Some(&mut headers), deadline.at());
    let got = got.map_err(|error| deadline.errno(error))?;
    let fields = CompletionFields::of_call(&got, &headers);
    // SAFETY: as above.
    unsafe { fields.write(completion, room) };
    Ok(fields.status)
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_receive(
    node: u64,
    on: u64,
    buffer: *mut u8,
    capacity: usize,
    deadline: i64,
    completion: *mut RawCompletion,
) -> i32 {
    call(|| {
        let from = (RecvFrom::Channel(channel(on)), 0, u64::MAX);
        // SAFETY: the caller's promise.
        unsafe { receive(&enter(node)?, from, (buffer, capacity), Deadline(deadline), completion) }
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_receive_from(
    node: u64,
    source: *const RawSource,
    buffer: *mut u8,
    capacity: usize,
    deadline: i64,
    completion: *mut RawCompletion,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        unsafe { receive(&entered, abi::source(source)?, (buffer, capacity), Deadline(deadline), completion) }
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires: the buffer stays valid until the operation completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_post(
    node: u64,
    source: *const RawSource,
    buffer: *mut u8,
    capacity: usize,
    options: *const RawCompletionOptions,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let ((from, tag, ignore), options, span) = unsafe {
            abi::write_handle(out, 0)?;
            (abi::source(source)?, abi::completion_options(options)?, abi::span(buffer, capacity)?)
        };
        let posted = entered.node.post(from, tag, ignore, OperationMemory::User(span), options).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, posted.0.into()) }.map(|()| 0)
    })
}

// ---- messages that wait ----------------------------------------------------------------------------------------------

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_peek(
    node: u64,
    source: *const RawSource,
    description: *mut RawCompletion,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let (room, (from, tag, ignore)) = unsafe { (abi::check(description)?, abi::source(source)?) };
        let Some(found) = entered.node.peek(from, tag, ignore).map_err(errno)? else { return Ok(0) };
        let (length, tag, channel) = (found.length, found.tag, Some(found.channel));
        let headers = &found.headers[..];
        let fields = CompletionFields {
            operation: 0,
            user_data: 0,
            status: 0,
            length,
            message_length: length,
            tag,
            channel,
            headers,
            in_place: None,
        };
        // SAFETY: as above.
        unsafe { fields.write(description, room) };
        Ok(1)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_claim(
    node: u64,
    source: *const RawSource,
    description: *mut RawCompletion,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let (room, (from, tag, ignore)) = unsafe {
            abi::write_handle(out, 0)?;
            (abi::check(description)?, abi::source(source)?)
        };
        let mut messages = entered.messages();
        if messages.count() >= slab::MAX_RECORDS {
            return Err(ENOBUFS);
        }
        let Some(held) = entered.node.claim(from, tag, ignore).map_err(errno)? else { return Ok(0) };
        let channel = Channel { link: LinkId(held.source), id: held.channel };
        // SAFETY: as above.
        unsafe { CompletionFields::of_unexpected(&held, channel).write(description, room) };
        let number = messages.insert(Some(held)).ok_or(ENOBUFS)?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, number.0.into()) }.map(|()| 1)
    })
}

/// Takes a message that is held by handle. The entry stays until [`forget`].
pub fn take(entry: &NodeEntry, message: SlabId) -> Result<UnexpectedMessage, Errno> {
    entry.messages().get_by_id(message).and_then(Option::take).ok_or(EBADF)
}

/// Frees the entry of a message.
pub fn forget(entry: &NodeEntry, message: SlabId) {
    let mut messages = entry.messages();
    if let Some(index) = messages.find(message) {
        messages.remove(index);
    }
}

/// Starts a receive of a message that is held by handle. After an error of `begin` the message is held again.
pub fn accept(
    entry: &NodeEntry,
    message: u64,
    begin: impl FnOnce(UnexpectedMessage) -> Result<OperationId, (Error, UnexpectedMessage)>,
) -> Result<OperationId, Errno> {
    let message = SlabId(number(message)?);
    begin(take(entry, message)?).inspect(|_| forget(entry, message)).map_err(|(error, held)| {
        if let Some(place) = entry.messages().get_by_id(message) {
            *place = Some(held);
        }
        errno(error)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires: the buffer stays valid until the operation completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_accept(
    node: u64,
    message: u64,
    buffer: *mut u8,
    capacity: usize,
    options: *const RawCompletionOptions,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let (options, span) = unsafe {
            abi::write_handle(out, 0)?;
            (abi::completion_options(options)?, abi::span(buffer, capacity)?)
        };
        let operation =
            accept(&entered, message, |held| entered.node.accept_body(held, OperationMemory::User(span), options))?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, operation.0.into()) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_message_discard(node: u64, message: u64) -> i32 {
    call(|| {
        let (entered, message) = (enter(node)?, SlabId(number(message)?));
        let held = take(&entered, message)?;
        forget(&entered, message);
        entered.node.discard_body(held).map(|()| 0).map_err(errno)
    })
}
