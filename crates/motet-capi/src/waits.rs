//! Waits and sets, and the process's life.

use crate::{engine, guard};
use motet_engine::Handle;
use motet_engine::stream::engine::Quiet;
use motet_engine::stream::epoll_set::{Interest, Set};
use motet_engine::stream::wait::{Step, Wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// struct motet_wait.
#[repr(C, align(8))]
pub struct MotetWait([u64; 16]);

const _: () = assert!(size_of::<Option<Wait<'static>>>() <= size_of::<MotetWait>());
const _: () = assert!(align_of::<Option<Wait<'static>>>() <= align_of::<MotetWait>());

/// The wait inside the caller's memory.
///
/// # Safety
/// `w` was written by one of the begin functions and not yet ended.
unsafe fn wait<'a>(w: *mut MotetWait) -> Option<&'a mut Wait<'static>> {
    // SAFETY: the caller's promise; size and alignment are checked above.
    unsafe { (*w.cast::<Option<Wait<'static>>>()).as_mut() }
}

/// # Safety
/// See `motet.h`; `streams` stays valid until `motet_wait_end`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_wait_begin(w: *mut MotetWait, streams: *const Handle, count: u32) {
    let made = guard(None, || {
        let engine = engine()?;
        let streams = if count == 0 {
            &[]
        } else {
            // SAFETY: the caller's promise; nothing of it is kept beyond motet_wait_end.
            unsafe { std::slice::from_raw_parts(streams, count as usize) }
        };
        Some(Wait::on(engine, streams))
    });
    // SAFETY: `w` is the caller's memory of at least this size and alignment.
    unsafe { w.cast::<Option<Wait<'static>>>().write(made) };
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_wait_begin_set(w: *mut MotetWait, set: *const Set) {
    let made = guard(None, || {
        // SAFETY: the caller hands in a set that it has not freed.
        let set = unsafe { shared(set) };
        Some(Wait::on_set(engine()?, set))
    });
    // SAFETY: `w` is the caller's memory of at least this size and alignment.
    unsafe { w.cast::<Option<Wait<'static>>>().write(made) };
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_wait_step(w: *mut MotetWait, may_block: i32) -> i32 {
    let plain = if may_block != 0 { Step::Sleep } else { Step::Probe } as i32;
    guard(plain, || {
        // SAFETY: the caller's promise.
        match (engine(), unsafe { wait(w) }) {
            (Some(engine), Some(wait)) => wait.step(engine, may_block != 0) as i32,
            _ => plain,
        }
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_wait_slept(w: *mut MotetWait) {
    guard((), || {
        // SAFETY: the caller's promise.
        if let (Some(engine), Some(wait)) = (engine(), unsafe { wait(w) }) {
            wait.slept(engine);
        }
    });
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_wait_end(w: *mut MotetWait) {
    guard((), || {
        // SAFETY: the caller's promise; the memory is left as an ended wait, so a second end does nothing.
        let ended = unsafe { w.cast::<Option<Wait<'static>>>().replace(None) };
        if let (Some(engine), Some(mut wait)) = (engine(), ended) {
            wait.end(engine);
        }
    });
}

/// # Safety
/// `set` came from `motet_set_new` and is not freed.
unsafe fn shared(set: *const Set) -> Arc<Set> {
    // SAFETY: the caller's promise; the count goes up, so the caller keeps its own.
    unsafe {
        Arc::increment_strong_count(set);
        Arc::from_raw(set)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_set_new(bell: i32) -> *const Set {
    guard(std::ptr::null(), || Arc::into_raw(Set::new(bell, engine().map_or(1, |engine| engine.options.hot))))
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_set_free(set: *const Set) {
    if !set.is_null() {
        // SAFETY: the caller gives its count back.
        guard((), || drop(unsafe { Arc::from_raw(set) }));
    }
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_set_put(set: *const Set, s: Handle, cookie: usize, interest: i32) -> i32 {
    let Some(engine) = engine() else { return -9 };
    let interest = match interest {
        0 => Interest::None,
        1 => Interest::Level,
        2 => Interest::Edge,
        _ => return -22,
    };
    // SAFETY: the caller's promise.
    guard(-71, || if engine.set_put(&unsafe { shared(set) }, s, cookie, interest) { 0 } else { -9 })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_set_remove(set: *const Set, s: Handle) -> i32 {
    // SAFETY: the caller hands in a live set.
    guard((), || engine().into_iter().for_each(|engine| engine.set_remove(unsafe { &*set }, s)));
    0
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_set_ready(set: *const Set, cookies: *mut usize, max: u32) -> u32 {
    let Some(engine) = engine() else { return 0 };
    guard(0, || {
        let mut n = 0;
        // SAFETY: the caller hands in a live set and room for `max` cookies.
        engine.set_ready(unsafe { &*set }, |cookie| {
            if n < max {
                // SAFETY: n < max.
                unsafe { cookies.add(n as usize).write(cookie) };
                n += 1;
            }
            n < max
        });
        n
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_set_doze(set: *const Set) -> i32 {
    let Some(engine) = engine() else { return 0 };
    // SAFETY: the caller hands in a live set.
    guard(0, || i32::from(engine.set_doze(unsafe { &*set })))
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_set_asleep(set: *const Set) {
    // SAFETY: the caller hands in a live set.
    guard((), || engine().into_iter().for_each(|engine| engine.set_asleep(unsafe { &*set })));
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_set_slept(set: *const Set) {
    // SAFETY: the caller hands in a live set.
    guard((), || unsafe { &*set }.slept());
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_set_idle(set: *const Set) -> i32 {
    // SAFETY: the caller hands in a live set.
    i32::from(set.is_null() || unsafe { &*set }.idle())
}

// ---- the process's life ----------------------------------------------------------------------------------------------

thread_local! {
    static QUIET: std::cell::RefCell<Option<Quiet>> = const { std::cell::RefCell::new(None) };
}

// Several voices of a process tell of the same fork: the first prepare takes the locks, the first word after the fork gives
// them back, the others find nothing to do.

#[unsafe(no_mangle)]
pub extern "C" fn motet_fork_prepare() {
    guard((), || {
        QUIET.with(|q| {
            q.borrow_mut().get_or_insert_with(Quiet::begin);
        });
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_fork_parent() {
    guard((), || QUIET.with(|q| drop(q.borrow_mut().take())));
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_fork_child() {
    motet_sys::thread::forget_pid();
    guard((), || {
        let Some(quiet) = QUIET.with(|q| q.borrow_mut().take()) else { return };
        // SAFETY: the first word in the child, by the thread that forked; it did so outside the engine, where guards are.
        unsafe { motet_sys::thread::next_generation() };
        drop(quiet);
        if let Some(engine) = engine() {
            engine.forked();
        }
    });
}

/// Runs in destructors, and in `_exit` from a signal handler that interrupted the program anywhere but in the engine. So it
/// allocates nothing, and the locks it takes are those of the engine, which that thread does not hold. Every voice of a process
/// calls it; what a process has counted is told once.
#[unsafe(no_mangle)]
pub extern "C" fn motet_leave() {
    static LEFT: AtomicU32 = AtomicU32::new(0); // the process that has left: a forked child has not
    guard((), || {
        if let Some(engine) = engine() {
            engine.before_end();
            let pid = motet_sys::thread::pid();
            if LEFT.swap(pid, Relaxed) == pid {
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
pub extern "C" fn motet_next_fd(from: i32) -> i32 {
    motet_sys::private_fds::next_private(from).unwrap_or(-1)
}
