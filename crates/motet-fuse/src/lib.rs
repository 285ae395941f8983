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
//! | `callers` | the programs whose calls wait |
//! | `serving` | the threads that serve a mount |
//! | `device` | how the kernel gets a mount, and how it is taken away |
//! | `convert` | attributes, flags and times |
//! | [`private`] | a mount for the processes of one mount namespace |
#![forbid(unsafe_code)]

mod again;
mod callers;
mod closing;
mod convert;
mod device;
mod filesystem;
mod found;
mod freshness;
mod handles;
mod listings;
mod locks;
mod mounted;
mod nodes;
mod notices;
mod opens;
mod passthrough;
pub mod private;
mod raising;
mod serving;

pub use device::unmount;

use device::Mounting;
use fuser::SessionACL;
use motet_files::client::Client;
use rustix::mount::UnmountFlags;
use serving::{Service, Serving};
use std::path::{Path, PathBuf};
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

/// A mounted export. Dropping it unmounts it: programs that use it go on.
#[derive(Debug)]
pub struct Mount {
    serving: Option<Serving>,
    path: PathBuf,
}

impl Mount {
    /// Mounts the export of `client` at `path`, a directory.
    pub fn start(client: Client, path: &Path, options: &Options) -> std::io::Result<Self> {
        let &Options { ref name, validity, other_users, threads, writeback } = options;
        let path = path.canonicalize()?;
        let users = if other_users { SessionACL::All } else { SessionACL::Owner };
        let device = Mounting { name, read_only: client.is_read_only(), other_users }.attach(&path)?;
        let service = Service { validity, writeback, threads, users, queues: true };
        match Serving::start(client, device, service) {
            Ok(serving) => {
                read_ahead(&path);
                Ok(Self { serving: Some(serving), path })
            }
            Err(error) => {
                let _ = unmount(&path, UnmountFlags::DETACH);
                Err(error)
            }
        }
    }

    /// Waits until the file system is unmounted, by whichever means.
    pub fn wait(mut self) -> std::io::Result<()> {
        self.serving.take().map_or(Ok(()), Serving::wait)
    }

    /// Unmounts it, and waits for requests under way.
    pub fn unmount(mut self) -> std::io::Result<()> {
        unmount(&self.path, UnmountFlags::empty())?;
        self.serving.take().map_or(Ok(()), Serving::wait)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // One that has ended may have another one in its place.
        if self.serving.take().is_some_and(|serving| !serving.is_gone()) {
            let _ = unmount(&self.path, UnmountFlags::DETACH);
        }
    }
}

/// Lets the kernel read 1 MiB ahead in what is mounted at `path`, where it may be told so: its own limit of 128 KiB makes each request short.
pub fn read_ahead(path: &Path) {
    if let Ok(stat) = rustix::fs::stat(path) {
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        let _ = std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), "1024");
    }
}
