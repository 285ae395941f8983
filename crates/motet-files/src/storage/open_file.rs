//! Open files of a session: reads, writes, listings, and the locks that are set through them.

use super::descriptors::{attributes_at, reopen};
use super::locks::{FileId, LockClient, LockTable, Owner, Released, Through};
use super::past_cache::{PastCache, UnderWay, write_all};
use super::quota::{Quota, Taken};
use crate::Result;
use crate::identity::Identity;
use crate::protocol::{Attributes, Cached, Entry, LockRange, LockWait, OpenFlags, append};
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, SeekFrom, fcntl_getfl, seek};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, retry_on_intr};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

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
    identity: FileId,
    /// How it is read and written past the cache. `None`: through the cache.
    past_cache: Option<PastCache>,
    /// By which a file that is open for appending is written at a place, once that was asked for.
    placing: OnceLock<(OwnedFd, Taken)>,
    /// Held while the position of the directory is used.
    listing: Mutex<()>,
    /// The locks of all clients.
    locks: Arc<LockTable>,
    /// Its client, for its locks.
    client: LockClient,
    /// The descriptors that its client may use.
    quota: Arc<Quota>,
    /// Its own number, which no other open file has.
    opened: u64,
    /// Whether the client has closed it.
    closed: AtomicBool,
}

impl OpenFile {
    /// A file with these attributes that was opened with these flags, as this user, by a client.
    pub fn new(
        descriptor: OwnedFd,
        flags: OpenFlags,
        opener: Option<Identity>,
        attributes: &Attributes,
        locks: Arc<LockTable>,
        (client, quota): (LockClient, Arc<Quota>),
    ) -> Self {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let identity = (attributes.device, attributes.inode);
        let (opened, closed) = (OPENED.fetch_add(1, Ordering::Relaxed), AtomicBool::new(false));
        let (past_cache, placing, listing) = (None, OnceLock::new(), Mutex::new(()));
        Self { descriptor, flags, opener, identity, past_cache, placing, listing, locks, client, quota, opened, closed }
    }

    /// Whether it is neither read nor written, but only kept.
    pub fn is_located(&self) -> bool {
        self.flags.contains(OpenFlags::LOCATE)
    }

    /// The file is read and written past the cache from now on. An error says why that is not possible.
    pub fn pass_cache(&mut self, under_way: &UnderWay) -> std::result::Result<(), Cached> {
        self.past_cache = Some(PastCache::open(self.descriptor(), under_way)?);
        Ok(())
    }

    /// How it is read and written past the cache. `None`: through the cache.
    pub fn past_cache(&self) -> Option<&PastCache> {
        self.past_cache.as_ref()
    }

    /// Its device and its number there.
    pub fn identity(&self) -> FileId {
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
        if let Some(past_cache) = &self.past_cache {
            match past_cache.read(buffer, offset) {
                // The file system has direct I/O, but not for this range.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {}
                read => return read,
            }
        }
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
        // preadv2(2) takes the offset -1 for the descriptor's position.
        i64::try_from(offset).ok()?;
        let read = preadv2(&self.descriptor, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT).ok()?;
        // A short read is the end of the file, or of what is cached.
        (read == length).then_some(read)
    }

    /// Writes all of `data` at `offset`, also into a file that is open for appending.
    pub fn write(&self, data: &[u8], offset: u64) -> Result<usize> {
        match &self.past_cache {
            _ if self.flags.contains(OpenFlags::APPEND) => write_all(self.placing()?, data, offset),
            Some(past_cache) => past_cache.write(data, offset, self.descriptor(), false),
            None => write_all(self.descriptor(), data, offset),
        }
    }

    /// The descriptor by which a file that is open for appending is written at a place: pwrite(2) on one with O_APPEND writes at the end.
    fn placing(&self) -> Result<BorrowedFd<'_>> {
        if let Some((placing, _)) = self.placing.get() {
            return Ok(placing.as_fd());
        }
        let taken = self.quota.take()?;
        let kept = OFlags::RWMODE | OFlags::SYNC | OFlags::DSYNC;
        let opened = reopen(self.descriptor(), fcntl_getfl(&self.descriptor)? & kept)?;
        Ok(self.placing.get_or_init(|| (opened, taken)).0.as_fd())
    }

    /// Writes all of `data` at the end of a file that is open for appending. EINVAL: it is not.
    pub fn append(&self, data: &[u8]) -> Result<usize> {
        if !self.flags.contains(OpenFlags::APPEND) {
            return Err(Errno::INVAL.into());
        }
        match &self.past_cache {
            Some(past_cache) => past_cache.write(data, 0, self.descriptor(), true),
            None => write_all(self.descriptor(), data, 0),
        }
    }

    /// Lists the directory from `cookie` on, into at most `length` bytes.
    pub fn list(&self, cookie: u64, length: usize, attributes: bool, into: &mut Vec<u8>) -> Result<()> {
        let _position = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Sets or releases a lock of the client's `owner`. EBADF: the file has been closed meanwhile.
    pub fn lock(&self, owner: u64, range: &LockRange, wait: LockWait) -> Result<()> {
        let done = self.locks.set(self.owner(owner), &self.through(), range, wait);
        // Whichever of the two comes second releases it.
        if self.closed.load(Ordering::SeqCst) {
            drop(self.release_locks());
            return Err(Errno::BADF.into());
        }
        done
    }

    /// The request for a lock is given up.
    pub fn stop_waiting(&self, owner: u64, range: &LockRange) -> Result<()> {
        self.locks.stop_waiting(self.owner(owner), self.identity, range)
    }

    /// How many locks the server has granted.
    pub fn grants(&self) -> u64 {
        self.locks.grants().count()
    }

    /// How many owners have locked through this file last.
    pub fn lock_owners(&self) -> usize {
        self.locks.owners_through(self.client.number, self.identity, self.opened)
    }

    /// The lock that keeps `owner` from this one.
    pub fn test_lock(&self, owner: u64, range: &LockRange) -> Result<LockRange> {
        self.locks.test(self.owner(owner), &self.through(), range)
    }

    /// The client has closed it; requests that use it may be under way.
    pub fn closed(&self) -> Released {
        self.closed.store(true, Ordering::SeqCst);
        self.release_locks()
    }

    fn release_locks(&self) -> Released {
        self.locks.closed(self.client.number, self.identity, self.opened)
    }

    /// The client has closed all its files.
    pub fn closed_with_all(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// The locks of all clients.
    pub fn locks(&self) -> &LockTable {
        &self.locks
    }

    fn owner(&self, name: u64) -> Owner {
        Owner { client: self.client.number, name }
    }

    fn through(&self) -> Through<'_> {
        let Self { identity: file, opened, flags, client: LockClient { since, .. }, .. } = *self;
        Through { file, opened, flags, since, quota: &self.quota, descriptor: self.descriptor() }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        drop(self.release_locks());
    }
}

fn kind_bits(kind: FileType) -> u32 {
    if kind == FileType::Unknown { 0 } else { kind.as_raw_mode() }
}

#[cfg(test)]
mod tests {
    use super::super::file_table::FileTable;
    use super::*;
    use std::fs::OpenOptions;

    /// A client may not get a second descriptor for each file by a write at a place.
    #[test]
    fn a_write_at_a_place_takes_a_descriptor_of_the_client() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let files = FileTable::with(Quota::new(1, None));
        let open = || {
            let file = OpenOptions::new().append(true).create(true).open(&path).expect("a file");
            let client = (files.lock_client(), Arc::clone(files.quota()));
            let flags = OpenFlags::WRITE | OpenFlags::APPEND;
            OpenFile::new(file.into(), flags, None, &Attributes::default(), Arc::default(), client)
        };
        let (first, second) = (open(), open());
        assert_eq!(first.append(b"appended").expect("a write"), 8);
        assert_eq!(first.write(b"placed", 0).expect("a write"), 6);
        assert_eq!(first.write(b"P", 0).expect("a write"), 1);
        assert_eq!(first.append(b" again").expect("a write"), 6);
        let refused = second.write(b"x", 0).expect_err("the only descriptor is used");
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::MFILE));
        drop(first);
        assert_eq!(second.write(b"p", 0).expect("a write"), 1);
        assert_eq!(std::fs::read(path).expect("the file"), b"placeded again");
    }
}
