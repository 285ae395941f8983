//! Which operations may wait: for a device, or for another file system beneath the exported directory, which may be dead. The thread that executes one must not be the one that
//! receives requests.
//!
//! An operation waits for nothing if it concerns the exported directory's own file system, and that is in memory. Attributes are asked for so often that those of a local file
//! system are looked at, too: if the kernel has all names of a path in its cache, and the path leads to no other file system, its attributes are there.

use super::descriptors::attributes_of;
use super::file_table::FileTable;
use super::open_file::OpenFile;
use super::tree::Tree;
use crate::protocol::{Operation, Target};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::io::ErrorKind;

/// Owners of locks through one open file whose release takes its time: the locks of each are released by a call of the system.
const MANY_OWNERS: usize = 16;

/// Whether an operation may wait. Reads find out themselves whether their data are in memory.
pub fn waits(tree: &Tree, files: &FileTable, operation: &Operation<'_>) -> bool {
    // What takes its time, or waits for a device, wherever it is.
    if matches!(operation, Operation::Fsync { .. } | Operation::Fallocate { .. } | Operation::CopyFileRange { .. }) {
        return true;
    }
    let leaves = |path: &[u8]| tree.leaves(path);
    let is_elsewhere = |number: u32| files.get(number).is_ok_and(|file| !tree.has_device(file.identity().0));
    // The last close of a file that has no name removes what is in it.
    let is_removed = |file: &OpenFile| attributes_of(file.descriptor()).is_ok_and(|found| found.links == 0);
    let is_long_close =
        |number: u32| files.get(number).is_ok_and(|file| file.lock_owners() > MANY_OWNERS || is_removed(&file));
    let is_outside = |target: Target<'_>| match target {
        Target::Path(path) | Target::Known { path, .. } => leaves(path),
        Target::File(file) => is_elsewhere(file),
    };
    match *operation {
        Operation::Attach { .. }
        | Operation::AttachMember { .. }
        | Operation::Subscribe { .. }
        | Operation::Detach
        | Operation::Ping
        | Operation::StopWaiting { .. } => false,
        Operation::GetAttributes(Target::Path(path) | Target::Known { path, .. }) => {
            if tree.is_in_memory() {
                leaves(path)
            } else {
                !tree.is_local() || !tree.is_known(path)
            }
        }
        Operation::GetAttributes(Target::File(file)) => !tree.is_local() || is_elsewhere(file),
        // A read of the exported file system is tried without waiting first.
        Operation::Read { file, .. } => is_elsewhere(file),
        Operation::Statfs => !tree.is_local(),
        // Where the locks are those of a file system on a disk, the kernel has them in memory, too.
        Operation::Lock { file, .. } | Operation::TestLock { file, .. } => !tree.is_local() || is_elsewhere(file),
        Operation::Close { file } => !tree.is_local() || is_elsewhere(file) || is_long_close(file),
        _ if !tree.is_in_memory() => true,
        Operation::Open { path, .. }
        | Operation::Mkdir { path, .. }
        | Operation::Mknod { path, .. }
        | Operation::Symlink { path, .. }
        | Operation::Unlink { path, .. } => leaves(path),
        Operation::OpenKnown { target, .. }
        | Operation::Readlink { target }
        | Operation::SetAttributes(target, _)
        | Operation::GetXattr { target, .. }
        | Operation::ListXattr(target)
        | Operation::SetXattr { target, .. }
        | Operation::RemoveXattr { target, .. } => is_outside(target),
        Operation::Link { from, to } => is_outside(from) || leaves(to),
        Operation::Rename { from, to, .. } => leaves(from) || leaves(to),
        // A directory on the exported file system may have a mount point among its entries, whose attributes are asked for.
        Operation::Readdir { .. } => true,
        Operation::Write { file, .. }
        | Operation::Append { file }
        | Operation::Reserve { file, .. }
        | Operation::Seek { file, .. } => is_elsewhere(file),
        Operation::Fsync { .. } | Operation::Fallocate { .. } | Operation::CopyFileRange { .. } => true,
    }
}

impl Tree {
    /// Whether `path` leads to another file system, or cannot be followed for another reason than a missing name.
    fn leaves(&self, path: &[u8]) -> bool {
        match self.resolve(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty(), ResolveFlags::NO_XDEV) {
            Ok(_) => false,
            Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        }
    }

    /// Whether the kernel has all names of `path` in its cache, and none leads to another file system.
    fn is_known(&self, path: &[u8]) -> bool {
        let cached = ResolveFlags::NO_XDEV | ResolveFlags::CACHED;
        self.resolve(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty(), cached).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::execute;
    use super::*;
    use crate::protocol::{LockKind, LockRange, LockWait, OpenFlags, Reply};
    use std::fs;

    #[test]
    fn a_close_that_takes_its_time_waits() {
        let folder = tempfile::tempdir().expect("a folder");
        let tree = Tree::open(folder.path(), false, None, None).expect("the folder");
        let files = FileTable::default();
        let done = |operation| execute(&tree, &files, None, &operation, &[], &mut [], &mut || ()).expect("done").0;
        let opened = || match done(Operation::Open {
            path: b"file",
            flags: OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE,
            mode: 0o600,
        }) {
            Reply::Opened { file, .. } => file,
            reply => panic!("{reply:?}"),
        };
        let closing_waits = |file| waits(&tree, &files, &Operation::Close { file });
        let (file, other) = (opened(), opened());
        let ordinary = closing_waits(file);
        assert_eq!(ordinary, !tree.is_local());
        for owner in 0..=MANY_OWNERS as u64 {
            assert_eq!(closing_waits(file), ordinary);
            let range = LockRange { kind: LockKind::Shared, start: 0, end: 9, process: 0 };
            done(Operation::Lock { file, owner, range, wait: LockWait::No });
        }
        assert_eq!((closing_waits(file), closing_waits(other)), (true, ordinary));
        fs::remove_file(folder.path().join("file")).expect("removed");
        assert!(closing_waits(other));
    }
}
