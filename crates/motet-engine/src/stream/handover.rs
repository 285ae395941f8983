//! A stream whose descriptor another program image may read or write: a spawned child, the next image of this process, the receiver of
//! a message with SCM_RIGHTS, or a part of this process that makes its own system calls (stdio).
//!
//! What it is: both directions return to TCP for good. What the peer has not read goes back to TCP at once. What *we* have not read is
//! the peer's to return, which it does before it sends or sleeps the next time (invariants 3 and 6); where the kernel
//! lets us use the peer's descriptor for a moment (`pidfd_getfd`: ptrace access rules), we return it in the peer's place, so that a
//! peer that computes, is stopped, or dies delays nothing and loses nothing.
//!
//! What it is not: a wait. The caller goes on at once, whatever the peer does.

use super::EBADF;
use crate::reason::Reason;
use crate::stream::engine::{Engine, Handle, Local};
use crate::stream::kernel_tcp::Kernel;
use motet_proto::{
    Errno,
    stream::{Platform, gate, rx, tx},
};
use motet_sys::{clock, sock_diag, socket, thread};
use motet_wire::stream::record::StreamRecord;
use motet_wire::stream::slot::Slot;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

const MSG_DONTWAIT: i32 = 0x40;
/// How long the end of a stream waits (ns) for room in TCP, and for how long at a time.
const LINGER: u64 = 2_000_000_000;
const LOOK: u64 = 10_000_000;

impl Engine {
    /// Hands `fd`, a descriptor of the stream, on. True when both rings are empty. EBADF: `fd` is another socket, or none; nothing has
    /// changed. (In a child made by vfork a number may mean something else than in its parent, which has the stream.)
    pub fn hand_over(&self, handle: Handle, fd: i32, reason: Reason) -> Result<bool, Errno> {
        let (record, local) = self.look_up(handle).ok_or(EBADF)?;
        if socket::cookie(fd) != Ok(record.connection.cookies[0].load(Relaxed)) {
            return Err(EBADF);
        }
        self.stay_on_tcp_through(handle, fd, reason);
        let Some(slot) = local.slot.slot() else { return Ok(true) };
        if gate::hand_over(record, &slot, &mut Kernel::new(local, handle).on(fd)) {
            return Ok(true);
        }
        let returned = return_for_producer(record, local, &slot, (handle, fd)).unwrap_or(false);
        if !returned && Kernel::new(local, handle).on(fd).tcp_failed(record.connection.pid.load(Relaxed)) {
            // A peer that was killed returns nothing, and a reader of TCP alone would take the FIN for the end of a whole stream.
            self.log.reset(record, Reason::PEER_GONE);
            let _ = socket::disconnect(fd);
        }
        Ok(returned)
    }
}

/// Before the stream ends on this side, by half-close, close or exit: what the peer has not read goes back to TCP. A peer that has handed its
/// end on must find all of it there, so this waits for room in TCP, as long as a process has the other end, but no longer than [`LINGER`].
pub(super) fn leave_nothing(record: &StreamRecord, slot: &Slot, base: &mut Kernel<'_>) {
    let start = clock::nanoseconds();
    while !tx::take_back(record, slot, base) && tx::must_linger(record, slot) {
        let failed = base.tcp_failed(record.connection.pid.load(Relaxed));
        if failed || clock::nanoseconds() - start > LINGER {
            return;
        }
        if socket::poll([(base.fd(), socket::WRITABLE)], Some(LOOK)).is_err() {
            thread::sleep_ns(LOOK);
        }
    }
}

/// Returns what we have not read to TCP, in the peer's place.
fn return_for_producer(record: &StreamRecord, local: &Local, slot: &Slot, (handle, fd): (Handle, i32)) -> Option<bool> {
    let theirs = socket_of_peer(record, fd)?;
    let send = |bytes: &[u8]| socket::send(theirs.as_raw_fd(), &[IoSlice::new(bytes)], MSG_DONTWAIT);
    let returned = rx::return_for_producer(record, slot, &mut Kernel::new(local, handle).on(fd), send);
    socket::push_corked(theirs.as_raw_fd());
    Some(returned)
}

/// The socket at the other end, while its process lives. Between two looks at that process its number means no other.
fn socket_of_peer(record: &StreamRecord, fd: i32) -> Option<OwnedFd> {
    let pid = record.connection.pid.load(Relaxed);
    let process = thread::open_pidfd(pid).ok()?;
    let (local, peer) = socket::addresses(fd).ok()?;
    let found = sock_diag::SockDiag::open_untracked().ok()?.find(peer, local).ok()??;
    let cookie = record.connection.cookies[1].load(Relaxed);
    let same = found.cookie == cookie && found.inode != 0;
    let theirs = same.then(|| thread::duplicate_socket_of(&process, pid, found.inode))??;
    (socket::cookie(theirs.as_raw_fd()) == Ok(cookie)).then_some(theirs)
}
