//! What the clones of a registration cache share: what is kept, and how that follows what happens to the memory.
//!
//! What it is: events applied, registrations kept, evicted and given up. Nobody registers, deregisters or waits for anybody while holding
//! the lock. What it is not: when to register what is decided by [`super::Cache`].

use super::counts::{Count, Counters};
use super::entries::{Entries, Grave, Range};
use super::events::{self, Missed};
use super::watch::Watch;
use super::{AGAIN, Limits, NO_MEMORY, Refused, Register, Standing};
use crate::lock;
use motet_sys::fork_detect::ForkMark;
use std::sync::Mutex;

/// All of it.
#[derive(Debug)]
pub struct Shared<R: Register> {
    pub(super) driver: R,
    pub(super) limits: Limits,
    pub(super) watch: Result<&'static Watch, Standing>,
    pub(super) kept: Mutex<Kept<R::Token>>,
    pub(super) counters: Counters,
    pub(super) fork_mark: ForkMark,
}

/// What is under the lock. Nobody registers, or waits for anybody, while holding it; memory may be freed under it, as the thread
/// that hears of that takes no lock (W1).
#[derive(Debug)]
pub struct Kept<T: Copy> {
    pub(super) entries: Entries<T>,
    /// The first event that has not been applied.
    pub(super) next: u64,
}

/// What became of a new registration.
pub enum Made<T> {
    /// It is kept there.
    Kept(u32),
    /// Another thread made one in the meantime, and that is used.
    Twice(u32, Range, T),
    /// It is not kept.
    ForOnce(Count),
}

impl<R: Register> Shared<R> {
    /// Applies what has happened to what is kept.
    #[inline]
    pub(super) fn catch_up(&self, watch: &Watch, kept: &mut Kept<R::Token>, graves: &mut Vec<Grave<R::Token>>) {
        if kept.next != watch.events().count() || watch.is_lost() {
            self.apply(watch, kept, graves);
        }
    }

    #[cold]
    fn apply(&self, watch: &Watch, kept: &mut Kept<R::Token>, graves: &mut Vec<Grave<R::Token>>) {
        let mut gone = 0;
        if watch.is_lost() {
            gone += kept.entries.take_all_away(graves);
        }
        while kept.next < watch.events().count() {
            match watch.events().at(kept.next) {
                Ok((start, end)) => {
                    gone += kept.entries.take_away(&Range { start, end }, graves);
                    kept.next += 1;
                }
                Err(Missed) => {
                    // The count first: what is registered after this look is not affected by what came before it.
                    kept.next = watch.events().count();
                    gone += kept.entries.take_all_away(graves);
                    self.counters.add(Count::Missed, 1);
                }
            }
        }
        self.counters.add(Count::Stale, gone);
    }

    /// Whether one of the events from `born` up to `next` took a page of this range, as far as anybody knows.
    fn has_lost(&self, watch: &Watch, range: &Range, born: u64, next: u64) -> bool {
        let lost = |number| match watch.events().at(number) {
            Ok((start, end)) => range.overlaps(&Range { start, end }),
            Err(Missed) => true,
        };
        watch.is_lost() || next.saturating_sub(born) >= events::KEPT || (born..next).any(lost)
    }

    /// Keeps a registration that was begun when `born` events had happened, if it is worth that.
    pub(super) fn keep(
        &self,
        watch: &Watch,
        range: Range,
        plan: Range,
        token: R::Token,
        born: u64,
        graves: &mut Vec<Grave<R::Token>>,
    ) -> Made<R::Token> {
        let mut kept = lock(&self.kept);
        self.catch_up(watch, &mut kept, graves);
        if self.has_lost(watch, &plan, born, kept.next) {
            return Made::ForOnce(Count::Unsettled);
        }
        if let Some((at, other, others)) = kept.entries.take(&range) {
            self.counters.add(Count::Hits, 1);
            return Made::Twice(at, other, others);
        }
        loop {
            let (entries, bytes) = kept.entries.size();
            if entries < self.limits.entries && bytes + plan.length() <= self.limits.bytes {
                self.counters.add(Count::Kept, 1);
                return Made::Kept(kept.entries.put(plan, token, graves));
            }
            if !kept.entries.evict(graves) {
                return Made::ForOnce(Count::Full);
            }
            self.counters.add(Count::Evicted, 1);
        }
    }

    /// Has the driver register a range, at the cost of unused ones.
    pub(super) fn register(&self, range: Range) -> Result<R::Token, Refused> {
        loop {
            let refusal = match self.driver.register(range) {
                Ok(token) => return Ok(token),
                Err(errno) => errno,
            };
            let mut graves = Vec::new();
            if refusal == NO_MEMORY || refusal == AGAIN {
                let mut kept = lock(&self.kept);
                let mut freed = 0;
                while freed < range.length() && kept.entries.evict(&mut graves) {
                    freed = graves.iter().map(|(range, _)| range.length()).sum();
                    self.counters.add(Count::Evicted, 1);
                }
            }
            if graves.is_empty() {
                return Err(Refused::Driver(refusal));
            }
            self.bury(graves);
        }
    }

    /// Deregisters. Under no lock.
    pub(super) fn bury(&self, graves: Vec<Grave<R::Token>>) {
        for (range, token) in graves {
            self.driver.deregister(range, token);
            if let Ok(watch) = self.watch {
                watch.unwatch(range.start, range.end);
            }
        }
    }

    /// A lease on what is kept at `at`, or on a registration of its own, has ended.
    pub(super) fn leave(&self, range: Range, token: R::Token, at: Option<u32>) {
        if !self.fork_mark.is_own() {
            return;
        }
        let Some(at) = at else { return self.driver.deregister(range, token) };
        let mut graves = Vec::new();
        lock(&self.kept).entries.leave(at, &mut graves);
        if !graves.is_empty() {
            self.bury(graves);
        }
    }
}

impl<R: Register> Drop for Shared<R> {
    fn drop(&mut self) {
        if self.fork_mark.is_own() {
            let mut graves = Vec::new();
            lock(&self.kept).entries.take_all_away(&mut graves);
            self.bury(graves);
        }
    }
}
