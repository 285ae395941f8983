//! The private state of one stream in this process. The state that is shared with forked children is the stream's record, in the stats file.

use crate::Handle;
use crate::driver::Connecting;
use crate::stream::epoll_set::members::EpollSet;
use crate::stream::exchange_pace::ExchangePace;
use crate::stream::peer_process::PeerProcess;
use motet_proto::stream::bulk::ArrivalTimer;
use motet_sys::fork_safe_mutex::ForkSafeMutex;
use motet_wire::stream::slot::SlotCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The private state of one stream. A thread that forks cannot hold the locks of all streams: in the child they are free, and a value that was being
/// changed is empty ([`ForkSafeMutex`]).
#[derive(Default)]
pub struct Local {
    /// The handle of the stream; 0: none. Every use of a handle is checked against it.
    pub handle: AtomicU64,
    /// The stream's descriptor in this process.
    pub fd: AtomicI32,
    /// The kernel's cookie of its socket. A descriptor may be closed where Motet cannot see it, and its number reused.
    pub cookie: AtomicU64,
    /// Whether this end made the connection.
    pub connected: AtomicBool,
    /// Adapters that have taken the stream. The last one that closes it ends it.
    pub adapters: AtomicU32,
    /// The wire, once it is up.
    pub slot: SlotCell,
    /// The wire on its way up.
    pub pending: ForkSafeMutex<Option<Box<dyn Connecting>>>,
    /// The driver of the wire, plus one.
    pub driver: AtomicU32,
    /// The process at the other end, for single copy.
    pub peer: PeerProcess,
    /// The epoll sets that the stream is in.
    pub sets: ForkSafeMutex<Vec<Arc<EpollSet>>>,
    /// Whether the stream is in a set.
    pub in_set: AtomicBool,
    /// Whether waits on its set poll the stream, or did when the stream left the set.
    pub hot: AtomicBool,
    /// The pace of blocking receives that found the gate closed, or whose peer was on their CPU.
    pub pace: ExchangePace,
    /// Eventfds of threads that sleep on the stream inside the engine's own blocking calls.
    pub sleepers: ForkSafeMutex<Vec<i32>>,
    /// Whether the stream is marked in the engine's `unread` bits.
    pub unread: AtomicBool,
    /// Times the arrival of large blocks.
    pub arrival_timer: ArrivalTimer,
}

impl Local {
    /// Whether the sets of the stream allow its gate to open.
    #[inline]
    pub(crate) fn sets_may_raise(&self, handle: Handle) -> bool {
        !self.in_set.load(Relaxed) || self.sets.lock().iter().all(|set| set.may_raise(handle))
    }
}
