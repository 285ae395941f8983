//! Private folders for tests, in the world-writable folder for temporary files.
//!
//! Names are random, as with mkdtemp(3). The folder is made by a mkdir that fails if the name exists, also as a link, and its mode is 0700 from the
//! start. So no other user can make it first or look into it. [`Temporary::pass`] lets other users reach files in it, but not write there.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder of this user, removed when dropped.
#[derive(Debug)]
pub struct Temporary(TempDir);

impl Temporary {
    /// An empty folder in the folder for temporary files; its name begins with `motet-` and `name`.
    pub fn new(name: &str) -> Self {
        Self::within(&std::env::temp_dir(), &format!("motet-{name}-"))
    }

    /// An empty folder in another folder; its name begins with `prefix`.
    pub fn within(folder: &Path, prefix: &str) -> Self {
        let mut builder = tempfile::Builder::new();
        let made = builder.prefix(prefix).rand_bytes(10).permissions(Permissions::from_mode(0o700)).tempdir_in(folder);
        Self(made.expect("a folder for a test"))
    }

    /// Lets other users open files in the folder whose names they know. They can neither list it nor write to it.
    pub fn pass(self) -> Self {
        fs::set_permissions(self.path(), Permissions::from_mode(0o711)).expect("a folder that others may pass");
        self
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The path of a name in the folder.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_folders_are_private_and_have_unique_names() {
        let mode = |folder: &Temporary| folder.path().metadata().unwrap().permissions().mode() & 0o7777;
        let (one, other) = (Temporary::new("temporary"), Temporary::new("temporary").pass());
        assert_ne!(one.path(), other.path());
        assert_eq!((mode(&one), mode(&other)), (0o700, 0o711));
        let path = one.path().to_path_buf();
        fs::write(one.join("file"), "").unwrap();
        drop(one);
        assert!(!path.exists());
    }
}
