//! `motet why` for nodes of messages: one in this process and one in a second process.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{finish, json, motet, refused};
use motet::node::{BodyPath, Channel, LinkId, Node, Serve, deadline_in, options};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));
const SERVICE: u64 = 7;
/// One through the payload ring, one by single copy where the system allows it.
const LONG_BODY_BYTES: [usize; 2] = [40_000, 1 << 20];

/// A node that copies bodies of 512 KiB and more from its peer's memory.
fn node(name: &str) -> Node {
    let mut options = options(name, Some("127.0.0.1:0".parse().unwrap()));
    options.limits.single_copy = 512 << 10;
    options.limits.body_path = BodyPath::SingleCopy;
    Node::with(&options).unwrap()
}

/// Runs in the second process, which is this program again: receives messages until its input ends.
#[test]
fn second_process_entry() {
    let Ok(name) = std::env::var("TEST_NODE_NAME") else { return };
    let node = node(&name);
    node.serve(SERVICE, Serve::Queue).unwrap();
    println!("address {}", node.address().unwrap());
    let mut bytes = vec![0; 1 << 20];
    // Both channels are accepted before the first message, so that one thread serves them.
    let channels: Vec<Channel> = (0..2).map(|_| node.accept(SERVICE, TIMEOUT).unwrap()).collect();
    for channel in channels {
        for _ in 0..12 {
            let received = node.receive(channel, &mut bytes, TIMEOUT).unwrap();
            node.send(channel, received.tag, b"", TIMEOUT).unwrap();
        }
    }
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| std::io::stdin().read_line(&mut String::new()));
        let _ = node.progress_until(|| ended.is_finished(), Some(deadline_in(60_000_000_000)));
    });
}

struct Second {
    child: Child,
    address: String,
}

impl Second {
    fn start(name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "second_process_entry", "--nocapture"]).env("TEST_NODE_NAME", name);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let address =
            lines.find_map(|line| Some(line.split_once("address ")?.1.to_owned())).expect("it says where it is");
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.child.stdin.take().map(|mut input| input.write_all(b"\n"));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn exchange(node: &Node, channel: Channel) {
    let sizes = [8; 10].into_iter().chain(LONG_BODY_BYTES);
    for (tag, size) in sizes.enumerate() {
        node.send(channel, tag as u64, &vec![tag as u8; size], TIMEOUT).unwrap();
        let answer = node.receive(channel, &mut [], TIMEOUT).unwrap();
        assert_eq!(answer.tag, tag as u64);
    }
}

/// The links that `motet why` shows of a process, once the counts of its node are up to date.
fn links_of(node: &Node, pid: u32, settled: impl Fn(&[serde_json::Value]) -> bool) -> Vec<serde_json::Value> {
    let began = Instant::now();
    loop {
        // Progress is made here, and ends in a sleep.
        let _ = node.progress_until(|| false, Some(deadline_in(20_000_000)));
        let (code, out, err) = finish(&mut motet(["why", &pid.to_string(), "--json"]));
        assert_eq!(code, 0, "{err}");
        let report = json(&out);
        let nodes = report["processes"][0]["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), 1, "{report}");
        let links = nodes[0]["links"].as_array().unwrap().clone();
        if settled(&links) {
            return links;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{report}");
    }
}

#[test]
fn why_shows_nodes_with_links_drivers_and_counts() {
    let second_name = format!("why-test-{}", std::process::id());
    let second = Second::start(&second_name);
    let own_name = format!("why-test-own-{}", std::process::id());
    let node = node(&own_name);
    let (own, other) = (std::process::id(), second.child.id());

    // One link over the fastest driver; a second one whose fastest driver finds no node.
    let fast = node.connect(&second.address, TIMEOUT).unwrap();
    let tcp = second.address.split(',').find(|way| way.starts_with("tcp://")).unwrap();
    let slow = node.connect(&format!("shm://no-such-node,{tcp}"), TIMEOUT).unwrap();
    // A failed connect is reported to its caller, and counted in the stats page.
    assert!(node.connect("no-such-node", None).is_err());
    let open = |link: LinkId| node.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap();
    [open(fast), open(slow)].into_iter().for_each(|channel| exchange(&node, channel));

    let sent = |link: &serde_json::Value, what: &str| link["counts"][what].as_u64().unwrap();
    let links = links_of(&node, own, |links| {
        links.len() == 2 && sent(&links[0], "cells_sent") > 10 && sent(&links[1], "frames_sent") > (1 << 20)
    });
    for (link, driver, called) in [(&links[0], "shm", fast), (&links[1], "tcp", slow)] {
        assert_eq!(link["link"], called.0, "{link}");
        assert_eq!((link["up"].as_bool(), link["connector"].as_bool()), (Some(true), Some(true)), "{link}");
        let drivers = link["drivers"].as_array().unwrap();
        assert_eq!((drivers[0]["driver"].as_str(), drivers[0]["in_use"].as_bool()), (Some(driver), Some(true)));
        assert!(
            drivers.len() > 1 && drivers[1..].iter().all(|driver| driver["in_use"] == false && driver["reason"] != "")
        );
        assert_eq!((link["peer_name"].as_str(), link["peer_pid"].as_u64()), (Some(&*second_name), Some(other.into())));
        assert_eq!(link["counts"]["channels"], 1, "{link}");
    }
    assert!(sent(&links[0], "ring_sent") >= LONG_BODY_BYTES[0] as u64, "{}", links[0]);
    let rejected = &links[1]["drivers"][1];
    assert!(
        rejected["driver"] == "shm" && rejected["reason"].as_str().unwrap().contains("no node has this name"),
        "{rejected}"
    );

    // The other end accepted the link, and it copies.
    let copies = |link: &serde_json::Value| sent(link, "single_copy") + sent(link, "single_copy_refused");
    let theirs = links_of(&node, other, |links| {
        links.len() == 2 && copies(&links[0]) == 1 && sent(&links[1], "frames_received") > (1 << 20)
    });
    assert!(theirs.iter().all(|link| link["connector"] == false && link["peer_name"] == *own_name), "{theirs:?}");
    assert!(sent(&theirs[0], "ring_received") >= LONG_BODY_BYTES[0] as u64, "{}", theirs[0]);
    if sent(&theirs[0], "single_copy") == 1 {
        assert_eq!(sent(&theirs[0], "single_copy_bytes"), LONG_BODY_BYTES[1] as u64);
    }

    // Text output, by process id and by the name of the peer.
    for subject in [own.to_string(), second_name.clone()] {
        let (code, out, err) = finish(&mut motet(["why", &subject]));
        assert_eq!(code, 0, "{err}");
        for part in [
            &format!("node {own_name} (shm://{own_name},tcp://"),
            &format!("-> {second_name}"),
            "in use    shm  the fastest driver of the peer's address",
            "in use    tcp  the fastest driver of the peer's address that could connect",
            "rejected  shm  no node has this name",
            "cells sent",
            "payload ring, for pieces of long messages",
            "failed connects so far: 1 x no node has this name",
        ] {
            assert!(out.contains(part), "{part}: {out}");
        }
    }
    refused(&mut motet(["why", "no-such-node-either"]), 3);
    // The table counts messages, too. (What a receiver copies out of the sender's memory counts with the receiver.)
    let listed = finish(&mut motet(["ps"])).1;
    let row = listed.lines().find(|line| line.split_whitespace().next() == Some(&own.to_string())).expect("a row");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert!(row.contains(" MB ") && cells[2] == "-", "{listed}");

    // A link that is gone has a reason; a closed link is not listed.
    drop(second);
    let gone = links_of(&node, own, |links| links[0]["up"] == false);
    assert!(gone[0]["gone"].as_str().unwrap().contains("gone"), "{}", gone[0]);
    node.disconnect(fast).unwrap();
    links_of(&node, own, |links| links.iter().all(|link| link["link"] != fast.0));
}
