//! The views of all groups as they are now, and their changes, parsed once for all connections.

use crate::directory::{Directory, DirectoryError, GROUPS, parse_change};
use motet_session::api::{View, ViewChange};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast;

/// Updates that a connection may lag behind. One that lags further is closed, and its node attaches again.
const MAX_LAG: usize = 4096;

/// A store that does not answer is asked again after this time.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

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
    /// Reads all views and follows their changes, in a task.
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

    /// The host of a member of a group.
    pub fn host_of(&self, group: &str, node: &str) -> Option<String> {
        let current = self.lock();
        let view = &current.get(group)?.view;
        view.members.iter().find(|member| member.node == node).map(|member| member.host.clone())
    }

    async fn run(&self, directory: &Directory, mut revision: u64) {
        loop {
            let mut watch = directory.store().watch(GROUPS, revision);
            while let Ok(changes) = watch.next().await {
                changes.iter().filter(|change| change.value.is_some()).for_each(|change| {
                    if let Ok(view) = parse_change(change) {
                        self.publish(view);
                    }
                });
            }
            // Changes may have been missed: the store has forgotten them, or was not connected.
            revision = loop {
                match self.read_all(directory).await {
                    Ok(now) => break now,
                    Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
                }
            };
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
