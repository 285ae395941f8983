//! Strangers at a node's port, and peers that greet properly and then write rubbish: the node shows them out or breaks their link, holds
//! no more than it may, and serves others as before.
#![forbid(unsafe_code)]

use motet::node::{Node, Serve};
use motet_sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use motet_torture::mesh::way;
use motet_torture::random::Random;
use motet_torture::{LIMIT, forget_all, seconds, seed, system};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const GREETING: usize = 64;
// Wishes, and sorts of frames: docs/messages.md, "Over TCP".
const NEW: u8 = 1;
const PROBE: u8 = 4;
const UNKNOWN: u8 = 6;
const VERSION: u8 = 7;
const REFUSED: u8 = 8;
const ADMITTED: u8 = 9;
const STRANGER: u8 = 10;
const PACKET: u8 = 1;
const ACKNOWLEDGEMENT: u8 = 2;
const GOODBYE: u8 = 3;

/// Descriptors are counted for the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn node() -> Node {
    let node = Node::listen("", "127.0.0.1:0".parse().unwrap()).unwrap();
    node.serve(1, Serve::Queue).unwrap();
    node
}

fn port(node: &Node) -> String {
    way(&node.address().unwrap(), "tcp").rsplit_once('@').expect("an address with a secret").1.to_owned()
}

fn go_on(node: &Node, us: u64) {
    let _ = node.until(|| false, Some(motet::node::in_ns(us * 1000)));
}

/// A node that has served somebody, and what it holds when nobody is there: so it must be again in the end.
struct Scene {
    node: Node,
    random: Random,
    descriptors: usize,
    memory: usize,
    /// Declared last: whoever comes next counts descriptors when those of this node are closed.
    _alone: MutexGuard<'static, ()>,
}

impl Scene {
    fn new() -> Self {
        let (_alone, node) = (alone(), node());
        serves(&node);
        forget_all(&node);
        let (descriptors, memory) = (system::descriptors(), system::memory());
        Self { node, random: Random(seed()), descriptors, memory, _alone }
    }

    /// Whoever was hostile has gone: the node serves others, and holds what it held before.
    fn is_as_before(&self) {
        serves(&self.node);
        forget_all(&self.node);
        holds_at_most(&self.node, self.descriptors);
        println!("Pss {} KiB, {} before", system::memory() >> 10, self.memory >> 10);
        assert!(system::memory() < self.memory + (64 << 20));
    }
}

/// Somebody honest comes over TCP, says something, is heard and goes.
fn serves(node: &Node) {
    let friend = Node::open("").unwrap();
    let address = format!("tcp://{}", port(node));
    std::thread::scope(|scope| {
        let there = scope.spawn(|| node.accept(1, Some(LIMIT)).unwrap());
        let link = friend.connect(&address, Some(LIMIT)).unwrap();
        let here = friend.open_channel(link, 1, Serve::Queue, Some(LIMIT)).unwrap();
        friend.send(here, 3, b"friend", Some(LIMIT)).unwrap();
        let there = there.join().unwrap();
        assert_eq!(node.receive(there, &mut [0; 8], Some(LIMIT)).unwrap().tag, 3);
        node.disconnect(there.link).unwrap();
    });
}

/// Goes on until no more descriptors are held than these: goodbyes and guests take their time.
fn holds_at_most(node: &Node, descriptors: usize) {
    let began = Instant::now();
    while system::descriptors() > descriptors {
        assert!(began.elapsed() < LIMIT, "{} descriptors, {descriptors} before", system::descriptors());
        go_on(node, 1000);
    }
}

/// A port at which nobody listens: who says that it can be asked for there is missed at once.
fn nobody() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap().port()
}

fn greeting(random: &mut Random, wish: u8, port: u16) -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    bytes[..8].copy_from_slice(b"MotetTCP");
    bytes[8] = 2;
    bytes[10] = wish;
    bytes[16..48].iter_mut().for_each(|byte| *byte = random.number() as u8);
    bytes[56..60].copy_from_slice(&65536u32.to_le_bytes());
    bytes[60..62].copy_from_slice(&port.to_le_bytes());
    bytes
}

/// What the node answers to these bytes, until it ends the connection or has said a greeting.
fn answer(node: &Node, bytes: &[u8]) -> Vec<u8> {
    let mut guest = TcpStream::connect(port(node)).unwrap();
    guest.write_all(bytes).unwrap();
    hear(node, &mut guest)
}

fn hear(node: &Node, guest: &mut TcpStream) -> Vec<u8> {
    guest.set_nonblocking(true).unwrap();
    let (mut got, began) = (Vec::new(), Instant::now());
    while got.len() < GREETING {
        assert!(began.elapsed() < LIMIT, "neither an answer nor an end");
        let mut chunk = [0; GREETING];
        match guest.read(&mut chunk) {
            Ok(0) => break,
            Ok(n) => got.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => go_on(node, 50),
            Err(_) => break, // reset: there were bytes that nobody read
        }
    }
    guest.set_nonblocking(false).unwrap();
    got
}

#[test]
fn strangers_are_shown_out_and_cost_nothing() {
    let mut scene = Scene::new();
    let Scene { node, random, .. } = &mut scene;
    for _ in 0..200 {
        let length = 1 + random.below(300) as usize;
        let garbage: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
        assert_eq!(answer(node, &garbage), b"", "{garbage:?}");
    }
    assert_eq!(answer(node, b"GET / HTTP/1.1\r\n\r\n"), b"");
    let mut other = greeting(random, NEW, 0);
    other[8..10].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(answer(node, &other).get(10), Some(&VERSION));
    for (at, bytes) in [(12, [1, 0, 0, 0]), (56, [16, 0, 0, 0]), (56, [0; 4])] {
        let mut wrong = greeting(random, NEW, 0);
        wrong[at..at + 4].copy_from_slice(&bytes);
        assert_eq!(answer(node, &wrong).get(10), Some(&REFUSED), "{at}");
    }
    // Truncated, and then gone.
    for length in 0..GREETING {
        let mut guest = TcpStream::connect(port(node)).unwrap();
        guest.write_all(&greeting(random, NEW, 0)[..length]).unwrap();
    }
    assert!(node.links().unwrap().is_empty());
    scene.is_as_before();
}

#[test]
fn those_who_take_their_time_keep_nobody_out() {
    let mut scene = Scene::new();
    let Scene { node, random, descriptors, .. } = &mut scene;
    let words = greeting(random, PROBE, 0);
    // One byte at a time, never all of them; others come meanwhile.
    let mut slow = Vec::new();
    for _ in 0..300 {
        slow.push(TcpStream::connect(port(node)).unwrap());
        go_on(node, 50); // or the kernel's queue of them would be full
    }
    for byte in &words[..GREETING - 1] {
        slow.retain_mut(|guest| guest.write_all(&[*byte]).is_ok());
        go_on(node, 2000);
    }
    let guests = system::descriptors().saturating_sub(*descriptors + slow.len());
    assert!(guests <= 64 + 8, "{guests} descriptors for guests");
    serves(node); // while they are there
    drop(slow);
    scene.is_as_before();
}

#[test]
fn a_flood_of_sessions_has_an_end_and_others_come_after_it() {
    let mut scene = Scene::new();
    let Scene { node, random, memory, .. } = &mut scene;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(1600), ..limit }).unwrap();
    let (mut flood, nobody) = (Vec::new(), nobody());
    loop {
        let mut guest = TcpStream::connect(port(node)).unwrap();
        guest.write_all(&greeting(random, NEW, nobody)).unwrap();
        let answer = hear(node, &mut guest);
        if answer.get(10) != Some(&ADMITTED) {
            assert_eq!(answer.get(10), Some(&REFUSED));
            break;
        }
        flood.push(guest);
        assert!(flood.len() < 1600, "there is no end");
    }
    println!("{} sessions; Pss {} KiB", flood.len(), system::memory() >> 10);
    assert!(system::memory() < *memory + (64 << 20));
    drop(flood);
    forget_all(node);
    setrlimit(Resource::Nofile, limit).unwrap();
    scene.is_as_before();
}

#[test]
fn a_peer_that_writes_rubbish_loses_its_link_and_no_more() {
    let mut scene = Scene::new();
    let Scene { node, random, .. } = &mut scene;
    let until = Instant::now() + seconds(4);
    let (mut links, mut broken) = (0, 0);
    let nobody = nobody();
    while Instant::now() < until {
        let mut peer = TcpStream::connect(port(node)).unwrap();
        peer.write_all(&greeting(random, NEW, nobody)).unwrap();
        assert_eq!(hear(node, &mut peer).get(10), Some(&ADMITTED));
        peer.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        links += 1;
        let link = node.links().unwrap()[0];
        let gone = |node: &Node| node.link_info(link).is_ok_and(|info| info.gone.is_some());
        let mut position = 0;
        for _ in 0..random.below(400) {
            if peer.write_all(&rubbish(random, &mut position)).is_err() || gone(node) {
                break;
            }
            if random.once_in(8) {
                go_on(node, 20);
            }
        }
        go_on(node, 100);
        broken += u32::from(gone(node));
        let held = node.link_info(link).unwrap().bytes;
        assert!(held.iter().sum::<usize>() < 16 << 20, "{held:?}");
        drop(peer);
        forget_all(node);
    }
    println!("{links} links, {broken} of them broken by what was written");
    assert!(broken > 0);
    scene.is_as_before();
}

/// A frame: good, of any kind and with anything in it, or wrong in one place. The first of a link is mostly a good HELLO.
fn rubbish(random: &mut Random, position: &mut u32) -> Vec<u8> {
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
        // Too long, of no known sort, at another place, an answer to what was not sent, cut short, after the goodbye.
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
