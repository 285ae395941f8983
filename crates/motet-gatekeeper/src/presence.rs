//! Which gatekeepers of a session live, in an etcd: each has a key under a lease, which etcd removes when the gatekeeper no longer renews it. The
//! primary gatekeeper has another one, so that there is one of them.
//!
//! When a key goes, all other gatekeepers remove what that host has left: its members of groups and its programs. A node that is removed by
//! mistake, because its gatekeeper comes back at the same time, attaches again.

use crate::directory::Directory;
use crate::hosts::Hosts;
use crate::store::{Etcd, Store, StoreError};
use crate::uplink;
use motet_session::notes::note;
use std::collections::HashSet;
use std::io;
use std::time::Duration;

/// The prefix of the keys of gatekeepers.
const ALIVE: &str = "alive/";
/// The key of the primary gatekeeper.
const PRIMARY: &str = "primary";
/// A gatekeeper that has not renewed its lease for so long is taken for dead, with its host.
pub const LEASE: Duration = Duration::from_secs(5);
/// Interval between two renewals.
const RENEWAL: Duration = Duration::from_millis(1500);
/// Pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// The presence of this gatekeeper. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Presence {
    store: Etcd,
    host: String,
    /// Its keys.
    keys: Vec<String>,
    /// Their value: the same for all gatekeepers of one folder.
    instance: String,
    lease: i64,
}

impl Presence {
    /// Announces the gatekeeper of a host. Fails if another folder's gatekeeper is this host in the session, or is the primary one.
    pub async fn announce(store: &Etcd, host: &str, instance: &str, is_primary: bool) -> io::Result<Self> {
        let mut keys = vec![format!("{ALIVE}{host}")];
        keys.extend(is_primary.then(|| PRIMARY.to_owned()));
        let (store, host, instance) = (store.clone(), host.to_owned(), instance.to_owned());
        let mut presence = Self { store, host, keys, instance, lease: 0 };
        presence.renew().await.map_err(|error| match error {
            StoreError::Conflict => io::Error::other(format!(
                "the session has another gatekeeper in this etcd: add hosts there, with motet up --hosts, and other names \
                 (one that was killed is forgotten after {} s)",
                LEASE.as_secs()
            )),
            error => io::Error::other(error),
        })?;
        Ok(presence)
    }

    /// Keeps the presence, and removes what dead hosts leave, in tasks of their own.
    pub fn keep(self, hosts: &Hosts, directory: &Directory) {
        tokio::spawn(self.clone().clean(directory.clone()));
        tokio::spawn(self.renew_always(hosts.clone(), directory.clone()));
    }

    /// Takes a new lease, and writes the keys under it.
    async fn renew(&mut self) -> Result<(), StoreError> {
        let seconds = i64::try_from(LEASE.as_secs()).unwrap_or(i64::MAX);
        let mut client = self.store.client();
        let granted = tokio::time::timeout(LEASE, client.lease_grant(seconds, None)).await;
        let granted = granted.map_err(|_| StoreError::Unavailable("etcd: no answer".to_owned()))?;
        self.lease = granted.map_err(|error| self.store.failed(&error))?.id();
        for key in &self.keys {
            let condition = match self.store.get(key).await? {
                None => self.store.is_absent(key),
                Some((revision, instance)) if instance == self.instance => self.store.is_at(key, revision),
                Some(_) => {
                    let _ = client.lease_revoke(self.lease).await;
                    return Err(StoreError::Conflict);
                }
            };
            self.store.write_if(key, Some(self.instance.clone()), vec![condition], Some(self.lease)).await?;
        }
        Ok(())
    }

    /// Renews the lease again and again. One that etcd has ended is replaced.
    async fn renew_always(mut self, hosts: Hosts, directory: Directory) {
        loop {
            tokio::time::sleep(RENEWAL).await;
            let mut client = self.store.client();
            match tokio::time::timeout(LEASE, client.lease_keep_alive(self.lease)).await {
                Ok(Ok(_)) => {}
                Ok(Err(etcd_client::Error::LeaseKeepAliveError(_))) => {
                    while let Err(error) = self.renew().await {
                        if matches!(error, StoreError::Conflict) {
                            note(format_args!("another gatekeeper has taken the place of host {}", self.host));
                        }
                        tokio::time::sleep(RENEWAL).await;
                    }
                    // Another host may have removed this one.
                    uplink::announce(&hosts, &directory).await;
                }
                Ok(Err(_)) | Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    /// Removes what hosts leave whose gatekeepers die.
    async fn clean(self, directory: Directory) {
        loop {
            let (Ok((alive, revision)), Ok(known)) = (self.store.list(ALIVE).await, directory.hosts().await) else {
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            };
            let alive: HashSet<_> = alive.iter().filter_map(|change| change.key.strip_prefix(ALIVE)).collect();
            // Gatekeepers that start together get time to announce themselves.
            for host in known.into_iter().filter(|host| !alive.contains(&host.name[..])) {
                tokio::spawn(self.clone().remove(directory.clone(), host.name, LEASE));
            }
            let mut watch = Store::Etcd(self.store.clone()).watch(ALIVE, revision);
            while let Ok(changes) = watch.next().await {
                for change in changes.into_iter().filter(|change| change.value.is_none()) {
                    if let Some(host) = change.key.strip_prefix(ALIVE) {
                        tokio::spawn(self.clone().remove(directory.clone(), host.to_owned(), Duration::ZERO));
                    }
                }
            }
        }
    }

    /// Removes what a host has left, unless it comes back within the grace.
    async fn remove(self, directory: Directory, host: String, grace: Duration) {
        if host == self.host {
            return;
        }
        tokio::time::sleep(grace).await;
        let key = format!("{ALIVE}{host}");
        loop {
            match self.store.get(&key).await {
                Ok(Some(_)) => return,
                Ok(None) if directory.remove_host(&host).await.is_ok() => return,
                _ => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }
}
