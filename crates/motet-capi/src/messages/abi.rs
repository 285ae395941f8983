//! The structs of the section "messages" of `motet.h`, read and written no further than their `size`.

use super::{EBADF, EINVAL, Errno, channel, channel_handle, number};
use motet_api::node::{Channel, Completion, Context, Ended, From, Got, GroupId, Mode, Notice, Outgoing, Span, Status};
use motet_proto::message::Held;
use std::ffi::c_char;
use std::mem::{MaybeUninit, offset_of};

/// MOTET_HEADERS_MOST.
pub const HEADERS: usize = motet_proto::message::header_stack::MOST;

/// struct motet_node_options.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NodeOptions {
    size: usize,
    pub name: *const c_char,
    pub listen: *const c_char,
    pub flags: u32,
    pub longs: u32,
    pub channels: u32,
    pub reserved: u32,
    pub window: u64,
    pub eager_memory: u64,
    pub eager_network: u64,
    pub single_copy: u64,
    pub pool: u64,
    pub secret: *const c_char,
}

impl NodeOptions {
    /// Bytes of its earlier versions.
    pub const EARLIER: [usize; 2] = [offset_of!(NodeOptions, pool), offset_of!(NodeOptions, secret)];
}

/// struct motet_link_state.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LinkInfo {
    pub size: usize,
    pub peer: [u8; 16],
    pub driver: [u8; 16],
    pub gone: i32,
    pub reason: u32,
    pub channels: u32,
    pub receiving: u32,
    pub sending: u32,
    pub reserved: u32,
    pub records: u64,
    pub waiting: u64,
    pub inject_size: u64,
}

/// struct motet_reception.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Reception {
    size: usize,
    pub kind: u32,
    pub reserved: u32,
    pub with: u64,
}

/// struct motet_notice.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NoticeShape {
    size: usize,
    group: u64,
    context: u64,
    flags: u32,
    reserved: u32,
}

/// struct motet_completion.
#[repr(C)]
pub struct CompletionShape {
    size: usize,
    operation: u64,
    context: u64,
    status: i32,
    headers_length: u32,
    length: u64,
    full: u64,
    tag: u64,
    channel: u64,
    headers: [u8; HEADERS],
    lent: u64,
    body: *const u8,
}

/// Bytes of its first version.
const FIRST_END: usize = offset_of!(CompletionShape, lent);

/// struct motet_counts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct GroupCounts {
    pub size: usize,
    pub done: u64,
    pub failed: u64,
    pub under_way: u64,
}

/// struct motet_outgoing.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OutgoingShape {
    size: usize,
    channel: u64,
    tag: u64,
    headers: *const u8,
    headers_length: u32,
    mode: u32,
}

/// struct motet_source.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Source {
    size: usize,
    channel: u64,
    context: u64,
    pub tag: u64,
    pub ignore: u64,
}

/// struct motet_arrival.
#[repr(C)]
pub struct Arrival {
    pub size: usize,
    pub channel: u64,
    pub tag: u64,
    pub headers: *const u8,
    pub headers_length: usize,
    pub body: *const u8,
    pub length: usize,
    pub message: u64,
}

/// A struct of the caller's, all of which this version knows of.
///
/// # Safety
/// `from` is null or points to a `size_t`, and to as many bytes as that says; `T` begins with it.
#[inline(always)]
pub unsafe fn read<T: Copy>(from: *const T) -> Result<T, Errno> {
    // SAFETY: the caller's promise: not null, and whole when `size` says so.
    unsafe {
        if from.is_null() || *from.cast::<usize>() < size_of::<T>() {
            return Err(EINVAL);
        }
        Ok(from.read())
    }
}

/// The same of a struct that has grown since `earlier` versions of so many bytes: what the caller's has not is zeros.
///
/// # Safety
/// As of [`read`]; zeros are a `T`.
pub unsafe fn read_grown<T: Copy>(from: *const T, earlier: &[usize]) -> Result<T, Errno> {
    if from.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: the caller's promise: it begins with its size.
    let size = unsafe { *from.cast::<usize>() };
    if !earlier.contains(&size) && size < size_of::<T>() {
        return Err(EINVAL);
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller's promise, as above; what is not copied is zeros, which are a `T`.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), value.as_mut_ptr().cast(), size.min(size_of::<T>()));
        Ok(value.assume_init())
    }
}

/// Writes a struct into the caller's, whose `size` stays.
///
/// # Safety
/// As of [`read`], and it may be written.
pub unsafe fn write<T: Copy>(into: *mut T, value: T) -> Result<(), Errno> {
    // SAFETY: the caller's promise; the first word, `size`, is left out.
    unsafe {
        if into.is_null() || *into.cast::<usize>() < size_of::<T>() {
            return Err(EINVAL);
        }
        let word = size_of::<usize>();
        let (from, into) = ((&raw const value).cast::<u8>(), into.cast::<u8>());
        std::ptr::copy_nonoverlapping(from.add(word), into.add(word), size_of::<T>() - word);
    }
    Ok(())
}

/// A place for a handle.
///
/// # Safety
/// `out` is null or may be written.
#[inline(always)]
pub unsafe fn put(out: *mut u64, handle: u64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    match unsafe { out.as_mut() } {
        Some(out) => {
            *out = handle;
            Ok(())
        }
        None => Err(EINVAL),
    }
}

/// The same for an address.
///
/// # Safety
/// `out` is null or may be written.
pub unsafe fn put_pointer(out: *mut *mut u8, pointer: *mut u8) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { out.as_mut() }.map(|out| *out = pointer).ok_or(EINVAL)
}

/// Bytes of the caller's, to read.
///
/// # Safety
/// `length` bytes from `bytes` are readable during `'a`, unless there are none.
#[inline(always)]
pub unsafe fn bytes<'a>(bytes: *const u8, length: usize) -> Result<&'a [u8], Errno> {
    match (length, bytes.is_null()) {
        (0, _) => Ok(&[]),
        (length, false) if length <= isize::MAX as usize => {
            // SAFETY: the caller's promise; not null and of no impossible length.
            Ok(unsafe { std::slice::from_raw_parts(bytes, length) })
        }
        _ => Err(EINVAL),
    }
}

/// A buffer of the caller's, for an operation.
///
/// # Safety
/// As of [`Span::new`].
#[inline(always)]
pub unsafe fn span(buffer: *mut u8, capacity: usize) -> Result<Span, Errno> {
    if capacity > isize::MAX as usize || (capacity > 0 && buffer.is_null()) {
        return Err(EINVAL);
    }
    if capacity == 0 {
        return Ok(Span::EMPTY);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { Span::new(buffer, capacity) })
}

/// What to do at the end, by the caller's struct or none.
///
/// # Safety
/// As of [`read`].
#[inline(always)]
pub unsafe fn notice(from: *const NoticeShape) -> Result<Notice, Errno> {
    const QUIET: u32 = 1;
    if from.is_null() {
        return Ok(Notice::default());
    }
    // SAFETY: the caller's promise.
    let NoticeShape { group, context, flags, reserved, .. } = unsafe { read(from) }?;
    if flags & !QUIET != 0 || reserved != 0 || (flags & QUIET != 0 && group == 0) {
        return Err(EINVAL);
    }
    let group = if group == 0 { None } else { Some(GroupId(number(group)?)) };
    Ok(Notice { group, context, quiet: flags & QUIET != 0 })
}

/// Where a receive looks.
///
/// # Safety
/// As of [`read`].
#[inline(always)]
pub unsafe fn source(from: *const Source) -> Result<(From, u64, u64), Errno> {
    // SAFETY: the caller's promise.
    let Source { channel: one, context, tag, ignore, .. } = unsafe { read(from) }?;
    let from = match (one, context) {
        (0, 0) => return Err(EBADF),
        (0, any) => From::Any(Context::from_number(number(any)?)),
        (one, _) => From::Channel(channel(one)),
    };
    Ok((from, tag, ignore))
}

/// A message to send.
///
/// # Safety
/// As of [`read`]; the headers are readable during `'a`.
#[inline(always)]
pub unsafe fn outgoing<'a>(from: *const OutgoingShape) -> Result<Outgoing<'a>, Errno> {
    // SAFETY: the caller's promise, of the struct and of the headers.
    let (outgoing, headers) = unsafe {
        let outgoing = read(from)?;
        (outgoing, bytes(outgoing.headers, outgoing.headers_length as usize)?)
    };
    let mode = match outgoing.mode {
        0 => Mode::Automatic,
        1 => Mode::Inject,
        2 => Mode::Synchronous,
        _ => return Err(EINVAL),
    };
    Ok(Outgoing { channel: channel(outgoing.channel), tag: outgoing.tag, headers, mode })
}

/// How an operation has ended.
#[inline(always)]
pub fn status(status: Status) -> i32 {
    match status {
        Status::Done => 0,
        Status::Truncated => -90, // EMSGSIZE
        Status::Cancelled => -125,
        Status::Closed => -32,  // EPIPE
        Status::Full => -105,   // ENOBUFS
        Status::Broken => -104, // ECONNRESET
        Status::Denied => -13,  // EACCES
        Status::Outside => -34, // ERANGE
        Status::Unfit => -22,   // EINVAL
    }
}

/// The end of an operation, as C is told.
pub struct End<'a> {
    pub operation: u64,
    pub context: u64,
    pub status: i32,
    pub length: u64,
    pub full: u64,
    pub tag: u64,
    pub channel: Option<Channel>,
    pub headers: &'a [u8],
    /// Of operations: the message, if it was received in place. `None`: that is not told.
    pub in_place: Option<InPlace>,
}

/// A message in the program's hands.
#[derive(Clone, Copy)]
pub struct InPlace {
    /// Its handle; 0: there is none.
    pub lent: u64,
    /// Its body.
    pub body: *const u8,
}

impl Default for InPlace {
    fn default() -> Self {
        Self { lent: 0, body: std::ptr::null() }
    }
}

impl<'a> End<'a> {
    pub fn of(completion: &'a Completion) -> Self {
        let &Completion { operation, context, status: how, length, tag, full, ref headers, channel, .. } = completion;
        let (operation, status, in_place) = (operation.0.into(), status(how), None);
        Self { operation, context, status, length, full, tag, channel, headers, in_place }
    }

    #[inline(always)]
    pub fn of_ended(ended: &Ended<'a>) -> Self {
        let &Ended { operation, context, status: how, length, tag, full, headers, channel } = ended;
        let (operation, status, in_place) = (operation.0.into(), status(how), Some(InPlace::default()));
        Self { operation, context, status, length, full, tag, channel, headers, in_place }
    }

    #[inline(always)]
    pub fn of_call(got: &Got, headers: &'a [u8]) -> Self {
        let &Got { status: how, length, tag, full, channel } = got;
        let (status, in_place) = (status(how), None);
        Self { operation: 0, context: 0, status, length, full, tag, channel, headers, in_place }
    }

    pub fn of_held(held: &'a Held, channel: Channel) -> Self {
        let (length, full) = (held.length, held.length);
        let (tag, channel, headers) = (held.tag, Some(channel), held.headers());
        Self { operation: 0, context: 0, status: 0, length, full, tag, channel, headers, in_place: None }
    }

    /// Writes it, where there is so much room ([`check`]); a null pointer is nobody who wants to know.
    ///
    /// # Safety
    /// As of [`write`].
    #[inline(always)]
    pub unsafe fn write(&self, into: *mut CompletionShape, room: usize) {
        if into.is_null() {
            return;
        }
        let headers = &self.headers[..self.headers.len().min(HEADERS)];
        // SAFETY: the caller's promise; field by field, and of the headers no more than there are.
        unsafe {
            (*into).operation = self.operation;
            (*into).context = self.context;
            (*into).status = self.status;
            (*into).headers_length = headers.len() as u32;
            (*into).length = self.length;
            (*into).full = self.full;
            (*into).tag = self.tag;
            (*into).channel = self.channel.map_or(0, channel_handle);
            let place = (&raw mut (*into).headers).cast::<u8>();
            match <[u8; 8]>::try_from(headers) {
                Ok(word) => place.cast::<[u8; 8]>().write(word), // what a library has that has any, without a call
                Err(_) if headers.is_empty() => {}
                Err(_) => std::ptr::copy_nonoverlapping(headers.as_ptr(), place, headers.len()),
            }
            if let (Some(InPlace { lent, body }), true) = (self.in_place, tells_in_place(room)) {
                (*into).lent = lent;
                (*into).body = body;
            }
        }
    }
}

/// How much room there is for an end, before anything is done; null: nobody wants it, and there is none.
///
/// # Safety
/// As of [`read`].
#[inline(always)]
pub unsafe fn check(end: *const CompletionShape) -> Result<usize, Errno> {
    if end.is_null() {
        return Ok(0);
    }
    // SAFETY: the caller's promise.
    let room = unsafe { *end.cast::<usize>() };
    if room >= FIRST_END { Ok(room) } else { Err(EINVAL) }
}

/// Whether an end with so much room says where a message is that was received in place.
#[inline(always)]
pub fn tells_in_place(room: usize) -> bool {
    room >= size_of::<CompletionShape>()
}

/// The distance of ends in an array.
///
/// # Safety
/// As of [`read`].
pub unsafe fn distance(ends: *const CompletionShape) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let size = unsafe { check(ends) }?;
    if size > 0 && size.is_multiple_of(align_of::<CompletionShape>()) { Ok(size) } else { Err(EINVAL) }
}
