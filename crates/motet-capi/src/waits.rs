//! Waits on several streams, and the engine's mirror of epoll descriptors.

use crate::{EPROTO, engine, guard};
use motet_engine::Handle;
use motet_engine::stream::epoll_set::{EpollSet, Interest};
use motet_engine::stream::wait::{Wait, WaitStep};
use std::ffi::c_void;
use std::sync::Arc;

const EBADF: i32 = 9;
const EINVAL: i32 = 22;

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
/// The caller keeps what `motet.h` requires; `streams` stays valid until `motet_wait_end`.
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
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_wait_begin_set(w: *mut MotetWait, set: *const EpollSet) {
    let made = guard(None, || {
        // SAFETY: the caller hands in a set that it has not freed.
        let set = unsafe { shared(set) };
        Some(Wait::on_set(engine()?, set))
    });
    // SAFETY: `w` is the caller's memory of at least this size and alignment.
    unsafe { w.cast::<Option<Wait<'static>>>().write(made) };
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_wait_step(w: *mut MotetWait, may_block: i32) -> i32 {
    let kernel_step = if may_block != 0 { WaitStep::Sleep } else { WaitStep::Probe } as i32;
    guard(kernel_step, || {
        // SAFETY: the caller's promise.
        match (engine(), unsafe { wait(w) }) {
            (Some(engine), Some(wait)) => wait.step(engine, may_block != 0) as i32,
            _ => kernel_step,
        }
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_wait_slept(w: *mut MotetWait) {
    guard((), || {
        // SAFETY: the caller's promise.
        if let (Some(engine), Some(wait)) = (engine(), unsafe { wait(w) }) {
            wait.end_sleep(engine);
        }
    });
}

/// # Safety
/// The caller keeps what `motet.h` requires.
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
/// `set` came from `motet_epoll_new` and is not freed.
unsafe fn shared(set: *const EpollSet) -> Arc<EpollSet> {
    // SAFETY: the caller's promise; the count goes up, so the caller keeps its own.
    unsafe {
        Arc::increment_strong_count(set);
        Arc::from_raw(set)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_epoll_new(doorbell: i32) -> *const EpollSet {
    guard(std::ptr::null(), || Arc::into_raw(EpollSet::new(doorbell, engine().map_or(1, |engine| engine.options.hot))))
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_epoll_free(set: *const EpollSet) {
    if !set.is_null() {
        // SAFETY: the caller's reference count is dropped.
        guard((), || drop(unsafe { Arc::from_raw(set) }));
    }
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_epoll_put(set: *const EpollSet, s: Handle, cookie: usize, interest: i32) -> i32 {
    let Some(engine) = engine() else { return -EBADF };
    let Some(interest) = interest_of(interest) else { return -EINVAL };
    // SAFETY: the caller's promise.
    guard(EPROTO as i32, || if engine.set_insert(&unsafe { shared(set) }, s, cookie, interest) { 0 } else { -EBADF })
}

fn interest_of(number: i32) -> Option<Interest> {
    match number {
        0 => Some(Interest::None),
        1 => Some(Interest::Level),
        2 => Some(Interest::Edge),
        _ => None,
    }
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_epoll_nest(
    set: *const EpollSet,
    inner: *const EpollSet,
    cookie: usize,
    interest: i32,
) -> i32 {
    let Some(engine) = engine() else { return -EBADF };
    let Some(interest) = interest_of(interest) else { return -EINVAL };
    // SAFETY: the caller's promise.
    let (set, inner) = unsafe { (shared(set), shared(inner)) };
    guard(EPROTO as i32, || if engine.set_nest(&set, &inner, cookie, interest) { 0 } else { -EBADF })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_epoll_unnest(set: *const EpollSet, inner: *const EpollSet) -> i32 {
    // SAFETY: the caller hands in live sets.
    let (set, inner) = unsafe { (&*set, &*inner) };
    guard((), || engine().into_iter().for_each(|engine| engine.set_unnest(set, inner)));
    0
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_epoll_remove(set: *const EpollSet, s: Handle) -> i32 {
    // SAFETY: the caller hands in a live set.
    guard((), || engine().into_iter().for_each(|engine| engine.set_remove(unsafe { &*set }, s)));
    0
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_epoll_ready(
    set: *const EpollSet,
    cookies: *mut usize,
    max: u32,
    wanted: Option<unsafe extern "C" fn(usize, *mut c_void) -> i32>,
    context: *mut c_void,
) -> u32 {
    let Some(engine) = engine() else { return 0 };
    guard(0, || {
        let mut n = 0;
        // SAFETY: the caller hands in a function for cookies with its context.
        let wanted = |cookie| wanted.is_none_or(|wanted| unsafe { wanted(cookie, context) } != 0);
        // SAFETY: the caller hands in a live set and room for `max` cookies.
        engine.set_ready(unsafe { &*set }, wanted, |cookie| {
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
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_epoll_try_sleep(set: *const EpollSet) -> i32 {
    let Some(engine) = engine() else { return 0 };
    // SAFETY: the caller hands in a live set.
    guard(0, || i32::from(engine.set_sleep_if_parked(unsafe { &*set })))
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_epoll_asleep(set: *const EpollSet) {
    // SAFETY: the caller hands in a live set.
    guard((), || engine().into_iter().for_each(|engine| engine.set_enter_sleep(unsafe { &*set })));
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_epoll_slept(set: *const EpollSet) {
    // SAFETY: the caller hands in a live set.
    guard((), || unsafe { &*set }.end_sleep());
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_epoll_idle(set: *const EpollSet) -> i32 {
    // SAFETY: the caller hands in a live set.
    i32::from(set.is_null() || unsafe { &*set }.kernel_suffices())
}
