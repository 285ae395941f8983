//! Sets within sets: an epoll descriptor that is registered in another one, at any depth.
//!
//! An outer set has no streams of its inner ones. It asks them: which of their streams to poll, whether an event is due there, which gates to close before it
//! sleeps. The other way round, a gate in an inner set opens only if no thread sleeps in an outer set that wants its events (invariant 5).
//!
//! Locks: lists of inner and outer sets are copied, so no two sets are locked at a time.

use super::interest::Interest;
use motet_sys::fork_safe_mutex::ForkSafeMutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// The sets that are registered in a set, and those that it is registered in.
pub(in crate::stream) struct Nesting<Set> {
    pub(super) inner: ForkSafeMutex<Vec<Inner<Set>>>,
    pub(super) outer: ForkSafeMutex<Vec<Weak<Set>>>,
    /// Registrations in the set so far.
    pub(super) registrations: AtomicU64,
    /// Inner sets, readable without the lock.
    pub(super) inner_count: AtomicUsize,
    /// Outer sets, readable without the lock.
    pub(super) outer_count: AtomicUsize,
}

/// An inner set.
pub(super) struct Inner<Set> {
    pub(super) set: Arc<Set>,
    pub(super) cookie: usize,
    pub(super) interest: Interest,
    /// Edge-triggered: what was due there when an event was last reported.
    pub(super) reported: u64,
}

impl<Set> Default for Nesting<Set> {
    fn default() -> Self {
        let (inner_count, outer_count) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let registrations = AtomicU64::new(0);
        Self {
            inner: ForkSafeMutex::default(),
            outer: ForkSafeMutex::default(),
            registrations,
            inner_count,
            outer_count,
        }
    }
}

impl<Set> Nesting<Set> {
    /// A member of the set is registered, or registered anew.
    #[inline]
    pub(in crate::stream) fn note_registration(&self) {
        self.registrations.fetch_add(1, Relaxed);
    }
}

impl<Set> Clone for Inner<Set> {
    fn clone(&self) -> Self {
        Self { set: self.set.clone(), ..*self }
    }
}
