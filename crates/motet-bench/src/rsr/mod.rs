//! `motet bench rsr`: remote service requests (`docs/rsr.md`) beside messages of the engine, and beside calls of omniORB on Motet.
//!
//! What it is: pairs of processes of this executable (`worker::rsr`), each on a CPU of its own. What it is not: a test of contents; the tests of
//! `motet-rsr` are that.
//!
//! | part | what |
//! | --- | --- |
//! | `empty` | an empty request one way, beside the engine's message of 8 B |
//! | `call` | a request with a startpoint, and its reply, beside omniORB's empty call |
//! | `packets` | head and data in one packet and in two, by size |
//! | `blocks` | 1 MiB in the same format and in the other byte order |
//! | `take-up` | a startpoint that is made and used by a node that has no link yet |
//! | `receptions` | a call by the reception of its server |
//! | `hosts` | calls between two test hosts, beside gRPC in Python; a startpoint taken up there |

mod hosts;
mod orb;
mod pair;

use crate::bench::{Bench, Measurement, Series};
use crate::options::PartOptions;
use crate::parts;
use crate::report::{Bound, Curve, Line, Quantity, Unit};
use anyhow::Result;
use pair::{ONE_PACKET, Pair};

/// The command line of `motet bench rsr`.
pub type Options = PartOptions<Part>;

/// A part of the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// An empty request one way, beside the engine's message of 8 B
    Empty,
    /// A round trip by a startpoint in the request, beside omniORB's empty call on Motet
    Call,
    /// Head and data in one packet and in two
    Packets,
    /// Blocks of 1 MiB, in the same format and in the other byte order
    Blocks,
    /// A startpoint that is made, serialised, and taken up by a node without a link
    TakeUp,
    /// A thread for each channel, the caller, one thread
    Receptions,
    /// Calls between two test hosts, beside gRPC in Python
    Hosts,
}

/// Sizes of data that are sent in one packet and in two, bytes.
const SIZES: [usize; 6] = [16, 256, 1 << 10, 4 << 10, 16 << 10, 32 << 10];
/// Bytes of a block.
const BLOCK: usize = 1 << 20;
const NS_IN_MS: f64 = 1e6;

impl parts::Part for Part {
    fn word(self) -> &'static str {
        match self {
            Part::Empty => "empty",
            Part::Call => "call",
            Part::Packets => "packets",
            Part::Blocks => "blocks",
            Part::TakeUp => "take-up",
            Part::Receptions => "receptions",
            Part::Hosts => "hosts",
        }
    }

    fn measure(self, bench: &Bench, _: &mut Vec<Curve>) -> Result<Vec<Line>> {
        match self {
            Part::Empty => empty(bench),
            Part::Call => orb::measure(bench),
            Part::Packets => packets(bench),
            Part::Blocks => blocks(bench),
            Part::TakeUp => take_up(bench),
            Part::Receptions => receptions(bench),
            Part::Hosts => hosts::measure(bench),
        }
    }
}

/// Asks pairs in turn. Returns the times of each, ns.
fn compare(bench: &Bench, asked: &[(&Pair, String)]) -> Result<Vec<Series>> {
    let mut measurements: Vec<Measurement<'_>> =
        asked.iter().map(|(pair, question)| -> Measurement<'_> { Box::new(move |_| pair.ask(question)) }).collect();
    bench.compare(bench.repetitions, false, &mut measurements)
}

fn ratio_line(
    what: impl Into<String>,
    row: &str,
    (name, own): (&str, &Series),
    (other_name, other): (&str, &Series),
    bound: Option<Bound>,
) -> Line {
    let line = Line::new(row, what)
        .figure(Quantity::of(name, &own.values, Unit::Ns))
        .floors(&own.floors)
        .against(Quantity::of(other_name, &other.values, Unit::Ns), &own.over(other))
        .note(own.distances());
    match bound {
        Some(bound) => line.bound(bound),
        None => line,
    }
}

/// Part `empty`.
fn empty(bench: &Bench) -> Result<Vec<Line>> {
    let (requests, messages) = (Pair::start(bench, "caller", ONE_PACKET)?, Pair::start(bench, "engine", 0)?);
    let ms = bench.ms;
    let asked = [(&requests, format!("ping 0 {ms}")), (&messages, format!("ping 8 {ms}"))];
    let series = compare(bench, &asked)?;
    Ok(vec![ratio_line(
        "empty request, one way",
        "empty",
        ("request", &series[0]),
        ("message of 8 B", &series[1]),
        Some(Bound::AtMost(1.3)),
    )])
}

/// Part `packets`.
fn packets(bench: &Bench) -> Result<Vec<Line>> {
    let (one, two) = (Pair::start(bench, "caller", ONE_PACKET)?, Pair::start(bench, "caller", 0)?);
    let mut lines = Vec::new();
    for size in SIZES {
        let question = format!("ping {size} {}", bench.ms);
        let series = compare(bench, &[(&one, question.clone()), (&two, question)])?;
        let bound = (size <= 256).then_some(Bound::AtMost(0.6));
        let what = format!("request with {size} B, one way");
        lines.push(ratio_line(what, "packets", ("one packet", &series[0]), ("two packets", &series[1]), bound));
    }
    Ok(lines)
}

/// Part `blocks`.
fn blocks(bench: &Bench) -> Result<Vec<Line>> {
    let (requests, messages) = (Pair::start(bench, "caller", ONE_PACKET)?, Pair::start(bench, "engine", 0)?);
    let of = |what: &str| format!("{what} {BLOCK} {}", bench.ms);
    let asked =
        [(&requests, of("stream")), (&messages, of("stream")), (&requests, of("foreign")), (&requests, of("swap"))];
    let series = compare(bench, &asked)?;
    let rate = |at: usize, name: &str| {
        let rates: Vec<f64> = series[at].values.iter().map(|ns| BLOCK as f64 / ns).collect();
        Quantity::of(name, &rates, Unit::GBs)
    };
    let line = |what: &str, (own, name): (usize, &str), (other, beside): (usize, &str), least: f64| {
        Line::new("blocks", what)
            .figure(rate(own, name))
            .floors(&series[own].floors)
            .against(rate(other, beside), &series[other].over(&series[own]))
            .bound(Bound::AtLeast(least))
            .note(series[own].distances())
    };
    Ok(vec![
        line("1 MiB, same format", (0, "request"), (1, "message"), 0.95),
        line("1 MiB, other byte order", (2, "request, converted"), (3, "copy that swaps"), 0.5),
    ])
}

/// Part `take-up`.
fn take_up(bench: &Bench) -> Result<Vec<Line>> {
    let pair = Pair::start(bench, "thread", ONE_PACKET)?;
    let series = compare(bench, &[(&pair, format!("take-up 0 {}", bench.ms))])?;
    let times: Vec<f64> = series[0].values.iter().map(|ns| ns / NS_IN_MS).collect();
    Ok(vec![
        Line::new(
            "take-up",
            "startpoint made, serialised, taken up by a node without a link, first call answered, one host",
        )
        .figure(Quantity::of("together", &times, Unit::Ms))
        .floors(&series[0].floors)
        .bound(Bound::AtMost(2.0)),
    ])
}

/// Part `receptions`.
fn receptions(bench: &Bench) -> Result<Vec<Line>> {
    let names = [("caller", "the caller polls"), ("thread", "one thread"), ("channel", "a thread for each channel")];
    let pairs: Vec<Pair> = names.iter().map(|(word, _)| Pair::start(bench, word, ONE_PACKET)).collect::<Result<_>>()?;
    let asked: Vec<(&Pair, String)> = pairs.iter().map(|pair| (pair, format!("call 0 {}", bench.ms))).collect();
    let series = compare(bench, &asked)?;
    let line = |((_, name), own): (&(&str, &str), &Series)| {
        ratio_line(format!("call, {name}"), "receptions", ("round trip", own), ("the caller polls", &series[0]), None)
    };
    Ok(names.iter().zip(&series).map(line).collect())
}
