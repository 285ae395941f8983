//! omniORB programs under the adapter of `adapters/omniorb`: how they are compiled, started and ended, for `tests/programs_omniorb*.rs`.

use crate::programs::{Counters, Stage, Started, both_ways, builds, find, free_port, placed, skip};
use crate::{folder, script};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A thread for each connection, and a pool of them.
pub const POLICIES: [&str; 2] = ["1", "0"];
/// The file of a stage in which the voices say what became of each connection.
pub const REPORT: &str = "voices";

/// The program for these tests, compiled once; or why there is none.
pub fn cases() -> Result<&'static Path, &'static str> {
    static BUILT: OnceLock<Result<PathBuf, &str>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        if find("omniidl").is_none() || !Path::new("/usr/include/omniORB4/CORBA.h").exists() {
            return Err("omniORB is not installed (examples/coupling/packages.txt)");
        }
        let folder = folder("omniorb-cases");
        for ending in ["idl", "cc"] {
            let name = format!("omniorb_cases.{ending}");
            std::fs::copy(script(&name), folder.join(&name)).expect("a copy of the source");
        }
        for step in builds::omniorb(folder.to_str().expect("UTF-8"), "omniorb_cases") {
            let output = Command::new(&step[0]).args(&step[1..]).output().expect("a compiler");
            assert!(output.status.success(), "{step:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(folder.join("omniorb_cases"))
    });
    built.as_deref().map_err(|reason| *reason)
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
}

impl<'a> Scene<'a> {
    /// A scene with a port of its own.
    pub fn new(stage: &'a Stage, program: &Path, policy: &'a str, before: [&'a [&'a str]; 2]) -> Self {
        Self { stage, program: placed(stage, program), port: free_port().to_string(), policy, before }
    }

    /// Starts the program with these words in front of it, and these behind it: the port comes second.
    pub fn start(&self, before: &[&str], words: &[&str]) -> Started {
        let report = self.stage.path(REPORT);
        let environment =
            [("ORBthreadPerConnectionPolicy", self.policy), ("MOTET_OMNIORB", "on"), ("MOTET_SHIM_REPORT", &report)];
        let own = [self.program.as_str(), words[0], &self.port];
        self.stage.start_with(&[before, &own, &words[1..]].concat(), &environment)
    }

    /// A server that is ready.
    pub fn serve(&self) -> Started {
        self.start(self.before[0], &["serve"]).says("ready")
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

/// Bytes that connections of the adapter sent over shared memory, and how many connections there were.
pub fn by_the_adapter(stage: &Stage) -> (u64, usize) {
    let report = std::fs::read_to_string(stage.path(REPORT)).unwrap_or_default();
    let fast = |line: &str| line.split_once("sent_fast=")?.1.split(' ').next()?.parse::<u64>().ok();
    let lines: Vec<&str> = report.lines().filter(|line| line.starts_with("voice=omniorb ")).collect();
    (lines.iter().filter_map(|line| fast(line)).sum(), lines.len())
}

/// Runs the scene in both policies, plainly and under Motet, with these words in front of servers and clients.
#[track_caller]
pub fn each_way(test: &str, before: [&[&str]; 2], scene: impl Fn(&Scene<'_>) -> String) -> Option<Counters> {
    let program = match cases() {
        Ok(program) => program,
        Err(reason) => return skip(test, reason),
    };
    both_ways(test, &[], |stage| {
        let run = |policy| scene(&Scene::new(stage, program, policy, before));
        POLICIES.map(run).join("")
    })
}
