//! Which blocks of a segment are free: the buddy system (Knowlton, CACM 8(10), 1965), in memory of this process alone.
//!
//! What it is: numbers. It hands out places in a segment of [`SEGMENT`] bytes, in sizes that are powers of two, and takes them back;
//! both in a bounded number of steps whatever the size. What it is not: it touches no memory that a peer sees, so nothing that a peer
//! writes can lead it astray.

/// Bytes of a segment that is divided into blocks.
pub const SEGMENT: usize = 64 << 20;
/// Smallest block: a page.
const SMALLEST: u32 = 12;
const LARGEST: u32 = SEGMENT.trailing_zeros();
const ORDERS: usize = (LARGEST - SMALLEST + 1) as usize;
const PAGES: usize = SEGMENT >> SMALLEST;
const NONE: u32 = u32::MAX;
/// No free block begins at this page.
const TAKEN: u8 = u8::MAX;

/// The blocks of one segment.
#[derive(Debug)]
pub struct Buddy {
    /// By order: the page at which the first free block of that size begins.
    heads: [u32; ORDERS],
    /// By page: the free blocks of the same size before and after the one that begins there.
    links: Vec<[u32; 2]>,
    /// By page: the order of the free block that begins there.
    free: Vec<u8>,
    /// Bytes handed out.
    used: usize,
}

/// The order whose blocks hold so many bytes; `None`: more than a segment.
pub fn order(length: usize) -> Option<u8> {
    let order = length.checked_next_power_of_two()?.trailing_zeros().max(SMALLEST) - SMALLEST;
    (order < ORDERS as u32).then_some(order as u8)
}

/// Bytes of a block.
pub fn size(order: u8) -> usize {
    1 << (u32::from(order) + SMALLEST)
}

impl Default for Buddy {
    fn default() -> Self {
        Self::new()
    }
}

impl Buddy {
    /// All free.
    pub fn new() -> Self {
        let mut this = Self { heads: [NONE; ORDERS], links: vec![[NONE; 2]; PAGES], free: vec![TAKEN; PAGES], used: 0 };
        this.push(0, ORDERS as u8 - 1);
        this
    }

    /// Bytes handed out.
    pub fn used(&self) -> usize {
        self.used
    }

    /// A block: where it begins.
    pub fn take(&mut self, order: u8) -> Option<usize> {
        let from = (order..ORDERS as u8).find(|&order| self.heads[usize::from(order)] != NONE)?;
        let page = self.heads[usize::from(from)];
        self.unlink(page, from);
        for half in (order..from).rev() {
            self.push(page + (1 << half), half); // the upper half stays
        }
        self.used += size(order);
        Some((page as usize) << SMALLEST)
    }

    /// Takes a block back that was handed out with this order, once.
    pub fn give(&mut self, offset: usize, mut order: u8) {
        self.used -= size(order);
        let mut page = (offset >> SMALLEST) as u32;
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
        self.links[page as usize] = [NONE, head];
        if head != NONE {
            self.links[head as usize][0] = page;
        }
        self.free[page as usize] = order;
    }

    fn unlink(&mut self, page: u32, order: u8) {
        let [before, after] = self.links[page as usize];
        match before {
            NONE => self.heads[usize::from(order)] = after,
            before => self.links[before as usize][1] = after,
        }
        if after != NONE {
            self.links[after as usize][0] = before;
        }
        self.free[page as usize] = TAKEN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As good a source of chance as a test needs.
    fn next(state: &mut u64) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize
    }

    #[test]
    fn sizes_are_rounded_up_and_bounded() {
        assert_eq!((order(0), order(1), order(4096), order(4097)), (Some(0), Some(0), Some(0), Some(1)));
        assert_eq!((order(SEGMENT), order(SEGMENT + 1), order(usize::MAX)), (Some(ORDERS as u8 - 1), None, None));
        assert!((0..ORDERS as u8).all(|n| order(size(n)) == Some(n) && order(size(n) - 1) == Some(n)));
    }

    #[test]
    fn blocks_never_overlap_and_all_come_together_again() {
        let mut buddy = Buddy::new();
        let (mut pages, mut blocks, mut state) = (vec![false; PAGES], Vec::<(usize, u8)>::new(), 7);
        for _ in 0..20_000 {
            if next(&mut state).is_multiple_of(2) || blocks.is_empty() {
                let order = (next(&mut state) % 11) as u8;
                let Some(offset) = buddy.take(order) else { continue };
                assert!(offset.is_multiple_of(size(order)) && offset + size(order) <= SEGMENT);
                for page in &mut pages[offset >> SMALLEST..(offset + size(order)) >> SMALLEST] {
                    assert!(!std::mem::replace(page, true), "handed out twice");
                }
                blocks.push((offset, order));
            } else {
                let (offset, order) = blocks.swap_remove(next(&mut state) % blocks.len());
                pages[offset >> SMALLEST..(offset + size(order)) >> SMALLEST].fill(false);
                buddy.give(offset, order);
            }
            assert_eq!(buddy.used(), blocks.iter().map(|block| size(block.1)).sum::<usize>());
        }
        blocks.into_iter().for_each(|(offset, order)| buddy.give(offset, order));
        assert_eq!((buddy.used(), buddy.take(ORDERS as u8 - 1), buddy.take(0)), (0, Some(0), None));
    }

    #[test]
    fn what_came_back_last_is_used_first() {
        let mut buddy = Buddy::new();
        let [first, second] = [buddy.take(3).unwrap(), buddy.take(3).unwrap()];
        let third = buddy.take(3).unwrap();
        buddy.give(second, 3);
        assert_eq!(buddy.take(3), Some(second), "its pages are warm");
        [first, second, third].into_iter().for_each(|offset| buddy.give(offset, 3));
    }
}
