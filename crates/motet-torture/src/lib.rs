//! Attacks on nodes: support for tests with several processes.
//!
//! | module | what it contains |
//! | --- | --- |
//! | [`traffic`] | one side of random operations of every kind on one link, and the oracle of their results |
//! | [`mesh`] | a node with such a side on each of its links |
//! | [`worker`] | other processes, started as the program of this crate and controlled by lines |
//! | [`raw_peer`] | a peer that connects to a node correctly and then writes every word of the link's memory itself |
//! | [`proxy`] | a TCP proxy that cuts connections at random |
//! | [`hosts`] | two test hosts |
//! | [`random`] | a seeded generator of random numbers |
//! | [`system`] | fork, signal handlers, and resources of a process |
//!
//! What it is not: it measures nothing. Time decides whether a test passes only by limits beyond which something hangs.
#![deny(unsafe_code)] // but for system.rs: fork and signal handlers

pub mod hosts;
pub mod mesh;
pub mod proxy;
pub mod random;
pub mod raw_peer;
pub mod system;
pub mod traffic;
pub mod worker;

use motet::node::Node;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An operation that takes longer hangs.
pub const HANG_LIMIT: Duration = Duration::from_secs(20);

/// Held by tests that count descriptors, memory or hosts of the whole process: one of them runs at a time.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long a random test runs: `MOTET_TORTURE_SECONDS`, or `default` seconds.
pub fn seconds(default: u64) -> Duration {
    let wanted = std::env::var("MOTET_TORTURE_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(wanted.unwrap_or(default))
}

/// The seed of this run: `MOTET_TORTURE_SEED`, or the clock. It is printed so that a failure can be repeated.
pub fn seed() -> u64 {
    let wanted = std::env::var("MOTET_TORTURE_SEED").ok().and_then(|text| text.parse().ok());
    let seed = wanted.unwrap_or_else(motet_sys::clock::nanoseconds);
    println!("MOTET_TORTURE_SEED={seed}");
    seed
}

/// Waits until all links of a node are gone, and disconnects them.
pub fn forget_all(node: &Node) {
    let began = Instant::now();
    while !node.links().expect("a node").is_empty() {
        assert!(began.elapsed() < HANG_LIMIT, "a link does not go");
        let _ = node.progress_until(|| false, Some(motet::node::deadline_in(200_000)));
        for link in node.links().expect("a node") {
            if node.link_info(link).is_ok_and(|info| info.gone.is_some()) {
                let _ = node.disconnect(link);
            }
        }
    }
}

/// Prints that a test is skipped, and appends it to the file for the summary of all tests.
pub fn skip(name: &str, why: &str) {
    use std::io::Write;
    eprintln!("SKIP {name}: {why}");
    if let Some(log) = std::env::var_os("MOTET_SKIP_LOG")
        && let Ok(mut log) = std::fs::OpenOptions::new().append(true).create(true).open(log)
    {
        let _ = writeln!(log, "SKIP {name}: {why}");
    }
}
