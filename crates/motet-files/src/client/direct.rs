//! The directory itself: a client on the server's host executes its operations without the server, where the server allows that.

use super::totals::{Counters, Totals};
use crate::Result;
use crate::identity::{Assumed, Identities, Identity};
use crate::protocol::{Operation, Reply};
use crate::storage::{Body, FileTable, Tree, execute};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// An exported directory of this host.
#[derive(Debug)]
pub struct Direct {
    tree: Tree,
    files: FileTable,
    counters: Counters,
}

impl Direct {
    /// The directory behind this descriptor.
    pub fn new(root: OwnedFd, read_only: bool, identities: Option<Identities>) -> Result<Self> {
        let tree = Tree::new(root, read_only, identities)?;
        Ok(Self { tree, files: FileTable::default(), counters: Counters::default() })
    }

    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.tree.is_read_only()
    }

    /// What it has asked for.
    pub fn totals(&self) -> Totals {
        self.counters.totals(self.files.len(), self.files.lock_owners())
    }

    /// What became of its opens with O_DIRECT.
    pub fn direct_opens(&self) -> String {
        self.counters.direct_opens().to_string()
    }

    /// Whether operations are executed as the users that they name.
    pub fn has_identities(&self) -> bool {
        self.tree.has_identities()
    }

    /// Gives this thread the identity with which a file was opened.
    pub fn assume_opener(&self, identity: Option<&Identity>) -> Result<Option<Assumed<'_>>> {
        self.tree.assume(identity)
    }

    /// Executes an operation as `identity`; returns its answer, with the number of bytes in `into`.
    pub fn call(
        &self,
        identity: Option<&Identity>,
        operation: &Operation<'_>,
        data: &[u8],
        into: &mut [u8],
    ) -> Result<(Reply, usize)> {
        self.counters.sent(operation, data.len());
        let executed = execute(&self.tree, &self.files, identity, operation, data, into, &mut || {});
        let (reply, body) = executed.inspect_err(|_| self.counters.failed())?;
        let length = match body {
            Body::Empty => 0,
            Body::Buffered(length) => length,
            Body::Owned(bytes) => {
                into.get_mut(..bytes.len()).ok_or(Errno::RANGE)?.copy_from_slice(&bytes);
                bytes.len()
            }
        };
        self.counters.answered(&reply, length);
        Ok((reply, length))
    }

    /// The descriptor of an open file, with the same file description.
    pub fn descriptor(&self, number: u32) -> Result<OwnedFd> {
        self.files.get(number)?.descriptor().try_clone_to_owned()
    }
}
