//! Records with generational ids, and intrusive lists of them.
//!
//! [`Slab`] stores records that are named by [`SlabId`]s: an index and a generation, so that an id used after its record is gone is
//! noticed. [`IntrusiveList`] is a doubly linked list of records of one slab: appending and unlinking take constant time and allocate
//! nothing.
//!
//! An id from a peer goes through [`Slab::find`] or [`Slab::get_by_id`], which check it.

/// Bits of an id that are the index.
const INDEX_BITS: u32 = 20;
/// Most records of one slab.
pub const MAX_RECORDS: u32 = (1 << INDEX_BITS) - 1;
/// The index that means no record.
const NIL: u32 = u32::MAX;
/// Bytes that an empty slab may keep.
const MAX_IDLE_BYTES: usize = 16 << 10;

/// Names a record: the index in the low bits, the generation above it. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SlabId(pub u32);

impl SlabId {
    /// The index.
    #[inline(always)]
    pub fn index(self) -> u32 {
        self.0 & MAX_RECORDS
    }
}

/// The ends of a list.
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
    /// Whether the list is empty.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.head == NIL
    }

    /// The index of the first record.
    #[inline(always)]
    pub fn first(self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }
}

/// Records of one type, each with links for up to `N` lists.
#[derive(Debug)]
pub struct Slab<T, const N: usize = 0> {
    nodes: Vec<Node<T, N>>,
    /// The first free node; the others follow by `next_free`.
    free: u32,
    live: u32,
    /// Ids given so far, modulo the generations. It outlives the nodes when an empty slab releases its memory.
    generation: u32,
}

#[derive(Debug)]
struct Node<T, const N: usize> {
    value: Option<T>,
    number: SlabId,
    next_free: u32,
    /// Previous and next record in each list.
    links: [[u32; 2]; N],
}

impl<T, const N: usize> Default for Slab<T, N> {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: NIL, live: 0, generation: 0 }
    }
}

impl<T, const N: usize> Slab<T, N> {
    /// Bytes of one record.
    pub const RECORD_BYTES: usize = size_of::<Node<T, N>>();

    /// Number of records.
    #[inline(always)]
    pub fn count(&self) -> u32 {
        self.live
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * Self::RECORD_BYTES
    }

    /// Adds a record; `None` when there are [`MAX_RECORDS`]. Its index is below the largest number of records that the slab has
    /// held at once.
    #[inline]
    pub fn insert(&mut self, value: T) -> Option<SlabId> {
        self.insert_with(|| value)
    }

    /// Adds a record that `make` constructs in place; `None` when there are [`MAX_RECORDS`].
    #[inline(always)]
    pub fn insert_with(&mut self, make: impl FnOnce() -> T) -> Option<SlabId> {
        self.insert_and_get(make).map(|(number, _)| number)
    }

    /// Adds a record that `make` constructs in place, and returns it with its id; `None` when there are [`MAX_RECORDS`].
    #[inline(always)]
    pub fn insert_and_get(&mut self, make: impl FnOnce() -> T) -> Option<(SlabId, &mut T)> {
        if self.free == NIL && !self.grow() {
            return None;
        }
        let index = self.free;
        let generation = if self.generation == u32::MAX >> INDEX_BITS { 1 } else { self.generation + 1 };
        let number = SlabId(generation << INDEX_BITS | index);
        let place = self.nodes.get_mut(index as usize)?;
        std::mem::forget(place.value.replace(make())); // the node was empty: without a drop the record is constructed in place
        self.free = std::mem::replace(&mut place.next_free, NIL);
        (place.number, place.links) = (number, [[NIL; 2]; N]);
        self.generation = generation;
        self.live += 1;
        place.value.as_mut().map(|value| (number, value))
    }

    /// Adds a free node. False: there are [`MAX_RECORDS`].
    #[cold]
    #[inline(never)]
    fn grow(&mut self) -> bool {
        let index = self.nodes.len() as u32;
        if index < MAX_RECORDS {
            self.nodes.push(Node { value: None, number: SlabId(0), next_free: NIL, links: [[NIL; 2]; N] });
            self.free = index;
        }
        index < MAX_RECORDS
    }

    /// Removes a record, which must have left its lists.
    #[inline]
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let node = self.nodes.get_mut(index as usize)?;
        let value = node.value.take()?;
        self.free_node(index);
        Some(value)
    }

    /// Removes a record, which must have left its lists, and drops it in place.
    #[inline(always)]
    pub fn forget(&mut self, index: u32) {
        if let Some(node) = self.nodes.get_mut(index as usize)
            && node.value.is_some()
        {
            node.value = None;
            self.free_node(index);
        }
    }

    /// Removes a record that holds no resources, without the code of a drop.
    #[inline(always)]
    pub fn forget_without_drop(&mut self, index: u32) {
        let Some(node) = self.nodes.get_mut(index as usize) else { return };
        if node.value.is_some() {
            std::mem::forget(node.value.take());
            node.number = SlabId(0);
            node.next_free = std::mem::replace(&mut self.free, index);
            self.record_removed();
        }
    }

    #[inline]
    fn free_node(&mut self, index: u32) {
        let Some(node) = self.nodes.get_mut(index as usize) else { return };
        node.number = SlabId(0);
        node.next_free = std::mem::replace(&mut self.free, index);
        self.record_removed();
    }

    /// Counts a removed record.
    #[inline(always)]
    fn record_removed(&mut self) {
        self.live -= 1;
        if self.live == 0 && self.nodes.capacity() > const { MAX_IDLE_BYTES / Self::RECORD_BYTES } {
            self.release_memory();
        }
    }

    /// Releases the memory of an empty slab.
    #[cold]
    #[inline(never)]
    fn release_memory(&mut self) {
        self.nodes = Vec::new();
        self.free = NIL;
    }

    /// The index of the record with this id, if there is one.
    #[inline(always)]
    pub fn find(&self, number: SlabId) -> Option<u32> {
        let index = number.index();
        (self.nodes.get(index as usize)?.number == number && number.0 != 0).then_some(index)
    }

    /// The id of the record at this index; 0 if there is none.
    pub fn number(&self, index: u32) -> SlabId {
        self.nodes.get(index as usize).map_or(SlabId(0), |n| n.number)
    }

    /// The record at this index.
    #[inline(always)]
    pub fn get(&self, index: u32) -> Option<&T> {
        self.nodes.get(index as usize)?.value.as_ref()
    }

    /// The record at this index, mutable.
    #[inline(always)]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.nodes.get_mut(index as usize)?.value.as_mut()
    }

    /// The record with this id, mutable. No record has the id 0.
    #[inline(always)]
    pub fn get_by_id(&mut self, number: SlabId) -> Option<&mut T> {
        let node = self.nodes.get_mut(number.index() as usize)?;
        if node.number == number { node.value.as_mut() } else { None }
    }

    /// The record with this id.
    #[inline(always)]
    pub fn known(&self, number: SlabId) -> Option<&T> {
        let node = self.nodes.get(number.index() as usize)?;
        if node.number == number { node.value.as_ref() } else { None }
    }

    /// All indices are below this.
    pub fn index_bound(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// The indices of all records.
    pub fn indices(&self) -> impl Iterator<Item = u32> + use<T, N> {
        let all: Vec<u32> = (0..self.nodes.len() as u32).filter(|&i| self.get(i).is_some()).collect();
        all.into_iter()
    }

    // ---- lists ------------------------------------------------------------------------------------------------------

    /// Appends a record to a list that it is not in.
    #[inline]
    pub fn append(&mut self, list_ends: &mut IntrusiveList, list: usize, index: u32) {
        self.nodes[index as usize].links[list] = [list_ends.tail, NIL];
        match list_ends.tail {
            NIL => list_ends.head = index,
            tail => self.nodes[tail as usize].links[list][1] = index,
        }
        list_ends.tail = index;
    }

    /// Removes a record from a list that it is in.
    #[inline]
    pub fn unlink(&mut self, list_ends: &mut IntrusiveList, list: usize, index: u32) {
        let [before, after] = self.nodes[index as usize].links[list];
        match before {
            NIL => list_ends.head = after,
            before => self.nodes[before as usize].links[list][1] = after,
        }
        match after {
            NIL => list_ends.tail = before,
            after => self.nodes[after as usize].links[list][0] = before,
        }
        self.nodes[index as usize].links[list] = [NIL; 2];
    }

    /// The record after this one in a list.
    #[inline]
    pub fn after(&self, list: usize, index: u32) -> Option<u32> {
        let next = self.nodes.get(index as usize)?.links[list][1];
        (next != NIL).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_id_finds_no_record() {
        let mut slab = Slab::<u8>::default();
        let first = slab.insert(1).unwrap();
        assert_eq!(slab.remove(first.index()), Some(1));
        let second = slab.insert(2).unwrap();
        assert_eq!(first.index(), second.index());
        assert_eq!((slab.find(first), slab.find(second)), (None, Some(0)));
        assert_eq!(slab.find(SlabId(0)), None);
        assert_eq!(slab.find(SlabId(u32::MAX)), None);
    }

    #[test]
    fn empty_slab_releases_its_memory() {
        let mut slab = Slab::<u64>::default();
        let numbers: Vec<_> = (0..1000).map(|n| slab.insert(n).unwrap()).collect();
        assert!(numbers.iter().all(|n| slab.remove(n.index()).is_some()));
        assert_eq!(slab.bytes(), 0);
        let again = slab.insert(0).unwrap();
        assert!(!numbers.contains(&again), "the generation goes on");
    }

    #[test]
    fn records_unlink_anywhere_in_a_list() {
        let mut slab = Slab::<u32, 2>::default();
        let mut list = IntrusiveList::default();
        for n in 0..5 {
            let number = slab.insert(n).unwrap();
            slab.append(&mut list, 1, number.index());
        }
        for gone in [2, 0, 4] {
            slab.unlink(&mut list, 1, gone);
        }
        assert_eq!((list.first(), slab.after(1, 1), slab.after(1, 3)), (Some(1), Some(3), None));
        slab.unlink(&mut list, 1, 1);
        slab.unlink(&mut list, 1, 3);
        assert!(list.is_empty());
    }
}
