//! The empty call: its time on every path, and what part of it is the transport's.

use super::figures::each;
use super::paths::{Answer, Answers, Ends, Pair, Path, Place, Variant, on};
use super::wires::{Wire, Wires};
use crate::bench::Series;
use crate::place::Placement::{One, Two};
use crate::report::{Bound, Line, Quantity, Unit, WithMotet};
use crate::rows::counted;
use crate::stage::Stage;
use crate::stats::median;
use anyhow::{Context, Result};

/// What an empty call is on the wire: a request of some 60 bytes and a reply of 24. A ping-pong of this size stands for it.
const REQUEST: usize = 64;
/// What MPI is compared with.
const SMALLEST: usize = 8;

/// The lines of the empty call.
pub fn measure(ends: &Ends<'_>, wires: &Wires<'_>) -> Result<Vec<Line>> {
    let bench = ends.stage.bench;
    ends.stage.shared(); // what ended before is not this
    let mut others = wires.contestants(REQUEST, false);
    others.extend(wires.contestants(SMALLEST, true));
    let question = format!("null - 0 {}", bench.ms);
    let found = ends.contest((bench.repetitions, true), ends.places(true), &[question], others)?;
    let (requests, smallest) = found.others.split_at(Wires::count(false));
    let tcp = found.better(Path::Tcp, 0).context("kernel TCP answered nothing")?;
    let of = |place| found.of(place, 0).map(|answer| &answer.median);
    let plain = of((Path::Tcp, tcp)).context("kernel TCP answered nothing")?;
    let mut lines = vec![
        Line::new("null", "empty call, kernel TCP")
            .figure(Quantity::of(format!("median, {}", on(tcp)), &plain.values, Unit::Ns))
            .floors(&plain.floors)
            .against(
                found.of((Path::Tcp, tcp), 0).and_then(|all| Quantity::of("p99", &all.p99, Unit::Ns)),
                &[], // a ratio of the two would say nothing
            )
            .with_motet(WithMotet::Neither),
    ];
    for adapter in Path::ADAPTERS {
        let what = format!("empty call, {}, own CPUs", adapter.name());
        match (ends.missing(adapter), found.of((adapter, Two), 0)) {
            (Some(why), _) => lines.push(Line::not_measured("null", what, why)),
            (None, None) => lines.push(Line::not_measured("null", what, "the caller failed")),
            (None, Some(ours)) => {
                lines.extend(against_kernel(bench.repetitions, adapter, &found, what));
                let mpi = Wires::of(smallest, Wire::Mpi, Two);
                lines.push(against_mpi(adapter, &ours.median, mpi, wires));
            }
        }
    }
    lines.extend(split(&found, requests));
    if let Some(part) = ends.stage.shared() {
        lines[0].note =
            Some(format!("callers under Motet sent {:.0} % of their bytes through shared memory", part * 100.0));
    }
    Ok(lines)
}

/// An empty call between ends that are configured otherwise: what it is called, and the ORB's options.
pub const VARIANTS: [(&str, &[&str]); 2] = [
    ("time limits of 10 s", &["-ORBclientCallTimeOutPeriod", "10000", "-ORBserverCallTimeOutPeriod", "10000"]),
    ("a pool of threads", &["-ORBthreadPerConnectionPolicy", "0"]),
];

/// The adapters beside kernel TCP, and the omniORB adapter beside the sockets adapter, in such a configuration.
pub fn variant(stage: &Stage<'_>, pair: &Pair, &(name, options): &(&str, &[&str])) -> Vec<Line> {
    let what = format!("empty call, {name}");
    let measured = || -> Result<Vec<Line>> {
        let paths = [Path::Tcp, Path::Sockets, Path::Corba];
        let ends = Ends::open(stage, pair, Variant { options, paths: &paths, ..Variant::USUAL })?;
        let question = format!("null - 0 {}", stage.bench.ms);
        let found = ends.contest((stage.bench.repetitions, true), ends.places(false), &[question], Vec::new())?;
        let tcp = found.better(Path::Tcp, 0).context("kernel TCP answered nothing")?;
        let [tcp, sockets, corba] =
            [(Path::Tcp, tcp), (Path::Sockets, Two), (Path::Corba, Two)].map(|place| (place, found.of(place, 0)));
        let beside = |ours: (Place, Option<&Answer>), theirs: (Place, Option<&Answer>)| {
            let (series, others) = (&ours.1?.median, &theirs.1?.median);
            let figure = |((path, place), _): (Place, Option<&Answer>), values: &[f64]| {
                Quantity::of(format!("{}, {}", path.name(), on(place)), values, Unit::Ns)
            };
            let line = Line::new("null", what.clone()).figure(figure(ours, &series.values)).floors(&series.floors);
            Some(line.against(figure(theirs, &others.values), &others.over(series)))
        };
        Ok([beside(sockets, tcp), beside(corba, tcp), beside(corba, sockets)].into_iter().flatten().collect())
    };
    measured().unwrap_or_else(|error| vec![Line::not_measured("null", what.clone(), format!("{error:#}"))])
}

/// An adapter beside kernel TCP and the unix transport, each with its better placement; then both ends on one CPU.
fn against_kernel(repetitions: usize, adapter: Path, found: &Answers, what: String) -> Vec<Line> {
    let Some(ours) = found.of((adapter, Two), 0) else { return Vec::new() };
    let (ours, p99) = (&ours.median, &ours.p99);
    let mut lines = Vec::new();
    let fast = ours.fast();
    let enough = fast.len() >= repetitions.min(5);
    let counts = if enough { fast } else { (0..ours.values.len()).collect() };
    let p99: Vec<f64> = counts.iter().map(|&i| p99[i]).collect();
    let figure = |name: &str, values: &[f64]| Quantity::of(name, values, Unit::Ns);
    let at = ours.at(&counts);
    lines.push(
        Line::new("null", what.clone())
            .figure(figure("median", &at.values))
            .floors(&at.floors)
            .bound(Bound::AtMost(450.0))
            .slow_floor(enough),
    );
    lines.push(
        Line::new("null", format!("{what}, 99th percentile"))
            .figure(figure("p99", &p99))
            .floors(&at.floors)
            .bound(Bound::AtMost(800.0))
            .slow_floor(enough),
    );
    for (path, bound) in [(Path::Tcp, Some(25.0)), (Path::Unix, None)] {
        let Some((place, theirs)) = found.better(path, 0).and_then(|on| Some((on, found.of((path, on), 0)?))) else {
            continue;
        };
        let (ours, theirs, enough) = counted(repetitions, ours, &theirs.median);
        let line = Line::new("null", format!("{}, against the {}", path.name(), adapter.name()))
            .figure(figure(&format!("median, {}", on(place)), &theirs.values))
            .floors(&ours.floors)
            .against(figure(adapter.name(), &ours.values), &theirs.over(&ours))
            .with_motet(WithMotet::Reference);
        lines.push(match bound {
            Some(bound) => line.bound(Bound::AtLeast(bound)).slow_floor(enough),
            None => line,
        });
    }
    if let (Some(one), Some(plain)) = (found.of((adapter, One), 0), found.of((Path::Tcp, One), 0)) {
        lines.push(
            Line::new("null", format!("both ends on one CPU, {}", adapter.name()))
                .figure(figure("kernel TCP", &plain.median.values))
                .floors(&one.median.floors)
                .against(figure(adapter.name(), &one.median.values), &plain.median.over(&one.median))
                .with_motet(WithMotet::Reference)
                .nearly(Bound::AtLeast(1.0)),
        );
    }
    lines
}

/// Half an empty call beside one way of 8 B between two ranks.
fn against_mpi(adapter: Path, ours: &Series, mpi: Option<&Series>, wires: &Wires<'_>) -> Line {
    let what = format!("one way, {}, against MPI", adapter.name());
    let Some(mpi) = mpi else {
        return Line::not_measured("null", what, wires.without_mpi().unwrap_or_else(|| "MPI did not run".to_owned()));
    };
    let half: Vec<f64> = ours.values.iter().map(|ns| ns / 2.0).collect();
    Line::new("null", what)
        .figure(Quantity::of("half an empty call", &half, Unit::Ns))
        .floors(&ours.floors)
        .against(Quantity::of("MPI, 8 B", &mpi.values, Unit::Ns), &each([&half, &mpi.values], |[a, b]| a / b))
        .bound(Bound::AtMost(2.5))
}

/// The part of the transport, as the Crisp ORB paper has it, and the call that another transport lets expect: the ORB's own time stays.
fn split(found: &Answers, requests: &[Series]) -> Vec<Line> {
    let mut lines = Vec::new();
    let call = |path: Path| -> Option<(Series, Vec<f64>, &'static str)> {
        let (placement, name) = match path {
            Path::Tcp => found.better(path, 0).map(|placement| (placement, on(placement)))?,
            _ => (Two, "own CPUs"),
        };
        let wire = Wires::of(requests, Wire::under(path)?, placement)?;
        let trip = wire.values.iter().map(|ns| ns * 2.0).collect();
        Some((found.of((path, placement), 0)?.median.clone(), trip, name))
    };
    let tcp = call(Path::Tcp);
    for path in [Path::Tcp, Path::Sockets, Path::Corba] {
        let Some((whole, trip, place)) = call(path) else { continue };
        let parts = each([&trip, &whole.values], |[trip, whole]| trip / whole);
        let mut line = Line::new("split", format!("the transport's part of an empty call, {}", path.name()))
            .figure(Quantity::of(format!("{REQUEST} B there and back alone, {place}"), &trip, Unit::Ns))
            .floors(&whole.floors)
            .against(Quantity::of("the call", &whole.values, Unit::Ns), &parts)
            .with_motet(path.with_motet());
        if path == Path::Tcp {
            line = line.note("the Crisp ORB paper has 44 % (242 of 550 us)");
        }
        lines.push(line);
        let Some((tcp, tcp_trip, _)) = tcp.as_ref().filter(|_| path != Path::Tcp) else { continue };
        let expected = each([&tcp.values, tcp_trip, &trip], |[call, trip, faster]| call - trip + faster);
        let ratios = each([&whole.values, &expected], |[whole, expected]| whole / expected);
        lines.push(
            Line::new(
                "split",
                format!("empty call, {}, beside what the faster transport alone lets expect", path.name()),
            )
            .figure(Quantity::of("measured", &whole.values, Unit::Ns))
            .floors(&whole.floors)
            .against(
                Quantity::of("kernel TCP's call less its transport, plus this one's", &expected, Unit::Ns),
                &ratios,
            )
            .note(format!(
                "gain over kernel TCP: expected {:.1} x, measured {:.1} x",
                median(&each([&tcp.values, &expected], |[a, b]| a / b)),
                median(&tcp.over(&whole))
            )),
        );
    }
    lines
}
