//! The segment table with time and the existence of processes as arguments: nothing sleeps, and a process ends by `end(pid)`.

use super::*;
use motet_sys::rustix::fs::fstat;
use std::cell::{Cell, RefCell};

const SHAPE: SegmentShape = SegmentShape { ring: 4096, bulk: 65536, limit: usize::MAX, huge: false };

thread_local! {
    static ENDED: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
    static THOROUGH_CHECKS: Cell<u32> = const { Cell::new(0) };
}

fn end(pid: i32) {
    ENDED.with_borrow_mut(|ended| ended.push(pid));
}

fn table() -> SegmentTable {
    SegmentTable::new(|peer, thorough| {
        THOROUGH_CHECKS.set(THOROUGH_CHECKS.get() + u32::from(thorough));
        ENDED.with_borrow(|ended| !ended.contains(&peer.pid))
    })
}

fn peer(pid: i32) -> PeerProcess {
    PeerProcess { pid, uid: 0, start_time: 1, invisible_id: 0 }
}

/// Reserves a slot, and attaches the peer's end.
fn reserve(table: &mut SegmentTable, pid: i32, now: u64) -> SlotRef {
    let reserved = table.reserve(peer(pid), SHAPE, [1, 2], now).unwrap();
    reserved.slot.head().attached[1].store(1, Ordering::Release);
    reserved
}

/// What the peer does when its stream has ended.
fn peer_leaves(reserved: &SlotRef) {
    reserved.slot.head().left[1].store(1, Ordering::Release);
}

fn segments(table: &SegmentTable) -> usize {
    assert_eq!(table.owners.len(), table.links.values().map(|l| l.segments.len()).sum::<usize>());
    table.owners.len()
}

/// A segment of another process, with its memfd.
fn foreign(slots: usize) -> (OwnedFd, [u8; 16], Geometry) {
    let (nonce, geometry) = (memory::nonce().unwrap(), Geometry { slots, ring: SHAPE.ring, bulk: SHAPE.bulk });
    let fd = memory::create_memfd("foreign", geometry.bytes(), &geometry.encode(nonce), geometry.dense()).unwrap();
    (fd, nonce, geometry)
}

#[test]
fn connections_in_sequence_share_one_segment() {
    let mut table = table();
    for round in 0..2000 {
        let reserved = reserve(&mut table, 7, round * 1_000_000);
        table.release(&reserved.slot, round * 1_000_000);
        peer_leaves(&reserved);
        assert_eq!((segments(&table), table.link_counts()), (1, [1, 0]));
    }
    assert!(THOROUGH_CHECKS.get() <= 2000 / 10 + 1, "{} thorough checks in two seconds", THOROUGH_CHECKS.get());
}

#[test]
fn link_idle_closes_and_opens_again() {
    let mut table = table();
    let first = reserve(&mut table, 7, 0);
    let second = reserve(&mut table, 7, 0);
    assert_eq!((segments(&table), table.link_counts()), (2, [1, 0]));
    table.release(&first.slot, 1);
    table.release(&second.slot, 2);
    // Calls for another peer visit the first one, too.
    let other = reserve(&mut table, 8, IDLE_TIMEOUT_NS);
    assert_eq!((segments(&table), table.link_counts()), (3, [2, 0]));
    peer_leaves(&other);
    table.release(&other.slot, IDLE_TIMEOUT_NS + 1);
    assert_eq!(
        (segments(&table), table.link_counts()),
        (2, [2, 0]),
        "the segment of `first` has expired, that of `second` has not"
    );
    let other = reserve(&mut table, 8, IDLE_TIMEOUT_NS + 2);
    assert_eq!((segments(&table), table.link_counts()), (1, [2, 1]), "although the peer has not left");
    assert_eq!(table.mapped_bytes(), Geometry { slots: 1, ring: SHAPE.ring, bulk: SHAPE.bulk }.dense());
    reserve(&mut table, 7, IDLE_TIMEOUT_NS + 3);
    assert_eq!(table.link_counts(), [3, 1]);
    table.release(&other.slot, IDLE_TIMEOUT_NS + 4);
}

#[test]
fn link_to_ended_process_closes_at_once() {
    let mut table = table();
    let reserved: Vec<_> = (0..10).map(|_| reserve(&mut table, 21, 0)).collect();
    assert_eq!(segments(&table), 3);
    end(21);
    for slot_ref in &reserved {
        assert!(table.mapped_bytes() > 0, "memory that a stream uses stays");
        table.release(&slot_ref.slot, 1);
    }
    assert_eq!((segments(&table), table.mapped_bytes(), table.link_counts()), (0, 0, [1, 1]));
}

#[test]
fn ten_thousand_peers_in_sequence_leave_no_segment() {
    let mut table = table();
    let mut most = 0;
    for pid in 1000..11_000 {
        let reserved = reserve(&mut table, pid, 0);
        table.release(&reserved.slot, 0); // the peer is about to end, but still exists
        end(pid);
        most = most.max(segments(&table));
    }
    assert!(most <= 4, "{most} segments at once");
    assert!(table.ranges.bytes() <= 16 * Geometry { slots: 1, ring: SHAPE.ring, bulk: SHAPE.bulk }.bytes());
}

#[test]
fn peers_alive_and_many_are_visited_in_turn() {
    let mut table = table();
    for pid in 100..400 {
        let reserved = reserve(&mut table, pid, 0);
        table.release(&reserved.slot, 0);
    }
    assert_eq!(segments(&table), 300);
    end(333);
    for _ in 0..300 {
        table.tidy(None, 1);
    }
    assert_eq!(segments(&table), 299, "the segment of the ended process is closed");
    (0..10).for_each(|_| table.tidy(None, IDLE_TIMEOUT_NS));
    assert_eq!(segments(&table), 0, "expired segments are closed without a check");
}

#[test]
fn slot_left_by_both_ends_only_is_reused() {
    let mut table = table();
    let first = reserve(&mut table, 7, 0);
    table.release(&first.slot, 1);
    let second = reserve(&mut table, 7, 2);
    assert_ne!(first.slot.address(), second.slot.address(), "the peer still uses the first slot");
    peer_leaves(&first);
    // What the peer writes about this end has no effect.
    second.slot.head().left[0].store(1, Ordering::Release);
    peer_leaves(&second);
    assert_eq!(reserve(&mut table, 7, 3).slot.address(), first.slot.address());
    assert_ne!(
        reserve(&mut table, 7, 3).slot.address(),
        second.slot.address(),
        "a stream of this process still uses the second slot"
    );
}

#[test]
fn segments_near_limit_are_small_and_stay_below_it() {
    let mut table = table();
    let of = |slots| Geometry { slots, ring: SHAPE.ring, bulk: SHAPE.bulk }.dense();
    let shape = SegmentShape { limit: of(1) + of(4) + of(4) + of(1), ..SHAPE };
    let mut next = |peer: i32| table.reserve(self::peer(peer), shape, [1, 2], 0);
    let reserved: Vec<_> = (0..10).map(|_| next(7).unwrap()).collect();
    assert_eq!(next(7).err(), Some(Reason::MEMORY_LIMIT), "a segment of 16 did not fit, 4 and 1 did");
    assert_eq!(next(8).err(), Some(Reason::MEMORY_LIMIT));
    let (fd, nonce, _) = foreign(1);
    assert_eq!(table.map_offered((peer(9), false), &fd, (0, nonce), shape, 0).err(), Some(Reason::MEMORY_LIMIT));
    assert_eq!((table.mapped_bytes(), segments(&table)), (shape.limit, 4));
    table.release(&reserved[3].slot, 1);
    peer_leaves(&reserved[3]);
    assert_eq!(table.reserve(peer(7), shape, [1, 2], 2).unwrap().slot.address(), reserved[3].slot.address());
}

#[test]
fn ten_thousand_streams_of_one_peer_take_few_segments() {
    let mut table = table();
    let reserved: Vec<_> = (0..10_000).map(|_| reserve(&mut table, 7, 0)).collect();
    assert!(segments(&table) <= 45, "{} segments", segments(&table));
    for slot_ref in &reserved {
        peer_leaves(slot_ref);
        table.release(&slot_ref.slot, 1);
    }
    table.tidy(None, IDLE_TIMEOUT_NS + 1);
    assert_eq!((segments(&table), table.mapped_bytes()), (0, 0));
}

#[test]
fn offer_not_accepted_leaves_slot_free() {
    let mut table = table();
    let first = reserve(&mut table, 7, 0);
    table.withdraw(&first, 1);
    let second = table.reserve(peer(7), SHAPE, [1, 2], 2).unwrap();
    assert_eq!(first.slot.address(), second.slot.address());
    table.release(&second.slot, 3); // the peer never attached
    assert_eq!(reserve(&mut table, 7, 4).slot.address(), first.slot.address());
}

#[test]
fn offered_segment_is_mapped_once_and_closed_when_idle() {
    let mut table = table();
    let (fd, nonce, geometry) = foreign(4);
    let take =
        |table: &mut SegmentTable, index, now| table.map_offered((peer(31), false), &fd, (index, nonce), SHAPE, now);
    let (first, second) = (take(&mut table, 0, 0).unwrap(), take(&mut table, 1, 0).unwrap());
    assert_eq!((segments(&table), table.mapped_bytes(), table.link_counts()), (1, geometry.dense(), [1, 0]));
    assert_eq!(take(&mut table, 4, 0).err(), Some(Reason::BAD_SEGMENT));
    table.release(&first, 1);
    table.release(&second, 1);
    assert_eq!(segments(&table), 1);
    table.tidy(None, IDLE_TIMEOUT_NS + 1);
    assert_eq!((segments(&table), table.mapped_bytes(), table.link_counts()), (0, 0, [1, 1]));
    // Every offer carries the memfd, so the segment is mapped again.
    let again = take(&mut table, 2, IDLE_TIMEOUT_NS + 2).unwrap();
    assert_eq!((segments(&table), table.link_counts()), (1, [2, 1]));
    end(31);
    table.release(&again, IDLE_TIMEOUT_NS + 3);
    assert_eq!(segments(&table), 0);
}

#[test]
fn slot_offered_twice_is_in_use_until_both_streams_end() {
    let mut table = table();
    let (fd, nonce, _) = foreign(1);
    let take = |table: &mut SegmentTable| table.map_offered((peer(41), false), &fd, (0, nonce), SHAPE, 0).unwrap();
    let (first, second) = (take(&mut table), take(&mut table));
    end(41);
    table.release(&first, 1);
    assert_eq!(segments(&table), 1);
    table.release(&second, 1);
    assert_eq!(segments(&table), 0);
    table.release(&second, 1); // a third time has no effect
}

#[test]
fn own_segment_offered_by_peer_is_refused() {
    let mut table = table();
    let own = reserve(&mut table, 51, 0);
    let (fd, ..) = foreign(1);
    assert_eq!(table.map_offered((peer(51), false), &fd, (0, own.nonce), SHAPE, 0).err(), Some(Reason::BAD_SEGMENT));
    let far =
        table.map_offered((peer(51), true), &fd, (0, own.nonce), SHAPE, 0).expect("a process that is its own peer");
    assert_eq!((far.address(), far.end()), (own.slot.address(), 1));
    end(51);
    table.release(&own.slot, 0);
    assert_eq!(segments(&table), 1);
    table.release(&far, 0);
    assert_eq!(segments(&table), 0);
}

#[test]
fn link_to_invisible_peer_closes_with_its_stream() {
    let mut table = table();
    let invisible = PeerProcess { pid: 0, uid: 0, start_time: 0, invisible_id: 99 };
    let reserved = table.reserve(invisible, SHAPE, [1, 2], 0).unwrap();
    table.release(&reserved.slot, 1);
    assert_eq!(segments(&table), 0);
}

#[test]
fn closed_segment_returns_its_pages() {
    let mut table = table();
    let first = reserve(&mut table, 61, 0);
    let bulk = first.slot.bulk_memory().unwrap();
    assert!(memory::populate(bulk));
    let resident = |fd: &PrivateFd| fstat(fd).unwrap().st_blocks * 512;
    let witness = first.file.clone(); // keeps the memfd as a peer's mapping would
    let before = resident(&witness);
    end(61);
    table.release(&first.slot, 1);
    assert_eq!(resident(&witness), before, "pages that another process has mapped stay");
    assert_eq!(Arc::strong_count(&witness), 2, "the table has closed its descriptor");
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let line = format!("{:x}-", bulk.base() as usize & !0xfff);
    assert!(!smaps.lines().any(|l| l.starts_with(&line) && l.contains("memfd")), "the segment is not mapped here");
}

#[test]
fn forked_child_hands_out_no_slot_of_its_parent() {
    let mut table = table();
    let inherited = reserve(&mut table, 71, 0);
    table.after_fork();
    assert_eq!(table.link_counts(), [0, 0]);
    assert_eq!(Arc::strong_count(&inherited.file), 1, "the child does not hand out its slots");
    let own = reserve(&mut table, 71, 1);
    assert!(own.nonce != inherited.nonce, "a segment of the child");
    assert_eq!((segments(&table), table.link_counts()), (2, [1, 0]));
    // The child has closed its descriptor, but the parent ends the stream.
    table.abandon(&inherited.slot, 2);
    assert_eq!(inherited.slot.head().left[0].load(Ordering::Acquire), 0);
    table.tidy(None, IDLE_TIMEOUT_NS + 2);
    assert_eq!(segments(&table), 1);
    table.release(&own.slot, IDLE_TIMEOUT_NS + 2);
    table.tidy(None, 2 * IDLE_TIMEOUT_NS + 2);
    assert_eq!((segments(&table), table.link_counts()), (0, [1, 1]));
}
