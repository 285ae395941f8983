//! The store within the gatekeeper.
//!
//! The last changes are kept, so a watcher is a position in them: it needs no queue of its own, and a slow one costs nothing. A watcher
//! that falls behind the kept changes gets an error.

use super::journal::Journal;
use super::{Change, Expected, StoreError};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Changes that are kept for watchers: their number.
const MAX_HISTORY: usize = 16 << 10;
/// Changes that are kept for watchers: the bytes of their values. A change of a group is its whole view, so these are most of the memory of a gatekeeper
/// with many nodes.
const MAX_HISTORY_BYTES: usize = 8 << 20;
/// The journal is written anew when it is so many times as long as the values, and at least [`MIN_BYTES_TO_COMPACT`].
const COMPACT_FACTOR: u64 = 8;
/// See [`COMPACT_FACTOR`].
const MIN_BYTES_TO_COMPACT: u64 = 1 << 20;

/// The store.
#[derive(Debug, Clone)]
pub struct Embedded {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// The revision of the store, for watchers.
    revision: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    revision: u64,
    entries: BTreeMap<String, (u64, String)>,
    history: VecDeque<Change>,
    history_bytes: usize,
    journal: Option<Journal>,
}

impl Embedded {
    /// An empty store without a journal.
    pub fn in_memory() -> Self {
        Self::with(State {
            revision: 0,
            entries: BTreeMap::new(),
            history: VecDeque::new(),
            history_bytes: 0,
            journal: None,
        })
    }

    /// The store of this journal, which is created if there is none. The second value says what was wrong with the end of the journal, if
    /// anything: a gatekeeper that was killed may have left half a line.
    pub fn open(path: &Path) -> Result<(Self, Option<String>), StoreError> {
        let unavailable = |error: std::io::Error| StoreError::Unavailable(format!("{}: {error}", path.display()));
        let (changes, damage) = Journal::read(path).map_err(unavailable)?;
        let mut state =
            State { revision: 0, entries: BTreeMap::new(), history: VecDeque::new(), history_bytes: 0, journal: None };
        for change in changes {
            state.revision = state.revision.max(change.revision);
            match change.value {
                Some(value) => drop(state.entries.insert(change.key, (change.revision, value))),
                None => drop(state.entries.remove(&change.key)),
            }
        }
        state.journal = Some(Journal::create(path, &state.all("")).map_err(unavailable)?);
        Ok((Self::with(state), damage))
    }

    fn with(state: State) -> Self {
        let (revision, _) = watch::channel(state.revision);
        Self { shared: Arc::new(Shared { state: Mutex::new(state), revision }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`super::Store::get`].
    pub fn get(&self, key: &str) -> Option<(u64, String)> {
        self.lock().entries.get(key).cloned()
    }

    /// See [`super::Store::list`].
    pub fn list(&self, prefix: &str) -> (Vec<Change>, u64) {
        let state = self.lock();
        (state.all(prefix), state.revision)
    }

    /// See [`super::Store::write`].
    pub fn write(&self, key: &str, value: Option<String>, expected: Expected) -> Result<u64, StoreError> {
        let mut state = self.lock();
        let current = state.entries.get(key).map(|(revision, _)| *revision);
        let fits = match expected {
            Expected::Any => true,
            Expected::Absent => current.is_none(),
            Expected::Revision(revision) => current == Some(revision),
        };
        if !fits {
            return Err(StoreError::Conflict);
        }
        if value.is_none() && current.is_none() {
            return Ok(state.revision);
        }
        let change = Change { revision: state.revision + 1, key: key.to_owned(), value };
        state.record(&change)?;
        self.shared.revision.send_replace(change.revision);
        Ok(change.revision)
    }

    /// See [`super::Store::watch`].
    pub fn watch(&self, prefix: &str, revision: u64) -> Watch {
        Watch { store: self.clone(), prefix: prefix.to_owned(), seen: revision, news: self.shared.revision.subscribe() }
    }
}

impl State {
    fn all(&self, prefix: &str) -> Vec<Change> {
        self.entries
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, (revision, value))| Change {
                revision: *revision,
                key: key.clone(),
                value: Some(value.clone()),
            })
            .collect()
    }

    /// Writes a change to the journal, then to memory: what a watcher sees survives this process.
    fn record(&mut self, change: &Change) -> Result<(), StoreError> {
        if let Some(journal) = &mut self.journal {
            journal.append(change).map_err(|error| StoreError::Unavailable(format!("the journal: {error}")))?;
        }
        self.revision = change.revision;
        match &change.value {
            Some(value) => drop(self.entries.insert(change.key.clone(), (change.revision, value.clone()))),
            None => drop(self.entries.remove(&change.key)),
        }
        let bytes = |change: &Change| change.value.as_ref().map_or(0, String::len);
        self.history.push_back(change.clone());
        self.history_bytes += bytes(change);
        while self.history.len() > MAX_HISTORY || self.history_bytes > MAX_HISTORY_BYTES {
            self.history_bytes -= self.history.pop_front().as_ref().map_or(0, bytes);
        }
        let live: u64 = self.entries.values().map(|(_, value)| value.len() as u64).sum();
        let limit = (live * COMPACT_FACTOR).max(MIN_BYTES_TO_COMPACT);
        if self.journal.as_ref().is_some_and(|journal| journal.bytes() > limit) {
            let entries = self.all("");
            if let Some(journal) = &mut self.journal {
                // A journal that cannot be written anew goes on being appended to.
                let _ = journal.replace(&entries);
            }
        }
        Ok(())
    }
}

/// A watcher of the embedded store.
#[derive(Debug)]
pub struct Watch {
    store: Embedded,
    prefix: String,
    seen: u64,
    news: watch::Receiver<u64>,
}

impl Watch {
    /// See [`super::Watch::next`].
    pub async fn next(&mut self) -> Result<Vec<Change>, StoreError> {
        loop {
            let _ = self.news.borrow_and_update();
            let changes = self.kept()?;
            if !changes.is_empty() {
                return Ok(changes);
            }
            if self.news.changed().await.is_err() {
                return Err(StoreError::Unavailable("the store is closed".to_owned()));
            }
        }
    }

    /// The kept changes that this watcher has not seen.
    fn kept(&mut self) -> Result<Vec<Change>, StoreError> {
        let state = self.store.lock();
        if state.revision == self.seen {
            return Ok(Vec::new());
        }
        let first = state.history.front().map_or(state.revision + 1, |change| change.revision);
        if first > self.seen + 1 {
            return Err(StoreError::Compacted);
        }
        let from = state.history.partition_point(|change| change.revision <= self.seen);
        let changes =
            state.history.range(from..).filter(|change| change.key.starts_with(&self.prefix)).cloned().collect();
        self.seen = state.revision;
        Ok(changes)
    }
}
