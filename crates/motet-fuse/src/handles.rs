//! Files and directories that programs have open in the mounted file system.

use fuser::BackingId;
use motet_files::client::File;
use motet_files::protocol::{Attributes, MAX_DATA_BYTES, entries};
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Bytes of a listing that are asked for at once.
const LISTING_BYTES: usize = 64 << 10;
const _: () = assert!(LISTING_BYTES <= MAX_DATA_BYTES);

/// An open file or directory.
#[derive(Debug)]
pub struct Handle {
    /// The number of the file.
    pub number: u64,
    /// The file at the server.
    pub file: File,
    /// Through which the kernel reads and writes itself, kept while the file is open.
    _backing: Option<Arc<BackingId>>,
    listing: Mutex<Listing>,
    /// When one of its descriptors was closed, while it has locks that belong to the open file: it may be about to be released.
    closing: Mutex<Option<Instant>>,
}

/// Entries that the server has listed and the kernel has not asked for yet.
#[derive(Debug, Default)]
pub struct Listing {
    /// Where the kernel goes on, if it reads in order.
    at: u64,
    entries: VecDeque<ListedEntry>,
}

/// An entry of a directory.
#[derive(Debug)]
pub struct ListedEntry {
    /// Where the listing goes on behind it.
    pub cookie: u64,
    /// The number of the file on the server.
    pub inode: u64,
    /// Type, as the upper bits of `st_mode`; 0: not known.
    pub kind: u32,
    /// Its name.
    pub name: OsString,
    /// Its attributes.
    pub attributes: Option<Attributes>,
}

impl Handle {
    /// A descriptor of it is closed.
    pub fn descriptor_closed(&self) {
        if !self.file.lock_owners().is_empty() {
            *self.closing.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
    }

    /// Calls `take` with each entry from `offset` on until it returns false, which leaves that entry for the next call, or the directory ends.
    pub fn list(
        &self,
        offset: u64,
        with_attributes: bool,
        mut take: impl FnMut(&ListedEntry) -> bool,
    ) -> std::io::Result<()> {
        let mut listing: MutexGuard<'_, Listing> = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        if listing.at != offset || offset == 0 {
            *listing = Listing { at: offset, entries: VecDeque::new() };
        }
        loop {
            while let Some(entry) = listing.entries.front() {
                if !take(entry) {
                    return Ok(());
                }
                listing.at = entry.cookie;
                listing.entries.pop_front();
            }
            let mut buffer = vec![0; LISTING_BYTES];
            let length = self.file.readdir(listing.at, with_attributes, &mut buffer)?;
            listing.entries.extend(entries(&buffer[..length]).map(|entry| ListedEntry {
                cookie: entry.cookie,
                inode: entry.inode,
                kind: entry.kind,
                name: OsString::from_vec(entry.name.to_vec()),
                attributes: entry.attributes,
            }));
            if listing.entries.is_empty() {
                return Ok(());
            }
        }
    }
}

/// All open files and directories.
#[derive(Debug, Default)]
pub struct Handles {
    open: RwLock<HashMap<u64, Arc<Handle>>>,
    last: AtomicU64,
}

impl Handles {
    /// Takes an open file in; returns its handle.
    pub fn add(&self, number: u64, file: File, backing: Option<Arc<BackingId>>) -> u64 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let opened =
            Arc::new(Handle { number, file, _backing: backing, listing: Mutex::default(), closing: Mutex::default() });
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(handle, opened);
        handle
    }

    /// The open file of a handle.
    pub fn get(&self, handle: u64) -> Option<Arc<Handle>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned()
    }

    /// Removes a handle. The file is closed when the last request that uses it has ended.
    pub fn remove(&self, handle: u64) -> Option<Arc<Handle>> {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle)
    }

    /// An open file of this number, for a file that has no name any more.
    pub fn of(&self, number: u64) -> Option<Arc<Handle>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().find(|handle| handle.number == number).cloned()
    }

    /// Whether one of the open files of this number may be about to be released: a descriptor of it was closed not longer than `limit` ago. Later it has others.
    pub fn is_closing(&self, number: u64, limit: Duration) -> bool {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().filter(|handle| handle.number == number).any(|handle| {
            let mut closing = handle.closing.lock().unwrap_or_else(PoisonError::into_inner);
            *closing = closing.filter(|since| since.elapsed() < limit);
            closing.is_some()
        })
    }

    /// All open files.
    pub fn all(&self) -> Vec<Arc<Handle>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
