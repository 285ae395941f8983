//! A set: the streams of one epoll descriptor, and the few among them that are worth looking at.
//!
//! Only *hot* streams have an open gate and are ever polled; the others wake the kernel's epoll as any socket does. A
//! stream becomes hot when it delivers data, and cools down when it has been silent for many waits. So a process with
//! thousands of idle peers looks at none of them.
//!
//! Threads in a set are *asleep* in the kernel or *watching*: they spin, and close every gate before they stop watching over a
//! sleeper (invariant 5). A stream may be in several sets: its gate opens when each of them agrees.

pub(in crate::stream) mod members;

pub(crate) use members::HotList;
pub use members::{EpollSet, Interest};
use members::{Inner, Member};

use crate::reason::Reason;
use crate::stream::engine::{Engine, Handle, Local};
use crate::stream::kernel_tcp::Kernel;
use motet_proto::stream::gate;
use motet_sys::socket;
use motet_wire::stream::record::StreamRecord;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Waits without data after which a stream cools down.
const COOL: u64 = 256;

impl Engine {
    /// Adds a stream to a set, or changes its cookie and how the program wants to hear of its data.
    pub fn set_insert(&self, set: &Arc<EpollSet>, handle: Handle, cookie: usize, interest: Interest) -> bool {
        let Some((record, local)) = self.look_up(handle) else { return false };
        {
            let mut sets = local.sets.lock();
            if !sets.iter().any(|other| Arc::ptr_eq(other, set)) {
                if sets.iter().any(|other| other.pid != set.pid) {
                    drop(sets);
                    self.stay_on_tcp(handle, Reason::SHARED); // it is in a set of our parent's, whose sleepers we do not see
                    return true;
                }
                sets.push(set.clone());
                local.in_set.store(true, Relaxed);
            }
        }
        let (asleep, hot) = {
            let mut inner = set.inner.lock();
            let (known, hot) = inner.members.get(&handle).map_or((false, false), |m| (true, m.hot));
            // Only a gate that was opened outside this set can be open here.
            if !known && local.slot.slot().is_some() {
                inner.stir();
            }
            if inner.members.insert(handle, Member { cookie, interest, told: 0, hot }).is_none() {
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
        let close = if asleep { gate::close_gate_over_bytes } else { gate::close_gate };
        if (asleep || !hot)
            && let Some(slot) = local.slot.slot()
            && !close(record, &slot, &mut Kernel::new(local, handle))
        {
            self.make_hot(set, handle, local);
            if asleep && interest != Interest::None {
                socket::ring_eventfd(set.bell);
            }
        }
        true
    }

    /// Takes a stream out of a set. Programs do that around every request, so a hot one stays hot: its gate stays as it is, like
    /// that of any stream that is not waited for (invariants 4 and 6), until the set that it enters next decides.
    pub fn set_remove(&self, set: &EpollSet, handle: Handle) {
        let found = {
            let mut inner = set.inner.lock();
            let member = inner.members.remove(&handle);
            if member.is_none_or(|m| m.hot) {
                inner.hot.retain(|h| h.handle != handle);
            }
            member.is_some()
        };
        if found {
            set.members.fetch_sub(1, Relaxed);
        }
        if let Some((_, local)) = self.look_up(handle) {
            let mut sets = local.sets.lock();
            sets.retain(|other| !std::ptr::eq(&raw const **other, set));
            local.in_set.store(!sets.is_empty(), Relaxed);
        }
    }

    /// Calls `each` with the cookie of every stream whose data the program is to hear of now, and counts edges as told; stops when
    /// it says no.
    pub fn set_ready(&self, set: &EpollSet, mut each: impl FnMut(usize) -> bool) {
        self.look(set, |member, position| {
            member.told = position;
            each(member.cookie)
        });
    }

    /// Whether there is data in the set that the program is to hear of now.
    pub(crate) fn set_any_ready(&self, set: &EpollSet) -> bool {
        let mut any = false;
        self.look(set, |_, _| {
            any = true;
            false
        });
        any
    }

    fn look(&self, set: &EpollSet, mut each: impl FnMut(&mut Member, u64) -> bool) {
        let mut inner = set.inner.lock();
        let Inner { members, hot, clock, turn, calm, .. } = &mut *inner;
        if *calm || hot.is_empty() {
            return;
        }
        let (count, first) = (hot.len(), *turn % hot.len());
        for at in 0..count {
            let hot = &mut hot[(first + at) % count];
            if let Some(member) = members.get_mut(&hot.handle)
                && let Some(position) = self.wanted(hot.handle, member)
            {
                hot.last = *clock;
                if !each(member, position) {
                    *turn = (first + at + 1) % count;
                    break;
                }
            }
        }
    }

    /// The position of a stream that has data, if the program is to hear of it.
    fn wanted(&self, handle: Handle, member: &Member) -> Option<u64> {
        if member.interest == Interest::None || !self.rx_ready(handle) {
            return None;
        }
        let position = self.rx_position(handle);
        (member.interest == Interest::Level || position != member.told).then_some(position)
    }

    /// Streams now looked at: the hot ones of which the program wants to hear, but for edges over bytes that it has been told of
    /// and has left. True when there are such edges.
    pub(crate) fn set_hot(&self, set: &EpollSet, into: &mut HotList) -> bool {
        let mut left = false;
        let inner = set.inner.lock();
        for hot in &inner.hot {
            match inner.members.get(&hot.handle) {
                Some(m) if m.interest == Interest::None => {}
                Some(m) if m.interest == Interest::Edge && m.told != 0 && self.rx_ready(hot.handle) => {
                    if self.rx_position(hot.handle) == m.told { left = true } else { into.push(hot.handle) }
                }
                Some(_) => into.push(hot.handle),
                None => {}
            }
        }
        left
    }

    /// The stream has delivered data: its sets look at it from now on.
    #[inline]
    pub(crate) fn touched(&self, handle: Handle, record: &StreamRecord, local: &Local) {
        if local.hot.load(Relaxed) {
            return;
        }
        if record.rx.ready.load(Relaxed) != 0 {
            for set in local.sets.lock().iter().filter(|set| !set.inner.lock().is_full(set.room)) {
                self.make_hot(set, handle, local);
            }
        }
    }

    /// Begins a wait: the streams that have been silent for long cool down.
    pub(crate) fn set_cool(&self, set: &EpollSet) {
        let mut cold = Vec::new();
        {
            let mut inner = set.inner.lock();
            inner.clock += 1;
            let (clock, room) = (inner.clock, set.room);
            if inner.hot.len() > room {
                inner.hot.sort_unstable_by_key(|h| std::cmp::Reverse(h.last));
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
            for handle in &cold {
                if let Some(member) = inner.members.get_mut(handle) {
                    member.hot = false;
                }
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

    /// Falls asleep where there is nothing to look at or to close, and no reason to spin: one lock, and the sleep is counted. False:
    /// a whole wait is needed.
    pub fn set_sleep_if_parked(&self, set: &EpollSet) -> bool {
        if self.any_unread() {
            return false;
        }
        let mut inner = set.inner.lock();
        if !inner.calm
            || !(inner.hot.is_empty()
                || self.options.spin == 0
                || !self.options.is_patient() && crate::stream::wait::skips())
        {
            return false;
        }
        inner.clock += 1;
        inner.sleeping += 1;
        set.asleep.store(inner.sleeping, Relaxed);
        true
    }

    /// Falls asleep: every gate is closed, unless another thread watches. False when bytes have arrived.
    pub(crate) fn set_sleep(&self, set: &EpollSet, watched: &mut bool) -> bool {
        let was_watching = std::mem::take(watched);
        let Some((handles, changes)) = set.sleep(was_watching) else { return true };
        let mut calm = true;
        for handle in handles {
            let Some(up) = self.attached(handle) else { continue };
            self.reset(up.record, up.local); // a peer that broke the protocol may never wake anybody
            if gate::close_gate(up.record, &up.slot, &mut up.kernel_tcp()) {
                continue;
            }
            calm = false;
            if self.wants(set, handle) {
                set.awake(was_watching);
                *watched = was_watching;
                return false;
            }
            // Of these bytes the program has been told, or does not want to be, or will be by TCP's that precede them.
            gate::close_gate_over_bytes(up.record, &up.slot, &mut up.kernel_tcp());
            if self.wants(set, handle) {
                set.awake(was_watching); // more came before the gate was closed
                *watched = was_watching;
                return false;
            }
        }
        if calm {
            set.note_calm(changes);
        }
        true
    }

    /// Counts threads that sleep in the kernel without having asked, as one: gates are closed, and one of them is woken where there
    /// is data. [`EpollSet::slept`] ends it.
    pub fn set_enter_sleep(&self, set: &EpollSet) {
        if let Some((handles, _)) = set.sleep(false) {
            self.close_all(handles);
        }
        if self.set_any_ready(set) {
            socket::ring_eventfd(set.bell);
        }
    }

    fn close_all(&self, handles: Vec<Handle>) {
        for handle in handles {
            if let Some(up) = self.attached(handle) {
                gate::close_gate_over_bytes(up.record, &up.slot, &mut up.kernel_tcp());
            }
        }
    }

    fn wants(&self, set: &EpollSet, handle: Handle) -> bool {
        set.inner.lock().members.get(&handle).is_some_and(|member| self.wanted(handle, member).is_some())
    }

    /// Ends a wait. Over a sleeper the gates that this thread watched are closed; and where data is left of which the
    /// program is to hear, the sleeper must look, as the kernel would have woken it.
    pub(crate) fn set_leave(&self, set: &EpollSet, watched: bool) {
        if !watched && set.asleep.load(Relaxed) == 0 {
            return;
        }
        let handles: Vec<Handle> = {
            let mut inner = set.inner.lock();
            inner.watching = inner.watching.saturating_sub(u32::from(watched));
            if inner.watching > 0 || inner.sleeping == 0 {
                return;
            }
            if watched { inner.hot.iter().map(|h| h.handle).collect() } else { Vec::new() }
        };
        self.close_all(handles);
        if self.set_any_ready(set) {
            socket::ring_eventfd(set.bell);
        }
    }

    fn make_hot(&self, set: &EpollSet, handle: Handle, local: &Local) {
        set.inner.lock().add_hot(handle);
        local.hot.store(true, Relaxed);
    }

    pub(crate) fn leave_sets(&self, handle: Handle, local: &Local) {
        if !local.in_set.load(Relaxed) {
            return;
        }
        let sets = local.sets.lock().clone();
        for set in sets {
            self.set_remove(&set, handle);
        }
    }
}
