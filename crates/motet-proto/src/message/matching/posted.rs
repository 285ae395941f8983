//! The posted receives of one source, in the order of posting: a ring that grows.
//!
//! Receives are pushed at the end and searched from the oldest on. Removing a receive that is not the oldest leaves a gap, which the
//! next growth closes. The number of receives is limited by the caller.

use super::Receive;

/// A posted receive.
#[derive(Debug, Clone, Copy)]
pub struct PostedReceive<B> {
    /// Its number in the order of posting; 0: a gap.
    pub sequence: u64,
    pub tag: u64,
    pub ignore: u64,
    pub receive: Receive<B>,
}

impl<B> PostedReceive<B> {
    #[inline(always)]
    fn would_match(&self, tag: u64) -> bool {
        (tag ^ self.tag) & !self.ignore == 0
    }
}

/// The posted receives of one source.
#[derive(Debug)]
pub struct PostedRing<B> {
    slots: Vec<PostedReceive<B>>,
    /// Positions of the oldest receive and behind the youngest, modulo 2^32. The slot at `first` is no gap unless the ring is
    /// empty.
    first: u32,
    end: u32,
    live: u32,
}

/// Slots of a ring at its first use.
const FIRST_SLOTS: usize = 8;
/// Slots that an empty ring keeps: enough for a usual window of receives.
const MAX_EMPTY_SLOTS: usize = 256;

impl<B> Default for PostedRing<B> {
    fn default() -> Self {
        Self { slots: Vec::new(), first: 0, end: 0, live: 0 }
    }
}

impl<B: Copy> PostedRing<B> {
    /// Number of receives.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.live
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<PostedReceive<B>>()
    }

    /// Adds a receive at the end.
    #[inline(always)]
    pub fn push(&mut self, posted: PostedReceive<B>) {
        if self.end.wrapping_sub(self.first) as usize == self.slots.len() {
            self.make_room(posted);
        }
        let at = self.end as usize & (self.slots.len() - 1);
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = posted;
        }
        self.end = self.end.wrapping_add(1);
        self.live += 1;
    }

    /// Closes the gaps, and grows the ring if that makes too little room.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, filler: PostedReceive<B>) {
        let size = if self.live as usize * 2 > self.slots.len() || self.slots.is_empty() {
            (self.slots.len() * 2).max(FIRST_SLOTS)
        } else {
            self.slots.len()
        };
        let mut slots = Vec::with_capacity(size);
        slots.extend(self.iter().map(|(_, posted)| *posted));
        (self.first, self.end) = (0, slots.len() as u32);
        slots.resize(size, filler);
        self.slots = slots;
    }

    /// The receives with their positions, oldest first.
    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = (u32, &PostedReceive<B>)> {
        let (first, mask) = (self.first, (self.slots.len() as u32).wrapping_sub(1));
        let all = (0..self.end.wrapping_sub(first)).map(move |ahead| first.wrapping_add(ahead));
        let known = all.filter_map(move |at| self.slots.get((at & mask) as usize).map(|posted| (at, posted)));
        known.filter(|(_, posted)| posted.sequence != 0)
    }

    /// The oldest receive that matches a tag, and its position.
    #[inline(always)]
    pub fn oldest(&self, tag: u64) -> Option<(u32, &PostedReceive<B>)> {
        if self.live == 0 {
            return None;
        }
        // The common case: the oldest of all matches.
        let first = self.get(self.first)?;
        if first.would_match(tag) { Some((self.first, first)) } else { self.oldest_behind(tag) }
    }

    #[inline(never)]
    fn oldest_behind(&self, tag: u64) -> Option<(u32, &PostedReceive<B>)> {
        self.iter().find(|(_, posted)| posted.would_match(tag))
    }

    /// The position of the first receive for which `which` is true.
    pub fn position(&self, which: impl Fn(&PostedReceive<B>) -> bool) -> Option<u32> {
        self.iter().find(|(_, posted)| which(posted)).map(|(at, _)| at)
    }

    /// The receive at a position.
    #[inline(always)]
    pub fn get(&self, at: u32) -> Option<&PostedReceive<B>> {
        self.slots.get(at as usize & self.slots.len().wrapping_sub(1)).filter(|posted| posted.sequence != 0)
    }

    /// The receive at a position, mutable.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut PostedReceive<B>> {
        let mask = self.slots.len().wrapping_sub(1);
        self.slots.get_mut(at as usize & mask).filter(|posted| posted.sequence != 0)
    }

    /// Removes and returns the receive at a position.
    #[inline(always)]
    pub fn take(&mut self, at: u32) -> Option<Receive<B>> {
        let receive = self.get(at)?.receive;
        self.remove(at);
        Some(receive)
    }

    /// Removes the receive at a position.
    #[inline(always)]
    pub fn remove(&mut self, at: u32) {
        let mask = self.slots.len().wrapping_sub(1);
        let Some(slot) = self.slots.get_mut(at as usize & mask).filter(|posted| posted.sequence != 0) else { return };
        slot.sequence = 0;
        self.live -= 1;
        if at == self.first {
            self.first = at.wrapping_add(1);
            if self.live == 0 || self.is_gap(self.first) {
                self.skip_gaps();
            }
        }
    }

    #[inline(always)]
    fn is_gap(&self, at: u32) -> bool {
        self.slots.get(at as usize & self.slots.len().wrapping_sub(1)).is_none_or(|posted| posted.sequence == 0)
    }

    #[inline(always)]
    fn skip_gaps(&mut self) {
        if self.live == 0 {
            self.first = self.end;
            if self.slots.len() > MAX_EMPTY_SLOTS {
                self.slots = Vec::new();
            }
            return;
        }
        while self.is_gap(self.first) {
            self.first = self.first.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(sequence: u64, tag: u64) -> PostedReceive<()> {
        PostedReceive { sequence, tag, ignore: 0, receive: Receive { operation: sequence, capacity: 0, buffer: () } }
    }

    #[test]
    fn growth_closes_gaps_and_keeps_the_order() {
        let mut ring = PostedRing::default();
        for sequence in 1..=1000u64 {
            ring.push(posted(sequence, sequence % 7));
            if sequence % 7 != 3 {
                let (at, _) = ring.oldest(sequence % 7).unwrap();
                assert_eq!(ring.take(at).map(|receive| receive.operation), Some(sequence));
                assert!(ring.take(at).is_none(), "it is removed");
            }
        }
        assert_eq!(ring.len(), 143);
        assert!(ring.slots.len() <= 512, "{} slots for 143", ring.slots.len());
        for sequence in (3..=1000).step_by(7) {
            assert!(ring.oldest(2).is_none());
            let (at, oldest) = ring.oldest(3).unwrap();
            assert_eq!((oldest.sequence, ring.position(|posted| posted.sequence == sequence)), (sequence, Some(at)));
            ring.take(at);
        }
        assert_eq!((ring.len(), ring.bytes()), (0, 0), "an empty ring releases large memory");
    }

    #[test]
    fn ring_positions_wrap_around() {
        let mut ring = PostedRing { first: u32::MAX - 5, end: u32::MAX - 5, ..PostedRing::default() };
        ring.push(posted(1, 0));
        let mut sequence = 1;
        for _ in 0..100 {
            sequence += 1;
            ring.push(posted(sequence, 0));
            let (at, _) = ring.oldest(0).unwrap();
            assert_eq!(ring.take(at).map(|receive| receive.operation), Some(sequence - 1));
        }
        assert_eq!((ring.len(), ring.slots.len()), (1, FIRST_SLOTS));
    }
}
