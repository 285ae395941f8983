//! A mount namespace of this process, in which exported directories are mounted for the program that it becomes.
//!
//! Nothing of it is seen outside. It ends with the last process that is in it, and its mounts with it.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use motet_fuse::private;
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{Mode, OFlags, StatVfsMountFlags, open, statvfs};
use rustix::mount::{MountFlags, MountPropagationFlags, mount_bind_recursive, mount_change, mount_remount};
use rustix::process::{getegid, geteuid};

use crate::exit_error::{FAILED, Failure, Outcome, USAGE};
use crate::mount_points::mount_points;
use crate::mount_server::MountServer;

/// The namespace.
#[derive(Debug)]
pub struct Namespace {
    /// It belongs to a user namespace that was made for it.
    own_user_namespace: bool,
}

impl Namespace {
    /// Moves this process to a mount namespace of its own. Without the privilege, to a user namespace as well, which maps the user to itself.
    pub fn enter() -> Outcome<Self> {
        let own_user_namespace = match unshare(CloneFlags::CLONE_NEWNS) {
            Ok(()) => false,
            Err(nix::errno::Errno::EPERM) => {
                let (user, group) = (geteuid().as_raw(), getegid().as_raw());
                unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).map_err(not_permitted)?;
                let map = |file: &str, line: &str| fs::write(format!("/proc/self/{file}"), line);
                map("setgroups", "deny")
                    .and_then(|()| map("uid_map", &format!("{user} {user} 1")))
                    .and_then(|()| map("gid_map", &format!("{group} {group} 1")))
                    .map_err(not_permitted)?;
                true
            }
            Err(error) => return Err(not_permitted(error)),
        };
        // What others mount later appears here, nothing of here appears elsewhere.
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).map_err(not_permitted)?;
        Ok(Self { own_user_namespace })
    }

    /// Mounts the export of a server at `directory`.
    pub fn mount(&self, server: &MountServer, export: &str, directory: &Path) -> Outcome<()> {
        let device = private::attach(directory, export, server.read_only).map_err(|error| cannot(directory, error))?;
        server.serve(device.as_fd(), !self.own_user_namespace)?;
        motet_fuse::read_ahead(directory);
        again(directory);
        Ok(())
    }

    /// Mounts the directory `of` at `directory` as well. `identity`: the device and inode that `of` must have.
    pub fn bind(&self, of: &Path, identity: (u64, u64), directory: &Path, read_only: bool) -> Outcome<()> {
        let opened = open(of, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let opened = opened.map_err(|error| cannot(of, error))?;
        let found = rustix::fs::fstat(&opened).map_err(|error| cannot(of, error))?;
        if (found.st_dev, found.st_ino) != identity {
            return Err(Failure::new(FAILED, format!("{} has been replaced", of.display())));
        }
        // By the descriptor: it is this directory, whatever has its name now.
        let by_descriptor = format!("/proc/self/fd/{}", opened.as_raw_fd());
        mount_bind_recursive(by_descriptor, directory).map_err(|error| cannot(directory, error))?;
        if read_only {
            let directory = &directory.canonicalize().map_err(|error| cannot(directory, error))?;
            let mounts = fs::read("/proc/self/mountinfo").map_err(|error| cannot(directory, error))?;
            for mounted in mount_points(&mounts).filter(|at| at.starts_with(directory)) {
                refuse_changes(&mounted).map_err(|error| cannot(&mounted, error))?;
            }
        }
        again(directory);
        Ok(())
    }
}

/// Whether an export can be mounted at this path.
pub fn check_place(directory: &Path) -> Outcome<()> {
    let shown = directory.display();
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Failure::new(USAGE, format!("--files: {shown} is no directory, so nothing can be mounted on it"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Failure::new(
            USAGE,
            format!("--files: there is no directory {shown} to mount on: mkdir {shown}, or use one that exists"),
        )),
        Err(error) => Err(cannot(directory, error)),
    }
}

/// The current directory may be one that a mount hides: then it becomes the one of this name that is mounted.
fn again(directory: &Path) {
    if let Ok(current) = std::env::current_dir()
        && current.starts_with(directory)
    {
        // If there is none of this name, the program is where it was, as with any mount.
        let _ = std::env::set_current_dir(current);
    }
}

/// Makes a mount read-only, and leaves its other flags as they are: some of them may not be taken away.
fn refuse_changes(mounted: &Path) -> rustix::io::Result<()> {
    let present = statvfs(mounted)?.f_flag;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    for (has, flag) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if present.contains(has) {
            flags |= flag;
        }
    }
    mount_remount(mounted, flags, "")
}

fn not_permitted(error: impl std::fmt::Display) -> Failure {
    Failure::new(
        FAILED,
        format!(
            "--files needs a mount of its own for this program, and mount and user namespaces are not permitted here ({error}); use `motet mount`, or run as root"
        ),
    )
}

fn cannot(directory: &Path, error: impl Into<std::io::Error>) -> Failure {
    let error: std::io::Error = error.into();
    let hint = match error.kind() {
        std::io::ErrorKind::PermissionDenied if error.to_string().contains("/dev/fuse") => {
            "; it must be readable and writable for this user"
        }
        std::io::ErrorKind::NotFound if error.to_string().contains("/dev/fuse") => "; the kernel has no FUSE here",
        _ => "",
    };
    Failure::new(FAILED, format!("--files: cannot mount on {}: {error}{hint}", directory.display()))
}
