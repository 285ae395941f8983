//! How long calls wait for a server: who waits, and whether it still does.
//!
//! A server that is away is waited for. What a program waits for is still to end when the program does. So a front end says whose calls a thread makes
//! ([`call_for`]), and is asked about those that wait for long.

use std::cell::Cell;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The caller of calls that no program waits for, such as a close. Such a call does not wait for a server that is away.
pub const UNATTENDED: u32 = u32::MAX;
/// How often a call that waits is looked at.
pub const LOOK: Duration = Duration::from_millis(100);
/// A call that has waited for so many looks may be ended.
pub const PATIENCE: u32 = 5;

thread_local! {
    static CALLER: Cell<u32> = const { Cell::new(0) };
}

/// From now on this thread makes calls for a caller, which the front end knows by this number. 0: not known; [`UNATTENDED`]: no program waits for them.
pub fn call_for(caller: u32) {
    CALLER.set(caller);
}

/// For whom this thread makes calls.
pub fn caller() -> u32 {
    CALLER.get()
}

/// Whether what a caller waits for is to end: then its call fails with EINTR.
pub type HasEnded = dyn Fn(u32) -> bool + Send + Sync;

/// What the connections of a client have in common about waiting.
#[derive(Default)]
pub struct Waits {
    has_ended: OnceLock<Box<HasEnded>>,
    stopped: AtomicBool,
}

impl fmt::Debug for Waits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Waits").field("stopped", &self.stopped).finish_non_exhaustive()
    }
}

impl Waits {
    /// From now on this is asked about callers.
    pub fn ask(&self, has_ended: Box<HasEnded>) {
        let _ = self.has_ended.set(has_ended);
    }

    /// Whether what this caller waits for is to end.
    pub fn has_ended(&self, caller: u32) -> bool {
        self.has_ended.get().is_some_and(|has_ended| has_ended(caller))
    }

    /// From now on no call waits for a server that is away.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// Whether no call waits for a server that is away.
    pub fn have_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }
}

/// The call that uses a slot.
#[derive(Debug, Default)]
pub struct Watch {
    /// Odd while a call uses the slot.
    turn: AtomicU64,
    caller: AtomicU32,
    /// The turn whose call is to end.
    ended: AtomicU64,
}

impl Watch {
    /// A call begins.
    pub fn begin(&self, caller: u32) {
        self.caller.store(caller, Ordering::Relaxed);
        self.turn.fetch_add(1, Ordering::SeqCst);
    }

    /// The call is over.
    pub fn end(&self) {
        self.turn.fetch_add(1, Ordering::Release);
    }

    /// The present turn, if a call uses the slot.
    pub fn turn(&self) -> Option<u64> {
        Some(self.turn.load(Ordering::SeqCst)).filter(|turn| turn % 2 == 1)
    }

    /// Its caller.
    pub fn caller(&self) -> u32 {
        self.caller.load(Ordering::Relaxed)
    }

    /// The call of this turn is to end.
    pub fn end_call(&self, turn: u64) {
        self.ended.store(turn, Ordering::SeqCst);
    }

    /// Whether the present call is to end.
    pub fn has_ended(&self) -> bool {
        self.turn().is_some_and(|turn| self.ended.load(Ordering::SeqCst) == turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_call_is_not_that_of_the_next_one() {
        let watch = Watch::default();
        assert!(watch.turn().is_none() && !watch.has_ended());
        watch.begin(7);
        let turn = watch.turn().expect("a call");
        assert_eq!(watch.caller(), 7);
        watch.end_call(turn);
        assert!(watch.has_ended());
        watch.end();
        assert!(watch.turn().is_none() && !watch.has_ended());
        watch.begin(8);
        assert!(!watch.has_ended());
        watch.end_call(turn);
        assert!(!watch.has_ended(), "it comes late");
    }
}
