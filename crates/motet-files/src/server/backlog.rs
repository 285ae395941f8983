//! The requests of one client that are postponed because the client itself is waited for.

use crate::protocol::SLOTS;
use motet::node::Channel;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits of one client. A few keep a fast network busy.
pub const CLIENT_WAITS: usize = 8;

/// The postponed requests of a session, in their order, and how much is waited for.
#[derive(Debug, Default)]
pub struct Backlog(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waits: usize,
    postponed: VecDeque<Postponed>,
}

/// A request that is postponed.
#[derive(Debug, PartialEq, Eq)]
pub struct Postponed {
    /// On which channel it came.
    pub channel: Channel,
    /// The tag of its message.
    pub tag: u64,
    /// Its message.
    pub message: Vec<u8>,
}

/// When a request is executed.
#[derive(Debug, PartialEq, Eq)]
pub enum Beginning {
    /// At once.
    Now,
    /// After others of its client.
    Later,
    /// Never: its client has more requests under way than it has slots.
    Never,
}

impl State {
    fn may_begin(&self, is_strained: impl FnOnce() -> bool) -> bool {
        self.waits == 0 || self.waits < CLIENT_WAITS && !is_strained()
    }
}

impl Backlog {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides when a request is executed, and keeps it if that is later. `is_strained`: the server has few buffers left.
    pub fn admit(&self, is_strained: impl FnOnce() -> bool, request: impl FnOnce() -> Postponed) -> Beginning {
        let mut state = self.state();
        if state.postponed.is_empty() && state.may_begin(is_strained) {
            return Beginning::Now;
        }
        if state.postponed.len() >= usize::from(SLOTS) {
            return Beginning::Never;
        }
        state.postponed.push_back(request());
        Beginning::Later
    }

    /// The next request that may be executed now, and whether there may be more.
    pub fn next(&self, is_strained: impl FnOnce() -> bool) -> Option<(Postponed, bool)> {
        let mut state = self.state();
        if !state.may_begin(is_strained) {
            return None;
        }
        let next = state.postponed.pop_front()?;
        Some((next, !state.postponed.is_empty()))
    }

    /// Begins to wait for the client.
    pub fn begin_wait(&self) {
        self.state().waits += 1;
    }

    /// Has waited for the client. Returns whether requests are postponed.
    pub fn end_wait(&self) -> bool {
        let mut state = self.state();
        state.waits = state.waits.saturating_sub(1);
        !state.postponed.is_empty()
    }

    /// Forgets the postponed requests, which their client will send again.
    pub fn clear(&self) {
        self.state().postponed.clear();
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A channel between two nodes that have gone.
    pub fn channel() -> Channel {
        let node = motet::node::Node::open("").expect("a node");
        let peer = motet::node::Node::open("").expect("a node");
        peer.serve(1, motet::node::Serve::Queue).expect("a service");
        std::thread::scope(|scope| {
            scope.spawn(|| peer.accept(1, None).expect("a channel"));
            let link = node.connect(&peer.address().expect("an address"), None).expect("a link");
            node.open_channel(link, 1, motet::node::Serve::Queue, None).expect("a channel")
        })
    }

    #[test]
    fn requests_are_postponed_in_order_while_their_client_is_waited_for() {
        let (backlog, channel) = (Backlog::default(), channel());
        let request = |tag| Postponed { channel, tag, message: Vec::new() };
        for tag in 0..CLIENT_WAITS as u64 {
            assert_eq!(backlog.admit(|| false, || request(tag)), Beginning::Now);
            backlog.begin_wait();
        }
        for tag in 0..u64::from(SLOTS) {
            assert_eq!(backlog.admit(|| false, || request(tag)), Beginning::Later);
        }
        assert_eq!(backlog.admit(|| false, || request(99)), Beginning::Never);
        assert_eq!(backlog.next(|| false), None);
        assert!(backlog.end_wait());
        assert_eq!(backlog.next(|| true), None, "buffers are few, and the client is waited for");
        assert_eq!(backlog.next(|| false), Some((request(0), true)));
        assert_eq!(backlog.admit(|| false, || request(64)), Beginning::Later, "behind the others");
        for tag in 1..=u64::from(SLOTS) {
            assert_eq!(backlog.next(|| false), Some((request(tag), tag < u64::from(SLOTS))));
        }
        assert_eq!(backlog.next(|| false), None);
        assert!(!backlog.end_wait());
    }

    #[test]
    fn a_client_that_is_not_waited_for_is_served_when_buffers_are_few() {
        let (backlog, channel) = (Backlog::default(), channel());
        let request = || Postponed { channel, tag: 1, message: Vec::new() };
        assert_eq!(backlog.admit(|| true, request), Beginning::Now);
        backlog.begin_wait();
        assert_eq!(backlog.admit(|| true, request), Beginning::Later);
        assert!(backlog.end_wait());
        assert_eq!(backlog.next(|| true), Some((request(), false)));
        assert_eq!(backlog.admit(|| true, request), Beginning::Now);
        backlog.begin_wait();
        assert_eq!(backlog.admit(|| true, request), Beginning::Later);
        backlog.clear();
        assert!(!backlog.end_wait());
    }
}
