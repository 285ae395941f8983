//! Which MPI libraries there are, and how each starts ranks by itself and on Motet.
//!
//! The list is [`LIBRARIES`]: a further library is a line there and one of `motet_programs::mpi`.

use crate::bench::Bench;
use crate::ending;
use crate::messages::contenders::{Contender, Ranks, SOURCES};
use anyhow::{Context, Result, bail};
use motet_programs::builds;
use motet_programs::mpi::{INTEL, MPICH, Mpi, OPEN_MPI_4, OPEN_MPI_5};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A library, and what its contenders are called.
pub struct Known {
    /// As `motet_programs::mpi` calls it.
    pub name: &'static str,
    /// On what it chooses itself.
    pub own: &'static str,
    /// On Motet.
    pub ours: &'static str,
    /// On its own TCP between hosts; nothing where that is no peer.
    pub tcp: Option<&'static str>,
    /// With ranks that yield; nothing where that is no peer.
    pub yields: Option<&'static str>,
    /// What is asked in the environment of what it chooses itself.
    environment: &'static [(&'static str, &'static str)],
    /// Whether it is Open MPI.
    open: bool,
}

/// All of them.
pub const LIBRARIES: [Known; 4] = [
    Known {
        name: OPEN_MPI_4,
        own: "Open MPI 4",
        ours: "Open MPI 4 on Motet",
        tcp: Some("Open MPI 4, its own tcp"),
        yields: Some("Open MPI 4, yielding"),
        environment: &[],
        open: true,
    },
    Known {
        name: OPEN_MPI_5,
        own: "Open MPI 5",
        ours: "Open MPI 5 on Motet",
        tcp: Some("Open MPI 5, its own tcp"),
        yields: Some("Open MPI 5, yielding"),
        environment: &[],
        open: true,
    },
    Known {
        name: MPICH,
        own: "MPICH 5",
        ours: "MPICH 5 on Motet",
        tcp: None,
        yields: None,
        environment: &[],
        open: false,
    },
    Known {
        name: INTEL,
        own: "Intel MPI, shm",
        ours: "Intel MPI on Motet",
        tcp: None,
        yields: None,
        environment: &[("I_MPI_FABRICS", "shm")],
        open: false,
    },
];

/// The same library over UCX: the fastest that Debian's can be.
const OPEN_MPI_4_UCX: &str = "Open MPI 4, UCX";
/// Ranks choose their own CPUs.
const UNBOUND: [&str; 2] = ["--bind-to", "none"];
/// Its own protocols over its own TCP.
const OWN_TCP: [&str; 6] = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"];

/// One that is installed.
pub struct Library {
    /// What it is called.
    pub known: &'static Known,
    mpi: Mpi,
    /// `mpi_messages.c` and `crowd.c`, compiled for it.
    programs: [PathBuf; 2],
}

/// Those that are installed, with their programs.
pub struct Libraries {
    /// In the order in which they are measured.
    pub all: Vec<Library>,
    /// Those that are missing, with the reason.
    pub missing: Vec<(&'static str, String)>,
    /// The command; an error says why nothing can be run on Motet.
    motet: Result<PathBuf, String>,
    folder: TempDir,
}

/// Which program ranks run.
#[derive(Clone, Copy)]
enum Runs {
    Messages,
    Crowd,
}

impl Libraries {
    /// Builds the programs for all that are installed.
    pub fn find(bench: &Bench) -> Result<Self> {
        let folder = ending::folder()?;
        let crowd = [("crowd.c", include_str!("../../../../tests/mpi/crowd.c"))];
        let node = [("node.h", include_str!("../../../../tests/mpi/node.h"))];
        for (name, text) in SOURCES.iter().chain(&crowd).chain(&node) {
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

    /// A file in the folder of the programs.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// All contenders on this host.
    pub fn contenders(&self) -> Vec<Contender> {
        let mut all = Vec::new();
        for library in &self.all {
            all.extend(self.on_motet(library, &[], &[]));
            all.push(Contender::of_ranks(library.known.own, false, self.plain(library, Runs::Messages, &[], &[])));
            if library.known.name == OPEN_MPI_4 {
                let ranks = self.plain(library, Runs::Messages, &[], &builds::OPEN_MPI_UCX);
                all.push(Contender::of_ranks(OPEN_MPI_4_UCX, false, ranks));
            }
        }
        all
    }

    /// Those between two hosts: `before` runs a command on the first, `agent` one on any of them.
    pub fn between(&self, before: &[String], agent: &Path, hosts: &str) -> Vec<Contender> {
        let mut all = Vec::new();
        for library in &self.all {
            let across = library.mpi.across(&agent.to_string_lossy(), hosts);
            let across: Vec<&str> = across.iter().map(String::as_str).collect();
            all.extend(self.on_motet(library, before, &across));
            if let Some(name) = library.known.tcp {
                let more = [&across[..], &OWN_TCP].concat();
                all.push(Contender::of_ranks(name, false, self.plain(library, Runs::Messages, before, &more)));
            }
        }
        all
    }

    /// Those of a crowd: what each is called, whether it is ours, and how its ranks start.
    pub fn crowds(&self) -> Vec<(&'static str, bool, Ranks)> {
        let mut all = Vec::new();
        for library in &self.all {
            let ours = self.by_motet(library, Runs::Crowd, &[], &[]).map(|ranks| (library.known.ours, true, ranks));
            all.extend(ours);
            if let Some(name) = library.known.yields {
                all.push((name, false, self.plain(library, Runs::Crowd, &[], &builds::OPEN_MPI_YIELDS)));
            }
        }
        all
    }

    /// Open MPI 4 under Motet and by itself: what comes before the number of ranks.
    pub fn open_mpi_twice(&self) -> Result<[Vec<String>; 2]> {
        let library = self.all.iter().find(|library| library.known.name == OPEN_MPI_4);
        let library = library.context("skipped: Open MPI 4 is not installed")?;
        let ours = self.by_motet(library, Runs::Messages, &[], &[]).context("skipped: there is no MPI on Motet")?;
        Ok([ours.launcher, self.plain(library, Runs::Messages, &[], &[]).launcher])
    }

    fn on_motet(&self, library: &Library, before: &[String], more: &[&str]) -> Option<Contender> {
        let ranks = self.by_motet(library, Runs::Messages, before, more)?;
        Some(Contender::of_ranks(library.known.ours, true, ranks))
    }

    fn by_motet(&self, library: &Library, runs: Runs, before: &[String], more: &[&str]) -> Option<Ranks> {
        let motet = self.motet.as_ref().ok()?.to_string_lossy().into_owned();
        let run = [&motet, "run", "--set", "mpi=on", "--"].map(str::to_owned);
        let ranks = self.plain(library, runs, &[before, &run].concat(), more);
        Some(Ranks { environment: vec![("TMPDIR", self.folder.path().into())], ..ranks })
    }

    fn plain(&self, library: &Library, runs: Runs, before: &[String], more: &[&str]) -> Ranks {
        let bound: &[&str] = if library.known.open { &UNBOUND } else { &[] };
        let launcher = library.mpi.launcher_with(&[more, bound].concat());
        // What it leaves behind goes with our folder.
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
    fn build(known: &'static Known, tools: Option<&Path>, at: &Path) -> Result<Self> {
        let mpi = Mpi::find(known.name, tools.unwrap_or(Path::new("/nowhere")));
        let mpi = mpi.with_context(|| format!("skipped: {} is not installed (scripts/setup --tests)", known.name))?;
        let build = |source: &str| -> Result<PathBuf> {
            let program = at.join(format!("{source}-{}", known.name.replace(' ', "-")));
            let mut compiler = mpi.compiler(&at.join(format!("{source}.c")), &program);
            let output = ending::output(compiler.env("TMPDIR", at).env_remove("LD_PRELOAD"))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                bail!("its compiler failed: {}", said.lines().find(|line| line.contains("error")).unwrap_or_default());
            }
            Ok(program)
        };
        let programs = [build("mpi_messages")?, build("crowd")?];
        Ok(Self { known, mpi, programs })
    }
}

/// Where `scripts/setup --tests` puts libraries of PyPI: in the source tree that this executable belongs to, or that it is started in.
fn tools() -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    let roots = [Path::new(".")].into_iter().chain(executable.ancestors().skip(1).take(4));
    roots.map(|root| root.join("target/tools/mpi")).find(|folder| folder.exists())?.canonicalize().ok()
}

/// `motet`, beside this executable or beside the libraries, with its provider.
fn command(bench: &Bench) -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("motet");
    let motet = if beside.exists() { beside } else { bench.find("motet")? };
    bench.find("libfabric/libmotet-fi.so").context("skipped: the provider is not built (libfabric-dev)")?;
    Ok(motet)
}
