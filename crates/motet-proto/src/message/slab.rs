//! Records with small numbers, and lists through them.
//!
//! What it is: [`Slab`], a slab whose records are named by [`SlabId`]s (index and generation, so that a number used after its
//! record is gone is noticed), and [`IntrusiveList`], a doubly linked list through records of one pool: joining and leaving take
//! constant time wherever the record is, and nothing is allocated for it.
//!
//! What it is not: it knows nothing of messages. Numbers that a peer wrote go through [`Slab::find`], which checks them.

/// Bits of a number that are the index.
const INDEX_BITS: u32 = 20;
/// Most records of one pool.
pub const MAX_RECORDS: u32 = (1 << INDEX_BITS) - 1;
/// No record.
const NIL: u32 = u32::MAX;
/// Bytes that an empty pool may keep.
const MAX_IDLE_BYTES: usize = 16 << 10;

/// Names a record: its index, and below it how often numbers have been given. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SlabId(pub u32);

impl SlabId {
    /// The index alone.
    #[inline(always)]
    pub fn index(self) -> u32 {
        self.0 & MAX_RECORDS
    }
}

/// First and last of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntrusiveList {
    head: u32,
    tail: u32,
}

impl Default for IntrusiveList {
    fn default() -> Self {
        Self { head: NIL, tail: NIL }
    }
}

impl IntrusiveList {
    /// Whether nothing is in it.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.head == NIL
    }

    /// The index of the first.
    #[inline(always)]
    pub fn first(self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }
}

/// Records of one kind, each with a place in up to `N` lists.
#[derive(Debug)]
pub struct Slab<T, const N: usize = 0> {
    nodes: Vec<Node<T, N>>,
    /// First free node; the others follow by `next_free`.
    free: u32,
    live: u32,
    /// Numbers given so far, modulo the generations: it outlives the nodes when an empty pool gives its memory back.
    given: u32,
}

#[derive(Debug)]
struct Node<T, const N: usize> {
    value: Option<T>,
    number: SlabId,
    next_free: u32,
    /// Previous and next in each list.
    around: [[u32; 2]; N],
}

impl<T, const N: usize> Default for Slab<T, N> {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: NIL, live: 0, given: 0 }
    }
}

impl<T, const N: usize> Slab<T, N> {
    /// Bytes of one record.
    pub const RECORD: usize = size_of::<Node<T, N>>();

    /// Records.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.live
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * Self::RECORD
    }

    /// Adds a record; `None` when there are [`MAX_RECORDS`]. Its index is below the most records that there ever were at once.
    #[inline]
    pub fn insert(&mut self, value: T) -> Option<SlabId> {
        self.insert_with(|| value)
    }

    /// The same of a record that is made where it stays, if there is a place for it.
    #[inline(always)]
    pub fn insert_with(&mut self, make: impl FnOnce() -> T) -> Option<SlabId> {
        self.insert_and_get(make).map(|(number, _)| number)
    }

    /// The same, and where it is.
    #[inline(always)]
    pub fn insert_and_get(&mut self, make: impl FnOnce() -> T) -> Option<(SlabId, &mut T)> {
        if self.free == NIL && !self.grow() {
            return None;
        }
        let index = self.free;
        let given = if self.given == u32::MAX >> INDEX_BITS { 1 } else { self.given + 1 };
        let number = SlabId(given << INDEX_BITS | index);
        let place = self.nodes.get_mut(index as usize)?;
        std::mem::forget(place.value.replace(make())); // nothing was there: nothing is dropped, and the record is made where it stays
        self.free = std::mem::replace(&mut place.next_free, NIL);
        (place.number, place.around) = (number, [[NIL; 2]; N]);
        self.given = given;
        self.live += 1;
        place.value.as_mut().map(|value| (number, value))
    }

    /// Makes a place for one more. False: there are [`MAX_RECORDS`].
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> bool {
        let index = self.nodes.len() as u32;
        if index < MAX_RECORDS {
            self.nodes.push(Node { value: None, number: SlabId(0), next_free: NIL, around: [[NIL; 2]; N] });
            self.free = index;
        }
        index < MAX_RECORDS
    }

    /// Takes a record out; it must have left its lists.
    #[inline]
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let node = self.nodes.get_mut(index as usize)?;
        let value = node.value.take()?;
        self.free_node(index);
        Some(value)
    }

    /// The same, and drops it where it is.
    #[inline(always)]
    pub fn forget(&mut self, index: u32) {
        if let Some(node) = self.nodes.get_mut(index as usize)
            && node.value.is_some()
        {
            node.value = None;
            self.free_node(index);
        }
    }

    /// The same of a record that holds nothing: to drop it would do nothing, and is not done.
    #[inline(always)]
    pub fn forget_without_drop(&mut self, index: u32) {
        let Some(node) = self.nodes.get_mut(index as usize) else { return };
        if node.value.is_some() {
            std::mem::forget(node.value.take());
            node.number = SlabId(0);
            node.next_free = std::mem::replace(&mut self.free, index);
            self.one_less();
        }
    }

    #[inline]
    fn free_node(&mut self, index: u32) {
        let Some(node) = self.nodes.get_mut(index as usize) else { return };
        node.number = SlabId(0);
        node.next_free = std::mem::replace(&mut self.free, index);
        self.one_less();
    }

    /// A record is gone.
    #[inline(always)]
    fn one_less(&mut self) {
        self.live -= 1;
        if self.live == 0 && self.nodes.capacity() > const { MAX_IDLE_BYTES / Self::RECORD } {
            self.release_memory();
        }
    }

    /// An empty pool gives large memory back.
    #[cold]
    #[inline(never)]
    fn release_memory(&mut self) {
        self.nodes = Vec::new();
        self.free = NIL;
    }

    /// The index of the record with this number, if there is one.
    #[inline(always)]
    pub fn find(&self, number: SlabId) -> Option<u32> {
        let index = number.index();
        (self.nodes.get(index as usize)?.number == number && number.0 != 0).then_some(index)
    }

    /// The number of a record.
    pub fn number(&self, index: u32) -> SlabId {
        self.nodes.get(index as usize).map_or(SlabId(0), |n| n.number)
    }

    /// A record.
    #[inline(always)]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.nodes.get(index as usize)?.value.as_ref()
    }

    /// A record.
    #[inline(always)]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.nodes.get_mut(index as usize)?.value.as_mut()
    }

    /// The record with this number. (None has 0.)
    #[inline(always)]
    pub fn get_by_id(&mut self, number: SlabId) -> Option<&mut T> {
        let node = self.nodes.get_mut(number.index() as usize)?;
        if node.number == number { node.value.as_mut() } else { None }
    }

    /// The same, to look at.
    #[inline(always)]
    pub fn known(&self, number: SlabId) -> Option<&T> {
        let node = self.nodes.get(number.index() as usize)?;
        if node.number == number { node.value.as_ref() } else { None }
    }

    /// Indices are below this.
    pub fn highest(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Indices of all records.
    pub fn indices(&self) -> impl Iterator<Item = u32> + use<T, N> {
        let all: Vec<u32> = (0..self.nodes.len() as u32).filter(|&i| self.get(i).is_some()).collect();
        all.into_iter()
    }

    // ---- lists ------------------------------------------------------------------------------------------------------

    /// Puts a record at the end of a list, in which it must not be.
    #[inline]
    pub fn append(&mut self, fifo: &mut IntrusiveList, list: usize, index: u32) {
        self.nodes[index as usize].around[list] = [fifo.tail, NIL];
        match fifo.tail {
            NIL => fifo.head = index,
            tail => self.nodes[tail as usize].around[list][1] = index,
        }
        fifo.tail = index;
    }

    /// Takes a record out of a list, in which it must be.
    #[inline]
    pub fn unlink(&mut self, fifo: &mut IntrusiveList, list: usize, index: u32) {
        let [before, after] = self.nodes[index as usize].around[list];
        match before {
            NIL => fifo.head = after,
            before => self.nodes[before as usize].around[list][1] = after,
        }
        match after {
            NIL => fifo.tail = before,
            after => self.nodes[after as usize].around[list][0] = before,
        }
        self.nodes[index as usize].around[list] = [NIL; 2];
    }

    /// The record after this one in a list.
    #[inline]
    pub fn after(&self, list: usize, index: u32) -> Option<u32> {
        let next = self.nodes.get(index as usize)?.around[list][1];
        (next != NIL).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_outlives_its_record_and_is_noticed() {
        let mut pool = Slab::<u8>::default();
        let first = pool.insert(1).unwrap();
        assert_eq!(pool.remove(first.index()), Some(1));
        let second = pool.insert(2).unwrap();
        assert_eq!(first.index(), second.index());
        assert_eq!((pool.find(first), pool.find(second)), (None, Some(0)));
        assert_eq!(pool.find(SlabId(0)), None);
        assert_eq!(pool.find(SlabId(u32::MAX)), None);
    }

    #[test]
    fn an_empty_pool_keeps_little() {
        let mut pool = Slab::<u64>::default();
        let numbers: Vec<_> = (0..1000).map(|n| pool.insert(n).unwrap()).collect();
        assert!(numbers.iter().all(|n| pool.remove(n.index()).is_some()));
        assert_eq!(pool.bytes(), 0);
        let again = pool.insert(0).unwrap();
        assert!(!numbers.contains(&again), "the generation goes on");
    }

    #[test]
    fn records_leave_a_list_anywhere() {
        let mut pool = Slab::<u32, 2>::default();
        let mut list = IntrusiveList::default();
        for n in 0..5 {
            let number = pool.insert(n).unwrap();
            pool.append(&mut list, 1, number.index());
        }
        for gone in [2, 0, 4] {
            pool.unlink(&mut list, 1, gone);
        }
        assert_eq!((list.first(), pool.after(1, 1), pool.after(1, 3)), (Some(1), Some(3), None));
        pool.unlink(&mut list, 1, 1);
        pool.unlink(&mut list, 1, 3);
        assert!(list.is_empty());
    }
}
