//! A watcher of an etcd. It sees each change once and in order, over as many connections as it takes.

use super::etcd::{ANSWER_LIMIT, Etcd, MAX_ANSWER_BYTES, revision};
use super::{Change, StoreError};
use etcd_client::{EventType, WatchOptions, WatchStream};
use std::fmt;
use std::time::Duration;

/// Pause before the next connection, so that etcd is seen soon after it is back.
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// A watcher of an etcd.
pub struct Watch {
    store: Etcd,
    /// The prefix of its keys, as etcd has them.
    prefix: String,
    seen: u64,
    stream: Option<WatchStream>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("prefix", &self.prefix).field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl Watch {
    /// See [`super::Store::watch`].
    pub(crate) fn new(store: &Etcd, prefix: &str, revision: u64) -> Self {
        Self { store: store.clone(), prefix: store.key(prefix), seen: revision, stream: None }
    }

    /// See [`super::Watch::next`]. Waits while etcd is not there.
    pub async fn next(&mut self) -> Result<Vec<Change>, StoreError> {
        loop {
            let Some(stream) = &mut self.stream else {
                self.open().await;
                continue;
            };
            match stream.message().await {
                Ok(Some(answer)) if answer.canceled() => {
                    self.stream = None;
                    if answer.compact_revision() > 0 {
                        return Err(StoreError::Compacted);
                    }
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                }
                Ok(Some(answer)) => {
                    let changes = self.changes(answer.events())?;
                    if !changes.is_empty() {
                        return Ok(changes);
                    }
                }
                Ok(None) | Err(_) => {
                    self.stream = None;
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                }
            }
        }
    }

    /// Connects; after a failure, which the next attempt follows, there is no stream.
    async fn open(&mut self) {
        let first = i64::try_from(self.seen + 1).unwrap_or(i64::MAX);
        let options = WatchOptions::new().with_prefix().with_start_revision(first);
        let mut client = self.store.client().watch_client().max_decoding_message_size(MAX_ANSWER_BYTES);
        let opening = client.watch(self.prefix.clone(), Some(options));
        match tokio::time::timeout(ANSWER_LIMIT, opening).await {
            Ok(Ok(stream)) => self.stream = Some(stream),
            Ok(Err(_)) => tokio::time::sleep(RECONNECT_PAUSE).await,
            Err(_) => {}
        }
    }

    /// The changes of some events that have not been seen. All events of one revision are in one answer.
    fn changes(&mut self, events: &[etcd_client::Event]) -> Result<Vec<Change>, StoreError> {
        let mut changes = Vec::new();
        for event in events {
            let Some(pair) = event.kv().filter(|pair| revision(pair.mod_revision()) > self.seen) else { continue };
            changes.push(self.store.change(pair.clone(), event.event_type() == EventType::Put)?);
        }
        self.seen = changes.iter().map(|change| change.revision).fold(self.seen, u64::max);
        Ok(changes)
    }
}
