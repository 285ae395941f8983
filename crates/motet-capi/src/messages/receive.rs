//! Receiving: waiting for a message, posting for one, looking at one, taking one.

use super::abi::{self, CompletionShape, End, NoticeShape, Source};
use super::node_handles::{Entered, Record, enter};
use super::{Deadline, EAGAIN, EBADF, ENOBUFS, Errno, call, channel, errno, number};
use motet_api::node::{Channel, Error, From, LinkId, Memory, OperationId};
use motet_proto::message::Held;
use motet_proto::message::slab::{self, Number};

/// # Safety
/// As of a call that has buffer and end.
#[inline(always)]
unsafe fn receive(
    entered: &Entered,
    (from, tag, ignore): (From, u64, u64),
    (buffer, capacity): (*mut u8, usize),
    deadline: Deadline,
    end: *mut CompletionShape,
) -> Result<i32, Errno> {
    // SAFETY: the caller's promise; the span is not used after this call.
    let (room, span) = unsafe { (abi::check(end)?, abi::span(buffer, capacity)?) };
    if deadline.is_now() {
        entered.node.progress().map_err(errno)?;
        entered.node.peek(from, tag, ignore).map_err(errno)?.ok_or(EAGAIN)?;
    }
    let mut headers = Vec::new();
    let got = entered.node.receive_until(from, tag, ignore, span, Some(&mut headers), deadline.at());
    let got = got.map_err(|error| deadline.errno(error))?;
    let told = End::of_call(&got, &headers);
    // SAFETY: as above.
    unsafe { told.write(end, room) };
    Ok(told.status)
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_receive(
    node: u64,
    on: u64,
    buffer: *mut u8,
    capacity: usize,
    deadline: i64,
    end: *mut CompletionShape,
) -> i32 {
    call(|| {
        let from = (From::Channel(channel(on)), 0, u64::MAX);
        // SAFETY: the caller's promise.
        unsafe { receive(&enter(node)?, from, (buffer, capacity), Deadline(deadline), end) }
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_receive_from(
    node: u64,
    source: *const Source,
    buffer: *mut u8,
    capacity: usize,
    deadline: i64,
    end: *mut CompletionShape,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        unsafe { receive(&entered, abi::source(source)?, (buffer, capacity), Deadline(deadline), end) }
    })
}

/// # Safety
/// See `motet.h`: the buffer stays until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_post(
    node: u64,
    source: *const Source,
    buffer: *mut u8,
    capacity: usize,
    notice: *const NoticeShape,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let ((from, tag, ignore), notice, span) = unsafe {
            abi::put(out, 0)?;
            (abi::source(source)?, abi::notice(notice)?, abi::span(buffer, capacity)?)
        };
        let posted = entered.node.post(from, tag, ignore, Memory::Span(span), notice).map_err(errno)?;
        // SAFETY: as above.
        unsafe { abi::put(out, posted.0.into()) }.map(|()| 0)
    })
}

// ---- messages that wait ----------------------------------------------------------------------------------------------

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_peek(node: u64, source: *const Source, seen: *mut CompletionShape) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let (room, (from, tag, ignore)) = unsafe { (abi::check(seen)?, abi::source(source)?) };
        let Some(found) = entered.node.peek(from, tag, ignore).map_err(errno)? else { return Ok(0) };
        let (length, tag, channel) = (found.length, found.tag, Some(found.channel));
        let headers = &found.headers[..];
        let end =
            End { operation: 0, context: 0, status: 0, length, full: length, tag, channel, headers, in_place: None };
        // SAFETY: as above.
        unsafe { end.write(seen, room) };
        Ok(1)
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_claim(
    node: u64,
    source: *const Source,
    seen: *mut CompletionShape,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let (room, (from, tag, ignore)) = unsafe {
            abi::put(out, 0)?;
            (abi::check(seen)?, abi::source(source)?)
        };
        let mut messages = entered.messages();
        if messages.count() >= slab::MOST {
            return Err(ENOBUFS);
        }
        let Some(held) = entered.node.claim(from, tag, ignore).map_err(errno)? else { return Ok(0) };
        let channel = Channel { link: LinkId(held.source), id: held.channel };
        // SAFETY: as above.
        unsafe { End::of_held(&held, channel).write(seen, room) };
        let number = messages.insert(Some(held)).ok_or(ENOBUFS)?;
        // SAFETY: as above.
        unsafe { abi::put(out, number.0.into()) }.map(|()| 1)
    })
}

/// Takes a message that is kept; its place stays until it is [forgotten](forget).
pub fn take(record: &Record, message: Number) -> Result<Held, Errno> {
    record.messages().named(message).and_then(Option::take).ok_or(EBADF)
}

/// Frees the place of a message.
pub fn forget(record: &Record, message: Number) {
    let mut messages = record.messages();
    if let Some(index) = messages.find(message) {
        messages.remove(index);
    }
}

/// Lets a receive `begin` with a message that is kept; if it does not, the message is kept still.
pub fn accept(
    record: &Record,
    message: u64,
    begin: impl FnOnce(Held) -> Result<OperationId, (Error, Held)>,
) -> Result<OperationId, Errno> {
    let message = Number(number(message)?);
    begin(take(record, message)?).inspect(|_| forget(record, message)).map_err(|(error, held)| {
        if let Some(place) = record.messages().named(message) {
            *place = Some(held);
        }
        errno(error)
    })
}

/// # Safety
/// See `motet.h`: the buffer stays until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_message_accept(
    node: u64,
    message: u64,
    buffer: *mut u8,
    capacity: usize,
    notice: *const NoticeShape,
    out: *mut u64,
) -> i32 {
    call(|| {
        let entered = enter(node)?;
        // SAFETY: the caller's promise.
        let (notice, span) = unsafe {
            abi::put(out, 0)?;
            (abi::notice(notice)?, abi::span(buffer, capacity)?)
        };
        let operation = accept(&entered, message, |held| entered.node.accept_body(held, Memory::Span(span), notice))?;
        // SAFETY: as above.
        unsafe { abi::put(out, operation.0.into()) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_message_discard(node: u64, message: u64) -> i32 {
    call(|| {
        let (entered, message) = (enter(node)?, Number(number(message)?));
        let held = take(&entered, message)?;
        forget(&entered, message);
        entered.node.discard_body(held).map(|()| 0).map_err(errno)
    })
}
