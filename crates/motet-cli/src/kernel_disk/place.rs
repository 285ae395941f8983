//! Where nbdfuse makes the file of a disk: `PID-N.fuse/mounted` in the user's private folder.
//!
//! The outer directory is locked as long as its process needs it. The lock of a process that was killed is free, so the next one removes what that has left, also
//! one in another PID namespace that has the same private folder. The file system is mounted on the inner directory, so the outer one can always be locked.

use std::fs::{DirBuilder, File, OpenOptions, read_dir, remove_dir};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::mount::{UnmountFlags, unmount};

/// The end of the names of outer directories.
const EXTENSION: &str = "fuse";
/// The inner directory.
const MOUNTED: &str = "mounted";
/// Most directories that a process tries to make: others may have them, or remove them before they are locked.
const MAX_TRIES: u32 = 100;

/// Directories for one file system. It is unmounted, and they are removed, when this is dropped.
#[derive(Debug)]
pub struct Place {
    outer: PathBuf,
    _lock: File,
}

impl Place {
    /// Makes them in `folder`, after those that killed processes have left there are removed.
    pub fn new(folder: &Path) -> Result<Self> {
        remove_left(folder);
        let mut tries = 0;
        loop {
            let outer = folder.join(format!("{}-{tries}.{EXTENSION}", std::process::id()));
            match made(&outer) {
                Ok(Some(lock)) => return Ok(Self { outer, _lock: lock }),
                Err(error) if tries == MAX_TRIES => return Err(error),
                Ok(None) if tries == MAX_TRIES => return Err(ErrorKind::AlreadyExists.into()),
                _ => tries += 1,
            }
        }
    }

    /// Where to mount.
    pub fn mounted(&self) -> PathBuf {
        self.outer.join(MOUNTED)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        remove(&self.outer);
    }
}

/// Makes a locked directory with one in it. `None`: another process has it.
fn made(outer: &Path) -> Result<Option<File>> {
    let mut builder = DirBuilder::new();
    builder.mode(0o700).create(outer)?;
    let Some(lock) = locked(outer)? else { return Ok(None) };
    builder.create(outer.join(MOUNTED))?;
    Ok(Some(lock))
}

/// Locks a directory that no running process has locked. It is still the one at the path then.
fn locked(outer: &Path) -> Result<Option<File>> {
    let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits() as i32;
    let directory = OpenOptions::new().read(true).custom_flags(flags).open(outer)?;
    if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    let (held, found) = (directory.metadata()?, outer.symlink_metadata()?);
    Ok(((held.dev(), held.ino()) == (found.dev(), found.ino())).then_some(directory))
}

/// Removes the directories of processes that have ended. What cannot be removed stays.
fn remove_left(folder: &Path) {
    let entries = read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for outer in entries.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION)) {
        if let Ok(Some(_lock)) = locked(&outer) {
            remove(&outer);
        }
    }
}

fn remove(outer: &Path) {
    let inner = outer.join(MOUNTED);
    // What has a file of it open keeps it.
    let _ = unmount(&inner, UnmountFlags::DETACH);
    let _ = remove_dir(&inner);
    let _ = remove_dir(outer);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::create_dir_all;

    fn names(folder: &Path) -> Vec<String> {
        let names = read_dir(folder).expect("a folder").flatten().map(|entry| entry.file_name());
        let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_ended_processes_have_left_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let first = Place::new(folder).expect("a place");
        for left in ["4194999-0.fuse/mounted", "4194999-1.fuse", "other/mounted", "full.fuse/mounted/file"] {
            create_dir_all(folder.join(left)).expect("a folder");
        }
        std::os::unix::fs::symlink("other", folder.join("link.fuse")).expect("a link");
        let second = Place::new(folder).expect("another place");
        let own = |number| format!("{}-{number}.fuse", std::process::id());
        let mut expected = vec![own(0), own(1), "full.fuse".into(), "link.fuse".into(), "other".into()];
        expected.sort();
        assert_eq!(names(folder), expected);
        assert!(first.mounted().is_dir() && second.mounted().is_dir() && folder.join("other/mounted").is_dir());
        drop((first, second));
        assert_eq!(names(folder), ["full.fuse", "link.fuse", "other"]);
    }
}
