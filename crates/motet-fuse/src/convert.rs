//! Attributes, flags and times between the protocol and the kernel.

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use motet_files::protocol::{Attributes, LockKind, OpenFlags, SetTime, Time};
use rustix::fs::{FileType as SystemType, Mode as SystemMode, OFlags};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The type of a file. `None`: one that is not known.
pub fn kind(mode: u32) -> Option<FileType> {
    Some(match SystemType::from_raw_mode(mode) {
        SystemType::RegularFile => FileType::RegularFile,
        SystemType::Directory => FileType::Directory,
        SystemType::Symlink => FileType::Symlink,
        SystemType::Fifo => FileType::NamedPipe,
        SystemType::Socket => FileType::Socket,
        SystemType::CharacterDevice => FileType::CharDevice,
        SystemType::BlockDevice => FileType::BlockDevice,
        _ => return None,
    })
}

/// Attributes as the kernel wants them.
pub fn attributes(number: u64, attributes: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: attributes.size,
        blocks: attributes.blocks,
        atime: system_time(attributes.accessed),
        mtime: system_time(attributes.modified),
        ctime: system_time(attributes.changed),
        crtime: UNIX_EPOCH,
        kind: kind(attributes.mode).unwrap_or(FileType::RegularFile),
        perm: (attributes.mode & 0o7777) as u16,
        nlink: attributes.links,
        uid: attributes.user,
        gid: attributes.group,
        // The kernel's own encoding of 32 bits, which this one is for small numbers.
        rdev: u32::try_from(attributes.represents).unwrap_or(0),
        blksize: attributes.block_size,
        flags: 0,
    }
}

fn system_time(time: Time) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 { UNIX_EPOCH.checked_sub(seconds) } else { UNIX_EPOCH.checked_add(seconds) };
    whole.and_then(|whole| whole.checked_add(Duration::from_nanos(time.nanoseconds.into()))).unwrap_or(UNIX_EPOCH)
}

/// The bits of a mode by which a program runs as another user or group.
pub fn raising_bits(mode: u32) -> u32 {
    if SystemType::from_raw_mode(mode) != SystemType::RegularFile {
        return 0;
    }
    // Without execution by the group, the bit stands for mandatory locks.
    let by_group = (SystemMode::SGID | SystemMode::XGRP).bits();
    (mode & SystemMode::SUID.bits()) | if mode & by_group == by_group { SystemMode::SGID.bits() } else { 0 }
}

/// A moment to set. Of a time before 1970 fuser takes the nanoseconds, which the kernel counts forwards, for a part of the distance.
pub fn set_time(time: TimeOrNow) -> SetTime {
    let time = match time {
        TimeOrNow::Now => return SetTime::Now,
        TimeOrNow::SpecificTime(time) => time,
    };
    SetTime::At(match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Time { seconds: since.as_secs() as i64, nanoseconds: since.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            Time { seconds: -(before.as_secs() as i64), nanoseconds: before.subsec_nanos() }
        }
    })
}

/// With this flag the kernel opens a program that it is about to execute (`__FMODE_EXEC`).
const KERNEL_EXECUTES: OFlags = OFlags::from_bits_retain(0x20);

/// How a file is opened.
pub fn open_flags(flags: i32) -> OpenFlags {
    let system = OFlags::from_bits_retain(flags.cast_unsigned());
    let access = match system & OFlags::ACCMODE {
        OFlags::WRONLY => OpenFlags::WRITE,
        OFlags::RDWR => OpenFlags::READ | OpenFlags::WRITE,
        _ => OpenFlags::READ,
    };
    let pairs = [
        (OFlags::APPEND, OpenFlags::APPEND),
        (OFlags::CREATE, OpenFlags::CREATE),
        (OFlags::EXCL, OpenFlags::EXCLUSIVE),
        (OFlags::TRUNC, OpenFlags::TRUNCATE),
        (OFlags::DSYNC, OpenFlags::SYNC),
        (OFlags::DIRECT, OpenFlags::DIRECT),
        (KERNEL_EXECUTES, OpenFlags::EXECUTE),
    ];
    pairs.into_iter().filter(|(bit, _)| system.contains(*bit)).fold(access, |flags, (_, flag)| flags | flag)
}

/// The kind of a lock, as the kernel numbers them.
pub fn lock_kind(kind: i32) -> Option<LockKind> {
    [LockKind::Shared, LockKind::Exclusive, LockKind::Unlocked].get(usize::try_from(kind).ok()?).copied()
}

/// The kernel's number of a kind of lock.
pub fn lock_number(kind: LockKind) -> i32 {
    match kind {
        LockKind::Shared => 0,
        LockKind::Exclusive => 1,
        LockKind::Unlocked => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        // What fuser makes of the kernel's seconds and nanoseconds, and what it makes the kernel's of.
        let by_distance = |time: Time| {
            let distance = Duration::new(time.seconds.unsigned_abs(), time.nanoseconds);
            if time.seconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
        };
        let before = UNIX_EPOCH - Duration::from_millis(750);
        for (time, shown) in [
            (Time { seconds: -1, nanoseconds: 250_000_000 }, before),
            (Time { seconds: 0, nanoseconds: 0 }, UNIX_EPOCH),
            (Time { seconds: -7, nanoseconds: 0 }, UNIX_EPOCH - Duration::from_secs(7)),
            (Time { seconds: 2, nanoseconds: 500_000_000 }, UNIX_EPOCH + Duration::from_millis(2500)),
        ] {
            assert_eq!(set_time(TimeOrNow::SpecificTime(by_distance(time))), SetTime::At(time));
            assert_eq!(system_time(time), shown);
        }
    }

    #[test]
    fn flags_of_open_are_translated() {
        assert_eq!(open_flags(0), OpenFlags::READ);
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::DSYNC;
        let expected = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::APPEND | OpenFlags::SYNC;
        assert_eq!(open_flags(flags.bits().cast_signed()), expected);
        assert_eq!(open_flags(0x20), OpenFlags::READ | OpenFlags::EXECUTE);
    }

    #[test]
    fn only_programs_raise() {
        let regular = SystemType::RegularFile.as_raw_mode();
        let cases = [(0o755, 0), (0o4755, 0o4000), (0o2755, 0o2000), (0o2745, 0), (0o6711, 0o6000), (0o1777, 0)];
        for (mode, bits) in cases {
            assert_eq!(raising_bits(regular | mode), bits, "{mode:o}");
        }
        assert_eq!(raising_bits(SystemType::Directory.as_raw_mode() | 0o2775), 0);
    }
}
