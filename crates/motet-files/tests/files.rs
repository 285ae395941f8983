//! A client and a server of an export in one process: each operation against what the local file system says, and what must be refused.

use motet_files::client::{Client, File, Source, Transfer};
use motet_files::exports::{self, Query};
use motet_files::protocol::{
    Change, LockKind, LockRange, MAX_DATA_BYTES, OpenFlags, RenameFlags, SetTime, Time, entries,
};
use motet_files::server::{Options, Server};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const NEW: OpenFlags = READ_WRITE.union(OpenFlags::CREATE);

/// An export of a temporary folder, and a client of it.
struct Scene {
    client: Client,
    server: Option<Server>,
    folder: TempDir,
    name: String,
}

fn options(name: &str, folder: &Path) -> Options {
    Options { name: name.to_owned(), directory: folder.to_owned(), ..Options::default() }
}

impl Scene {
    fn new() -> Self {
        Self::with(|_| {}, None)
    }

    fn with(change: impl FnOnce(&mut Options), limit: Option<Duration>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().expect("a folder");
        let name = format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut options = options(&name, folder.path());
        change(&mut options);
        let server = Some(Server::start(options).expect("a server"));
        let client = Client::connect(Source::Name(name.clone()), limit).expect("a client");
        Self { client, server, folder, name }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn create(&self, name: &str) -> File {
        self.client.open_file(name.as_bytes(), NEW, 0o644).expect("a new file").0
    }

    fn another_client(&self) -> Client {
        Client::connect(Source::Name(self.name.clone()), None).expect("another client")
    }

    /// The server ends as one that is killed does, and another one takes its place.
    fn restart_server(&mut self) {
        drop(self.server.take());
        self.server = Some(Server::start(options(&self.name, self.folder.path())).expect("a server"));
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.client.close();
    }
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("an error").raw_os_error().expect("an error number")
}

const ENOENT: i32 = 2;
const EAGAIN: i32 = 11;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const EROFS: i32 = 30;
const ELOOP: i32 = 40;
const ENXIO: i32 = 6;
const ESTALE: i32 = 116;
const EIO: i32 = 5;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

#[test]
fn data_of_every_size_arrive_whole() {
    let scene = Scene::new();
    for length in [0, 1, 100, 4096, 32 << 10, (32 << 10) + 1, 100_000, MAX_DATA_BYTES, MAX_DATA_BYTES + 1, 5 << 20] {
        let bytes = pattern(length);
        let file = scene.create("data");
        assert_eq!(file.write_at(&bytes, 0).expect("a write"), length);
        assert!(fs::read(scene.path("data")).expect("the file") == bytes, "{length} bytes were written wrong");
        let mut read = vec![0xee; length + 10];
        assert_eq!(file.read_at(&mut read, 0).expect("a read"), length);
        assert!(read[..length] == bytes && read[length..] == [0xee; 10], "{length} bytes were read wrong");
        scene.client.unlink(b"data", false).expect("removed");
    }
}

#[test]
fn reads_and_writes_have_offsets_and_append_goes_to_the_end() {
    let scene = Scene::new();
    let file = scene.create("file");
    file.write_at(b"world", 1 << 33).expect("a write beyond 4 GiB");
    file.write_at(b"hello", 10).expect("a write");
    let mut bytes = [1; 8];
    assert_eq!(file.read_at(&mut bytes, 8).expect("a read"), 8);
    assert_eq!(&bytes, b"\0\0hello\0");
    assert_eq!(file.read_at(&mut bytes, (1 << 33) + 3).expect("a read at the end"), 2);
    assert_eq!(file.attributes().expect("attributes").size, (1 << 33) + 5);
    let (appending, _) = scene.client.open_file(b"log", NEW | OpenFlags::APPEND, 0o600).expect("a file");
    appending.write_at(b"one ", 0).expect("a write");
    appending.write_at(b"two", 0).expect("a write");
    assert_eq!(fs::read(scene.path("log")).expect("the file"), b"one two");
}

#[test]
fn attributes_are_those_of_the_file_system_and_change() {
    let scene = Scene::new();
    fs::write(scene.path("file"), b"12345").expect("a file");
    let of = |name: &str| scene.client.attributes(name.as_bytes()).expect("attributes");
    let system = fs::metadata(scene.path("file")).expect("metadata");
    let found = of("file");
    assert_eq!((found.inode, found.mode, found.size, found.links), (system.ino(), system.mode(), 5, 1));
    assert_eq!((found.modified.seconds, i64::from(found.modified.nanoseconds)), (system.mtime(), system.mtime_nsec()));
    let moment = Time { seconds: 1_000_000, nanoseconds: 7 };
    let change = Change {
        mode: Some(0o640),
        size: Some(3),
        modified: Some(SetTime::At(moment)),
        accessed: Some(SetTime::Now),
        ..Change::default()
    };
    let changed = scene.client.set_attributes(b"file", &change).expect("changed");
    assert_eq!((changed.mode & 0o7777, changed.size, changed.modified), (0o640, 3, moment));
    assert_eq!(fs::read(scene.path("file")).expect("the file"), b"123");
    assert!(changed.accessed.seconds > 1_700_000_000);
    let invalid = Time { seconds: 0, nanoseconds: 1_000_000_000 };
    let change = Change { modified: Some(SetTime::At(invalid)), ..Change::default() };
    assert_eq!(errno(scene.client.set_attributes(b"file", &change)), EINVAL);
    assert_eq!(errno(scene.client.attributes(b"missing")), ENOENT);
    assert_eq!(of("").inode, fs::metadata(scene.folder.path()).expect("metadata").ino());
}

#[test]
fn names_are_made_renamed_linked_and_removed() {
    let scene = Scene::new();
    let client = &scene.client;
    client.mkdir(b"folder", 0o755).expect("a folder");
    client.mkdir(b"folder/inner", 0o755).expect("a folder");
    assert_eq!(errno(client.mkdir(b"folder", 0o755)), EEXIST);
    scene.create("folder/inner/file").write_at(b"x", 0).expect("a write");
    client.hard_link(b"folder/inner/file", b"link").expect("a link");
    assert_eq!(client.attributes(b"link").expect("attributes").links, 2);
    client.symlink(b"symlink", b"folder/inner/file").expect("a symbolic link");
    assert_eq!(client.read_link(b"symlink").expect("its target"), b"folder/inner/file");
    client.rename(b"folder/inner", b"moved", RenameFlags::empty()).expect("renamed");
    assert_eq!(fs::read(scene.path("moved/file")).expect("the file"), b"x");
    assert_eq!(errno(client.rename(b"moved/file", b"link", RenameFlags::NO_REPLACE)), EEXIST);
    client.mknod(b"pipe", 0o010_600, 0).expect("a named pipe");
    assert_eq!(errno(client.open_file(b"pipe", OpenFlags::READ, 0)), ENXIO, "a pipe belongs to the client's host");
    for (path, folder) in [("moved/file", false), ("moved", true), ("link", false), ("symlink", false), ("pipe", false)]
    {
        client.unlink(path.as_bytes(), folder).expect("removed");
    }
    assert_eq!(fs::read_dir(scene.folder.path()).expect("the folder").count(), 1);
    for path in [&b""[..], b".", b"..", b"folder/.."] {
        assert_eq!(errno(client.unlink(path, true)), EINVAL, "{path:?}");
    }
}

#[test]
fn nothing_leads_out_of_the_export() {
    let scene = Scene::new();
    let outside = tempfile::tempdir().expect("a folder");
    fs::write(outside.path().join("secret"), b"secret").expect("a file");
    symlink(outside.path(), scene.path("absolute")).expect("a link");
    symlink("../..", scene.path("up")).expect("a link");
    symlink("/proc/self/root", scene.path("magic")).expect("a link");
    symlink("loop", scene.path("loop")).expect("a link");
    fs::create_dir(scene.path("folder")).expect("a folder");
    let client = &scene.client;
    for path in ["absolute/secret", "up/etc/passwd", "magic/etc/passwd", "..", "folder/../../etc/passwd", "../etc"] {
        assert_eq!(errno(client.attributes(path.as_bytes())), ENOENT, "{path}");
        assert_eq!(errno(client.open_file(path.as_bytes(), OpenFlags::READ, 0)), ENOENT, "{path}");
    }
    assert_eq!(errno(client.open_file(b"absolute/new", NEW, 0o644)), ENOENT);
    assert_eq!(errno(client.unlink(b"absolute/secret", false)), ENOENT);
    assert_eq!(errno(client.rename(b"folder", b"up/folder", RenameFlags::empty())), ENOENT);
    assert_eq!(errno(client.attributes(b"loop/x")), ELOOP);
    for path in [&b"/etc/passwd"[..], b"zero\0byte"] {
        assert_eq!(errno(client.attributes(path)), EINVAL);
    }
    assert!(outside.path().join("secret").exists());
    // Names that are only unusual are names.
    for name in [&b"\xff\xfe"[..], b"new\nline", b"...", b" "] {
        client.open_file(name, NEW, 0o644).expect("a file");
        client.unlink(name, false).expect("removed");
    }
}

#[test]
fn a_listing_has_every_entry_once_with_its_attributes() {
    let scene = Scene::new();
    let names: BTreeSet<String> =
        (0..3000).map(|number| format!("entry-{number}-{}", "n".repeat(number % 90))).collect();
    for name in &names {
        fs::write(scene.path(name), name).expect("a file");
    }
    let (folder, _) = scene.client.open_file(b"", OpenFlags::READ | OpenFlags::DIRECTORY, 0).expect("the folder");
    for with_attributes in [true, false] {
        let (mut cookie, mut found, mut buffer) = (0, BTreeSet::new(), vec![0; 20_000]);
        loop {
            let length = folder.readdir(cookie, with_attributes, &mut buffer).expect("a listing");
            if length == 0 {
                break;
            }
            for entry in entries(&buffer[..length]) {
                cookie = entry.cookie;
                let name = String::from_utf8(entry.name.to_vec()).expect("a name");
                if name == "." || name == ".." {
                    continue;
                }
                let size = entry.attributes.map(|attributes| attributes.size as usize);
                assert_eq!(size, with_attributes.then_some(name.len()));
                assert!(found.insert(name), "an entry twice");
            }
        }
        assert_eq!(found, names);
    }
}

#[test]
fn extended_attributes_of_users_are_kept_and_others_refused() {
    let scene = Scene::new();
    scene.create("file");
    let client = &scene.client;
    let value = pattern(2000);
    client.set_xattr(b"file", b"user.one", &value, true, false).expect("set");
    assert_eq!(errno(client.set_xattr(b"file", b"user.one", b"x", true, false)), EEXIST);
    assert_eq!(client.xattr(b"file", b"user.one").expect("the value"), value);
    assert_eq!(client.xattrs(b"file").expect("names"), b"user.one\0");
    client.remove_xattr(b"file", b"user.one").expect("removed");
    assert_eq!(errno(client.xattr(b"file", b"user.one")), 61);
    assert_eq!(errno(client.set_xattr(b"file", b"trusted.x", b"x", false, false)), 95);
    assert_eq!(errno(client.set_xattr(b"file", b"security.capability", b"x", false, false)), 95);
}

#[test]
fn locks_exclude_other_clients_and_local_processes() {
    let scene = Scene::new();
    let range = |kind, start, end| LockRange { kind, start, end, process: 0 };
    let file = scene.create("file");
    let other = scene.another_client();
    let (second, _) = other.open_file(b"file", READ_WRITE, 0).expect("the file");
    file.lock(1, range(LockKind::Exclusive, 0, 9)).expect("a lock");
    assert_eq!(errno(second.lock(1, range(LockKind::Shared, 5, 5))), EAGAIN);
    assert_eq!(errno(file.lock(2, range(LockKind::Shared, 5, 5))), EAGAIN, "another owner of the same client");
    second.lock(1, range(LockKind::Exclusive, 10, u64::MAX)).expect("a lock beside it");
    let holder = second.test_lock(1, range(LockKind::Exclusive, 0, 20)).expect("the holder");
    assert_eq!((holder.kind, holder.start, holder.end), (LockKind::Exclusive, 0, 9));
    file.lock(1, range(LockKind::Unlocked, 0, 9)).expect("released");
    second.lock(7, range(LockKind::Shared, 0, 3)).expect("a lock");
    file.lock(8, range(LockKind::Shared, 0, 3)).expect("shared");
    // A client that goes releases its locks.
    other.close();
    file.lock(8, range(LockKind::Unlocked, 0, u64::MAX)).expect("released");
    file.lock(9, range(LockKind::Exclusive, 0, u64::MAX)).expect("all of it");
}

#[test]
fn a_read_only_export_refuses_every_change() {
    let scene = Scene::with(|options| options.read_only = true, None);
    fs::write(scene.path("file"), b"12345").expect("a file");
    let client = &scene.client;
    assert!(client.is_read_only());
    let (file, _) = client.open_file(b"file", OpenFlags::READ, 0).expect("the file");
    for flags in [
        READ_WRITE,
        NEW,
        OpenFlags::READ | OpenFlags::TRUNCATE,
        OpenFlags::APPEND,
        OpenFlags::WRITE | OpenFlags::TMPFILE,
    ] {
        assert_eq!(errno(client.open_file(b"file", flags, 0o644)), EROFS, "{flags:?}");
    }
    assert_eq!(errno(file.write_at(b"x", 0)), EROFS);
    assert_eq!(errno(client.mkdir(b"x", 0o755)), EROFS);
    assert_eq!(errno(client.unlink(b"file", false)), EROFS);
    assert_eq!(errno(client.rename(b"file", b"x", RenameFlags::empty())), EROFS);
    assert_eq!(errno(file.fallocate(0, 0, 100)), EROFS);
    assert_eq!(errno(client.set_attributes(b"file", &Change { size: Some(0), ..Change::default() })), EROFS);
    assert_eq!(errno(client.set_xattr(b"file", b"user.x", b"x", false, false)), EROFS);
    assert_eq!(fs::read(scene.path("file")).expect("the file"), b"12345");
}

#[test]
fn an_open_file_outlives_its_name() {
    let scene = Scene::new();
    let file = scene.create("file");
    file.write_at(b"before", 0).expect("a write");
    scene.client.unlink(b"file", false).expect("removed");
    file.write_at(b"after!", 0).expect("a write");
    let mut bytes = [0; 6];
    file.read_at(&mut bytes, 0).expect("a read");
    assert_eq!((&bytes, file.attributes().expect("attributes").links), (b"after!", 0));
    let (unnamed, _) =
        scene.client.open_file(b"", READ_WRITE | OpenFlags::TMPFILE, 0o600).expect("a file without a name");
    unnamed.write_at(b"x", 0).expect("a write");
    assert_eq!(fs::read_dir(scene.folder.path()).expect("the folder").count(), 0);
}

#[test]
fn holes_are_found_punched_and_copied() {
    let scene = Scene::new();
    let (file, copy) = (scene.create("file"), scene.create("copy"));
    file.write_at(&pattern(64 << 10), 1 << 20).expect("a write");
    assert_eq!(file.seek(0, true).expect("data"), 1 << 20);
    assert_eq!(file.seek(1 << 20, false).expect("a hole"), (1 << 20) + (64 << 10));
    assert_eq!(errno(file.seek(2 << 20, true)), ENXIO);
    file.fallocate(3, 1 << 20, 32 << 10).expect("a hole is punched");
    assert_eq!(file.seek(0, true).expect("data"), (1 << 20) + (32 << 10));
    assert_eq!(file.copy_to((1 << 20) + (32 << 10), &copy, 5, 1000).expect("copied"), 1000);
    let mut bytes = vec![0; 1000];
    copy.read_at(&mut bytes, 5).expect("a read");
    assert_eq!(bytes, pattern(64 << 10)[32 << 10..][..1000]);
}

#[test]
fn many_threads_of_a_client_use_one_session() {
    let scene = Scene::new();
    thread::scope(|scope| {
        for number in 0..8_u8 {
            let client = &scene.client;
            scope.spawn(move || {
                let (file, _) = client.open_file(&[b'a' + number], NEW, 0o644).expect("a file");
                for round in 0..200_u64 {
                    let length = [100, 5000, 50_000, 300_000][round as usize % 4];
                    let bytes = vec![number + round as u8; length];
                    file.write_at(&bytes, round * 1000).expect("a write");
                    let mut read = vec![0; length];
                    assert_eq!(file.read_at(&mut read, round * 1000).expect("a read"), length);
                    assert!(read == bytes, "thread {number}, round {round}");
                }
            });
        }
    });
}

#[test]
fn open_files_and_locks_outlive_a_restarted_server() {
    let mut scene = Scene::new();
    let file = scene.create("kept");
    let gone = scene.create("gone");
    let exclusive = LockRange { kind: LockKind::Exclusive, start: 0, end: 99, process: 0 };
    file.lock(1, exclusive).expect("a lock");
    file.write_at(b"before", 0).expect("a write");
    fs::remove_file(scene.path("gone")).expect("removed");
    scene.restart_server();
    file.write_at(b"after", 6).expect("a write to the restarted server");
    assert_eq!(fs::read(scene.path("kept")).expect("the file"), b"beforeafter");
    assert_eq!(errno(gone.write_at(b"x", 0)), ESTALE);
    let other = scene.another_client();
    let (second, _) = other.open_file(b"kept", READ_WRITE, 0).expect("the file");
    assert_eq!(errno(second.lock(1, exclusive)), EAGAIN, "the lock is taken again");
}

#[test]
fn a_call_waits_for_a_server_that_is_away() {
    let mut scene = Scene::new();
    let file = scene.create("file");
    drop(scene.server.take());
    let (done, waits) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| done.send(file.write_at(b"late", 0)));
        assert!(waits.recv_timeout(Duration::from_millis(300)).is_err(), "the call does not fail");
        scene.server = Some(Server::start(options(&scene.name, scene.folder.path())).expect("a server"));
        assert_eq!(waits.recv().expect("an answer").expect("a write"), 4);
    });
    assert_eq!(fs::read(scene.path("file")).expect("the file"), b"late");
}

#[test]
fn what_was_not_sent_to_a_server_before_is_made_at_the_next_one() {
    let mut scene = Scene::new();
    let (log, _) =
        scene.client.open_file(b"log", READ_WRITE | OpenFlags::CREATE | OpenFlags::APPEND, 0o644).expect("a file");
    for turn in 0..3u8 {
        log.write_at(&[turn], 0).expect("a write");
        // So that the client asks first whether the server is there.
        thread::sleep(Duration::from_millis(50));
        scene.restart_server();
        scene.client.mkdir(&[b'a' + turn], 0o755).expect("a directory");
        thread::sleep(Duration::from_millis(50));
        scene.restart_server();
        log.write_at(&[turn], 0).expect("a write");
    }
    assert_eq!(fs::read(scene.path("log")).expect("the file"), [0, 0, 1, 1, 2, 2]);
}

#[test]
fn a_call_within_the_limit_waits_for_the_server() {
    let mut scene = Scene::with(|_| {}, Some(Duration::from_secs(30)));
    let file = scene.create("file");
    file.write_at(b"before", 0).expect("a write");
    drop(scene.server.take());
    let (name, folder) = (scene.name.clone(), scene.folder.path().to_owned());
    let restart = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        Server::start(options(&name, &folder)).expect("a server")
    });
    assert_eq!(file.write_at(b"after!", 6).expect("a write"), 6);
    scene.server = Some(restart.join().expect("a server"));
    assert_eq!(fs::read(scene.path("file")).expect("the file"), b"beforeafter!");
}

#[test]
fn a_client_with_a_limit_gives_up() {
    let mut scene = Scene::with(|_| {}, Some(Duration::from_millis(100)));
    let file = scene.create("file");
    drop(scene.server.take());
    assert_eq!(errno(file.write_at(b"x", 0)), EIO);
    assert_eq!(errno(scene.client.attributes(b"")), EIO);
}

#[test]
fn a_file_that_is_closed_while_its_server_is_away_is_not_opened_again() {
    let mut scene = Scene::new();
    let (closed, kept) = (scene.create("closed"), scene.create("kept"));
    drop(scene.server.take());
    let (done, waits) = mpsc::channel();
    thread::spawn(move || {
        drop(closed);
        let _ = done.send(());
    });
    let ended = waits.recv_timeout(Duration::from_secs(60));
    if ended.is_err() {
        // So that the other file's close ends with the test.
        scene.client.close();
    }
    ended.expect("a close does not wait");
    scene.restart_server();
    kept.write_at(b"text", 0).expect("a write");
    let info = exports::ask(&scene.name, &Query::default()).expect("the export").info;
    assert_eq!((info.clients, info.open_files), (1, 1));
}

#[test]
fn a_name_belongs_to_one_server() {
    let scene = Scene::new();
    assert_eq!(errno(Server::start(options(&scene.name, scene.folder.path())).map(drop)), 98);
    assert_eq!(errno(Client::connect(Source::Name("no-such".to_owned()), None)), ENOENT);
    assert!(Server::start(options("../escape", scene.folder.path())).is_err());
}

#[test]
fn a_client_of_this_host_may_use_the_folder_itself() {
    let mut scene = Scene::with(|options| options.direct = true, None);
    let direct = Client::named(&scene.name, None).expect("a client");
    assert!(direct.is_direct() && !scene.client.is_direct());
    drop(scene.server.take());
    let (file, _) = direct.open_file(b"file", NEW, 0o644).expect("a file");
    let bytes = pattern(3 << 20);
    assert_eq!(file.write_at(&bytes, 0).expect("a write"), bytes.len());
    let mut read = vec![0; bytes.len()];
    assert_eq!(file.read_at(&mut read, 0).expect("a read"), bytes.len());
    assert!(read == bytes);
    assert_eq!(errno(direct.attributes(b"../x")), ENOENT);
    direct.symlink(b"link", b"file").expect("a link");
    assert_eq!(direct.read_link(b"link").expect("its target"), b"file");
    let local = fs::File::from(file.descriptor().expect("a descriptor"));
    assert_eq!(local.metadata().expect("metadata").len(), bytes.len() as u64);
}

#[test]
fn what_another_program_changes_is_seen() {
    let scene = Scene::new();
    let file = scene.create("file");
    let local = fs::OpenOptions::new().write(true).open(scene.path("file")).expect("the file");
    local.write_all_at(b"local", 0).expect("a write");
    let mut bytes = [0; 5];
    file.read_at(&mut bytes, 0).expect("a read");
    assert_eq!(&bytes, b"local");
}

#[test]
fn several_transfers_at_once_are_as_many_alone() {
    let mut scene = Scene::new();
    let file = scene.create("file");
    // More than there are slots, and of every way to carry data.
    let pieces: Vec<Vec<u8>> = (0..150).map(|at| pattern([0, 1, 4096, 40_000][at % 4] + at)).collect();
    let offset = |at: usize| (at * 50_000) as u64;
    let write = |file: &File| {
        let mut writes: Vec<_> =
            pieces.iter().enumerate().map(|(at, piece)| Transfer::Write(offset(at), piece)).collect();
        for (result, piece) in file.transfer(&mut writes).into_iter().zip(&pieces) {
            assert_eq!(result.expect("a write"), piece.len());
        }
    };
    let read = |file: &File| {
        let mut memory: Vec<_> = pieces.iter().map(|piece| vec![0; piece.len()]).collect();
        let mut reads: Vec<_> =
            memory.iter_mut().enumerate().map(|(at, into)| Transfer::Read(offset(at), into)).collect();
        assert!(file.transfer(&mut reads).into_iter().all(|result| result.is_ok()));
        assert!(memory == pieces, "other bytes");
    };
    write(&file);
    read(&file);
    scene.restart_server();
    read(&file);
    scene.restart_server();
    write(&file);
    let long = pattern(MAX_DATA_BYTES + 5);
    let (mut short, mut end) = ([0; 3], [0; 10]);
    let size = file.attributes().expect("attributes").size;
    let mut mixed = [
        Transfer::Write(size, &long),
        Transfer::Read(0, &mut short),
        Transfer::Read(size + long.len() as u64 - 4, &mut end),
    ];
    let counts: Vec<_> = file.transfer(&mut mixed).into_iter().map(|result| result.expect("a transfer")).collect();
    assert_eq!(counts, [long.len(), 3, 4]);
    let (read_only, _) = scene.client.open_file(b"file", OpenFlags::READ, 0).expect("the file");
    let mut byte = [0];
    let results = read_only.transfer(&mut [Transfer::Write(0, b"x"), Transfer::Read(1, &mut byte)]);
    assert!(results[0].is_err() && matches!(results[1], Ok(1)), "one that fails concerns no other: {results:?}");
}

#[test]
fn clients_that_connect_at_once_are_all_served_and_forgotten() {
    const CLIENTS: usize = 24;
    let scene = Scene::new();
    let begin = std::sync::Barrier::new(CLIENTS);
    let clients: Vec<Client> = thread::scope(|scope| {
        let connecting: Vec<_> = (0..CLIENTS)
            .map(|at| {
                let (scene, begin) = (&scene, &begin);
                scope.spawn(move || {
                    begin.wait();
                    let client = scene.another_client();
                    client.mkdir(format!("folder-{at}").as_bytes(), 0o700).expect("a folder");
                    client
                })
            })
            .collect();
        connecting.into_iter().map(|client| client.join().expect("a client")).collect()
    });
    assert_eq!(fs::read_dir(scene.folder.path()).unwrap().count(), CLIENTS);
    let sessions = || motet_files::exports::ask(&scene.name, &Default::default()).expect("the server").info.clients;
    assert_eq!(sessions(), CLIENTS + 1);
    drop(clients);
    while sessions() > 1 {
        thread::sleep(Duration::from_millis(10));
    }
    scene.client.mkdir(b"last", 0o700).expect("the others are gone, this one is not");
}

#[test]
fn more_clients_than_the_server_has_receives_are_all_served() {
    const CLIENTS: usize = 100;
    const WRITES: usize = 20;
    // Longer than what a request carries itself.
    const LENGTH: usize = 64 << 10;
    let scene = Scene::new();
    let connected = std::sync::Barrier::new(CLIENTS);
    thread::scope(|scope| {
        for at in 0..CLIENTS {
            let (scene, connected) = (&scene, &connected);
            scope.spawn(move || {
                let client = scene.another_client();
                let file = client.open_file(format!("file-{at}").as_bytes(), NEW, 0o600).expect("a file").0;
                connected.wait();
                for turn in 0..WRITES {
                    let data = vec![(at + turn) as u8; LENGTH];
                    assert_eq!(file.write_at(&data, (turn * LENGTH) as u64).expect("a write"), LENGTH);
                }
            });
        }
    });
    for at in 0..CLIENTS {
        let written = fs::read(scene.path(&format!("file-{at}"))).unwrap();
        assert_eq!(written.len(), WRITES * LENGTH);
        assert!(written.iter().enumerate().all(|(place, byte)| *byte == (at + place / LENGTH) as u8), "file-{at}");
    }
}
