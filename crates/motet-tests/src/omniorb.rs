//! omniORB programs under the adapter of `adapters/omniorb`: how they are compiled, started and ended, for `tests/programs_omniorb*.rs`.

use crate::programs::{
    Alone, Counters, LIMIT, Stage, Started, both_ways_open, both_ways_with, builds, find, free_port, placed, skip,
};
use crate::{folder, script};
use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A thread for each connection, and a pool of them.
pub const POLICIES: [&str; 2] = ["1", "0"];
/// The file of a stage in which the adapters say what became of each connection.
pub const REPORT: &str = "adapters";

/// A program of `tests/programs`, `NAME.cc` with `NAME.idl`, compiled once; or why there is none.
///
/// # Errors
/// What is not installed.
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

/// One run: the program in its place, a port, a policy, and how every process of it is started.
#[derive(Debug)]
pub struct Scene<'a> {
    /// Where it takes place.
    pub stage: &'a Stage,
    /// The program's path.
    pub program: String,
    /// The server's.
    pub port: String,
    /// Of [`POLICIES`].
    pub policy: &'a str,
    /// Words in front of a server's and of a client's command.
    pub before: [&'a [&'a str]; 2],
    /// Options of the ORB for every process, as in its environment: `ORBname`.
    pub options: &'a [(&'a str, &'a str)],
}

impl<'a> Scene<'a> {
    /// A scene with a port of its own.
    pub fn new(stage: &'a Stage, program: &Path, policy: &'a str, before: [&'a [&'a str]; 2]) -> Self {
        Self { stage, program: placed(stage, program), port: free_port().to_string(), policy, before, options: &[] }
    }

    /// Starts the program with these words in front of it, and these behind it: the port comes second.
    pub fn start(&self, before: &[&str], words: &[&str]) -> Started {
        let report = self.stage.path(REPORT);
        let own =
            [("ORBthreadPerConnectionPolicy", self.policy), ("MOTET_OMNIORB", "on"), ("MOTET_SHIM_REPORT", &report)];
        let environment = [&own, self.options].concat();
        let own = [self.program.as_str(), words[0], &self.port];
        self.stage.start_with(&[before, &own, &words[1..]].concat(), &environment)
    }

    /// Another server of the same kind, on a port of its own.
    pub fn beside(&self) -> Self {
        Self { program: self.program.clone(), port: free_port().to_string(), ..*self }
    }

    /// A server that is ready.
    pub fn serve(&self) -> Started {
        self.serve_with(&[])
    }

    /// The same, with these words behind its command.
    pub fn serve_with(&self, words: &[&str]) -> Started {
        self.start(self.before[0], &[&["serve"], words].concat()).says("ready")
    }

    /// Starts a client.
    pub fn client(&self, words: &[&str]) -> Started {
        self.start(self.before[1], words)
    }

    /// What a client prints, which must succeed.
    pub fn told(&self, words: &[&str]) -> String {
        self.client(words).finish()
    }

    /// Has the server end, and waits for that.
    pub fn end(&self, server: Started) -> String {
        self.told(&["end"]);
        server.finish()
    }
}

/// What a server holds for its clients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Held {
    descriptors: usize,
    /// Of those.
    sockets: usize,
    threads: usize,
    /// Of shared memory.
    mappings: usize,
}

impl Held {
    /// What it holds now.
    pub fn by(server: &Started) -> Self {
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

    /// Waits until it holds no more connections than this, and goes on.
    #[track_caller]
    pub fn connections_again(self, server: &Started) {
        self.until(server, |now| now.sockets <= self.sockets);
    }

    /// Waits until it holds no more of anything, which takes as long as the ORB keeps threads that have nothing to do: twice its idleThreadTimeout.
    #[track_caller]
    pub fn all_again(self, server: &Started) {
        self.until(server, |now| {
            // The engine has no thread: what it shared with the last client goes when another one comes or goes.
            let shared = self.mappings.max(2);
            now.descriptors <= self.descriptors + 1 && now.threads <= self.threads && now.mappings <= shared
        });
    }

    #[track_caller]
    fn until(self, server: &Started, reached: impl Fn(Self) -> bool) {
        let began = Instant::now();
        while !reached(Self::by(server)) {
            assert!(began.elapsed() < LIMIT, "{:?}, before {self:?}", Self::by(server));
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Bytes that connections of the adapter sent over shared memory, and how many connections there were.
pub fn by_the_adapter(stage: &Stage) -> (u64, usize) {
    let report = std::fs::read_to_string(stage.path(REPORT)).unwrap_or_default();
    let fast = |line: &str| line.split_once("sent_fast=")?.1.split(' ').next()?.parse::<u64>().ok();
    let lines: Vec<&str> = report.lines().filter(|line| line.starts_with("adapter=omniorb ")).collect();
    (lines.iter().filter_map(|line| fast(line)).sum(), lines.len())
}

/// Runs the scene in both policies, without and with Motet, with these words in front of servers and clients.
#[track_caller]
pub fn each_way(test: &str, before: [&[&str]; 2], scene: impl Fn(&Scene<'_>) -> String) -> Option<Counters> {
    each_way_with(test, Alone::WithMotet, before, scene)
}

/// The same, with a word on which runs are alone.
#[track_caller]
pub fn each_way_with(
    test: &str,
    alone: Alone,
    before: [&[&str]; 2],
    scene: impl Fn(&Scene<'_>) -> String,
) -> Option<Counters> {
    let program = match built("omniorb_cases") {
        Ok(program) => program,
        Err(reason) => return skip(test, reason),
    };
    both_ways_with(test, &[], alone, |stage| {
        let run = |policy| scene(&Scene::new(stage, &program, policy, before));
        POLICIES.map(run).join("")
    })
}

/// The same in both policies at the same time, for scenes that are mostly waiting.
#[track_caller]
pub fn each_way_at_once(test: &str, scene: impl Fn(&Scene<'_>) -> String + Sync) -> Option<Counters> {
    let program = match built("omniorb_cases") {
        Ok(program) => program,
        Err(reason) => return skip(test, reason),
    };
    both_ways_with(test, &[], Alone::Neither, |stage| {
        // Both exist before one runs: a program that runs cannot be copied over.
        let scenes = POLICIES.map(|policy| Scene::new(stage, &program, policy, [&[], &[]]));
        at_once(&scenes, &scene)
    })
}

/// Runs a scene of `omniorb_ends` without and with Motet, in both policies at the same time: most of such a scene is waiting.
#[track_caller]
pub fn ends_each_way(
    test: &str,
    alone: Alone,
    options: &[(&str, &str)],
    scene: impl Fn(&Scene<'_>) -> String + Sync,
) -> Option<Counters> {
    let program = match built("omniorb_ends") {
        Ok(program) => program,
        Err(reason) => return skip(test, reason),
    };
    both_ways_with(test, &[], alone, |stage| ends(stage, &program, options, &scene))
}

/// The same with gates that stay open.
#[track_caller]
pub fn ends_each_way_open(
    test: &str,
    alone: Alone,
    options: &[(&str, &str)],
    scene: impl Fn(&Scene<'_>) -> String + Sync,
) -> Option<Counters> {
    let program = match built("omniorb_ends") {
        Ok(program) => program,
        Err(reason) => return skip(test, reason),
    };
    both_ways_open(test, &[], alone, |stage| ends(stage, &program, options, &scene))
}

fn ends(
    stage: &Stage,
    program: &Path,
    options: &[(&str, &str)],
    scene: &(impl Fn(&Scene<'_>) -> String + Sync),
) -> String {
    // Both exist before one runs: a program that runs cannot be copied over.
    let scenes = POLICIES.map(|policy| Scene { options, ..Scene::new(stage, program, policy, [&[], &[]]) });
    at_once(&scenes, |one| format!("policy {}\n{}", one.policy, scene(one)))
}

/// What all of them tell, in their order, while they run at the same time.
pub fn at_once<T: Sync>(all: &[T], run: impl Fn(&T) -> String + Sync) -> String {
    thread::scope(|scope| {
        let started: Vec<_> = all.iter().map(|one| scope.spawn(|| run(one))).collect();
        started.into_iter().map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// What the ORB itself logs has times and ports in it.
pub fn without_logs(told: &str) -> String {
    told.lines().filter(|line| !line.starts_with("omniORB: ")).map(|line| format!("{line}\n")).collect()
}
