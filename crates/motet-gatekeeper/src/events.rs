//! What happens in the session.
//!
//! The last [`MAX_KEPT`] events are kept, so that a client that connects again gets what it has missed. A client that reads too slowly is cut off, never
//! waited for: it connects again, and names the last event that it has seen.

use crate::auth::random_hex;
use motet_session::events::{SessionEvent, What};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch};

/// Events that are kept.
pub const MAX_KEPT: usize = 1000;
/// Events that a client may lag behind.
const MAX_LAG: usize = 256;
/// Clients at a time.
const MAX_CLIENTS: usize = 48;

/// The events. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Events {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Distinguishes the events of this gatekeeper from those of an earlier one.
    epoch: String,
    kept: Mutex<Kept>,
    sender: broadcast::Sender<Arc<SessionEvent>>,
    places: Arc<Semaphore>,
    followers: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The number of all events so far.
    count: u64,
    /// The last ones.
    last: VecDeque<Arc<SessionEvent>>,
}

/// One client's events.
#[derive(Debug)]
pub struct Follower {
    missed: VecDeque<Arc<SessionEvent>>,
    receiver: broadcast::Receiver<Arc<SessionEvent>>,
    followers: watch::Sender<usize>,
    _place: OwnedSemaphorePermit,
}

impl Events {
    /// No events.
    pub fn new() -> std::io::Result<Self> {
        let shared = Shared {
            epoch: random_hex::<4>()?,
            kept: Mutex::default(),
            sender: broadcast::channel(MAX_LAG).0,
            places: Arc::new(Semaphore::new(MAX_CLIENTS)),
            followers: watch::channel(0).0,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Adds an event.
    pub fn publish(&self, what: What) {
        let mut kept = self.lock();
        kept.count += 1;
        let event = Arc::new(self.event(kept.count, what));
        kept.last.push_back(event.clone());
        if kept.last.len() > MAX_KEPT {
            kept.last.pop_front();
        }
        let _ = self.shared.sender.send(event); // fails without followers
    }

    /// The events after one, or all that are kept. `None`: there are too many followers.
    pub fn follow(&self, after: Option<&str>) -> Option<Follower> {
        let place = self.shared.places.clone().try_acquire_owned().ok()?;
        let kept = self.lock();
        let first = kept.count - kept.last.len() as u64; // the number of events that are not kept
        let seen = after.map(|id| self.number(id).filter(|number| (first..=kept.count).contains(number)));
        let skip = seen.flatten().map_or(0, |number| number - first) as usize;
        let mut missed: VecDeque<_> = kept.last.iter().skip(skip).cloned().collect();
        if seen == Some(None) {
            missed.push_front(Arc::new(self.event(first, What::Gap)));
        }
        let followers = self.shared.followers.clone();
        followers.send_modify(|count| *count += 1);
        Some(Follower { missed, receiver: self.shared.sender.subscribe(), followers, _place: place })
    }

    /// Waits until there is a follower.
    pub async fn followed(&self) {
        let mut followers = self.shared.followers.subscribe();
        let _ = followers.wait_for(|count| *count > 0).await;
    }

    fn event(&self, number: u64, what: What) -> SessionEvent {
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let at_ms = u64::try_from(at_ms).unwrap_or(u64::MAX);
        SessionEvent { id: format!("{}.{number}", self.shared.epoch), at_ms, what }
    }

    /// The number of an event of this gatekeeper.
    fn number(&self, id: &str) -> Option<u64> {
        id.strip_prefix(&self.shared.epoch)?.strip_prefix('.')?.parse().ok()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.shared.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Follower {
    /// The next one of the events from before the follower came.
    pub fn missed(&mut self) -> Option<Arc<SessionEvent>> {
        self.missed.pop_front()
    }

    /// The next event. `None`: the follower has lagged too far behind.
    pub async fn next(&mut self) -> Option<Arc<SessionEvent>> {
        match self.missed() {
            Some(event) => Some(event),
            None => self.receiver.recv().await.ok(),
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.followers.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_session::events::Place;

    fn what(pid: u32) -> What {
        What::NodeGone { place: Place { host: "h".to_owned(), pid }, node: "n".to_owned() }
    }

    fn pids(follower: &Follower) -> Vec<Option<u32>> {
        let pid = |event: &Arc<SessionEvent>| match &event.what {
            What::NodeGone { place, .. } => Some(place.pid),
            _ => None,
        };
        follower.missed.iter().map(pid).collect()
    }

    #[test]
    fn client_that_returns_gets_what_it_has_missed() {
        let events = Events::new().unwrap();
        (1..=3).for_each(|pid| events.publish(what(pid)));
        let all = events.follow(None).unwrap();
        assert_eq!(pids(&all), [Some(1), Some(2), Some(3)]);
        let second = all.missed[1].id.clone();
        assert_eq!(pids(&events.follow(Some(&second)).unwrap()), [Some(3)]);
        let last = all.missed[2].id.clone();
        assert_eq!(pids(&events.follow(Some(&last)).unwrap()), []);
    }

    #[test]
    fn client_learns_of_a_gap() {
        let events = Events::new().unwrap();
        events.publish(what(1));
        let first = events.follow(None).unwrap().missed[0].id.clone();
        for id in ["other.1", "", "x", &format!("{first}9"), &format!("{}.-1", &first[..8])] {
            assert_eq!(pids(&events.follow(Some(id)).unwrap())[0], None, "{id}");
        }
        (0..MAX_KEPT as u32 + 1).for_each(|pid| events.publish(what(pid)));
        let follower = events.follow(Some(&first)).unwrap();
        assert_eq!((pids(&follower)[0], follower.missed.len()), (None, MAX_KEPT + 1));
    }

    #[tokio::test]
    async fn slow_client_is_cut_off_and_returns() {
        let events = Events::new().unwrap();
        let mut slow = events.follow(None).unwrap();
        (0..=MAX_LAG as u32).for_each(|pid| events.publish(what(pid)));
        assert!(slow.next().await.is_none());
        assert_eq!(pids(&events.follow(None).unwrap()).len(), MAX_LAG + 1);
    }

    #[tokio::test]
    async fn followers_are_counted_and_limited() {
        let events = Events::new().unwrap();
        let mut followers: Vec<_> = (0..MAX_CLIENTS).map(|_| events.follow(None).unwrap()).collect();
        assert!(events.follow(None).is_none());
        followers.pop();
        assert!(events.follow(None).is_some());
        events.followed().await;
        drop(followers);
        assert_eq!(*events.shared.followers.borrow(), 0);
    }
}
