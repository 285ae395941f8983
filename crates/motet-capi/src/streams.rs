//! Complete calls on streams.

use crate::abi::{IoVec, SockAddr, StreamInfo, UpgradeOptions, slices, slices_mut, without_nowhere};
use crate::{EPROTO, engine, guard};
use motet_engine::Handle;
use motet_engine::stream::{EBADF, UpgradeParams};
use std::ffi::c_char;
use std::sync::atomic::Ordering::Relaxed;

const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;
const EOPNOTSUPP: isize = 95;
/// Flags that complete calls take: DONTWAIT, NOSIGNAL, PEEK, WAITALL.
const FLAGS: i32 = 0x40 | 0x4000 | 0x2 | 0x100;

fn result(r: Result<usize, i32>) -> isize {
    r.map_or_else(|errno| -(errno as isize), |n| n as isize)
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_version() -> u32 {
    let part = |s: &str| s.parse::<u32>().unwrap_or(0);
    part(env!("CARGO_PKG_VERSION_MAJOR")) << 16 | part(env!("CARGO_PKG_VERSION_MINOR"))
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_upgrade(fd: i32, options: *const UpgradeOptions, out: *mut Handle) -> i32 {
    // SAFETY: the caller's structs; `size` says how much of them there is.
    let (role, flags) = match unsafe { options.as_ref() } {
        Some(o) if o.size >= size_of::<UpgradeOptions>() => (o.role, o.flags),
        _ => return -EINVAL,
    };
    if out.is_null() || !(1..=2).contains(&role) {
        return -EINVAL;
    }
    guard(EPROTO as i32, || match motet_api::engine() {
        None => -ENOMEM,
        Some(engine) => match engine.upgrade(fd, taken(role, flags)) {
            Ok(handle) => {
                // SAFETY: not null, the caller's memory.
                unsafe { out.write(handle) };
                0
            }
            Err(errno) => -errno,
        },
    })
}

fn taken(role: u32, flags: u32) -> UpgradeParams {
    UpgradeParams { connected: role == 1, lazy: flags & 1 != 0 }
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_close(s: Handle) -> i32 {
    engine().map_or(-EBADF, |e| guard(EPROTO as i32, || e.close(s).map_or_else(|errno| -errno, i32::from)))
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_send(s: Handle, data: *const u8, length: usize, flags: i32) -> isize {
    let one = [data as usize, length];
    // SAFETY: two words, as struct iovec.
    unsafe { motet_sendv(s, one.as_ptr().cast(), 1, flags) }
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_recv(s: Handle, data: *mut u8, length: usize, flags: i32) -> isize {
    let one = [data as usize, length];
    // SAFETY: two words, as struct iovec.
    unsafe { motet_recvv(s, one.as_ptr().cast(), 1, flags) }
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_sendv(s: Handle, iov: *const IoVec, count: i32, flags: i32) -> isize {
    if flags & !FLAGS != 0 {
        return -EOPNOTSUPP;
    }
    // SAFETY: the caller's promise.
    let done = unsafe { without_nowhere(iov, count, |iov, count| motet_sendv(s, iov, count, flags)) };
    if let Some(result) = done {
        return result;
    }
    let Some(engine) = engine() else { return -(EBADF as isize) };
    // SAFETY: the caller's promise.
    guard(EPROTO, || result(engine.send(s, unsafe { slices(iov, count) }, flags)))
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_recvv(s: Handle, iov: *const IoVec, count: i32, flags: i32) -> isize {
    if flags & !FLAGS != 0 {
        return -EOPNOTSUPP;
    }
    // SAFETY: the caller's promise.
    let done = unsafe { without_nowhere(iov, count, |iov, count| motet_recvv(s, iov, count, flags)) };
    if let Some(result) = done {
        return result;
    }
    let Some(engine) = engine() else { return -(EBADF as isize) };
    // SAFETY: the caller's promise.
    guard(EPROTO, || result(engine.recv(s, unsafe { slices_mut(iov, count) }, flags)))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_set_deadline(s: Handle, deadline: i64) -> i32 {
    guard(EPROTO as i32, || match engine().and_then(|e| e.look_up(s)) {
        Some((record, _)) => {
            record.lifecycle.deadline_ns.store(if deadline == i64::MAX { 0 } else { deadline.max(1) as u64 }, Relaxed);
            0
        }
        None => -EBADF,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_wake(s: Handle) -> i32 {
    guard(EPROTO as i32, || match engine() {
        Some(engine) if engine.look_up(s).is_some() => {
            engine.wake(s);
            0
        }
        _ => -EBADF,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_shutdown(s: Handle, how: i32) -> i32 {
    engine().map_or(-EBADF, |e| guard(EPROTO as i32, || e.shutdown(s, how).map_or_else(|errno| -errno, |()| 0)))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_readable(s: Handle) -> i32 {
    engine().map_or(-EBADF, |e| guard(EPROTO as i32, || e.readable(s).map_or_else(|errno| -errno, i32::from)))
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_wait_any(streams: *const Handle, count: u32, deadline: i64) -> i32 {
    if streams.is_null() || count == 0 {
        return -EINVAL;
    }
    let Some(engine) = engine() else { return -EBADF };
    // SAFETY: the caller's promise.
    let streams = unsafe { std::slice::from_raw_parts(streams, count as usize) };
    let deadline = (deadline != i64::MAX).then_some(deadline.max(0) as u64);
    guard(EPROTO as i32, || engine.wait_any(streams, deadline).map_or_else(|errno| -errno, |at| at as i32))
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_info(s: Handle, info: *mut StreamInfo) -> i32 {
    if info.is_null() {
        return -EINVAL;
    }
    let found = guard(None, || {
        let (record, local) = engine()?.look_up(s)?;
        let word = |v: u32| if v == u32::MAX { -1 } else { i64::from(v) };
        let address = |at: usize| {
            let words = std::array::from_fn(|i| record.connection.addresses[at][i].load(Relaxed));
            SockAddr::new(record.connection.family.load(Relaxed), words, record.connection.ports[at].load(Relaxed))
        };
        let ((sent_fast, received_fast), (sent_tcp, received_tcp)) = (record.fast_bytes(), record.tcp_bytes());
        Some(StreamInfo {
            size: 0,
            local: address(0),
            peer: address(1),
            peer_pid: word(record.connection.pid.load(Relaxed)).max(0) as i32,
            peer_uid: word(record.connection.uid.load(Relaxed)),
            peer_gid: word(record.connection.gid.load(Relaxed)),
            path: u32::from(local.slot.slot().is_some()),
            reason: record.lifecycle.reason.load(Relaxed),
            sent_fast,
            sent_tcp,
            received_fast,
            received_tcp,
        })
    });
    let Some(mut found) = found else { return -EBADF };
    // SAFETY: the caller's struct; no more than its own size of it is written.
    unsafe {
        let size = (*info).size;
        found.size = size;
        std::ptr::copy_nonoverlapping((&raw const found).cast::<u8>(), info.cast(), size.min(size_of::<StreamInfo>()));
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_buffer_alloc(length: usize) -> *mut u8 {
    guard(std::ptr::null_mut(), || motet_sys::buffer_pool::take_raw(length).unwrap_or(std::ptr::null_mut()))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_buffer_free(buffer: *mut u8) {
    guard((), || motet_sys::buffer_pool::release_raw(buffer));
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_reason(reason: u32) -> *const c_char {
    static TEXTS: std::sync::OnceLock<Vec<std::ffi::CString>> = std::sync::OnceLock::new();
    guard(c"".as_ptr(), || {
        let texts = TEXTS.get_or_init(|| {
            (0..64).map(|code| std::ffi::CString::new(motet_engine::reason::text(code)).unwrap_or_default()).collect()
        });
        texts.get(reason as usize).or(texts.last()).map_or(c"".as_ptr(), |t| t.as_ptr())
    })
}
