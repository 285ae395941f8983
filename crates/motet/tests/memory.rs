//! Memory of a link: little when it is idle, and the memory that long messages needed is released.

use motet::node::{Channel, Node, Serve};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

/// The tests measure all links of the process, so they run one at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Two nodes, and both ends of a channel.
fn pair() -> (Node, Node, Channel, Channel) {
    let (near, far) = (Node::open("").unwrap(), Node::open("").unwrap());
    far.serve(1, Serve::Queue).unwrap();
    let (here, there) = std::thread::scope(|scope| {
        let there = scope.spawn(|| far.accept(1, TIMEOUT).unwrap());
        let link = near.connect(&far.name().unwrap(), TIMEOUT).unwrap();
        (near.open_channel(link, 1, Serve::Queue, TIMEOUT).unwrap(), there.join().unwrap())
    });
    (near, far, here, there)
}

/// This process's share of the memory of links, bytes.
fn links() -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines();
    let mut sum = 0;
    while let Some(line) = lines.next() {
        if line.contains("memfd:motet-link") {
            let rss = lines.by_ref().find(|line| line.starts_with("Rss:")).unwrap();
            sum += rss.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10;
        }
    }
    sum
}

#[test]
fn idle_link_releases_the_memory_of_busy_times() {
    let _alone = ALONE.lock().unwrap();
    let (near, far, here, there) = pair();
    // Both ends are in this process: twice the memory of one.
    assert!(links() / 2 <= 64 << 10, "{}", links());
    let long = vec![1; 12 << 20];
    std::thread::scope(|scope| {
        scope.spawn(|| near.send(here, 1, &long, TIMEOUT).unwrap());
        assert_eq!(far.receive(there, &mut vec![0; 12 << 20], TIMEOUT).unwrap().length, 12 << 20);
    });
    assert!(links() > 1 << 20, "the ring was used: {}", links());
    let until = Instant::now() + Duration::from_secs(15);
    while links() / 2 > 64 << 10 && Instant::now() < until {
        let soon = Some(Duration::from_millis(50));
        let _ = near.receive(here, &mut [], soon);
        let _ = far.receive(there, &mut [], soon);
    }
    assert!(links() / 2 <= 64 << 10, "given back: {}", links());
    near.send(here, 7, &long[..50_000], TIMEOUT).unwrap_or_else(|error| panic!("the ring works again: {error}"));
    assert_eq!(far.receive(there, &mut vec![0; 50_000], TIMEOUT).unwrap().tag, 7);
}

#[test]
fn ring_in_use_keeps_its_pages_across_sleeps() {
    const SOME: usize = 60_000;
    let _alone = ALONE.lock().unwrap();
    let (near, far, here, there) = pair();
    let (body, mut buffer) = (vec![5; SOME], vec![0; SOME]);
    let mut exchange = || {
        near.send(here, 1, &body, TIMEOUT).unwrap();
        assert_eq!(far.receive(there, &mut buffer, TIMEOUT).unwrap().length, SOME);
        // Both sleep, and check afterwards whether memory is to be released.
        let soon = Some(Duration::from_millis(20));
        assert!(near.receive(here, &mut [], soon).is_err() && far.receive(there, &mut [], soon).is_err());
    };
    exchange();
    // A machine that stalls for a second leaves the ring unused for that time.
    let (begun, mut last) = (Instant::now(), Instant::now());
    let mut least = links();
    while begun.elapsed() < Duration::from_secs(4) {
        exchange();
        // Before the measurement, because later use would count as idle time.
        let used = Instant::now();
        let now = links();
        if last.elapsed() < Duration::from_millis(800) {
            assert!(now >= least, "pages of a ring in use were given back: {least}, then {now}");
        }
        (least, last) = (now, used);
    }
}
