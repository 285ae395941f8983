//! Transfer: order, sizes, half-close, flags, and the identity of the peer.

use super::{Prng, bytes, handle, receive, receive_with, send, send_with};
use crate::ends::Ends;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::sync::atomic::Ordering::Relaxed;

pub const MSG_PEEK: i32 = 0x2;
pub const MSG_DONTWAIT: i32 = 0x40;
pub const MSG_WAITALL: i32 = 0x100;
const EPIPE: i32 = 32;

/// Bytes that are sent in each direction in random sizes.
const TOTAL_BYTES: u64 = 3 << 20;
/// Bytes of the largest buffer.
const MAX_BUFFER_BYTES: usize = 24 << 20;

fn random_size(prng: &mut Prng, left: u64) -> usize {
    let most = [8, 40, 41, 700, 9_000, 70_000, 300_000][prng.below(7) as usize];
    (1 + prng.below(most)).min(left) as usize
}

/// Both directions at once, with random sizes at both ends.
pub fn both_ways(ends: Ends) {
    let stream = &ends.streams[0];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut at, mut prng) = (0, Prng(11));
            while at < TOTAL_BYTES {
                let n = random_size(&mut prng, TOTAL_BYTES - at);
                send(stream, &bytes(at, n));
                at += n as u64;
            }
        });
        let (mut at, mut prng) = (0, Prng(12));
        let mut data = vec![0; 300_000];
        while at < TOTAL_BYTES {
            let most = random_size(&mut prng, TOTAL_BYTES - at);
            let n = stream.recv(&mut data[..most]).expect("a receive");
            assert!(n > 0, "end of file at {at}");
            assert!(data[..n] == bytes(at, n), "wrong bytes after position {at}");
            at += n as u64;
        }
    });
    close_together(ends);
}

/// Half-closes, then waits for the other end to do so: an early close is another case.
pub fn close_together(ends: Ends) {
    for stream in &ends.streams {
        let _ = stream.shutdown(Shutdown::Write);
    }
    for stream in &ends.streams {
        let n = stream.recv(&mut [0; 1]).expect("end of file");
        assert_eq!(n, 0, "bytes after the last");
    }
}

/// Waits for the other end to half-close, and sends nothing.
pub fn wait_for_close(ends: Ends) {
    for stream in &ends.streams {
        let n = stream.recv(&mut [0; 1]).expect("end of file");
        assert_eq!(n, 0, "bytes after the last");
    }
}

pub fn large_out(ends: Ends) {
    let data = bytes(5, MAX_BUFFER_BYTES);
    for size in [64 << 10, 1 << 20, MAX_BUFFER_BYTES] {
        send(&ends.streams[0], &data[..size]);
        assert_eq!(receive(&ends.streams[0], 1), [1], "the other end says that it has received");
    }
    close_together(ends);
}

pub fn large_in(ends: Ends) {
    let data = bytes(5, MAX_BUFFER_BYTES);
    for size in [64 << 10, 1 << 20, MAX_BUFFER_BYTES] {
        assert!(receive(&ends.streams[0], size) == data[..size], "a buffer of {size} bytes");
        send(&ends.streams[0], &[1]);
    }
    close_together(ends);
}

/// Large buffers in both directions at once: neither side may wait for the other to finish.
pub fn large_both(ends: Ends) {
    let stream = &ends.streams[0];
    let data = bytes(9, MAX_BUFFER_BYTES / 2);
    std::thread::scope(|scope| {
        scope.spawn(|| send(stream, &data));
        assert!(receive(stream, data.len()) == data);
    });
    close_together(ends);
}

pub fn many(ends: Ends) {
    for round in 0..20u64 {
        for (at, stream) in ends.streams.iter().enumerate() {
            send(stream, &bytes(at as u64 * 1000 + round, 100 + at));
        }
        for (at, stream) in ends.streams.iter().enumerate() {
            assert_eq!(
                receive(stream, 100 + at),
                bytes(at as u64 * 1000 + round, 100 + at),
                "stream {at}, round {round}"
            );
        }
    }
    close_together(ends);
}

pub fn half_close(ends: Ends) {
    let stream = &ends.streams[0];
    send(stream, &bytes(0, 1000));
    stream.shutdown(Shutdown::Write).expect("a half-close");
    // Sends fail from now on, whatever the other end does; receives work.
    assert_eq!(stream.send(b"more").expect_err("a send after the half-close").raw_os_error(), Some(EPIPE));
    assert_eq!(receive(stream, 2000), bytes(0, 2000));
    assert_eq!(stream.send(b"more").expect_err("a send after the half-close").raw_os_error(), Some(EPIPE));
    assert_eq!(stream.recv(&mut [0; 8]).expect("end of file"), 0);
    assert_eq!(stream.recv(&mut [0; 8]).expect("end of file again"), 0);
}

pub fn half_close_far(ends: Ends) {
    let stream = &ends.streams[0];
    assert_eq!(receive(stream, 1000), bytes(0, 1000));
    assert_eq!(stream.recv(&mut [0; 8]).expect("end of file"), 0);
    for n in 0..20 {
        send(stream, &bytes(n * 100, 100));
    }
}

pub fn flags(ends: Ends) {
    let stream = &ends.streams[0];
    let mut data = [0; 64];
    let error = receive_with(stream, &mut data, MSG_DONTWAIT).expect_err("nothing is there");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    send(stream, b"go");
    assert_eq!(receive_with(stream, &mut data[..3], MSG_PEEK).expect("a peek"), 3);
    assert_eq!(&data[..3], b"abc");
    let n = receive_with(stream, &mut data, MSG_PEEK | MSG_DONTWAIT).expect("a second peek");
    assert_eq!(&data[..n.min(3)], b"abc", "a peek leaves everything where it is");
    assert_eq!(receive(stream, 6), b"abcdef");
    send(stream, b"go");
    let mut all = vec![0; 10_000];
    assert_eq!(receive_with(stream, &mut all, MSG_WAITALL).expect("all"), 10_000);
    assert!(all == bytes(0, 10_000));
    send(stream, b"go");
    assert_eq!(receive_with(stream, &mut all, MSG_WAITALL).expect("what came before end of file"), 77);
    assert_eq!(receive_with(stream, &mut all, MSG_WAITALL).expect("end of file"), 0);
}

pub fn flags_far(ends: Ends) {
    let stream = &ends.streams[0];
    assert_eq!(receive(stream, 2), b"go");
    send(stream, b"abcdef");
    assert_eq!(receive(stream, 2), b"go");
    for n in 0..100 {
        send(stream, &bytes(n * 100, 100));
    }
    assert_eq!(receive(stream, 2), b"go");
    send(stream, &[7; 77]);
}

/// A descriptor with O_NONBLOCK: no call blocks, and sends of any size make progress when the reader does.
pub fn nonblocking(ends: Ends) {
    let stream = &ends.streams[0];
    stream.tcp().set_nonblocking(true).expect("O_NONBLOCK");
    assert_eq!(stream.recv(&mut [0; 8]).expect_err("nothing is there").kind(), ErrorKind::WouldBlock);
    assert_eq!(stream.recv(&mut [0; 8]).expect_err("still nothing").kind(), ErrorKind::WouldBlock);
    let data = bytes(0, 4 << 20);
    let mut at = 0;
    let mut full = 0;
    while at < data.len() {
        match stream.send(&data[at..]) {
            Ok(n) => at += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                full += 1;
                if full == 1 {
                    // An empty send neither blocks nor fails on a full stream.
                    assert_eq!(send_with(stream, &[], MSG_DONTWAIT).unwrap_or(0), 0);
                }
                std::thread::yield_now();
            }
            Err(e) => panic!("{e}"),
        }
    }
    stream.tcp().set_nonblocking(false).expect("no O_NONBLOCK");
    assert_eq!(receive(stream, 1), [9]);
}

pub fn nonblocking_far(ends: Ends) {
    let stream = &ends.streams[0];
    assert!(receive(stream, 4 << 20) == bytes(0, 4 << 20));
    send(stream, &[9]);
}

/// The record has the kernel's addresses and, with a wire, the peer's process and user.
pub fn identity(ends: Ends) {
    let stream = &ends.streams[0];
    let (engine, handle) = handle(stream);
    let (record, _) = engine.look_up(handle).expect("a record");
    let (local, peer) = (stream.tcp().local_addr().expect("an address"), stream.tcp().peer_addr().expect("an address"));
    assert_eq!(record.connection.ports.each_ref().map(|p| p.load(Relaxed)), [local, peer].map(|a| u32::from(a.port())));
    let loopback = u32::from_ne_bytes([127, 0, 0, 1]);
    assert_eq!([0, 1].map(|n| record.connection.addresses[n][0].load(Relaxed)), [loopback; 2]);
    assert_eq!(record.connection.role.load(Relaxed), 2, "accepted");
    let (pid, uid) = (record.connection.pid.load(Relaxed), record.connection.uid.load(Relaxed));
    if ends.wire {
        assert_eq!(uid, motet_sys::thread::euid());
        assert_eq!(pid == std::process::id(), ends.same_process);
        assert!(motet_sys::thread::process_exists(pid));
    } else {
        assert_eq!((pid, uid), (u32::MAX, u32::MAX), "unknown over TCP");
    }
    close_together(ends);
}
