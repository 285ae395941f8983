//! The libraries that take part, Motet among them, and how both ends of each are started.
//!
//! The list is [`Peers::find`]: a further library is a line there. Ends are a *pair* of programs that speak the protocol of
//! `tests/bench/peer.h` (`serve`, `call HOST PORT SIZES MS`; of the part `server` also `serve CLIENTS SIZE MS`), or *ranks* that a
//! launcher starts. Each prints a line `MEDIAN MEAN COUNT` for each size.

use super::shape::Shape;
use super::{CLIENTS, Part};
use crate::bench::Bench;
use crate::cleanup;
use crate::pair::{Process, Program, Server, caller, parse};
use crate::place::Placement::{self, Free, One, Two};
use anyhow::{Result, bail};
use motet_programs::mpi::Mpi;
use motet_programs::{builds, find};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// The peers that are Motet: nodes, which have targets, and the FIFOs below them.
pub const NODES: &str = "Motet";
const FIFOS: &str = "Motet, FIFOs alone";

/// The measuring programs, with the headers that they include.
pub const SOURCES: [(&str, &str); 6] = [
    ("peer.h", include_str!("../../../../tests/bench/peer.h")),
    ("messages.h", include_str!("../../../../tests/bench/messages.h")),
    ("bootstrap.h", include_str!("../../../../tests/bench/bootstrap.h")),
    ("mpi_messages.c", include_str!("../../../../tests/bench/mpi_messages.c")),
    ("ucx_messages.c", include_str!("../../../../tests/bench/ucx_messages.c")),
    ("fabric_messages.c", include_str!("../../../../tests/bench/fabric_messages.c")),
];

/// A library that takes part.
pub struct Peer {
    /// Its name in lines and curves, without its shape.
    pub name: &'static str,
    /// Whether it is Motet, or a library on Motet.
    pub ours: bool,
    /// The variant of the pattern that its ranks run.
    pub shape: Shape,
    places: &'static [Placement],
    ends: Ends,
}

enum Ends {
    /// The program of a part, if there is one, and the largest message that it carries.
    Pair { program: Box<dyn Fn(Part) -> Option<Program>>, max_size: usize },
    /// Ranks of MPI.
    Ranks(Ranks),
}

/// Ranks that a launcher starts.
pub struct Ranks {
    /// The words of the launcher, without the number of ranks.
    pub launcher: Vec<String>,
    /// The words that make ranks yield.
    pub yields: &'static [&'static str],
    /// `mpi_messages.c`, compiled for them.
    pub program: OsString,
    /// The library, for its environment; `None` for those of Debian, which only need to know that root may start them.
    pub mpi: Option<Mpi>,
    /// Further environment variables.
    pub environment: Vec<(&'static str, OsString)>,
}

/// All libraries that take part.
#[derive(Default)]
pub struct Peers {
    /// In the order in which they are measured.
    pub all: Vec<Peer>,
    /// Libraries that are missing, with the reason.
    pub missing: Vec<(&'static str, String)>,
    /// The folder of the programs and of files that launchers leave.
    _folder: Option<TempDir>,
}

impl Peers {
    /// Builds the programs of all libraries that are installed.
    pub fn find(bench: &Bench) -> Result<Self> {
        let folder = cleanup::folder()?;
        for (name, text) in SOURCES {
            std::fs::write(folder.path().join(name), text)?;
        }
        let at = folder.path();
        let ranks = |name, mpi, more: &[&str]| (name, ranks(at, mpi, more).map(Ends::Ranks));
        let found = [
            (NODES, Ok(nodes(bench))),
            (FIFOS, Ok(fifos(bench))),
            ("UCX", pair(at, "ucx", "ucp/api/ucp.h", "libucx-dev", &["-lucp", "-lucs"])),
            ("libfabric shm", pair(at, "fabric", "rdma/fi_tagged.h", "libfabric-dev", &["-lfabric"])),
            ranks("Open MPI", DebianMpi::OpenMpi, &[]),
            ranks("Open MPI, pml ob1", DebianMpi::OpenMpi, &builds::OPEN_MPI_OB1),
            ranks("Open MPI, pml ucx", DebianMpi::OpenMpi, &builds::OPEN_MPI_UCX),
            ranks("MPICH", DebianMpi::Mpich, &[]),
        ];
        let (mut all, mut missing) = (Vec::new(), Vec::new());
        for (name, ends) in found {
            match ends {
                Ok(ends) => {
                    // Motet is meant for two CPUs.
                    let ours = [NODES, FIFOS].contains(&name);
                    let places: &[Placement] = if ours { &[Two] } else { &[Two, One] };
                    all.push(Peer { name, ours, shape: Shape::Plain, places, ends });
                }
                Err(error) => {
                    eprintln!("{name}: {error:#}");
                    missing.push((name, format!("{error:#}")));
                }
            }
        }
        Ok(Self { all, missing, _folder: Some(folder) })
    }
}

/// Nodes, each for the thread that made it, with tagged messages, as the other libraries.
fn nodes(bench: &Bench) -> Ends {
    let worker = |what| bench.worker(&["node", "tagged-one", what]);
    let [ping, windows, cold, server] = ["ping", "windows", "cold", "server"].map(worker);
    let program = move |part| match part {
        Part::Latency => Some(ping.clone()),
        Part::Rate | Part::Bandwidth => Some(windows.clone()),
        Part::Cold => Some(cold.clone()),
        Part::Server => Some(server.clone()),
        _ => None,
    };
    Ends::Pair { program: Box::new(program), max_size: usize::MAX }
}

/// FIFOs without the engine: packets of up to 4 KiB there and back, and one way.
fn fifos(bench: &Bench) -> Ends {
    let (ping, rate) = (bench.worker(&["fifo", "ping"]), bench.worker(&["fifo", "rate"]));
    let program = move |part| match part {
        Part::Latency => Some(ping.clone()),
        Part::Rate => Some(rate.clone()),
        _ => None,
    };
    Ends::Pair { program: Box::new(program), max_size: motet_wire::message::fifo::MAX_PACKET }
}

/// A pair of processes of `NAME_messages.c`.
fn pair(at: &Path, name: &str, header: &str, package: &str, libraries: &[&str]) -> Result<Ends> {
    let (machine, usual) = (format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH), "/usr/include");
    if ![&machine, usual].iter().any(|folder| Path::new(folder).join(header).exists()) {
        bail!("skipped: {package} is not installed");
    }
    build(at, &builds::messages(libraries, &format!("{name}_messages.c"), name))?;
    let program = at.join(name).into_os_string();
    let of = move |part: Part| Some(Program { words: vec![program.clone(), part.word().into()], ..Program::default() });
    Ok(Ends::Pair { program: Box::new(of), max_size: usize::MAX })
}

#[derive(Clone, Copy, PartialEq)]
enum DebianMpi {
    OpenMpi,
    Mpich,
}

/// Ranks of one MPI of Debian, by the names of that MPI and not by `mpicc` and `mpirun`.
fn ranks(at: &Path, mpi: DebianMpi, more: &[&str]) -> Result<Ranks> {
    let (compiler, launcher, yields): (_, &[&str], &[&str]) = match mpi {
        DebianMpi::OpenMpi => ("mpicc.openmpi", &builds::OPEN_MPI, &builds::OPEN_MPI_YIELDS),
        DebianMpi::Mpich => ("mpicc.mpich", &builds::MPICH, &[]), // its ranks have no such option
    };
    for program in [compiler, launcher[0]] {
        if find(program).is_none() {
            bail!("skipped: {program} is not installed");
        }
    }
    let program = at.join(compiler.replace("mpicc", "mpi"));
    if !program.exists() {
        build(at, &builds::mpi_messages(compiler, "mpi_messages.c", &program.to_string_lossy()))?;
    }
    let mut launcher: Vec<String> = launcher.iter().chain(more).map(|word| (*word).to_owned()).collect();
    if mpi == DebianMpi::OpenMpi {
        // Its temporary files go into the folder, which is removed.
        launcher.extend(["--mca", "orte_tmpdir_base", &at.to_string_lossy()].map(str::to_owned));
    }
    Ok(Ranks { launcher, yields, program: program.into_os_string(), mpi: None, environment: Vec::new() })
}

fn build(at: &Path, words: &[String]) -> Result<()> {
    let mut command = Command::new(&words[0]);
    let output = cleanup::output(command.args(&words[1..]).current_dir(at).env("TMPDIR", at).env_remove("LD_PRELOAD"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed: {}", words[0], said.lines().find(|line| line.contains("error")).unwrap_or_default());
    }
    Ok(())
}

impl Peer {
    /// Ranks of MPI, each on a CPU of its own.
    pub fn of_ranks(name: &'static str, ours: bool, ranks: Ranks) -> Self {
        Self { name, ours, shape: Shape::Plain, places: &[Two], ends: Ends::Ranks(ranks) }
    }

    /// This peer with another shape.
    pub fn shaped(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    /// Its name with its variant.
    pub fn called(&self) -> String {
        format!("{}{}", self.name, self.shape)
    }

    /// The placements that are tried in a part. The better one counts.
    pub fn placements(&self, part: Part) -> &'static [Placement] {
        match part {
            Part::Server => &[Two, Free],
            _ => self.places,
        }
    }

    /// Whether it has this part.
    pub fn has(&self, part: Part) -> bool {
        match &self.ends {
            _ if !part.has_peers() => false,
            Ends::Pair { program, .. } => program(part).is_some(),
            Ends::Ranks(_) => true,
        }
    }

    /// The time of one message for each of these sizes, ns; NaN for a size that it does not carry.
    pub fn run(&self, bench: &Bench, part: Part, sizes: &[usize], at: Placement, turn: usize) -> Result<Vec<f64>> {
        match &self.ends {
            Ends::Pair { program, max_size } => {
                let Some(program) = program(part) else { bail!("it does not have this part") };
                let one = |&size: &usize| match part {
                    _ if size > *max_size => Ok(f64::NAN),
                    Part::Server => served(bench, program.clone(), size, at, turn),
                    _ => {
                        let arguments = [size, part.ms(bench)].map(|number| number.to_string());
                        crate::measure::once(bench, &program, at, turn, &arguments)
                    }
                };
                sizes.iter().map(one).collect()
            }
            Ends::Ranks(Ranks { launcher, yields, program, mpi, environment }) => {
                let [server, other] = bench.cpus.of(at, turn).map(|cpu| cpu.map_or("-".into(), |cpu| cpu.to_string()));
                // Rank 0 is the end that measures: the caller of a pair, or the server.
                let (ends, cpus) = if part == Part::Server {
                    (1 + CLIENTS, [server, other])
                } else {
                    (self.shape.ranks(), [other, server])
                };
                let mut command = Command::new(&launcher[0]);
                command.args(&launcher[1..]).env_remove("LD_PRELOAD").envs(builds::OPEN_MPI_AS_ROOT);
                if let Some(mpi) = mpi {
                    mpi.set_environment(&mut command);
                }
                command.envs(environment.iter().map(|(name, value)| (name, value)));
                command.envs(self.shape.environment().iter().copied());
                if at == One || part == Part::Server {
                    command.args(*yields);
                }
                let list: Vec<String> = sizes.iter().map(ToString::to_string).collect();
                command.args(["-n", &ends.to_string()]).arg(program);
                command.args([self.shape.word(part), &list.join(","), &part.ms(bench).to_string()]).args(cpus);
                command.args(self.shape.window().map(|messages| messages.to_string()));
                let mut process = Process::start(command, &bench.cpus, None)?;
                let found = sizes.iter().map(|_| Ok(parse(&process.line()?)?.median)).collect();
                process.child.wait()?;
                found
            }
        }
    }
}

/// Runs a server that measures, and its callers.
fn served(bench: &Bench, mut program: Program, size: usize, at: Placement, turn: usize) -> Result<f64> {
    let on = bench.cpus.of(at, turn);
    let ms = Part::Server.ms(bench);
    program.serve_arguments = [CLIENTS, size, ms].iter().map(ToString::to_string).collect();
    let mut server = Server::start(&program, &bench.cpus, on[0])?;
    let arguments = [size.to_string(), ms.to_string()];
    let callers: Result<Vec<Process>> =
        (0..CLIENTS).map(|_| caller(&program, &server.port, &arguments, &bench.cpus, on[1])).collect();
    let reported = parse(&server.process.line()?)?;
    for mut caller in callers? {
        caller.child.wait()?;
    }
    Ok(reported.median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use std::io::Write;

    /// Reports that something was not tested, on standard error and in the log of skips.
    fn skip(reason: &str) {
        let line = format!("SKIP peers of messages: {reason}\n");
        eprint!("{line}");
        if let Some(log) = std::env::var_os("MOTET_SKIP_LOG")
            && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(log)
        {
            let _ = file.write_all(line.as_bytes());
        }
    }

    #[test]
    fn every_peer_measures_every_part() {
        let Ok(mut bench) = Bench::new(&[], true, None) else { return skip("there are no two CPUs") };
        bench.ms = 2;
        let peers = Peers::find(&bench).unwrap();
        for (name, why) in &peers.missing {
            assert!(why.starts_with("skipped: "), "{name}: {why}"); // what is installed can be built
            skip(&format!("{name}: {why}"));
        }
        // Those of Motet are workers of the command, which this executable is not.
        for peer in peers.all.iter().filter(|peer| !peer.ours) {
            for &part in Part::value_variants().iter().filter(|part| part.has_peers()) {
                let sizes: &[usize] = match part {
                    Part::Latency => &[8, 300_000],
                    Part::Rate => &[8],
                    Part::Bandwidth => &[5000],
                    _ => &[64 << 10],
                };
                let at = peer.placements(part)[0];
                let found = peer.run(&bench, part, sizes, at, 0);
                let found = found.unwrap_or_else(|error| panic!("{}, {part:?}: {error:#}", peer.name));
                assert_eq!(found.len(), sizes.len());
                assert!(found.iter().all(|ns| *ns > 0.0), "{}, {part:?}: {found:?}", peer.name);
            }
        }
    }

    #[test]
    fn ranks_of_every_shape_measure() {
        let Ok(mut bench) = Bench::new(&[], true, None) else { return skip("there are no two CPUs") };
        bench.ms = 2;
        let Peers { all, _folder, .. } = Peers::find(&bench).unwrap();
        let ranks = all.into_iter().find(|peer| matches!(peer.ends, Ends::Ranks(_)));
        let Some(mut ranks) = ranks else { return skip("there is no MPI") };
        for shape in [Shape::AnySource, Shape::Windows(256), Shape::Polling(3), Shape::Yielding(4)] {
            ranks = ranks.shaped(shape);
            let part = if shape.window().is_some() { Part::Rate } else { Part::Latency };
            let found = ranks.run(&bench, part, &[8, 1000], Two, 0).unwrap();
            assert!(found.len() == 2 && found.iter().all(|ns| *ns > 0.0), "{shape:?}: {found:?}");
        }
        ranks = ranks.shaped(Shape::Windows(257));
        assert!(ranks.run(&bench, Part::Rate, &[8], Two, 0).is_err());
    }

    #[test]
    fn refused_size_is_an_error() {
        let Ok(bench) = Bench::new(&[], true, None) else { return skip("there are no two CPUs") };
        let peers = Peers::find(&bench).unwrap();
        for peer in peers.all.iter().filter(|peer| !peer.ours) {
            assert!(peer.run(&bench, Part::Latency, &[0], Two, 0).is_err(), "{}", peer.name);
        }
    }
}
