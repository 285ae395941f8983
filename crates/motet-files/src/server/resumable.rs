//! Sessions whose postponed requests may be executed. The thread that has the turn takes one after the other. And sessions that wait for threads that other
//! clients of their user occupy.

use super::session::Session;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The sessions, each once.
#[derive(Debug, Default)]
pub struct Resumable {
    sessions: Mutex<VecDeque<Arc<Session>>>,
    /// Whether there are any: requests of clients that take their answers look at this only.
    is_used: AtomicBool,
}

impl Resumable {
    fn sessions(&self) -> MutexGuard<'_, VecDeque<Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are any.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Requests of this session may be executed.
    pub fn add(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions();
        if !sessions.iter().any(|known| Arc::ptr_eq(known, session)) {
            sessions.push_back(Arc::clone(session));
        }
        self.is_used.store(true, Ordering::Release);
    }

    /// Takes the session that was added first.
    pub fn next(&self) -> Option<Arc<Session>> {
        if !self.is_used() {
            return None;
        }
        let mut sessions = self.sessions();
        let next = sessions.pop_front();
        self.is_used.store(!sessions.is_empty(), Ordering::Release);
        next
    }
}

/// Sessions of other users with requests that are held because their user's clients occupy all threads that they may.
#[derive(Debug, Default)]
pub struct WithoutThreads(Mutex<Vec<Arc<Session>>>);

impl WithoutThreads {
    fn sessions(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This session continues when a thread of its user's clients is free.
    pub fn add(&self, session: &Arc<Session>) {
        let mut sessions = self.sessions();
        if !sessions.iter().any(|known| Arc::ptr_eq(known, session)) {
            sessions.push(Arc::clone(session));
        }
    }

    /// Takes the sessions that have the user of this one.
    pub fn take(&self, session: &Session) -> Vec<Arc<Session>> {
        let user = |of: &Session| of.member().map(|member| member.user);
        self.sessions().extract_if(.., |waiting| user(waiting) == user(session)).collect()
    }
}
