//! What a driver does for streams: a wire beside a TCP connection.

use crate::reason::Reason;
use motet_sys::socket::Credentials;
use motet_wire::stream::slot::Slot;
use std::net::SocketAddr;

/// The stream half of a driver. The engine asks every driver of the table whether it can carry a pair ([`StreamDriver::reach`]), takes the
/// best, and steps its [`Connecting`] from inside the calls that a program makes anyway: no driver needs a thread.
pub trait StreamDriver: Sync {
    /// Whether the driver could carry this pair. Cheap: decided from addresses. The reason for a refusal is shown to the user.
    fn reach(&self, pair: &Pair) -> Result<(), Reason>;
    /// Begins to bring up a wire.
    fn connect(&self, pair: &Pair) -> Result<Box<dyn Connecting>, Reason>;
    /// Called when the stream that used this wire has ended on this side. No thread uses the wire.
    fn close(&self, slot: &Slot);
    /// Called when this process has ended its part in the stream, and is not the last process of the fork group that has it.
    fn abandon(&self, slot: &Slot) {
        let _ = slot;
    }
}

/// The two ends of a TCP connection, as one of them knows them.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// The descriptor of this end; the driver may query it, but not read or write it.
    pub fd: i32,
    /// The address of this end.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// Whether this end made the connection (otherwise it accepted it).
    pub connected: bool,
    /// SO_COOKIE of this end's socket.
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

/// The result of one step of bringing a wire up.
#[derive(Debug)]
pub enum Progress {
    /// The wire is not up yet; step again later.
    Pending,
    /// Nothing was tried, because too many wires are pending; step again soon.
    Busy,
    /// The wire is up.
    Up(Wire),
    /// This connection gets no wire.
    Rejected(Reason),
}

/// A wire that is being brought up. Dropping it releases everything.
pub trait Connecting: Send {
    /// Makes one step, without blocking.
    fn step(&mut self) -> Progress;
}
