//! Descriptors and table entries run out: calls return errors, nothing leaks, and later calls succeed.
#![forbid(unsafe_code)]

use motet::node::{CompletionOptions, Error, Node, OperationMemory, RecvFrom, Serve};
use motet_sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use motet_torture::mesh::address_for;
use motet_torture::worker::Worker;
use motet_torture::{HANG_LIMIT, one_at_a_time, system};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_motet-torture");

/// Runs a check in a child process, which has limits of its own.
fn apart(check: &str) {
    let mut worker = Worker::start(PROGRAM, &["mesh", ""]);
    let address = worker.address();
    let status = system::fork_child(|| match check {
        "descriptors" => without_descriptors(&address),
        _ => 2,
    });
    assert_eq!(system::wait_child(status), 0, "{check}");
}

#[test]
fn calls_fail_without_descriptors_and_succeed_later() {
    let _exclusive = one_at_a_time();
    apart("descriptors");
}

fn without_descriptors(address: &str) -> i32 {
    let node = Node::listen("", "127.0.0.1:0".parse().unwrap()).unwrap();
    let whole = getrlimit(Resource::Nofile);
    for driver in ["shm", "tcp"] {
        let link = node.connect(&address_for(address, driver), Some(HANG_LIMIT)).unwrap();
        node.disconnect(link).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let _ = node.progress();
    }
    let before = system::descriptors();
    // From too few descriptors for any step upwards, one more at a time: whichever step fails, nothing remains of it.
    let (mut failed, mut made) = (0, 0);
    for spare in 0..16u64 {
        for driver in ["shm", "tcp"] {
            // The limit is on descriptor numbers; those of Motet are above the program's.
            let current = Some(system::low_descriptors() as u64 + spare);
            setrlimit(Resource::Nofile, Rlimit { current, maximum: whole.maximum }).unwrap();
            let met = node.connect(&address_for(address, driver), Some(Duration::from_millis(500)));
            setrlimit(Resource::Nofile, whole).unwrap();
            match met {
                Ok(link) => {
                    made += 1;
                    node.disconnect(link).unwrap();
                }
                Err(Error::Unreachable(_) | Error::TimedOut | Error::NoNode(_)) => failed += 1,
                Err(error) => panic!("{driver} with {spare}: {error}"),
            }
        }
    }
    let began = Instant::now();
    while system::descriptors() > before {
        assert!(began.elapsed() < HANG_LIMIT, "{} descriptors, {before} before", system::descriptors());
        let _ = node.progress_until(|| false, Some(motet::node::deadline_in(1_000_000)));
    }
    println!("{failed} failed, {made} did not");
    assert!(failed > 0 && made > 0);
    0
}

#[test]
fn thousand_concurrent_connections_are_accepted() {
    let _exclusive = one_at_a_time();
    for driver in ["shm", "tcp"] {
        let host = Node::listen("", "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = address_for(&host.address().unwrap(), driver);
        // A busy link over TCP costs a system call per round.
        let each = if driver == "shm" { 125 } else { 25 };
        let before = system::descriptors();
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let done = || over.load(std::sync::atomic::Ordering::Relaxed);
                while !done() {
                    let _ = host.progress_until(done, Some(motet::node::deadline_in(1_000_000)));
                    for link in host.links().unwrap() {
                        if host.link_info(link).is_ok_and(|info| info.gone.is_some()) {
                            let _ = host.disconnect(link);
                        }
                    }
                }
                let until = Instant::now() + HANG_LIMIT;
                while !host.links().unwrap().is_empty() && Instant::now() < until {
                    let _ = host.progress_until(|| false, Some(motet::node::deadline_in(1_000_000)));
                    host.links().unwrap().into_iter().for_each(|link| {
                        let _ = host.disconnect(link);
                    });
                }
            });
            std::thread::scope(|callers| {
                for _ in 0..8 {
                    callers.spawn(|| {
                        let node = Node::open("").unwrap();
                        let links: Vec<_> =
                            (0..each).map(|_| node.connect(&address, Some(HANG_LIMIT)).expect("a link")).collect();
                        links.into_iter().for_each(|link| node.disconnect(link).unwrap());
                    });
                }
            });
            over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(host.links().unwrap(), []);
        let until = Instant::now() + HANG_LIMIT;
        while system::descriptors() > before && Instant::now() < until {
            let _ = host.progress_until(|| false, Some(motet::node::deadline_in(1_000_000)));
        }
        assert!(system::descriptors() <= before, "{driver}: {} descriptors, {before} before", system::descriptors());
    }
}

#[test]
fn operations_beyond_the_table_are_refused_without_harm() {
    let _exclusive = one_at_a_time();
    let (near, far) = (Node::open("").unwrap(), Node::open("").unwrap());
    far.serve(1, Serve::Queue).unwrap();
    let (link, here) = std::thread::scope(|scope| {
        scope.spawn(|| far.accept(1, Some(HANG_LIMIT)).unwrap());
        let link = near.connect(&far.name().unwrap(), Some(HANG_LIMIT)).unwrap();
        (link, near.open_channel(link, 1, Serve::Queue, Some(HANG_LIMIT)).unwrap())
    });
    let cq = near.add_cq().unwrap();
    let completion = CompletionOptions { cq: Some(cq), user_data: 1, errors_only: false };
    let post = || near.post(RecvFrom::Channel(here), 0, u64::MAX, OperationMemory::Owned(Vec::new()), completion);
    let mut posted = Vec::new();
    let refused = loop {
        match post() {
            Ok(operation) => posted.push(operation),
            Err(error) => break error,
        }
        assert!(posted.len() <= 1 << 21);
    };
    println!("{} operations", posted.len());
    assert_eq!(refused, Error::Full);
    for operation in &posted {
        near.cancel(*operation).unwrap();
    }
    assert_eq!(near.cq_counts(cq).unwrap()[2], 0, "none is pending");
    for _ in &posted {
        near.wait_cq(cq, Some(motet::node::deadline_in(1_000_000_000))).unwrap();
    }
    near.remove_cq(cq).unwrap();
    near.disconnect(link).unwrap();
}
