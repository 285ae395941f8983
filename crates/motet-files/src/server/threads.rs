//! The threads of the server that one client occupies: those that have given the turn away for its requests. Beyond a share its further requests that may wait are
//! held, so that other clients find threads. All clients of one other user have a share together, too.

use super::backlog::Postponed;
use crate::protocol::{Operation, SLOTS};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Threads that a client may occupy before further requests are held; by reads, which seldom take long, more.
const CLIENT_THREADS: usize = 4;
const CLIENT_READERS: usize = 8;
/// Threads that all clients of one other user may occupy.
const USER_THREADS: usize = CLIENT_READERS;

/// How many threads all clients of one other user occupy.
#[derive(Debug, Default)]
pub struct UserThreads(AtomicUsize);

/// The threads that a client occupies, and its requests that are held.
#[derive(Debug, Default)]
pub struct ClientThreads {
    busy: AtomicUsize,
    held: Mutex<VecDeque<Postponed>>,
    /// Of a client of another user.
    user: Option<Arc<UserThreads>>,
}

/// The share of the threads that leaves room for an operation.
fn most(operation: &Operation<'_>) -> usize {
    if matches!(operation, Operation::Read { .. }) { CLIENT_READERS } else { CLIENT_THREADS }
}

impl ClientThreads {
    /// Those of a client. `user`: those of the other user whose client it is.
    pub fn of(user: Option<Arc<UserThreads>>) -> Self {
        Self { user, ..Self::default() }
    }

    fn held(&self) -> MutexGuard<'_, VecDeque<Postponed>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn occupies(&self, most: usize) -> bool {
        let of_user = || self.user.as_ref().is_some_and(|user| user.0.load(Ordering::SeqCst) >= USER_THREADS);
        self.busy.load(Ordering::SeqCst) >= most || of_user()
    }

    /// Whether a request that may wait is to be held. The caller has the turn, so no thread is occupied meanwhile.
    pub fn is_full(&self, operation: &Operation<'_>) -> bool {
        self.occupies(most(operation))
    }

    /// A thread is occupied.
    pub fn begin(&self) {
        self.busy.fetch_add(1, Ordering::SeqCst);
        if let Some(user) = &self.user {
            user.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A thread is free. Returns whether requests are held.
    pub fn end(&self) -> bool {
        self.busy.fetch_sub(1, Ordering::SeqCst);
        if let Some(user) = &self.user {
            user.0.fetch_sub(1, Ordering::SeqCst);
        }
        self.holds()
    }

    /// Whether requests are held.
    pub fn holds(&self) -> bool {
        !self.held().is_empty()
    }

    /// Holds a request. False: the client has more under way than it has slots. A thread may have become free before it was held: the caller asks
    /// [`ClientThreads::is_full`] again.
    pub fn hold(&self, request: Postponed) -> bool {
        let mut held = self.held();
        let has_room = held.len() < usize::from(SLOTS);
        if has_room {
            held.push_back(request);
        }
        has_room
    }

    /// The held request that came first, if a thread is free for it.
    pub fn next(&self) -> Option<Postponed> {
        if self.occupies(CLIENT_THREADS) {
            return None;
        }
        self.held().pop_front()
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
        assert_eq!(threads.next(), Some(request(0)));
        threads.clear();
        assert!(threads.next().is_none() && !threads.end());
    }

    #[test]
    fn all_clients_of_another_user_have_a_share_together() {
        let user = Arc::default();
        let (many, last) = ([0; 4].map(|_| ClientThreads::of(Some(Arc::clone(&user)))), ClientThreads::of(Some(user)));
        many.iter().cycle().take(USER_THREADS).for_each(ClientThreads::begin);
        assert!(last.is_full(&Operation::Statfs), "others occupy the threads");
        assert!(!ClientThreads::of(Some(Arc::default())).is_full(&Operation::Statfs), "another user");
        let request = Postponed { channel: channel(), tag: 1, message: Vec::new() };
        assert!(last.hold(request) && last.next().is_none() && last.holds());
        assert!(!many[0].end());
        assert!(last.next().is_some() && !last.holds());
    }
}
