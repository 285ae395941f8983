//! Changes of attributes, and extended attributes.

use super::descriptors::{attributes_of, proc_path, reopen};
use super::squashed::Modes;
use super::stripes;
use crate::Result;
use crate::protocol::{Attributes, Change, MAX_XATTR_BYTES, SetTime};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags, chmodat,
    chownat, ftruncate, getxattr, listxattr, removexattr, setxattr, utimensat,
};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// A file of a request: open, or located by a path with O_PATH.
#[derive(Debug, Clone, Copy)]
pub struct Located<'a> {
    /// The descriptor.
    pub file: BorrowedFd<'a>,
    /// Whether it was opened for reading or writing.
    pub open: bool,
}

/// Makes the changes, in the order size, owner, mode, times, so that a mode with set-user-id outlives a change of owner.
pub fn change(located: Located<'_>, change: &Change, modes: Modes) -> Result<Attributes> {
    let Located { file, open } = located;
    let path = proc_path(file);
    let found = attributes_of(file)?.mode;
    let link = FileType::from_raw_mode(found) == FileType::Symlink;
    if let Some(size) = change.size {
        if link {
            return Err(Errno::INVAL.into());
        }
        match ftruncate(file, size) {
            // Opened with O_PATH, or only for reading.
            Err(Errno::BADF | Errno::INVAL) if !open => {
                ftruncate(reopen(file, OFlags::WRONLY | OFlags::NONBLOCK)?, size)?
            }
            done => done?,
        }
    }
    if change.user.is_some() || change.group.is_some() {
        let (user, group) = (change.user.map(Uid::from_raw), change.group.map(Gid::from_raw));
        chownat(file, "", user, group, AtFlags::EMPTY_PATH)?;
    }
    if let Some(mode) = change.mode {
        if link {
            return Err(Errno::OPNOTSUPP.into());
        }
        chmodat(CWD, &path, Mode::from_raw_mode(modes.changed(mode, found)), AtFlags::empty())?;
    }
    if change.accessed.is_some() || change.modified.is_some() {
        let times =
            Timestamps { last_access: timespec(change.accessed)?, last_modification: timespec(change.modified)? };
        utimensat(file, "", &times, AtFlags::EMPTY_PATH)?;
    }
    attributes_of(file)
}

fn timespec(time: Option<SetTime>) -> Result<Timespec> {
    Ok(match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(time)) if time.nanoseconds < 1_000_000_000 => {
            Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) }
        }
        Some(SetTime::At(_)) => return Err(Errno::INVAL.into()),
    })
}

/// Calls `with` on a path of the file that extended attributes can be asked for. Those of symbolic links are refused: a path of an open link
/// follows it.
fn with_path<T>(located: Located<'_>, with: impl FnOnce(&str) -> rustix::io::Result<T>) -> Result<T> {
    if FileType::from_raw_mode(attributes_of(located.file)?.mode) == FileType::Symlink {
        return Err(Errno::OPNOTSUPP.into());
    }
    Ok(with(&proc_path(located.file))?)
}

/// Whether a client may use an extended attribute: those of users and access lists. Others belong to the server's system.
fn permitted(name: &[u8]) -> Result<&[u8]> {
    let known = [&b"user."[..], b"system.posix_acl_access", b"system.posix_acl_default"];
    if known.iter().any(|prefix| name.starts_with(prefix)) && !name.contains(&0) && name != stripes::LAYOUT_OF_USERS {
        Ok(name)
    } else {
        Err(Errno::OPNOTSUPP.into())
    }
}

/// The value of an extended attribute.
pub fn get_xattr(located: Located<'_>, name: &[u8]) -> Result<Vec<u8>> {
    let Ok(name) = permitted(name) else { return Err(Errno::NODATA.into()) };
    let mut value = vec![0; MAX_XATTR_BYTES];
    let length = with_path(located, |path| getxattr(path, name, &mut value[..]))?;
    value.truncate(length);
    Ok(value)
}

/// The names of the extended attributes that a client may use, each with a zero byte at its end.
pub fn list_xattr(located: Located<'_>) -> Result<Vec<u8>> {
    let mut names = vec![0; MAX_XATTR_BYTES];
    let length = with_path(located, |path| listxattr(path, &mut names[..]))?;
    let names = names[..length].split_inclusive(|&byte| byte == 0);
    Ok(names.filter(|name| permitted(&name[..name.len() - 1]).is_ok()).flatten().copied().collect())
}

/// Sets an extended attribute.
pub fn set_xattr(located: Located<'_>, name: &[u8], value: &[u8], create: bool, replace: bool) -> Result<()> {
    let mut flags = XattrFlags::empty();
    flags.set(XattrFlags::CREATE, create);
    flags.set(XattrFlags::REPLACE, replace);
    let name = permitted(name)?;
    with_path(located, |path| setxattr(path, name, value, flags))
}

/// Removes an extended attribute.
pub fn remove_xattr(located: Located<'_>, name: &[u8]) -> Result<()> {
    let name = permitted(name)?;
    with_path(located, |path| removexattr(path, name))
}
