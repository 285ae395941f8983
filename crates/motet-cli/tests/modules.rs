//! `motet load`, `start`, `stop`, `unload`, `modules` and `node`, with programs as modules.

mod common;

use common::module_session::{Session, is_running, processes};
use common::refused;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

#[test]
fn server_is_a_module_and_runs_under_motet() {
    let session = Session::up("server");
    let socket = session.path().join("redis.sock");
    let arguments = format!("arguments = [\"--port\", \"0\", \"--unixsocket\", {socket:?}, \"--save\", \"\"]\nOWN = 7");
    let descriptor = session.descriptor("store", "exec", "redis-server", &arguments);
    assert_eq!(session.ok(&["load", &descriptor]), "loaded: store\n");
    assert_eq!(session.states(), ["store loaded"]);
    assert_eq!(session.ok(&["start", "store"]), "started: store\n");
    assert_eq!(session.ok(&["start", "store"]), "store was started already\n");
    session.until("the server listens", |_| UnixStream::connect(&socket).is_ok());
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
    let pid = session.pid("store");
    // The server overwrites its environment, so its memory shows what was preloaded.
    let mapped = std::fs::read_to_string(format!("/proc/{}/maps", pid.as_raw_nonzero())).unwrap();
    assert!(mapped.contains("/libmotet_sockets.so"), "{mapped}");
    assert!(session.ok(&["modules"]).lines().nth(1).unwrap().contains("  store   exec    running"));
    assert_eq!(session.ok(&["stop", "store"]), "stopped: store\n");
    assert!(!is_running(pid) && UnixStream::connect(&socket).is_err());
    let log = session.log("store");
    assert!(log.contains("ready to accept connections") && log.contains("exit status 0"), "{log}");
    assert_eq!(session.ok(&["unload", "store"]), "unloaded: store\n");
    assert!(session.modules().is_empty());
    assert!(session.ok(&["modules"]).contains("motet load"));
}

#[test]
fn attributes_are_variables_of_the_program() {
    let session = Session::up("variables");
    session.ok(&["load", "--start", &session.shell("m", "exec env", "OWN = 7\nTEXT = \"a b\"")]);
    session.until("it has ended", |session| session.module("m")["state"] == "ended");
    session.until("its output is there", |session| session.log("m").contains("TEXT="));
    let log = session.log("m");
    for line in ["OWN=7\n", "TEXT=a b\n", "MOTET_MODULE=m\n", "MOTET_SESSION=default\n", "MOTET_SESSION_ID="] {
        assert!(log.contains(line), "{line}: {log}");
    }
}

#[test]
fn requirements_come_first_and_hold() {
    let session = Session::up("requires");
    session.shell("base", "exec sleep 1000", "");
    session.shell("gas", "exec sleep 1000", "requires = [\"base\"]");
    // A descriptor in XML requires modules with descriptors in TOML.
    let xml = "<defmod name=\"mesh\" driver=\"exec\"><requires>base gas</requires><unit>sleep</unit>\
               <attr label=\"arguments\">1000</attr></defmod>";
    session.0.file("mesh.xml", xml, 0o644);
    assert_eq!(session.ok(&["load", "--start", "mesh.xml"]), "loaded and started: base, gas, mesh\n");
    assert_eq!(session.states(), ["base running", "gas running", "mesh running"]);
    assert_eq!(session.fails(&["stop", "gas"]), "motet: mesh runs and requires gas: stop it first, or use --cascade\n");
    let refusal = session.fails(&["unload", "base"]);
    assert_eq!(refusal, "motet: gas requires base: unload it first, or use --cascade\n");
    assert_eq!(session.ok(&["stop", "gas", "--cascade"]), "stopped: mesh, gas\n");
    assert_eq!(session.ok(&["start", "mesh"]), "started: gas, mesh\n");
    assert_eq!(session.ok(&["unload", "gas", "--cascade"]), "unloaded: mesh, gas\n");
    assert_eq!(session.states(), ["base running"]);
    assert_eq!(session.ok(&["load", "gas.toml"]), "loaded: gas\n");
    assert_eq!(session.fails(&["load", "gas.toml"]), "motet: gas is loaded already\n");
    assert_eq!(processes(|command| command == "sleep 1000", &session).len(), 1);
}

#[test]
fn cycles_and_failures_load_nothing() {
    let session = Session::up("cycles");
    session.shell("a", "exit", "requires = [\"b\"]");
    session.shell("b", "exit", "requires = [\"c\"]");
    session.shell("c", "exit", "requires = [\"b\"]");
    assert_eq!(session.fails(&["load", "a.toml"]), "motet: modules require each other: b -> c -> b\n");
    session.shell("good", "exec sleep 1000", "");
    session.descriptor("bad", "exec", "./no-such-program", "requires = [\"good\"]");
    session.shell("top", "exit", "requires = [\"bad\"]");
    let refusal = session.fails(&["load", "--start", "top.toml"]);
    assert_eq!(refusal, "motet: bad: the unit \"./no-such-program\": No such file or directory (os error 2)\n");
    session.shell("lonely", "exit", "requires = [\"missing\"]");
    assert!(session.fails(&["load", "lonely.toml"]).contains("lonely requires missing: there is no missing.toml"));
    assert!(session.modules().is_empty());
    assert!(session.fails(&["start", "ghost"]).contains("no module \"ghost\" is loaded"));
}

#[test]
fn package_is_one_with_its_parts() {
    let session = Session::up("package");
    session.shell("one", "exec sleep 1000", "requires = [\"two\"]");
    session.shell("two", "exec sleep 1000", "");
    session.shell("three", "exec sleep 1000", "");
    session.shell("user", "exec sleep 1000", "requires = [\"three\"]");
    let all = session.descriptor("all", "pkg", "one two three", "");
    assert_eq!(session.ok(&["load", "--start", &all]), "loaded and started: two, one, three, all\n");
    assert_eq!(session.ok(&["load", "--start", "user.toml"]), "loaded and started: user\n");
    assert_eq!(session.ok(&["stop", "all"]), "stopped: all, one, two\n");
    assert_eq!(session.states(), ["all loaded", "one loaded", "three running", "two loaded", "user running"]);
    assert_eq!(session.ok(&["unload", "all"]), "unloaded: all, one, two\n");
    assert_eq!(session.ok(&["unload", "three", "--cascade"]), "unloaded: user, three\n");
}

#[test]
fn crash_of_a_program_is_reported_and_harms_no_other() {
    let session = Session::up("crash");
    session.ok(&["load", "--start", &session.shell("steady", "exec sleep 1000", "")]);
    session.ok(&["load", "--start", &session.shell("crash", "echo about to crash; kill -SEGV $$", "")]);
    session.until("the crash is seen", |session| session.module("crash")["state"] == "failed");
    let crash = session.module("crash");
    assert!(crash["last_exit"].as_str().unwrap().starts_with("signal 11"), "{crash}");
    assert_eq!((&crash["restarts"], &crash["pid"]), (&0.into(), &serde_json::Value::Null));
    assert!(session.log("crash").contains("about to crash\n"));
    session.ok(&["load", "--start", &session.shell("done", "exit 0", "")]);
    session.until("the end is seen", |session| session.module("done")["state"] == "ended");
    assert_eq!(session.module("steady")["state"], "running");
}

#[test]
fn program_is_started_again_as_its_policy_says() {
    let session = Session::up("restart");
    // It fails twice, and then stays.
    let script = "echo x >> count; test $(wc -l < count) -gt 2 || exit 3; exec sleep 1000";
    session.ok(&["load", "--start", &session.shell("retry", script, "restart = \"on-failure\"")]);
    session.until("it stays", |session| {
        let module = session.module("retry");
        module["restarts"] == 2 && module["state"] == "running" && module["last_exit"] == "exit status 3"
    });
    // It fails for good.
    let more = "restart = \"always\"\nrestart-limit = 2";
    session.ok(&["load", "--start", &session.shell("hopeless", "exit 4", more)]);
    session.until("it is given up", |session| session.module("hopeless")["state"] == "failed");
    assert_eq!(session.module("hopeless")["restarts"], 2);
    // One that is stopped while it waits is not started again.
    let more = "restart = \"always\"\nrestart-limit = 1000";
    session.ok(&["load", "--start", &session.shell("again", "exit 0", more)]);
    session.until("it waits", |session| session.module("again")["state"] == "restarting");
    session.ok(&["stop", "again"]);
    assert_eq!(session.module("again")["state"], "loaded");
}

#[test]
fn program_that_ignores_its_signal_is_killed_with_its_children() {
    let session = Session::up("stubborn");
    let script = "trap '' TERM; sleep 1000 & echo ready; wait; sleep 1000";
    session.ok(&["load", "--start", &session.shell("stubborn", script, "stop-limit = 0")]);
    session.until("it is ready", |session| session.log("stubborn").contains("ready"));
    let pid = session.pid("stubborn");
    session.ok(&["stop", "stubborn"]);
    assert!(!is_running(pid));
    assert_eq!(session.module("stubborn")["last_exit"], "signal 9");
    session.until("its children end", |session| processes(|command| command == "sleep 1000", session).is_empty());
    // Another signal, which it takes.
    let script = "trap 'echo bye; exit 5' USR1; echo ready; while :; do sleep 0.01; done";
    session.ok(&["load", "--start", &session.shell("polite", script, "stop-signal = \"USR1\"\nstop-limit = 30")]);
    session.until("it is ready", |session| session.log("polite").contains("ready"));
    session.ok(&["stop", "polite"]);
    assert_eq!(session.module("polite")["last_exit"], "exit status 5");
    assert!(session.log("polite").contains("bye\n"));
}

#[test]
fn log_is_bounded_and_never_stops_a_program() {
    let session = Session::up("log");
    let script = "head -c 20000000 /dev/zero | tr '\\0' 'x'; echo; printf '\\033[2J\\377 end\\n'";
    session.ok(&["load", "--start", &session.shell("chatty", script, "")]);
    session.until("it has written all", |session| session.module("chatty")["state"] == "ended");
    session.until("the log has it", |session| session.log("chatty").contains(" end\n"));
    let log = session.log("chatty");
    assert!(log.contains("?[2J\u{fffd} end") && log.len() <= 33_000, "{}", log.len());
    assert!(session.ok(&["modules", "chatty", "--log", "--tail", "30"]).len() <= 31);
    assert!(refused(&mut session.motet(&["modules", "quiet", "--log"]), 3).contains("no module \"quiet\""));
}

#[test]
fn killed_node_leaves_nothing_and_a_new_one_takes_its_place() {
    let session = Session::up("killed-node");
    let script = "(setsid sleep 1000 &) ; echo ready; exec sleep 1000";
    session.ok(&["load", "--start", &session.shell("m", script, "")]);
    session.until("it is ready", |session| session.log("m").contains("ready"));
    let (node, program) = (session.default_node(), session.pid("m"));
    kill_process(node, Signal::KILL).unwrap();
    session.until_gone(program);
    session.until("its children end", |session| processes(|command| command == "sleep 1000", session).is_empty());
    session.until("its modules are gone", |session| session.modules().is_empty());
    assert_eq!(session.ok(&["load", "--start", "m.toml"]), "loaded and started: m\n");
    assert_ne!(session.default_node(), node);
}

#[test]
fn modules_outlive_the_gatekeeper() {
    let session = Session::up("killed-gatekeeper");
    session.ok(&["load", "--start", &session.shell("m", "exec sleep 1000", "")]);
    let (node, program) = (session.default_node(), session.pid("m"));
    let about = common::json(&session.ok(&["--json", "up"]));
    let gatekeeper = Pid::from_raw(about["session"]["gatekeeper"]["pid"].as_i64().unwrap() as i32).unwrap();
    kill_process(gatekeeper, Signal::KILL).unwrap();
    session.until_gone(gatekeeper);
    session.ok(&["groups"]); // starts it again
    // The node is found again, not replaced.
    assert_eq!(session.ok(&["load", &session.shell("n", "exit", "")]), "loaded: n\n");
    assert_eq!(session.states(), ["m running", "n loaded"]);
    assert_eq!((session.default_node(), session.pid("m")), (node, program));
}

#[test]
fn node_ends_by_a_signal_with_its_programs() {
    let session = Session::up("node");
    let nodes = session.group("g", 1);
    let node = &nodes.ids[0];
    let script = "trap 'echo ended > ended; exit' TERM; echo ready; while :; do sleep 0.01; done";
    let m = session.shell("m", script, "");
    assert_eq!(session.ok(&["load", "--start", "--node", node, &m]), "loaded and started: m\n");
    session.until("it is ready", |session| session.log("m").contains("ready"));
    let program = session.pid("m");
    let unknown = "0".repeat(32);
    assert!(refused(&mut session.motet(&["stop", "--node", &unknown, "m"]), 3).contains("no such module node"));
    drop(nodes);
    assert!(!is_running(program) && session.path().join("ended").exists(), "it was stopped in order");
    session.until("its modules are gone", |session| session.modules().is_empty());
}

#[test]
fn node_started_alone_is_a_program_and_a_member() {
    let session = Session::up("alone");
    let mut node = session.motet(&["node", "--group", "g", "--rank", "3"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut id = String::new();
    BufReader::new(node.stdout.take().unwrap()).read_line(&mut id).unwrap();
    let groups = common::json(&session.ok(&["--json", "groups", "g"]));
    let member = &groups[0]["view"]["members"][0];
    assert_eq!((member["node"].as_str().unwrap(), &member["rank"]), (id.trim(), &3.into()));
    assert_eq!(groups[0]["programs"][0]["process"], member["process"]);
    // By the start of its identity.
    let m = session.shell("m", "exec sleep 1000", "");
    session.until("it is a module node", |session| {
        common::finish(&mut session.motet(&["load", "--start", "--node", &id[..8], &m])).0 == 0
    });
    assert_eq!(session.module("m")["node"], id.trim());
    assert_eq!(session.ok(&["down"]), "session default has ended: 2 programs, 1 group\n");
    assert!(node.wait().unwrap().success(), "it ends in order");
    assert!(refused(&mut session.motet(&["node"]), 3).contains("motet up"));
}

#[test]
fn hostile_descriptors_are_one_line() {
    let session = Session::up("hostile");
    let load = |name: &str, text: &str| {
        session.0.file(name, text, 0o644);
        session.fails(&["load", name])
    };
    assert!(load("a.toml", "name = ").contains("a.toml: line 1: "));
    assert!(load("b.toml", &"x = 1\n".repeat(20_000)).contains("is longer than 65536 bytes"));
    let escape = "name = \"c\"\ndriver = \"exec\"\nunits = [\"../../../bin/sh\"]";
    assert!(load("c.toml", escape).contains("leaves the descriptor's folder"));
    let entity =
        "<!DOCTYPE d [<!ENTITY a SYSTEM \"/etc/passwd\">]><defmod name=\"d\" driver=\"exec\"><unit>&a;</unit></defmod>";
    assert!(!load("d.xml", entity).contains("root"));
    let control = "name = \"e\\u001b[2J\\n\"\ndriver = \"exec\"\nunits = [\"sh\"]";
    assert!(!load("e.toml", control).contains('\x1b'));
    assert!(
        load("f.toml", "name = \"f\"\ndriver = \"exec\"\nunits = [\"sh\"]\n[attributes]\nrestart = \"often\"")
            .contains("use never, on-failure or always")
    );
    assert!(load("g.json", "{}").contains("ends in .toml or .xml"));
    refused(&mut session.motet(&["load", "no-such-file.toml"]), 2);
    refused(&mut session.motet(&["start", "a/b"]), 2);
    assert!(session.modules().is_empty());
}
