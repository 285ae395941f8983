//! The open files of one client.

use super::grants::Grants;
use super::locks::{LockClient, Released};
use super::open_file::OpenFile;
use super::quota::{Quota, Taken};
use crate::Result;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Files that a client may have open.
const MAX_OPEN_FILES: usize = 16 << 10;

/// Files that a client has open no more.
#[derive(Debug)]
#[must_use = "their descriptors are closed when this is dropped"]
pub struct ClosedFiles {
    locks: Option<Released>,
    _files: Vec<(Arc<OpenFile>, Taken)>,
}

impl ClosedFiles {
    /// Releases the locks of the system.
    pub fn release_locks(&mut self) {
        self.locks = None;
    }
}

/// Open files, by number.
#[derive(Debug)]
pub struct FileTable {
    /// The number of the client, which no other one has.
    client: u64,
    /// How many locks the server had granted when the client lost those that it had.
    since: AtomicU64,
    /// The descriptors that its files and locks may use.
    quota: Arc<Quota>,
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<u32, (Arc<OpenFile>, Taken)>,
    next: u32,
}

impl Default for FileTable {
    fn default() -> Self {
        Self::with(Quota::new(2 * MAX_OPEN_FILES, None))
    }
}

impl FileTable {
    /// A table of a client that may use so many descriptors.
    pub fn with(quota: Arc<Quota>) -> Self {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let (since, table) = (AtomicU64::new(0), RwLock::default());
        Self { client: CLIENTS.fetch_add(1, Ordering::Relaxed), since, quota, table }
    }

    /// The client, for its locks.
    pub fn lock_client(&self) -> LockClient {
        LockClient { number: self.client, since: self.since.load(Ordering::Acquire) }
    }

    /// The descriptors that its files and locks may use.
    pub fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// The client gets none of the locks again that it had before.
    pub fn lose_locks(&self) {
        self.since.store(Grants::LOST, Ordering::Release);
    }

    /// An open file.
    pub fn get(&self, number: u32) -> Result<Arc<OpenFile>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.files.get(&number).map(|(file, _)| Arc::clone(file)).ok_or_else(|| Errno::BADF.into())
    }

    /// Takes an open file in; returns its number.
    pub fn add(&self, file: OpenFile) -> Result<u32> {
        let taken = self.quota.take()?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.files.len() >= MAX_OPEN_FILES {
            return Err(Errno::MFILE.into());
        }
        while table.files.contains_key(&table.next) {
            table.next = table.next.wrapping_add(1);
        }
        let number = table.next;
        table.next = number.wrapping_add(1);
        table.files.insert(number, (Arc::new(file), taken));
        Ok(number)
    }

    /// Closes a file, and releases its locks. Its descriptor is closed when the last request that uses it has ended.
    pub fn close(&self, number: u32) -> Result<()> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let (file, _taken) = table.files.remove(&number).ok_or(Errno::BADF)?;
        drop(table);
        drop(file.closed());
        Ok(())
    }

    /// Closes all files, and releases their locks. The numbers of later ones are others. The descriptors are closed when what is returned is dropped.
    pub fn end(&self) -> ClosedFiles {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let files = std::mem::take(&mut table.files);
        drop(table);
        files.values().for_each(|(file, _)| file.closed_with_all());
        // Without open files there are no locks.
        let locks = files.values().next().map(|(file, _)| {
            // Before other clients can have them.
            self.since.fetch_max(file.grants(), Ordering::AcqRel);
            file.locks().ended(self.client)
        });
        ClosedFiles { locks, _files: files.into_values().collect() }
    }

    /// How many owners have locks, on all files.
    pub fn lock_owners(&self) -> usize {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.files.values().next().map_or(0, |(file, _)| file.locks().owners(self.client))
    }

    /// How many files are open.
    pub fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).files.len()
    }
}
