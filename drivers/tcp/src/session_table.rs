//! Which sessions a node of this process has, so that a connection that comes in finds its own.
//!
//! Links and the listener may live in different threads: a connection for a link is left in its [`Mailbox`], whose bell is in
//! the link's set of descriptors. Where a node that does not listen can be asked whether it lives, is known here too.

use crate::acceptor::Door;
use crate::admission::{may, may_be_here, other_end};
use crate::incoming::Guest;
use motet_engine::message::transport::{Identity, NodeId, Secret};
use motet_proto::message::session::handshake::Handshake;
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::fd::{AsFd, AsRawFd};
use motet_sys::rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Connections that wait for a link at most.
const WAITING: usize = 8;
/// Sessions that others may have begun with a node at a time; fewer where that would be more than a part of all descriptors, of which
/// each takes three.
const CALLED: usize = 4096;
const PART: u64 = 8;

static NODES: Mutex<Vec<(NodeId, Weak<Node>)>> = Mutex::new(Vec::new());

/// A panic of another thread has left nothing half done here: each holds the lock for one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn most_called() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    CALLED.min((descriptors / PART) as usize)
}

/// A node's sessions.
#[derive(Debug)]
pub struct Node {
    id: NodeId,
    secret: Secret,
    /// Where it listens for everybody.
    listens: Mutex<Option<SocketAddr>>,
    /// Where it can be asked whether it lives.
    doors: Mutex<Vec<Weak<Mutex<Door>>>>,
    sessions: Mutex<HashMap<[u8; 16], Arc<Mailbox>>>,
}

impl Node {
    /// The one record of this node.
    pub fn of(identity: &Identity) -> Arc<Self> {
        let &Identity { id, secret, .. } = identity;
        let mut nodes = lock(&NODES);
        nodes.retain(|(_, node)| node.strong_count() > 0);
        if let Some(node) = nodes.iter().find(|(other, _)| *other == id).and_then(|(_, node)| node.upgrade()) {
            return node;
        }
        let (listens, doors, sessions) = Default::default();
        let node = Arc::new(Self { id, secret, listens, doors, sessions });
        nodes.push((id, Arc::downgrade(&node)));
        node
    }

    /// Its number.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// What its address has.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Whether a guest that says this may begin a session. Nothing of it is used before that, the port that it names least of all.
    pub fn admits(&self, guest: &Guest, handshake: &Handshake) -> bool {
        let right = self.secret.is_said(handshake.secret);
        let Ok(near) = guest.near() else { return false };
        // A crowd of strangers from elsewhere is not asked about.
        (right || may_be_here(near, guest.from)) && may(other_end(near, guest.from), right)
    }

    /// The port at which it listens for everybody; 0: none.
    pub fn port(&self) -> u16 {
        lock(&self.listens).map_or(0, |address| address.port())
    }

    /// It listens there for everybody from now on; `None`: nowhere.
    pub fn listens(&self, address: Option<SocketAddr>) {
        *lock(&self.listens) = address;
    }

    /// The port at which it answers peers that are connected to this address of its own; 0: none can be had. Where it does not listen
    /// for everybody, it does as long as the door is kept, which is to be stepped.
    pub fn door(&self, own: IpAddr) -> (u16, Option<Arc<Mutex<Door>>>) {
        if let Some(at) = *lock(&self.listens)
            && (at.ip().is_unspecified() || at.ip() == own)
        {
            return (at.port(), None);
        }
        let mut doors = lock(&self.doors);
        doors.retain(|door| door.strong_count() > 0);
        for door in doors.iter().filter_map(Weak::upgrade) {
            let at = lock(&door).address();
            if at.ip() == own {
                return (at.port(), Some(door));
            }
        }
        let Ok(door) = Door::new(&SocketAddr::new(own, 0)) else { return (0, None) };
        let (port, door) = (door.address().port(), Arc::new(Mutex::new(door)));
        doors.push(Arc::downgrade(&door));
        (port, Some(door))
    }

    /// Enters a session; `None`: there is one of this number, there are too many that others have begun, or no descriptor for the bell.
    pub fn enter(&self, session: [u8; 16], called: bool) -> Option<Arc<Mailbox>> {
        let bell = PrivateFd::new(motet_sys::socket::eventfd().ok()?);
        let mailbox = Arc::new(Mailbox { called, bell, full: AtomicBool::new(false), visits: Mutex::default() });
        let mut sessions = lock(&self.sessions);
        let begun = || sessions.values().filter(|other| other.called).count();
        if sessions.contains_key(&session) || called && sessions.len() >= most_called() && begun() >= most_called() {
            return None;
        }
        sessions.insert(session, mailbox.clone());
        Some(mailbox)
    }

    /// The session is over.
    pub fn leave(&self, session: [u8; 16]) {
        lock(&self.sessions).remove(&session);
    }

    /// Where connections for a session are left.
    pub fn find(&self, session: &[u8; 16]) -> Option<Arc<Mailbox>> {
        lock(&self.sessions).get(session).cloned()
    }
}

/// A connection that has come for a link: with what, and from where.
#[derive(Debug)]
pub struct Visit {
    /// The connection, right behind the handshake.
    pub fd: PrivateFd,
    /// What was said.
    pub handshake: Handshake,
    /// Where it came from.
    pub from: SocketAddr,
}

/// Where connections for one link wait.
#[derive(Debug)]
pub struct Mailbox {
    called: bool,
    bell: PrivateFd,
    full: AtomicBool,
    visits: Mutex<Vec<Visit>>,
}

impl Mailbox {
    /// Whether the link waits for connections; otherwise it makes them.
    pub fn is_called(&self) -> bool {
        self.called
    }

    /// Readable while connections wait.
    pub fn bell(&self) -> &PrivateFd {
        &self.bell
    }

    /// Leaves a connection. Too many: the newest goes, as an honest caller tries again.
    pub fn leave(&self, visit: Visit) {
        let mut visits = lock(&self.visits);
        if visits.len() < WAITING {
            visits.push(visit);
        }
        self.full.store(true, Ordering::Release);
        motet_sys::socket::ring_eventfd(self.bell.as_fd().as_raw_fd());
    }

    /// Whether anything waits: cheap.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Takes what waits.
    pub fn take(&self) -> Vec<Visit> {
        let mut visits = lock(&self.visits);
        self.full.store(false, Ordering::Release);
        motet_sys::socket::drain_eventfd(self.bell.as_fd().as_raw_fd());
        std::mem::take(&mut visits)
    }
}
