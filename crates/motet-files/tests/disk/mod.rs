//! File systems on loop devices, and what the page cache has of a file, for the tests of direct I/O of several crates.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A file system of a test, in a file. It is unmounted when this is dropped.
#[derive(Debug)]
pub struct Disk {
    folder: TempDir,
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

fn run(program: &str, arguments: &[&str]) -> Result<Output, String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).args(arguments).env("PATH", path).env("LC_ALL", "C").output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        Ok(output)
    } else {
        Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

/// Runs a command that has to succeed; returns what it prints.
pub fn command(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments).unwrap_or_else(|error| panic!("{error}"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Disk {
    /// An ext4 file system of this size. `None`, which is said: not possible here.
    pub fn new(test: &str, megabytes: u64) -> Option<Self> {
        Self::with(test, megabytes, &["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-E", "lazy_itable_init=0"])
    }

    /// A btrfs file system of this size, which has quotas of folders.
    pub fn btrfs(test: &str, megabytes: u64) -> Option<Self> {
        Self::with(test, megabytes, &["mkfs.btrfs", "-q"])
    }

    fn with(test: &str, megabytes: u64, make: &[&str]) -> Option<Self> {
        if !fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0) {
            skip(test, "not root, so no file system can be mounted");
            return None;
        }
        match Self::make(megabytes, make) {
            Ok(disk) => Some(disk),
            Err(error) => {
                skip(test, &error);
                None
            }
        }
    }

    fn make(megabytes: u64, make: &[&str]) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let disk = Self { folder };
        let image = disk.image();
        let made = fs::File::create(&image).and_then(|file| file.set_len(megabytes << 20));
        made.and_then(|()| fs::create_dir(disk.path())).map_err(|error| error.to_string())?;
        let image = image.display().to_string();
        run(make[0], &[&make[1..], &[&image]].concat())?;
        disk.mount("loop")?;
        // For clients of other users.
        for path in [disk.folder.path(), &disk.path()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
        }
        Ok(disk)
    }

    fn mount(&self, options: &str) -> Result<(), String> {
        let (image, path) = (self.image().display().to_string(), self.path().display().to_string());
        run("mount", &["-o", options, &image, &path]).map(drop)
    }

    /// Unmounts it. A process that another test has started has the files of this process open until its program begins, so it may take several attempts.
    fn unmount(&self) -> Result<(), String> {
        let path = self.path().display().to_string();
        let began = Instant::now();
        loop {
            match run("umount", &[&path]) {
                Err(error) if error.contains("busy") && began.elapsed() < Duration::from_secs(30) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                unmounted => return unmounted.map(drop),
            }
        }
    }

    /// A folder of a btrfs file system with a quota of 16 MiB.
    pub fn limited_folder(&self) -> PathBuf {
        let limited = self.path().join("limited");
        let (top, folder) = (self.path().display().to_string(), limited.display().to_string());
        command("btrfs", &["subvolume", "create", &folder]);
        command("btrfs", &["quota", "enable", &top]);
        command("btrfs", &["quota", "rescan", "-w", &top]);
        command("btrfs", &["qgroup", "limit", "16M", &folder]);
        limited
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    /// The file that it is in.
    pub fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Unmounts it, and mounts it read-only.
    pub fn mount_again_read_only(&self) {
        self.unmount().unwrap_or_else(|error| panic!("{error}"));
        self.mount("loop,ro").unwrap_or_else(|error| panic!("{error}"));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Not mounted if it could not be made; still in use by threads of a test that has failed.
        if std::thread::panicking() || self.unmount().is_err() {
            let _ = run("umount", &["-l", &self.path().display().to_string()]);
        }
    }
}

/// How many bytes of a file are in the page cache.
pub fn cached(path: &Path) -> u64 {
    let text = command("fincore", &["--noheadings", "--bytes", "--output", "RES", &path.display().to_string()]);
    text.trim().parse().unwrap_or_else(|_| panic!("fincore: {text:?}"))
}

/// Writes what the page cache has of a file to the disk, and takes it out of the cache.
pub fn drop_cache(path: &Path) {
    let file = fs::File::open(path).expect("the file");
    file.sync_all().expect("on the disk");
    // Pages that another thread of the kernel holds for a moment stay.
    for _ in 0..1000 {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
        if cached(path) == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{} stays in the page cache", path.display());
}
