//! What a driver is: capabilities as data, and a few methods.
//!
//! A driver brings up a *wire* beside a stream's TCP connection. The engine asks every driver of the table whether it can
//! carry a pair ([`Driver::reach`]), takes the best, and steps its [`Connecting`] from inside the calls that a program makes
//! anyway: no driver needs a thread.

use crate::message::transport::{Connector, Identity, Listener};
use crate::reason::Reason;
use motet_sys::socket::Credentials;
use motet_wire::stream::slot::Slot;
use std::any::Any;
use std::net::SocketAddr;

/// What a driver can do, as data: nothing in the engine asks for a driver's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Brings up a wire beside TCP. False for the base transport itself.
    pub wire: bool,
    /// The wire is memory that both ends map: gate and ring apply.
    pub shared_memory: bool,
    /// Works between hosts.
    pub between_hosts: bool,
    /// Expected one-way latency of a short message, ns: among drivers that reach a peer the smallest wins.
    pub latency: u32,
    /// Expected bandwidth, MB/s.
    pub bandwidth: u32,
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
    Crowded,
    /// Here it is.
    Up(Wire),
    /// Not for this connection.
    Never(Reason),
}

/// A wire on its way up. Dropping it gives everything back.
pub trait Connecting: Send {
    /// Goes on, without blocking.
    fn step(&mut self) -> Progress;
}

/// A transport.
pub trait Driver: Sync {
    /// As in MOTET_DRIVERS and `motet why`.
    fn name(&self) -> &'static str;
    /// What it can do.
    fn capabilities(&self) -> Capabilities;
    /// Whether it could carry this pair; cheap, decided from addresses. The reason is kept.
    fn reach(&self, pair: &Pair) -> Result<(), Reason>;
    /// Begins to bring up a wire.
    fn connect(&self, pair: &Pair) -> Result<Box<dyn Connecting>, Reason>;
    /// The stream that used this wire has ended on our side, and no thread uses the wire any more.
    fn close(&self, slot: &Slot);
    /// This process uses the wire no more, but it was a forked relative that ended the stream.
    fn abandon(&self, slot: &Slot) {
        let _ = slot;
    }
    /// Waits for other nodes, which bring messages. A driver that carries none says so.
    fn listen(&self, node: &Identity) -> Result<Box<dyn Listener>, Reason> {
        let _ = node;
        Err(Reason::NO_MESSAGES)
    }
    /// Begins to meet the node at an address that a [`Listener`] of this driver gave out, or that a user wrote.
    fn call(&self, node: &Identity, address: &str) -> Result<Box<dyn Connector>, Reason> {
        let _ = (node, address);
        Err(Reason::NO_MESSAGES)
    }
    /// Bytes of memory that the driver has mapped in this process.
    fn memory(&self) -> usize;
    /// Links (what exists between this process and one other) that this process has opened, and closed.
    fn links(&self) -> [u64; 2] {
        [0, 0]
    }
    /// Before a fork: locks that the child must not find taken by a thread that it does not have. Dropped after it, in both.
    fn quiet(&self) -> Box<dyn Any> {
        Box::new(())
    }
    /// In a forked child: nothing of the parent's may be handed out twice.
    fn forked(&self) {}
}
