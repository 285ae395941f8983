//! A session with modules, in a folder of its own. It ends with the test.

use super::{Folder, finish, json, motet};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Nothing takes so long.
const LIMIT: Duration = Duration::from_secs(60);

pub struct Session(pub Folder);

impl Session {
    pub fn up(name: &str) -> Self {
        let folder = Folder::new(name);
        folder.libraries();
        let session = Self(folder);
        assert_eq!(finish(&mut session.motet(&["up", "--host", "here"])).0, 0);
        session
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn motet(&self, arguments: &[&str]) -> Command {
        let mut command = motet(arguments);
        command.current_dir(self.path());
        command.env("MOTET_SESSION_DIR", self.path().join("sessions")).env("MOTET_LIBDIR", self.path());
        command
    }

    /// Writes the descriptor of a module whose program is `sh -c SCRIPT`.
    pub fn shell(&self, name: &str, script: &str, more: &str) -> String {
        let script = toml_text(script);
        self.descriptor(name, "exec", "sh", &format!("arguments = [\"-c\", {script}]\n{more}"))
    }

    /// Writes a descriptor; `more` begins with attributes, and may have a line `requires = …` before them.
    pub fn descriptor(&self, name: &str, driver: &str, units: &str, more: &str) -> String {
        let (requires, attributes): (Vec<_>, Vec<_>) = more.lines().partition(|line| line.starts_with("requires"));
        let units: Vec<_> = units.split(' ').map(|unit| format!("{unit:?}")).collect();
        let text = format!(
            "name = {name:?}\ndriver = {driver:?}\nunits = [{}]\n{}\n[attributes]\n{}\n",
            units.join(", "),
            requires.join("\n"),
            attributes.join("\n")
        );
        let file = format!("{name}.toml");
        self.0.file(&file, &text, 0o644);
        file
    }

    /// A command that succeeds; returns its standard output.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        let (code, out, err) = finish(&mut self.motet(arguments));
        assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}: {out}");
        out
    }

    /// A command that fails with status 1; returns its one line on standard error.
    #[track_caller]
    pub fn fails(&self, arguments: &[&str]) -> String {
        let (code, out, err) = finish(&mut self.motet(arguments));
        assert_eq!(code, 1, "{arguments:?}: {out}{err}");
        assert!(err.starts_with("motet: ") && err.lines().count() == 1 && err.len() < 2000, "{err}");
        err
    }

    /// A command that fails with status 1, maybe after some output; returns standard error.
    #[track_caller]
    pub fn fails_with(&self, arguments: &[&str]) -> String {
        let (code, out, err) = finish(&mut self.motet(arguments));
        assert_eq!(code, 1, "{arguments:?}: {out}{err}");
        err
    }

    /// All modules, as the API has them.
    pub fn modules(&self) -> Vec<Value> {
        json(&self.ok(&["--json", "modules"])).as_array().unwrap().clone()
    }

    /// The names of all modules with their states, in order.
    pub fn states(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        self.modules().iter().map(|module| format!("{} {}", text(&module["name"]), text(&module["state"]))).collect()
    }

    /// The module of this name, which there is once.
    pub fn module(&self, name: &str) -> Value {
        self.modules().into_iter().find(|module| module["name"] == name).unwrap_or_else(|| panic!("no module {name}"))
    }

    pub fn log(&self, name: &str) -> String {
        self.ok(&["modules", name, "--log"])
    }

    pub fn pid(&self, name: &str) -> Pid {
        Pid::from_raw(self.module(name)["pid"].as_i64().expect("it runs") as i32).unwrap()
    }

    /// The process of the default node.
    pub fn default_node(&self) -> Pid {
        let out = self.ok(&["--json", "groups"]);
        assert_eq!(out.trim(), "[]");
        let pids = processes(|command| command.ends_with("motet node --default"), self);
        assert_eq!(pids.len(), 1, "{pids:?}");
        pids[0]
    }

    /// Starts module nodes as a group, and waits until all are in it.
    pub fn group(&self, name: &str, size: usize) -> Nodes {
        let (count, motet) = (size.to_string(), env!("CARGO_BIN_EXE_motet"));
        let mut command = self.motet(&["run", "--group", name, "-n", &count, "--", motet, "node"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ids: Vec<_> = (0..size).map(|_| lines.next().unwrap().unwrap()).collect();
        Nodes { child, ids }
    }

    /// Waits for a condition.
    #[track_caller]
    pub fn until(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        let began = Instant::now();
        while !condition(self) {
            assert!(began.elapsed() < LIMIT, "never happens: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a process has ended.
    #[track_caller]
    pub fn until_gone(&self, pid: Pid) {
        self.until("the process ends", |_| !is_running(pid));
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.motet(&["down"]).output();
        if !std::thread::panicking() {
            // The gatekeeper ends after its answer.
            self.until("all processes of the session end", |session| processes(|_| true, session).is_empty());
        }
    }
}

/// The nodes of a group.
pub struct Nodes {
    pub child: Child,
    pub ids: Vec<String>,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _ = self.child.wait();
    }
}

/// The processes of a session with a fitting command line.
pub fn processes(fits: impl Fn(&str) -> bool, session: &Session) -> Vec<Pid> {
    let mark = format!("MOTET_LIBDIR={}\0", session.path().display());
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let read = |what: &str| std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        text(read("environ")).contains(&mark) && fits(text(read("cmdline")).replace('\0', " ").trim())
    })
    .filter_map(Pid::from_raw)
    .filter(|pid| is_running(*pid))
    .collect()
}

/// Whether a process runs; a zombie does not.
pub fn is_running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn toml_text(text: &str) -> String {
    format!("'''{text}'''")
}
