//! The registrations of a cache, by address and by time of use.
//!
//! It is a set of page ranges with tokens. A lookup finds a range that covers the requested one. Ranges are in *classes* by the logarithm of
//! their lengths, and the ranges of a class are disjoint: so one search in each class finds a cover, however ranges of different classes
//! overlap. A range that overlaps others of its class is registered together with them. Each such step at most doubles a range, so windows that
//! slide over a large buffer cost as much as a few registrations of all of it, not the square; and a small buffer at the edge of a large one
//! leaves the large one as it is.
//!
//! What it is not: it registers and watches nothing. It returns what it gives up ([`GivenUp`]).

use std::collections::BTreeMap;

/// A range of addresses in whole pages, from `start` up to `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range {
    /// The first address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
}

impl Range {
    /// The pages of these bytes; `None`: there are no bytes, or the range exceeds the address space.
    pub fn of_pages(address: u64, length: u64) -> Option<Self> {
        let end = address.checked_add(length).filter(|_| length > 0)?.checked_next_multiple_of(PAGE_BYTES)?;
        Some(Self { start: address - address % PAGE_BYTES, end })
    }

    /// Its length, bytes.
    pub fn length(&self) -> u64 {
        self.end - self.start
    }

    /// Whether it contains all of `other`.
    pub fn covers(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether it has a page in common with `other`.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }

    fn class(&self) -> u8 {
        self.length().ilog2() as u8
    }
}

/// Bytes of a page. Where pages are larger, the kernel refuses to watch such ranges, and nothing is cached.
const PAGE_BYTES: u64 = 4096;
const HINTS: usize = 64;
const NO_ENTRY: u32 = u32::MAX;

/// A registration that the cache gives up: its owner deregisters it, and no longer watches its range.
pub type GivenUp<T> = (Range, T);

#[derive(Debug)]
struct Entry<T> {
    range: Range,
    token: T,
    leases: u32,
    /// Lookups find it. An entry that is not listed is given up with its last lease.
    listed: bool,
    /// The neighbours, by time of use, among the listed entries without leases.
    older: u32,
    newer: u32,
}

/// The set of registrations.
#[derive(Debug)]
pub struct Entries<T> {
    slots: Vec<Option<Entry<T>>>,
    free: Vec<u32>,
    listed: BTreeMap<(u8, u64), u32>,
    /// The number of listed entries in each class.
    classes: [u32; 64],
    /// The entry that was found last for a range that starts in a page, by a hash of that page.
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
            hints: [NO_ENTRY; HINTS],
            oldest: NO_ENTRY,
            newest: NO_ENTRY,
            bytes: 0,
        }
    }
}

impl<T: Copy> Entries<T> {
    /// The number of listed registrations, and their bytes.
    pub fn size(&self) -> (usize, u64) {
        (self.listed.len(), self.bytes)
    }

    /// Adds a lease to a registration that covers this range, if there is one.
    #[inline]
    pub fn take(&mut self, range: &Range) -> Option<(u32, Range, T)> {
        let hint = (range.start / PAGE_BYTES) as usize % HINTS;
        let hinted = self.slots.get(self.hints[hint] as usize).and_then(Option::as_ref);
        let at = match hinted.filter(|entry| entry.listed && entry.range.covers(range)) {
            Some(_) => self.hints[hint],
            None => self.find(range)?,
        };
        self.hints[hint] = at;
        let entry = self.slots[at as usize].as_mut()?;
        entry.leases += 1;
        let found = (at, entry.range, entry.token);
        if entry.leases == 1 {
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

    /// What to register for this range: its union with all ranges of its class that it overlaps, repeated until nothing changes.
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
            // The range before may end before this one; all others overlap.
            self.entry(at).is_some_and(|entry| entry.range.overlaps(range))
        })
    }

    /// Adds a registration with one lease. Registrations that it covers, and those of its class that it overlaps, are unlisted.
    pub fn put(&mut self, range: Range, token: T, given_up: &mut Vec<GivenUp<T>>) -> u32 {
        for class in 0..=range.class() {
            let is_obsolete =
                |at: &u32| class == range.class() || self.entry(*at).is_some_and(|e| range.covers(&e.range));
            if self.classes[class as usize] > 0 {
                let obsolete: Vec<u32> = self.overlapping(class, &range).filter(is_obsolete).collect();
                obsolete.into_iter().for_each(|at| self.unlist(at, given_up));
            }
        }
        let entry = Entry { range, token, leases: 1, listed: true, older: NO_ENTRY, newer: NO_ENTRY };
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

    /// Ends a lease.
    #[inline]
    pub fn end_lease(&mut self, at: u32, given_up: &mut Vec<GivenUp<T>>) {
        let Some(entry) = self.slots.get_mut(at as usize).and_then(Option::as_mut) else { return };
        entry.leases -= 1;
        match (entry.leases, entry.listed) {
            (0, true) => self.link(at),
            (0, false) => self.give_up(at, given_up),
            _ => {}
        }
    }

    /// Unlists all registrations with a page of this range; returns their number.
    pub fn invalidate(&mut self, range: &Range, given_up: &mut Vec<GivenUp<T>>) -> u64 {
        let mut count = 0;
        for class in 0..64 {
            if self.classes[class as usize] == 0 {
                continue;
            }
            let stale: Vec<u32> = self.overlapping(class, range).collect();
            count += stale.len() as u64;
            stale.into_iter().for_each(|at| self.unlist(at, given_up));
        }
        count
    }

    /// Unlists all registrations; returns their number.
    pub fn invalidate_all(&mut self, given_up: &mut Vec<GivenUp<T>>) -> u64 {
        let all: Vec<u32> = self.listed.values().copied().collect();
        let count = all.len() as u64;
        all.into_iter().for_each(|at| self.unlist(at, given_up));
        count
    }

    /// Gives up the least recently used registration without leases; false: there is none.
    pub fn evict(&mut self, given_up: &mut Vec<GivenUp<T>>) -> bool {
        let oldest = self.oldest;
        if oldest == NO_ENTRY {
            return false;
        }
        self.unlist(oldest, given_up);
        true
    }

    fn unlist(&mut self, at: u32, given_up: &mut Vec<GivenUp<T>>) {
        let Some(entry) = self.slots.get_mut(at as usize).and_then(Option::as_mut).filter(|entry| entry.listed) else {
            return;
        };
        entry.listed = false;
        let (range, leases) = (entry.range, entry.leases);
        self.listed.remove(&(range.class(), range.start));
        self.classes[range.class() as usize] -= 1;
        self.bytes -= range.length();
        if leases == 0 {
            self.unlink(at);
            self.give_up(at, given_up);
        }
    }

    fn give_up(&mut self, at: u32, given_up: &mut Vec<GivenUp<T>>) {
        if let Some(entry) = self.slots[at as usize].take() {
            self.free.push(at);
            given_up.push((entry.range, entry.token));
        }
    }

    /// Appends an entry to the order of use.
    fn link(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.newest, at);
        self.neighbours(at, before, NO_ENTRY);
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
        self.neighbours(at, NO_ENTRY, NO_ENTRY);
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
