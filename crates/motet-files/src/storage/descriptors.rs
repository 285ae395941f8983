//! Open files of the system: their attributes, and ways to name them again.

use crate::Result;
use crate::protocol::{Attributes, Time};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// Attributes of an open file.
pub fn attributes_of(file: BorrowedFd<'_>) -> Result<Attributes> {
    attributes_at(file, "", AtFlags::EMPTY_PATH)
}

/// Attributes of the file `name` in `directory`.
pub fn attributes_at(directory: BorrowedFd<'_>, name: impl rustix::path::Arg, flags: AtFlags) -> Result<Attributes> {
    let stat = statx(directory, name, flags | AtFlags::NO_AUTOMOUNT, StatxFlags::BASIC_STATS)?;
    let time = |time: rustix::fs::StatxTimestamp| Time { seconds: time.tv_sec, nanoseconds: time.tv_nsec };
    Ok(Attributes {
        device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
        inode: stat.stx_ino,
        mode: u32::from(stat.stx_mode),
        links: stat.stx_nlink,
        user: stat.stx_uid,
        group: stat.stx_gid,
        represents: rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        block_size: stat.stx_blksize,
        accessed: time(stat.stx_atime),
        modified: time(stat.stx_mtime),
        changed: time(stat.stx_ctime),
    })
}

/// Opens an open file again, with a file description of its own. `flags`: the access.
pub fn reopen(file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
    Ok(rustix::fs::openat(CWD, proc_path(file), flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// The path by which system calls that know only paths reach an open file, also one opened with O_PATH.
pub fn proc_path(file: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
