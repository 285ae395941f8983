//! The watched addresses, and the number of registrations of each.
//!
//! It holds disjoint pieces of the address space with a count each, cut where ranges begin and end. Several caches may have registered the same
//! pages, which stay watched until the last has given them up. What it is not: it makes no system calls.

use std::collections::BTreeMap;

/// The watched pieces, by their starts.
#[derive(Debug, Default)]
pub struct WatchedRanges {
    pieces: BTreeMap<u64, Piece>,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    end: u64,
    count: u32,
}

impl WatchedRanges {
    /// Adds one to the count of a range.
    pub fn add(&mut self, start: u64, end: u64) {
        self.cut(start);
        self.cut(end);
        let mut at = start;
        while at < end {
            let next = self.pieces.range(at..end).next().map(|(&next, piece)| (next, piece.end));
            match next {
                Some((next, piece_end)) if next == at => {
                    if let Some(piece) = self.pieces.get_mut(&at) {
                        piece.count += 1;
                    }
                    at = piece_end;
                }
                other => {
                    let until = other.map_or(end, |(next, _)| next);
                    self.pieces.insert(at, Piece { end: until, count: 1 });
                    at = until;
                }
            }
        }
    }

    /// Subtracts one from the count of a range that was added; calls `free` for each piece whose count becomes 0.
    pub fn remove(&mut self, start: u64, end: u64, mut free: impl FnMut(u64, u64)) {
        self.cut(start);
        self.cut(end);
        let mut gone: Option<(u64, u64)> = None;
        let starts: Vec<u64> = self.pieces.range(start..end).map(|(&at, _)| at).collect();
        for at in starts {
            let Some(piece) = self.pieces.get_mut(&at) else { continue };
            piece.count -= 1;
            if piece.count > 0 {
                continue;
            }
            let end = piece.end;
            self.pieces.remove(&at);
            gone = match gone {
                Some((start, until)) if until == at => Some((start, end)),
                other => {
                    if let Some((start, until)) = other {
                        free(start, until);
                    }
                    Some((at, end))
                }
            };
        }
        if let Some((start, until)) = gone {
            free(start, until);
        }
    }

    /// Splits the piece that contains `at`, if there is one.
    fn cut(&mut self, at: u64) {
        let Some((_, piece)) = self.pieces.range_mut(..at).next_back() else { return };
        if piece.end > at {
            let behind = Piece { ..*piece };
            piece.end = at;
            self.pieces.insert(at, behind);
        }
    }

    /// The number of pieces.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.pieces.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a count for each page as the model.
        #[test]
        fn ranges_under_random_steps_equal_page_counts(ranges in proptest::collection::vec((0u64..60, 1u64..20, any::<prop::sample::Index>()), 1..60)) {
            let mut watched = WatchedRanges::default();
            let mut counts = [0u32; 80];
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (start, length, which) in ranges {
                if held.len() > 5 {
                    let (start, end) = held.swap_remove(which.index(held.len()));
                    let mut freed = [false; 80];
                    watched.remove(start, end, |a, b| (a..b).for_each(|page| freed[page as usize] = true));
                    for page in 0..80usize {
                        let inside = (start..end).contains(&(page as u64));
                        counts[page] -= u32::from(inside);
                        prop_assert_eq!(freed[page], inside && counts[page] == 0);
                    }
                }
                watched.add(start, start + length);
                held.push((start, start + length));
                (start..start + length).for_each(|page| counts[page as usize] += 1);
            }
            for (start, end) in held {
                watched.remove(start, end, |_, _| ());
            }
            prop_assert_eq!(watched.len(), 0);
        }
    }
}
