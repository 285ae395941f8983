//! The registrations of a cache, by address and by use.
//!
//! What it is: a set of page ranges with tokens, found by a range that one of them covers. Ranges are kept in *classes* by the
//! logarithm of their lengths, and the ranges of a class are disjoint: one look a class finds what covers an address, however
//! ranges of different classes overlap. A range that overlaps others of its class is registered together with them; each such
//! step doubles a range at most, so that windows that slide over a large buffer cost what registering it a few times costs, not
//! the square of it; and a small buffer at the edge of a large one leaves that alone.
//!
//! What it is not: it registers and watches nothing; what it gives up it hands back ([`Grave`]).

use std::collections::BTreeMap;

/// Addresses, whole pages: from `start`, up to `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range {
    /// The first.
    pub start: u64,
    /// One behind the last.
    pub end: u64,
}

impl Range {
    /// The pages that hold these bytes; `None` for no bytes, and for more than there are addresses.
    pub fn of_pages(address: u64, length: u64) -> Option<Self> {
        let end = address.checked_add(length).filter(|_| length > 0)?.checked_next_multiple_of(PAGE)?;
        Some(Self { start: address - address % PAGE, end })
    }

    /// Bytes.
    pub fn length(&self) -> u64 {
        self.end - self.start
    }

    /// Whether all of `other` lies within.
    pub fn covers(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether they have a page in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    fn class(&self) -> u8 {
        self.length().ilog2() as u8
    }
}

/// Bytes of a page. Where pages are larger, the kernel refuses to watch these, and nothing is cached.
const PAGE: u64 = 4096;
const HINTS: usize = 64;
const NOWHERE: u32 = u32::MAX;

/// A registration that the cache gives up: to be deregistered, and its range to be watched no more.
pub type Grave<T> = (Range, T);

#[derive(Debug)]
struct Entry<T> {
    range: Range,
    token: T,
    users: u32,
    /// To be found. One that is not ends with its last user.
    listed: bool,
    /// Neighbours among the entries that are listed and have no user.
    older: u32,
    newer: u32,
}

/// The registrations.
#[derive(Debug)]
pub struct Entries<T> {
    slots: Vec<Option<Entry<T>>>,
    free: Vec<u32>,
    listed: BTreeMap<(u8, u64), u32>,
    /// How many are listed in each class.
    classes: [u32; 64],
    /// Where a range that starts in a page was found last.
    hints: [u32; HINTS],
    oldest: u32,
    newest: u32,
    bytes: u64,
}

impl<T: Copy> Default for Entries<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            listed: BTreeMap::new(),
            classes: [0; 64],
            hints: [NOWHERE; HINTS],
            oldest: NOWHERE,
            newest: NOWHERE,
            bytes: 0,
        }
    }
}

impl<T: Copy> Entries<T> {
    /// Listed registrations, and their bytes.
    pub fn size(&self) -> (usize, u64) {
        (self.listed.len(), self.bytes)
    }

    /// Counts a user of a registration that covers this range, if there is one.
    #[inline]
    pub fn take(&mut self, range: &Range) -> Option<(u32, Range, T)> {
        let hint = (range.start / PAGE) as usize % HINTS;
        let hinted = self.slots.get(self.hints[hint] as usize).and_then(Option::as_ref);
        let at = match hinted.filter(|entry| entry.listed && entry.range.covers(range)) {
            Some(_) => self.hints[hint],
            None => self.find(range)?,
        };
        self.hints[hint] = at;
        let entry = self.slots[at as usize].as_mut()?;
        entry.users += 1;
        let found = (at, entry.range, entry.token);
        if entry.users == 1 {
            self.unlink(at);
        }
        Some(found)
    }

    fn find(&self, range: &Range) -> Option<u32> {
        (range.class()..64).find_map(|class| {
            if self.classes[class as usize] == 0 {
                return None;
            }
            let (_, &at) = self.listed.range((class, 0)..=(class, range.start)).next_back()?;
            self.entry(at).filter(|entry| entry.range.covers(range)).map(|_| at)
        })
    }

    fn entry(&self, at: u32) -> Option<&Entry<T>> {
        self.slots.get(at as usize)?.as_ref()
    }

    /// What should be registered for this range: with all that it overlaps of its own class, and again.
    pub fn plan(&self, range: Range) -> Range {
        let mut plan = range;
        loop {
            let before = plan;
            for at in self.overlapping(plan.class(), &before) {
                if let Some(entry) = self.entry(at) {
                    plan.start = plan.start.min(entry.range.start);
                    plan.end = plan.end.max(entry.range.end);
                }
            }
            if plan == before {
                return plan;
            }
        }
    }

    fn overlapping(&self, class: u8, range: &Range) -> impl Iterator<Item = u32> {
        let before = self.listed.range((class, 0)..(class, range.start)).next_back();
        let within = self.listed.range((class, range.start)..(class, range.end));
        before.into_iter().chain(within).map(|(_, &at)| at).filter(|&at| {
            // Within the class, only the one before may end before.
            self.entry(at).is_some_and(|entry| entry.range.overlaps(range))
        })
    }

    /// Puts a registration in, with one user. What it makes useless, and what overlaps it in its class, is listed no more.
    pub fn put(&mut self, range: Range, token: T, graves: &mut Vec<Grave<T>>) -> u32 {
        for class in 0..=range.class() {
            let useless = |at: &u32| class == range.class() || self.entry(*at).is_some_and(|e| range.covers(&e.range));
            if self.classes[class as usize] > 0 {
                let useless: Vec<u32> = self.overlapping(class, &range).filter(useless).collect();
                useless.into_iter().for_each(|at| self.unlist(at, graves));
            }
        }
        let entry = Entry { range, token, users: 1, listed: true, older: NOWHERE, newer: NOWHERE };
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.slots.push(None);
                (self.slots.len() - 1) as u32
            }
        };
        self.slots[at as usize] = Some(entry);
        self.listed.insert((range.class(), range.start), at);
        self.classes[range.class() as usize] += 1;
        self.bytes += range.length();
        at
    }

    /// A user less.
    #[inline]
    pub fn leave(&mut self, at: u32, graves: &mut Vec<Grave<T>>) {
        let Some(entry) = self.slots.get_mut(at as usize).and_then(Option::as_mut) else { return };
        entry.users -= 1;
        match (entry.users, entry.listed) {
            (0, true) => self.link(at),
            (0, false) => self.bury(at, graves),
            _ => {}
        }
    }

    /// Lists nothing any more that has a page of this range; how many those were.
    pub fn take_away(&mut self, range: &Range, graves: &mut Vec<Grave<T>>) -> u64 {
        let mut count = 0;
        for class in 0..64 {
            if self.classes[class as usize] == 0 {
                continue;
            }
            let gone: Vec<u32> = self.overlapping(class, range).collect();
            count += gone.len() as u64;
            gone.into_iter().for_each(|at| self.unlist(at, graves));
        }
        count
    }

    /// Lists nothing any more; how many those were.
    pub fn take_all_away(&mut self, graves: &mut Vec<Grave<T>>) -> u64 {
        let all: Vec<u32> = self.listed.values().copied().collect();
        let count = all.len() as u64;
        all.into_iter().for_each(|at| self.unlist(at, graves));
        count
    }

    /// Gives up the least recently used unused registration; false when there is none.
    pub fn evict(&mut self, graves: &mut Vec<Grave<T>>) -> bool {
        let oldest = self.oldest;
        if oldest == NOWHERE {
            return false;
        }
        self.unlist(oldest, graves);
        true
    }

    fn unlist(&mut self, at: u32, graves: &mut Vec<Grave<T>>) {
        let Some(entry) = self.slots.get_mut(at as usize).and_then(Option::as_mut).filter(|entry| entry.listed) else {
            return;
        };
        entry.listed = false;
        let (range, users) = (entry.range, entry.users);
        self.listed.remove(&(range.class(), range.start));
        self.classes[range.class() as usize] -= 1;
        self.bytes -= range.length();
        if users == 0 {
            self.unlink(at);
            self.bury(at, graves);
        }
    }

    fn bury(&mut self, at: u32, graves: &mut Vec<Grave<T>>) {
        if let Some(entry) = self.slots[at as usize].take() {
            self.free.push(at);
            graves.push((entry.range, entry.token));
        }
    }

    /// Last in the order of use.
    fn link(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.newest, at);
        self.neighbours(at, before, NOWHERE);
        match self.slots.get_mut(before as usize).and_then(Option::as_mut) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let Some((older, newer)) = self.entry(at).map(|entry| (entry.older, entry.newer)) else { return };
        match self.slots.get_mut(older as usize).and_then(Option::as_mut) {
            Some(entry) => entry.newer = newer,
            None if self.oldest == at => self.oldest = newer,
            None => {}
        }
        match self.slots.get_mut(newer as usize).and_then(Option::as_mut) {
            Some(entry) => entry.older = older,
            None if self.newest == at => self.newest = older,
            None => {}
        }
        self.neighbours(at, NOWHERE, NOWHERE);
    }

    fn neighbours(&mut self, at: u32, older: u32, newer: u32) {
        if let Some(entry) = self.slots.get_mut(at as usize).and_then(Option::as_mut) {
            (entry.older, entry.newer) = (older, newer);
        }
    }
}

#[cfg(test)]
#[path = "entries_tests.rs"]
mod tests;
