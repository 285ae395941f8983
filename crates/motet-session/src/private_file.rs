//! Files that only their user may read, in any folder: also in one where others make files.
//!
//! The text goes into a file that this call has made, under a name that no file has had, and the file gets its name then. So the
//! text is never in a file of another user, nor behind a link that another user has made.

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Names that are tried. A second one is needed only if another user has guessed the first.
const ATTEMPTS: usize = 16;

/// Writes a file that only the user may read. A reader finds the old text or the new one, never a part.
pub fn write_private(path: &Path, text: &[u8]) -> io::Result<()> {
    let (new, mut file) = create_beside(path)?;
    let done = file.write_all(text).and_then(|()| std::fs::rename(&new, path));
    if done.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    done
}

/// Makes a file beside `path` that is certainly this user's own, for a text that gets the name `path` by a rename.
pub fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    for _ in 0..ATTEMPTS {
        let mut new = name.to_owned();
        new.push(format!(".{:016x}.new", RandomState::new().build_hasher().finish()));
        let new = path.with_file_name(new);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = match open(&new, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => file,
            Err(Errno::EXIST) => continue,
            Err(error) => return Err(error.into()),
        };
        let stat = fstat(&file)?;
        if stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            // A server of files that maps users, or an access list that the folder gives to new files.
            let _ = std::fs::remove_file(&new);
            let why = format!("{}: a new file here belongs to another user, or others may read it", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        return Ok((new, File::from(file)));
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn text_is_never_in_a_file_that_was_there_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join-7.0");
        // Names that were used once, and the name itself, as links to a file of another user.
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "theirs").unwrap();
        for name in ["join-7.new", "join-7.0.new", "join-7.0"] {
            symlink(&victim, dir.path().join(name)).unwrap();
        }
        write_private(&path, b"secret").unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "theirs");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "secret");
        let meta = std::fs::symlink_metadata(&path).unwrap();
        assert!(meta.is_file() && meta.mode() & 0o777 == 0o600);
        write_private(&path, b"another").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "another");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "nothing else is left");
    }

    #[test]
    fn file_that_cannot_get_its_name_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taken");
        std::fs::create_dir(&path).unwrap();
        assert!(write_private(&path, b"secret").is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
