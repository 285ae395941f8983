//! Slots in memory of this process: memfds that stay mapped, and a pool that reuses their slots.

use motet_engine::lock;
use motet_sys::memory;
use motet_sys::rustix::fd::OwnedFd;
use motet_wire::stream::slot::Slot;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Slots of one memfd.
const SLOTS_PER_MEMFD: usize = 8;

static POOL: Mutex<Vec<PooledSlot>> = Mutex::new(Vec::new());
static MAPPED_BYTES: AtomicUsize = AtomicUsize::new(0);

struct PooledSlot {
    ends: [Slot; 2],
    ring: usize,
}

/// Reserves a slot, prepared for the connection with these cookies, and returns it as each end sees it. It is reused once both ends have left
/// ([`motet_wire::stream::slot::SlotHead::left`]).
pub fn reserve(ring: usize, cookies: [u64; 2]) -> Option<[Slot; 2]> {
    let mut pool = lock(&POOL);
    let left = |entry: &PooledSlot| {
        entry.ring == ring && entry.ends[0].head().left.iter().all(|l| l.load(Ordering::Acquire) != 0)
    };
    let ends = match pool.iter().find(|entry| left(entry)) {
        Some(entry) => entry.ends,
        None => {
            let first = pool.len();
            grow(&mut pool, ring)?;
            pool[first].ends
        }
    };
    ends[0].prepare(cookies);
    Some(ends)
}

/// Size of a large ring, in multiples of the small one.
const LARGE_RING_FACTOR: usize = 4;

fn grow(pool: &mut Vec<PooledSlot>, ring: usize) -> Option<()> {
    let (bulk, dense) = (LARGE_RING_FACTOR * ring.max(4096), SLOTS_PER_MEMFD * Slot::size(ring));
    let size = dense + SLOTS_PER_MEMFD * 2 * bulk;
    let (_, mapping) = memory::create_mapped("motet-loopback", size, &[], dense).ok()?;
    MAPPED_BYTES.fetch_add(dense, Ordering::Relaxed);
    for n in 0..SLOTS_PER_MEMFD {
        let view =
            |end| Slot::over(mapping, n * Slot::size(ring), ring, end)?.with_bulk(mapping, dense + n * 2 * bulk, bulk);
        let ends = [view(0)?, view(1)?];
        for left in &ends[0].head().left {
            left.store(1, Ordering::Release);
        }
        pool.push(PooledSlot { ends, ring });
    }
    Some(())
}

/// Bytes of mapped slots, large rings aside.
pub fn mapped_bytes() -> usize {
    MAPPED_BYTES.load(Ordering::Relaxed)
}

/// Locks what a fork must find unlocked.
pub fn lock_for_fork() -> impl Sized {
    lock(&POOL)
}

/// In a forked child: empties the pool, whose memory is shared with the parent.
pub fn after_fork() {
    lock(&POOL).clear();
}

/// One slot whose memory a test can also write from outside, as a hostile peer would.
#[derive(Debug)]
pub struct ExposedSlot {
    /// The slot as each end sees it.
    pub ends: [Slot; 2],
    file: OwnedFd,
    ring: usize,
}

impl ExposedSlot {
    /// A slot in a mapping of its own, which stays until the process ends: reuse it with [`Slot::prepare`].
    pub fn new(ring: usize) -> Option<Self> {
        Self::with_bulk(ring, 0)
    }

    /// A slot in a mapping of its own with two large rings of `bulk` bytes each, 0 for none.
    pub fn with_bulk(ring: usize, bulk: usize) -> Option<Self> {
        let dense = Slot::size(ring);
        let (file, mapping) = memory::create_mapped("motet-exposed", dense + 2 * bulk, &[], dense).ok()?;
        let view = |end| {
            let slot = Slot::over(mapping, 0, ring, end)?;
            if bulk == 0 { Some(slot) } else { slot.with_bulk(mapping, dense, bulk) }
        };
        Some(Self { ends: [view(0)?, view(1)?], file, ring })
    }

    /// Bytes of the slot, large rings aside.
    pub fn size(&self) -> usize {
        Slot::size(self.ring)
    }

    /// Overwrites bytes of the slot; bytes beyond its end are ignored.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let n = bytes.len().min(self.size().saturating_sub(at));
        let _ = motet_sys::rustix::io::pwrite(&self.file, &bytes[..n], at as u64);
    }

    /// The aligned 8-byte word at an offset in the slot.
    pub fn word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        let _ = motet_sys::rustix::io::pread(&self.file, &mut bytes, at as u64);
        u64::from_ne_bytes(bytes)
    }
}
