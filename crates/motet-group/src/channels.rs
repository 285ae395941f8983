//! The channels of a circuit to its other members, by rank: each is opened by the first message to that member.
//!
//! A member may not know the circuit yet, may be slow, or may have gone; so an attempt that fails is repeated while the member is there.

use crate::error::Error;
use crate::links::Links;
use crate::turns::Turns;
use motet::node::{Channel, Error as NodeError, Node, Serve};
use motet_session::api::Member;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A member that does not know the circuit yet is asked again after this time, which doubles with each attempt.
const FIRST_RETRY: Duration = Duration::from_micros(100);
/// The longest time between two such attempts.
const MAX_RETRY: Duration = Duration::from_millis(20);
/// One attempt to make a link or a channel to a member takes at most so long; then it is checked whether the member is still there.
const ATTEMPT_LIMIT: Duration = Duration::from_millis(200);
/// The longest wait for a link or a channel to a member that is there.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// The channels to a service that all members have.
#[derive(Debug)]
pub(crate) struct Channels {
    service: u64,
    by_rank: Mutex<ByRank>,
    /// Taken while a channel to a member is opened: a second one to the same member would not keep the order of messages. The lock of `by_rank` is not
    /// held then: a circuit that ends takes it under the lock of the groups, which the opening needs.
    openings: Turns<usize>,
}

/// The channels that are open.
#[derive(Debug)]
struct ByRank {
    opened: Vec<Option<Channel>>,
    /// The circuit has ended here: a channel that is opened meanwhile has to be closed.
    closed: bool,
}

/// Whether another attempt to make a link or a channel may succeed.
fn may_pass(error: &Error) -> bool {
    use NodeError::{Closed, Lost, Refused, Unknown, Unreachable};
    matches!(error, Error::TimedOut | Error::Node(Refused | Unreachable(_) | Lost(_) | Closed | Unknown))
}

impl Channels {
    /// No channel yet, to any of `size` members.
    pub fn new(service: u64, size: usize) -> Self {
        Self {
            service,
            by_rank: Mutex::new(ByRank { opened: vec![None; size], closed: false }),
            openings: Turns::default(),
        }
    }

    /// The service that they are opened to.
    pub fn service(&self) -> u64 {
        self.service
    }

    fn by_rank(&self) -> MutexGuard<'_, ByRank> {
        self.by_rank.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel to a member, if it is open.
    #[inline]
    pub fn get(&self, rank: usize) -> Option<Channel> {
        self.by_rank().opened[rank]
    }

    /// Whether the circuit has ended here.
    pub fn is_closed(&self) -> bool {
        self.by_rank().closed
    }

    /// The channels that are open, by rank.
    pub fn opened(&self) -> Vec<Option<Channel>> {
        self.by_rank().opened.clone()
    }

    /// Closes the channel to a member, with which the pair is lost.
    pub fn lose(&self, node: &Node, rank: usize) {
        let channel = self.by_rank().opened[rank].take();
        if let Some(channel) = channel {
            let _ = node.close_channel(channel);
        }
    }

    /// The channel to a member, which is opened if it is not, within a time limit. `is_gone`: whether the member has left meanwhile, or the pair with it is lost. A member that does
    /// not answer delays no channel to another one.
    pub fn open(
        &self,
        (node, links): (&Node, &Links),
        (rank, member): (usize, &Member),
        limit: Option<Duration>,
        is_gone: impl Fn() -> bool,
    ) -> Result<Channel, Error> {
        let called = Instant::now();
        let left = || limit.map(|limit| limit.saturating_sub(called.elapsed()));
        let _turn = loop {
            let wait = left().map_or(ATTEMPT_LIMIT, |left| left.min(ATTEMPT_LIMIT));
            match self.openings.take(rank, wait) {
                Some(turn) => break turn,
                None if is_gone() => return Err(Error::MemberGone),
                None if left() == Some(Duration::ZERO) => return Err(Error::TimedOut),
                None => {}
            }
        };
        // The wait for another thread's attempt does not count.
        let since = Instant::now();
        if let Some(channel) = self.get(rank) {
            return Ok(channel);
        }
        let mut wait = FIRST_RETRY;
        loop {
            if is_gone() {
                return Err(Error::MemberGone);
            }
            let left = left();
            let attempt = left.map_or(ATTEMPT_LIMIT, |left| left.min(ATTEMPT_LIMIT));
            let opened = links.to(node, member, attempt).and_then(|link| {
                let opened = node.open_channel(link, self.service, Serve::Queue, Some(attempt));
                opened.map_err(Error::from)
            });
            match opened {
                Ok(channel) => {
                    let is_gone = is_gone();
                    let mut channels = self.by_rank();
                    if channels.closed || is_gone {
                        drop(channels);
                        let _ = node.close_channel(channel);
                        return Err(Error::MemberGone);
                    }
                    channels.opened[rank] = Some(channel);
                    return Ok(channel);
                }
                // The member has not heard of the circuit yet, is slow, or has gone with its link, which the next view will say.
                Err(error) if may_pass(&error) && left == Some(Duration::ZERO) => return Err(Error::TimedOut),
                Err(error) if may_pass(&error) && since.elapsed() < CONNECT_LIMIT => {
                    std::thread::sleep(left.map_or(wait, |left| left.min(wait)));
                    wait = (wait * 2).min(MAX_RETRY);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends the service, and closes all channels, those that peers have opened among them. What was not received is discarded.
    pub fn close(&self, node: &Node) {
        let mut channels = self.by_rank();
        for channel in channels.opened.iter_mut().filter_map(Option::take) {
            let _ = node.close_channel(channel);
        }
        channels.closed = true;
        drop(channels);
        let _ = node.end_service(self.service);
    }
}
