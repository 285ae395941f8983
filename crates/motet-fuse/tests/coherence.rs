//! What one mount changes is seen by another one at once, although its kernel may use attributes and names for ten minutes without asking.

#[path = "scene/mod.rs"]
mod scene;

use motet_files::client::{Client, Source};
use motet_files::server::{Group, Options as ServerOptions, Server};
use motet_fuse::{Mount, Options};
use scene::{Mode, can_mount, is_able, open_folder, server};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A mount whose kernel uses attributes and names without asking.
fn mounted(client: Client, name: &str) -> (Mount, TempDir) {
    let (folder, validity) = (open_folder(), Duration::from_secs(600));
    let options = Options { name: name.to_owned(), validity, other_users: false, threads: 4, writeback: false };
    (Mount::start(client, folder.path(), &options).expect("a mount"), folder)
}

/// Two mounts of one export.
struct Two {
    mounts: Vec<(Mount, TempDir)>,
    exported: TempDir,
    _server: Server,
}

impl Two {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let exported = open_folder();
        let name = format!("coherence-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let server = server(&name, exported.path(), false, Mode::Messages);
        let mount = |_| mounted(Client::connect(Source::Name(name.clone()), None).expect("a client"), &name);
        let two = Self { mounts: (0..2).map(mount).collect(), exported, _server: server };
        // Both have subscribed when each learns what the other one does.
        for (writer, reader) in [(0, 1), (1, 0)] {
            let probe = |at: usize| two.path(at, "probe");
            fs::write(probe(writer), b"").expect("a file");
            let mut length = 0;
            two.until("a subscription", || {
                length += 1;
                let before = fs::metadata(probe(reader)).expect("attributes").len();
                fs::OpenOptions::new()
                    .write(true)
                    .open(probe(writer))
                    .expect("the file")
                    .set_len(length)
                    .expect("longer");
                before != length && fs::metadata(probe(reader)).expect("attributes").len() == length
            });
        }
        two
    }

    fn path(&self, mount: usize, name: &str) -> PathBuf {
        self.mounts[mount].1.path().join(name)
    }

    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn attributes_and_content_are_current_at_once() {
    if !can_mount("attributes_and_content_are_current_at_once") {
        return;
    }
    let two = Two::new();
    fs::write(two.path(0, "file"), b"first").expect("a file");
    assert_eq!(fs::read(two.path(1, "file")).expect("the file"), b"first");
    let reader = fs::File::open(two.path(1, "file")).expect("the file");
    let writer = fs::OpenOptions::new().write(true).open(two.path(0, "file")).expect("the file");
    for round in 0..50_u64 {
        let text = format!("round {round:6}");
        writer.write_all_at(text.as_bytes(), 0).expect("a write");
        let mut bytes = vec![0; text.len()];
        reader.read_exact_at(&mut bytes, 0).expect("a read");
        assert_eq!(bytes, text.as_bytes(), "an open file");
        writer.set_len(100 + round).expect("longer");
        assert_eq!(fs::metadata(two.path(1, "file")).expect("attributes").len(), 100 + round);
        fs::set_permissions(two.path(1, "file"), fs::Permissions::from_mode(0o600 + (round % 8) as u32))
            .expect("a mode");
        let mode = fs::metadata(two.path(0, "file")).expect("attributes").permissions().mode();
        assert_eq!(mode & 0o777, 0o600 + (round % 8) as u32);
    }
    assert_eq!(fs::read(two.exported.path().join("file")).expect("the file").len(), 149);
}

/// The kernel gets a file to know just when another mount changes it: the notice may come before the answer, or before the kernel has taken that.
#[test]
fn what_is_found_while_it_changes_is_current_afterwards() {
    if !can_mount("what_is_found_while_it_changes_is_current_afterwards") {
        return;
    }
    let two = Two::new();
    for by_listing in [false, true] {
        for round in 0..300 {
            let folder = format!("folder-{by_listing}-{round}");
            let name = format!("{folder}/file");
            fs::create_dir(two.path(0, &folder)).expect("a directory");
            let writer = fs::File::create(two.path(0, &name)).expect("a file");
            let begin = Barrier::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    begin.wait();
                    if by_listing {
                        assert_eq!(fs::read_dir(two.path(1, &folder)).expect("a listing").count(), 1);
                    } else {
                        fs::metadata(two.path(1, &name)).expect("attributes");
                    }
                });
                begin.wait();
                writer.set_len(7).expect("longer");
            });
            assert_eq!(fs::metadata(two.path(1, &name)).expect("attributes").len(), 7, "{name}");
        }
    }
}

#[test]
fn names_that_are_removed_or_replaced_are_forgotten() {
    if !can_mount("names_that_are_removed_or_replaced_are_forgotten") {
        return;
    }
    let two = Two::new();
    fs::create_dir(two.path(0, "dir")).expect("a directory");
    for round in 0..20 {
        fs::write(two.path(0, "dir/file"), format!("{round}")).expect("a file");
        two.until("a new file", || {
            fs::read(two.path(1, "dir/file")).is_ok_and(|text| text == format!("{round}").as_bytes())
        });
        fs::write(two.path(0, "dir/new"), b"replaced").expect("a file");
        fs::rename(two.path(0, "dir/new"), two.path(0, "dir/file")).expect("renamed");
        two.until("a replaced file", || fs::read(two.path(1, "dir/file")).is_ok_and(|text| text == b"replaced"));
        fs::remove_file(two.path(0, "dir/file")).expect("removed");
        let gone = || fs::metadata(two.path(1, "dir/file")).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        two.until("a removed file", gone);
    }
    // Both change the same directory at the same time: neither waits for the other for ever.
    std::thread::scope(|scope| {
        for mount in 0..2 {
            let two = &two;
            scope.spawn(move || {
                for round in 0..100 {
                    let (name, other) = (format!("dir/{mount}-{round}"), format!("dir/moved-{mount}-{round}"));
                    fs::write(two.path(mount, &name), b"text").expect("a file");
                    fs::rename(two.path(mount, &name), two.path(mount, &other)).expect("renamed");
                    let _ = fs::read_dir(two.path(mount, "dir")).expect("a listing").count();
                    fs::remove_file(two.path(mount, &other)).expect("removed");
                }
            });
        }
    });
    assert_eq!(fs::read_dir(two.path(1, "dir")).expect("a listing").count(), 0);
}

#[test]
fn every_mix_of_clients_sees_from_close_to_open_what_others_have_written() {
    if !is_able("every_mix_of_clients_sees_from_close_to_open_what_others_have_written") {
        return;
    }
    let exported = open_folder();
    let name = format!("coherence-mix-{}", std::process::id());
    let group = Some(Group { name: "own".to_owned(), number: rustix::process::getgid().as_raw() });
    let (directory, direct) = (exported.path().to_owned(), true);
    let options = ServerOptions { name: name.clone(), directory, direct, group, ..ServerOptions::default() };
    let _server = Server::start(options).expect("a server");
    let clients = [
        Client::named(&name, None).expect("the directory itself"),
        Client::connect(Source::Name(name.clone()), None).expect("a client by messages"),
        Client::named(&format!("0@{name}"), None).expect("a member"),
    ];
    assert_eq!(clients.each_ref().map(Client::is_direct), [true, false, false]);
    let mounts = clients.map(|client| mounted(client, &name));
    let mut places: Vec<PathBuf> = mounts.iter().map(|(_, folder)| folder.path().to_owned()).collect();
    places.push(exported.path().to_owned());
    // Longer and shorter, after each reader has cached what was before.
    for (round, length) in [10_usize, 20, 5, 9000, 100_000, 50].into_iter().enumerate() {
        for (writer, of_writer) in places.iter().enumerate() {
            let text = format!("{round}{writer}").repeat(length + writer);
            fs::write(of_writer.join("file"), &text).expect("a write");
            for (reader, of_reader) in places.iter().enumerate() {
                let read = fs::read_to_string(of_reader.join("file")).expect("a read");
                assert!(read == text, "{writer} to {reader}, round {round}: {} of {} bytes", read.len(), text.len());
            }
        }
    }
}

/// The kernel forgets everything when a subscription begins or ends.
#[test]
fn a_program_keeps_its_directory_when_the_server_comes_back() {
    if !can_mount("a_program_keeps_its_directory_when_the_server_comes_back") {
        return;
    }
    let exported = open_folder();
    let name = format!("coherence-back-{}", std::process::id());
    let first = server(&name, exported.path(), false, Mode::Messages);
    let (mount, folder) = mounted(Client::connect(Source::Name(name.clone()), None).expect("a client"), &name);
    let within = folder.path().join("a/b");
    fs::create_dir_all(&within).expect("directories");
    let mut program = Command::new("sh");
    program.args(["-c", "while read -r _; do /bin/pwd || echo lost; done"]).current_dir(&within);
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh");
    let (mut asks, says) = (program.stdin.take().unwrap(), BufReader::new(program.stdout.take().unwrap()));
    let mut says = says.lines();
    let mut is_there = |when: &str| {
        asks.write_all(b"\n").expect("a line");
        let said = says.next().expect("an answer").expect("a line");
        assert_eq!(PathBuf::from(said), within.canonicalize().expect("it is there"), "{when}");
    };
    is_there("at first");
    drop(first);
    let _second = server(&name, exported.path(), false, Mode::Messages);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        is_there("afterwards");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(asks);
    program.wait().expect("an end");
    drop(mount);
}
