//! The congestion control of connections between near peers.
//!
//! BBR sends at a rate that it measures, and a timer of the kernel lets each burst go. Where a round trip takes tens of microseconds, that timer is late by as much:
//! each burst waits for it, so the measured rate falls, and the next bursts are sent at the lower rate. Once a busy CPU has held such a connection up, it stays at a
//! fraction of what the network carries ([ADR 54]). NewReno has no such timer and is part of every kernel. Near a peer it fills the network again within milliseconds
//! after a loss, and CUBIC would do as it does (RFC 9438, section 4.3).
//!
//! What it is not: a choice for other connections. Those to peers that are further away keep what the system has chosen, and so do all where that is not BBR.
//!
//! [ADR 54]: ../../../docs/adr/0054-near-peers-without-bbr.md

use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::fd::{AsFd, AsRawFd};
use motet_sys::rustix::net::sockopt;
use motet_sys::socket::least_round_trip_us;

/// A peer is near if a round trip has taken less than this, us.
const NEAR_US: u32 = 1000;
/// The names of all versions of BBR begin so.
const PACED: &str = "bbr";
/// NewReno, which every process may choose.
const UNPACED: &str = "reno";

/// Chooses for a connection that is established. If the system refuses, the connection keeps what it has.
pub fn choose(fd: &PrivateFd) {
    let Ok(present) = sockopt::tcp_congestion(fd) else { return };
    let Ok(round_trip_us) = least_round_trip_us(fd.as_fd().as_raw_fd()) else { return };
    if let Some(better) = replacement(&present, round_trip_us) {
        let _ = sockopt::set_tcp_congestion(fd, better);
    }
}

/// What is used in place of `present`; `None`: that stays.
fn replacement(present: &str, round_trip_us: u32) -> Option<&'static str> {
    (present.starts_with(PACED) && round_trip_us < NEAR_US).then_some(UNPACED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    #[test]
    fn bbr_is_replaced_near_peers_only() {
        assert_eq!(replacement("bbr", 20), Some("reno"));
        assert_eq!(replacement("bbr3", NEAR_US - 1), Some("reno"));
        // u32::MAX: the kernel has seen no round trip.
        assert_eq!([NEAR_US, 40_000, u32::MAX].map(|far| replacement("bbr", far)), [None; 3]);
        assert_eq!(["cubic", "dctcp", "reno"].map(|other| replacement(other, 20)), [None; 3]);
    }

    #[test]
    fn both_ends_of_a_connection_on_this_host_get_what_near_peers_get() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ends = [near, listener.accept().unwrap().0].map(|end| PrivateFd::new(OwnedFd::from(end)));
        for end in ends {
            let has_bbr = sockopt::set_tcp_congestion(&end, "bbr").is_ok();
            let before = sockopt::tcp_congestion(&end).unwrap();
            choose(&end);
            let after = sockopt::tcp_congestion(&end).unwrap();
            if has_bbr {
                let round_trip_us = least_round_trip_us(end.as_fd().as_raw_fd()).unwrap();
                assert!((1..1_000_000).contains(&round_trip_us), "{round_trip_us} us");
                assert_eq!(after, replacement("bbr", round_trip_us).unwrap_or("bbr"));
            } else {
                eprintln!("SKIPPED: bbr cannot be chosen here");
                assert_eq!(after, before);
            }
        }
    }
}
