//! Many threads on one node at the same time; handlers and tasks that panic or wait.
#![forbid(unsafe_code)]

use motet::node::{CompletionOptions, Error, Message, Mode, Node, OperationMemory, Outgoing, RecvFrom, Serve, Status};
use motet_torture::random::Random;
use motet_torture::traffic::pattern;
use motet_torture::{HANG_LIMIT, seconds, seed};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads of each node.
const THREADS: u64 = 4;

fn pair() -> (Node, Node) {
    (Node::open("").unwrap(), Node::open("").unwrap())
}

#[test]
fn concurrent_threads_keep_order_on_each_channel() {
    let seed = seed();
    let (near, far) = pair();
    let name = far.name().unwrap();
    for service in 0..THREADS {
        far.serve(service, Serve::Queue).unwrap();
    }
    let until = Instant::now() + seconds(4);
    let messages = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for service in 0..THREADS {
            let (near, far, name, messages) = (&near, &far, &name, &messages);
            // This thread connects, opens a channel, sends numbered messages and disconnects. The other one receives until a message says how many
            // there were.
            scope.spawn(move || {
                let mut random = Random(seed ^ service);
                while Instant::now() < until {
                    let link = near.connect(name, Some(HANG_LIMIT)).unwrap();
                    let channel = near.open_channel(link, service, Serve::Queue, Some(HANG_LIMIT)).unwrap();
                    let count = random.below(300);
                    for number in 0..count {
                        let length = random.length();
                        if random.once_in(20) {
                            // A receive that never matches.
                            let from = RecvFrom::Channel(channel);
                            let idle = near
                                .post(from, 0, 0, OperationMemory::Owned(vec![0; 8]), CompletionOptions::default())
                                .unwrap();
                            near.cancel(idle).unwrap();
                            assert_eq!(near.wait_for(idle, None).unwrap().status, Status::Cancelled);
                        }
                        near.send(channel, number, &pattern(length, number), Some(HANG_LIMIT)).unwrap();
                    }
                    near.send(channel, u64::MAX, &count.to_le_bytes(), Some(HANG_LIMIT)).unwrap();
                    // Waits for the other side's acknowledgement.
                    assert_eq!(near.receive(channel, &mut [0; 8], Some(HANG_LIMIT)).unwrap().tag, count);
                    near.close_channel(channel).unwrap();
                    near.disconnect(link).unwrap();
                }
                let link = near.connect(name, Some(HANG_LIMIT)).unwrap();
                let last = near.open_channel(link, service, Serve::Queue, Some(HANG_LIMIT)).unwrap();
                near.send(last, u64::MAX - 1, b"", Some(HANG_LIMIT)).unwrap();
                let _ = near.receive(last, &mut [0; 8], Some(HANG_LIMIT)); // the other side disconnects first
            });
            scope.spawn(move || {
                let mut buffer = vec![0; 1 << 20];
                loop {
                    let channel = far.accept(service, Some(HANG_LIMIT)).unwrap();
                    for expected in 0u64.. {
                        let received = far.receive(channel, &mut buffer, Some(HANG_LIMIT)).unwrap();
                        let bytes = &buffer[..received.length];
                        if received.tag == u64::MAX - 1 {
                            let _ = far.disconnect(channel.link);
                            return;
                        }
                        if received.tag == u64::MAX {
                            assert_eq!(bytes, expected.to_le_bytes(), "every message once");
                            far.send(channel, expected, b"", Some(HANG_LIMIT)).unwrap();
                            messages.fetch_add(expected, Ordering::Relaxed);
                            break;
                        }
                        assert_eq!(received.tag, expected, "in order");
                        assert!(bytes == pattern(bytes.len(), expected));
                    }
                    // The peer disconnects the link.
                    let gone = || far.link_info(channel.link).map_or(true, |info| info.gone.is_some());
                    let began = Instant::now();
                    while !gone() {
                        assert!(began.elapsed() < HANG_LIMIT);
                        let _ = far.progress_until(|| false, Some(motet::node::deadline_in(100_000)));
                    }
                    far.disconnect(channel.link).unwrap();
                }
            });
        }
    });
    println!("{} messages", messages.load(Ordering::Relaxed));
    assert!(messages.load(Ordering::Relaxed) > 0);
}

/// A channel from `near` to a handler of `far`.
fn handled(
    near: &Node,
    far: &Node,
    handler: impl Fn(&Node, Message<'_>) + Send + Sync + 'static,
) -> motet::node::Channel {
    let serve = far.handler(handler).unwrap();
    far.serve(9, serve).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| far.accept(9, Some(HANG_LIMIT)).unwrap());
        let link = near.connect(&far.name().unwrap(), Some(HANG_LIMIT)).unwrap();
        near.open_channel(link, 9, Serve::Queue, Some(HANG_LIMIT)).unwrap()
    })
}

#[test]
fn panicking_handler_panics_only_its_caller() {
    let (near, far) = pair();
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let here = handled(&near, &far, move |_, message| {
        counted.fetch_add(1, Ordering::Relaxed);
        assert!(message.tag % 2 == 0, "as handlers do");
    });
    let (mut panics, over) = (0, AtomicBool::new(false));
    std::thread::scope(|scope| {
        // Another waiting thread must make progress after the first has panicked.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let wait =
                    || far.progress_until(|| over.load(Ordering::Relaxed), Some(motet::node::deadline_in(50_000_000)));
                let _ = catch_unwind(AssertUnwindSafe(wait));
            }
        });
        for tag in 0..100 {
            near.send(here, tag, b"x", Some(HANG_LIMIT)).unwrap();
        }
        let began = Instant::now();
        while calls.load(Ordering::Relaxed) < 100 {
            assert!(began.elapsed() < HANG_LIMIT, "{} calls", calls.load(Ordering::Relaxed));
            panics += u64::from(catch_unwind(AssertUnwindSafe(|| far.progress())).is_err());
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(panics <= 50);
    assert_eq!(calls.load(Ordering::Relaxed), 100, "each message once");
}

#[test]
fn wait_condition_may_panic() {
    let (near, far) = pair();
    let asked = catch_unwind(AssertUnwindSafe(|| near.progress_until(|| panic!("as programs do"), None)));
    assert!(asked.is_err());
    assert!(
        near.connect(&far.name().unwrap(), Some(Duration::from_millis(1))).is_err_and(|error| error == Error::TimedOut)
    );
}

#[test]
fn panicking_task_affects_no_other_task() {
    let (near, _) = pair();
    let done = Arc::new(AtomicU64::new(0));
    for number in 0..10 {
        let done = done.clone();
        near.defer(move |_: &Node| {
            done.fetch_add(1, Ordering::Relaxed);
            assert!(number % 3 != 0, "as tasks do");
        })
        .unwrap();
    }
    for _ in 0..20 {
        let _ = catch_unwind(AssertUnwindSafe(|| near.progress()));
    }
    assert_eq!(done.load(Ordering::Relaxed), 10);
}

#[test]
fn thread_after_a_task_does_not_wait_for_progress_owner() {
    let (near, far) = pair();
    let here = handled(&near, &far, |_, _| {});
    let (begun, over) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let started = begun.clone();
    near.defer(move |_: &Node| {
        started.store(true, Ordering::Release);
        std::thread::sleep(Duration::from_millis(50)); // another thread starts to make progress
    })
    .unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            while !begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            // Until the end of the test.
            near.progress_until(
                || over.load(Ordering::Relaxed),
                Some(motet::node::deadline_in(HANG_LIMIT.as_nanos() as u64)),
            )
        });
        let began = Instant::now();
        near.progress().unwrap();
        let _ = near.progress_until(|| false, Some(motet::node::deadline_in(1_000_000)));
        let took = began.elapsed();
        over.store(true, Ordering::Relaxed);
        near.send(here, 1, b"wakes it", Some(HANG_LIMIT)).unwrap();
        other.join().unwrap().unwrap();
        assert!(took < HANG_LIMIT, "{took:?}");
    });
}

#[test]
fn single_thread_node_panics_on_another_thread_only() {
    let (near, far) = (Node::single(&motet::node::options("", None)).unwrap(), Node::open("").unwrap());
    far.serve(1, Serve::Queue).unwrap();
    let link = std::thread::scope(|scope| {
        scope.spawn(|| far.accept(1, Some(HANG_LIMIT)).unwrap());
        let other = scope.spawn(|| near.links()).join();
        assert!(other.is_err(), "another thread");
        let link = near.connect(&far.name().unwrap(), Some(HANG_LIMIT)).unwrap();
        let here = near.open_channel(link, 1, Serve::Queue, Some(HANG_LIMIT)).unwrap();
        let message = Outgoing { channel: here, tag: 1, headers: &[], mode: Mode::Inject };
        near.inject(&message, &[b"x"], None).unwrap();
        link
    });
    near.disconnect(link).unwrap();
}
