//! What clients may have cached: the attributes of files and the names of directories. A client that has subscribed to notices learns when another client changes
//! something of it.
//!
//! A lease begins when an answer tells a client attributes or a name. It ends when another client's change is reported to it; the client gets another one when it asks
//! again. So a file that one client writes all the time costs one notice, and not one for each write.

use crate::protocol::SessionKey;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Leases of one client. A client that needs more has to forget all that it has cached, and begins anew.
const MAX_LEASES: usize = 64 << 10;
/// Leases of all clients.
const MAX_LEASED: usize = 4 << 20;

/// What is leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Leased {
    /// The attributes of a file: its device and its number there.
    Attributes(u64, u64),
    /// A name in a directory, by a hash of the directory's device and number and of the name: the path changes when a directory is renamed. Two names of one
    /// hash cost a notice too many.
    Entry(u64),
}

/// The leases of all clients.
#[derive(Debug, Default)]
pub struct Leases {
    hasher: RandomState,
    subscribers: AtomicUsize,
    /// Counts changes, so that an answer that was made while something changed is known.
    changes: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    holders: HashMap<Leased, HashSet<SessionKey>>,
    /// The leases of each subscriber: to end them no others are looked at.
    by_client: HashMap<SessionKey, HashSet<Leased>>,
    /// How many there are.
    count: usize,
}

impl Leases {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The entry `name` of a directory, by the directory's device and number.
    pub fn entry(&self, directory: (u64, u64), name: &[u8]) -> Leased {
        Leased::Entry(self.hasher.hash_one((directory, name)))
    }

    /// A client gets leases from now on. It keeps those that it has: an answer that is under way may show what is leased.
    pub fn subscribe(&self, client: SessionKey) {
        let mut table = self.table();
        if let Entry::Vacant(new) = table.by_client.entry(client) {
            new.insert(HashSet::new());
            self.subscribers.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A client gets no leases any more, and those that it has end.
    pub fn unsubscribe(&self, client: SessionKey) {
        let mut table = self.table();
        table.end_all(client);
        if table.by_client.remove(&client).is_some() {
            self.subscribers.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Whether no client has leases, so that changes need not be looked at.
    pub fn is_unused(&self) -> bool {
        self.subscribers.load(Ordering::Acquire) == 0
    }

    /// How many changes there were.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Something has changed: before the leases of others are ended.
    pub fn count_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// A client learns something. Nothing happens if it has not subscribed. Returns a client that has to forget all that it has cached, because there are too many
    /// leases: this one, or the one that has most.
    #[must_use = "a client that has cached something without a lease does not learn of changes"]
    pub fn grant(&self, client: SessionKey, leased: Leased) -> Option<SessionKey> {
        if self.is_unused() {
            return None;
        }
        let Table { holders, by_client, count } = &mut *self.table();
        let of_client = by_client.get_mut(&client)?;
        if of_client.contains(&leased) {
            return None;
        }
        if of_client.len() >= MAX_LEASES {
            return Some(client);
        }
        let is_full = *count >= MAX_LEASED;
        of_client.insert(leased);
        holders.entry(leased).or_default().insert(client);
        *count += 1;
        let most = || by_client.iter().max_by_key(|(_, leases)| leases.len()).map(|(client, _)| *client);
        is_full.then(most).flatten()
    }

    /// A client has changed something: ends the leases of the others, and returns who they are.
    pub fn end_of_others(&self, client: SessionKey, leased: Leased) -> Vec<SessionKey> {
        let Table { holders, by_client, count } = &mut *self.table();
        let Some(of) = holders.get_mut(&leased) else { return Vec::new() };
        let others: Vec<_> = of.extract_if(|holder| *holder != client).collect();
        if of.is_empty() {
            holders.remove(&leased);
        }
        for other in &others {
            *count -= usize::from(by_client.get_mut(other).is_some_and(|leases| leases.remove(&leased)));
        }
        others
    }
}

impl Table {
    fn end_all(&mut self, client: SessionKey) {
        let Some(leases) = self.by_client.get_mut(&client).map(std::mem::take) else { return };
        self.count -= leases.len();
        for leased in leases {
            if let Some(holders) = self.holders.get_mut(&leased) {
                holders.remove(&client);
                if holders.is_empty() {
                    self.holders.remove(&leased);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionKey = SessionKey([1; 16]);
    const B: SessionKey = SessionKey([2; 16]);
    const FILE: Leased = Leased::Attributes(1, 2);

    #[test]
    fn a_change_ends_the_leases_of_others_once() {
        let leases = Leases::default();
        assert!(leases.is_unused());
        assert_eq!(leases.grant(A, FILE), None);
        assert!(leases.end_of_others(B, FILE).is_empty(), "it has not subscribed");
        leases.subscribe(A);
        leases.subscribe(B);
        for client in [A, A, B] {
            assert_eq!(leases.grant(client, FILE), None);
        }
        assert_eq!(leases.end_of_others(B, FILE), [A]);
        assert!(leases.end_of_others(B, FILE).is_empty());
        assert_eq!(leases.end_of_others(A, FILE), [B], "its own one goes on");
        let entry = |inode, name: &[u8]| leases.entry((1, inode), name);
        assert_eq!(leases.grant(A, entry(2, b"name")), None);
        assert!(leases.end_of_others(B, entry(2, b"other")).is_empty());
        assert!(leases.end_of_others(B, entry(3, b"name")).is_empty());
        assert_eq!(leases.end_of_others(B, entry(2, b"name")), [A]);
    }

    #[test]
    fn leases_are_bounded_and_end_with_the_client() {
        let leases = Leases::default();
        leases.subscribe(A);
        for inode in 0..MAX_LEASES as u64 + 10 {
            let expected = (inode >= MAX_LEASES as u64).then_some(A);
            assert_eq!(leases.grant(A, Leased::Attributes(1, inode)), expected, "it has to forget what it has");
        }
        assert_eq!(leases.grant(A, Leased::Attributes(1, 5)), None, "it has that one");
        assert_eq!(leases.table().holders.len(), MAX_LEASES);
        assert_eq!(leases.end_of_others(B, Leased::Attributes(1, 0)), [A]);
        assert_eq!(leases.grant(A, FILE), None);
        leases.unsubscribe(A);
        leases.unsubscribe(A);
        assert!(leases.is_unused() && leases.table().holders.is_empty());
    }

    #[test]
    fn leases_are_counted_also_after_a_new_subscription() {
        let leases = Leases::default();
        let file = |inode| Leased::Attributes(1, inode);
        for client in [A, B] {
            leases.subscribe(client);
            assert_eq!((leases.grant(client, file(0)), leases.grant(client, file(1))), (None, None));
        }
        assert_eq!((leases.end_of_others(A, file(0)), leases.table().count), (vec![B], 3));
        for inode in 2..MAX_LEASES as u64 {
            assert_eq!(leases.grant(A, file(inode)), None);
        }
        leases.subscribe(A);
        assert_eq!(leases.grant(A, file(MAX_LEASES as u64)), Some(A), "it has to forget what it has");
        leases.unsubscribe(A);
        assert_eq!(leases.table().count, 1);
        leases.table().count = MAX_LEASED;
        assert_eq!(leases.grant(B, FILE), Some(B), "of all there are too many");
    }
}
