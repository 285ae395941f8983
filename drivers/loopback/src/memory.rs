//! Slots in memory of this process: anonymous memfds that stay mapped, and a pool that hands their slots out again.

use motet_engine::lock;
use motet_sys::memory;
use motet_sys::rustix::fd::OwnedFd;
use motet_wire::stream::slot::Slot;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Slots made at once.
const CHUNK: usize = 8;

static POOL: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
static BYTES: AtomicUsize = AtomicUsize::new(0);

struct Entry {
    ends: [Slot; 2],
    ring: usize,
}

/// A slot as both ends see it, prepared for the connection with these cookies. It comes back once both ends have left
/// ([`motet_wire::stream::slot::SlotHead::left`]).
pub fn place(ring: usize, cookies: [u64; 2]) -> Option<[Slot; 2]> {
    let mut pool = lock(&POOL);
    let left =
        |entry: &Entry| entry.ring == ring && entry.ends[0].head().left.iter().all(|l| l.load(Ordering::Acquire) != 0);
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

/// The large ring is so many times the small one.
const BULK: usize = 4;

fn grow(pool: &mut Vec<Entry>, ring: usize) -> Option<()> {
    let (bulk, dense) = (BULK * ring.max(4096), CHUNK * Slot::size(ring));
    let size = dense + CHUNK * 2 * bulk;
    let (_, mapping) = memory::create_mapped("motet-loopback", size, &[], dense).ok()?;
    BYTES.fetch_add(dense, Ordering::Relaxed);
    for n in 0..CHUNK {
        let view =
            |end| Slot::over(mapping, n * Slot::size(ring), ring, end)?.with_bulk(mapping, dense + n * 2 * bulk, bulk);
        let ends = [view(0)?, view(1)?];
        for left in &ends[0].head().left {
            left.store(1, Ordering::Release);
        }
        pool.push(Entry { ends, ring });
    }
    Some(())
}

/// Bytes mapped.
pub fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

/// For the time of a fork.
pub fn quiet() -> impl Sized {
    lock(&POOL)
}

/// In a forked child: the memory is shared with the parent, so nothing of it may be handed out.
pub fn forget() {
    lock(&POOL).clear();
}

/// One slot whose memory can also be written from outside, as a hostile peer would.
#[derive(Debug)]
pub struct Exposed {
    /// The slot as both ends see it.
    pub ends: [Slot; 2],
    file: OwnedFd,
    ring: usize,
}

impl Exposed {
    /// A slot of its own mapping. The mapping stays until the process ends: reuse it by [`Slot::prepare`].
    pub fn new(ring: usize) -> Option<Self> {
        Self::with_bulk(ring, 0)
    }

    /// The same with two large rings of `bulk` bytes each, 0 for none.
    pub fn with_bulk(ring: usize, bulk: usize) -> Option<Self> {
        let dense = Slot::size(ring);
        let (file, mapping) = memory::create_mapped("motet-exposed", dense + 2 * bulk, &[], dense).ok()?;
        let view = |end| {
            let slot = Slot::over(mapping, 0, ring, end)?;
            if bulk == 0 { Some(slot) } else { slot.with_bulk(mapping, dense, bulk) }
        };
        Some(Self { ends: [view(0)?, view(1)?], file, ring })
    }

    /// Bytes of the slot, the large rings apart.
    pub fn size(&self) -> usize {
        Slot::size(self.ring)
    }

    /// Overwrites bytes; what lies beyond the slot is left out.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let n = bytes.len().min(self.size().saturating_sub(at));
        let _ = motet_sys::rustix::io::pwrite(&self.file, &bytes[..n], at as u64);
    }

    /// The aligned word at an offset inside the slot.
    pub fn word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        let _ = motet_sys::rustix::io::pread(&self.file, &mut bytes, at as u64);
        u64::from_ne_bytes(bytes)
    }
}
