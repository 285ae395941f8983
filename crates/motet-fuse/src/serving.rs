//! The threads that serve a mount.

use crate::callers::{has_ended, is_gone};
use crate::mounted::MountedExport;
use crate::notices;
use fuser::{BackgroundSession, Config, Session, SessionACL};
use motet_files::client::{Client, Subscription};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// How a mount is served.
#[derive(Debug, Clone, Copy)]
pub struct Service {
    /// How long the kernel may use names and attributes without asking.
    pub validity: Duration,
    /// The kernel keeps written data for a while.
    pub writeback: bool,
    /// Threads that answer the kernel.
    pub threads: usize,
    /// Whose requests are served.
    pub users: SessionACL,
    /// Each thread has a queue, which the kernel joins only to a device that was opened in the user namespace of this process.
    pub queues: bool,
}

/// A mount that is served. Dropping it leaves the threads alone, which end with the mount.
#[derive(Debug)]
pub struct Serving {
    session: BackgroundSession,
    device: Arc<OwnedFd>,
    _notices: Option<Subscription>,
}

impl Serving {
    /// Serves the mount of this device.
    pub fn start(client: Client, device: OwnedFd, service: Service) -> std::io::Result<Self> {
        let Service { validity, writeback, threads, users, queues } = service;
        let mut config = Config::default();
        config.acl = users;
        config.n_threads = Some(threads.max(1));
        config.clone_fd = queues;
        let watched = Arc::new(device.try_clone()?);
        let of_callers = Arc::downgrade(&watched);
        client.end_waits_by(Box::new(move |thread| has_ended(&of_callers, thread)))?;
        let mounted = MountedExport::new(client.clone(), validity, writeback)?;
        let (nodes, freshness, kernel) = (mounted.shared_nodes(), mounted.freshness(), mounted.kernel());
        let session = Session::from_fd(mounted, device, users, config)?;
        let _ = kernel.set(session.notifier());
        let session = session.spawn()?;
        let notices = notices::tell(&client, nodes, freshness, Arc::downgrade(&watched))?;
        Ok(Self { session, device: watched, _notices: notices })
    }

    /// Whether the connection to the kernel has ended.
    pub fn is_gone(&self) -> bool {
        is_gone(&self.device)
    }

    /// Waits until the connection to the kernel has ended, and the threads with it.
    pub fn wait(self) -> std::io::Result<()> {
        match self.session.join() {
            // A thread that is reading a request when the connection ends gets this, others ENODEV, which fuser knows.
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => Ok(()),
            ended => ended,
        }
    }
}
