//! Completion queues of a client: many requests under way, bounds, lost servers, and the end of a queue.

use motet_files::client::{Client, CompletionQueue, File, MAX_QUEUED, OperationMemory, Source, Submission};
use motet_files::protocol::{MAX_DATA_BYTES, OpenFlags};
use motet_files::server::{Options, Server};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const NEW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE).union(OpenFlags::CREATE);
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
const E2BIG: i32 = 7;
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const EINVAL: i32 = 22;
const ESHUTDOWN: i32 = 108;
const ETIMEDOUT: i32 = 110;
const EXDEV: i32 = 18;

struct Scene {
    name: String,
    folder: TempDir,
    server: Option<Server>,
    client: Client,
}

impl Scene {
    fn new(direct: bool, limit: Option<Duration>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().expect("a folder");
        let name = format!("queue-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let server = Some(serve(&name, &folder, direct));
        let client =
            if direct { Client::named(&name, limit) } else { Client::connect(Source::Name(name.clone()), limit) };
        let client = client.expect("a client");
        assert_eq!(client.is_direct(), direct);
        Self { name, folder, server, client }
    }

    fn create(&self, name: &str) -> Arc<File> {
        Arc::new(self.client.open_file(name.as_bytes(), NEW, 0o644).expect("a new file").0)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.client.close();
    }
}

fn serve(name: &str, folder: &TempDir, direct: bool) -> Server {
    let directory = folder.path().to_owned();
    Server::start(Options { name: name.to_owned(), directory, direct, ..Options::default() }).expect("a server")
}

fn owned(bytes: Vec<u8>) -> OperationMemory {
    OperationMemory::Owned(bytes)
}

fn write(offset: u64, bytes: Vec<u8>) -> Submission {
    Submission::Write { offset, data: owned(bytes) }
}

fn read(offset: u64, length: usize) -> Submission {
    Submission::Read { offset, into: owned(vec![0xee; length]) }
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("an error").raw_os_error().expect("an error number")
}

fn refusal<T: std::fmt::Debug>(result: Result<T, (std::io::Error, Option<Vec<u8>>)>) -> i32 {
    errno(result.map_err(|(error, _)| error))
}

/// Submits a request, as soon as there is room to send.
#[track_caller]
fn submit(queue: &CompletionQueue, file: &Arc<File>, request: impl Fn() -> Submission, number: u64) {
    while let Err((error, _)) = queue.submit(file, request(), number) {
        assert!(error.raw_os_error() == Some(EAGAIN) && queue.outstanding() < MAX_QUEUED, "{error}");
        thread::yield_now();
    }
}

/// Lengths around the limits of short, inline and long data, and where each begins in the file.
fn parts() -> Vec<(u64, usize)> {
    let lengths = [0, 1, 100, 5000, 20_000, 32 << 10, (32 << 10) + 1, 64 << 10, 300_000, MAX_DATA_BYTES];
    let all = lengths.into_iter().cycle().take(MAX_QUEUED);
    let mut at = 0;
    all.map(|length| {
        at += length as u64;
        (at - length as u64, length)
    })
    .collect()
}

fn contents(part: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251 + part) as u8).collect()
}

#[test]
fn requests_of_all_sizes_are_under_way_at_once() {
    for direct in [false, true] {
        let scene = Scene::new(direct, None);
        let file = scene.create("file");
        let queue = CompletionQueue::new(&scene.client, MAX_QUEUED).expect("a queue");
        for turn in 0..3 {
            for (part, &(offset, length)) in parts().iter().enumerate() {
                submit(&queue, &file, || write(offset, contents(part + turn, length)), part as u64);
            }
            let mut seen = BTreeSet::new();
            for _ in parts() {
                let completed = queue.wait(LIMIT).expect("a completion");
                let part = completed.user_data as usize;
                assert_eq!(completed.result.expect("written"), parts()[part].1);
                // A short write has copied its data; a long one returns its memory.
                assert!(completed.memory.is_none_or(|memory| memory == contents(part + turn, parts()[part].1)));
                assert!(seen.insert(part));
            }
            queue.submit(&file, Submission::Sync { data_only: true }, 77).expect("submitted");
            let synced = queue.wait(LIMIT).expect("a completion");
            assert_eq!((synced.user_data, synced.result.expect("synchronised")), (77, 0));
            let whole = fs::read(scene.folder.path().join("file")).expect("the file");
            for (part, &(offset, length)) in parts().iter().enumerate() {
                assert!(whole[offset as usize..][..length] == contents(part + turn, length), "part {part}");
                submit(&queue, &file, || read(offset, length), part as u64);
            }
            let mut found = BTreeMap::new();
            while queue.outstanding() > 0 {
                let completed = queue.wait(LIMIT).expect("a completion");
                assert_eq!(completed.result.expect("read"), parts()[completed.user_data as usize].1);
                found.insert(completed.user_data as usize, completed.memory.expect("memory"));
            }
            for (part, &(_, length)) in parts().iter().enumerate() {
                assert!(found[&part] == contents(part + turn, length), "part {part}, direct {direct}");
            }
            assert!(queue.poll().expect("the queue").is_none());
        }
    }
}

#[test]
fn the_end_of_the_file_and_errors_are_results() {
    for direct in [false, true] {
        let scene = Scene::new(direct, None);
        let file = scene.create("file");
        file.write_at(b"0123456789", 0).expect("a write");
        let reads = Arc::new(scene.client.open_file(b"file", OpenFlags::READ, 0).expect("a file").0);
        let queue = CompletionQueue::new(&scene.client, 8).expect("a queue");
        queue.submit(&reads, read(6, 100), 1).expect("submitted");
        let completed = queue.wait(LIMIT).expect("a completion");
        assert_eq!((completed.user_data, completed.result.expect("read")), (1, 4));
        assert_eq!(completed.memory.expect("memory")[..5], *b"6789\xee");
        queue.submit(&reads, write(0, vec![1; 100]), 2).expect("submitted");
        assert_eq!(errno(queue.wait(LIMIT).expect("a completion").result), 9, "not open for writing");
        assert_eq!(refusal(queue.submit(&reads, read(0, MAX_DATA_BYTES + 1), 3)), E2BIG);
        let other = Scene::new(direct, None);
        assert_eq!(refusal(queue.submit(&other.create("file"), read(0, 1), 4)), EXDEV);
        assert_eq!(queue.outstanding(), 0);
        assert_eq!(errno(queue.wait(Some(Duration::from_millis(1)))), ETIMEDOUT);
        for outstanding in [0, MAX_QUEUED + 1] {
            assert_eq!(errno(CompletionQueue::new(&scene.client, outstanding)), EINVAL);
        }
    }
}

#[test]
fn outstanding_requests_are_bounded_and_calls_go_on() {
    for direct in [false, true] {
        let scene = Scene::new(direct, None);
        let file = scene.create("file");
        file.write_at(&[7; 1000], 0).expect("a write");
        let small = CompletionQueue::new(&scene.client, 3).expect("a queue");
        for number in 0..3 {
            small.submit(&file, read(0, 10), number).expect("submitted");
        }
        let (error, memory) = small.submit(&file, read(0, 10), 3).expect_err("full");
        assert_eq!((error.raw_os_error(), memory.expect("its memory").len()), (Some(EAGAIN), 10));
        let large = CompletionQueue::new(&scene.client, MAX_QUEUED).expect("a queue");
        let mut submitted = 0;
        while large.submit(&file, read(0, 10), submitted).is_ok() {
            submitted += 1;
        }
        // By messages the queues of a client share its slots, except for those that calls need.
        assert_eq!(submitted as usize, if direct { MAX_QUEUED } else { MAX_QUEUED - 3 });
        assert_eq!(file.read_at(&mut [0; 1000], 0).expect("a call beside full queues"), 1000);
        for queue in [&small, &large] {
            while queue.outstanding() > 0 {
                assert_eq!(queue.wait(LIMIT).expect("a completion").result.expect("read"), 10);
            }
        }
        small.submit(&file, read(0, 10), 9).expect("there is room again");
        assert_eq!(small.wait(LIMIT).expect("a completion").user_data, 9);
    }
}

#[test]
fn threads_submit_and_wait_at_the_same_time() {
    const EACH: u64 = 2000;
    for direct in [false, true] {
        let scene = Scene::new(direct, None);
        let file = scene.create("file");
        let numbers: Vec<u8> = (0..10_000u32).flat_map(u32::to_le_bytes).collect();
        file.write_at(&numbers, 0).expect("a write");
        let queue = CompletionQueue::new(&scene.client, 32).expect("a queue");
        let fetched = AtomicU32::new(0);
        thread::scope(|scope| {
            for first in 0..2 {
                let (queue, file) = (&queue, &file);
                scope.spawn(move || {
                    for number in (first..2 * EACH).step_by(2) {
                        let refused = |(error, _): (std::io::Error, _)| assert_eq!(error.raw_os_error(), Some(EAGAIN));
                        while queue.submit(file, read(number * 4, 4), number).map_err(refused).is_err() {
                            thread::yield_now();
                        }
                    }
                });
                let fetched = &fetched;
                scope.spawn(move || {
                    while fetched.load(Ordering::SeqCst) < 2 * EACH as u32 {
                        let Ok(completed) = queue.wait(Some(Duration::from_millis(20))) else { continue };
                        assert_eq!(completed.result.expect("read"), 4);
                        assert_eq!(completed.memory.expect("memory"), (completed.user_data as u32).to_le_bytes());
                        fetched.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(fetched.into_inner(), 2 * EACH as u32);
    }
}

#[test]
fn requests_outlive_a_restarted_server() {
    let mut scene = Scene::new(false, None);
    let file = scene.create("file");
    let queue = CompletionQueue::new(&scene.client, 40).expect("a queue");
    for turn in 0..5 {
        for part in 0..40u64 {
            submit(&queue, &file, || write(part * 50_000, contents((part + turn) as usize, 50_000)), part);
        }
        drop(scene.server.take());
        scene.server = Some(serve(&scene.name, &scene.folder, false));
        for _ in 0..40 {
            assert_eq!(queue.wait(LIMIT).expect("a completion").result.expect("written"), 50_000);
        }
        let whole = fs::read(scene.folder.path().join("file")).expect("the file");
        for part in 0..40 {
            assert!(
                whole[part * 50_000..][..50_000] == contents(part + turn as usize, 50_000),
                "turn {turn}, part {part}"
            );
        }
    }
}

#[test]
fn a_client_with_a_limit_gives_up_and_goes_on_at_the_next_server() {
    let mut scene = Scene::new(false, Some(Duration::from_millis(300)));
    let file = scene.create("file");
    let queue = CompletionQueue::new(&scene.client, 8).expect("a queue");
    drop(scene.server.take());
    let submitted = queue.submit(&file, read(0, 10), 1);
    let result = match submitted {
        Ok(()) => queue.wait(LIMIT).expect("a completion").result,
        Err((error, _)) => Err(error),
    };
    assert_eq!(errno(result), EIO);
    scene.server = Some(serve(&scene.name, &scene.folder, false));
    file.write_at(b"again", 0).expect("a write");
    for number in 0..100 {
        submit(&queue, &file, || read(0, 10), number);
        assert_eq!(queue.wait(LIMIT).expect("a completion").result.expect("read"), 5);
    }
}

#[test]
fn a_queue_that_is_closed_frees_its_requests() {
    for (direct, is_away) in [(false, false), (true, false), (false, true)] {
        let mut scene = Scene::new(direct, None);
        let file = scene.create("file");
        let queue = CompletionQueue::new(&scene.client, MAX_QUEUED).expect("a queue");
        for part in 0..MAX_QUEUED as u64 {
            submit(&queue, &file, || write(part * 60_000, vec![5; 60_000]), part);
        }
        if is_away {
            drop(scene.server.take());
        }
        queue.close();
        queue.close();
        assert_eq!(errno(queue.wait(LIMIT)), ESHUTDOWN);
        assert_eq!(errno(queue.poll()), ESHUTDOWN);
        assert_eq!(refusal(queue.submit(&file, read(0, 1), 1)), ESHUTDOWN);
        drop(queue);
        if is_away {
            scene.server = Some(serve(&scene.name, &scene.folder, direct));
        }
        // All slots are there for the next one.
        let queue = CompletionQueue::new(&scene.client, MAX_QUEUED).expect("a queue");
        file.write_at(b"next", 0).expect("a write");
        for part in 0..MAX_QUEUED as u64 {
            submit(&queue, &file, || read(0, 4), part);
        }
        for _ in 0..MAX_QUEUED {
            assert_eq!(queue.wait(LIMIT).expect("a completion").memory.expect("memory"), b"next");
        }
    }
}
