//! The ranges of a file that one owner has locked: as the server has them, and as a client notes them to lock them again at a restarted server.

use crate::protocol::{LockKind, LockRange};

/// Ranges that do not overlap, and do not touch where they are of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges(Vec<LockRange>);

impl Ranges {
    /// One range.
    pub fn of(range: LockRange) -> Self {
        Self(vec![range])
    }

    /// The ranges, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &LockRange> {
        self.0.iter()
    }

    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What is locked outside of a range.
    pub fn outside(&self, range: &LockRange) -> Self {
        Self(self.0.iter().flat_map(|held| outside(held, range)).collect())
    }

    /// Locks a range, or releases one that is of the kind [`LockKind::Unlocked`].
    pub fn lock(&mut self, range: LockRange) {
        *self = self.outside(&range);
        if range.kind == LockKind::Unlocked {
            return;
        }
        let mut whole = range;
        self.0.retain(|held| {
            let touches = held.kind == whole.kind
                && (held.end.checked_add(1) == Some(range.start) || range.end.checked_add(1) == Some(held.start));
            if touches {
                (whole.start, whole.end) = (whole.start.min(held.start), whole.end.max(held.end));
            }
            !touches
        });
        self.0.push(whole);
    }
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
        let mut sorted = ranges.0.clone();
        sorted.sort_by_key(|range| range.start);
        sorted
    }

    #[test]
    fn ranges_are_split_and_replaced() {
        let mut ranges = Ranges::of(range(LockKind::Exclusive, 0, u64::MAX));
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
        let mut ranges = Ranges::of(range(LockKind::Shared, 10, 19));
        ranges.lock(range(LockKind::Exclusive, 20, 29));
        ranges.lock(range(LockKind::Shared, 0, 9));
        ranges.lock(range(LockKind::Exclusive, 40, u64::MAX));
        ranges.lock(range(LockKind::Exclusive, 30, 39));
        let expected = [range(LockKind::Shared, 0, 19), range(LockKind::Exclusive, 20, u64::MAX)];
        assert_eq!(sorted(&ranges), expected);
    }
}
