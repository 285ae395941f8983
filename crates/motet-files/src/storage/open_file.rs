//! Open files of a session: reads, writes, listings, locks.

use super::descriptors::{attributes_at, reopen};
use crate::Result;
use crate::identity::Identity;
use crate::protocol::{Attributes, Entry, LockKind, LockRange, OpenFlags, append};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{F_RDLCK, F_UNLCK, F_WRLCK, SEEK_SET, flock};
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, SeekFrom, seek};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, pwrite, retry_on_intr};
use std::collections::HashMap;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lock owners of one open file.
const MAX_LOCK_OWNERS: usize = 4096;
/// Bytes of a buffer for entries of the system.
const LISTING_BYTES: usize = 32 << 10;

/// A file that a client has open.
#[derive(Debug)]
pub struct OpenFile {
    descriptor: OwnedFd,
    flags: OpenFlags,
    /// As whom it was opened, and is written. `None`: as the user of this process.
    opener: Option<Identity>,
    /// Its device and its number there.
    identity: (u64, u64),
    /// Held while the position of the directory is used.
    listing: Mutex<()>,
    /// A file description for each lock owner: OFD locks belong to the description.
    owners: Mutex<HashMap<u64, OwnedFd>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenFile {
    /// A file with these attributes that was opened with these flags, as this user.
    pub fn new(descriptor: OwnedFd, flags: OpenFlags, opener: Option<Identity>, attributes: &Attributes) -> Self {
        let identity = (attributes.device, attributes.inode);
        Self { descriptor, flags, opener, identity, listing: Mutex::new(()), owners: Mutex::default() }
    }

    /// Its device and its number there.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// The descriptor.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// As whom it was opened.
    pub fn opener(&self) -> Option<&Identity> {
        self.opener.as_ref()
    }

    /// Reads into `buffer` from `offset` on until it is full or the file ends; returns how many bytes.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match retry_on_intr(|| pread(&self.descriptor, &mut buffer[done..], offset.saturating_add(done as u64)))? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }

    /// Reads as [`OpenFile::read`] does, without waiting for a device. `None`: that is not possible.
    pub fn read_cached(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        let length = buffer.len();
        let read = preadv2(&self.descriptor, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT).ok()?;
        // A short read is the end of the file, or of what is cached.
        (read == length).then_some(read)
    }

    /// Writes all of `data` at `offset`, or at the end of a file that is open for appending.
    pub fn write(&self, data: &[u8], offset: u64) -> Result<usize> {
        let mut done = 0;
        while done < data.len() {
            match retry_on_intr(|| pwrite(&self.descriptor, &data[done..], offset.saturating_add(done as u64))) {
                Ok(written) => done += written,
                // What is written is written: the client sees the error at its next write.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    /// Lists the directory from `cookie` on, into at most `length` bytes.
    pub fn list(&self, cookie: u64, length: usize, attributes: bool, into: &mut Vec<u8>) -> Result<()> {
        let _position = locked(&self.listing);
        seek(&self.descriptor, SeekFrom::Start(cookie))?;
        let mut buffer = Vec::with_capacity(LISTING_BYTES);
        let mut directory = RawDir::new(&self.descriptor, buffer.spare_capacity_mut());
        while let Some(entry) = directory.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let described = attributes && name != b"." && name != b"..";
            // An entry that is gone by now is listed without attributes.
            let found =
                described.then(|| attributes_at(self.descriptor(), entry.file_name(), AtFlags::SYMLINK_NOFOLLOW).ok());
            let listed = Entry {
                cookie: entry.next_entry_cookie(),
                inode: entry.ino(),
                kind: kind_bits(entry.file_type()),
                name,
                attributes: found.flatten(),
            };
            let before = into.len();
            append(&listed, into);
            if into.len() > length {
                into.truncate(before);
                // Not even one entry fits.
                return if before == 0 { Err(Errno::INVAL.into()) } else { Ok(()) };
            }
        }
        Ok(())
    }

    /// Sets or releases a lock without waiting.
    pub fn lock(&self, owner: u64, range: &LockRange) -> Result<()> {
        let mut owners = locked(&self.owners);
        if range.kind == LockKind::Unlocked {
            if range.start == 0 && is_open_ended(range) {
                owners.remove(&owner);
                return Ok(());
            }
            let Some(description) = owners.get(&owner) else { return Ok(()) };
            return set_lock(description, range);
        }
        self.with_description(&mut owners, owner, |description| set_lock(description, range))
    }

    /// How many owners have locks.
    pub fn lock_owners(&self) -> usize {
        locked(&self.owners).len()
    }

    /// The lock that keeps `owner` from this one.
    pub fn test_lock(&self, owner: u64, range: &LockRange) -> Result<LockRange> {
        let mut owners = locked(&self.owners);
        let has_locks = owners.contains_key(&owner);
        let found = self.with_description(&mut owners, owner, |description| {
            let mut asked = system_lock(range)?;
            fcntl(description, FcntlArg::F_OFD_GETLK(&mut asked))?;
            let kind = match i32::from(asked.l_type) {
                F_RDLCK => LockKind::Shared,
                F_WRLCK => LockKind::Exclusive,
                _ => return Ok(LockRange { kind: LockKind::Unlocked, ..*range }),
            };
            let start = u64::try_from(asked.l_start).unwrap_or(0);
            let length = u64::try_from(asked.l_len).unwrap_or(0);
            let end = if length == 0 { u64::MAX } else { start + length - 1 };
            Ok(LockRange { kind, start, end, process: 0 })
        });
        if !has_locks {
            owners.remove(&owner);
        }
        found
    }

    fn with_description<T>(
        &self,
        owners: &mut HashMap<u64, OwnedFd>,
        owner: u64,
        with: impl FnOnce(&OwnedFd) -> Result<T>,
    ) -> Result<T> {
        if !owners.contains_key(&owner) {
            if owners.len() >= MAX_LOCK_OWNERS {
                return Err(Errno::NOLCK.into());
            }
            let writes = self.flags.intersects(OpenFlags::WRITE | OpenFlags::APPEND);
            let access = match (self.flags.contains(OpenFlags::READ), writes) {
                (true, true) => OFlags::RDWR,
                (false, true) => OFlags::WRONLY,
                (_, false) => OFlags::RDONLY,
            };
            owners.insert(owner, reopen(self.descriptor(), access | OFlags::NONBLOCK)?);
        }
        owners.get(&owner).map_or_else(|| Err(Errno::NOLCK.into()), with)
    }
}

fn set_lock(description: &OwnedFd, range: &LockRange) -> Result<()> {
    fcntl(description, FcntlArg::F_OFD_SETLK(&system_lock(range)?))?;
    Ok(())
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

fn kind_bits(kind: FileType) -> u32 {
    if kind == FileType::Unknown { 0 } else { kind.as_raw_mode() }
}
