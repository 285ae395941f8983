//! Streams: what adapters call.
//!
//! Reads top-down: [`Engine::upgrade`], the split calls [`Engine::send_begin`] / [`Engine::recv_begin`] and their ends,
//! readiness, [`Engine::plain`], [`Engine::close`]; below them how a wire comes up.

use crate::base::Kernel;
use crate::driver::{Driver, Pair, Progress, Wire};
use crate::engine::{Engine, Handle, Local};
use crate::reason::Reason;
use crate::route;
use motet_proto::lock::{Acquired, acquire};
use motet_proto::{ECONNRESET, EINTR, Errno, gate, rx, tx};
use motet_sys::{clock, socket, thread};
use motet_wire::record::{Record, State};
use motet_wire::slot::Slot;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// EBADF.
pub const EBADF: Errno = 9;
/// EMFILE.
pub const EMFILE: Errno = 24;
/// Interposed waits may be followed by this many receives that find nothing before the gate closes (invariant 4).
pub const EVIDENCE: u32 = 2;
/// A stream that has seen this many messages without a wire coming up stays on TCP.
const PATIENCE: u32 = 4096;

impl Engine {
    /// Takes a connected TCP descriptor. `connected`: this end made the connection.
    pub fn upgrade(&self, fd: i32, connected: bool, lazy: bool) -> Result<Handle, Errno> {
        let (local, peer) = socket::addresses(fd)?;
        let cookie = socket::cookie(fd)?;
        let mut owners = self.owners();
        if let Some(&handle) = owners.get(&cookie)
            && let Some((record, own)) = self.look_up(handle)
        {
            own.voices.fetch_add(1, AcqRel);
            record.life.fd.store(fd as u32, Relaxed); // a duplicate: the caller may be about to close the first one
            return Ok(handle);
        }
        let Some((handle, record, _)) = self.allocate() else {
            self.count_plain(Reason::TABLE_FULL);
            self.log.refused(fd, (local, peer), Reason::TABLE_FULL);
            return Err(EMFILE);
        };
        owners.insert(cookie, handle);
        drop(owners);
        describe(record, fd, connected, local, peer, cookie);
        let pair = Pair { fd, local, peer, connected, cookie, ring: self.options.ring, bulk: self.options.bulk };
        match self.route(&pair) {
            Ok(_) => record.life.reason.store(Reason::PENDING.0, Relaxed),
            Err(reason) => self.stay_plain(record, reason),
        }
        if !lazy {
            self.tick(handle);
        }
        Ok(handle)
    }

    /// Decides one send; see `motet_send_begin`.
    #[inline]
    pub fn send_begin(&self, handle: Handle, bufs: &[IoSlice<'_>], kernel_only: bool, nonblocking: bool) -> tx::Step {
        let Some((record, local)) = self.look_up(handle) else { return tx::Step::Failed(EBADF) };
        let slot = match record.state() {
            State::Attached => local.slot.slot(),
            State::Candidate => {
                self.tick(handle);
                local.slot.slot()
            }
            State::Plain => return tx::Step::Kernel,
            State::Broken | State::Free => {
                self.reset(record);
                return tx::Step::Failed(ECONNRESET);
            }
        };
        let mut base = Kernel::new(record, handle).with(&local.peer);
        if let Some(slot) = &slot
            && record.tx.ready.load(Relaxed) == 0
        {
            attach_tx(record, slot, &mut base);
        }
        let ask = tx::Ask {
            kernel_only,
            nonblocking,
            large: self.options.single_copy,
            large_far: self.options.single_copy_far,
            half: self.options.half_copy,
        };
        let step = tx::begin(record, slot.as_ref(), &mut base, bufs, ask);
        match step {
            tx::Step::Done(_) => self.mark_unread(handle, local),
            tx::Step::Failed(ECONNRESET) => self.reset(record),
            _ => {}
        }
        step
    }

    /// Ends a send that the kernel made.
    #[inline]
    pub fn send_end(&self, handle: Handle, sent: usize) {
        if let Some((record, _)) = self.look_up(handle)
            && record.state() != State::Plain
        {
            tx::end(record, &mut Kernel::new(record, handle), sent);
        }
    }

    /// Decides one receive; see `motet_recv_begin`.
    #[inline]
    pub fn recv_begin(
        &self,
        handle: Handle,
        bufs: &mut [IoSliceMut<'_>],
        blocking: bool,
        peek: bool,
        kernel_only: bool,
    ) -> rx::Step {
        let Some((record, local)) = self.look_up(handle) else { return rx::Step::Failed(EBADF) };
        let slot = match record.state() {
            State::Attached => local.slot.slot(),
            State::Candidate => {
                self.tick(handle);
                local.slot.slot()
            }
            State::Plain => return rx::Step::Kernel,
            State::Broken | State::Free => {
                self.reset(record);
                return rx::Step::Failed(ECONNRESET);
            }
        };
        let mut base = Kernel::new(record, handle).with(&local.peer);
        if let Some(slot) = &slot
            && record.rx.ready.load(Relaxed) == 0
        {
            attach_rx(record, slot, &mut base);
        }
        let spin = if local.in_set.load(Relaxed) && !blocking { 0 } else { self.options.spin };
        // The sender knows which of the two sizes holds now.
        let large = self.options.single_copy.min(self.options.single_copy_far);
        let ask = rx::Ask { blocking, peek, kernel_only, spin, large };
        if blocking {
            record.rx.evidence.store(EVIDENCE, Relaxed);
        }
        let may_raise = || (!blocking || crate::wait::lively(&local.waited)) && self.sets_may_raise(handle, local);
        let step = rx::begin(record, slot.as_ref(), &mut base, bufs, ask, may_raise, |_| self.may_linger());
        match step {
            rx::Step::Done(_) if local.in_set.load(Relaxed) => self.touched(handle, record, local),
            rx::Step::Failed(ECONNRESET) => self.reset(record),
            rx::Step::Failed(EINTR) if self.look_up(handle).is_none() => return rx::Step::Failed(EBADF), // woken by `close`
            _ => {}
        }
        step
    }

    /// Ends a receive that the kernel made. `received`: bytes, 0 for none and for peeked ones.
    #[inline]
    pub fn recv_end(&self, handle: Handle, received: usize) {
        if let Some((record, local)) = self.look_up(handle)
            && record.state() != State::Plain
        {
            rx::end(record, &mut Kernel::new(record, handle), received);
            if received > 0 && local.in_set.load(Relaxed) {
                self.touched(handle, record, local);
            }
        }
    }

    /// Whether a receive would take bytes from the wire now.
    #[inline]
    pub fn rx_ready(&self, handle: Handle) -> bool {
        self.attached(handle).is_some_and(|(record, slot)| rx::ready(record, &slot))
    }

    /// Stream position after the last byte on the wire.
    pub fn rx_position(&self, handle: Handle) -> u64 {
        self.attached(handle).map_or(0, |(_, slot)| slot.inward().gate.tail().0)
    }

    /// Bytes on the wire that a receive could take after TCP's.
    pub fn rx_bytes(&self, handle: Handle) -> u64 {
        self.attached(handle).map_or(0, |(record, slot)| {
            let (tail, head) = (slot.inward().gate.tail().0, record.rx.head.load(Relaxed));
            tail.wrapping_sub(head).min(slot.in_ring(record.rx.wide.load(Relaxed) != 0).size())
        })
    }

    /// The record and wire of a stream whose wire is up.
    #[inline(always)]
    pub fn attached(&self, handle: Handle) -> Option<(&motet_wire::record::Record, Slot)> {
        let (record, local) = self.look_up(handle)?;
        Some((record, local.slot.slot()?))
    }

    /// The stream stays on TCP from now on. True when the ring is empty.
    pub fn plain(&self, handle: Handle, reason: Reason) -> bool {
        let Some((record, local)) = self.look_up(handle) else { return true };
        let first = record.life.plain.swap(1, AcqRel) == 0;
        record.life.reason.store(reason.0, Relaxed);
        if record.life.nodelay.swap(0, AcqRel) == 1 {
            socket::set_nodelay(record.life.fd.load(Relaxed) as i32, false);
        }
        let Some(slot) = local.slot.slot() else {
            if record.state() == State::Candidate {
                self.stay_plain(record, reason);
            }
            return true;
        };
        if first {
            self.log.plain(record, reason);
        }
        let mut base = Kernel::new(record, handle);
        tx::take_back(record, &slot, &mut base);
        // Somebody may send past the engine from now on, and the mark would be wrong.
        if [Reason::STDIO, Reason::EXEC, Reason::PASSED, Reason::CONFINED].contains(&reason) {
            tx::finish(record, &mut base);
        }
        gate::close_gate_over_bytes(record, &slot, &mut base)
    }

    /// TCP_NODELAY as the program sees it, after it set it to `set`. `None`: the kernel's option is the program's.
    pub fn nodelay(&self, handle: Handle, set: Option<bool>) -> Option<bool> {
        let (record, _) = self.look_up(handle)?;
        let seen = record.life.nodelay.load(Acquire).checked_sub(1)? != 0;
        if let Some(on) = set {
            record.life.nodelay.store(1 + u32::from(on), Release);
        }
        Some(set.unwrap_or(seen))
    }

    /// Half-close: bytes in the ring first, then the kernel's FIN.
    pub fn shutdown(&self, handle: Handle, how: i32) -> Result<(), Errno> {
        let (record, _) = self.look_up(handle).ok_or(EBADF)?;
        if let Some((record, slot)) = self.attached(handle)
            && how != 0
        {
            tx::take_back(record, &slot, &mut Kernel::new(record, handle));
            tx::finish(record, &mut Kernel::new(record, handle));
        }
        socket::shutdown(record.life.fd.load(Relaxed) as i32, how)
    }

    /// Ends the engine's part in a stream, once every voice that took it has closed it. True when bytes that came over the wire
    /// have not been read: TCP answers a close of the socket's last descriptor with a reset then. (False where the descriptor was
    /// given to another program, which may go on with it. Whether a forked process has it too is the caller's to know.)
    ///
    /// The handle becomes stale first; then both locks are taken: whoever holds one is done by then, and whoever comes later sees
    /// that it means another stream (invariant 7). Only then is the wire let go of, and its memory perhaps with it.
    pub fn close(&self, handle: Handle) -> Result<bool, Errno> {
        let Some((record, local)) = self.look_up(handle) else {
            self.let_go(handle, |driver, slot| driver.abandon(slot)); // a forked relative may have ended the stream
            return Err(EBADF);
        };
        if local.voices.fetch_sub(1, AcqRel) > 1 {
            return Ok(false);
        }
        self.leave_sets(handle, local);
        // First: whoever is woken below finds the stream closed.
        if !self.retire(handle) {
            return Err(EBADF);
        }
        let mut base = Kernel::retired(record, handle);
        drop(local.pending.lock().take()); // from now on no wire comes up
        self.count_ended(record, local);
        // A descriptor that was closed behind our back may be somebody else's by now.
        let same = socket::cookie(base.fd()) == Ok(record.who.cookies[0].load(Relaxed));
        let mut unread = false;
        if let Some(slot) = local.slot.slot() {
            if same {
                tx::take_back(record, &slot, &mut base);
            }
            let alone = record.life.plain.load(Relaxed) == 0 && record.life.owner.load(Relaxed) == thread::pid();
            let empty = gate::close_gate_over_bytes(record, &slot, &mut base);
            unread = !empty && same && alone;
            if motet_proto::bulk::is_populated(record)
                && let Some(memory) = slot.bulk_memory()
            {
                crate::base::give_back(memory);
            }
            self.let_go(handle, |driver, slot| driver.close(slot));
            if same {
                self.reset(record);
            }
            self.log.closed(record);
        }
        local.peer.forget();
        self.owners().remove(&record.who.cookies[0].load(Relaxed));
        self.wake_up(record, local);
        self.free(handle);
        Ok(unread)
    }

    /// Takes the wire from a handle that is stale now, if this process has one under it; `end` tells the driver.
    fn let_go(&self, handle: Handle, end: impl FnOnce(&dyn Driver, &Slot)) {
        let Some((record, local)) = self.any(handle) else { return };
        if local.attached.compare_exchange(handle, 0, AcqRel, Relaxed).is_err() {
            return;
        }
        let mut base = Kernel::retired(record, handle);
        drop(acquire(&record.tx.lock, &mut base));
        drop(acquire(&record.rx.lock, &mut base));
        if let Some(slot) = local.slot.slot() {
            local.slot.set(None);
            let at = (local.driver.load(Relaxed) as usize).checked_sub(1);
            if let Some(driver) = at.and_then(|at| self.options.drivers.get(at)) {
                end(*driver, &slot);
            }
            self.count_memory();
        }
    }

    /// Before this thread sleeps: no byte of ours stays in a ring whose reader may be waiting elsewhere (invariant 6).
    #[inline]
    pub fn before_sleep(&self) {
        self.leave_nothing_unread(false);
    }

    /// The same for a thread that can just as well spin: true when it should, as a peer is reading what we sent.
    #[inline]
    pub(crate) fn may_linger(&self) -> bool {
        self.leave_nothing_unread(self.options.spin > 0)
    }

    #[inline]
    fn leave_nothing_unread(&self, may_linger: bool) -> bool {
        let mut reading = false;
        self.sweep_unread(|handle, record, local| match local.slot.slot() {
            Some(slot) if may_linger && tx::is_being_read(record, &slot) => {
                reading = true;
                true
            }
            Some(slot) if !tx::take_back(record, &slot, &mut Kernel::new(record, handle)) => {
                self.reset(record);
                record.state() != State::Broken
            }
            _ => false,
        });
        reading
    }

    /// If the connection is beyond repair, both ends learn it from the kernel.
    pub(crate) fn reset(&self, record: &Record) {
        if record.state() == State::Broken && record.life.reason.swap(Reason::BROKEN.0, AcqRel) != Reason::BROKEN.0 {
            self.count_plain(Reason::BROKEN);
            self.log.reset(record, Reason::BROKEN);
            let _ = socket::shutdown(record.life.fd.load(Relaxed) as i32, 2);
        }
    }

    /// The kernel has reported the end of the stream. A peer that was killed cannot tell that it left bytes unread in the ring, so
    /// the kernel calls it an orderly end: such a stream is broken, and from now on its calls say so, as TCP's would.
    #[cold]
    pub fn heard_end(&self, handle: Handle) {
        let Some((record, slot)) = self.attached(handle) else { return };
        let fd = record.life.fd.load(Relaxed) as i32;
        if tx::is_unread(record, &slot)
            && socket::pending(fd) == 0
            && !socket::alive(fd)
            && crate::base::nobody_has_other_end(fd)
        {
            record.life.state.store(State::Broken as u32, Release);
            self.reset(record);
        }
    }

    // ---- how a wire comes up ------------------------------------------------------------------------------------------

    /// One message has passed: perhaps bring the wire up a step. The gaps between steps double.
    #[cold]
    fn tick(&self, handle: Handle) {
        let Some((record, local)) = self.look_up(handle) else { return };
        let n = record.life.ticks.fetch_add(1, Relaxed) + 1;
        if n > 8 && !n.is_power_of_two() {
            return;
        }
        let Some(mut pending) = local.pending.try_lock() else { return };
        // Asked anew: close makes the handle stale before it takes what is pending.
        if self.look_up(handle).is_none() || record.state() != State::Candidate {
            return;
        }
        if n > PATIENCE {
            pending.take();
            return self.stay_plain(record, Reason::PEER_NOT_EQUIPPED);
        }
        if pending.is_none() {
            match self.pair(record).ok_or(Reason::NOT_TCP).and_then(|pair| self.route(&pair).map(|d| (d, pair))) {
                Ok((at, pair)) => match self.options.drivers[at].connect(&pair) {
                    Ok(connecting) => {
                        local.driver.store(at as u32 + 1, Relaxed);
                        *pending = Some(connecting);
                    }
                    Err(reason) => return self.stay_plain(record, reason),
                },
                Err(reason) => return self.stay_plain(record, reason),
            }
        }
        match pending.as_mut().map(|p| p.step()) {
            Some(Progress::Up(wire)) => {
                pending.take();
                self.attach(handle, record, local, wire);
            }
            Some(Progress::Never(reason)) => {
                pending.take();
                self.stay_plain(record, reason);
            }
            Some(Progress::Pending) | None => {}
        }
    }

    fn route(&self, pair: &Pair) -> Result<usize, Reason> {
        let allowed = &self.options.allowed;
        let verdicts =
            route::verdicts(self.options.drivers, |name| allowed.is_empty() || allowed.iter().any(|a| a == name), pair);
        let best = route::choose(&verdicts)?;
        Ok(self.options.drivers.iter().position(|d| std::ptr::addr_eq(*d, best)).unwrap_or(0))
    }

    fn attach(&self, handle: Handle, record: &Record, local: &Local, wire: Wire) {
        let fd = record.life.fd.load(Relaxed) as i32;
        record.life.nodelay.store(1 + u32::from(socket::nodelay(fd)), Release);
        socket::set_nodelay(fd, true); // two paths and Nagle's algorithm do not mix
        record.who.pid.store(wire.peer.pid as u32, Relaxed);
        record.who.uid.store(wire.peer.uid, Relaxed);
        record.who.gid.store(wire.peer.gid, Relaxed);
        record.who.cookies[1].store(wire.peer_cookie, Relaxed);
        record.life.end.store(wire.slot.end() as u32, Relaxed);
        record.life.reason.store(Reason::FASTEST.0, Relaxed);
        local.slot.set(Some(wire.slot));
        local.attached.store(handle, Release);
        record.life.state.store(State::Attached as u32, Release);
        self.count_memory();
        let driver = (local.driver.load(Relaxed) as usize).checked_sub(1).and_then(|n| self.options.drivers.get(n));
        self.log.attached(record, driver.copied());
    }

    fn stay_plain(&self, record: &Record, reason: Reason) {
        // From Candidate only: kernel calls that began before are not counted, and nothing ever asks for the count.
        let (from, to) = (State::Candidate as u32, State::Plain as u32);
        // Not over what a forked relative has decided meanwhile.
        if record.life.state.compare_exchange(from, to, AcqRel, Relaxed).is_ok() {
            record.life.reason.store(reason.0, Relaxed);
            self.count_plain(reason);
            self.log.plain(record, reason);
        }
    }

    fn pair(&self, record: &Record) -> Option<Pair> {
        let fd = record.life.fd.load(Acquire) as i32;
        let (local, peer) = socket::addresses(fd).ok()?;
        let connected = record.who.role.load(Relaxed) == 1;
        Some(Pair {
            fd,
            local,
            peer,
            connected,
            cookie: record.who.cookies[0].load(Relaxed),
            ring: self.options.ring,
            bulk: self.options.bulk,
        })
    }
}

/// Initialises the sending half from the kernel's counters, once no kernel send is under way.
#[cold]
fn attach_tx(record: &Record, slot: &Slot, base: &mut Kernel<'_>) {
    let Acquired::Clean(_held) = acquire(&record.tx.lock, base) else { return };
    if record.tx.ready.load(Relaxed) != 0 || record.tx.busy.load(Relaxed) != 0 {
        return;
    }
    let connected = record.who.role.load(Relaxed) == 1;
    if let Ok(Some(sent)) = socket::sent_position(base.fd(), connected) {
        record.tx.tcp.store(sent, Relaxed);
        record.tx.alive.store(clock::ticks(), Relaxed);
        record.tx.ready.store(1, Relaxed);
        slot.outward().transfer.proof.store(motet_proto::transfer::proof(record), Release);
        slot.outward().mark.ready.store(1, Release);
    }
}

/// Initialises the receiving half, once no kernel receive is under way.
#[cold]
pub fn attach_rx(record: &Record, _slot: &Slot, base: &mut Kernel<'_>) {
    let Acquired::Clean(_held) = acquire(&record.rx.lock, base) else { return };
    if record.rx.ready.load(Relaxed) != 0 || record.rx.busy.load(Relaxed) != 0 {
        return;
    }
    if let Ok(Some(received)) = socket::received_position(base.fd()) {
        record.rx.tcp.store(received, Relaxed);
        record.rx.ready.store(1, Release);
    }
}

fn describe(record: &Record, fd: i32, connected: bool, local: SocketAddr, peer: SocketAddr, cookie: u64) {
    record.life.fd.store(fd as u32, Relaxed);
    record.who.role.store(if connected { 1 } else { 2 }, Relaxed);
    record.who.cookies[0].store(cookie, Relaxed);
    record.who.family.store(if local.is_ipv4() { 4 } else { 6 }, Relaxed);
    for (at, address) in [local, peer].into_iter().enumerate() {
        record.who.ports[at].store(u32::from(address.port()), Relaxed);
        let bytes = match address.ip() {
            IpAddr::V4(a) => {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&a.octets());
                bytes
            }
            IpAddr::V6(a) => a.octets(),
        };
        for (word, chunk) in record.who.addresses[at].iter().zip(bytes.chunks_exact(4)) {
            word.store(u32::from_ne_bytes(chunk.try_into().unwrap()), Relaxed);
        }
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    record.who.began.store(now.as_secs(), Relaxed);
    record.life.owner.store(thread::pid(), Relaxed);
    record.life.nonblocking.store(u32::from(socket::is_nonblocking(fd)), Relaxed);
}
