//! The threads of the server that one client occupies: those that have given the turn away for its requests. Beyond a share its further requests that may wait are
//! held, so that other clients find threads.

use super::backlog::Postponed;
use crate::protocol::{Operation, SLOTS};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Threads that a client may occupy before further requests are held; by reads, which seldom take long, more.
const CLIENT_THREADS: usize = 4;
const CLIENT_READERS: usize = 8;

/// The threads that a client occupies, and its requests that are held.
#[derive(Debug, Default)]
pub struct ClientThreads {
    busy: AtomicUsize,
    held: Mutex<VecDeque<Postponed>>,
}

/// The share of the threads that leaves room for an operation.
fn most(operation: &Operation<'_>) -> usize {
    if matches!(operation, Operation::Read { .. }) { CLIENT_READERS } else { CLIENT_THREADS }
}

impl ClientThreads {
    fn held(&self) -> MutexGuard<'_, VecDeque<Postponed>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request that may wait is to be held. The caller has the turn, so no thread is occupied meanwhile.
    pub fn is_full(&self, operation: &Operation<'_>) -> bool {
        self.busy.load(Ordering::SeqCst) >= most(operation)
    }

    /// A thread is occupied.
    pub fn begin(&self) {
        self.busy.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread is free. Returns whether requests are held.
    pub fn end(&self) -> bool {
        self.busy.fetch_sub(1, Ordering::SeqCst);
        !self.held().is_empty()
    }

    /// Holds a request. False: the client has more under way than it has slots.
    pub fn hold(&self, request: Postponed) -> bool {
        let mut held = self.held();
        let has_room = held.len() < usize::from(SLOTS);
        if has_room {
            held.push_back(request);
        }
        has_room
    }

    /// The held request that came first, if a thread is free for it, and whether there are more.
    pub fn next(&self) -> Option<(Postponed, bool)> {
        if self.busy.load(Ordering::SeqCst) >= CLIENT_THREADS {
            return None;
        }
        let mut held = self.held();
        let next = held.pop_front()?;
        Some((next, !held.is_empty()))
    }

    /// Forgets the held requests, which their client will send again.
    pub fn clear(&self) {
        self.held().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::backlog::tests::channel;
    use super::*;

    #[test]
    fn requests_are_held_in_order_while_their_client_has_its_share() {
        let (threads, channel) = (ClientThreads::default(), channel());
        let (sync, read) = (Operation::Statfs, Operation::Read { file: 1, offset: 0, length: 1 });
        for _ in 0..CLIENT_THREADS {
            assert!(!threads.is_full(&sync));
            threads.begin();
        }
        assert!(threads.is_full(&sync) && !threads.is_full(&read));
        let request = |tag| Postponed { channel, tag, message: Vec::new() };
        assert!((0..u64::from(SLOTS)).all(|tag| threads.hold(request(tag))));
        assert!(!threads.hold(request(99)), "more than slots");
        assert_eq!(threads.next(), None, "no thread is free");
        assert!(threads.end());
        assert_eq!(threads.next(), Some((request(0), true)));
        threads.clear();
        assert!(threads.next().is_none() && !threads.end());
    }
}
