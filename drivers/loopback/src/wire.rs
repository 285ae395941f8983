//! How two streams of one process find each other: a table of connections by address, without sockets or descriptors.

use crate::memory;
use motet_engine::driver::{Connecting, Pair, Progress, Wire};
use motet_engine::lock;
use motet_engine::reason::Reason;
use motet_sys::rustix::process::getegid;
use motet_sys::socket::Credentials;
use motet_sys::thread;
use motet_wire::stream::slot::Slot;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// The address that connected, and the address that accepted.
type ConnectionName = (SocketAddr, SocketAddr);

static PENDING_WIRES: Mutex<Option<HashMap<ConnectionName, TableEntry>>> = Mutex::new(None);

/// A connection whose wire is not up at both ends: the cookies of the ends that have begun, and the slot once both have.
struct TableEntry {
    cookies: [Option<u64>; 2],
    slot: Option<[Slot; 2]>,
}

/// One end (0 accepted, 1 connected) that waits for the other.
#[derive(Debug)]
pub struct PendingWire {
    name: ConnectionName,
    end: usize,
    ring: usize,
    up: bool,
}

impl PendingWire {
    /// Enters this end in the table.
    pub fn begin(pair: &Pair) -> Result<Box<dyn Connecting>, Reason> {
        let (name, end) = if pair.connected { ((pair.local, pair.peer), 1) } else { ((pair.peer, pair.local), 0) };
        let mut pending = lock(&PENDING_WIRES);
        let entry =
            pending.get_or_insert_default().entry(name).or_insert(TableEntry { cookies: [None; 2], slot: None });
        entry.cookies[end] = Some(pair.cookie);
        Ok(Box::new(Self { name, end, ring: pair.ring, up: false }))
    }
}

impl Connecting for PendingWire {
    fn step(&mut self) -> Progress {
        let mut pending = lock(&PENDING_WIRES);
        let Some(entry) = pending.as_mut().and_then(|m| m.get_mut(&self.name)) else {
            return Progress::Rejected(Reason::PEER_GONE);
        };
        let [Some(accepted), Some(connected)] = entry.cookies else { return Progress::Pending };
        let (ends, second) = match entry.slot {
            Some(ends) => (ends, true),
            None => match memory::reserve(self.ring, [accepted, connected]) {
                Some(ends) => (ends, false),
                None => return Progress::Rejected(Reason::NO_MEMORY),
            },
        };
        entry.slot = Some(ends);
        if second {
            pending.as_mut().and_then(|m| m.remove(&self.name));
        }
        self.up = true;
        let slot = ends[self.end];
        slot.head().attached[self.end].store(1, Ordering::Release);
        let peer = Credentials { pid: thread::pid() as i32, uid: thread::euid(), gid: getegid().as_raw() };
        Progress::Up(Wire { slot, peer, peer_cookie: [connected, accepted][self.end] })
    }
}

impl Drop for PendingWire {
    fn drop(&mut self) {
        if self.up {
            return;
        }
        // This end gives up. If the other end is up already, it stays on TCP, and its slot is free once it leaves.
        let mut pending = lock(&PENDING_WIRES);
        if let Some(entry) = pending.as_mut().and_then(|m| m.remove(&self.name))
            && let Some(ends) = entry.slot
        {
            ends[self.end].head().left[self.end].store(1, Ordering::Release);
        }
    }
}

/// Marks this end of a slot as left, and the other end too if that can never attach.
pub fn release(slot: &Slot) {
    let (head, other) = (slot.head(), 1 - slot.end());
    head.left[slot.end()].store(1, Ordering::Release);
    // The other end may still attach; if it gives up, the drop of its `PendingWire` marks it as left.
    let pending = lock(&PENDING_WIRES);
    let expected = pending
        .as_ref()
        .is_some_and(|m| m.values().any(|e| e.slot.is_some_and(|ends| std::ptr::eq(ends[0].head(), head))));
    if head.attached[other].load(Ordering::Acquire) == 0 && !expected {
        head.left[other].store(1, Ordering::Release);
    }
}

/// Locks what a fork must find unlocked.
pub fn lock_for_fork() -> impl Sized {
    lock(&PENDING_WIRES)
}

/// In a forked child: drops the parent's pending wires.
pub fn after_fork() {
    lock(&PENDING_WIRES).take();
}
