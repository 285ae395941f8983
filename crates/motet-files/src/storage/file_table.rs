//! The open files of one client.

use super::grants::Grants;
use super::locks::LockClient;
use super::open_file::OpenFile;
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
    _files: Vec<Arc<OpenFile>>,
}

/// Open files, by number.
#[derive(Debug)]
pub struct FileTable {
    /// The number of the client, which no other one has.
    client: u64,
    /// How many locks the server had granted when the client lost those that it had.
    since: AtomicU64,
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<u32, Arc<OpenFile>>,
    next: u32,
}

impl Default for FileTable {
    fn default() -> Self {
        static CLIENTS: AtomicU64 = AtomicU64::new(0);
        let (since, table) = (AtomicU64::new(0), RwLock::default());
        Self { client: CLIENTS.fetch_add(1, Ordering::Relaxed), since, table }
    }
}

impl FileTable {
    /// The client, for its locks.
    pub fn lock_client(&self) -> LockClient {
        LockClient { number: self.client, since: self.since.load(Ordering::Acquire) }
    }

    /// The client gets none of the locks again that it had before.
    pub fn lose_locks(&self) {
        self.since.store(Grants::LOST, Ordering::Release);
    }

    /// An open file.
    pub fn get(&self, number: u32) -> Result<Arc<OpenFile>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.files.get(&number).cloned().ok_or_else(|| Errno::BADF.into())
    }

    /// Takes an open file in; returns its number.
    pub fn add(&self, file: OpenFile) -> Result<u32> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.files.len() >= MAX_OPEN_FILES {
            return Err(Errno::MFILE.into());
        }
        while table.files.contains_key(&table.next) {
            table.next = table.next.wrapping_add(1);
        }
        let number = table.next;
        table.next = number.wrapping_add(1);
        table.files.insert(number, Arc::new(file));
        Ok(number)
    }

    /// Closes a file, and releases its locks. Its descriptor is closed when the last request that uses it has ended.
    pub fn close(&self, number: u32) -> Result<()> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let file = table.files.remove(&number).ok_or(Errno::BADF)?;
        drop(table);
        file.closed();
        Ok(())
    }

    /// Closes all files, and releases their locks. The numbers of later ones are others. The descriptors are closed when what is returned is dropped.
    pub fn end(&self) -> ClosedFiles {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let files = std::mem::take(&mut table.files);
        drop(table);
        // Before other clients can have them. Without open files there are no locks.
        if let Some(file) = files.values().next() {
            self.since.fetch_max(file.grants(), Ordering::AcqRel);
        }
        files.values().for_each(|file| file.closed());
        ClosedFiles { _files: files.into_values().collect() }
    }

    /// How many owners have locks, on all files.
    pub fn lock_owners(&self) -> usize {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.files.values().map(|file| file.lock_owners()).sum()
    }

    /// How many files are open.
    pub fn len(&self) -> usize {
        self.table.read().unwrap_or_else(PoisonError::into_inner).files.len()
    }
}
