//! The study over three hosts of this machine (scripts/hosts): the master's host loses its process, then the next master's; nothing is lost.
//!
//! Where the machine gives no namespaces, the test is skipped with a message.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
const POINTS: usize = 240;
const NAMES: [&str; 3] = ["first", "second", "third"];

/// Three hosts; dropping them removes them and all of their processes.
struct Hosts {
    script: PathBuf,
    set: String,
}

impl Hosts {
    fn up() -> Option<Self> {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/hosts");
        let hosts = Self { script, set: format!("f{}", std::process::id()) };
        let made = Command::new(&hosts.script).args(["--set", &hosts.set, "up"]).args(NAMES).output().unwrap();
        match made.status.code() {
            Some(0) => Some(hosts),
            Some(3) => {
                eprintln!("SKIPPED: the study over three hosts: {}", String::from_utf8_lossy(&made.stderr).trim());
                None
            }
            _ => panic!("scripts/hosts: {}", String::from_utf8_lossy(&made.stderr)),
        }
    }

    fn on(&self, host: usize) -> Command {
        let mut command = Command::new(&self.script);
        command.args(["--set", &self.set, "exec", NAMES[host], "--"]);
        command
    }

    /// A process of the farm on a host, which gets startpoints by standard input.
    fn start(&self, host: usize, words: &[&str], starts: &[&str]) -> Process {
        let mut command = self.on(host);
        command.args(["sh", "-c", "echo $$; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_farm")]);
        command.args(["--at", &format!("10.77.0.{}", host + 1)]).args(words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (give, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).all(|line| give.send(line).is_ok()));
        let mut process = Process { child, lines, id: String::new(), host };
        process.id = process.line();
        if !starts.is_empty() {
            writeln!(process.child.stdin.as_mut().unwrap(), "{}\n", starts.join("\n")).unwrap();
        }
        process
    }

    /// Kills a process by SIGKILL, on its host.
    fn kill(&self, process: &mut Process) {
        let killed = self.on(process.host).args(["kill", "-KILL", &process.id]).status().unwrap();
        assert!(killed.success());
        process.child.wait().unwrap();
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = Command::new(&self.script).args(["--set", &self.set, "down"]).output();
    }
}

struct Process {
    child: Child,
    lines: Receiver<String>,
    /// Its number on its host.
    id: String,
    host: usize,
}

impl Process {
    #[track_caller]
    fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("a process says nothing, or has ended")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Takes the answered results of workers: the number of each point.
fn collect(workers: &[Process], answered: &mut HashMap<String, String>) {
    for line in workers.iter().flat_map(|worker| worker.lines.try_iter()) {
        if let ["answered", point, number] = line.split(' ').collect::<Vec<_>>()[..] {
            answered.insert(point.to_owned(), number.to_owned());
        }
    }
}

#[test]
fn nothing_is_lost_when_masters_of_other_hosts_are_killed() {
    let Some(hosts) = Hosts::up() else { return };
    let mut master = hosts.start(0, &["master", &POINTS.to_string()], &[]);
    let mut text = master.line();
    let mut successor = hosts.start(1, &["successor", "-"], &[&text]);
    let mut next = successor.line();
    let workers: Vec<Process> = [1, 2, 2].map(|host| hosts.start(host, &["worker", "-"], &[&text, &next])).into();
    let mut answered = HashMap::new();
    for kills in 1..=2 {
        let began = Instant::now();
        while answered.len() < POINTS * kills / 4 {
            collect(&workers, &mut answered);
            assert!(began.elapsed() < LIMIT, "the study does not go on: {} results", answered.len());
            std::thread::sleep(Duration::from_millis(2));
        }
        hosts.kill(&mut master);
        while !successor.line().starts_with("leads") {}
        master = successor;
        text = next;
        successor = hosts.start((kills + 1) % NAMES.len(), &["successor", "-"], &[&text]);
        next = successor.line();
    }
    let mut results = HashMap::new();
    loop {
        let line = master.line();
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["result", point, _, number] => _ = results.insert(point.to_owned(), number.to_owned()),
            ["finished"] => break,
            _ => {}
        }
    }
    assert_eq!(results.len(), POINTS);
    collect(&workers, &mut answered);
    for (point, number) in &answered {
        assert_eq!(results.get(point), Some(number), "the answered result of point {point} was lost");
    }
}
