//! Options of `motet up`: in front of its session, and the policy for containers.

mod common;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use common::{Folder, finish, json, motet, refused, until};
use rustix::process::{Pid, Signal, kill_process};

/// A place for a session, which ends with the test.
struct Place(Folder);

impl Place {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        folder.libraries();
        Self(folder)
    }

    fn dir(&self) -> PathBuf {
        self.0.path().join("sessions/default")
    }

    fn motet(&self, arguments: &[&str]) -> Command {
        let mut command = motet(arguments);
        command.env("MOTET_SESSION_DIR", self.0.path().join("sessions")).env("MOTET_LIBDIR", self.0.path());
        command
    }

    fn about(&self) -> serde_json::Value {
        json(&finish(&mut self.motet(&["--json", "up"])).1)["session"].clone()
    }

    /// Kills a process, and waits until it has gone.
    fn kill(&self, pid: i64) {
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        until("it has gone", || std::fs::read_link(format!("/proc/{pid}/exe")).is_err());
    }

    /// Starts the command in front, and waits until it says so.
    fn in_front(&self) -> (Child, BufReader<ChildStdout>) {
        let mut child = self.motet(&["up", "--foreground"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("stays in front (--foreground)") {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "it ends");
        }
        (child, output)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.dir().exists() {
            let _ = self.motet(&["down"]).output();
        }
    }
}

#[test]
fn signal_to_the_command_in_front_ends_the_session() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let place = Place::new("signal");
        let (mut front, _output) = place.in_front();
        let mut program = place.motet(&["run", "--group", "fluid", "--", "sleep", "1000"]).spawn().unwrap();
        until("the program runs", || {
            let (code, out, _) = finish(&mut place.motet(&["--json", "groups"]));
            code == 0 && out.contains("sleep")
        });
        kill_process(Pid::from_child(&front), signal).unwrap();
        assert!(front.wait().unwrap().success(), "{signal:?}");
        assert!(!place.dir().exists() && !program.wait().unwrap().success(), "{signal:?}");
    }
}

#[test]
fn command_in_front_ends_with_the_session() {
    let place = Place::new("down");
    let (mut front, _output) = place.in_front();
    // It starts a gatekeeper again that was killed.
    let killed = place.about()["gatekeeper"]["pid"].as_i64().unwrap();
    place.kill(killed);
    until("another gatekeeper", || {
        let socket = place.dir().join("gatekeeper.sock");
        let client = motet_session::client::Client::at(&socket);
        client
            .get::<motet_session::api::Session>("/v1/session")
            .is_ok_and(|about| i64::from(about.gatekeeper.pid) != killed)
    });
    assert_eq!(finish(&mut place.motet(&["down"])).0, 0);
    assert!(front.wait().unwrap().success());
    assert!(!place.dir().exists());
}

#[test]
fn gatekeeper_does_not_outlive_the_command_in_front() {
    let place = Place::new("alone");
    let (mut front, _output) = place.in_front();
    front.kill().unwrap();
    front.wait().unwrap();
    until("the session has ended", || !place.dir().exists());
}

#[test]
fn containers_are_kept_apart_if_the_session_says_so() {
    let place = Place::new("off");
    let (code, out, err) = finish(&mut place.motet(&["up", "--containers", "off"]));
    assert!(code == 0 && out.contains("containers share no memory\n"), "{out}{err}");
    let nodes = place.dir().join("nodes"); // the folder in which nodes of containers meet
    assert!(place.about()["containers"] == "off" && !nodes.exists());
    let why = refused(&mut place.motet(&["up", "--containers", "same-uid"]), 1);
    assert!(why.contains("another policy for containers"), "{why}");
    place.kill(place.about()["gatekeeper"]["pid"].as_i64().unwrap());
    assert_eq!(finish(&mut place.motet(&["groups"])).0, 0);
    assert!(place.about()["containers"] == "off" && !nodes.exists(), "also for a later gatekeeper");
    assert_eq!(finish(&mut place.motet(&["down"])).0, 0);
    for options in [&["up"][..], &["up", "--containers", "same-uid"]] {
        assert_eq!(finish(&mut place.motet(options)).0, 0);
        assert!(place.about()["containers"] == "same-uid" && nodes.is_dir());
        assert_eq!(finish(&mut place.motet(&["down"])).0, 0);
    }
    assert!(refused(&mut place.motet(&["up", "--containers", "all"]), 2).contains("same-uid"));
}

#[test]
fn hosts_that_join_have_the_policy_of_the_session() {
    let place = Place::new("joined");
    let agent = format!("env MOTET_SESSION_DIR={}/%h", place.0.path().display());
    let up = ["up", "--host", "a", "--listen", "127.0.0.1:0", "--containers", "off", "--hosts", "b", "--agent", &agent];
    let (code, out, err) = finish(&mut place.motet(&up));
    assert_eq!(code, 0, "{out}{err}");
    let on_b = |arguments: &[&str]| finish(place.motet(arguments).env("MOTET_SESSION_DIR", place.0.path().join("b")));
    assert_eq!(json(&on_b(&["--json", "up"]).1)["session"]["containers"], "off");
    assert!(place.0.path().join("b/default").exists() && !place.0.path().join("b/default/nodes").exists());
    assert_eq!(on_b(&["down"]).0, 0);
    until("both have ended", || !place.dir().exists());
}
