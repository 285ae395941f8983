//! System calls, made directly: never through symbols of the C library that a preload library could interpose.
//!
//! What it is: thin, safe functions over `rustix` (whose Linux backend makes raw calls) and, where it lacks one,
//! over `syscalls`. What it is not: no policy, no state except the calibration of the [`clock`].

pub mod append;
pub mod barrier;
pub mod birth;
pub mod clock;
pub mod copy;
pub mod crowd;
pub mod diag;
pub mod faults;
pub mod fds;
pub mod files;
pub mod forkable;
#[cfg(feature = "ground")]
pub mod ground;
pub mod handlers;
pub mod lending;
pub mod limits;
pub mod lineage;
pub mod lock;
pub mod memory;
pub mod names;
pub mod pool;
pub mod presence;
pub mod root;
pub mod socket;
pub mod span;
pub mod thread;

pub use rustix;

/// A system error number, positive.
pub type Errno = i32;

pub(crate) fn errno(e: syscalls::Errno) -> Errno {
    e.into_raw()
}
