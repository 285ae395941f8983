//! The kernel's TCP under a stream, and the clock: [`motet_proto::stream::Platform`] in production.

use crate::Handle;
use crate::stream::local::Local;
use crate::stream::peer_process::PeerProcess;
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

/// Most bytes of large rings whose pages this process may allocate.
const LARGE_RINGS_MAX_BYTES: usize = 128 << 20;
/// Most bytes of large rings of this process up to which a stream without large takes gets one: many large rings, used in turn, cost more in caches
/// than they gain.
const LARGE_RINGS_WITHOUT_BULK_MAX_BYTES: usize = 8 << 20;
/// Bytes of large rings whose pages this process has allocated.
static LARGE_RING_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Between two long waits of this process for peers that lack a CPU (ns).
const TIME_BETWEEN_WAITS_FOR_CPU_NS: u64 = 5_000_000_000;
/// When this process last began such a wait (ns).
static LAST_WAIT_FOR_CPU_NS: AtomicU64 = AtomicU64::new(0);

/// How long (ns) a wait of this process rests behind open gates before it sleeps in the kernel.
static GATE_REST_NS: AtomicU64 = AtomicU64::new(0);

/// Makes waits rest for `ns` behind open gates, whatever other threads compute: a setting for tests.
pub(crate) fn keep_gates_open(ns: u64) {
    GATE_REST_NS.store(ns, Relaxed);
    if ns > 0 {
        cpu_contention::disable();
    }
}

/// Returns the budget of a large ring that this process has released.
pub fn release_large_ring_budget(ring: Mapping) {
    let _ = LARGE_RING_BYTES.fetch_update(Relaxed, Relaxed, |taken| Some(taken.saturating_sub(ring.length())));
}

/// A stream's TCP descriptor, with what is needed to check its handle, and the process at the other end where that matters.
pub struct KernelTcp<'a> {
    fd: i32,
    handle: Handle,
    local: &'a Local,
    peer: Option<&'a PeerProcess>,
}

impl<'a> KernelTcp<'a> {
    /// The kernel's TCP under the stream with this handle.
    #[inline(always)]
    pub fn new(local: &'a Local, handle: Handle) -> Self {
        Self { fd: local.fd.load(Relaxed), handle, local, peer: None }
    }

    /// Uses another descriptor of the same socket.
    pub(crate) fn on_descriptor(self, fd: i32) -> Self {
        Self { fd, ..self }
    }

    /// For the thread that has made the handle stale and has to end the stream. No other thread uses the record until it is free.
    pub(crate) fn retired(local: &'a Local) -> Self {
        Self::new(local, 0)
    }

    /// Adds the peer process, for operations that may copy from or to its memory.
    #[inline(always)]
    pub(crate) fn with_peer(self, peer: &'a PeerProcess) -> Self {
        Self { peer: Some(peer), ..self }
    }

    /// `ns`, but no more than is left until the stream's deadline, which the caller observes, and no more than the program's SO_RCVTIMEO.
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

impl Platform for KernelTcp<'_> {
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
        // The kernel counts memory: small pieces that the peer has not acknowledged take up to 3/8 more than their payload.
        socket::send_room(self.fd) / 8 * 5
    }

    fn tcp_alive(&mut self) -> bool {
        socket::is_connected(self.fd)
    }

    fn tcp_failed(&mut self, peer: u32) -> bool {
        let known = self.local.cookie.load(Relaxed);
        if known != 0 && socket::cookie(self.fd) != Ok(known) {
            return true; // closed where Motet could not see it, and the number is another file's
        }
        !socket::is_connected(self.fd)
            && (socket::has_error(self.fd) || socket::addresses(self.fd).is_err() || other_end_is_gone(self.fd, peer))
    }

    #[cold]
    fn may_lack_cpu(&mut self, peer: u32) -> bool {
        let (now, last) = (clock::nanoseconds(), LAST_WAIT_FOR_CPU_NS.load(Relaxed));
        (last == 0 || now.saturating_sub(last) > TIME_BETWEEN_WAITS_FOR_CPU_NS)
            && thread::has_runnable_thread(peer)
            && LAST_WAIT_FOR_CPU_NS.compare_exchange(last, now, Relaxed, Relaxed).is_ok()
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
        let limit = if few { LARGE_RINGS_WITHOUT_BULK_MAX_BYTES } else { LARGE_RINGS_MAX_BYTES };
        let taken = LARGE_RING_BYTES.fetch_add(ring.length(), Relaxed);
        if taken + ring.length() <= limit && memory::populate(ring) {
            return true;
        }
        LARGE_RING_BYTES.fetch_sub(ring.length(), Relaxed);
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
        match GATE_REST_NS.load(Relaxed) {
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

/// Whether the other end's socket is closed, rather than shut down for sending. A process that ends sends the FIN first and releases the socket a
/// moment later, so the kernel is asked several times, and longer if that process, `peer`, is known to be exiting.
pub fn other_end_is_gone(fd: i32, peer: u32) -> bool {
    let (Ok((local, peer_address)), Ok(diag)) = (socket::addresses(fd), sock_diag::SockDiag::open_untracked()) else {
        return false;
    };
    let longer = [1_000_000; 50].iter().take_while(|_| thread::is_exiting(peer));
    for nap in [10_000, 30_000, 60_000].iter().chain(longer).chain(&[0]) {
        match diag.find(peer_address, local) {
            Ok(Some(found)) if found.open => thread::sleep_ns(*nap),
            Ok(Some(_)) => return true,
            _ => return false, // shut down both ways: the kernel finds neither socket, and a process may still read
        }
    }
    false
}
