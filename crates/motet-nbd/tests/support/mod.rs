//! Helpers of the tests: an export with a disk in it, a disk in memory, a client that says any bytes.
#![allow(dead_code, reason = "each test file uses its own part")]

use motet_files::client::{Client as FileClient, Source};
use motet_files::server::{Options, Server as FileServer};
use motet_nbd::blocks::{Blocks, Extent, Zeroing};
use motet_nbd::exported_file::ExportedFile;
use motet_nbd::negotiation::Export;
use motet_nbd::server::{Listen, Server};
use std::fs::{self, File};
use std::io::{Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A name for an export that no other test has.
pub fn export_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("nbd-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// What a server of files needs.
pub fn file_options(name: &str, folder: &Path) -> Options {
    Options { name: name.to_owned(), directory: folder.to_owned(), ..Options::default() }
}

/// A client that speaks with the server of files.
pub fn client(export: String) -> FileClient {
    FileClient::connect(Source::Name(export), None).expect("a client")
}

/// An export with the file `disk`, which is served as a disk.
pub struct Scene {
    pub server: Option<Server>,
    pub folder: TempDir,
    _files: FileServer,
}

impl Scene {
    /// A disk of this size, all a hole.
    pub fn new(size: u64) -> Self {
        Self::with(size, false)
    }

    pub fn with(size: u64, read_only: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("export")).expect("a folder");
        let disk = folder.path().join("export/disk");
        File::create(disk).and_then(|file| file.set_len(size)).expect("a file");
        let name = export_name();
        let files = FileServer::start(file_options(&name, &folder.path().join("export"))).expect("a server of files");
        let file = ExportedFile::open(client(name), b"disk", read_only).expect("a disk");
        let export = Export { name: "d".to_owned(), blocks: Arc::new(file) };
        let server = Server::start(export, &Listen::Unix(folder.path().join("socket"))).expect("a server");
        Self { server: Some(server), folder, _files: files }
    }

    pub fn uri(&self) -> String {
        self.server.as_ref().expect("a server").uri().expect("a URI")
    }

    /// The file that is the disk.
    pub fn disk(&self) -> PathBuf {
        self.path("export/disk")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn connect(&self) -> Client {
        Client::connect(&self.path("socket"), true)
    }
}

/// A disk in memory.
#[derive(Default)]
pub struct Memory {
    pub bytes: Mutex<Vec<u8>>,
    /// Bytes that were read.
    pub read: AtomicUsize,
}

impl Memory {
    /// Serves a new disk of this size.
    pub fn serve(size: usize, socket: &Path) -> (Arc<Self>, Server) {
        let memory = Arc::new(Self { bytes: Mutex::new(vec![0; size]), read: AtomicUsize::new(0) });
        let export = Export { name: "memory".to_owned(), blocks: Arc::clone(&memory) as Arc<dyn Blocks> };
        (memory, Server::start(export, &Listen::Unix(socket.to_owned())).expect("a server"))
    }
}

impl Blocks for Memory {
    fn size(&self) -> Result<u64> {
        Ok(self.bytes.lock().unwrap().len() as u64)
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read.fetch_add(buffer.len(), Ordering::SeqCst);
        buffer.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..buffer.len()]);
        Ok(())
    }
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.bytes.lock().unwrap()[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn zero(&self, offset: u64, length: u64, _: Zeroing) -> Result<()> {
        self.bytes.lock().unwrap()[offset as usize..][..length as usize].fill(0);
        Ok(())
    }
    fn trim(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    fn status(&self, _: u64, length: u64, _: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent { length, is_hole: false }])
    }
}

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const BLOCK_STATUS: u16 = 7;
pub const FUA: u16 = 1;
pub const DF: u16 = 4;
pub const ACK: u32 = 1;

/// A client that says what the test wants.
pub struct Client(pub UnixStream);

impl Client {
    /// A client that has read the greeting.
    pub fn greeted(socket: &Path) -> Self {
        let mut client = Self(UnixStream::connect(socket).expect("a connection"));
        assert_eq!(client.take(18), b"NBDMAGICIHAVEOPT\0\x03");
        client
    }

    /// A client after the handshake.
    pub fn connect(socket: &Path, structured: bool) -> Self {
        let mut client = Self::greeted(socket);
        client.say(&[0, 0, 0, 3]);
        if structured {
            client.option(8, &[]);
            assert_eq!(client.option_reply().0, ACK);
        }
        client.option(7, &[0, 0, 0, 0, 0, 0]);
        while client.option_reply().0 != ACK {}
        client
    }

    pub fn say(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the server receives");
    }

    pub fn take(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).expect("the server answers");
        bytes
    }

    /// The server has closed the connection.
    #[track_caller]
    pub fn is_closed(&mut self) {
        let mut rest = Vec::new();
        // With unread bytes of the client, the kernel resets the connection.
        let _ = self.0.read_to_end(&mut rest);
        assert_eq!(rest, b"");
    }

    pub fn option(&mut self, option: u32, data: &[u8]) {
        let length = u32::try_from(data.len()).expect("short").to_be_bytes();
        self.say(&[b"IHAVEOPT", &option.to_be_bytes()[..], &length, data].concat());
    }

    /// Kind and data of a reply to an option.
    pub fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let header = self.take(20);
        assert_eq!(header[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
        (number(&header[12..16]), self.take_long(number(&header[16..20])))
    }

    fn take_long(&mut self, length: u32) -> Vec<u8> {
        self.take(length as usize)
    }

    pub fn request(&mut self, kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) {
        self.say(&request(kind, flags, cookie, offset, length));
    }

    /// Error number and cookie of a simple reply.
    #[track_caller]
    pub fn simple_reply(&mut self) -> (u32, u64) {
        let reply = self.take(16);
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        (number(&reply[4..8]), u64::from_be_bytes(reply[8..].try_into().expect("eight bytes")))
    }

    /// A chunk: whether it is the last, its kind, its cookie, its payload.
    #[track_caller]
    pub fn chunk(&mut self) -> (bool, u16, u64, Vec<u8>) {
        let head = self.take(20);
        assert_eq!(head[..4], 0x668e_33ef_u32.to_be_bytes());
        let short = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let cookie = u64::from_be_bytes(head[8..16].try_into().expect("eight bytes"));
        let payload = self.take_long(number(&head[16..20]));
        (short(4) == 1, short(6), cookie, payload)
    }
}

pub fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    [
        &0x2560_9513_u32.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &length.to_be_bytes(),
    ]
    .concat()
}

pub fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().expect("four bytes"))
}

/// Bytes without a pattern that zeroes could hide in.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(length).collect()
}

/// Runs a program, which must succeed; returns what it prints. `None`: it is not installed, and the test is skipped.
#[track_caller]
pub fn tool(program: &str, arguments: &[&str]) -> Option<String> {
    let (succeeded, printed) = try_tool(program, arguments)?;
    assert!(succeeded, "{program} {arguments:?}: {printed}");
    Some(printed)
}

/// Runs a program; returns whether it has succeeded, and what it prints.
pub fn try_tool(program: &str, arguments: &[&str]) -> Option<(bool, String)> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let printed = [output.stdout, output.stderr].concat();
            Some((output.status.success(), String::from_utf8_lossy(&printed).into_owned()))
        }
        Err(error) => {
            eprintln!("SKIPPED: {program}: {error}");
            None
        }
    }
}
