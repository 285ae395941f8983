//! What is known of the two ways to copy payload into a ring, through the writer's caches and around them. `motet_proto::copy_mode` decides by it.

use crate::sync::{AtomicU32, AtomicU64};

/// The measurements of one writer. Ticks are those of `motet_sys::clock`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct CopyMode {
    /// The mode in use, and whether that is a trial: bits of `motet_proto::copy_mode`.
    pub mode: AtomicU32,
    /// Bytes of large puts since the mode was last evaluated.
    pub window_bytes: AtomicU32,
    /// Throughput of the two modes when last measured, MB/s: through the caches, around the caches.
    pub rates: [AtomicU32; 2],
    /// Ticks that the puts of `window_bytes` took.
    pub window_ticks: AtomicU64,
    /// Bytes until the other mode is tried again.
    pub bytes_until_retry: AtomicU64,
}
