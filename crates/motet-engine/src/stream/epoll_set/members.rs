//! The streams of one epoll descriptor, which of them are polled, and which threads sleep there.

use crate::Handle;
use motet_sys::fork_safe_mutex::ForkSafeMutex;
use motet_sys::thread;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

/// The streams of one epoll descriptor.
pub struct EpollSet {
    pub(in crate::stream) inner: ForkSafeMutex<Inner>,
    /// Streams in the set, for the quick way out.
    pub(in crate::stream) members: AtomicUsize,
    /// Threads asleep in the set, to be read without its lock.
    pub(in crate::stream) asleep: AtomicU32,
    pub(in crate::stream) bell: i32,
    /// Streams that one wait looks at.
    pub(in crate::stream) room: usize,
    pub(in crate::stream) pid: u32,
}

#[derive(Default)]
pub(in crate::stream) struct Inner {
    pub(in crate::stream) members: HashMap<Handle, Member>,
    pub(in crate::stream) hot: Vec<Hot>,
    /// Threads asleep in this set.
    pub(in crate::stream) sleeping: u32,
    /// Threads that look at the hot streams, and will close their gates over a sleeper.
    pub(in crate::stream) watching: u32,
    /// Waits so far.
    pub(in crate::stream) clock: u64,
    /// Every gate was closed over an empty ring when a thread last fell asleep, and nothing has changed since.
    pub(in crate::stream) calm: bool,
    /// What may have changed that: gates allowed to open, streams put in.
    pub(in crate::stream) changes: u64,
    /// Where the next look at the hot streams begins, so that a short array of events serves them all in turn.
    pub(in crate::stream) turn: usize,
}

#[derive(Clone, Copy)]
pub(in crate::stream) struct Member {
    pub(in crate::stream) cookie: usize,
    pub(in crate::stream) interest: Interest,
    /// Edge-triggered: the position that the program has been told of.
    pub(in crate::stream) told: u64,
    /// Among the hot ones.
    pub(in crate::stream) hot: bool,
}

/// How the program wants to hear of a stream's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Not at all.
    None,
    /// As long as there is some.
    Level,
    /// Whenever more has come.
    Edge,
}

/// Hot streams, on the stack as long as they are few.
pub(crate) type HotList = SmallVec<[Handle; 16]>;

#[derive(Clone, Copy)]
pub(in crate::stream) struct Hot {
    pub(in crate::stream) handle: Handle,
    pub(in crate::stream) last: u64,
}

impl Inner {
    pub(in crate::stream) fn stir(&mut self) {
        self.calm = false;
        self.changes += 1;
    }

    pub(in crate::stream) fn add_hot(&mut self, handle: Handle) {
        self.stir();
        let known = match self.members.get_mut(&handle) {
            Some(member) => std::mem::replace(&mut member.hot, true),
            None => self.hot.iter().any(|h| h.handle == handle),
        };
        if !known {
            let last = self.clock;
            self.hot.push(Hot { handle, last });
        }
    }

    /// So many are hot since the last wait that another one waits for the next.
    pub(in crate::stream) fn is_full(&self, room: usize) -> bool {
        self.hot.len() >= 2 * room
    }
}

impl EpollSet {
    /// An empty set, in which one wait looks at `room` streams. `bell` is an eventfd in the epoll descriptor.
    pub fn new(bell: i32, room: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: ForkSafeMutex::default(),
            members: AtomicUsize::new(0),
            asleep: AtomicU32::new(0),
            bell,
            room,
            pid: thread::pid(),
        })
    }

    /// Whether the plain system call is enough: no stream is in the set, or the set was inherited through a fork.
    pub fn kernel_suffices(&self) -> bool {
        self.members.load(Relaxed) == 0 || self.pid != thread::pid()
    }

    /// Whether a hot stream is here for something else than its data.
    pub(crate) fn has_unarmed(&self) -> bool {
        let inner = self.inner.lock();
        inner.hot.iter().any(|h| inner.members.get(&h.handle).is_none_or(|m| m.interest == Interest::None))
    }

    /// Whether a gate may open: no thread sleeps in the set, or a spinning thread will close it again. Remembers the stream, so
    /// the next who sleeps, or stops watching, closes it.
    pub(in crate::stream) fn may_raise(&self, handle: Handle) -> bool {
        let mut inner = self.inner.lock();
        let full = inner.is_full(self.room) && inner.members.get(&handle).is_none_or(|m| !m.hot);
        if full || inner.sleeping > 0 && inner.watching == 0 {
            return false;
        }
        inner.add_hot(handle);
        true
    }

    /// Begins to watch, unless another thread does: one is enough, and it gives up its turn when it finds something.
    pub(crate) fn watch(&self) -> bool {
        let mut inner = self.inner.lock();
        let first = inner.watching == 0;
        inner.watching += u32::from(first);
        first
    }

    /// Begins a sleep, perhaps after having watched; returns the gates to be closed. From now on none opens. `None`: another thread
    /// watches, and closes them when it stops.
    pub(in crate::stream) fn sleep(&self, watched: bool) -> Option<(Vec<Handle>, u64)> {
        let mut inner = self.inner.lock();
        inner.sleeping += 1;
        inner.watching = inner.watching.saturating_sub(u32::from(watched));
        self.asleep.store(inner.sleeping, Relaxed);
        (inner.watching == 0).then(|| (inner.hot.iter().map(|h| h.handle).collect(), inner.changes))
    }

    /// Ends a sleep; or it did not come to that, and the thread watches again.
    pub(in crate::stream) fn awake(&self, watches: bool) {
        let mut inner = self.inner.lock();
        inner.sleeping = inner.sleeping.saturating_sub(1);
        inner.watching += u32::from(watches);
        self.asleep.store(inner.sleeping, Relaxed);
    }

    /// Ends a sleep.
    pub fn end_sleep(&self) {
        self.awake(false);
    }

    /// All gates were closed over empty rings, after so many changes.
    pub(in crate::stream) fn note_calm(&self, changes: u64) {
        let mut inner = self.inner.lock();
        inner.calm = inner.changes == changes && inner.watching == 0;
    }
}
