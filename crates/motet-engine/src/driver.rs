//! What a driver is: its capabilities as data, and the traits for streams and for messages.

mod message;
mod stream;

pub use message::MessageDriver;
pub use stream::{Connecting, Pair, Progress, StreamDriver, Wire};

use crate::message::transport::{Connector, Identity, Listener};
use crate::reason::Reason;
use std::any::Any;

/// What a driver can do, as data: nothing in the engine asks for a driver's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Its wires are memory that both ends map: gate and ring apply.
    pub shared_memory: bool,
    /// Works between hosts.
    pub between_hosts: bool,
    /// Expected one-way latency of a short message, ns: among drivers that reach a peer the smallest wins.
    pub latency: u32,
    /// Expected bandwidth, MB/s.
    pub bandwidth: u32,
}

/// A driver: one transport.
pub trait Driver: Sync {
    /// The driver's name in MOTET_DRIVERS and `motet why`.
    fn name(&self) -> &'static str;
    /// What the driver can do.
    fn capabilities(&self) -> Capabilities;
    /// The stream half. `None`: the driver brings up no wires.
    fn streams(&self) -> Option<&dyn StreamDriver> {
        None
    }
    /// The message half. `None`: the driver carries no messages.
    fn messages(&self) -> Option<&dyn MessageDriver> {
        None
    }
    /// Bytes of memory that the driver has mapped in this process.
    fn memory(&self) -> usize {
        0
    }
    /// Links (between this process and one other) that this process has opened, and closed.
    fn links(&self) -> [u64; 2] {
        [0, 0]
    }
    /// Called before a fork: takes the locks that the child must not find held by a thread that it does not have. The result is dropped after the fork, in
    /// both processes.
    fn prepare_fork(&self) -> Box<dyn Any> {
        Box::new(())
    }
    /// Called in a forked child: forgets what belongs to the parent, so that nothing is handed out twice.
    fn after_fork(&self) {}
}

impl dyn Driver {
    /// Listens for other nodes; [`Reason::NO_MESSAGES`] where the driver carries no messages.
    pub fn listen(&self, node: &Identity) -> Result<Box<dyn Listener>, Reason> {
        self.messages().ok_or(Reason::NO_MESSAGES)?.listen(node)
    }

    /// Listens in the node's folder; [`Reason::NO_MESSAGES`] where the driver has no such addresses.
    pub fn listen_in_folder(&self, node: &Identity) -> Result<Box<dyn Listener>, Reason> {
        self.messages().ok_or(Reason::NO_MESSAGES)?.listen_in_folder(node)
    }

    /// Begins to connect to a node; [`Reason::NO_MESSAGES`] where the driver carries no messages.
    pub fn connect_node(&self, node: &Identity, address: &str) -> Result<Box<dyn Connector>, Reason> {
        self.messages().ok_or(Reason::NO_MESSAGES)?.connect(node, address)
    }
}
