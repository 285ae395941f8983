//! Reads by a ring: of files, and of pipes, which keep a read under way until the test writes.

use motet_uring::{BUFFER_BYTES, BUFFERS, Completed, Read, Ring, probe};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

const BLOCK: usize = 4096;
/// How long a test waits for what has to come.
const LIMIT: Duration = Duration::from_secs(60);

/// A read of the tests: its number, and its file.
struct Numbered(usize, Arc<OwnedFd>);

impl Read for Numbered {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }
}

/// A ring, and what it completes. `None`, which is said: io_uring is not permitted here.
fn ring(test: &str) -> Option<(Ring<Numbered>, Receiver<Completed<Numbered>>)> {
    let (sender, completed) = channel();
    match Ring::start("test-ring", move |read| drop(sender.send(read))) {
        Ok(ring) => Some((ring, completed)),
        Err(unavailable) => {
            skip(test, &unavailable.to_string());
            None
        }
    }
}

/// Says that a test is skipped.
fn skip(test: &str, reason: &str) {
    eprintln!("SKIPPED {test}: {reason}");
    if let Some(log) = std::env::var_os("MOTET_SKIP_LOG")
        && let Ok(mut log) = File::options().append(true).create(true).open(log)
    {
        let _ = log.write_all(format!("SKIP {test}: {reason}\n").as_bytes());
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// A file with these bytes that has no name.
fn file(bytes: &[u8]) -> Arc<OwnedFd> {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(bytes).expect("a write");
    Arc::new(file.into())
}

/// The two ends of an empty pipe.
fn pipe() -> (Arc<OwnedFd>, File) {
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    (Arc::new(reader), writer.into())
}

fn next(completed: &Receiver<Completed<Numbered>>) -> Completed<Numbered> {
    completed.recv_timeout(LIMIT).expect("a completion")
}

#[test]
fn many_reads_at_once_get_their_own_bytes() {
    let Some((ring, completed)) = ring("many_reads_at_once_get_their_own_bytes") else { return };
    let bytes = pattern(BUFFERS * BLOCK);
    let file = file(&bytes);
    for _ in 0..20 {
        for number in 0..BUFFERS {
            let started = ring.read(Numbered(number, Arc::clone(&file)), (number * BLOCK) as u64, BLOCK, BLOCK);
            assert!(started.is_ok(), "there is a buffer for read {number}");
        }
        let mut seen = [false; BUFFERS];
        for _ in 0..BUFFERS {
            let read = next(&completed);
            let number = read.read.0;
            assert!(read.bytes().expect("bytes") == &bytes[number * BLOCK..][..BLOCK], "read {number} has other bytes");
            assert!(!std::mem::replace(&mut seen[number], true), "read {number} is completed twice");
        }
    }
}

#[test]
fn a_read_ends_with_its_file() {
    let Some((ring, completed)) = ring("a_read_ends_with_its_file") else { return };
    let bytes = pattern(BLOCK + 100);
    let file = file(&bytes);
    for (offset, length, expected) in [
        (0, BUFFER_BYTES, &bytes[..]),
        (BLOCK, BLOCK, &bytes[BLOCK..]),
        (2 * BLOCK, BLOCK, &[]),
        (0, BLOCK, &bytes[..BLOCK]),
    ] {
        assert!(ring.read(Numbered(0, Arc::clone(&file)), offset as u64, length, BLOCK).is_ok());
        assert!(next(&completed).bytes().expect("bytes") == expected, "{length} bytes at {offset}");
    }
    // The last offset that a file can have.
    let last = i64::MAX as u64 / BLOCK as u64 * BLOCK as u64 - BLOCK as u64;
    assert!(ring.read(Numbered(0, file), last, BLOCK, BLOCK).is_ok());
    assert_eq!(next(&completed).bytes(), Ok(&[][..]));
}

#[test]
fn offsets_and_lengths_that_cannot_be_read_are_refused() {
    let Some((ring, completed)) = ring("offsets_and_lengths_that_cannot_be_read_are_refused") else { return };
    let file = file(&pattern(4 * BLOCK));
    // -1 would be the file's position, and is a multiple of a block of one byte.
    let beyond = [u64::MAX, u64::MAX - 1, i64::MAX as u64, i64::MAX as u64 + 1];
    for (offset, length, block) in beyond
        .map(|offset| (offset, 1, 1))
        .into_iter()
        .chain([(u64::MAX - 4095, BLOCK, BLOCK), (i64::MAX as u64 - 4095, BLOCK, BLOCK), (1 << 63, BLOCK, BLOCK)])
        .chain([(0, 0, BLOCK), (0, BUFFER_BYTES + BLOCK, BLOCK), (0, 100, BLOCK), (1, BLOCK, BLOCK), (0, BLOCK, 0)])
    {
        let refused = ring.read(Numbered(7, Arc::clone(&file)), offset, length, block);
        assert_eq!(refused.err().map(|read| read.0), Some(7), "{length} bytes at {offset}");
    }
    assert!(ring.read(Numbered(8, file), 0, BLOCK, BLOCK).is_ok(), "all buffers are there");
    assert_eq!(next(&completed).read.0, 8, "nothing else was read");
}

#[test]
fn there_are_as_many_reads_as_buffers() {
    let Some((ring, completed)) = ring("there_are_as_many_reads_as_buffers") else { return };
    let (reader, mut writer) = pipe();
    for number in 0..BUFFERS {
        assert!(ring.read(Numbered(number, Arc::clone(&reader)), 0, 8, 8).is_ok());
    }
    assert!(ring.read(Numbered(99, Arc::clone(&reader)), 0, 8, 8).is_err(), "all buffers are in use");
    writer.write_all(&[5; BUFFERS * 8]).expect("a write");
    let held: Vec<_> = (0..BUFFERS).map(|_| next(&completed)).collect();
    assert!(held.iter().all(|read| read.bytes() == Ok(&[5; 8])));
    assert!(ring.read(Numbered(99, Arc::clone(&reader)), 0, 8, 8).is_err(), "what is completed holds its buffer");
    drop(held);
    assert!(ring.read(Numbered(99, reader), 0, 8, 8).is_ok());
    writer.write_all(&[6; 8]).expect("a write");
    assert_eq!(next(&completed).bytes(), Ok(&[6; 8][..]));
}

#[test]
fn short_reads_go_on() {
    let Some((ring, completed)) = ring("short_reads_go_on") else { return };
    let (reader, mut writer) = pipe();
    assert!(ring.read(Numbered(0, reader), 0, 32, 8).is_ok());
    for part in 0..4 {
        writer.write_all(&[part; 8]).expect("a write");
        // The part is read before the next one comes, or with it: the bytes are the same.
        thread::yield_now();
    }
    let read = next(&completed);
    let expected: Vec<u8> = (0..4).flat_map(|part| [part; 8]).collect();
    assert_eq!(read.bytes(), Ok(&expected[..]));
}

#[test]
fn errors_are_those_of_the_system_and_end_no_other_read() {
    const EISDIR: i32 = 21;
    const EBADF: i32 = 9;
    let Some((ring, completed)) = ring("errors_are_those_of_the_system_and_end_no_other_read") else { return };
    let folder = Arc::new(OwnedFd::from(File::open("/").expect("a folder")));
    let (_reader, writer) = pipe();
    let bytes = pattern(BLOCK);
    for (number, (descriptor, errno)) in
        [(folder, Some(EISDIR)), (Arc::new(writer.into()), Some(EBADF)), (file(&bytes), None)].into_iter().enumerate()
    {
        assert!(ring.read(Numbered(number, descriptor), 0, BLOCK, BLOCK).is_ok());
        let read = next(&completed);
        assert_eq!((read.read.0, read.bytes().err()), (number, errno));
    }
}

#[test]
fn a_handler_that_panics_ends_no_other_read() {
    if let Err(unavailable) = probe() {
        return skip("a_handler_that_panics_ends_no_other_read", &unavailable.to_string());
    }
    let (sender, completed) = channel();
    let handler = move |read: Completed<Numbered>| {
        assert_ne!(read.read.0, 0, "this panic belongs to the test");
        let _ = sender.send(read);
    };
    let ring = Ring::start("test-ring", handler).expect("a ring");
    let file = file(&pattern(BLOCK));
    for _ in 0..BUFFERS + 1 {
        // Refused while the one before holds the last buffer.
        let mut read = Numbered(0, Arc::clone(&file));
        while let Err(back) = ring.read(read, 0, BLOCK, BLOCK) {
            read = back;
            thread::yield_now();
        }
    }
    let mut read = Numbered(1, file);
    while let Err(back) = ring.read(read, 0, BLOCK, BLOCK) {
        read = back;
        thread::yield_now();
    }
    assert_eq!(next(&completed).read.0, 1);
}

#[test]
fn a_ring_that_ends_waits_for_reads_that_are_under_way() {
    let test = "a_ring_that_ends_waits_for_reads_that_are_under_way";
    if let Err(unavailable) = probe() {
        return skip(test, &unavailable.to_string());
    }
    let count = Arc::new(AtomicUsize::new(0));
    let of_handler = Arc::clone(&count);
    let handler = move |read: Completed<Numbered>| {
        assert_eq!(read.bytes().map(<[u8]>::len), Ok(8));
        of_handler.fetch_add(1, Ordering::SeqCst);
    };
    let ring = Arc::new(Ring::start("test-ring", handler).expect("a ring"));
    let (reader, mut writer) = pipe();
    for number in 0..3 {
        assert!(ring.read(Numbered(number, Arc::clone(&reader)), 0, 8, 8).is_ok());
    }
    let ending = Arc::clone(&ring);
    let of_thread = Arc::clone(&count);
    let end = thread::spawn(move || {
        ending.end();
        of_thread.load(Ordering::SeqCst)
    });
    // From the end on reads are refused; those before are still under way.
    let mut accepted = 3;
    while ring.read(Numbered(3, Arc::clone(&reader)), 0, 8, 8).is_ok() && accepted < BUFFERS {
        accepted += 1;
        thread::yield_now();
    }
    writer.write_all(&vec![1; accepted * 8]).expect("a write");
    assert_eq!(end.join().expect("the end"), accepted, "the ring ended before its reads");
    assert!(ring.read(Numbered(9, Arc::clone(&reader)), 0, 8, 8).is_err());
    drop(ring);
    assert_eq!(Arc::strong_count(&reader), 1, "no read holds its file any more");
}

#[test]
fn rings_come_and_go() {
    let test = "rings_come_and_go";
    if let Err(unavailable) = probe() {
        return skip(test, &unavailable.to_string());
    }
    let bytes = pattern(BLOCK);
    let file = file(&bytes);
    for round in 0..30 {
        let Some((ring, completed)) = ring(test) else { panic!("no ring in round {round}") };
        for number in 0..round {
            assert!(ring.read(Numbered(number, Arc::clone(&file)), 0, BLOCK, BLOCK).is_ok());
        }
        drop(ring);
        assert_eq!(completed.try_iter().filter(|read| read.bytes() == Ok(&bytes[..])).count(), round);
    }
    assert_eq!(Arc::strong_count(&file), 1);
}
