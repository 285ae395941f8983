//! What has happened to watched memory, in order: written by the reader of events alone, read by every cache.
//!
//! What it is: a ring of the last [`KEPT`] events, each numbered, in memory that never changes its size. Writing never waits:
//! a cache that reads too late learns that it has missed some, and treats everything as gone. What it is not: a queue; nothing is
//! taken out, and any number of caches may read.
//!
//! Edges (both ends carry the label): **E1** an event's words before its stamp; **E2** all of it before the count.

use motet_sys::userfaultfd::MappingEvent;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

/// Events that are kept.
pub const KEPT: u64 = 1024;

#[derive(Debug, Default)]
struct Slot {
    /// The event's number and one more; 0 while it is written.
    stamp: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
}

/// The ring.
#[derive(Debug)]
pub struct Events {
    slots: Box<[Slot]>,
    count: AtomicU64,
}

/// Some events are not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed;

impl Default for Events {
    fn default() -> Self {
        Self { slots: (0..KEPT).map(|_| Slot::default()).collect(), count: AtomicU64::new(0) }
    }
}

impl Events {
    /// Events so far; the next has this number.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count.load(Acquire) // E2
    }

    /// Adds one. For one thread alone; allocates and waits for nothing.
    pub fn add(&self, taken: MappingEvent) {
        let number = self.count.load(Relaxed);
        let slot = &self.slots[(number % KEPT) as usize];
        slot.stamp.store(0, Relaxed);
        fence(Release);
        slot.start.store(taken.start, Relaxed);
        slot.end.store(taken.end, Relaxed);
        slot.stamp.store(number + 1, Release); // E1
        self.count.store(number + 1, Release); // E2
    }

    /// The addresses that an event with a number below [`Events::count`] took.
    pub fn at(&self, number: u64) -> Result<(u64, u64), Missed> {
        let slot = &self.slots[(number % KEPT) as usize];
        if slot.stamp.load(Acquire) != number + 1 {
            return Err(Missed);
        }
        let range = (slot.start.load(Relaxed), slot.end.load(Relaxed)); // E1
        fence(Acquire);
        if slot.stamp.load(Relaxed) == number + 1 { Ok(range) } else { Err(Missed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept_and_the_others_missed() {
        let events = Events::default();
        for at in 0..3 * KEPT {
            assert_eq!(events.count(), at);
            events.add(MappingEvent { start: at, end: at + 1, moved_to: 0 });
        }
        for at in 0..3 * KEPT {
            let expected = if at < 2 * KEPT { Err(Missed) } else { Ok((at, at + 1)) };
            assert_eq!(events.at(at), expected);
        }
    }

    #[test]
    fn a_reader_never_sees_half_an_event() {
        let events = Events::default();
        let seen = std::thread::scope(|scope| {
            scope.spawn(|| {
                for at in 0..200_000 {
                    events.add(MappingEvent { start: at, end: at + 7, moved_to: 0 });
                }
            });
            let (mut next, mut seen) = (0, 0);
            while next < 200_000 {
                let count = events.count();
                while next < count {
                    if let Ok((start, end)) = events.at(next) {
                        assert_eq!((start, end), (next, next + 7));
                        seen += 1;
                    }
                    next += 1;
                }
            }
            seen
        });
        assert!(seen > 0);
    }
}
