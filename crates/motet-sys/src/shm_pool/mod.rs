//! The pool of a node: memory for loans and regions, which other processes of the host map.
//!
//! What it is: [`Pool`] hands out [`Block`]s, any size in a bounded number of steps, from segments that grow with need and have a bound.
//! A block is its holder's alone and goes back when it is dropped, wherever that happens. One that is longer than a [`SEGMENT`] has a
//! segment of its own, whose pages go back to the system unless it is among the last ones used.
//!
//! What it is not: who is told of which segment, and when a block that was lent comes back, is the engine's matter. What is free is
//! written down in this process alone ([`buddy`]).

pub mod buddy;
pub mod segment;

pub use buddy::SEGMENT;
pub use segment::{Part, Segment, Window};

use buddy::Buddy;
use rustix::io::Errno;
use segment::{Account, PAGE};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most segments of a pool, and so of a peer.
pub const SEGMENTS: usize = 256;
/// Bytes of long blocks' segments that are kept though nobody uses them.
const KEPT: usize = 256 << 20;

/// The pool of one node.
#[derive(Debug)]
pub struct Pool {
    shelves: Mutex<Shelves>,
    account: Arc<Account>,
    /// Most bytes of segments.
    most: usize,
    /// Segments that have gone, ever.
    gone: AtomicUsize,
}

#[derive(Debug, Default)]
struct Shelves {
    /// Segments in blocks. They stay.
    divided: Vec<(Arc<Segment>, Buddy)>,
    /// Segments of one block each, which nobody uses now; the oldest first.
    idle: Vec<Arc<Segment>>,
    /// The last segment's number.
    last: u32,
}

impl Pool {
    /// With at most so many bytes of segments. None is made before it is needed.
    pub fn new(most: usize) -> Arc<Self> {
        let (shelves, account, gone) = Default::default();
        Arc::new(Self { shelves, account, most, gone })
    }

    /// A block of `length` bytes, with whatever was in it before: zeros or an earlier block of this pool. [`Errno::NOBUFS`] when the
    /// pool is used up.
    pub fn take(self: &Arc<Self>, length: usize) -> Result<Block, Errno> {
        let mut shelves = self.shelves();
        let Some(order) = buddy::order(length) else { return self.take_long(&mut shelves, length) };
        let found = shelves.divided.iter_mut().find_map(|(segment, buddy)| Some((segment.clone(), buddy.take(order)?)));
        let (segment, offset) = match found {
            Some(found) => found,
            None => {
                let segment = self.make(&mut shelves, SEGMENT, false)?;
                let mut buddy = Buddy::new();
                let offset = buddy.take(order).ok_or(Errno::NOBUFS)?;
                shelves.divided.push((segment.clone(), buddy));
                (segment, offset)
            }
        };
        Ok(Block { pool: self.clone(), segment, offset: offset as u32, length, order: Some(order) })
    }

    /// Whether an empty pool would have such a block.
    pub fn holds(&self, length: usize) -> bool {
        let size = buddy::order(length).map_or_else(|| length.checked_next_power_of_two(), |_| Some(SEGMENT));
        size.is_some_and(|size| size <= self.most)
    }

    fn take_long(self: &Arc<Self>, shelves: &mut Shelves, length: usize) -> Result<Block, Errno> {
        let size = length.checked_next_power_of_two().ok_or(Errno::NOBUFS)?;
        let idle = shelves.idle.iter().rposition(|segment| segment.length() == size);
        let segment = match idle {
            Some(at) => shelves.idle.remove(at),
            None => self.make(shelves, size, false)?,
        };
        Ok(Block { pool: self.clone(), segment, offset: 0, length, order: None })
    }

    /// A segment of its own for `length` bytes that others may map, and write if `writable`. It lasts as long as somebody has it.
    pub fn segment(&self, length: usize, writable: bool) -> Result<Arc<Segment>, Errno> {
        let size = length.max(PAGE).checked_next_power_of_two().ok_or(Errno::NOBUFS)?;
        self.make(&mut self.shelves(), size, writable)
    }

    fn make(&self, shelves: &mut Shelves, size: usize, writable: bool) -> Result<Arc<Segment>, Errno> {
        let full = || {
            let bytes = self.account.bytes.load(Ordering::Relaxed).checked_add(size);
            let segments = self.account.segments.load(Ordering::Relaxed);
            bytes.is_none_or(|bytes| bytes > self.most) || segments >= SEGMENTS
        };
        while full() && !shelves.idle.is_empty() {
            shelves.idle.remove(0);
            self.gone.fetch_add(1, Ordering::Release);
        }
        if full() {
            return Err(Errno::NOBUFS);
        }
        let number = shelves.last.checked_add(1).ok_or(Errno::NOBUFS)?;
        let segment = Segment::new(number, size, writable, &self.account)?;
        shelves.last = number;
        Ok(Arc::new(segment))
    }

    /// Segments that have gone, ever: those who were told of them have something to hear when this changes.
    pub fn gone(&self) -> usize {
        self.gone.load(Ordering::Acquire)
    }

    /// A segment that was handed out has gone, or is about to.
    pub fn note_gone(&self) {
        self.gone.fetch_add(1, Ordering::Release);
    }

    /// Segments, their bytes, and bytes of blocks in the hands of others.
    pub fn size(&self) -> [usize; 3] {
        let shelves = self.shelves();
        let [segments, bytes] = [&self.account.segments, &self.account.bytes].map(|n| n.load(Ordering::Relaxed));
        let divided: usize = shelves.divided.iter().map(|(_, buddy)| SEGMENT - buddy.used()).sum();
        let idle: usize = shelves.idle.iter().map(|segment| segment.length()).sum();
        [segments, bytes, bytes - divided - idle]
    }

    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a pool that are one holder's, who may read and write them: others can at most read.
#[derive(Debug)]
pub struct Block {
    pool: Arc<Pool>,
    segment: Arc<Segment>,
    length: usize,
    /// Where it begins, in a segment that is divided.
    offset: u32,
    /// Of a part of a divided segment.
    order: Option<u8>,
}

impl Block {
    /// Where it lies.
    pub fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Only the first `length` bytes count from now on.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// The same memory as a block of `length` bytes, where the pool would give one of that size; otherwise it comes back as it is.
    #[inline]
    pub fn again(mut self, length: usize) -> Result<Self, Self> {
        if self.order.is_none() || buddy::order(length) != self.order {
            return Err(self);
        }
        self.length = length;
        Ok(self)
    }

    /// Bytes that the pool has given for it.
    pub fn size(&self) -> usize {
        self.order.map_or(self.segment.length(), buddy::size)
    }

    /// Whether it is part of a segment, which stays whatever becomes of the block.
    pub fn is_part(&self) -> bool {
        self.order.is_some()
    }

    /// Its address in this process.
    pub fn address(&self) -> u64 {
        self.segment.address() + u64::from(self.offset)
    }
}

impl Deref for Block {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the pool gives these bytes to one block at a time; they are mapped as long as the segment, and zeros or an earlier
        // block's. No other process can write to them: its descriptor is sealed against that.
        unsafe { std::slice::from_raw_parts(self.segment.at(self.offset as usize), self.length) }
    }
}

impl DerefMut for Block {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.segment.at(self.offset as usize), self.length) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut shelves = self.pool.shelves();
        let number = self.segment.number();
        if let Some(order) = self.order {
            let shelf = shelves.divided.iter_mut().find(|(segment, _)| segment.number() == number);
            if let Some((_, buddy)) = shelf {
                buddy.give(self.offset as usize, order);
            }
            return;
        }
        shelves.idle.push(self.segment.clone());
        while shelves.idle.iter().map(|segment| segment.length()).sum::<usize>() > KEPT {
            shelves.idle.remove(0);
            self.pool.note_gone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::{AsFd, OwnedFd};

    fn file(segment: &Segment) -> OwnedFd {
        segment.file().expect("this system seals").as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn a_block_is_seen_in_place_and_can_only_be_written_by_its_holder() {
        let pool = Pool::new(SEGMENT);
        let _other = pool.take(5000).unwrap();
        let mut block = pool.take(100_000).unwrap();
        block.fill(7);
        block[99_999] = 8;
        let file = file(block.segment());
        let length = block.segment().length() as u64;
        assert!(Window::map(&file, length, true).is_err(), "sealed against writing");
        let window = Arc::new(Window::map(&file, length, false).unwrap());
        let part = Part::of(&window, block.address() - block.segment().address(), 100_000).unwrap();
        let bytes = part.to_vec();
        assert_eq!((bytes[0], bytes[99_998], bytes[99_999]), (7, 7, 8));
        assert_eq!((part.read(99_999, &mut [0; 5]), part.read(200_000, &mut [0; 5])), (1, 0));
        assert!(!window.is_writable() && window.view(0, length as usize + 1).is_none());
        assert!(Part::of(&window, length - 1, 2).is_none() && Part::of(&window, u64::MAX, 2).is_none());
        block.truncate(3);
        drop(window);
        block[0] = 9;
        assert_eq!((&block[..], part.to_vec()[0]), (&[9, 7, 7][..], 9), "mapped as long as somebody looks");
    }

    #[test]
    fn what_comes_back_is_used_again_and_what_is_used_up_is_refused() {
        let pool = Pool::new(SEGMENT + SEGMENT * 2);
        let blocks: Vec<_> = (0..16).map(|_| pool.take(4 << 20).unwrap()).collect();
        assert_eq!(pool.size(), [1, SEGMENT, SEGMENT]);
        let long = pool.take(SEGMENT + 1).unwrap();
        assert_eq!((pool.size(), long.len()), ([2, 3 * SEGMENT, 3 * SEGMENT], SEGMENT + 1));
        assert_eq!(pool.take(1).map(drop), Err(Errno::NOBUFS), "used up");
        assert_eq!(pool.take(usize::MAX).map(drop), Err(Errno::NOBUFS));
        assert!([0, 1, SEGMENT, SEGMENT + 1, 2 * SEGMENT].iter().all(|&length| pool.holds(length)));
        assert!([2 * SEGMENT + 1, 4 * SEGMENT, usize::MAX].iter().all(|&length| !pool.holds(length)));
        let address = long.address();
        drop(long);
        assert_eq!(pool.take(SEGMENT + 9).unwrap().address(), address, "the last long one was kept");
        assert_eq!(pool.gone(), 0);
        let small = pool.take(1).unwrap();
        assert_eq!((pool.gone(), pool.size()), (1, [2, 2 * SEGMENT, SEGMENT + 4096]), "and made way");
        drop((blocks, small));
        assert_eq!(pool.size(), [2, 2 * SEGMENT, 0]);
    }

    #[test]
    fn only_memory_of_the_size_that_cannot_shrink_is_mapped() {
        let pool = Pool::new(1 << 20);
        let segment = pool.segment(100, true).unwrap();
        let good = file(&segment);
        assert!(Window::map(&good, 4096, true).is_ok());
        for size in [0, 100, 8192, 4095, u64::MAX] {
            assert!(Window::map(&good, size, false).is_err(), "{size}");
        }
        let unsealed = crate::memory::open("test", 4096).unwrap();
        assert!(Window::map(&unsealed, 4096, false).is_err());
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(Window::map(&pipe, 4096, false).is_err());
        let disk = OwnedFd::from(std::fs::File::open(std::env::current_exe().unwrap()).unwrap());
        let length = rustix::fs::fstat(&disk).unwrap().st_size as u64;
        assert!(Window::map(&disk, length, false).is_err());
    }

    #[test]
    fn both_write_a_segment_that_is_for_both() {
        let pool = Pool::new(1 << 20);
        let segment = pool.segment(10_000, true).unwrap();
        let window = Window::map(&file(&segment), segment.length() as u64, true).unwrap();
        let (here, there) = (segment.view(10_000).unwrap(), window.view(0, 10_000).unwrap());
        there.write(5000, &[1, 2, 3]).unwrap();
        assert_eq!(here.add(5008, 8, 4), Ok(0));
        let mut bytes = [0; 3];
        here.read(5000, &mut bytes).unwrap();
        assert_eq!((bytes, there.add(5008, 8, 0)), ([1, 2, 3], Ok(4)));
        drop(segment);
        assert_eq!((here.add(5008, 8, 0), there.add(5008, 8, 0)), (Ok(0), Ok(4)), "zeros here, the memory there");
        assert_eq!(pool.size(), [0; 3]);
    }
}
