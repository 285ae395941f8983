//! The shared-memory pool of a node: memory for loans and regions, which other processes of the host map.
//!
//! What it is: [`ShmPool`] allocates [`ShmBlock`]s of any size in a bounded number of steps. Its segments are created on demand, up to a limit.
//! A block belongs to one holder and is released when it is dropped, on any thread. A block of more than [`SEGMENT_BYTES`] has its own
//! segment, which is kept for reuse while it is among the last ones used.
//!
//! What it is not: the protocol with peers. The engine announces segments to peers and decides when a loan is released. Which blocks are free
//! is recorded in private memory ([`buddy`]).

pub mod buddy;
pub mod segment;

pub use buddy::SEGMENT_BYTES;
pub use segment::{PeerBytes, PeerMapping, PoolSegment};

use buddy::BuddyAllocator;
use rustix::io::Errno;
use segment::{PAGE_BYTES, PoolUsage};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most segments of a pool, and therefore of a peer.
pub const MAX_SEGMENTS: usize = 256;
/// Most bytes of idle segments of long blocks that are kept.
const MAX_IDLE_BYTES: usize = 256 << 20;

/// The pool of one node.
#[derive(Debug)]
pub struct ShmPool {
    state: Mutex<PoolState>,
    usage: Arc<PoolUsage>,
    /// Most bytes of segments.
    max_bytes: usize,
    /// Segments released so far.
    released: AtomicUsize,
}

#[derive(Debug, Default)]
struct PoolState {
    /// Segments that are divided into blocks. They are never released.
    divided: Vec<(Arc<PoolSegment>, BuddyAllocator)>,
    /// Idle segments of long blocks, the oldest first.
    idle: Vec<Arc<PoolSegment>>,
    /// The number of the latest segment.
    last_number: u32,
}

impl ShmPool {
    /// A pool of at most `max_bytes` bytes of segments. Segments are created on demand.
    pub fn new(max_bytes: usize) -> Arc<Self> {
        let (state, usage, released) = Default::default();
        Arc::new(Self { state, usage, max_bytes, released })
    }

    /// Allocates a block of `length` bytes. Its contents are zeros or those of an earlier block of this pool. [`Errno::NOBUFS`]: the pool is
    /// exhausted.
    pub fn take(self: &Arc<Self>, length: usize) -> Result<ShmBlock, Errno> {
        let mut state = self.state();
        let Some(order) = buddy::order_for(length) else { return self.take_long(&mut state, length) };
        let found =
            state.divided.iter_mut().find_map(|(segment, buddy)| Some((segment.clone(), buddy.allocate(order)?)));
        let (segment, offset) = match found {
            Some(found) => found,
            None => {
                let segment = self.make(&mut state, SEGMENT_BYTES, false)?;
                let mut buddy = BuddyAllocator::new();
                let offset = buddy.allocate(order).ok_or(Errno::NOBUFS)?;
                state.divided.push((segment.clone(), buddy));
                (segment, offset)
            }
        };
        Ok(ShmBlock { pool: self.clone(), segment, offset: offset as u32, length, order: Some(order) })
    }

    /// Whether an empty pool could allocate a block of `length` bytes.
    pub fn can_hold(&self, length: usize) -> bool {
        let size = buddy::order_for(length).map_or_else(|| length.checked_next_power_of_two(), |_| Some(SEGMENT_BYTES));
        size.is_some_and(|size| size <= self.max_bytes)
    }

    /// Allocates a block that has its own segment.
    fn take_long(self: &Arc<Self>, state: &mut PoolState, length: usize) -> Result<ShmBlock, Errno> {
        let size = length.checked_next_power_of_two().ok_or(Errno::NOBUFS)?;
        let idle = state.idle.iter().rposition(|segment| segment.length() == size);
        let segment = match idle {
            Some(at) => state.idle.remove(at),
            None => self.make(state, size, false)?,
        };
        Ok(ShmBlock { pool: self.clone(), segment, offset: 0, length, order: None })
    }

    /// Creates a segment of at least `length` bytes for peers to map, and to write if `writable`. It lasts as long as the returned reference.
    pub fn segment(&self, length: usize, writable: bool) -> Result<Arc<PoolSegment>, Errno> {
        let size = length.max(PAGE_BYTES).checked_next_power_of_two().ok_or(Errno::NOBUFS)?;
        self.make(&mut self.state(), size, writable)
    }

    /// Creates a segment, after releasing idle ones if the pool is full.
    fn make(&self, state: &mut PoolState, size: usize, writable: bool) -> Result<Arc<PoolSegment>, Errno> {
        let is_full = || {
            let bytes = self.usage.bytes.load(Ordering::Relaxed).checked_add(size);
            let segments = self.usage.segments.load(Ordering::Relaxed);
            bytes.is_none_or(|bytes| bytes > self.max_bytes) || segments >= MAX_SEGMENTS
        };
        while is_full() && !state.idle.is_empty() {
            state.idle.remove(0);
            self.released.fetch_add(1, Ordering::Release);
        }
        if is_full() {
            return Err(Errno::NOBUFS);
        }
        let number = state.last_number.checked_add(1).ok_or(Errno::NOBUFS)?;
        let segment = PoolSegment::new(number, size, writable, &self.usage)?;
        state.last_number = number;
        Ok(Arc::new(segment))
    }

    /// The number of segments released so far. When it changes, peers must get the numbers of the segments to unmap.
    pub fn released_segments(&self) -> usize {
        self.released.load(Ordering::Acquire)
    }

    /// Counts a segment of [`ShmPool::segment`] that its holder has released or is about to release.
    pub fn note_released(&self) {
        self.released.fetch_add(1, Ordering::Release);
    }

    /// The number of segments, their bytes, and bytes of allocated blocks and of segments of [`ShmPool::segment`].
    pub fn usage(&self) -> [usize; 3] {
        let state = self.state();
        let [segments, bytes] = [&self.usage.segments, &self.usage.bytes].map(|n| n.load(Ordering::Relaxed));
        let divided: usize = state.divided.iter().map(|(_, buddy)| SEGMENT_BYTES - buddy.used()).sum();
        let idle: usize = state.idle.iter().map(|segment| segment.length()).sum();
        [segments, bytes, bytes - divided - idle]
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A block of a pool: memory that its holder alone can write, and that peers can at most read.
#[derive(Debug)]
pub struct ShmBlock {
    pool: Arc<ShmPool>,
    segment: Arc<PoolSegment>,
    length: usize,
    /// Offset in the segment; 0 for a long block.
    offset: u32,
    /// Order of a block of a divided segment; `None` for a long block.
    order: Option<u8>,
}

impl ShmBlock {
    /// The segment that contains it.
    pub fn segment(&self) -> &Arc<PoolSegment> {
        &self.segment
    }

    /// Shortens the block to `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// Reuses the memory for a block of `length` bytes, if the pool would allocate one of the same size. Otherwise returns the block unchanged.
    #[inline]
    pub fn reuse(mut self, length: usize) -> Result<Self, Self> {
        if self.order.is_none() || buddy::order_for(length) != self.order {
            return Err(self);
        }
        self.length = length;
        Ok(self)
    }

    /// Bytes that the pool has allocated for it.
    pub fn size(&self) -> usize {
        self.order.map_or(self.segment.length(), buddy::block_bytes)
    }

    /// Whether it is a block of a divided segment, which outlives the block.
    pub fn is_suballocated(&self) -> bool {
        self.order.is_some()
    }

    /// Its address in this process.
    pub fn address(&self) -> u64 {
        self.segment.address() + u64::from(self.offset)
    }
}

impl Deref for ShmBlock {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the pool allocates these bytes to one block at a time. They are mapped as long as the segment, and initialised by the kernel
        // or an earlier block. No other process can write to them: the segment is sealed against that.
        unsafe { std::slice::from_raw_parts(self.segment.at(self.offset as usize), self.length) }
    }
}

impl DerefMut for ShmBlock {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are valid as in `deref`, and the block is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.segment.at(self.offset as usize), self.length) }
    }
}

impl Drop for ShmBlock {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        let number = self.segment.number();
        if let Some(order) = self.order {
            let divided = state.divided.iter_mut().find(|(segment, _)| segment.number() == number);
            if let Some((_, buddy)) = divided {
                buddy.release(self.offset as usize, order);
            }
            return;
        }
        state.idle.push(self.segment.clone());
        while state.idle.iter().map(|segment| segment.length()).sum::<usize>() > MAX_IDLE_BYTES {
            state.idle.remove(0);
            self.pool.note_released();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsFd, OwnedFd};

    fn file(segment: &PoolSegment) -> OwnedFd {
        segment.file().expect("this system seals").as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn block_is_read_in_place_and_written_by_its_holder_only() {
        let pool = ShmPool::new(SEGMENT_BYTES);
        let _other = pool.take(5000).unwrap();
        let mut block = pool.take(100_000).unwrap();
        block.fill(7);
        block[99_999] = 8;
        let file = file(block.segment());
        let length = block.segment().length() as u64;
        assert!(PeerMapping::map(&file, length, true).is_err(), "sealed against writing");
        let mapping = Arc::new(PeerMapping::map(&file, length, false).unwrap());
        let part = PeerBytes::of(&mapping, block.address() - block.segment().address(), 100_000).unwrap();
        let bytes = part.to_vec();
        assert_eq!((bytes[0], bytes[99_998], bytes[99_999]), (7, 7, 8));
        assert_eq!((part.read(99_999, &mut [0; 5]), part.read(200_000, &mut [0; 5])), (1, 0));
        assert!(!mapping.is_writable() && mapping.view(0, length as usize + 1).is_none());
        assert!(PeerBytes::of(&mapping, length - 1, 2).is_none() && PeerBytes::of(&mapping, u64::MAX, 2).is_none());
        block.truncate(3);
        drop(mapping);
        block[0] = 9;
        assert_eq!((&block[..], part.to_vec()[0]), (&[9, 7, 7][..], 9), "mapped as long as its bytes are referenced");
    }

    #[test]
    fn released_memory_is_reused_and_a_full_pool_refuses() {
        let pool = ShmPool::new(SEGMENT_BYTES + SEGMENT_BYTES * 2);
        let blocks: Vec<_> = (0..16).map(|_| pool.take(4 << 20).unwrap()).collect();
        assert_eq!(pool.usage(), [1, SEGMENT_BYTES, SEGMENT_BYTES]);
        let long = pool.take(SEGMENT_BYTES + 1).unwrap();
        assert_eq!((pool.usage(), long.len()), ([2, 3 * SEGMENT_BYTES, 3 * SEGMENT_BYTES], SEGMENT_BYTES + 1));
        assert_eq!(pool.take(1).map(drop), Err(Errno::NOBUFS), "exhausted");
        assert_eq!(pool.take(usize::MAX).map(drop), Err(Errno::NOBUFS));
        assert!(
            [0, 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, 2 * SEGMENT_BYTES].iter().all(|&length| pool.can_hold(length))
        );
        assert!([2 * SEGMENT_BYTES + 1, 4 * SEGMENT_BYTES, usize::MAX].iter().all(|&length| !pool.can_hold(length)));
        let address = long.address();
        drop(long);
        assert_eq!(pool.take(SEGMENT_BYTES + 9).unwrap().address(), address, "the last long segment was kept");
        assert_eq!(pool.released_segments(), 0);
        let small = pool.take(1).unwrap();
        assert_eq!(
            (pool.released_segments(), pool.usage()),
            (1, [2, 2 * SEGMENT_BYTES, SEGMENT_BYTES + 4096]),
            "an idle segment was released for it"
        );
        drop((blocks, small));
        assert_eq!(pool.usage(), [2, 2 * SEGMENT_BYTES, 0]);
    }

    #[test]
    fn only_sealed_memory_of_the_given_size_is_mapped() {
        let pool = ShmPool::new(1 << 20);
        let segment = pool.segment(100, true).unwrap();
        let good = file(&segment);
        assert!(PeerMapping::map(&good, 4096, true).is_ok());
        for size in [0, 100, 8192, 4095, u64::MAX] {
            assert!(PeerMapping::map(&good, size, false).is_err(), "{size}");
        }
        let unsealed = crate::memory::open("test", 4096).unwrap();
        assert!(PeerMapping::map(&unsealed, 4096, false).is_err());
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(PeerMapping::map(&pipe, 4096, false).is_err());
        let disk = OwnedFd::from(std::fs::File::open(std::env::current_exe().unwrap()).unwrap());
        let length = rustix::fs::fstat(&disk).unwrap().st_size as u64;
        assert!(PeerMapping::map(&disk, length, false).is_err());
    }

    #[test]
    fn writable_segment_is_written_from_both_ends() {
        let pool = ShmPool::new(1 << 20);
        let segment = pool.segment(10_000, true).unwrap();
        let mapping = PeerMapping::map(&file(&segment), segment.length() as u64, true).unwrap();
        let (here, there) = (segment.view(10_000).unwrap(), mapping.view(0, 10_000).unwrap());
        there.write(5000, &[1, 2, 3]).unwrap();
        assert_eq!(here.add(5008, 8, 4), Ok(0));
        let mut bytes = [0; 3];
        here.read(5000, &mut bytes).unwrap();
        assert_eq!((bytes, there.add(5008, 8, 0)), ([1, 2, 3], Ok(4)));
        drop(segment);
        assert_eq!((here.add(5008, 8, 0), there.add(5008, 8, 0)), (Ok(0), Ok(4)), "zeros here, the memory there");
        assert_eq!(pool.usage(), [0; 3]);
    }
}
