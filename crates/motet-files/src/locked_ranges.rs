//! The ranges of a file that one owner has locked: as the server has them, and as a client notes them to lock them again at a restarted server.

use crate::protocol::{LockKind, LockRange};
use std::collections::BTreeMap;

/// Ranges that do not overlap, and do not touch where they are of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(BTreeMap<u64, LockRange>);

impl Ranges {
    /// The ranges, by their start.
    pub fn iter(&self) -> impl Iterator<Item = &LockRange> {
        self.0.values()
    }

    /// The ranges that overlap with this one, by their start.
    pub fn overlapping(&self, range: &LockRange) -> impl Iterator<Item = &LockRange> + use<'_> {
        let LockRange { start, end, .. } = *range;
        let before = self.0.range(..start).next_back().filter(|(_, held)| held.end >= start);
        let within = (start <= end).then(|| self.0.range(start..=end)).into_iter().flatten();
        before.into_iter().chain(within).map(|(_, held)| held)
    }

    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether all is locked within a range.
    pub fn is_within(&self, range: &LockRange) -> bool {
        let first = self.0.values().next().is_none_or(|first| first.start >= range.start);
        first && self.0.values().next_back().is_none_or(|last| last.end <= range.end)
    }

    /// How many there are after [`Ranges::lock`].
    pub fn len_with(&self, range: &LockRange) -> usize {
        let Replacement { gone, new } = self.replacement(range);
        self.0.len() - gone.len() + new.len()
    }

    /// Locks a range, or releases one that is of the kind [`LockKind::Unlocked`].
    pub fn lock(&mut self, range: LockRange) {
        let Replacement { gone, new } = self.replacement(&range);
        for start in gone {
            self.0.remove(&start);
        }
        self.0.extend(new.into_iter().map(|range| (range.start, range)));
    }

    fn replacement(&self, range: &LockRange) -> Replacement {
        let LockRange { start, end, .. } = *range;
        let (mut gone, mut new, mut whole) = (Vec::new(), Vec::new(), *range);
        // Those that touch as well: of one kind they become one.
        let around = LockRange { start: start.saturating_sub(1), end: end.saturating_add(1), ..*range };
        for held in self.overlapping(&around) {
            if held.kind == range.kind {
                (whole.start, whole.end) = (whole.start.min(held.start), whole.end.max(held.end));
            } else if held.end >= start && held.start <= end {
                new.extend(outside(held, range));
            } else {
                continue;
            }
            gone.push(held.start);
        }
        if range.kind != LockKind::Unlocked {
            new.push(whole);
        }
        Replacement { gone, new }
    }
}

/// What a lock changes.
struct Replacement {
    /// The ranges that are replaced, by their start.
    gone: Vec<u64>,
    /// The ranges in place of them.
    new: Vec<LockRange>,
}

/// What is left of a lock outside of `range`: up to two parts.
fn outside(held: &LockRange, range: &LockRange) -> impl Iterator<Item = LockRange> + use<> {
    let (held, range) = (*held, *range);
    let before = (held.start < range.start).then(|| LockRange { end: held.end.min(range.start - 1), ..held });
    let after = (held.end > range.end).then(|| LockRange { start: held.start.max(range.end + 1), ..held });
    before.into_iter().chain(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(kind: LockKind, start: u64, end: u64) -> LockRange {
        LockRange { kind, start, end, process: 0 }
    }

    fn sorted(ranges: &Ranges) -> Vec<LockRange> {
        ranges.iter().copied().collect()
    }

    #[test]
    fn ranges_are_split_and_replaced() {
        let mut ranges = Ranges::default();
        ranges.lock(range(LockKind::Exclusive, 0, u64::MAX));
        ranges.lock(range(LockKind::Unlocked, 10, 19));
        ranges.lock(range(LockKind::Shared, 0, 4));
        let expected =
            [range(LockKind::Shared, 0, 4), range(LockKind::Exclusive, 5, 9), range(LockKind::Exclusive, 20, u64::MAX)];
        assert_eq!(sorted(&ranges), expected);
        ranges.lock(range(LockKind::Unlocked, 0, u64::MAX));
        assert_eq!(ranges.len(), 0);
    }

    #[test]
    fn ranges_of_one_kind_that_touch_are_one() {
        let mut ranges = Ranges::default();
        ranges.lock(range(LockKind::Shared, 10, 19));
        ranges.lock(range(LockKind::Exclusive, 20, 29));
        ranges.lock(range(LockKind::Shared, 0, 9));
        ranges.lock(range(LockKind::Exclusive, 40, u64::MAX));
        ranges.lock(range(LockKind::Exclusive, 30, 39));
        let expected = [range(LockKind::Shared, 0, 19), range(LockKind::Exclusive, 20, u64::MAX)];
        assert_eq!(sorted(&ranges), expected);
    }

    /// Random locks of small ranges, as a table of single bytes has them.
    #[test]
    fn ranges_agree_with_a_model() {
        const BYTES: u64 = 24;
        let (mut state, mut ranges) = (1_u64, Ranges::default());
        let mut model = [LockKind::Unlocked; BYTES as usize];
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..20_000 {
            let start = random(BYTES);
            let end = start + random(BYTES - start);
            let kind = [LockKind::Unlocked, LockKind::Shared, LockKind::Exclusive][random(3) as usize];
            let expected_count = ranges.len_with(&range(kind, start, end));
            ranges.lock(range(kind, start, end));
            assert_eq!(ranges.len(), expected_count);
            model[start as usize..=end as usize].fill(kind);
            let mut expected: Vec<LockRange> = Vec::new();
            for (at, &kind) in (0..).zip(&model).filter(|&(_, &kind)| kind != LockKind::Unlocked) {
                match expected.last_mut() {
                    Some(last) if last.kind == kind && last.end + 1 == at => last.end = at,
                    _ => expected.push(range(kind, at, at)),
                }
            }
            assert_eq!(sorted(&ranges), expected);
            let asked = range(LockKind::Shared, random(BYTES), random(BYTES));
            let overlaps =
                |held: &&LockRange| asked.start <= asked.end && held.start <= asked.end && asked.start <= held.end;
            let found: Vec<_> = ranges.overlapping(&asked).collect();
            if asked.start <= asked.end {
                assert_eq!(found, expected.iter().filter(overlaps).collect::<Vec<_>>());
            }
        }
    }
}
