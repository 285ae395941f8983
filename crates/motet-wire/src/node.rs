//! The node file: one memfd per process (and its forked children) that holds the records of its streams.
//!
//! `motet ps` and `motet why` find it as `/proc/PID/fd/N -> /memfd:motet-node`, map it read-only and list it; nothing
//! else is needed, no daemon and no socket, and it vanishes with the process.
//!
//! ```text
//!   0     NodeHead (magic, version, capacity, ...)
//!   4096  record 0, record 1, ...
//! ```

use crate::record::{Record, SIZE};
use crate::sync::{AtomicU32, AtomicU64};

/// First eight bytes of every node file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MOTETnod");
/// Version of the node file: `motet ps` reads only its own.
pub const VERSION: u32 = 1;
/// Name given to memfd_create.
pub const NAME: &str = "motet-node";
/// Bytes before the first record.
pub const HEAD: usize = 4096;

/// The start of a node file.
#[repr(C)]
#[derive(Debug)]
pub struct NodeHead {
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
    /// Libraries, as `major << 16 | minor`.
    pub library: AtomicU32,
    /// Bytes of segments mapped by this process family.
    pub segment_bytes: AtomicU64,
    /// Connections that stayed plain, by reason code: counted, never silent.
    pub plain: [AtomicU64; 64],
    /// Streams that could not get a record.
    pub overflow: AtomicU64,
}

/// Bytes of a node file for `capacity` records.
pub const fn bytes(capacity: usize) -> usize {
    HEAD + capacity * SIZE
}

/// Offset of a record.
pub const fn offset(index: usize) -> usize {
    HEAD + index * SIZE
}

/// A mapped node file.
#[derive(Debug, Clone, Copy)]
pub struct Node {
    base: *const u8,
    capacity: usize,
}

// SAFETY: the node file stays mapped for the life of the process and holds only atomics.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

impl Node {
    /// # Safety
    /// `bytes(capacity)` bytes from `base`, page-aligned, stay mapped while the node is used: writable for a process's
    /// own node, readable for another's.
    pub const unsafe fn new(base: *const u8, capacity: usize) -> Self {
        Self { base, capacity }
    }

    /// Records that the file has room for.
    #[inline(always)]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The head.
    pub fn head(&self) -> &NodeHead {
        const { assert!(size_of::<NodeHead>() <= HEAD) };
        // SAFETY: `new` vouches for the mapping; the head is made of atomics.
        unsafe { &*self.base.cast::<NodeHead>() }
    }

    /// A record; `None` beyond the capacity.
    #[inline(always)]
    pub fn record(&self, index: usize) -> Option<&Record> {
        // SAFETY: `new` vouches for the mapping up to `capacity` records; a record is made of atomics.
        (index < self.capacity).then(|| unsafe { &*self.base.add(offset(index)).cast::<Record>() })
    }
}
