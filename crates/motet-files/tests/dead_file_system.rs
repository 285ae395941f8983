//! A dead file system beneath an exported directory: those who look at it wait, and no other request does. Needs root and /dev/fuse.

use motet_files::client::{Client, Source};
use motet_files::exports::{self, Query};
use motet_files::protocol::OpenFlags;
use motet_files::server::{Options, Server};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take on a loaded host.
const LIMIT: Duration = Duration::from_secs(60);
/// More requests than a server has threads.
const MANY: u64 = 40;

/// A mounted file system whose server answers nothing. It goes when this is dropped.
struct Dead {
    device: Option<File>,
    place: PathBuf,
}

impl Dead {
    /// `None`: not possible here, which is said.
    fn mount(place: &Path) -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let Ok(device) = device.map_err(|error| eprintln!("SKIPPED: no /dev/fuse: {error}")) else { return None };
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).expect("a text");
        match mount("dead", place, "fuse", MountFlags::NOSUID | MountFlags::NODEV, &*options) {
            Ok(()) => Some(Self { device: Some(device), place: place.to_owned() }),
            Err(error) => {
                eprintln!("SKIPPED: a file system cannot be mounted: {error}");
                None
            }
        }
    }

    /// Ends the file system: programs that wait for it get an error.
    fn end(&mut self) {
        self.device = None;
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        self.end();
        let _ = unmount(&self.place, UnmountFlags::DETACH);
    }
}

fn requests(name: &str) -> u64 {
    exports::ask(name, &Query::default()).expect("the export").info.requests
}

fn others_go_on(folder: &Path) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let exported = tempfile::tempdir_in(folder).expect("a folder");
    std::fs::create_dir(exported.path().join("nested")).expect("a folder");
    std::fs::write(exported.path().join("file"), "text").expect("a file");
    let name = format!("dead-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let options = Options { name: name.clone(), directory: exported.path().to_owned(), ..Options::default() };
    let server = Server::start(options).expect("a server");
    let connect = || Client::connect(Source::Name(name.clone()), Some(LIMIT)).expect("a client");
    let (waits, other) = (connect(), connect());
    let (root, _) = waits.open_file(b"", OpenFlags::READ | OpenFlags::DIRECTORY, 0).expect("the folder");
    let Some(mut dead) = Dead::mount(&exported.path().join("nested")) else { return };
    let look_at: [&(dyn Fn() + Sync); 6] = [
        &|| drop(waits.attributes(b"nested")),
        &|| drop(waits.xattr(b"nested", b"user.x")),
        &|| drop(waits.xattrs(b"nested")),
        &|| drop(waits.open_file(b"nested", OpenFlags::READ | OpenFlags::DIRECTORY, 0)),
        &|| drop(waits.mkdir(b"nested/made", 0o755)),
        &|| drop(root.readdir(0, true, &mut [0; 4096])),
    ];
    thread::scope(|scope| {
        let before = requests(&name);
        for look in look_at {
            scope.spawn(look);
        }
        let until = Instant::now() + LIMIT;
        while requests(&name) < before + look_at.len() as u64 {
            assert!(Instant::now() < until, "the requests come");
            thread::sleep(Duration::from_millis(10));
        }
        let served = (|| {
            for round in 0..20u8 {
                other.attributes(b"file")?;
                let (file, _) = other.open_file(&[b'a' + round], OpenFlags::WRITE | OpenFlags::CREATE, 0o644)?;
                file.write_at(b"text", 0)?;
                waits.attributes(b"file")?;
                other.statfs()?;
            }
            Ok::<_, std::io::Error>(())
        })();
        dead.end();
        served.expect("others are served");
    });
    drop(dead);
    drop(root);
    waits.close();
    other.close();
    drop(server);
}

#[test]
fn a_dead_file_system_beneath_an_export_stops_no_other_request() {
    if !rustix::process::getuid().is_root() {
        eprintln!("SKIPPED a_dead_file_system_beneath_an_export_stops_no_other_request: not root");
        return;
    }
    for folder in [std::env::temp_dir(), PathBuf::from("/dev/shm")] {
        if folder.is_dir() {
            others_go_on(&folder);
        }
    }
}

/// One client has more requests under way that wait for the dead file system than the server has threads.
fn one_client_leaves_threads(folder: &Path) {
    let exported = tempfile::tempdir_in(folder).expect("a folder");
    std::fs::create_dir(exported.path().join("nested")).expect("a folder");
    std::fs::write(exported.path().join("file"), "text").expect("a file");
    let name = format!("threads-{}", std::process::id());
    let options = Options { name: name.clone(), directory: exported.path().to_owned(), ..Options::default() };
    let server = Server::start(options).expect("a server");
    let connect = || Client::connect(Source::Name(name.clone()), Some(LIMIT)).expect("a client");
    let (waits, other) = (connect(), connect());
    let Some(mut dead) = Dead::mount(&exported.path().join("nested")) else { return };
    thread::scope(|scope| {
        let before = requests(&name);
        for _ in 0..MANY {
            scope.spawn(|| drop(waits.attributes(b"nested")));
        }
        let until = Instant::now() + LIMIT;
        while requests(&name) < before + MANY {
            assert!(Instant::now() < until, "the requests come");
            thread::sleep(Duration::from_millis(10));
        }
        let served = (|| {
            for round in 0..20u8 {
                let (file, _) = other.open_file(&[b'a' + round], OpenFlags::WRITE | OpenFlags::CREATE, 0o644)?;
                file.write_at(b"text", 0)?;
                file.sync(false)?;
            }
            Ok::<_, std::io::Error>(())
        })();
        dead.end();
        served.expect("others are served");
    });
    drop(dead);
    // What was held has been executed.
    waits.mkdir(b"made", 0o755).expect("a directory");
    waits.close();
    other.close();
    drop(server);
}

#[test]
fn one_client_does_not_occupy_all_threads() {
    if !rustix::process::getuid().is_root() {
        eprintln!("SKIPPED one_client_does_not_occupy_all_threads: not root");
        return;
    }
    one_client_leaves_threads(&std::env::temp_dir());
}
