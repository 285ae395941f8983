//! One thread at a time for each of several things, such as the members that a node connects to: who waits for one of them waits for no other.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The turns.
#[derive(Debug)]
pub(crate) struct Turns<K> {
    taken: Mutex<HashSet<K>>,
    ended: Condvar,
}

/// A turn, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a, K: Hash + Eq + Copy> {
    turns: &'a Turns<K>,
    key: K,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { taken: Mutex::default(), ended: Condvar::new() }
    }
}

impl<K: Hash + Eq + Copy> Turns<K> {
    /// Waits for the turn of `key`. `None`: another thread still has it after the limit.
    pub fn take(&self, key: K, limit: Duration) -> Option<Turn<'_, K>> {
        let waited = self.ended.wait_timeout_while(self.taken(), limit, |taken| taken.contains(&key));
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        taken.insert(key).then(|| Turn { turns: self, key })
    }

    fn taken(&self) -> MutexGuard<'_, HashSet<K>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq + Copy> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        self.turns.taken().remove(&self.key);
        self.turns.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_thing_waits() {
        let turns = Turns::default();
        let first = turns.take(1, Duration::ZERO).unwrap();
        let _other = turns.take(2, Duration::ZERO).unwrap();
        assert!(turns.take(1, Duration::from_millis(1)).is_none());
        std::thread::scope(|scope| {
            let next = scope.spawn(|| turns.take(1, Duration::from_secs(60)).is_some());
            drop(first);
            assert!(next.join().unwrap());
        });
        assert!(turns.take(1, Duration::ZERO).is_some());
    }
}
