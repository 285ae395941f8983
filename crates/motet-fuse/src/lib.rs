//! Mounts an export as a file system: FUSE requests of the kernel become requests to the server, over the engine's fastest path.
//!
//! Every program can use the mounted directory. The kernel caches names and attributes for [`Options::validity`], and the content of a file from its close to its
//! next open if the file has not changed (close-to-open consistency). Writes are at the server when they return.
//!
//! | module | what |
//! | --- | --- |
//! | `filesystem` | the kernel's requests |
//! | `mounted` | what they share: paths, open files, the client |
//! | `found` | the file that a request concerns |
//! | `opens` | opens of files |
//! | `listings` | listings of directories |
//! | `nodes` | the files that the kernel knows, and their paths |
//! | `handles` | open files and directories |
//! | `closing` | files that programs close |
//! | `locks` | locks that a program waits for |
//! | `again` | calls that the kernel makes again |
//! | `passthrough` | files that the kernel reads and writes itself |
//! | `notices` | what other clients have changed |
//! | `convert` | attributes, flags and times |
//! | [`private`] | a mount for the processes of one mount namespace |
#![forbid(unsafe_code)]

mod again;
mod closing;
mod convert;
mod filesystem;
mod found;
mod handles;
mod listings;
mod locks;
mod mounted;
mod nodes;
mod notices;
mod opens;
mod passthrough;
pub mod private;

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use motet_files::client::{Client, Subscription};
use mounted::MountedExport;
use std::path::Path;
use std::time::Duration;

/// How an export is mounted.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name of the export, for `mount` and `df`.
    pub name: String,
    /// How long the kernel may use names and attributes without asking.
    pub validity: Duration,
    /// Other users may use the file system, with the permissions of its files.
    pub other_users: bool,
    /// Threads that answer the kernel.
    pub threads: usize,
    /// The kernel keeps written data until a close, an fsync, or its memory is needed. Only for files that no other client changes: lengths and times are the
    /// kernel's then. Without effect where the client uses the directory itself.
    pub writeback: bool,
}

/// A mounted export. Dropping it unmounts it.
#[derive(Debug)]
pub struct Mount {
    session: Option<BackgroundSession>,
    _notices: Option<Subscription>,
}

impl Mount {
    /// Mounts the export of `client` at `path`, a directory.
    pub fn start(client: Client, path: &Path, options: &Options) -> std::io::Result<Self> {
        let read_only = client.is_read_only();
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(format!("motet:{}", options.name)),
            MountOption::Subtype("motet".to_owned()),
            MountOption::DefaultPermissions,
            MountOption::NoDev,
            MountOption::NoSuid,
            if read_only { MountOption::RO } else { MountOption::RW },
        ];
        config.acl = if options.other_users { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(options.threads.max(1));
        config.clone_fd = true;
        let mounted = MountedExport::new(client.clone(), options.validity, options.writeback)?;
        let (nodes, kernel) = (mounted.shared_nodes(), mounted.kernel());
        let session = Session::new(mounted, path, &config)?;
        let _ = kernel.set(session.notifier());
        let session = session.spawn()?;
        let notices = notices::tell(&client, nodes, session.notifier())?;
        let mount = Self { session: Some(session), _notices: notices };
        read_ahead(path);
        Ok(mount)
    }

    /// Waits until the file system is unmounted, by whichever means.
    pub fn wait(mut self) -> std::io::Result<()> {
        self.session.take().map_or(Ok(()), BackgroundSession::join)
    }

    /// Unmounts it, and waits for requests under way.
    pub fn unmount(mut self) -> std::io::Result<()> {
        self.session.take().map_or(Ok(()), BackgroundSession::umount_and_join)
    }
}

/// Lets the kernel read 1 MiB ahead in what is mounted at `path`, where it may be told so: its own limit of 128 KiB makes each request short.
pub fn read_ahead(path: &Path) {
    if let Ok(stat) = rustix::fs::stat(path) {
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), "1024");
    }
}
