//! Time and life are arguments here: nothing sleeps, and processes end by a word.

use super::*;
use motet_sys::rustix::fs::fstat;
use std::cell::{Cell, RefCell};

const SHAPE: Shape = Shape { ring: 4096, bulk: 65536, limit: usize::MAX, huge: false };

thread_local! {
    static ENDED: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
    static THOROUGHLY: Cell<u32> = const { Cell::new(0) };
}

fn end(pid: i32) {
    ENDED.with_borrow_mut(|ended| ended.push(pid));
}

fn links() -> Links {
    Links::new(|peer, thoroughly| {
        THOROUGHLY.set(THOROUGHLY.get() + u32::from(thoroughly));
        ENDED.with_borrow(|ended| !ended.contains(&peer.pid))
    })
}

fn peer(pid: i32) -> Peer {
    Peer { pid, uid: 0, born: 1, alone: 0 }
}

fn place(links: &mut Links, pid: i32, now: u64) -> Place {
    let place = links.place(peer(pid), SHAPE, [1, 2], now).unwrap();
    place.slot.head().attached[1].store(1, Ordering::Release); // the other end has come
    place
}

/// What the other end does when its stream has ended.
fn other_leaves(place: &Place) {
    place.slot.head().left[1].store(1, Ordering::Release);
}

fn segments(links: &Links) -> usize {
    assert_eq!(links.owners.len(), links.links.values().map(|l| l.segments.len()).sum::<usize>());
    links.owners.len()
}

/// A segment of another process, with its memfd.
fn foreign(slots: usize) -> (OwnedFd, [u8; 16], Geometry) {
    let (nonce, geometry) = (memory::nonce().unwrap(), Geometry { slots, ring: SHAPE.ring, bulk: SHAPE.bulk });
    let fd = memory::create_memfd("foreign", geometry.bytes(), &geometry.encode(nonce), geometry.dense()).unwrap();
    (fd, nonce, geometry)
}

#[test]
fn connections_one_after_another_share_a_segment() {
    let mut links = links();
    for round in 0..2000 {
        let place = place(&mut links, 7, round * 1_000_000);
        links.leave(&place.slot, round * 1_000_000);
        other_leaves(&place);
        assert_eq!((segments(&links), links.counts()), (1, [1, 0]));
    }
    assert!(THOROUGHLY.get() <= 2000 / 10 + 1, "asked {} times in two seconds", THOROUGHLY.get());
}

#[test]
fn a_link_closes_when_it_was_idle_and_opens_anew() {
    let mut links = links();
    let first = place(&mut links, 7, 0);
    let second = place(&mut links, 7, 0);
    assert_eq!((segments(&links), links.counts()), (2, [1, 0]));
    links.leave(&first.slot, 1);
    links.leave(&second.slot, 2);
    // Another peer's calls are what time passes by.
    let other = place(&mut links, 8, IDLE);
    assert_eq!((segments(&links), links.counts()), (3, [2, 0]));
    other_leaves(&other);
    links.leave(&other.slot, IDLE + 1);
    assert_eq!((segments(&links), links.counts()), (2, [2, 0]), "the first has been idle for long, the second not yet");
    let other = place(&mut links, 8, IDLE + 2);
    assert_eq!((segments(&links), links.counts()), (1, [2, 1]), "whether or not the peer has left");
    assert_eq!(links.bytes(), Geometry { slots: 1, ring: SHAPE.ring, bulk: SHAPE.bulk }.dense());
    place(&mut links, 7, IDLE + 3);
    assert_eq!(links.counts(), [3, 1]);
    links.leave(&other.slot, IDLE + 4);
}

#[test]
fn a_link_to_a_process_that_has_ended_closes_at_once() {
    let mut links = links();
    let places: Vec<_> = (0..10).map(|_| place(&mut links, 21, 0)).collect();
    assert_eq!(segments(&links), 3);
    end(21);
    for place in &places {
        assert!(links.bytes() > 0, "memory that a stream uses stays");
        links.leave(&place.slot, 1);
    }
    assert_eq!((segments(&links), links.bytes(), links.counts()), (0, 0, [1, 1]));
}

#[test]
fn ten_thousand_peers_one_after_another_leave_nothing_behind() {
    let mut links = links();
    let mut most = 0;
    for pid in 1000..11_000 {
        let place = place(&mut links, pid, 0);
        links.leave(&place.slot, 0); // the peer is about to end, but still there
        end(pid);
        most = most.max(segments(&links));
    }
    assert!(most <= 4, "{most} segments at once");
    assert!(links.ranges.bytes() <= 16 * Geometry { slots: 1, ring: SHAPE.ring, bulk: SHAPE.bulk }.bytes());
}

#[test]
fn many_living_peers_are_looked_at_in_turn() {
    let mut links = links();
    for pid in 100..400 {
        let place = place(&mut links, pid, 0);
        links.leave(&place.slot, 0);
    }
    assert_eq!(segments(&links), 300);
    end(333);
    for _ in 0..300 {
        links.tidy(None, 1);
    }
    assert_eq!(segments(&links), 299, "the one that has ended is found");
    (0..10).for_each(|_| links.tidy(None, IDLE));
    assert_eq!(segments(&links), 0, "what has expired needs no question");
}

#[test]
fn a_slot_is_handed_out_again_only_when_both_ends_have_left() {
    let mut links = links();
    let first = place(&mut links, 7, 0);
    links.leave(&first.slot, 1);
    let second = place(&mut links, 7, 2);
    assert_ne!(first.slot.address(), second.slot.address(), "the peer still uses it");
    other_leaves(&first);
    // What the peer writes about us counts for nothing.
    second.slot.head().left[0].store(1, Ordering::Release);
    other_leaves(&second);
    assert_eq!(place(&mut links, 7, 3).slot.address(), first.slot.address());
    assert_ne!(place(&mut links, 7, 3).slot.address(), second.slot.address(), "our stream still uses it");
}

#[test]
fn segments_stay_below_the_limit_and_small_ones_fill_it() {
    let mut links = links();
    let of = |slots| Geometry { slots, ring: SHAPE.ring, bulk: SHAPE.bulk }.dense();
    let shape = Shape { limit: of(1) + of(4) + of(4) + of(1), ..SHAPE };
    let mut next = |peer: i32| links.place(self::peer(peer), shape, [1, 2], 0);
    let places: Vec<_> = (0..10).map(|_| next(7).unwrap()).collect();
    assert_eq!(next(7).err(), Some(Reason::MEMORY_LIMIT), "a segment of 16 did not fit, 4 and 1 did");
    assert_eq!(next(8).err(), Some(Reason::MEMORY_LIMIT));
    let (fd, nonce, _) = foreign(1);
    assert_eq!(links.take((peer(9), false), &fd, (0, nonce), shape, 0).err(), Some(Reason::MEMORY_LIMIT));
    assert_eq!((links.bytes(), segments(&links)), (shape.limit, 4));
    links.leave(&places[3].slot, 1);
    other_leaves(&places[3]);
    assert_eq!(links.place(peer(7), shape, [1, 2], 2).unwrap().slot.address(), places[3].slot.address());
}

#[test]
fn ten_thousand_streams_of_one_peer_take_few_segments() {
    let mut links = links();
    let places: Vec<_> = (0..10_000).map(|_| place(&mut links, 7, 0)).collect();
    assert!(segments(&links) <= 45, "{} segments", segments(&links));
    for place in &places {
        other_leaves(place);
        links.leave(&place.slot, 1);
    }
    links.tidy(None, IDLE + 1);
    assert_eq!((segments(&links), links.bytes()), (0, 0));
}

#[test]
fn an_offer_not_taken_leaves_the_slot_free() {
    let mut links = links();
    let first = place(&mut links, 7, 0);
    links.withdraw(&first, 1);
    let second = links.place(peer(7), SHAPE, [1, 2], 2).unwrap();
    assert_eq!(first.slot.address(), second.slot.address());
    links.leave(&second.slot, 3); // the other end never came
    assert_eq!(place(&mut links, 7, 4).slot.address(), first.slot.address());
}

#[test]
fn an_offered_segment_is_mapped_once_and_closed_like_our_own() {
    let mut links = links();
    let (fd, nonce, geometry) = foreign(4);
    let take = |links: &mut Links, index, now| links.take((peer(31), false), &fd, (index, nonce), SHAPE, now);
    let (first, second) = (take(&mut links, 0, 0).unwrap(), take(&mut links, 1, 0).unwrap());
    assert_eq!((segments(&links), links.bytes(), links.counts()), (1, geometry.dense(), [1, 0]));
    assert_eq!(take(&mut links, 4, 0).err(), Some(Reason::BAD_SEGMENT));
    links.leave(&first, 1);
    links.leave(&second, 1);
    assert_eq!(segments(&links), 1);
    links.tidy(None, IDLE + 1);
    assert_eq!((segments(&links), links.bytes(), links.counts()), (0, 0, [1, 1]));
    // The memfd comes with every offer.
    let again = take(&mut links, 2, IDLE + 2).unwrap();
    assert_eq!((segments(&links), links.counts()), (1, [2, 1]));
    end(31);
    links.leave(&again, IDLE + 3);
    assert_eq!(segments(&links), 0);
}

#[test]
fn a_slot_that_is_offered_twice_is_used_until_both_streams_have_ended() {
    let mut links = links();
    let (fd, nonce, _) = foreign(1);
    let take = |links: &mut Links| links.take((peer(41), false), &fd, (0, nonce), SHAPE, 0).unwrap();
    let (first, second) = (take(&mut links), take(&mut links));
    end(41);
    links.leave(&first, 1);
    assert_eq!(segments(&links), 1);
    links.leave(&second, 1);
    assert_eq!(segments(&links), 0);
    links.leave(&second, 1); // a third time is nothing
}

#[test]
fn our_own_memory_offered_back_to_us_is_refused() {
    let mut links = links();
    let own = place(&mut links, 51, 0);
    let (fd, ..) = foreign(1);
    assert_eq!(links.take((peer(51), false), &fd, (0, own.nonce), SHAPE, 0).err(), Some(Reason::BAD_SEGMENT));
    let far = links.take((peer(51), true), &fd, (0, own.nonce), SHAPE, 0).expect("a process that talks to itself");
    assert_eq!((far.address(), far.end()), (own.slot.address(), 1));
    end(51);
    links.leave(&own.slot, 0);
    assert_eq!(segments(&links), 1);
    links.leave(&far, 0);
    assert_eq!(segments(&links), 0);
}

#[test]
fn an_invisible_peers_link_closes_with_its_stream() {
    let mut links = links();
    let unseen = Peer { pid: 0, uid: 0, born: 0, alone: 99 };
    let place = links.place(unseen, SHAPE, [1, 2], 0).unwrap();
    links.leave(&place.slot, 1);
    assert_eq!(segments(&links), 0);
}

#[test]
fn the_pages_go_back_to_the_system() {
    let mut links = links();
    let first = place(&mut links, 61, 0);
    let bulk = first.slot.bulk_memory().unwrap();
    assert!(memory::populate(bulk));
    let resident = |fd: &PrivateFd| fstat(fd).unwrap().st_blocks * 512;
    let witness = first.file.clone(); // keeps the memfd as a peer's mapping would
    let before = resident(&witness);
    end(61);
    links.leave(&first.slot, 1);
    assert_eq!(resident(&witness), before, "what another process has mapped stays");
    assert_eq!(Arc::strong_count(&witness), 2, "the descriptor is given back: only this test holds it");
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let line = format!("{:x}-", bulk.base() as usize & !0xfff);
    assert!(!smaps.lines().any(|l| l.starts_with(&line) && l.contains("memfd")), "nothing of it is mapped here");
}

#[test]
fn a_forked_child_hands_out_nothing_of_its_parents() {
    let mut links = links();
    let inherited = place(&mut links, 71, 0);
    links.forked();
    assert_eq!(links.counts(), [0, 0]);
    assert_eq!(Arc::strong_count(&inherited.file), 1, "not the child's to hand out");
    let own = place(&mut links, 71, 1);
    assert!(own.nonce != inherited.nonce, "a segment of its own");
    assert_eq!((segments(&links), links.counts()), (2, [1, 0]));
    // It has never ended the stream, but closed its descriptor.
    links.abandon(&inherited.slot, 2);
    assert_eq!(inherited.slot.head().left[0].load(Ordering::Acquire), 0);
    links.tidy(None, IDLE + 2);
    assert_eq!(segments(&links), 1);
    links.leave(&own.slot, IDLE + 2);
    links.tidy(None, 2 * IDLE + 2);
    assert_eq!((segments(&links), links.counts()), (0, [1, 1]));
}
