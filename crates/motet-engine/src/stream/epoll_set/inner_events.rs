//! Sets within sets ([`nesting`](super::nesting)): who may sleep, and which events are due.

use super::interest::Interest;
use super::members::{EpollSet, HotList};
use super::nesting::Inner;
use crate::Handle;
use crate::stream::engine::Engine;
use motet_sys::socket;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

impl EpollSet {
    /// Whether it has inner sets.
    #[inline]
    pub(in crate::stream) fn has_inner(&self) -> bool {
        self.nesting.inner_count.load(Relaxed) != 0
    }

    /// The inner sets whose events the program wants.
    pub(super) fn wanted(&self) -> Vec<Inner<EpollSet>> {
        if !self.has_inner() {
            return Vec::new();
        }
        self.nesting.inner.lock().iter().filter(|inner| inner.interest != Interest::None).cloned().collect()
    }

    /// The outer sets in which its events are wanted.
    fn wanted_in(&self) -> Vec<Arc<EpollSet>> {
        if self.nesting.outer_count.load(Relaxed) == 0 {
            return Vec::new();
        }
        let outer: Vec<_> = self.nesting.outer.lock().iter().filter_map(Weak::upgrade).collect();
        let wants = |outer: &Arc<EpollSet>| {
            let inner = outer.nesting.inner.lock();
            inner.iter().any(|inner| std::ptr::eq(Arc::as_ptr(&inner.set), self) && inner.interest != Interest::None)
        };
        outer.into_iter().filter(wants).collect()
    }

    /// Whether no thread sleeps in an outer set, or one spins there. A set that wants no events of this one does not count.
    pub(in crate::stream) fn outer_sets_may_raise(&self) -> bool {
        self.wanted_in().iter().all(|outer| outer.has_no_lone_sleeper() && outer.outer_sets_may_raise())
    }

    /// This set and its outer ones, those in which threads sleep.
    #[inline]
    pub(in crate::stream) fn sleepers(self: &Arc<Self>) -> Vec<Arc<EpollSet>> {
        if self.nesting.outer_count.load(Relaxed) == 0 && self.asleep.load(Relaxed) == 0 {
            return Vec::new();
        }
        let mut found: Vec<_> = self.wanted_in().iter().flat_map(Self::sleepers).collect();
        if self.asleep.load(Relaxed) > 0 {
            found.push(self.clone());
        }
        found
    }

    /// The hot streams of this set and of the inner ones whose events are wanted.
    pub(in crate::stream) fn all_hot(&self) -> Vec<Handle> {
        let mut hot: Vec<_> = self.inner.lock().hot.iter().map(|hot| hot.handle).collect();
        self.wanted().iter().for_each(|inner| hot.extend(inner.set.all_hot()));
        hot
    }

    /// Registers a set in this one, or changes its cookie and whether the program wants its events.
    pub(super) fn nest(self: &Arc<Self>, set: &Arc<EpollSet>, cookie: usize, interest: Interest) {
        let mut all = self.nesting.inner.lock();
        let new = Inner { set: set.clone(), cookie, interest, reported: 0 };
        match all.iter_mut().find(|inner| Arc::ptr_eq(&inner.set, set)) {
            Some(known) => *known = new,
            None => {
                all.push(new);
                set.nesting.outer.lock().push(Arc::downgrade(self));
                set.nesting.outer_count.fetch_add(1, Relaxed);
            }
        }
        self.nesting.inner_count.store(all.len(), Relaxed);
    }

    /// Takes a set out of this one.
    pub(super) fn unnest(&self, set: &EpollSet) {
        let mut all = self.nesting.inner.lock();
        all.retain(|inner| !std::ptr::eq(Arc::as_ptr(&inner.set), set));
        self.nesting.inner_count.store(all.len(), Relaxed);
        drop(all);
        let mut above = set.nesting.outer.lock();
        above.retain(|other| !std::ptr::eq(other.as_ptr(), self));
        set.nesting.outer_count.store(above.len(), Relaxed);
    }
}

impl Engine {
    /// Registers a set in another one, or changes its cookie and whether the program wants its events. False: it belongs to another process.
    pub fn set_nest(&self, outer: &Arc<EpollSet>, set: &Arc<EpollSet>, cookie: usize, interest: Interest) -> bool {
        if outer.pid != set.pid || Arc::ptr_eq(outer, set) {
            return false;
        }
        outer.nest(set, cookie, interest);
        outer.nesting.note_registration();
        outer.inner.lock().note_change();
        // Neither an open gate nor unread bytes would wake a thread that sleeps there already.
        let sleepers = if interest == Interest::None { Vec::new() } else { outer.sleepers() };
        if !sleepers.is_empty() {
            self.close_all(set.all_hot());
            self.wake_where_due(&sleepers);
        }
        true
    }

    /// Takes a set out of another one.
    pub fn set_unnest(&self, outer: &EpollSet, set: &EpollSet) {
        outer.unnest(set);
    }

    /// Wakes a thread in each of these sets for which an event is due.
    pub(in crate::stream) fn wake_where_due(&self, sets: &[Arc<EpollSet>]) {
        for set in sets {
            if self.set_any_ready(set) {
                socket::ring_eventfd(set.doorbell);
            }
        }
    }

    /// Calls `each` with the cookie of every inner set that has an event due, and notes edges as reported. Stops when `each` returns false.
    pub(in crate::stream) fn inner_ready(
        &self,
        set: &EpollSet,
        wanted: impl Fn(usize) -> bool,
        mut each: impl FnMut(usize) -> bool,
    ) {
        for Inner { set: inner, cookie, interest, reported } in set.wanted() {
            if !wanted(cookie) {
                continue;
            }
            let Some(due) = self.due_within(&inner) else { continue };
            if interest == Interest::Edge && due == reported {
                continue;
            }
            if let Some(known) = set.nesting.inner.lock().iter_mut().find(|known| Arc::ptr_eq(&known.set, &inner)) {
                known.reported = due;
            }
            if !each(cookie) {
                return;
            }
        }
    }

    /// Whether an inner set has an event due.
    pub(in crate::stream) fn any_inner_ready(&self, set: &EpollSet) -> bool {
        let is_due = |inner: &Inner<EpollSet>| {
            self.due_within(&inner.set).is_some_and(|due| inner.interest != Interest::Edge || due != inner.reported)
        };
        set.wanted().iter().any(is_due)
    }

    /// Adds the streams of inner sets that a wait polls; returns what [`Engine::set_hot`] does.
    pub(in crate::stream) fn inner_hot(&self, set: &EpollSet, into: &mut HotList) -> bool {
        let mut left = false;
        for inner in set.wanted() {
            let is_reported = inner.interest == Interest::Edge && self.due_within(&inner.set) == Some(inner.reported);
            left |= is_reported || self.set_hot(&inner.set, into);
        }
        left
    }

    /// A number that changes with the streams of a set for which an event is due, with their positions, and with each registration there: as the kernel,
    /// which wakes an outer set for a member that is registered anew. `None`: no event is due.
    fn due_within(&self, set: &EpollSet) -> Option<u64> {
        let (mut any, mut mixed) = (false, DefaultHasher::new());
        self.poll_hot(set, |member, position| {
            any = true;
            (member.cookie, position).hash(&mut mixed);
            true
        });
        for inner in set.wanted() {
            if let Some(due) = self.due_within(&inner.set) {
                any = true;
                due.hash(&mut mixed);
            }
        }
        set.nesting.registrations.load(Relaxed).hash(&mut mixed);
        any.then(|| mixed.finish())
    }
}
