//! The structs of the section "messages" of `motet.h`. They are read and written no further than their `size`.

use super::{EBADF, EINVAL, Errno, channel, channel_handle, number};
use motet_api::node::{
    Channel, Completion, CompletionOptions, CompletionRef, Context, CqId, Mode, Outgoing, ReceiveResult, RecvFrom,
    Status, UserMemory,
};
use motet_proto::message::UnexpectedMessage;
use std::ffi::c_char;
use std::mem::{MaybeUninit, offset_of};

/// MOTET_HEADERS_MAX.
pub const HEADERS_MAX: usize = motet_proto::message::header_stack::MAX_HEADERS_BYTES;

/// struct motet_node_options.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawNodeOptions {
    size: usize,
    pub name: *const c_char,
    pub listen: *const c_char,
    pub flags: u32,
    pub max_rendezvous: u32,
    pub max_channels: u32,
    pub reserved: u32,
    pub window: u64,
    pub eager_max_shm: u64,
    pub eager_max_network: u64,
    pub single_copy_min: u64,
    pub pool_max: u64,
    pub secret: *const c_char,
}

impl RawNodeOptions {
    /// Sizes of earlier versions of the struct.
    pub const EARLIER_SIZES: [usize; 2] = [offset_of!(RawNodeOptions, pool_max), offset_of!(RawNodeOptions, secret)];
}

/// struct motet_link_state.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawLinkState {
    pub size: usize,
    pub peer: [u8; 16],
    pub driver: [u8; 16],
    pub down: i32,
    pub reason: u32,
    pub channels: u32,
    pub rendezvous_receives: u32,
    pub rendezvous_sends: u32,
    pub reserved: u32,
    pub record_bytes: u64,
    pub unexpected_bytes: u64,
    pub inject_size: u64,
}

/// struct motet_receive_mode.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawReceiveMode {
    size: usize,
    pub kind: u32,
    pub reserved: u32,
    pub target: u64,
}

/// struct motet_completion_options.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawCompletionOptions {
    size: usize,
    cq: u64,
    user_data: u64,
    flags: u32,
    reserved: u32,
}

/// struct motet_completion.
#[repr(C)]
pub struct RawCompletion {
    size: usize,
    operation: u64,
    user_data: u64,
    status: i32,
    headers_length: u32,
    length: u64,
    message_length: u64,
    tag: u64,
    channel: u64,
    headers: [u8; HEADERS_MAX],
    loaned: u64,
    body: *const u8,
}

/// Bytes of the struct's first version.
const FIRST_VERSION_SIZE: usize = offset_of!(RawCompletion, loaned);

/// struct motet_cq_counters.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawCqCounters {
    pub size: usize,
    pub succeeded: u64,
    pub failed: u64,
    pub outstanding: u64,
}

/// struct motet_outgoing.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawOutgoing {
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
pub struct RawSource {
    size: usize,
    channel: u64,
    context: u64,
    pub tag: u64,
    pub ignore: u64,
}

/// struct motet_arrival.
#[repr(C)]
pub struct RawArrival {
    pub size: usize,
    pub channel: u64,
    pub tag: u64,
    pub headers: *const u8,
    pub headers_length: usize,
    pub body: *const u8,
    pub length: usize,
    pub message: u64,
}

/// Reads a caller's struct, which must have at least the size of this version's.
///
/// # Safety
/// `from` is null or points to a struct that begins with its size as a `size_t`; `T` begins with that field.
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

/// Reads a struct that has grown since versions of the sizes `earlier`. Fields that the caller's struct does not have read as zeros.
///
/// # Safety
/// The requirements of [`read`]; all zeros is a valid `T`.
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
    // SAFETY: the caller's promise; the bytes that are not copied are zeros, which are valid in a `T`.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), value.as_mut_ptr().cast(), size.min(size_of::<T>()));
        Ok(value.assume_init())
    }
}

/// Writes a struct to the caller's, except for its `size` field.
///
/// # Safety
/// The requirements of [`read`], and it may be written.
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

/// Writes a handle to the caller's variable.
///
/// # Safety
/// `out` is null or may be written.
#[inline(always)]
pub unsafe fn write_handle(out: *mut u64, handle: u64) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    match unsafe { out.as_mut() } {
        Some(out) => {
            *out = handle;
            Ok(())
        }
        None => Err(EINVAL),
    }
}

/// Writes an address to the caller's variable.
///
/// # Safety
/// `out` is null or may be written.
pub unsafe fn write_pointer(out: *mut *mut u8, pointer: *mut u8) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { out.as_mut() }.map(|out| *out = pointer).ok_or(EINVAL)
}

/// The caller's bytes as a slice.
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

/// The caller's buffer as memory of an operation.
///
/// # Safety
/// The requirements of [`UserMemory::new`].
#[inline(always)]
pub unsafe fn span(buffer: *mut u8, capacity: usize) -> Result<UserMemory, Errno> {
    if capacity > isize::MAX as usize || (capacity > 0 && buffer.is_null()) {
        return Err(EINVAL);
    }
    if capacity == 0 {
        return Ok(UserMemory::EMPTY);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { UserMemory::new(buffer, capacity) })
}

/// The completion options of a call; null stands for the default ones.
///
/// # Safety
/// The requirements of [`read`].
#[inline(always)]
pub unsafe fn completion_options(from: *const RawCompletionOptions) -> Result<CompletionOptions, Errno> {
    const ERRORS_ONLY: u32 = 1;
    if from.is_null() {
        return Ok(CompletionOptions::default());
    }
    // SAFETY: the caller's promise.
    let RawCompletionOptions { cq, user_data, flags, reserved, .. } = unsafe { read(from) }?;
    if flags & !ERRORS_ONLY != 0 || reserved != 0 || (flags & ERRORS_ONLY != 0 && cq == 0) {
        return Err(EINVAL);
    }
    let cq = if cq == 0 { None } else { Some(CqId(number(cq)?)) };
    Ok(CompletionOptions { cq, user_data, errors_only: flags & ERRORS_ONLY != 0 })
}

/// The source, tag and ignored bits of a receive.
///
/// # Safety
/// The requirements of [`read`].
#[inline(always)]
pub unsafe fn source(from: *const RawSource) -> Result<(RecvFrom, u64, u64), Errno> {
    // SAFETY: the caller's promise.
    let RawSource { channel: one, context, tag, ignore, .. } = unsafe { read(from) }?;
    let from = match (one, context) {
        (0, 0) => return Err(EBADF),
        (0, any) => RecvFrom::Any(Context::from_number(number(any)?)),
        (one, _) => RecvFrom::Channel(channel(one)),
    };
    Ok((from, tag, ignore))
}

/// The description of a message to send.
///
/// # Safety
/// The requirements of [`read`]; the headers are readable during `'a`.
#[inline(always)]
pub unsafe fn outgoing<'a>(from: *const RawOutgoing) -> Result<Outgoing<'a>, Errno> {
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

/// The status of a completion as C sees it.
#[inline(always)]
pub fn status(status: Status) -> i32 {
    match status {
        Status::Done => 0,
        Status::Truncated => -90, // EMSGSIZE
        Status::Cancelled => -125,
        Status::Closed => -32,        // EPIPE
        Status::Exhausted => -105,    // ENOBUFS
        Status::LinkDown => -104,     // ECONNRESET
        Status::AccessDenied => -13,  // EACCES
        Status::OutOfBounds => -34,   // ERANGE
        Status::InvalidAtomic => -22, // EINVAL
    }
}

/// The values of a `struct motet_completion`.
pub struct CompletionFields<'a> {
    pub operation: u64,
    pub user_data: u64,
    pub status: i32,
    pub length: u64,
    pub message_length: u64,
    pub tag: u64,
    pub channel: Option<Channel>,
    pub headers: &'a [u8],
    /// Of operations: the message that was received in place. `None`: the fields `loaned` and `body` are not written.
    pub in_place: Option<InPlaceBody>,
}

/// A message that was received in place.
#[derive(Clone, Copy)]
pub struct InPlaceBody {
    /// Its handle; 0: there is nothing to release.
    pub loaned: u64,
    /// Its body.
    pub body: *const u8,
}

impl Default for InPlaceBody {
    fn default() -> Self {
        Self { loaned: 0, body: std::ptr::null() }
    }
}

impl<'a> CompletionFields<'a> {
    pub fn of(completion: &'a Completion) -> Self {
        let &Completion {
            operation, user_data, status: how, length, tag, message_length, ref headers, channel, ..
        } = completion;
        let (operation, status, in_place) = (operation.0.into(), status(how), None);
        Self { operation, user_data, status, length, message_length, tag, channel, headers, in_place }
    }

    #[inline(always)]
    pub fn of_completed(ended: &CompletionRef<'a>) -> Self {
        let &CompletionRef { operation, user_data, status: how, length, tag, message_length, headers, channel } = ended;
        let (operation, status, in_place) = (operation.0.into(), status(how), Some(InPlaceBody::default()));
        Self { operation, user_data, status, length, message_length, tag, channel, headers, in_place }
    }

    #[inline(always)]
    pub fn of_call(got: &ReceiveResult, headers: &'a [u8]) -> Self {
        let &ReceiveResult { status: how, length, tag, message_length, channel } = got;
        let (status, in_place) = (status(how), None);
        Self { operation: 0, user_data: 0, status, length, message_length, tag, channel, headers, in_place }
    }

    pub fn of_unexpected(held: &'a UnexpectedMessage, channel: Channel) -> Self {
        let (length, message_length) = (held.length, held.length);
        let (tag, channel, headers) = (held.tag, Some(channel), held.headers());
        Self { operation: 0, user_data: 0, status: 0, length, message_length, tag, channel, headers, in_place: None }
    }

    /// Writes the fields that fit into `room` bytes ([`check`]). Does nothing if `into` is null.
    ///
    /// # Safety
    /// The requirements of [`write`].
    #[inline(always)]
    pub unsafe fn write(&self, into: *mut RawCompletion, room: usize) {
        if into.is_null() {
            return;
        }
        let headers = &self.headers[..self.headers.len().min(HEADERS_MAX)];
        // SAFETY: the caller's promise; field by field, and of the headers no more than there are.
        unsafe {
            (*into).operation = self.operation;
            (*into).user_data = self.user_data;
            (*into).status = self.status;
            (*into).headers_length = headers.len() as u32;
            (*into).length = self.length;
            (*into).message_length = self.message_length;
            (*into).tag = self.tag;
            (*into).channel = self.channel.map_or(0, channel_handle);
            let place = (&raw mut (*into).headers).cast::<u8>();
            match <[u8; 8]>::try_from(headers) {
                Ok(word) => place.cast::<[u8; 8]>().write(word), // the usual length of a library's header: copied without a call
                Err(_) if headers.is_empty() => {}
                Err(_) => std::ptr::copy_nonoverlapping(headers.as_ptr(), place, headers.len()),
            }
            if let (Some(InPlaceBody { loaned, body }), true) = (self.in_place, has_loan_fields(room)) {
                (*into).loaned = loaned;
                (*into).body = body;
            }
        }
    }
}

/// The size of the caller's completion struct, checked before the call does anything; 0 if the pointer is null.
///
/// # Safety
/// The requirements of [`read`].
#[inline(always)]
pub unsafe fn check(completion: *const RawCompletion) -> Result<usize, Errno> {
    if completion.is_null() {
        return Ok(0);
    }
    // SAFETY: the caller's promise.
    let room = unsafe { *completion.cast::<usize>() };
    if room >= FIRST_VERSION_SIZE { Ok(room) } else { Err(EINVAL) }
}

/// Whether a completion struct of `room` bytes has the fields `loaned` and `body`.
#[inline(always)]
pub fn has_loan_fields(room: usize) -> bool {
    room >= size_of::<RawCompletion>()
}

/// The distance of completions in the caller's array, bytes.
///
/// # Safety
/// The requirements of [`read`].
pub unsafe fn distance(array: *const RawCompletion) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let size = unsafe { check(array) }?;
    if size > 0 && size.is_multiple_of(align_of::<RawCompletion>()) { Ok(size) } else { Err(EINVAL) }
}
