//! Appends lines to a file without side effects on the program: no signal, no descriptor in its usual range, never its own output.
//!
//! A file that another user has prepared is refused: no symbolic link is followed, no open blocks, and a new file has mode 0600.

use crate::private_fds::{PrivateFd, borrow};
use crate::{Errno, rustix};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno as E;
use rustix::process::{Resource, getrlimit};
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// EBUSY: the file is this process's standard output or error.
pub const OWN_OUTPUT: Errno = 16;

/// A file that is open for appending.
#[derive(Debug)]
pub struct Appender {
    file: PrivateFd,
    /// Device and inode of the file that was opened.
    identity: (u64, u64),
}

/// The descriptor refers to another file, or to none: the program closed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorLost;

impl Appender {
    /// Opens a file for appending; makes it if it is missing. Never blocks.
    ///
    /// Errors: XDEV after a chroot, [`OWN_OUTPUT`], INVAL for anything but a regular file or a character device, and the system's.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        if !crate::process_root::is_unchanged() {
            return Err(E::XDEV.raw_os_error());
        }
        let (file, stat) = open(path, path.as_os_str().as_bytes()).map_err(|e| e.raw_os_error())?;
        if [1, 2].iter().any(|&fd| rustix::fs::fstat(borrow(fd)).is_ok_and(|own| identity(&own) == identity(&stat))) {
            return Err(OWN_OUTPUT);
        }
        Ok(Self { file: PrivateFd::new(file), identity: identity(&stat) })
    }

    /// Appends a line with one write. A write that fails is ignored, and so is a line beyond the process's limit on file sizes.
    pub fn append(&self, line: &[u8]) -> Result<(), DescriptorLost> {
        let stat = rustix::fs::fstat(&self.file).map_err(|_| DescriptorLost)?;
        if identity(&stat) != self.identity {
            return Err(DescriptorLost);
        }
        if has_room(&stat, line) {
            let _ = rustix::io::write(&self.file, line);
        }
        Ok(())
    }

    /// Drops the appender without closing its descriptor. For use after [`DescriptorLost`]: the number may belong to a file of the program.
    pub fn abandon(self) {
        self.file.abandon();
    }
}

/// Whether a path is `/proc/PID/fd/NUMBER`: a link that the kernel has made, not another user.
fn is_descriptor(path: &[u8]) -> bool {
    let number = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let mut words = path.split(|byte| *byte == b'/');
    let process = |text: &[u8]| number(text) || text == b"self";
    words.next() == Some(b"")
        && words.next() == Some(b"proc")
        && words.next().is_some_and(process)
        && words.next() == Some(b"fd")
        && words.next().is_some_and(number)
        && words.next().is_none()
}

/// Opens a regular file or a character device for appending.
fn open<P: rustix::path::Arg>(path: P, name: &[u8]) -> Result<(OwnedFd, Stat), E> {
    let mut flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    flags |= OFlags::NONBLOCK | OFlags::NOCTTY;
    flags.set(OFlags::NOFOLLOW, !is_descriptor(name));
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    let stat = rustix::fs::fstat(&file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::CharacterDevice => Ok((file, stat)),
        _ => Err(E::INVAL), // a pipe without a reader would raise a signal
    }
}

/// Whether a line fits below the process's limit on file sizes: a write beyond it raises SIGXFSZ.
fn has_room(stat: &Stat, line: &[u8]) -> bool {
    let end = stat.st_size as u64 + line.len() as u64;
    getrlimit(Resource::Fsize).current.is_none_or(|limit| end <= limit)
}

/// Opens a file, appends one line and closes it. Does not allocate. A line beyond the process's limit on file sizes is not written.
pub fn append_once(path: &CStr, line: &[u8]) -> Result<(), Errno> {
    let (file, stat) = open(path, path.to_bytes()).map_err(|e| e.raw_os_error())?;
    if has_room(&stat, line) {
        rustix::io::write(&file, line).map_err(|e| e.raw_os_error())?;
    }
    Ok(())
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_fds::is_private;
    use rustix::fd::{AsFd, AsRawFd};

    fn folder() -> tempfile::TempDir {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        tempfile::Builder::new().prefix("motet-append-").permissions(mode).tempdir().unwrap()
    }

    #[test]
    fn appender_reports_a_descriptor_that_was_replaced() {
        let folder = folder();
        let path = folder.path().join("log");
        let (one, two) = (Appender::open(&path).unwrap(), Appender::open(&path).unwrap());
        for line in ["a\n", "b\n"] {
            one.append(line.as_bytes()).unwrap();
            two.append(line.as_bytes()).unwrap();
        }
        let number = one.file.as_fd().as_raw_fd();
        assert!(is_private(number));
        // A program may close every descriptor and then open files of its own.
        let other = std::fs::File::create(folder.path().join("other")).unwrap();
        rustix::io::dup3(&other, &mut crate::private_fds::own(number), rustix::io::DupFlags::CLOEXEC).unwrap();
        // `own` closed the number when it was dropped.
        assert_eq!(one.append(b"c\n"), Err(DescriptorLost));
        one.abandon();
        assert!(!is_private(number));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\na\nb\nb\n");
    }

    #[test]
    fn links_and_pipes_of_other_users_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let made = folder();
        let folder = made.path();
        let path = |name: &str| folder.join(name);
        let append = |name: &str| {
            let path = std::ffi::CString::new(folder.join(name).as_os_str().as_bytes()).unwrap();
            append_once(&path, b"a line\n")
        };
        std::fs::write(path("victim"), "whole\n").unwrap();
        std::os::unix::fs::symlink(path("victim"), path("link")).unwrap();
        std::os::unix::fs::symlink(path("new"), path("dangling")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        for name in ["link", "dangling", "fifo", "."] {
            assert!(Appender::open(&path(name)).is_err() && append(name).is_err(), "{name}");
        }
        assert_eq!(std::fs::read_to_string(path("victim")).unwrap(), "whole\n");
        assert!(!path("new").exists());
        // A pipe with a reader is refused, too.
        let reader = rustix::fs::open(path("fifo"), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        assert!(Appender::open(&path("fifo")).is_err() && append("fifo").is_err());
        drop(reader);
        for name in ["own", "own", "other"] {
            assert_eq!(append(name), Ok(()));
            assert_eq!(std::fs::metadata(path(name)).unwrap().permissions().mode() & 0o7777, 0o600);
        }
        assert_eq!(std::fs::read_to_string(path("own")).unwrap(), "a line\na line\n");
        // A link below /proc/PID/fd is the kernel's and is followed.
        let open = std::fs::File::options().append(true).open(path("own")).unwrap();
        let name = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&open));
        append_once(&std::ffi::CString::new(name).unwrap(), b"by number\n").unwrap();
        assert!(std::fs::read_to_string(path("own")).unwrap().ends_with("by number\n"));
        for other in [
            "/proc/1/fd/",
            "/proc/1/fd/3/..",
            "/proc/1/cwd",
            "/proc/../tmp/x",
            "proc/1/fd/3",
            "/proc/1/fd/3x",
            "/tmp/proc/1/fd/3",
        ] {
            assert!(!is_descriptor(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn folders_and_own_output_are_refused() {
        for path in ["/", "/proc/no/such/folder", "/proc/self/fd/1", "/proc/self/fd/2"] {
            assert!(Appender::open(Path::new(path)).is_err(), "{path}");
        }
    }
}
