//! A mount in a mount namespace of its own, served by a process that is not in the namespace.
//!
//! The process in the namespace calls [`attach`] and hands the descriptor to the other one, which calls [`Private::start`]. The mount ends when the last process
//! of the namespace has ended, however that happens: the server holds nothing of the namespace.

use crate::device::Mounting;
use crate::serving::{Service, Serving};
use fuser::SessionACL;
use motet_files::client::Client;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// Mounts the export `name` at `directory` in the mount namespace of this process; returns the descriptor from which it is to be served.
///
/// All users of the namespace may use it, with the permissions of its files. Fails if /dev/fuse cannot be opened, or the process may not mount.
pub fn attach(directory: &Path, name: &str, read_only: bool) -> std::io::Result<OwnedFd> {
    Mounting { name, read_only, other_users: true }.attach_by_kernel(directory)
}

/// A mount that is served.
#[derive(Debug)]
pub struct Private(Serving);

impl Private {
    /// Serves what was mounted with this descriptor. `validity`: how long the kernel may use names and attributes without asking. `threads`: those that answer
    /// the kernel. `same_user_namespace`: the device was opened in the user namespace of this process.
    pub fn start(
        client: Client,
        device: OwnedFd,
        validity: Duration,
        threads: usize,
        same_user_namespace: bool,
    ) -> std::io::Result<Self> {
        let queues = same_user_namespace;
        let service = Service { validity, writeback: false, threads, users: SessionACL::All, queues };
        Ok(Self(Serving::start(client, device, service)?))
    }

    /// Waits until no process has the mount any more.
    pub fn wait(self) -> std::io::Result<()> {
        self.0.wait()
    }
}
