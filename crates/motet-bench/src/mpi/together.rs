//! One process with several adapters: MPI, CORBA calls and plain sockets, alone and at once, with and without Motet.
//!
//! The program is `tests/together`: rank 0 has bytes go to rank 1 and back by each adapter that is used, in a thread of its own. What the
//! others cost while they are idle is a ratio of medians; what each gets while all of them are used is how many exchanges it makes beside
//! how many it makes without Motet at the same time, and how many for each second of a CPU that its thread gets. Ranks are where the
//! scheduler puts them: on two CPUs there is not one for everybody.

use super::libraries::Libraries;
use crate::bench::{Bench, Contestant};
use crate::ending;
use crate::report::{Bound, Line, Quantity, Unit};
use crate::stats::median;
use crate::table::bytes;
use anyhow::{Context, Result, bail};
use motet_programs::find;
use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;

const ROW: &str = "together";
/// A job that takes longer has hung.
const LIMIT: [&str; 4] = ["timeout", "-k", "5", "120"];
const SIZES: [usize; 2] = [8, 64 << 10];
const ADAPTERS: [(char, &str); 3] = [('m', "MPI"), ('c', "CORBA"), ('s', "sockets")];
const SOURCES: [(&str, &str); 6] = [
    ("together.idl", include_str!("../../../../tests/together/together.idl")),
    ("together.h", include_str!("../../../../tests/together/together.h")),
    ("main.cc", include_str!("../../../../tests/together/main.cc")),
    ("mpi.cc", include_str!("../../../../tests/together/mpi.cc")),
    ("corba.cc", include_str!("../../../../tests/together/corba.cc")),
    ("sockets.cc", include_str!("../../../../tests/together/sockets.cc")),
];

/// Which adapters are open, which are used, and whether Motet is there.
#[derive(Clone, Copy, PartialEq)]
pub struct Job {
    pub open: &'static str,
    pub used: &'static str,
    pub ours: bool,
}

const ALONE: Job = Job { open: "m", used: "m", ours: true };
const BESIDE_IDLE: Job = Job { open: "mcs", used: "m", ours: true };
const AT_ONCE: Job = Job { open: "mcs", used: "mcs", ours: true };
const AT_ONCE_PLAINLY: Job = Job { ours: false, ..AT_ONCE };
const BESIDE_WORK: Job = Job { open: "mcsx", used: "mcsx", ours: true };
const JOBS: [Job; 5] = [ALONE, BESIDE_IDLE, AT_ONCE, AT_ONCE_PLAINLY, BESIDE_WORK];

/// What an adapter did with a size: median and 99th percentile of a round trip, ns; how many a second, and how many a second of a CPU that the
/// calling thread had.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Told {
    adapter: char,
    pub size: usize,
    pub median: f64,
    late: f64,
    rate: f64,
    of_cpu: f64,
}

type Figure = fn(&Told) -> f64;

/// The launchers with and without Motet, and the program.
pub struct Ready {
    before: [Vec<String>; 2],
    program: PathBuf,
}

/// What all measurements of the program need.
pub fn prepare(libraries: &Libraries) -> Result<Ready> {
    Ok(Ready { before: libraries.open_mpi_twice()?, program: build(libraries)? })
}

/// What adapters cost each other.
pub fn measure(bench: &Bench, ready: &Ready) -> Result<Vec<Line>> {
    // Long enough that how the scheduler happens to place six threads is not all that is seen.
    let ms = if bench.quick { 100.0 } else { 1500.0 };
    let told: [RefCell<Vec<Vec<Told>>>; JOBS.len()] = Default::default();
    let mut contestants: Vec<Contestant<'_>> = Vec::new();
    for (job, told) in JOBS.iter().zip(&told) {
        contestants.push(Box::new(move |_| {
            let found = run(ready, *job, ms, &SIZES)?;
            let first = found.first().map_or(f64::NAN, |told| told.median);
            told.borrow_mut().push(found);
            Ok(first)
        }));
    }
    bench.contest(bench.repetitions, false, &mut contestants)?;
    drop(contestants);
    let told = told.map(RefCell::into_inner);
    let of = |job: Job, adapter: char, size: usize, what: Figure| -> Vec<f64> {
        let at = JOBS.iter().position(|known| *known == job).unwrap_or_default();
        let all = told[at].iter().flatten().filter(|told| (told.adapter, told.size) == (adapter, size));
        all.map(what).collect()
    };
    let mut lines = Vec::new();
    for size in SIZES {
        let [alone, beside] = [ALONE, BESIDE_IDLE].map(|job| of(job, 'm', size, |told| told.median));
        let what = format!("MPI, {} there and back, beside an idle ORB and idle sockets", bytes(size));
        lines.push(over(what, &beside, ("alone", &alone), Unit::Ns).bound(Bound::AtMost(1.02)));
        for (adapter, name) in ADAPTERS {
            let counts: [(&str, Figure); 2] = [("", |told| told.rate), (", for a second of a CPU", |told| told.of_cpu)];
            for (counted, figure) in counts {
                let [ours, plain] = [AT_ONCE, AT_ONCE_PLAINLY].map(|job| of(job, adapter, size, figure));
                let what = format!("{name}, {} there and back, all adapters at once{counted}", bytes(size));
                lines.push(over(what, &ours, ("without Motet", &plain), Unit::PerSecond).bound(Bound::AtLeast(0.95)));
            }
        }
        for (adapter, name) in &ADAPTERS[1..] {
            let late = of(BESIDE_WORK, *adapter, size, |told| told.late);
            let what =
                format!("{name}, {}: the slowest of a hundred, beside threads that poll and compute", bytes(size));
            lines.push(Line::new(ROW, what).figure(Quantity::of("p99", &late, Unit::Ns)));
        }
    }
    Ok(lines)
}

fn over(what: String, ours: &[f64], (name, other): (&str, &[f64]), unit: Unit) -> Line {
    let ratios: Vec<f64> = ours.iter().zip(other).map(|(ours, other)| ours / other).collect();
    Line::new(ROW, what).figure(Quantity::of("median", ours, unit)).against(Quantity::of(name, other, unit), &ratios)
}

/// Compiles the program with the compilers of Open MPI 4 and omniORB.
fn build(libraries: &Libraries) -> Result<PathBuf> {
    let missing = ["omniidl", "mpicxx.openmpi"].into_iter().find(|name| find(name).is_none());
    if let Some(missing) = missing {
        bail!("skipped: {missing} is not installed");
    }
    let folder = libraries.path("together");
    std::fs::create_dir_all(&folder)?;
    for (name, text) in SOURCES {
        std::fs::write(folder.join(name), text)?;
    }
    succeeds(Command::new("omniidl").arg("-bcxx").arg("-C").arg(&folder).arg(folder.join("together.idl")))?;
    let program = folder.join("together");
    let sources = ["main.cc", "mpi.cc", "corba.cc", "sockets.cc", "togetherSK.cc"].map(|name| folder.join(name));
    let mut compiler = Command::new("mpicxx.openmpi");
    compiler.env("TMPDIR", &folder);
    compiler.args(["-std=c++17", "-O2", "-w", "-DOMPI_SKIP_MPICXX"]).arg("-I").arg(&folder).args(sources);
    succeeds(compiler.arg("-o").arg(&program).args(["-lomniORB4", "-lomnithread", "-lpthread"]))?;
    Ok(program)
}

fn succeeds(command: &mut Command) -> Result<()> {
    let output = ending::output(command.env_remove("LD_PRELOAD")).context("a compiler")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("a compiler failed: {}", said.lines().find(|line| line.contains("error")).unwrap_or_default());
    }
    Ok(())
}

/// Runs it once.
pub fn run(ready: &Ready, job: Job, ms: f64, sizes: &[usize]) -> Result<Vec<Told>> {
    let words = &ready.before[usize::from(!job.ours)];
    let mut command = Command::new(LIMIT[0]);
    command.args(&LIMIT[1..]).args(words).args(["-n", "2"]).arg(&ready.program);
    command.arg(ms.to_string()).args([job.open, job.used]).args(sizes.iter().map(usize::to_string));
    for allowed in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        command.env(allowed, "1");
    }
    let output = ending::output(command.env_remove("LD_PRELOAD")).context("timeout")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}", output.status, said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default());
    }
    parse(&String::from_utf8_lossy(&output.stdout), job, ms)
}

/// `VOICE SIZE MEDIAN P99 COUNT CPU`, and at the end what each process has: ours count only with an engine.
fn parse(text: &str, job: Job, ms: f64) -> Result<Vec<Told>> {
    let engines = if job.ours { ": engines 1, sheets of nodes 1," } else { ": engines 0, sheets of nodes 0," };
    if text.lines().filter(|line| line.starts_with("rank ") && line.contains(engines)).count() != 2 {
        bail!("the processes have other engines than expected: {text}");
    }
    let line = |line: &str| {
        let mut words = line.split(' ');
        let adapter = words.next()?.chars().next()?;
        let size = words.next()?.parse().ok()?;
        let mut number = || words.next()?.parse::<f64>().ok().filter(|value| *value > 0.0);
        let (median, late, rate) = (number()?, number()?, number()? / ms * 1e3);
        Some(Told { adapter, size, median, late, rate, of_cpu: 1e9 / number()? })
    };
    let lines = text.lines().filter(|line| !line.starts_with("rank "));
    let told: Option<Vec<Told>> = lines.map(line).collect();
    told.filter(|told| !told.is_empty() && median(&told.iter().map(|told| told.median).collect::<Vec<_>>()) > 0.0)
        .with_context(|| format!("ranks said `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_say_is_read_and_the_engines_are_counted() {
        let ours = "m 8 1500 2500 1000 2000\nrank 0: engines 1, sheets of nodes 1, threads x=1\nrank 1: engines 1, sheets of nodes 1, threads x=1\n";
        let told = Told { adapter: 'm', size: 8, median: 1500.0, late: 2500.0, rate: 10_000.0, of_cpu: 500_000.0 };
        assert_eq!(parse(ours, ALONE, 100.0).unwrap(), [told]);
        assert!(parse(ours, AT_ONCE_PLAINLY, 100.0).is_err(), "Motet where it should not be");
        let plain = ours.replace("engines 1, sheets of nodes 1", "engines 0, sheets of nodes 0");
        assert!(parse(&plain, AT_ONCE_PLAINLY, 100.0).is_ok() && parse(&plain, AT_ONCE, 100.0).is_err());
        for broken in [ours.replace("2500", "soon"), ours.replace("m 8 1500 2500 1000 2000\n", ""), String::new()] {
            assert!(parse(&broken, ALONE, 100.0).is_err(), "{broken}");
        }
    }

    #[test]
    fn what_idle_adapters_cost_is_a_ratio() {
        let line = over(String::new(), &[102.0; 5], ("alone", &[100.0; 5]), Unit::Ns).bound(Bound::AtMost(1.02));
        assert_eq!((line.ratio.unwrap().median, line.verdict), (1.02, crate::report::Verdict::Met));
    }
}
