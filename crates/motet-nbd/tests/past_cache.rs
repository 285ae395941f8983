//! A disk whose file is open with O_DIRECT: its content goes past the page cache of the server of files.

#[path = "../../motet-files/tests/disk/mod.rs"]
mod disk;
mod support;

use disk::{Disk, cached, drop_cache};
use motet_files::server::{Options, Server as FileServer, Storage};
use motet_nbd::exported_file::ExportedFile;
use motet_nbd::negotiation::Export;
use motet_nbd::server::{Listen, Server};
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use support::{Client, FLUSH, FUA, READ, WRITE, client, export_name, file_options, pattern, tool};

const BLOCK: usize = 4096;
const SIZE: u64 = 16 << 20;

/// The file `disk` of an export, which is served as a disk. Fields are dropped in this order.
struct PastCache {
    server: Server,
    _files: FileServer,
    disk: Disk,
}

impl PastCache {
    fn new(test: &str, storage: Storage) -> Option<Self> {
        let disk = Disk::new(test, 64)?;
        File::create(disk.path().join("disk")).and_then(|file| file.set_len(SIZE)).expect("a file");
        let name = export_name();
        let options = Options { storage, ..file_options(&name, &disk.path()) };
        let files = FileServer::start(options).expect("a server of files");
        let file = ExportedFile::open_past_cache(client(name), b"disk", false).expect("a disk");
        let export = Export { name: "d".to_owned(), blocks: Arc::new(file) };
        let socket = disk.path().join("socket");
        let server = Server::start(export, &Listen::Unix(socket)).expect("a server");
        Some(Self { server, _files: files, disk })
    }

    fn connect(&self) -> Client {
        Client::connect(&self.disk.path().join("socket"), false)
    }

    fn file(&self) -> PathBuf {
        self.disk.path().join("disk")
    }
}

/// The ways of the server of files that are permitted here.
fn ways(test: &str) -> Vec<Storage> {
    let ring =
        FileServer::start(Options { storage: Storage::IoUring, ..file_options(&export_name(), &std::env::temp_dir()) });
    match ring {
        Ok(_) => vec![Storage::Threads, Storage::IoUring],
        Err(why) => {
            disk::skip(&format!("{test} with io_uring"), &why.to_string());
            vec![Storage::Threads]
        }
    }
}

fn read(client: &mut Client, offset: u64, length: usize) -> Vec<u8> {
    client.request(READ, 0, offset, offset, length as u32);
    assert_eq!(client.simple_reply(), (0, offset));
    client.take(length)
}

fn write(client: &mut Client, flags: u16, offset: u64, bytes: &[u8]) {
    client.request(WRITE, flags, offset, offset, bytes.len() as u32);
    client.say(bytes);
    assert_eq!(client.simple_reply(), (0, offset));
}

#[test]
fn content_of_the_disk_leaves_nothing_in_the_page_cache() {
    let test = "content_of_the_disk_leaves_nothing_in_the_page_cache";
    for way in ways(test) {
        let Some(scene) = PastCache::new(test, way) else { return };
        let mut client = scene.connect();
        let bytes = pattern(2 << 20, 3);
        write(&mut client, 0, BLOCK as u64, &bytes[..1 << 20]);
        write(&mut client, FUA, (1 << 20) + BLOCK as u64, &bytes[1 << 20..]);
        client.request(FLUSH, 0, 7, 0, 0);
        assert_eq!(client.simple_reply(), (0, 7));
        for (at, length) in [(0, BLOCK), (0, 64 << 10), (BLOCK, 1 << 20), (1 << 20, 16 * BLOCK)] {
            assert!(read(&mut client, (at + BLOCK) as u64, length) == bytes[at..][..length], "{length} bytes at {at}");
        }
        assert_eq!(cached(&scene.file()), 0, "{way:?}");
        // Without it the cache is used, so the number above means something.
        fs::read(scene.file()).expect("the file");
        assert!(cached(&scene.file()) > 0);
    }
}

#[test]
fn sectors_and_other_parts_of_blocks_arrive_whole() {
    let test = "sectors_and_other_parts_of_blocks_arrive_whole";
    for way in ways(test) {
        let Some(scene) = PastCache::new(test, way) else { return };
        let mut client = scene.connect();
        let mut expected = vec![0; 1 << 20];
        for (number, (offset, length)) in
            [(512, 512), (1, 1), (5000, 10_000), (65_536, 65_536), (100_352, 1536), (4095, 2)].into_iter().enumerate()
        {
            let bytes = pattern(length, number as u64);
            write(&mut client, 0, offset as u64, &bytes);
            expected[offset..offset + length].copy_from_slice(&bytes);
            assert!(read(&mut client, 0, expected.len()) == expected, "{way:?}: after {length} bytes at {offset}");
            let part = offset.saturating_sub(3);
            assert!(read(&mut client, part as u64, length + 5) == expected[part..][..length + 5]);
        }
        drop_cache(&scene.file());
        assert!(read(&mut client, 0, expected.len()) == expected);
    }
}

#[test]
fn many_requests_under_way_get_their_own_bytes() {
    let test = "many_requests_under_way_get_their_own_bytes";
    for way in ways(test) {
        let Some(scene) = PastCache::new(test, way) else { return };
        let mut client = scene.connect();
        let bytes = pattern(1 << 20, 9);
        write(&mut client, 0, 0, &bytes);
        for _ in 0..10 {
            for at in 0..64_u64 {
                client.request(READ, 0, at, at * BLOCK as u64, BLOCK as u32);
            }
            let mut seen = [false; 64];
            for _ in 0..64 {
                let (error, cookie) = client.simple_reply();
                assert_eq!(error, 0);
                let at = usize::try_from(cookie).expect("a number of a request");
                assert!(client.take(BLOCK) == bytes[at * BLOCK..][..BLOCK], "{way:?}: block {at}");
                assert!(!std::mem::replace(&mut seen[at], true));
            }
        }
        assert_eq!(cached(&scene.file()), 0);
    }
}

#[test]
fn programs_copy_a_disk_past_the_cache() {
    let test = "programs_copy_a_disk_past_the_cache";
    for way in ways(test) {
        let Some(scene) = PastCache::new(test, way) else { return };
        let folder = tempfile::tempdir().expect("a folder");
        let (source, copy) = (folder.path().join("source"), folder.path().join("copy"));
        fs::write(&source, pattern(usize::try_from(SIZE).expect("small"), 4)).expect("a file");
        let uri = scene.server.uri().expect("a URI");
        let [source_text, copy_text] = [&source, &copy].map(|path| path.display().to_string());
        if tool("nbdcopy", &[&source_text, &uri]).is_none() {
            return disk::skip(test, "nbdcopy is not installed");
        }
        tool("nbdcopy", &[&uri, &copy_text]);
        assert!(fs::read(copy).expect("the copy") == fs::read(source).expect("the source"));
        assert_eq!(cached(&scene.file()), 0, "{way:?}");
    }
}
