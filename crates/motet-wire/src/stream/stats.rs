//! The stats file of streams: one memfd for each fork group (a process and its forked children) that holds the records of its streams.
//!
//! `motet ps` and `motet why` find it as `/proc/PID/fd/N -> /memfd:motet-node` and read it. It needs no daemon and no socket, and it vanishes
//! with its processes.
//!
//! ```text
//!   0     StatsFileHead (magic, version, capacity, ...)
//!   4096  record 0, record 1, ...
//! ```

use crate::mapping::Mapping;
use crate::stream::record::{SIZE, StreamRecord};
use crate::sync::{AtomicU32, AtomicU64};

/// First eight bytes of every stats file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MOTETnod");
/// Version of the stats file. `motet ps` reads only its own. It changes with every change of [`StatsFileHead`] or [`StreamRecord`].
pub const VERSION: u32 = 4 + cfg!(motet_next_version) as u32;
/// The name that is given to `memfd_create`.
pub const NAME: &str = "motet-node";
/// Bytes before the first record.
pub const HEAD: usize = if cfg!(motet_next_version) { 8192 } else { 4096 };

/// The start of a stats file.
#[repr(C)]
#[derive(Debug)]
pub struct StatsFileHead {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// Bytes of a record.
    pub record: AtomicU32,
    /// Records that the file has room for.
    pub capacity: AtomicU32,
    /// One past the highest record ever used.
    pub used: AtomicU32,
    /// The process that made the file.
    pub creator: AtomicU32,
    /// Version of the library, `major << 16 | minor`.
    pub library: AtomicU32,
    /// Bytes of segments that are mapped in the process of the fork group that last opened or closed a stream.
    pub segment_bytes: AtomicU64,
    /// Connections that stayed on TCP, by reason code.
    pub tcp_only_counts: [AtomicU64; 64],
    /// Streams that could not get a record.
    pub overflow: AtomicU64,
    /// Links that the fork group has opened, and closed.
    pub links: [AtomicU64; 2],
    /// Pids of the processes of the fork group that have streams; 0: none, `u32::MAX`: reserved for a fork under way.
    pub members: [AtomicU32; MEMBERS],
    /// Descriptors that the engine uses for itself in the process of the fork group that last opened or closed a stream.
    pub descriptors: AtomicU64,
}

/// Processes of a fork group that can have streams at the same time.
pub const MEMBERS: usize = 63;

/// Bytes of a stats file for `capacity` records.
pub const fn bytes(capacity: usize) -> usize {
    HEAD + capacity * SIZE
}

/// Offset of a record.
pub const fn offset(index: usize) -> usize {
    HEAD + index * SIZE
}

/// A mapped stats file.
#[derive(Debug, Clone, Copy)]
pub struct StatsFile {
    mapping: Mapping,
    capacity: usize,
}

impl StatsFile {
    /// The stats file in a mapping; `None` if the mapping has no room for the head and `capacity` records.
    pub fn over(mapping: Mapping, capacity: usize) -> Option<Self> {
        (mapping.length() >= bytes(capacity)).then_some(Self { mapping, capacity })
    }

    /// Records that the file has room for.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The head.
    pub fn head(&self) -> &StatsFileHead {
        const { assert!(size_of::<StatsFileHead>() <= HEAD) };
        let base = self.mapping.at(0, HEAD).expect("checked by over");
        // SAFETY: inside the mapping, page-aligned, made of atomics.
        unsafe { &*base.cast::<StatsFileHead>() }
    }

    /// The record with an index; `None` beyond the capacity.
    #[inline(always)]
    pub fn record(&self, index: usize) -> Option<&StreamRecord> {
        if index >= self.capacity {
            return None;
        }
        let base = self.mapping.at(offset(index), SIZE)?;
        // SAFETY: inside the mapping, aligned as HEAD and SIZE are multiples of a record's alignment, made of atomics.
        Some(unsafe { &*base.cast::<StreamRecord>() })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::stream::record::{ConnectionInfo, Events, Lifecycle, Rx, Tx};
    use std::mem::offset_of;

    /// The layout of version 4. A change of this line requires a new [`VERSION`].
    #[cfg(not(motet_next_version))]
    #[test]
    fn layout_matches_version() {
        let parts = [
            size_of::<Tx>(),
            size_of::<Rx>(),
            size_of::<Lifecycle>(),
            size_of::<Events>(),
            size_of::<ConnectionInfo>(),
        ];
        let places = [
            offset_of!(Tx, single_copy_bytes),
            offset_of!(Rx, same_cpu),
            offset_of!(Lifecycle, pending_messages),
            offset_of!(Events, single_copy),
        ];
        let layout = (SIZE, parts, places, size_of::<StatsFileHead>());
        assert_eq!((VERSION, layout), (4, (512, [128, 128, 64, 64, 128], [64, 84, 40, 32], 840)));
    }
}
