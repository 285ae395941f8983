//! The sessions of each node of this process. An incoming connection finds its link here.
//!
//! Links and the listener may run in different threads: a connection for a link is delivered to the link's [`Mailbox`], whose doorbell is
//! in the link's epoll set.

use crate::admission::{PeerOwner, is_admitted, may_be_local, peer_owner};
use crate::incoming::IncomingConnection;
use motet_engine::message::transport::{Identity, NodeId, Secret};
use motet_proto::message::session::handshake::Handshake;
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::fd::{AsFd, AsRawFd};
use motet_sys::rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most connections that wait in a mailbox.
const MAX_WAITING: usize = 8;
/// Most sessions that other nodes have begun with a node. Each takes three descriptors, so the limit is lower where it would exceed
/// 1/DESCRIPTOR_SHARE of the process's descriptors.
const MAX_ACCEPTED_SESSIONS: usize = 4096;
const DESCRIPTOR_SHARE: u64 = 8;
/// The shares of these sessions that one other user of this host may have, and that all other users may have together.
const USER_SHARE: usize = 8;
const OTHERS_SHARE: usize = 2;

/// Locks. A lock that is poisoned is still consistent: each is held for one step that cannot be left half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn max_accepted_sessions() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    MAX_ACCEPTED_SESSIONS.min((descriptors / DESCRIPTOR_SHARE) as usize)
}

/// Who has begun a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// This node.
    Own,
    /// Another node, of this user.
    Accepted(PeerOwner),
}

/// The sessions of a node, and what the node answers with.
#[derive(Debug)]
pub struct SessionTable {
    id: NodeId,
    secret: Secret,
    /// Other users of this host may begin sessions if they know the secret.
    other_users: bool,
    /// Where the node's listener listens.
    listen_address: Mutex<Option<SocketAddr>>,
    sessions: Mutex<HashMap<[u8; 16], Arc<Mailbox>>>,
}

impl SessionTable {
    /// No sessions.
    pub fn new(identity: &Identity) -> Self {
        let &Identity { id, secret, other_users, .. } = identity;
        let (listen_address, sessions) = Default::default();
        Self { id, secret, other_users, listen_address, sessions }
    }

    /// The node's number.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The secret in the node's address.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Whether nodes of other users of this host may be peers.
    pub fn has_other_users(&self) -> bool {
        self.other_users
    }

    /// The owner of an incoming connection that may begin a session with this handshake; `None`: it may not. Nothing else of the handshake is used before
    /// that, its port least of all.
    pub fn admits(&self, incoming: &IncomingConnection, handshake: &Handshake) -> Option<PeerOwner> {
        let knows_secret = self.secret.matches_caller(handshake.secret);
        let local = incoming.local_address().ok()?;
        // The kernel is not asked about connections from other hosts that do not know the secret: they may be many.
        if !knows_secret && !may_be_local(local, incoming.peer) {
            return None;
        }
        let owner = peer_owner(local, incoming.peer);
        is_admitted(owner, knows_secret, self.other_users).then_some(owner)
    }

    /// The port of the node's listener; 0: the node does not listen.
    pub fn port(&self) -> u16 {
        lock(&self.listen_address).map_or(0, |address| address.port())
    }

    /// The port of the node's listener if that listens at this local address.
    pub fn listen_port_at(&self, local: IpAddr) -> Option<u16> {
        let address = lock(&self.listen_address).filter(|at| at.ip().is_unspecified() || at.ip() == local);
        address.map(|at| at.port())
    }

    /// Notes where the node's listener listens; `None`: there is no listener any more.
    pub fn set_listen_address(&self, address: Option<SocketAddr>) {
        *lock(&self.listen_address) = address;
    }

    /// Adds a session. `None`: the number is taken, there are too many accepted sessions, of all or of this user, or no descriptor for the doorbell.
    pub fn add(&self, session: [u8; 16], origin: Origin) -> Option<Arc<Mailbox>> {
        let doorbell = PrivateFd::new(motet_sys::socket::eventfd().ok()?);
        let (non_empty, waiting) = (AtomicBool::new(false), Mutex::default());
        let origin = match origin {
            Origin::Own => Origin::Own,
            Origin::Accepted(owner) => Origin::Accepted(owner.of_share(self.other_users)),
        };
        let mailbox = Arc::new(Mailbox { origin, doorbell, non_empty, waiting });
        let mut sessions = lock(&self.sessions);
        if sessions.contains_key(&session) || !has_room(&sessions, origin, max_accepted_sessions()) {
            return None;
        }
        sessions.insert(session, mailbox.clone());
        Some(mailbox)
    }

    /// Removes a session that has ended.
    pub fn remove(&self, session: [u8; 16]) {
        lock(&self.sessions).remove(&session);
    }

    /// The mailbox of a session's link.
    pub fn find(&self, session: &[u8; 16]) -> Option<Arc<Mailbox>> {
        lock(&self.sessions).get(session).cloned()
    }
}

/// Whether one more session of this origin may be, if `max` may be accepted.
fn has_room(sessions: &HashMap<[u8; 16], Arc<Mailbox>>, origin: Origin, max: usize) -> bool {
    let Origin::Accepted(owner) = origin else { return true };
    let count = |counted: &dyn Fn(PeerOwner) -> bool| {
        sessions.values().filter(|other| matches!(other.origin, Origin::Accepted(owner) if counted(owner))).count()
    };
    let of_others = |owner| matches!(owner, PeerOwner::OtherUser(_));
    if of_others(owner)
        && (count(&|other| other == owner) >= max / USER_SHARE || count(&of_others) >= max / OTHERS_SHARE)
    {
        return false;
    }
    sessions.len() < max || count(&|_| true) < max
}

/// An incoming connection for an existing session.
#[derive(Debug)]
pub struct SessionConnection {
    /// The connection, whose next byte is the session's.
    pub fd: PrivateFd,
    /// Its handshake.
    pub handshake: Handshake,
}

/// Where incoming connections wait for their link.
#[derive(Debug)]
pub struct Mailbox {
    origin: Origin,
    doorbell: PrivateFd,
    non_empty: AtomicBool,
    waiting: Mutex<Vec<SessionConnection>>,
}

impl Mailbox {
    /// Whether another node has begun the session: then its connections are incoming. Otherwise the link makes them.
    pub fn is_accepted(&self) -> bool {
        self.origin != Origin::Own
    }

    /// Readable while connections wait.
    pub fn doorbell(&self) -> &PrivateFd {
        &self.doorbell
    }

    /// Delivers a connection to the link. If eight wait already, the connection is dropped: the peer's link tries again.
    pub fn deliver(&self, connection: SessionConnection) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() < MAX_WAITING {
            waiting.push(connection);
        }
        self.non_empty.store(true, Ordering::Release);
        motet_sys::socket::ring_eventfd(self.doorbell.as_fd().as_raw_fd());
    }

    /// Whether connections may wait: one load.
    #[inline]
    pub fn has_connections(&self) -> bool {
        self.non_empty.load(Ordering::Acquire)
    }

    /// Takes all waiting connections.
    pub fn take(&self) -> Vec<SessionConnection> {
        let mut waiting = lock(&self.waiting);
        self.non_empty.store(false, Ordering::Release);
        motet_sys::socket::drain_eventfd(self.doorbell.as_fd().as_raw_fd());
        std::mem::take(&mut waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_user_takes_all_sessions_and_all_together_leave_half() {
        let mut sessions = HashMap::new();
        let mut fill = |owner| {
            let before = sessions.len();
            while has_room(&sessions, Origin::Accepted(owner), 64) {
                let doorbell = PrivateFd::new(motet_sys::socket::eventfd().expect("a doorbell"));
                let (non_empty, waiting) = (AtomicBool::new(false), Mutex::default());
                let mailbox = Mailbox { origin: Origin::Accepted(owner), doorbell, non_empty, waiting };
                sessions.insert([u8::try_from(sessions.len()).expect("few"); 16], Arc::new(mailbox));
            }
            sessions.len() - before
        };
        let of_others: Vec<_> = [1, 1, 2, 3, 4, 5].map(|user| fill(PeerOwner::OtherUser(user))).into();
        assert_eq!(of_others, [8, 0, 8, 8, 8, 0]);
        assert_eq!((fill(PeerOwner::SameUser), fill(PeerOwner::Unknown), fill(PeerOwner::OtherUser(9))), (32, 0, 0));
        assert!(has_room(&sessions, Origin::Own, 64));
    }

    /// The kernel does not name a caller whose end is closed.
    #[test]
    fn unnamed_callers_have_the_share_of_one_user() {
        for (other_users, others_have_room) in [(true, true), (false, false)] {
            let (id, secret, name) = (NodeId([1; 16]), Secret { caller: 1, answer: 2 }, String::new());
            let table = SessionTable::new(&Identity { id, name, listen: None, secret, other_users, folder: None });
            let max = max_accepted_sessions();
            let begin = |number: usize, owner| {
                let mut session = [0; 16];
                session[..8].copy_from_slice(&number.to_ne_bytes());
                table.add(session, Origin::Accepted(owner)).is_some()
            };
            let unnamed = (0..max).filter(|number| begin(*number, PeerOwner::Unknown)).count();
            assert_eq!(unnamed == max, !others_have_room, "{unnamed} of {max}");
            assert_eq!(begin(max, PeerOwner::OtherUser(7)), others_have_room);
        }
    }
}
