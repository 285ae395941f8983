//! The kernel's TCP under a stream, and the processor's clock: [`motet_proto::stream::Platform`] in production.

use crate::Handle;
use crate::stream::local::Local;
use crate::stream::peer_process::Peer;
use motet_proto::stream::bulk::ArrivalTimer;
use motet_proto::{
    Errno,
    stream::{Patience, Platform},
};
use motet_sys::{clock, cpu_contention, memory, process_vm, sock_diag, socket, thread};
use motet_wire::mapping::Mapping;
use motet_wire::stream::record::StreamRecord;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

const MSG_DONTWAIT: i32 = 0x40;

/// Bytes of large rings that this process may bring into being.
const BULK_LIMIT: usize = 128 << 20;
/// The same for streams without large takes: many large rings in turn cost more in caches than they gain.
const FEW_LIMIT: usize = 8 << 20;
static BULK: AtomicUsize = AtomicUsize::new(0);

/// How long (ns) a wait of this process rests behind open gates before it sleeps in the kernel.
static PATIENCE: AtomicU64 = AtomicU64::new(0);

/// From now on waits rest for so long, and take no notice of who computes.
pub(crate) fn keep_gates_open(ns: u64) {
    PATIENCE.store(ns, Relaxed);
    if ns > 0 {
        cpu_contention::disable();
    }
}

/// This process has a large ring no more: others may have it instead.
pub fn forget(ring: Mapping) {
    let _ = BULK.fetch_update(Relaxed, Relaxed, |taken| Some(taken.saturating_sub(ring.length())));
}

/// A stream's TCP descriptor, what tells whether its handle still is good, and the process at the other end where that matters.
pub struct Kernel<'a> {
    fd: i32,
    handle: Handle,
    local: &'a Local,
    peer: Option<&'a Peer>,
}

impl<'a> Kernel<'a> {
    /// The base under the stream with this handle.
    #[inline(always)]
    pub fn new(local: &'a Local, handle: Handle) -> Self {
        Self { fd: local.fd.load(Relaxed), handle, local, peer: None }
    }

    /// The same under another descriptor of its socket.
    pub(crate) fn on(self, fd: i32) -> Self {
        Self { fd, ..self }
    }

    /// For the thread that has made the handle stale and still has to end the stream: until the record is free there is no other.
    pub(crate) fn retired(local: &'a Local) -> Self {
        Self::new(local, 0)
    }

    /// The same, for operations that may copy from or to the peer's memory.
    #[inline(always)]
    pub(crate) fn with(self, peer: &'a Peer) -> Self {
        Self { peer: Some(peer), ..self }
    }

    /// So much, but no more than is left until the stream's deadline, which the caller keeps, and than the program's SO_RCVTIMEO.
    #[cold]
    fn patience_now(&self, record: &StreamRecord, ns: u64) -> Patience {
        let ns = match record.lifecycle.deadline_ns.load(Relaxed) {
            0 => ns,
            at => ns.min(at.saturating_sub(clock::nanoseconds())),
        };
        match socket::receive_timeout(self.fd) {
            Some(limit) if limit <= ns => Patience { ns: limit, expires: true },
            _ => Patience { ns, expires: false },
        }
    }

    /// The descriptor.
    pub fn fd(&self) -> i32 {
        self.fd
    }
}

impl Platform for Kernel<'_> {
    #[inline]
    fn tcp_recv(&mut self, bufs: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, Errno> {
        let flags = MSG_DONTWAIT | if peek { motet_proto::stream::MSG_PEEK } else { 0 };
        socket::receive(self.fd, bufs, flags)
    }

    fn tcp_send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        socket::send(self.fd, &[IoSlice::new(bytes)], MSG_DONTWAIT)
    }

    fn tcp_push(&mut self) {
        socket::push_corked(self.fd);
    }

    fn tcp_readable(&mut self) -> bool {
        socket::readable(self.fd)
    }

    fn tcp_pending(&mut self) -> u64 {
        socket::unread_bytes(self.fd)
    }

    fn tcp_bytes_read(&mut self, counted: u64) -> u64 {
        socket::read_beyond(self.fd, counted)
    }

    fn tcp_bytes_written(&mut self, counted: u64) -> u64 {
        socket::written_beyond(self.fd, self.local.connected.load(Relaxed), counted)
    }

    fn tcp_send_room(&mut self) -> u64 {
        // What the kernel counts is memory: small pieces, which the peer has not acknowledged, take up to 3/8 more than their payload.
        socket::send_room(self.fd) / 8 * 5
    }

    fn tcp_alive(&mut self) -> bool {
        socket::is_connected(self.fd)
    }

    fn tcp_failed(&mut self, peer: u32) -> bool {
        let known = self.local.cookie.load(Relaxed);
        if known != 0 && socket::cookie(self.fd) != Ok(known) {
            return true; // closed unseen, and another file by now
        }
        !socket::is_connected(self.fd)
            && (socket::has_error(self.fd) || socket::addresses(self.fd).is_err() || other_end_is_gone(self.fd, peer))
    }

    fn read_peer_memory(&mut self, pid: u32, address: u64, into: &mut [u8]) -> bool {
        process_vm::read_from(pid, address, into) == Ok(into.len())
    }

    fn write_peer_memory(&mut self, pid: u32, address: u64, from: &[u8]) -> bool {
        process_vm::write_to(pid, address, from) == Ok(from.len())
    }

    fn prefault(&mut self, ring: Mapping) {
        memory::populate(ring);
    }

    fn is_same_process(&mut self, pid: u32) -> bool {
        self.peer.is_some_and(|peer| peer.is_still(pid))
    }

    fn populate(&mut self, ring: Mapping, few: bool) -> bool {
        let limit = if few { FEW_LIMIT } else { BULK_LIMIT };
        let taken = BULK.fetch_add(ring.length(), Relaxed);
        if taken + ring.length() <= limit && memory::populate(ring) {
            return true;
        }
        BULK.fetch_sub(ring.length(), Relaxed);
        false
    }

    #[inline(always)]
    fn arrival_timer(&self) -> Option<&ArrivalTimer> {
        Some(&self.local.arrival_timer)
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        clock::ticks()
    }

    #[inline(always)]
    fn ticks_per_1024ns(&self) -> u64 {
        clock::ticks_per_1024ns()
    }

    #[inline(always)]
    fn cpu(&self) -> u32 {
        clock::cpu()
    }

    fn yield_now(&mut self) {
        cpu_contention::yield_now();
    }

    #[inline(always)]
    fn is_cpu_contended(&self) -> bool {
        cpu_contention::is_contended()
    }

    fn sleep(&mut self, ns: u64) {
        thread::sleep_ns(ns);
        motet_sys::signal_handlers::run_pending();
    }

    fn patience(&self, record: &StreamRecord) -> Patience {
        match PATIENCE.load(Relaxed) {
            0 => Patience::NONE,
            ns => self.patience_now(record, ns),
        }
    }

    fn interruptible_sleep(&mut self, ns: u64) -> bool {
        thread::interruptible_sleep(ns)
    }

    #[inline(always)]
    fn lock_token(&self) -> u64 {
        thread::token()
    }

    fn lock_holder_exists(&self, token: u64) -> bool {
        thread::token_process_exists(token)
    }

    #[inline(always)]
    fn is_current(&self) -> bool {
        self.local.handle.load(Relaxed) == self.handle
    }
}

/// Whether the other end's socket is closed, rather than shut down for sending. A process that ends sends the FIN first and lets
/// go of the socket a moment later, so the kernel is asked for a while: longer if that process, `peer`, is known to be dying.
pub fn other_end_is_gone(fd: i32, peer: u32) -> bool {
    let (Ok((local, peer_address)), Ok(diag)) = (socket::addresses(fd), sock_diag::SockDiag::open_untracked()) else {
        return false;
    };
    let longer = [1_000_000; 50].iter().take_while(|_| thread::is_exiting(peer));
    for nap in [10_000, 30_000, 60_000].iter().chain(longer).chain(&[0]) {
        match diag.find(peer_address, local) {
            Ok(Some(found)) if found.open => thread::sleep_ns(*nap),
            Ok(Some(_)) => return true,
            _ => return false, // shut down both ways: the kernel finds neither socket any more, and a process may still read
        }
    }
    false
}
