//! Places for connections whose peers have not shown a secret yet. There is always one for the next connection: if all are taken, the oldest of the network
//! that has most is closed. So those who know no secret cannot keep those out who do, who need a place for as long as a request takes.

use std::future::pending;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The places.
const PLACES: usize = 64;
/// A connection has to show a secret within this time, whatever else it sends. It is longer than the delay of an answer to a wrong secret.
const LIFETIME: Duration = Duration::from_secs(10);

/// The places of one port.
#[derive(Debug, Clone, Default)]
pub struct Places(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// In the order in which they came.
    guests: Vec<Guest>,
}

/// A connection without a secret. If `closing` is dropped it has shown one.
#[derive(Debug)]
struct Guest {
    number: u64,
    network: IpAddr,
    closing: oneshot::Sender<()>,
}

/// A place. A clone is the same place; it is free again when all are gone.
#[derive(Debug, Clone)]
pub struct Place(Arc<Held>);

#[derive(Debug)]
struct Held {
    number: u64,
    places: Places,
}

/// How long a connection may stay.
#[derive(Debug)]
pub struct Stay(oneshot::Receiver<()>);

impl Places {
    /// A place for a connection from this address.
    pub fn take(&self, from: IpAddr) -> (Place, Stay) {
        let mut table = self.table();
        let (closing, closed) = oneshot::channel();
        let number = table.next;
        table.next += 1;
        table.guests.push(Guest { number, network: network(from), closing });
        if table.guests.len() > PLACES {
            let of_network = |guest: &Guest| table.guests.iter().filter(|other| other.network == guest.network).count();
            // The first one of the most: `max_by_key` returns the last.
            let oldest = (0..table.guests.len()).rev().max_by_key(|at| of_network(&table.guests[*at])).unwrap_or(0);
            let _ = table.guests.remove(oldest).closing.send(());
        }
        drop(table);
        (Place(Arc::new(Held { number, places: self.clone() })), Stay(closed))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, number: u64) {
        self.table().guests.retain(|guest| guest.number != number);
    }
}

impl Place {
    /// The peer has shown a secret: it needs no place any more, and may stay.
    pub fn admit(&self) {
        self.0.places.leave(self.0.number);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.places.leave(self.number);
    }
}

impl Stay {
    /// Returns when the connection has to be closed; never if it has been admitted.
    pub async fn over(self) {
        if let Ok(Err(_)) = timeout(LIFETIME, self.0).await {
            pending().await
        }
    }
}

/// The addresses that one host may have: of IPv6, 64 bits of them are its own choice.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn crowd_of_one_network_closes_its_own() {
        let places = Places::default();
        let (_one, stay) = places.take(ip("10.0.0.1"));
        let mut crowd: Vec<_> = (0..500).map(|_| places.take(ip("10.9.9.9"))).collect();
        let mut others: Vec<_> = (0..8).map(|n| places.take(ip(&format!("2001:db8:0:{n}::1")))).collect();
        let is_open = |stay: &mut Stay| stay.0.try_recv() == Err(oneshot::error::TryRecvError::Empty);
        assert!(is_open(&mut { stay }), "the oldest connection of all");
        assert!(others.iter_mut().all(|(_, stay)| is_open(stay)));
        let open: Vec<bool> = crowd.iter_mut().map(|(_, stay)| is_open(stay)).collect();
        assert_eq!(open.iter().filter(|is_open| **is_open).count(), PLACES - 9);
        assert!(!open[0] && open[499], "the oldest of them are closed");
    }

    #[tokio::test(start_paused = true)]
    async fn only_who_shows_a_secret_may_stay() {
        let places = Places::default();
        let (place, stay) = places.take(ip("::1"));
        let (admitted, stays) = places.take(ip("::1"));
        admitted.admit();
        stay.over().await;
        assert_eq!(stays.over().now_or_never(), None);
        drop((place, admitted));
        assert!(places.table().guests.is_empty());
    }

    #[test]
    fn hosts_are_told_apart_by_what_they_cannot_choose() {
        assert_eq!(network(ip("2001:db8::1")), network(ip("2001:db8::2:3:4:5")));
        assert_ne!(network(ip("2001:db8::1")), network(ip("2001:db8:0:1::1")));
        assert_eq!(network(ip("::ffff:10.0.0.1")), ip("10.0.0.1"));
        assert_ne!(network(ip("10.0.0.1")), network(ip("10.0.0.2")));
    }
}
