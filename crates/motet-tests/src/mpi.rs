//! MPI libraries (`motet_programs::mpi`) in tests: a missing library is skipped with a message, and one job runs at a time.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

pub use motet_programs::mpi::{INTEL, MPICH, MPICH_BY_UCX, OPEN_MPI_4, OPEN_MPI_5};

/// Time limit of a job in seconds.
const TIMEOUT_SECONDS: &str = "240";

/// An MPI library that is installed.
#[derive(Debug, Clone)]
pub struct Mpi(motet_programs::mpi::Mpi);

impl Deref for Mpi {
    type Target = motet_programs::mpi::Mpi;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Finds these libraries. Prints a message for each that is missing.
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

/// Prints that a test, or a part of it, is skipped.
pub fn skip(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// The folder of the libfabric provider. `None`, with a message, if it is not built.
pub fn provider(test: &str) -> Option<PathBuf> {
    let folder = crate::engine()?.parent()?.join("libfabric");
    let built = folder.join("libmotet-fi.so").exists();
    if !built {
        skip(test, "libfabric/libmotet-fi.so is not built (make build, libfabric-dev)");
    }
    built.then_some(folder)
}

impl Mpi {
    /// Compiles a program of `tests/mpi`, once per test process. The program is moved into place when it is complete, because another test may be
    /// about to start it.
    pub fn compile(&self, name: &str) -> PathBuf {
        static COMPILED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
        let mut done = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// `motet run OPTIONS -- WORDS`, with an environment without MPI variables but those that the library needs.
    pub fn run(&self, motet: &Path, options: &[&str], words: &[String]) -> Command {
        let mut command = Command::new("timeout");
        command.arg(TIMEOUT_SECONDS).arg(motet).arg("run").args(options).arg("--").args(words);
        self.set_environment(&mut command);
        command
    }
}

/// Held while a job runs: ranks poll, and one job may already have more ranks than there are CPUs.
static ONE_JOB: Mutex<()> = Mutex::new(());

/// Runs a job exclusively. Returns its output; it must succeed.
#[track_caller]
pub fn output(command: &mut Command) -> String {
    let _exclusive = ONE_JOB.lock().unwrap_or_else(PoisonError::into_inner);
    printed(&command.output().expect("timeout"))
}

/// The output of a job, which must have succeeded.
#[track_caller]
pub fn printed(ran: &Output) -> String {
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{}: {said}{}", ran.status, String::from_utf8_lossy(&ran.stderr));
    said
}

/// Runs several jobs at the same time, under the lock of [`output`].
pub fn exclusively<R>(jobs: impl FnOnce() -> R) -> R {
    let _exclusive = ONE_JOB.lock().unwrap_or_else(PoisonError::into_inner);
    jobs()
}
