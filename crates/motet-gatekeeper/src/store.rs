//! The store below the directory: keys with text values, numbered changes, and watchers that see every change in order.
//!
//! The operations are those that etcd has, so that the directory does not know which store it uses.

mod embedded;
mod etcd;
mod etcd_watch;
mod journal;
pub mod remote;

pub use embedded::Embedded;
pub use etcd::Etcd;
pub use remote::Remote;
use std::fmt;

/// A change of one key.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Change {
    /// The number of the change. Later changes have higher ones.
    pub revision: u64,
    /// The key.
    pub key: String,
    /// The new value. `None`: the key was removed.
    pub value: Option<String>,
}

/// What must be true of a key for a write to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// Anything.
    Any,
    /// The key does not exist.
    Absent,
    /// The key was last changed by this change.
    Revision(u64),
}

/// Why an operation has no result.
#[derive(Debug)]
pub enum StoreError {
    /// What was expected of the key is not true.
    Conflict,
    /// Changes that the watcher has not seen are not kept any more.
    Compacted,
    /// The store cannot be used.
    Unavailable(String),
    /// The store is not connected; it will be again.
    Disconnected(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict => f.write_str("the key has another value"),
            Self::Compacted => f.write_str("older changes are not kept any more"),
            Self::Unavailable(why) | Self::Disconnected(why) => {
                write!(f, "the directory's store cannot be used: {why}")
            }
        }
    }
}

impl std::error::Error for StoreError {}

/// A store. A clone is another handle of the same one.
#[derive(Debug, Clone)]
pub enum Store {
    /// In this process, with a journal on the disk.
    Embedded(Embedded),
    /// The one of the primary gatekeeper.
    Remote(Remote),
    /// In an etcd.
    Etcd(Etcd),
}

impl Store {
    /// The value of a key, and the change that made it.
    pub async fn get(&self, key: &str) -> Result<Option<(u64, String)>, StoreError> {
        match self {
            Self::Embedded(store) => Ok(store.get(key)),
            Self::Remote(store) => store.get(key).await,
            Self::Etcd(store) => store.get(key).await,
        }
    }

    /// The keys with this prefix, in order, each as the change that made it; and the revision of the store at that time.
    pub async fn list(&self, prefix: &str) -> Result<(Vec<Change>, u64), StoreError> {
        match self {
            Self::Embedded(store) => Ok(store.list(prefix)),
            Self::Remote(store) => store.list(prefix).await,
            Self::Etcd(store) => store.list(prefix).await,
        }
    }

    /// Writes a value, or removes the key. Returns the number of the change.
    pub async fn write(&self, key: &str, value: Option<String>, expected: Expected) -> Result<u64, StoreError> {
        match self {
            Self::Embedded(store) => store.write(key, value, expected),
            Self::Remote(store) => store.write(key, value, expected).await,
            Self::Etcd(store) => store.write(key, value, expected).await,
        }
    }

    /// Watches the keys with this prefix, from the first change after `revision` on.
    pub fn watch(&self, prefix: &str, revision: u64) -> Watch {
        match self {
            Self::Embedded(store) => Watch::Embedded(store.watch(prefix, revision)),
            Self::Remote(store) => Watch::Remote(store.watch(prefix, revision)),
            Self::Etcd(store) => Watch::Etcd(Box::new(etcd_watch::Watch::new(store, prefix, revision))),
        }
    }
}

/// A watcher.
#[derive(Debug)]
pub enum Watch {
    /// Of the embedded store.
    Embedded(embedded::Watch),
    /// Of the primary's store.
    Remote(remote::Watch),
    /// Of an etcd.
    Etcd(Box<etcd_watch::Watch>),
}

impl Watch {
    /// The next changes, at least one. Dropping the future loses none.
    pub async fn next(&mut self) -> Result<Vec<Change>, StoreError> {
        match self {
            Self::Embedded(watch) => watch.next().await,
            Self::Remote(watch) => watch.next().await,
            Self::Etcd(watch) => watch.next().await,
        }
    }
}
