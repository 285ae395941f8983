//! `motet bench corba`: CORBA calls over every path there is, by the method of the papers.
//!
//! What it is: an ordinary omniORB program (`tests/bench/corba.cc`) run over kernel TCP, omniORB's own unix transport and Motet's
//! voices in one run, everything in turn (`paths`); beside it the transports alone (`wires`). From that come the empty call and its
//! split (`null`), the instructions that Motet adds to it (`instructions`), rates over sizes (`sequences`, `rates`) with the model of
//! HP-CORBA (`figures`), and the sweep of the Crisp ORB paper (`strings`). What it is not: a test of what arrives; `crates/motet-tests` does that with the same program.

mod figures;
mod instructions;
mod null;
mod paths;
mod rates;
mod sequences;
mod strings;
mod wires;

use crate::bench::Bench;
use crate::report::{Line, Report};
use crate::stage::Stage;
use anyhow::Result;
use paths::Ends;
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
}

/// Everything. What fails is a line that says why; what else was measured is shown.
pub fn measure(mut bench: Bench, pair: Option<&str>) -> Result<Report> {
    bench.ms = if bench.quick { 10 } else { 40 }; // of very many questions
    let bench = &bench;
    let sizes = sequences::sizes(bench.quick);
    let bar = crate::progress((sizes.len() * sequences::TYPES.len() + 4) as u64)?;
    bar.set_message("programs");
    let copies = crate::copies(bench);
    let stage = Stage::new(bench)?;
    let ends = Ends::open(&stage, pair)?;
    let wires = Wires::new(&stage)?;
    let (mut lines, mut curves, mut measured) = (Vec::new(), Vec::new(), Vec::new());
    bar.inc(1);
    bar.set_message("the empty call");
    lines.extend(
        null::measure(&ends, &wires)
            .unwrap_or_else(|e| vec![Line::not_measured("null", "empty call", format!("{e:#}"))]),
    );
    bar.inc(1);
    bar.set_message("instructions of the empty call");
    lines.extend(
        instructions::measure(&ends)
            .unwrap_or_else(|e| vec![Line::not_measured("instructions", "added to an empty call", format!("{e:#}"))]),
    );
    for kind in sequences::TYPES {
        for &size in &sizes {
            bar.inc(1);
            bar.set_message(format!("{kind}, {}", crate::table::bytes(size)));
            match sequences::measure(&ends, &wires, kind, size) {
                Ok(found) => measured.push(found),
                Err(error) => {
                    lines.push(Line::not_measured(
                        "rate",
                        format!("{kind}, {}", crate::table::bytes(size)),
                        format!("{error:#}"),
                    ));
                }
            }
        }
    }
    lines.extend(rates::lines(&ends, &measured));
    curves.extend(rates::curves(&measured));
    bar.inc(1);
    bar.set_message("strings of 1 to 2000 B");
    match strings::measure(&ends, &wires) {
        Ok(found) => {
            lines.extend(found.0);
            curves.extend(found.1);
        }
        Err(error) => lines.push(Line::not_measured("strings", "strings of 1 to 2000 B", format!("{error:#}"))),
    }
    bar.finish_and_clear();
    Ok(Report { machine: crate::machine(bench, &copies), lines, curves })
}
