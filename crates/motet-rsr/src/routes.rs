//! Routes: for each peer one link and one channel, which all startpoints to its endpoints share.
//!
//! A route is made when the first request is sent, or when the peer opens a channel to this node: requests and replies then take that one. A
//! startpoint for which the program has chosen a driver has a route of that driver, beside others.

use crate::deadline::Deadline;
use crate::error::Error;
use crate::startpoint::{NodeAddress, parts};
use motet::node::{Channel, Error as NodeError, LinkId, Node, NodeId, Serve};
use motet::reason::Reason;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The service of requests on a node ("motetrsr").
pub const SERVICE: u64 = 0x6d6f_7465_7472_7372;
/// How long a peer that does not answer is waited for, where a call has no deadline.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// How often a link is made again that goes while it is being used for the first time.
const MAX_ATTEMPTS: usize = 3;
/// After so many new channels, those of peers that are gone are forgotten.
const PRUNE_AFTER: usize = 64;

/// A way to a peer.
#[derive(Debug)]
pub struct Route {
    /// The driver of its link.
    pub driver: &'static str,
    pub channel: Channel,
    /// Drivers that come before this one and do not work for the pair, each with its reason.
    pub tried: Vec<(String, NodeError)>,
    /// Whether the peer has opened the channel.
    pub by_peer: bool,
    /// Requests in two packets that are under way.
    pub two_packets: Turns,
    /// The link is gone.
    pub is_gone: AtomicBool,
    /// The version of this node's address that the peer knows from an earlier call, so that a call needs to carry a tag only
    /// ([`crate::wire::ReplyPlace::Back`]). 0: the peer knows none.
    pub told: AtomicU64,
}

/// Most requests in two packets that a route has under way: receivers take no more than four times as many of a channel.
const MOST_TURNS: usize = 64;

/// Counts what is under way, and lets others wait.
#[derive(Debug, Default)]
pub struct Turns(Mutex<usize>, Condvar);

/// One of them.
pub struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for a turn. `None`: the deadline has passed.
    pub fn take(&self, deadline: Deadline) -> Option<Turn<'_>> {
        let mut taken = lock(&self.0);
        while *taken >= MOST_TURNS {
            let wait = deadline.at_most(CONNECT_LIMIT);
            if wait.is_zero() {
                return None;
            }
            taken = self.1.wait_timeout(taken, wait).map_or_else(|poisoned| poisoned.into_inner().0, |waited| waited.0);
        }
        *taken += 1;
        Some(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.0) -= 1;
        self.0.1.notify_one();
    }
}

/// A peer, and the ways to it.
#[derive(Debug, Default)]
struct Peer {
    routes: Mutex<Vec<Arc<Route>>>,
    /// One thread opens a way at a time: a second channel would be one too many.
    opening: Mutex<()>,
}

/// All routes of a node.
#[derive(Debug)]
pub struct Routes {
    /// No other routes of this process have it.
    number: u64,
    peers: Mutex<HashMap<NodeId, Arc<Peer>>>,
    channels: Mutex<Channels>,
}

/// The channels of a node, and what is known of their peers.
#[derive(Debug, Default)]
struct Channels {
    /// With the peer's address, once a call has told it.
    known: HashMap<Channel, Option<Arc<NodeAddress>>>,
    /// How many were left when those of peers that are gone were last forgotten.
    least: usize,
}

/// Nodes of which a thread remembers what it has used.
const NODES: usize = 4;

/// A route that a thread has used.
struct Recent {
    routes: u64,
    peer: NodeId,
    route: Arc<Route>,
}

thread_local! {
    /// The routes that this thread has used last: one for each node, by its number.
    static RECENT: RefCell<[Option<Recent>; NODES]> = const { RefCell::new([const { None }; NODES]) };
    /// The channels on which this thread has got its last messages.
    static LEARNT: [Cell<Option<(u64, Channel)>>; NODES] = const { [const { Cell::new(None) }; NODES] };
}

impl Default for Routes {
    fn default() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        Self { number, peers: Mutex::default(), channels: Mutex::default() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find(routes: &[Arc<Route>], driver: Option<&str>) -> Option<Arc<Route>> {
    let fits = |route: &&Arc<Route>| {
        !route.is_gone.load(Ordering::Relaxed) && driver.is_none_or(|driver| driver == route.driver)
    };
    routes.iter().find(fits).cloned()
}

impl Routes {
    /// The route to a peer, if there is one; `driver`: by this driver.
    #[inline]
    pub fn known(&self, peer: NodeId, driver: Option<&str>) -> Option<Arc<Route>> {
        find(&lock(&lock(&self.peers).get(&peer)?.routes), driver)
    }

    /// The channel of the route to a peer, if there is one, and the version of this node's address that the peer knows. The route that this thread has used last is found without
    /// a lock.
    #[inline]
    pub fn known_channel(&self, peer: NodeId, driver: Option<&str>) -> Option<(Channel, u64)> {
        RECENT.with_borrow_mut(|recent| match &mut recent[self.number as usize % NODES] {
            Some(Recent { routes, peer: of, route })
                if *routes == self.number
                    && *of == peer
                    && !route.is_gone.load(Ordering::Relaxed)
                    && driver.is_none_or(|driver| driver == route.driver) =>
            {
                Some((route.channel, route.told.load(Ordering::Relaxed)))
            }
            recent => {
                let route = self.known(peer, driver)?;
                let found = (route.channel, route.told.load(Ordering::Relaxed));
                if driver.is_none() {
                    *recent = Some(Recent { routes: self.number, peer, route });
                }
                Some(found)
            }
        })
    }

    /// The route to a peer, which is made if there is none. `opened` learns of a new channel.
    pub fn open(
        &self,
        node: &Node,
        to: &NodeAddress,
        driver: Option<&str>,
        (serve, deadline): (Serve, Deadline),
        opened: impl FnOnce(Channel),
    ) -> Result<Arc<Route>, Error> {
        let peer = lock(&self.peers).entry(to.id).or_default().clone();
        let opened = self.open_to(&peer, node, to, driver, (serve, deadline), opened);
        if opened.is_err() {
            // Peers name nodes for replies that are not there: such a name is not kept. The map and this thread have the peer, and threads that open it, too.
            let mut peers = lock(&self.peers);
            if Arc::strong_count(&peer) <= 2 && lock(&peer.routes).is_empty() {
                peers.remove(&to.id);
            }
        }
        opened
    }

    fn open_to(
        &self,
        peer: &Peer,
        node: &Node,
        to: &NodeAddress,
        driver: Option<&str>,
        (serve, deadline): (Serve, Deadline),
        opened: impl FnOnce(Channel),
    ) -> Result<Arc<Route>, Error> {
        let _opening = lock(&peer.opening);
        if let Some(route) = find(&lock(&peer.routes), driver) {
            return Ok(route);
        }
        let mut attempts = 0;
        let (link, tried, channel) = loop {
            let (link, tried) = connect(node, to, driver, deadline)?;
            match node.open_channel(link, SERVICE, serve, Some(deadline.at_most(CONNECT_LIMIT))) {
                Ok(channel) => break (link, tried, channel),
                // The peer has given up the link that it had made.
                Err(NodeError::Lost(_) | NodeError::Unknown | NodeError::Closed) if attempts < MAX_ATTEMPTS => {
                    attempts += 1
                }
                Err(NodeError::Refused) => {
                    return Err(Error::NoRoute(vec![("requests".to_owned(), NodeError::Refused)]));
                }
                Err(error) => return Err(error.into()),
            }
        };
        lock(&self.channels).known.insert(channel, None);
        opened(channel);
        let driver = node.link_info(link)?.driver;
        let route = Arc::new(Route {
            driver,
            channel,
            tried,
            by_peer: false,
            two_packets: Turns::default(),
            is_gone: AtomicBool::new(false),
            told: AtomicU64::new(0),
        });
        lock(&peer.routes).push(route.clone());
        Ok(route)
    }

    /// Notes a channel on which a message has arrived: it is a route back.
    #[inline]
    pub fn learn(&self, node: &Node, channel: Channel) {
        let is_new = LEARNT.with(|learnt| {
            let (last, new) = (&learnt[self.number as usize % NODES], Some((self.number, channel)));
            last.get() != new && {
                last.set(new);
                true
            }
        });
        if is_new && !lock(&self.channels).known.contains_key(&channel) {
            self.add(node, channel);
        }
    }

    /// Notes how the peer of a channel is reached, as it says in a call.
    pub fn note_caller(&self, channel: Channel, caller: &Arc<NodeAddress>) {
        if let Some(known) = lock(&self.channels).known.get_mut(&channel) {
            *known = Some(caller.clone());
        }
    }

    /// How the peer of a channel is reached, if it has said so in a call.
    pub fn caller(&self, channel: Channel) -> Option<Arc<NodeAddress>> {
        lock(&self.channels).known.get(&channel).cloned().flatten()
    }

    /// Notes the version of this node's address that the peer of a channel knows.
    #[cold]
    pub fn note_told(&self, peer: NodeId, channel: Channel, version: u64) {
        let Some(peer) = lock(&self.peers).get(&peer).cloned() else { return };
        for route in lock(&peer.routes).iter().filter(|route| route.channel == channel) {
            route.told.store(version, Ordering::Relaxed);
        }
    }

    #[cold]
    fn add(&self, node: &Node, channel: Channel) {
        let Ok(info) = node.link_info(channel.link) else { return };
        if info.gone.is_some() || !self.note(node, channel) {
            return;
        }
        let route = Route {
            driver: info.driver,
            channel,
            tried: Vec::new(),
            by_peer: true,
            two_packets: Turns::default(),
            is_gone: AtomicBool::new(false),
            told: AtomicU64::new(0),
        };
        let peer = lock(&self.peers).entry(info.peer).or_default().clone();
        let mut routes = lock(&peer.routes);
        if find(&routes, Some(info.driver)).is_none() {
            routes.push(Arc::new(route));
        }
    }

    /// Adds a channel to those that are known, and now and then forgets those that are gone. False: it is known.
    fn note(&self, node: &Node, channel: Channel) -> bool {
        let mut channels = lock(&self.channels);
        let Channels { known, least } = &mut *channels;
        if known.contains_key(&channel) {
            return false;
        }
        known.insert(channel, None);
        if known.len() < *least + PRUNE_AFTER {
            return true;
        }
        let is_up = |channel: &Channel| node.link_info(channel.link).is_ok_and(|info| info.gone.is_none());
        known.retain(|channel, _| is_up(channel));
        *least = known.len();
        drop(channels);
        lock(&self.peers).retain(|_, peer| {
            let mut routes = lock(&peer.routes);
            routes.retain(|route| is_up(&route.channel));
            !routes.is_empty() || Arc::strong_count(peer) > 1
        });
        true
    }

    /// Forgets a route whose link is gone.
    pub fn forget(&self, node: &Node, peer: NodeId, route: &Arc<Route>) {
        route.is_gone.store(true, Ordering::Relaxed);
        lock(&self.channels).known.remove(&route.channel);
        let known = lock(&self.peers).get(&peer).cloned();
        if let Some(known) = known {
            lock(&known.routes).retain(|other| !Arc::ptr_eq(other, route));
        }
        let _ = node.close_channel(route.channel);
        if !route.by_peer && node.link_info(route.channel.link).is_ok_and(|info| info.gone.is_some()) {
            let _ = node.disconnect(route.channel.link);
        }
    }

    /// All channels, which are forgotten.
    pub fn take_channels(&self) -> Vec<Channel> {
        lock(&self.peers).clear();
        lock(&self.channels).known.drain().map(|(channel, _)| channel).collect()
    }
}

/// A link to a node: one that is there, or a new one by the first driver that works. Returns the drivers that do not, too.
fn connect(
    node: &Node,
    to: &NodeAddress,
    driver: Option<&str>,
    deadline: Deadline,
) -> Result<(LinkId, Vec<(String, NodeError)>), Error> {
    let is_up = |link: &LinkId| {
        let info = node.link_info(*link);
        info.is_ok_and(|info| info.gone.is_none() && info.peer == to.id && driver.is_none_or(|one| one == info.driver))
    };
    if let Some(link) = node.links()?.into_iter().find(is_up) {
        return Ok((link, Vec::new()));
    }
    let mut tried = Vec::new();
    let published: Vec<_> = parts(&to.address).filter(|(name, _)| driver.is_none_or(|one| one == *name)).collect();
    if published.is_empty() {
        let driver = driver.unwrap_or_default().to_owned();
        return Err(Error::NoRoute(vec![(driver, NodeError::Unreachable(Reason::FORBIDDEN))]));
    }
    for (name, address) in published {
        match node.connect_existing(address, Some(deadline.at_most(CONNECT_LIMIT))) {
            Ok(link) if node.link_info(link)?.peer == to.id => return Ok((link, tried)),
            Ok(link) => {
                // A process that has taken the name or the port of one that has ended.
                let _ = node.disconnect(link);
                tried.push((name.to_owned(), NodeError::Unreachable(Reason::NO_SUCH_NODE)));
            }
            Err(error) => tried.push((name.to_owned(), error)),
        }
        if deadline.has_passed() {
            return Err(Error::TimedOut);
        }
    }
    Err(Error::NoRoute(tried))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_not_there_leave_nothing() {
        let (node, routes) = (Node::open("").unwrap(), Routes::default());
        let serve = Serve::Tagged(node.context().unwrap());
        for number in 0..10 {
            let to = NodeAddress { id: NodeId([number; 16]), address: "shm://not-there".into() };
            let limit = Deadline::within(Some(Duration::from_secs(10)));
            routes.open(&node, &to, None, (serve, limit), |_| {}).unwrap_err();
        }
        assert_eq!(lock(&routes.peers).len(), 0);
    }
}
