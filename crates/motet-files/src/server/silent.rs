//! Members of the group whose clients have left a notice unanswered. Changes do not wait for them for a while: what another user's client does must not slow down
//! those who change files again and again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long no change waits for a user's clients.
const PAUSE: Duration = Duration::from_secs(60);

/// The users, and since when they are not waited for.
#[derive(Debug, Default)]
pub struct Silent(Mutex<HashMap<u32, Instant>>);

impl Silent {
    fn users(&self) -> MutexGuard<'_, HashMap<u32, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client of this user has not answered.
    pub fn note(&self, user: u32) {
        let mut users = self.users();
        users.retain(|_, since| since.elapsed() < PAUSE);
        users.insert(user, Instant::now());
    }

    /// Whether changes do not wait for clients of this user.
    pub fn has(&self, user: u32) -> bool {
        self.users().get(&user).is_some_and(|since| since.elapsed() < PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_not_waited_for_after_a_silence() {
        let silent = Silent::default();
        assert!(!silent.has(7));
        silent.note(7);
        assert!(silent.has(7) && !silent.has(8));
        if let Some(long_ago) = Instant::now().checked_sub(PAUSE) {
            silent.users().insert(7, long_ago);
            assert!(!silent.has(7));
            silent.note(8);
            assert_eq!(silent.users().len(), 1, "what is over is forgotten");
        }
    }
}
