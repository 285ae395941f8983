//! Waits: readiness, several streams at once, wakes by another thread, deadlines. Nothing here measures time: a wait that never ends is
//! ended by the timeout of its process.

use super::{bytes, handle, receive, receive_with, send};
use crate::cases::bytes::{MSG_DONTWAIT, close_together, wait_for_close};
use crate::ends::Ends;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const EBADF: i32 = 9;

/// Readiness is known without consuming.
pub fn readiness(ends: Ends) {
    let stream = &ends.streams[0];
    assert!(!stream.readable().expect("an answer"));
    send(stream, b"go");
    assert_eq!(motet::wait_any(&[stream], None).expect("the stream"), 0);
    for _ in 0..3 {
        assert!(stream.readable().expect("an answer"), "asking consumes nothing");
    }
    assert_eq!(receive(stream, 5), b"hello");
    assert!(!stream.readable().expect("an answer"));
    send(stream, b"go");
    assert_eq!(motet::wait_any(&[stream], None).expect("the stream"), 0);
    assert!(stream.readable().expect("an answer"), "end of file is readable");
    assert_eq!(stream.recv(&mut [0; 8]).expect("end of file"), 0);
}

pub fn readiness_far(ends: Ends) {
    let stream = &ends.streams[0];
    assert_eq!(receive(stream, 2), b"go");
    send(stream, b"hello");
    assert_eq!(receive(stream, 2), b"go");
}

/// The far end sends on one stream at a time; the wait returns that stream.
pub fn wait_any(ends: Ends) {
    let streams: Vec<_> = ends.streams.iter().collect();
    for round in 0..200usize {
        let expected = round * 7 % streams.len();
        send(streams[0], &[expected as u8]);
        assert_eq!(motet::wait_any(&streams, None).expect("a stream"), expected, "round {round}");
        assert_eq!(receive(streams[expected], 3), bytes(round as u64, 3));
    }
    close_together(ends);
}

pub fn wait_any_far(ends: Ends) {
    for round in 0..200u64 {
        let [at] = receive(&ends.streams[0], 1)[..] else { unreachable!("one byte") };
        send(&ends.streams[usize::from(at)], &bytes(round, 3));
    }
    wait_for_close(ends);
}

/// A wake ends a blocked receive, or the next one that would block.
pub fn wake(ends: Ends) {
    let stream = &ends.streams[0];
    stream.wake();
    assert_eq!(stream.recv(&mut [0; 8]).expect_err("woken before").kind(), ErrorKind::Interrupted);
    for _ in 0..20 {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                    stream.wake();
                }
            });
            let error = stream.recv(&mut [0; 8]).expect_err("woken");
            done.store(true, SeqCst);
            assert_eq!(error.kind(), ErrorKind::Interrupted);
        });
        // Wakes after the call end the next call that would block.
        while receive_with(stream, &mut [0; 8], MSG_DONTWAIT).is_err_and(|e| e.kind() == ErrorKind::Interrupted) {}
    }
    let deadline = Some(Instant::now() + Duration::from_millis(1));
    stream.set_deadline(deadline).expect("a deadline");
    while stream.recv(&mut [0; 8]).expect_err("nothing arrives").kind() == ErrorKind::Interrupted {}
    stream.set_deadline(None).expect("no deadline");
    close_together(ends);
}

/// A wake of any of its streams ends a wait on several.
pub fn wake_of_wait_any(ends: Ends) {
    let streams: Vec<_> = ends.streams.iter().collect();
    for at in [0, 1, 0] {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    std::thread::sleep(Duration::from_millis(1));
                    streams[at].wake();
                }
            });
            let error = motet::wait_any(&streams, None).expect_err("woken");
            done.store(true, SeqCst);
            assert_eq!(error.kind(), ErrorKind::Interrupted);
        });
    }
    for stream in &streams {
        stream.set_deadline(Some(Instant::now() + Duration::from_millis(1))).expect("a deadline");
        while stream.recv(&mut [0; 8]).expect_err("nothing arrives").kind() == ErrorKind::Interrupted {}
        stream.set_deadline(None).expect("no deadline");
    }
    close_together(ends);
}

/// A close by another thread ends a blocked call, whether that spins, sleeps or has just begun.
pub fn close_under_calls(ends: Ends) {
    for (n, stream) in ends.streams.iter().enumerate() {
        let (engine, handle) = handle(stream);
        std::thread::scope(|scope| {
            let blocked = scope.spawn(move || match n % 2 {
                0 => stream.recv(&mut [0; 8]),
                _ => motet::wait_any(&[stream], None),
            });
            std::thread::sleep(Duration::from_micros([0, 30, 20_000][n / 2 % 3]));
            assert_eq!(engine.close(handle), Ok(false), "nothing was unread");
            let error = blocked.join().expect("an answer").expect_err("closed");
            assert_eq!(error.raw_os_error(), Some(EBADF), "{n}");
        });
        assert_eq!(stream.recv(&mut [0; 8]).expect_err("closed").raw_os_error(), Some(EBADF));
        assert_eq!(engine.close(handle), Err(EBADF));
    }
}

/// A deadline ends a blocked call; the stream stays usable.
pub fn deadline(ends: Ends) {
    let stream = &ends.streams[0];
    for _ in 0..3 {
        stream.set_deadline(Some(Instant::now() + Duration::from_millis(5))).expect("a deadline");
        assert_eq!(stream.recv(&mut [0; 8]).expect_err("nothing arrives").kind(), ErrorKind::TimedOut);
        assert_eq!(stream.recv(&mut [0; 8]).expect_err("it has passed").kind(), ErrorKind::TimedOut);
    }
    // A receive after the deadline still returns bytes that are there.
    stream.set_deadline(None).expect("no deadline");
    send(stream, b"go");
    assert_eq!(motet::wait_any(&[stream], None).expect("the stream"), 0);
    stream.set_deadline(Some(Instant::now())).expect("a deadline");
    assert_eq!(receive(stream, 5), b"hello");
    // A send without a reader ends too.
    stream.set_deadline(Some(Instant::now() + Duration::from_millis(20))).expect("a deadline");
    let data = vec![1; 16 << 20];
    let error = loop {
        if let Err(error) = stream.send(&data) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    stream.set_deadline(None).expect("no deadline");
}

pub fn deadline_far(ends: Ends) {
    let stream = &ends.streams[0];
    assert_eq!(receive(stream, 2), b"go");
    send(stream, b"hello");
    // Long enough for the near end to fill every buffer and reach its deadline; if it is slower, this end reads.
    std::thread::sleep(Duration::from_millis(300));
    let mut data = vec![0; 1 << 20];
    while stream.recv(&mut data).expect("bytes, then end of file") > 0 {}
}

pub fn deadline_of_wait_any(ends: Ends) {
    let streams: Vec<_> = ends.streams.iter().collect();
    for _ in 0..3 {
        let error =
            motet::wait_any(&streams, Some(Instant::now() + Duration::from_millis(5))).expect_err("nothing arrives");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
    close_together(ends);
}
