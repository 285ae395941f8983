//! Nodes that objects of the program need.

use crate::messages::Errno;
use crate::messages::node_entry::NodeEntry;
use crate::messages::node_handles::{self, enter};

/// A node that cannot be closed: `motet_node_close` gives -EBUSY until the last pin is dropped.
pub struct Pin(&'static NodeEntry);

impl Pin {
    /// Pins the node of a handle. -EINVAL: it is for one thread only.
    pub fn new(node: u64) -> Result<Self, Errno> {
        node_handles::pin(&enter(node)?).map(Self)
    }

    /// The node.
    pub fn entry(&self) -> &NodeEntry {
        self.0
    }
}

impl Clone for Pin {
    fn clone(&self) -> Self {
        node_handles::pin_again(self.0);
        Self(self.0)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = node_handles::unpin(self.0);
    }
}
