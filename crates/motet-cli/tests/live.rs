//! `ps`, `why` and `top` with the real libraries, on two processes that exchange bytes. Needs a whole build and Python; prints
//! SKIPPED and passes where either is missing.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::{Folder, finish, json, motet};

const PAIR: &str = r#"
import os, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
had, has = os.pipe()
child = os.fork()
stream = socket.create_connection(listener.getsockname()) if child == 0 else listener.accept()[0]
for _ in range(200):
    if child == 0:
        stream.sendall(b"x" * 500)
        stream.recv(500, socket.MSG_WAITALL)
    else:
        stream.sendall(stream.recv(500, socket.MSG_WAITALL))
if child == 0:
    os.write(has, b"x")
    stream.recv(1)
else:
    os.read(had, 1)  # the last bytes have come
    print(os.getpid(), child, listener.getsockname()[1], flush=True)
    sys.stdin.readline()
    stream.sendall(b"x")
    os.wait()
"#;

/// Two processes that have exchanged bytes, and wait for a line of input.
struct Pair {
    server: Child,
    pids: [u64; 2],
    port: u16,
}

impl Pair {
    fn start(libraries: &std::path::Path, options: &[&str]) -> Option<Self> {
        Command::new("python3").arg("--version").output().ok()?;
        let mut command = motet(["run"]);
        command.args(options).args(["--", "python3", "-c", PAIR]).env("MOTET_LIBDIR", libraries);
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let numbers: Vec<u64> = line.split_whitespace().map(|n| n.parse().unwrap()).collect();
        Some(Self { server, pids: [numbers[0], numbers[1]], port: numbers[2] as u16 })
    }

    fn end(mut self) {
        self.server.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(self.server.wait().unwrap().success());
    }
}

/// The folder of a whole build: beside this test's own program, or the release one.
fn libraries() -> Option<PathBuf> {
    let own = PathBuf::from(env!("CARGO_BIN_EXE_motet")).parent()?.to_owned();
    let folders = [own.join("../release"), own];
    folders.into_iter().find(|f| f.join("libmotet_sockets.so").is_file() && f.join("libmotet.so").is_file())
}

fn pair(options: &[&str]) -> Option<Pair> {
    let pair = libraries().and_then(|folder| Pair::start(&folder, options));
    if pair.is_none() {
        eprintln!("SKIPPED: needs libmotet.so, libmotet_sockets.so (make build) and python3");
    }
    pair
}

fn processes(arguments: &[&str]) -> Vec<serde_json::Value> {
    let (code, out, err) = finish(&mut motet(arguments));
    assert_eq!(code, 0, "{err}");
    json(&out)["processes"].as_array().unwrap().clone()
}

#[test]
fn both_ends_are_seen_on_shared_memory() {
    // With gates that stay open, so that most bytes take the ring: the path is that of the bytes.
    let Some(pair) = pair(&["--set", "patience=300ms"]) else { return };
    let listed = processes(&["ps", "--json"]);
    for (own, peer) in [(pair.pids[0], pair.pids[1]), (pair.pids[1], pair.pids[0])] {
        let process = listed.iter().find(|p| p["pid"] == own).expect("listed");
        let stream = &process["streams"][0];
        assert_eq!((process["status"].as_str(), stream["path"].as_str()), (Some("active"), Some("shm")), "{process}");
        assert_eq!((stream["peer_pid"].as_u64(), stream["state"].as_str()), (Some(peer), Some("upgraded")));
        let moved = |way: &str| stream[way]["fast"].as_u64().unwrap() + stream[way]["tcp"].as_u64().unwrap();
        assert_eq!((moved("sent"), moved("received")), (100_000, 100_000), "{stream}");
        let links = process["links"].as_array().unwrap();
        let count = |what: &str| links[0][what].as_u64().unwrap();
        assert_eq!((links.len(), count("peer_pid"), count("streams"), count("segments")), (1, peer, 1, 1), "{links:?}");
        assert!(count("bytes") > 2 * 65536, "two rings at least: {links:?}");
        let node = &process["node"];
        assert_eq!((node["links_opened"].as_u64(), node["links_closed"].as_u64()), (Some(1), Some(0)), "{node}");
    }
    let port = format!(":{}", pair.port);
    for subject in [pair.pids[0].to_string(), port] {
        let (code, out, _) = finish(&mut motet(["why", &subject]));
        assert!(code == 0 && out.contains("in use    shm") && out.contains("rejected  tcp"), "{out}");
    }
    let long = finish(&mut motet(["ps", "-l"])).1;
    assert!(long.contains("upgraded") && long.contains("LINK TO"), "{long}");
    assert!(finish(&mut motet(["top", "--once", "-i", "0.05"])).1.contains("python3"));
    pair.end();
}

/// An upgraded stream may use TCP: without spins few bytes find an open ring, depending on the scheduler. The path follows the counters
/// in each case.
#[test]
fn path_shown_is_where_the_bytes_went() {
    for options in [["--set", "spin=0"], ["--set", "patience=300ms"]] {
        let Some(pair) = pair(&options) else { return };
        let listed = processes(&["ps", "--json"]);
        for own in pair.pids {
            let process = listed.iter().find(|p| p["pid"] == own).expect("listed");
            let stream = &process["streams"][0];
            let moved =
                |path: &str| ["sent", "received"].map(|way| stream[way][path].as_u64().unwrap()).iter().sum::<u64>();
            let fast = stream["state"] == "upgraded" && moved("fast") >= moved("tcp");
            assert_eq!(stream["path"], if fast { "shm" } else { "tcp" }, "{stream}");
            assert_eq!(stream["reason_text"] == "the fastest path there is", fast, "{stream}");
            let said = finish(&mut motet(["why", &own.to_string()])).1;
            assert!(said.contains(if fast { "in use    shm" } else { "in use    tcp" }), "{said}");
        }
        pair.end();
    }
}

#[test]
fn forbidden_driver_is_the_reason() {
    let Some(pair) = pair(&["--on", "tcp"]) else { return };
    let own = pair.pids[0].to_string();
    let listed = processes(&["why", &own, "--json"]);
    let drivers = &listed[0]["pairs"][0]["drivers"];
    assert_eq!(
        (drivers[0]["driver"].as_str(), drivers[0]["in_use"].as_bool()),
        (Some("tcp"), Some(true)),
        "{listed:?}"
    );
    assert!(drivers[1]["reason"].as_str().unwrap().contains("MOTET_DRIVERS"), "{listed:?}");
    pair.end();
}

#[test]
fn process_without_a_socket_is_listed_as_such() {
    let Some(folder) = libraries() else {
        eprintln!("SKIPPED: needs libmotet.so and libmotet_sockets.so (make build)");
        return;
    };
    let mut command = motet(["run", "--", "sleep", "60"]);
    let mut child = command.env("MOTET_LIBDIR", folder).spawn().unwrap();
    let own = child.id();
    // It is there from exec on; the preload object is mapped a moment later.
    let status = |listed: &[serde_json::Value]| listed.iter().find(|p| p["pid"] == own).map(|p| p["status"].clone());
    let mut seen = status(&processes(&["ps", "--json"]));
    for _ in 0..2000 {
        if seen.as_ref().is_some_and(|s| s == "no_socket_yet") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        seen = status(&processes(&["ps", "--json"]));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(seen.unwrap(), "no_socket_yet");
}

#[test]
fn static_program_under_motet_is_explained() {
    let Some(libraries) = libraries() else {
        eprintln!("SKIPPED: needs libmotet.so and libmotet_sockets.so (make build)");
        return;
    };
    let folder = Folder::new("live-static");
    let program = folder.compile(
        "waits",
        "#include <unistd.h>\nint main(void) { char c; return read(0, &c, 1) != 0; }",
        &["-static"],
    );
    let mut command = motet(["run", "--"]);
    let mut child = command.arg(program).env("MOTET_LIBDIR", libraries).stdin(Stdio::piped()).spawn().unwrap();
    let own = child.id().to_string();
    let explained = || finish(&mut motet(["why", &own])).1;
    let mut said = explained();
    // `motet run` has the program's name among its arguments until it becomes the program.
    for _ in 0..2000 {
        if said.contains("statically linked") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        said = explained();
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(said.contains("statically linked"), "{said}");
}

#[test]
fn program_under_a_seccomp_filter_is_explained() {
    let Some(libraries) = libraries() else {
        eprintln!("SKIPPED: needs libmotet.so and libmotet_sockets.so (make build)");
        return;
    };
    let folder = Folder::new("live-seccomp");
    let source = r#"
        #include <linux/filter.h>
        #include <linux/seccomp.h>
        #include <sys/prctl.h>
        #include <unistd.h>
        int main(int count, char **arguments)
        {
            struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
            struct sock_fprog filter = {1, &allow};
            if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 77;
            return count > 1 ? execv(arguments[1], arguments + 1) : 1;
        }"#;
    let confine = folder.compile("confine", source, &[]);
    let mut command = motet(["run", "--"]);
    command.arg(confine).args(["/bin/cat"]).env("MOTET_LIBDIR", libraries).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let own = child.id().to_string();
    let explained = || finish(&mut motet(["why", &own])).1;
    let mut said = explained();
    for _ in 0..2000 {
        if said.contains("it runs under") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        said = explained();
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert!(said.contains("it runs under a seccomp filter"), "{said}");
}

/// The lines of an event.
fn logged(text: &str, event: &str) -> Vec<String> {
    text.lines().filter(|l| l.contains(&format!(" event={event} "))).map(String::from).collect()
}

#[test]
fn log_has_the_events_of_each_stream() {
    let folder = Folder::new("live-log");
    let one = folder.path().join("log");
    let Some(pair) = pair(&["--log", one.to_str().unwrap()]) else { return };
    let pids = pair.pids;
    let port = pair.port;
    pair.end();
    let text = std::fs::read_to_string(&one).unwrap();
    for (own, peer) in [(pids[0], pids[1]), (pids[1], pids[0])] {
        let of_own = |event: &str| {
            let lines = logged(&text, event);
            lines.into_iter().filter(|l| l.contains(&format!(" pid={own} "))).collect::<Vec<_>>()
        };
        let attached = of_own("attached");
        assert_eq!(attached.len(), 1, "{text}");
        assert!(attached[0].ends_with(&format!(" peer_pid={peer} driver=shm")), "{text}");
        assert!(attached[0].contains(&format!("=127.0.0.1:{port} ")) && attached[0].contains("Z mono="), "{text}");
        let ended = [of_own("closed"), of_own("exit")].concat();
        assert!(ended.iter().any(|l| l.contains(" sent_fast=") && l.contains(" spilled=0 ")), "{text}");
    }
    assert!(!logged(&text, "start").is_empty() && text.lines().all(|l| l.contains(" event=")), "{text}");
}

#[test]
fn log_has_the_reason_of_a_stream_on_tcp() {
    let folder = Folder::new("live-log-tcp");
    let each = folder.path().join("log.%p");
    let Some(pair) = pair(&["--on", "tcp", "--log", each.to_str().unwrap()]) else { return };
    let pids = pair.pids;
    pair.end();
    for pid in pids {
        let text = std::fs::read_to_string(folder.path().join(format!("log.{pid}"))).unwrap();
        let stayed = logged(&text, "tcp_only");
        assert!(stayed.len() == 1 && stayed[0].contains(" reason=6 text=\"the driver is switched off"), "{text}");
        assert!(logged(&text, "attached").is_empty() && !text.contains(" reason=0 "), "{text}");
    }
}

#[test]
fn log_that_cannot_be_written_is_ignored() {
    let Some(pair) = pair(&["--log", "/proc/no/such/log"]) else { return };
    let listed = processes(&["ps", "--json"]);
    let process = listed.iter().find(|p| p["pid"] == pair.pids[0]).expect("listed");
    assert_eq!(process["streams"][0]["path"].as_str(), Some("shm"), "{process}");
    pair.end();
}
