//! Links between two nodes of one process, over real sockets.
//!
//! [`nodes`] connects the nodes; [`proxy`] is between them where connections must break. Where a test says that something happens at once,
//! its clock stands still, so that no timeout can be the cause.

#[path = "../../../../crates/motet-proto/tests/support/prng.rs"]
mod prng;
#[path = "../../../../crates/motet-torture/src/proxy.rs"]
mod proxy;

mod hostile;
mod lost_caller;
mod nodes;
mod speed;

use motet_driver_tcp::Tcp;
use motet_engine::driver::MessageDriver;
use motet_engine::message::transport::PacketTransport;
use motet_engine::reason::Reason;
use motet_sys::clock::nanoseconds;
use motet_sys::socket::readable;
use nodes::{End, connect_nodes, identity, pair, until};
use prng::Prng;
use proxy::Proxy;

#[test]
fn packets_of_all_sizes_arrive_both_ways() {
    let (_listener, mut a, mut b) = pair();
    let largest = a.link.largest();
    assert!(largest >= 65536);
    let mut sizes: Vec<usize> = (0..300).collect();
    sizes.extend((0..17).flat_map(|n| [(1usize << n) - 1, 1 << n, (1 << n) + 1]));
    sizes.extend([largest - 1, largest]);
    sizes.retain(|size| *size <= largest);
    let count = sizes.len() as u32;
    (a.sizes, b.sizes) = (sizes.clone(), sizes);
    until("all arrive", || {
        a.round(count);
        b.round(count);
        a.got == count && b.got == count
    });
    assert!(!a.link.put(1, &[&vec![0; largest + 1]]), "a longer one is refused");
}

#[test]
fn connections_cut_repeatedly_lose_no_packet() {
    for seed in 0..4 {
        let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
        let mut cuts = Prng(seed);
        let quota = move || if cuts.one_in(8) { cuts.below(200) } else { cuts.below(400_000) };
        let proxy = Proxy::new("127.0.0.1:0", &listener.shown_address(), quota).expect("a port");
        let (mut a, mut b) = connect_nodes(&identity(1, false), &mut *listener, &proxy.address.to_string());
        let mut prng = Prng(seed);
        let sizes: Vec<usize> =
            (0..997).map(|_| if prng.one_in(50) { prng.below(65536) as usize } else { prng.size(500) }).collect();
        (a.sizes, b.sizes) = (sizes.clone(), sizes);
        let count = 15_000;
        until("all arrive", || {
            assert!(listener.step(nanoseconds()).is_none(), "no second session");
            a.round(count);
            b.round(count);
            a.got == count && b.got == count
        });
        assert!(proxy.cuts() > 20, "seed {seed}: {} cuts", proxy.cuts());
    }
}

#[test]
fn packets_put_before_goodbye_arrive() {
    let (_listener, mut a, mut b) = pair();
    let mut put = 0;
    while a.link.put(1, &[&[7; 5000]]) {
        put += 1;
    }
    let (mut got, mut lost, mut closed) = (0, None, false);
    until("the goodbye", || {
        closed = closed || a.link.close(nanoseconds());
        match b.link.poll(nanoseconds()) {
            Ok(Some((1, bytes))) => {
                assert_eq!(bytes, [7; 5000]);
                got += 1;
            }
            Ok(Some(_)) => panic!("a packet that was not sent"),
            Ok(None) => {}
            Err(reason) => lost = Some(reason.0),
        }
        let _ = b.link.progress(nanoseconds());
        lost.is_some() && closed
    });
    assert_eq!((got, lost), (put, Some(Reason::PEER_GONE)));
    assert!(!a.link.put(1, &[b"late"]) && !b.link.put(1, &[b"late"]));
}

#[test]
fn goodbyes_of_both_ends_close_the_link() {
    let (_listener, mut a, mut b) = pair();
    assert!(a.link.put(1, &[b"x"]) && b.link.put(1, &[b"y"]));
    let mut closed = [false; 2];
    until("both are closed", || {
        closed[0] = closed[0] || a.link.close(nanoseconds());
        closed[1] = closed[1] || b.link.close(nanoseconds());
        closed == [true; 2]
    });
}

/// Steps a link, with a clock that stands still, until the link is lost.
fn lost_at_once(end: &mut End, what: &str, mut others: impl FnMut()) -> Reason {
    let now = nanoseconds();
    let mut lost = None;
    until(what, || {
        others();
        lost = end.link.poll(now).err().or_else(|| end.link.progress(now).err());
        lost.is_some()
    });
    lost.expect("it is lost").0
}

#[test]
fn caller_whose_peer_is_gone_learns_it_at_once() {
    let (listener, mut a, b) = pair();
    drop((listener, b));
    assert_eq!(lost_at_once(&mut a, "a refused connection", || ()), Reason::PEER_GONE);
    assert!(!a.link.put(1, &[b"late"]) && a.link.room() == 0);
}

#[test]
fn called_side_whose_caller_is_gone_learns_it_at_once() {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let own = identity(1, true);
    let own_listener = Tcp.listen(&own).expect("a listener");
    let address = listener.address();
    let (a, mut b) = connect_nodes(&own, &mut *listener, &address);
    drop((own_listener, a));
    assert_eq!(lost_at_once(&mut b, "a refused connection", || ()), Reason::PEER_GONE);
}

#[test]
fn peer_restarted_at_same_port_is_another_node() {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let (address, place) = (listener.address(), listener.shown_address());
    let (mut a, b) = connect_nodes(&identity(1, false), &mut *listener, &address);
    drop((b, listener));
    let again = nodes::Identity { listen: Some(place.parse().expect("an address")), ..identity(3, true) };
    let mut listener = Tcp.listen(&again).expect("the same port");
    let reason = lost_at_once(&mut a, "the answer that the session is unknown", || {
        assert!(listener.step(nanoseconds()).is_none());
    });
    assert_eq!(reason, Reason::PEER_GONE);
    let address = listener.address();
    let (mut a, mut b) = connect_nodes(&identity(1, false), &mut *listener, &address);
    until("packets of the new node", || {
        a.round(10);
        b.round(10);
        a.got == 10 && b.got == 10
    });
}

#[test]
fn descriptor_with_pending_work_is_readable() {
    let (mut listener, mut a, mut b) = pair();
    assert!(listener.step(nanoseconds()).is_none());
    let quiet = |link: &mut dyn PacketTransport| {
        while link.poll(nanoseconds()).expect("the link is up").is_some() {}
        link.progress(nanoseconds()).expect("the link is up");
        !readable(link.descriptor())
    };
    until("both are quiet", || quiet(&mut *a.link) && quiet(&mut *b.link));
    assert!(!readable(listener.descriptor()));
    assert!(a.link.put(1, &[b"hello"]));
    until("it wakes", || readable(b.link.descriptor()));
    assert!(matches!(b.link.poll(nanoseconds()), Ok(Some((1, b"hello")))));
    // A blocked sender is woken when there is room again.
    until("it is full", || {
        while a.link.put(1, &[&[1; 60_000]]) {}
        a.link.progress(nanoseconds()).expect("the link is up");
        a.link.room() < 60_000
    });
    until("room again", || {
        while b.link.poll(nanoseconds()).expect("the link is up").is_some() {}
        b.link.progress(nanoseconds()).expect("the link is up");
        if readable(a.link.descriptor()) {
            let _ = a.link.poll(nanoseconds()).expect("the link is up");
            a.link.progress(nanoseconds()).expect("the link is up");
        }
        a.link.room() > 400_000
    });
}

/// The number of connections of this process with a port; both ends of a connection are in this process.
fn connections(port: &str) -> usize {
    let port = format!(":{:04X} ", port.rsplit(':').next().and_then(|p| p.parse::<u16>().ok()).expect("a port"));
    let table = std::fs::read_to_string("/proc/net/tcp").expect("/proc/net/tcp");
    table.lines().filter(|line| line.contains(&port) && line.split_whitespace().nth(3) == Some("01")).count() / 2
}

#[test]
fn rails_open_under_bulk_and_close_when_idle() {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let address = listener.address();
    let (mut a, mut b) = connect_nodes(&identity(1, false), &mut *listener, &address);
    (a.sizes, b.sizes) = (vec![60_000], vec![60_000]);
    // The receiver polls rarely, so that many bytes wait; then everything arrives, over several rails.
    let (mut rounds, mut most) = (0u32, 0);
    until("several rails, and all arrives", || {
        assert!(listener.step(nanoseconds()).is_none(), "no second session");
        a.round(if most > 1 { a.put } else { u32::MAX });
        rounds += 1;
        if rounds.is_multiple_of(50) || most > 1 {
            b.round(0);
            most = most.max(connections(&address));
        }
        most > 1 && a.put == b.got
    });
    // More than a second passes in which nothing is sent.
    let mut later = nanoseconds();
    until("one rail is left", || {
        later += 100_000_000;
        for end in [&mut a, &mut b] {
            assert!(end.link.poll(later).expect("the link is up").is_none());
            end.link.progress(later).expect("the link is up");
        }
        connections(&address) == 1
    });
    let all = b.got;
    until("more packets arrive", || {
        a.round(all + 10);
        b.round(0);
        b.got == all + 10
    });
}
