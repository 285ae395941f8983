//! Barrier and all-reduce of 8 bytes: circuits beside Open MPI on Motet's libfabric provider, and on the transport that Open MPI chooses itself.
//!
//! The members of a circuit have no launcher: they are started as MPI's ranks are, without a binding to CPUs. The figures are the median over blocks of
//! 100 calls, by rank 0.

use super::openings::contention;
use super::scene::Scene;
use crate::bench::{Bench, Measurement, Series};
use crate::cleanup;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result, bail};
use motet_programs::mpi::{Mpi, OPEN_MPI_4};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Ranks.
const SIZES: [usize; 2] = [2, 8];
/// What rank 0 prints, in this order.
const OPERATIONS: [&str; 2] = ["barrier", "all-reduce of 8 B"];

/// Part `collectives`.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::up(bench)?;
    let mpi = OpenMpi::find(bench)?;
    let mut lines = Vec::new();
    for size in SIZES {
        let ms = (bench.ms * if size > bench.cpus.count() { 4 } else { 1 }).to_string();
        // One run of a peer measures both operations; the second one's time is kept for its own series.
        let second: RefCell<[Vec<f64>; 3]> = RefCell::default();
        let keep = |peer: usize, found: &[f64]| -> Result<f64> {
            let (&first, &other) = found.first().zip(found.get(1)).context("two times")?;
            second.borrow_mut()[peer].push(other);
            Ok(first)
        };
        let mut measurements: [Measurement<'_>; 3] = [
            Box::new(|_| keep(0, &scene.members(size, &["collective", &ms])?)),
            Box::new(|_| keep(1, &mpi.run(true, size, &ms)?)),
            Box::new(|_| keep(2, &mpi.run(false, size, &ms)?)),
        ];
        let first = bench.compare(bench.of_programs, false, &mut measurements)?;
        drop(measurements);
        let second = second.into_inner().map(|values| Series { values, floors: Vec::new() });
        for (operation, series) in OPERATIONS.iter().zip([&first[..], &second[..]]) {
            let line = |name: &str, peer: usize| {
                Line::new("collectives", format!("{operation}, {size} members"))
                    .figure(Quantity::of("circuit", &series[0].values, Unit::Ns))
                    .against(Quantity::of(name, &series[peer].values, Unit::Ns), &series[0].over(&series[peer]))
                    .note(contention(bench, size))
            };
            lines.push(line("Open MPI 4 on Motet", 1).bound(Bound::AtMost(1.2)));
            lines.push(line("Open MPI 4", 2));
        }
    }
    Ok(lines)
}

/// Open MPI 4, with the program compiled.
struct OpenMpi {
    mpi: Mpi,
    motet: PathBuf,
    program: PathBuf,
    folder: TempDir,
}

impl OpenMpi {
    fn find(bench: &Bench) -> Result<Self> {
        let mpi = Mpi::find(OPEN_MPI_4, Path::new("/nowhere"));
        let mpi = mpi.context("skipped: Open MPI 4 is not installed (examples/session/packages.txt)")?;
        bench.find("libfabric/libmotet-fi.so").context("skipped: the provider is not built (libfabric-dev)")?;
        let beside = std::env::current_exe()?.with_file_name("motet");
        let motet = if beside.exists() { beside } else { bench.find("motet")? };
        let folder = cleanup::folder()?;
        let (source, program) = (folder.path().join("mpi_collectives.c"), folder.path().join("mpi_collectives"));
        std::fs::write(&source, include_str!("../../../../tests/bench/mpi_collectives.c"))?;
        let output = cleanup::output(mpi.compiler(&source, &program).env("TMPDIR", folder.path()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("the compiler failed: {}", said.lines().next().unwrap_or_default());
        }
        Ok(Self { mpi, motet, program, folder })
    }

    /// The times of the operations on `size` ranks, on Motet or on its own transport.
    fn run(&self, on_motet: bool, size: usize, ms: &str) -> Result<Vec<f64>> {
        let launcher = self.mpi.launcher(size, &["--bind-to", "none"]);
        let before = [&self.motet.to_string_lossy(), "run", "--set", "mpi=on", "--"].map(str::to_owned);
        let words: Vec<String> = if on_motet { [&before[..], &launcher].concat() } else { launcher };
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(&self.program).arg(ms);
        self.mpi.set_environment(&mut command).env("TMPDIR", self.folder.path());
        let output = cleanup::output(&mut command)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("Open MPI: {}", said.lines().find(|line| !line.trim().is_empty()).unwrap_or_default());
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_whitespace().map(|word| word.parse().with_context(|| format!("`{word}` is no number"))).collect()
    }
}
