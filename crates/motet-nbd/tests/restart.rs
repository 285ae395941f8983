//! The server of files is killed in the middle of writes and starts again: what was acknowledged is there.

mod support;

use motet_files::server::Server as FileServer;
use motet_nbd::exported_file::ExportedFile;
use motet_nbd::negotiation::Export;
use motet_nbd::server::{Listen, Server};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::{Client, FLUSH, FUA, WRITE, client, export_name, file_options};

const BLOCK: usize = 4096;
const WRITERS: usize = 4;
const BLOCKS_OF_WRITER: usize = 32;
const KILLS: u64 = 8;
const NAME_VARIABLE: &str = "NBD_TEST_EXPORT";
const FOLDER_VARIABLE: &str = "NBD_TEST_FOLDER";

/// The server of files, when this program is started again as one.
#[test]
fn server_of_files() {
    let (Ok(name), Ok(folder)) = (std::env::var(NAME_VARIABLE), std::env::var(FOLDER_VARIABLE)) else { return };
    let _server = FileServer::start(file_options(&name, Path::new(&folder))).expect("a server of files");
    println!("\nready");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn start_server(name: &str, folder: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "server_of_files", "--nocapture"])
        .env(NAME_VARIABLE, name)
        .env(FOLDER_VARIABLE, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("another process");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "ready"), "the server of files has not started");
    child
}

/// A block that says which version it is.
fn block(writer: usize, version: u64) -> Vec<u8> {
    [version.to_le_bytes(), (writer as u64).to_le_bytes()].concat().repeat(BLOCK / 16)
}

#[test]
fn acknowledged_writes_survive_a_killed_server_of_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let export = folder.path().join("export");
    fs::create_dir(&export).expect("a folder");
    let size = (WRITERS * BLOCKS_OF_WRITER * BLOCK) as u64;
    File::create(export.join("disk")).and_then(|file| file.set_len(size)).expect("a file");
    let name = export_name();
    let mut files = start_server(&name, &export);
    let disk = ExportedFile::open(client(name.clone()), b"disk", false).expect("a disk");
    let socket = folder.path().join("socket");
    let server = Server::start(Export { name: String::new(), blocks: Arc::new(disk) }, &Listen::Unix(socket.clone()))
        .expect("a server");

    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let versions: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let write = |writer: usize| {
            let mut client = Client::connect(&socket, writer.is_multiple_of(2));
            let mut versions = vec![0_u64; BLOCKS_OF_WRITER];
            let mut at = writer;
            while !stop.load(Ordering::SeqCst) {
                at = (at * 5 + 3) % BLOCKS_OF_WRITER;
                let version = versions[at] + 1;
                let offset = ((writer * BLOCKS_OF_WRITER + at) * BLOCK) as u64;
                let flags = if version.is_multiple_of(7) { FUA } else { 0 };
                client.request(WRITE, flags, version, offset, BLOCK as u32);
                client.say(&block(writer, version));
                assert_eq!(client.simple_reply(), (0, version), "a write while the server of files is away");
                versions[at] = version;
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
            client.request(FLUSH, 0, 0, 0, 0);
            assert_eq!(client.simple_reply(), (0, 0));
            versions
        };
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || write(writer))).collect();
        for kill in 0..KILLS {
            let next = acknowledged.load(Ordering::SeqCst) + 100 + kill * 37;
            while acknowledged.load(Ordering::SeqCst) < next {
                assert!(!writers.iter().any(|writer| writer.is_finished()), "a writer has failed");
                std::thread::yield_now();
            }
            files.kill().expect("killed");
            files.wait().expect("its end");
            files = start_server(&name, &export);
        }
        stop.store(true, Ordering::SeqCst);
        writers.into_iter().map(|writer| writer.join().expect("a writer")).collect()
    });
    drop(server);

    let bytes = fs::read(export.join("disk")).expect("the disk");
    for (writer, versions) in versions.iter().enumerate() {
        for (at, version) in versions.iter().enumerate() {
            let start = (writer * BLOCKS_OF_WRITER + at) * BLOCK;
            let expected = if *version == 0 { vec![0; BLOCK] } else { block(writer, *version) };
            assert!(bytes[start..start + BLOCK] == expected, "block {at} of writer {writer}: not version {version}");
        }
    }
    files.kill().expect("killed");
    files.wait().expect("its end");
}

#[test]
fn a_server_ends_while_the_server_of_files_is_away() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("disk"), vec![7; BLOCK]).expect("a file");
    let name = export_name();
    let mut files = start_server(&name, folder.path());
    let disk = ExportedFile::open(client(name), b"disk", false).expect("a disk");
    let socket = folder.path().join("socket");
    let export = Export { name: String::new(), blocks: Arc::new(disk) };
    let server = Server::start(export, &Listen::Unix(socket.clone())).expect("a server");
    let mut client = Client::connect(&socket, false);
    files.kill().expect("killed");
    files.wait().expect("its end");
    client.request(WRITE, 0, 1, 0, 3);
    client.say(b"abc");
    drop(server);
    // The request fails, or its connection ends.
    let mut rest = Vec::new();
    let _ = client.0.read_to_end(&mut rest);
    assert_ne!(rest.get(4..8), Some(&[0; 4][..]), "a write was acknowledged without a server of files");
}
