//! The C structs of streams.

use std::io::{IoSlice, IoSliceMut};

/// struct iovec.
#[repr(C)]
pub struct IoVec {
    pub base: *mut u8,
    pub length: usize,
}

/// struct motet_upgrade_options.
#[repr(C)]
pub struct UpgradeOptions {
    pub size: usize,
    pub role: u32,
    pub flags: u32,
}

/// struct motet_stream_info. The two addresses are `struct sockaddr_storage`, 128 bytes each.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StreamInfo {
    pub size: usize,
    pub local: SockAddr,
    pub peer: SockAddr,
    pub peer_pid: i32,
    pub peer_uid: i64,
    pub peer_gid: i64,
    pub path: u32,
    pub reason: u32,
    pub sent_fast: u64,
    pub sent_tcp: u64,
    pub received_fast: u64,
    pub received_tcp: u64,
}

/// struct sockaddr_storage.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct SockAddr(pub [u8; 128]);

impl SockAddr {
    /// The address of IP version `family` (4 or 6).
    pub fn new(family: u32, address: [u32; 4], port: u32) -> Self {
        let mut bytes = [0; 128];
        let address = address.map(u32::to_ne_bytes);
        let address = address.as_flattened();
        bytes[2..4].copy_from_slice(&(port as u16).to_be_bytes());
        if family == 4 {
            bytes[0..2].copy_from_slice(&2u16.to_ne_bytes());
            bytes[4..8].copy_from_slice(&address[..4]);
        } else {
            bytes[0..2].copy_from_slice(&10u16.to_ne_bytes());
            bytes[8..24].copy_from_slice(address);
        }
        Self(bytes)
    }
}

/// Most vectors in one call (IOV_MAX).
const MAX_IOVECS: usize = 1024;

/// Vectors that are passed on at once where some of them are nowhere. A call with more of them transfers less than it could.
const MAX_COPIED: usize = 256;

impl IoVec {
    /// It has no bytes, and no address either, which a slice must have.
    fn is_nowhere(&self) -> bool {
        self.base.is_null() && self.length == 0
    }
}

/// Calls `with` with the vectors that have bytes, if some have neither bytes nor an address; `None`: all are slices.
///
/// # Safety
/// `iov` points to `count` vectors.
pub unsafe fn without_nowhere<T>(
    iov: *const IoVec,
    count: i32,
    with: impl FnOnce(*const IoVec, i32) -> T,
) -> Option<T> {
    if iov.is_null() || count <= 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    let all = unsafe { std::slice::from_raw_parts(iov, (count as usize).min(MAX_IOVECS)) };
    if all.iter().any(IoVec::is_nowhere) { Some(with_bytes_only(all, with)) } else { None }
}

#[cold]
#[inline(never)]
fn with_bytes_only<T>(all: &[IoVec], with: impl FnOnce(*const IoVec, i32) -> T) -> T {
    let mut copies = [const { IoVec { base: std::ptr::null_mut(), length: 0 } }; MAX_COPIED];
    let mut count = 0;
    for (copy, vector) in copies.iter_mut().zip(all.iter().filter(|vector| vector.length > 0)) {
        *copy = IoVec { base: vector.base, length: vector.length };
        count += 1;
    }
    with(copies.as_ptr(), count)
}

/// The caller's buffers, to read from.
///
/// # Safety
/// `iov` points to `count` vectors whose memory is readable during `'a`; none is nowhere ([`without_nowhere`]).
pub unsafe fn slices<'a>(iov: *const IoVec, count: i32) -> &'a [IoSlice<'a>] {
    if iov.is_null() || count <= 0 {
        return &[];
    }
    // SAFETY: the caller vouches for the vectors; IoSlice is ABI-compatible with struct iovec (std::io::IoSlice).
    unsafe { std::slice::from_raw_parts(iov.cast(), (count as usize).min(MAX_IOVECS)) }
}

/// The caller's buffers, to write to.
///
/// # Safety
/// `iov` points to `count` vectors whose memory is writable during `'a` and not accessed otherwise; none is nowhere ([`without_nowhere`]).
pub unsafe fn slices_mut<'a>(iov: *const IoVec, count: i32) -> &'a mut [IoSliceMut<'a>] {
    if iov.is_null() || count <= 0 {
        return &mut [];
    }
    // SAFETY: the caller vouches for the vectors, which are only read; IoSliceMut is ABI-compatible with struct iovec.
    unsafe { std::slice::from_raw_parts_mut(iov.cast_mut().cast(), (count as usize).min(MAX_IOVECS)) }
}
