//! Servers that start other programs on the connections that they accept: git, rsync, xinetd, socat, sudo, Python, Ruby.
//!
//! Each runs without and with Motet, server and clients. Certain, and compared: every digest of what came back, every exit status, and that no
//! process of a server is left when it has ended. Where one process begins with a dialogue, gates are kept open (`both_ways_open`), so the wire comes
//! up and carries some of it, and bytes are unread in rings when the connection is handed on. Not claimed: how much. A connection that another
//! program image gets stays on TCP from then on; where it is handed on at once no wire is expected.

use motet_tests::programs::{Alone, Counters, Stage, Started};
use motet_tests::programs::{both_ways, both_ways_open, find, free_port, services, skip, source};
use std::process::Command;
use std::time::{Duration, Instant};

const TERM: i32 = 15;
const INT: i32 = 2;
/// Records of a dialogue, of which a few suffice for both ends to find each other.
const ROUNDS: &str = "300";
const SIZES: [&str; 4] = ["1", "100", "65537", "8388608"];

/// The programs' own script with a verb.
fn check(stage: &Stage, words: &[&str]) -> String {
    let script = source(stage, "services.py");
    stage.run(&[&["python3", &script], words].concat())
}

/// Processes of the group that `started` leads, but those that have ended.
fn left(group: u32) -> Vec<String> {
    let listed = Command::new("ps").args(["-eo", "pgid=,stat=,args="]).output().expect("ps");
    let mine = |line: &&str| {
        let mut words = line.split_whitespace();
        words.next() == Some(&group.to_string()) && words.next().is_some_and(|state| !state.starts_with('Z'))
    };
    String::from_utf8_lossy(&listed.stdout).lines().filter(mine).map(str::to_owned).collect()
}

/// Ends a server with a signal; what it started must end by itself.
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

/// A repository of 20 MB, whose commit is the same in every run.
fn repository(stage: &Stage) -> String {
    let work = stage.path("work");
    check(stage, &["tree", &work, "20000000"]);
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
        stage.start_with(&[&own, words].concat(), &DATES).finish()
    };
    git(&["init", "-q", "-b", "main"]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "all"]);
    stage.run(&["git", "clone", "-q", "--bare", &work, &stage.path("served/all.git")]);
    git(&["rev-parse", "HEAD"])
}

const DATES: [(&str, &str); 2] =
    [("GIT_AUTHOR_DATE", "2020-01-01T00:00:00Z"), ("GIT_COMMITTER_DATE", "2020-01-01T00:00:00Z")];

/// Clones, which checks every object, and sends a branch with as much again.
fn clones_and_pushes(stage: &Stage, port: u16, name: &str) -> String {
    let (url, clone) = (format!("git://127.0.0.1:{port}/all.git"), stage.path(name));
    stage.run(&["git", "clone", "-q", &url, &clone]);
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
        stage.start_with(&[&own, words].concat(), &DATES).finish()
    };
    let head = git(&["rev-parse", "HEAD"]);
    git(&["fsck", "--strict"]);
    let more = format!("{clone}/more-{name}");
    stage.run(&["cp", "-r", &stage.path("work/d1"), &more]);
    let odd = "for f in \"$0\"/*; do echo \"$1\" >> \"$f\"; done";
    stage.run(&["sh", "-c", odd, &more, name]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", name]);
    git(&["push", "-q", "origin", &format!("HEAD:refs/heads/{name}")]);
    let sent = git(&["rev-parse", "HEAD"]);
    let there =
        stage.run(&["git", "--git-dir", &stage.path("served/all.git"), "rev-parse", &format!("refs/heads/{name}")]);
    assert_eq!(sent, there);
    stage.run(&["git", "--git-dir", &stage.path("served/all.git"), "fsck", "--strict"]);
    head + &there
}

#[test]
fn git_daemon_serves_clones_and_takes_pushes() {
    // The daemon's children are other images from their first byte on: no wire comes up.
    both_ways("git_daemon_serves_clones_and_takes_pushes", &GIT, |stage| {
        let mut told = repository(stage);
        let base = format!("--base-path={}", stage.path("served"));
        let options = ["--export-all", "--enable=receive-pack", &base];
        let port = free_port();
        let at = ["--listen=127.0.0.1", &format!("--port={port}")];
        let server = stage.start(&[&["git", "daemon", "--reuseaddr"], &at[..], &options[..]].concat()).listens(port);
        told += &clones_and_pushes(stage, port, "daemon");
        stop(server, TERM);
        for (name, more) in [("between", ""), ("itself", ",nofork")] {
            let port = free_port();
            let program = format!("EXEC:git daemon --inetd {}{more}", options.join(" "));
            let server = stage.start(&["socat", &listening(port), &program]).listens(port);
            told += &clones_and_pushes(stage, port, name);
            stop(server, TERM);
        }
        told
    });
}

// ---- rsync -----------------------------------------------------------------------------------------------------------

#[test]
fn rsync_carries_a_tree_there_and_back() {
    both_ways("rsync_carries_a_tree_there_and_back", &["rsync", "python3"], |stage| {
        let (folder, port) = (stage.path(""), free_port());
        let (tree, back) = (stage.path("tree"), stage.path("back"));
        check(stage, &["tree", &tree, "50000000"]);
        stage.run(&["mkdir", &stage.path("module")]);
        let configuration = stage.file("rsyncd.conf", services::rsync(&folder, "module", port));
        let server = stage.start(&["rsync", "--daemon", "--no-detach", "--config", &configuration]).listens(port);
        let url = format!("rsync://127.0.0.1:{port}/module/");
        stage.run(&["rsync", "-a", &format!("{tree}/"), &url]);
        stage.run(&["rsync", "-a", &url, &format!("{back}/")]);
        let told = [&tree, &stage.path("module"), &back].map(|f| check(stage, &["sum", f]));
        assert!(told[0] == told[1] && told[1] == told[2], "{told:?}");
        // Once more, by checksums, with a file that changed in the middle: both sides send at the same time.
        let change = format!("{tree}/d1/f8");
        stage.run(&["sh", "-c", "printf other | dd of=\"$0\" bs=1 seek=2000000 conv=notrunc 2>/dev/null", &change]);
        stage.run(&["rsync", "-ac", "--no-whole-file", &format!("{tree}/"), &url]);
        let changed = [&tree, &stage.path("module")].map(|f| check(stage, &["sum", f]));
        assert!(changed[0] == changed[1] && changed[0] != told[0], "{changed:?}");
        stop(server, TERM);
        told.concat() + &changed.concat()
    });
}

// ---- super-servers ---------------------------------------------------------------------------------------------------

fn listening(port: u16) -> String {
    format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork")
}

/// The program gets the connection before its first byte.
fn pipes(stage: &Stage, port: u16, what: &str) -> String {
    let port = port.to_string();
    check(stage, &[&["pipe", &port, what], &SIZES[..]].concat())
}

#[test]
fn socat_gives_connections_to_programs() {
    both_ways("socat_gives_connections_to_programs", &["socat", "python3"], |stage| {
        let mut told = String::new();
        let programs = [
            ("EXEC:cat", "echo"),
            ("EXEC:cat,nofork", "echo"),
            ("EXEC:sha256sum", "digest"),
            ("EXEC:sha256sum,nofork", "digest"),
            ("SYSTEM:cat | sha256sum", "digest"),
            ("EXEC:sh shell,nofork", "digest"),
        ];
        stage.file("shell", "cat | sha256sum\n");
        for (program, what) in programs {
            let port = free_port();
            // -t: how long what is under way may take when one side has ended.
            let server = stage.start(&["socat", "-t", "30", &listening(port), program]).listens(port);
            told += &format!("{program} {}", pipes(stage, port, what));
            stop(server, TERM);
        }
        told
    });
}

#[test]
fn xinetd_gives_connections_to_programs() {
    both_ways("xinetd_gives_connections_to_programs", &["xinetd", "python3"], |stage| {
        let (folder, user) = (stage.path(""), stage.run(&["id", "-un"]));
        let mut told = String::new();
        let shell = stage.file("shell", "cat | sha256sum\n");
        for (program, argument, what) in [("cat", "-", "echo"), ("sha256sum", "-", "digest"), ("sh", &*shell, "digest")]
        {
            let port = free_port();
            let program = find(program).expect("coreutils").to_string_lossy().into_owned();
            let text = services::xinetd(&folder, port, user.trim(), &program, argument);
            let configuration = stage.file("xinetd.conf", text);
            let (pid, log) = (stage.path("xinetd.pid"), stage.path("xinetd.log"));
            let words = ["xinetd", "-dontfork", "-f", &configuration, "-pidfile", &pid, "-filelog", &log];
            let server = stage.start(&words).listens(port);
            told += &format!("{program} {}", pipes(stage, port, what));
            stop(server, TERM);
        }
        told
    });
}

// ---- languages -------------------------------------------------------------------------------------------------------

/// A dialogue, then another program or thread of control for the rest.
fn talks(stage: &Stage, port: u16, whats: &[&str]) -> String {
    let port = port.to_string();
    whats.iter().map(|what| check(stage, &[&["talk", &port, what, ROUNDS], &SIZES[..]].concat())).collect()
}

fn python(test: &str, kind: &str, whats: &[&str], streams: u64) {
    let counters = both_ways_open(test, &["python3"], Alone::WithMotet, |stage| {
        let (script, port) = (source(stage, "services.py"), free_port());
        let server = stage.start(&["python3", &script, "serve", kind, &port.to_string()]).says("ready");
        let told = talks(stage, port, whats);
        stop(server, TERM);
        told
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
fn python_gives_a_program_its_connection_after_a_dialogue() {
    python("python_gives_a_program_its_connection_after_a_dialogue", "subprocess", &["echo", "digest", "shell"], 12);
}

#[test]
fn ruby_gives_a_program_its_connection_after_a_dialogue() {
    let test = "ruby_gives_a_program_its_connection_after_a_dialogue";
    let counters = both_ways_open(test, &["ruby", "python3"], Alone::WithMotet, |stage| {
        let (script, port) = (source(stage, "services.rb"), free_port());
        let server = stage.start(&["ruby", &script, &port.to_string()]).says("ready");
        let told = talks(stage, port, &["echo", "digest", "shell"]);
        stop(server, INT);
        told
    });
    found_each_other(counters, 12);
}

#[test]
fn sudo_gives_another_user_a_connection_after_a_dialogue() {
    let test = "sudo_gives_another_user_a_connection_after_a_dialogue";
    if !motet_tests::programs::is_root() {
        skip::<()>(test, "only root may become another user without a password");
        return;
    }
    let counters = both_ways_open(test, &["sudo", "python3"], Alone::WithMotet, |stage| {
        let (script, port) = (source(stage, "services.py"), free_port());
        let words = ["python3", &script, "serve", "sudo", &port.to_string()];
        let server = stage.start_as_root(&words).says("ready");
        let whats = ["echo", "digest", "shell"];
        let port = port.to_string();
        let talk = |what: &&str| {
            let words = [&["python3", &script, "talk", &port, what, ROUNDS], &SIZES[..]].concat();
            stage.start_as_root(&words).finish()
        };
        let told = whats.iter().map(talk).collect();
        stop(server, TERM);
        told
    });
    found_each_other(counters, 12);
}
