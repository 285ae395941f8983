//! omniORB programs with the adapter of `adapters/omniorb`: building, starting and ending them, for `tests/omniorb`.

use crate::programs::{
    Counters, Exclusive, Sandbox, Started, TIMEOUT, both_ways_open, both_ways_with, builds, find, free_port, placed,
    skip,
};
use crate::{folder, script};
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Values of the ORB's threading policy: a thread for each connection, and a thread pool.
pub const POLICIES: [&str; 2] = ["1", "0"];
/// The file of a sandbox in which adapters report each connection.
pub const REPORT: &str = "adapters";

/// The program of `tests/programs/NAME.cc` and `NAME.idl`, compiled once.
///
/// # Errors A needed package is not installed.
pub fn built(name: &'static str) -> Result<PathBuf, &'static str> {
    static BUILT: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    if find("omniidl").is_none() || !Path::new("/usr/include/omniORB4/CORBA.h").exists() {
        return Err("omniORB is not installed (examples/coupling/packages.txt)");
    }
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let program = built.entry(name).or_insert_with(|| {
        let folder = folder(&name.replace('_', "-"));
        for ending in ["idl", "cc"] {
            let name = format!("{name}.{ending}");
            std::fs::copy(script(&name), folder.join(&name)).expect("a copy of the source");
        }
        for step in builds::omniorb(folder.to_str().expect("UTF-8"), name) {
            let output = Command::new(&step[0]).args(&step[1..]).output().expect("a compiler");
            assert!(output.status.success(), "{step:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        folder.join(name)
    });
    Ok(program.clone())
}

/// One run of a case: the program, a port, a threading policy, and how each process is started.
#[derive(Debug)]
pub struct Case<'a> {
    /// The folder of the run.
    pub sandbox: &'a Sandbox,
    /// The program's path.
    pub program: String,
    /// The server's port.
    pub port: String,
    /// One of [`POLICIES`].
    pub policy: &'a str,
    /// Words before the server's and before the client's command.
    pub before: [&'a [&'a str]; 2],
    /// ORB options of every process, set as environment variables `ORBname`.
    pub options: &'a [(&'a str, &'a str)],
}

impl<'a> Case<'a> {
    /// A case with a free port.
    pub fn new(sandbox: &'a Sandbox, program: &Path, policy: &'a str, before: [&'a [&'a str]; 2]) -> Self {
        Self { sandbox, program: placed(sandbox, program), port: free_port().to_string(), policy, before, options: &[] }
    }

    /// Starts the program with the words `before`, and the arguments `words`. The port becomes the second argument.
    pub fn start(&self, before: &[&str], words: &[&str]) -> Started {
        let report = self.sandbox.path(REPORT);
        let own =
            [("ORBthreadPerConnectionPolicy", self.policy), ("MOTET_OMNIORB", "on"), ("MOTET_SHIM_REPORT", &report)];
        let environment = [&own, self.options].concat();
        let own = [self.program.as_str(), words[0], &self.port];
        self.sandbox.start_with(&[before, &own, &words[1..]].concat(), &environment)
    }

    /// A copy of this case for a second server, on another port.
    pub fn on_another_port(&self) -> Self {
        Self { program: self.program.clone(), port: free_port().to_string(), ..*self }
    }

    /// Starts a server and waits until it is ready.
    pub fn serve(&self) -> Started {
        self.serve_with(&[])
    }

    /// Starts a server with further arguments and waits until it is ready.
    pub fn serve_with(&self, words: &[&str]) -> Started {
        self.start(self.before[0], &[&["serve"], words].concat()).says("ready")
    }

    /// Starts a client.
    pub fn client(&self, words: &[&str]) -> Started {
        self.start(self.before[1], words)
    }

    /// Runs a client, which must succeed. Returns its output.
    pub fn output(&self, words: &[&str]) -> String {
        self.client(words).finish()
    }

    /// Tells the server to end and waits for it. Returns the server's output.
    pub fn end(&self, server: Started) -> String {
        self.output(&["end"]);
        server.finish()
    }
}

/// Resources that a server process holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resources {
    descriptors: usize,
    /// How many of the descriptors are sockets.
    sockets: usize,
    threads: usize,
    /// Mappings of shared memory.
    mappings: usize,
}

impl Resources {
    /// Counts the resources of a server.
    pub fn of(server: &Started) -> Self {
        let process = PathBuf::from(format!("/proc/{}", server.pid()));
        let maps = std::fs::read_to_string(process.join("maps")).unwrap_or_default();
        let entries = |folder| std::fs::read_dir(process.join(folder)).into_iter().flatten().flatten();
        let is_socket = |target: PathBuf| target.to_string_lossy().starts_with("socket:");
        Self {
            descriptors: entries("fd").count(),
            sockets: entries("fd").filter(|entry| std::fs::read_link(entry.path()).is_ok_and(is_socket)).count(),
            threads: entries("task").count(),
            mappings: maps.lines().filter(|line| line.contains("memfd:")).count(),
        }
    }

    /// Waits until the server holds no more sockets than this.
    #[track_caller]
    pub fn wait_for_connections(self, server: &Started) {
        self.until(server, |now| now.sockets <= self.sockets);
    }

    /// Waits until the server holds no more of anything. Idle threads of the ORB end after up to twice its idleThreadTimeout.
    #[track_caller]
    pub fn wait_for_all(self, server: &Started) {
        self.until(server, |now| {
            // The engine has no thread of its own: memory shared with the last client is freed when another client connects or closes.
            let shared = self.mappings.max(2);
            now.descriptors <= self.descriptors + 1 && now.threads <= self.threads && now.mappings <= shared
        });
    }

    #[track_caller]
    fn until(self, server: &Started, reached: impl Fn(Self) -> bool) {
        let began = Instant::now();
        while !reached(Self::of(server)) {
            assert!(began.elapsed() < TIMEOUT, "{:?}, before {self:?}", Self::of(server));
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Bytes that the adapter's connections sent over shared memory, and the number of these connections.
pub fn adapter_report(sandbox: &Sandbox) -> (u64, usize) {
    let report = std::fs::read_to_string(sandbox.path(REPORT)).unwrap_or_default();
    let fast = |line: &str| line.split_once("sent_fast=")?.1.split(' ').next()?.parse::<u64>().ok();
    let lines: Vec<&str> = report.lines().filter(|line| line.starts_with("adapter=omniorb ")).collect();
    (lines.iter().filter_map(|line| fast(line)).sum(), lines.len())
}

/// Runs a case with both policies, without and with Motet. The words `before` go before the commands of servers and of clients.
#[track_caller]
pub fn each_way(test: &str, before: [&[&str]; 2], case: impl Fn(&Case<'_>) -> String) -> Option<Counters> {
    each_way_with(test, Exclusive::WithMotet, before, case)
}

/// Runs a case with both policies, without and with Motet; `exclusive` says which runs have the CPUs to themselves.
#[track_caller]
pub fn each_way_with(
    test: &str,
    exclusive: Exclusive,
    before: [&[&str]; 2],
    case: impl Fn(&Case<'_>) -> String,
) -> Option<Counters> {
    let program = match built("omniorb_cases") {
        Ok(program) => program,
        Err(reason) => return skip(test, reason),
    };
    both_ways_with(test, &[], exclusive, |sandbox| {
        let run = |policy| case(&Case::new(sandbox, &program, policy, before));
        POLICIES.map(run).join("")
    })
}

/// Runs a case with both policies at the same time, without and with Motet: for cases that mostly wait.
#[track_caller]
pub fn each_way_at_once(test: &str, case: impl Fn(&Case<'_>) -> String + Sync) -> Option<Counters> {
    let program = match built("omniorb_cases") {
        Ok(program) => program,
        Err(reason) => return skip(test, reason),
    };
    both_ways_with(test, &[], Exclusive::Neither, |sandbox| {
        // Both are copied before one runs: a running program cannot be overwritten.
        let cases = POLICIES.map(|policy| Case::new(sandbox, &program, policy, [&[], &[]]));
        at_once(&cases, &case)
    })
}

/// Runs a case of `omniorb_ends` with both policies at the same time, without and with Motet: such cases mostly wait.
#[track_caller]
pub fn ends_each_way(
    test: &str,
    exclusive: Exclusive,
    options: &[(&str, &str)],
    case: impl Fn(&Case<'_>) -> String + Sync,
) -> Option<Counters> {
    let program = match built("omniorb_ends") {
        Ok(program) => program,
        Err(reason) => return skip(test, reason),
    };
    both_ways_with(test, &[], exclusive, |sandbox| ends(sandbox, &program, options, &case))
}

/// Runs a case of `omniorb_ends` as [`ends_each_way`] does, with gates that stay open.
#[track_caller]
pub fn ends_each_way_open(
    test: &str,
    exclusive: Exclusive,
    options: &[(&str, &str)],
    case: impl Fn(&Case<'_>) -> String + Sync,
) -> Option<Counters> {
    let program = match built("omniorb_ends") {
        Ok(program) => program,
        Err(reason) => return skip(test, reason),
    };
    both_ways_open(test, &[], exclusive, |sandbox| ends(sandbox, &program, options, &case))
}

fn ends(
    sandbox: &Sandbox,
    program: &Path,
    options: &[(&str, &str)],
    case: &(impl Fn(&Case<'_>) -> String + Sync),
) -> String {
    // Both are copied before one runs: a running program cannot be overwritten.
    let cases = POLICIES.map(|policy| Case { options, ..Case::new(sandbox, program, policy, [&[], &[]]) });
    at_once(&cases, |one| format!("policy {}\n{}", one.policy, case(one)))
}

/// Calls `run` for all items at the same time. Returns the outputs in the order of the items.
pub fn at_once<T: Sync>(all: &[T], run: impl Fn(&T) -> String + Sync) -> String {
    thread::scope(|scope| {
        let started: Vec<_> = all.iter().map(|one| scope.spawn(|| run(one))).collect();
        started.into_iter().map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// Removes the ORB's log lines, which contain times and ports.
pub fn without_logs(output: &str) -> String {
    output.lines().filter(|line| !line.starts_with("omniORB: ")).map(|line| format!("{line}\n")).collect()
}
