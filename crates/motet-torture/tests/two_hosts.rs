//! Two processes on two hosts do everything to each other at random, with an oracle at both ends, while their connections are cut.
#![forbid(unsafe_code)]

use motet_torture::hosts::Hosts;
use motet_torture::mesh::way;
use motet_torture::worker::Worker;
use motet_torture::{seconds, seed, skip};
use std::sync::{Mutex, PoisonError};

const PROGRAM: &str = env!("CARGO_BIN_EXE_motet-torture");
const NEAR: &str = "10.77.0.1:0";
const FAR: &str = "10.77.0.2:0";

/// What a worker says once it has stopped: operations that have ended, links that were lost.
fn stopped(worker: &mut Worker) -> [u64; 2] {
    let line = worker.line();
    let words: Vec<u64> = line.split(' ').skip(1).filter_map(|word| word.parse().ok()).collect();
    assert!(line.starts_with("stopped ") && words.len() == 2, "{line}");
    [words[0], words[1]]
}

/// The hosts of a process go all at once: one test at a time has some.
static ALONE: Mutex<()> = Mutex::new(());

fn torture(caller: &str) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let hosts = match Hosts::up(&["near", "far"]) {
        Ok(hosts) => hosts,
        Err(why) => return skip("two hosts", &why),
    };
    let start = |host: &str, arguments: &[&str]| Worker::started(hosts.on(host, PROGRAM, arguments));
    let mut called = start("far", &["mesh-at", FAR, ""]);
    let address = way(&called.address(), "tcp");
    let (secret, target) = address.trim_start_matches("tcp://").split_once('@').expect("an address with a secret");
    // It lies on the caller's host, so what the called node sees is that host's address.
    let mut proxy = start("near", &["proxy-at", NEAR, target, &seed().to_string()]);
    let between = format!("tcp://{secret}@{}", proxy.address());
    let mut calling = start("near", &["mesh-at", caller, "", &between]);
    calling.address();
    std::thread::sleep(seconds(5));
    for worker in [&mut called, &mut calling] {
        worker.tell("stop");
    }
    for worker in [&mut called, &mut calling] {
        let [done, lost] = stopped(worker);
        println!("{done} operations");
        assert_eq!(lost, 0, "a link was lost");
        assert!(done > 0);
    }
    for mut worker in [called, calling] {
        worker.tell("end");
        assert_eq!(worker.line(), "holds 0 0");
        worker.finish();
    }
    proxy.close();
    let cuts = proxy.line();
    println!("{cuts}");
    assert!(cuts.strip_prefix("cuts ").and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n > 0), "{cuts}");
    proxy.finish();
}

#[test]
fn connections_of_a_caller_that_listens_are_cut_at_random() {
    torture(NEAR);
}

#[test]
fn connections_of_a_caller_that_does_not_listen_are_cut_at_random() {
    torture("nowhere");
}
