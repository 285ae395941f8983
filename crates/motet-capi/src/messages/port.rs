//! Ports: the calls that a communication library makes for every message. A port is resolved once, so a call looks up no node.
//!
//! These calls do what `motet_message_post`, `motet_message_send_start` (of an injected message) and `motet_cq_wait` (with deadline 0) do, and
//! fail as they do. Their arguments are integers and pointers instead of structs. Unnamed receives complete as libfabric's entries.

use super::abi::{self, CompletionFields, RawCompletion};
use super::completions::{CompletionArray, cq, deliver_owned};
use super::node_entry::NodeEntry;
use super::node_handles::{self, enter};
use super::{EAGAIN, EINVAL, Errno, call, channel, errno, number};
use motet_api::node::{
    Bias, Buffer, CompletionOptions, CompletionRef, CompletionSink, Context, OperationMemory, RecvFrom,
};
use std::ffi::c_void;
use std::ptr;

/// A node, which cannot be closed while this exists, with the bias of its lock. `motet.h` allows one call at a time on a port.
pub struct Port {
    entry: &'static NodeEntry,
    bias: Bias,
    flags: [u64; 2],
}

/// `struct motet_port_completion`: as libfabric's `struct fi_cq_tagged_entry`.
#[repr(C)]
pub struct RawPortCompletion {
    op_context: *mut c_void,
    flags: u64,
    length: usize,
    buffer: *mut c_void,
    data: u64,
    tag: u64,
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_open(node: u64, flags: *const [u64; 2], out: *mut *mut Port) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (flags, out) = unsafe { (*flags.as_ref().ok_or(EINVAL)?, out.as_mut().ok_or(EINVAL)?) };
        *out = ptr::null_mut();
        let entry = node_handles::pin(&enter(node)?)?;
        match entry.node.bias() {
            Ok(bias) => *out = Box::into_raw(Box::new(Port { entry, bias, flags })),
            Err(error) => {
                node_handles::unpin(entry)?;
                return Err(errno(error));
            }
        }
        Ok(0)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_close(port: *mut Port) -> i32 {
    call(|| {
        if port.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise: made by `motet_port_open`, and not used any more.
        let Port { entry, bias, .. } = *unsafe { Box::from_raw(port) };
        entry.node.end_bias(bias);
        node_handles::unpin(entry).map(|()| 0)
    })
}

/// The port behind the caller's pointer.
///
/// # Safety
/// It is null or open, and no other call on it is under way.
#[inline(always)]
unsafe fn open<'a>(port: *mut Port) -> Result<&'a mut Port, Errno> {
    // SAFETY: the caller's promise.
    unsafe { port.as_mut() }.ok_or(EINVAL)
}

/// The source that a receive names: a channel or, if that is 0, a context.
#[inline(always)]
fn from(on: u64, any: u64) -> Result<RecvFrom, Errno> {
    match (on, any) {
        (0, any) => Ok(RecvFrom::Any(Context::from_number(number(any)?))),
        (on, 0) => Ok(RecvFrom::Channel(channel(on))),
        _ => Err(EINVAL),
    }
}

/// # Safety
/// The caller keeps what `motet.h` requires: the buffer stays valid until the receive completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_post(
    port: *mut Port,
    on: u64,
    any: u64,
    tag: u64,
    ignore: u64,
    buffer: *mut u8,
    capacity: usize,
    queue: u64,
    user_data: u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (Port { entry, bias, .. }, span) = unsafe { (open(port)?, abi::span(buffer, capacity)?) };
        let (selector, buffer) = ((from(on, any)?, tag, ignore), Buffer { span, user_data });
        entry.node.post_unrecorded(selector, buffer, cq(queue)?, Some(bias)).map(|()| 0).map_err(errno)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires: the buffer stays valid until the operation completes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_post_operation(
    port: *mut Port,
    on: u64,
    any: u64,
    tag: u64,
    ignore: u64,
    buffer: *mut u8,
    capacity: usize,
    queue: u64,
    user_data: u64,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (Port { entry, bias, .. }, span) = unsafe { (open(port)?, abi::span(buffer, capacity)?) };
        let options = CompletionOptions { cq: Some(cq(queue)?), user_data, errors_only: false };
        // SAFETY: as above.
        unsafe { abi::write_handle(out, 0)? };
        let begun =
            entry.node.post_with((from(on, any)?, tag, ignore), OperationMemory::User(span), options, Some(bias));
        // SAFETY: as above.
        unsafe { abi::write_handle(out, begun.map_err(errno)?.0.into()) }.map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_cancel(port: *mut Port, queue: u64, on: u64, any: u64, user_data: u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let Port { entry, .. } = unsafe { open(port)? };
        entry.node.cancel_unrecorded(cq(queue)?, from(on, any)?, user_data, false).map(i32::from).map_err(errno)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_abandon(port: *mut Port, queue: u64, on: u64, any: u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let Port { entry, .. } = unsafe { open(port)? };
        entry.node.abandon_unrecorded(cq(queue)?, from(on, any)?).map(|()| 0).map_err(errno)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_send(
    port: *mut Port,
    to: u64,
    tag: u64,
    headers: *const u8,
    headers_length: usize,
    body: *const u8,
    length: usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (Port { entry, bias, .. }, headers, body) =
            unsafe { (open(port)?, abi::bytes(headers, headers_length)?, abi::bytes(body, length)?) };
        entry.node.try_inject_with(channel(to), tag, headers, body, Some(bias)).map(|()| 0).map_err(errno)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_poll(
    port: *mut Port,
    queue: u64,
    completions: *mut RawPortCompletion,
    max: u32,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let Port { entry, bias, flags } = unsafe { open(port) }?;
        if max == 0 || completions.is_null() {
            return Err(EINVAL);
        }
        let mut into = PortCompletions { next: completions, taken: 0, flags };
        let others = entry.node.poll_cq_fast(cq(queue)?, max as usize, &mut into, Some(bias)).map_err(errno)?;
        match into.taken {
            0 if others => Ok(0),
            0 => Err(EAGAIN),
            taken => Ok(taken as i32),
        }
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_poll_full(
    port: *mut Port,
    queue: u64,
    completions: *mut RawCompletion,
    max: u32,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (Port { entry, bias, .. }, cq) = (unsafe { open(port) }?, cq(queue)?);
        // SAFETY: as above.
        let completions = CompletionArray { first: completions, distance: unsafe { abi::distance(completions) }? };
        if max == 0 {
            return Err(EINVAL);
        }
        let max = max.min(i32::MAX as u32) as usize;
        let mut into = FullCompletions { completions, taken: 0 };
        let polled = entry.node.poll_cq_with(cq, max, &mut into, Some(bias));
        let mut taken = into.taken;
        if polled.map_err(errno)?.1 && taken < max {
            // SAFETY: as above.
            taken = unsafe { deliver_owned(entry, cq, completions, taken, max) };
        }
        if taken == 0 { Err(EAGAIN) } else { Ok(taken as i32) }
    })
}

/// The caller's array of completions, and how many of them are written. The caller has promised room for as many as it asks for.
struct FullCompletions {
    completions: CompletionArray,
    taken: usize,
}

impl CompletionSink for FullCompletions {
    #[inline(always)]
    fn report(&mut self, end: &CompletionRef<'_>) {
        // SAFETY: the caller of `motet_port_poll_full` has promised room for this completion.
        unsafe {
            CompletionFields::of_completed(end).write(self.completions.at(self.taken), self.completions.distance)
        };
        self.taken += 1;
    }
}

/// The caller's array of entries: the next one, and how many are written. The caller has promised room for as many as it asks for.
struct PortCompletions<'a> {
    next: *mut RawPortCompletion,
    taken: usize,
    flags: &'a [u64; 2],
}

impl CompletionSink for PortCompletions<'_> {
    #[inline(always)]
    fn takes(&self, named: bool, whole: bool, headers: &[u8]) -> bool {
        !named && whole && matches!(headers.len(), 0 | 8)
    }

    #[inline(always)]
    fn report(&mut self, end: &CompletionRef<'_>) {
        let data = end.headers.first_chunk().map(|data| u64::from_ne_bytes(*data));
        // SAFETY: the caller of `motet_port_poll` has promised room for this entry.
        unsafe {
            self.next.write(RawPortCompletion {
                op_context: ptr::with_exposed_provenance_mut(end.user_data as usize),
                flags: self.flags[usize::from(data.is_some())],
                length: end.length as usize,
                buffer: ptr::null_mut(),
                data: data.unwrap_or(0),
                tag: end.tag,
            });
            self.next = self.next.add(1);
        }
        self.taken += 1;
    }
}
