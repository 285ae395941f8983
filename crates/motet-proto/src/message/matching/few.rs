//! The oldest receives, in the order of posting: a ring that is there from the beginning, as a receive goes through it with every message.

use super::Receive;
use std::num::NonZeroU64;

/// Places in the ring: of a power of two, so that one is found by a mask.
const PLACES: usize = 64;
/// Most receives that are looked through one by one; few where the tables are to be tested.
pub const MOST: usize = if cfg!(test) { 3 } else { PLACES };

/// One of the oldest receives.
#[derive(Debug, Clone, Copy)]
pub struct Few {
    pub receive: Receive,
    /// A scope or a context.
    pub scope: u32,
    pub tag: u64,
    pub ignore: u64,
    pub sequence: NonZeroU64,
}

/// All of them: at most [`MOST`].
#[derive(Debug)]
pub struct Row {
    places: [Few; PLACES],
    head: usize,
    count: usize,
}

impl Default for Row {
    fn default() -> Self {
        let receive = Receive { operation: 0, capacity: 0 };
        let none = Few { receive, scope: 0, tag: 0, ignore: 0, sequence: NonZeroU64::MIN };
        Self { places: [none; PLACES], head: 0, count: 0 }
    }
}

impl Row {
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.count
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The oldest.
    #[inline(always)]
    pub fn front(&self) -> Option<&Few> {
        if self.count == 0 { None } else { Some(&self.places[self.head % PLACES]) }
    }

    #[inline(always)]
    pub fn pop_front(&mut self) -> Option<Few> {
        let few = *self.front()?;
        self.head = (self.head + 1) % PLACES;
        self.count -= 1;
        Some(few)
    }

    /// Adds the youngest; there are less than [`MOST`].
    #[inline(always)]
    pub fn push_back(&mut self, few: Few) {
        debug_assert!(self.count < MOST);
        self.places[(self.head + self.count) % PLACES] = few;
        self.count += 1;
    }

    pub fn iter(&self) -> impl Iterator<Item = &Few> {
        (0..self.count).map(|at| &self.places[(self.head + at) % PLACES])
    }

    /// Which is the first of which that is so.
    pub fn position(&self, is: impl Fn(&Few) -> bool) -> Option<usize> {
        self.iter().position(is)
    }

    /// Takes one out; those behind it come one place forward.
    pub fn remove(&mut self, at: usize) -> Option<Few> {
        if at >= self.count {
            return None;
        }
        let few = self.places[(self.head + at) % PLACES];
        for at in at + 1..self.count {
            self.places[(self.head + at - 1) % PLACES] = self.places[(self.head + at) % PLACES];
        }
        self.count -= 1;
        Some(few)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn it_is_a_queue_that_any_may_leave() {
        let (mut row, mut oracle) = (Row::default(), VecDeque::new());
        let mut state = 1u32;
        for tag in 0..10_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = (state >> 16) as usize % (MOST + 1);
            match state >> 30 {
                0 | 1 if oracle.len() < MOST => {
                    row.push_back(Few { tag, ..Row::default().places[0] });
                    oracle.push_back(tag);
                }
                2 => assert_eq!(row.remove(at).map(|few| few.tag), oracle.remove(at)),
                _ => {
                    assert_eq!(row.front().map(|few| few.tag), oracle.front().copied());
                    assert_eq!(row.pop_front().map(|few| few.tag), oracle.pop_front());
                }
            }
            assert!(row.iter().map(|few| few.tag).eq(oracle.iter().copied()));
            assert_eq!((row.len(), row.is_empty()), (oracle.len(), oracle.is_empty()));
        }
    }
}
