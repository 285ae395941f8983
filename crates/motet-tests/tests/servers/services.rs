//! Servers that start other programs on accepted connections: git, rsync, xinetd, socat, sudo, Python, Ruby.
//!
//! Each runs without and with Motet, server and clients. Every digest of received data and every exit status is compared, and no process of a server
//! may be left after its end.
//!
//! Where a dialogue precedes the hand-over, gates are kept open (`both_ways_open`): the connection is upgraded, and bytes are unread in rings at the
//! hand-over. How many is not checked. A connection in another program image stays on TCP; one that is handed over at once is not upgraded.

use motet_tests::programs::{Counters, Exclusive, Sandbox, Started};
use motet_tests::programs::{both_ways, both_ways_open, find, free_port, services, skip, source};
use std::process::Command;
use std::time::{Duration, Instant};

const TERM: i32 = 15;
const INT: i32 = 2;
/// Records of a dialogue; a few suffice for the upgrade.
const ROUNDS: &str = "300";
const SIZES: [&str; 4] = ["1", "100", "65537", "8388608"];

/// Runs `tests/programs/services.py` with a command.
fn check(sandbox: &Sandbox, words: &[&str]) -> String {
    let script = source(sandbox, "services.py");
    sandbox.run(&[&["python3", &script], words].concat())
}

/// Processes of a process group, without zombies.
fn left(group: u32) -> Vec<String> {
    let listed = Command::new("ps").args(["-eo", "pgid=,stat=,args="]).output().expect("ps");
    let mine = |line: &&str| {
        let mut words = line.split_whitespace();
        words.next() == Some(&group.to_string()) && words.next().is_some_and(|state| !state.starts_with('Z'))
    };
    String::from_utf8_lossy(&listed.stdout).lines().filter(mine).map(str::to_owned).collect()
}

/// Ends a server by a signal; its processes must exit by themselves.
#[track_caller]
fn stop(server: Started, signal: i32) {
    let group = server.pid();
    server.stop(signal);
    let began = Instant::now();
    while !left(group).is_empty() {
        assert!(began.elapsed() < Duration::from_secs(30), "left behind: {:#?}", left(group));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
fn found_each_other(counters: Option<Counters>, streams: u64) {
    if let Some(counters) = counters {
        counters.went_over_shared_memory(streams);
    }
}

// ---- git -------------------------------------------------------------------------------------------------------------

const GIT: [&str; 3] = ["git", "socat", "python3"];

/// Makes a repository of 20 MB, whose commit is the same in every run.
fn repository(sandbox: &Sandbox) -> String {
    let work = sandbox.path("work");
    check(sandbox, &["tree", &work, "20000000"]);
    let git = |words: &[&str]| {
        let own = [
            "git",
            "-C",
            &work,
            "-c",
            "core.compression=0",
            "-c",
            "user.name=tester",
            "-c",
            "user.email=tester@localhost",
        ];
        sandbox.start_with(&[&own, words].concat(), &GIT_DATES).finish()
    };
    git(&["init", "-q", "-b", "main"]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "all"]);
    sandbox.run(&["git", "clone", "-q", "--bare", &work, &sandbox.path("served/all.git")]);
    git(&["rev-parse", "HEAD"])
}

const GIT_DATES: [(&str, &str); 2] =
    [("GIT_AUTHOR_DATE", "2020-01-01T00:00:00Z"), ("GIT_COMMITTER_DATE", "2020-01-01T00:00:00Z")];

/// Clones, which checks every object, and pushes a branch with as much data again.
fn clones_and_pushes(sandbox: &Sandbox, port: u16, name: &str) -> String {
    let (url, clone) = (format!("git://127.0.0.1:{port}/all.git"), sandbox.path(name));
    sandbox.run(&["git", "clone", "-q", &url, &clone]);
    let git = |words: &[&str]| {
        let own = [
            "git",
            "-C",
            &clone,
            "-c",
            "core.compression=0",
            "-c",
            "user.name=tester",
            "-c",
            "user.email=tester@localhost",
        ];
        sandbox.start_with(&[&own, words].concat(), &GIT_DATES).finish()
    };
    let head = git(&["rev-parse", "HEAD"]);
    git(&["fsck", "--strict"]);
    let more = format!("{clone}/more-{name}");
    sandbox.run(&["cp", "-r", &sandbox.path("work/d1"), &more]);
    let odd = "for f in \"$0\"/*; do echo \"$1\" >> \"$f\"; done";
    sandbox.run(&["sh", "-c", odd, &more, name]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", name]);
    git(&["push", "-q", "origin", &format!("HEAD:refs/heads/{name}")]);
    let sent = git(&["rev-parse", "HEAD"]);
    let there =
        sandbox.run(&["git", "--git-dir", &sandbox.path("served/all.git"), "rev-parse", &format!("refs/heads/{name}")]);
    assert_eq!(sent, there);
    sandbox.run(&["git", "--git-dir", &sandbox.path("served/all.git"), "fsck", "--strict"]);
    head + &there
}

#[test]
fn git_daemon_serves_clones_and_takes_pushes() {
    // The daemon's children are other program images from their first byte on, so their connections are not upgraded.
    both_ways("git_daemon_serves_clones_and_takes_pushes", &GIT, |sandbox| {
        let mut output = repository(sandbox);
        let base = format!("--base-path={}", sandbox.path("served"));
        let options = ["--export-all", "--enable=receive-pack", &base];
        let port = free_port();
        let at = ["--listen=127.0.0.1", &format!("--port={port}")];
        let server = sandbox.start(&[&["git", "daemon", "--reuseaddr"], &at[..], &options[..]].concat()).listens(port);
        output += &clones_and_pushes(sandbox, port, "daemon");
        stop(server, TERM);
        for (name, more) in [("between", ""), ("itself", ",nofork")] {
            let port = free_port();
            let program = format!("EXEC:git daemon --inetd {}{more}", options.join(" "));
            let server = sandbox.start(&["socat", &listening(port), &program]).listens(port);
            output += &clones_and_pushes(sandbox, port, name);
            stop(server, TERM);
        }
        output
    });
}

// ---- rsync -----------------------------------------------------------------------------------------------------------

#[test]
fn rsync_copies_a_tree_both_ways() {
    both_ways("rsync_copies_a_tree_both_ways", &["rsync", "python3"], |sandbox| {
        let (folder, port) = (sandbox.path(""), free_port());
        let (tree, back) = (sandbox.path("tree"), sandbox.path("back"));
        check(sandbox, &["tree", &tree, "50000000"]);
        sandbox.run(&["mkdir", &sandbox.path("module")]);
        let configuration = sandbox.file("rsyncd.conf", services::rsync(&folder, "module", port));
        let server = sandbox.start(&["rsync", "--daemon", "--no-detach", "--config", &configuration]).listens(port);
        let url = format!("rsync://127.0.0.1:{port}/module/");
        sandbox.run(&["rsync", "-a", &format!("{tree}/"), &url]);
        sandbox.run(&["rsync", "-a", &url, &format!("{back}/")]);
        let output = [&tree, &sandbox.path("module"), &back].map(|f| check(sandbox, &["sum", f]));
        assert!(output[0] == output[1] && output[1] == output[2], "{output:?}");
        // Once more, by checksums, with a file changed in the middle: both sides send at the same time.
        let change = format!("{tree}/d1/f8");
        sandbox.run(&["sh", "-c", "printf other | dd of=\"$0\" bs=1 seek=2000000 conv=notrunc 2>/dev/null", &change]);
        sandbox.run(&["rsync", "-ac", "--no-whole-file", &format!("{tree}/"), &url]);
        let changed = [&tree, &sandbox.path("module")].map(|f| check(sandbox, &["sum", f]));
        assert!(changed[0] == changed[1] && changed[0] != output[0], "{changed:?}");
        stop(server, TERM);
        output.concat() + &changed.concat()
    });
}

// ---- super-servers ---------------------------------------------------------------------------------------------------

fn listening(port: u16) -> String {
    format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork")
}

/// The program gets the connection before its first byte.
fn pipes(sandbox: &Sandbox, port: u16, what: &str) -> String {
    let port = port.to_string();
    check(sandbox, &[&["pipe", &port, what], &SIZES[..]].concat())
}

#[test]
fn socat_hands_connections_to_programs() {
    both_ways("socat_hands_connections_to_programs", &["socat", "python3"], |sandbox| {
        let mut output = String::new();
        let programs = [
            ("EXEC:cat", "echo"),
            ("EXEC:cat,nofork", "echo"),
            ("EXEC:sha256sum", "digest"),
            ("EXEC:sha256sum,nofork", "digest"),
            ("SYSTEM:cat | sha256sum", "digest"),
            ("EXEC:sh shell,nofork", "digest"),
        ];
        sandbox.file("shell", "cat | sha256sum\n");
        for (program, what) in programs {
            let port = free_port();
            // -t: how long data in transit may take after one side has ended.
            let server = sandbox.start(&["socat", "-t", "30", &listening(port), program]).listens(port);
            output += &format!("{program} {}", pipes(sandbox, port, what));
            stop(server, TERM);
        }
        output
    });
}

#[test]
fn xinetd_hands_connections_to_programs() {
    both_ways("xinetd_hands_connections_to_programs", &["xinetd", "python3"], |sandbox| {
        let (folder, user) = (sandbox.path(""), sandbox.run(&["id", "-un"]));
        let mut output = String::new();
        let shell = sandbox.file("shell", "cat | sha256sum\n");
        for (program, argument, what) in [("cat", "-", "echo"), ("sha256sum", "-", "digest"), ("sh", &*shell, "digest")]
        {
            let port = free_port();
            let program = find(program).expect("coreutils").to_string_lossy().into_owned();
            let text = services::xinetd(&folder, port, user.trim(), &program, argument);
            let configuration = sandbox.file("xinetd.conf", text);
            let (pid, log) = (sandbox.path("xinetd.pid"), sandbox.path("xinetd.log"));
            let words = ["xinetd", "-dontfork", "-f", &configuration, "-pidfile", &pid, "-filelog", &log];
            let server = sandbox.start(&words).listens(port);
            output += &format!("{program} {}", pipes(sandbox, port, what));
            stop(server, TERM);
        }
        output
    });
}

// ---- languages -------------------------------------------------------------------------------------------------------

/// A dialogue; then another program or thread handles the rest.
fn talks(sandbox: &Sandbox, port: u16, whats: &[&str]) -> String {
    let port = port.to_string();
    whats.iter().map(|what| check(sandbox, &[&["talk", &port, what, ROUNDS], &SIZES[..]].concat())).collect()
}

fn python(test: &str, kind: &str, whats: &[&str], streams: u64) {
    let counters = both_ways_open(test, &["python3"], Exclusive::WithMotet, |sandbox| {
        let (script, port) = (source(sandbox, "services.py"), free_port());
        let server = sandbox.start(&["python3", &script, "serve", kind, &port.to_string()]).says("ready");
        let output = talks(sandbox, port, whats);
        stop(server, TERM);
        output
    });
    found_each_other(counters, streams);
}

#[test]
fn python_serves_each_connection_in_a_forked_process() {
    python("python_serves_each_connection_in_a_forked_process", "forking", &["echo", "digest"], 8);
}

#[test]
fn python_serves_each_connection_in_a_thread() {
    python("python_serves_each_connection_in_a_thread", "threading", &["echo", "digest"], 8);
}

#[test]
fn python_hands_a_connection_over_after_a_dialogue() {
    python("python_hands_a_connection_over_after_a_dialogue", "subprocess", &["echo", "digest", "shell"], 12);
}

#[test]
fn ruby_hands_a_connection_over_after_a_dialogue() {
    let test = "ruby_hands_a_connection_over_after_a_dialogue";
    let counters = both_ways_open(test, &["ruby", "python3"], Exclusive::WithMotet, |sandbox| {
        let (script, port) = (source(sandbox, "services.rb"), free_port());
        let server = sandbox.start(&["ruby", &script, &port.to_string()]).says("ready");
        let output = talks(sandbox, port, &["echo", "digest", "shell"]);
        stop(server, INT);
        output
    });
    found_each_other(counters, 12);
}

#[test]
fn sudo_hands_a_connection_to_another_user() {
    let test = "sudo_hands_a_connection_to_another_user";
    if !motet_tests::programs::is_root() {
        skip::<()>(test, "only root may become another user without a password");
        return;
    }
    let counters = both_ways_open(test, &["sudo", "python3"], Exclusive::WithMotet, |sandbox| {
        let (script, port) = (source(sandbox, "services.py"), free_port());
        let words = ["python3", &script, "serve", "sudo", &port.to_string()];
        let server = sandbox.start_as_root(&words).says("ready");
        let whats = ["echo", "digest", "shell"];
        let port = port.to_string();
        let talk = |what: &&str| {
            let words = [&["python3", &script, "talk", &port, what, ROUNDS], &SIZES[..]].concat();
            sandbox.start_as_root(&words).finish()
        };
        let output = whats.iter().map(talk).collect();
        stop(server, TERM);
        output
    });
    found_each_other(counters, 12);
}
