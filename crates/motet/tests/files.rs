//! Regions over files: a put changes the file only inside the region, and a file that is truncated during accesses kills no process.

use motet::node::{
    Atomic, CompletionOptions, Datatype, Error, LinkId, Node, Operation, OperationMemory, RecvFrom, Rights, Serve,
    Target, deadline_in,
};
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
const SERVICE: u64 = 42;
/// Tags of the other process's messages: an operation succeeded, an operation met missing bytes.
const DONE_TAG: u64 = 2;
const MISSING_BYTES_TAG: u64 = 3;
const DRIVERS: [&str; 2] = ["shm", "tcp"];
const ROLE: &str = "MOTET_TEST_FILES";
/// Bytes of the file that is truncated, and of the region in it, which does not start at a page.
const FILE_BYTES: u64 = 4 << 20;
const REGION_OFFSET: u64 = 4096 + 8;
const REGION_BYTES: u64 = FILE_BYTES - REGION_OFFSET - 100;

/// A temporary file on the disk of this program. Its name is removed on drop.
struct Scratch(PathBuf, File);

impl Scratch {
    fn new(bytes: &[u8]) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("motet-test-files-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::current_exe().unwrap().with_file_name(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        Self(path, file)
    }

    fn content(&self) -> Vec<u8> {
        std::fs::read(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 256 + seed * 13) as u8).collect()
}

fn add(operand: &[u8]) -> Atomic<'_> {
    Atomic { operation: Operation::Sum, datatype: Datatype::U64, count: 1, operand, compare: &[] }
}

/// Operations of one node on a region of the other node. Each is waited for.
struct Reach<'a> {
    node: &'a Node,
    link: LinkId,
    key: motet::node::Key,
}

impl Reach<'_> {
    fn at(&self, offset: u64) -> Target {
        Target { link: self.link, key: self.key, offset }
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let memory = OperationMemory::Owned(bytes.to_vec());
        let put = self.node.put_until(
            self.at(offset),
            memory,
            CompletionOptions::default(),
            Some(deadline_in(20_000_000_000)),
        )?;
        self.node.finish_operation(put, TIMEOUT).map(drop)
    }

    fn get(&self, offset: u64, length: usize) -> Result<Vec<u8>, Error> {
        let memory = OperationMemory::Owned(vec![0; length]);
        let get = self.node.get_until(
            self.at(offset),
            memory,
            CompletionOptions::default(),
            Some(deadline_in(20_000_000_000)),
        )?;
        self.node.finish_operation(get, TIMEOUT)
    }

    fn add(&self, offset: u64, operand: u64) -> Result<u64, Error> {
        let (bytes, before) = (operand.to_le_bytes(), OperationMemory::Owned(vec![0; 8]));
        let (at, until) = (self.at(offset), Some(deadline_in(20_000_000_000)));
        let added = self.node.atomic_until(at, &add(&bytes), before, CompletionOptions::default(), until)?;
        self.node.finish_operation(added, TIMEOUT).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
    }
}

/// Makes progress on a node while `f` runs.
fn beside<R>(other: &Node, f: impl FnOnce() -> R) -> R {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let _ = other.progress_until(|| over.load(Ordering::Relaxed), Some(deadline_in(1_000_000)));
            }
        });
        let _over = Over(&over);
        f()
    })
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two nodes with a link over one driver.
fn pair(driver: &str) -> (Node, Node, LinkId) {
    let node = || Node::listen("", "127.0.0.1:0".parse().unwrap()).unwrap();
    let (near, far) = (node(), node());
    let address = far.address().unwrap();
    let way = address.split(',').find(|way| way.starts_with(driver)).expect("every driver has an address");
    let link = beside(&far, || near.connect(way, TIMEOUT).unwrap());
    assert_eq!(near.link_info(link).unwrap().driver, driver);
    (near, far, link)
}

#[test]
fn put_changes_the_file_only_inside_the_region() {
    for driver in DRIVERS {
        let (near, far, link) = pair(driver);
        let mut expected = pattern(2 << 20, 1);
        let file = Scratch::new(&expected);
        let key = far.register_file(&file.1, REGION_OFFSET, 2_000_000, Rights::ALL).unwrap();
        let reach = Reach { node: &near, link, key };
        beside(&far, || {
            for (offset, length) in [(0, 8), (8, 100), (500, 5000), (9001, 300_000), (1_999_999, 1), (700_000, 0)] {
                let bytes = pattern(length, length + 3);
                reach.put(offset, &bytes).unwrap();
                let at = REGION_OFFSET as usize + offset as usize;
                expected[at..at + length].copy_from_slice(&bytes);
                assert!(file.content() == expected, "{driver} {length}: as soon as it has ended");
                assert!(reach.get(offset, length).unwrap() == bytes, "{driver} {length}");
                assert_eq!(far.sync_region(key, offset, length as u64), Ok(()));
                for (outside, length) in [(2_000_001 - length as u64, length), (u64::MAX, length)] {
                    assert_eq!(reach.put(outside, &bytes), Err(Error::OutOfBounds), "{driver} {length}");
                    assert_eq!(reach.get(outside, length), Err(Error::OutOfBounds), "{driver} {length}");
                }
            }
            // Writes of other users of the file are seen; an atomic changes the right bytes.
            file.1.write_all_at(&40u64.to_le_bytes(), REGION_OFFSET + 64).unwrap();
            assert_eq!((reach.add(64, 2), reach.add(64, 1)), (Ok(40), Ok(42)));
            assert_eq!(reach.get(64, 8).unwrap(), 43u64.to_le_bytes());
            assert_eq!(reach.add(60, 2), Err(Error::InvalidAtomic));
            expected[REGION_OFFSET as usize + 64..][..8].copy_from_slice(&43u64.to_le_bytes());
            assert!(near.open_region(link, key, Some(deadline_in(20_000_000_000))) == Ok(false), "by packets");
        });
        assert!(file.content() == expected, "{driver}: nothing beside it");
        assert_eq!(far.sync_region(key, 0, 2_000_001), Err(Error::OutOfBounds));
        beside(&near, || far.revoke(key, Some(deadline_in(20_000_000_000)))).unwrap();
        assert_eq!(far.sync_region(key, 0, 1), Err(Error::Unknown));
        beside(&far, || assert_eq!(reach.put(0, &[1]), Err(Error::AccessDenied)));
        assert!(file.content() == expected, "{driver}: nor later");
    }
}

#[test]
fn concurrent_atomics_on_a_file_lose_nothing() {
    let (near, far, link) = pair("shm");
    let file = Scratch::new(&[0; 4096]);
    let key = far.register_file(&file.1, 0, 4096, Rights::ALL).unwrap();
    let third = Node::open("").unwrap();
    beside(&far, || {
        let way = far.name().unwrap();
        let other = third.connect(&way, TIMEOUT).unwrap();
        std::thread::scope(|scope| {
            for (node, link) in [(&near, link), (&third, other)] {
                scope.spawn(move || {
                    let reach = Reach { node, link, key };
                    for _ in 0..2000 {
                        reach.add(8, 1).unwrap();
                    }
                });
            }
        });
    });
    assert_eq!(file.content()[8..16], 4000u64.to_le_bytes());
}

#[test]
fn sealed_memfd_is_changed_by_cpu_atomics() {
    use motet_sys::rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let (near, far, link) = pair("shm");
    let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, 100_000).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    let key = far.register_file(&file, 16, 90_000, Rights::ALL).unwrap();
    let file = File::from(file);
    let reach = Reach { node: &near, link, key };
    beside(&far, || {
        for length in [8, 5000, 80_000] {
            reach.put(0, &pattern(length, 5)).unwrap();
            assert!(reach.get(0, length).unwrap() == pattern(length, 5));
        }
        file.write_all_at(&40u64.to_le_bytes(), 16 + 8).unwrap();
        assert_eq!((reach.add(8, 2), reach.add(8, 1)), (Ok(40), Ok(42)));
    });
    let mut bytes = vec![0; 80_000];
    file.read_exact_at(&mut bytes, 16).unwrap();
    let mut expected = pattern(80_000, 5);
    expected[8..16].copy_from_slice(&43u64.to_le_bytes());
    assert!(bytes == expected);
    assert_eq!(far.sync_region(key, 0, 90_000), Ok(()));
}

#[test]
fn invalid_file_is_refused_with_its_error() {
    let node = Node::open("").unwrap();
    let file = Scratch::new(&[7; 1000]);
    let read_only = File::open(&file.0).unwrap();
    let write_only = OpenOptions::new().write(true).open(&file.0).unwrap();
    let append = OpenOptions::new().append(true).open(&file.0).unwrap();
    let (pipe, _other) = std::io::pipe().unwrap();
    let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
    let directory = File::open(file.0.parent().unwrap()).unwrap();
    const EINVAL: i32 = 22;
    const EISDIR: i32 = 21;
    const ESPIPE: i32 = 29;
    type Case<'a> = (&'a File, u64, u64, Rights, Result<(), Error>);
    let cases: [Case<'_>; 20] = [
        (&file.1, 0, 1000, Rights::ALL, Ok(())),
        (&file.1, 999, 1, Rights::GET.and(Rights::PUT), Ok(())),
        (&file.1, 999, 2, Rights::GET, Err(Error::OutOfBounds)),
        (&file.1, 1000, 1, Rights::GET, Err(Error::OutOfBounds)),
        (&file.1, 1, u64::MAX, Rights::GET, Err(Error::OutOfBounds)),
        (&file.1, u64::MAX, 1, Rights::GET, Err(Error::OutOfBounds)),
        (&file.1, i64::MAX as u64, 1, Rights::GET, Err(Error::OutOfBounds)),
        (&file.1, 0, 0, Rights::GET, Err(Error::File(EINVAL))),
        (&file.1, 4, 16, Rights::ATOMIC, Err(Error::InvalidAtomic)),
        (&read_only, 0, 1000, Rights::GET, Ok(())),
        (&read_only, 0, 1000, Rights::PUT, Err(Error::AccessDenied)),
        (&read_only, 0, 1000, Rights::ATOMIC, Err(Error::AccessDenied)),
        (&write_only, 0, 1000, Rights::PUT, Ok(())),
        (&write_only, 0, 1000, Rights::GET, Err(Error::AccessDenied)),
        (&write_only, 0, 1000, Rights::ATOMIC, Err(Error::AccessDenied)),
        (&append, 0, 1000, Rights::PUT, Err(Error::File(EINVAL))),
        (&pipe, 0, 1, Rights::GET, Err(Error::File(ESPIPE))),
        (&directory, 0, 1, Rights::GET, Err(Error::File(EISDIR))),
        (&file.1, 8, 992, Rights::ATOMIC, Ok(())),
        (&file.1, 0, u64::MAX, Rights::ALL, Err(Error::OutOfBounds)),
    ];
    for (case, (file, offset, length, rights, expected)) in cases.into_iter().enumerate() {
        assert_eq!(node.register_file(file, offset, length, rights).map(drop), expected, "case {case}");
    }
    let words = (0..8).map(AtomicU64::new).collect();
    let memory = node.register_words(&words, Rights::ALL).unwrap();
    assert_eq!(node.sync_region(memory, 0, 8), Err(Error::InvalidAtomic));
}

// ---- two processes -----------------------------------------------------------------------------------------------------

#[test]
#[ignore = "a part of the test below, in a process of its own"]
fn helper_process() {
    let role = std::env::var(ROLE).unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    let [driver, address] = words[..] else { panic!("{role}") };
    let node = Node::open("").unwrap();
    let link = node.connect(address, TIMEOUT).unwrap();
    assert_eq!(node.link_info(link).unwrap().driver, driver);
    let channel = node.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap();
    let mut key = [0; 8];
    node.receive(channel, &mut key, TIMEOUT).unwrap();
    let reach = Reach { node: &node, link, key: motet::node::Key(u64::from_le_bytes(key)) };
    let (done, gone) = (Cell::new(0u64), Cell::new(0u64));
    let note = |end: Result<(), Error>| match end {
        Ok(()) => done.update(|done| done + 1),
        Err(Error::OutOfBounds) => gone.update(|gone| gone + 1),
        Err(error) => panic!("{error}"),
    };
    // The messages that the owner waits for, each once.
    let mut unsaid = vec![(DONE_TAG, &done), (MISSING_BYTES_TAG, &gone)];
    // Long and short accesses, until the owner has seen enough.
    for round in 0.. {
        for (at, length) in
            [(1u64, 1_000_000usize), (2_000_000, 1_500_000), (3_000_000, 40_000), (77, 5000), (2 << 20, 64)]
        {
            note(reach.put(at, &pattern(length, round)));
            note(reach.get(at, length).map(drop));
        }
        note(reach.add(3 << 20, 1).map(drop));
        unsaid.retain(|(tag, count)| {
            let seen = count.get() > 0;
            if seen {
                node.send(channel, *tag, &[], TIMEOUT).unwrap();
            }
            !seen
        });
        if node.peek(RecvFrom::Channel(channel), 0, u64::MAX).unwrap().is_some() {
            break;
        }
    }
    node.receive(channel, &mut [0; 8], TIMEOUT).unwrap();
    reach.put(0, &pattern(1 << 20, 99)).unwrap();
    let said = [done.get(), gone.get()].map(u64::to_le_bytes).concat();
    node.send(channel, 1, &said, TIMEOUT).unwrap();
    node.receive(channel, &mut [0; 8], TIMEOUT).unwrap();
}

fn other(driver: &str, address: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["helper_process", "--exact", "--ignored", "--nocapture"])
        .env(ROLE, format!("{driver} {address}"))
        .spawn()
        .unwrap()
}

#[test]
fn file_truncated_during_accesses_kills_no_process() {
    for driver in DRIVERS {
        let node = Node::listen("", "127.0.0.1:0".parse().unwrap()).unwrap();
        node.serve(SERVICE, Serve::Queue).unwrap();
        let file = Scratch::new(&pattern(FILE_BYTES as usize, 0));
        let key = node.register_file(&file.1, REGION_OFFSET, REGION_BYTES, Rights::ALL).unwrap();
        let address = node.address().unwrap();
        let way = address.split(',').find(|way| way.starts_with(driver)).unwrap();
        let mut child = other(driver, way);
        let channel = node.accept(SERVICE, TIMEOUT).unwrap();
        node.send(channel, 0, &key.0.to_le_bytes(), TIMEOUT).unwrap();
        // Truncates by name, at any moment of the other process's operations.
        let shorter = OpenOptions::new().write(true).open(&file.0).unwrap();
        beside(&node, || {
            for round in 0..150u64 {
                shorter.set_len(REGION_OFFSET + round * 7919 % REGION_BYTES).unwrap();
                std::thread::yield_now();
                shorter.set_len(FILE_BYTES).unwrap();
                std::thread::yield_now();
            }
            // Until the other process has met missing bytes, and then existing ones again.
            let mut heard = Vec::new();
            for (length, tag) in [(0, MISSING_BYTES_TAG), (FILE_BYTES, DONE_TAG)] {
                shorter.set_len(length).unwrap();
                let _ = node.progress_until(|| false, Some(deadline_in(100_000_000)));
                while !heard.contains(&tag) {
                    heard.push(node.receive(channel, &mut [], TIMEOUT).unwrap().tag);
                }
            }
        });
        node.send(channel, 1, &[0; 8], TIMEOUT).unwrap();
        let mut said = [0; 16];
        node.receive(channel, &mut said, TIMEOUT).unwrap();
        let [done, gone] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|n| said[at + n])));
        assert!(done > 0 && gone > 0, "{driver}: {done} done, {gone} met nothing");
        node.send(channel, 1, &[0; 8], TIMEOUT).unwrap();
        assert!(child.wait().unwrap().success(), "{driver}");
        let content = file.content();
        assert!(content[REGION_OFFSET as usize..][..1 << 20] == pattern(1 << 20, 99), "{driver}: what was put last");
        assert_eq!(content.len() as u64, FILE_BYTES);
        assert!(
            content[..REGION_OFFSET as usize].iter().all(|&byte| byte == 0),
            "{driver}: cut off, and never written"
        );
        assert!(content[(REGION_OFFSET + REGION_BYTES) as usize..].iter().all(|&byte| byte == 0), "{driver}");
    }
}
