//! What a driver does for messages: links between nodes.

use crate::message::transport::{Connector, Identity, Listener};
use crate::reason::Reason;

/// The message half of a driver.
pub trait MessageDriver: Sync {
    /// Listens for other nodes.
    fn listen(&self, node: &Identity) -> Result<Box<dyn Listener>, Reason>;
    /// Listens in the node's folder for nodes that meet there, of whatever network namespace.
    fn listen_in_folder(&self, _node: &Identity) -> Result<Box<dyn Listener>, Reason> {
        Err(Reason::NO_MESSAGES)
    }
    /// Begins to connect to the node at an address that a [`Listener`] of this driver gave out, or that a user wrote.
    fn connect(&self, node: &Identity, address: &str) -> Result<Box<dyn Connector>, Reason>;
}
