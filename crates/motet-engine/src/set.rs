//! A set: the streams of one epoll descriptor, and the few among them that are worth looking at.
//!
//! Only *hot* streams have an open gate and are ever polled; the others wake the kernel's epoll as any socket does. A
//! stream becomes hot when it delivers data, and cools down when it has been silent for many waits. So a process with
//! thousands of idle peers looks at none of them.

use crate::base::Kernel;
use crate::engine::{Engine, Handle, Local};
use motet_proto::gate;
use motet_sys::forkable::Forkable;
use motet_sys::{socket, thread};
use motet_wire::record::Record;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Waits without data after which a stream cools down.
const COOL: u64 = 256;

/// The streams of one epoll descriptor.
pub struct Set {
    inner: Forkable<Inner>,
    /// Streams in the set, for the quick way out.
    members: AtomicUsize,
    bell: i32,
    pid: u32,
}

#[derive(Default)]
struct Inner {
    members: HashMap<Handle, Member>,
    hot: Vec<Hot>,
    /// Threads asleep in this set.
    sleeping: u32,
    /// Waits so far.
    clock: u64,
}

#[derive(Clone, Copy)]
struct Member {
    cookie: usize,
    armed: bool,
}

#[derive(Clone, Copy)]
struct Hot {
    handle: Handle,
    last: u64,
}

impl Inner {
    fn add_hot(&mut self, handle: Handle) {
        if !self.hot.iter().any(|h| h.handle == handle) {
            let last = self.clock;
            self.hot.push(Hot { handle, last });
        }
    }
}

impl Set {
    /// An empty set. `bell` is an eventfd in the epoll descriptor.
    pub fn new(bell: i32) -> Arc<Self> {
        Arc::new(Self { inner: Forkable::default(), members: AtomicUsize::new(0), bell, pid: thread::pid() })
    }

    /// Whether the plain system call is enough: no stream is in the set, or the set was inherited through a fork.
    pub fn idle(&self) -> bool {
        self.members.load(Relaxed) == 0 || self.pid != thread::pid()
    }

    /// Streams now looked at: the hot ones that are armed.
    pub fn hot(&self, into: &mut Vec<Handle>) {
        let inner = self.inner.lock();
        let armed = |h: &&Hot| inner.members.get(&h.handle).is_some_and(|m| m.armed);
        into.extend(inner.hot.iter().filter(armed).map(|h| h.handle));
    }

    /// Whether a hot stream is here for something else than its data.
    pub(crate) fn has_unarmed(&self) -> bool {
        let inner = self.inner.lock();
        inner.hot.iter().any(|h| inner.members.get(&h.handle).is_none_or(|m| !m.armed))
    }

    /// Whether the program wants to hear of the stream's data.
    pub(crate) fn armed(&self, handle: Handle) -> bool {
        self.inner.lock().members.get(&handle).is_some_and(|m| m.armed)
    }

    /// Whether a gate may open: nobody sleeps in the set. Remembers the stream, so the next sleeper closes it.
    pub(crate) fn may_raise(&self, handle: Handle) -> bool {
        let mut inner = self.inner.lock();
        if inner.sleeping > 0 {
            return false;
        }
        inner.add_hot(handle);
        true
    }

    /// Begins a sleep: from now on no gate opens; returns the streams whose gates must be closed.
    pub(crate) fn sleep(&self, into: &mut Vec<Handle>) {
        let mut inner = self.inner.lock();
        inner.sleeping += 1;
        into.extend(inner.hot.iter().map(|h| h.handle));
    }

    /// Ends a sleep.
    pub(crate) fn slept(&self) {
        let mut inner = self.inner.lock();
        inner.sleeping = inner.sleeping.saturating_sub(1);
    }
}

impl Local {
    /// Whether the stream's gate may open: it is in no set in which somebody sleeps.
    #[inline]
    pub(crate) fn set_may_raise(&self, handle: Handle) -> bool {
        !self.in_set.load(Relaxed) || self.set.lock().as_ref().is_none_or(|set| set.may_raise(handle))
    }
}

impl Engine {
    /// Adds a stream to a set, or changes its cookie and whether it is armed. A stream is in one set only; in a second
    /// one it stays on TCP.
    pub fn set_put(&self, set: &Arc<Set>, handle: Handle, cookie: usize, armed: bool) -> bool {
        let Some((record, local)) = self.look_up(handle) else { return false };
        {
            let mut current = local.set.lock();
            match current.as_ref() {
                Some(other) if !Arc::ptr_eq(other, set) => {
                    drop(current);
                    self.plain(handle, crate::reason::Reason::NESTED);
                    return true;
                }
                Some(_) => {}
                None => {
                    *current = Some(set.clone());
                    local.in_set.store(true, Relaxed);
                }
            }
        }
        let (ring, hot) = {
            let mut inner = set.inner.lock();
            if inner.members.insert(handle, Member { cookie, armed }).is_none() {
                set.members.fetch_add(1, Relaxed);
                // One that was hot when it left comes back hot. In one step with the question for sleepers: the next one closes
                // its gate.
                if local.hot.load(Relaxed) {
                    inner.add_hot(handle);
                }
            }
            (inner.sleeping > 0, local.hot.load(Relaxed))
        };
        // A gate that was opened outside this set is closed; bytes that are in the ring already make the stream hot. A
        // sleeper on this set must look again: neither an open gate nor unread bytes would ever wake it.
        if (ring || !hot)
            && let Some(slot) = local.slot.slot()
            && !gate::close_gate(record, &slot, &mut Kernel::new(local, handle))
        {
            self.make_hot(set, handle, local);
            if ring && armed {
                socket::ring(set.bell);
            }
        }
        true
    }

    /// Takes a stream out of a set. Programs do that around every request, so a hot one stays hot: its gate stays as it is, like
    /// that of any stream nobody waits for (invariants 4 and 6), until the set that it enters next decides.
    pub fn set_remove(&self, set: &Arc<Set>, handle: Handle) {
        let found = {
            let mut inner = set.inner.lock();
            inner.hot.retain(|h| h.handle != handle);
            inner.members.remove(&handle).is_some()
        };
        if found {
            set.members.fetch_sub(1, Relaxed);
        }
        if let Some((_, local)) = self.look_up(handle) {
            local.in_set.store(false, Relaxed);
            local.set.lock().take();
        }
    }

    /// Calls `each` with the cookie of every armed stream that a receive would serve from the wire; stops when it says no.
    pub fn set_ready(&self, set: &Set, mut each: impl FnMut(usize) -> bool) {
        let mut inner = set.inner.lock();
        let inner = &mut *inner;
        for hot in &mut inner.hot {
            if self.rx_ready(hot.handle)
                && let Some(member) = inner.members.get(&hot.handle)
                && member.armed
            {
                hot.last = inner.clock;
                if !each(member.cookie) {
                    break;
                }
            }
        }
    }

    /// Whether any armed stream of the set has data on the wire.
    pub(crate) fn set_any_ready(&self, set: &Set) -> bool {
        let mut any = false;
        self.set_ready(set, |_| {
            any = true;
            false
        });
        any
    }

    /// The stream has delivered data: its set looks at it from now on.
    #[inline]
    pub(crate) fn touched(&self, handle: Handle, record: &Record, local: &Local) {
        if local.hot.load(Relaxed) {
            return;
        }
        if record.rx.ready.load(Relaxed) != 0
            && let Some(set) = local.set.lock().clone()
        {
            self.make_hot(&set, handle, local);
        }
    }

    /// Begins a wait: the streams that have been silent for long cool down.
    pub(crate) fn set_cool(&self, set: &Set) {
        let mut cold = Vec::new();
        {
            let mut inner = set.inner.lock();
            inner.clock += 1;
            let (clock, room) = (inner.clock, self.options.hot);
            if inner.hot.len() > room {
                inner.hot.sort_by_key(|h| std::cmp::Reverse(h.last));
                cold.extend(inner.hot.drain(room..).map(|h| h.handle));
            }
            if clock.is_multiple_of(COOL / 4) {
                inner.hot.retain(|h| {
                    let keep = clock - h.last < COOL;
                    if !keep {
                        cold.push(h.handle);
                    }
                    keep
                });
            }
        }
        for handle in cold {
            let Some((record, local)) = self.look_up(handle) else { continue };
            local.hot.store(false, Relaxed);
            if let Some(slot) = local.slot.slot()
                && !gate::close_gate(record, &slot, &mut Kernel::new(local, handle))
            {
                self.make_hot(set, handle, local); // it has just spoken
            }
        }
    }

    fn make_hot(&self, set: &Set, handle: Handle, local: &Local) {
        set.inner.lock().add_hot(handle);
        local.hot.store(true, Relaxed);
    }

    pub(crate) fn leave_set(&self, handle: Handle, local: &Local) {
        if !local.in_set.load(Relaxed) {
            return;
        }
        let set = local.set.lock().clone();
        if let Some(set) = set {
            self.set_remove(&set, handle);
        }
    }
}
