//! Long reads over TCP, which leave the server from the file: while the file becomes shorter, of many clients at once, and to clients that go.

mod scene;

use motet_files::client::{Client, Source};
use motet_files::exports::{self, Query};
use motet_files::protocol::{MAX_DATA_BYTES, OpenFlags};
use scene::Scene;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
const NEW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE).union(OpenFlags::CREATE);

impl Scene {
    /// A client over TCP.
    fn client(&self) -> Client {
        let address = self.address();
        let tcp = address.split(',').find(|part| part.starts_with("tcp://")).expect("an address for TCP");
        Client::connect(Source::Address(tcp.to_owned()), LIMIT).expect("a client")
    }

    fn local(&self, name: &str, bytes: &[u8]) -> File {
        let file =
            File::options().create(true).truncate(true).read(true).write(true).open(self.folder.path().join(name));
        let file = file.expect("a file");
        file.write_all_at(bytes, 0).expect("a write");
        file
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8 | 1).collect()
}

#[test]
fn reads_of_every_length_and_place_are_the_files() {
    let scene = Scene::new();
    let bytes = pattern(3 << 20);
    scene.local("file", &bytes);
    let client = scene.client();
    let (file, _) = client.open_file(b"file", OpenFlags::READ, 0).expect("the file");
    let mut buffer = vec![0; 4 << 20];
    let edge = 64 << 10;
    for offset in [0, 1, 4095, 4096, 1 << 20, (3 << 20) - edge - 1, (3 << 20) - 1, 3 << 20, 5 << 20] {
        for length in [edge - 1, edge, edge + 1, 100_001, MAX_DATA_BYTES, MAX_DATA_BYTES + 5, 3 << 20] {
            let expected = bytes.get(offset..).unwrap_or(&[]);
            let expected = &expected[..length.min(expected.len())];
            buffer[..length].fill(0xee);
            let read = file.read_at(&mut buffer[..length], offset as u64).expect("a read");
            assert_eq!(read, expected.len(), "{length} from {offset}");
            assert!(buffer[..read] == *expected, "{length} from {offset}");
        }
    }
    // Holes, a file that is written only, and a folder.
    let sparse = scene.local("sparse", b"begin");
    sparse.set_len(2 << 20).expect("a hole");
    let (file, _) = client.open_file(b"sparse", OpenFlags::READ, 0).expect("the file");
    assert_eq!(file.read_at(&mut buffer[..2 << 20], 0).expect("a read"), 2 << 20);
    assert!(buffer[..5] == *b"begin" && buffer[5..2 << 20].iter().all(|&byte| byte == 0));
    let (file, _) = client.open_file(b"file", OpenFlags::WRITE, 0).expect("the file");
    assert_eq!(file.read_at(&mut buffer[..1 << 20], 0).expect_err("not readable").raw_os_error(), Some(9));
    client.close();
}

#[test]
fn a_file_that_becomes_shorter_never_has_other_bytes() {
    let scene = Scene::new();
    let bytes = pattern(1 << 20);
    let local = scene.local("file", &bytes);
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                for length in [700_000, 100_001, 4096, 1] {
                    local.set_len(length).expect("a length");
                }
                local.write_all_at(&bytes, 0).expect("a write");
            }
        });
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let client = scene.client();
                    let (file, _) = client.open_file(b"file", OpenFlags::READ, 0).expect("the file");
                    let mut buffer = vec![0; 1 << 20];
                    for _ in 0..150 {
                        buffer.fill(0xee);
                        let read = file.read_at(&mut buffer, 0).expect("a read");
                        let wrong = buffer[..read].iter().zip(&bytes).position(|(got, is)| got != is && *got != 0);
                        assert_eq!(wrong, None, "of {read} bytes");
                    }
                    client.close();
                })
            })
            .collect();
        let failed = readers.into_iter().any(|reader| reader.join().is_err());
        ends.store(true, Ordering::Relaxed);
        assert!(!failed);
    });
}

#[test]
fn clients_that_go_in_the_midst_of_reads_leave_the_others_served() {
    let scene = Scene::new();
    let bytes = pattern(8 << 20);
    scene.local("file", &bytes);
    let steady = scene.client();
    let (file, _) = steady.open_file(b"file", NEW, 0).expect("the file");
    for round in 0..10 {
        // Its reads are under way when it ends.
        let client = scene.client();
        let (other, _) = client.open_file(b"file", OpenFlags::READ, 0).expect("the file");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut buffer = vec![0; 8 << 20];
                    while other.read_at(&mut buffer, 0).is_ok() {}
                });
            }
            let mut buffer = vec![0; 4 << 20];
            let offset = round * 1000;
            assert_eq!(file.read_at(&mut buffer, offset as u64).expect("a read"), buffer.len());
            assert!(buffer == bytes[offset..][..buffer.len()], "round {round}");
            client.close();
        });
    }
    drop(file);
    steady.close();
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let info = exports::ask(&scene.name, &Query::default()).expect("the export").info;
        if (info.clients, info.open_files) == (0, 0) {
            break;
        }
        assert!(Instant::now() < until, "{} clients, {} open files", info.clients, info.open_files);
        thread::sleep(Duration::from_millis(20));
    }
    fs::remove_file(scene.folder.path().join("file")).expect("the file");
}
