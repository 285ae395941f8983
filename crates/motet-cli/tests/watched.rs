//! `ps`, `top` and `why` in a session: the processes of every host, from the gatekeepers.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use common::{Folder, finish, json, motet};
use rustix::process::{Pid, Signal, kill_process};

/// A session of two hosts that are folders; the agent runs its command here. So both hosts have the same processes.
struct Session(Folder);

impl Session {
    fn up(name: &str) -> Self {
        let folder = Folder::new(name);
        folder.libraries();
        let session = Self(folder);
        let agent = format!("env MOTET_SESSION_DIR={}/%h", session.0.path().display());
        let up = ["up", "--host", "a", "--listen", "127.0.0.1:0", "--hosts", "b", "--agent", &agent];
        let (code, out, err) = finish(&mut session.motet("a", &up));
        assert!(code == 0 && out.contains("\ndashboard: http://127.0.0.1:"), "{out}{err}");
        session
    }

    fn motet(&self, host: &str, arguments: &[&str]) -> Command {
        let mut command = motet(arguments);
        command.env("MOTET_SESSION_DIR", self.0.path().join(host)).env("MOTET_LIBDIR", self.0.path());
        command
    }

    /// A program of the session that runs until it is killed. It is under Motet, without a socket.
    fn program(&self) -> Child {
        let mut command = self.motet("a", &["run", "--", "sh", "-c", "echo; exec sleep 1000"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        child
    }

    fn gatekeeper(&self, host: &str) -> Pid {
        let about = json(&finish(&mut self.motet(host, &["--json", "up"])).1);
        Pid::from_raw(about["session"]["gatekeeper"]["pid"].as_i64().unwrap() as i32).unwrap()
    }

    /// The hosts on which `ps` shows a process, whether it belongs to the session, and what `ps` says on standard error.
    fn shown(&self, pid: u32) -> (Vec<(String, bool)>, String) {
        let (code, out, err) = finish(&mut self.motet("a", &["ps", "--json", &pid.to_string()]));
        assert_eq!(code, 0, "{err}");
        let host = |process: &serde_json::Value| {
            (process["host"].as_str().unwrap_or_default().to_owned(), process["in_session"] == true)
        };
        (json(&out)["processes"].as_array().unwrap().iter().map(host).collect(), err)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.motet("a", &["down"]).output();
        let _ = self.motet("b", &["down"]).output();
    }
}

fn end(mut program: Child) {
    program.kill().unwrap();
    program.wait().unwrap();
}

#[test]
fn processes_of_all_hosts_are_shown() {
    let session = Session::up("all");
    let program = session.program();
    let both = vec![("a".to_owned(), true), ("b".to_owned(), true)];
    assert_eq!(session.shown(program.id()), (both, String::new()));
    let pid = program.id().to_string();
    let table = finish(&mut session.motet("b", &["ps"])).1;
    assert!(table.starts_with("HOST ") && table.contains(&pid), "{table}");
    let top = finish(&mut session.motet("a", &["top", "--once", "-i", "0.05"])).1;
    assert!(top.contains("HOST ") && top.contains(&pid), "{top}");
    let why = finish(&mut session.motet("a", &["why", &pid])).1;
    assert!(why.contains(&format!("a:{pid} ")) && why.contains(&format!("b:{pid} ")), "{why}");
    end(program);
}

#[test]
fn host_that_does_not_answer_is_named() {
    let session = Session::up("silent");
    let program = session.program();
    let gatekeeper = session.gatekeeper("b");
    kill_process(gatekeeper, Signal::STOP).unwrap();
    let (hosts, said) = session.shown(program.id());
    kill_process(gatekeeper, Signal::CONT).unwrap();
    assert_eq!(hosts, [("a".to_owned(), true)]);
    assert!(said.starts_with("motet: host b: ") && said.lines().count() == 1, "{said}");
    end(program);
}

#[test]
fn own_processes_are_shown_without_the_gatekeeper() {
    let session = Session::up("own");
    let program = session.program();
    let gatekeeper = session.gatekeeper("a");
    kill_process(gatekeeper, Signal::STOP).unwrap();
    let (hosts, said) = session.shown(program.id());
    kill_process(gatekeeper, Signal::CONT).unwrap();
    assert_eq!(hosts, [(String::new(), false)]);
    assert!(said.contains("this is what this host itself shows"), "{said}");
    end(program);
}
