//! The cost of memory into which large sequences are received: the omniORB adapter with huge pages and without.
//!
//! HP-CORBA (section 4.5, figure 7) has a pool of receive buffers for the same reason: fresh memory costs a page fault for every 4 KiB.

use super::figures::{self, each};
use super::sequences::milliseconds;
use super::transports::{Ends, OrbProgram, Transport, Variant};
use crate::bench::{Measurement, Series};
use crate::format::bytes;
use crate::place::Placement::Two;
use crate::report::{Curve, Line, Quantity, Unit};
use crate::stats::Spread;
use anyhow::Result;
use std::cell::RefCell;

const CALLS: [(&str, &str); 2] = [("in", "there"), ("out", "back")];
const OFF: Variant<'_> =
    Variant { environment: &[("MOTET_OMNIORB_HUGE", "off")], transports: &[Transport::Corba], ..Variant::USUAL };

/// Measures octets there, and back, into fresh memory: 1 to 64 MiB.
pub fn measure(ends: &Ends<'_>, pair: &OrbProgram) -> Result<(Vec<Line>, Vec<Curve>)> {
    let bench = ends.sandbox.bench;
    let without = Ends::open(ends.sandbox, pair, OFF)?;
    let (mut lines, mut curves) = (Vec::new(), Vec::new());
    let names = ["huge pages", "pages as they come"];
    for (word, name) in CALLS {
        let mut points = [Vec::new(), Vec::new()];
        for size in (20..=26).step_by(if bench.quick { 2 } else { 1 }).map(|bits| 1usize << bits) {
            let question = format!("{word} octet {size} {}", milliseconds(bench, size));
            let measurements: Result<Vec<Measurement<'_>>> = [ends, &without]
                .into_iter()
                .map(|ends| {
                    let caller = RefCell::new(ends.caller((Transport::Corba, Two))?);
                    let question = question.clone();
                    let reported = move |_| Ok(figures::parse(&caller.borrow_mut().line(&question)?)?.median);
                    Ok(Box::new(reported) as Measurement<'_>)
                })
                .collect();
            let series = bench.compare(bench.of_programs, false, &mut measurements?)?;
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
