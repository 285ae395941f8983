//! What a driver does for streams: a wire beside a TCP connection.

use crate::reason::Reason;
use motet_sys::socket::Credentials;
use motet_wire::stream::slot::Slot;
use std::net::SocketAddr;

/// The stream half of a driver. The engine asks every driver of the table whether it can carry a pair ([`StreamDriver::reach`]), takes the
/// best, and steps its [`Connecting`] from inside the calls that a program makes anyway: no driver needs a thread.
pub trait StreamDriver: Sync {
    /// Whether it could carry this pair; cheap, decided from addresses. The reason is kept.
    fn reach(&self, pair: &Pair) -> Result<(), Reason>;
    /// Begins to bring up a wire.
    fn connect(&self, pair: &Pair) -> Result<Box<dyn Connecting>, Reason>;
    /// The stream that used this wire has ended on our side, and no thread uses the wire any more.
    fn close(&self, slot: &Slot);
    /// This process uses the wire no more, but another process of the fork group has ended the stream.
    fn abandon(&self, slot: &Slot) {
        let _ = slot;
    }
}

/// A pair of ends, as one of them knows it.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// Our descriptor; the driver may query it, never read or write it.
    pub fd: i32,
    /// Our address.
    pub local: SocketAddr,
    /// The peer's.
    pub peer: SocketAddr,
    /// Whether we made the connection (otherwise we accepted it).
    pub connected: bool,
    /// SO_COOKIE of our socket.
    pub cookie: u64,
    /// Ring size to offer.
    pub ring: usize,
    /// Size of the large ring to offer, 0 for none.
    pub bulk: usize,
    /// Most bytes of memory that the driver may map in this process, large rings aside.
    pub memory: usize,
    /// Huge pages for the large rings, where the system has them.
    pub huge: bool,
}

/// A wire that is up.
#[derive(Debug)]
pub struct Wire {
    /// The memory.
    pub slot: Slot,
    /// The peer, as the kernel attested it.
    pub peer: Credentials,
    /// SO_COOKIE of the peer's socket.
    pub peer_cookie: u64,
}

/// One step of bringing a wire up.
#[derive(Debug)]
pub enum Progress {
    /// Nothing yet; step again later.
    Pending,
    /// Nothing was tried, as too much is pending already; step again soon.
    Busy,
    /// Here it is.
    Up(Wire),
    /// Not for this connection.
    Rejected(Reason),
}

/// A wire on its way up. Dropping it gives everything back.
pub trait Connecting: Send {
    /// Goes on, without blocking.
    fn step(&mut self) -> Progress;
}
