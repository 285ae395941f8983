//! Loans between two processes, of which one is killed while it holds some: nothing leaks in the other.

use motet::node::{Content, LinkId, MessageLimits, Node, RecvFrom, Serve, deadline_in, options};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
const SERVICE: u64 = 42;
const SIZE: usize = 1 << 20;
const ROLE: &str = "MOTET_TEST_ROLE";

fn node() -> Node {
    let mut options = options("", None);
    options.limits = MessageLimits { pool: 64 << 20, ..MessageLimits::default() };
    Node::with(&options).unwrap()
}

/// Another process of this program, which runs [`helper_process`].
fn other(role: &str, name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["helper_process", "--exact", "--ignored", "--nocapture"])
        .env(ROLE, format!("{role} {name}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits for a message of the other process.
fn hear(child: &mut Child, word: &str) {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains(word)), "the other process said no {word}");
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Makes progress until the link is down.
fn until_gone(node: &Node, link: LinkId) {
    let until = Instant::now() + Duration::from_secs(20);
    while node.link_info(link).unwrap().gone.is_none() {
        assert!(Instant::now() < until, "the link stays");
        let _ = node.progress_until(|| false, Some(deadline_in(1_000_000)));
    }
}

#[test]
#[ignore = "a part of the tests below, in a process of its own"]
fn helper_process() {
    let role = std::env::var(ROLE).unwrap();
    let (role, name) = role.split_once(' ').unwrap();
    let node = node();
    let link = node.connect(name, TIMEOUT).unwrap();
    let channel = node.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap();
    let mut held = Vec::new();
    match role {
        "receive" => {
            for _ in 0..3 {
                let got = node.receive_in_place(RecvFrom::Channel(channel), 0, u64::MAX, 2 * SIZE, TIMEOUT).unwrap();
                assert!(matches!(got.body, Content::LoanedMessage(_)));
                held.push(got);
            }
        }
        _ => {
            for tag in 0..3 {
                let mut loan = node.alloc(SIZE).unwrap();
                loan.fill(7);
                node.lend(channel, tag, loan, TIMEOUT).unwrap();
            }
        }
    }
    println!("ready");
    node.progress_until(|| false, None).unwrap();
}

#[test]
fn loans_to_a_killed_process_return() {
    let node = node();
    node.serve(SERVICE, Serve::Queue).unwrap();
    for round in 0..3 {
        let mut child = other("receive", &node.name().unwrap());
        let channel = node.accept(SERVICE, TIMEOUT).unwrap();
        for tag in 0..5 {
            let mut loan = node.alloc(SIZE).unwrap();
            loan.fill(tag as u8);
            node.lend(channel, tag, loan, TIMEOUT).unwrap(); // two of them wait for a receive that never comes
        }
        assert_eq!(node.pool_size().unwrap()[2], 5 * SIZE, "round {round}");
        std::thread::scope(|scope| {
            scope.spawn(|| hear(&mut child, "ready")).join().unwrap();
        });
        kill(child);
        until_gone(&node, channel.link);
        assert_eq!(node.pool_size().unwrap()[2], 0, "round {round}");
        node.disconnect(channel.link).unwrap();
    }
}

#[test]
fn loans_of_a_killed_process_stay_readable_until_release() {
    let node = node();
    node.serve(SERVICE, Serve::Queue).unwrap();
    for _ in 0..3 {
        let mut child = other("send", &node.name().unwrap());
        let channel = node.accept(SERVICE, TIMEOUT).unwrap();
        hear(&mut child, "ready");
        let take = || node.receive_in_place(RecvFrom::Channel(channel), 0, u64::MAX, 2 * SIZE, TIMEOUT);
        let (first, second) = (take().unwrap(), take().unwrap());
        kill(child);
        until_gone(&node, channel.link);
        assert!(take().is_err(), "the third was never received");
        drop(first);
        assert!(second.body.into_vec().iter().all(|&byte| byte == 7), "mapped as long as it is held");
        node.progress().unwrap();
        node.disconnect(channel.link).unwrap();
        assert!(node.links().unwrap().is_empty());
    }
}
