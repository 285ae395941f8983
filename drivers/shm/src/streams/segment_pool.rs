//! The segments of this process: one [`SegmentTable`] behind a lock, with the clock and the kernel's answers about peer processes.

use crate::streams::segment_table::{PeerProcess, SegmentShape, SegmentTable, SlotRef};
use motet_engine::lock;
use motet_engine::reason::Reason;
use motet_sys::rustix::fd::OwnedFd;
use motet_sys::socket::Credentials;
use motet_sys::{clock, thread};
use motet_wire::stream::slot::Slot;
use std::sync::{Mutex, MutexGuard};

static TABLE: Mutex<SegmentTable> = Mutex::new(SegmentTable::new(is_alive));

/// Whether a peer process still exists. The quick check asks for its number only; the thorough check also excludes a zombie, and another
/// process with the same number.
fn is_alive(peer: &PeerProcess, thorough: bool) -> bool {
    match u32::try_from(peer.pid) {
        Ok(pid @ 1..) if thorough => {
            thread::start_time(pid).is_some_and(|start| start == peer.start_time || start == 0 || peer.start_time == 0)
        }
        Ok(pid @ 1..) => thread::process_exists(pid),
        _ => true, // invisible to us
    }
}

/// The system does not use a process number again within this time, ns.
const MIN_PID_REUSE_NS: u64 = 100_000_000;
/// The process of the last lookup: number, start time, and when that was read.
pub type LastProcess = (i32, u64, u64);
static LAST_PROCESS: Mutex<LastProcess> = Mutex::new((0, 0, 0));

/// The process with these credentials. `invisible_id` identifies it if it has no number in our PID namespace.
fn peer_process(of: Credentials, invisible_id: u64, now: u64) -> PeerProcess {
    let Ok(pid @ 1..) = u32::try_from(of.pid) else {
        return PeerProcess { pid: 0, uid: of.uid, start_time: 0, invisible_id };
    };
    let mut last = lock(&LAST_PROCESS);
    if last.0 != of.pid || now.saturating_sub(last.2) >= MIN_PID_REUSE_NS {
        *last = (of.pid, thread::start_time(pid).unwrap_or(0), now);
    }
    PeerProcess { pid: of.pid, uid: of.uid, start_time: last.1, invisible_id: 0 }
}

/// Reserves a slot for one more connection with a peer, in a new segment if no existing one has a free slot of this shape.
pub fn reserve(with: Credentials, shape: SegmentShape, cookies: [u64; 2]) -> Result<SlotRef, Reason> {
    let now = clock::nanoseconds();
    let peer = peer_process(with, cookies[1], now);
    lock(&TABLE).reserve(peer, shape, cookies, now)
}

/// Frees the slot of an offer that could not be delivered.
pub fn withdraw(slot: &SlotRef) {
    lock(&TABLE).withdraw(slot, clock::nanoseconds());
}

/// The slot of a peer's offer, as the offered end sees it. `which`: index of the slot and nonce of the segment.
pub fn map_offered(
    from: Credentials,
    file: &OwnedFd,
    which: (u32, [u8; 16]),
    shape: SegmentShape,
) -> Result<Slot, Reason> {
    let now = clock::nanoseconds();
    let (peer, is_self) = (peer_process(from, 0, now), from.pid == thread::pid() as i32);
    lock(&TABLE).map_offered((peer, is_self), file, which, shape, now)
}

/// Marks this end of a slot as left, and the peer's end too if the peer never attached.
pub fn release(slot: &Slot) {
    lock(&TABLE).release(slot, clock::nanoseconds());
}

/// Stops the use of a slot by this process without marking the end as left: another process ends the stream.
pub fn abandon(slot: &Slot) {
    lock(&TABLE).abandon(slot, clock::nanoseconds());
}

/// Bytes of mapped segments, large rings aside.
pub fn mapped_bytes() -> usize {
    lock(&TABLE).mapped_bytes()
}

/// Links (segments shared with one peer process) that this process has opened, and closed.
pub fn link_counts() -> [u64; 2] {
    lock(&TABLE).link_counts()
}

/// Locks what a fork must find unlocked.
pub fn lock_for_fork() -> (MutexGuard<'static, SegmentTable>, MutexGuard<'static, LastProcess>) {
    (lock(&TABLE), lock(&LAST_PROCESS))
}

/// In a forked child: the parent's segments are not the child's to hand out.
pub fn after_fork() {
    lock(&TABLE).after_fork();
}
