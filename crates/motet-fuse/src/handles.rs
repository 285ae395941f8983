//! Files and directories that programs have open in the mounted file system.

use crate::freshness::Asked;
use fuser::BackingId;
use motet_files::client::File;
use motet_files::protocol::{Attributes, Entry, MAX_DATA_BYTES, entries};
use std::collections::hash_map;
use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
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
    /// Whether root has opened it.
    pub by_root: bool,
    /// Through which the kernel reads and writes itself, kept while the file is open.
    backing: Option<Arc<BackingId>>,
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
    with_attributes: bool,
    asked: Asked,
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
    /// Whether it is the directory itself, or its parent.
    pub is_itself: bool,
    /// Its attributes, if they were asked for; those of a directory itself and its parent are none.
    pub attributes: Option<Attributes>,
    /// The user who lists may not see the attributes: the kernel must not use them for one who asks by the name.
    pub is_unseen: bool,
}

/// What is known of an entry that a server has listed without attributes.
pub enum Unseen {
    /// It is removed.
    Gone,
    /// Its attributes, which the user who lists may not see: it may read the directory, and not search it.
    Known(Attributes),
    /// Its attributes are not this mount's to see, either.
    Unknown,
}

impl Handle {
    /// Whether the kernel reads and writes it itself.
    pub fn is_backed(&self) -> bool {
        self.backing.is_some()
    }

    /// A descriptor of it is closed. `removed`: the file has no name any more. Returns whether others may wait for the release of the open file.
    fn descriptor_closed(&self, removed: bool) -> bool {
        let locked = !self.file.lock_owners().is_empty();
        if locked || removed {
            let (mut closing, now) = (self.closing(), Some(Instant::now()));
            *closing = Closing { locked: now.filter(|_| locked), removed: now.filter(|_| removed) };
        }
        locked || removed
    }

    /// Whether the file had no name any more when a descriptor of it was last closed.
    pub fn has_been_removed(&self) -> bool {
        self.closing().removed.is_some()
    }

    fn closing(&self) -> MutexGuard<'_, Closing> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a descriptor was closed not longer than `limit` ago, while it had anything that others wait for.
    fn may_be_released(&self, limit: Duration) -> bool {
        let closing = self.closing();
        [closing.locked, closing.removed].into_iter().flatten().any(|since| since.elapsed() < limit)
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

    /// The entries of a directory from `offset` on, as far as one answer of the server goes; none: the directory ends there. `asked` says when it is asked.
    pub fn listing(
        &self,
        offset: u64,
        with_attributes: bool,
        asked: impl Fn() -> Asked,
        unseen: impl Fn(&OsStr) -> Unseen,
    ) -> std::io::Result<MutexGuard<'_, Listing>> {
        let mut listing = self.listing.lock().unwrap_or_else(PoisonError::into_inner);
        // The kernel asks by turns with attributes and without.
        if listing.at != offset || offset == 0 || listing.with_attributes != with_attributes {
            *listing = Listing { at: offset, with_attributes, ..Listing::default() };
        }
        let (mut from, mut is_end) = (offset, false);
        while listing.entries.is_empty() && !is_end {
            listing.asked = asked();
            let mut buffer = vec![0; LISTING_BYTES];
            let length = self.file.readdir(from, with_attributes, &mut buffer)?;
            is_end = true;
            for entry in entries(&buffer[..length]) {
                (from, is_end) = (entry.cookie, false);
                let mut listed = ListedEntry::of(&entry);
                if with_attributes && listed.attributes.is_none() && !listed.is_itself {
                    listed.is_unseen = true;
                    match unseen(&listed.name) {
                        Unseen::Gone => continue,
                        Unseen::Known(attributes) => listed.attributes = Some(attributes),
                        Unseen::Unknown => {}
                    }
                }
                listing.entries.push_back(listed);
            }
        }
        Ok(listing)
    }
}

/// Whether this is a directory's own name, or its parent's, in a listing.
fn is_itself(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

impl ListedEntry {
    fn of(entry: &Entry<'_>) -> Self {
        Self {
            cookie: entry.cookie,
            inode: entry.inode,
            kind: entry.kind,
            name: OsString::from_vec(entry.name.to_vec()),
            is_itself: is_itself(entry.name),
            attributes: entry.attributes,
            is_unseen: false,
        }
    }
}

impl Listing {
    /// Before the server was asked for these entries.
    pub fn asked(&self) -> Asked {
        self.asked
    }

    /// Calls `take` with each entry until it returns false, which leaves that entry for the next call.
    pub fn take(&mut self, mut take: impl FnMut(&ListedEntry) -> bool) {
        while let Some(entry) = self.entries.front() {
            if !take(entry) {
                return;
            }
            self.at = entry.cookie;
            self.entries.pop_front();
        }
    }
}

/// All open files and directories.
#[derive(Debug, Default)]
pub struct Handles {
    open: RwLock<Open>,
    last: AtomicU64,
    /// Open files that may be about to be released, by their handles.
    closing: Mutex<HashMap<u64, Arc<Handle>>>,
    /// Open files without a name that are being released, and may not be among the others any more.
    releasing: AtomicUsize,
}

#[derive(Debug, Default)]
struct Open {
    by_handle: HashMap<u64, Arc<Handle>>,
    /// The handles of each file, by its number.
    by_number: HashMap<u64, Vec<u64>>,
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
    /// Takes an open file in; returns its handle. `user`: who has opened it.
    pub fn add(&self, number: u64, file: File, user: u32, backing: Option<Arc<BackingId>>) -> u64 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let (listing, closing) = (Mutex::default(), Mutex::default());
        let opened = Arc::new(Handle { number, file, by_root: user == 0, backing, listing, closing });
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.by_handle.insert(handle, opened);
        open.by_number.entry(number).or_default().push(handle);
        handle
    }

    fn open(&self) -> RwLockReadGuard<'_, Open> {
        self.open.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn closing(&self) -> MutexGuard<'_, HashMap<u64, Arc<Handle>>> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open file of a handle.
    pub fn get(&self, handle: u64) -> Option<Arc<Handle>> {
        self.open().by_handle.get(&handle).cloned()
    }

    /// Removes a handle. The file is closed when the last request that uses it has ended.
    pub fn remove(&self, handle: u64) -> Option<Arc<Handle>> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let removed = open.by_handle.remove(&handle)?;
        self.closing().remove(&handle);
        if let hash_map::Entry::Occupied(mut of_number) = open.by_number.entry(removed.number) {
            of_number.get_mut().retain(|&other| other != handle);
            if of_number.get().is_empty() {
                of_number.remove();
            }
        }
        Some(removed)
    }

    /// An open file of this number: the one that was opened last.
    pub fn of(&self, number: u64) -> Option<Arc<Handle>> {
        let open = self.open();
        let handle = open.by_number.get(&number)?.last()?;
        open.by_handle.get(handle).cloned()
    }

    /// Whether an open file that has what is waited for may be about to be released: a descriptor of it was closed not longer than `limit` ago.
    pub fn is_closing(&self, awaited: Awaited, limit: Duration) -> bool {
        // Locks are released before the open file.
        if awaited == Awaited::Space && self.releasing.load(Ordering::SeqCst) > 0 {
            return true;
        }
        let mut closing = self.closing();
        closing.retain(|_, handle| handle.may_be_released(limit));
        closing.values().any(|handle| handle.is_closing(awaited, limit))
    }

    /// A descriptor of an open file is closed. `removed`: the file has no name any more.
    pub fn descriptor_closed(&self, handle: u64, removed: bool) {
        let Some(open) = self.get(handle) else { return };
        if open.descriptor_closed(removed) {
            self.closing().insert(handle, open);
            // Its release may have come meanwhile.
            if self.get(handle).is_none() {
                self.closing().remove(&handle);
            }
        }
    }

    /// An open file without a name is about to be released.
    pub fn releasing(&self) -> Releasing<'_> {
        self.releasing.fetch_add(1, Ordering::SeqCst);
        Releasing(&self.releasing)
    }

    /// The open files of this number.
    pub fn all_of(&self, number: u64) -> Vec<Arc<Handle>> {
        let open = self.open();
        let handles = open.by_number.get(&number).into_iter().flatten();
        handles.filter_map(|handle| open.by_handle.get(handle).cloned()).collect()
    }

    /// All open files.
    pub fn all(&self) -> Vec<Arc<Handle>> {
        self.open().by_handle.values().cloned().collect()
    }
}
