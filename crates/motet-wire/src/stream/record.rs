//! The record of a stream's own side: private indices, locks, policy state and counters.
//!
//! What it is: eight cache lines in memory that this process shares with its forked children and with `motet ps`, which only reads it. What it is
//! not: nothing of it is shared with the peer, which never maps it.

use crate::copy_mode::CopyMode;
use crate::sync::Ordering::{self, Relaxed};
use crate::sync::{AtomicU32, AtomicU64};

/// The own side of one stream.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct StreamRecord {
    /// Sending half.
    pub tx: Tx,
    /// Receiving half.
    pub rx: Rx,
    /// State, ownership and options.
    pub lifecycle: Lifecycle,
    /// Event counters.
    pub events: Events,
    /// The connection and the peer. Written once, but for `producer_stalled`.
    pub connection: ConnectionInfo,
}

/// Sending half. Guarded by `lock`, except where stated. Ticks are those of `motet_sys::clock`.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Tx {
    /// 0, or the token of the holder of this half.
    pub lock: AtomicU64,
    /// Bytes ever put into the ring: the private copy of the tail.
    pub tail: AtomicU64,
    /// Bytes known to be consumed: `head_seen <= consumer's head <= tail`. Also written by our receiving half.
    pub head_seen: AtomicU64,
    /// Payload bytes sent over TCP since the connection began.
    pub tcp_bytes: AtomicU64,
    /// The value last written to the mark, TCP bytes; `u64::MAX`: none.
    pub mark: AtomicU64,
    /// Sends that are in the kernel at present.
    pub kernel_calls: AtomicU32,
    /// 0 until `tcp_bytes` is initialised and the gate may be used; other values: `motet_proto::stream`.
    pub ready: AtomicU32,
    /// When the peer was last known to be alive, ticks.
    pub peer_alive_at: AtomicU64,
    /// Ring bytes that were taken back and sent over TCP.
    pub returned_bytes: AtomicU64,
    /// Bytes sent by single copy.
    pub single_copy_bytes: AtomicU64,
    /// Large sends that do not wait for a receiver because the last waits failed, with flags: `motet_proto::stream::single_copy`.
    pub single_copy_skips: AtomicU32,
    /// 1: the kernel lets us read the peer's memory.
    pub may_copy: AtomicU32,
    /// 1: the unread bytes are in the large ring.
    pub wide: AtomicU32,
    /// The last put: 0 none, 1 into the ring, 2 into the large ring.
    pub last_put: AtomicU32,
    /// Unread bytes that the ring may hold: no more than TCP has room for.
    pub unread_limit: AtomicU32,
    /// The peer's head (lower half) when a thread of this side last wanted to sleep.
    pub head_at_wait: AtomicU32,
    /// How large puts are copied.
    pub copy_mode: CopyMode,
}

/// Receiving half. Guarded by `lock`, except where stated. Ticks are those of `motet_sys::clock`.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Rx {
    /// 0, or the token of the holder of this half.
    pub lock: AtomicU64,
    /// Bytes ever consumed from the ring: the private copy of the head.
    pub head: AtomicU64,
    /// Payload bytes received over TCP since the connection began.
    pub tcp_bytes: AtomicU64,
    /// The mark of the current epoch, TCP bytes.
    pub mark: AtomicU64,
    /// Unlimited receives in the kernel, and sleeps that cover this stream, at present. While this is not 0 the gate stays closed.
    pub kernel_calls: AtomicU32,
    /// 1: `tcp_bytes` is initialised and the gate may be raised.
    pub ready: AtomicU32,
    /// 1: `mark` is that of the current epoch.
    pub mark_known: AtomicU32,
    /// Waits that will not spin, because the last spins failed.
    pub spin_skips: AtomicU32,
    /// Failed spins in a row, up to a limit.
    pub failed_spins: AtomicU32,
    /// Receives that may still raise the gate because an interposed wait that covers this stream preceded them (invariant 4).
    pub evidence_left: AtomicU32,
    /// Ring bytes that the producer took back before they were read.
    pub returned_bytes: AtomicU64,
    /// Bytes received by single copy.
    pub single_copy_bytes: AtomicU64,
    /// 1: the current epoch uses the large ring.
    pub wide: AtomicU32,
    /// Evidence of bulk data: two scores of 16 bits (`motet_proto::stream::bulk`).
    pub bulk_scores: AtomicU32,
    /// State of the large ring's pages (`motet_proto::stream::bulk`).
    pub large_ring_state: AtomicU32,
    /// 1: the peer was on this CPU when this side last had to wait for it.
    pub same_cpu: AtomicU32,
    /// When a blocking receive was last left to the kernel, ticks; 0: none is left to evaluate.
    pub kernel_wait_since: AtomicU64,
    /// `head` when TCP was last seen empty: TCP bytes that arrive later were sent later.
    pub head_at_tcp_empty: AtomicU64,
    /// `head` when a check whether TCP is empty last began.
    pub head_at_tcp_probe: AtomicU64,
    /// TCP bytes that arrived although the gate was open, less a multiple of those that used the ring: `motet_proto::stream::bulk`.
    pub tcp_past_open_gate: AtomicU32,
    /// 1: the last yield of a wait gave the CPU to a thread that soon gave it back.
    pub yield_returned: AtomicU32,
    /// [`Tx::tail`] (lower half) when a wait last spun only because the previous put had found the peer's gate open.
    pub tx_tail_at_wait: AtomicU32,
    /// The position (lower half of [`Tx::tail`]) up to which the bytes have paid for waits for space in the ring. Guarded by [`Tx::lock`].
    pub tx_waits_paid: AtomicU32,
}

/// The state of a stream.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The record is not in use.
    Free = 0,
    /// On TCP; may still be upgraded.
    Candidate = 1,
    /// Both ends hold the slot.
    Attached = 2,
    /// On TCP until the end.
    TcpOnly = 3,
    /// Reset, because the peer broke the protocol or the order of bytes became unprovable.
    Broken = 4,
}

impl State {
    /// The state with this number; `Free` for any other number.
    pub fn from_u32(n: u32) -> Self {
        match n {
            1 => Self::Candidate,
            2 => Self::Attached,
            3 => Self::TcpOnly,
            4 => Self::Broken,
            _ => Self::Free,
        }
    }

    /// The text that `motet ps` prints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Candidate => "tcp (upgrade pending)",
            Self::Attached => "upgraded",
            Self::TcpOnly => "tcp",
            Self::Broken => "reset",
        }
    }
}

/// State, ownership and options of a stream.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Lifecycle {
    /// Incremented when the stream ends; part of its handle.
    pub generation: AtomicU32,
    /// A [`State`].
    pub state: AtomicU32,
    /// Pid of the process that took the stream.
    pub owner: AtomicU32,
    /// The stream's descriptor in that process.
    pub fd: AtomicU32,
    /// Why the stream is in its state: a reason code of the engine.
    pub reason: AtomicU32,
    /// 1: the receiving direction must stay on TCP.
    pub tcp_only: AtomicU32,
    /// Set by `wake`, cleared by the call that it interrupts.
    pub woken: AtomicU32,
    /// The end of the slot that this side is: 0 the offerer, 1 the other.
    pub slot_end: AtomicU32,
    /// Deadline of blocking calls, ns of CLOCK_MONOTONIC; 0: none.
    pub deadline_ns: AtomicU64,
    /// Messages counted while the upgrade is pending.
    pub pending_messages: AtomicU32,
    /// 1: the descriptor had O_NONBLOCK when the engine took it.
    pub nonblocking: AtomicU32,
    /// 0: TCP_NODELAY of the socket is what the program set. Otherwise the value that the program sees, plus one: the engine has set another.
    pub nodelay: AtomicU32,
    /// An error that ended the connection and has not been reported to the program; 0: none. Or [`UNORDERED`].
    pub error: AtomicU32,
    /// The processes of the fork group that have the stream, one bit each: `motet_engine::stream::fork_group`.
    pub members: AtomicU64,
}

/// Event counters of a stream.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Events {
    /// Gates raised.
    pub raised: AtomicU64,
    /// Failed spins. (Successful ones are not counted: they are the path of a short message.)
    pub spin_misses: AtomicU64,
    /// Times that a full ring spilled to TCP.
    pub spilled: AtomicU64,
    /// Times that unread bytes were taken back.
    pub downgraded: AtomicU64,
    /// Large transfers by single copy.
    pub single_copy: AtomicU64,
    /// Times that the gate closed during a put.
    pub lost_puts: AtomicU64,
    /// Sends that found a closed gate.
    pub gate_misses: GateMisses,
}

/// Sends that found a closed gate and used the kernel (`motet_proto::stream::exchange`): whether only one direction finds open gates.
#[derive(Debug, Default)]
#[repr(C)]
pub struct GateMisses {
    /// Sends in a row that found a closed gate, with few bytes received between them.
    pub in_a_row: AtomicU32,
    /// Times that our own gate stayed closed because of them.
    pub gate_kept_closed: AtomicU32,
    /// Bytes put into the ring (lower half) when the last such send began.
    pub sent_at_miss: AtomicU32,
    /// Bytes received on both paths (lower half) when the last such send began.
    pub received_at_miss: AtomicU32,
}

/// The connection of a stream, and the peer.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ConnectionInfo {
    /// SO_COOKIE of our socket and of the peer's.
    pub cookies: [AtomicU64; 2],
    /// The peer's pid as the kernel attested it; `u32::MAX`: unknown.
    pub pid: AtomicU32,
    /// The peer's user id as the kernel attested it; `u32::MAX`: unknown.
    pub uid: AtomicU32,
    /// The peer's group id as the kernel attested it; `u32::MAX`: unknown.
    pub gid: AtomicU32,
    /// 1: connected, 2: accepted.
    pub role: AtomicU32,
    /// Address family: 4 or 6.
    pub family: AtomicU32,
    /// Ports: our own, the peer's.
    pub ports: [AtomicU32; 2],
    /// 1: a receive has waited without success for a producer that had claimed unread bytes. That process is stopped or hostile.
    pub producer_stalled: AtomicU32,
    /// Addresses in network order: our own, the peer's. IPv4 is in the first word.
    pub addresses: [[AtomicU32; 4]; 2],
    /// When the stream began, seconds of CLOCK_REALTIME.
    pub began: AtomicU64,
}

/// Value of [`Lifecycle::error`]: the program moved bytes past Motet, and their order is unknown.
pub const UNORDERED: u32 = u32::MAX;

/// Bytes of a record.
pub const SIZE: usize = size_of::<StreamRecord>();

impl StreamRecord {
    /// The state, read once.
    #[inline(always)]
    pub fn state(&self) -> State {
        State::from_u32(self.lifecycle.state.load(Ordering::Acquire))
    }

    /// Bytes that used the rings or single copy (sent, received), without those that were taken back.
    pub fn fast_bytes(&self) -> (u64, u64) {
        let sent = self.tx.tail.load(Relaxed).saturating_sub(self.tx.returned_bytes.load(Relaxed));
        let received = self.rx.head.load(Relaxed).saturating_sub(self.rx.returned_bytes.load(Relaxed));
        (sent + self.tx.single_copy_bytes.load(Relaxed), received + self.rx.single_copy_bytes.load(Relaxed))
    }

    /// Bytes that used TCP (sent, received).
    pub fn tcp_bytes(&self) -> (u64, u64) {
        (self.tx.tcp_bytes.load(Relaxed), self.rx.tcp_bytes.load(Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn halves_do_not_share_cache_lines() {
        assert_eq!(std::mem::offset_of!(StreamRecord, rx) % 64, 0);
        assert_eq!(std::mem::offset_of!(StreamRecord, lifecycle) % 64, 0);
        assert!(size_of::<Tx>() <= 128 && size_of::<Rx>() <= 128);
        assert_eq!(SIZE % 128, 0);
    }
}
