//! Memory of a node with a progress thread. The only test of its process, whose mappings it reads.

use motet::node::{Node, Serve};
use std::time::{Duration, Instant};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
const SERVICE: u64 = 42;
const LENGTH: usize = 60_000;

/// KiB of Motet's shared memory that are resident in this process.
fn resident() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut ours, mut sum) = (false, 0);
    for line in maps.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["Rss:", kib, "kB"] if ours => sum += kib.parse::<u64>().unwrap(),
            [range, ..] if range.contains('-') => ours = line.contains("/memfd:motet"),
            _ => {}
        }
    }
    sum
}

/// The progress thread does the work that is due on an idle link when the program makes no progress. (Otherwise the thread could not sleep.)
#[test]
fn progress_thread_releases_the_ring_of_an_idle_link() {
    let listen = || Node::listen("", "127.0.0.1:0".parse().unwrap()).unwrap();
    let (near, far) = (listen(), listen());
    near.serve(SERVICE, Serve::Queue).unwrap();
    let near_address = near.address().unwrap();
    let way = near_address.split(',').find(|way| way.starts_with("shm")).unwrap();
    let (here, there) = std::thread::scope(|scope| {
        let there = scope.spawn(|| near.accept(SERVICE, TIMEOUT).unwrap());
        let link = far.connect(way, TIMEOUT).unwrap();
        (far.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap(), there.join().unwrap())
    });
    let before = resident();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = vec![0; LENGTH];
            (0..50).for_each(|tag| assert_eq!(near.receive(there, &mut bytes, TIMEOUT).unwrap().tag, tag));
        });
        (0..50).for_each(|tag| far.send(here, tag, &[7; LENGTH], TIMEOUT).unwrap());
    });
    let used = resident();
    assert!(used >= before + 64, "nothing went through a ring: {before} and {used} KiB");
    std::thread::scope(|scope| {
        scope.spawn(|| far.run_progress_thread());
        let began = Instant::now();
        while resident() > used - 64 {
            assert!(began.elapsed() < Duration::from_secs(60), "{} of {used} KiB are still there", resident());
            std::thread::sleep(Duration::from_millis(20));
        }
        far.shut_down().unwrap();
    });
}
