//! Locks of the system: by which locks of clients exclude programs of this host, and those of other servers.
//!
//! They are locks of open file descriptions, one description for each owner: a process that takes several locks has them in one, and two owners in two.
//! No description writes that is of a file which the client has open for reading alone: as long as it existed, no program could be started from the file.
//! An exclusive lock through such an open file, which flock(2) allows, excludes other clients exclusively, and the programs of this host as a shared lock does.

use super::descriptors::reopen;
use crate::Result;
use crate::protocol::{LockKind, LockRange, OpenFlags};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{F_RDLCK, F_UNLCK, F_WRLCK, SEEK_SET, flock};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A file description that has the locks of one owner on one file.
#[derive(Debug)]
pub struct Description {
    descriptor: OwnedFd,
    reads: bool,
    writes: bool,
}

impl Description {
    /// A description of an open file for a lock of this kind. The system wants one that reads for shared locks, and one that writes for exclusive ones. `flags`: how the
    /// client has opened it.
    pub fn of(file: BorrowedFd<'_>, flags: OpenFlags, kind: LockKind) -> Result<Self> {
        let with = |access, reads, writes| {
            Ok::<_, std::io::Error>(Self { descriptor: reopen(file, access | OFlags::NONBLOCK)?, reads, writes })
        };
        if !writes(flags) {
            return with(OFlags::RDONLY, true, false);
        }
        // One that does both serves all later locks. The user of this process may not be able to do both.
        with(OFlags::RDWR, true, true).or_else(|error| match kind {
            LockKind::Exclusive => with(OFlags::WRONLY, false, true).map_err(|_| error),
            _ => with(OFlags::RDONLY, true, false),
        })
    }

    /// Whether it can have locks of this kind that are asked for through a file that was opened with these flags.
    pub fn serves(&self, kind: LockKind, flags: OpenFlags) -> bool {
        match kind {
            LockKind::Unlocked => true,
            LockKind::Shared => self.reads,
            LockKind::Exclusive => self.writes || !writes(flags),
        }
    }

    /// Whether it reads and writes.
    pub fn serves_all(&self) -> bool {
        self.reads && self.writes
    }

    /// Sets or releases a lock without waiting. EAGAIN: another description has it, or a process of this host.
    pub fn set(&self, range: &LockRange) -> Result<()> {
        let kind = match range.kind {
            LockKind::Exclusive if !self.writes => LockKind::Shared,
            kind => kind,
        };
        fcntl(&self.descriptor, FcntlArg::F_OFD_SETLK(&system_lock(&LockRange { kind, ..*range })?))?;
        Ok(())
    }

    /// The lock that keeps this description from one, or an unlocked range. The process is that of a lock of a process of this host; 0: another one.
    pub fn test(&self, range: &LockRange) -> Result<LockRange> {
        let mut asked = system_lock(range)?;
        fcntl(&self.descriptor, FcntlArg::F_OFD_GETLK(&mut asked))?;
        let kind = match i32::from(asked.l_type) {
            F_RDLCK => LockKind::Shared,
            F_WRLCK => LockKind::Exclusive,
            _ => return Ok(LockRange { kind: LockKind::Unlocked, ..*range }),
        };
        let start = u64::try_from(asked.l_start).unwrap_or(0);
        let length = u64::try_from(asked.l_len).unwrap_or(0);
        let end = if length == 0 { u64::MAX } else { start.saturating_add(length - 1) };
        Ok(LockRange { kind, start, end, process: u32::try_from(asked.l_pid).unwrap_or(0) })
    }
}

/// Whether a file that was opened with these flags may be written.
fn writes(flags: OpenFlags) -> bool {
    flags.intersects(OpenFlags::WRITE | OpenFlags::APPEND)
}

/// The range as all parts of the server use it: one to the end of the file, however long that becomes, ends at `u64::MAX`. EINVAL: it is none.
pub fn normal(range: &LockRange) -> Result<LockRange> {
    system_lock(range)?;
    Ok(if is_open_ended(range) { LockRange { end: u64::MAX, ..*range } } else { *range })
}

/// Whether a range goes to the end of the file, however long that becomes.
fn is_open_ended(range: &LockRange) -> bool {
    range.end >= i64::MAX.cast_unsigned()
}

fn system_lock(range: &LockRange) -> Result<flock> {
    let kind = match range.kind {
        LockKind::Unlocked => F_UNLCK,
        LockKind::Shared => F_RDLCK,
        LockKind::Exclusive => F_WRLCK,
    };
    let invalid = || std::io::Error::from(Errno::INVAL);
    let start = i64::try_from(range.start).map_err(|_| invalid())?;
    let length = if is_open_ended(range) {
        0
    } else {
        range.end.checked_sub(range.start).and_then(|last| i64::try_from(last + 1).ok()).ok_or_else(invalid)?
    };
    Ok(flock { l_type: kind as i16, l_whence: SEEK_SET as i16, l_start: start, l_len: length, l_pid: 0 })
}
