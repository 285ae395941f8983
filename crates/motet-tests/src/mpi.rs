//! MPI libraries (`motet_programs::mpi`) in tests: skipped loudly where they are missing, one job at a time, under `motet run` without a
//! further word.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

pub use motet_programs::mpi::{INTEL, MPICH, MPICH_BY_UCX, OPEN_MPI_4, OPEN_MPI_5};

/// Seconds after which a job has hung.
const LIMIT: &str = "240";

/// An MPI library that is installed.
#[derive(Debug, Clone)]
pub struct Mpi(motet_programs::mpi::Mpi);

impl Deref for Mpi {
    type Target = motet_programs::mpi::Mpi;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Says of those that are missing that they are skipped.
pub fn installed(test: &str, names: &[&'static str]) -> Vec<Mpi> {
    let tools = root().join("target/tools/mpi");
    let found = names.iter().filter_map(|name| {
        let mpi = motet_programs::mpi::Mpi::find(name, &tools).map(Mpi);
        if mpi.is_none() {
            skip(test, &format!("{name} is not installed (scripts/setup --tests)"));
        }
        mpi
    });
    found.collect()
}

/// Says, loudly, that a test or a part of it is left out.
pub fn skip(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
}

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

impl Mpi {
    /// A program of `tests/mpi`; compiled once per test process, and put in its place when it is whole: another test may be about to start it.
    pub fn compile(&self, name: &str) -> PathBuf {
        static DONE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
        let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        let program = crate::folder(&format!("mpi-{}", self.name.replace(' ', "-"))).join(name);
        if done.contains(&program) {
            return program;
        }
        let source = root().join("tests/mpi").join(format!("{name}.c"));
        let fresh = program.with_extension(std::process::id().to_string());
        let compiled = self.compiler(&source, &fresh).output().expect("a compiler");
        assert!(compiled.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&compiled.stderr));
        std::fs::rename(&fresh, &program).expect("the compiled program in its place");
        done.insert(program.clone());
        program
    }

    /// `motet run … -- WORDS`, with nothing of MPI's in the environment but what the library needs to run at all.
    pub fn run(&self, motet: &Path, options: &[&str], words: &[String]) -> Command {
        let mut command = Command::new("timeout");
        command.arg(LIMIT).arg(motet).arg("run").args(options).arg("--").args(words);
        self.equip(&mut command);
        command
    }
}

/// One job at a time: ranks poll, and there may be more of them than CPUs already.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs it, alone; what it printed, if it succeeded.
#[track_caller]
pub fn output(command: &mut Command) -> String {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    printed(&command.output().expect("timeout"))
}

/// What a run printed, if it succeeded.
#[track_caller]
pub fn printed(ran: &Output) -> String {
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{}: {said}{}", ran.status, String::from_utf8_lossy(&ran.stderr));
    said
}

/// Several jobs at once, each with the lock that [`output`] takes.
pub fn alone<R>(jobs: impl FnOnce() -> R) -> R {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    jobs()
}
