//! Callbacks of an adapter that defers the program's signal handlers while a thread is in the engine.
//!
//! What it is: two callbacks that the adapter registers. What it is not: detection of handlers. Without such an adapter no thread counts as
//! being in a handler.

use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Returns non-zero if the calling thread runs a signal handler.
pub type InHandlerFn = extern "C" fn() -> i32;
/// Runs the handlers that are deferred until the calling thread leaves the engine.
pub type RunPendingFn = extern "C" fn();

static IN_HANDLER: AtomicUsize = AtomicUsize::new(0);
static RUN_PENDING: AtomicUsize = AtomicUsize::new(0);

/// Registers the callbacks. False: callbacks are registered already, and stay.
pub fn register(in_handler: InHandlerFn, run_pending: RunPendingFn) -> bool {
    let first = RUN_PENDING.compare_exchange(0, run_pending as usize, Release, Relaxed).is_ok();
    if first {
        IN_HANDLER.store(in_handler as usize, Release);
    }
    first
}

/// Whether the calling thread runs a signal handler. Such a handler has not interrupted the engine, but may have interrupted other code.
#[inline]
pub fn in_handler() -> bool {
    let known = IN_HANDLER.load(Acquire);
    // SAFETY: only an `InHandlerFn` is ever stored there.
    known != 0 && unsafe { std::mem::transmute::<usize, InHandlerFn>(known)() } != 0
}

/// Runs deferred signal handlers. For a thread that has slept in an operation; it must hold no lock.
pub fn run_pending() {
    let known = RUN_PENDING.load(Acquire);
    if known != 0 {
        // SAFETY: only a `RunPendingFn` is ever stored there.
        unsafe { std::mem::transmute::<usize, RunPendingFn>(known)() }
    }
}
