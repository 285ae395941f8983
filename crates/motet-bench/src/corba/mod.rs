//! `motet bench corba`: CORBA calls over every transport, by the method of the papers.
//!
//! What it is: an omniORB program (`tests/bench/corba.cc`) over kernel TCP, omniORB's unix transport and the adapters of Motet, in turn
//! in one run (`transports`), and the transports without an ORB (`raw_transports`). The parts are the empty call and the share of the
//! transport in it (`null`), the instructions that Motet adds (`instructions`), the effect of huge pages (`memory`), rates over sizes
//! (`sequences`, `rates`) with the model of HP-CORBA (`figures`), and the sweep of the Crisp ORB paper (`strings`). What it is not: a
//! test of contents; `crates/motet-tests` does that with the same program.

pub(crate) mod figures;
mod instructions;
mod memory;
mod null;
mod rates;
mod raw_transports;
mod sequences;
mod strings;
pub(crate) mod transports;

use crate::bench::Bench;
use crate::options::PartOptions;
use crate::report::{Curve, Line, Report};
use crate::sandbox::Sandbox;
use crate::{machine, output};
use anyhow::Result;
use indicatif::ProgressBar;
use raw_transports::RawTransports;
use transports::{Ends, OrbProgram, Variant};

/// The command line of `motet bench corba`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// How to measure, what to print, and which parts
    #[command(flatten)]
    pub parts: PartOptions<Part>,
    /// Another ORB's pair of ends instead of omniORB's: the command to which `serve` and `call URI` are added (docs/corba.md)
    #[arg(long, value_name = "COMMAND")]
    pub pair: Option<String>,
}

/// A part of the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// The empty call, on every transport and in several configurations, and the transport's part of it
    Null,
    /// The instructions that Motet adds to an empty call
    Instructions,
    /// The effect of huge pages
    Memory,
    /// Sequences and strings from 4 B to 64 MiB, and the model
    Sequences,
    /// Requests with 1 to 2000 B
    Strings,
}

/// Measures the chosen parts. A part that fails has a line that says why.
pub fn measure(mut bench: Bench, options: &Options) -> Result<Report> {
    bench.ms = if bench.quick { 10 } else { 40 }; // there are many questions
    let bench = &bench;
    let copies = machine::copies(bench);
    let sandbox = Sandbox::new(bench)?;
    let pair = OrbProgram::of(&sandbox, options.pair.as_deref())?;
    let ends = Ends::open(&sandbox, &pair, Variant::USUAL)?;
    let raw_transports = RawTransports::new(&sandbox)?;
    let parts: Vec<Part> =
        options.parts.chosen().into_iter().filter(|&part| pair.is_omniorb() || part != Part::Memory).collect();
    let sizes = sequences::sizes(bench.quick);
    let steps = |part: &Part| if *part == Part::Sequences { sizes.len() * sequences::TYPES.len() } else { 1 };
    let bar = output::progress(parts.iter().map(steps).sum::<usize>() as u64)?;
    let (mut lines, mut curves) = (Vec::new(), Vec::new());
    for part in parts {
        let (row, what) = part.title();
        bar.set_message(what);
        let found = match part {
            Part::Null => null::measure(&ends, &raw_transports).map(|mut lines| {
                lines.extend(null::VARIANTS.iter().flat_map(|variant| null::variant(&sandbox, &pair, variant)));
                (lines, Vec::new())
            }),
            Part::Instructions => instructions::measure(&ends).map(|lines| (lines, Vec::new())),
            Part::Memory => memory::measure(&ends, &pair),
            Part::Strings => strings::measure(&ends, &raw_transports),
            Part::Sequences => Ok(all_sequences(&ends, &raw_transports, &sizes, &bar)),
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
    Ok(Report { machine: machine::describe(bench, &copies), lines, curves })
}

impl Part {
    /// The row of a failure, and a title.
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

fn all_sequences(
    ends: &Ends<'_>,
    raw_transports: &RawTransports<'_>,
    sizes: &[usize],
    bar: &ProgressBar,
) -> (Vec<Line>, Vec<Curve>) {
    let (mut lines, mut measured) = (Vec::new(), Vec::new());
    for kind in sequences::TYPES {
        for &size in sizes {
            let what = format!("{kind}, {}", crate::format::bytes(size));
            bar.inc(1);
            bar.set_message(what.clone());
            match sequences::measure(ends, raw_transports, kind, size) {
                Ok(found) => measured.push(found),
                Err(error) => lines.push(Line::not_measured("rate", what, format!("{error:#}"))),
            }
        }
    }
    lines.extend(rates::lines(ends, &measured));
    (lines, rates::curves(&measured))
}
