//! Sessions whose files have ended, because their clients were away for too long. Their last answers are kept for a while: a request that comes again is not executed
//! twice. One user's sessions do not take the place of all others.

use super::session::Session;
use crate::identity::Identity;
use crate::protocol::SessionKey;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the answers of a session are kept, and of how many sessions; of how many of one other user.
const KEPT: Duration = Duration::from_secs(600);
const MAX: usize = 1024;
const MAX_OF_USER: usize = MAX / 8;

/// The sessions, and since when they are without files. The first to be forgotten first.
#[derive(Debug, Default)]
pub struct Ended(VecDeque<(Instant, Arc<Session>)>);

impl Ended {
    /// Keeps the answers of a session.
    pub fn keep(&mut self, session: Arc<Session>) {
        if let Some(Identity { user, .. }) = session.member() {
            let is_of_user = |other: &Session| other.member().is_some_and(|member| member.user == *user);
            let mut of_user = (0..).zip(&self.0).filter(|(_, (_, other))| is_of_user(other)).map(|(place, _)| place);
            let first = of_user.next();
            if of_user.count() + 1 >= MAX_OF_USER {
                first.and_then(|first| self.0.remove(first));
            }
        }
        self.0.push_back((Instant::now(), session));
        if self.0.len() > MAX {
            self.0.pop_front();
        }
    }

    /// Forgets those that are kept for long enough.
    pub fn forget(&mut self) {
        while self.0.front().is_some_and(|(since, _)| since.elapsed() >= KEPT) {
            self.0.pop_front();
        }
    }

    /// Takes the session with this key and user.
    pub fn take(&mut self, key: SessionKey, member: Option<&Identity>) -> Option<Arc<Session>> {
        let place = self.0.iter().position(|(_, session)| session.key() == key && session.member() == member)?;
        self.0.remove(place).map(|(_, session)| session)
    }
}

#[cfg(test)]
mod tests {
    use super::super::backlog::tests::channel;
    use super::super::threads::ClientThreads;
    use super::*;
    use crate::storage::Quota;

    #[test]
    fn no_user_takes_the_place_of_all_others() {
        let (channel, quota) = (channel(), Quota::new(1, None));
        let user = |user| Some(Identity { user, group: 1, groups: Vec::new() });
        let key = |number: usize| SessionKey((number as u128).to_be_bytes());
        let session = |number, member| {
            let threads = ClientThreads::default();
            Arc::new(Session::new(key(number), channel, member, Arc::clone(&quota), threads))
        };
        let mut ended = Ended::default();
        ended.keep(session(0, user(1)));
        for number in 1..=2 * MAX {
            ended.keep(session(number, user(2)));
        }
        assert_eq!(ended.0.len(), 1 + MAX_OF_USER);
        assert!(ended.take(key(0), user(1).as_ref()).is_some());
        assert!(ended.take(key(2 * MAX), user(1).as_ref()).is_none(), "of another user");
        assert!(ended.take(key(2 * MAX), user(2).as_ref()).is_some());
        for number in 0..=MAX {
            ended.keep(session(number, None));
        }
        assert_eq!(ended.0.len(), MAX);
        assert!(ended.take(key(0), None).is_none() && ended.take(key(1), None).is_some());
    }
}
