//! A server reports each change to the clients that may have cached what is changed, before it answers the client that has made the change.

use motet_files::client::{Client, Notice, Source, Subscription};
use motet_files::protocol::{Attributes, Change, OpenFlags, RenameFlags, entries};
use motet_files::server::{Group, Options, Server};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const NEW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE).union(OpenFlags::CREATE);

/// What a client was told.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Told {
    Everything,
    Attributes(u64),
    Name(Vec<u8>),
}

/// A client that notes what it learns.
struct Listener {
    client: Client,
    told: Arc<Mutex<Vec<Told>>>,
    /// It does not return from a notice while this is set.
    stuck: Arc<AtomicBool>,
    subscription: Option<Subscription>,
}

impl Listener {
    /// One of the server's user, or `UID@NAME` of a member of the group.
    fn new(name: &str) -> Self {
        let client = Client::connect(Source::Name(name.to_owned()), None).expect("a client");
        let (told, stuck) = (Arc::<Mutex<Vec<Told>>>::default(), Arc::new(AtomicBool::new(false)));
        let (notes, waits) = (Arc::clone(&told), Arc::clone(&stuck));
        let note = move |notice: Notice<'_>| {
            while waits.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            notes.lock().expect("notes").push(match notice {
                Notice::Everything => Told::Everything,
                Notice::Attributes { inode, .. } => Told::Attributes(inode),
                Notice::Name { path } => Told::Name(path.to_vec()),
            });
        };
        let subscription = client.subscribe(note).expect("a thread");
        let listener = Self { client, told, stuck, subscription };
        listener.until(&Told::Everything);
        listener
    }

    fn until(&self, expected: &Told) {
        let began = Instant::now();
        while !self.take().contains(expected) {
            assert!(began.elapsed() < Duration::from_secs(20), "{expected:?} is not reported");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What was told since the last call.
    fn take(&self) -> Vec<Told> {
        std::mem::take(&mut self.told.lock().expect("notes"))
    }

    fn look(&self, path: &str) -> Attributes {
        self.client.attributes(path.as_bytes()).expect("attributes")
    }
}

fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("notices-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn serve(name: &str, directory: &Path) -> Server {
    Server::start(Options { name: name.to_owned(), directory: directory.to_owned(), ..Options::default() })
        .expect("a server")
}

#[test]
fn a_change_is_told_before_it_is_answered_and_once() {
    let (name, folder) = (name(), tempfile::tempdir().expect("a folder"));
    let _server = serve(&name, folder.path());
    let (reader, writer) = (Listener::new(&name), Listener::new(&name));
    let (file, _) = writer.client.open_file(b"file", NEW, 0o644).expect("a file");
    let root = reader.look("").inode;
    let inode = reader.look("file").inode;
    for _ in 0..3 {
        file.write_at(b"text", 0).expect("a write");
    }
    assert_eq!(reader.take(), [Told::Attributes(inode)], "once for all writes");
    assert!(writer.take().is_empty(), "its own changes are not told to it");
    reader.look("file");
    let change = Change { mode: Some(0o600), ..Change::default() };
    writer.client.set_attributes(b"file", &change).expect("a change of mode");
    assert_eq!(reader.take(), [Told::Attributes(inode)]);
    reader.look("file");
    writer.client.rename(b"file", b"other", RenameFlags::empty()).expect("renamed");
    let mut told = reader.take();
    told.sort_by_key(|told| format!("{told:?}"));
    let mut expected = [Told::Attributes(inode), Told::Attributes(root), Told::Name(b"file".to_vec())];
    expected.sort_by_key(|told| format!("{told:?}"));
    assert_eq!(told, expected);
    reader.look("other");
    writer.client.unlink(b"other", false).expect("removed");
    assert!(reader.take().contains(&Told::Name(b"other".to_vec())));
    writer.client.mkdir(b"unknown", 0o755).expect("a directory");
    assert!(!reader.take().iter().any(|told| matches!(told, Told::Name(_))), "it has not looked there");
}

/// The kernel keeps the names beneath a directory that it renames.
#[test]
fn names_beneath_a_renamed_directory_are_told() {
    let (name, folder) = (name(), tempfile::tempdir().expect("a folder"));
    let _server = serve(&name, folder.path());
    let (reader, writer) = (Listener::new(&name), Listener::new(&name));
    for (at, renames) in [&reader, &writer].into_iter().enumerate() {
        let (before, after) = (format!("before{at}"), format!("after{at}"));
        let of = |directory: &str, name: &str| format!("{directory}/{name}").into_bytes();
        writer.client.mkdir(before.as_bytes(), 0o755).expect("a directory");
        writer.client.symlink(&of(&before, "current"), b"one").expect("a link");
        reader.look(&format!("{before}/current"));
        renames.client.rename(before.as_bytes(), after.as_bytes(), RenameFlags::empty()).expect("renamed");
        reader.take();
        writer.client.symlink(&of(&after, "new"), b"two").expect("a link");
        writer.client.rename(&of(&after, "new"), &of(&after, "current"), RenameFlags::empty()).expect("replaced");
        assert!(reader.take().contains(&Told::Name(of(&after, "current"))), "renamed by client {at}");
    }
}

#[test]
fn listings_with_attributes_are_told_too() {
    let (name, folder) = (name(), tempfile::tempdir().expect("a folder"));
    let _server = serve(&name, folder.path());
    let (reader, writer) = (Listener::new(&name), Listener::new(&name));
    let (file, attributes) = writer.client.open_file(b"file", NEW, 0o644).expect("a file");
    let (directory, _) =
        reader.client.open_file(b"", OpenFlags::READ | OpenFlags::DIRECTORY, 0).expect("the directory");
    directory.readdir(0, true, &mut [0; 4096]).expect("a listing");
    file.write_at(b"text", 0).expect("a write");
    assert_eq!(reader.take(), [Told::Attributes(attributes.inode)]);
    // A client also gets notices for names that it knows only from a listing, whichever path the directory has for it.
    writer.client.mkdir(b"inner", 0o755).expect("a directory");
    for name in [&b"inner/old"[..], b"inner/gone"] {
        writer.client.open_file(name, NEW, 0o644).expect("a file");
    }
    let (inner, _) =
        reader.client.open_file(b"inner", OpenFlags::READ | OpenFlags::DIRECTORY, 0).expect("the directory");
    inner.readdir(0, true, &mut [0; 4096]).expect("a listing");
    reader.take();
    writer.client.rename(b"inner/old", b"inner/new", RenameFlags::empty()).expect("renamed");
    assert!(reader.take().contains(&Told::Name(b"inner/old".to_vec())));
    reader.client.rename(b"inner", b"moved", RenameFlags::empty()).expect("renamed");
    writer.client.unlink(b"moved/gone", false).expect("removed");
    assert!(reader.take().contains(&Told::Name(b"moved/gone".to_vec())));
}

#[test]
fn a_client_with_too_many_leases_forgets_all_and_is_told_again() {
    let (name, folder) = (name(), tempfile::tempdir().expect("a folder"));
    let _server = serve(&name, folder.path());
    let (reader, writer) = (Listener::new(&name), Listener::new(&name));
    let (file, attributes) = writer.client.open_file(b"file", NEW, 0o644).expect("a file");
    std::fs::create_dir(folder.path().join("many")).expect("a directory");
    // A listing gives two leases for each entry, of 65 536.
    for number in 0..33_000 {
        std::fs::write(folder.path().join(format!("many/{number}")), "").expect("a file");
    }
    let (many, _) = reader.client.open_file(b"many", OpenFlags::READ | OpenFlags::DIRECTORY, 0).expect("the directory");
    let (mut cookie, mut listing) = (0, vec![0; 1 << 20]);
    loop {
        let length = many.readdir(cookie, true, &mut listing).expect("a listing");
        let Some(last) = entries(&listing[..length]).last() else { break };
        cookie = last.cookie;
    }
    // Once it has forgotten all it gets notices of changes as before.
    let (began, mut told) = (Instant::now(), Vec::new());
    while !told.contains(&Told::Attributes(attributes.inode)) {
        assert!(began.elapsed() < Duration::from_secs(60), "no change is reported");
        reader.look("file");
        file.write_at(b"text", 0).expect("a write");
        told.extend(reader.take());
        thread::sleep(Duration::from_millis(10));
    }
    assert!(told.contains(&Told::Everything), "it has forgotten what it had cached");
}

#[test]
fn a_client_that_does_not_answer_delays_one_change_only() {
    let (name, folder) = (name(), tempfile::tempdir().expect("a folder"));
    let _server = serve(&name, folder.path());
    let (stuck, writer) = (Listener::new(&name), Listener::new(&name));
    let (file, _) = writer.client.open_file(b"file", NEW, 0o644).expect("a file");
    stuck.look("file");
    stuck.stuck.store(true, Ordering::SeqCst);
    file.write_at(b"text", 0).expect("the write goes on without it");
    stuck.stuck.store(false, Ordering::SeqCst);
    // It has lost its subscription, learns that it knows nothing any more, and subscribes again.
    stuck.until(&Told::Everything);
    stuck.until(&Told::Everything);
    stuck.look("file");
    file.write_at(b"text", 4).expect("a write");
    stuck.until(&Told::Attributes(stuck.look("file").inode));
}

#[test]
fn a_restarted_server_tells_again_after_everything() {
    let (name, folder) = (name(), tempfile::tempdir().expect("a folder"));
    let mut server = Some(serve(&name, folder.path()));
    let (reader, writer) = (Listener::new(&name), Listener::new(&name));
    let (file, _) = writer.client.open_file(b"file", NEW, 0o644).expect("a file");
    let inode = reader.look("file").inode;
    drop(server.take());
    reader.until(&Told::Everything);
    server = Some(serve(&name, folder.path()));
    reader.look("file");
    reader.until(&Told::Everything);
    reader.look("file");
    file.write_at(b"text", 0).expect("a write");
    reader.until(&Told::Attributes(inode));
    drop((file, server));
}

/// A server for this process's own group, a client of its user, and one that comes as a member.
fn serve_own_group(directory: &Path) -> (Server, Listener, Listener) {
    let (name, directory) = (name(), directory.to_owned());
    let (user, number) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let group = Some(Group { name: "own".to_owned(), number });
    let server = Server::start(Options { name: name.clone(), directory, group, ..Options::default() });
    (server.expect("a server"), Listener::new(&name), Listener::new(&format!("{user}@{name}")))
}

#[test]
fn members_of_the_group_and_clients_of_the_servers_user_are_told_of_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, own, member) = serve_own_group(folder.path());
    for (reader, writer, path) in [(&own, &member, "by-member"), (&member, &own, "by-owner")] {
        let (file, _) = writer.client.open_file(path.as_bytes(), NEW, 0o666).expect("a file");
        let inode = reader.look(path).inode;
        reader.take();
        file.write_at(b"text", 0).expect("a write");
        assert_eq!(reader.take(), [Told::Attributes(inode)], "{path}");
        reader.look(path);
        writer.client.unlink(path.as_bytes(), false).expect("removed");
        assert!(reader.take().contains(&Told::Name(path.as_bytes().to_vec())), "{path}");
    }
}

#[test]
fn a_member_that_does_not_answer_is_not_waited_for_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_server, own, member) = serve_own_group(folder.path());
    let (file, _) = own.client.open_file(b"file", NEW, 0o666).expect("a file");
    member.look("file");
    member.stuck.store(true, Ordering::SeqCst);
    file.write_at(b"text", 0).expect("the write goes on without it");
    member.stuck.store(false, Ordering::SeqCst);
    member.until(&Told::Everything);
    member.until(&Told::Everything);
    // It has subscribed again, and is stuck again for longer than any change waits.
    let inode = member.look("file").inode;
    member.stuck.store(true, Ordering::SeqCst);
    file.write_at(b"text", 4).expect("the write does not wait");
    member.stuck.store(false, Ordering::SeqCst);
    // The subscription has not ended: notices come on, with nothing between them.
    let (mut told, began) = (Vec::new(), Instant::now());
    while told.iter().filter(|told| **told == Told::Attributes(inode)).count() < 3 {
        assert!(began.elapsed() < Duration::from_secs(20), "no notice: {told:?}");
        member.look("file");
        file.write_at(b"text", 8).expect("a write");
        told.extend(member.take());
    }
    assert!(!told.contains(&Told::Everything), "{told:?}");
}

#[test]
fn a_client_that_has_gone_is_not_waited_for() {
    let (name, folder) = (name(), tempfile::tempdir().expect("a folder"));
    let _server = serve(&name, folder.path());
    let writer = Listener::new(&name);
    let (file, _) = writer.client.open_file(b"file", NEW, 0o644).expect("a file");
    for _ in 0..3 {
        let mut gone = Listener::new(&name);
        gone.look("file");
        drop(gone.subscription.take());
        gone.client.close();
        file.write_at(b"text", 0).expect("a write");
    }
    let reader = Listener::new(&name);
    let inode = reader.look("file").inode;
    file.write_at(b"text", 0).expect("a write");
    assert_eq!(reader.take(), [Told::Attributes(inode)]);
}
