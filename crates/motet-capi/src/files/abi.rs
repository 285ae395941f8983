//! The structs of `motet_file.h`.

use crate::messages::abi::{read, span};
use crate::messages::{EINVAL, Errno};
use motet_api::node::UserMemory;
use motet_files::protocol::{Attributes, Time};
use std::ffi::c_void;

/// struct motet_file_attributes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawAttributes {
    size: usize,
    length: u64,
    allocated: u64,
    device: u64,
    inode: u64,
    mode: u32,
    links: u32,
    user: u32,
    group: u32,
    accessed: i64,
    modified: i64,
    changed: i64,
}

impl RawAttributes {
    /// The attributes of a file.
    pub fn of(attributes: &Attributes) -> Self {
        let ns = |time: Time| time.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(time.nanoseconds));
        let Attributes { device, inode, mode, links, user, group, size: length, blocks, .. } = *attributes;
        let (accessed, modified, changed) = (ns(attributes.accessed), ns(attributes.modified), ns(attributes.changed));
        let (size, allocated) = (size_of::<Self>(), blocks.saturating_mul(512));
        Self { size, length, allocated, device, inode, mode, links, user, group, accessed, modified, changed }
    }
}

/// struct motet_file_request.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawRequest {
    size: usize,
    pub operation: u32,
    reserved: u32,
    pub offset: u64,
    memory: *mut u8,
    length: usize,
    pub user: *mut c_void,
    result: i64,
}

impl RawRequest {
    /// Its memory.
    ///
    /// # Safety
    /// The requirements of `UserMemory::new`.
    pub unsafe fn memory(&self) -> Result<UserMemory, Errno> {
        // SAFETY: the caller's promise.
        unsafe { span(self.memory, self.length) }
    }
}

/// struct motet_file_completion.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawCompletion {
    size: usize,
    user: *mut c_void,
    result: i64,
}

/// The caller's array of structs. Only the first element's `size` is read; it is the distance of the elements.
#[derive(Clone, Copy)]
pub struct Array<T> {
    first: *mut T,
    distance: usize,
}

impl<T: Copy> Array<T> {
    /// # Safety
    /// `first` is null or points to a struct that begins with its size as a `size_t`; `T` begins with that field.
    pub unsafe fn new(first: *mut T) -> Result<Self, Errno> {
        // SAFETY: the caller's promise; `read` refuses null, and a size below that of `T`.
        let distance = unsafe {
            read(first)?;
            *first.cast::<usize>()
        };
        if distance.is_multiple_of(align_of::<T>()) { Ok(Self { first, distance }) } else { Err(EINVAL) }
    }

    /// # Safety
    /// The array has more than `at` elements.
    unsafe fn at(self, at: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.first.byte_add(at * self.distance) }
    }

    /// # Safety
    /// The array has more than `at` elements, which may be read.
    pub unsafe fn get(self, at: usize) -> T {
        // SAFETY: the caller's promise; elements are as long as the first one.
        unsafe { self.at(at).read() }
    }
}

impl Array<RawRequest> {
    /// Writes a result.
    ///
    /// # Safety
    /// The array has more than `at` elements, which may be written.
    pub unsafe fn set_result(self, at: usize, result: i64) {
        // SAFETY: the caller's promise.
        unsafe { (&raw mut (*self.at(at)).result).write(result) }
    }
}

impl Array<RawCompletion> {
    /// Writes a completion.
    ///
    /// # Safety
    /// The array has more than `at` elements, which may be written.
    pub unsafe fn set(self, at: usize, user: *mut c_void, result: i64) {
        // SAFETY: the caller's promise.
        unsafe {
            let into = self.at(at);
            (&raw mut (*into).user).write(user);
            (&raw mut (*into).result).write(result);
        }
    }
}
