//! `motet up`, `groups`, `run --group` and `down`.

mod common;
#[path = "../../motet-gatekeeper/tests/support/etcd.rs"]
mod etcd;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Folder, finish, json, motet, refused};
use motet::node::Node;
use motet_group::Membership;
use motet_session::paths::SessionPaths;
use rustix::process::{Pid, Signal, kill_process};

/// A session in a folder of its own, which ends with the test.
struct Session(Folder);

impl Session {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        folder.libraries();
        Self(folder)
    }

    fn motet(&self, arguments: &[&str]) -> Command {
        let mut command = motet(arguments);
        command.env("MOTET_SESSION_DIR", self.0.path().join("sessions")).env("MOTET_LIBDIR", self.0.path());
        command
    }

    fn up(name: &str) -> Self {
        let session = Self::new(name);
        let (code, out, err) = finish(&mut session.motet(&["up", "--host", "here"]));
        assert_eq!((code, err.as_str()), (0, ""), "{out}");
        assert!(out.starts_with("session default is up on host here: gatekeeper "), "{out}");
        session
    }

    fn gatekeeper(&self) -> Pid {
        let about = json(&finish(&mut self.motet(&["--json", "up"])).1);
        Pid::from_raw(about["session"]["gatekeeper"]["pid"].as_i64().unwrap() as i32).unwrap()
    }

    /// Kills the gatekeeper, and waits for its end.
    fn kill_gatekeeper(&self) -> Pid {
        let gatekeeper = self.gatekeeper();
        kill_process(gatekeeper, Signal::KILL).unwrap();
        let runs = || std::fs::read_link(format!("/proc/{gatekeeper}/exe")).is_ok();
        while kill_process(gatekeeper, Signal::CONT).is_ok() && runs() {
            std::thread::yield_now();
        }
        gatekeeper
    }

    /// The programs of the session.
    fn programs(&self) -> Vec<serde_json::Value> {
        let socket = self.0.path().join("sessions/default/gatekeeper.sock");
        motet_session::client::Client::at(&socket).get("/v1/programs").unwrap()
    }

    /// Starts a program in the background, and waits for its first lines.
    fn start(&self, arguments: &[&str], lines: usize) -> (Child, Vec<String>) {
        let mut child = self.motet(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut output: BufReader<ChildStdout> = BufReader::new(child.stdout.take().unwrap());
        let mut line = || {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        let mut lines: Vec<_> = (0..lines).map(|_| line()).collect();
        lines.sort();
        (child, lines)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.motet(&["down"]).output();
    }
}

#[test]
fn session_begins_and_ends_once() {
    let session = Session::up("once");
    let (code, out, _) = finish(&mut session.motet(&["up"]));
    assert!(code == 0 && out.starts_with("session default is up already on host here"), "{out}");
    let (_, out, _) = finish(&mut session.motet(&["groups"]));
    assert!(out.contains("has no group") && out.contains("motet run --group"), "{out}");
    let (code, out, _) = finish(&mut session.motet(&["down"]));
    assert_eq!((code, out.as_str()), (0, "session default has ended: 0 programs, 0 groups\n"));
    assert!(!session.0.path().join("sessions/default").exists());
    assert!(refused(&mut session.motet(&["down"]), 3).contains("motet up"));
    assert!(refused(&mut session.motet(&["groups"]), 3).contains("motet up"));
}

#[test]
fn session_can_be_ended_from_within() {
    let session = Session::up("within");
    let script = "echo; $MOTET down; echo $?";
    let mut command = session.motet(&["run", "--", "sh", "-c", script]);
    command.env("MOTET", env!("CARGO_BIN_EXE_motet"));
    finish(&mut command); // the shell is a program of the session and ends as well
    let began = Instant::now();
    while session.0.path().join("sessions/default").exists() {
        assert!(began.elapsed() < Duration::from_secs(20), "the session does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn session_ends_and_begins_at_once() {
    let session = Session::up("again");
    for _ in 0..5 {
        assert_eq!(finish(&mut session.motet(&["down"])).0, 0);
        assert_eq!(finish(&mut session.motet(&["up"])).0, 0);
        assert_eq!(finish(&mut session.motet(&["groups"])).0, 0);
    }
}

#[test]
fn session_begun_twice_at_the_same_time_is_one() {
    let session = Session::new("twice");
    let start = || session.motet(&["--json", "up"]).stdout(Stdio::piped()).spawn().unwrap();
    let both = [start(), start()].map(|child| child.wait_with_output().unwrap());
    let pids = both.map(|output| {
        assert!(output.status.success());
        json(&String::from_utf8(output.stdout).unwrap())["session"]["gatekeeper"]["pid"].clone()
    });
    assert_eq!(pids[0], pids[1]);
}

#[test]
fn sessions_of_two_names_are_two() {
    let session = Session::up("names");
    let other = |arguments: &[&str]| {
        let mut command = session.motet(arguments);
        command.env("MOTET_SESSION", "other");
        command
    };
    assert_eq!(finish(&mut other(&["up"])).0, 0);
    assert!(finish(&mut other(&["down"])).1.starts_with("session other has ended"));
    assert!(finish(&mut session.motet(&["down"])).1.starts_with("session default has ended"));
    let mut wrong = session.motet(&["up"]);
    wrong.env("MOTET_SESSION", "../other");
    assert!(refused(&mut wrong, 2).contains("is no name of a session"));
}

#[test]
fn folder_too_deep_for_a_socket_is_named() {
    let session = Session::new("deep");
    let deep = session.0.path().join("d".repeat(100));
    let why = refused(session.motet(&["up"]).env("MOTET_SESSION_DIR", &deep), 1);
    assert!(why.contains("at most 107 bytes") && why.contains("shorter MOTET_SESSION_DIR"), "{why}");
    assert!(!deep.exists(), "nothing is left");
}

#[test]
fn session_in_an_etcd_is_found_again() {
    let session = Session::new("etcd");
    assert!(refused(&mut session.motet(&["up", "--directory", "localhost:2379"]), 2).contains("etcd://HOST:PORT"));
    let Some(mut server) = etcd::EtcdServer::start() else { return };
    let url = server.address("cli").url;
    server.kill();
    let why = refused(&mut session.motet(&["up", "--directory", &url]), 1);
    assert!(why.contains("the gatekeeper does not start") && why.contains(&url), "{why}");
    assert_eq!(std::fs::read_dir(session.0.path().join("sessions")).unwrap().count(), 0, "nothing is left");
    assert!(refused(&mut session.motet(&["groups"]), 3).contains("motet up"));
    server.start_again();
    assert_eq!(finish(&mut session.motet(&["up", "--directory", &url])).0, 0);
    let (mut program, _) = session.start(&["run", "--group", "fluid", "--", "sh", "-c", "echo; exec sleep 1000"], 1);
    session.kill_gatekeeper();
    let (_, out, err) = finish(&mut session.motet(&["groups"]));
    assert!(out.starts_with("fluid: 0 nodes in view 0, 1 program\n"), "{out}{err}");
    assert!(server.ctl(&["get", "", "--prefix", "--keys-only"]).unwrap().contains("/program/"));
    let (code, out, _) = finish(&mut session.motet(&["down"]));
    assert_eq!((code, out.as_str()), (0, "session default has ended: 1 program, 0 groups\n"));
    assert!(!program.wait().unwrap().success());
    assert_eq!(server.ctl(&["get", "", "--prefix", "--keys-only"]).unwrap(), "");
}

#[test]
fn group_has_ranks_and_ends_with_the_session() {
    let session = Session::up("group");
    let script = "echo $MOTET_GROUP $MOTET_GROUP_RANK/$MOTET_GROUP_SIZE; exec sleep 1000";
    let (mut group, lines) = session.start(&["run", "--group", "fluid", "-n", "3", "--", "sh", "-c", script], 3);
    assert_eq!(lines, ["fluid 0/3", "fluid 1/3", "fluid 2/3"]);
    let (mut single, _) = session.start(&["run", "--", "sh", "-c", "echo; sleep 1000 & wait; exit 1"], 1);
    let began = Instant::now();
    while session.programs().len() < 4 {
        assert!(began.elapsed() < Duration::from_secs(20), "a program is not registered");
    }
    let listed = json(&finish(&mut session.motet(&["--json", "groups", "fluid"])).1);
    let ranks: Vec<_> =
        listed[0]["programs"].as_array().unwrap().iter().map(|program| program["rank"].clone()).collect();
    assert_eq!(ranks, [0, 1, 2]);
    let (_, out, _) = finish(&mut session.motet(&["groups"]));
    assert!(out.starts_with("fluid: 0 nodes in view 0, 3 programs\n"), "{out}");
    let (_, out, _) = finish(&mut session.motet(&["down"]));
    assert_eq!(out, "session default has ended: 4 programs, 0 groups\n");
    assert!(!group.wait().unwrap().success() && !single.wait().unwrap().success());
}

#[test]
fn circuits_are_listed_under_their_group() {
    let session = Session::up("circuits");
    let paths = SessionPaths::within(&session.0.path().join("sessions"), "default").unwrap();
    let members: Vec<_> = (0..2)
        .map(|rank| {
            let node = std::sync::Arc::new(Node::open("").unwrap());
            let membership = Membership::attach_to(&node, &paths).unwrap();
            let group = membership.join("fluid", Some(rank)).unwrap();
            (group, membership)
        })
        .collect();
    let limit = Some(Duration::from_secs(60));
    let view = members[0].0.wait_for_members(2, limit).unwrap().number;
    let circuits: Vec<_> = members.iter().map(|(group, _)| group.open("halo", limit).unwrap()).collect();
    let expected = format!("circuit halo: number {}, view {view}, 2 members\n", circuits[0].number());
    let listed = || finish(&mut session.motet(&["groups", "fluid"])).1;
    let until = |what: &str, condition: &dyn Fn(&str) -> bool| {
        let began = Instant::now();
        while !condition(&listed()) {
            assert!(began.elapsed() < Duration::from_secs(60), "never {what}: {}", listed());
        }
    };
    until("listed", &|out| out.starts_with("fluid: 2 nodes in view ") && out.ends_with(&expected));
    let ranks = json(&finish(&mut session.motet(&["--json", "groups"])).1);
    let ranks = ranks[0]["circuits"][0]["members"].as_array().unwrap().clone();
    assert_eq!(ranks.iter().map(|member| member["rank"].clone()).collect::<Vec<_>>(), [0, 1]);
    // The gatekeeper that replaces a killed one lists it, too.
    session.kill_gatekeeper();
    until("listed again", &|out| out.ends_with(&expected));
    drop(circuits);
    members[0].0.leave().unwrap();
    until("closed", &|out| !out.contains("circuit"));
}

#[test]
fn group_ends_as_its_first_failed_rank() {
    let session = Session::up("fails");
    let script = "test $MOTET_GROUP_RANK != 1 || exit 7";
    let (code, _, err) = finish(&mut session.motet(&["run", "--group", "g", "-n", "3", "--", "sh", "-c", script]));
    assert_eq!((code, err.as_str()), (7, "motet: rank 1 of group g ended with exit status 7\n"));
    assert_eq!(finish(&mut session.motet(&["run", "--group", "g", "--", "true"])).0, 0);
    let (code, _, err) = finish(&mut session.motet(&["run", "--group", "g", "--", "sh", "-c", "kill -9 $$"]));
    assert_eq!((code, err.as_str()), (-9, "motet: rank 0 of group g ended with signal 9\n"));
}

#[test]
fn group_ends_as_its_rank_also_if_it_cannot_say_so() {
    let session = Session::up("lost");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ranks = ["run", "--group", "lost", "-n", "2", "--", "sh", "-c", "exit $((MOTET_GROUP_RANK * 3))"];
    let status = session.motet(&ranks).stdout(Stdio::null()).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(3));
}

#[test]
fn terminated_group_ends() {
    let session = Session::up("terminated");
    let (mut group, _) =
        session.start(&["run", "--group", "g", "-n", "2", "--", "sh", "-c", "echo; exec sleep 1000"], 2);
    kill_process(Pid::from_child(&group), Signal::TERM).unwrap();
    assert!(!group.wait().unwrap().success());
    let began = Instant::now();
    while json(&finish(&mut session.motet(&["--json", "groups"])).1) != serde_json::json!([]) {
        assert!(began.elapsed() < Duration::from_secs(10), "programs that have ended are listed");
    }
}

/// A script that holds a lock by a descriptor, as cron jobs do, has let it go when it has ended.
#[test]
fn gatekeeper_keeps_no_descriptor_of_what_has_started_it() {
    let session = Session::new("descriptors");
    let lock = session.0.file("lock", "", 0o600);
    let script = "exec 9<lock; flock -n 9 && $MOTET up >/dev/null && echo held";
    let mut shell = Command::new("sh");
    let settings = session.motet(&[]);
    for (name, value) in settings.get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    shell.args(["-c", script]).current_dir(session.0.path()).env("MOTET", env!("CARGO_BIN_EXE_motet"));
    assert_eq!(finish(&mut shell).1, "held\n");
    let lock = std::fs::File::open(lock).unwrap();
    lock.try_lock().expect("it is free");
    assert!(finish(&mut session.motet(&["groups"])).1.contains("has no group"), "the gatekeeper runs");
}

#[test]
fn killed_gatekeeper_is_started_again() {
    let session = Session::up("killed");
    let (mut group, _) = session.start(&["run", "--group", "g", "--", "sh", "-c", "echo; exec sleep 1000"], 1);
    let first = session.kill_gatekeeper();
    let (_, out, _) = finish(&mut session.motet(&["groups"]));
    assert!(out.starts_with("g: 0 nodes in view 0, 1 program\n"), "the program is still known: {out}");
    assert_ne!(session.gatekeeper(), first);
    let about = json(&finish(&mut session.motet(&["--json", "up"])).1);
    assert_eq!(about["session"]["host"], "here", "the host keeps its name");
    finish(&mut session.motet(&["down"]));
    assert!(!group.wait().unwrap().success());
}

#[test]
fn program_does_not_wait_for_a_gatekeeper_that_is_stopped() {
    let session = Session::up("stopped");
    let gatekeeper = session.gatekeeper();
    kill_process(gatekeeper, Signal::STOP).unwrap();
    let began = Instant::now();
    assert_eq!(finish(&mut session.motet(&["run", "--", "true"])).0, 0);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    kill_process(gatekeeper, Signal::CONT).unwrap();
}

#[test]
fn program_is_registered_without_an_answer_until_it_ends() {
    let session = Session::up("registered");
    let listed = |command: &str| {
        let wanted = serde_json::json!(command);
        session.programs().iter().filter(|program| program["command"][2] == wanted).cloned().collect::<Vec<_>>()
    };
    let gatekeeper = session.gatekeeper();
    // The gatekeeper reads the registration of this one after its end.
    kill_process(gatekeeper, Signal::STOP).unwrap();
    assert_eq!(finish(&mut session.motet(&["run", "--", "sh", "-c", "exit 0"])).0, 0);
    let script = "echo $MOTET_SESSION_ID; exec sleep 1000";
    let (mut program, lines) = session.start(&["run", "--", "sh", "-c", script], 1);
    assert_eq!(lines[0].len(), 32, "it carries the session's identity");
    kill_process(gatekeeper, Signal::CONT).unwrap();
    let began = Instant::now();
    while listed(script).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "the program is not registered");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(listed(script)[0]["process"]["pid"], program.id());
    assert_eq!(listed("exit 0").len(), 0, "one that has ended is not registered");
    program.kill().unwrap();
    program.wait().unwrap();
    while !listed(script).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(40), "the program has ended and is listed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn registrations_of_other_processes_are_not_taken() {
    use std::io::Write;
    let session = Session::up("foreign");
    let socket = session.0.path().join("sessions/default/programs.sock");
    let process = motet_session::process::Process::of(session.gatekeeper().as_raw_nonzero().get() as u32).unwrap();
    let other = serde_json::json!({ "process": process, "command": ["other"] }).to_string();
    let own = motet_session::process::Process::this();
    let wrong_time = serde_json::json!({ "process": { "pid": own.pid, "started": own.started + 1 }, "command": [] });
    let in_group = serde_json::json!({ "process": own, "command": ["g"], "group": "g", "rank": 0 });
    let long = " ".repeat(70_000) + &serde_json::json!({ "process": own, "command": ["long"] }).to_string();
    for text in [&other[..], &wrong_time.to_string(), &in_group.to_string(), "", "nonsense", &long] {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let _ = stream.write_all(text.as_bytes()); // one that is too long is cut off
    }
    // The right one is a process of its own, because the end of the session ends it.
    let script = "import json, os, socket, sys\n\
                  started = int(open('/proc/self/stat').read().rsplit(')', 1)[1].split()[19])\n\
                  line = {'process': {'pid': os.getpid(), 'started': started}, 'command': ['right']}\n\
                  with socket.socket(socket.AF_UNIX) as s: s.connect(sys.argv[1]); s.sendall(json.dumps(line).encode())\n\
                  sys.stdin.read()";
    let mut right = Command::new("python3").args(["-c", script]).arg(&socket).stdin(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while session.programs().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(20), "the right one is not registered");
    }
    let programs = session.programs();
    assert!(programs.len() == 1 && programs[0]["command"][0] == "right", "{programs:?}");
    assert_eq!(programs[0]["process"]["pid"], right.id());
    finish(&mut session.motet(&["down"]));
    assert!(!right.wait().unwrap().success(), "it has ended with the session");
}

#[test]
fn wrong_calls_are_refused_in_one_line() {
    let session = Session::new("wrong");
    assert!(refused(&mut session.motet(&["run", "--group", "g", "--", "true"]), 3).contains("motet up"));
    assert!(refused(&mut session.motet(&["run", "--group", "a/b", "--", "true"]), 2).contains("is no name of a group"));
    refused(&mut session.motet(&["run", "-n", "2", "--", "true"]), 2);
    refused(&mut session.motet(&["run", "--group", "g", "-n", "0", "--", "true"]), 2);
    assert!(refused(&mut session.motet(&["up", "--host", "a b"]), 2).contains("is no name of a host"));
    refused(&mut session.motet(&["up", "--listen", "nonsense"]), 2);
    assert!(refused(&mut session.motet(&["up", "--listen", "192.0.2.1:1"]), 1).contains("cannot listen"));
    assert!(refused(&mut session.motet(&["groups"]), 3).contains("motet up"), "the session is not up");
    let open = session.0.path().join("sessions");
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert!(refused(&mut session.motet(&["up"]), 1).contains("others may enter"));
}

#[test]
fn key_is_in_no_command_line_and_no_log() {
    let session = Session::up("key");
    let folder = session.0.path().join("sessions/default");
    let key = std::fs::read_to_string(folder.join("key")).unwrap();
    assert_eq!(key.len(), 64);
    let pid = session.gatekeeper();
    for place in [
        format!("/proc/{pid}/cmdline"),
        format!("/proc/{pid}/environ"),
        folder.join("gatekeeper.log").display().to_string(),
    ] {
        assert!(!String::from_utf8_lossy(&std::fs::read(&place).unwrap()).contains(&key), "{place}");
    }
}
