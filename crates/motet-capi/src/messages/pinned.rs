//! What programs do for every short message, on a node that they have pinned: nothing is looked up to enter it.
//!
//! What it is: three calls that do what `motet_message_post`, `motet_message_start` (of what is injected) and `motet_group_wait` (with
//! deadline 0) do, with the words of their structs as arguments. What it is not: another way. Whoever gets an error here gets the same there.

use super::operations::{Ends, group, tell_kept};
use super::shape::{self, CompletionShape, End};
use super::table::{self, Record, enter};
use super::{EAGAIN, EINVAL, Errno, call, channel, errno, number};
use motet_api::node::{Context, Ended, From, GroupId, Notice, Pin, Teller};
use std::ptr;

/// A node that stays, and whoever is favoured there: `motet.h` has one call at a time on it.
pub struct Pinned {
    record: &'static Record,
    pin: Pin,
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_node_pin(node: u64, out: *mut *mut Pinned) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { out.as_mut() }.ok_or(EINVAL)?;
        *out = ptr::null_mut();
        let record = table::pin(&enter(node)?)?;
        match record.node.pin() {
            Ok(pin) => *out = Box::into_raw(Box::new(Pinned { record, pin })),
            Err(error) => {
                table::unpin(record)?;
                return Err(errno(error));
            }
        }
        Ok(0)
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_node_unpin(node: *mut Pinned) -> i32 {
    call(|| {
        if node.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise: made by `motet_node_pin`, and not used any more.
        let Pinned { record, pin } = *unsafe { Box::from_raw(node) };
        record.node.unpin(pin);
        table::unpin(record).map(|()| 0)
    })
}

/// The node, and whoever is favoured there.
///
/// # Safety
/// It is null or pinned, and no other call on it is under way.
#[inline(always)]
unsafe fn pinned<'a>(pinned: *mut Pinned) -> Result<&'a mut Pinned, Errno> {
    // SAFETY: the caller's promise.
    unsafe { pinned.as_mut() }.ok_or(EINVAL)
}

/// # Safety
/// See `motet.h`: the buffer stays until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_pinned_post(
    node: *mut Pinned,
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
        let (node, span) = unsafe { (pinned(node)?, shape::span(buffer, capacity)?) };
        let from = match (on, any) {
            (0, any) => From::Any(Context::from_number(number(any)?)),
            (on, 0) => From::Channel(channel(on)),
            _ => return Err(EINVAL),
        };
        let notice = Notice { group: Some(group(told)?), context, quiet: false };
        // SAFETY: as above.
        unsafe { shape::put(out, 0)? };
        let Pinned { record, pin } = node;
        let posted = record.node.post_span_by(from, tag, ignore, span, notice, Some(pin)).map_err(errno)?;
        // SAFETY: as above.
        unsafe { shape::put(out, posted.0.into()) }.map(|()| 0)
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_pinned_inject(
    node: *mut Pinned,
    to: u64,
    tag: u64,
    headers: *const u8,
    headers_length: usize,
    body: *const u8,
    length: usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (node, headers, body) =
            unsafe { (pinned(node)?, shape::bytes(headers, headers_length)?, shape::bytes(body, length)?) };
        let Pinned { record, pin } = node;
        record.node.try_inject_one_by(channel(to), tag, headers, body, Some(pin)).map(|()| 0).map_err(errno)
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_pinned_take(node: *mut Pinned, of: u64, ends: *mut CompletionShape, most: u32) -> i32 {
    // SAFETY: the caller's promise.
    if let (Some(pinned), Ok(group)) = (unsafe { node.as_ref() }, u32::try_from(of))
        && pinned.record.node.is_vain(GroupId(group))
    {
        return -EAGAIN;
    }
    // SAFETY: as above.
    unsafe { take(node, of, ends, most) }
}

/// The same where something has come, or has not been looked for.
///
/// # Safety
/// As of the call.
#[inline(never)]
unsafe extern "C" fn take(node: *mut Pinned, of: u64, ends: *mut CompletionShape, most: u32) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (Pinned { record, pin }, group) = (unsafe { pinned(node) }?, group(of)?);
        // SAFETY: as above.
        let ends = Ends { first: ends, distance: unsafe { shape::distance(ends) }? };
        if most == 0 {
            return Err(EINVAL);
        }
        let most = most.min(i32::MAX as u32) as usize;
        let mut into = Into { ends, taken: 0 };
        let told = record.node.look_for_ends_of(group, most, &mut into, Some(pin));
        let mut taken = into.taken;
        if told.map_err(errno)?.1 && taken < most {
            // SAFETY: as above.
            taken = unsafe { tell_kept(record, group, ends, taken, most) };
        }
        if taken == 0 { Err(EAGAIN) } else { Ok(taken as i32) }
    })
}

/// The caller's ends, and how many of them are written: made where the caller has promised that there is room for as many as are told.
struct Into {
    ends: Ends,
    taken: usize,
}

impl Teller for Into {
    #[inline(always)]
    fn tell(&mut self, end: &Ended<'_>) {
        // SAFETY: whoever made this has promised that there is room.
        unsafe { End::of_ended(end).write(self.ends.at(self.taken), self.ends.distance) };
        self.taken += 1;
    }
}
