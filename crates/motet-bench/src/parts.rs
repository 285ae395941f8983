//! Tools whose parts are chosen on the command line and measured one after the other.

use crate::bench::Bench;
use crate::options::PartOptions;
use crate::report::{Curve, Line, Report};
use crate::{machine, output};
use anyhow::Result;
use clap::ValueEnum;

/// A part of a tool.
pub trait Part: ValueEnum + Copy + PartialEq + Send + Sync + 'static {
    /// The row of its lines.
    fn word(self) -> &'static str;

    /// Measures it. What it has for plots is added to `curves`.
    fn measure(self, bench: &Bench, curves: &mut Vec<Curve>) -> Result<Vec<Line>>;
}

/// Measures the parts that are chosen. `shown` is called with the lines of each when it ends.
pub fn measure<P: Part>(
    bench: &Bench,
    options: &PartOptions<P>,
    shown: impl Fn(&[Line]) -> Result<()>,
) -> Result<Report> {
    let parts = options.chosen();
    let bar = output::progress(parts.len() as u64)?;
    let copies = machine::copies(bench);
    let (mut lines, mut curves) = (Vec::new(), Vec::new());
    for part in parts {
        bar.set_message(part.word());
        let found = part
            .measure(bench, &mut curves)
            .unwrap_or_else(|error| vec![Line::not_measured(part.word(), part.word(), format!("{error:#}"))]);
        bar.suspend(|| shown(&found))?;
        lines.extend(found);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Report { machine: machine::describe(bench, &copies), lines, curves })
}
