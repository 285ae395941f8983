//! The state that the clones of a registration cache share.
//!
//! It applies events, and keeps, evicts and gives up registrations. No thread registers, deregisters or waits for another thread while it holds
//! the lock. What it is not: [`super::Cache`] decides what to register and when.

use super::counts::{Count, Counters};
use super::entries::{Entries, GivenUp, Range};
use super::events::{self, Missed};
use super::watch::Watch;
use super::{CacheMode, EAGAIN, ENOMEM, Limits, Refused, Register};
use crate::lock;
use motet_sys::fork_detect::ForkMark;
use std::sync::Mutex;

/// The shared state of a cache.
#[derive(Debug)]
pub struct Shared<R: Register> {
    pub(super) driver: R,
    pub(super) limits: Limits,
    pub(super) watch: Result<&'static Watch, CacheMode>,
    pub(super) registrations: Mutex<Registrations<R::Token>>,
    pub(super) counters: Counters,
    pub(super) fork_mark: ForkMark,
}

/// The state under the lock. No thread registers, or waits for another thread, while it holds the lock; memory may be freed under it, as the
/// reader of that event takes no lock (W1).
#[derive(Debug)]
pub struct Registrations<T: Copy> {
    pub(super) entries: Entries<T>,
    /// The number of the first event that was not applied.
    pub(super) next_event: u64,
}

/// Whether a new registration is kept.
pub enum KeepOutcome<T> {
    /// It is kept, as this entry.
    Kept(u32),
    /// Another thread has registered the range meanwhile; its entry is used.
    Duplicate(u32, Range, T),
    /// It is not kept, for this reason.
    NotKept(Count),
}

impl<R: Register> Shared<R> {
    /// Applies new events to the registrations.
    #[inline]
    pub(super) fn apply_events(
        &self,
        watch: &Watch,
        registrations: &mut Registrations<R::Token>,
        given_up: &mut Vec<GivenUp<R::Token>>,
    ) {
        if registrations.next_event != watch.events().count() || watch.is_lost() {
            self.apply_new_events(watch, registrations, given_up);
        }
    }

    #[cold]
    fn apply_new_events(
        &self,
        watch: &Watch,
        registrations: &mut Registrations<R::Token>,
        given_up: &mut Vec<GivenUp<R::Token>>,
    ) {
        let mut count = 0;
        if watch.is_lost() {
            count += registrations.entries.invalidate_all(given_up);
        }
        while registrations.next_event < watch.events().count() {
            match watch.events().at(registrations.next_event) {
                Ok((start, end)) => {
                    count += registrations.entries.invalidate(&Range { start, end }, given_up);
                    registrations.next_event += 1;
                }
                Err(Missed) => {
                    // Read the count first: a registration after this read is not affected by earlier events.
                    registrations.next_event = watch.events().count();
                    count += registrations.entries.invalidate_all(given_up);
                    self.counters.add(Count::Missed, 1);
                }
            }
        }
        self.counters.add(Count::Stale, count);
    }

    /// Whether one of the events from `born` up to `next` may have removed a page of this range.
    fn may_be_stale(&self, watch: &Watch, range: &Range, born: u64, next: u64) -> bool {
        let lost = |number| match watch.events().at(number) {
            Ok((start, end)) => range.overlaps(&Range { start, end }),
            Err(Missed) => true,
        };
        watch.is_lost() || next.saturating_sub(born) >= events::RING_EVENTS || (born..next).any(lost)
    }

    /// Keeps a registration that was begun after `born` events, if it is still valid and there is room.
    pub(super) fn keep(
        &self,
        watch: &Watch,
        range: Range,
        plan: Range,
        token: R::Token,
        born: u64,
        given_up: &mut Vec<GivenUp<R::Token>>,
    ) -> KeepOutcome<R::Token> {
        let mut registrations = lock(&self.registrations);
        self.apply_events(watch, &mut registrations, given_up);
        if self.may_be_stale(watch, &plan, born, registrations.next_event) {
            return KeepOutcome::NotKept(Count::Unsettled);
        }
        if let Some((at, other, other_token)) = registrations.entries.take(&range) {
            self.counters.add(Count::Hits, 1);
            return KeepOutcome::Duplicate(at, other, other_token);
        }
        loop {
            let (entries, bytes) = registrations.entries.size();
            if entries < self.limits.entries && bytes + plan.length() <= self.limits.bytes {
                self.counters.add(Count::Kept, 1);
                return KeepOutcome::Kept(registrations.entries.put(plan, token, given_up));
            }
            if !registrations.entries.evict(given_up) {
                return KeepOutcome::NotKept(Count::Full);
            }
            self.counters.add(Count::Evicted, 1);
        }
    }

    /// Registers a range with the driver; for lack of room it gives up unused registrations.
    pub(super) fn register(&self, range: Range) -> Result<R::Token, Refused> {
        loop {
            let refusal = match self.driver.register(range) {
                Ok(token) => return Ok(token),
                Err(errno) => errno,
            };
            let mut given_up = Vec::new();
            if refusal == ENOMEM || refusal == EAGAIN {
                let mut registrations = lock(&self.registrations);
                let mut freed = 0;
                while freed < range.length() && registrations.entries.evict(&mut given_up) {
                    freed = given_up.iter().map(|(range, _)| range.length()).sum();
                    self.counters.add(Count::Evicted, 1);
                }
            }
            if given_up.is_empty() {
                return Err(Refused::Driver(refusal));
            }
            self.deregister_all(given_up);
        }
    }

    /// Deregisters what was given up. Call it under no lock.
    pub(super) fn deregister_all(&self, given_up: Vec<GivenUp<R::Token>>) {
        for (range, token) in given_up {
            self.driver.deregister(range, token);
            if let Ok(watch) = self.watch {
                watch.unwatch(range.start, range.end);
            }
        }
    }

    /// Ends a lease on the entry `at`, or on a registration of its own.
    pub(super) fn end_lease(&self, range: Range, token: R::Token, at: Option<u32>) {
        if !self.fork_mark.is_own() {
            return;
        }
        let Some(at) = at else { return self.driver.deregister(range, token) };
        let mut given_up = Vec::new();
        lock(&self.registrations).entries.end_lease(at, &mut given_up);
        if !given_up.is_empty() {
            self.deregister_all(given_up);
        }
    }
}

impl<R: Register> Drop for Shared<R> {
    fn drop(&mut self) {
        if self.fork_mark.is_own() {
            let mut given_up = Vec::new();
            lock(&self.registrations).entries.invalidate_all(&mut given_up);
            self.deregister_all(given_up);
        }
    }
}
