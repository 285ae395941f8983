//! What one client may use of the server: half of its descriptors, and for clients of other users an eighth, and a part of its sessions and threads.
//! All other users together leave half of the descriptors to the server's own user.

use super::threads::{ClientThreads, UserThreads};
use crate::identity::Identity;
use crate::storage::Quota;
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Descriptors of a process without a limit, as far as shares are concerned.
const UNLIMITED: usize = 1 << 20;
/// Sessions of one other user, whatever the limit is.
const SESSIONS_OF_USER: (usize, usize) = (8, 1024);

/// The shares of a part of the server.
#[derive(Debug)]
pub struct Shares {
    /// Of how many descriptors.
    limit: usize,
    /// Those of all other users together.
    of_others: Arc<Quota>,
    by_user: Mutex<HashMap<u32, UserShare>>,
}

/// What all clients of one other user have.
#[derive(Debug, Default)]
struct UserShare {
    descriptors: Weak<Quota>,
    threads: Weak<UserThreads>,
}

impl Default for Shares {
    fn default() -> Self {
        let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
        Self::of(limit.unwrap_or(UNLIMITED).min(UNLIMITED))
    }
}

impl Shares {
    fn of(limit: usize) -> Self {
        Self { limit, of_others: Quota::new(limit / 2, None), by_user: Mutex::default() }
    }

    /// The descriptors and threads of a client. All clients of another user share theirs.
    pub fn of_client(&self, member: Option<&Identity>) -> (Arc<Quota>, ClientThreads) {
        let Some(Identity { user, .. }) = member else {
            return (Quota::new(self.limit / 2, None), ClientThreads::default());
        };
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        by_user.retain(|_, share| share.descriptors.strong_count() > 0 || share.threads.strong_count() > 0);
        let share = by_user.entry(*user).or_default();
        let descriptors = share.descriptors.upgrade().unwrap_or_else(|| {
            let new = Quota::new(self.limit / 8, Some(Arc::clone(&self.of_others)));
            share.descriptors = Arc::downgrade(&new);
            new
        });
        let threads = share.threads.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            share.threads = Arc::downgrade(&new);
            new
        });
        (descriptors, ClientThreads::of(Some(threads)))
    }

    /// Sessions that one other user may have.
    pub fn sessions_of_user(&self) -> usize {
        (self.limit / 64).clamp(SESSIONS_OF_USER.0, SESSIONS_OF_USER.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_takes_all_descriptors_and_all_together_leave_half() {
        let shares = Shares::of(1024);
        let user = |user| Identity { user, group: 1, groups: Vec::new() };
        let mut taken = Vec::new();
        let mut of_user = |number| {
            let before = taken.len();
            while let Ok(one) = shares.of_client(Some(&user(number))).0.take() {
                taken.push(one);
            }
            taken.len() - before
        };
        assert_eq!((of_user(1), of_user(1)), (128, 0));
        assert_eq!((2..8).map(&mut of_user).collect::<Vec<_>>(), [128, 128, 128, 0, 0, 0]);
        assert_eq!(shares.sessions_of_user(), 16);
        let (own, _) = shares.of_client(None);
        let own: Vec<_> = std::iter::from_fn(|| own.take().ok()).collect();
        assert_eq!(own.len(), 512);
        drop(taken);
        assert!(shares.of_client(Some(&user(9))).0.take().is_ok());
    }
}
