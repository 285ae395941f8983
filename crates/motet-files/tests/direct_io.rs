//! Files that are open with O_DIRECT, by the client interface: past the server's page cache, and as right as through it. Each test is made with threads and with
//! io_uring.

mod disk;

use disk::{Disk, cached, drop_cache, skip};
use motet_files::client::{Client, File, Source, Transfer};
use motet_files::exports::{self, Query};
use motet_files::protocol::OpenFlags;
use motet_files::server::{Options, Server, Storage};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const READ: OpenFlags = OpenFlags::READ.union(OpenFlags::DIRECT);
const DIRECT: OpenFlags = READ.union(OpenFlags::WRITE);
const NEW: OpenFlags = DIRECT.union(OpenFlags::CREATE);
const CACHED: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const BLOCK: usize = 4096;
/// How long a test waits for what has to come.
const LIMIT: Duration = Duration::from_secs(60);

const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

/// An export of a folder, and a client of it.
struct Scene {
    client: Client,
    server: Option<Server>,
    options: Options,
}

impl Scene {
    fn new(folder: &Path, storage: Storage) -> Self {
        Self::with(folder, |options| options.storage = storage)
    }

    fn with(folder: &Path, change: impl FnOnce(&mut Options)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("direct-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut options = Options { name, directory: folder.to_owned(), ..Options::default() };
        change(&mut options);
        let server = Some(Server::start(options.clone()).expect("a server"));
        let client = Client::connect(Source::Name(options.name.clone()), None).expect("a client");
        Self { client, server, options }
    }

    fn open(&self, name: &str, flags: OpenFlags) -> File {
        self.client.open_file(name.as_bytes(), flags, 0o644).expect("an open file").0
    }

    fn path(&self, name: &str) -> PathBuf {
        self.options.directory.join(name)
    }

    /// The server ends as one that is killed does, and another one takes its place.
    fn restart_server(&mut self) {
        drop(self.server.take());
        self.server = Some(Server::start(self.options.clone()).expect("a server"));
    }

    fn info(&self) -> exports::Info {
        exports::ask(&self.options.name, &Query::default()).expect("the server answers").info
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.client.close();
    }
}

/// The ways to read that are permitted here.
fn ways(test: &str) -> Vec<Storage> {
    match motet_uring::probe() {
        Ok(()) => vec![Storage::Threads, Storage::IoUring],
        Err(why) => {
            skip(&format!("{test} with io_uring"), &why.to_string());
            vec![Storage::Threads]
        }
    }
}

/// Calls `with` with an export of a new disk, for each way to read.
fn each_way(test: &str, megabytes: u64, mut with: impl FnMut(&mut Scene)) {
    for way in ways(test) {
        let Some(disk) = Disk::new(test, megabytes) else { return };
        let mut scene = Scene::new(&disk.path(), way);
        with(&mut scene);
        drop(scene);
        drop(disk);
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("an error").raw_os_error().expect("an error number")
}

/// Numbers that look random, the same each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn direct_reads_and_writes_leave_nothing_in_the_page_cache() {
    each_way("direct_reads_and_writes_leave_nothing_in_the_page_cache", 64, |scene| {
        let bytes = pattern(1 << 20);
        let path = scene.path("data");
        let file = scene.open("data", NEW);
        assert_eq!(file.write_at(&bytes, 0).expect("a write"), bytes.len());
        assert_eq!(cached(&path), 0, "written past the cache");
        let mut read = vec![0; bytes.len()];
        assert_eq!(file.read_at(&mut read, 0).expect("a read"), bytes.len());
        for at in (0..bytes.len()).step_by(64 << 10) {
            let part = &mut read[at..][..BLOCK];
            part.fill(0);
            assert_eq!(file.read_at(part, at as u64).expect("a read"), BLOCK);
        }
        assert!(read == bytes);
        assert_eq!(cached(&path), 0, "read past the cache");
        // Without O_DIRECT the cache is used, so the two numbers above mean something.
        let ordinary = scene.open("data", CACHED);
        assert_eq!(ordinary.read_at(&mut read[..BLOCK], 0).expect("a read"), BLOCK);
        assert!(cached(&path) > 0, "read through the cache");
        if scene.options.storage == Storage::IoUring {
            assert_eq!(scene.info().storage, "io_uring and threads");
        } else {
            assert_eq!(scene.info().storage, "threads (--storage threads)");
        }
    });
}

#[test]
fn direct_and_cached_files_show_each_others_writes() {
    each_way("direct_and_cached_files_show_each_others_writes", 64, |scene| {
        let path = scene.path("data");
        let (direct, ordinary) = (scene.open("data", NEW), scene.open("data", CACHED));
        let local = fs::File::options().read(true).write(true).open(&path).expect("the file");
        let mut read = vec![0; 4 * BLOCK];
        for round in 0..20_u8 {
            local.write_all_at(&[round; 4 * BLOCK], 0).expect("a write of the host");
            assert_eq!(direct.read_at(&mut read, 0).expect("a read"), read.len());
            assert!(read.iter().all(|&byte| byte == round), "a direct read after a cached write");
            ordinary.write_at(&[round + 100; 100], 50).expect("a write");
            direct.read_at(&mut read[..BLOCK], 0).expect("a read");
            assert_eq!((read[49], read[50], read[149], read[150]), (round, round + 100, round + 100, round));
            direct.write_at(&[round + 50; 2 * BLOCK], BLOCK as u64).expect("a write");
            ordinary.read_at(&mut read, 0).expect("a read");
            assert!(
                read[BLOCK..3 * BLOCK].iter().all(|&byte| byte == round + 50),
                "a cached read after a direct write"
            );
            local.read_exact_at(&mut read, 0).expect("a read of the host");
            assert_eq!((read[BLOCK], read[3 * BLOCK - 1], read[3 * BLOCK]), (round + 50, round + 50, round));
        }
    });
}

#[test]
fn ranges_that_are_no_blocks_are_read_and_written_whole() {
    each_way("ranges_that_are_no_blocks_are_read_and_written_whole", 64, |scene| {
        let file = scene.open("data", NEW);
        let ordinary = scene.open("data", CACHED);
        let mut expected: Vec<u8> = Vec::new();
        let mut numbers = Numbers(22);
        let units = [1, 512, BLOCK];
        for round in 0..400 {
            let unit = units[numbers.below(units.len())];
            let offset = numbers.below(300_000) / unit * unit;
            let length = (1 + numbers.below(150_000)).next_multiple_of(unit);
            let used = if round % 3 == 0 { &ordinary } else { &file };
            if numbers.below(2) == 0 {
                let bytes = vec![round as u8; length];
                assert_eq!(used.write_at(&bytes, offset as u64).expect("a write"), length);
                expected.resize(expected.len().max(offset + length), 0);
                expected[offset..offset + length].copy_from_slice(&bytes);
            } else {
                let mut read = vec![0xee; length];
                let count = used.read_at(&mut read, offset as u64).expect("a read");
                let there = expected.get(offset..).unwrap_or(&[]);
                let there = &there[..there.len().min(length)];
                assert!(read[..count] == *there, "round {round}: {length} bytes at {offset}: {count} were read");
            }
        }
        drop((file, ordinary));
        assert!(fs::read(scene.path("data")).expect("the file") == expected);
    });
}

#[test]
fn reads_end_with_the_file_also_within_a_block() {
    each_way("reads_end_with_the_file_also_within_a_block", 64, |scene| {
        for size in [0, 1, 511, 512, 1000, BLOCK, BLOCK + 1, 3 * BLOCK + 100, 64 << 10, (64 << 10) + 512] {
            let bytes = pattern(size);
            fs::write(scene.path("data"), &bytes).expect("a file");
            let file = scene.open("data", READ);
            for (offset, length) in
                [(0, BLOCK), (0, 64 << 10), (0, 1 << 20), (BLOCK, BLOCK), (3 * BLOCK, BLOCK), (64 << 10, BLOCK)]
            {
                let mut read = vec![0; length];
                let count = file.read_at(&mut read, offset as u64).expect("a read");
                let there = bytes.get(offset..).unwrap_or(&[]);
                assert!(read[..count] == there[..there.len().min(length)], "{length} bytes at {offset} of {size}");
            }
        }
    });
}

#[test]
fn appended_records_of_any_length_stay_whole() {
    each_way("appended_records_of_any_length_stay_whole", 64, |scene| {
        let records = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for writer in 0..4_u8 {
                let file = scene.open("log", NEW | OpenFlags::APPEND);
                let records = &records;
                scope.spawn(move || {
                    for number in 0..25_usize {
                        let length = [100, BLOCK, 512, 3 * BLOCK, 5000][number % 5];
                        let record = vec![writer * 50 + number as u8; length];
                        assert_eq!(file.write_at(&record, 0).expect("a write"), length);
                        records.lock().expect("no panic").push(record);
                    }
                });
            }
        });
        let log = fs::read(scene.path("log")).expect("the file");
        let mut records = records.into_inner().expect("no panic");
        assert_eq!(log.len(), records.iter().map(Vec::len).sum::<usize>());
        let mut at = 0;
        while at < log.len() {
            let found = records.iter().position(|record| log[at..].starts_with(record));
            at += records.swap_remove(found.unwrap_or_else(|| panic!("no whole record at {at}"))).len();
        }
        assert!(records.is_empty());
    });
}

#[test]
fn many_reads_under_way_get_their_own_bytes() {
    each_way("many_reads_under_way_get_their_own_bytes", 64, |scene| {
        const BLOCKS: usize = 2048;
        let bytes: Vec<u8> = (0..BLOCKS as u64).flat_map(|at| at.to_le_bytes().repeat(BLOCK / 8)).collect();
        fs::write(scene.path("data"), &bytes).expect("a file");
        let clients: Vec<Client> = (0..3)
            .map(|_| Client::connect(Source::Name(scene.options.name.clone()), None).expect("a client"))
            .collect();
        thread::scope(|scope| {
            for (number, client) in clients.iter().enumerate() {
                let bytes = &bytes;
                scope.spawn(move || {
                    let file = client.open_file(b"data", READ, 0).expect("an open file").0;
                    let mut numbers = Numbers(number as u64);
                    for _ in 0..20 {
                        // More than a server has buffers, of all lengths that io_uring reads, and longer ones.
                        let ranges: Vec<(usize, usize)> = (0..64)
                            .map(|_| (numbers.below(BLOCKS - 32), [1, 1, 1, 2, 5, 16, 20][numbers.below(7)]))
                            .collect();
                        let mut memory: Vec<Vec<u8>> =
                            ranges.iter().map(|(_, blocks)| vec![0; blocks * BLOCK]).collect();
                        let mut transfers: Vec<Transfer<'_>> = memory
                            .iter_mut()
                            .zip(&ranges)
                            .map(|(memory, (at, _))| Transfer::Read((at * BLOCK) as u64, memory))
                            .collect();
                        for result in file.transfer(&mut transfers) {
                            result.expect("a read");
                        }
                        for (memory, (at, blocks)) in memory.iter().zip(&ranges) {
                            assert!(
                                memory[..] == bytes[at * BLOCK..][..blocks * BLOCK],
                                "{blocks} blocks from {at} on"
                            );
                        }
                    }
                });
            }
        });
        clients.iter().for_each(Client::close);
        let ring = scene.info().storage == "io_uring and threads";
        assert_eq!(ring, scene.options.storage == Storage::IoUring);
    });
}

#[test]
fn offsets_that_no_file_has_are_refused() {
    each_way("offsets_that_no_file_has_are_refused", 64, |scene| {
        fs::write(scene.path("data"), pattern(2 * BLOCK)).expect("a file");
        let (file, ordinary) = (scene.open("data", DIRECT), scene.open("data", CACHED));
        let mut read = vec![0xee; BLOCK];
        // -1 is the file's position for io_uring; -4096 is a multiple of a block.
        for offset in [u64::MAX, u64::MAX - 4095, 1 << 63, i64::MAX as u64 - 4095 + BLOCK as u64] {
            for used in [&file, &ordinary] {
                assert_eq!(errno(used.read_at(&mut read, offset)), EINVAL, "a read at {offset:#x}");
                assert_eq!(errno(used.write_at(&read, offset)), EINVAL, "a write at {offset:#x}");
            }
        }
        assert!(read.iter().all(|&byte| byte == 0xee));
        let last = (i64::MAX as u64 - 4095) / BLOCK as u64 * BLOCK as u64;
        let results =
            [&file, &ordinary].map(|used| used.read_at(&mut read, last).map_err(|error| error.raw_os_error()));
        assert_eq!(results[0], results[1], "the last block that a file can have");
        assert_eq!(file.read_at(&mut read, BLOCK as u64).expect("a read"), BLOCK, "the connection goes on");
        assert!(read == pattern(2 * BLOCK)[BLOCK..]);
    });
}

#[test]
fn a_restarted_server_opens_files_past_the_cache_again() {
    each_way("a_restarted_server_opens_files_past_the_cache_again", 64, |scene| {
        let bytes = pattern(1 << 20);
        fs::write(scene.path("data"), &bytes).expect("a file");
        let path = scene.path("data");
        let file = scene.open("data", DIRECT);
        for _ in 0..3 {
            scene.restart_server();
            drop_cache(&path);
            let mut read = vec![0; 64 << 10];
            assert_eq!(file.read_at(&mut read, 0).expect("a read"), read.len());
            assert!(read == bytes[..64 << 10]);
            file.write_at(&bytes[..BLOCK], 0).expect("a write");
            assert_eq!(cached(&path), 0);
        }
    });
}

#[test]
fn reads_that_are_under_way_when_the_server_ends_are_made_again() {
    each_way("reads_that_are_under_way_when_the_server_ends_are_made_again", 64, |scene| {
        let bytes = pattern(1 << 20);
        fs::write(scene.path("data"), &bytes).expect("a file");
        let file = scene.open("data", READ);
        let (stop, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
        thread::scope(|scope| {
            for reader in 0..4 {
                let (file, bytes, stop, rounds) = (&file, &bytes, &stop, &rounds);
                scope.spawn(move || {
                    let mut numbers = Numbers(reader);
                    let mut read = vec![0; 4 * BLOCK];
                    while !stop.load(Ordering::SeqCst) {
                        let at = numbers.below(bytes.len() / BLOCK - 4) * BLOCK;
                        assert_eq!(file.read_at(&mut read, at as u64).expect("a read"), read.len());
                        assert!(read == bytes[at..][..4 * BLOCK]);
                        rounds.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let began = Instant::now();
            for _ in 0..5 {
                // Each server has served some of them.
                let before = rounds.load(Ordering::SeqCst);
                while rounds.load(Ordering::SeqCst) < before + 50 && began.elapsed() < LIMIT {
                    thread::sleep(Duration::from_millis(5));
                }
                scene.restart_server();
            }
            stop.store(true, Ordering::SeqCst);
        });
        assert!(rounds.into_inner() >= 250, "the readers did not go on");
    });
}

/// How many descriptors of this process are of a file.
fn descriptors(path: &Path) -> usize {
    let entries = fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    entries.filter(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == path)).count()
}

#[test]
fn a_client_that_goes_while_reads_are_under_way_leaves_nothing() {
    each_way("a_client_that_goes_while_reads_are_under_way_leaves_nothing", 64, |scene| {
        fs::write(scene.path("data"), pattern(1 << 20)).expect("a file");
        for _ in 0..10 {
            let client = Client::connect(Source::Name(scene.options.name.clone()), Some(LIMIT)).expect("a client");
            let file = Arc::new(client.open_file(b"data", READ, 0).expect("an open file").0);
            let reading = Arc::new(AtomicU32::new(0));
            let readers: Vec<_> = (0..4)
                .map(|_| {
                    let (file, reading) = (Arc::clone(&file), Arc::clone(&reading));
                    thread::spawn(move || {
                        let mut read = vec![0; BLOCK];
                        // Until the client has gone.
                        while file.read_at(&mut read, 0).is_ok() {
                            reading.fetch_add(1, Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            let began = Instant::now();
            while reading.load(Ordering::SeqCst) < 20 && began.elapsed() < LIMIT {
                thread::yield_now();
            }
            client.close();
            readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
        }
        let path = fs::canonicalize(scene.path("data")).expect("a path");
        let began = Instant::now();
        loop {
            let (clients, open) = (scene.info().clients, descriptors(&path));
            if (clients, open) == (1, 0) {
                break;
            }
            assert!(began.elapsed() < LIMIT, "{clients} clients, {open} descriptors");
            thread::sleep(Duration::from_millis(20));
        }
        // All buffers are free: as many reads as there are of them are made at once.
        let file = scene.open("data", READ);
        let mut memory = vec![vec![0; BLOCK]; 64];
        let mut transfers: Vec<_> = memory.iter_mut().map(|memory| Transfer::Read(0, memory)).collect();
        assert!(file.transfer(&mut transfers).into_iter().all(|result| result.is_ok_and(|read| read == BLOCK)));
    });
}

#[test]
fn the_cache_is_used_where_o_direct_is_ignored() {
    let test = "the_cache_is_used_where_o_direct_is_ignored";
    let Some(disk) = Disk::new(test, 64) else { return };
    let scene = Scene::with(&disk.path(), |options| options.ignore_o_direct = true);
    fs::write(scene.path("data"), pattern(1 << 20)).expect("a file");
    let path = scene.path("data");
    drop_cache(&path);
    let file = scene.open("data", DIRECT);
    let mut read = vec![0; BLOCK];
    file.read_at(&mut read, 0).expect("a read");
    assert!(cached(&path) > 0);
    assert!(scene.info().storage.contains("O_DIRECT is ignored"), "{}", scene.info().storage);
}

#[test]
fn a_file_system_in_memory_uses_its_cache_and_says_so() {
    let test = "a_file_system_in_memory_uses_its_cache_and_says_so";
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return skip(test, "/dev/shm cannot be written") };
    let scene = Scene::new(folder.path(), Storage::Auto);
    let bytes = pattern(100_000);
    let file = scene.open("data", NEW);
    assert_eq!(file.write_at(&bytes, 1).expect("a write"), bytes.len());
    let mut read = vec![0; bytes.len()];
    assert_eq!(file.read_at(&mut read, 1).expect("a read"), bytes.len());
    assert!(read == bytes);
    let storage = scene.info().storage;
    assert!(storage.contains("1 opens with O_DIRECT use the page cache") && storage.contains("in memory"), "{storage}");
}

#[test]
fn folders_may_be_opened_with_o_direct() {
    let folder = tempfile::tempdir().expect("a folder");
    let scene = Scene::new(folder.path(), Storage::Auto);
    fs::write(scene.path("entry"), b"x").expect("a file");
    let open = scene.open("", READ | OpenFlags::DIRECTORY);
    let mut listing = vec![0; BLOCK];
    let length = open.readdir(0, false, &mut listing).expect("a listing");
    assert!(motet_files::protocol::entries(&listing[..length]).any(|entry| entry.name == b"entry"));
}

#[test]
fn a_full_disk_gives_enospc_and_keeps_what_was_written_directly() {
    each_way("a_full_disk_gives_enospc_and_keeps_what_was_written_directly", 16, |scene| {
        let error = fill(scene, "full");
        assert_eq!(error, ENOSPC);
    });
}

#[test]
fn a_quota_gives_edquot_and_keeps_what_was_written_directly() {
    let test = "a_quota_gives_edquot_and_keeps_what_was_written_directly";
    for way in ways(test) {
        let Some(disk) = Disk::btrfs(test, 256) else { return };
        let scene = Scene::new(&disk.limited_folder(), way);
        assert_eq!(fill(&scene, "full"), EDQUOT);
    }
}

/// Writes to a new file until that fails; returns the error number. What was reported as written must be there, and with less in the file it must go on.
fn fill(scene: &Scene, name: &str) -> i32 {
    let file = scene.open(name, NEW);
    let bytes = pattern(64 << 10);
    let mut length = 0_u64;
    let error = loop {
        match file.write_at(&bytes, length) {
            Ok(written) => length += written as u64,
            Err(error) => break error.raw_os_error().expect("an error number"),
        }
        assert!(length < 1 << 30, "there is no limit");
        // A write that stops in its middle says how far it came; the rest begins there.
        if !length.is_multiple_of(bytes.len() as u64) {
            break errno(file.write_at(&bytes, length));
        }
    };
    assert!(length > 1 << 20, "{length} bytes were written");
    let mut read = vec![0; bytes.len()];
    for at in (0..length).step_by(bytes.len()) {
        let count = file.read_at(&mut read, at).expect("a read");
        let there = usize::try_from(length - at).expect("a length").min(bytes.len());
        assert!(count >= there && read[..there] == bytes[..there], "what was written at {at} is lost");
    }
    drop(file);
    scene.client.unlink(name.as_bytes(), false).expect("removed");
    // File systems free the space of removed files a little later.
    let began = Instant::now();
    let writes = || scene.client.open_file(name.as_bytes(), NEW, 0o644)?.0.write_at(&bytes, 0);
    while writes().is_err() {
        assert!(began.elapsed() < LIMIT, "there is no space again");
        thread::sleep(Duration::from_millis(50));
    }
    error
}

#[test]
fn eio_of_the_device_is_reported_and_ends_no_other_read() {
    let test = "eio_of_the_device_is_reported_and_ends_no_other_read";
    for way in ways(test) {
        let Some(disk) = Disk::new(test, 64) else { return };
        let bytes = pattern(48 << 20);
        fs::write(disk.path().join("data"), &bytes).expect("a file");
        disk.mount_again_read_only();
        let scene = Scene::with(&disk.path(), |options| (options.storage, options.read_only) = (way, true));
        let file = scene.open("data", READ);
        let mut read = vec![0; 4 * BLOCK];
        assert_eq!(file.read_at(&mut read, 0).expect("a read"), read.len());
        // The end of the device is gone, and with it a part of the file.
        fs::File::options().write(true).open(disk.image()).and_then(|image| image.set_len(32 << 20)).expect("cut");
        let at = |megabytes: u64| megabytes << 20;
        let lost = (0..48).find(|&megabytes| file.read_at(&mut read, at(megabytes)).is_err());
        let lost = lost.expect("a part of the file that is lost");
        assert_eq!(errno(file.read_at(&mut read, at(lost))), EIO);
        assert_eq!(errno(file.read_at(&mut read[..100], at(lost) + 1)), EIO, "no whole blocks");
        let mut memory = vec![vec![0; BLOCK]; 32];
        let mut transfers: Vec<_> = memory
            .iter_mut()
            .enumerate()
            .map(|(number, memory)| Transfer::Read(if number % 2 == 0 { 0 } else { at(lost) }, memory))
            .collect();
        for (number, result) in file.transfer(&mut transfers).into_iter().enumerate() {
            match number % 2 {
                0 => assert_eq!(result.expect("a read"), BLOCK),
                _ => assert_eq!(errno(result), EIO),
            }
        }
        drop(transfers);
        assert!(memory.iter().step_by(2).all(|memory| memory[..] == bytes[..BLOCK]));
    }
}

#[test]
fn signals_that_interrupt_direct_io_lose_nothing() {
    // In a process of its own: signals come to every thread, also to those of other tests.
    let test = "signals_that_interrupt_direct_io_lose_nothing";
    if std::env::var_os(SIGNALS_VARIABLE).is_none() {
        let mut process = Command::new(std::env::current_exe().expect("this program"));
        let output =
            process.args(["--exact", test, "--nocapture"]).env(SIGNALS_VARIABLE, "1").output().expect("a process");
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        eprintln!("{printed}");
        return assert!(output.status.success() && printed.contains("1 passed"), "{}", output.status);
    }
    // A handler, so that waits are interrupted and the process goes on. It stays, for signals that are still on their way.
    let seen = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&seen)).expect("a handler");
    each_way(test, 64, |scene| {
        seen.store(false, Ordering::SeqCst);
        let file = scene.open("data", NEW);
        let signals = Signals::start();
        let began = Instant::now();
        while !seen.load(Ordering::SeqCst) {
            assert!(began.elapsed() < LIMIT, "there are no signals");
            thread::sleep(Duration::from_millis(5));
        }
        let mut numbers = Numbers(5);
        for round in 0..200_usize {
            let blocks = 1 + numbers.below(16);
            let at = (numbers.below(1000) * BLOCK) as u64;
            let bytes = vec![round as u8; blocks * BLOCK];
            let mut read = vec![0; bytes.len()];
            assert_eq!(file.write_at(&bytes, at).expect("a write"), bytes.len());
            assert_eq!(file.read_at(&mut read, at).expect("a read"), bytes.len());
            assert!(read == bytes, "round {round}");
        }
        drop(signals);
    });
}

/// Says to this program that it is the process that gets signals.
const SIGNALS_VARIABLE: &str = "MOTET_TEST_SIGNALS";

/// A process that sends SIGUSR1 to each thread of this one, again and again.
struct Signals(Child);

impl Signals {
    fn start() -> Self {
        let script = "\
import ctypes, os, sys, time
process, tgkill, SIGUSR1 = os.getppid(), 234 if os.uname().machine == 'x86_64' else 131, 10
libc = ctypes.CDLL(None)
while os.getppid() == process:
    for thread in os.listdir(f'/proc/{process}/task'):
        libc.syscall(tgkill, process, int(thread), SIGUSR1)
    time.sleep(0.001)
";
        Self(Command::new("python3").args(["-c", script]).spawn().expect("python3"))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
