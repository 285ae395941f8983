//! The split calls of `motet_adapter.h`, for adapters that make the kernel's call themselves.

use crate::abi::{IoVec, slices, slices_mut, without_nowhere};
use crate::{EPROTO, engine, guard};
use motet_engine::Handle;
use motet_engine::reason::Reason;
use motet_proto::EAGAIN;
use motet_proto::stream::confined::Remaining;
use motet_proto::stream::{MSG_PEEK, rx, tx};

const MOTET_KERNEL: isize = -1_000_001;
const MOTET_POLL: isize = -1_000_002;
const MOTET_KERNEL_ONLY: i32 = 0x4000_0000;
const MSG_OOB: i32 = 0x1;
const MSG_DONTWAIT: i32 = 0x40;
const MSG_ERRQUEUE: i32 = 0x2000;
const MSG_TRUNC: i32 = 0x20;
const MSG_ZEROCOPY: i32 = 0x0400_0000;
/// Flags with which the kernel must do a send or receive.
const KERNEL_ONLY: i32 = MOTET_KERNEL_ONLY | MSG_OOB | MSG_ERRQUEUE | MSG_ZEROCOPY;

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_send_begin(s: Handle, iov: *const IoVec, count: i32, flags: i32) -> isize {
    // SAFETY: the caller's promise.
    let done = unsafe { without_nowhere(iov, count, |iov, count| motet_send_begin(s, iov, count, flags)) };
    if let Some(result) = done {
        return result;
    }
    let Some(engine) = engine() else { return MOTET_KERNEL };
    guard(EPROTO, || {
        // SAFETY: the caller's promise.
        let bufs = unsafe { slices(iov, count) };
        match engine.send_begin(s, bufs, flags & KERNEL_ONLY != 0, flags & MSG_DONTWAIT != 0) {
            tx::Step::Done(n) => n as isize,
            tx::Step::Kernel => MOTET_KERNEL,
            tx::Step::Full if flags & MSG_DONTWAIT == 0 => MOTET_POLL,
            tx::Step::Full => -(EAGAIN as isize),
            tx::Step::Failed(errno) => -(errno as isize),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_send_end(s: Handle, result: isize) {
    if let Some(engine) = engine() {
        guard((), || engine.send_end(s, result.max(0) as usize));
    }
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_recv_begin(
    s: Handle,
    iov: *const IoVec,
    count: i32,
    flags: i32,
    blocking: i32,
) -> isize {
    // SAFETY: the caller's promise.
    let done = unsafe { without_nowhere(iov, count, |iov, count| motet_recv_begin(s, iov, count, flags, blocking)) };
    if let Some(result) = done {
        return result;
    }
    let Some(engine) = engine() else { return MOTET_KERNEL };
    guard(EPROTO, || {
        // SAFETY: the caller's promise.
        let bufs = unsafe { slices_mut(iov, count) };
        let kernel_only = flags & KERNEL_ONLY != 0 || flags & MSG_TRUNC != 0;
        let blocking = blocking != 0 && flags & MSG_DONTWAIT == 0;
        match engine.recv_begin(s, bufs, blocking, flags & MSG_PEEK != 0, kernel_only) {
            rx::Step::Done(n) => n as isize,
            rx::Step::Kernel => MOTET_KERNEL,
            rx::Step::Poll => MOTET_POLL,
            rx::Step::Failed(errno) => -(errno as isize),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_recv_end(s: Handle, result: isize, flags: i32) {
    if let Some(engine) = engine() {
        let counts = flags & (MSG_PEEK | MSG_OOB | MSG_ERRQUEUE) == 0;
        guard((), || {
            engine.recv_end(s, if counts { result.max(0) as usize } else { 0 });
            if result < -1 {
                engine.note_error(s, (-result) as i32);
            }
            if counts && result == 0 {
                engine.note_end_of_file(s);
            }
        });
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_recv_wait_end(s: Handle) {
    motet_recv_end(s, -1, 0);
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_rx_ready(s: Handle) -> u32 {
    engine().map_or(0, |engine| guard(0, || u32::from(engine.rx_ready(s))))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_rx_position(s: Handle) -> u64 {
    engine().map_or(0, |engine| guard(0, || engine.rx_position(s)))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_rx_bytes(s: Handle) -> usize {
    engine().map_or(0, |engine| guard(0, || engine.rx_bytes(s) as usize))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_nodelay(s: Handle, set: i32) -> i32 {
    let set = (set >= 0).then_some(set != 0);
    engine().and_then(|engine| guard(None, || engine.nodelay(s, set))).map_or(-1, i32::from)
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_count_tcp_only(reason: u32) {
    // The process may have no connection that can be upgraded: the counts start the engine.
    guard((), || motet_api::engine().into_iter().for_each(|engine| engine.count_tcp_only(Reason(reason))));
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_set_tcp_only(s: Handle, reason: u32) -> i32 {
    engine().map_or(1, |engine| guard(1, || i32::from(engine.stay_on_tcp(s, Reason(reason)))))
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_drain(s: Handle, iov: *const IoVec, count: i32, flags: i32, before: *mut u64) -> isize {
    // SAFETY: the caller's promise.
    let done = unsafe { without_nowhere(iov, count, |iov, count| motet_drain(s, iov, count, flags, before)) };
    if let Some(result) = done {
        return result;
    }
    let Some(engine) = engine() else { return 0 };
    let found = guard(Remaining::Failed(EPROTO as i32), || {
        // SAFETY: the caller's promise.
        engine.drain(s, unsafe { slices_mut(iov, count) }, flags & MSG_PEEK != 0)
    });
    let (result, limit) = match found {
        Remaining::Bytes(n) => (n as isize, 0),
        Remaining::TcpFirst(n) => (0, n),
        Remaining::RingEmpty => (0, u64::MAX),
        Remaining::Failed(errno) => (-(errno as isize), 0),
    };
    if !before.is_null() {
        // SAFETY: not null, the caller's memory.
        unsafe { before.write(limit) };
    }
    result
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_drain_received(s: Handle, received: usize) {
    if let Some(engine) = engine() {
        guard((), || engine.drain_received(s, received));
    }
}
