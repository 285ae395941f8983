//! One run of the bench: its CPUs, the measuring programs with their environments, and measurements that take turns.

use crate::cleanup;
use crate::floor::{self, Distance, FloorSamples, Write};
use crate::pair::Program;
use crate::place::Cpus;
use anyhow::{Context, Result, anyhow, bail};
use std::cell::{OnceCell, RefCell};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The measuring programs in C, with the headers that they include.
const SOURCES: [(&str, &str); 7] = [
    ("peer.h", include_str!("../../../tests/bench/peer.h")),
    ("motet.h", include_str!("../../../include/motet.h")),
    ("pingpong.c", include_str!("../../../tests/bench/pingpong.c")),
    ("stream.c", include_str!("../../../tests/bench/stream.c")),
    ("many_peers.c", include_str!("../../../tests/bench/many_peers.c")),
    ("connect.c", include_str!("../../../tests/bench/connect.c")),
    ("pool.c", include_str!("../../../tests/bench/pool.c")),
];

/// The fewest repetitions at one distance of the CPUs from which a median is taken.
const MIN_REPETITIONS: usize = 3;

/// One run.
pub struct Bench {
    /// Where to measure.
    pub cpus: Cpus,
    /// Repetitions of each measurement.
    pub repetitions: usize,
    /// Repetitions of each measurement of other projects' programs, most of which take long.
    pub of_programs: usize,
    /// Milliseconds of each repetition.
    pub ms: usize,
    /// Whether this is the short run.
    pub quick: bool,
    /// This executable and the words that lead to this command in it.
    own: Vec<OsString>,
    libraries: Vec<PathBuf>,
    programs: OnceCell<Result<TempDir, String>>,
    floors: RefCell<[Vec<f64>; 2]>,
}

/// The results of one measurement, by repetition.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// The values.
    pub values: Vec<f64>,
    /// The floor before and after each.
    pub floors: Vec<FloorSamples>,
}

/// A measurement that takes turns with others. Its argument is the number of the repetition.
pub type Measurement<'a> = Box<dyn FnMut(usize) -> Result<f64> + 'a>;

impl Bench {
    /// A run. `prefix` is the words that lead to the bench in this executable; `libdir` is where the libraries are, if it is given.
    pub fn new(prefix: &[&str], quick: bool, libdir: Option<&Path>) -> Result<Self> {
        cleanup::watch();
        let executable = std::env::current_exe().context("cannot find this program's own file")?;
        let mut libraries: Vec<PathBuf> = libdir.into_iter().map(Path::to_path_buf).collect();
        if libdir.is_none() {
            libraries.extend(std::env::var_os("MOTET_LIBDIR").map(PathBuf::from));
            let beside = executable.parent().unwrap_or(Path::new("."));
            libraries.extend([beside.to_path_buf(), beside.join("../lib"), PathBuf::from("target/release")]);
        }
        let mut own = vec![executable.into_os_string()];
        own.extend(prefix.iter().map(OsString::from));
        Ok(Self {
            cpus: Cpus::find()?,
            repetitions: if quick { 5 } else { 11 },
            of_programs: 5,
            ms: if quick { 25 } else { 150 },
            quick,
            own,
            libraries,
            programs: OnceCell::new(),
            floors: RefCell::default(),
        })
    }

    /// How long a load of a server lasts, ms. What the beginning of its connections costs is little of that.
    pub fn load_ms(&self) -> u64 {
        if self.quick { 500 } else { 2000 }
    }

    /// How many requests make such a load, from the number for one client in a full run. One client pays for one connection only, so it makes a quarter.
    pub fn load(&self, clients: usize, requests: u32) -> u32 {
        let quarters = if self.quick { 1 } else { 4 } * if clients == 1 { 1 } else { 4 };
        requests * quarters / 4
    }

    /// This executable as a worker.
    pub fn worker(&self, words: &[&str]) -> Program {
        let mut all = self.own.clone();
        all.push("--worker".into());
        all.extend(words.iter().map(OsString::from));
        Program { words: all, ..Program::default() }
    }

    /// A measuring program in C, compiled on first use.
    pub fn program(&self, name: &str) -> Result<Program> {
        let folder = self.programs.get_or_init(|| compile().map_err(|e| format!("{e:#}")));
        let folder = folder.as_ref().map_err(|e| anyhow!("{e}"))?;
        Ok(Program { words: vec![folder.path().join(name).into()], ..Program::default() })
    }

    /// The environment that `motet run` sets for the sockets adapter.
    pub fn sockets(&self) -> Result<Vec<(String, OsString)>> {
        let library = self.library()?;
        let shim = self.find("libmotet_sockets.so")?;
        Ok(vec![("LD_PRELOAD".into(), shim.into()), ("MOTET_LIBRARY".into(), library.into())])
    }

    /// The path of `libmotet.so.0`.
    pub fn library(&self) -> Result<PathBuf> {
        self.find("libmotet.so.0")
    }

    /// The path of a library of Motet, built or installed.
    pub fn find(&self, name: &str) -> Result<PathBuf> {
        match self.libraries.iter().map(|folder| folder.join(name)).find(|path| path.exists()) {
            Some(path) => Ok(path.canonicalize()?),
            None => bail!("{name} is not built: run `make build`, or name its folder with --libdir"),
        }
    }

    /// Takes all measurements in each repetition, one after the other, and samples the floor between them. With `fast`, up to twice
    /// as many repetitions are made if too few saw the fast floor around the first measurement.
    pub fn compare(&self, repetitions: usize, fast: bool, measurements: &mut [Measurement<'_>]) -> Result<Vec<Series>> {
        let mut series = vec![Series::default(); measurements.len()];
        let mut before = self.floor();
        for repetition in 0..repetitions * if fast { 2 } else { 1 } {
            if repetition >= repetitions && series[0].fast().len() >= repetitions.min(5) {
                break;
            }
            for (measurement, series) in measurements.iter_mut().zip(&mut series) {
                series.values.push(measurement(repetition)?);
                let after = self.floor();
                series.floors.push(FloorSamples { before, after });
                before = after;
            }
        }
        Ok(series)
    }

    fn floor(&self) -> f64 {
        let samples = [Write::Store, Write::Exchange].map(|write| floor::one_way(&self.cpus, write));
        for (all, sample) in self.floors.borrow_mut().iter_mut().zip(samples) {
            all.push(sample);
        }
        samples[0]
    }

    /// All samples of the floor so far, ns: by stores, by exchanges.
    pub fn floors(&self) -> [Vec<f64>; 2] {
        self.floors.borrow().clone()
    }
}

impl Series {
    /// The repetitions that saw the fast floor.
    pub fn fast(&self) -> Vec<usize> {
        (0..self.floors.len()).filter(|&i| self.floors[i].fast()).collect()
    }

    /// The repetitions with a value during which the CPUs were at this distance; `None` where there are too few for a median.
    pub fn within(&self, distance: Distance) -> Option<Vec<usize>> {
        Some(self.all_within(distance)).filter(|all| all.len() >= MIN_REPETITIONS)
    }

    fn all_within(&self, distance: Distance) -> Vec<usize> {
        let of = |&at: &usize| self.values[at].is_finite() && self.floors[at].distance() == Some(distance);
        (0..self.floors.len()).filter(of).collect()
    }

    /// How many repetitions had near CPUs, and how many far ones, in words.
    pub fn distances(&self) -> String {
        let [near, far] = Distance::ALL.map(|distance| self.all_within(distance).len());
        let valid = self.values.iter().filter(|value| value.is_finite()).count();
        format!("{near} on near CPUs, {far} on far CPUs, {} while that changed", valid - near - far)
    }

    /// The repetitions to compare with the floor: those of one mode of the floor, during which the mode did not change. The fast
    /// mode is taken if it was seen five times or as often as others. The text says which mode it is.
    pub fn one_mode(&self) -> (Series, String) {
        let steady = (0..self.floors.len()).filter(|&i| self.floors[i].steady().is_some());
        let (fast, slow): (Vec<usize>, Vec<usize>) = steady.partition(|&i| self.floors[i].fast());
        let use_fast = fast.len() >= 5 || fast.len() >= slow.len();
        let (used, mode) = if use_fast { (fast, "fast") } else { (slow, "slow") };
        (self.at(&used), format!("{} of {} repetitions: those with a {mode} floor", used.len(), self.values.len()))
    }

    /// Each value over the floor of its repetition.
    pub fn over_floor(&self) -> Vec<f64> {
        self.values.iter().zip(self.steady_floors()).map(|(value, floor)| value / floor).collect()
    }

    /// The floor of each repetition: the mean of the samples before and after it.
    pub fn steady_floors(&self) -> Vec<f64> {
        self.floors.iter().map(|floor| (floor.before + floor.after) / 2.0).collect()
    }

    /// Each value over the value of `other` in the same repetition.
    pub fn over(&self, other: &Series) -> Vec<f64> {
        self.values.iter().zip(&other.values).map(|(a, b)| a / b).collect()
    }

    /// These repetitions alone.
    pub fn at(&self, at: &[usize]) -> Series {
        Series {
            values: at.iter().map(|&i| self.values[i]).collect(),
            floors: at.iter().map(|&i| self.floors[i]).collect(),
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        cleanup::block_while_ending();
    }
}

fn compile() -> Result<TempDir> {
    let folder = cleanup::folder()?;
    for (name, text) in SOURCES {
        std::fs::write(folder.path().join(name), text)?;
    }
    for (source, _) in SOURCES.iter().filter(|(name, _)| name.ends_with(".c")) {
        let mut command = Command::new("cc");
        command.current_dir(folder.path()).env("TMPDIR", folder.path()).args([
            "-O2",
            "-std=gnu11",
            "-I.",
            "-o",
            source.trim_end_matches(".c"),
            source,
            "-ldl",
        ]);
        let output =
            cleanup::output(&mut command).context("no C compiler (cc) to build the measuring programs with")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("cc failed on {source}: {}", said.lines().next().unwrap_or_default());
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_and_far_repetitions_are_kept_apart() {
        let near = FloorSamples { before: 50.0, after: 50.0 };
        let (far, changed) =
            (FloorSamples { before: 240.0, after: 250.0 }, FloorSamples { before: 50.0, after: 250.0 });
        let floors = vec![near, far, far, near, changed, far, near, near];
        let series = Series { values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, f64::NAN, 8.0], floors };
        assert_eq!(series.within(Distance::Near), Some(vec![0, 3, 7]));
        assert_eq!(series.within(Distance::Far), Some(vec![1, 2, 5]));
        assert_eq!(series.at(&[0, 1, 3, 4]).within(Distance::Near), None, "too few");
        assert_eq!(series.distances(), "3 on near CPUs, 3 on far CPUs, 1 while that changed");
    }
}
