//! The stream protocol: a TCP connection with a gated ring beside it.
//!
//! What it is: the two halves of a stream that is a TCP connection with a gated ring beside it. [`tx`] decides for each
//! send whether payload goes into the ring or to the kernel; [`rx`] puts both back into one order; [`gate`] opens and closes
//! the way into the ring; [`confined`] is what a confined process does; [`spin`] waits; [`bulk`] decides when data flows in bulk and how it is copied then; [`single_copy`]
//! moves large blocks with one copy; [`half_lock`] is the short lock of one half.
//!
//! What it is not: it makes no system call and reads no clock. Everything outside the two cache lines of a gate comes
//! through [`Platform`]: in production the kernel, in the tests a simulated pair under a virtual clock.
//!
//! The order of bytes, in one sentence: a receiver takes TCP bytes up to the *mark*, then what is in the ring, then TCP
//! again; a new ring epoch begins only over an empty ring, so there is never more than one. Invariants and proof:
//! `docs/sockets.md`.

pub mod bulk;
pub mod confined;
mod exchange;
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

/// How long a receive rests with its gate open ([`Platform::patience`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Nanoseconds; 0: it does not rest.
    pub ns: u64,
    /// Whether the program's own time limit for a receive is over then: it fails with EAGAIN.
    pub expires: bool,
}

impl Patience {
    /// No rest.
    pub const NONE: Self = Self { ns: 0, expires: false };
}

/// What a half needs from the world: the TCP connection under it, time, and the scheduler.
pub trait Platform {
    /// Receives from TCP without blocking; `Ok(0)` is end of file.
    fn tcp_recv(&mut self, bufs: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, Errno>;
    /// Sends to TCP without blocking.
    fn tcp_send(&mut self, bytes: &[u8]) -> Result<usize, Errno>;
    /// What was sent reaches the peer now, even where the program holds short segments back (TCP_CORK): the peer was told of these bytes.
    fn tcp_push(&mut self) {}
    /// Whether a TCP receive would return at once (data, end of file, error).
    fn tcp_readable(&mut self) -> bool;
    /// Bytes that TCP has ready.
    fn tcp_pending(&mut self) -> u64;
    /// Payload bytes that anybody has read from TCP, by the kernel's count; `counted`, our own, where it cannot tell more.
    fn tcp_bytes_read(&mut self, counted: u64) -> u64;
    /// Payload bytes that anybody has written to TCP, likewise.
    fn tcp_bytes_written(&mut self, counted: u64) -> u64;
    /// Payload bytes that TCP takes for certain without blocking, in whatever pieces.
    fn tcp_send_room(&mut self) -> u64 {
        u64::MAX
    }
    /// Whether the connection still stands (no hang-up, no error).
    fn tcp_alive(&mut self) -> bool;
    /// Whether a send would fail: the connection has an error, which the send would consume, or no process has the other end.
    /// `peer` is the process that had it.
    fn tcp_failed(&mut self, peer: u32) -> bool;
    /// Copies from an address in process `pid` into `into`; false when the kernel refuses or the address is not there.
    fn read_peer_memory(&mut self, pid: u32, address: u64, into: &mut [u8]) -> bool;
    /// Copies `from` to an address in process `pid`.
    fn write_peer_memory(&mut self, pid: u32, address: u64, from: &[u8]) -> bool;
    /// Whether `pid` still is the process that it was when this was first asked on this connection: a number may be given to
    /// another process once its holder is gone. False, too, where the kernel cannot tell.
    fn is_same_process(&mut self, pid: u32) -> bool;
    /// Brings the pages of a large ring into being, for this process; false when there is no memory (or no budget) for them, or when there are
    /// more than a few already and only `few` are wanted.
    fn populate(&mut self, ring: Mapping, few: bool) -> bool;
    /// Enters pages that the peer has populated into this process's page tables, rather than one fault at a time.
    fn prefault(&mut self, ring: Mapping);
    /// Monotonic time in ticks.
    fn now(&self) -> u64;
    /// Ticks in a nanosecond times 1024.
    fn ticks_per_1024ns(&self) -> u64;
    /// The CPU this thread runs on.
    fn cpu(&self) -> u32;
    /// Lets another thread of this CPU run.
    fn yield_now(&mut self);
    /// Whether a yield would most likely run a thread that computes, and last as long as its time slice.
    #[inline(always)]
    fn is_cpu_contended(&self) -> bool {
        false
    }
    /// Sleeps for about `ns`. Never called with a lock held.
    fn sleep(&mut self, ns: u64);
    /// How long a receive on this stream rests with its gate open before it goes to the kernel: a setting for tests, none as a rule.
    fn patience(&self, _record: &StreamRecord) -> Patience {
        Patience::NONE
    }
    /// [`nap`](Self::nap) for a receive that rests; false when a signal handler ran that ends the program's call (EINTR).
    fn interruptible_sleep(&mut self, ns: u64) -> bool {
        self.sleep(ns);
        true
    }
    /// Identifies this thread: the process in the high half, never 0.
    fn lock_token(&self) -> u64;
    /// Whether the process of a token still exists.
    fn lock_holder_exists(&self, token: u64) -> bool;
    /// Whether the record still is that of the stream on which the operation began. Asked with a lock of the record held.
    #[inline(always)]
    fn is_current(&self) -> bool {
        true
    }

    /// What this process knows of the large blocks that come.
    fn arrival_timer(&self) -> Option<&bulk::ArrivalTimer> {
        None
    }

    /// Nanoseconds as ticks.
    fn ticks(&self, ns: u64) -> u64 {
        (ns * self.ticks_per_1024ns()) >> 10
    }
}
