//! The empty call: its time on every transport, and the share of the transport in it.

use super::figures::each;
use super::raw_transports::{RawTransport, RawTransports};
use super::transports::{Answer, Answers, Ends, OrbProgram, Place, Transport, Variant, on};
use crate::bench::Series;
use crate::measure::counted;
use crate::place::Placement::{One, Two};
use crate::report::{Bound, Line, Quantity, Unit, WithMotet};
use crate::sandbox::Sandbox;
use crate::stats::median;
use anyhow::{Context, Result};

/// The size of the ping-pong that stands for an empty call, which is a request of some 60 bytes and a reply of 24.
const REQUEST: usize = 64;
/// The size of the ping-pong of MPI.
const SMALLEST: usize = 8;

/// The lines of the empty call.
pub fn measure(ends: &Ends<'_>, raw_transports: &RawTransports<'_>) -> Result<Vec<Line>> {
    let bench = ends.sandbox.bench;
    ends.sandbox.shared(); // drops the reports of earlier programs
    let mut others = raw_transports.measurements(REQUEST, false);
    others.extend(raw_transports.measurements(SMALLEST, true));
    let question = format!("null - 0 {}", bench.ms);
    let found = ends.compare((bench.repetitions, true), ends.places(true), &[question], others)?;
    let (requests, smallest) = found.others.split_at(RawTransports::count(false));
    let tcp = found.better(Transport::Tcp, 0).context("kernel TCP answered nothing")?;
    let of = |place| found.of(place, 0).map(|answer| &answer.median);
    let plain = of((Transport::Tcp, tcp)).context("kernel TCP answered nothing")?;
    let mut lines = vec![
        Line::new("null", "empty call, kernel TCP")
            .figure(Quantity::of(format!("median, {}", on(tcp)), &plain.values, Unit::Ns))
            .floors(&plain.floors)
            .against(
                found.of((Transport::Tcp, tcp), 0).and_then(|all| Quantity::of("p99", &all.p99, Unit::Ns)),
                &[], // a ratio of the two has no meaning
            )
            .with_motet(WithMotet::Neither),
    ];
    for adapter in Transport::ADAPTERS {
        let what = format!("empty call, {}, own CPUs", adapter.name());
        match (ends.missing(adapter), found.of((adapter, Two), 0)) {
            (Some(why), _) => lines.push(Line::not_measured("null", what, why)),
            (None, None) => lines.push(Line::not_measured("null", what, "the caller failed")),
            (None, Some(ours)) => {
                lines.extend(against_kernel(bench.repetitions, adapter, &found, what));
                let mpi = RawTransports::of(smallest, RawTransport::Mpi, Two);
                lines.push(against_mpi(adapter, &ours.median, mpi, raw_transports));
            }
        }
    }
    lines.extend(split(&found, requests));
    if let Some(part) = ends.sandbox.shared() {
        lines[0].note =
            Some(format!("callers under Motet sent {:.0} % of their bytes through shared memory", part * 100.0));
    }
    Ok(lines)
}

/// Other configurations of the ends: a name, and options of the ORB.
pub const VARIANTS: [(&str, &[&str]); 2] = [
    ("time limits of 10 s", &["-ORBclientCallTimeOutPeriod", "10000", "-ORBserverCallTimeOutPeriod", "10000"]),
    ("a pool of threads", &["-ORBthreadPerConnectionPolicy", "0"]),
];

/// Lines of the adapters over kernel TCP, and of the omniORB adapter over the sockets adapter, in one of these configurations.
pub fn variant(sandbox: &Sandbox<'_>, pair: &OrbProgram, &(name, options): &(&str, &[&str])) -> Vec<Line> {
    let what = format!("empty call, {name}");
    let measured = || -> Result<Vec<Line>> {
        let transports = [Transport::Tcp, Transport::Sockets, Transport::Corba];
        let ends = Ends::open(sandbox, pair, Variant { options, transports: &transports, ..Variant::USUAL })?;
        let question = format!("null - 0 {}", sandbox.bench.ms);
        let found = ends.compare((sandbox.bench.repetitions, true), ends.places(false), &[question], Vec::new())?;
        let tcp = found.better(Transport::Tcp, 0).context("kernel TCP answered nothing")?;
        let [tcp, sockets, corba] = [(Transport::Tcp, tcp), (Transport::Sockets, Two), (Transport::Corba, Two)]
            .map(|place| (place, found.of(place, 0)));
        let beside = |ours: (Place, Option<&Answer>), theirs: (Place, Option<&Answer>)| {
            let (series, others) = (&ours.1?.median, &theirs.1?.median);
            let figure = |((transport, place), _): (Place, Option<&Answer>), values: &[f64]| {
                Quantity::of(format!("{}, {}", transport.name(), on(place)), values, Unit::Ns)
            };
            let line = Line::new("null", what.clone()).figure(figure(ours, &series.values)).floors(&series.floors);
            Some(line.against(figure(theirs, &others.values), &others.over(series)))
        };
        Ok([beside(sockets, tcp), beside(corba, tcp), beside(corba, sockets)].into_iter().flatten().collect())
    };
    measured().unwrap_or_else(|error| vec![Line::not_measured("null", what.clone(), format!("{error:#}"))])
}

/// Lines of an adapter over kernel TCP and over the unix transport, each in its better placement; then with both ends on one CPU.
fn against_kernel(repetitions: usize, adapter: Transport, found: &Answers, what: String) -> Vec<Line> {
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
    for (transport, bound) in [(Transport::Tcp, Some(25.0)), (Transport::Unix, None)] {
        let Some((place, theirs)) = found.better(transport, 0).and_then(|on| Some((on, found.of((transport, on), 0)?)))
        else {
            continue;
        };
        let (ours, theirs, enough) = counted(repetitions, ours, &theirs.median);
        let line = Line::new("null", format!("{}, against the {}", transport.name(), adapter.name()))
            .figure(figure(&format!("median, {}", on(place)), &theirs.values))
            .floors(&ours.floors)
            .against(figure(adapter.name(), &ours.values), &theirs.over(&ours))
            .with_motet(WithMotet::Reference);
        lines.push(match bound {
            Some(bound) => line.bound(Bound::AtLeast(bound)).slow_floor(enough),
            None => line,
        });
    }
    if let (Some(one), Some(plain)) = (found.of((adapter, One), 0), found.of((Transport::Tcp, One), 0)) {
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

/// The line of half an empty call over one way of 8 B between two ranks.
fn against_mpi(adapter: Transport, ours: &Series, mpi: Option<&Series>, raw_transports: &RawTransports<'_>) -> Line {
    let what = format!("one way, {}, against MPI", adapter.name());
    let Some(mpi) = mpi else {
        return Line::not_measured(
            "null",
            what,
            raw_transports.without_mpi().unwrap_or_else(|| "MPI did not run".to_owned()),
        );
    };
    let half: Vec<f64> = ours.values.iter().map(|ns| ns / 2.0).collect();
    Line::new("null", what)
        .figure(Quantity::of("half an empty call", &half, Unit::Ns))
        .floors(&ours.floors)
        .against(Quantity::of("MPI, 8 B", &mpi.values, Unit::Ns), &each([&half, &mpi.values], |[a, b]| a / b))
        .bound(Bound::AtMost(2.5))
}

/// Lines of the share of the transport, as in the Crisp ORB paper, and of the expected call: the time of the ORB plus that transport.
fn split(found: &Answers, requests: &[Series]) -> Vec<Line> {
    let mut lines = Vec::new();
    let call = |transport: Transport| -> Option<(Series, Vec<f64>, &'static str)> {
        let (placement, name) = match transport {
            Transport::Tcp => found.better(transport, 0).map(|placement| (placement, on(placement)))?,
            _ => (Two, "own CPUs"),
        };
        let raw = RawTransports::of(requests, RawTransport::under(transport)?, placement)?;
        let trip = raw.values.iter().map(|ns| ns * 2.0).collect();
        Some((found.of((transport, placement), 0)?.median.clone(), trip, name))
    };
    let tcp = call(Transport::Tcp);
    for transport in [Transport::Tcp, Transport::Sockets, Transport::Corba] {
        let Some((whole, trip, place)) = call(transport) else { continue };
        let parts = each([&trip, &whole.values], |[trip, whole]| trip / whole);
        let mut line = Line::new("split", format!("the transport's part of an empty call, {}", transport.name()))
            .figure(Quantity::of(format!("{REQUEST} B there and back alone, {place}"), &trip, Unit::Ns))
            .floors(&whole.floors)
            .against(Quantity::of("the call", &whole.values, Unit::Ns), &parts)
            .with_motet(transport.with_motet());
        if transport == Transport::Tcp {
            line = line.note("the Crisp ORB paper has 44 % (242 of 550 us)");
        }
        lines.push(line);
        let Some((tcp, tcp_trip, _)) = tcp.as_ref().filter(|_| transport != Transport::Tcp) else { continue };
        let expected = each([&tcp.values, tcp_trip, &trip], |[call, trip, faster]| call - trip + faster);
        let ratios = each([&whole.values, &expected], |[whole, expected]| whole / expected);
        lines.push(
            Line::new(
                "split",
                format!("empty call, {}, beside the call that the faster transport lets expect", transport.name()),
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
