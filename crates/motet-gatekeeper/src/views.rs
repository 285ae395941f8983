//! The views of all groups as they are now, and their changes, parsed once for all connections.

use crate::directory::{Directory, DirectoryError, GROUPS, parse_change};
use crate::store::StoreError;
use motet_session::api::{View, ViewChange};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::broadcast;

/// Updates that a connection may lag behind. One that lags further is closed, and its node attaches again.
const MAX_LAG: usize = 4096;

/// A new view of a group.
#[derive(Debug)]
pub struct Update {
    /// The view.
    pub view: View,
    /// What has changed.
    pub change: ViewChange,
}

/// The views. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Views {
    current: Arc<Mutex<HashMap<String, Arc<Update>>>>,
    sender: broadcast::Sender<Arc<Update>>,
}

impl Views {
    /// Reads all views and follows their changes, in a task that ends when the store does.
    pub async fn follow(directory: &Directory) -> Result<Self, DirectoryError> {
        let (sender, _) = broadcast::channel(MAX_LAG);
        let views = Self { current: Arc::default(), sender };
        let revision = views.read_all(directory).await?;
        let (own, directory) = (views.clone(), directory.clone());
        tokio::spawn(async move { own.run(&directory, revision).await });
        Ok(views)
    }

    /// The updates from now on.
    pub fn subscribe(&self) -> broadcast::Receiver<Arc<Update>> {
        self.sender.subscribe()
    }

    async fn run(&self, directory: &Directory, mut revision: u64) {
        let mut watch = directory.store().watch(GROUPS, revision);
        loop {
            match watch.next().await {
                Ok(changes) => {
                    changes.iter().filter(|change| change.value.is_some()).for_each(|change| {
                        if let Ok(view) = parse_change(change) {
                            self.publish(view);
                        }
                    });
                }
                Err(StoreError::Compacted) => match self.read_all(directory).await {
                    Ok(now) => {
                        revision = now;
                        watch = directory.store().watch(GROUPS, revision);
                    }
                    Err(_) => return,
                },
                Err(_) => return,
            }
        }
    }

    async fn read_all(&self, directory: &Directory) -> Result<u64, DirectoryError> {
        let (views, revision) = directory.groups().await?;
        views.into_iter().for_each(|view| self.publish(view));
        Ok(revision)
    }

    fn publish(&self, view: View) {
        let mut current = self.lock();
        let before = current.get(&view.group);
        if before.is_some_and(|before| before.view.number >= view.number) {
            return;
        }
        let old = before.map_or(&[][..], |before| &before.view.members);
        let known: HashMap<_, _> = old.iter().map(|member| (&member.node, member)).collect();
        let now: HashMap<_, _> = view.members.iter().map(|member| (&member.node, ())).collect();
        let change = ViewChange {
            group: view.group.clone(),
            number: view.number,
            joined: view.members.iter().filter(|member| known.get(&member.node) != Some(member)).cloned().collect(),
            left: old
                .iter()
                .filter(|member| !now.contains_key(&member.node))
                .map(|member| member.node.clone())
                .collect(),
        };
        let update = Arc::new(Update { view, change });
        current.insert(update.view.group.clone(), update.clone());
        // Without a connection there is no receiver.
        let _ = self.sender.send(update);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Update>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
