//! What every row uses: the CPUs, the programs with their environments, and repetitions taken in turn.

use crate::ending;
use crate::floor::{self, Around, Distance, Write};
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
    ("crowd.c", include_str!("../../../tests/bench/crowd.c")),
    ("connect.c", include_str!("../../../tests/bench/connect.c")),
    ("pool.c", include_str!("../../../tests/bench/pool.c")),
];

/// So many repetitions with CPUs as far from each other make a median.
const ENOUGH: usize = 3;

/// One run.
pub struct Bench {
    /// Where to measure.
    pub cpus: Cpus,
    /// Repetitions of each measurement.
    pub repetitions: usize,
    /// The same for other people's programs, most of which take their time.
    pub of_programs: usize,
    /// Milliseconds of each.
    pub ms: usize,
    /// Whether this is the short run.
    pub quick: bool,
    /// This executable and the words that lead to this command in it.
    own: Vec<OsString>,
    libraries: Vec<PathBuf>,
    programs: OnceCell<Result<TempDir, String>>,
    floors: RefCell<[Vec<f64>; 2]>,
}

/// What one contestant did in each repetition.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// The values.
    pub values: Vec<f64>,
    /// The floor around each.
    pub floors: Vec<Around>,
}

/// Something that is measured in turn with others; the argument is the number of the repetition.
pub type Contestant<'a> = Box<dyn FnMut(usize) -> Result<f64> + 'a>;

impl Bench {
    /// A run of this executable, found under `prefix` in it; libraries in `libdir` if that is given.
    pub fn new(prefix: &[&str], quick: bool, libdir: Option<&Path>) -> Result<Self> {
        ending::watch();
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

    /// Our own executable as a worker.
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

    /// The environment under which a program's sockets are Motet's: what `motet run` sets.
    pub fn sockets(&self) -> Result<Vec<(String, OsString)>> {
        let library = self.library()?;
        let shim = self.find("libmotet_sockets.so")?;
        Ok(vec![("LD_PRELOAD".into(), shim.into()), ("MOTET_LIBRARY".into(), library.into())])
    }

    /// `libmotet.so.0`.
    pub fn library(&self) -> Result<PathBuf> {
        self.find("libmotet.so.0")
    }

    /// A library of Motet's, built or installed.
    pub fn find(&self, name: &str) -> Result<PathBuf> {
        match self.libraries.iter().map(|folder| folder.join(name)).find(|path| path.exists()) {
            Some(path) => Ok(path.canonicalize()?),
            None => bail!("{name} is not built (run `make build`, or say --libdir)"),
        }
    }

    /// Measures all contestants in each repetition, one after the other, the floor between them. When `fast` and too few
    /// repetitions saw the fast floor around the first contestant, up to as many again are made.
    pub fn contest(&self, repetitions: usize, fast: bool, contestants: &mut [Contestant<'_>]) -> Result<Vec<Series>> {
        let mut series = vec![Series::default(); contestants.len()];
        let mut before = self.floor();
        for repetition in 0..repetitions * if fast { 2 } else { 1 } {
            if repetition >= repetitions && series[0].fast().len() >= repetitions.min(5) {
                break;
            }
            for (contestant, series) in contestants.iter_mut().zip(&mut series) {
                series.values.push(contestant(repetition)?);
                let after = self.floor();
                series.floors.push(Around { before, after });
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

    /// The repetitions with a value during which the CPUs were so far from each other, where there are enough for a median.
    pub fn within(&self, distance: Distance) -> Option<Vec<usize>> {
        Some(self.all_within(distance)).filter(|all| all.len() >= ENOUGH)
    }

    fn all_within(&self, distance: Distance) -> Vec<usize> {
        let of = |&at: &usize| self.values[at].is_finite() && self.floors[at].distance() == Some(distance);
        (0..self.floors.len()).filter(of).collect()
    }

    /// How often the CPUs were how far from each other, in words.
    pub fn distances(&self) -> String {
        let [near, far] = Distance::ALL.map(|distance| self.all_within(distance).len());
        let valid = self.values.iter().filter(|value| value.is_finite()).count();
        format!("{near} on near CPUs, {far} on far CPUs, {} while that changed", valid - near - far)
    }

    /// The repetitions to compare with the floor: those of one mode, during which it did not change. The fast mode when it was
    /// seen at least five times or as often as others; a mix of modes would say nothing. With a remark which.
    pub fn one_mode(&self) -> (Series, String) {
        let steady = (0..self.floors.len()).filter(|&i| self.floors[i].steady().is_some());
        let (fast, slow): (Vec<usize>, Vec<usize>) = steady.partition(|&i| self.floors[i].fast());
        let use_fast = fast.len() >= 5 || fast.len() >= slow.len();
        let (used, mode) = if use_fast { (fast, "fast") } else { (slow, "slow") };
        (self.at(&used), format!("{} of {} repetitions: those with a {mode} floor", used.len(), self.values.len()))
    }

    /// Values over the floor around them.
    pub fn over_floor(&self) -> Vec<f64> {
        self.values.iter().zip(self.steady_floors()).map(|(value, floor)| value / floor).collect()
    }

    /// The floor of each repetition.
    pub fn steady_floors(&self) -> Vec<f64> {
        self.floors.iter().map(|floor| (floor.before + floor.after) / 2.0).collect()
    }

    /// Values over another's of the same repetition.
    pub fn over(&self, other: &Series) -> Vec<f64> {
        self.values.iter().zip(&other.values).map(|(a, b)| a / b).collect()
    }

    /// The repetitions `at`.
    pub fn at(&self, at: &[usize]) -> Series {
        Series {
            values: at.iter().map(|&i| self.values[i]).collect(),
            floors: at.iter().map(|&i| self.floors[i]).collect(),
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        ending::hold();
    }
}

fn compile() -> Result<TempDir> {
    let folder = ending::folder()?;
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
        let output = ending::output(&mut command).context("no C compiler (cc) to build the measuring programs with")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("cc refused {source}: {}", said.lines().next().unwrap_or_default());
        }
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_and_far_repetitions_are_kept_apart() {
        let near = Around { before: 50.0, after: 50.0 };
        let (far, changed) = (Around { before: 240.0, after: 250.0 }, Around { before: 50.0, after: 250.0 });
        let floors = vec![near, far, far, near, changed, far, near, near];
        let series = Series { values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0, f64::NAN, 8.0], floors };
        assert_eq!(series.within(Distance::Near), Some(vec![0, 3, 7]));
        assert_eq!(series.within(Distance::Far), Some(vec![1, 2, 5]));
        assert_eq!(series.at(&[0, 1, 3, 4]).within(Distance::Near), None, "too few");
        assert_eq!(series.distances(), "3 on near CPUs, 3 on far CPUs, 1 while that changed");
    }
}
