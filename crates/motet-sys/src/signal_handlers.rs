//! Signal handlers, as far as a voice that keeps them out of the engine says of them.
//!
//! What it is: two questions to that voice. What it is not: an opinion where there is no such voice: nobody is in a handler then.

use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Whether the calling thread runs a handler.
pub type Inside = extern "C" fn() -> i32;
/// Lets handlers run that wait for the thread to leave the engine.
pub type Pause = extern "C" fn();

static INSIDE: AtomicUsize = AtomicUsize::new(0);
static PAUSE: AtomicUsize = AtomicUsize::new(0);

/// From now on these answer; false when others do already.
pub fn answered_by(inside: Inside, pause: Pause) -> bool {
    let first = PAUSE.compare_exchange(0, pause as usize, Release, Relaxed).is_ok();
    if first {
        INSIDE.store(inside as usize, Release);
    }
    first
}

/// Whether the calling thread runs a signal handler, which may have interrupted anything but the engine.
#[inline]
pub fn inside() -> bool {
    let known = INSIDE.load(Acquire);
    // SAFETY: only an `Inside` is ever stored there.
    known != 0 && unsafe { std::mem::transmute::<usize, Inside>(known)() } != 0
}

/// After a sleep in the middle of an operation, with no lock held.
pub fn pause() {
    let known = PAUSE.load(Acquire);
    if known != 0 {
        // SAFETY: only a `Pause` is ever stored there.
        unsafe { std::mem::transmute::<usize, Pause>(known)() }
    }
}
