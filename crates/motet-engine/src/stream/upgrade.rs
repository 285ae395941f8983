//! How a wire comes up beside a stream's TCP connection, step by step inside the calls that the program makes anyway.

use crate::driver::{Pair, Progress, Wire};
use crate::reason::Reason;
use crate::route;
use crate::stream::addresses::addresses;
use crate::stream::engine::{Engine, Handle, Local, UpgradedStream};
use crate::stream::kernel_tcp::KernelTcp;
use motet_proto::stream::half_lock::{Acquired, acquire};
use motet_sys::{clock, limits, memory, socket, thread};
use motet_wire::stream::gate::{READY, READY_LARGE};
use motet_wire::stream::record::{State, StreamRecord};
use motet_wire::stream::slot::Slot;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// A stream that has passed this many messages without a wire stays on TCP.
const MAX_PENDING_MESSAGES: u32 = 4096;

impl Engine {
    /// Counts a message, and perhaps brings the wire up by one step. The gaps between steps double.
    #[cold]
    pub(super) fn advance_upgrade(&self, handle: Handle) {
        let Some((record, local)) = self.look_up(handle) else { return };
        let n = record.lifecycle.pending_messages.fetch_add(1, Relaxed) + 1;
        if n > 8 && !n.is_power_of_two() {
            return;
        }
        if !self.is_sole_member(record) {
            return; // other processes of the fork group could not use the wire
        }
        let Some(mut pending) = local.pending.try_lock() else {
            // Another thread makes the step before. The next message makes this one: the next gap is twice as long.
            record.lifecycle.pending_messages.fetch_sub(1, Relaxed);
            return;
        };
        // Checked again under the lock: close makes the handle stale before it takes what is pending.
        if self.look_up(handle).is_none() || record.state() != State::Candidate {
            return;
        }
        if n > MAX_PENDING_MESSAGES {
            pending.take();
            return self.decline_upgrade(record, Reason::PEER_WITHOUT_MOTET);
        }
        if pending.is_none() {
            let pair = self.stream_pair(record, local);
            match self.route(&pair) {
                Ok(at) => match self.options.drivers[at]
                    .streams()
                    .ok_or(Reason::NOT_TCP)
                    .and_then(|driver| driver.connect(&pair))
                {
                    Ok(connecting) => {
                        local.driver.store(at as u32 + 1, Relaxed);
                        *pending = Some(connecting);
                    }
                    Err(reason) => return self.decline_upgrade(record, reason),
                },
                Err(reason) => return self.decline_upgrade(record, reason),
            }
        }
        match pending.as_mut().map(|p| p.step()) {
            Some(Progress::Up(wire)) => {
                pending.take();
                self.attach(record, local, wire);
            }
            Some(Progress::Rejected(reason)) => {
                pending.take();
                self.decline_upgrade(record, reason);
            }
            // The next message tries again.
            Some(Progress::Busy) => {
                record.lifecycle.pending_messages.fetch_sub(1, Relaxed);
            }
            Some(Progress::Pending) | None => {}
        }
    }

    pub(super) fn route(&self, pair: &Pair) -> Result<usize, Reason> {
        let allowed = &self.options.allowed;
        let verdicts =
            route::verdicts(self.options.drivers, |name| allowed.is_empty() || allowed.iter().any(|a| a == name), pair);
        let best = route::choose(&verdicts)?;
        Ok(self.options.drivers.iter().position(|d| std::ptr::addr_eq(*d, best)).unwrap_or(0))
    }

    fn attach(&self, record: &StreamRecord, local: &Local, wire: Wire) {
        let driver = (local.driver.load(Relaxed) as usize).checked_sub(1).and_then(|n| self.options.drivers.get(n));
        let no_fork = self.owners(); // no thread forks while this is locked
        if !self.is_sole_member(record) {
            drop(no_fork);
            if let Some(driver) = driver.and_then(|driver| driver.streams()) {
                driver.close(&wire.slot);
            }
            return self.decline_upgrade(record, Reason::SHARED);
        }
        let fd = local.fd.load(Relaxed);
        record.lifecycle.nodelay.store(1 + u32::from(socket::nodelay(fd)), Release);
        socket::set_nodelay(fd, true); // two paths and Nagle's algorithm do not mix
        record.connection.pid.store(wire.peer.pid as u32, Relaxed);
        record.connection.uid.store(wire.peer.uid, Relaxed);
        record.connection.gid.store(wire.peer.gid, Relaxed);
        record.connection.cookies[1].store(wire.peer_cookie, Relaxed);
        record.lifecycle.slot_end.store(wire.slot.end() as u32, Relaxed);
        record.lifecycle.reason.store(Reason::FASTEST.0, Relaxed);
        local.slot.set(Some(wire.slot));
        record.lifecycle.state.store(State::Attached as u32, Release);
        drop(no_fork);
        self.count_memory();
        self.log.attached(record, driver.copied());
    }

    /// Leaves a candidate on TCP for good.
    pub(super) fn decline_upgrade(&self, record: &StreamRecord, reason: Reason) {
        // From Candidate only: kernel calls that began earlier are not counted, and a stream on TCP never needs the count.
        let (from, to) = (State::Candidate as u32, State::TcpOnly as u32);
        // Not if another process of the fork group has changed the state meanwhile.
        if record.lifecycle.state.compare_exchange(from, to, AcqRel, Relaxed).is_ok() {
            record.lifecycle.reason.store(reason.0, Relaxed);
            self.count_tcp_only(reason);
            self.log.tcp_only(record, reason);
        }
    }

    pub(super) fn stream_pair(&self, record: &StreamRecord, own: &Local) -> Pair {
        let [local, peer] = addresses(record);
        Pair {
            fd: own.fd.load(Acquire),
            local,
            peer,
            connected: record.connection.role.load(Relaxed) == 1,
            cookie: record.connection.cookies[0].load(Relaxed),
            ring: self.options.ring,
            bulk: self.options.bulk,
            memory: self.options.memory,
            huge: self.options.huge,
        }
    }

    /// Initialises the receiving half when no kernel receive is in progress. This end is the first to touch the ring that it receives from, so the pages
    /// are on its NUMA node; without memory for them it receives over TCP.
    #[cold]
    pub(crate) fn attach_rx(&self, up: &UpgradedStream<'_>) {
        let (record, mut kernel) = (up.record, up.kernel_tcp());
        let Acquired::Clean(_held) = acquire(&record.rx.lock, &mut kernel) else { return };
        if record.rx.ready.load(Relaxed) != 0 || record.rx.kernel_calls.load(Relaxed) != 0 {
            return;
        }
        if let Ok(Some(received)) = socket::received_position(kernel.fd()) {
            if !memory::populate(up.slot.ring_memory()) && record.lifecycle.tcp_only.swap(1, AcqRel) == 0 {
                let size = up.slot.ring_memory().length();
                let why = if limits::cgroup_has_room(size) { Reason::NO_MEMORY } else { Reason::LIMITED };
                record.lifecycle.reason.store(why.0, Relaxed);
                self.count_tcp_only(why);
                self.log.tcp_only(record, why);
            }
            record.rx.tcp_bytes.store(received, Relaxed);
            record.rx.ready.store(1, Release);
        }
    }
}

/// Initialises the sending half from the kernel's counters when no kernel send is in progress.
#[cold]
pub(super) fn attach_tx(record: &StreamRecord, slot: &Slot, kernel: &mut KernelTcp<'_>) {
    let Acquired::Clean(_held) = acquire(&record.tx.lock, kernel) else { return };
    if record.tx.ready.load(Relaxed) != 0 || record.tx.kernel_calls.load(Relaxed) != 0 {
        return;
    }
    let connected = record.connection.role.load(Relaxed) == 1;
    if let Ok(Some(sent)) = socket::sent_position(kernel.fd(), connected) {
        record.tx.tcp_bytes.store(sent, Relaxed);
        record.tx.peer_alive_at.store(clock::ticks(), Relaxed);
        record.tx.ready.store(1, Relaxed);
        slot.outward().transfer.proof.store(motet_proto::stream::single_copy::proof_address(record), Release);
        let large = slot.bulk_out_memory().is_some();
        slot.outward().mark.ready.store(if large { READY_LARGE } else { READY }, Release);
    }
}

/// Writes the connection into the record.
pub(super) fn init_connection_info(
    record: &StreamRecord,
    fd: i32,
    connected: bool,
    local: SocketAddr,
    peer: SocketAddr,
    cookie: u64,
) {
    record.lifecycle.fd.store(fd as u32, Relaxed);
    record.connection.role.store(if connected { 1 } else { 2 }, Relaxed);
    record.connection.cookies[0].store(cookie, Relaxed);
    record.connection.family.store(if local.is_ipv4() { 4 } else { 6 }, Relaxed);
    for (at, address) in [local, peer].into_iter().enumerate() {
        record.connection.ports[at].store(u32::from(address.port()), Relaxed);
        let bytes = match address.ip() {
            IpAddr::V4(a) => {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&a.octets());
                bytes
            }
            IpAddr::V6(a) => a.octets(),
        };
        for (word, chunk) in record.connection.addresses[at].iter().zip(bytes.chunks_exact(4)) {
            word.store(u32::from_ne_bytes(chunk.try_into().unwrap()), Relaxed);
        }
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    record.connection.began.store(now.as_secs(), Relaxed);
    record.lifecycle.owner.store(thread::pid(), Relaxed);
    record.lifecycle.nonblocking.store(u32::from(socket::is_nonblocking(fd)), Relaxed);
}
