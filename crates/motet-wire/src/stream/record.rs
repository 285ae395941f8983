//! A stream's own side: counters, private indices and locks, in memory that this process shares with its forked
//! children and with `motet ps` (which only reads), and that a peer never maps.
//!
//! One record is eight cache lines: sending, receiving, gate policy, identity, and a description for people.

use crate::sync::Ordering::{self, Relaxed};
use crate::sync::{AtomicU32, AtomicU64};

/// Everything of one stream on this side.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct StreamRecord {
    /// Sending half.
    pub tx: Tx,
    /// Receiving half.
    pub rx: Rx,
    /// Lifecycle, ownership and gate policy.
    pub lifecycle: Lifecycle,
    /// Events worth a counter.
    pub events: Events,
    /// ConnectionInfo is at the other end; written once.
    pub connection: ConnectionInfo,
}

/// Sending half. Guarded by `lock`, except where stated.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Tx {
    /// 0, or the token of the holder.
    pub lock: AtomicU64,
    /// Bytes put into the ring ever (private copy of the tail).
    pub tail: AtomicU64,
    /// How far the consumer is known to be: `head_seen <= consumer's head <= tail`. Also written by our receiver.
    pub head_seen: AtomicU64,
    /// Payload bytes sent over TCP since the connection began.
    pub tcp_bytes: AtomicU64,
    /// What we last wrote to the mark.
    pub mark: AtomicU64,
    /// Kernel sends under way.
    pub kernel_calls: AtomicU32,
    /// 1 once `tcp` is initialised and the gate may be used.
    pub ready: AtomicU32,
    /// When the peer was last known to be alive (ticks).
    pub peer_alive_at: AtomicU64,
    /// Ring bytes that were taken back and sent over TCP.
    pub returned_bytes: AtomicU64,
    /// Bytes that went by single copy.
    pub single_copy_bytes: AtomicU64,
    /// Large sends that do not wait for a receiver, since the last ones did so in vain: `motet_proto::stream::single_copy`.
    pub single_copy_skips: AtomicU32,
    /// 1 when the kernel lets us read the peer's memory.
    pub may_copy: AtomicU32,
    /// 1 when the unread bytes lie in the large ring.
    pub wide: AtomicU32,
    /// How large puts are copied, and whether that is being tried: `motet_proto::stream::bulk`.
    pub copy_mode: AtomicU32,
    /// Bytes of large puts since the way of copying was last looked at.
    pub window_bytes: AtomicU32,
    /// Throughput of the two ways when last tried, MB/s: through the caches, around them.
    pub copy_rates: [AtomicU32; 2],
    /// How the last put went: 0 not at all, 1 into the ring, 2 into the large one.
    pub last_put: AtomicU32,
    /// Unread bytes that the ring may hold: no more than TCP has room for.
    pub unread_limit: AtomicU32,
    /// The peer's head (its lower half) when this side last wanted to sleep.
    pub head_at_wait: AtomicU32,
    /// Ticks that the puts of `window` took.
    pub window_ticks: AtomicU64,
    /// Bytes until the other way of copying is tried again.
    pub bytes_until_retry: AtomicU64,
}

/// Receiving half. Guarded by `lock`, except where stated.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Rx {
    /// 0, or the token of the holder.
    pub lock: AtomicU64,
    /// Bytes consumed from the ring ever (private copy of the head).
    pub head: AtomicU64,
    /// Payload bytes received over TCP since the connection began.
    pub tcp_bytes: AtomicU64,
    /// The mark of this epoch.
    pub mark: AtomicU64,
    /// Unlimited kernel receives under way, and sleeps that cover this stream: while not 0 the gate stays closed.
    pub kernel_calls: AtomicU32,
    /// 1 once `tcp` is initialised and the gate may be raised.
    pub ready: AtomicU32,
    /// 1 when `mark` is that of the present epoch.
    pub mark_known: AtomicU32,
    /// Waits to skip before spinning again, and how often spinning failed in a row.
    pub spin_skips: AtomicU32,
    /// See `skip`.
    pub failed_spins: AtomicU32,
    /// 1 while an interposed wait that covers this stream preceded the receives (invariant 4).
    pub evidence_left: AtomicU32,
    /// Bytes that the producer took back before we read them.
    pub returned_bytes: AtomicU64,
    /// Bytes that came by single copy.
    pub single_copy_bytes: AtomicU64,
    /// 1 when the present epoch uses the large ring.
    pub wide: AtomicU32,
    /// What speaks for bulk data: two scores of 16 bits (`motet_proto::stream::bulk`).
    pub bulk_scores: AtomicU32,
    /// What became of the large ring's pages.
    pub large_ring_state: AtomicU32,
    /// 1 when the peer was on our CPU when we last had to wait for it.
    pub same_cpu: AtomicU32,
    /// When a blocking receive was last left to the kernel, ticks; 0: not since.
    pub kernel_wait_since: AtomicU64,
    /// `head` when TCP was last seen empty, and when it was last about to be looked at: what TCP has later was sent later.
    pub head_at_tcp_empty: AtomicU64,
    /// See `quiet`.
    pub head_at_tcp_probe: AtomicU64,
    /// TCP bytes that came although the gate was open, weighed against those that used it: `motet_proto::stream::bulk`.
    pub tcp_past_open_gate: AtomicU32,
    /// 1 when the last yield of a wait gave the CPU to somebody who soon gave it back.
    pub yield_returned: AtomicU32,
    /// What had been put into the ring when a wait last looked because the peer had been met there.
    pub tx_tail_at_wait: AtomicU64,
}

/// What becomes of a stream.
#[repr(u32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No stream.
    Free = 0,
    /// On TCP, may still be upgraded.
    Candidate = 1,
    /// Both ends hold the slot.
    Attached = 2,
    /// On TCP for good.
    TcpOnly = 3,
    /// The peer broke the protocol, or the order of bytes became unprovable: reset.
    Broken = 4,
}

impl State {
    /// The state with this number; anything else is `Free`.
    pub fn from_u32(n: u32) -> Self {
        match n {
            1 => Self::Candidate,
            2 => Self::Attached,
            3 => Self::TcpOnly,
            4 => Self::Broken,
            _ => Self::Free,
        }
    }

    /// As `motet ps` prints it.
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

/// Lifecycle, ownership and gate policy.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Lifecycle {
    /// Bumped when the stream ends; part of its handle.
    pub generation: AtomicU32,
    /// A [`State`].
    pub state: AtomicU32,
    /// The process that took the stream.
    pub owner: AtomicU32,
    /// Its descriptor there.
    pub fd: AtomicU32,
    /// Why the stream is where it is: a reason code of the engine.
    pub reason: AtomicU32,
    /// 1 when the stream must stay on TCP in the receiving direction.
    pub tcp_only: AtomicU32,
    /// Set by `wake`, cleared by the call that it interrupted.
    pub woken: AtomicU32,
    /// Which end of the slot we are.
    pub slot_end: AtomicU32,
    /// Deadline for blocking calls, ns of CLOCK_MONOTONIC; 0 none.
    pub deadline_ns: AtomicU64,
    /// Messages seen while the upgrade is pending.
    pub pending_messages: AtomicU32,
    /// 1 when the descriptor was O_NONBLOCK when the engine took it.
    pub nonblocking: AtomicU32,
    /// TCP_NODELAY as the program sees it, plus one, once the engine has set the kernel's; 0: the kernel's is the program's.
    pub nodelay: AtomicU32,
    /// An error that the connection has died of and that the program has not been told yet; 0: none. Or [`UNORDERED`].
    pub error: AtomicU32,
    /// Which members of the process family have the stream, a bit each: `motet_engine::stream::fork_group`.
    pub members: AtomicU64,
}

/// Events worth a counter.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Events {
    /// Gates raised.
    pub raised: AtomicU64,
    /// Spins that did not pay. (Those that did are not counted: that is the path of a short message.)
    pub spin_misses: AtomicU64,
    /// Times a full ring spilled to TCP.
    pub spilled: AtomicU64,
    /// Times unread bytes were taken back.
    pub downgraded: AtomicU64,
    /// Large transfers by single copy.
    pub single_copy: AtomicU64,
    /// Times a put found the gate just closed.
    pub lost_puts: AtomicU64,
    /// Whether only one direction of this stream finds open gates: see [`GateMisses`].
    pub gate_misses: GateMisses,
}

/// What is known of the sends that had to use the kernel: `motet_proto::stream::exchange`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct GateMisses {
    /// Sends in a row that met a closed gate, with little received between them.
    pub in_a_row: AtomicU32,
    /// Times the own gate stayed closed because of them.
    pub gate_kept_closed: AtomicU32,
    /// Bytes put into the ring (lower half) when the last such send began.
    pub sent_at_miss: AtomicU32,
    /// Bytes received on either path (lower half) when the last such send began.
    pub received_at_miss: AtomicU32,
}

/// ConnectionInfo is at the other end.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ConnectionInfo {
    /// SO_COOKIE of our socket and of the peer's.
    pub cookies: [AtomicU64; 2],
    /// Peer's pid, uid, gid as the kernel attested them; `u32::MAX` when unknown.
    pub pid: AtomicU32,
    /// See `pid`.
    pub uid: AtomicU32,
    /// See `pid`.
    pub gid: AtomicU32,
    /// 1 connected, 2 accepted.
    pub role: AtomicU32,
    /// Address family: 4 or 6.
    pub family: AtomicU32,
    /// Ports, local and peer.
    pub ports: [AtomicU32; 2],
    /// 1 when a receive has waited in vain for a producer that had claimed its bytes: one that was stopped, or does not mean well.
    pub producer_stalled: AtomicU32,
    /// Addresses, local and peer, network order; IPv4 in the first word.
    pub addresses: [[AtomicU32; 4]; 2],
    /// When the stream began, seconds of CLOCK_REALTIME.
    pub began: AtomicU64,
}

/// In place of an error: bytes were moved past Motet, and nobody knows the order.
pub const UNORDERED: u32 = u32::MAX;

/// Bytes of a record.
pub const SIZE: usize = size_of::<StreamRecord>();

impl StreamRecord {
    /// The state, read once.
    #[inline(always)]
    pub fn state(&self) -> State {
        State::from_u32(self.lifecycle.state.load(Ordering::Acquire))
    }

    /// Bytes that went over the wire and stayed there (sent, received).
    pub fn fast_bytes(&self) -> (u64, u64) {
        let sent = self.tx.tail.load(Relaxed).saturating_sub(self.tx.returned_bytes.load(Relaxed));
        let received = self.rx.head.load(Relaxed).saturating_sub(self.rx.returned_bytes.load(Relaxed));
        (sent + self.tx.single_copy_bytes.load(Relaxed), received + self.rx.single_copy_bytes.load(Relaxed))
    }

    /// Bytes that went over TCP (sent, received).
    pub fn tcp_bytes(&self) -> (u64, u64) {
        (self.tx.tcp_bytes.load(Relaxed), self.rx.tcp_bytes.load(Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn halves_are_lines_of_their_own() {
        assert_eq!(std::mem::offset_of!(StreamRecord, rx) % 64, 0);
        assert_eq!(std::mem::offset_of!(StreamRecord, lifecycle) % 64, 0);
        assert!(size_of::<Tx>() <= 128 && size_of::<Rx>() <= 128);
        assert_eq!(SIZE % 128, 0);
    }
}
