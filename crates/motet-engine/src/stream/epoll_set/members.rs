//! The streams of one epoll descriptor, which of them are polled, and which threads sleep there.

use super::interest::Interest;
use super::nesting::Nesting;
use crate::Handle;
use foldhash::fast::RandomState;
use motet_sys::fork_safe_mutex::ForkSafeMutex;
use motet_sys::thread;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// The streams of one epoll descriptor.
pub struct EpollSet {
    pub(in crate::stream) inner: ForkSafeMutex<Inner>,
    /// Sets that are registered in this one, and those that it is registered in.
    pub(in crate::stream) nesting: Nesting<EpollSet>,
    /// Streams in the set, readable without the lock.
    pub(in crate::stream) members: AtomicUsize,
    /// Threads asleep in the set, readable without the lock.
    pub(in crate::stream) asleep: AtomicU32,
    /// An eventfd in the epoll descriptor, which wakes a sleeper.
    pub(in crate::stream) doorbell: i32,
    /// Streams that one wait polls.
    pub(in crate::stream) capacity: usize,
    /// The process that made the set.
    pub(in crate::stream) pid: u32,
}

#[derive(Default)]
pub(in crate::stream) struct Inner {
    /// Handles are this process's own numbers, so a quick hash is safe: some programs add and delete a descriptor around each request.
    pub(in crate::stream) members: HashMap<Handle, Member, RandomState>,
    /// Streams that waits poll.
    pub(in crate::stream) hot: Vec<Hot>,
    /// Threads asleep in this set.
    pub(in crate::stream) sleeping: u32,
    /// Threads that spin on the hot streams, and close their gates before they leave a sleeper behind.
    pub(in crate::stream) spinners: u32,
    /// Waits so far.
    pub(in crate::stream) waits: u64,
    /// Every gate was closed over an empty ring when a thread last fell asleep, and nothing has changed since then.
    pub(in crate::stream) parked: bool,
    /// Changes that may end the parked state: gates allowed to open, streams inserted.
    pub(in crate::stream) changes: u64,
    /// Where the next poll of the hot streams begins, so that a short array of events serves all of them in turn.
    pub(in crate::stream) turn: usize,
}

#[derive(Clone, Copy)]
pub(in crate::stream) struct Member {
    pub(in crate::stream) cookie: usize,
    pub(in crate::stream) interest: Interest,
    /// Edge-triggered: the stream position up to which the program has got an event.
    pub(in crate::stream) reported_position: u64,
    /// The stream is hot.
    pub(in crate::stream) hot: bool,
}

/// Hot streams; on the stack if they are few.
pub(crate) type HotList = SmallVec<[Handle; 16]>;

/// A hot stream.
#[derive(Clone, Copy)]
pub(in crate::stream) struct Hot {
    pub(in crate::stream) handle: Handle,
    /// The number of the wait in which it last had data.
    pub(in crate::stream) last_data_at: u64,
}

impl Inner {
    pub(in crate::stream) fn note_change(&mut self) {
        self.parked = false;
        self.changes += 1;
    }

    pub(in crate::stream) fn make_hot(&mut self, handle: Handle) {
        self.note_change();
        let known = match self.members.get_mut(&handle) {
            Some(member) => std::mem::replace(&mut member.hot, true),
            None => self.hot.iter().any(|h| h.handle == handle),
        };
        if !known {
            let last_data_at = self.waits;
            self.hot.push(Hot { handle, last_data_at });
        }
    }

    /// Whether so many streams have become hot since the last wait that no more may until the next one.
    pub(in crate::stream) fn is_full(&self, capacity: usize) -> bool {
        self.hot.len() >= 2 * capacity
    }
}

impl EpollSet {
    /// An empty set, in which one wait polls `capacity` streams. `doorbell` is an eventfd in the epoll descriptor.
    pub fn new(doorbell: i32, capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: ForkSafeMutex::default(),
            nesting: Nesting::default(),
            members: AtomicUsize::new(0),
            asleep: AtomicU32::new(0),
            doorbell,
            capacity,
            pid: thread::pid(),
        })
    }

    /// Whether the system call alone is enough: no stream is in the set, or the set was inherited through a fork.
    pub fn kernel_suffices(&self) -> bool {
        self.members.load(Relaxed) == 0 && !self.has_inner() || self.pid != thread::pid()
    }

    /// Whether a hot stream is in the set for other events than its data.
    pub(crate) fn has_unarmed(&self) -> bool {
        let inner = self.inner.lock();
        inner.hot.iter().any(|h| inner.members.get(&h.handle).is_none_or(|m| m.interest == Interest::None))
    }

    /// Whether a gate may open: no thread sleeps in the set, or a spinning thread will close it again. Makes the stream hot, so the next thread that
    /// sleeps or stops spinning closes its gate.
    pub(in crate::stream) fn may_raise(&self, handle: Handle) -> bool {
        let mut inner = self.inner.lock();
        let full = inner.is_full(self.capacity) && inner.members.get(&handle).is_none_or(|m| !m.hot);
        if full || inner.sleeping > 0 && inner.spinners == 0 {
            return false;
        }
        inner.make_hot(handle);
        drop(inner);
        // After it is hot: a thread that falls asleep in an outer set is counted there first, and then closes the gates of the hot streams.
        self.outer_sets_may_raise()
    }

    /// Whether no thread sleeps in the set, or another one spins. Ends the parked state.
    pub(in crate::stream) fn has_no_lone_sleeper(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.note_change();
        inner.sleeping == 0 || inner.spinners > 0
    }

    /// Begins to spin for the set, unless another thread does. One spinner is enough; it stops when it finds something.
    pub(crate) fn begin_spinning(&self) -> bool {
        let mut inner = self.inner.lock();
        let first = inner.spinners == 0;
        inner.spinners += u32::from(first);
        first
    }

    /// Begins a sleep and returns the hot streams, whose gates must be closed; no gate opens from here on. `is_spinner`: this thread was one. `None`:
    /// another thread spins, and closes the gates when it stops.
    pub(in crate::stream) fn sleep(&self, is_spinner: bool) -> Option<(Vec<Handle>, u64)> {
        let mut inner = self.inner.lock();
        inner.sleeping += 1;
        inner.spinners = inner.spinners.saturating_sub(u32::from(is_spinner));
        self.asleep.store(inner.sleeping, Relaxed);
        let (alone, changes) = (inner.spinners == 0, inner.changes);
        drop(inner);
        alone.then(|| (self.all_hot(), changes))
    }

    /// Ends a sleep, or takes it back. `spins`: the thread spins again.
    pub(in crate::stream) fn awake(&self, spins: bool) {
        let mut inner = self.inner.lock();
        inner.sleeping = inner.sleeping.saturating_sub(1);
        inner.spinners += u32::from(spins);
        self.asleep.store(inner.sleeping, Relaxed);
    }

    /// Ends a sleep.
    pub fn end_sleep(&self) {
        self.awake(false);
    }

    /// Notes that all gates were closed over empty rings when the count of changes was `changes`.
    pub(in crate::stream) fn note_parked(&self, changes: u64) {
        let mut inner = self.inner.lock();
        inner.parked = inner.changes == changes && inner.spinners == 0 && !self.has_inner();
    }
}
