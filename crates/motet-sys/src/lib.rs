//! System calls of Motet, made directly and never through symbols of the C library, which a preload library could interpose.
//!
//! What it is: thin, safe functions over `rustix` (whose Linux backend makes raw calls), and over `syscalls` for calls that `rustix` lacks;
//! with them locks, memory pools and detectors that need such calls. What it is not: protocol or policy; it knows no peer and no stream.

pub mod append_file;
pub mod asymmetric_fence;
pub mod biased_lock;
pub mod buffer_pool;
pub mod clock;
pub mod cpu_contention;
pub mod file_cache;
pub mod file_region;
pub mod fork_detect;
pub mod fork_safe_mutex;
pub mod inherited;
pub mod limits;
pub mod liveness_lock;
pub mod loop_device;
pub mod memory;
pub mod private_fds;
pub mod process_root;
pub mod process_vm;
pub mod shm_pool;
pub mod signal_handlers;
pub mod sock_diag;
pub mod sock_list;
pub mod socket;
pub mod thread;
pub mod user_memory;

pub use rustix;

/// A system error number, positive.
pub type Errno = i32;

pub(crate) fn errno(e: syscalls::Errno) -> Errno {
    e.into_raw()
}
