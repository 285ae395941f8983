//! Folders of a test's own in the folder for temporary files, which everybody may write to.
//!
//! A name is chosen by chance, as mkdtemp(3) does, and the folder is made by a mkdir that fails where anything has that name, a link
//! included; its mode is 0700 from the first instant. So another user can neither make it before nor look into it, and whoever is to reach
//! something in it is let in by [`Temporary::pass`], which lets nobody write.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder of this user's alone, removed in the end.
#[derive(Debug)]
pub struct Temporary(TempDir);

impl Temporary {
    /// An empty folder whose name begins with `motet-` and this.
    pub fn new(name: &str) -> Self {
        Self::within(&std::env::temp_dir(), &format!("motet-{name}-"))
    }

    /// The same in another folder.
    pub fn within(folder: &Path, prefix: &str) -> Self {
        let mut builder = tempfile::Builder::new();
        let made = builder.prefix(prefix).rand_bytes(10).permissions(Permissions::from_mode(0o700)).tempdir_in(folder);
        Self(made.expect("a folder for a test"))
    }

    /// Lets others pass through the folder to what they know the name of; not list it, nor write to it.
    pub fn pass(self) -> Self {
        fs::set_permissions(self.path(), Permissions::from_mode(0o711)).expect("a folder that others may pass");
        self
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A name in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_their_users_alone_with_names_of_their_own() {
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
