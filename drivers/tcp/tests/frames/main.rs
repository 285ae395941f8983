//! Two nodes of one process, over real sockets.
//!
//! [`nodes`] brings them together, [`proxy`] lies between them where connections have to break. Where a test says that something
//! happens at once the clock that it hands in stands still, so no time limit can be what ends it.

#[path = "../../../../crates/motet-proto/tests/support/prng.rs"]
mod prng;
#[path = "../../../../crates/motet-torture/src/proxy.rs"]
mod proxy;

mod ends;
mod hostile;
mod nodes;
mod speed;

use motet_driver_tcp::Tcp;
use motet_engine::driver::MessageDriver;
use motet_engine::message::transport::PacketTransport;
use motet_engine::reason::Reason;
use motet_sys::clock::nanoseconds;
use motet_sys::socket::readable;
use nodes::{End, identity, meet, pair, until};
use prng::Prng;
use proxy::Proxy;

#[test]
fn packets_of_all_sizes_arrive_in_both_directions() {
    let (_listener, mut a, mut b) = pair();
    let largest = a.frames.largest();
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
    assert!(!a.frames.put(1, &[&vec![0; largest + 1]]), "a longer one is refused");
}

#[test]
fn connections_that_are_cut_again_and_again_lose_nothing() {
    for seed in 0..4 {
        let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
        let mut cuts = Prng(seed);
        let quota = move || if cuts.one_in(8) { cuts.below(200) } else { cuts.below(400_000) };
        let proxy = Proxy::new("127.0.0.1:0", &listener.place(), quota).expect("a port");
        let (mut a, mut b) = meet(&identity(1, false), &mut *listener, &proxy.address.to_string());
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
fn what_was_put_before_the_goodbye_arrives() {
    let (_listener, mut a, mut b) = pair();
    let mut put = 0;
    while a.frames.put(1, &[&[7; 5000]]) {
        put += 1;
    }
    let (mut got, mut lost, mut closed) = (0, None, false);
    until("the goodbye", || {
        closed = closed || a.frames.close(nanoseconds());
        match b.frames.poll(nanoseconds()) {
            Ok(Some((1, bytes))) => {
                assert_eq!(bytes, [7; 5000]);
                got += 1;
            }
            Ok(Some(_)) => panic!("that was not sent"),
            Ok(None) => {}
            Err(reason) => lost = Some(reason.0),
        }
        let _ = b.frames.progress(nanoseconds());
        lost.is_some() && closed
    });
    assert_eq!((got, lost), (put, Some(Reason::PEER_GONE)));
    assert!(!a.frames.put(1, &[b"late"]) && !b.frames.put(1, &[b"late"]));
}

#[test]
fn both_may_say_goodbye_at_once() {
    let (_listener, mut a, mut b) = pair();
    assert!(a.frames.put(1, &[b"x"]) && b.frames.put(1, &[b"y"]));
    let mut closed = [false; 2];
    until("both are closed", || {
        closed[0] = closed[0] || a.frames.close(nanoseconds());
        closed[1] = closed[1] || b.frames.close(nanoseconds());
        closed == [true; 2]
    });
}

/// Steps with a clock that stands still until the link is lost.
fn lost_at_once(end: &mut End, what: &str, mut others: impl FnMut()) -> Reason {
    let now = nanoseconds();
    let mut lost = None;
    until(what, || {
        others();
        lost = end.frames.poll(now).err().or_else(|| end.frames.progress(now).err());
        lost.is_some()
    });
    lost.expect("it is lost").0
}

#[test]
fn a_caller_learns_at_once_that_its_peer_is_gone() {
    let (listener, mut a, b) = pair();
    drop((listener, b));
    assert_eq!(lost_at_once(&mut a, "a refused connection", || ()), Reason::PEER_GONE);
    assert!(!a.frames.put(1, &[b"late"]) && a.frames.room() == 0);
}

#[test]
fn a_called_side_learns_at_once_that_its_caller_is_gone() {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let own = identity(1, true);
    let way_back = Tcp.listen(&own).expect("a listener");
    let address = listener.address();
    let (a, mut b) = meet(&own, &mut *listener, &address);
    drop((way_back, a));
    assert_eq!(lost_at_once(&mut b, "a refused connection", || ()), Reason::PEER_GONE);
}

#[test]
fn a_peer_that_has_started_again_is_another_one() {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let (address, place) = (listener.address(), listener.place());
    let (mut a, b) = meet(&identity(1, false), &mut *listener, &address);
    drop((b, listener));
    let again = nodes::Identity { listen: Some(place.parse().expect("an address")), ..identity(3, true) };
    let mut listener = Tcp.listen(&again).expect("the same port");
    let reason = lost_at_once(&mut a, "an unknown session", || {
        assert!(listener.step(nanoseconds()).is_none());
    });
    assert_eq!(reason, Reason::PEER_GONE);
    let address = listener.address();
    let (mut a, mut b) = meet(&identity(1, false), &mut *listener, &address);
    until("the new one works", || {
        a.round(10);
        b.round(10);
        a.got == 10 && b.got == 10
    });
}

#[test]
fn the_descriptor_says_when_there_is_something() {
    let (mut listener, mut a, mut b) = pair();
    assert!(listener.step(nanoseconds()).is_none());
    let quiet = |frames: &mut dyn PacketTransport| {
        while frames.poll(nanoseconds()).expect("it stands").is_some() {}
        frames.progress(nanoseconds()).expect("it stands");
        !readable(frames.descriptor())
    };
    until("both are quiet", || quiet(&mut *a.frames) && quiet(&mut *b.frames));
    assert!(!readable(listener.descriptor()));
    assert!(a.frames.put(1, &[b"hello"]));
    until("it wakes", || readable(b.frames.descriptor()));
    assert!(matches!(b.frames.poll(nanoseconds()), Ok(Some((1, b"hello")))));
    // A sender that is full is woken when there is room again.
    until("it is full", || {
        while a.frames.put(1, &[&[1; 60_000]]) {}
        a.frames.progress(nanoseconds()).expect("it stands");
        a.frames.room() < 60_000
    });
    until("room again", || {
        while b.frames.poll(nanoseconds()).expect("it stands").is_some() {}
        b.frames.progress(nanoseconds()).expect("it stands");
        if readable(a.frames.descriptor()) {
            let _ = a.frames.poll(nanoseconds()).expect("it stands");
            a.frames.progress(nanoseconds()).expect("it stands");
        }
        a.frames.room() > 400_000
    });
}

/// Connections of this process to or from a port: a rail has two ends here.
fn connections(port: &str) -> usize {
    let port = format!(":{:04X} ", port.rsplit(':').next().and_then(|p| p.parse::<u16>().ok()).expect("a port"));
    let table = std::fs::read_to_string("/proc/net/tcp").expect("/proc/net/tcp");
    table.lines().filter(|line| line.contains(&port) && line.split_whitespace().nth(3) == Some("01")).count() / 2
}

#[test]
fn bulk_opens_rails_and_idleness_ends_them() {
    let mut listener = Tcp.listen(&identity(2, true)).expect("a listener");
    let address = listener.address();
    let (mut a, mut b) = meet(&identity(1, false), &mut *listener, &address);
    (a.sizes, b.sizes) = (vec![60_000], vec![60_000]);
    // The receiver looks seldom, so that much waits; then everything arrives, over several rails.
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
    // A second and more passes in which nothing is sent.
    let mut later = nanoseconds();
    until("one rail is left", || {
        later += 100_000_000;
        for end in [&mut a, &mut b] {
            assert!(end.frames.poll(later).expect("the link stands").is_none());
            end.frames.progress(later).expect("the link stands");
        }
        connections(&address) == 1
    });
    let all = b.got;
    until("it works on", || {
        a.round(all + 10);
        b.round(0);
        b.got == all + 10
    });
}
