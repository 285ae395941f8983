//! Malformed handshakes over TCP, and peers that connect correctly and then send garbage: the node refuses them or breaks their link, stays within
//! its limits, and serves others as before.
#![forbid(unsafe_code)]

use motet::node::{Error, Node, RecvFrom, Serve};
use motet_sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use motet_torture::mesh::address_for;
use motet_torture::random::Random;
use motet_torture::{HANG_LIMIT, forget_all, one_at_a_time, seconds, seed, system};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const HANDSHAKE_BYTES: usize = 64;
// Handshake requests and answers, and kinds of frames: docs/messages.md, "Over TCP".
const NEW: u8 = 1;
const PROBE: u8 = 4;
const VERSION: u8 = 7;
const REFUSED: u8 = 8;
const ADMITTED: u8 = 9;
const NOT_PERMITTED: u8 = 10;
const PACKET: u8 = 1;
const ACKNOWLEDGEMENT: u8 = 2;
const GOODBYE: u8 = 3;

fn node() -> Node {
    let node = Node::listen("", "127.0.0.1:0".parse().unwrap()).unwrap();
    node.serve(1, Serve::Queue).unwrap();
    node
}

fn port(node: &Node) -> String {
    address_for(&node.address().unwrap(), "tcp").rsplit_once('@').expect("an address with a secret").1.to_owned()
}

fn make_progress(node: &Node, us: u64) {
    let _ = node.progress_until(|| false, Some(motet::node::deadline_in(us * 1000)));
}

/// A node that has served one peer, and the resources that it holds without peers. It must hold no more at the end.
struct Fixture {
    node: Node,
    random: Random,
    descriptors: usize,
    memory: usize,
    /// Declared last: the next test counts descriptors when those of this node are closed.
    _exclusive: MutexGuard<'static, ()>,
}

impl Fixture {
    fn new() -> Self {
        let (_exclusive, node) = (one_at_a_time(), node());
        serves_other_peers(&node);
        forget_all(&node);
        let (descriptors, memory) = (system::descriptors(), system::memory());
        Self { node, random: Random(seed()), descriptors, memory, _exclusive }
    }

    /// After the hostile peers: the node serves others, and holds no more than before.
    fn check_unchanged(&self) {
        serves_other_peers(&self.node);
        forget_all(&self.node);
        holds_at_most(&self.node, self.descriptors);
        println!("Pss {} KiB, {} before", system::memory() >> 10, self.memory >> 10);
        assert!(system::memory() < self.memory + (64 << 20));
    }
}

/// An honest node connects over TCP, sends a message and disconnects.
fn serves_other_peers(node: &Node) {
    let other_node = Node::open("").unwrap();
    let address = format!("tcp://{}", port(node));
    std::thread::scope(|scope| {
        let there = scope.spawn(|| node.accept(1, Some(HANG_LIMIT)).unwrap());
        let link = other_node.connect(&address, Some(HANG_LIMIT)).unwrap();
        let here = other_node.open_channel(link, 1, Serve::Queue, Some(HANG_LIMIT)).unwrap();
        other_node.send(here, 3, b"friend", Some(HANG_LIMIT)).unwrap();
        let there = there.join().unwrap();
        assert_eq!(node.receive(there, &mut [0; 8], Some(HANG_LIMIT)).unwrap().tag, 3);
        node.disconnect(there.link).unwrap();
    });
}

/// Makes progress until the process holds at most `descriptors` descriptors: goodbyes and connections take time.
fn holds_at_most(node: &Node, descriptors: usize) {
    let began = Instant::now();
    while system::descriptors() > descriptors {
        assert!(began.elapsed() < HANG_LIMIT, "{} descriptors, {descriptors} before", system::descriptors());
        make_progress(node, 1000);
    }
}

/// A port without a listener: a peer that names it as its own cannot be called back.
fn unused_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap().port()
}

fn handshake(random: &mut Random, wish: u8, port: u16) -> [u8; HANDSHAKE_BYTES] {
    let mut bytes = [0; HANDSHAKE_BYTES];
    bytes[..8].copy_from_slice(b"MotetTCP");
    bytes[8] = 2;
    bytes[10] = wish;
    bytes[16..48].iter_mut().for_each(|byte| *byte = random.number() as u8);
    bytes[56..60].copy_from_slice(&65536u32.to_le_bytes());
    bytes[60..62].copy_from_slice(&port.to_le_bytes());
    bytes
}

/// Sends these bytes and returns the node's answer: up to one handshake, or less if the node closes the connection.
fn reply_to(node: &Node, bytes: &[u8]) -> Vec<u8> {
    let mut connection = TcpStream::connect(port(node)).unwrap();
    connection.write_all(bytes).unwrap();
    read_reply(node, &mut connection)
}

fn read_reply(node: &Node, connection: &mut TcpStream) -> Vec<u8> {
    connection.set_nonblocking(true).unwrap();
    let (mut got, began) = (Vec::new(), Instant::now());
    while got.len() < HANDSHAKE_BYTES {
        assert!(began.elapsed() < HANG_LIMIT, "neither an answer nor a close");
        let mut chunk = [0; HANDSHAKE_BYTES];
        match connection.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => got.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => make_progress(node, 50),
            Err(_) => break, // reset, because of unread bytes
        }
    }
    connection.set_nonblocking(false).unwrap();
    got
}

#[test]
fn malformed_handshakes_are_refused_and_cost_nothing() {
    let mut fixture = Fixture::new();
    let Fixture { node, random, .. } = &mut fixture;
    for _ in 0..200 {
        let length = 1 + random.below(300) as usize;
        let garbage: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
        assert_eq!(reply_to(node, &garbage), b"", "{garbage:?}");
    }
    assert_eq!(reply_to(node, b"GET / HTTP/1.1\r\n\r\n"), b"");
    let mut other = handshake(random, NEW, 0);
    other[8..10].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(reply_to(node, &other).get(10), Some(&VERSION));
    for (at, bytes) in [(12, [1, 0, 0, 0]), (56, [16, 0, 0, 0]), (56, [0; 4])] {
        let mut wrong = handshake(random, NEW, 0);
        wrong[at..at + 4].copy_from_slice(&bytes);
        assert_eq!(reply_to(node, &wrong).get(10), Some(&REFUSED), "{at}");
    }
    // Truncated handshakes, then closed connections.
    for length in 0..HANDSHAKE_BYTES {
        let mut connection = TcpStream::connect(port(node)).unwrap();
        connection.write_all(&handshake(random, NEW, 0)[..length]).unwrap();
    }
    assert!(node.links().unwrap().is_empty());
    fixture.check_unchanged();
}

#[test]
fn slow_handshakes_block_no_other_peer() {
    let mut fixture = Fixture::new();
    let Fixture { node, random, descriptors, .. } = &mut fixture;
    let words = handshake(random, PROBE, 0);
    // One byte at a time, never all of them, while other peers connect.
    let mut slow = Vec::new();
    for _ in 0..300 {
        slow.push(TcpStream::connect(port(node)).unwrap());
        make_progress(node, 50); // otherwise the listener's backlog would be full
    }
    for byte in &words[..HANDSHAKE_BYTES - 1] {
        slow.retain_mut(|connection| connection.write_all(&[*byte]).is_ok());
        make_progress(node, 2000);
    }
    let connections = system::descriptors().saturating_sub(*descriptors + slow.len());
    assert!(connections <= 64 + 8, "{connections} descriptors for connections");
    serves_other_peers(node); // while the slow connections exist
    drop(slow);
    fixture.check_unchanged();
}

#[test]
fn session_flood_is_limited_and_leaves_room_for_others() {
    let mut fixture = Fixture::new();
    let Fixture { node, random, memory, .. } = &mut fixture;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(1600), ..limit }).unwrap();
    let (mut flood, unused_port) = (Vec::new(), unused_port());
    loop {
        let mut connection = TcpStream::connect(port(node)).unwrap();
        connection.write_all(&handshake(random, NEW, unused_port)).unwrap();
        let answer = read_reply(node, &mut connection);
        if answer.get(10) != Some(&ADMITTED) {
            assert_eq!(answer.get(10), Some(&REFUSED));
            break;
        }
        flood.push(connection);
        assert!(flood.len() < 1600, "sessions are not limited");
    }
    println!("{} sessions; Pss {} KiB", flood.len(), system::memory() >> 10);
    assert!(system::memory() < *memory + (64 << 20));
    drop(flood);
    forget_all(node);
    setrlimit(Resource::Nofile, limit).unwrap();
    fixture.check_unchanged();
}

#[test]
fn peer_that_writes_garbage_loses_only_its_link() {
    let mut fixture = Fixture::new();
    let Fixture { node, random, .. } = &mut fixture;
    let until = Instant::now() + seconds(4);
    let (mut links, mut broken) = (0, 0);
    let unused_port = unused_port();
    while Instant::now() < until {
        let mut peer = TcpStream::connect(port(node)).unwrap();
        peer.write_all(&handshake(random, NEW, unused_port)).unwrap();
        assert_eq!(read_reply(node, &mut peer).get(10), Some(&ADMITTED));
        peer.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        links += 1;
        let link = node.links().unwrap()[0];
        let gone = |node: &Node| node.link_info(link).map_or(true, |info| info.gone.is_some());
        let mut position = 0;
        for _ in 0..random.below(400) {
            if peer.write_all(&garbage(random, &mut position)).is_err() || gone(node) {
                break;
            }
            if random.once_in(8) {
                make_progress(node, 20);
            }
        }
        make_progress(node, 100);
        broken += u32::from(gone(node));
        let held = node.link_info(link).map_or([0; 2], |info| info.bytes); // a broken link may be forgotten already
        assert!(held.iter().sum::<usize>() < 16 << 20, "{held:?}");
        drop(peer);
        forget_all(node);
    }
    println!("{links} links, {broken} of them broken by what was written");
    assert!(broken > 0);
    fixture.check_unchanged();
}

/// A frame: valid, of any kind and content, or wrong in one place. The first of a link is mostly a valid HELLO.
fn garbage(random: &mut Random, position: &mut u32) -> Vec<u8> {
    let mut payload: Vec<u8> = (0..8 * random.below(40)).map(|_| random.number() as u8).collect();
    let mut kind = random.below(32) as u8;
    if *position == 0 && !random.once_in(8) {
        kind = 1;
        payload = b"MtMs\x01\0\0\0".to_vec();
        payload.extend_from_slice(&[0, 16, 0, 0, 0, 4, 0, 0, 0, 64, 0, 0, 0, 1, 0, 0]);
    }
    let mut frame = vec![PACKET, kind, 0, 0];
    frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    frame.extend_from_slice(&position.to_le_bytes());
    frame.extend_from_slice(&0u32.to_le_bytes());
    match random.below(24) {
        // Wrong length, wrong kind, wrong position, an acknowledgement of bytes that were not sent, cut short, or sent after a goodbye.
        0 => frame[4..8].copy_from_slice(&(random.number() as u32).to_le_bytes()),
        1 => frame[0] = random.number() as u8,
        2 => frame[8..12].copy_from_slice(&(random.number() as u32).to_le_bytes()),
        3 => frame[12..16].copy_from_slice(&(random.number() as u32).to_le_bytes()),
        4 => payload.truncate(payload.len() / 2),
        5 => frame[0] = GOODBYE,
        6 => frame = [vec![ACKNOWLEDGEMENT], vec![0; 15], frame].concat(),
        _ => {}
    }
    *position = position.wrapping_add(16 + payload.len() as u32);
    frame.extend_from_slice(&payload);
    frame
}

/// A frame with a packet.
fn packet(position: &mut u32, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![PACKET, kind, 0, 0];
    for word in [payload.len() as u32, *position, 0] {
        frame.extend_from_slice(&word.to_le_bytes());
    }
    *position = position.wrapping_add(16 + payload.len() as u32);
    frame.extend_from_slice(payload);
    frame
}

/// A HELLO, and requests for channels, every second one to a service that exists.
fn visit(channels: u32) -> Vec<u8> {
    const HELLO: u8 = 1;
    const OPEN: u8 = 11;
    let mut position = 0;
    let hello = b"MtMs\x01\0\0\0\0\x10\0\0\0\x04\0\0\0\x40\0\0\0\x01\0\0";
    let mut bytes = packet(&mut position, HELLO, hello);
    for channel in 1..=channels {
        let mut open = [0; 16];
        open[..4].copy_from_slice(&channel.to_le_bytes());
        open[8..].copy_from_slice(&u64::from(1 + channel % 2).to_le_bytes());
        bytes.extend(packet(&mut position, OPEN, &open));
    }
    bytes
}

#[test]
fn short_lived_peers_leave_nothing_behind() {
    let mut fixture = Fixture::new();
    let Fixture { node, random, .. } = &mut fixture;
    let unused_port = unused_port();
    for _ in 0..300 {
        let mut connection = TcpStream::connect(port(node)).unwrap();
        connection.write_all(&handshake(random, NEW, unused_port)).unwrap();
        assert_eq!(read_reply(node, &mut connection).get(10), Some(&ADMITTED));
        connection.write_all(&visit(200)).unwrap();
        make_progress(node, 2000);
        assert!(!node.links().unwrap().is_empty(), "the link exists until the peer closes");
    }
    let began = Instant::now();
    while !node.links().unwrap().is_empty() {
        assert!(began.elapsed() < HANG_LIMIT, "{} links are left", node.links().unwrap().len());
        make_progress(node, 1000);
    }
    assert!(
        matches!(node.accept(1, Some(Duration::ZERO)), Err(Error::WouldBlock | Error::TimedOut)),
        "no channel is left"
    );
    fixture.check_unchanged();
}

#[test]
fn last_message_is_received_before_the_link_is_forgotten() {
    let _exclusive = one_at_a_time();
    let node = node();
    for accepts in [true, false] {
        let context = node.context().unwrap();
        node.serve(2, Serve::Tagged(context)).unwrap();
        let other_node = Node::open("").unwrap();
        let address = format!("tcp://{}", port(&node));
        std::thread::scope(|scope| {
            let called = scope.spawn(|| {
                let link = other_node.connect(&address, Some(HANG_LIMIT)).unwrap();
                let here = other_node.open_channel(link, 2, Serve::Queue, Some(HANG_LIMIT)).unwrap();
                other_node.send(here, 9, b"last words", Some(HANG_LIMIT)).unwrap();
                other_node.disconnect(link).unwrap();
                let _ = other_node.progress_until(|| false, Some(motet::node::deadline_in(50_000_000)));
            });
            while !called.is_finished() {
                make_progress(&node, 100);
            }
        });
        drop(other_node);
        let gone = |node: &Node| node.links().unwrap().iter().all(|link| node.link_info(*link).unwrap().gone.is_some());
        let began = Instant::now();
        while !gone(&node) {
            assert!(began.elapsed() < HANG_LIMIT);
            make_progress(&node, 100);
        }
        assert_eq!(node.links().unwrap().len(), 1, "a message waits");
        let channel = accepts.then(|| node.accept(2, Some(HANG_LIMIT)).unwrap());
        let mut buffer = [0; 16];
        let got = node.receive_tagged(RecvFrom::Any(context), 0, u64::MAX, &mut buffer, Some(HANG_LIMIT)).unwrap();
        assert_eq!((got.tag, &buffer[..got.length]), (9, &b"last words"[..]));
        if let Some(channel) = channel {
            make_progress(&node, 2000);
            assert_eq!(node.links().unwrap().len(), 1, "the program has a channel of the link");
            node.close_channel(channel).unwrap();
        }
        let began = Instant::now();
        while !node.links().unwrap().is_empty() {
            assert!(began.elapsed() < HANG_LIMIT, "the link is not forgotten");
            make_progress(&node, 1000);
        }
        node.withdraw(2).unwrap();
        node.remove_context(context).unwrap();
    }
}

#[test]
fn every_caller_of_a_burst_is_admitted() {
    let mut fixture = Fixture::new();
    let Fixture { node, random, .. } = &mut fixture;
    let mut callers: Vec<_> = (0..400).map(|_| TcpStream::connect(port(node)).unwrap()).collect();
    for caller in &mut callers {
        caller.write_all(&handshake(random, NEW, 0)).unwrap();
    }
    for (at, caller) in callers.iter_mut().enumerate() {
        assert_eq!(read_reply(node, caller).get(10), Some(&ADMITTED), "caller {at}");
    }
    drop(callers);
    forget_all(node);
    fixture.check_unchanged();
}

#[test]
fn flood_of_unauthenticated_connections_blocks_no_peer() {
    let fixture = Fixture::new();
    let at = port(&fixture.node);
    let (over, connections_made) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for n in 0..8u64 {
            let (at, over, connections_made) = (&at, &over, &connections_made);
            scope.spawn(move || {
                let mut random = Random(seed() ^ n << 32);
                let mut kept: std::collections::VecDeque<TcpStream> = Default::default();
                while !over.load(Ordering::Relaxed) {
                    let Ok(mut connection) = TcpStream::connect(at) else { continue };
                    let wish = 1 + random.below(12) as u8;
                    let mut bytes = handshake(&mut random, wish, 0).to_vec();
                    match random.below(6) {
                        0 => bytes.clear(),
                        1 => bytes.truncate(1 + random.below(62) as usize),
                        2 => bytes = vec![b'M'; 64],
                        3 => bytes[8] ^= 1,
                        // An invalid session.
                        4 => {
                            bytes[10] = NEW;
                            bytes[56..60].fill(0);
                        }
                        _ => bytes[10] = PROBE,
                    }
                    let _ = connection.write_all(&bytes);
                    connections_made.fetch_add(1, Ordering::Relaxed);
                    kept.push_back(connection);
                    if kept.len() > 100 {
                        kept.pop_front();
                    }
                }
            });
        }
        while connections_made.load(Ordering::Relaxed) < 1000 {
            make_progress(&fixture.node, 100);
        }
        // The node makes progress independently of connects, as in a program.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                make_progress(&fixture.node, 1000);
            }
        });
        let mut served = 0;
        while served < 10 || connections_made.load(Ordering::Relaxed) < 20_000 {
            serves_other_peers(&fixture.node);
            served += 1;
        }
        println!("{served} were served");
        over.store(true, Ordering::Relaxed);
    });
    println!("{} connections were made", connections_made.load(Ordering::Relaxed));
    fixture.check_unchanged();
}

/// The answer to these bytes when another user of this host sends them.
fn reply_to_other_user(node: &Node, bytes: &[u8]) -> Vec<u8> {
    let at = port(node).replace(':', "/");
    let script = format!("exec 3<>/dev/tcp/{at} && cat >&3 && head -c 64 <&3");
    let mut command = Command::new("bash");
    command.args(["-c", &script]).uid(65533).gid(65533).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut connection = command.spawn().unwrap();
    connection.stdin.take().unwrap().write_all(bytes).unwrap();
    let began = Instant::now();
    while connection.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < HANG_LIMIT);
        make_progress(node, 100);
    }
    let mut said = Vec::new();
    connection.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    said
}

#[test]
fn other_user_of_the_host_is_refused_even_with_the_secret() {
    if motet_sys::thread::euid() != 0 {
        return motet_torture::skip("another user of the host", "only root can be another user");
    }
    let mut fixture = Fixture::new();
    let Fixture { node, random, .. } = &mut fixture;
    let address = address_for(&node.address().unwrap(), "tcp");
    let digits = address.trim_start_matches("tcp://").split_once('@').unwrap().0;
    let secret = u64::from_str_radix(&digits[..16], 16).unwrap();
    let named = TcpListener::bind("127.0.0.1:0").unwrap();
    named.set_nonblocking(true).unwrap();
    for said in [secret, 0, secret ^ 1] {
        let mut bytes = handshake(random, NEW, named.local_addr().unwrap().port());
        bytes[48..56].copy_from_slice(&said.to_le_bytes());
        let answer = reply_to_other_user(node, &bytes);
        assert_eq!(answer.get(10), Some(&NOT_PERMITTED), "{answer:?}");
        assert_eq!(
            (&answer[16..32], &answer[48..62]),
            (&[0; 16][..], &[0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 1, 0, 0, 0][..])
        );
        make_progress(node, 50_000);
        assert!(node.links().unwrap().is_empty());
        assert!(named.accept().is_err(), "the port named by an unauthenticated peer is not connected to");
    }
    fixture.check_unchanged();
}
