//! `motet up --hosts`: a session of several hosts, by an agent of the test and by ssh between test hosts.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::{Folder, finish, json, motet, refused, skipped, until};

/// A session whose hosts are folders: the agent runs its command here, with the folder of its host.
struct Session(Folder);

impl Session {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        folder.libraries();
        Self(folder)
    }

    fn dir(&self, host: &str) -> PathBuf {
        self.0.path().join(host)
    }

    fn agent(&self) -> String {
        format!("env MOTET_SESSION_DIR={}/%h", self.0.path().display())
    }

    fn motet(&self, host: &str, arguments: &[&str]) -> Command {
        let mut command = motet(arguments);
        command.env("MOTET_SESSION_DIR", self.dir(host)).env("MOTET_LIBDIR", self.0.path());
        command
    }

    fn up(&self, hosts: &str) -> Command {
        self.motet("a", &["up", "--host", "a", "--listen", "127.0.0.1:0", "--hosts", hosts, "--agent", &self.agent()])
    }

    fn hosts(&self, from: &str) -> Vec<String> {
        let list = json(&finish(&mut self.motet(from, &["--json", "hosts"])).1);
        list.as_array().unwrap().iter().map(|host| host["name"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for host in ["a", "b", "c"] {
            let _ = self.motet(host, &["down"]).output();
        }
    }
}

#[test]
fn session_of_three_hosts_is_one() {
    let session = Session::new("three");
    let (code, out, err) = finish(&mut session.up("b,c"));
    assert!(code == 0 && out.ends_with("host b is up\nhost c is up\n"), "{out}{err}");
    until("all know all hosts", || ["a", "b", "c"].iter().all(|from| session.hosts(from) == ["a", "b", "c"]));
    let mut running = session.motet("b", &["run", "--group", "fluid", "-n", "2", "--", "sleep", "1000"]);
    let mut running = running.spawn().unwrap();
    until("the programs of b are known on c", || {
        let groups = json(&finish(&mut session.motet("c", &["--json", "groups"])).1);
        groups[0]["programs"]
            .as_array()
            .is_some_and(|programs| programs.len() == 2 && programs.iter().all(|program| program["host"] == "b"))
    });
    let (code, out, _) = finish(&mut session.motet("c", &["down"]));
    assert_eq!((code, out.as_str()), (0, "session default has ended: 2 programs, 0 groups\n"));
    assert!(!running.wait().unwrap().success());
    until("nothing is left", || ["a", "b", "c"].iter().all(|host| !session.dir(host).join("default").exists()));
}

#[test]
fn host_that_cannot_join_is_named_and_the_others_are_up() {
    let session = Session::new("some");
    let agent = format!("sh -c 'test %h != b && exec {} \"$@\"; echo no way to %h >&2; exit 9' -", session.agent());
    let mut up =
        session.motet("a", &["up", "--host", "a", "--listen", "127.0.0.1:0", "--hosts", "b,c", "--agent", &agent]);
    let (code, out, err) = finish(&mut up);
    assert!(code == 1 && err.contains("1 of 2 hosts have not joined"), "{code} {err}");
    assert!(out.contains("host b is not up: no way to b\nhost c is up\n"), "{out}");
    assert_eq!(session.hosts("c"), ["a", "c"]);
    let mut again = session.motet("a", &["up", "--hosts", "b", "--agent", "/does/not/exist %h"]);
    assert!(finish(&mut again).1.contains("host b is not up: /does/not/exist: No such file"));
    let (code, out, _) = finish(&mut session.motet("a", &["up", "--hosts", "b,c", "--agent", &session.agent()]));
    assert!(code == 0 && out.ends_with("host b is up\nhost c is up\n"), "a host that is up stays up: {out}");
}

#[test]
fn wrong_ways_to_join_are_refused() {
    let session = Session::new("wrong");
    let (code, ..) = finish(&mut session.up("b"));
    assert_eq!(code, 0);
    assert!(refused(&mut session.motet("c", &["up", "--join"]), 2).contains("no join configuration"));
    assert!(!session.dir("c").join("default").exists(), "nothing is left");
    let second = session.motet("b", &["up", "--hosts", "c", "--agent", &session.agent()]).output().unwrap();
    let why = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && why.contains("add hosts there"), "{why}");
    for (arguments, why) in [
        (&["up", "--hosts", "../x"][..], "host"),
        (&["up", "--agent", "sh"], "--hosts"),
        (&["up", "--hosts", "c", "--agent", "a 'b"], "quotes"),
        (&["up", "--hosts", "c", "--remote-motet", "a b"], "--remote-motet"),
        (&["up", "--hosts", "c", "--join"], "cannot be used"),
    ] {
        assert!(refused(&mut session.motet("a", arguments), 2).contains(why), "{arguments:?}");
    }
}

#[test]
fn session_on_its_own_is_not_joined_to_another() {
    let session = Session::new("own");
    assert_eq!(finish(&mut session.motet("b", &["up"])).0, 0);
    let (code, out, _) = finish(&mut session.up("b"));
    assert!(code == 1 && out.contains("host b is not up: another session of this name is up on this host"), "{out}");
    let about = json(&finish(&mut session.motet("b", &["--json", "up"])).1);
    assert_eq!(about["already"], true, "it goes on");
}

/// Ends a process when dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Test hosts on which sshd runs.
struct SshHosts {
    set: String,
    servers: Vec<Ended>,
}

impl SshHosts {
    const NAMES: [&str; 3] = ["a", "b", "c"];

    fn script(&self) -> Command {
        let mut command = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/hosts"));
        command.args(["--set", &self.set]);
        command
    }

    /// `None`: not possible here.
    fn up(folder: &Folder) -> Option<Self> {
        let skip = |why: &str| {
            skipped("ssh_starts_the_gatekeepers_of_a_session", why);
            None
        };
        if !Path::new("/usr/sbin/sshd").exists() {
            return skip("openssh-server is not installed (tests/packages.txt)");
        }
        let mut hosts = Self { set: format!("s{}", std::process::id()), servers: Vec::new() };
        let made = hosts.script().arg("up").args(Self::NAMES).output().expect("python3");
        if made.status.code() == Some(3) {
            return skip(String::from_utf8_lossy(&made.stderr).trim());
        }
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        if rustix::process::getuid().is_root() {
            std::fs::create_dir_all("/run/sshd").unwrap(); // sshd of root wants it
        }
        let path = |name: &str| folder.path().join(name).display().to_string();
        for name in ["key", "host_key"] {
            let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path(name)]).status();
            assert!(made.expect("openssh-client").success());
        }
        folder.file("authorized", &std::fs::read_to_string(path("key.pub")).unwrap(), 0o600);
        let server = format!(
            "Port 2222\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
             PasswordAuthentication no\nPermitRootLogin yes\nAcceptEnv MOTET_*\n",
            path("host_key"),
            path("authorized")
        );
        let client = format!(
            "Host *\nPort 2222\nIdentityFile {}\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n\
             LogLevel ERROR\nBatchMode yes\n",
            path("key")
        );
        folder.file("client", &client, 0o600);
        let server = folder.file("server", &server, 0o600).display().to_string();
        for host in Self::NAMES {
            let mut sshd = hosts.on(host, &["/usr/sbin/sshd", "-D", "-e", "-f", &server]);
            let log = std::fs::File::create(folder.path().join(format!("sshd-{host}"))).unwrap();
            hosts.servers.push(Ended(sshd.stderr(log).spawn().unwrap()));
        }
        let said = |host: &str| std::fs::read_to_string(folder.path().join(format!("sshd-{host}"))).unwrap_or_default();
        until("sshd listens", || Self::NAMES.iter().all(|host| said(host).contains("Server listening on 0.0.0.0")));
        Some(hosts)
    }

    fn on(&self, host: &str, words: &[&str]) -> Command {
        let mut command = self.script();
        command.args(["exec", host, "--"]).args(words).stdin(Stdio::null());
        command
    }
}

impl Drop for SshHosts {
    fn drop(&mut self) {
        self.servers.clear();
        let _ = self.script().arg("down").status();
    }
}

#[test]
fn ssh_starts_the_gatekeepers_of_a_session() {
    let folder = Folder::new("ssh");
    folder.libraries();
    let Some(hosts) = SshHosts::up(&folder) else { return };
    let motet = env!("CARGO_BIN_EXE_motet");
    let dir = |host: &str| format!("MOTET_SESSION_DIR={}/{host}", folder.path().display());
    let library = format!("MOTET_LIBDIR={}", folder.path().display());
    let run = |host: &str, words: &[&str]| {
        let own = dir(host);
        let all: Vec<&str> =
            ["env", &own, &library, "MOTET_CONFIG=/dev/null", motet].iter().chain(words).copied().collect();
        hosts.on(host, &all)
    };
    let agent = format!("ssh -F {}/client %h env {}", folder.path().display(), dir("%h"));
    let (code, out, err) = finish(&mut run("a", &["up", "--host", "a", "--hosts", "a,b,c", "--agent", &agent]));
    assert!(code == 0 && out.ends_with("host b is up\nhost c is up\n"), "{out}{err}");
    let mut program = Ended(run("b", &["run", "--group", "wall", "--", "sleep", "1000"]).spawn().unwrap());
    until("c knows the program of b", || {
        let groups = json(&finish(&mut run("c", &["--json", "groups"])).1);
        groups[0]["programs"][0]["host"] == "b"
    });
    let names = json(&finish(&mut run("c", &["--json", "hosts"])).1);
    assert_eq!(names.as_array().unwrap().len(), 3);
    let (code, out, err) = finish(&mut run("a", &["down"]));
    assert_eq!((code, out.as_str()), (0, "session default has ended: 1 program, 0 groups\n"), "{err}");
    assert!(!program.0.wait().unwrap().success());
    for host in SshHosts::NAMES {
        until("the folder is gone", || !folder.path().join(host).join("default").exists());
    }
}
