//! One process with several adapters: MPI, CORBA calls and sockets, alone and at once, with Motet and without.
//!
//! The program is `tests/together`: rank 0 sends bytes to rank 1 and back by each adapter in use, with one thread each. The cost of idle
//! adapters is a ratio of medians. With all adapters in use, the exchanges of each are compared with those without Motet: in a
//! second, and in a second of CPU time of its thread. The scheduler places the threads, as there are more of them than CPUs.

use super::libraries::Libraries;
use crate::bench::{Bench, Measurement};
use crate::cleanup;
use crate::format::bytes;
use crate::report::{Bound, Line, Quantity, Unit};
use crate::stats::median;
use anyhow::{Context, Result, bail};
use motet_programs::find;
use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;

const ROW: &str = "together";
/// The words in front of a job: it ends after two minutes.
const TIMEOUT_COMMAND: [&str; 4] = ["timeout", "-k", "5", "120"];
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

/// A job: the adapters that are open, those that are used, and whether it runs on Motet.
#[derive(Clone, Copy, PartialEq)]
pub struct Job {
    pub open: &'static str,
    pub used: &'static str,
    pub on_motet: bool,
}

const ALONE: Job = Job { open: "m", used: "m", on_motet: true };
const BESIDE_IDLE: Job = Job { open: "mcs", used: "m", on_motet: true };
const AT_ONCE: Job = Job { open: "mcs", used: "mcs", on_motet: true };
const AT_ONCE_WITHOUT_MOTET: Job = Job { on_motet: false, ..AT_ONCE };
const BESIDE_WORK: Job = Job { open: "mcsx", used: "mcsx", on_motet: true };
const JOBS: [Job; 5] = [ALONE, BESIDE_IDLE, AT_ONCE, AT_ONCE_WITHOUT_MOTET, BESIDE_WORK];

/// The results of an adapter with a size: median and 99th percentile of a round trip, ns; round trips a second, and in a second of CPU
/// time of the calling thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdapterTiming {
    adapter: char,
    pub size: usize,
    pub median: f64,
    p99: f64,
    rate: f64,
    per_cpu_second: f64,
}

type Figure = fn(&AdapterTiming) -> f64;

/// The launchers with Motet and without, and the program.
pub struct Ready {
    before: [Vec<String>; 2],
    program: PathBuf,
}

/// Builds the program.
pub fn prepare(libraries: &Libraries) -> Result<Ready> {
    Ok(Ready { before: libraries.open_mpi_launchers()?, program: build(libraries)? })
}

/// Measures what adapters cost each other.
pub fn measure(bench: &Bench, ready: &Ready) -> Result<Vec<Line>> {
    // Long enough to average over placements of six threads by the scheduler.
    let ms = if bench.quick { 100.0 } else { 1500.0 };
    let reported: [RefCell<Vec<Vec<AdapterTiming>>>; JOBS.len()] = Default::default();
    let mut measurements: Vec<Measurement<'_>> = Vec::new();
    for (job, reported) in JOBS.iter().zip(&reported) {
        measurements.push(Box::new(move |_| {
            let found = run(ready, *job, ms, &SIZES)?;
            let first = found.first().map_or(f64::NAN, |reported| reported.median);
            reported.borrow_mut().push(found);
            Ok(first)
        }));
    }
    bench.compare(bench.repetitions, false, &mut measurements)?;
    drop(measurements);
    let reported = reported.map(RefCell::into_inner);
    let of = |job: Job, adapter: char, size: usize, what: Figure| -> Vec<f64> {
        let at = JOBS.iter().position(|known| *known == job).unwrap_or_default();
        let all = reported[at].iter().flatten().filter(|reported| (reported.adapter, reported.size) == (adapter, size));
        all.map(what).collect()
    };
    let mut lines = Vec::new();
    for size in SIZES {
        let [alone, beside] = [ALONE, BESIDE_IDLE].map(|job| of(job, 'm', size, |reported| reported.median));
        let what = format!("MPI, {} there and back, beside an idle ORB and idle sockets", bytes(size));
        lines.push(over(what, &beside, ("alone", &alone), Unit::Ns).bound(Bound::AtMost(1.02)));
        for (adapter, name) in ADAPTERS {
            let counts: [(&str, Figure); 2] =
                [("", |reported| reported.rate), (", for a second of a CPU", |reported| reported.per_cpu_second)];
            for (counted, figure) in counts {
                let [on_motet, plain] = [AT_ONCE, AT_ONCE_WITHOUT_MOTET].map(|job| of(job, adapter, size, figure));
                let what = format!("{name}, {} there and back, all adapters at once{counted}", bytes(size));
                lines.push(
                    over(what, &on_motet, ("without Motet", &plain), Unit::PerSecond).bound(Bound::AtLeast(0.95)),
                );
            }
        }
        for (adapter, name) in &ADAPTERS[1..] {
            let p99 = of(BESIDE_WORK, *adapter, size, |reported| reported.p99);
            let what =
                format!("{name}, {}: the slowest of a hundred, beside threads that poll and compute", bytes(size));
            lines.push(Line::new(ROW, what).figure(Quantity::of("p99", &p99, Unit::Ns)));
        }
    }
    Ok(lines)
}

fn over(what: String, on_motet: &[f64], (name, other): (&str, &[f64]), unit: Unit) -> Line {
    let ratios: Vec<f64> = on_motet.iter().zip(other).map(|(on_motet, other)| on_motet / other).collect();
    Line::new(ROW, what)
        .figure(Quantity::of("median", on_motet, unit))
        .against(Quantity::of(name, other, unit), &ratios)
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
    let output = cleanup::output(command.env_remove("LD_PRELOAD")).context("a compiler")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("a compiler failed: {}", said.lines().find(|line| line.contains("error")).unwrap_or_default());
    }
    Ok(())
}

/// Runs the program once.
pub fn run(ready: &Ready, job: Job, ms: f64, sizes: &[usize]) -> Result<Vec<AdapterTiming>> {
    let words = &ready.before[usize::from(!job.on_motet)];
    let mut command = Command::new(TIMEOUT_COMMAND[0]);
    command.args(&TIMEOUT_COMMAND[1..]).args(words).args(["-n", "2"]).arg(&ready.program);
    command.arg(ms.to_string()).args([job.open, job.used]).args(sizes.iter().map(usize::to_string));
    for allowed in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
        command.env(allowed, "1");
    }
    let output = cleanup::output(command.env_remove("LD_PRELOAD")).context("timeout")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}", output.status, said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default());
    }
    parse(&String::from_utf8_lossy(&output.stdout), job, ms)
}

/// Parses lines `ADAPTER SIZE MEDIAN P99 COUNT CPU`, and one line of each process at the end. A job on Motet counts only with one engine in each.
fn parse(text: &str, job: Job, ms: f64) -> Result<Vec<AdapterTiming>> {
    let engines = if job.on_motet { ": engines 1, sheets of nodes 1," } else { ": engines 0, sheets of nodes 0," };
    if text.lines().filter(|line| line.starts_with("rank ") && line.contains(engines)).count() != 2 {
        bail!("the number of engines in the processes is wrong: {text}");
    }
    let line = |line: &str| {
        let mut words = line.split(' ');
        let adapter = words.next()?.chars().next()?;
        let size = words.next()?.parse().ok()?;
        let mut number = || words.next()?.parse::<f64>().ok().filter(|value| *value > 0.0);
        let (median, p99, rate) = (number()?, number()?, number()? / ms * 1e3);
        Some(AdapterTiming { adapter, size, median, p99, rate, per_cpu_second: 1e9 / number()? })
    };
    let lines = text.lines().filter(|line| !line.starts_with("rank "));
    let reported: Option<Vec<AdapterTiming>> = lines.map(line).collect();
    reported
        .filter(|reported| {
            !reported.is_empty() && median(&reported.iter().map(|reported| reported.median).collect::<Vec<_>>()) > 0.0
        })
        .with_context(|| format!("ranks printed `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_parsed_and_engines_are_counted() {
        let on_motet = "m 8 1500 2500 1000 2000\nrank 0: engines 1, sheets of nodes 1, threads x=1\nrank 1: engines 1, sheets of nodes 1, threads x=1\n";
        let reported = AdapterTiming {
            adapter: 'm',
            size: 8,
            median: 1500.0,
            p99: 2500.0,
            rate: 10_000.0,
            per_cpu_second: 500_000.0,
        };
        assert_eq!(parse(on_motet, ALONE, 100.0).unwrap(), [reported]);
        assert!(parse(on_motet, AT_ONCE_WITHOUT_MOTET, 100.0).is_err(), "Motet where it should not be");
        let plain = on_motet.replace("engines 1, sheets of nodes 1", "engines 0, sheets of nodes 0");
        assert!(parse(&plain, AT_ONCE_WITHOUT_MOTET, 100.0).is_ok() && parse(&plain, AT_ONCE, 100.0).is_err());
        for broken in
            [on_motet.replace("2500", "soon"), on_motet.replace("m 8 1500 2500 1000 2000\n", ""), String::new()]
        {
            assert!(parse(&broken, ALONE, 100.0).is_err(), "{broken}");
        }
    }

    #[test]
    fn cost_of_idle_adapters_is_a_ratio() {
        let line = over(String::new(), &[102.0; 5], ("alone", &[100.0; 5]), Unit::Ns).bound(Bound::AtMost(1.02));
        assert_eq!((line.ratio.unwrap().median, line.verdict), (1.02, crate::report::Verdict::Met));
    }
}
