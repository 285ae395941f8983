//! Loans between two nodes, over shared memory and over TCP: the program sees the same results.

use motet::node::{Atomic, Datatype, Mode, Operation, OperationMemory, Rights, options};
use motet::node::{Channel, CompletionOptions, Content, Error, LinkId, LoanedMessage, MessageLimits, Node, RecvFrom};
use motet::node::{OperationId, Outgoing, Serve, Status, Target};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
const SERVICE: u64 = 42;
const DRIVERS: [&str; 2] = ["shm", "tcp"];
const POOL_BYTES: usize = 256 << 20;
const ANY_TAG: u64 = u64::MAX;

struct Pair {
    near: Node,
    far: Node,
    link: LinkId,
    back: LinkId,
    here: Channel,
    there: Channel,
}

fn node() -> Node {
    let mut options = options("", Some("127.0.0.1:0".parse().unwrap()));
    options.limits = MessageLimits { pool: POOL_BYTES, ..MessageLimits::default() };
    Node::with(&options).unwrap()
}

fn pair(driver: &str) -> Pair {
    let (near, far) = (node(), node());
    far.serve(SERVICE, Serve::Queue).unwrap();
    let address = far.address().unwrap();
    let way = address.split(',').find(|way| way.starts_with(driver)).unwrap();
    let (link, here, there) = std::thread::scope(|scope| {
        let there = scope.spawn(|| far.accept(SERVICE, TIMEOUT).unwrap());
        let link = near.connect(way, TIMEOUT).unwrap();
        let here = near.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap();
        (link, here, there.join().unwrap())
    });
    let back = there.link;
    Pair { near, far, link, back, here, there }
}

fn deadline() -> Option<u64> {
    Some(motet::node::deadline_in(20_000_000_000))
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256 + seed * 13) as u8).collect()
}

/// Runs `f` while the other node makes progress.
fn beside<R>(other: &Node, f: impl FnOnce() -> R) -> R {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ =
                    other.progress_until(|| over.load(Ordering::Relaxed), Some(motet::node::deadline_in(5_000_000)));
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        over.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Blocks of a node's pool that are not free, bytes.
fn out(node: &Node) -> usize {
    node.pool_size().unwrap()[2]
}

/// Makes progress until all blocks of the first node have returned.
fn come_back(node: &Node, other: Option<&Node>) {
    together(node, other, || out(node) == 0);
}

/// Makes progress on both nodes until `ready`, which may use either. ([`Node::progress_until`] would sleep, and a change of the other node's state
/// does not wake it.)
fn together(node: &Node, other: Option<&Node>, ready: impl Fn() -> bool) {
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while !ready() {
        assert!(std::time::Instant::now() < until, "{} bytes are still out", out(node));
        node.progress().unwrap();
        other.map(|other| other.progress().unwrap());
        std::thread::yield_now();
    }
}

#[test]
fn loans_of_every_length_are_received_and_return() {
    for driver in DRIVERS {
        let Pair { near, far, here, there, back, .. } = pair(driver);
        let lengths = [0, 1, 100, 3840, 3841, 5000, 100_000, 4 << 20, (64 << 20) + 5];
        beside(&near, || {
            for (tag, length) in lengths.into_iter().enumerate() {
                let mut loan = near.alloc(length).unwrap();
                loan.copy_from_slice(&pattern(length, tag));
                near.lend(here, tag as u64, loan, TIMEOUT).unwrap();
                let got = far.receive_in_place(RecvFrom::Channel(there), 0, ANY_TAG, 1 << 30, TIMEOUT).unwrap();
                assert_eq!((got.tag, got.body.len(), got.channel), (tag as u64, length, there), "{driver}");
                let seen = driver == "shm" && length > 3840;
                assert_eq!(matches!(got.body, Content::LoanedMessage(_)), seen, "{driver} {length}");
                if seen {
                    assert!(out(&near) >= length, "it is still the receiver's to look at");
                }
                let mut last = [0; 8];
                let fits = got.body.read(length.saturating_sub(8), &mut last);
                assert_eq!(last[..fits], pattern(length, tag)[length.saturating_sub(8)..]);
                match got.body {
                    Content::LoanedMessage(lent) if tag % 2 == 0 => far.release(lent).unwrap(),
                    body => assert!(body.into_vec() == pattern(length, tag), "{driver} {length}"),
                }
                come_back(&near, Some(&far));
            }
            let counts = far.loan_counts(back).unwrap();
            assert_eq!(counts.in_place, if driver == "shm" { 5 } else { 0 });
        });
    }
}

#[test]
fn loan_into_buffer_and_message_in_place_are_received() {
    for driver in DRIVERS {
        let Pair { near, far, here, there, .. } = pair(driver);
        beside(&near, || {
            let bytes = pattern(300_000, 3);
            let mut loan = near.alloc(300_000).unwrap();
            loan.copy_from_slice(&bytes);
            let message = Outgoing { channel: here, tag: 5, headers: b"head", mode: Mode::Automatic };
            let told =
                near.send_loan(&message, loan, 200_000, Some(CompletionOptions::default()), None).unwrap().unwrap();
            let mut buffer = vec![0; 300_000];
            let mut headers = Vec::new();
            let from = motet::node::RecvFrom::Channel(there);
            let received = far.receive_with(from, 0, u64::MAX, &mut headers, &mut buffer, TIMEOUT).unwrap();
            assert_eq!((received.length, &headers[..]), (200_000, &b"head"[..]));
            assert!(buffer[..200_000] == bytes[..200_000], "{driver}");
            let end = near.wait_for(told, Some(motet::node::deadline_in(20_000_000_000))).unwrap();
            assert_eq!((end.status, end.length, out(&near)), (Status::Done, 200_000, 0));
        });
        beside(&near, || {
            for length in [8, 5000, 200_000] {
                let operation = far
                    .post_in_place(RecvFrom::Channel(there), 0, ANY_TAG, 100_000, CompletionOptions::default())
                    .unwrap();
                std::thread::scope(|scope| {
                    scope.spawn(|| near.send(here, 1, &pattern(length, 1), TIMEOUT).unwrap());
                    let end = far.wait_for(operation, Some(motet::node::deadline_in(20_000_000_000))).unwrap();
                    let truncated = length > 100_000;
                    assert_eq!(end.status, if truncated { Status::Truncated } else { Status::Done });
                    assert!(end.loaned.is_none() && end.message_length == length as u64);
                    assert!(end.memory.unwrap() == pattern(length, 1)[..length.min(100_000)], "{driver} {length}");
                });
            }
            let soon = Some(Duration::from_millis(5));
            let none = far.receive_in_place(RecvFrom::Channel(there), 0, ANY_TAG, 10, soon).map(drop);
            assert_eq!(none, Err(Error::TimedOut));
        });
    }
}

#[test]
fn exhausted_pool_fails_and_recovers() {
    let Pair { near, far, here, there, .. } = pair("shm");
    beside(&near, || {
        let mut lent = Vec::new();
        let refused = loop {
            let loan = match near.alloc(16 << 20) {
                Ok(loan) => loan,
                Err(error) => break error,
            };
            near.lend(here, 0, loan, TIMEOUT).unwrap();
            lent.push(far.receive_in_place(RecvFrom::Channel(there), 0, ANY_TAG, 1 << 30, TIMEOUT).unwrap());
        };
        assert!(refused == Error::Full && refused.is_retryable());
        assert_eq!(lent.len(), POOL_BYTES / (16 << 20));
        lent.pop();
        together(&near, Some(&far), || near.alloc(16 << 20).is_ok());
        drop(lent);
        come_back(&near, Some(&far));
        near.alloc(16 << 20).unwrap();
    });
}

#[test]
fn alloc_within_gets_a_released_block() {
    const QUARTER_BYTES: usize = POOL_BYTES / 4;
    let Pair { near, far, here, there, .. } = pair("shm");
    assert_eq!(near.alloc_within(POOL_BYTES + 1, None).map(drop), Err(Error::TooLong), "it would wait for ever");
    let mut own: Vec<_> = (0..3).map(|_| near.alloc_within(QUARTER_BYTES, None).unwrap()).collect();
    near.lend(here, 0, near.alloc(QUARTER_BYTES).unwrap(), TIMEOUT).unwrap();
    let got =
        beside(&near, || far.receive_in_place(RecvFrom::Channel(there), 0, ANY_TAG, POOL_BYTES, TIMEOUT).unwrap());
    assert_eq!(near.alloc_within(1, Some(Duration::from_millis(5))).map(drop), Err(Error::TimedOut));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| near.alloc_within(QUARTER_BYTES, TIMEOUT));
        let Content::LoanedMessage(lent) = got.body else { panic!("it was lent") };
        far.release(lent).unwrap();
        own.push(waiting.join().unwrap().unwrap());
    });
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| near.alloc_within(QUARTER_BYTES, TIMEOUT));
        own.pop(); // dropped by this thread, without a completion
        waiting.join().unwrap().unwrap();
    });
}

/// Sends a loan with a completion, and receives it in place.
fn lent(Pair { near, far, here, there, .. }: &Pair) -> (OperationId, LoanedMessage) {
    let message = Outgoing { channel: *here, tag: 9, headers: &[], mode: Mode::Automatic };
    let told = near.send_loan(&message, near.alloc(5000).unwrap(), 5000, Some(CompletionOptions::default()), None);
    let body = far.receive_in_place(RecvFrom::Channel(*there), 0, ANY_TAG, POOL_BYTES, TIMEOUT).unwrap().body;
    let Content::LoanedMessage(lent) = body else { panic!("it was lent") };
    (told.unwrap().unwrap(), lent)
}

/// Runs `f` while a thread sleeps in a wait of this node.
fn asleep<R>(node: &Node, f: impl FnOnce() -> R) -> R {
    let over = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| node.progress_until(|| over.load(Ordering::Relaxed), None).unwrap());
        std::thread::sleep(Duration::from_millis(3));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        let task = over.clone();
        node.defer(move |_: &Node| task.store(true, Ordering::Relaxed)).unwrap();
        sleeper.join().unwrap();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn release_wakes_sleeping_sender_while_receiver_sleeps() {
    let pair = pair("shm");
    for turn in 0..30 {
        let (told, lent) = lent(&pair);
        asleep(&pair.far, || {
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| pair.near.wait_for(told, deadline()).map(|end| end.status));
                std::thread::sleep(Duration::from_millis(turn % 4));
                if turn % 2 == 0 {
                    pair.far.release(lent).unwrap()
                } else {
                    drop(lent)
                }
                assert_eq!(waits.join().unwrap(), Ok(Status::Done), "{turn}");
            });
        });
        assert_eq!(out(&pair.near), 0);
    }
}

#[test]
fn release_survives_full_fifo_and_sleeping_receiver() {
    let pair = pair("shm");
    let Pair { near, far, here, there, .. } = &pair;
    // One of these sends fills the FIFO; the sends before it succeed.
    for count in 100..=128 {
        let (told, lent) = lent(&pair);
        asleep(far, || {
            let message = Outgoing { channel: *there, tag: 0, headers: &[], mode: Mode::Inject };
            let went = (0..count).take_while(|_| far.try_inject(&message, &[&[1; 8]]).is_ok()).count();
            if count % 2 == 0 {
                far.release(lent).unwrap()
            } else {
                drop(lent)
            }
            std::thread::sleep(Duration::from_millis(3));
            for _ in 0..went {
                near.receive(*here, &mut [0; 8], TIMEOUT).unwrap();
            }
            assert_eq!(near.wait_for(told, deadline()).map(|end| end.status), Ok(Status::Done), "{count} {went}");
        });
        assert_eq!(out(near), 0);
    }
}

#[test]
fn loans_stay_readable_after_link_loss_and_return() {
    for ends in ["near", "far", "link"] {
        let Pair { near, far, link, here, there, .. } = pair("shm");
        let (got, waiting) = beside(&near, || {
            let mut loan = near.alloc(1 << 20).unwrap();
            loan.fill(7);
            near.lend(here, 1, loan, TIMEOUT).unwrap();
            let waiting = near.alloc(1 << 20).unwrap();
            near.lend(here, 2, waiting, TIMEOUT).unwrap();
            let got = far.receive_in_place(RecvFrom::Channel(there), 1, 0, 1 << 30, TIMEOUT).unwrap();
            (got, near.pool_size().unwrap())
        });
        assert_eq!(waiting[2], 2 << 20);
        match ends {
            "near" => {
                drop(near);
                let gone = || far.link_info(there.link).is_ok_and(|info| info.gone.is_some());
                while !gone() {
                    far.progress_until(|| false, Some(motet::node::deadline_in(1_000_000))).ok();
                }
                assert!(got.body.into_vec().iter().all(|&byte| byte == 7), "mapped as long as it is held");
                assert!(far.progress().is_ok());
            }
            "far" => {
                drop(far);
                come_back(&near, None);
                assert_eq!(got.body.into_vec()[0], 7);
            }
            _ => {
                near.disconnect(link).unwrap();
                assert_eq!(out(&near), 0);
                assert_eq!(got.body.into_vec().len(), 1 << 20);
            }
        }
    }
}

#[test]
fn pool_regions_are_direct_and_bounded_until_revoked() {
    for driver in DRIVERS {
        let Pair { near, far, link, .. } = pair(driver);
        let (memory, key) = far.alloc_region(100_000, Rights::ALL).unwrap();
        let (_, readable) = far.alloc_region(100, Rights::GET).unwrap();
        let words: Arc<[AtomicU64]> = (0..16).map(AtomicU64::new).collect();
        let elsewhere = far.register_words(&words, Rights::ALL).unwrap();
        let deadline = || Some(motet::node::deadline_in(20_000_000_000));
        let end = |operation: Result<_, Error>| near.finish_operation(operation.unwrap(), TIMEOUT);
        beside(&far, || {
            let opened = [key, readable, elsewhere].map(|key| near.open_region(link, key, deadline()).unwrap());
            let shm = driver == "shm";
            assert_eq!(opened, [shm, shm, false], "{driver}");
            assert_eq!(near.store(Target { link, key: elsewhere, offset: 0 }, &[1]), Ok(false));
            let access = || {
                for length in [1usize, 8, 100, 70_000] {
                    let bytes = pattern(length, length);
                    end(near.put(
                        Target { link, key, offset: 8 },
                        OperationMemory::Owned(bytes.clone()),
                        CompletionOptions::default(),
                    ))
                    .unwrap();
                    let mut seen = vec![0; length];
                    memory.read(8, &mut seen).unwrap();
                    assert!(seen == bytes, "{driver} {length}");
                    let got = near.get(
                        Target { link, key, offset: 8 },
                        OperationMemory::Owned(vec![0; length]),
                        CompletionOptions::default(),
                    );
                    assert!(end(got).unwrap() == bytes, "{driver} {length}");
                    let put = |key, at| {
                        near.put(
                            Target { link, key, offset: at },
                            OperationMemory::Owned(bytes.clone()),
                            CompletionOptions::default(),
                        )
                    };
                    assert_eq!(end(put(readable, 0)), Err(Error::AccessDenied), "{driver} {length}");
                    for at in [100_001 - length as u64, u64::MAX] {
                        assert_eq!(end(put(key, at)), Err(Error::OutOfBounds), "{driver} {length} {at}");
                    }
                }
                let sum = Atomic {
                    operation: Operation::Sum,
                    datatype: Datatype::U64,
                    count: 1,
                    operand: &2u64.to_le_bytes(),
                    compare: &[],
                };
                memory.write(0, &40u64.to_le_bytes()).unwrap();
                let before = near.atomic(
                    Target { link, key, offset: 0 },
                    &sum,
                    OperationMemory::Owned(vec![0; 8]),
                    CompletionOptions::default(),
                );
                assert_eq!(end(before).unwrap(), 40u64.to_le_bytes());
                assert_eq!(memory.add(0, 8, 0), Ok(42));
            };
            access();
        });
        // The owner makes no progress: only accesses to mapped memory work.
        if driver == "shm" {
            assert_eq!(near.store(Target { link, key, offset: 16 }, &[7; 8]), Ok(true));
            let mut seen = [0; 8];
            assert_eq!((near.load(Target { link, key, offset: 16 }, &mut seen), seen), (Ok(true), [7; 8]));
            assert_eq!(near.load(Target { link, key, offset: 99_999 }, &mut seen), Err(Error::OutOfBounds));
            assert_eq!(near.store(Target { link, key: readable, offset: 0 }, &seen), Err(Error::AccessDenied));
        }
        beside(&near, || far.revoke(key, deadline())).unwrap();
        beside(&far, || {
            assert_eq!(near.store(Target { link, key, offset: 16 }, &[7; 8]), Ok(false), "forgotten");
            assert_eq!(
                end(near.put(
                    Target { link, key, offset: 0 },
                    OperationMemory::Owned(vec![1]),
                    CompletionOptions::default()
                )),
                Err(Error::AccessDenied)
            );
            assert_eq!(near.open_region(link, key, deadline()).is_err(), driver == "shm");
        });
    }
}
