//! Strangers at a node's port, and peers that greet properly and then write rubbish: the node shows them out or breaks their link, holds
//! no more than it may, and serves others as before.
#![forbid(unsafe_code)]

use motet::node::{Error, Node, RecvFrom, Serve};
use motet_sys::rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use motet_torture::mesh::way;
use motet_torture::random::Random;
use motet_torture::{LIMIT, forget_all, seconds, seed, system};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const GREETING: usize = 64;
// Wishes, and sorts of frames: docs/messages.md, "Over TCP".
const NEW: u8 = 1;
const PROBE: u8 = 4;
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
    let _ = node.progress_until(|| false, Some(motet::node::deadline_in(us * 1000)));
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
        let gone = |node: &Node| node.link_info(link).map_or(true, |info| info.gone.is_some());
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
        let held = node.link_info(link).map_or([0; 2], |info| info.bytes); // one that has broken is forgotten
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

/// Says hello, and asks for channels: every other one to a service that there is.
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
fn whoever_comes_and_goes_leaves_nothing_behind() {
    let mut scene = Scene::new();
    let Scene { node, random, .. } = &mut scene;
    let nobody = nobody();
    for _ in 0..300 {
        let mut guest = TcpStream::connect(port(node)).unwrap();
        guest.write_all(&greeting(random, NEW, nobody)).unwrap();
        assert_eq!(hear(node, &mut guest).get(10), Some(&ADMITTED));
        guest.write_all(&visit(200)).unwrap();
        go_on(node, 2000);
        assert!(!node.links().unwrap().is_empty(), "it is there as long as it stays");
    }
    let began = Instant::now();
    while !node.links().unwrap().is_empty() {
        assert!(began.elapsed() < LIMIT, "{} links are left", node.links().unwrap().len());
        go_on(node, 1000);
    }
    assert!(matches!(node.accept(1, Some(Duration::ZERO)), Err(Error::WouldBlock | Error::TimedOut)), "nor a channel");
    scene.is_as_before();
}

#[test]
fn what_was_sent_before_the_end_is_received_and_then_the_link_is_forgotten() {
    let _alone = alone();
    let node = node();
    for accepts in [true, false] {
        let context = node.context().unwrap();
        node.serve(2, Serve::Tagged(context)).unwrap();
        let friend = Node::open("").unwrap();
        let address = format!("tcp://{}", port(&node));
        std::thread::scope(|scope| {
            let called = scope.spawn(|| {
                let link = friend.connect(&address, Some(LIMIT)).unwrap();
                let here = friend.open_channel(link, 2, Serve::Queue, Some(LIMIT)).unwrap();
                friend.send(here, 9, b"last words", Some(LIMIT)).unwrap();
                friend.disconnect(link).unwrap();
                let _ = friend.progress_until(|| false, Some(motet::node::deadline_in(50_000_000)));
            });
            while !called.is_finished() {
                go_on(&node, 100);
            }
        });
        drop(friend);
        let gone = |node: &Node| node.links().unwrap().iter().all(|link| node.link_info(*link).unwrap().gone.is_some());
        let began = Instant::now();
        while !gone(&node) {
            assert!(began.elapsed() < LIMIT);
            go_on(&node, 100);
        }
        assert_eq!(node.links().unwrap().len(), 1, "a message waits");
        let channel = accepts.then(|| node.accept(2, Some(LIMIT)).unwrap());
        let mut buffer = [0; 16];
        let got = node.receive_tagged(RecvFrom::Any(context), 0, u64::MAX, &mut buffer, Some(LIMIT)).unwrap();
        assert_eq!((got.tag, &buffer[..got.length]), (9, &b"last words"[..]));
        if let Some(channel) = channel {
            go_on(&node, 2000);
            assert_eq!(node.links().unwrap().len(), 1, "the program has a channel of it");
            node.close_channel(channel).unwrap();
        }
        let began = Instant::now();
        while !node.links().unwrap().is_empty() {
            assert!(began.elapsed() < LIMIT, "it is not forgotten");
            go_on(&node, 1000);
        }
        node.withdraw(2).unwrap();
        node.remove_context(context).unwrap();
    }
}

#[test]
fn a_burst_of_callers_is_heard_to_the_last() {
    let mut scene = Scene::new();
    let Scene { node, random, .. } = &mut scene;
    let mut callers: Vec<_> = (0..400).map(|_| TcpStream::connect(port(node)).unwrap()).collect();
    for caller in &mut callers {
        caller.write_all(&greeting(random, NEW, 0)).unwrap();
    }
    for (at, caller) in callers.iter_mut().enumerate() {
        assert_eq!(hear(node, caller).get(10), Some(&ADMITTED), "caller {at}");
    }
    drop(callers);
    forget_all(node);
    scene.is_as_before();
}

#[test]
fn a_flood_of_strangers_keeps_nobody_out() {
    let scene = Scene::new();
    let at = port(&scene.node);
    let (over, came) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for n in 0..8u64 {
            let (at, over, came) = (&at, &over, &came);
            scope.spawn(move || {
                let mut random = Random(seed() ^ n << 32);
                let mut kept: std::collections::VecDeque<TcpStream> = Default::default();
                while !over.load(Ordering::Relaxed) {
                    let Ok(mut guest) = TcpStream::connect(at) else { continue };
                    let wish = 1 + random.below(12) as u8;
                    let mut bytes = greeting(&mut random, wish, 0).to_vec();
                    match random.below(6) {
                        0 => bytes.clear(),
                        1 => bytes.truncate(1 + random.below(62) as usize),
                        2 => bytes = vec![b'M'; 64],
                        3 => bytes[8] ^= 1,
                        // A session that cannot be.
                        4 => {
                            bytes[10] = NEW;
                            bytes[56..60].fill(0);
                        }
                        _ => bytes[10] = PROBE,
                    }
                    let _ = guest.write_all(&bytes);
                    came.fetch_add(1, Ordering::Relaxed);
                    kept.push_back(guest);
                    if kept.len() > 100 {
                        kept.pop_front();
                    }
                }
            });
        }
        while came.load(Ordering::Relaxed) < 1000 {
            go_on(&scene.node, 100);
        }
        // As in a program: whatever else it does, its node makes progress.
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                go_on(&scene.node, 1000);
            }
        });
        let mut served = 0;
        while served < 10 || came.load(Ordering::Relaxed) < 20_000 {
            serves(&scene.node);
            served += 1;
        }
        println!("{served} were served");
        over.store(true, Ordering::Relaxed);
    });
    println!("{} strangers came", came.load(Ordering::Relaxed));
    scene.is_as_before();
}

/// What is answered to these bytes when another user of this host sends them.
fn answer_to_another_user(node: &Node, bytes: &[u8]) -> Vec<u8> {
    let at = port(node).replace(':', "/");
    let script = format!("exec 3<>/dev/tcp/{at} && cat >&3 && head -c 64 <&3");
    let mut command = Command::new("bash");
    command.args(["-c", &script]).uid(65533).gid(65533).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut guest = command.spawn().unwrap();
    guest.stdin.take().unwrap().write_all(bytes).unwrap();
    let began = Instant::now();
    while guest.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < LIMIT);
        go_on(node, 100);
    }
    let mut said = Vec::new();
    guest.stdout.take().unwrap().read_to_end(&mut said).unwrap();
    said
}

#[test]
fn another_user_of_the_host_is_a_stranger_even_with_the_secret() {
    if motet_sys::thread::euid() != 0 {
        return motet_torture::skip("another user of the host", "only root can be another user");
    }
    let mut scene = Scene::new();
    let Scene { node, random, .. } = &mut scene;
    let address = way(&node.address().unwrap(), "tcp");
    let digits = address.trim_start_matches("tcp://").split_once('@').unwrap().0;
    let secret = u64::from_str_radix(&digits[..16], 16).unwrap();
    let named = TcpListener::bind("127.0.0.1:0").unwrap();
    named.set_nonblocking(true).unwrap();
    for said in [secret, 0, secret ^ 1] {
        let mut bytes = greeting(random, NEW, named.local_addr().unwrap().port());
        bytes[48..56].copy_from_slice(&said.to_le_bytes());
        let answer = answer_to_another_user(node, &bytes);
        assert_eq!(answer.get(10), Some(&STRANGER), "{answer:?}");
        assert_eq!(
            (&answer[16..32], &answer[48..62]),
            (&[0; 16][..], &[0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 1, 0, 0, 0][..])
        );
        go_on(node, 50_000);
        assert!(node.links().unwrap().is_empty());
        assert!(named.accept().is_err(), "the port that a stranger names is not called");
    }
    scene.is_as_before();
}
