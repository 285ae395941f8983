//! Files and directories that programs have open in the mounted file system.

use fuser::BackingId;
use motet_files::client::File;
use motet_files::protocol::{Attributes, MAX_DATA_BYTES, entries};
use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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
    /// Whether it may be about to be released.
    closing: Mutex<Closing>,
}

/// When a descriptor of an open file was closed, while that had what others wait for.
#[derive(Debug, Default)]
struct Closing {
    /// Locks that belong to the open file.
    locked: Option<Instant>,
    /// The space of a file without a name.
    removed: Option<Instant>,
}

/// Why the release of an open file is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// Its locks on the file of this number.
    Locks(u64),
    /// Its space.
    Space,
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
    /// A descriptor of it is closed. `removed`: the file has no name any more.
    pub fn descriptor_closed(&self, removed: bool) {
        let locked = !self.file.lock_owners().is_empty();
        if locked || removed {
            let (mut closing, now) = (self.closing(), Some(Instant::now()));
            *closing = Closing { locked: now.filter(|_| locked), removed: now.filter(|_| removed) };
        }
    }

    /// Whether the file had no name any more when a descriptor of it was last closed.
    pub fn has_been_removed(&self) -> bool {
        self.closing().removed.is_some()
    }

    fn closing(&self) -> MutexGuard<'_, Closing> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a descriptor was closed not longer than `limit` ago. Later it is known to have others.
    fn is_closing(&self, awaited: Awaited, limit: Duration) -> bool {
        let closing = self.closing();
        let since = match awaited {
            Awaited::Locks(number) => closing.locked.filter(|_| self.number == number),
            Awaited::Space => closing.removed,
        };
        since.is_some_and(|since| since.elapsed() < limit)
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
    /// Open files without a name that are being released, and may not be among the others any more.
    releasing: AtomicUsize,
}

/// An open file is being released until this is dropped.
#[must_use = "the release ends when this is dropped"]
pub struct Releasing<'a>(&'a AtomicUsize);

impl Drop for Releasing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
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

    /// Whether an open file that has what is waited for may be about to be released: a descriptor of it was closed not longer than `limit` ago.
    pub fn is_closing(&self, awaited: Awaited, limit: Duration) -> bool {
        // Locks are released before the open file.
        if awaited == Awaited::Space && self.releasing.load(Ordering::SeqCst) > 0 {
            return true;
        }
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().any(|handle| handle.is_closing(awaited, limit))
    }

    /// An open file without a name is about to be released.
    pub fn releasing(&self) -> Releasing<'_> {
        self.releasing.fetch_add(1, Ordering::SeqCst);
        Releasing(&self.releasing)
    }

    /// All open files.
    pub fn all(&self) -> Vec<Arc<Handle>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
