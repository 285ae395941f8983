//! Clients of other users of the host: who is admitted, and as whom their requests are executed. Needs root, and `setpriv` to run clients as other users.

use motet::node::{Error, Node, Serve};
use motet_files::client::{Client, Source};
use motet_files::exports::members::{self, split_ticket, with_ticket};
use motet_files::exports::{self, Query};
use motet_files::identity::Identity;
use motet_files::protocol::{Change, LockKind, LockRange, OpenFlags, SERVICE, entries};
use motet_files::server::{Group, Options, Server};
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
/// A user and a group without names, and groups that files have.
const USER: u32 = 4001;
const SERVER_USER: u32 = 4000;
const WALLS: u32 = 7001;
const OTHERS: u32 = 7002;
/// What this program does if it is run as another user.
const TASK: &str = "MOTET_MEMBERS_TASK";

fn is_root(test: &str) -> bool {
    let root = rustix::process::getuid().is_root();
    let setpriv = Command::new("setpriv").arg("--version").output().is_ok_and(|output| output.status.success());
    if !root || !setpriv {
        eprintln!("SKIPPED {test}: it needs root, and setpriv");
    }
    root && setpriv
}

fn result<T>(result: std::io::Result<T>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.raw_os_error().map_or_else(|| error.to_string(), |errno| errno.to_string()),
    }
}

/// The part of other users, in a process of its own: not a test by itself.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let words: Vec<_> = task.split(' ').collect();
    match words[..] {
        ["serve", name, folder, ref limit @ ..] => {
            if let [limit] = limit {
                let current = limit.parse().ok();
                setrlimit(Resource::Nofile, Rlimit { current, maximum: current }).expect("a limit");
            }
            let group = Some(Group { name: "walls".to_owned(), number: WALLS });
            let options = Options { name: name.to_owned(), directory: folder.into(), group, ..Options::default() };
            let _server = Server::start(options).expect("a server");
            println!("ready");
            let _ = std::io::stdin().read(&mut [0]);
        }
        ["hold", name] => {
            let address = SocketAddr::from_abstract_name(name).expect("a name");
            let _listener = UnixListener::bind_addr(&address).expect("a socket");
            println!("ready");
            let _ = std::io::stdin().read(&mut [0]);
        }
        ["use", export] => {
            let client = match Client::named(export, LIMIT) {
                Ok(client) => client,
                Err(error) => return println!("\nconnect={error}"),
            };
            let claims_root = client.for_user(Identity { user: 0, group: 0, groups: vec![] });
            let claims_other = client.for_user(Identity { user: 1, group: OTHERS, groups: vec![OTHERS] });
            let create = |client: &Client, name: &str| {
                let (file, _) = client.open_file(name.as_bytes(), READ_WRITE | OpenFlags::CREATE, 0o644)?;
                file.write_at(&vec![7; 100_000], 0)
            };
            println!("\nconnect=ok");
            println!("identities={}", client.has_identities());
            println!("mine={}", result(create(&client, "mine")));
            println!("claimed={}", result(create(&claims_other, "claimed")));
            println!("root={}", result(create(&claims_root, "root")));
            for name in ["of-root", "of-walls", "of-others"] {
                println!("{name}={}", result(client.open_file(name.as_bytes(), OpenFlags::READ, 0)));
                println!("{name}-claimed={}", result(claims_root.open_file(name.as_bytes(), OpenFlags::READ, 0)));
            }
            println!("chown={}", result(claims_root.mknod(b"device", 0o020_666, 0x103)));
            println!("up={}", result(client.attributes(b"../x")));
            client.close();
        }
        ["take", export, count] => {
            let client = Client::named(export, LIMIT).expect("a client");
            let open = |number: usize| {
                let name = format!("taken-{}-{number}", std::process::id());
                client.open_file(name.as_bytes(), READ_WRITE | OpenFlags::CREATE, 0o644)
            };
            let opened: Vec<_> = (0..count.parse().expect("a number")).map_while(|number| open(number).ok()).collect();
            let sessions: Vec<_> = (0..1100).map_while(|_| Client::named(export, LIMIT).ok()).collect();
            println!("\nopened={} sessions={}", opened.len(), sessions.len() + 1);
            println!("ready");
            let _ = std::io::stdin().read(&mut [0]);
            drop(opened);
            sessions.iter().chain([&client]).for_each(Client::close);
        }
        ["read", export] => {
            let client = match Client::named(export, LIMIT) {
                Ok(client) => client,
                Err(error) => return println!("\nconnect={error}"),
            };
            println!("\nopened={}", result(client.open_file(b"of-few", OpenFlags::READ, 0)));
            let (tool, _) = client.open_file(b"tool", OpenFlags::READ | OpenFlags::EXECUTE, 0).expect("a program");
            let range = LockRange { kind: LockKind::Exclusive, start: 0, end: u64::MAX, process: 0 };
            tool.lock(1, range).expect("a lock");
            let (directory, _) =
                client.open_file(b"listed", OpenFlags::READ | OpenFlags::DIRECTORY, 0).expect("a folder");
            let mut listing = [0; 4096];
            let length = directory.readdir(0, true, &mut listing).expect("a listing");
            let shown = entries(&listing[..length]).filter(|entry| entry.attributes.is_some()).count();
            println!("names={} attributes={shown}", entries(&listing[..length]).count());
            println!("stat={}", result(client.attributes(b"listed/inner")));
            println!("ready");
            let _ = std::io::stdin().read(&mut [0]);
            client.close();
        }
        ["rights", export] => {
            let client = Client::named(export, LIMIT).expect("a client");
            let (file, _) = client.open_file(b"opened", READ_WRITE | OpenFlags::CREATE, 0o6755).expect("a file");
            client.mkdir(b"directory", 0o6755).expect("a directory");
            client.mknod(b"node", 0o106_755, 0).expect("a file");
            println!("\ndevice={}", result(client.mknod(b"device", 0o020_666, 0x103)));
            client.mknod(b"by-path", 0o100_755, 0).expect("a file");
            let change = Change { mode: Some(0o6755), ..Change::default() };
            client.set_attributes(b"by-path", &change).expect("a mode");
            let (by_file, _) = client.open_file(b"by-file", READ_WRITE | OpenFlags::CREATE, 0o755).expect("a file");
            by_file.set_attributes(&change).expect("a mode");
            client.set_attributes(b"shared", &Change { mode: Some(0o2775), ..change }).expect("a mode");
            // Programs of the server's user.
            let (written, _) = client.open_file(b"written", READ_WRITE, 0).expect("a program");
            written.write_at(b"x", 0).expect("a write");
            client.set_attributes(b"cut", &Change { size: Some(1), ..Change::default() }).expect("a length");
            client.open_file(b"emptied", READ_WRITE | OpenFlags::TRUNCATE, 0).expect("a program");
            let (target, _) = client.open_file(b"copied", READ_WRITE, 0).expect("a program");
            file.write_at(b"text", 0).expect("a write");
            file.copy_to(0, &target, 0, 4).expect("a copy");
            drop(target);
            let (allocated, _) = client.open_file(b"allocated", READ_WRITE, 0).expect("a program");
            allocated.fallocate(0, 0, 10).expect("space");
            client.close();
        }
        _ => panic!("{task}"),
    }
}

/// This program where other users can execute it, and a private folder of each.
struct Programs {
    folder: TempDir,
}

impl Programs {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
        // By another process: a child of a test beside this one would keep the file open for writing until it executes, and no such file can be executed.
        let mut copy = Command::new("cp");
        copy.arg(std::env::current_exe().expect("this program")).arg(folder.path().join("program"));
        assert!(copy.status().expect("cp").success());
        Self { folder }
    }

    fn command(&self, (user, group, groups): (u32, u32, &str), task: &str) -> Command {
        let private = self.folder.path().join(format!("{user}-{group}"));
        fs::create_dir_all(&private).expect("a folder");
        fs::set_permissions(&private, fs::Permissions::from_mode(0o700)).expect("permissions");
        chown(&private, Some(user), Some(group)).expect("an owner");
        let mut command = Command::new("setpriv");
        command.args([format!("--reuid={user}"), format!("--regid={group}")]);
        command.arg(if groups.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={groups}") });
        command.arg(self.folder.path().join("program")).args(["child", "--exact", "--nocapture"]);
        command.env(TASK, task).env("MOTET_SESSION_DIR", &private).env_remove("XDG_RUNTIME_DIR").env("HOME", &private);
        command.current_dir("/");
        command
    }

    /// A part that is ready, and ends with its input.
    fn started(&self, user: (u32, u32, &str), task: &str) -> Part {
        self.begun(user, task).0
    }

    /// A part that is ready, and the lines that it printed before.
    fn begun(&self, user: (u32, u32, &str), task: &str) -> (Part, Vec<String>) {
        let mut command = self.command(user, task);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut printed = Vec::new();
        let ready = output.by_ref().lines().map(|line| line.expect("a line")).any(|line| {
            let ready = line.ends_with("ready");
            printed.extend(line.contains('=').then_some(line));
            ready
        });
        assert!(ready, "{task} is ready: {printed:?}");
        (Part { child, _output: output }, printed)
    }

    /// What a user gets of an export.
    fn used(&self, user: (u32, u32, &str), export: &str) -> Vec<String> {
        self.done(user, &format!("use {export}"))
    }

    /// What a task of a user prints.
    fn done(&self, user: (u32, u32, &str), task: &str) -> Vec<String> {
        let output = self.command(user, task).output().expect("the program");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text.lines().filter(|line| line.contains('=')).map(str::to_owned).collect()
    }
}

/// A running part. What it prints at its end has a reader.
struct Part {
    child: Child,
    _output: BufReader<ChildStdout>,
}

impl Part {
    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("its end").success());
    }

    fn kill(mut self) {
        self.child.kill().expect("a kill");
        self.child.wait().expect("its end");
    }
}

fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("members-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A folder to export, with files of root and of two groups.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("permissions");
    for (name, mode, group) in [("of-root", 0o600, 0), ("of-walls", 0o640, WALLS), ("of-others", 0o640, OTHERS)] {
        let path = folder.path().join(name);
        fs::write(&path, "text").expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("permissions");
        chown(&path, Some(0), Some(group)).expect("a group");
    }
    folder
}

fn owner(folder: &Path, name: &str) -> (u32, u32) {
    let found = fs::metadata(folder.join(name)).expect("the file");
    (found.uid(), found.gid())
}

fn server(folder: &Path, name: &str, squash: bool) -> Server {
    let group = Some(Group { name: "walls".to_owned(), number: WALLS });
    let (name, directory) = (name.to_owned(), folder.to_owned());
    Server::start(Options { name, directory, group, squash, direct: true, ..Options::default() }).expect("a server")
}

/// No process has the socket of an export for members, and there is no file of one.
fn nothing_is_left(user: u32, name: &str) {
    // A program that another test starts has a copy of this process's descriptors for a moment.
    let is_there = || fs::read_to_string("/proc/net/unix").expect("the sockets").contains(name);
    let mut looks = 0..1000;
    while is_there() {
        assert!(looks.next().is_some(), "a socket of {name} is left");
        std::thread::sleep(Duration::from_millis(10));
    }
    for folder in ["/tmp".to_owned(), format!("/tmp/motet-exports-{user}")] {
        let found = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .find(|entry| entry.file_name().to_str().is_some_and(|found| found.starts_with(name)));
        assert!(found.is_none(), "{found:?} is left");
    }
}

#[test]
fn members_of_the_group_act_as_themselves_whatever_they_claim() {
    if !is_root("members_of_the_group_act_as_themselves_whatever_they_claim") {
        return;
    }
    let programs = Programs::new();
    // By a supplementary group, and by the primary one; root's export has a short name, too.
    for (user, export_of) in [((USER, USER, "7001"), "0@"), ((USER, WALLS, ""), "root@"), ((USER, USER, "7001,9"), "")]
    {
        let (folder, name) = (folder(), name());
        let server = server(folder.path(), &name, false);
        let found = programs.used(user, &format!("{export_of}{name}"));
        let expected = [
            "connect=ok",
            "identities=false",
            "mine=ok",
            "claimed=ok",
            "root=ok",
            "of-root=13",
            "of-root-claimed=13",
            "of-walls=ok",
            "of-walls-claimed=ok",
            "of-others=13",
            "of-others-claimed=13",
            "chown=1",
        ];
        assert_eq!(found[..expected.len()], expected, "{user:?}");
        assert_ne!(found[expected.len()], "up=ok");
        for name in ["mine", "claimed", "root"] {
            assert_eq!(owner(folder.path(), name), (user.0, user.1), "{name}");
        }
        assert!(!folder.path().join("device").exists());
        drop(server);
        nothing_is_left(0, &name);
    }
}

#[test]
fn who_is_no_member_gets_the_reason() {
    if !is_root("who_is_no_member_gets_the_reason") {
        return;
    }
    let (programs, folder, name) = (Programs::new(), folder(), name());
    let _server = server(folder.path(), &name, false);
    for groups in ["", "7002", "7000,7003"] {
        let found = programs.used((USER, USER, groups), &format!("0@{name}"));
        assert_eq!(found, [format!("connect=it is for members of group walls, and user {USER} is none")]);
    }
    // A user that stands for all unknown ones, though it is in the group.
    let found = programs.used((65_534, WALLS, ""), &format!("0@{name}"));
    assert!(found[0].contains("65534 is none"), "{found:?}");
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 3, "nothing was made");
}

#[test]
fn members_are_squashed_where_the_server_says_so_or_is_not_root() {
    if !is_root("members_are_squashed_where_the_server_says_so_or_is_not_root") {
        return;
    }
    let (programs, exported, export) = (Programs::new(), folder(), name());
    let squashing = server(exported.path(), &export, true);
    let found = programs.used((USER, USER, "7001"), &format!("0@{export}"));
    assert!(
        ["mine=ok", "of-root=ok", "of-others=ok"].iter().all(|line| found.iter().any(|other| other == line)),
        "{found:?}"
    );
    assert_eq!(owner(exported.path(), "mine"), (0, 0));
    drop(squashing);
    // A server of another user than root.
    let (exported, export) = (folder(), name());
    let path = exported.path().display().to_string();
    let served = programs.started((SERVER_USER, SERVER_USER, ""), &format!("serve {export} {path}"));
    let found = programs.used((USER, USER, "7001"), &format!("{SERVER_USER}@{export}"));
    assert!(found.iter().any(|line| line == "mine=ok") && found.iter().any(|line| line == "of-root=13"), "{found:?}");
    assert_eq!(owner(exported.path(), "mine"), (SERVER_USER, SERVER_USER));
    let refused = programs.used((USER, USER, ""), &format!("{SERVER_USER}@{export}"));
    assert!(refused[0].contains("members of group walls"), "{refused:?}");
    served.end();
    nothing_is_left(SERVER_USER, &export);
}

#[test]
fn members_get_no_more_than_the_kernel_would_give_them() {
    if !is_root("members_get_no_more_than_the_kernel_would_give_them") {
        return;
    }
    let (programs, exported, export) = (Programs::new(), folder(), name());
    let path = |name: &str| exported.path().join(name);
    fs::write(path("of-few"), "text").expect("a file");
    chown(path("of-few"), Some(0), Some(9999)).expect("a group");
    fs::set_permissions(path("of-few"), fs::Permissions::from_mode(0o604)).expect("permissions");
    fs::copy("/bin/true", path("tool")).expect("a program");
    fs::set_permissions(path("tool"), fs::Permissions::from_mode(0o755)).expect("permissions");
    fs::create_dir(path("listed")).expect("a folder");
    fs::write(path("listed/inner"), "text").expect("a file");
    fs::set_permissions(path("listed"), fs::Permissions::from_mode(0o744)).expect("permissions");
    let _server = server(exported.path(), &export, false);
    // Not one of many groups is left out, also not the one that has fewer permissions than others.
    let groups = (5001..5041).map(|group| group.to_string()).collect::<Vec<_>>().join(",");
    let user = |groups: &str| format!("7001,{groups}");
    let (with, without) = (user(&format!("{groups},9999")), user(&groups));
    for (groups, opened) in [(&with, "opened=13"), (&without, "opened=ok")] {
        let (part, lines) = programs.begun((USER, USER, groups), &format!("read 0@{export}"));
        assert_eq!(lines, [opened, "names=3 attributes=0", "stat=13"], "{groups}");
        // It has locked the program, and does not keep others from starting it.
        assert!(Command::new(path("tool")).status().expect("the program starts").success());
        part.end();
    }
    let many = (10_000..11_100).map(|group| group.to_string()).collect::<Vec<_>>().join(",");
    let refused = programs.done((USER, USER, &user(&many)), &format!("use 0@{export}"));
    assert_eq!(refused, [format!("connect=user {USER} has more than 1024 supplementary groups")]);
}

#[test]
fn one_member_takes_neither_all_descriptors_nor_all_sessions() {
    if !is_root("one_member_takes_neither_all_descriptors_nor_all_sessions") {
        return;
    }
    let (programs, exported, export) = (Programs::new(), folder(), name());
    let task = format!("serve {export} {} 512", exported.path().display());
    let served = programs.started((SERVER_USER, SERVER_USER, ""), &task);
    let place = format!("{SERVER_USER}@{export}");
    let (taking, taken) = programs.begun((USER, USER, "7001"), &format!("take {place} 1000"));
    assert_eq!(taken, ["opened=64 sessions=8"]);
    for user in [(USER + 1, USER + 1, "7001"), (SERVER_USER, SERVER_USER, "")] {
        let found = programs.used(user, &place);
        assert!(
            found.iter().any(|line| line == "connect=ok") && found.iter().any(|line| line == "mine=ok"),
            "{found:?}"
        );
        fs::remove_file(exported.path().join("mine")).expect("removed");
    }
    taking.end();
    served.end();
    nothing_is_left(SERVER_USER, &export);
}

/// Makes programs of a user in a folder that run as that user, and a directory with its group.
fn programs_of(folder: &Path, user: u32) {
    for name in ["written", "cut", "emptied", "copied", "allocated", "shared"] {
        let path = folder.join(name);
        let made = if name == "shared" { fs::create_dir(&path) } else { fs::write(&path, "program") };
        made.expect("made");
        chown(&path, Some(user), Some(user)).expect("an owner");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).expect("permissions");
    }
}

/// The files of a folder that have set-user-id or set-group-id, and those that are devices.
fn with_rights(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder").map(|entry| entry.expect("an entry"));
    let found = entries.map(|entry| (entry.file_name(), entry.metadata().expect("attributes").mode()));
    let mut named: Vec<_> = found
        .filter(|(_, mode)| mode & 0o6000 != 0 || mode & 0o170_000 == 0o020_000)
        .map(|(name, mode)| format!("{} {mode:o}", name.to_string_lossy()))
        .collect();
    named.sort();
    named
}

#[test]
fn squashed_members_make_and_keep_no_program_that_runs_as_the_server() {
    if !is_root("squashed_members_make_and_keep_no_program_that_runs_as_the_server") {
        return;
    }
    let programs = Programs::new();
    let member = (USER, USER, "7001");
    for of_root in [true, false] {
        let (exported, export) = (folder(), name());
        let user = if of_root { 0 } else { SERVER_USER };
        programs_of(exported.path(), user);
        let path = exported.path().display().to_string();
        let squashing = of_root.then(|| server(exported.path(), &export, true));
        let served = (!of_root).then(|| programs.started((user, user, ""), &format!("serve {export} {path}")));
        let found = programs.done(member, &format!("rights {user}@{export}"));
        assert_eq!(found, ["device=1"], "root {of_root}");
        assert_eq!(with_rights(exported.path()), ["shared 42775"], "root {of_root}");
        drop(squashing);
        served.into_iter().for_each(Part::end);
    }
    // A member that is executed as itself makes programs of its own.
    let (exported, export) = (folder(), name());
    programs_of(exported.path(), USER);
    let _server = server(exported.path(), &export, false);
    programs.done(member, &format!("rights 0@{export}"));
    let found = with_rights(exported.path());
    assert_eq!(found, ["by-file 106755", "by-path 106755", "node 106755", "shared 42775"]);
}

#[test]
fn a_killed_server_leaves_nothing_and_comes_back() {
    if !is_root("a_killed_server_leaves_nothing_and_comes_back") {
        return;
    }
    let (programs, exported, export) = (Programs::new(), folder(), name());
    let serve = || {
        let path = exported.path().display();
        programs.started((SERVER_USER, SERVER_USER, ""), &format!("serve {export} {path}"))
    };
    for _ in 0..2 {
        let served = serve();
        assert_eq!(programs.used((USER, USER, "7001"), &format!("{SERVER_USER}@{export}"))[0], "connect=ok");
        served.kill();
        nothing_is_left(SERVER_USER, &export);
        let missing = members::ask(&format!("{SERVER_USER}@{export}")).expect_err("no server");
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}

#[test]
fn a_socket_of_another_user_is_not_asked() {
    if !is_root("a_socket_of_another_user_is_not_asked") {
        return;
    }
    let (programs, exported, export) = (Programs::new(), folder(), name());
    let holding = |user: u32| {
        let place = format!("hold motet/files/{user}/{export}");
        programs.started((SERVER_USER, SERVER_USER, ""), &place)
    };
    let of_root = holding(0);
    let refused = members::ask(&format!("0@{export}")).expect_err("another user's socket");
    assert_eq!(refused.kind(), ErrorKind::NotFound, "the search goes on");
    assert!(refused.to_string().contains(&format!("user {SERVER_USER} holds the name")), "{refused}");
    let group = Some(Group { name: "walls".to_owned(), number: WALLS });
    let (name, directory) = (export.clone(), exported.path().to_owned());
    let failed =
        Server::start(Options { name, directory, group, ..Options::default() }).expect_err("its name is taken");
    assert!(failed.to_string().contains(&format!("user {SERVER_USER} holds the name")), "{failed}");
    // Who stands for all unknown users stands for none.
    let of_unknown = programs.started((65_534, 65_534, ""), &format!("hold motet/files/65534/{export}"));
    assert_eq!(members::ask(&format!("65534@{export}")).expect_err("unknown").kind(), ErrorKind::NotFound);
    of_root.end();
    of_unknown.end();
    let _server = server(exported.path(), &export, false);
    members::ask(&format!("0@{export}")).expect("the export");
}

#[test]
fn the_node_of_members_takes_no_client_without_a_new_ticket() {
    let (folder, name) = (tempfile::tempdir().expect("a folder"), name());
    let _server = server(folder.path(), &name, false);
    let own = rustix::process::getuid().as_raw();
    let address = members::ask(&format!("{own}@{name}")).expect("the export").address;
    let connect = |address: &str| Client::connect(Source::Address(address.to_owned()), LIMIT);
    let (bare, ticket) = split_ticket(&address).expect("an address");
    let mut wrong = ticket.expect("a ticket");
    wrong[3] ^= 1;
    assert!(connect(bare).is_err(), "without a ticket");
    assert!(connect(&with_ticket(bare, &wrong)).is_err(), "a ticket that was not issued");
    let client = connect(&address).expect("a client");
    client.mkdir(b"made", 0o755).expect("a directory");
    assert!(!client.has_identities());
    assert!(connect(&address).is_err(), "a ticket that was used");
    client.mkdir(b"made-too", 0o755).expect("the session goes on");
    let info = exports::ask(&name, &Query::default()).expect("the export").info;
    assert!(info.clients == 1 && info.requests >= 3, "members are counted: {info:?}");
    client.close();
    let ordinary = Client::connect(Source::Name(name.clone()), LIMIT).expect("a client");
    ordinary.mkdir(b"ordinary", 0o755).expect("a directory");
    ordinary.close();
}

#[test]
fn the_node_of_members_takes_few_channels_and_keeps_none_without_a_session() {
    let (folder, name) = (tempfile::tempdir().expect("a folder"), name());
    let _server = server(folder.path(), &name, false);
    let own = rustix::process::getuid().as_raw();
    let address = members::ask(&format!("{own}@{name}")).expect("the export").address;
    let (bare, _) = split_ticket(&address).expect("an address");
    let node = Node::open("").expect("a node");
    let context = node.context().expect("a context");
    let link = node.connect(bare, LIMIT).expect("a link");
    let open = |_| node.open_channel(link, SERVICE, Serve::Tagged(context), LIMIT).ok();
    let channels: Vec<_> = (0..100).map_while(open).collect();
    assert!(channels.len() < 10, "{} channels", channels.len());
    let client = Client::connect(Source::Address(address), LIMIT).expect("a client");
    let lost = node.receive(channels[0], &mut [0], LIMIT).expect_err("no message");
    assert!(matches!(lost, Error::Lost(_)), "{lost}");
    client.mkdir(b"made", 0o755).expect("the session goes on");
    client.close();
}
