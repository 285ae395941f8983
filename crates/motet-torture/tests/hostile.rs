//! Malformed handshakes over shared memory, and peers that connect correctly and then write garbage: the node refuses them or breaks their link, and
//! serves others as before.
#![forbid(unsafe_code)]

use motet::node::{Node, Serve};
use motet_sys::rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use motet_sys::rustix::{fs, io, pipe};
use motet_sys::socket::{connect_abstract, eventfd, receive_with_fds, send_message, send_with_fds};
use motet_torture::random::Random;
use motet_torture::raw_peer::{CELLS, FIFO_BYTES, HEAD_BYTES, LINK_BYTES, handshake, listener_name, sealed};
use motet_torture::{HANG_LIMIT, forget_all, one_at_a_time, seconds, seed, skip, system};
use std::time::{Duration, Instant};

const VERSION_AT: usize = 8;
const EAGAIN: i32 = io::Errno::AGAIN.raw_os_error();

fn node() -> Node {
    let node = Node::open("").unwrap();
    node.serve(1, Serve::Queue).unwrap();
    node
}

/// Sends a handshake and makes progress until the node answers or closes the connection. Returns the answer.
fn send_handshake(node: &Node, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Vec<u8> {
    let connection = connect_abstract(&listener_name(node)).unwrap();
    if files.is_empty() {
        send_message(&connection, bytes).unwrap();
    } else {
        send_with_fds(&connection, bytes, files).unwrap();
    }
    let began = Instant::now();
    loop {
        let _ = node.progress_until(|| false, Some(motet::node::deadline_in(200_000)));
        let mut answer = vec![0; 100];
        match receive_with_fds::<2>(&connection, &mut answer) {
            Ok((length, _)) => {
                answer.truncate(length);
                return answer;
            }
            Err(EAGAIN) => assert!(began.elapsed() < HANG_LIMIT, "no answer"),
            Err(_) => return Vec::new(),
        }
    }
}

/// Another node can still connect and send.
fn serves_other_peers(node: &Node) {
    let other_node = Node::open("").unwrap();
    std::thread::scope(|scope| {
        let there = scope.spawn(|| node.accept(1, Some(HANG_LIMIT)).unwrap());
        let link = other_node.connect(&node.name().unwrap(), Some(HANG_LIMIT)).unwrap();
        let here = other_node.open_channel(link, 1, Serve::Queue, Some(HANG_LIMIT)).unwrap();
        other_node.send(here, 3, b"friend", Some(HANG_LIMIT)).unwrap();
        let there = there.join().unwrap();
        assert_eq!(node.receive(there, &mut [0; 8], Some(HANG_LIMIT)).unwrap().tag, 3);
        node.disconnect(there.link).unwrap();
    });
}

#[test]
fn malformed_handshakes_are_refused_and_cost_nothing() {
    let _exclusive = one_at_a_time();
    let node = node();
    serves_other_peers(&node);
    forget_all(&node);
    let before = system::descriptors();
    let good = handshake();
    let doorbell = eventfd().unwrap();
    let file = sealed(LINK_BYTES);
    let short = sealed(LINK_BYTES - 4096);
    let long = sealed(LINK_BYTES + 4096);
    let open = fs::memfd_create("open", fs::MemfdFlags::CLOEXEC | fs::MemfdFlags::ALLOW_SEALING).unwrap();
    fs::ftruncate(&open, LINK_BYTES as u64).unwrap();
    let half = fs::memfd_create("half", fs::MemfdFlags::CLOEXEC | fs::MemfdFlags::ALLOW_SEALING).unwrap();
    fs::ftruncate(&half, LINK_BYTES as u64).unwrap();
    fs::fcntl_add_seals(&half, fs::SealFlags::GROW).unwrap();
    let (reader, writer) = pipe::pipe().unwrap();
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let (file, doorbell) = (file.as_fd(), doorbell.as_fd());
    let refused = |what: &str, bytes: &[u8], files: &[BorrowedFd<'_>]| {
        let answer = send_handshake(&node, bytes, files);
        let said_no = answer.len() < 16 || answer[12..16] != [0; 4];
        assert!(said_no, "{what}: {answer:?}");
    };
    for length in 0..good.len() {
        if length > 0 {
            refused("truncated", &good[..length], &[file, doorbell]);
        }
    }
    refused("too long", &[&good[..], &[0]].concat(), &[file, doorbell]);
    refused("garbage", &[0x5a; 40], &[file, doorbell]);
    let mut version = good.clone();
    version[VERSION_AT] ^= 0xff;
    refused("another version", &version, &[file, doorbell]);
    for lines in [0u32, 1, 63, 100, 127, 129, 8192, u32::MAX, 1 << 31] {
        let mut bytes = good.clone();
        bytes[12..16].copy_from_slice(&lines.to_le_bytes());
        refused("lines", &bytes, &[file, doorbell]);
    }
    refused("no descriptors", &good, &[]);
    refused("no doorbell", &good, &[file]);
    refused("the wrong way round", &good, &[doorbell, file]);
    refused("a short file", &good, &[short.as_fd(), doorbell]);
    refused("a long file", &good, &[long.as_fd(), doorbell]);
    refused("an unsealed file", &good, &[open.as_fd(), doorbell]);
    refused("a file that may shrink", &good, &[half.as_fd(), doorbell]);
    refused("a pipe for a doorbell", &good, &[file, writer.as_fd()]);
    refused("a socket for a doorbell", &good, &[file, one.as_fd()]);
    refused("a file for a doorbell", &good, &[file, null.as_fd()]);
    refused("a pipe for a file", &good, &[reader.as_fd(), doorbell]);
    refused("a socket for a file", &good, &[other.as_fd(), doorbell]);
    match fs::memfd_create("huge", fs::MemfdFlags::CLOEXEC | fs::MemfdFlags::ALLOW_SEALING | fs::MemfdFlags::HUGETLB) {
        Ok(huge) => {
            let _ = fs::ftruncate(&huge, 2 << 20);
            let _ = fs::fcntl_add_seals(&huge, fs::SealFlags::SHRINK | fs::SealFlags::GROW);
            refused("huge pages", &good, &[huge.as_fd(), doorbell]);
        }
        Err(errno) => skip("handshakes: huge pages", &format!("no memfd of huge pages: {errno}")),
    }
    // Additional descriptors are closed; the handshake is valid otherwise.
    let answer = send_handshake(&node, &good, &[file, doorbell, one.as_fd(), null.as_fd()]);
    assert_eq!(answer[12..16], [0; 4], "a valid handshake is answered");
    forget_all(&node);
    serves_other_peers(&node);
    forget_all(&node);
    drop((reader, writer, one, other, null, open, half, short, long));
    assert!(system::descriptors() <= before + 2, "{} descriptors, {before} before", system::descriptors());
}

#[test]
fn silent_connections_block_no_peer_and_wake_no_node() {
    let _exclusive = one_at_a_time();
    let node = node();
    let silent: Vec<_> = (0..100).map(|_| connect_abstract(&listener_name(&node)).unwrap()).collect();
    serves_other_peers(&node);
    // The node has closed or parked all silent connections by then, and a waiting thread sleeps.
    let busy = cpu_time();
    let _ = node.progress_until(|| false, Some(motet::node::deadline_in(2_500_000_000)));
    let busy = cpu_time() - busy;
    println!("{busy:?} of CPU time in 2.5 s");
    assert!(busy < Duration::from_millis(1500), "{busy:?}");
    drop(silent);
    serves_other_peers(&node);
}

#[test]
fn node_with_a_dead_link_sleeps() {
    let _exclusive = one_at_a_time();
    let (node, other_node) = (node(), Node::open("").unwrap());
    let link = std::thread::scope(|scope| {
        scope.spawn(|| node.accept(1, Some(HANG_LIMIT)).unwrap());
        let link = other_node.connect(&node.name().unwrap(), Some(HANG_LIMIT)).unwrap();
        other_node.open_channel(link, 1, Serve::Queue, Some(HANG_LIMIT)).unwrap();
        link
    });
    drop(node);
    let began = Instant::now();
    while other_node.link_info(link).unwrap().gone.is_none() {
        assert!(began.elapsed() < HANG_LIMIT);
        let _ = other_node.progress_until(|| false, Some(motet::node::deadline_in(200_000)));
    }
    let busy = cpu_time();
    let _ = other_node.progress_until(|| false, Some(motet::node::deadline_in(2_000_000_000)));
    let busy = cpu_time() - busy;
    assert!(busy < Duration::from_millis(1000), "{busy:?} of CPU time in 2 s");
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let time = motet_sys::rustix::time::clock_gettime(motet_sys::rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn peer_that_writes_garbage_loses_only_its_link() {
    let _exclusive = one_at_a_time();
    let mut random = Random(seed());
    let node = node();
    let good = handshake();
    serves_other_peers(&node);
    forget_all(&node);
    let (before, memory_before) = (system::descriptors(), system::memory());
    let until = Instant::now() + seconds(4);
    let (mut links, mut broken) = (0, 0);
    while Instant::now() < until {
        let (file, doorbell) = (sealed(LINK_BYTES), eventfd().unwrap());
        let connection = connect_abstract(&listener_name(&node)).unwrap();
        send_with_fds(&connection, &good, &[file.as_fd(), doorbell.as_fd()]).unwrap();
        let began = Instant::now();
        while node.links().unwrap().is_empty() {
            assert!(began.elapsed() < HANG_LIMIT, "not connected");
            let _ = node.progress_until(|| false, Some(motet::node::deadline_in(50_000)));
        }
        links += 1;
        let link = node.links().unwrap()[0];
        // A broken link may be forgotten already.
        let gone = |node: &Node| node.link_info(link).map_or(true, |info| info.gone.is_some());
        let mut position = 0u64;
        for _ in 0..random.below(400) {
            garbage(&mut random, &file, &mut position);
            if random.once_in(8) {
                let _ = node.progress();
            }
            if gone(&node) {
                broken += 1;
                break;
            }
        }
        let held = node.link_info(link).map_or([0; 2], |info| info.bytes);
        assert!(held.iter().sum::<usize>() < 16 << 20, "{held:?}");
        drop(connection);
        forget_all(&node);
    }
    println!("{links} links, {broken} of them broken by what was written");
    assert!(broken > 0);
    serves_other_peers(&node);
    forget_all(&node);
    assert!(system::descriptors() <= before, "{} descriptors, {before} before", system::descriptors());
    println!("Pss {} KiB, {} before", system::memory() >> 10, memory_before >> 10);
    assert!(system::memory() < memory_before + (64 << 20));
}

/// Writes garbage into the FIFO to the node, or anywhere in the link's memory.
fn garbage(random: &mut Random, file: &OwnedFd, position: &mut u64) {
    let put = |at: usize, bytes: &[u8]| {
        let _ = io::pwrite(file, bytes, at as u64);
    };
    match random.below(12) {
        // A packet with a valid control word, of any kind and content. The first of a link is mostly a HELLO.
        0..8 => {
            let line = (*position as usize) % CELLS;
            let mut payload: Vec<u8> =
                (0..56).map(|_| if random.once_in(3) { random.number() as u8 } else { 0 }).collect();
            let mut kind = random.below(32);
            let mut length = 8 * random.below(8);
            if *position == 0 && !random.once_in(8) {
                (kind, length) = (1, 24);
                payload[..8].copy_from_slice(b"MtMs\x01\0\0\0");
                payload[8..24].copy_from_slice(&[0, 16, 0, 0, 0, 4, 0, 0, 0, 64, 0, 0, 0, 1, 0, 0]);
            }
            put(384 + line * 64 + 8, &payload);
            // Sometimes the packet claims payload in the ring: mostly about as many bytes as the ring has.
            let in_ring = random.once_in(4) && *position > 0 && length >= 8;
            if in_ring {
                kind = [kind, 5][usize::from(random.once_in(2))];
                let bytes = if random.once_in(4) { random.number() as u32 } else { random.below(20_000) as u32 };
                payload[length as usize - 4..length as usize].copy_from_slice(&bytes.to_le_bytes());
            }
            let word = (*position + 1) & 0xffff_ffff | length << 32 | kind << 48 | u64::from(in_ring) << 56;
            put(384 + line * 64, &word.to_le_bytes());
            *position += 1;
        }
        // Wrong stamps and lengths.
        8 => put(384 + 64 * random.below(CELLS as u64) as usize, &random.number().to_le_bytes()),
        // A forged read position for the node's sender.
        9 => put(FIFO_BYTES + 128, &random.number().to_le_bytes()),
        10 => put(FIFO_BYTES + 128 + 8 * random.below(16) as usize, &random.below(1 << 20).to_le_bytes()),
        _ => put(8 * random.below(HEAD_BYTES as u64 / 8) as usize, &random.number().to_le_bytes()),
    }
}
