//! The slots of a client's session.

use super::waits::{LOOK, UNATTENDED, Watch};
use crate::protocol::SLOTS;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

/// The slot that the connection uses itself: to begin a session, and to open files again.
const SLOT_OF_CONNECTION: u16 = 0;
/// Free slots that requests of completion queues leave to calls that wait.
const RESERVED: usize = 8;
/// Requests of completion queues that a client may have outstanding.
pub const MAX_QUEUED: usize = SLOTS as usize - 1 - RESERVED;
/// The epoch of requests outside of a session.
const NO_SESSION: u64 = u64::MAX;

/// A slot, with buffers that its requests use again.
#[derive(Debug)]
pub struct Slot {
    number: u16,
    sequence: u32,
    /// The session in which `sequence` counts.
    epoch: u64,
    /// A new request has begun, whose sequence number is not decided.
    fresh: bool,
    /// Whether the server has executed the last request is not known.
    uncertain: bool,
    /// The request message.
    pub message: Vec<u8>,
    /// The headers of the answer.
    pub headers: Vec<u8>,
    /// The call that uses it, if that may be ended.
    watch: Arc<Watch>,
}

impl Slot {
    fn new(number: u16) -> Self {
        Self {
            number,
            sequence: 0,
            epoch: 0,
            fresh: false,
            uncertain: false,
            message: Vec::new(),
            headers: Vec::new(),
            watch: Arc::default(),
        }
    }

    /// The slot of the request that begins a session or goes on with one, whose number is always 0.
    pub fn to_attach() -> Self {
        Self { epoch: NO_SESSION, ..Self::new(SLOT_OF_CONNECTION) }
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Whether the call that uses it is to end.
    pub fn has_ended(&self) -> bool {
        self.watch.has_ended()
    }

    /// Whether no program waits for the call that uses it.
    pub fn is_unattended(&self) -> bool {
        self.watch.turn().is_some() && self.watch.caller() == UNATTENDED
    }

    /// Whether the server has executed the last request is not known. A request with the same number must be answered before another one begins.
    pub fn is_uncertain(&self) -> bool {
        self.uncertain
    }

    /// A request is sent.
    pub fn doubt(&mut self) {
        self.uncertain = true;
    }

    /// A request with the number of the last one was answered.
    pub fn settle(&mut self) {
        self.uncertain = false;
    }

    /// A new request begins.
    pub fn begin(&mut self) {
        self.fresh = true;
    }

    /// The request was not sent this time. If it never was, the next one has its number.
    pub fn not_sent(&mut self) {
        if !self.uncertain {
            (self.sequence, self.fresh) = (self.sequence.wrapping_sub(1), true);
        }
    }

    /// The numbers of slot and request. A request that is sent again in the same session has the same number.
    pub fn request(&mut self, epoch: u64) -> (u16, u32) {
        if self.epoch == NO_SESSION {
            return (self.number, 0);
        }
        if self.epoch != epoch {
            (self.epoch, self.sequence, self.fresh) = (epoch, 0, true);
        }
        if std::mem::take(&mut self.fresh) {
            self.sequence = self.sequence.wrapping_add(1);
        }
        (self.number, self.sequence)
    }
}

/// The slots that are free.
#[derive(Debug)]
pub struct Slots {
    free: Mutex<Vec<Slot>>,
    returned: Condvar,
    abandoned: Mutex<Vec<Slot>>,
    connection: Mutex<Slot>,
    /// The calls that use the slots.
    watches: Vec<Arc<Watch>>,
    watcher: Watcher,
}

/// The thread that looks at calls that wait for long. It sleeps while there are none.
#[derive(Debug, Default)]
struct Watcher {
    thread: OnceLock<Thread>,
    sleeps: AtomicBool,
}

/// A slot in use. It is free again when this is dropped.
#[derive(Debug)]
pub struct TakenSlot<'a> {
    slots: &'a Slots,
    slot: Option<Slot>,
}

fn locked(slots: &Mutex<Vec<Slot>>) -> MutexGuard<'_, Vec<Slot>> {
    slots.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slots {
    /// All slots, free.
    pub fn new() -> Self {
        let free: Vec<_> = (1..SLOTS).rev().map(Slot::new).collect();
        Self {
            watches: free.iter().map(|slot| Arc::clone(&slot.watch)).collect(),
            watcher: Watcher::default(),
            free: Mutex::new(free),
            returned: Condvar::new(),
            abandoned: Mutex::default(),
            connection: Mutex::new(Slot::new(SLOT_OF_CONNECTION)),
        }
    }

    /// Takes a free slot for a call, the one that was used last. Waits until there is one. `None`: `has_ended` says that the caller waits no longer.
    pub fn take(&self, caller: u32, has_ended: impl Fn() -> bool) -> Option<TakenSlot<'_>> {
        let mut free = locked(&self.free);
        loop {
            if let Some(slot) = free.pop() {
                drop(free);
                return Some(self.taken(slot, caller));
            }
            free = self.returned.wait_timeout(free, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            if free.is_empty() && has_ended() {
                return None;
            }
        }
    }

    /// Takes a free slot for a call, if there is one.
    pub fn take_free(&self, caller: u32) -> Option<TakenSlot<'_>> {
        let slot = locked(&self.free).pop()?;
        Some(self.taken(slot, caller))
    }

    /// Takes at least one and at most `most` free slots as [`Slots::take`] does.
    pub fn take_several(&self, most: usize, caller: u32, has_ended: impl Fn() -> bool) -> Option<Vec<TakenSlot<'_>>> {
        let mut taken = vec![self.take(caller, has_ended)?];
        while taken.len() < most
            && let Some(slot) = self.take_free(caller)
        {
            taken.push(slot);
        }
        Some(taken)
    }

    fn taken(&self, slot: Slot, caller: u32) -> TakenSlot<'_> {
        slot.watch.begin(caller);
        if self.watcher.sleeps.load(Ordering::SeqCst) {
            self.wake_watcher();
        }
        TakenSlot { slots: self, slot: Some(slot) }
    }

    /// Whether there are more free slots than are left to calls that wait.
    pub fn has_many_free(&self) -> bool {
        locked(&self.free).len() > RESERVED
    }

    /// The calls that use the slots.
    pub fn watches(&self) -> &[Arc<Watch>] {
        &self.watches
    }

    /// This thread looks at calls that wait for long.
    pub fn is_watched_by(&self, thread: Thread) {
        let _ = self.watcher.thread.set(thread);
    }

    /// Whether the thread that looks at calls may sleep until it is woken, because there are none.
    pub fn watcher_may_sleep(&self) -> bool {
        self.watcher.sleeps.store(true, Ordering::SeqCst);
        let may_sleep = self.watches.iter().all(|watch| watch.turn().is_none());
        if !may_sleep {
            self.watcher.sleeps.store(false, Ordering::SeqCst);
        }
        may_sleep
    }

    /// The thread that looks at calls goes on.
    pub fn wake_watcher(&self) {
        self.watcher.sleeps.store(false, Ordering::SeqCst);
        if let Some(thread) = self.watcher.thread.get() {
            thread.unpark();
        }
    }

    /// A slot for a request of a completion queue, unless few are free. It goes back by [`Slots::put`] or [`Slots::abandon`].
    pub fn take_for_queue(&self) -> Option<Slot> {
        let mut free = locked(&self.free);
        if free.len() > RESERVED {
            return free.pop();
        }
        drop(free);
        locked(&self.abandoned).pop()
    }

    /// The slot is free again.
    pub fn put(&self, slot: Slot) {
        let mut free = locked(&self.free);
        let none_was_free = free.is_empty();
        free.push(slot);
        if none_was_free {
            self.returned.notify_all();
        }
    }

    /// The request of this slot is over, or whether the server has executed it is not known.
    pub fn end(&self, slot: Slot) {
        if slot.is_uncertain() { self.abandon(slot) } else { self.put(slot) }
    }

    /// Whether the server has executed the request of this slot is not known.
    pub fn abandon(&self, mut slot: Slot) {
        slot.uncertain = true;
        locked(&self.abandoned).push(slot);
    }

    /// A new session has begun, in which no slot has had a request.
    pub fn renew(&self) {
        let abandoned = std::mem::take(&mut *locked(&self.abandoned));
        for mut slot in abandoned {
            slot.settle();
            self.put(slot);
        }
    }

    /// The slot of the connection itself.
    pub fn take_connection_slot(&self) -> MutexGuard<'_, Slot> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for TakenSlot<'_> {
    type Target = Slot;
    fn deref(&self) -> &Slot {
        match &self.slot {
            Some(slot) => slot,
            None => unreachable!("a slot is there until it is dropped"),
        }
    }
}

impl DerefMut for TakenSlot<'_> {
    fn deref_mut(&mut self) -> &mut Slot {
        match &mut self.slot {
            Some(slot) => slot,
            None => unreachable!("a slot is there until it is dropped"),
        }
    }
}

impl TakenSlot<'_> {
    /// Keeps the slot beyond the call. It goes back by [`Slots::put`].
    pub fn keep(mut self) -> Option<Slot> {
        self.slot.take().inspect(|slot| slot.watch.end())
    }
}

impl Drop for TakenSlot<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.watch.end();
            self.slots.put(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_keeps_its_number_when_it_is_sent_again() {
        let mut slot = Slot::new(5);
        slot.begin();
        assert_eq!(slot.request(1), (5, 1));
        assert_eq!(slot.request(1), (5, 1));
        slot.begin();
        assert_eq!(slot.request(1), (5, 2));
        assert_eq!(slot.request(2), (5, 1), "a new session counts from 1");
        assert_eq!(slot.request(2), (5, 1));
    }

    #[test]
    fn completion_queues_leave_slots_and_abandoned_ones_come_back_with_a_session() {
        let slots = Slots::new();
        let taken: Vec<_> = std::iter::from_fn(|| slots.take_for_queue()).collect();
        assert_eq!(taken.len(), MAX_QUEUED);
        assert_eq!(slots.take_several(100, 0, || false).expect("slots").len(), RESERVED);
        taken.into_iter().for_each(|slot| slots.abandon(slot));
        slots.take_several(RESERVED, 0, || false).expect("slots").into_iter().for_each(drop);
        let uncertain = slots.take_for_queue().expect("a slot");
        assert!(uncertain.is_uncertain(), "no other one is free");
        slots.abandon(uncertain);
        slots.renew();
        assert!(!slots.take_for_queue().expect("a slot").is_uncertain());
    }

    #[test]
    fn a_request_that_was_not_sent_uses_no_number() {
        let mut slot = Slot::new(5);
        slot.begin();
        assert_eq!(slot.request(1), (5, 1));
        slot.not_sent();
        slot.begin();
        assert_eq!(slot.request(1), (5, 1));
        slot.doubt();
        assert_eq!(slot.request(1), (5, 1));
        slot.not_sent();
        assert_eq!(slot.request(1), (5, 1), "it was sent before");
    }

    #[test]
    fn the_request_that_begins_a_session_has_number_0() {
        let mut slot = Slot::to_attach();
        assert_eq!(slot.request(7), (0, 0));
        assert_eq!(slot.request(8), (0, 0));
    }
}
