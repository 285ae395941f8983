//! Both ends of a FIFO in one process: against a queue, at the limits, and against a peer that writes arbitrary words.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;

/// A FIFO in memory of its own, which is never freed.
fn fifo(cells: usize) -> Fifo {
    let size = Fifo::size(cells).next_multiple_of(4096);
    let layout = std::alloc::Layout::from_size_align(size, 4096).unwrap();
    // SAFETY: a page-aligned block of that size, never freed, is what a mapping promises.
    let mapping = unsafe { Mapping::new(std::alloc::alloc_zeroed(layout), size) };
    let fifo = Fifo::over(mapping, 0, cells).unwrap();
    fifo.prepare(SleepFence::Asymmetric);
    fifo
}

/// Both ends of a FIFO through which `position` cells have gone.
fn ends_at(fifo: Fifo, position: u64) -> (FifoTx, FifoRx) {
    let (mut producer, mut consumer) = (fifo.tx(), fifo.rx());
    for at in position.saturating_sub(fifo.cells.len() as u64)..position {
        fifo.cell(at).word.store(Word::first(at, 0, 0, 0).0, Ordering::Relaxed);
    }
    fifo.control.consumer.consumed.store(position, Ordering::Relaxed);
    (producer.tail, producer.consumed) = (position, position);
    (consumer.head, consumer.published) = (position, position);
    (producer, consumer)
}

fn bytes(n: usize, seed: u8) -> Vec<u8> {
    (0..n).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a VecDeque: any mix of puts in parts and polls, over many laps and over the end of the stamps.
    #[test]
    fn fifo_agrees_with_a_queue(
        bits in 2u32..8,
        start in prop_oneof![Just(0u64), Just(u64::from(u32::MAX) - 20), Just((7 << 32) - 3)],
        ops in proptest::collection::vec((any::<bool>(), 0usize..400, 0usize..70, any::<[u8; 2]>()), 1..300),
    ) {
        let fifo = fifo(1 << bits);
        let (mut producer, mut consumer) = ends_at(fifo, start);
        let (mut oracle, mut buffer) = (VecDeque::new(), Buffer::new());
        for (put, length, cut, [kind, flags]) in ops {
            if put {
                let data = bytes(length, kind);
                let (a, b) = data.split_at(cut.min(length));
                let (b, c) = b.split_at(b.len() / 2);
                let cells = |n: usize| cells_of(n) as usize;
                let used: usize = oracle.iter().map(|(_, _, data): &(u8, u8, Vec<u8>)| cells(data.len())).sum();
                match producer.try_put(kind, flags, &[a, b, c]).unwrap() {
                    PutOutcome::Published => oracle.push_back((kind, flags & !CONTINUATION, data)),
                    PutOutcome::TooLong => prop_assert!(length > fifo.max_packet()),
                    // The consumer has not published at most an eighth of the cells.
                    PutOutcome::Full => prop_assert!(used + cells(length) + fifo.cells.len() / 8 > fifo.cells.len()),
                    PutOutcome::Wake => prop_assert!(false, "the consumer does not sleep"),
                }
            } else {
                let found = consumer.poll(&mut buffer).unwrap().map(|p| (p.kind, p.flags, p.bytes(&buffer).to_vec()));
                prop_assert_eq!(found, oracle.pop_front());
                prop_assert_eq!(consumer.is_empty(), oracle.is_empty());
            }
        }
        while let Some(expected) = oracle.pop_front() {
            let found = consumer.poll(&mut buffer).unwrap().map(|p| (p.kind, p.flags, p.bytes(&buffer).to_vec()));
            prop_assert_eq!(found, Some(expected));
        }
        prop_assert_eq!(consumer.poll(&mut buffer), Ok(None));
        prop_assert_eq!(producer.room(fifo.max_packet()), Ok(true), "an empty FIFO has room for the longest packet");
    }
}

#[test]
fn fifo_outside_of_its_mapping_is_refused() {
    let size = Fifo::size(64).next_multiple_of(4096);
    let layout = std::alloc::Layout::from_size_align(size, 4096).unwrap();
    // SAFETY: a page-aligned block of that size, never freed, is what a mapping promises.
    let mapping = unsafe { Mapping::new(std::alloc::alloc_zeroed(layout), size) };
    assert!(Fifo::over(mapping, 0, 64).is_some() && Fifo::over(mapping, 128, 32).is_some());
    for (offset, cells) in [(0, 63), (0, 2), (0, 0), (64, 32), (4096, 64), (usize::MAX - 127, 64), (0, 1 << 25)] {
        assert!(Fifo::over(mapping, offset, cells).is_none(), "{cells} cells at {offset}");
    }
}

#[test]
fn every_length_arrives_at_every_position() {
    let fifo = fifo(128);
    assert_eq!(fifo.max_packet(), MAX_PACKET);
    let (mut producer, mut consumer, mut buffer) = (fifo.tx(), fifo.rx(), Buffer::new());
    let step = if cfg!(miri) { 97 } else { 1 };
    for length in (0..=MAX_PACKET).step_by(step) {
        let data = bytes(length, 3);
        assert_eq!(producer.try_put(1, 2, &[&data]), Ok(PutOutcome::Published));
        let packet = consumer.poll(&mut buffer).unwrap().unwrap();
        assert_eq!((packet.kind, packet.flags, packet.bytes(&buffer)), (1, 2, &data[..]));
        assert_eq!(consumer.poll(&mut buffer), Ok(None));
    }
    assert_eq!(producer.try_put(1, 2, &[&bytes(MAX_PACKET, 0), &[1]]), Ok(PutOutcome::TooLong));
    assert_eq!(producer.try_put(1, CONTINUATION | 5, &[]), Ok(PutOutcome::Published));
    assert_eq!(consumer.poll(&mut buffer).unwrap().map(|p| p.flags), Some(5));
}

#[test]
fn full_fifo_has_room_after_the_head_is_published() {
    let fifo = fifo(64);
    let (mut producer, mut consumer, mut buffer) = (fifo.tx(), fifo.rx(), Buffer::new());
    for n in 0..64u8 {
        assert_eq!(producer.try_put(n, 0, &[]), Ok(PutOutcome::Published));
    }
    assert_eq!((producer.try_put(0, 0, &[]), producer.room(0)), (Ok(PutOutcome::Full), Ok(false)));
    for n in 0..8 {
        assert_eq!(consumer.poll(&mut buffer).unwrap().map(|p| p.kind), Some(n));
    }
    assert_eq!(producer.room(0), Ok(false), "an eighth is not published");
    assert!(consumer.poll(&mut buffer).unwrap().is_some());
    assert_eq!((producer.room(9 * CELL_PAYLOAD), producer.room(10 * CELL_PAYLOAD)), (Ok(true), Ok(false)));
    assert_eq!(producer.tail() - consumer.head(), 55);
}

#[test]
fn open_packet_is_complete_with_its_last_continuation() {
    let fifo = fifo(8);
    let (mut producer, mut consumer, mut buffer) = (fifo.tx(), fifo.rx(), Buffer::new());
    assert_eq!(producer.try_put_open(3, 1, b"front", 2), Ok(PutOutcome::Published));
    for shown in 1..=2 {
        assert_eq!((consumer.poll(&mut buffer), consumer.is_empty()), (Ok(None), true));
        let packet = consumer.peek(&mut buffer).unwrap().unwrap();
        assert_eq!((packet.continuations(), packet.bytes(&buffer)), (2, &b"front"[..]));
        assert_eq!(consumer.has_continuations(shown), Ok(false));
        producer.put_continuation();
        assert_eq!(consumer.has_continuations(shown), Ok(true));
    }
    producer.try_put(4, 0, &[]).unwrap();
    assert!(!consumer.is_empty());
    assert_eq!(consumer.poll(&mut buffer).unwrap().map(|packet| (packet.kind, packet.flags)), Some((3, 1)));
    assert_eq!(consumer.poll(&mut buffer).unwrap().map(|packet| packet.kind), Some(4));
    assert_eq!(consumer.poll(&mut buffer), Ok(None));
    assert_eq!(producer.try_put_open(3, 0, &[], MAX_CONTINUATIONS), Ok(PutOutcome::Published), "all eight cells");
}

#[test]
fn packet_is_visible_only_with_its_first_cell() {
    let fifo = fifo(8);
    let (mut producer, mut consumer, mut buffer) = (fifo.tx(), fifo.rx(), Buffer::new());
    producer.try_put(9, 0, &[&bytes(3 * CELL_PAYLOAD, 1)]).unwrap();
    let word = fifo.cells[0].word.swap(0, Ordering::Relaxed); // the state after a producer died before its last store
    assert_eq!(consumer.poll(&mut buffer), Ok(None));
    fifo.cells[0].word.store(word, Ordering::Relaxed);
    assert!(consumer.poll(&mut buffer).unwrap().is_some());
}

#[test]
fn sleeping_consumer_is_woken_once() {
    for fence in [SleepFence::Asymmetric, SleepFence::Both] {
        let fifo = fifo(8);
        fifo.prepare(fence);
        let (mut producer, mut consumer, mut buffer) = (fifo.tx(), fifo.rx(), Buffer::new());
        let mut barriers = 0;
        assert!(consumer.begin_sleep(|| barriers += 1));
        assert_eq!(barriers, u32::from(fence == SleepFence::Asymmetric));
        assert_eq!(producer.try_put(1, 0, &[]), Ok(PutOutcome::Wake));
        assert_eq!(producer.try_put(1, 0, &[]), Ok(PutOutcome::Published));
        assert!(!consumer.begin_sleep(|| ()), "there is a packet");
        assert_eq!(producer.try_put(1, 0, &[]), Ok(PutOutcome::Published), "it did not go to sleep");
        while consumer.poll(&mut buffer).unwrap().is_some() {}
        assert!(consumer.begin_sleep(|| ()));
        consumer.end_sleep();
        assert_eq!(producer.try_put(1, 0, &[]), Ok(PutOutcome::Published));
    }
}

#[test]
fn impossible_words_are_broken() {
    let longest = fifo(8).max_packet();
    for (length, kind, flags) in [(longest + 1, 0, 0), (0xffff, 0, 0), (8, 0, CONTINUATION), (0, 0, 0xff)] {
        let fifo = fifo(8);
        fifo.cell(0).word.store(Word::first(0, length, kind, flags).0, Ordering::Relaxed);
        assert_eq!(fifo.rx().poll(&mut Buffer::new()), Err(Broken), "{length} bytes, flags {flags:#x}");
    }
    // A cell after the first that belongs to another packet, has another length, or is of an earlier lap.
    let first = Word::first(0, 2 * CELL_PAYLOAD, 4, 0);
    for second in [Word::first(1, 2 * CELL_PAYLOAD, 4, 0), Word::first(1, 8, 4, CONTINUATION), Word(0)] {
        let fifo = fifo(8);
        fifo.cell(0).word.store(first.0, Ordering::Relaxed);
        fifo.cell(1).word.store(second.0, Ordering::Relaxed);
        let mut consumer = fifo.rx();
        assert_eq!(consumer.poll(&mut Buffer::new()), Err(Broken), "{second:x?}");
        assert_eq!(consumer.head(), 0);
    }
    // A head before the last published one, or after the last cell that was put.
    for consumed in [3, 9, u64::MAX] {
        let fifo = fifo(8);
        let (mut producer, _) = ends_at(fifo, 4);
        (0..4).for_each(|_| assert_eq!(producer.try_put(0, 0, &[]), Ok(PutOutcome::Published)));
        fifo.control.consumer.consumed.store(consumed, Ordering::Relaxed);
        assert_eq!(producer.room(5 * CELL_PAYLOAD), Err(Broken), "{consumed} consumed");
    }
}

/// Two threads, packets of one and of several cells: all arrive, in order and complete, with any interleaving of sleeps.
#[test]
fn two_threads_exchange_packets_in_order() {
    let (fifo, rounds) = (fifo(16), if cfg!(miri) { 60 } else { 200_000u32 });
    fifo.prepare(SleepFence::Both);
    let length = |n: u32| n as usize * 37 % (fifo.max_packet() + 1);
    std::thread::scope(|scope| {
        let consumer = scope.spawn(move || {
            let (mut consumer, mut buffer) = (fifo.rx(), Buffer::new());
            for n in 0..rounds {
                let packet = loop {
                    match consumer.poll(&mut buffer).unwrap() {
                        Some(packet) => break (packet.kind, packet.bytes(&buffer).to_vec()),
                        None if consumer.begin_sleep(|| ()) => std::thread::park(),
                        None => {}
                    }
                };
                assert_eq!(packet, (n as u8, bytes(length(n), n as u8)));
            }
        });
        let mut producer = fifo.tx();
        for n in 0..rounds {
            loop {
                match producer.try_put(n as u8, 0, &[&bytes(length(n), n as u8)]).unwrap() {
                    PutOutcome::Published => break,
                    PutOutcome::Wake => break consumer.thread().unpark(),
                    _ => std::thread::yield_now(),
                }
            }
        }
    });
}

/// A second thread writes any word at any time: both ends continue or return [`Broken`].
#[test]
fn arbitrary_writes_are_tolerated() {
    let (fifo, done) = (fifo(16), AtomicBool::new(false));
    let rounds = if cfg!(miri) { 40 } else { 300_000 };
    let mut seen = [0u64; 3]; // packets, nothing, broken
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(1);
            while !done.load(Ordering::Relaxed) {
                let (r, at) = (random.draw(), random.draw());
                let cell = fifo.cell(at);
                match r % 8 {
                    0 => fifo.control.consumer.consumed.store(at >> (r >> 8 & 63), Ordering::Relaxed),
                    1 => fifo.control.sleep.asleep.store(at as u32, Ordering::Relaxed),
                    2 => fifo.control.head.fenced.store(at as u32, Ordering::Relaxed),
                    3 => cell.payload[r as usize >> 8 & 3].store(at, Ordering::Relaxed),
                    4 => cell.word.store(random.draw(), Ordering::Relaxed),
                    // Words that look right: one field differs a little from the current value.
                    field => {
                        let word = cell.word.load(Ordering::Relaxed);
                        cell.word.store(word.wrapping_add((r >> 8 & 3) << ((field - 4) * 16)), Ordering::Relaxed);
                    }
                }
            }
        });
        let (mut producer, mut consumer, mut buffer) = (fifo.tx(), fifo.rx(), Buffer::new());
        for n in 0..rounds {
            let sent = producer.try_put(n as u8, 0, &[&[7; 200][..n % 200]]);
            let _ = producer.room(n % 300);
            match consumer.poll(&mut buffer) {
                Ok(Some(packet)) => {
                    assert!(packet.bytes(&buffer).len() <= fifo.max_packet());
                    seen[0] += 1;
                }
                Ok(None) => seen[1] += 1,
                Err(Broken) => seen[2] += 1,
            }
            if consumer.begin_sleep(|| ()) {
                consumer.end_sleep();
            }
            if sent.is_err() || sent == Ok(PutOutcome::Full) || n % 64 == 0 {
                // An engine would replace a broken FIFO by another one.
                (producer, consumer) = ends_at(fifo, n as u64);
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(cfg!(miri) || seen.iter().all(|&n| n > 0), "packets, nothing, broken: {seen:?}");
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[test]
fn free_reads_the_latest_published_head() {
    let fifo = fifo(64);
    let (mut producer, mut consumer) = ends_at(fifo, 0);
    let mut buffer = Buffer::new();
    let all = producer.free().unwrap();
    let few = bytes(20 * CELL_PAYLOAD, 1);
    for _ in 0..10 {
        assert_eq!(producer.try_put(1, 0, &[&few]).unwrap(), PutOutcome::Published);
        assert!(producer.free().unwrap() < all, "the packet is unread");
        while consumer.poll(&mut buffer).unwrap().is_some() {}
        assert_eq!(producer.free().unwrap(), all);
    }
}
