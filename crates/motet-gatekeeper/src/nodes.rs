//! The nodes that are attached, or were until a moment ago, and the ways to their connections.
//!
//! A node whose process ends leaves its groups at once. One whose connection breaks while its process lives may attach again within
//! [`GRACE`]; it leaves if it does not.

use crate::circuits::Circuits;
use crate::directory::{Directory, DirectoryError};
use crate::hosts::Hosts;
use crate::link::Delivery;
use crate::liveness;
use crate::meetings;
use crate::modules::ModuleNodes;
use crate::programs;
use crate::views::Views;
use motet_session::api::ToNode;
use motet_session::events::What;
use motet_session::process::Process;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot};

/// A node without a connection leaves its groups after this time.
pub const GRACE: Duration = Duration::from_secs(1);
/// After a start of the gatekeeper a node has so long to attach again: it may not have noticed yet that the gatekeeper is back.
pub const START_GRACE: Duration = Duration::from_secs(3);
/// Messages that wait for a node. One that takes none meanwhile is disconnected; its groups get a new view when it is back.
pub const MAX_QUEUE: usize = 16 << 10;
/// A removal that the store refuses, such as for a full disk or a restart of etcd, is tried again after this time.
const LEAVE_RETRY: Duration = Duration::from_millis(250);
/// The most groups of a node.
const MAX_GROUPS: usize = 256;

/// Changes that a follower may lag behind.
const MAX_LAG: usize = 1024;

/// A node has attached for the first time, or is gone.
#[derive(Debug, Clone)]
pub struct NodeChange {
    /// The node's identity.
    pub node: String,
    /// Its process.
    pub pid: u32,
    /// It has attached.
    pub is_attached: bool,
}

/// All connections. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Nodes {
    shared: Arc<Shared>,
}

/// What connections use of the gatekeeper.
#[derive(Debug)]
pub struct Shared {
    /// This host.
    pub host: String,
    /// The session's identity.
    pub session: String,
    /// The directory.
    pub directory: Directory,
    /// The views of all groups.
    pub views: Views,
    /// The other hosts.
    pub hosts: Hosts,
    /// The module nodes.
    pub modules: ModuleNodes,
    /// The circuits that are open at nodes of this host.
    pub circuits: Circuits,
    nodes: Mutex<HashMap<String, Attached>>,
    changes: broadcast::Sender<NodeChange>,
    /// What has happened to circuits and modules.
    happened: broadcast::Sender<What>,
    /// The folder in which nodes of this host meet.
    meetings: PathBuf,
}

/// A node that is attached, or was until a moment ago.
#[derive(Debug)]
struct Attached {
    /// Increases with each connection of the node.
    connection: u64,
    process: Process,
    groups: HashSet<String>,
    /// Groups that it could not join, for lack of the store, and that it may be in nevertheless: it is being removed from them.
    clearing: HashSet<String>,
    /// It is being removed from its groups; it may attach again after that.
    leaving: bool,
    /// The way to the connection. `None`: it has broken.
    route: Option<Route>,
}

impl Attached {
    /// A node without a connection.
    fn away(process: Process) -> Self {
        Self { connection: 0, process, groups: HashSet::new(), clearing: HashSet::new(), leaving: false, route: None }
    }
}

/// The way to a connection. Dropping it closes the connection, even one that is stuck in a write.
#[derive(Debug)]
struct Route {
    queue: mpsc::Sender<Arc<ToNode>>,
    _open: oneshot::Sender<()>,
}

/// The connection's end of a route.
pub struct Inbox {
    /// Messages of other members.
    pub queue: mpsc::Receiver<Arc<ToNode>>,
    /// Ends when the connection is to be closed.
    pub closed: oneshot::Receiver<()>,
}

/// A route and its end.
fn route() -> (Route, Inbox) {
    let ((sender, queue), (open, closed)) = (mpsc::channel(MAX_QUEUE), oneshot::channel());
    (Route { queue: sender, _open: open }, Inbox { queue, closed })
}

impl Nodes {
    /// No connections. Members of this host that the directory still has get time to attach again.
    pub async fn new(
        hosts: &Hosts,
        session: &str,
        directory: Directory,
        views: Views,
        meetings: PathBuf,
    ) -> Result<Self, DirectoryError> {
        let ((changes, _), (happened, _)) = (broadcast::channel(MAX_LAG), broadcast::channel(MAX_LAG));
        let (host, session, hosts) = (hosts.own().to_owned(), session.to_owned(), hosts.clone());
        let (modules, nodes) = (ModuleNodes::new(happened.clone()), Mutex::default());
        let circuits = Circuits::new(&host, happened.clone());
        let shared = Shared {
            host: host.clone(),
            session,
            directory,
            views,
            hosts,
            modules,
            circuits,
            nodes,
            changes,
            happened,
            meetings,
        };
        let nodes = Self { shared: Arc::new(shared) };
        for view in nodes.shared.directory.groups().await?.0 {
            for member in view.members.into_iter().filter(|member| member.host == host) {
                nodes
                    .lock()
                    .entry(member.node)
                    .or_insert_with(|| Attached::away(member.process))
                    .groups
                    .insert(view.group.clone());
            }
        }
        let waiting: Vec<_> = nodes.lock().iter().map(|(node, attached)| (node.clone(), attached.process)).collect();
        for (node, process) in waiting {
            nodes.expect_back(node, 0, process, START_GRACE, false);
        }
        Ok(nodes)
    }

    /// What connections use.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Nodes that attach, and that are gone, from now on.
    pub fn changes(&self) -> broadcast::Receiver<NodeChange> {
        self.shared.changes.subscribe()
    }

    /// What happens to circuits and modules, from now on.
    pub fn happenings(&self) -> broadcast::Receiver<What> {
        self.shared.happened.subscribe()
    }

    fn tell(&self, node: &str, process: Process, is_attached: bool) {
        // Without a follower there is no receiver.
        let _ = self.shared.changes.send(NodeChange { node: node.to_owned(), pid: process.pid, is_attached });
    }

    /// The number of nodes that are attached.
    pub fn count(&self) -> usize {
        self.lock().values().filter(|attached| attached.route.is_some()).count()
    }

    /// Registers a connection of a node; returns its number. Another process cannot take the place of a node.
    pub fn open(&self, node: &str, process: Process) -> Result<(u64, Inbox), String> {
        if node.len() != 32 || !node.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err("the node's identity is not 32 hexadecimal digits".to_owned());
        }
        let (route, inbox) = route();
        let mut nodes = self.lock();
        let attached = nodes.entry(node.to_owned()).or_insert_with(|| Attached::away(process));
        if attached.process != process {
            return Err("another process has attached as this node".to_owned());
        }
        if attached.leaving {
            return Err("the node is leaving its groups: attach again in a moment".to_owned());
        }
        attached.connection += 1;
        attached.route = Some(route); // this closes an older connection
        if attached.connection == 1 {
            self.tell(node, process, true);
        }
        Ok((attached.connection, inbox))
    }

    /// The end of a connection. After a goodbye the node leaves its groups at once.
    pub fn close(&self, node: String, number: u64, process: Process, said_goodbye: bool) {
        match self.lock().get_mut(&node) {
            Some(attached) if attached.connection == number => attached.route = None,
            _ => return, // it has attached again
        }
        self.shared.modules.gone(&node);
        let grace = if said_goodbye { Duration::ZERO } else { GRACE };
        self.expect_back(node, number, process, grace, said_goodbye);
    }

    /// Whether no later connection has replaced the one with this number.
    pub fn is_current(&self, node: &str, number: u64) -> bool {
        self.lock().get(node).is_some_and(|attached| attached.connection == number)
    }

    /// The groups of a node.
    pub fn groups_of(&self, node: &str) -> HashSet<String> {
        self.lock().get(node).map(|attached| attached.groups.clone()).unwrap_or_default()
    }

    /// Notes that a node is in a group. The error says why it may not be.
    pub fn enter(&self, node: &str, group: &str) -> Result<(), String> {
        let mut nodes = self.lock();
        let Some(attached) = nodes.get_mut(node) else { return Err("the node is not attached".to_owned()) };
        if attached.clearing.contains(group) {
            return Err(format!("the group {group} could not be joined before, and is still being left: try again"));
        }
        if attached.groups.len() >= MAX_GROUPS && !attached.groups.contains(group) {
            return Err(format!("the node is in {MAX_GROUPS} groups already"));
        }
        attached.groups.insert(group.to_owned());
        Ok(())
    }

    /// Waits until a node attaches again. When its process has ended, or after the grace, it leaves its groups.
    fn expect_back(&self, node: String, number: u64, process: Process, grace: Duration, said_goodbye: bool) {
        let nodes = self.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(grace, liveness::ended(process)).await;
            let groups = match nodes.lock().get_mut(&node) {
                Some(attached) if attached.connection == number => {
                    attached.leaving = true;
                    std::mem::take(&mut attached.groups)
                }
                _ => return, // it has attached again
            };
            let is_running = process.is_running();
            if nodes.shared.modules.died(&node, !said_goodbye && !is_running) && !is_running {
                programs::kill_orphans(&node);
            }
            nodes.shared.circuits.gone(&node);
            for group in groups {
                nodes.leave(&group, &node).await;
            }
            nodes.lock().remove(&node);
            nodes.tell(&node, process, false);
            meetings::remove_stale(&nodes.shared.meetings, &node);
        });
    }

    /// Removes a node from a group, as often as the store needs.
    pub async fn leave(&self, group: &str, node: &str) {
        self.shared.circuits.left(node, group);
        while self.shared.directory.leave(group, node).await.is_err() {
            tokio::time::sleep(LEAVE_RETRY).await;
        }
        if let Some(attached) = self.lock().get_mut(node) {
            attached.groups.remove(group);
        }
    }

    /// Whether a node is in a group, and is not about to leave it.
    pub fn is_in(&self, node: &str, group: &str) -> bool {
        let nodes = self.lock();
        let attached = nodes.get(node).filter(|attached| !attached.leaving);
        attached.is_some_and(|attached| attached.groups.contains(group) && !attached.clearing.contains(group))
    }

    /// Removes a node from a group that it could not join, in a task of its own.
    pub fn clear(&self, group: &str, node: &str) {
        if let Some(attached) = self.lock().get_mut(node) {
            attached.clearing.insert(group.to_owned());
        }
        let (nodes, group, node) = (self.clone(), group.to_owned(), node.to_owned());
        tokio::spawn(async move {
            nodes.leave(&group, &node).await;
            if let Some(attached) = nodes.lock().get_mut(&node) {
                attached.clearing.remove(&group);
            }
        });
    }

    /// Closes all connections: the nodes attach again, and all their groups get new views.
    pub fn disconnect_all(&self) {
        self.lock().values_mut().for_each(|attached| attached.route = None);
    }

    /// Hands a message to a member of a group, on this host or another one. One that is not attached loses it, and gets a new view when it is back.
    pub fn deliver(&self, group: &str, from: &str, to: &str, body: serde_json::Value) {
        if self.lock().contains_key(to) {
            return self.deliver_here(group, from, to, body);
        }
        if let Some(host) = self.shared.views.host_of(group, to).filter(|host| *host != self.shared.host) {
            let (group, from, to) = (group.to_owned(), from.to_owned(), to.to_owned());
            self.shared.hosts.deliver(&Delivery { host, group, from, to, body });
        }
    }

    /// Hands a message to a member of a group on this host.
    pub fn deliver_here(&self, group: &str, from: &str, to: &str, body: serde_json::Value) {
        let mut nodes = self.lock();
        let Some(attached) = nodes.get_mut(to).filter(|attached| attached.groups.contains(group)) else { return };
        let Some(route) = &attached.route else { return };
        let message = ToNode::Message { group: group.to_owned(), from: from.to_owned(), body };
        if route.queue.try_send(Arc::new(message)).is_err() {
            attached.route = None;
        }
    }

    /// Hands a line to a node. False: it is not attached, or takes no lines.
    pub fn say(&self, node: &str, line: ToNode) -> bool {
        let mut nodes = self.lock();
        let Some(attached) = nodes.get_mut(node) else { return false };
        let said = attached.route.as_ref().is_some_and(|route| route.queue.try_send(Arc::new(line)).is_ok());
        if !said {
            attached.route = None;
        }
        said
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Attached>> {
        self.shared.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
