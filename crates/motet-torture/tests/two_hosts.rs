//! Random operations between two processes on two hosts, with an oracle at both ends, while connections are cut.
#![forbid(unsafe_code)]

use motet_torture::hosts::Hosts;
use motet_torture::mesh::address_for;
use motet_torture::worker::Worker;
use motet_torture::{one_at_a_time, seconds, seed, skip};
use std::io::Write;
use std::process::Stdio;

const PROGRAM: &str = env!("CARGO_BIN_EXE_motet-torture");
const FIRST_HOST: &str = "10.77.0.1:0";
const SECOND_HOST: &str = "10.77.0.2:0";

/// Reads a worker's line after `stop`: the numbers of completed operations and of lost links.
fn stopped(worker: &mut Worker) -> [u64; 2] {
    let line = worker.line();
    let words: Vec<u64> = line.split(' ').skip(1).filter_map(|word| word.parse().ok()).collect();
    assert!(line.starts_with("stopped ") && words.len() == 2, "{line}");
    [words[0], words[1]]
}

fn torture(caller: &str) {
    let _exclusive = one_at_a_time();
    let hosts = match Hosts::up(&["near", "far"]) {
        Ok(hosts) => hosts,
        Err(why) => return skip("two hosts", &why),
    };
    let start = |host: &str, arguments: &[&str]| Worker::started(hosts.on(host, PROGRAM, arguments));
    let mut called = start("far", &["mesh-at", SECOND_HOST, ""]);
    let address = address_for(&called.address(), "tcp");
    let (secret, target) = address.trim_start_matches("tcp://").split_once('@').expect("an address with a secret");
    // The proxy is on the caller's host, so the called node sees the address of that host.
    let mut proxy = start("near", &["proxy-at", FIRST_HOST, target, &seed().to_string()]);
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
fn listening_caller_survives_random_connection_cuts() {
    torture(FIRST_HOST);
}

#[test]
fn nonlistening_caller_survives_random_connection_cuts() {
    torture("nowhere");
}

/// The other host's answer to a new session's handshake with this secret, sent by a program that is not a node.
fn reply_to(hosts: &Hosts, place: &str, secret: u64) -> Option<u8> {
    const HANDSHAKE_BYTES: usize = 64;
    let mut handshake = [0; HANDSHAKE_BYTES];
    handshake[..8].copy_from_slice(b"MotetTCP");
    (handshake[8], handshake[10]) = (2, 1);
    handshake[16..48].fill(7);
    handshake[48..56].copy_from_slice(&secret.to_le_bytes());
    handshake[56..60].copy_from_slice(&65536u32.to_le_bytes());
    let script = format!("exec 3<>/dev/tcp/{} && cat >&3 && head -c 64 <&3", place.replace(':', "/"));
    let mut connection = hosts.on("near", "bash", &["-c", &script]);
    let mut connection = connection.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bash");
    connection.stdin.take().expect("a pipe").write_all(&handshake).expect("sent");
    connection.wait_with_output().expect("its end").stdout.get(10).copied()
}

#[test]
fn both_ends_on_two_hosts_must_know_the_secret() {
    const ADMITTED: Option<u8> = Some(9);
    const NOT_PERMITTED: Option<u8> = Some(10);
    let _exclusive = one_at_a_time();
    let hosts = match Hosts::up(&["near", "far"]) {
        Ok(hosts) => hosts,
        Err(why) => return skip("two hosts", &why),
    };
    let mut called = Worker::started(hosts.on("far", PROGRAM, &["idle-at", SECOND_HOST, ""]));
    let address = address_for(&called.address(), "tcp");
    let (digits, place) = address.trim_start_matches("tcp://").split_once('@').expect("an address with a secret");
    let half = |at: usize| u64::from_str_radix(&digits[at..at + 16], 16).expect("digits");
    let (secret, other) = (half(0), half(16));
    for wrong in [0, other, !secret].into_iter().chain((0..64).step_by(7).map(|bit| secret ^ 1 << bit)) {
        assert_eq!(reply_to(&hosts, place, wrong), NOT_PERMITTED, "{wrong:x}");
    }
    assert_eq!(reply_to(&hosts, place, secret), ADMITTED);
    // The calling node checks the answer too.
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
