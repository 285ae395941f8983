//! The stream protocol: a TCP connection with a gated ring beside it.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`tx`] | the sending half: decides for each send whether payload goes into the ring or to the kernel |
//! | [`rx`] | the receiving half: puts the bytes of TCP and of the ring back into one order |
//! | [`gate`] | opens and closes the consumer's gate |
//! | [`spin`] | waits outside the kernel as long as that pays |
//! | [`bulk`] | decides when data counts as bulk, and how it is copied |
//! | [`single_copy`] | moves large blocks with one copy |
//! | [`half_lock`] | the short lock of one half |
//! | [`confined`] | the receiving half of a process that has confined its system calls |
//!
//! It makes no system call and reads no clock. Everything outside the shared memory goes through [`Platform`]: the kernel in production, a
//! simulated pair under a virtual clock in the tests.
//!
//! The order of bytes: a receiver takes TCP bytes up to the *mark*, then what is in the ring, then TCP again. A new ring epoch begins only over an
//! empty ring, so there is never more than one. Invariants and proof: `docs/sockets-internals.md`.

mod broken;
pub mod bulk;
pub mod confined;
pub mod exchange;
pub mod gate;
pub mod half_lock;
pub mod rx;
pub mod single_copy;
pub mod spin;
pub mod tx;

use crate::Errno;
use motet_wire::mapping::Mapping;
use motet_wire::stream::record::StreamRecord;
use std::io::IoSliceMut;

/// MSG_PEEK.
pub const MSG_PEEK: i32 = 0x2;

/// How long a receive rests behind its open gate ([`Platform::patience`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Nanoseconds; 0: it does not rest.
    pub ns: u64,
    /// The program's own time limit for the receive ends at the same time: the receive then fails with EAGAIN.
    pub expires: bool,
}

impl Patience {
    /// No rest.
    pub const NONE: Self = Self { ns: 0, expires: false };
}

/// What a half needs from outside: the TCP connection under it, the peer's memory, time, and the scheduler.
pub trait Platform {
    /// Receives from TCP without blocking; `Ok(0)` is end of file.
    fn tcp_recv(&mut self, bufs: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, Errno>;
    /// Sends to TCP without blocking.
    fn tcp_send(&mut self, bytes: &[u8]) -> Result<usize, Errno>;
    /// Sends held-back bytes now, even if the program holds short segments back (TCP_CORK): the mark has announced these bytes to the peer.
    fn tcp_push(&mut self) {}
    /// Whether a TCP receive would return at once (data, end of file, error).
    fn tcp_readable(&mut self) -> bool;
    /// Bytes that TCP has ready.
    fn tcp_pending(&mut self) -> u64;
    /// Payload bytes that all readers together have read from TCP, by the kernel's count. `counted` is this half's own count; it is returned where the
    /// kernel does not know more.
    fn tcp_bytes_read(&mut self, counted: u64) -> u64;
    /// Payload bytes that all writers together have written to TCP, by the kernel's count; at least `counted`.
    fn tcp_bytes_written(&mut self, counted: u64) -> u64;
    /// Payload bytes that TCP certainly accepts without blocking, in any pieces.
    fn tcp_send_room(&mut self) -> u64 {
        u64::MAX
    }
    /// Whether the connection is up (no hang-up, no error).
    fn tcp_alive(&mut self) -> bool;
    /// Whether a send would fail: the connection has an error, which the send would consume, or no process has the other end. `peer` is the process that
    /// had it.
    fn tcp_failed(&mut self, peer: u32) -> bool;
    /// Whether `peer`, which has not finished what this thread waits for, lacks a CPU rather than the will, and may have more time. Says so rarely: a
    /// process that pretends gains little.
    fn may_lack_cpu(&mut self, peer: u32) -> bool {
        let _ = peer;
        false
    }
    /// Copies from an address in process `pid` into `into`; false if the kernel refuses or nothing is mapped there.
    fn read_peer_memory(&mut self, pid: u32, address: u64, into: &mut [u8]) -> bool;
    /// Copies `from` to an address in process `pid`; false if the kernel refuses or nothing is mapped there.
    fn write_peer_memory(&mut self, pid: u32, address: u64, from: &[u8]) -> bool;
    /// Whether `pid` is the process that it was at the first call on this connection. A pid may be reused after its process has ended. False, too, where
    /// the kernel cannot tell.
    fn is_same_process(&mut self, pid: u32) -> bool;
    /// Allocates the pages of a large ring; false if there is no memory or no budget for them. `few`: the budget is small, because many such rings would
    /// not fit the caches.
    fn populate(&mut self, ring: Mapping, few: bool) -> bool;
    /// Maps pages that the peer has allocated into this process's page tables, instead of one fault for each page.
    fn prefault(&mut self, ring: Mapping);
    /// Monotonic time in ticks.
    fn now(&self) -> u64;
    /// Ticks in a nanosecond times 1024.
    fn ticks_per_1024ns(&self) -> u64;
    /// The CPU this thread runs on.
    fn cpu(&self) -> u32;
    /// Lets another thread of this CPU run.
    fn yield_now(&mut self);
    /// Whether a yield would most likely run a thread that computes, for as long as its time slice.
    #[inline(always)]
    fn is_cpu_contended(&self) -> bool {
        false
    }
    /// Sleeps for about `ns`. Never called with a lock held.
    fn sleep(&mut self, ns: u64);
    /// How long a receive on this stream rests behind its open gate before it goes to the kernel: a setting for tests, otherwise
    /// [`Patience::NONE`].
    fn patience(&self, _record: &StreamRecord) -> Patience {
        Patience::NONE
    }
    /// [`sleep`](Self::sleep) for a receive that rests; false if a signal handler ran that ends the program's call (EINTR).
    fn interruptible_sleep(&mut self, ns: u64) -> bool {
        self.sleep(ns);
        true
    }
    /// Identifies this thread as the holder of a lock: the pid in the high half, never 0.
    fn lock_token(&self) -> u64;
    /// Whether the process of a lock token exists.
    fn lock_holder_exists(&self, token: u64) -> bool;
    /// Whether the record belongs to the stream on which the operation began. Called with a lock of the record held.
    #[inline(always)]
    fn is_current(&self) -> bool {
        true
    }

    /// Times the large blocks that this process receives.
    fn arrival_timer(&self) -> Option<&bulk::ArrivalTimer> {
        None
    }

    /// Nanoseconds as ticks.
    fn ticks(&self, ns: u64) -> u64 {
        (ns * self.ticks_per_1024ns()) >> 10
    }
}
