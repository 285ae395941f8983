//! As whom a server executes requests, and that no client leaves the exported directory.

use motet_files::client::{Client, Source};
use motet_files::identity::Identity;
use motet_files::protocol::{Change, OpenFlags, RenameFlags};
use motet_files::server::{Options, Server, Striping};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use tempfile::TempDir;

const EPERM: i32 = 1;
const EACCES: i32 = 13;
const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const NEW: OpenFlags = READ_WRITE.union(OpenFlags::CREATE);

/// An export of a temporary folder, and a client of it.
struct Scene {
    client: Client,
    _server: Server,
    folder: TempDir,
}

impl Scene {
    /// `direct`: the client uses the directory itself.
    fn new(squash: bool, direct: bool) -> Self {
        Self::with(squash, direct, None)
    }

    fn with(squash: bool, direct: bool, striping: Option<Striping>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("permissions");
        let name = format!("users-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = folder.path().to_owned();
        let options = Options { name: name.clone(), directory, direct, squash, striping, ..Options::default() };
        let server = Server::start(options).expect("a server");
        let client = if direct { Client::named(&name, None) } else { Client::connect(Source::Name(name), None) }
            .expect("a client");
        assert_eq!(client.is_direct(), direct);
        Self { client, _server: server, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.client.close();
    }
}

fn user(user: u32, group: u32, groups: &[u32]) -> Identity {
    Identity { user, group, groups: groups.to_vec() }
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("an error").raw_os_error().expect("an error number")
}

fn owner(path: &Path) -> (u32, u32) {
    let found = fs::symlink_metadata(path).expect("attributes");
    (found.uid(), found.gid())
}

/// Whether this process may act as other users. Says that the test is skipped otherwise.
fn is_root(test: &str) -> bool {
    let root = rustix::process::getuid().is_root();
    if !root {
        eprintln!("SKIPPED {test}: not root");
        if let Some(log) = std::env::var_os("MOTET_SKIP_LOG") {
            let said = format!("SKIP {test}: not root\n");
            let log = fs::OpenOptions::new().append(true).create(true).open(log);
            log.and_then(|mut log| std::io::Write::write_all(&mut log, said.as_bytes())).expect("the log of skips");
        }
    }
    root
}

#[test]
fn each_request_is_executed_as_the_user_that_it_names() {
    if !is_root("each_request_is_executed_as_the_user_that_it_names") {
        return;
    }
    for direct in [false, true] {
        let scene = Scene::new(false, direct);
        assert!(scene.client.has_identities());
        let alice = scene.client.for_user(user(1000, 1001, &[7]));
        let (file, _) = alice.open_file(b"mine", NEW, 0o600).expect("a new file");
        alice.mkdir(b"directory", 0o700).expect("a directory");
        alice.symlink(b"link", b"x").expect("a link");
        for name in ["mine", "directory", "link"] {
            assert_eq!(owner(&scene.path(name)), (1000, 1001), "direct {direct}: {name}");
        }
        // In between requests of the client itself, which the same threads execute.
        scene.client.mkdir(b"of-root", 0o755).expect("a directory");
        assert_eq!(owner(&scene.path("of-root")), (0, 0));
        let bob = scene.client.for_user(user(2000, 2000, &[]));
        assert_eq!(errno(bob.open_file(b"mine", OpenFlags::READ, 0)), EACCES);
        assert_eq!(errno(bob.attributes(b"directory/x")), EACCES);
        assert_eq!(errno(bob.set_attributes(b"mine", &Change { mode: Some(0o666), ..Change::default() })), EPERM);
        assert_eq!(errno(bob.set_attributes(b"mine", &Change { size: Some(0), ..Change::default() })), EACCES);
        fs::set_permissions(scene.folder.path(), fs::Permissions::from_mode(0o1777)).expect("permissions");
        assert_eq!(errno(bob.unlink(b"of-root", true)), EPERM, "the directory is sticky");
        assert_eq!(errno(bob.mknod(b"device", 0o020_666, 0x103)), EPERM, "devices are root's");
        // Groups count, and only those that are named.
        for group in [7, 8] {
            let name = format!("group-{group}");
            fs::write(scene.path(&name), "").expect("a file");
            fs::set_permissions(scene.path(&name), fs::Permissions::from_mode(0o640)).expect("permissions");
            std::os::unix::fs::chown(scene.path(&name), Some(0), Some(group)).expect("a group");
            let opened = alice.open_file(name.as_bytes(), OpenFlags::READ, 0).map(drop);
            assert_eq!(opened.is_ok(), group == 7, "group {group}");
        }
        // What is open stays open, although it has another owner now.
        std::os::unix::fs::chown(scene.path("mine"), Some(0), Some(0)).expect("an owner");
        assert_eq!(file.write_at(b"text", 0).expect("a write"), 4);
        // Numbers that no user and no group has.
        for none in [user(u32::MAX, 1, &[]), user(1, u32::MAX, &[]), user(1, 1, &[u32::MAX])] {
            assert_eq!(errno(scene.client.for_user(none).mkdir(b"never", 0o777)), EPERM);
        }
        assert!(!scene.path("never").exists());
    }
}

#[test]
fn a_program_that_may_only_be_executed_is_opened_for_that() {
    if !is_root("a_program_that_may_only_be_executed_is_opened_for_that") {
        return;
    }
    for direct in [false, true] {
        let scene = Scene::new(false, direct);
        for (name, mode) in [("program", 0o711), ("data", 0o600)] {
            fs::write(scene.path(name), "text").expect("a file");
            fs::set_permissions(scene.path(name), fs::Permissions::from_mode(mode)).expect("permissions");
        }
        let alice = scene.client.for_user(user(1000, 1000, &[]));
        let executes = OpenFlags::READ | OpenFlags::EXECUTE;
        assert_eq!(errno(alice.open_file(b"program", OpenFlags::READ, 0)), EACCES);
        assert_eq!(errno(alice.open_file(b"program", executes | OpenFlags::WRITE, 0)), EACCES);
        assert_eq!(errno(alice.open_file(b"data", executes, 0)), EACCES);
        assert_eq!(errno(alice.open_file(b"data", READ_WRITE | OpenFlags::AGAIN, 0)), EACCES, "another's file");
        let mut text = [0; 4];
        let (file, _) = alice.open_file(b"program", executes, 0).expect("the program");
        assert_eq!((file.read_at(&mut text, 0).expect("a read"), &text), (4, b"text"));
        assert!(file.write_at(b"x", 0).is_err(), "it is open for reading only");
    }
}

#[test]
fn files_of_users_are_striped_whatever_their_modes_are() {
    if !is_root("files_of_users_are_striped_whatever_their_modes_are") {
        return;
    }
    let parts = tempfile::tempdir().expect("a folder");
    let name = format!("users-parts-{}", std::process::id());
    let options = Options { name: name.clone(), directory: parts.path().to_owned(), ..Options::default() };
    let _parts = Server::start(options).expect("a server");
    let scene = Scene::with(false, false, Some(Striping { unit: 64 << 10, others: vec![name] }));
    let alice = scene.client.for_user(user(1000, 1000, &[]));
    let content = vec![7; 300 << 10];
    for mode in [0o600, 0o444, 0o222, 0] {
        let path = format!("file-{mode:o}");
        // The layout is the server's: the user can neither read it nor write it with most of these modes.
        let (file, _) = alice.open_file(path.as_bytes(), NEW | OpenFlags::EXCLUSIVE, mode).expect("a new file");
        assert_eq!(file.write_at(&content, 0).expect("a write"), content.len());
        assert_eq!(
            (owner(&scene.path(&path)), fs::read_dir(parts.path()).expect("the parts").count()),
            ((1000, 1000), 1)
        );
        if mode & 0o200 != 0 {
            alice.set_attributes(path.as_bytes(), &Change { size: Some(5), ..Change::default() }).expect("a length");
        }
        alice.unlink(path.as_bytes(), false).expect("removed");
        assert_eq!(fs::read_dir(parts.path()).expect("the parts").count(), 0, "its parts are removed");
    }
}

#[test]
fn a_server_that_squashes_does_not_heed_users() {
    if !is_root("a_server_that_squashes_does_not_heed_users") {
        return;
    }
    for direct in [false, true] {
        let scene = Scene::new(true, direct);
        assert!(!scene.client.has_identities());
        scene.client.for_user(user(1000, 1001, &[7])).mkdir(b"directory", 0o700).expect("a directory");
        assert_eq!(owner(&scene.path("directory")), (0, 0));
    }
}

#[test]
fn no_client_leaves_the_export_while_links_are_swapped() {
    let outside = tempfile::tempdir().expect("a folder");
    fs::write(outside.path().join("file"), "secret").expect("a file");
    for direct in [false, true] {
        let scene = Scene::new(false, direct);
        fs::create_dir(scene.path("inside")).expect("a directory");
        fs::write(scene.path("inside/file"), "inside").expect("a file");
        // Chains that lead out: absolute, upwards, through each other, from deep inside, and by a link of /proc.
        symlink(outside.path(), scene.path("absolute")).expect("a link");
        let up = PathBuf::from("..").join(outside.path().file_name().expect("a name"));
        symlink(&up, scene.path("up")).expect("a link");
        fs::create_dir_all(scene.path("deep/er")).expect("directories");
        symlink(Path::new("../../").join(&up), scene.path("deep/er/up")).expect("a link");
        symlink("absolute", scene.path("chain-0")).expect("a link");
        for chain in 1..30 {
            symlink(format!("chain-{}", chain - 1), scene.path(&format!("chain-{chain}"))).expect("a link");
        }
        symlink("deep/er/up", scene.path("through")).expect("a link");
        symlink(format!("/proc/{}/root/{}", std::process::id(), outside.path().display()), scene.path("magic"))
            .expect("a link");
        let ways = ["absolute", "up", "deep/er/up", "chain-0", "chain-29", "through", "magic", "deep/../../x"];
        for way in ways {
            let path = format!("{way}/file");
            for opened in [OpenFlags::READ, READ_WRITE, NEW] {
                scene.client.open_file(path.as_bytes(), opened, 0o600).expect_err(way);
            }
            scene.client.attributes(path.as_bytes()).expect_err(way);
            scene.client.unlink(path.as_bytes(), false).expect_err(way);
            scene.client.rename(b"inside/file", path.as_bytes(), RenameFlags::empty()).expect_err(way);
            scene.client.hard_link(path.as_bytes(), b"stolen").expect_err(way);
        }
        // A name that is a directory inside at one moment, and a link that leads out at the next.
        symlink("inside", scene.path("way")).expect("a link");
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            let swapper = scope.spawn(|| {
                let mut swaps = 0;
                while !ends.load(Ordering::Relaxed) {
                    for target in [outside.path(), Path::new("inside")] {
                        symlink(target, scene.path("next")).expect("a link");
                        fs::rename(scene.path("next"), scene.path("way")).expect("renamed");
                        swaps += 1;
                    }
                }
                swaps
            });
            let (mut opened, mut refused) = (0, 0);
            let mut tries = 0;
            while tries < 2000 || opened == 0 || refused == 0 {
                tries += 1;
                match scene.client.open_file(b"way/file", OpenFlags::READ, 0) {
                    Ok((file, _)) => {
                        let mut text = [0; 6];
                        file.read_at(&mut text, 0).expect("a read");
                        assert_eq!(&text, b"inside");
                        opened += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            ends.store(true, Ordering::Relaxed);
            assert!(swapper.join().expect("the swapper") > 0);
        });
        assert_eq!(fs::read(outside.path().join("file")).expect("the file"), b"secret");
        assert_eq!(fs::read_dir(outside.path()).expect("the folder").count(), 1, "nothing is made outside");
    }
}

#[test]
fn paths_are_longer_than_a_system_call_takes() {
    for direct in [false, true] {
        let scene = Scene::new(false, direct);
        let mut path = String::new();
        for depth in 0..50 {
            let name = format!("{depth:03}").repeat(80);
            path = if depth == 0 { name } else { format!("{path}/{name}") };
            scene.client.mkdir(path.as_bytes(), 0o755).expect("a directory");
        }
        assert!(path.len() > 12_000);
        let name = format!("{path}/file");
        let (file, made) = scene.client.open_file(name.as_bytes(), NEW, 0o600).expect("a file");
        file.write_at(b"text", 0).expect("a write");
        let found = scene.client.attributes(name.as_bytes()).expect("attributes");
        assert_eq!((found.inode, found.size), (made.inode, 4));
        scene.client.rename(name.as_bytes(), b"short", RenameFlags::empty()).expect("renamed");
        assert_eq!(fs::read(scene.path("short")).expect("the file"), b"text");
        let too_long = "a/".repeat(10_000);
        assert_eq!(errno(scene.client.attributes(too_long.as_bytes())), 36, "ENAMETOOLONG");
        // A component that no directory has.
        assert_eq!(errno(scene.client.attributes("x".repeat(5000).as_bytes())), 36, "ENAMETOOLONG");
        // Nor does the client send a request for ever that no packet takes.
        for length in [20_000, 31_000, 61_300, 61_600, 65_600, 100_000] {
            let path = "x/".repeat(length / 2);
            assert_eq!(errno(scene.client.attributes(path.as_bytes())), 36, "{length} bytes");
            let renamed = scene.client.rename(path.as_bytes(), path.as_bytes(), RenameFlags::empty());
            assert_eq!(errno(renamed), 36, "twice {length} bytes");
        }
        scene.client.attributes(b"").expect("the connection is as before");
    }
}
