//! Hand-over of a stream's descriptor to readers and writers outside the engine: a spawned child, the next program image of this process, the receiver
//! of a message with SCM_RIGHTS, or a part of this process that makes its own system calls (stdio).
//!
//! Both directions return to TCP for good. What the peer has not read returns to TCP at once. What this process has not read must be returned by the
//! peer, which does so before it sends or sleeps the next time (invariants 3 and 6). If the kernel lets this process use the peer's descriptor for a
//! moment (`pidfd_getfd`: ptrace access rules), it returns these bytes in the peer's place. So a peer that computes, is stopped, or dies delays and
//! loses nothing. The hand-over itself does not wait for the peer.

use super::EBADF;
use crate::reason::Reason;
use crate::stream::engine::{Engine, Handle, Local};
use crate::stream::kernel_tcp::KernelTcp;
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
/// The end of a stream waits at most so long (ns) for room in TCP.
const LINGER_NS: u64 = 2_000_000_000;
/// The longest single sleep of that wait, ns.
const LINGER_POLL_NS: u64 = 10_000_000;

impl Engine {
    /// Hands over `fd`, a descriptor of the stream. True: both rings are empty. EBADF: `fd` is another socket, or none, and nothing has changed. (In a
    /// child made by vfork a number may mean another file than in its parent, which has the stream.)
    pub fn hand_over(&self, handle: Handle, fd: i32, reason: Reason) -> Result<bool, Errno> {
        let (record, local) = self.look_up(handle).ok_or(EBADF)?;
        if socket::cookie(fd) != Ok(record.connection.cookies[0].load(Relaxed)) {
            return Err(EBADF);
        }
        self.stay_on_tcp_through(handle, fd, reason);
        let Some(slot) = local.slot.slot() else { return Ok(true) };
        if gate::hand_over(record, &slot, &mut KernelTcp::new(local, handle).on_descriptor(fd)) {
            return Ok(true);
        }
        let returned = return_for_producer(record, local, &slot, (handle, fd)).unwrap_or(false);
        if !returned && KernelTcp::new(local, handle).on_descriptor(fd).tcp_failed(record.connection.pid.load(Relaxed))
        {
            // A peer that was killed returns nothing, and a reader of TCP alone would take the FIN for an orderly end.
            self.log.reset(record, Reason::PEER_GONE);
            let _ = socket::disconnect(fd);
        }
        Ok(returned)
    }
}

/// Returns what the peer has not read to TCP, before the stream ends on this side (half-close, close or exit). A peer that has handed its descriptor
/// over must find all of it there, so this waits for room in TCP as long as a process has the other end, but no longer than [`LINGER_NS`].
pub(super) fn flush_unread(record: &StreamRecord, slot: &Slot, kernel: &mut KernelTcp<'_>) {
    let start = clock::nanoseconds();
    while !tx::take_back(record, slot, kernel) && tx::must_linger(record, slot) {
        let failed = kernel.tcp_failed(record.connection.pid.load(Relaxed));
        if failed || clock::nanoseconds() - start > LINGER_NS {
            return;
        }
        if socket::poll([(kernel.fd(), socket::WRITABLE_EVENTS)], Some(LINGER_POLL_NS)).is_err() {
            thread::sleep_ns(LINGER_POLL_NS);
        }
    }
}

/// Returns what this process has not read to TCP, in the peer's place.
fn return_for_producer(record: &StreamRecord, local: &Local, slot: &Slot, (handle, fd): (Handle, i32)) -> Option<bool> {
    let theirs = peer_socket(record, fd)?;
    let send = |bytes: &[u8]| socket::send(theirs.as_raw_fd(), &[IoSlice::new(bytes)], MSG_DONTWAIT);
    let returned = rx::return_for_producer(record, slot, &mut KernelTcp::new(local, handle).on_descriptor(fd), send);
    socket::push_corked(theirs.as_raw_fd());
    Some(returned)
}

/// A descriptor of the socket at the other end, while its process lives. The pidfd makes sure that the pid was not reused.
fn peer_socket(record: &StreamRecord, fd: i32) -> Option<OwnedFd> {
    let pid = record.connection.pid.load(Relaxed);
    let process = thread::open_pidfd(pid).ok()?;
    let (local, peer) = socket::addresses(fd).ok()?;
    let found = sock_diag::SockDiag::open_untracked().ok()?.find(peer, local).ok()??;
    let cookie = record.connection.cookies[1].load(Relaxed);
    let same = found.cookie == cookie && found.inode != 0;
    let theirs = same.then(|| thread::duplicate_socket_of(&process, pid, found.inode))??;
    (socket::cookie(theirs.as_raw_fd()) == Ok(cookie)).then_some(theirs)
}
