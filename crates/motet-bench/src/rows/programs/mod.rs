//! Other people's programs, unmodified: each without Motet and as under `motet run`, in the same run.
//!
//! Every line is measured in the ways of [`WAYS`], which take turns in each repetition, and compared by [`Plan::line`]: Motet with
//! the ends on two CPUs, beside plain TCP in its better placement. The ratio is always how many times better Motet is. Where little
//! is asked the note adds both ratios within one placement. A row whose program is missing says so.

mod apache;
mod c;
pub mod java;
pub(crate) mod middleware;
mod python;
mod redis;
mod servers;
mod tools;

use super::{Row, counted, row};
use crate::bench::{Bench, Contestant, Series};
use crate::report::{Bound, Line, Quantity, Unit, WithMotet};
use crate::stage::{Caller, Stage, WAYS, Way};
use crate::stats::median;
use anyhow::{Context, Result};
use motet_programs::find;
use std::cell::RefCell;

/// The rows, in the order of the table.
pub const ROWS: [Row; 17] = [
    row("ping-pong", "C ping-pong, blocking and epoll", c::ping_pong),
    row("sockperf", "sockperf", tools::sockperf),
    row("iperf3", "iperf3", tools::iperf3),
    row("qperf", "qperf", tools::qperf),
    row("java", "Java NIO and java.net", java::echo),
    row("rmi", "Java RMI", java::rmi),
    row("python", "Python, blocking and asyncio", python::echo),
    row("redis", "Redis", redis::redis),
    row("nginx", "nginx and wrk", servers::nginx),
    row("apache", "Apache, a server of threads and epoll sets", apache::apache),
    row("postgresql", "PostgreSQL", servers::postgresql),
    row("memcached", "memcached", servers::memcached),
    row("omniorb", "omniORB", middleware::omniorb),
    row("openmpi", "Open MPI over TCP", middleware::openmpi),
    row("mpi", "Open MPI on Motet, beside its own transport", middleware::mpi_on_motet),
    row("zeromq", "ZeroMQ", middleware::zeromq),
    row("grpc", "gRPC", middleware::grpc),
];

/// What is asked of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Asked {
    /// So many times better than plain TCP.
    Times(f64),
    /// Not slower, as far as one can measure.
    NeverSlower,
    /// That it runs.
    Shown,
}

/// A line to be measured.
struct Plan<'a> {
    row: &'a str,
    what: String,
    unit: Unit,
    asked: Asked,
}

impl<'a> Plan<'a> {
    fn new(row: &'a str, what: impl Into<String>, unit: Unit, asked: Asked) -> Self {
        Self { row, what: what.into(), unit, asked }
    }

    /// Measures all ways in turn; one that fails is the line's failure, not the row's.
    fn measure(self, stage: &Stage<'_>, measure: impl FnMut(Way) -> Result<f64>) -> Line {
        let (row, what) = (self.row, self.what.clone());
        self.compare(stage, measure).unwrap_or_else(|error| Line::not_measured(row, what, format!("{error:#}")))
    }

    /// What part of the bytes was shared is known when `measure` and what it owns have ended.
    fn compare(self, stage: &Stage<'_>, measure: impl FnMut(Way) -> Result<f64>) -> Result<Line> {
        let bench = stage.bench;
        stage.shared(); // what ended before is another line's
        let measure = RefCell::new(measure);
        let (time, times) = (self.unit == Unit::Ns, matches!(self.asked, Asked::Times(_)));
        let measured = if times { &WAYS[..3] } else { &WAYS[..] };
        let mut ways: Vec<Contestant<'_>> = Vec::new();
        for &way in measured {
            ways.push(Box::new({
                let measure = &measure;
                move |_| (measure.borrow_mut())(way)
            }));
        }
        let series = bench.contest(bench.of_programs, times, &mut ways)?;
        drop(ways);
        drop(measure);
        let mut line = self.line(bench, &series[0], &series[1], &series[2]);
        if let [two, plain_one, plain_two, one] = &series[..] {
            let gain =
                |motet: &Series, plain: &Series| median(&if time { plain.over(motet) } else { motet.over(plain) });
            line = line.note(format!(
                "within one placement: one CPU {:.2} x, two CPUs {:.2} x",
                gain(one, plain_one),
                gain(two, plain_two)
            ));
        }
        Ok(match stage.shared() {
            Some(part) => {
                line.note(format!("through shared memory: {:.0} % of what programs under Motet sent", part * 100.0))
            }
            None => line.note("no stream was upgraded, as far as the programs said when they ended"),
        })
    }

    /// Motet beside the better of two placements of plain TCP.
    fn line(self, bench: &Bench, motet: &Series, one: &Series, two: &Series) -> Line {
        let time = self.unit == Unit::Ns;
        let (tcp, place) = match median(&one.values) <= median(&two.values) {
            one_takes_less if one_takes_less == time => (one, "one CPU"),
            _ => (two, "two CPUs"),
        };
        let times = matches!(self.asked, Asked::Times(_));
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
        match self.asked {
            Asked::Times(bound) => line.bound(Bound::AtLeast(bound)).slow_floor(enough),
            Asked::NeverSlower => line.nearly(Bound::AtLeast(1.0)),
            Asked::Shown => line,
        }
    }
}

/// The line of a row whose program is missing; `None` when all are there.
fn missing(row: &str, what: &str, needs: &[&str]) -> Option<Result<Vec<Line>>> {
    let absent = needs.iter().find(|program| find(program).is_none())?;
    Some(Ok(vec![Line::not_measured(row, what, format!("skipped: {absent} is not installed"))]))
}

/// Measures with callers that stay, one for each way: `words` start one for the server's port, `question` is what it is asked each time.
/// One more question before them all, unless it is empty, is for programs that compile themselves first.
fn called(
    stage: &Stage<'_>,
    plan: Plan<'_>,
    words: impl Fn(Way) -> Vec<String>,
    question: &str,
    warm_up: &str,
    value: impl Fn(f64) -> f64,
) -> Line {
    let mut callers: Vec<(Way, Caller)> = Vec::new();
    plan.measure(stage, move |way| {
        let at = match callers.iter().position(|(of, _)| *of == way) {
            Some(at) => at,
            None => {
                let mut caller = stage.caller(way, &words(way))?;
                if !warm_up.is_empty() {
                    caller.ask(warm_up)?;
                }
                callers.push((way, caller));
                callers.len() - 1
            }
        };
        Ok(value(callers[at].1.ask(question)?.median))
    })
}

/// Words from a few of both kinds.
fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).to_owned()).collect()
}

/// The number in a text that follows `before`.
fn number_after(text: &str, before: &str) -> Result<f64> {
    let rest = text.split_once(before).map(|(_, rest)| rest.trim_start());
    let number = rest.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit() && c != '.').next());
    number.and_then(|n| n.parse().ok()).with_context(|| format!("no number behind `{before}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_what_programs_print() {
        let printed = "Running 1s test\n  Requests/sec:  37213.55\nTransfer/sec: 1MB\ntps = 61.5 (without)";
        assert_eq!(number_after(printed, "Requests/sec:").unwrap(), 37213.55);
        assert_eq!(number_after(printed, "tps =").unwrap(), 61.5);
        assert!(number_after(printed, "latency").is_err());
    }

    #[test]
    fn a_row_without_its_program_says_so() {
        let lines = missing("x", "what", &["sh", "no-such-program"]).unwrap().unwrap();
        assert_eq!(lines[0].note.as_deref(), Some("skipped: no-such-program is not installed"));
        assert!(missing("x", "what", &["sh"]).is_none());
    }
}
