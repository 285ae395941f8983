//! What the memory costs that large sequences arrive in: the omniORB adapter as it is, and without asking for huge pages.
//!
//! HP-CORBA (section 4.5, figure 7) has a pool of receive buffers for the same reason: fresh memory costs a page fault for every 4 KiB.

use super::figures::{self, each};
use super::paths::{Ends, Pair, Path, Variant};
use super::sequences::patience;
use crate::bench::{Contestant, Series};
use crate::place::Placement::Two;
use crate::report::{Curve, Line, Quantity, Unit};
use crate::stats::Spread;
use crate::table::bytes;
use anyhow::Result;
use std::cell::RefCell;

const CALLS: [(&str, &str); 2] = [("in", "there"), ("out", "back")];
const OFF: Variant<'_> =
    Variant { environment: &[("MOTET_OMNIORB_HUGE", "off")], paths: &[Path::Corba], ..Variant::USUAL };

/// Octets there, and back, into fresh memory: from what the heap keeps to 64 MiB.
pub fn measure(ends: &Ends<'_>, pair: &Pair) -> Result<(Vec<Line>, Vec<Curve>)> {
    let bench = ends.stage.bench;
    let without = Ends::open(ends.stage, pair, OFF)?;
    let (mut lines, mut curves) = (Vec::new(), Vec::new());
    let names = ["huge pages", "pages as they come"];
    for (word, name) in CALLS {
        let mut points = [Vec::new(), Vec::new()];
        for size in (20..=26).step_by(if bench.quick { 2 } else { 1 }).map(|bits| 1usize << bits) {
            let question = format!("{word} octet {size} {}", patience(bench, size));
            let contestants: Result<Vec<Contestant<'_>>> = [ends, &without]
                .into_iter()
                .map(|ends| {
                    let caller = RefCell::new(ends.caller((Path::Corba, Two))?);
                    let question = question.clone();
                    let told = move |_| Ok(figures::parse(&caller.borrow_mut().line(&question)?)?.median);
                    Ok(Box::new(told) as Contestant<'_>)
                })
                .collect();
            let series = bench.contest(bench.of_programs, false, &mut contestants?)?;
            let rates =
                [0, 1].map(|at: usize| -> Vec<f64> { series[at].values.iter().map(|ns| size as f64 / ns).collect() });
            for (points, rate) in points.iter_mut().zip(&rates) {
                points.extend(Spread::of(rate).map(|spread| (size, spread)));
            }
            lines.push(line(&format!("octet, {}, {name}, fresh memory", bytes(size)), &series[0], names, &rates));
        }
        let curve = |(name, points): (&str, Vec<_>)| Curve {
            plot: format!("corba-memory-{word}"),
            name: format!("omniORB adapter, {name}"),
            unit: Unit::GBs,
            points,
        };
        curves.extend(names.into_iter().zip(points).map(curve));
    }
    Ok((lines, curves))
}

fn line(what: &str, ours: &Series, names: [&str; 2], rates: &[Vec<f64>; 2]) -> Line {
    Line::new("memory", what)
        .figure(Quantity::of(names[0], &rates[0], Unit::GBs))
        .floors(&ours.floors)
        .against(Quantity::of(names[1], &rates[1], Unit::GBs), &each([&rates[0], &rates[1]], |[a, b]| a / b))
}
