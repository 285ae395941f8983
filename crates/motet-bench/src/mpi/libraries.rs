//! The MPI libraries, and how each starts ranks without Motet and on Motet.
//!
//! The list is [`LIBRARIES`]: a further library is a line there and one of `motet_programs::mpi`.

use crate::bench::Bench;
use crate::cleanup;
use crate::messages::peers::{Peer, Ranks, SOURCES};
use anyhow::{Context, Result, bail};
use motet_programs::builds;
use motet_programs::mpi::{INTEL, MPICH, Mpi, OPEN_MPI_4, OPEN_MPI_5};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A library, with the names of its peers.
pub struct KnownLibrary {
    /// Its name in `motet_programs::mpi`.
    pub name: &'static str,
    /// The peer on the transport that it chooses itself.
    pub without_motet: &'static str,
    /// The peer on Motet.
    pub with_motet: &'static str,
    /// The peer on its own TCP between hosts, if it takes part.
    pub tcp: Option<&'static str>,
    /// The peer with ranks that yield, if it takes part.
    pub yields: Option<&'static str>,
    /// Environment variables of the peer without Motet.
    environment: &'static [(&'static str, &'static str)],
    /// Whether it is Open MPI.
    open: bool,
}

/// All libraries.
pub const LIBRARIES: [KnownLibrary; 4] = [
    KnownLibrary {
        name: OPEN_MPI_4,
        without_motet: "Open MPI 4",
        with_motet: "Open MPI 4 on Motet",
        tcp: Some("Open MPI 4, its own tcp"),
        yields: Some("Open MPI 4, yielding"),
        environment: &[],
        open: true,
    },
    KnownLibrary {
        name: OPEN_MPI_5,
        without_motet: "Open MPI 5",
        with_motet: "Open MPI 5 on Motet",
        tcp: Some("Open MPI 5, its own tcp"),
        yields: Some("Open MPI 5, yielding"),
        environment: &[],
        open: true,
    },
    KnownLibrary {
        name: MPICH,
        without_motet: "MPICH 5",
        with_motet: "MPICH 5 on Motet",
        tcp: None,
        yields: None,
        environment: &[],
        open: false,
    },
    KnownLibrary {
        name: INTEL,
        without_motet: "Intel MPI, shm",
        with_motet: "Intel MPI on Motet",
        tcp: None,
        yields: None,
        environment: &[("I_MPI_FABRICS", "shm")],
        open: false,
    },
];

/// Open MPI 4 over UCX, the fastest transport in Debian's build.
const OPEN_MPI_4_UCX: &str = "Open MPI 4, UCX";
/// Ranks choose their own CPUs.
const UNBOUND: [&str; 2] = ["--bind-to", "none"];
/// Open MPI over its own TCP.
const OWN_TCP: [&str; 6] = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"];

/// An installed library.
pub struct Library {
    /// Its names.
    pub known: &'static KnownLibrary,
    mpi: Mpi,
    /// `mpi_messages.c` and `oversubscribed.c`, compiled for it.
    programs: [PathBuf; 2],
}

/// The installed libraries, with their programs.
pub struct Libraries {
    /// In the order in which they are measured.
    pub all: Vec<Library>,
    /// Libraries that are missing, with the reason.
    pub missing: Vec<(&'static str, String)>,
    /// The command; an error says why nothing can be run on Motet.
    motet: Result<PathBuf, String>,
    folder: TempDir,
}

/// The program that ranks run.
#[derive(Clone, Copy)]
enum RankProgram {
    Messages,
    Oversubscribed,
}

impl Libraries {
    /// Builds the programs for all installed libraries.
    pub fn find(bench: &Bench) -> Result<Self> {
        let folder = cleanup::folder()?;
        let oversubscribed = [("oversubscribed.c", include_str!("../../../../tests/mpi/oversubscribed.c"))];
        let node = [("node.h", include_str!("../../../../tests/mpi/node.h"))];
        for (name, text) in SOURCES.iter().chain(&oversubscribed).chain(&node) {
            std::fs::write(folder.path().join(name), text)?;
        }
        let (mut all, mut missing) = (Vec::new(), Vec::new());
        let tools = tools();
        for known in &LIBRARIES {
            match Library::build(known, tools.as_deref(), folder.path()) {
                Ok(library) => all.push(library),
                Err(error) => missing.push((known.name, format!("{error:#}"))),
            }
        }
        let motet = command(bench).map_err(|error| format!("{error:#}"));
        if let Err(why) = &motet {
            missing.push(("everything on Motet", why.clone()));
        }
        for (name, why) in &missing {
            eprintln!("{name}: {why}");
        }
        Ok(Self { all, missing, motet, folder })
    }

    /// The path of a file in the folder of the programs.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// All peers on this host.
    pub fn peers(&self) -> Vec<Peer> {
        let mut all = Vec::new();
        for library in &self.all {
            all.extend(self.peer_on_motet(library, &[], &[]));
            all.push(Peer::of_ranks(
                library.known.without_motet,
                false,
                self.ranks_without_motet(library, RankProgram::Messages, &[], &[]),
            ));
            if library.known.name == OPEN_MPI_4 {
                let ranks = self.ranks_without_motet(library, RankProgram::Messages, &[], &builds::OPEN_MPI_UCX);
                all.push(Peer::of_ranks(OPEN_MPI_4_UCX, false, ranks));
            }
        }
        all
    }

    /// The peers between two hosts. `before` runs a command on the first host, `agent` on any of them.
    pub fn between(&self, before: &[String], agent: &Path, hosts: &str) -> Vec<Peer> {
        let mut all = Vec::new();
        for library in &self.all {
            let across = library.mpi.across(&agent.to_string_lossy(), hosts);
            let across: Vec<&str> = across.iter().map(String::as_str).collect();
            all.extend(self.peer_on_motet(library, before, &across));
            if let Some(name) = library.known.tcp {
                let more = [&across[..], &OWN_TCP].concat();
                all.push(Peer::of_ranks(
                    name,
                    false,
                    self.ranks_without_motet(library, RankProgram::Messages, before, &more),
                ));
            }
        }
        all
    }

    /// The libraries with more ranks than CPUs: a name, whether Motet carries them, and how ranks start.
    pub fn oversubscribed(&self) -> Vec<(&'static str, bool, Ranks)> {
        let mut all = Vec::new();
        for library in &self.all {
            let ours = self
                .ranks_on_motet(library, RankProgram::Oversubscribed, &[], &[])
                .map(|ranks| (library.known.with_motet, true, ranks));
            all.extend(ours);
            if let Some(name) = library.known.yields {
                all.push((
                    name,
                    false,
                    self.ranks_without_motet(library, RankProgram::Oversubscribed, &[], &builds::OPEN_MPI_YIELDS),
                ));
            }
        }
        all
    }

    /// The launchers of Open MPI 4 with Motet and without: the words before the number of ranks.
    pub fn open_mpi_launchers(&self) -> Result<[Vec<String>; 2]> {
        let library = self.all.iter().find(|library| library.known.name == OPEN_MPI_4);
        let library = library.context("skipped: Open MPI 4 is not installed")?;
        let ours = self
            .ranks_on_motet(library, RankProgram::Messages, &[], &[])
            .context("skipped: there is no MPI on Motet")?;
        Ok([ours.launcher, self.ranks_without_motet(library, RankProgram::Messages, &[], &[]).launcher])
    }

    fn peer_on_motet(&self, library: &Library, before: &[String], more: &[&str]) -> Option<Peer> {
        let ranks = self.ranks_on_motet(library, RankProgram::Messages, before, more)?;
        Some(Peer::of_ranks(library.known.with_motet, true, ranks))
    }

    fn ranks_on_motet(&self, library: &Library, runs: RankProgram, before: &[String], more: &[&str]) -> Option<Ranks> {
        let motet = self.motet.as_ref().ok()?.to_string_lossy().into_owned();
        let run = [&motet, "run", "--set", "mpi=on", "--"].map(str::to_owned);
        let ranks = self.ranks_without_motet(library, runs, &[before, &run].concat(), more);
        Some(Ranks { environment: vec![("TMPDIR", self.folder.path().into())], ..ranks })
    }

    fn ranks_without_motet(&self, library: &Library, runs: RankProgram, before: &[String], more: &[&str]) -> Ranks {
        let bound: &[&str] = if library.known.open { &UNBOUND } else { &[] };
        let launcher = library.mpi.launcher_with(&[more, bound].concat());
        // Its temporary files go into the folder, which is removed.
        let mut environment: Vec<(&str, OsString)> = vec![("TMPDIR", self.folder.path().into())];
        environment.extend(library.known.environment.iter().map(|&(name, value)| (name, value.into())));
        Ranks {
            launcher: [before, &launcher].concat(),
            yields: &[],
            program: library.programs[runs as usize].clone().into_os_string(),
            mpi: Some(library.mpi.clone()),
            environment,
        }
    }
}

impl Library {
    fn build(known: &'static KnownLibrary, tools: Option<&Path>, at: &Path) -> Result<Self> {
        let mpi = Mpi::find(known.name, tools.unwrap_or(Path::new("/nowhere")));
        let mpi = mpi.with_context(|| format!("skipped: {} is not installed (scripts/setup --tests)", known.name))?;
        let build = |source: &str| -> Result<PathBuf> {
            let program = at.join(format!("{source}-{}", known.name.replace(' ', "-")));
            let mut compiler = mpi.compiler(&at.join(format!("{source}.c")), &program);
            let output = cleanup::output(compiler.env("TMPDIR", at).env_remove("LD_PRELOAD"))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                bail!("the compiler failed: {}", said.lines().find(|line| line.contains("error")).unwrap_or_default());
            }
            Ok(program)
        };
        let programs = [build("mpi_messages")?, build("oversubscribed")?];
        Ok(Self { known, mpi, programs })
    }
}

/// The folder of libraries from PyPI that `scripts/setup --tests` makes, in the source tree of this executable or of the current folder.
fn tools() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    let roots = [Path::new(".")].into_iter().chain(executable.ancestors().skip(1).take(4));
    roots.map(|root| root.join("target/tools/mpi")).find(|folder| folder.exists())?.canonicalize().ok()
}

/// The command `motet`, beside this executable or beside the libraries, if the libfabric provider is built.
fn command(bench: &Bench) -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("motet");
    let motet = if beside.exists() { beside } else { bench.find("motet")? };
    bench.find("libfabric/libmotet-fi.so").context("skipped: the provider is not built (libfabric-dev)")?;
    Ok(motet)
}
