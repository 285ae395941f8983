//! End points: many pairs on one circuit, and what becomes of messages that find none.
#![forbid(unsafe_code)]

mod scene;

use motet_group::{Circuit, Error, StartPoint};
use scene::{LIMIT, Member, Session, as_members};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Makes progress until something is so.
fn progress_until(member: &Member, mut ready: impl FnMut() -> bool) {
    let began = Instant::now();
    while !ready() {
        member.node.progress().unwrap();
        assert!(began.elapsed() < LIMIT, "it does not come about");
    }
}

/// The peers of a node's links, and how many channels its links carry.
fn links(member: &Member) -> (usize, usize) {
    let links = member.node.links().unwrap();
    let peers: HashSet<_> = links.iter().map(|link| member.node.link_info(*link).unwrap().peer.0).collect();
    (links.len(), peers.len())
}

/// Members, pairs from each to each of its two neighbours, and messages of each pair.
const SIZE: u32 = 8;
const PAIRS: u64 = 1000;
const MESSAGES: u32 = 5;

#[test]
fn thousand_pairs_between_neighbours_share_the_links() {
    let session = Session::start();
    as_members(&session, SIZE, |member| {
        let circuit = member.open("ring");
        let (rank, size) = (circuit.rank(), circuit.size());
        let neighbours = [(rank + 1) % size, (rank + size - 1) % size];
        // Each message has the number of its pair in it, and its place in the order of the pair as its tag.
        let next: Arc<Vec<AtomicU32>> = Arc::new((0..2 * PAIRS).map(|_| AtomicU32::new(0)).collect());
        let (wrong, count) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let points: Vec<_> = (0..2 * PAIRS)
            .map(|pair| {
                let (next, wrong, count) = (next.clone(), wrong.clone(), count.clone());
                let number = (pair % 2 == 0).then_some(pair);
                let expected = neighbours[usize::from(pair >= PAIRS)];
                let point = circuit.end_point(number, move |from, tag, bytes| {
                    let in_order = next[pair as usize].fetch_add(1, Ordering::Relaxed) == tag;
                    let is_right = from == expected && bytes == pair.to_le_bytes() && in_order;
                    wrong.fetch_add(u64::from(!is_right), Ordering::Relaxed);
                    count.fetch_add(1, Ordering::Relaxed);
                });
                point.unwrap()
            })
            .collect();
        // Start points go to the neighbours in messages, as they are.
        for (at, neighbour) in neighbours.into_iter().enumerate() {
            let own = &points[at * PAIRS as usize..][..PAIRS as usize];
            let bytes: Vec<u8> = own.iter().flat_map(|point| point.start_point().to_bytes()).collect();
            circuit.send(neighbour, at as u32, &bytes).unwrap();
        }
        let starts = [1, 0].map(|side| {
            // This one is the first neighbour of the second of its own, and the other way round.
            let mut bytes = vec![0; PAIRS as usize * 12];
            circuit.receive(neighbours[side], (1 - side) as u32, &mut bytes).unwrap();
            let (chunks, _) = bytes.as_chunks::<12>();
            chunks.iter().map(|bytes| StartPoint::from_bytes(*bytes)).collect::<Vec<_>>()
        });
        assert_eq!(starts.iter().flatten().map(|start| start.rank).collect::<HashSet<_>>().len(), 2);
        let before = links(member);
        for tag in 0..MESSAGES {
            for (side, starts) in starts.iter().enumerate() {
                for (pair, start) in starts.iter().enumerate() {
                    let pair = pair as u64 + side as u64 * PAIRS;
                    circuit.send_to(*start, tag, &pair.to_le_bytes()).unwrap();
                }
            }
        }
        progress_until(member, || count.load(Ordering::Relaxed) == 2 * PAIRS * u64::from(MESSAGES));
        assert_eq!(wrong.load(Ordering::Relaxed), 0, "from the right member, and each pair in order");
        assert_eq!(circuit.dropped(), 0);
        let after = links(member);
        assert_eq!(after, before, "links and peers: no pair has a link of its own");
        assert!(after.1 <= 2, "{} peers", after.1);
    });
}

#[test]
fn end_points_close_while_messages_arrive() {
    let session = Session::start();
    as_members(&session, 2, |member| {
        let circuit = member.open("c");
        if circuit.rank() == 1 {
            let start = |number| StartPoint { rank: 0, number };
            let mut sent = 0u64;
            loop {
                for number in 0..50 {
                    circuit.send_to(start(number), 0, &[1; 100]).unwrap();
                    sent += 1;
                }
                let mut go = [0];
                circuit.broadcast(0, &mut go).unwrap();
                if go == [0] {
                    break;
                }
            }
            circuit.send(0, 1, &sent.to_le_bytes()).unwrap();
            return circuit.barrier().unwrap();
        }
        let ran = Arc::new(AtomicU64::new(0));
        for round in 0..30u8 {
            let mut points: Vec<_> = (0..50)
                .map(|number| {
                    let (ran, closed) = (ran.clone(), Arc::new(AtomicBool::new(false)));
                    let is_closed = closed.clone();
                    let point = circuit.end_point(Some(number), move |from, _, bytes| {
                        assert!(from == 1 && bytes == [1; 100]);
                        assert!(!is_closed.load(Ordering::SeqCst), "a function runs after its end point was closed");
                        ran.fetch_add(1, Ordering::SeqCst);
                    });
                    (point.unwrap(), closed)
                })
                .collect();
            for (point, closed) in points.drain(usize::from(round % 40)..) {
                drop(point);
                closed.store(true, Ordering::SeqCst);
            }
            circuit.broadcast(0, &mut [u8::from(round < 29)]).unwrap();
        }
        let mut sent = [0; 8];
        circuit.receive(1, 1, &mut sent).unwrap();
        // Each message has run, or was dropped and counted.
        progress_until(member, || ran.load(Ordering::SeqCst) + circuit.dropped() == u64::from_le_bytes(sent));
        circuit.barrier().unwrap();
    });
}

#[test]
fn numbers_without_an_end_point_are_dropped_and_counted() {
    let session = Session::start();
    as_members(&session, 2, |member| {
        let circuit = member.open("c");
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        let point = circuit.end_point(Some(7), move |_, _, _| _ = counted.fetch_add(1, Ordering::Relaxed)).unwrap();
        let own = circuit.end_point(None, |_, _, _| ()).unwrap();
        circuit.barrier().unwrap();
        let other = 1 - circuit.rank() as u32;
        let mut numbers = vec![0, 6, 8, u64::MAX, 1 << 63, own.start_point().number + 1, 7 | 1 << 40];
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..200 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            numbers.push(random | 1 << 20);
        }
        for number in &numbers {
            circuit.send_to(StartPoint { rank: other, number: *number }, u32::MAX, b"x").unwrap();
        }
        // A long one is not even fetched, and is no reason to wait.
        circuit.send_to(StartPoint { rank: other, number: 6 }, 1, &vec![0; 4 << 20]).unwrap();
        circuit.send_to(StartPoint { rank: other, number: 7 }, 1, &vec![0; 4 << 20]).unwrap();
        progress_until(member, || circuit.dropped() == numbers.len() as u64 + 1 && count.load(Ordering::Relaxed) == 1);
        let gone = StartPoint { rank: 2, number: 7 };
        assert!(matches!(circuit.send_to(gone, 0, b""), Err(Error::Invalid(_))));
        assert!(matches!(circuit.send_to(point.start_point(), 0, &vec![0; (16 << 20) + 1]), Err(Error::Invalid(_))));
        circuit.barrier().unwrap();
    });
}

#[test]
fn numbers_are_used_once_at_a_time() {
    let session = Session::start();
    let member = session.member(None);
    let circuit = member.open("c");
    let nothing = |_: usize, _: u32, _: &[u8]| ();
    let first = circuit.end_point(Some(1), nothing).unwrap();
    assert!(matches!(circuit.end_point(Some(1), nothing), Err(Error::Invalid(_))));
    assert!(matches!(circuit.end_point(Some(1 << 63), nothing), Err(Error::Invalid(_))));
    let own: Vec<_> = (0..3).map(|_| circuit.end_point(None, nothing).unwrap().start_point().number).collect();
    assert!(own.windows(2).all(|pair| pair[0] < pair[1]), "numbers of the member's choice are not used again: {own:?}");
    drop(first);
    let again = circuit.end_point(Some(1), nothing).unwrap();
    assert_eq!(again.start_point(), StartPoint { rank: 0, number: 1 });
    // A handle of the circuit's that was dropped changes nothing; the end of the circuit ends its end points.
    member.group.leave().unwrap();
    assert!(matches!(circuit.end_point(Some(2), nothing), Err(Error::MemberGone)));
}

#[test]
fn function_may_close_its_own_end_point_and_make_another() {
    let session = Session::start();
    as_members(&session, 2, |member| {
        let circuit = Arc::new(member.open("c"));
        let kept = Arc::new(Mutex::new(None));
        let (in_function, weak) = (kept.clone(), Arc::downgrade(&circuit));
        let point = circuit.end_point(Some(3), move |_, _, _| {
            let circuit: Arc<Circuit> = weak.upgrade().unwrap();
            let next = circuit.end_point(None, |_, _, _| ()).unwrap();
            *in_function.lock().unwrap() = Some(next); // drops its own
        });
        *kept.lock().unwrap() = Some(point.unwrap());
        circuit.barrier().unwrap();
        let other = 1 - circuit.rank() as u32;
        for _ in 0..3 {
            circuit.send_to(StartPoint { rank: other, number: 3 }, 0, b"").unwrap();
        }
        progress_until(member, || circuit.dropped() == 2);
        assert_ne!(kept.lock().unwrap().as_ref().unwrap().start_point().number, 3);
        circuit.barrier().unwrap();
    });
}
