//! Ends that close, reset or die: what was sent before arrives or the loss is reported, and no end waits for ever.

use super::{byte, bytes, receive, send};
use crate::ends::Ends;
use motet_sys::rustix::net::sockopt::set_socket_linger;
use std::io::ErrorKind;
use std::time::Duration;

/// Bytes that fit into a ring, and into TCP's buffers.
const UNREAD: usize = 30_000;

pub fn send_and_close(ends: Ends) {
    let stream = &ends.streams[0];
    send(stream, &bytes(0, 1));
    let mut at = 1;
    while at < UNREAD {
        let n = 777.min(UNREAD - at);
        send(stream, &bytes(at as u64, n));
        at += n;
    }
}

pub fn read_to_the_end(ends: Ends) {
    let stream = &ends.streams[0];
    assert_eq!(receive(stream, 1), [byte(0)]);
    // The other end has probably closed before the next receive.
    std::thread::sleep(Duration::from_millis(20));
    assert!(receive(stream, UNREAD - 1) == bytes(1, UNREAD - 1));
    assert_eq!(stream.recv(&mut [0; 8]).expect("end of file"), 0);
}

/// Whether the connection has ended: end of file, or an error of the connection.
fn has_ended(result: &std::io::Result<usize>) -> bool {
    match result {
        Ok(n) => *n == 0,
        Err(e) => matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
    }
}

pub fn resets(ends: Ends) {
    let stream = &ends.streams[0];
    assert_eq!(receive(stream, 2), b"go");
    set_socket_linger(stream.tcp(), Some(Duration::ZERO)).expect("a linger of 0");
}

pub fn sees_reset(ends: Ends) {
    let stream = &ends.streams[0];
    send(stream, b"go");
    let error = stream.recv(&mut [0; 8]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(has_ended(&stream.recv(&mut [0; 8])), "and it stays ended");
    let error = loop {
        if let Err(error) = stream.send(&[1; 100]) {
            break error;
        }
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
}

fn kill_this_process() -> ! {
    let me = motet_sys::rustix::process::getpid();
    let _ = motet_sys::rustix::process::kill_process(me, motet_sys::rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}

pub fn is_killed(ends: Ends) {
    let stream = &ends.streams[0];
    assert_eq!(receive(stream, 2), b"go");
    send(stream, &bytes(0, 500));
    kill_this_process();
}

pub fn survives(ends: Ends) {
    let stream = &ends.streams[0];
    send(stream, b"go");
    let (mut at, mut data) = (0, [0; 64]);
    let last = loop {
        let result = stream.recv(&mut data);
        match result {
            Ok(n) if n > 0 => {
                assert_eq!(data[..n], bytes(at, n));
                at += n as u64;
            }
            result => break result,
        }
    };
    assert!(has_ended(&last), "{last:?}");
    assert!(at == 500 || last.is_err(), "{at} of 500 bytes, then end of file");
    while stream.send(&[1; 100]).is_ok() {}
    assert!(has_ended(&stream.recv(&mut data)));
}

pub fn is_killed_reading(ends: Ends) {
    let stream = &ends.streams[0];
    let _ = receive(stream, 100_000);
    kill_this_process();
}

pub fn survives_sending(ends: Ends) {
    let stream = &ends.streams[0];
    let error = loop {
        if let Err(error) = stream.send(&[1; 5000]) {
            break error;
        }
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
    let last = stream.recv(&mut [0; 8]);
    assert!(has_ended(&last), "{last:?}");
}
