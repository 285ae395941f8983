//! Calls of adapters about the process: settings, signal handlers, fork, exec, exit, hand-over of a connection, the engine's descriptors.

use crate::{EPROTO, engine, guard};
use motet_engine::Handle;
use motet_engine::reason::Reason;
use motet_engine::stream::engine::ForkGuard;
use motet_proto::EBADF;
use motet_sys::signal_handlers::{self, InHandlerFn, RunPendingFn};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const EALREADY: i32 = 114;
const EINVAL: i32 = 22;

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_environment(variables: *const u8, size: usize) -> i32 {
    if variables.is_null() {
        return -EINVAL;
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(variables, size) };
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    guard(EPROTO as i32, || {
        let pairs = bytes.split(|&b| b == 0).filter_map(|variable| {
            let at = variable.iter().position(|&b| b == b'=')?;
            Some((text(&variable[..at]), text(&variable[at + 1..])))
        });
        if motet_api::environment(pairs) { 0 } else { -EALREADY }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_signal_hooks(inside: Option<InHandlerFn>, pause: Option<RunPendingFn>) -> i32 {
    match (inside, pause) {
        (Some(inside), Some(pause)) if signal_handlers::register(inside, pause) => 0,
        (Some(_), Some(_)) => -EALREADY,
        _ => -EINVAL,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_hand_over(s: Handle, fd: i32, reason: u32) -> i32 {
    engine().map_or(-EBADF, |engine| {
        guard(EPROTO as i32, || engine.hand_over(s, fd, Reason(reason)).map_or_else(|errno| -errno, i32::from))
    })
}

thread_local! {
    static FORK_GUARD: std::cell::RefCell<Option<ForkGuard>> = const { std::cell::RefCell::new(None) };
}

// Every adapter of a process reports the same fork. The first prepare takes the locks, the first call after the fork releases them, and the
// others have nothing to do.

#[unsafe(no_mangle)]
pub extern "C" fn motet_fork_prepare() {
    guard((), || {
        FORK_GUARD.with(|q| {
            q.borrow_mut().get_or_insert_with(ForkGuard::begin);
        });
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_fork_parent() {
    guard((), || FORK_GUARD.with(|q| drop(q.borrow_mut().take())));
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_fork_child() {
    motet_sys::thread::forget_pid();
    guard((), || {
        let Some(quiet) = FORK_GUARD.with(|q| q.borrow_mut().take()) else { return };
        // SAFETY: the first word in the child, by the thread that forked; it did so outside the engine, where guards are.
        unsafe { motet_sys::thread::next_generation() };
        drop(quiet);
        if let Some(engine) = engine() {
            engine.after_fork();
        }
    });
}

/// Runs in destructors, and in `_exit` from a signal handler that interrupted the program outside of the engine. So it allocates nothing, and
/// takes only locks of the engine, which that thread does not hold. Every adapter of a process calls it; the process's counts are written once.
#[unsafe(no_mangle)]
pub extern "C" fn motet_before_exit() {
    static COUNTS_WRITTEN_BY: AtomicU32 = AtomicU32::new(0); // the process that has written them; a forked child has another id
    guard((), || {
        if let Some(engine) = engine() {
            engine.before_exit();
            let pid = motet_sys::thread::pid();
            if COUNTS_WRITTEN_BY.swap(pid, Relaxed) == pid {
                return;
            }
            engine.log_exit();
            motet_api::stats::write(engine);
        }
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_before_exec() {
    if let Some(engine) = engine() {
        guard((), || engine.before_sleep());
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_owns_fd(fd: i32) -> i32 {
    i32::from(motet_sys::private_fds::is_private(fd))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_next_owned_fd(from: i32) -> i32 {
    motet_sys::private_fds::next_private(from).unwrap_or(-1)
}
