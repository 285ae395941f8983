//! What a client has asked for since it was made.

use crate::protocol::{Operation, Reply};
use crate::storage::DirectOpens;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of a transport.
#[derive(Debug, Default)]
pub struct Counters {
    requests: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    direct_opens: DirectOpens,
}

/// What a client uses, and has asked for since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Files that are open.
    pub open_files: usize,
    /// Owners of locks on them.
    pub locks: usize,
    /// Requests that were answered.
    pub requests: u64,
    /// Bytes of files and of listings that were read.
    pub bytes_read: u64,
    /// Bytes that were sent to be written.
    pub bytes_written: u64,
}

impl Counters {
    /// A request with so many bytes of data is made.
    pub fn sent(&self, operation: &Operation<'_>, bytes: usize) {
        if matches!(operation, Operation::Write { .. } | Operation::Append { .. }) {
            self.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// It is answered with so many bytes.
    pub fn answered(&self, reply: &Reply, bytes: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match reply {
            Reply::Count(_) => drop(self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed)),
            Reply::Opened { cached: Some(why), .. } => self.direct_opens.note(*why),
            _ => {}
        }
    }

    /// It is answered with an error.
    pub fn failed(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// What became of its opens with O_DIRECT.
    pub fn direct_opens(&self) -> &DirectOpens {
        &self.direct_opens
    }

    /// The totals, with what is in use now.
    pub fn totals(&self, open_files: usize, locks: usize) -> Totals {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (requests, bytes_read) = (count(&self.requests), count(&self.bytes_read));
        Totals { open_files, locks, requests, bytes_read, bytes_written: count(&self.bytes_written) }
    }
}
