//! A look at a lane from outside: whether its next line is there, for whoever does not have the consumer.
//!
//! What it is: where that line lies, written down by whoever has the consumer. What it is not: it takes nothing, and says nothing of what
//! the line holds. Whether it still is the next line is for those to know who wrote it down: once the lane has gone around, it is never
//! found to be there.

use super::{Consumer, Line, Word};
use crate::sync::{AtomicPtr, AtomicU32, Ordering};
use std::ptr;

/// The next line of a lane, or of none.
#[derive(Debug)]
pub struct Watch {
    line: AtomicPtr<Line>,
    /// The low half of its position.
    position: AtomicU32,
}

impl Default for Watch {
    fn default() -> Self {
        Self { line: AtomicPtr::new(ptr::null_mut()), position: AtomicU32::new(0) }
    }
}

impl Watch {
    /// Watches the line that this consumer takes next.
    #[inline(always)]
    pub fn follow(&self, consumer: &Consumer) {
        let line = consumer.lane.line(consumer.head);
        self.line.store(ptr::from_ref(line).cast_mut(), Ordering::Relaxed);
        self.position.store(consumer.head as u32, Ordering::Relaxed);
    }

    /// Whether a packet begins there now. Of no lane, none does.
    #[inline(always)]
    pub fn is_there(&self) -> bool {
        // SAFETY: null, or of a lane, whose lines stay as long as the process; they are made of atomics.
        let line = unsafe { self.line.load(Ordering::Relaxed).as_ref() };
        line.is_some_and(|line| {
            Word(line.word.load(Ordering::Relaxed)).is_at(u64::from(self.position.load(Ordering::Relaxed)))
        })
    }
}
