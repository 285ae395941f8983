//! `motet bench corba`: CORBA calls over every path there is, by the method of the papers.
//!
//! What it is: an ordinary omniORB program (`tests/bench/corba.cc`) run over kernel TCP, omniORB's own unix transport and Motet's
//! adapters in one run, everything in turn (`paths`); beside it the transports alone (`wires`). From that come the empty call and its
//! split (`null`), the instructions that Motet adds to it (`instructions`), what huge pages are worth (`memory`), rates over sizes
//! (`sequences`, `rates`) with the model of HP-CORBA (`figures`), and the sweep of the Crisp ORB paper (`strings`). What it is not: a test of
//! what arrives; `crates/motet-tests` does that with the same program.

pub(crate) mod figures;
mod instructions;
mod memory;
mod null;
pub(crate) mod paths;
mod rates;
mod sequences;
mod strings;
mod wires;

use crate::bench::Bench;
use crate::report::{Curve, Line, Report};
use crate::stage::Stage;
use anyhow::Result;
use clap::ValueEnum;
use indicatif::ProgressBar;
use paths::{Ends, Pair, Variant};
use wires::Wires;

/// The command line of `motet bench corba`.
#[derive(Debug, Default, clap::Args)]
pub struct Options {
    /// How to measure and what to print
    #[command(flatten)]
    pub manner: crate::Manner,
    /// Another ORB's pair of ends instead of omniORB's: the command to which `serve` and `call URI` are added (docs/corba.md)
    #[arg(long, value_name = "COMMAND")]
    pub pair: Option<String>,
    /// Only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub parts: Vec<Part>,
}

/// What can be measured by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// The empty call, on every path and in several configurations, and the transport's part of it
    Null,
    /// The instructions that Motet adds to an empty call
    Instructions,
    /// What huge pages are worth
    Memory,
    /// Sequences and strings from 4 B to 64 MiB, and the model
    Sequences,
    /// Requests with 1 to 2000 B
    Strings,
}

/// Everything, or only some parts. What fails is a line that says why; what else was measured is shown.
pub fn measure(mut bench: Bench, options: &Options) -> Result<Report> {
    bench.ms = if bench.quick { 10 } else { 40 }; // of very many questions
    let bench = &bench;
    let copies = crate::copies(bench);
    let stage = Stage::new(bench)?;
    let pair = Pair::of(&stage, options.pair.as_deref())?;
    let ends = Ends::open(&stage, &pair, Variant::USUAL)?;
    let wires = Wires::new(&stage)?;
    let parts = Part::value_variants().iter().filter(|part| options.parts.is_empty() || options.parts.contains(part));
    let parts: Vec<Part> = parts.copied().filter(|&part| pair.is_own() || part != Part::Memory).collect();
    let sizes = sequences::sizes(bench.quick);
    let steps = |part: &Part| if *part == Part::Sequences { sizes.len() * sequences::TYPES.len() } else { 1 };
    let bar = crate::progress(parts.iter().map(steps).sum::<usize>() as u64)?;
    let (mut lines, mut curves) = (Vec::new(), Vec::new());
    for part in parts {
        let (row, what) = part.title();
        bar.set_message(what);
        let found = match part {
            Part::Null => null::measure(&ends, &wires).map(|mut lines| {
                lines.extend(null::VARIANTS.iter().flat_map(|variant| null::variant(&stage, &pair, variant)));
                (lines, Vec::new())
            }),
            Part::Instructions => instructions::measure(&ends).map(|lines| (lines, Vec::new())),
            Part::Memory => memory::measure(&ends, &pair),
            Part::Strings => strings::measure(&ends, &wires),
            Part::Sequences => Ok(all_sequences(&ends, &wires, &sizes, &bar)),
        };
        match found {
            Ok(found) => {
                lines.extend(found.0);
                curves.extend(found.1);
            }
            Err(error) => lines.push(Line::not_measured(row, what, format!("{error:#}"))),
        }
        bar.inc(u64::from(part != Part::Sequences));
    }
    bar.finish_and_clear();
    Ok(Report { machine: crate::machine(bench, &copies), lines, curves })
}

impl Part {
    /// The row of a failure, and what is being done.
    fn title(self) -> (&'static str, &'static str) {
        match self {
            Part::Null => ("null", "the empty call"),
            Part::Instructions => ("instructions", "instructions of the empty call"),
            Part::Memory => ("memory", "receive memory"),
            Part::Sequences => ("rate", "sequences"),
            Part::Strings => ("strings", "strings of 1 to 2000 B"),
        }
    }
}

fn all_sequences(ends: &Ends<'_>, wires: &Wires<'_>, sizes: &[usize], bar: &ProgressBar) -> (Vec<Line>, Vec<Curve>) {
    let (mut lines, mut measured) = (Vec::new(), Vec::new());
    for kind in sequences::TYPES {
        for &size in sizes {
            let what = format!("{kind}, {}", crate::table::bytes(size));
            bar.inc(1);
            bar.set_message(what.clone());
            match sequences::measure(ends, wires, kind, size) {
                Ok(found) => measured.push(found),
                Err(error) => lines.push(Line::not_measured("rate", what, format!("{error:#}"))),
            }
        }
    }
    lines.extend(rates::lines(ends, &measured));
    (lines, rates::curves(&measured))
}
