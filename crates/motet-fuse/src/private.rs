//! A mount in a mount namespace of its own, served by a process that is not in the namespace.
//!
//! The process in the namespace calls [`attach`] and hands the descriptor to the other one, which calls [`Private::start`]. The mount ends when the last process
//! of the namespace has ended, however that happens: the server holds nothing of the namespace.

use crate::mounted::MountedExport;
use crate::notices;
use fuser::{BackgroundSession, Config, Session, SessionACL};
use motet_files::client::{Client, Subscription};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, mount};
use rustix::process::{getegid, geteuid};
use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// Mounts the export `name` at `directory` in the mount namespace of this process; returns the descriptor from which it is to be served.
///
/// All users of the namespace may use it, with the permissions of its files. Fails if /dev/fuse cannot be opened, or the process may not mount.
pub fn attach(directory: &Path, name: &str, read_only: bool) -> std::io::Result<OwnedFd> {
    let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
        std::io::Error::new(std::io::Error::from(error).kind(), format!("/dev/fuse: {}", std::io::Error::from(error)))
    })?;
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let options = format!(
        "fd={},rootmode=40000,user_id={user},group_id={group},default_permissions,allow_other",
        device.as_raw_fd()
    );
    let options = CString::new(options)?;
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    let flags = if read_only { flags | MountFlags::RDONLY } else { flags };
    mount(format!("motet:{name}"), directory, "fuse.motet", flags, options.as_c_str())?;
    Ok(device)
}

/// A mount that is served.
#[derive(Debug)]
pub struct Private {
    session: BackgroundSession,
    _notices: Option<Subscription>,
}

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
        let mut config = Config::default();
        config.acl = SessionACL::All;
        config.n_threads = Some(threads.max(1));
        // A queue for each thread, which the kernel joins only to a device that was opened in the same user namespace.
        config.clone_fd = same_user_namespace;
        let mounted = MountedExport::new(client.clone(), validity, false)?;
        let nodes = mounted.shared_nodes();
        let session = Session::from_fd(mounted, device, SessionACL::All, config)?.spawn()?;
        let notices = notices::tell(&client, nodes, session.notifier())?;
        Ok(Self { session, _notices: notices })
    }

    /// Waits until no process has the mount any more.
    pub fn wait(self) -> std::io::Result<()> {
        self.session.join()
    }
}
