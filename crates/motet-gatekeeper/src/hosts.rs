//! The gatekeepers of the session's other hosts.
//!
//! One gatekeeper is the *primary* one: the others, the *secondary* ones, connect to it, and reach each other through it. The directory is the
//! primary's, unless it is in another store. The data of programs never pass here.

use crate::link::{Answer, Deliver, Delivery, Handler, Link, LinkError};
use axum::Router;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// The wait for an answer of another host.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(8);
/// The longest answer of another host, bytes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// Why another host does not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostError {
    /// The session has no such host, or it is not connected.
    Away(String),
    /// The connection failed during the request.
    Link(String, LinkError),
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(host) => write!(f, "host {host} is not connected; GET /v1/hosts lists those that are"),
            Self::Link(host, error) => write!(f, "host {host}: {error}"),
        }
    }
}

impl std::error::Error for HostError {}

/// The connections to other gatekeepers. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Hosts {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    own: String,
    role: Role,
    /// The links that this primary gatekeeper has accepted so far, of each host.
    accepted: Mutex<HashMap<String, u64>>,
    /// The address by which other hosts know this one.
    address: Mutex<Option<IpAddr>>,
    /// What this gatekeeper does with what the others say.
    handler: Handler,
}

#[derive(Debug)]
enum Role {
    /// The links of the other hosts, by name.
    Primary(Mutex<HashMap<String, Link>>),
    /// The primary's name and the link to it, while there is one.
    Secondary(watch::Sender<Option<(String, Link)>>),
}

impl Hosts {
    /// Of the primary gatekeeper, on this host.
    pub fn primary(own: &str) -> Self {
        Self::with(own, Role::Primary(Mutex::default()))
    }

    /// Of a secondary gatekeeper, on this host. It is not connected yet.
    pub fn secondary(own: &str) -> Self {
        Self::with(own, Role::Secondary(watch::Sender::new(None)))
    }

    fn with(own: &str, role: Role) -> Self {
        Self {
            shared: Arc::new(Shared {
                own: own.to_owned(),
                role,
                accepted: Mutex::default(),
                address: Mutex::default(),
                handler: Handler::default(),
            }),
        }
    }

    /// This host.
    pub fn own(&self) -> &str {
        &self.shared.own
    }

    /// The address by which other hosts know this one, once one is connected.
    pub fn address(&self) -> Option<IpAddr> {
        *self.shared.address.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the local address of a link.
    pub fn set_address(&self, address: IpAddr) {
        *self.shared.address.lock().unwrap_or_else(PoisonError::into_inner) = Some(address.to_canonical());
    }

    /// Whether this is the primary gatekeeper.
    pub fn is_primary(&self) -> bool {
        matches!(self.shared.role, Role::Primary(_))
    }

    /// The routes of this gatekeeper, once it runs.
    pub fn router(&self) -> Option<&Router> {
        self.shared.handler.router.get()
    }

    /// What this gatekeeper does with what the others say.
    pub fn handler(&self) -> &Handler {
        &self.shared.handler
    }

    /// Sets what this gatekeeper does with requests of the others, and with messages for its own nodes. Messages for other hosts go on to them.
    pub fn set_handler(&self, router: Router, deliver_here: Deliver) {
        let hosts = self.clone();
        let deliver = Box::new(move |delivery: Delivery| {
            if delivery.host == hosts.own() {
                deliver_here(delivery);
            } else if hosts.is_primary() {
                hosts.deliver(&delivery);
            }
        });
        let _ = self.shared.handler.router.set(router);
        let _ = self.shared.handler.deliver.set(deliver);
    }

    // ---- requests ---------------------------------------------------------------------------------------------------

    /// Sends a request to the gatekeeper of another host, and returns the status and the body of its answer. `path` begins with `/v1/`.
    pub async fn request(
        &self,
        host: &str,
        method: &str,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(u16, Vec<u8>), HostError> {
        let failed = |error| HostError::Link(host.to_owned(), error);
        let answer = self.open(host, method, path, body, ANSWER_LIMIT).await?;
        let status = answer.status;
        Ok((status, answer.bytes(MAX_ANSWER_BYTES, ANSWER_LIMIT).await.map_err(failed)?))
    }

    /// Sends a request to the gatekeeper of another host; the body of the answer comes in parts.
    pub async fn open(
        &self,
        host: &str,
        method: &str,
        path: &str,
        body: Vec<u8>,
        limit: Duration,
    ) -> Result<Answer, HostError> {
        let away = || HostError::Away(host.to_owned());
        let failed = |error| HostError::Link(host.to_owned(), error);
        let through = |rest: &str| format!("/v1/hosts/{host}{rest}");
        let (link, path) = match &self.shared.role {
            Role::Primary(links) => (lock(links).get(host).cloned().ok_or_else(away)?, path.to_owned()),
            Role::Secondary(uplink) => {
                let (primary, link) = uplink.borrow().clone().ok_or_else(away)?;
                let path =
                    if primary == host { path.to_owned() } else { through(path.strip_prefix("/v1").unwrap_or(path)) };
                (link, path)
            }
        };
        link.request(method, &path, body, limit).await.map_err(failed)
    }

    /// The names of the hosts that are connected to the primary gatekeeper, if this is it.
    pub fn linked(&self) -> Vec<String> {
        match &self.shared.role {
            Role::Primary(links) => lock(links).keys().cloned().collect(),
            Role::Secondary(_) => Vec::new(),
        }
    }

    // ---- messages of nodes ------------------------------------------------------------------------------------------

    /// Sends a message of a node on its way to a node of another host. A host that is not connected loses it: its nodes get new views later.
    pub fn deliver(&self, delivery: &Delivery) {
        let link = match &self.shared.role {
            Role::Primary(links) => lock(links).get(&delivery.host).cloned(),
            Role::Secondary(uplink) => uplink.borrow().clone().map(|(_, link)| link),
        };
        if let Some(link) = link {
            link.deliver(delivery);
        }
    }

    // ---- links ------------------------------------------------------------------------------------------------------

    /// Adds the link of a host. The error says why it may not connect.
    pub fn add(&self, host: &str, link: &Link) -> Result<(), String> {
        let Role::Primary(links) = &self.shared.role else {
            return Err("this is not the primary gatekeeper of the session".to_owned());
        };
        let mut links = lock(links);
        if host == self.shared.own || links.contains_key(host) {
            return Err(format!("another host of the session has the name {host}: give this one another with --host"));
        }
        links.insert(host.to_owned(), link.clone());
        *self.accepted().entry(host.to_owned()).or_default() += 1;
        Ok(())
    }

    /// How many links this primary gatekeeper has accepted of a host. A host for which it stays the same has not been back.
    pub fn accepted_of(&self, host: &str) -> u64 {
        self.accepted().get(host).copied().unwrap_or(0)
    }

    fn accepted(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.shared.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the link of a host.
    pub fn remove(&self, host: &str) {
        if let Role::Primary(links) = &self.shared.role {
            lock(links).remove(host);
        }
    }

    /// Whether a host is connected to this primary gatekeeper.
    pub fn is_linked(&self, host: &str) -> bool {
        matches!(&self.shared.role, Role::Primary(links) if lock(links).contains_key(host))
    }

    /// Sets the link to the primary gatekeeper.
    pub fn set_uplink(&self, link: Option<(String, Link)>) {
        if let Role::Secondary(uplink) = &self.shared.role {
            uplink.send_replace(link);
        }
    }

    /// Waits until the primary gatekeeper has closed the link.
    pub async fn unlinked(&self, limit: Duration) {
        if let Role::Secondary(uplink) = &self.shared.role {
            let mut receiver = uplink.subscribe();
            let _ = tokio::time::timeout(limit, receiver.wait_for(Option::is_none)).await;
        }
    }

    /// The primary gatekeeper's name and the link to it; waits for it.
    pub async fn uplink(&self, limit: Duration) -> Option<(String, Link)> {
        let Role::Secondary(uplink) = &self.shared.role else { return None };
        let mut receiver = uplink.subscribe();
        let ready = receiver.wait_for(Option::is_some);
        tokio::time::timeout(limit, ready).await.ok()?.ok()?.clone()
    }
}

fn lock(links: &Mutex<HashMap<String, Link>>) -> MutexGuard<'_, HashMap<String, Link>> {
    links.lock().unwrap_or_else(PoisonError::into_inner)
}
