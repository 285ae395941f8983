//! The links of this process: [`Links`] with the clock, the kernel's word on who lives, and one lock.

use crate::links::{Links, Peer, Place, Shape};
use motet_engine::lock;
use motet_engine::reason::Reason;
use motet_sys::rustix::fd::OwnedFd;
use motet_sys::socket::Credentials;
use motet_sys::{clock, thread};
use motet_wire::stream::slot::Slot;
use std::sync::{Mutex, MutexGuard};

static LINKS: Mutex<Links> = Mutex::new(Links::new(lives));

/// The process of a peer is still there. At a glance the number is enough; thoroughly, it is no zombie, and the one that we
/// knew.
fn lives(peer: &Peer, thoroughly: bool) -> bool {
    match u32::try_from(peer.pid) {
        Ok(pid @ 1..) if thoroughly => {
            thread::start_time(pid).is_some_and(|born| born == peer.born || born == 0 || peer.born == 0)
        }
        Ok(pid @ 1..) => thread::process_exists(pid),
        _ => true, // not visible to us
    }
}

/// A number is not given out again within this (ns).
const SAME: u64 = 100_000_000;
/// The last peer, its birth, and when that was asked for.
pub type Known = (i32, u64, u64);
static KNOWN: Mutex<Known> = Mutex::new((0, 0, 0));

/// The peer as links know it. `alone` tells invisible processes apart.
fn peer(of: Credentials, alone: u64, now: u64) -> Peer {
    let Ok(pid @ 1..) = u32::try_from(of.pid) else { return Peer { pid: 0, uid: of.uid, born: 0, alone } };
    let mut known = lock(&KNOWN);
    if known.0 != of.pid || now.saturating_sub(known.2) >= SAME {
        *known = (of.pid, thread::start_time(pid).unwrap_or(0), now);
    }
    Peer { pid: of.pid, uid: of.uid, born: known.1, alone: 0 }
}

/// Finds or makes room for one more connection with a peer, in a slot of this shape.
pub fn place(with: Credentials, shape: Shape, cookies: [u64; 2]) -> Result<Place, Reason> {
    let now = clock::nanoseconds();
    let peer = peer(with, cookies[1], now);
    lock(&LINKS).place(peer, shape, cookies, now)
}

/// An offer that could not be delivered.
pub fn withdraw(place: &Place) {
    lock(&LINKS).withdraw(place, clock::nanoseconds());
}

/// The slot of an offer that a peer made, as its other end sees it.
pub fn take(from: Credentials, file: &OwnedFd, which: (u32, [u8; 16]), shape: Shape) -> Result<Slot, Reason> {
    let now = clock::nanoseconds();
    let (peer, myself) = (peer(from, 0, now), from.pid == thread::pid() as i32);
    lock(&LINKS).take((peer, myself), file, which, shape, now)
}

/// This process has left a slot; an end that never came has left, too.
pub fn leave(slot: &Slot) {
    lock(&LINKS).leave(slot, clock::nanoseconds());
}

/// This process uses a slot no more; its stream is not ours to end.
pub fn abandon(slot: &Slot) {
    lock(&LINKS).abandon(slot, clock::nanoseconds());
}

/// Bytes of segments mapped here.
pub fn bytes() -> usize {
    lock(&LINKS).bytes()
}

/// Links opened and closed.
pub fn counts() -> [u64; 2] {
    lock(&LINKS).counts()
}

/// For the time of a fork.
pub fn quiet() -> (MutexGuard<'static, Links>, MutexGuard<'static, Known>) {
    (lock(&LINKS), lock(&KNOWN))
}

/// In a forked child.
pub fn forked() {
    lock(&LINKS).forked();
}
