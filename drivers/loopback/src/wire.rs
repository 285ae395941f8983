//! How two streams of one process find each other: a table of connections by address. No socket, no descriptor.

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

/// The address that connected, the address that accepted.
type Name = (SocketAddr, SocketAddr);

static MEETINGS: Mutex<Option<HashMap<Name, Entry>>> = Mutex::new(None);

/// What is known of a connection whose wire is on its way up: who has come, and the slot once both have.
struct Entry {
    cookies: [Option<u64>; 2],
    slot: Option<[Slot; 2]>,
}

/// One end (0 accepted, 1 connected) that waits for the other.
#[derive(Debug)]
pub struct Meeting {
    name: Name,
    end: usize,
    ring: usize,
    up: bool,
}

impl Meeting {
    /// Enters the table.
    pub fn begin(pair: &Pair) -> Result<Box<dyn Connecting>, Reason> {
        let (name, end) = if pair.connected { ((pair.local, pair.peer), 1) } else { ((pair.peer, pair.local), 0) };
        let mut meetings = lock(&MEETINGS);
        let entry = meetings.get_or_insert_default().entry(name).or_insert(Entry { cookies: [None; 2], slot: None });
        entry.cookies[end] = Some(pair.cookie);
        Ok(Box::new(Self { name, end, ring: pair.ring, up: false }))
    }
}

impl Connecting for Meeting {
    fn step(&mut self) -> Progress {
        let mut meetings = lock(&MEETINGS);
        let Some(entry) = meetings.as_mut().and_then(|m| m.get_mut(&self.name)) else {
            return Progress::Rejected(Reason::PEER_GONE);
        };
        let [Some(accepted), Some(connected)] = entry.cookies else { return Progress::Pending };
        let (ends, second) = match entry.slot {
            Some(ends) => (ends, true),
            None => match memory::place(self.ring, [accepted, connected]) {
                Some(ends) => (ends, false),
                None => return Progress::Rejected(Reason::NO_MEMORY),
            },
        };
        entry.slot = Some(ends);
        if second {
            meetings.as_mut().and_then(|m| m.remove(&self.name));
        }
        self.up = true;
        let slot = ends[self.end];
        slot.head().attached[self.end].store(1, Ordering::Release);
        let peer = Credentials { pid: thread::pid() as i32, uid: thread::euid(), gid: getegid().as_raw() };
        Progress::Up(Wire { slot, peer, peer_cookie: [connected, accepted][self.end] })
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        if self.up {
            return;
        }
        // It never came: the other end, if it is up already, talks TCP for ever, and its slot is free when it leaves.
        let mut meetings = lock(&MEETINGS);
        if let Some(entry) = meetings.as_mut().and_then(|m| m.remove(&self.name))
            && let Some(ends) = entry.slot
        {
            ends[self.end].head().left[self.end].store(1, Ordering::Release);
        }
    }
}

/// This end has left.
pub fn leave(slot: &Slot) {
    let (head, other) = (slot.head(), 1 - slot.end());
    head.left[slot.end()].store(1, Ordering::Release);
    // The other end may still come for it; if it never does, its `Meeting` says so when it is dropped.
    let meetings = lock(&MEETINGS);
    let expected = meetings
        .as_ref()
        .is_some_and(|m| m.values().any(|e| e.slot.is_some_and(|ends| std::ptr::eq(ends[0].head(), head))));
    if head.attached[other].load(Ordering::Acquire) == 0 && !expected {
        head.left[other].store(1, Ordering::Release);
    }
}

/// For the time of a fork.
pub fn quiet() -> impl Sized {
    lock(&MEETINGS)
}

/// In a forked child: the parent's meetings are not ours.
pub fn forget() {
    lock(&MEETINGS).take();
}
