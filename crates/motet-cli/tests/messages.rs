//! What `motet why` shows of nodes of messages: this process has one, and a second process another.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{finish, json, motet, refused};
use motet::node::{Bodies, Channel, LinkId, Node, Serve, in_ns, options};

const LIMIT: Option<Duration> = Some(Duration::from_secs(30));
const SERVICE: u64 = 7;
/// One through the ring, one by single copy where the system allows it.
const LONG: [usize; 2] = [40_000, 1 << 20];

/// A node that copies bodies of 512 KiB and more from its peer's memory.
fn node(name: &str) -> Node {
    let mut options = options(name, Some("127.0.0.1:0".parse().unwrap()));
    options.limits.single_copy = 512 << 10;
    options.limits.bodies = Bodies::Copied;
    Node::with(&options).unwrap()
}

/// In the second process, which is this program again: receives what comes until its input ends.
#[test]
fn the_second_process() {
    let Ok(name) = std::env::var("TEST_NODE_NAME") else { return };
    let node = node(&name);
    node.serve(SERVICE, Serve::Queue).unwrap();
    println!("address {}", node.address().unwrap());
    let mut bytes = vec![0; 1 << 20];
    // Both channels are accepted before the first message, so that one thread serves them.
    let channels: Vec<Channel> = (0..2).map(|_| node.accept(SERVICE, LIMIT).unwrap()).collect();
    for channel in channels {
        for _ in 0..12 {
            let received = node.receive(channel, &mut bytes, LIMIT).unwrap();
            node.send(channel, received.tag, b"", LIMIT).unwrap();
        }
    }
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| std::io::stdin().read_line(&mut String::new()));
        let _ = node.until(|| ended.is_finished(), Some(in_ns(60_000_000_000)));
    });
}

struct Second {
    child: Child,
    address: String,
}

impl Second {
    fn start(name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_second_process", "--nocapture"]).env("TEST_NODE_NAME", name);
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
    let sizes = [8; 10].into_iter().chain(LONG);
    for (tag, size) in sizes.enumerate() {
        node.send(channel, tag as u64, &vec![tag as u8; size], LIMIT).unwrap();
        let answer = node.receive(channel, &mut [], LIMIT).unwrap();
        assert_eq!(answer.tag, tag as u64);
    }
}

/// The links that `motet why` shows of a process, once the node there has come to rest and has said how messages went.
fn links_of(node: &Node, pid: u32, settled: impl Fn(&[serde_json::Value]) -> bool) -> Vec<serde_json::Value> {
    let began = Instant::now();
    loop {
        // Progress is made here, and ends in a sleep.
        let _ = node.until(|| false, Some(in_ns(20_000_000)));
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
fn nodes_are_shown_with_their_links_why_their_driver_and_how_messages_went() {
    let second_name = format!("why-test-{}", std::process::id());
    let second = Second::start(&second_name);
    let own_name = format!("why-test-own-{}", std::process::id());
    let node = node(&own_name);
    let (own, other) = (std::process::id(), second.child.id());

    // One link by the fastest way; a second one whose fastest way leads nowhere.
    let fast = node.connect(&second.address, LIMIT).unwrap();
    let tcp = second.address.split(',').find(|way| way.starts_with("tcp://")).unwrap();
    let slow = node.connect(&format!("shm://nobody-is-called-so,{tcp}"), LIMIT).unwrap();
    // Nobody is told of a call that fails but the caller, and who looks here.
    assert!(node.connect("nobody-is-called-so", None).is_err());
    let open = |link: LinkId| node.open_channel(link, SERVICE, Serve::Queue, LIMIT).unwrap();
    [open(fast), open(slow)].into_iter().for_each(|channel| exchange(&node, channel));

    let sent = |link: &serde_json::Value, what: &str| link["counts"][what].as_u64().unwrap();
    let links = links_of(&node, own, |links| {
        links.len() == 2 && sent(&links[0], "lines_sent") > 10 && sent(&links[1], "frames_sent") > (1 << 20)
    });
    for (link, driver, called) in [(&links[0], "shm", fast), (&links[1], "tcp", slow)] {
        assert_eq!(link["link"], called.0, "{link}");
        assert_eq!((link["up"].as_bool(), link["called"].as_bool()), (Some(true), Some(true)), "{link}");
        let drivers = link["drivers"].as_array().unwrap();
        assert_eq!((drivers[0]["driver"].as_str(), drivers[0]["in_use"].as_bool()), (Some(driver), Some(true)));
        assert!(drivers.len() > 1 && drivers[1..].iter().all(|way| way["in_use"] == false && way["reason"] != ""));
        assert_eq!((link["peer_name"].as_str(), link["peer_pid"].as_u64()), (Some(&*second_name), Some(other.into())));
        assert_eq!(link["counts"]["channels"], 1, "{link}");
    }
    assert!(sent(&links[0], "ring_sent") >= LONG[0] as u64, "{}", links[0]);
    let vain = &links[1]["drivers"][1];
    assert!(vain["driver"] == "shm" && vain["reason"].as_str().unwrap().contains("no node has this name"), "{vain}");

    // The other end: called, and it is the one that copies.
    let copies = |link: &serde_json::Value| sent(link, "single_copy") + sent(link, "single_copy_refused");
    let theirs = links_of(&node, other, |links| {
        links.len() == 2 && copies(&links[0]) == 1 && sent(&links[1], "frames_received") > (1 << 20)
    });
    assert!(theirs.iter().all(|link| link["called"] == false && link["peer_name"] == *own_name), "{theirs:?}");
    assert!(sent(&theirs[0], "ring_received") >= LONG[0] as u64, "{}", theirs[0]);
    if sent(&theirs[0], "single_copy") == 1 {
        assert_eq!(sent(&theirs[0], "single_copy_bytes"), LONG[1] as u64);
    }

    // The same for people, and found by the peer's name.
    for subject in [own.to_string(), second_name.clone()] {
        let (code, out, err) = finish(&mut motet(["why", &subject]));
        assert_eq!(code, 0, "{err}");
        for part in [
            &format!("node {own_name} (shm://{own_name},tcp://"),
            &format!("-> {second_name}"),
            "in use    shm  the fastest way of the peer's address",
            "in use    tcp  the fastest way of the peer's address that could be had",
            "rejected  shm  no node has this name",
            "lines sent",
            "ring, for pieces of long messages",
            "calls that failed so far: 1 x no node has this name",
        ] {
            assert!(out.contains(part), "{part}: {out}");
        }
    }
    refused(&mut motet(["why", "nobody-is-called-so-either"]), 3);

    // A link that is gone says why; one that is closed is not there any more.
    drop(second);
    let gone = links_of(&node, own, |links| links[0]["up"] == false);
    assert!(gone[0]["gone"].as_str().unwrap().contains("gone"), "{}", gone[0]);
    node.disconnect(fast).unwrap();
    links_of(&node, own, |links| links.iter().all(|link| link["link"] != fast.0));
}
