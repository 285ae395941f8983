//! What this process keeps of one stream for itself. What it shares with forked children is the stream's record, in the stats file.

use crate::Handle;
use crate::driver::Connecting;
use crate::stream::epoll_set::members::EpollSet;
use crate::stream::exchange_pace::Pace;
use crate::stream::peer_process::Peer;
use motet_proto::stream::bulk::ArrivalTimer;
use motet_sys::fork_safe_mutex::ForkSafeMutex;
use motet_wire::stream::slot::SlotCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

/// What a process keeps about one stream for itself. A thread that forks cannot hold the locks of every stream: a child finds
/// them open, and empty what was being changed ([`ForkSafeMutex`]).
#[derive(Default)]
pub struct Local {
    /// The handle of the stream that is here; 0: none. Every use of a handle asks for it.
    pub handle: AtomicU64,
    /// Its descriptor in this process.
    pub fd: AtomicI32,
    /// The kernel's cookie of its socket. A number may be closed unseen, and given to another one.
    pub cookie: AtomicU64,
    /// Whether this end made the connection.
    pub connected: AtomicBool,
    /// Adapters that have taken the stream; the last one that closes it ends it.
    pub adapters: AtomicU32,
    /// The wire, once it is up.
    pub slot: SlotCell,
    /// The wire on its way up.
    pub pending: ForkSafeMutex<Option<Box<dyn Connecting>>>,
    /// The driver of the wire, plus one.
    pub driver: AtomicU32,
    /// The process at the other end, for single copy.
    pub peer: Peer,
    /// The epoll sets that the stream is in.
    pub sets: ForkSafeMutex<Vec<Arc<EpollSet>>>,
    /// Whether there is one.
    pub in_set: AtomicBool,
    /// Whether the set looks at the stream, or did when the stream left it.
    pub hot: AtomicBool,
    /// The blocking receives that found the gate closed, or had to do with a peer on their own CPU.
    pub pace: Pace,
    /// Eventfds of threads that sleep on the stream inside the engine's own blocking calls.
    pub sleepers: ForkSafeMutex<Vec<i32>>,
    /// Whether the stream is among the engine's unread ones.
    pub unread: AtomicBool,
    /// The large block that comes.
    pub arrival_timer: ArrivalTimer,
}

impl Local {
    /// Whether the gate of the stream may open for all that its sets know.
    #[inline]
    pub(crate) fn sets_may_raise(&self, handle: Handle) -> bool {
        !self.in_set.load(Relaxed) || self.sets.lock().iter().all(|set| set.may_raise(handle))
    }
}
