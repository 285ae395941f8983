//! The protocol, byte by byte: what clients may say, and what hostile ones say.

mod support;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;
use support::{ACK, BLOCK_STATUS, Client, DF, DISCONNECT, FLUSH, FUA, Memory, READ, Scene, WRITE, number, pattern};

const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EPERM: u32 = 1;
const UNSUPPORTED: u32 = 1 << 31 | 1;
const INVALID: u32 = 1 << 31 | 3;
const UNKNOWN: u32 = 1 << 31 | 6;

#[test]
fn a_client_of_the_oldest_kind_gets_the_disk() {
    let scene = Scene::new(1 << 20);
    let mut client = Client::greeted(&scene.path("socket"));
    client.say(&[0, 0, 0, 0]);
    client.option(1, b"d");
    let export = client.take(8 + 2 + 124);
    assert_eq!(export[..8], (1_u64 << 20).to_be_bytes());
    assert!(export[10..] == [0; 124]);
    client.request(WRITE, 0, 1, 4096, 3);
    client.say(b"abc");
    assert_eq!(client.simple_reply(), (0, 1));
    client.request(READ, 0, 2, 4095, 5);
    assert_eq!(client.simple_reply(), (0, 2));
    assert_eq!(client.take(5), b"\0abc\0");
    client.request(READ, 0, 3, 1 << 20, 1);
    assert_eq!(client.simple_reply(), (EINVAL, 3));
    client.request(READ, 0, 4, 0, 1 << 20);
    assert_eq!(client.simple_reply(), (0, 4));
    assert_eq!(client.take(1 << 20)[4095..4100], *b"\0abc\0");
    client.request(DISCONNECT, 0, 5, 0, 0);
    client.is_closed();
}

#[test]
fn options_that_are_wrong_or_not_known_are_refused_and_the_next_one_is_understood() {
    let scene = Scene::new(1 << 20);
    let mut client = Client::greeted(&scene.path("socket"));
    client.say(&[0, 0, 0, 3]);
    for (option, data, expected) in [
        (5, &b""[..], UNSUPPORTED), // encryption
        (4711, &[7; 60_000], UNSUPPORTED),
        (3, b"x", INVALID),
        (8, b"x", INVALID),
        (7, b"", INVALID),
        (7, &[0xff; 12], INVALID),
        (7, b"\0\0\0\x05other\0\0", UNKNOWN),
        (10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation", INVALID), // before structured replies
    ] {
        client.option(option, data);
        assert_eq!(client.option_reply().0, expected, "option {option} with {} bytes", data.len());
    }
    client.option(3, b"");
    assert_eq!(client.option_reply(), (2, b"\0\0\0\x01d".to_vec()));
    assert_eq!(client.option_reply(), (ACK, vec![]));
    client.option(6, b"\0\0\0\x01d\0\x01\0\x03");
    assert_eq!(client.option_reply().1.len(), 12);
    assert_eq!(client.option_reply(), (3, b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0".to_vec()));
    assert_eq!(client.option_reply().0, ACK);
    client.option(2, b"");
    assert_eq!(client.option_reply().0, ACK);
    client.is_closed();
}

#[test]
fn structured_replies_have_holes_extents_and_errors() {
    let scene = Scene::new(4 << 20);
    let mut client = Client::greeted(&scene.path("socket"));
    client.say(&[0, 0, 0, 3]);
    client.option(8, b"");
    assert_eq!(client.option_reply().0, ACK);
    client.option(9, b"\0\0\0\0\0\0\0\0");
    assert_eq!(client.option_reply(), (4, b"\0\0\0\0base:allocation".to_vec()));
    assert_eq!(client.option_reply().0, ACK);
    client.option(10, b"\0\0\0\0\0\0\0\x02\0\0\0\x06qemu:x\0\0\0\x0fbase:allocation");
    let (kind, context) = client.option_reply();
    assert_eq!((kind, &context[4..]), (4, &b"base:allocation"[..]));
    assert_eq!(client.option_reply().0, ACK);
    client.option(7, b"\0\0\0\0\0\0");
    while client.option_reply().0 != ACK {}
    client.request(WRITE, FUA, 1, 1 << 20, 65536);
    let data = pattern(65536, 1);
    client.say(&data);
    assert_eq!(client.simple_reply(), (0, 1));
    // A read over zeroes and data.
    client.request(READ, 0, 2, (1 << 20) - 65536, 2 * 65536);
    let hole = [&((1_u64 << 20) - 65536).to_be_bytes()[..], &65536_u32.to_be_bytes()].concat();
    assert_eq!(client.chunk(), (false, 2, 2, hole));
    let (last, kind, _, payload) = client.chunk();
    assert!(last && kind == 1 && payload[8..] == data);
    // With NBD_CMD_FLAG_DF the zeroes and the data of that range are one chunk.
    client.request(READ, DF, 3, (1 << 20) - 65536, 2 * 65536);
    let (last, kind, _, payload) = client.chunk();
    assert!(last && kind == 1 && payload.len() == 8 + 2 * 65536 && payload[8 + 65536..] == data);
    // A read in several parts.
    client.request(READ, 0, 4, 0, 4 << 20);
    let mut covered = 0;
    loop {
        let (last, kind, _, payload) = client.chunk();
        covered += if kind == 2 { number(&payload[8..12]) } else { u32::try_from(payload.len()).unwrap() - 8 };
        if last {
            break;
        }
    }
    assert_eq!(covered, 4 << 20);
    client.request(BLOCK_STATUS, 0, 5, 0, 4 << 20);
    let expected = [(1 << 20, 3), (65536, 0), ((3 << 20) - 65536, 3)];
    let extents: Vec<u8> = expected
        .iter()
        .flat_map(|(length, state): &(u32, u32)| [length.to_be_bytes(), state.to_be_bytes()].concat())
        .collect();
    let (last, kind, cookie, payload) = client.chunk();
    assert_eq!((last, kind, cookie, &payload[4..]), (true, 5, 5, &extents[..]));
    client.request(READ, 0, 6, u64::MAX, 1);
    assert_eq!(client.chunk(), (true, 0x8001, 6, [&EINVAL.to_be_bytes()[..], &[0, 0]].concat()));
    client.request(WRITE, 0, 7, 4 << 20, 1);
    client.say(b"x");
    assert_eq!(client.simple_reply(), (ENOSPC, 7));
    client.request(99, 0, 8, 0, 0);
    assert_eq!(client.simple_reply(), (EINVAL, 8));
    client.request(FLUSH, 0, 9, 0, 0);
    assert_eq!(client.simple_reply(), (0, 9));
    client.request(READ, 0, 10, 0, 0);
    assert_eq!(client.chunk(), (true, 0, 10, vec![]));
}

#[test]
fn a_write_that_is_refused_leaves_the_connection_in_step() {
    let scene = Scene::with(8 << 20, true);
    let mut client = scene.connect();
    for (cookie, length) in [(1, 10), (2, 100_000), (3, 3 << 20)] {
        client.request(WRITE, 0, cookie, 0, length);
        client.say(&vec![7; length as usize]);
        assert_eq!(client.simple_reply(), (EPERM, cookie));
    }
    client.request(READ, 0, 4, 0, 100);
    assert_eq!(client.chunk().1, 2, "zeroes");
}

#[test]
fn a_disk_that_became_shorter_gives_an_error() {
    let scene = Scene::new(8 << 20);
    let mut client = scene.connect();
    let mut simple = Client::connect(&scene.path("socket"), false);
    let disk = std::fs::OpenOptions::new().write(true).open(scene.disk()).expect("the disk");
    disk.set_len(100).expect("a shorter disk");
    client.request(READ, 0, 1, 4096, 10);
    assert_eq!(client.chunk(), (true, 0x8001, 1, [&EIO.to_be_bytes()[..], &[0, 0]].concat()));
    simple.request(READ, 0, 2, 4096, 10);
    assert_eq!(simple.simple_reply(), (EIO, 2));
}

#[test]
fn hostile_handshakes_end_and_disturb_no_other_client() {
    let scene = Scene::new(1 << 20);
    let socket = scene.path("socket");
    let closed = |bytes: &[u8]| {
        let mut client = Client::greeted(&socket);
        client.say(bytes);
        client.is_closed();
    };
    closed(&[0xff; 4]);
    closed(b"\0\0\0\x03GARBAGE!\0\0\0\x07\0\0\0\0");
    closed(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff");
    closed(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x05other");
    closed(b"\0\0\0\0IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
    // A client that goes away after any byte.
    let whole = b"\0\0\0\x03IHAVEOPT\0\0\0\x08\0\0\0\0IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";
    for end in 0..whole.len() {
        let mut client = Client::greeted(&socket);
        client.say(&whole[..end]);
    }
    // One that asks without end.
    let mut client = Client::greeted(&socket);
    client.say(&[0, 0, 0, 3]);
    let mut answers = client.0.try_clone().expect("another descriptor");
    let reading = std::thread::spawn(move || answers.read_to_end(&mut Vec::new()));
    while client.0.write_all(b"IHAVEOPT\0\0\x12\x34\0\0\0\0").is_ok() {}
    let _ = reading.join().expect("a thread");
    scene.connect().request(READ, 0, 1, 0, 1);
}

#[test]
fn hostile_requests_end_the_connection() {
    let scene = Scene::new(1 << 20);
    for bytes in [
        &[0xff; 28][..],
        &support::request(WRITE, 0, 1, 0, u32::MAX),
        &support::request(WRITE, 0, 1, 0, (32 << 20) + 1),
    ] {
        let mut client = scene.connect();
        client.say(bytes);
        client.is_closed();
    }
    // A write whose data do not come.
    for length in [10_u32, 1 << 20, 5 << 20] {
        let mut client = scene.connect();
        client.request(WRITE, 0, 1, 0, length);
        client.say(&[1; 5]);
    }
    let mut client = scene.connect();
    client.request(READ, 0, 2, 0, 1);
    assert_eq!(client.chunk().2, 2);
}

#[test]
fn a_client_that_does_not_read_holds_little_memory() {
    const REQUESTS: u64 = 10_000;
    const LENGTH: u32 = 65536;
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let (memory, _server) = Memory::serve(1 << 20, &socket);
    memory.bytes.lock().unwrap().copy_from_slice(&pattern(1 << 20, 3));
    let mut client = Client::connect(&socket, true);
    let mut sender = client.0.try_clone().expect("another descriptor");
    let sending = std::thread::spawn(move || {
        for cookie in 0..REQUESTS {
            let request = support::request(READ, 0, cookie, (cookie % 16) * u64::from(LENGTH), LENGTH);
            sender.write_all(&request).expect("the server receives");
        }
    });
    // The threads of the connection wait until the client reads.
    while memory.read.load(Ordering::SeqCst) < 16 * LENGTH as usize {
        std::thread::yield_now();
    }
    let mut other = Client::connect(&socket, true);
    for cookie in 0..1000 {
        other.request(READ, 0, cookie, 0, 512);
        assert_eq!(other.chunk().2, cookie, "another client is served");
    }
    let held = memory.read.load(Ordering::SeqCst);
    assert!(held < 64 << 20, "{held} bytes were read for a client that does not read");
    let mut seen = vec![false; REQUESTS as usize];
    for _ in 0..REQUESTS {
        let (last, _, cookie, payload) = client.chunk();
        assert!(last && payload.len() == 8 + LENGTH as usize);
        assert!(!std::mem::replace(&mut seen[cookie as usize], true), "two replies to request {cookie}");
    }
    sending.join().expect("a thread");
}

#[test]
fn the_socket_is_its_users_alone_and_ends_with_the_server() {
    let mut scene = Scene::new(1 << 20);
    let socket = scene.path("socket");
    let mode = std::fs::metadata(&socket).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = scene.connect();
    client.request(READ, 0, 1, 0, 1);
    drop(scene.server.take());
    assert_eq!(client.chunk().2, 1, "a request that was received is answered");
    client.is_closed();
    assert!(!socket.exists());
}

#[test]
fn clients_beyond_the_limit_are_disconnected_until_another_one_leaves() {
    let scene = Scene::new(1 << 20);
    let mut clients: Vec<_> = (0..32).map(|_| scene.connect()).collect();
    Client(std::os::unix::net::UnixStream::connect(scene.path("socket")).expect("a connection")).is_closed();
    clients.pop();
    while scene.server.as_ref().is_some_and(|server| server.clients() == 32) {
        std::thread::yield_now();
    }
    scene.connect().request(READ, 0, 1, 0, 1);
}
