//! The buddy allocator of a segment (Knowlton, CACM 8(10), 1965).
//!
//! What it is: bookkeeping. It allocates offsets in a segment of [`SEGMENT_BYTES`] bytes, in sizes that are powers of two; allocation and
//! release take a bounded number of steps. What it is not: it does not access the segment. Its state is in private memory, so a peer's writes
//! cannot corrupt it.

/// Bytes of a segment that is divided into blocks.
pub const SEGMENT_BYTES: usize = 64 << 20;
/// Binary logarithm of the smallest block, a page, and of the largest one, a segment.
const MIN_BLOCK_LOG2: u32 = 12;
const MAX_BLOCK_LOG2: u32 = SEGMENT_BYTES.trailing_zeros();
const ORDERS: usize = (MAX_BLOCK_LOG2 - MIN_BLOCK_LOG2 + 1) as usize;
const PAGES: usize = SEGMENT_BYTES >> MIN_BLOCK_LOG2;
/// End of a free list.
const NO_PAGE: u32 = u32::MAX;
/// Entry of `free` for a page at which no free block begins.
const NOT_FREE: u8 = u8::MAX;

/// The allocator of one segment.
#[derive(Debug)]
pub struct BuddyAllocator {
    /// By order: the first page of the first free block.
    heads: [u32; ORDERS],
    /// By page at which a free block begins: the previous and next free block of the same order.
    links: Vec<[u32; 2]>,
    /// By page: the order of the free block that begins there, or `NOT_FREE`.
    free: Vec<u8>,
    /// Bytes of allocated blocks.
    used: usize,
}

/// The order of the smallest block of at least `length` bytes. `None`: more than a segment.
pub fn order_for(length: usize) -> Option<u8> {
    let order = length.checked_next_power_of_two()?.trailing_zeros().max(MIN_BLOCK_LOG2) - MIN_BLOCK_LOG2;
    (order < ORDERS as u32).then_some(order as u8)
}

/// Bytes of a block of an order.
pub fn block_bytes(order: u8) -> usize {
    1 << (u32::from(order) + MIN_BLOCK_LOG2)
}

impl Default for BuddyAllocator {
    fn default() -> Self {
        Self::new()
    }
}

impl BuddyAllocator {
    /// An allocator with all bytes free.
    pub fn new() -> Self {
        let mut this =
            Self { heads: [NO_PAGE; ORDERS], links: vec![[NO_PAGE; 2]; PAGES], free: vec![NOT_FREE; PAGES], used: 0 };
        this.push(0, ORDERS as u8 - 1);
        this
    }

    /// Bytes of allocated blocks.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Allocates a block; returns its offset. `None`: no block of this order is free.
    pub fn allocate(&mut self, order: u8) -> Option<usize> {
        let from = (order..ORDERS as u8).find(|&order| self.heads[usize::from(order)] != NO_PAGE)?;
        let page = self.heads[usize::from(from)];
        self.unlink(page, from);
        for half in (order..from).rev() {
            self.push(page + (1 << half), half); // the upper half stays
        }
        self.used += block_bytes(order);
        Some((page as usize) << MIN_BLOCK_LOG2)
    }

    /// Releases a block that was allocated with this order, and merges it with its free buddies. To be called once for each block.
    pub fn release(&mut self, offset: usize, mut order: u8) {
        self.used -= block_bytes(order);
        let mut page = (offset >> MIN_BLOCK_LOG2) as u32;
        while usize::from(order) + 1 < ORDERS {
            let buddy = page ^ 1 << order;
            if self.free[buddy as usize] != order {
                break;
            }
            self.unlink(buddy, order);
            page = page.min(buddy);
            order += 1;
        }
        self.push(page, order);
    }

    fn push(&mut self, page: u32, order: u8) {
        let head = std::mem::replace(&mut self.heads[usize::from(order)], page);
        self.links[page as usize] = [NO_PAGE, head];
        if head != NO_PAGE {
            self.links[head as usize][0] = page;
        }
        self.free[page as usize] = order;
    }

    fn unlink(&mut self, page: u32, order: u8) {
        let [before, after] = self.links[page as usize];
        match before {
            NO_PAGE => self.heads[usize::from(order)] = after,
            before => self.links[before as usize][1] = after,
        }
        if after != NO_PAGE {
            self.links[after as usize][0] = before;
        }
        self.free[page as usize] = NOT_FREE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A linear congruential generator.
    fn next(state: &mut u64) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize
    }

    #[test]
    fn sizes_are_rounded_up_and_bounded() {
        assert_eq!(
            (order_for(0), order_for(1), order_for(4096), order_for(4097)),
            (Some(0), Some(0), Some(0), Some(1))
        );
        assert_eq!(
            (order_for(SEGMENT_BYTES), order_for(SEGMENT_BYTES + 1), order_for(usize::MAX)),
            (Some(ORDERS as u8 - 1), None, None)
        );
        assert!(
            (0..ORDERS as u8).all(|n| order_for(block_bytes(n)) == Some(n) && order_for(block_bytes(n) - 1) == Some(n))
        );
    }

    #[test]
    fn blocks_never_overlap_and_all_merge_again() {
        let mut buddy = BuddyAllocator::new();
        let (mut pages, mut blocks, mut state) = (vec![false; PAGES], Vec::<(usize, u8)>::new(), 7);
        for _ in 0..20_000 {
            if next(&mut state).is_multiple_of(2) || blocks.is_empty() {
                let order = (next(&mut state) % 11) as u8;
                let Some(offset) = buddy.allocate(order) else { continue };
                assert!(offset.is_multiple_of(block_bytes(order)) && offset + block_bytes(order) <= SEGMENT_BYTES);
                for page in &mut pages[offset >> MIN_BLOCK_LOG2..(offset + block_bytes(order)) >> MIN_BLOCK_LOG2] {
                    assert!(!std::mem::replace(page, true), "allocated twice");
                }
                blocks.push((offset, order));
            } else {
                let (offset, order) = blocks.swap_remove(next(&mut state) % blocks.len());
                pages[offset >> MIN_BLOCK_LOG2..(offset + block_bytes(order)) >> MIN_BLOCK_LOG2].fill(false);
                buddy.release(offset, order);
            }
            assert_eq!(buddy.used(), blocks.iter().map(|block| block_bytes(block.1)).sum::<usize>());
        }
        blocks.into_iter().for_each(|(offset, order)| buddy.release(offset, order));
        assert_eq!((buddy.used(), buddy.allocate(ORDERS as u8 - 1), buddy.allocate(0)), (0, Some(0), None));
    }

    #[test]
    fn block_released_last_is_allocated_first() {
        let mut buddy = BuddyAllocator::new();
        let [first, second] = [buddy.allocate(3).unwrap(), buddy.allocate(3).unwrap()];
        let third = buddy.allocate(3).unwrap();
        buddy.release(second, 3);
        assert_eq!(buddy.allocate(3), Some(second), "its pages are warm");
        [first, second, third].into_iter().for_each(|offset| buddy.release(offset, 3));
    }
}
