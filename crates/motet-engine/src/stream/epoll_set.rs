//! An epoll set: the streams of one epoll descriptor, and the few among them that waits poll.
//!
//! Only *hot* streams have an open gate and are polled; the others wake the kernel's epoll as any socket does. A stream becomes hot when it delivers
//! data, and ceases to be hot after many waits without data. So a process with thousands of idle peers polls none of them.
//!
//! Threads in a set are *asleep* in the kernel, or *spinners*: they spin, and close every gate before they leave a sleeper behind (invariant 5). A
//! set is *parked* while every gate in it is closed over an empty ring. A stream may be in several sets: its gate opens if each of them allows it. Sets
//! within sets: `nesting`.

mod inner_events;
mod interest;
pub(in crate::stream) mod members;
mod nesting;

pub use interest::Interest;
pub use members::EpollSet;
pub(crate) use members::HotList;
use members::{Inner, Member};

use crate::reason::Reason;
use crate::stream::engine::{Engine, Handle, Local, UpgradedStream};
use crate::stream::kernel_tcp::KernelTcp;
use motet_proto::stream::{exchange, gate, rx};
use motet_sys::socket;
use motet_wire::stream::record::StreamRecord;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Waits without data after which a stream is no longer hot.
const IDLE_WAITS: u64 = 256;

impl Engine {
    /// Inserts a stream into a set, or changes its cookie and the events that the program wants.
    pub fn set_insert(&self, set: &Arc<EpollSet>, handle: Handle, cookie: usize, interest: Interest) -> bool {
        let Some((record, local)) = self.look_up(handle) else { return false };
        {
            let mut sets = local.sets.lock();
            if !sets.iter().any(|other| Arc::ptr_eq(other, set)) {
                if sets.iter().any(|other| other.pid != set.pid) {
                    drop(sets);
                    self.stay_on_tcp(handle, Reason::SHARED); // it is in a set of the parent process, whose sleepers are not visible here
                    return true;
                }
                sets.push(set.clone());
                local.in_set.store(true, Relaxed);
            }
        }
        let hot = {
            let mut inner = set.inner.lock();
            let known = inner.members.get(&handle).copied();
            let hot = known.is_some_and(|m| m.hot);
            set.nesting.note_registration();
            // Programs that change whether they want to write around each request: nothing changes for the set.
            let same = |m: Member| (m.cookie, m.interest) == (cookie, interest);
            if interest == Interest::Level && known.is_some_and(same) && !self.has_ring_bytes(handle) {
                return true;
            }
            if inner.members.insert(handle, Member { cookie, interest, reported_position: 0, hot }).is_none() {
                set.members.fetch_add(1, Relaxed);
                // A stream that was hot when it left its set is hot in this one. Under the same lock the sleepers are counted: the next sleeper
                // closes its gate.
                if local.hot.load(Relaxed) {
                    inner.make_hot(handle);
                }
            }
            local.hot.load(Relaxed)
        };
        let sleepers = set.sleepers();
        // A gate that was opened outside this set is closed. Bytes that are in the ring already make the stream hot, and a sleeper of this set, or of one
        // around it, must look again: neither an open gate nor unread bytes would wake it. That includes one that has fallen asleep meanwhile.
        let close = if sleepers.is_empty() { gate::close_gate } else { gate::close_gate_over_bytes };
        if (!sleepers.is_empty() || !hot)
            && let Some(slot) = local.slot.slot()
            && !close(record, &slot, &mut KernelTcp::new(local, handle))
        {
            self.make_hot(set, handle, local);
            if interest != Interest::None {
                set.sleepers().iter().for_each(|set| socket::ring_eventfd(set.doorbell));
            }
        }
        true
    }

    /// Removes a stream from a set. Some programs do this around every request, so a hot stream stays hot until it is inserted into another set. Its
    /// gate stays as it is, like that of any stream that is not waited for (invariants 4 and 6).
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

    /// Calls `each` with the cookie of every stream for which an event is due, if it is `wanted`, and notes edges as reported. Stops when `each` returns false.
    pub fn set_ready(&self, set: &EpollSet, wanted: impl Fn(usize) -> bool, mut each: impl FnMut(usize) -> bool) {
        let mut more = true;
        self.poll_hot(set, |member, position| {
            if !wanted(member.cookie) {
                return true;
            }
            member.reported_position = position;
            more = each(member.cookie);
            more
        });
        if more && set.has_inner() {
            self.inner_ready(set, wanted, each);
        }
    }

    /// Whether an event is due for a stream of the set.
    pub(crate) fn set_any_ready(&self, set: &EpollSet) -> bool {
        let mut any = false;
        self.poll_hot(set, |_, _| {
            any = true;
            false
        });
        any || set.has_inner() && self.any_inner_ready(set)
    }

    /// Calls `each` for the hot streams for which an event is due, in turn, until it returns false.
    pub(in crate::stream) fn poll_hot(&self, set: &EpollSet, mut each: impl FnMut(&mut Member, u64) -> bool) {
        let mut inner = set.inner.lock();
        let Inner { members, hot, waits, turn, parked, .. } = &mut *inner;
        if *parked || hot.is_empty() {
            return;
        }
        let (count, first) = (hot.len(), *turn % hot.len());
        for at in 0..count {
            let hot = &mut hot[(first + at) % count];
            if let Some(member) = members.get_mut(&hot.handle)
                && let Some(position) = self.due_position(hot.handle, member)
            {
                hot.last_data_at = *waits;
                if !each(member, position) {
                    *turn = (first + at + 1) % count;
                    break;
                }
            }
        }
    }

    /// The position of a stream that has data, if an event is due for it. Each arrival is an edge, also that of bytes behind unread bytes of TCP, for which the
    /// kernel has reported the one before.
    fn due_position(&self, handle: Handle, member: &Member) -> Option<u64> {
        let UpgradedStream { record, slot, .. } = self.attached(handle)?;
        let position = slot.inward().gate.tail().0;
        let is_due = match member.interest {
            Interest::None => false,
            Interest::Level => rx::ready(record, &slot),
            Interest::Edge => position != member.reported_position && rx::has_bytes(record, &slot),
        };
        is_due.then_some(position)
    }

    /// Puts into `into` the streams that a wait polls: hot ones whose events the program wants, except those with edges that were reported and whose
    /// bytes are unread. True: there are such edges.
    pub(crate) fn set_hot(&self, set: &EpollSet, into: &mut HotList) -> bool {
        let mut left = false;
        let inner = set.inner.lock();
        for hot in &inner.hot {
            match inner.members.get(&hot.handle) {
                Some(m) if m.interest == Interest::None => {}
                Some(m) if m.interest == Interest::Edge && m.reported_position != 0 && self.rx_ready(hot.handle) => {
                    if self.rx_position(hot.handle) == m.reported_position {
                        left = true
                    } else {
                        into.push(hot.handle)
                    }
                }
                Some(_) => into.push(hot.handle),
                None => {}
            }
        }
        drop(inner);
        if set.has_inner() { self.inner_hot(set, into) | left } else { left }
    }

    /// Notes that the stream has delivered data: it becomes hot in its sets.
    #[inline]
    pub(crate) fn note_delivery(&self, handle: Handle, record: &StreamRecord, local: &Local) {
        if local.hot.load(Relaxed) || !self.options.is_patient() && exchange::stays_left_to_kernel(record) {
            return;
        }
        if record.rx.ready.load(Relaxed) != 0 {
            for set in local.sets.lock().iter().filter(|set| !set.inner.lock().is_full(set.capacity)) {
                self.make_hot(set, handle, local);
            }
        }
    }

    /// Begins a wait: streams that are left to the kernel, and those without data for many waits, cease to be hot.
    pub(crate) fn set_begin_wait(&self, set: &EpollSet) {
        let mut cold = Vec::new();
        {
            let mut inner = set.inner.lock();
            inner.waits += 1;
            if !self.options.is_patient() {
                cold.extend(inner.hot.extract_if(.., |hot| self.is_left_to_kernel(hot.handle)).map(|hot| hot.handle));
            }
            let (waits, capacity) = (inner.waits, set.capacity);
            if inner.hot.len() > capacity {
                inner.hot.sort_unstable_by_key(|h| std::cmp::Reverse(h.last_data_at));
                cold.extend(inner.hot.drain(capacity..).map(|h| h.handle));
            }
            if waits.is_multiple_of(IDLE_WAITS / 4) {
                inner.hot.retain(|h| {
                    let keep = waits - h.last_data_at < IDLE_WAITS;
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
                && !gate::close_gate(record, &slot, &mut KernelTcp::new(local, handle))
            {
                self.make_hot(set, handle, local); // data has just arrived
            }
        }
    }

    /// Begins a sleep if the set is parked and there is no reason to spin: one lock, and the sleep is counted. False: the caller must begin a
    /// [`Wait`](crate::stream::wait::Wait).
    pub fn set_sleep_if_parked(&self, set: &EpollSet) -> bool {
        if self.any_unread() {
            return false;
        }
        let mut inner = set.inner.lock();
        if !inner.parked
            || !(inner.hot.is_empty()
                || self.options.spin == 0
                || !self.options.is_patient() && crate::stream::wait::skips_spin())
        {
            return false;
        }
        inner.waits += 1;
        inner.sleeping += 1;
        set.asleep.store(inner.sleeping, Relaxed);
        true
    }

    /// Begins a sleep: closes every gate, unless another thread spins. False: bytes have arrived.
    pub(crate) fn set_sleep(&self, set: &EpollSet, is_spinner: &mut bool) -> bool {
        let was_spinner = std::mem::take(is_spinner);
        let Some((handles, changes)) = set.sleep(was_spinner) else { return true };
        let mut parked = true;
        for handle in handles {
            let Some(up) = self.attached(handle) else { continue };
            self.reset(up.record, up.local); // a peer that broke the protocol may never wake a sleeper
            if gate::close_gate(up.record, &up.slot, &mut up.kernel_tcp()) {
                continue;
            }
            parked = false;
            if self.event_is_due(set, handle) {
                set.awake(was_spinner);
                *is_spinner = was_spinner;
                return false;
            }
            // The program has got an event for these bytes, or wants none, or will get one for TCP bytes that precede them.
            gate::close_gate_over_bytes(up.record, &up.slot, &mut up.kernel_tcp());
            if self.event_is_due(set, handle) {
                set.awake(was_spinner); // more arrived before the gate was closed
                *is_spinner = was_spinner;
                return false;
            }
        }
        if parked {
            set.note_parked(changes);
        }
        true
    }

    /// Counts threads that sleep in the kernel without a [`Wait`](crate::stream::wait::Wait), as one sleeper: gates are closed, and one of the threads is
    /// woken if there is data. [`EpollSet::end_sleep`] ends it.
    pub fn set_enter_sleep(&self, set: &EpollSet) {
        if let Some((handles, _)) = set.sleep(false) {
            self.close_all(handles);
        }
        if self.set_any_ready(set) {
            socket::ring_eventfd(set.doorbell);
        }
    }

    pub(in crate::stream) fn close_all(&self, handles: Vec<Handle>) {
        for handle in handles {
            if let Some(up) = self.attached(handle) {
                gate::close_gate_over_bytes(up.record, &up.slot, &mut up.kernel_tcp());
            }
        }
    }

    fn event_is_due(&self, set: &EpollSet, handle: Handle) -> bool {
        let own = |member: &Member| self.due_position(handle, member).is_some();
        set.inner.lock().members.get(&handle).is_some_and(own) || set.has_inner() && self.any_inner_ready(set)
    }

    /// Ends a wait. If other threads sleep in the set, a spinner closes the gates; and if an event is due, a sleeper is woken, as the kernel would have
    /// done.
    pub(crate) fn set_leave(&self, set: &EpollSet, is_spinner: bool) {
        if !is_spinner && set.asleep.load(Relaxed) == 0 {
            return;
        }
        let handles: Vec<Handle> = {
            let mut inner = set.inner.lock();
            inner.spinners = inner.spinners.saturating_sub(u32::from(is_spinner));
            if inner.spinners > 0 || inner.sleeping == 0 {
                return;
            }
            drop(inner);
            if is_spinner { set.all_hot() } else { Vec::new() }
        };
        self.close_all(handles);
        if self.set_any_ready(set) {
            socket::ring_eventfd(set.doorbell);
        }
    }

    fn has_ring_bytes(&self, handle: Handle) -> bool {
        self.attached(handle).is_some_and(|up| rx::has_bytes(up.record, &up.slot))
    }

    /// Whether the gate of a stream is closed over an empty ring, and stays so for a while.
    fn is_left_to_kernel(&self, handle: Handle) -> bool {
        self.attached(handle).is_some_and(|UpgradedStream { record, slot, .. }| {
            exchange::is_left_to_kernel(record) && slot.inward().gate.tail() == (record.rx.head.load(Relaxed), false)
        })
    }

    fn make_hot(&self, set: &EpollSet, handle: Handle, local: &Local) {
        set.inner.lock().make_hot(handle);
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
