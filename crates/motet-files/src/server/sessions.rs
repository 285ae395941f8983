//! The sessions of all clients of a server.

use super::ended::Ended;
use super::session::Session;
use super::shares::Shares;
use crate::Result;
use crate::identity::Identity;
use crate::protocol::{Resumed, SessionKey};
use crate::storage::ClosedFiles;
use motet::node::Channel;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Sessions of one server.
const MAX_SESSIONS: usize = 4096;
/// How long a session outlives its connection, with its open files and locks.
const GRACE: Duration = Duration::from_millis(500);

/// The sessions.
#[derive(Debug, Default)]
pub struct Sessions {
    by_channel: RwLock<HashMap<Channel, Arc<Session>>>,
    /// The sessions whose clients get notices on a channel.
    by_notices: Mutex<HashMap<Channel, Arc<Session>>>,
    all: Mutex<HashMap<SessionKey, Arc<Session>>>,
    shares: Shares,
    /// Sessions without files. Locked after `all`.
    ended: Mutex<Ended>,
    watched: Mutex<Watched>,
    /// The number of lost sessions that have not expired, and whether the server has ended.
    lost: Mutex<(usize, bool)>,
    changed: Condvar,
}

/// The channels that are watched, by the user data of the receive that watches.
#[derive(Debug, Default)]
struct Watched {
    last: u64,
    by_name: HashMap<u64, Channel>,
    channels: HashSet<Channel>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sessions {
    fn channels(&self) -> RwLockReadGuard<'_, HashMap<Channel, Arc<Session>>> {
        self.by_channel.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn channels_mut(&self) -> RwLockWriteGuard<'_, HashMap<Channel, Arc<Session>>> {
        self.by_channel.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session of the client at this channel.
    pub fn of(&self, channel: Channel) -> Option<Arc<Session>> {
        self.channels().get(&channel).cloned()
    }

    /// The session with this key.
    pub fn with_key(&self, key: SessionKey) -> Option<Arc<Session>> {
        locked(&self.all).get(&key).cloned()
    }

    /// The client of a session gets notices on this channel from now on. Returns the session, and the channel before. `None`: there is no such session.
    pub fn subscribe(&self, key: SessionKey, channel: Channel) -> Option<(Arc<Session>, Option<Channel>)> {
        if self.channels().contains_key(&channel) {
            return None;
        }
        let session = self.with_key(key)?;
        let before = session.begin_notices(channel);
        let mut channels = locked(&self.by_notices);
        if let Some(before) = before {
            channels.remove(&before);
        }
        channels.insert(channel, Arc::clone(&session));
        Some((session, before))
    }

    /// The session whose client gets notices on this channel.
    pub fn of_notices(&self, channel: Channel) -> Option<Arc<Session>> {
        locked(&self.by_notices).get(&channel).cloned()
    }

    /// A channel for notices is gone. Returns the session whose client has none any more.
    pub fn lose_notices(&self, channel: Channel) -> Option<Arc<Session>> {
        let session = locked(&self.by_notices).remove(&channel)?;
        Some(session)
    }

    /// How many sessions there are.
    pub fn count(&self) -> usize {
        locked(&self.all).len()
    }

    /// How many files all sessions have open.
    pub fn open_files(&self) -> usize {
        locked(&self.all).values().map(|session| session.files().len()).sum()
    }

    /// Names a channel for the receive that is to watch it, above 0. `None`: one watches it already.
    pub fn watch(&self, channel: Channel) -> Option<u64> {
        let watched = &mut *locked(&self.watched);
        if !watched.channels.insert(channel) {
            return None;
        }
        watched.last += 1;
        watched.by_name.insert(watched.last, channel);
        Some(watched.last)
    }

    /// Whether a client has a session on a channel, or gets its notices there.
    pub fn uses(&self, channel: Channel) -> bool {
        self.channels().contains_key(&channel) || self.of_notices(channel).is_some()
    }

    /// The channel that is watched under this name is gone. Returns it.
    pub fn lose(&self, name: u64) -> Option<Channel> {
        let mut watched = locked(&self.watched);
        let channel = watched.by_name.remove(&name)?;
        watched.channels.remove(&channel);
        drop(watched);
        let session = self.channels_mut().remove(&channel);
        if session.is_some_and(|session| session.lose(channel)) {
            locked(&self.lost).0 += 1;
            self.changed.notify_all();
        }
        Some(channel)
    }

    /// Begins a session on a channel, or goes on with the one that has this key. Returns its key, and what is left of it. `member`: the client's user, if that
    /// is another one than the server's. `has_lost_locks`: whether the locks of a session of an earlier server were released while its client was away.
    pub fn attach(
        &self,
        channel: Channel,
        resume: Option<SessionKey>,
        member: Option<Identity>,
        has_lost_locks: impl FnOnce(SessionKey) -> bool,
    ) -> Result<(SessionKey, Resumed)> {
        let mut all = locked(&self.all);
        let mut channels = self.channels_mut();
        if channels.contains_key(&channel) {
            return Err(Errno::PROTO.into());
        }
        // A session is not continued by another user.
        let resumed = resume.and_then(|key| all.get(&key)).filter(|session| session.member() == member.as_ref());
        if let Some(session) = resumed {
            if let Some(before) = session.resume(channel) {
                channels.remove(&before);
            }
            channels.insert(channel, Arc::clone(session));
            return Ok((session.key(), Resumed::Whole));
        }
        if all.len() >= MAX_SESSIONS {
            return Err(Errno::USERS.into());
        }
        if let Some(Identity { user, .. }) = &member {
            let of_user = all.values().filter(|session| session.member().is_some_and(|member| member.user == *user));
            if of_user.count() >= self.shares.sessions_of_user() {
                return Err(Errno::USERS.into());
            }
        }
        if let Some(session) = resume.and_then(|key| locked(&self.ended).take(key, member.as_ref())) {
            session.resume(channel);
            all.insert(session.key(), Arc::clone(&session));
            channels.insert(channel, Arc::clone(&session));
            return Ok((session.key(), Resumed::Answers));
        }
        let (quota, threads) = self.shares.of_client(member.as_ref());
        let mut key = [0; 16];
        getrandom(&mut key, GetRandomFlags::empty())?;
        let session = Arc::new(Session::new(SessionKey(key), channel, member, quota, threads));
        if resume.is_some_and(has_lost_locks) {
            session.files().lose_locks();
        }
        all.insert(session.key(), Arc::clone(&session));
        channels.insert(channel, session);
        Ok((SessionKey(key), Resumed::Nothing))
    }

    /// The client has ended its session.
    pub fn detach(&self, session: &Session) {
        locked(&self.all).remove(&session.key());
        if let Some(channel) = session.channel() {
            self.channels_mut().remove(&channel);
        }
    }

    /// Waits while no session is lost, then for the grace time, and ends the files of those that were lost that long ago by `ends`. What that
    /// returns is dropped when no mutex is held. False: the server has ended.
    pub fn expire(&self, ends: impl Fn(&Session) -> ClosedFiles) -> bool {
        let mut lost = locked(&self.lost);
        while lost.0 == 0 && !lost.1 {
            lost = self.changed.wait(lost).unwrap_or_else(PoisonError::into_inner);
        }
        if lost.1 {
            return false;
        }
        // Each lost session is counted after it is marked, so none is missed while the lock is held.
        let (mut lost, _) = self.changed.wait_timeout(lost, GRACE / 2).unwrap_or_else(PoisonError::into_inner);
        let mut all = locked(&self.all);
        let is_over = |session: &Session| session.lost_since().is_some_and(|since| since.elapsed() >= GRACE);
        let mut ended = locked(&self.ended);
        let mut left = Vec::new();
        for (_, session) in all.extract_if(|_, session| is_over(session)) {
            left.push(ends(&session));
            ended.keep(session);
        }
        ended.forget();
        drop(ended);
        lost.0 = all.values().filter(|session| session.lost_since().is_some()).count();
        drop((all, lost));
        // To close descriptors may take its time, and new clients come meanwhile. First those that have locks.
        left.iter_mut().for_each(ClosedFiles::release_locks);
        drop(left);
        true
    }

    /// Waits for a while. False: the server has ended.
    pub fn pause(&self, time: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(locked(&self.lost), time, |(_, has_ended)| !*has_ended);
        let (lost, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !lost.1
    }

    /// Ends [`Sessions::expire`] and [`Sessions::pause`].
    pub fn end(&self) {
        locked(&self.lost).1 = true;
        self.changed.notify_all();
    }
}
