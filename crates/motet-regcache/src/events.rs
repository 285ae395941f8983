//! The events of watched memory, in order: written by the reader thread only, read by every cache.
//!
//! It is a ring of the last [`RING_EVENTS`] events, each numbered, in memory of fixed size. The writer never waits: a cache that reads too late
//! learns that events are missing, and gives up all registrations. What it is not: a queue. Nothing is removed, and any number of caches read.
//!
//! Edges (both ends carry the label): **E1** an event's words before its stamp; **E2** all of it before the count.

use motet_sys::userfaultfd::MappingEvent;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

/// The number of events that the ring holds.
pub const RING_EVENTS: u64 = 1024;

#[derive(Debug, Default)]
struct Slot {
    /// The event's number plus one; 0 while the slot is written.
    stamp: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
}

/// The ring of events.
#[derive(Debug)]
pub struct Events {
    slots: Box<[Slot]>,
    count: AtomicU64,
}

/// The event was overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed;

impl Default for Events {
    fn default() -> Self {
        Self { slots: (0..RING_EVENTS).map(|_| Slot::default()).collect(), count: AtomicU64::new(0) }
    }
}

impl Events {
    /// The number of events so far, which is the number of the next.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count.load(Acquire) // E2
    }

    /// Adds an event. Only one thread may call it; it allocates nothing and waits for nothing.
    pub fn add(&self, taken: MappingEvent) {
        let number = self.count.load(Relaxed);
        let slot = &self.slots[(number % RING_EVENTS) as usize];
        slot.stamp.store(0, Relaxed);
        fence(Release);
        slot.start.store(taken.start, Relaxed);
        slot.end.store(taken.end, Relaxed);
        slot.stamp.store(number + 1, Release); // E1
        self.count.store(number + 1, Release); // E2
    }

    /// The addresses that were removed by the event with this number, which must be below [`Events::count`].
    pub fn at(&self, number: u64) -> Result<(u64, u64), Missed> {
        let slot = &self.slots[(number % RING_EVENTS) as usize];
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
    fn events_older_than_the_ring_are_missed() {
        let events = Events::default();
        for at in 0..3 * RING_EVENTS {
            assert_eq!(events.count(), at);
            events.add(MappingEvent { start: at, end: at + 1, moved_to: 0 });
        }
        for at in 0..3 * RING_EVENTS {
            let expected = if at < 2 * RING_EVENTS { Err(Missed) } else { Ok((at, at + 1)) };
            assert_eq!(events.at(at), expected);
        }
    }

    #[test]
    fn event_read_while_written_is_never_torn() {
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
