//! Buffers that are filled, and readers of what has come.

use super::handles::{self, OpenBuffer};
use super::startpoints::{give, startpoint};
use super::{EBADMSG, errno};
use crate::messages::abi::{bytes, write_handle};
use crate::messages::nodes::text;
use crate::messages::{EINVAL, Errno, call};
use crate::{EPROTO, guard};
use motet_rsr::{Buffer, Element, Format, Malformed, Reader, Reply, Request};
use std::ffi::c_char;
use std::ptr;
use std::sync::PoisonError;

/// struct motet_rsr_reader: the data of a request, during its handler, or of a reply.
pub struct RawReader {
    data: *const [u8],
    at: usize,
    format: Format,
    /// The request; null for a reply.
    request: *mut Request<'static>,
    _reply: Option<Reply>,
}

impl RawReader {
    /// A reader of a request. It may be used as long as the request is borrowed.
    pub fn of_request(request: &mut Request<'_>) -> Self {
        let (data, format) = (ptr::from_ref(request.bytes()), request.reader().format());
        // The lifetime is erased: `motet_rsr.h` says that the reader is valid during its handler.
        Self { data, at: 0, format, request: ptr::from_mut(request).cast(), _reply: None }
    }

    /// A reader of a reply, which it owns.
    pub fn of_reply(reply: Reply) -> Self {
        // The data stay where they are when the reply is moved: they are on the heap.
        let (data, format) = (ptr::from_ref(reply.bytes()), reply.reader().format());
        Self { data, at: 0, format, request: ptr::null_mut(), _reply: Some(reply) }
    }

    /// The request, if it is one.
    ///
    /// # Safety
    /// The handler of the request has not returned, and the request is used by this thread alone.
    pub unsafe fn request(&mut self) -> Option<&mut Request<'static>> {
        // SAFETY: the caller's promise: the pointer is that of `of_request`.
        unsafe { self.request.as_mut() }
    }

    /// Reads something, and goes on behind it.
    unsafe fn read<T>(&mut self, with: impl FnOnce(&mut Reader<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
        // SAFETY: the caller's promise: the request, or the reply that this owns, is there.
        let data: &[u8] = unsafe { &*self.data };
        let mut reader = Reader::new(&data[self.at..], self.format);
        let got = with(&mut reader)?;
        self.at = data.len() - reader.remaining();
        Ok(got)
    }
}

fn bad(_: Malformed) -> Errno {
    EBADMSG
}

/// Runs `$with` for the type of numbers `$type`.
macro_rules! for_type {
    ($type:expr, $with:ident ( $($argument:expr),* )) => {
        match $type {
            0 => $with::<u8>($($argument),*),
            1 => $with::<i8>($($argument),*),
            2 => $with::<u16>($($argument),*),
            3 => $with::<i16>($($argument),*),
            4 => $with::<u32>($($argument),*),
            5 => $with::<i32>($($argument),*),
            6 => $with::<u64>($($argument),*),
            7 => $with::<i64>($($argument),*),
            8 => $with::<f32>($($argument),*),
            9 => $with::<f64>($($argument),*),
            _ => Err(EINVAL),
        }
    };
}
/// MOTET_RSR_LONG.
const LONG: u32 = 10;

/// Bytes of a number.
fn size_of_type(of: u32) -> Result<usize, Errno> {
    fn size<T: Element>() -> Result<usize, Errno> {
        Ok(T::SIZE)
    }
    if of == LONG { Ok(Format::HERE.long.into()) } else { for_type!(of, size()) }
}

/// Runs `with` on the buffer of a handle.
fn with_buffer(handle: u64, with: impl FnOnce(&mut Buffer<'static>) -> Result<(), Errno>) -> i32 {
    call(|| {
        let found = handles::find::<OpenBuffer>(handle)?;
        let mut buffer = found.lock().unwrap_or_else(PoisonError::into_inner);
        with(&mut buffer).map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_buffer_new(out: *mut u64) -> i32 {
    // SAFETY: the caller's promise.
    call(|| unsafe { write_handle(out, handles::insert(OpenBuffer::default())?) }.map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_rsr_buffer_free(buffer: u64) -> i32 {
    call(|| handles::remove_if::<OpenBuffer>(buffer, |_| Ok(())).map(|_| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_rsr_buffer_clear(buffer: u64) -> i32 {
    with_buffer(buffer, |buffer| {
        buffer.clear();
        Ok(())
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_put(buffer: u64, of: u32, numbers: *const u8, count: usize) -> i32 {
    with_buffer(buffer, |buffer| {
        let length = count.checked_mul(size_of_type(of)?).ok_or(EINVAL)?;
        // SAFETY: the caller's promise.
        buffer.put_raw(unsafe { bytes(numbers, length) }?);
        Ok(())
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_put_array(buffer: u64, of: u32, numbers: *const u8, count: usize) -> i32 {
    with_buffer(buffer, |buffer| {
        if of == LONG {
            return Err(EINVAL);
        }
        let length = count.checked_mul(size_of_type(of)?).ok_or(EINVAL)?;
        // SAFETY: the caller's promise: the array stays until the buffer is cleared, or used no more.
        let numbers: &'static [u8] = unsafe { bytes(numbers, length) }?;
        buffer.put(count as u64).borrow(numbers);
        Ok(())
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_put_string(buffer: u64, string: *const c_char) -> i32 {
    with_buffer(buffer, |buffer| {
        // SAFETY: the caller's promise.
        buffer.put_str(unsafe { text(string) }?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_rsr_put_startpoint(buffer: u64, handle: u64) -> i32 {
    with_buffer(buffer, |buffer| {
        buffer.put_startpoint(&startpoint(handle)?);
        Ok(())
    })
}

/// Gets numbers one after the other.
///
/// # Safety
/// `count` numbers may be written to `into`.
unsafe fn get_numbers<T: Element>(reader: &mut Reader<'_>, into: *mut u8, count: usize) -> Result<(), Errno> {
    if count.checked_mul(T::SIZE).is_none_or(|length| length > reader.remaining()) {
        return Err(EBADMSG);
    }
    for at in 0..count {
        let number = reader.get::<T>().map_err(bad)?;
        // SAFETY: the caller's promise.
        unsafe { into.cast::<T>().add(at).write_unaligned(number) };
    }
    Ok(())
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_get(reader: *mut RawReader, of: u32, into: *mut u8, count: usize) -> i32 {
    call(|| {
        if into.is_null() && count > 0 {
            return Err(EINVAL);
        }
        /// Gets C's long.
        unsafe fn get_longs(reader: &mut Reader<'_>, into: *mut u8, count: usize) -> Result<(), Errno> {
            for at in 0..count {
                let number = std::ffi::c_long::try_from(reader.get_long().map_err(bad)?).map_err(|_| 34)?;
                // SAFETY: the caller's promise: `count` numbers may be written.
                unsafe { into.cast::<std::ffi::c_long>().add(at).write_unaligned(number) };
            }
            Ok(())
        }
        // SAFETY: the caller's promise.
        unsafe {
            let reader = reader.as_mut().ok_or(EINVAL)?;
            reader.read(|reader| match of {
                LONG => get_longs(reader, into, count),
                of => for_type!(of, get_numbers(reader, into, count)),
            })
        }
        .map(|()| 0)
    })
}

/// Gets an array, if there is room.
///
/// # Safety
/// `room` numbers may be written to `into`, unless it is null.
unsafe fn get_array<T: Element>(reader: &mut Reader<'_>, into: *mut u8, room: usize) -> Result<usize, Errno> {
    let mut ahead = reader.clone();
    let count = usize::try_from(ahead.get::<u64>().map_err(bad)?).map_err(|_| EBADMSG)?;
    if count.checked_mul(T::SIZE).is_none_or(|length| length > ahead.remaining()) {
        return Err(EBADMSG);
    }
    if count > room || into.is_null() {
        return Ok(count);
    }
    if into.cast::<T>().is_aligned() {
        // The numbers are zeroed first, since memory that the caller has not written is no slice of numbers.
        // SAFETY: the caller's promise; aligned, and all zeros are a number of every type.
        let numbers = unsafe {
            into.write_bytes(0, count * T::SIZE);
            std::slice::from_raw_parts_mut(into.cast::<T>(), count)
        };
        reader.get_array_into(numbers).map_err(bad)?;
    } else {
        // SAFETY: the caller's promise.
        unsafe { get_numbers::<T>(&mut ahead, into, count) }?;
        *reader = ahead;
    }
    Ok(count)
}

/// Runs a call that returns a length, or a negative errno.
fn counted(f: impl FnOnce() -> Result<usize, Errno>) -> isize {
    guard(EPROTO, || f().map_or_else(|errno| -(errno as isize), |count| count as isize))
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_get_array(reader: *mut RawReader, of: u32, into: *mut u8, room: usize) -> isize {
    // SAFETY: the caller's promise.
    counted(|| unsafe {
        let reader = reader.as_mut().ok_or(EINVAL)?;
        reader.read(|reader| for_type!(of, get_array(reader, into, room)))
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_get_block(reader: *mut RawReader, out: *mut *const u8) -> isize {
    // SAFETY: the caller's promise.
    counted(|| unsafe {
        let (reader, out) = (reader.as_mut().ok_or(EINVAL)?, out.as_mut().ok_or(EINVAL)?);
        let (start, length) =
            reader.read(|reader| reader.get_block().map(|block| (block.as_ptr(), block.len())).map_err(bad))?;
        *out = start;
        Ok(length)
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_get_startpoint(reader: *mut RawReader, out: *mut u64) -> i32 {
    // SAFETY: the caller's promise.
    call(|| unsafe {
        let start = reader.as_mut().ok_or(EINVAL)?.read(|reader| reader.get_startpoint().map_err(bad))?;
        give(start, out).map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_remaining(reader: *const RawReader) -> usize {
    // SAFETY: the caller's promise.
    unsafe { reader.as_ref() }.map_or(0, |reader| reader.data.len() - reader.at)
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_reply(request: *mut RawReader, buffer: u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let request = unsafe { request.as_mut().and_then(|reader| reader.request()) }.ok_or(EINVAL)?;
        let reply = |buffer: &Buffer<'_>| request.reply(buffer).map_err(errno);
        with_data(buffer, reply)
    })
}

/// Runs `with` on a buffer; 0 stands for an empty one.
pub fn with_data(handle: u64, with: impl FnOnce(&Buffer<'_>) -> Result<(), Errno>) -> Result<i32, Errno> {
    match handle {
        0 => with(&Buffer::new()),
        handle => with(&handles::find::<OpenBuffer>(handle)?.lock().unwrap_or_else(PoisonError::into_inner)),
    }
    .map(|()| 0)
}
