//! Exports that are mounted, for the tests of this crate.
#![allow(dead_code, reason = "each test program uses a part")]

use motet_files::client::Client;
use motet_files::server::{Options as ServerOptions, Server};
use motet_fuse::{Mount, Options};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// An export that is mounted.
pub struct Mounted {
    pub mount: Option<Mount>,
    pub server: Option<Server>,
    pub exported: TempDir,
    pub folder: TempDir,
    pub name: String,
}

/// How the mount reaches the exported directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Messages,
    Direct,
}

/// Both ways.
pub const MODES: [Mode; 2] = [Mode::Messages, Mode::Direct];

pub fn server(name: &str, folder: &Path, read_only: bool, mode: Mode) -> Server {
    let (name, directory, direct) = (name.to_owned(), folder.to_owned(), mode == Mode::Direct);
    let options = ServerOptions { name, directory, read_only, direct, ..ServerOptions::default() };
    Server::start(options).expect("a server")
}

/// Mounts an export at `folder`, for all users or for this one.
pub fn mounted_at(name: &str, folder: &Path, other_users: bool) -> Mount {
    mounted_with(name, folder, other_users, Duration::from_secs(1))
}

/// Mounts an export such that the kernel uses names and attributes for a time without asking.
pub fn mounted_with(name: &str, folder: &Path, other_users: bool, validity: Duration) -> Mount {
    let client = Client::named(name, None).expect("a client");
    let options = Options { name: name.to_owned(), validity, other_users, threads: 4, writeback: false };
    Mount::start(client, folder, &options).expect("a mount")
}

/// A temporary folder that all users may enter.
pub fn open_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    folder
}

pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// Says that a test is skipped.
pub fn skip(test: &str, reason: &str) {
    eprintln!("SKIPPED {test}: {reason}");
    if let Some(log) = std::env::var_os("MOTET_SKIP_LOG")
        && let Ok(mut log) = fs::OpenOptions::new().append(true).create(true).open(log)
    {
        let _ = log.write_all(format!("SKIP {test}: {reason}\n").as_bytes());
    }
}

/// Whether file systems can be mounted here. Says that a test is skipped otherwise.
pub fn can_mount(test: &str) -> bool {
    let helper = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|dir| dir.join("fusermount3").exists());
    let reason = match (Path::new("/dev/fuse").exists(), is_root() || helper) {
        (true, true) => return true,
        (false, _) => "there is no /dev/fuse",
        (true, false) => "fusermount3 is not installed (package fuse3)",
    };
    skip(test, reason);
    false
}

/// Whether a test may act as several users and mount file systems of the kernel. Says that it is skipped otherwise.
pub fn is_able(test: &str) -> bool {
    if !is_root() {
        skip(test, "not root");
    }
    is_root() && can_mount(test)
}

impl Mounted {
    pub fn new(mode: Mode) -> Self {
        Self::of(open_folder(), false, mode, false)
    }

    pub fn read_only(mode: Mode) -> Self {
        Self::of(open_folder(), true, mode, false)
    }

    /// For all users.
    pub fn for_all_users(mode: Mode) -> Self {
        Self::of(open_folder(), false, mode, true)
    }

    /// An export of this folder.
    pub fn of(exported: TempDir, read_only: bool, mode: Mode, other_users: bool) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = open_folder();
        let name = format!("mount-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let server = Some(server(&name, exported.path(), read_only, mode));
        let mount = Some(mounted_at(&name, folder.path(), other_users));
        Self { mount, server, exported, folder, name }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn exported(&self, name: &str) -> PathBuf {
        self.exported.path().join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(mount) = self.mount.take() else { return };
        if !thread::panicking() {
            return mount.unmount().expect("unmounted");
        }
        // Programs of the failed test may use it still; they end with this process, which serves them until then.
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
        std::mem::forget(mount);
    }
}

/// A second mount of an export. It is unmounted when this is dropped.
pub struct Second {
    mount: Option<Mount>,
    folder: TempDir,
}

impl Second {
    pub fn of(first: &Mounted) -> Self {
        let folder = open_folder();
        Self { mount: Some(mounted_at(&first.name, folder.path(), false)), folder }
    }

    /// One whose kernel asks for each name and each attribute.
    pub fn asking(first: &Mounted) -> Self {
        let folder = open_folder();
        Self { mount: Some(mounted_with(&first.name, folder.path(), false, Duration::ZERO)), folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let Some(mount) = self.mount.take() else { return };
        if !thread::panicking() {
            return mount.unmount().expect("unmounted");
        }
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
        std::mem::forget(mount);
    }
}

/// A small file system in memory, mounted on a temporary folder.
pub struct MemoryDisk(pub PathBuf);

impl MemoryDisk {
    /// Mounts one with these options on a folder.
    pub fn new(folder: &Path, options: &str) -> Self {
        let status = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(folder).status();
        assert!(status.expect("mount").success(), "a file system in memory");
        Self(folder.to_owned())
    }

    pub fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        assert!(Command::new("mount").args(["-o", &options]).arg(&self.0).status().expect("mount").success());
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// A command in a folder, whose environment is the same everywhere.
fn bash(folder: &Path, text: &str) -> Command {
    let mut command = Command::new("bash");
    command.args(["-e", "-u", "-o", "pipefail", "-c", text]).current_dir(folder).stdin(Stdio::null());
    command.env("HOME", folder).env("LC_ALL", "C").env("GIT_CONFIG_NOSYSTEM", "1");
    command
}

/// Runs a shell script in a folder; returns what it prints.
pub fn script(folder: &Path, text: &str) -> String {
    let output = bash(folder, text).output().expect("bash");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{:?}\n{printed}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    printed
}
