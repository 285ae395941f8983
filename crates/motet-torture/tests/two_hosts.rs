//! Two processes on two hosts do everything to each other at random, with an oracle at both ends, while their connections are cut.
#![forbid(unsafe_code)]

use motet_torture::hosts::Hosts;
use motet_torture::mesh::way;
use motet_torture::worker::Worker;
use motet_torture::{seconds, seed, skip};
use std::io::Write;
use std::process::Stdio;
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

/// What the node of the other host answers to a new session's greeting with this secret, sent by a program that is no node.
fn answer(hosts: &Hosts, place: &str, secret: u64) -> Option<u8> {
    const GREETING: usize = 64;
    let mut greeting = [0; GREETING];
    greeting[..8].copy_from_slice(b"MotetTCP");
    (greeting[8], greeting[10]) = (2, 1);
    greeting[16..48].fill(7);
    greeting[48..56].copy_from_slice(&secret.to_le_bytes());
    greeting[56..60].copy_from_slice(&65536u32.to_le_bytes());
    let script = format!("exec 3<>/dev/tcp/{} && cat >&3 && head -c 64 <&3", place.replace(':', "/"));
    let mut guest = hosts.on("near", "bash", &["-c", &script]);
    let mut guest = guest.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bash");
    guest.stdin.take().expect("a pipe").write_all(&greeting).expect("sent");
    guest.wait_with_output().expect("its end").stdout.get(10).copied()
}

#[test]
fn who_calls_from_another_host_must_know_the_secret_and_so_must_who_answers() {
    const ADMITTED: Option<u8> = Some(9);
    const STRANGER: Option<u8> = Some(10);
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let hosts = match Hosts::up(&["near", "far"]) {
        Ok(hosts) => hosts,
        Err(why) => return skip("two hosts", &why),
    };
    let mut called = Worker::started(hosts.on("far", PROGRAM, &["idle-at", FAR, ""]));
    let address = way(&called.address(), "tcp");
    let (digits, place) = address.trim_start_matches("tcp://").split_once('@').expect("an address with a secret");
    let half = |at: usize| u64::from_str_radix(&digits[at..at + 16], 16).expect("digits");
    let (secret, other) = (half(0), half(16));
    for wrong in [0, other, !secret].into_iter().chain((0..64).step_by(7).map(|bit| secret ^ 1 << bit)) {
        assert_eq!(answer(&hosts, place, wrong), STRANGER, "{wrong:x}");
    }
    assert_eq!(answer(&hosts, place, secret), ADMITTED);
    // A node that calls wants the right answer, too.
    let call = |address: &str| {
        let mut caller = hosts.on("near", PROGRAM, &["idle-at", "nowhere", "", address]);
        caller.stdin(Stdio::null()).output().expect("its end")
    };
    assert!(call(&address).status.success());
    for wrong in [
        format!("tcp://{place}"),
        format!("tcp://{:016x}{other:016x}@{place}", secret ^ 1),
        format!("tcp://{secret:016x}{:016x}@{place}", other ^ 1),
    ] {
        let ended = call(&wrong);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && said.contains("Unreachable(Reason(41))"), "{wrong}: {said}");
    }
    called.close();
    called.finish();
}
