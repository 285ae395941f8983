//! Ports: the calls that a communication library makes for every message. A port is resolved once, so a call looks up no node.
//!
//! These calls do what `motet_message_post`, `motet_message_start` (of an injected message) and `motet_group_wait` (with deadline 0) do, and
//! fail as they do. Their arguments are plain words instead of structs. Receives without a name are reported as libfabric's completions.

use super::abi::{self, CompletionShape, End};
use super::completions::{Ends, group, tell_kept};
use super::node_handles::{self, Record, enter};
use super::{EAGAIN, EINVAL, Errno, call, channel, errno, number};
use motet_api::node::{Bias, Buffer, Context, Ended, From, Memory, Notice, Teller};
use std::ffi::c_void;
use std::ptr;

/// A node, which cannot be closed while this exists, with the bias of its lock. `motet.h` allows one call at a time on a port.
pub struct Port {
    record: &'static Record,
    bias: Bias,
    flags: [u64; 2],
}

/// `struct motet_port_end`: as libfabric's `struct fi_cq_tagged_entry`.
#[repr(C)]
pub struct EntryShape {
    context: *mut c_void,
    flags: u64,
    length: usize,
    buffer: *mut c_void,
    data: u64,
    tag: u64,
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_open(node: u64, flags: *const [u64; 2], out: *mut *mut Port) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (flags, out) = unsafe { (*flags.as_ref().ok_or(EINVAL)?, out.as_mut().ok_or(EINVAL)?) };
        *out = ptr::null_mut();
        let record = node_handles::pin(&enter(node)?)?;
        match record.node.bias() {
            Ok(bias) => *out = Box::into_raw(Box::new(Port { record, bias, flags })),
            Err(error) => {
                node_handles::unpin(record)?;
                return Err(errno(error));
            }
        }
        Ok(0)
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_close(port: *mut Port) -> i32 {
    call(|| {
        if port.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise: made by `motet_port_open`, and not used any more.
        let Port { record, bias, .. } = *unsafe { Box::from_raw(port) };
        record.node.end_bias(bias);
        node_handles::unpin(record).map(|()| 0)
    })
}

/// The port.
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
fn from(on: u64, any: u64) -> Result<From, Errno> {
    match (on, any) {
        (0, any) => Ok(From::Any(Context::from_number(number(any)?))),
        (on, 0) => Ok(From::Channel(channel(on))),
        _ => Err(EINVAL),
    }
}

/// # Safety
/// See `motet.h`: the buffer stays until the receive has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_post(
    port: *mut Port,
    on: u64,
    any: u64,
    tag: u64,
    ignore: u64,
    buffer: *mut u8,
    capacity: usize,
    told: u64,
    context: u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (Port { record, bias, .. }, span) = unsafe { (open(port)?, abi::span(buffer, capacity)?) };
        let (selector, buffer) = ((from(on, any)?, tag, ignore), Buffer { span, context });
        record.node.post_bare(selector, buffer, group(told)?, Some(bias)).map(|()| 0).map_err(errno)
    })
}

/// # Safety
/// See `motet.h`: the buffer stays until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_begin(
    port: *mut Port,
    on: u64,
    any: u64,
    tag: u64,
    ignore: u64,
    buffer: *mut u8,
    capacity: usize,
    told: u64,
    context: u64,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (Port { record, bias, .. }, span) = unsafe { (open(port)?, abi::span(buffer, capacity)?) };
        let notice = Notice { group: Some(group(told)?), context, quiet: false };
        // SAFETY: as above.
        unsafe { abi::put(out, 0)? };
        let begun = record.node.post_by((from(on, any)?, tag, ignore), Memory::Span(span), notice, Some(bias));
        // SAFETY: as above.
        unsafe { abi::put(out, begun.map_err(errno)?.0.into()) }.map(|()| 0)
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_cancel(port: *mut Port, told: u64, on: u64, any: u64, context: u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let Port { record, .. } = unsafe { open(port)? };
        record.node.cancel_bare(group(told)?, from(on, any)?, context, false).map(i32::from).map_err(errno)
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_abandon(port: *mut Port, told: u64, on: u64, any: u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let Port { record, .. } = unsafe { open(port)? };
        record.node.abandon_bare(group(told)?, from(on, any)?).map(|()| 0).map_err(errno)
    })
}

/// # Safety
/// See `motet.h`.
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
        let (Port { record, bias, .. }, headers, body) =
            unsafe { (open(port)?, abi::bytes(headers, headers_length)?, abi::bytes(body, length)?) };
        record.node.try_inject_one_by(channel(to), tag, headers, body, Some(bias)).map(|()| 0).map_err(errno)
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_take(port: *mut Port, of: u64, ends: *mut EntryShape, most: u32) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let Port { record, bias, flags } = unsafe { open(port) }?;
        if most == 0 || ends.is_null() {
            return Err(EINVAL);
        }
        let mut into = Entries { next: ends, taken: 0, flags };
        let others = record.node.take_bare_ends(group(of)?, most as usize, &mut into, Some(bias)).map_err(errno)?;
        match into.taken {
            0 if others => Ok(0),
            0 => Err(EAGAIN),
            taken => Ok(taken as i32),
        }
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_port_ends(port: *mut Port, of: u64, ends: *mut CompletionShape, most: u32) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (Port { record, bias, .. }, group) = (unsafe { open(port) }?, group(of)?);
        // SAFETY: as above.
        let ends = Ends { first: ends, distance: unsafe { abi::distance(ends) }? };
        if most == 0 {
            return Err(EINVAL);
        }
        let most = most.min(i32::MAX as u32) as usize;
        let mut into = Completions { ends, taken: 0 };
        let told = record.node.take_ends_by(group, most, &mut into, Some(bias));
        let mut taken = into.taken;
        if told.map_err(errno)?.1 && taken < most {
            // SAFETY: as above.
            taken = unsafe { tell_kept(record, group, ends, taken, most) };
        }
        if taken == 0 { Err(EAGAIN) } else { Ok(taken as i32) }
    })
}

/// The caller's array of completions, and how many of them are written. The caller has promised room for as many as it asks for.
struct Completions {
    ends: Ends,
    taken: usize,
}

impl Teller for Completions {
    #[inline(always)]
    fn tell(&mut self, end: &Ended<'_>) {
        // SAFETY: the caller of `motet_port_ends` has promised room for this completion.
        unsafe { End::of_ended(end).write(self.ends.at(self.taken), self.ends.distance) };
        self.taken += 1;
    }
}

/// The caller's array of entries: the next one, and how many are written. The caller has promised room for as many as it asks for.
struct Entries<'a> {
    next: *mut EntryShape,
    taken: usize,
    flags: &'a [u64; 2],
}

impl Teller for Entries<'_> {
    #[inline(always)]
    fn takes(&self, named: bool, whole: bool, headers: &[u8]) -> bool {
        !named && whole && matches!(headers.len(), 0 | 8)
    }

    #[inline(always)]
    fn tell(&mut self, end: &Ended<'_>) {
        let data = end.headers.first_chunk().map(|data| u64::from_ne_bytes(*data));
        // SAFETY: the caller of `motet_port_take` has promised room for this entry.
        unsafe {
            self.next.write(EntryShape {
                context: ptr::with_exposed_provenance_mut(end.context as usize),
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
