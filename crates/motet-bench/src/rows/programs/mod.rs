//! Unmodified programs of other projects: each without Motet and as under `motet run`, in the same run.
//!
//! Each measurement is taken in the setups of [`SETUPS`], which take turns in each repetition, and makes three lines ([`Plan::lines`]). The first compares
//! Motet with the ends on two CPUs with TCP in its better placement. The others compare both within one placement: as the scheduler places them, and both ends
//! on one CPU. The ratio says how many times better Motet is. A row whose program is missing says so.

mod apache;
mod brokers;
mod c;
mod java;
mod middleware;
mod proxies;
mod python;
mod redis;
mod servers;
mod tools;

use super::{Row, row};
use crate::bench::{Bench, Measurement, Series};
use crate::measure::counted;
use crate::place::Placement::Free;
use crate::report::{Bound, Line, Quantity, Unit, WithMotet};
use crate::sandbox::{Caller, SETUPS, Sandbox, Setup};
use crate::stats::median;
use anyhow::{Context, Result};
use motet_programs::find;
use std::cell::RefCell;

/// The rows, in the order of the table.
pub const ROWS: [Row; 23] = [
    row("ping-pong", "C ping-pong, blocking and epoll", c::ping_pong),
    row("sockperf", "sockperf", tools::sockperf),
    row("iperf3", "iperf3", tools::iperf3),
    row("qperf", "qperf", tools::qperf),
    row("java", "Java NIO and java.net", java::echo),
    row("virtual-threads", "JDK 22 and later: virtual threads", java::virtual_threads),
    row("rmi", "Java RMI", java::rmi),
    row("python", "Python, blocking and asyncio", python::echo),
    row("redis", "Redis", redis::redis),
    row("nginx", "nginx and wrk", servers::nginx),
    row("apache", "Apache, a server of threads and epoll sets", apache::apache),
    row("haproxy", "HAProxy in front of nginx", proxies::haproxy),
    row("php", "PHP-FPM behind nginx", proxies::php),
    row("postgresql", "PostgreSQL", servers::postgresql),
    row("memcached", "memcached", servers::memcached),
    row("mariadb", "MariaDB", servers::mariadb),
    row("nats", "NATS, a broker in Go", brokers::nats),
    row("rabbitmq", "RabbitMQ, a broker in Erlang", brokers::rabbitmq),
    row("omniorb", "omniORB", middleware::omniorb),
    row("openmpi", "Open MPI over TCP", middleware::openmpi),
    row("mpi", "Open MPI on Motet, beside its own transport", middleware::mpi_on_motet),
    row("zeromq", "ZeroMQ", middleware::zeromq),
    row("grpc", "gRPC", middleware::grpc),
];

/// The target of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Target {
    /// This many times better than without Motet.
    Times(f64),
    /// Not measurably slower than without Motet.
    NeverSlower,
    /// None: the line shows that the program runs.
    Shown,
}

/// What the ratio of programs as scheduled is at least.
const SCHEDULED_BOUND: f64 = 0.97;
/// What the ratio of CPU times as scheduled, and of programs on one CPU, is at least.
const ONE_CPU_BOUND: f64 = 0.95;

/// A measurement that is to be taken.
struct Plan<'a> {
    row: &'a str,
    what: String,
    unit: Unit,
    target: Target,
    scheduled_bound: f64,
}

impl<'a> Plan<'a> {
    fn new(row: &'a str, what: impl Into<String>, unit: Unit, target: Target) -> Self {
        Self { row, what: what.into(), unit, target, scheduled_bound: SCHEDULED_BOUND }
    }

    /// It measures CPU time, which may be a little more.
    fn of_cpu_time(self) -> Self {
        Self { scheduled_bound: ONE_CPU_BOUND, ..self }
    }

    /// Measures all setups in turn. An error of a setup fails these lines, not the row.
    fn measure(self, sandbox: &Sandbox<'_>, measure: impl FnMut(Setup) -> Result<f64>) -> Vec<Line> {
        let (row, what) = (self.row, self.what.clone());
        let failed = |error| vec![Line::not_measured(row, what, format!("{error:#}"))];
        self.compare(sandbox, measure).unwrap_or_else(failed)
    }

    /// Drops `measure` before it asks for the shared part of the bytes, as programs report that when they end.
    fn compare(self, sandbox: &Sandbox<'_>, measure: impl FnMut(Setup) -> Result<f64>) -> Result<Vec<Line>> {
        let bench = sandbox.bench;
        sandbox.shared(); // reports of programs of earlier lines
        let measure = RefCell::new(measure);
        let times = matches!(self.target, Target::Times(_));
        let mut setups: Vec<Measurement<'_>> = Vec::new();
        for setup in SETUPS {
            setups.push(Box::new({
                let measure = &measure;
                move |_| {
                    sandbox.place_servers(setup.placement);
                    (measure.borrow_mut())(setup)
                }
            }));
        }
        let series = bench.compare(bench.of_programs, times, &mut setups)?;
        drop(setups);
        drop(measure);
        // Those of the next line start as the scheduler places them.
        sandbox.place_servers(Free);
        let mut lines = self.lines(bench, &series);
        let note = match sandbox.shared() {
            Some(part) => format!("through shared memory: {:.0} % of what programs under Motet sent", part * 100.0),
            None => "no stream was upgraded, as far as the programs said when they ended".to_owned(),
        };
        lines[0] = lines[0].clone().note(note);
        Ok(lines)
    }

    /// The lines of a measurement, from its series in the order of [`SETUPS`].
    fn lines(self, bench: &Bench, series: &[Series]) -> Vec<Line> {
        let [two, plain_one, plain_two, one, free, plain_free] = series else { return Vec::new() };
        let scheduled = self.within("as scheduled", self.scheduled_bound, free, plain_free);
        let on_one = self.within("both ends on one CPU", ONE_CPU_BOUND, one, plain_one);
        vec![self.line(bench, two, plain_one, plain_two), scheduled, on_one]
    }

    /// Compares Motet with TCP in the same placement.
    fn within(&self, placement: &str, bound: f64, motet: &Series, plain: &Series) -> Line {
        let ours = Quantity::of("under Motet", &motet.values, self.unit);
        let theirs = Quantity::of("without Motet", &plain.values, self.unit);
        let line = Line::new(self.row, format!("{}, {placement}", self.what)).floors(&motet.floors);
        let line = if self.unit == Unit::Ns {
            line.figure(theirs).against(ours, &plain.over(motet)).with_motet(WithMotet::Reference)
        } else {
            line.figure(ours).against(theirs, &motet.over(plain))
        };
        line.nearly(Bound::AtLeast(bound))
    }

    /// Compares Motet with the better of two placements without Motet.
    fn line(self, bench: &Bench, motet: &Series, one: &Series, two: &Series) -> Line {
        let time = self.unit == Unit::Ns;
        let (tcp, place) = match median(&one.values) <= median(&two.values) {
            one_takes_less if one_takes_less == time => (one, "one CPU"),
            _ => (two, "two CPUs"),
        };
        let times = matches!(self.target, Target::Times(_));
        let (motet, tcp, enough) =
            if times { counted(bench.of_programs, motet, tcp) } else { (motet.clone(), tcp.clone(), true) };
        let ours = Quantity::of("under Motet", &motet.values, self.unit);
        let theirs = Quantity::of(format!("without Motet, {place}"), &tcp.values, self.unit);
        let line = Line::new(self.row, self.what).floors(&motet.floors);
        let line = if time {
            line.figure(theirs).against(ours, &tcp.over(&motet)).with_motet(WithMotet::Reference)
        } else {
            line.figure(ours).against(theirs, &motet.over(&tcp))
        };
        match self.target {
            Target::Times(bound) => line.bound(Bound::AtLeast(bound)).slow_floor(enough),
            Target::NeverSlower => line.nearly(Bound::AtLeast(1.0)),
            Target::Shown => line,
        }
    }
}

/// A sandbox whose servers start as the scheduler places them.
fn sandbox(bench: &Bench) -> Result<Sandbox<'_>> {
    let sandbox = Sandbox::new(bench)?;
    sandbox.place_servers(Free);
    Ok(sandbox)
}

/// The line of a row that lacks a program; `None` if all programs are installed.
fn missing(row: &str, what: &str, needs: &[&str]) -> Option<Result<Vec<Line>>> {
    let absent = needs.iter().find(|program| find(program).is_none())?;
    Some(Ok(vec![Line::not_measured(row, what, format!("skipped: {absent} is not installed"))]))
}

/// Measures with one caller for each setup, which stays. `words` start it; `question` is sent in each repetition. `warm_up`, unless it
/// is empty, is sent once before, for programs with a JIT compiler.
fn called(
    sandbox: &Sandbox<'_>,
    plan: Plan<'_>,
    words: impl Fn(Setup) -> Vec<String>,
    question: &str,
    warm_up: &str,
    value: impl Fn(f64) -> f64,
) -> Vec<Line> {
    let mut callers: Vec<(Setup, Caller)> = Vec::new();
    plan.measure(sandbox, move |setup| {
        let at = match callers.iter().position(|(of, _)| *of == setup) {
            Some(at) => at,
            None => {
                let mut caller = sandbox.caller(setup, &words(setup))?;
                if !warm_up.is_empty() {
                    caller.ask(warm_up)?;
                }
                callers.push((setup, caller));
                callers.len() - 1
            }
        };
        Ok(value(callers[at].1.ask(question)?.median))
    })
}

/// Owned words.
fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).to_owned()).collect()
}

/// The number in a text that follows `before`.
fn number_after(text: &str, before: &str) -> Result<f64> {
    let rest = text.split_once(before).map(|(_, rest)| rest.trim_start());
    let number = rest.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit() && c != '.').next());
    number.and_then(|n| n.parse().ok()).with_context(|| format!("no number after `{before}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_printed_text() {
        let printed = "Running 1s test\n  Requests/sec:  37213.55\nTransfer/sec: 1MB\ntps = 61.5 (without)";
        assert_eq!(number_after(printed, "Requests/sec:").unwrap(), 37213.55);
        assert_eq!(number_after(printed, "tps =").unwrap(), 61.5);
        assert!(number_after(printed, "latency").is_err());
    }

    #[test]
    fn row_without_its_program_says_so() {
        let lines = missing("x", "what", &["sh", "no-such-program"]).unwrap().unwrap();
        assert_eq!(lines[0].note.as_deref(), Some("skipped: no-such-program is not installed"));
        assert!(missing("x", "what", &["sh"]).is_none());
    }
}
