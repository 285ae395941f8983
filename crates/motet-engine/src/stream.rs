//! Streams: what adapters call.
//!
//! Reads top-down: [`Engine::upgrade`], the split calls [`Engine::send_begin`] / [`Engine::recv_begin`] and their ends,
//! readiness, [`Engine::plain`], [`Engine::close`]; below them how a wire comes up.

use crate::base::Kernel;
use crate::driver::{Pair, Progress, Wire};
use crate::engine::{Engine, Handle, Local, Up};
use crate::reason::Reason;
use crate::route;
use motet_proto::lock::{Acquired, acquire};
use motet_proto::{ECONNRESET, EINTR, Errno, gate, rx, tx};
use motet_sys::{clock, memory, socket, thread};
use motet_wire::record::{Record, State, UNORDERED};
use motet_wire::slot::Slot;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// EBADF.
pub const EBADF: Errno = 9;
/// EMFILE.
pub const EMFILE: Errno = 24;
/// Interposed waits may be followed by this many receives that find nothing before the gate closes (invariant 4).
pub const EVIDENCE: u32 = 2;
/// A stream that has seen this many messages without a wire coming up stays on TCP.
const PATIENCE: u32 = 4096;

/// How a descriptor comes to the engine.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    /// This end made the connection (otherwise it accepted it).
    pub connected: bool,
    /// The upgrade begins after the first few messages.
    pub lazy: bool,
    /// Whoever reads from the connection does so through the engine: not only waits there.
    pub receives: bool,
}

impl Engine {
    /// Takes a connected TCP descriptor.
    pub fn upgrade(&self, fd: i32, Taken { connected, lazy, receives }: Taken) -> Result<Handle, Errno> {
        let (local, peer) = socket::addresses(fd)?;
        let cookie = socket::cookie(fd)?;
        let mut owners = self.owners();
        if let Some(&handle) = owners.get(&cookie)
            && let Some((record, own)) = self.look_up(handle)
        {
            own.voices.fetch_add(1, AcqRel);
            own.fd.store(fd, Relaxed); // a duplicate: the caller may be about to close the first one
            if record.life.owner.load(Relaxed) == thread::pid() {
                record.life.fd.store(fd as u32, Relaxed);
            }
            return Ok(handle);
        }
        let Some((handle, record, own)) = self.allocate() else {
            self.count_plain(Reason::TABLE_FULL);
            self.log.refused(fd, (local, peer), Reason::TABLE_FULL);
            return Err(EMFILE);
        };
        own.fd.store(fd, Relaxed);
        own.connected.store(connected, Relaxed);
        own.receives.store(receives, Relaxed);
        owners.insert(cookie, handle);
        drop(owners);
        describe(record, fd, connected, local, peer, cookie);
        match self.route(&self.pair(record, own)) {
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
            State::Broken | State::Free => return tx::Step::Failed(self.over(record, local)),
        };
        let mut base = Kernel::new(local, handle).with(&local.peer);
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
        let mut step = tx::begin(record, slot.as_ref(), &mut base, bufs, ask);
        if step == tx::Step::Kernel
            && let Some(slot) = &slot
            && tx::is_unread(record, slot)
            && tx::follow(record, slot, &mut base)
        {
            step = tx::begin(record, Some(slot), &mut base, bufs, ask);
        }
        match step {
            tx::Step::Done(_) => self.mark_unread(handle, local),
            tx::Step::Failed(ECONNRESET) => self.reset(record, local),
            _ => {}
        }
        step
    }

    /// Ends a send that the kernel made.
    #[inline]
    pub fn send_end(&self, handle: Handle, sent: usize) {
        if let Some((record, local)) = self.look_up(handle)
            && record.state() != State::Plain
        {
            tx::end(record, &mut Kernel::new(local, handle), sent);
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
            State::Broken | State::Free => return rx::Step::Failed(self.over(record, local)),
        };
        let mut base = Kernel::new(local, handle).with(&local.peer);
        if let Some(slot) = &slot
            && record.rx.ready.load(Relaxed) == 0
        {
            self.attach_rx(&Up { handle, record, local, slot: *slot });
        }
        let spin = if local.in_set.load(Relaxed) && !blocking { 0 } else { self.options.spin };
        // The sender knows which of the two sizes holds now.
        let large = self.options.single_copy.min(self.options.single_copy_far);
        let ask = rx::Ask { blocking, peek, kernel_only, spin, large };
        if blocking {
            record.rx.evidence.store(EVIDENCE, Relaxed);
        }
        let may_raise = || (!blocking || crate::wait::lively(&local.waited)) && local.sets_may_raise(handle);
        let step = rx::begin(record, slot.as_ref(), &mut base, bufs, ask, may_raise, |_| self.may_linger());
        match step {
            rx::Step::Done(_) if local.in_set.load(Relaxed) => self.touched(handle, record, local),
            rx::Step::Failed(ECONNRESET) => self.reset(record, local),
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
            rx::end(record, &mut Kernel::new(local, handle), received);
            if received > 0 && local.in_set.load(Relaxed) {
                self.touched(handle, record, local);
            }
        }
    }

    /// Whether a receive would take bytes from the wire now.
    #[inline]
    pub fn rx_ready(&self, handle: Handle) -> bool {
        self.attached(handle).is_some_and(|up| rx::ready(up.record, &up.slot))
    }

    /// Stream position after the last byte on the wire.
    pub fn rx_position(&self, handle: Handle) -> u64 {
        self.attached(handle).map_or(0, |up| up.slot.inward().gate.tail().0)
    }

    /// Bytes on the wire that a receive could take after TCP's: none while TCP bytes that precede them are still on their way.
    pub fn rx_bytes(&self, handle: Handle) -> u64 {
        self.attached(handle).map_or(0, |Up { record, local, slot, .. }| {
            let (tail, head) = (slot.inward().gate.tail().0, record.rx.head.load(Relaxed));
            let missing = rx::missing(record, &slot);
            if tail == head || missing > 0 && socket::pending(local.fd.load(Relaxed)) < missing {
                return 0;
            }
            tail.wrapping_sub(head).min(slot.in_ring(record.rx.wide.load(Relaxed) != 0).size())
        })
    }

    /// The stream stays on TCP from now on. True when the ring is empty.
    pub fn plain(&self, handle: Handle, reason: Reason) -> bool {
        let Some((record, local)) = self.look_up(handle) else { return true };
        let first = record.life.plain.swap(1, AcqRel) == 0;
        record.life.reason.store(reason.0, Relaxed);
        if record.life.nodelay.swap(0, AcqRel) == 1 {
            socket::set_nodelay(local.fd.load(Relaxed), false);
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
        let mut base = Kernel::new(local, handle);
        tx::take_back(record, &slot, &mut base);
        // Somebody may send past the engine from now on, and the mark would be wrong.
        if [Reason::STDIO, Reason::EXEC, Reason::PASSED, Reason::CONFINED, Reason::URGENT].contains(&reason) {
            tx::finish(record, &slot, &mut base);
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
        let (record, local) = self.look_up(handle).ok_or(EBADF)?;
        if let Some(slot) = local.slot.slot()
            && how != 0
        {
            tx::take_back(record, &slot, &mut Kernel::new(local, handle));
            tx::finish(record, &slot, &mut Kernel::new(local, handle));
        }
        socket::shutdown(local.fd.load(Relaxed), how)
    }

    /// Ends the process's part in a stream, once every voice that took it has closed it; the last process of the family that does so
    /// ends the stream. True when bytes that came over the wire have not been read then: TCP answers a close of the socket's last
    /// descriptor with a reset. (False where the descriptor was given to another program, which may go on with it. Whether one
    /// has inherited it is the caller's to know.)
    ///
    /// The handle becomes stale first; then both locks are taken: whoever holds one is done by then, and whoever comes later sees
    /// that it means another stream (invariant 7). Only then is the wire let go of, and its memory perhaps with it.
    pub fn close(&self, handle: Handle) -> Result<bool, Errno> {
        let (record, local) = self.look_up(handle).ok_or(EBADF)?;
        if local.voices.fetch_sub(1, AcqRel) > 1 {
            return Ok(false);
        }
        self.leave_sets(handle, local);
        // First: whoever is woken below finds the stream closed.
        if !self.retire(handle) {
            return Err(EBADF);
        }
        drop(local.pending.lock().take()); // from now on no wire comes up
        self.count_ended(record, local);
        let mut base = Kernel::retired(local);
        // A descriptor that was closed behind our back may be somebody else's by now.
        let same = socket::cookie(base.fd()) == Ok(record.who.cookies[0].load(Relaxed));
        let mut unread = false;
        let slot = local.slot.slot();
        if let Some(slot) = &slot {
            if same {
                tx::take_back(record, slot, &mut base);
            }
            unread =
                !gate::close_gate_over_bytes(record, slot, &mut base) && same && record.life.plain.load(Relaxed) == 0;
        }
        // Under this lock nobody forks.
        let mut owners = self.owners();
        owners.remove(&record.who.cookies[0].load(Relaxed));
        let last = self.lets_go(record);
        drop(owners);
        if let Some(slot) = slot {
            self.let_go_of_wire(record, local, &slot, last);
            if same && last {
                self.reset(record, local);
            }
            self.log.closed(record);
        }
        local.peer.forget();
        local.wake_sleepers();
        if last {
            self.free(handle);
        }
        Ok(unread && last)
    }

    /// After this no thread of this process looks at the wire. `last`: nor does any other of the family.
    fn let_go_of_wire(&self, record: &Record, local: &Local, slot: &Slot, last: bool) {
        let mut base = Kernel::retired(local);
        drop(acquire(&record.tx.lock, &mut base));
        drop(acquire(&record.rx.lock, &mut base));
        local.slot.set(None);
        if motet_proto::bulk::is_populated(record)
            && let Some(memory) = slot.bulk_memory()
        {
            crate::base::forget(memory);
            if last {
                motet_sys::memory::give_back(memory);
            }
        }
        let driver = (local.driver.load(Relaxed) as usize).checked_sub(1).and_then(|at| self.options.drivers.get(at));
        match driver {
            Some(driver) if last => driver.close(slot),
            Some(driver) => driver.abandon(slot),
            None => {}
        }
        self.count_memory();
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
            Some(slot) if !tx::take_back(record, &slot, &mut Kernel::new(local, handle)) => {
                self.reset(record, local);
                record.state() != State::Broken
            }
            _ => false,
        });
        reading
    }

    /// If the connection is beyond repair, both ends learn it from the kernel.
    pub(crate) fn reset(&self, record: &Record, local: &Local) {
        let why = match record.life.error.load(Relaxed) {
            0 => Reason::BROKEN,
            UNORDERED => Reason::ORDER,
            _ => return,
        };
        if record.state() == State::Broken && record.life.reason.swap(why.0, AcqRel) != why.0 {
            self.count_plain(why);
            self.log.reset(record, why);
            let _ = socket::shutdown(local.fd.load(Relaxed), 2);
        }
    }

    /// A receive that has bytes to deliver met an error in the kernel, which tells it once: the next call tells it.
    #[cold]
    pub fn heard_error(&self, handle: Handle, errno: Errno) {
        if let Some((record, _)) = self.look_up(handle)
            && record.state() == State::Attached
        {
            record.life.error.store(errno as u32, Relaxed);
            record.life.state.store(State::Broken as u32, Release);
        }
    }

    /// What a call on a stream that is over says. An error of the kernel's is told once; then the kernel answers.
    #[cold]
    fn over(&self, record: &Record, local: &Local) -> Errno {
        let errno = record.life.error.load(Acquire);
        if errno != 0 && errno != UNORDERED {
            record.life.error.store(0, Release);
            record.life.state.store(State::Plain as u32, Release);
            return errno as Errno;
        }
        self.reset(record, local);
        ECONNRESET
    }

    /// The kernel has reported the end of the stream. A peer that was killed cannot tell that it left bytes unread in the ring, so
    /// the kernel calls it an orderly end: such a stream is broken, and from now on its calls say so, as TCP's would.
    #[cold]
    pub fn heard_end(&self, handle: Handle) {
        let Some(Up { record, local, slot, .. }) = self.attached(handle) else { return };
        let fd = local.fd.load(Relaxed);
        if tx::is_unread(record, &slot)
            && socket::pending(fd) == 0
            && !socket::alive(fd)
            && crate::base::nobody_has_other_end(fd, Some(record.who.pid.load(Relaxed)))
        {
            record.life.state.store(State::Broken as u32, Release);
            self.reset(record, local);
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
        if !self.has_alone(record) {
            return; // the others could not look into the wire
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
            let pair = self.pair(record, local);
            match self.route(&pair) {
                Ok(at) => match self.options.drivers[at].connect(&pair) {
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
                self.attach(record, local, wire);
            }
            Some(Progress::Never(reason)) => {
                pending.take();
                self.stay_plain(record, reason);
            }
            // The next message asks again.
            Some(Progress::Crowded) => {
                record.life.ticks.fetch_sub(1, Relaxed);
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

    fn attach(&self, record: &Record, local: &Local, wire: Wire) {
        let driver = (local.driver.load(Relaxed) as usize).checked_sub(1).and_then(|n| self.options.drivers.get(n));
        let quiet = self.owners(); // nobody forks
        if !self.has_alone(record) {
            drop(quiet);
            if let Some(driver) = driver {
                driver.close(&wire.slot);
            }
            return self.stay_plain(record, Reason::SHARED);
        }
        let fd = local.fd.load(Relaxed);
        record.life.nodelay.store(1 + u32::from(socket::nodelay(fd)), Release);
        socket::set_nodelay(fd, true); // two paths and Nagle's algorithm do not mix
        record.who.pid.store(wire.peer.pid as u32, Relaxed);
        record.who.uid.store(wire.peer.uid, Relaxed);
        record.who.gid.store(wire.peer.gid, Relaxed);
        record.who.cookies[1].store(wire.peer_cookie, Relaxed);
        record.life.end.store(wire.slot.end() as u32, Relaxed);
        record.life.reason.store(Reason::FASTEST.0, Relaxed);
        wire.slot.inward().consumer.receives.store(u32::from(local.receives.load(Relaxed)), Relaxed);
        local.slot.set(Some(wire.slot));
        record.life.state.store(State::Attached as u32, Release);
        drop(quiet);
        self.count_memory();
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

    fn pair(&self, record: &Record, own: &Local) -> Pair {
        let [local, peer] = addresses(record);
        Pair {
            fd: own.fd.load(Acquire),
            local,
            peer,
            connected: record.who.role.load(Relaxed) == 1,
            cookie: record.who.cookies[0].load(Relaxed),
            ring: self.options.ring,
            bulk: self.options.bulk,
            memory: self.options.memory,
            huge: self.options.huge,
        }
    }

    /// Initialises the receiving half, once no kernel receive is under way. This end is the first to touch the ring that it receives
    /// from, so its pages lie where it runs; without memory for them it receives over TCP.
    #[cold]
    pub(crate) fn attach_rx(&self, up: &Up<'_>) {
        let (record, mut base) = (up.record, up.base());
        let Acquired::Clean(_held) = acquire(&record.rx.lock, &mut base) else { return };
        if record.rx.ready.load(Relaxed) != 0 || record.rx.busy.load(Relaxed) != 0 {
            return;
        }
        if let Ok(Some(received)) = socket::received_position(base.fd()) {
            if !memory::populate(up.slot.ring_memory()) && record.life.plain.swap(1, AcqRel) == 0 {
                record.life.reason.store(Reason::NO_MEMORY.0, Relaxed);
                self.count_plain(Reason::NO_MEMORY);
                self.log.plain(record, Reason::NO_MEMORY);
            }
            record.rx.tcp.store(received, Relaxed);
            record.rx.ready.store(1, Release);
        }
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

/// Addresses, local and peer, as [`describe`] put them down.
pub(crate) fn addresses(record: &Record) -> [SocketAddr; 2] {
    [0, 1].map(|end| {
        let words = std::array::from_fn::<_, 4, _>(|i| record.who.addresses[end][i].load(Relaxed).to_ne_bytes());
        let ip = match record.who.family.load(Relaxed) {
            4 => IpAddr::V4(Ipv4Addr::from(words[0])),
            _ => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words.as_flattened()).unwrap_or_default())),
        };
        SocketAddr::new(ip, record.who.ports[end].load(Relaxed) as u16)
    })
}
