//! Messages whose body is a range of a file, over TCP: of several lengths and at once, over connections that break, of files that become shorter, and to
//! receivers that end. Over shared memory they are read into memory first.

use motet::node::{
    Channel, Completion, CompletionOptions, Error, FileRange, Mode, Node, NodeOptions, OperationId, Outgoing, Serve,
    Status, options,
};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));
const LIMIT: Duration = Duration::from_secs(60);

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile();
    file.write_all(bytes).unwrap();
    file
}

/// A file without a name.
fn tempfile() -> File {
    let path =
        std::env::temp_dir().join(format!("motet-file-bodies-{}-{:?}", std::process::id(), thread::current().id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

fn range(file: &File, offset: u64, length: u64) -> FileRange {
    FileRange::new(file.try_clone().unwrap().into(), offset, length).unwrap()
}

/// A node that listens for other hosts, with one driver.
fn node(driver: &str) -> Node {
    let all = options("", Some("127.0.0.1:0".parse().unwrap()));
    let drivers = all.drivers.iter().copied().filter(|known| known.name() == driver).collect();
    Node::with(&NodeOptions { drivers, ..all }).unwrap()
}

/// A channel between two nodes; the first one has connected, by way of `through`.
fn connected(near: &Node, far: &Node, through: impl FnOnce(&str) -> String) -> (Channel, Channel) {
    far.serve(1, Serve::Queue).unwrap();
    thread::scope(|scope| {
        let there = scope.spawn(|| far.accept(1, TIMEOUT).unwrap());
        let link = near.connect(&through(&far.address().unwrap()), TIMEOUT).unwrap();
        let here = near.open_channel(link, 1, Serve::Queue, TIMEOUT).unwrap();
        (here, there.join().unwrap())
    })
}

/// Starts a send; `None`: the message has left.
fn start(node: &Node, channel: Channel, tag: u64, file: FileRange) -> Option<OperationId> {
    let message = Outgoing { channel, tag, headers: b"head", mode: Mode::Automatic };
    let until = Instant::now() + LIMIT;
    loop {
        match node.start_send_file(&message, file.clone(), CompletionOptions::default()) {
            Err(Error::WouldBlock) if Instant::now() < until => {
                node.progress().unwrap();
            }
            started => return started.unwrap(),
        }
    }
}

fn finish(node: &Node, operation: Option<OperationId>) -> Status {
    let Some(operation) = operation else { return Status::Done };
    let Completion { status, .. } = node.wait_for(operation, Some(motet::node::deadline_in(60_000_000_000))).unwrap();
    status
}

/// Receives a message, checks its headers, and returns its tag and its body.
fn receive(node: &Node, channel: Channel, room: usize) -> Result<(u64, Vec<u8>), Error> {
    let (mut headers, mut buffer) = (Vec::new(), vec![0xee; room]);
    let from = motet::node::RecvFrom::Channel(channel);
    let received = node.receive_with(from, 0, u64::MAX, &mut headers, &mut buffer, TIMEOUT)?;
    assert_eq!(headers, b"head");
    buffer.truncate(received.length);
    Ok((received.tag, buffer))
}

/// Passes bytes between a listener and a node, and breaks every connection after so many bytes, some times.
struct Breaker {
    address: String,
    breaks: Arc<AtomicUsize>,
}

impl Breaker {
    fn new(address: &str, after: u64, breaks: usize) -> Self {
        let tcp = address.split(',').find_map(|part| part.strip_prefix("tcp://")).expect("an address for TCP");
        let (secret, place) = tcp.split_once('@').expect("a secret");
        let (listener, place) = (TcpListener::bind("127.0.0.1:0").unwrap(), place.to_owned());
        let address = format!("tcp://{secret}@{}", listener.local_addr().unwrap());
        let left = Arc::new(AtomicUsize::new(breaks));
        let breaks = Arc::clone(&left);
        thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let Ok(far) = TcpStream::connect(&place) else { continue };
                let passed = Arc::new(AtomicU64::new(0));
                for (mut from, mut to) in [
                    (near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (far.try_clone().unwrap(), near.try_clone().unwrap()),
                ] {
                    let (passed, left) = (Arc::clone(&passed), Arc::clone(&left));
                    thread::spawn(move || {
                        let mut bytes = vec![0; 10_000];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            let all = passed.fetch_add(count as u64, Ordering::SeqCst) + count as u64;
                            let is_over = all > after
                                && left
                                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                                    .is_ok();
                            if is_over || to.write_all(&bytes[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        Self { address, breaks }
    }
}

#[test]
fn files_arrive_whole_by_every_driver() {
    for driver in ["tcp", "shm"] {
        let (near, far) = (node(driver), node(driver));
        let (here, there) = connected(&near, &far, |address| address.to_owned());
        assert_eq!(near.sends_files(here), driver == "tcp");
        let bytes = pattern(5 << 20);
        let file = file(&bytes);
        for (offset, length) in [(0, 0), (0, 1), (4095, 2), (7, 65_536), (0, 65_537), (1, 1 << 20), (12_345, 4 << 20)] {
            thread::scope(|scope| {
                scope.spawn(|| {
                    let operation = start(&near, here, length, range(&file, offset, length));
                    assert_eq!(finish(&near, operation), Status::Done);
                });
                let (tag, body) = receive(&far, there, 5 << 20).unwrap();
                assert_eq!((tag, body.len() as u64), (length, length));
                assert!(
                    body == bytes[offset as usize..][..length as usize],
                    "{driver}: {length} bytes from {offset} on"
                );
            });
        }
        // A receive that has less room.
        thread::scope(|scope| {
            scope.spawn(|| {
                let operation = start(&near, here, 1, range(&file, 0, 1 << 20));
                assert_eq!(finish(&near, operation), Status::Done);
            });
            assert!(matches!(receive(&far, there, 1000), Err(Error::Truncated)));
        });
    }
}

#[test]
fn files_and_other_messages_share_a_link() {
    let (near, far) = (node("tcp"), node("tcp"));
    let (here, there) = connected(&near, &far, |address| address.to_owned());
    let bytes = pattern(3 << 20);
    let file = file(&bytes);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut started = Vec::new();
            for number in 0..60u64 {
                started.push(start(&near, here, number, range(&file, number * 1000, 1 << 20)));
                let message = Outgoing { channel: here, tag: 1000 + number, headers: b"head", mode: Mode::Automatic };
                near.send_with(&message, &[&bytes[..number as usize * 100]], TIMEOUT).unwrap();
            }
            for operation in started {
                assert_eq!(finish(&near, operation), Status::Done);
            }
        });
        for number in 0..60u64 {
            let (tag, body) = receive(&far, there, 1 << 20).unwrap();
            assert!(tag == number && body == bytes[number as usize * 1000..][..1 << 20], "message {number}");
            let (tag, body) = receive(&far, there, 1 << 20).unwrap();
            assert!(tag == 1000 + number && body == bytes[..number as usize * 100], "short message {number}");
        }
    });
}

#[test]
fn connections_that_break_lose_nothing_of_a_file() {
    let bytes = pattern(6 << 20);
    let file = file(&bytes);
    // The side that has connected sends, and the other one.
    for called_sends in [false, true] {
        let (near, far) = (node("tcp"), node("tcp"));
        let mut breaker = None;
        let (here, there) = connected(&near, &far, |address| {
            let made = Breaker::new(address, 700_000, 4);
            let address = made.address.clone();
            breaker = Some(made);
            address
        });
        let (sender, receiver) =
            if called_sends { ((&far, there), (&near, here)) } else { ((&near, here), (&far, there)) };
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..6 {
                    let operation = start(sender.0, sender.1, number, range(&file, number * 77, 5 << 20));
                    assert_eq!(finish(sender.0, operation), Status::Done);
                }
            });
            for number in 0..6 {
                let (tag, body) = receive(receiver.0, receiver.1, 6 << 20).unwrap();
                assert!(tag == number && body == bytes[number as usize * 77..][..5 << 20], "message {number}");
            }
        });
        assert_eq!(breaker.expect("the breaker").breaks.load(Ordering::SeqCst), 0, "the connections were broken");
    }
}

#[test]
fn what_a_file_has_no_more_is_zeros() {
    let (near, far) = (node("tcp"), node("tcp"));
    let (here, there) = connected(&near, &far, |address| address.to_owned());
    let bytes = pattern(4 << 20);
    // Before it is sent.
    let short = file(&bytes[..100_000]);
    thread::scope(|scope| {
        scope.spawn(|| finish(&near, start(&near, here, 1, range(&short, 50_000, 1 << 20))));
        let (_, body) = receive(&far, there, 1 << 20).unwrap();
        assert!(body.len() == 1 << 20 && body[..50_000] == bytes[50_000..100_000]);
        assert!(body[50_000..].iter().all(|&byte| byte == 0));
    });
    // While it is sent: each byte is the file's or zero, and the next message is whole.
    let (shrinking, ends) = (file(&bytes), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                for length in [3 << 20, 1_234_567, 4096, 1] {
                    shrinking.set_len(length).unwrap();
                }
                shrinking.write_all_at(&bytes, 0).unwrap();
            }
        });
        scope.spawn(|| {
            for number in 0..12 {
                let operation = start(&near, here, number, range(&shrinking, 0, 4 << 20));
                assert_eq!(finish(&near, operation), Status::Done);
            }
        });
        for number in 0..12 {
            let (tag, body) = receive(&far, there, 4 << 20).unwrap();
            assert_eq!((tag, body.len()), (number, 4 << 20));
            let wrong = body.iter().zip(&bytes).position(|(got, is)| got != is && *got != 0);
            assert_eq!(wrong, None, "message {number}");
        }
        ends.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_file_that_cannot_be_read_ends_the_link_and_so_does_the_receiver() {
    let (near, far) = (node("tcp"), node("tcp"));
    let (here, there) = connected(&near, &far, |address| address.to_owned());
    let folder = FileRange::new(File::open("/").unwrap().into(), 0, 1 << 20).unwrap();
    let is_known = AtomicBool::new(false);
    thread::scope(|scope| {
        let (near, is_known) = (&near, &is_known);
        scope.spawn(move || {
            assert_eq!(finish(near, start(near, here, 1, folder)), Status::LinkDown);
            // The peer asks whether this node still has the session.
            while !is_known.load(Ordering::Relaxed) {
                near.progress().unwrap();
                thread::yield_now();
            }
        });
        assert!(receive(&far, there, 1 << 20).is_err());
        is_known.store(true, Ordering::Relaxed);
    });
    // The receiver ends in the midst: the operations complete.
    let bytes = pattern(8 << 20);
    let (near, far) = (node("tcp"), node("tcp"));
    let (here, there) = connected(&near, &far, |address| address.to_owned());
    let file = file(&bytes);
    let operations: Vec<_> = (0..20).map(|number| start(&near, here, number, range(&file, 0, 8 << 20))).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (_, body) = receive(&far, there, 8 << 20).unwrap();
            assert!(body == bytes);
            far.disconnect(there.link).unwrap();
        });
        let statuses: Vec<_> = operations.iter().map(|&operation| finish(&near, operation)).collect();
        assert_eq!((statuses[0], statuses[19]), (Status::Done, Status::LinkDown));
    });
}
