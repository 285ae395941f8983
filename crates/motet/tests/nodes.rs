//! Two nodes in one process, over shared memory and over TCP: the program sees the same results.

use motet::node::{
    Atomic, Body, Channel, CompletionOptions, Datatype, Error, Key, LinkId, Message, Mode, Node, Operation,
    OperationMemory, Outgoing, RecvFrom, Rights, Serve, Status, Target,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
const SERVICE: u64 = 42;

/// Drivers of the link between the two nodes.
const DRIVERS: [&str; 2] = ["shm", "tcp"];

/// Two nodes and a channel between them.
struct Pair {
    near: Node,
    far: Node,
    link: LinkId,
    here: Channel,
    there: Channel,
}

fn node() -> Node {
    Node::listen("", "127.0.0.1:0".parse().unwrap()).unwrap()
}

/// The part of an address that belongs to one driver.
fn way(node: &Node, driver: &str) -> String {
    let address = node.address().unwrap();
    address.split(',').find(|way| way.starts_with(driver)).expect("every driver has an address").to_owned()
}

fn pair(driver: &str, serve: impl Fn(&Node) -> Serve) -> Pair {
    let (near, far) = (node(), node());
    far.serve(SERVICE, serve(&far)).unwrap();
    let (link, here, there) = std::thread::scope(|scope| {
        let there = scope.spawn(|| far.accept(SERVICE, TIMEOUT).unwrap());
        let link = near.connect(&way(&far, driver), TIMEOUT).unwrap();
        let here = near.open_channel(link, SERVICE, serve(&near), TIMEOUT).unwrap();
        (link, here, there.join().unwrap())
    });
    assert_eq!(near.link_info(link).unwrap().driver, driver);
    Pair { near, far, link, here, there }
}

fn queue(_: &Node) -> Serve {
    Serve::Queue
}

/// Bytes that depend on the offset.
fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256 + seed * 13) as u8).collect()
}

/// Runs `f` while the other node makes progress.
fn beside<R>(other: &Node, f: impl FnOnce() -> R) -> R {
    let over = std::sync::atomic::AtomicBool::new(false);
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

#[test]
fn bodies_of_every_length_arrive_whole_and_in_order() {
    for driver in DRIVERS {
        let Pair { near, far, here, there, .. } = pair(driver, queue);
        let lengths = [0, 1, 7, 8, 40, 41, 56, 100, 4000, 4079, 4080, 4081, 9000, 16_384, 70_000, 300_000, 5 << 20];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (tag, length) in lengths.into_iter().enumerate() {
                    near.send(here, tag as u64, &pattern(length, tag), TIMEOUT).unwrap();
                }
            });
            let mut buffer = vec![0; 6 << 20];
            for (tag, length) in lengths.into_iter().enumerate() {
                let received = far.receive(there, &mut buffer, TIMEOUT).unwrap();
                assert_eq!((received.tag, received.length), (tag as u64, length), "{driver}");
                assert!(buffer[..length] == pattern(length, tag), "{driver} {length}");
            }
        });
    }
}

#[test]
fn both_sides_send_more_than_all_buffers_at_once() {
    for driver in DRIVERS {
        let Pair { near, far, here, there, .. } = pair(driver, queue);
        const COUNT: usize = 3000;
        let flood = |node: &Node, channel: Channel| {
            for n in 0..COUNT {
                node.send(channel, n as u64, &pattern(n % 3000, n), TIMEOUT).unwrap();
            }
        };
        let drain = |node: &Node, channel: Channel| {
            let mut buffer = vec![0; 4096];
            for n in 0..COUNT {
                let received = node.receive(channel, &mut buffer, TIMEOUT).unwrap();
                assert_eq!((received.tag, received.length), (n as u64, n % 3000));
                assert!(buffer[..received.length] == pattern(received.length, n));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| flood(&near, here));
            scope.spawn(|| flood(&far, there));
            scope.spawn(|| drain(&near, here));
            drain(&far, there);
        });
    }
}

#[test]
fn receives_are_matched_by_tag_and_from_any_channel() {
    for driver in DRIVERS {
        let context = Mutex::new(None);
        let tagged = |node: &Node| {
            let fresh = node.context().unwrap();
            *context.lock().unwrap() = Some(fresh);
            Serve::Tagged(fresh)
        };
        let (near, far) = (node(), node());
        far.serve(SERVICE, tagged(&far)).unwrap();
        let any = RecvFrom::Any(context.lock().unwrap().unwrap());
        beside(&far, || {
            let link = near.connect(&way(&far, driver), TIMEOUT).unwrap();
            let channels = [0, 1].map(|_| near.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap());
            for (n, tag) in [7u64, 8, 7, 9].into_iter().enumerate() {
                near.send(channels[n % 2], tag, &[n as u8], TIMEOUT).unwrap();
            }
        });
        let mut byte = [0];
        let mut next = |tag, ignore| {
            let received = far.receive_tagged(any, tag, ignore, &mut byte, TIMEOUT).unwrap();
            (received.tag, byte[0])
        };
        assert_eq!(next(9, 0), (9, 3));
        assert_eq!(next(7, 0), (7, 0));
        assert_eq!(next(0, u64::MAX), (8, 1), "any tag, in the order of arrival");
        assert_eq!(next(6, 1), (7, 2));
        assert_eq!(far.peek(any, 0, u64::MAX).unwrap(), None);
    }
}

#[test]
fn handler_gets_short_and_long_messages_sends_and_defers() {
    for driver in DRIVERS {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let told = seen.clone();
        let handler = move |node: &Node, message: Message<'_>| match message.body {
            Body::Whole(bytes) => {
                let answer =
                    Outgoing { channel: message.channel, tag: message.tag + 1, headers: &[], mode: Mode::Inject };
                node.inject(&answer, &[bytes, message.headers], None).unwrap();
            }
            Body::Long(held) => {
                let held = held.take().unwrap();
                let told = told.clone();
                let long = OperationMemory::Owned(vec![0; held.length as usize]);
                let operation = node.accept_body(held, long, CompletionOptions::default()).unwrap();
                node.defer(move |node: &Node| {
                    let completion = node.wait_for(operation, None).unwrap();
                    told.lock().unwrap().push(completion.memory.unwrap());
                })
                .unwrap();
            }
        };
        let handler = Arc::new(handler);
        let Pair { near, far, here, .. } = {
            let handler = handler.clone();
            let first = std::cell::Cell::new(true);
            pair(driver, move |node| {
                // The far node is first.
                let handler = handler.clone();
                let handler = move |node: &Node, message: Message<'_>| handler(node, message);
                if first.replace(false) { node.handler(handler).unwrap() } else { Serve::Queue }
            })
        };
        beside(&far, || {
            let mut buffer = [0; 64];
            let message = Outgoing { channel: here, tag: 5, headers: b"top", mode: Mode::Automatic };
            near.send_with(&message, &[b"body ", b"in parts "], TIMEOUT).unwrap();
            let received = near.receive(here, &mut buffer, TIMEOUT).unwrap();
            assert_eq!((received.tag, &buffer[..received.length]), (6, &b"body in parts top"[..]));
            near.send(here, 1, &pattern(1 << 20, 3), TIMEOUT).unwrap();
            while seen.lock().unwrap().is_empty() {
                std::thread::yield_now();
            }
        });
        assert!(seen.lock().unwrap()[0] == pattern(1 << 20, 3));
    }
}

#[test]
fn regions_are_accessed_within_their_bounds() {
    for driver in DRIVERS {
        let Pair { near, far, link, .. } = pair(driver, queue);
        let words: Arc<[AtomicU64]> = (0..1 << 16).map(AtomicU64::new).collect();
        let key = far.register_words(&words, Rights::ALL).unwrap();
        let readable = far.register_words(&words, Rights::GET).unwrap();
        beside(&far, || {
            let end = |operation: Result<_, Error>| near.finish_operation(operation.unwrap(), TIMEOUT);
            for length in [8usize, 100, 5000, 300_000] {
                let bytes = pattern(length, length);
                let owned = || OperationMemory::Owned(bytes.clone());
                end(near.put(Target { link, key, offset: 16 }, owned(), CompletionOptions::default())).unwrap();
                let got = end(near.get(
                    Target { link, key, offset: 16 },
                    OperationMemory::Owned(vec![0; length]),
                    CompletionOptions::default(),
                ))
                .unwrap();
                assert!(got == bytes, "{driver} {length}");
                let denied =
                    end(near.put(Target { link, key: readable, offset: 0 }, owned(), CompletionOptions::default()));
                assert_eq!(denied, Err(Error::AccessDenied), "{driver} {length}");
                let outside =
                    end(near.put(Target { link, key, offset: (1 << 19) - 7 }, owned(), CompletionOptions::default()));
                assert_eq!(outside, Err(Error::OutOfBounds), "{driver} {length}");
            }
            words[0].store(40, Ordering::SeqCst);
            let add = Atomic {
                operation: Operation::Sum,
                datatype: Datatype::U64,
                count: 1,
                operand: &2u64.to_le_bytes(),
                compare: &[],
            };
            let before = end(near.atomic(
                Target { link, key, offset: 0 },
                &add,
                OperationMemory::Owned(vec![0; 8]),
                CompletionOptions::default(),
            ))
            .unwrap();
            assert_eq!((before, words[0].load(Ordering::SeqCst)), (40u64.to_le_bytes().to_vec(), 42));
            end(near.fence(link, CompletionOptions::default())).unwrap();
        });
        beside(&near, || far.revoke(key, Some(motet::node::deadline_in(20_000_000_000)))).unwrap();
        beside(&far, || {
            let late = near
                .get(Target { link, key, offset: 0 }, OperationMemory::Owned(vec![0; 8]), CompletionOptions::default())
                .unwrap();
            assert_eq!(near.finish_operation(late, TIMEOUT), Err(Error::AccessDenied), "{driver}");
        });
    }
}

#[test]
fn completion_queues_report_cancels_and_timeouts() {
    for driver in DRIVERS {
        let Pair { near, far, here, there, .. } = pair(driver, queue);
        let cq = far.add_cq().unwrap();
        let post = |context| {
            let options = CompletionOptions { cq: Some(cq), user_data: context, errors_only: false };
            far.post(RecvFrom::Channel(there), 0, u64::MAX, OperationMemory::Owned(vec![0; 4]), options).unwrap()
        };
        let operations = [1, 2, 3].map(post);
        far.cancel(operations[1]).unwrap();
        let next = || far.wait_cq(cq, Some(motet::node::deadline_in(20_000_000_000))).unwrap();
        let cancelled = next();
        assert_eq!((cancelled.user_data, cancelled.status), (2, Status::Cancelled));
        near.send(here, 9, b"four", TIMEOUT).unwrap();
        near.send(here, 9, b"longer", TIMEOUT).unwrap();
        let (first, second) = (next(), next());
        assert_eq!((first.user_data, first.status, first.memory.as_deref()), (1, Status::Done, Some(&b"four"[..])));
        assert_eq!(
            (second.user_data, second.status, second.length, second.message_length),
            (3, Status::Truncated, 4, 6)
        );
        assert_eq!(far.cq_counts(cq).unwrap(), [1, 2, 0]);
        far.remove_cq(cq).unwrap();
        let soon = Some(Duration::from_millis(5));
        assert_eq!(far.receive(there, &mut [0; 4], soon), Err(Error::TimedOut));
        near.send(here, 1, b"late", TIMEOUT).unwrap();
        assert_eq!(far.receive(there, &mut [0; 4], TIMEOUT).unwrap().tag, 1, "the receive that ran out took nothing");
    }
}

#[test]
fn closed_link_completes_everything_on_it() {
    for driver in DRIVERS {
        let Pair { near, far, here, there, link } = pair(driver, queue);
        near.send(here, 1, b"last words", TIMEOUT).unwrap();
        let waiting = near
            .post(RecvFrom::Channel(here), 0, 0, OperationMemory::Owned(vec![0; 8]), CompletionOptions::default())
            .unwrap();
        let mut buffer = [0; 16];
        assert_eq!(far.receive(there, &mut buffer, TIMEOUT).unwrap().length, 10);
        drop(far);
        let completion = near.wait_for(waiting, Some(motet::node::deadline_in(20_000_000_000))).unwrap();
        assert_eq!(completion.status, Status::LinkDown, "{driver}");
        assert!(matches!(near.send(here, 1, b"x", TIMEOUT), Err(Error::Lost(_))), "{driver}");
        assert!(near.link_info(link).unwrap().gone.is_some());
        near.disconnect(link).unwrap();
        assert_eq!(near.send(here, 1, b"x", TIMEOUT), Err(Error::Unknown));
    }
}

#[test]
fn ten_thousand_channels_open_and_close() {
    let Pair { near, far, link, here, .. } = pair("shm", queue);
    beside(&far, || {
        let channels: Vec<_> =
            (0..10_000).map(|_| near.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap()).collect();
        for &channel in channels.iter().step_by(777) {
            near.send(channel, 1, b"one of many", TIMEOUT).unwrap();
        }
        channels.into_iter().for_each(|channel| near.close_channel(channel).unwrap());
        near.send(here, 1, b"the first one still works", TIMEOUT).unwrap();
    });
}

#[test]
fn used_and_unknown_names_are_refused() {
    let name = format!("twice-{}", std::process::id());
    let first = Node::open(&name).unwrap();
    let taken = Node::open(&name).map(drop);
    assert_eq!(taken, Err(Error::Unreachable(motet::reason::Reason::NAME_TAKEN)));
    assert!(matches!(Node::open("no spaces").map(drop), Err(Error::Unreachable(motet::reason::Reason::BAD_NAME))));
    let unknown = first.connect("no-such-name", Some(Duration::from_millis(20)));
    assert!(matches!(unknown, Err(Error::Unreachable(_) | Error::TimedOut)), "{unknown:?}");
    drop(first);
    Node::open(&name).unwrap();
}

#[test]
fn channel_to_unknown_service_is_refused() {
    for driver in DRIVERS {
        let Pair { near, far, link, .. } = pair(driver, queue);
        let refused = beside(&far, || near.open_channel(link, SERVICE + 1, Serve::Queue, TIMEOUT));
        assert_eq!(refused, Err(Error::Refused), "{driver}");
    }
}

/// The progress thread answers while the program makes no progress, stops while it does, and starts again.
#[test]
fn progress_thread_answers_while_the_program_does_not() {
    for driver in DRIVERS {
        let (near, far) = (node(), node());
        let back = |node: &Node, message: Message<'_>| {
            let Body::Whole(body) = message.body else { return };
            let answer = Outgoing { channel: message.channel, tag: message.tag + 1, headers: &[], mode: Mode::Inject };
            node.inject(&answer, &[body], None).unwrap();
        };
        far.serve(SERVICE, far.handler(back).unwrap()).unwrap();
        far.serve(SERVICE + 1, Serve::Queue).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| far.run_progress_thread());
            let link = near.connect(&way(&far, driver), TIMEOUT).unwrap();
            let here = near.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap();
            let ask = |tag: u64| {
                near.send(here, tag, b"there?", TIMEOUT).unwrap();
                let mut bytes = [0; 16];
                let got = near.receive(here, &mut bytes, TIMEOUT).unwrap();
                assert_eq!((got.tag, &bytes[..got.length]), (tag + 1, &b"there?"[..]), "{driver}");
            };
            for round in 0..5 {
                ask(round);
                std::thread::sleep(Duration::from_millis(3 * round));
            }
            // A long message for which the program waits at first, and then does not.
            let long = near.open_channel(link, SERVICE + 1, Serve::Queue, TIMEOUT).unwrap();
            let there = far.accept(SERVICE + 1, TIMEOUT).unwrap();
            let buffer = OperationMemory::Owned(vec![0; 4 << 20]);
            let posted = far.post(RecvFrom::Channel(there), 0, u64::MAX, buffer, CompletionOptions::default()).unwrap();
            for _ in 0..1000 {
                far.progress().unwrap();
            }
            near.send(long, 9, &pattern(4 << 20, 3), TIMEOUT).unwrap();
            assert!(far.finish_operation(posted, TIMEOUT).unwrap() == pattern(4 << 20, 3), "{driver}");
            ask(100);
            far.shut_down().unwrap();
        });
    }
}

#[test]
fn guessed_key_ends_its_link_and_no_other() {
    for driver in DRIVERS {
        let Pair { near, far, link, .. } = pair(driver, queue);
        let words: Arc<[AtomicU64]> = (0..1 << 10).map(AtomicU64::new).collect();
        let key = far.register_words(&words, Rights::ALL).unwrap();
        for bit in [0, 19, 20, 31, 32, 63] {
            let guess = Key(key.0 ^ 1 << bit);
            beside(&far, || {
                for length in [8usize, 4000] {
                    let own = near.connect(&way(&far, driver), TIMEOUT).unwrap();
                    let get = |link, key| {
                        let begin = || {
                            near.get(
                                Target { link, key, offset: 0 },
                                OperationMemory::Owned(vec![0; length]),
                                CompletionOptions::default(),
                            )
                        };
                        let mut got = begin();
                        while got == Err(Error::WouldBlock) {
                            near.progress().unwrap(); // the other has not greeted yet
                            got = begin();
                        }
                        got.and_then(|operation| near.finish_operation(operation, TIMEOUT))
                    };
                    assert_eq!(get(own, key).map(|bytes| bytes.len()), Ok(length), "{driver}");
                    assert!(matches!(get(own, guess), Err(Error::Lost(_))), "{driver} {bit} {length}");
                    assert!(matches!(get(own, key), Err(Error::Lost(_))), "{driver}: nothing more is answered");
                    assert_eq!(get(link, key).map(|bytes| bytes.len()), Ok(length), "{driver}: the other link stands");
                    near.disconnect(own).unwrap();
                }
            });
        }
        assert!(words.iter().zip(0..).all(|(word, at)| word.load(Ordering::SeqCst) == at));
    }
}

#[test]
fn open_node_begins_to_listen_for_other_hosts() {
    let (near, far) = (Node::open("").unwrap(), Node::open("").unwrap());
    assert!(!far.address().unwrap().contains("tcp://"));
    far.serve(SERVICE, Serve::Queue).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = far.listen_for_hosts(taken.local_addr().unwrap()).unwrap_err();
    assert!(matches!(refused, Error::Unreachable(_)), "{refused:?}");
    assert!(!far.address().unwrap().contains("tcp://"));
    far.listen_for_hosts("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = way(&far, "tcp");
    far.listen_for_hosts("127.0.0.1:0".parse().unwrap()).unwrap();
    assert_eq!(way(&far, "tcp"), address, "a node that listens goes on as it is");
    std::thread::scope(|scope| {
        let there = scope.spawn(|| far.accept(SERVICE, TIMEOUT).unwrap());
        let link = near.connect(&address, TIMEOUT).unwrap();
        near.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap();
        assert_eq!(near.link_info(link).unwrap().driver, "tcp");
        there.join().unwrap();
    });
}
