//! Requests with a string of 1 to 2000 B: the sweep of the Crisp ORB paper (its figure 8), and the share of the transport in each call.

use super::figures::each;
use super::raw_transports::{RawTransport, RawTransports};
use super::transports::{Answers, Ends, Transport, on};
use crate::bench::Series;
use crate::measure::counted;
use crate::place::Placement::{self, Two};
use crate::report::{Bound, Curve, Line, Quantity, Unit};
use crate::stats::{Spread, median};
use anyhow::Result;

/// The sizes of a run.
fn sizes(quick: bool) -> &'static [usize] {
    if quick { &[1, 200, 1000, 2000] } else { &[1, 10, 50, 100, 200, 500, 1000, 1500, 2000] }
}
/// Bytes of a request besides its string, and about those of a reply.
const HEADERS: usize = 64;
/// The name of the plot.
const PLOT: &str = "corba-strings";

/// The results of the sweep.
struct Sweep {
    /// The answers to one question for each size.
    answers: Answers,
    sizes: &'static [usize],
    repetitions: usize,
}

/// The lines and the curves.
pub fn measure(ends: &Ends<'_>, raw_transports: &RawTransports<'_>) -> Result<(Vec<Line>, Vec<Curve>)> {
    let bench = ends.sandbox.bench;
    let sizes = sizes(bench.quick);
    let questions: Vec<String> = sizes.iter().map(|size| format!("in string {size} {}", bench.ms)).collect();
    let mut others = raw_transports.measurements(HEADERS, false);
    for size in sizes {
        others.extend(raw_transports.measurements(HEADERS + size, false));
    }
    let answers = ends.compare((bench.repetitions, true), ends.places(false), &questions, others)?;
    let sweep = Sweep { answers, sizes, repetitions: bench.repetitions };
    let (mut lines, mut curves) = (Vec::new(), Vec::new());
    for transport in Transport::ALL {
        if let Some(why) = ends.missing(transport) {
            lines.push(Line::not_measured("strings", format!("strings of 1 to 2000 B, {}", transport.name()), why));
            continue;
        }
        let Some(placement) = sweep.placement(transport) else { continue };
        curves.extend(sweep.curves(transport, placement).into_iter().filter(|curve| !curve.points.is_empty()));
        if Transport::ADAPTERS.contains(&transport) {
            lines.extend(sweep.against_kernel(transport));
        }
        for at in [0, sizes.len() - 1] {
            lines.extend(sweep.part(transport, placement, at));
        }
    }
    Ok((lines, curves))
}

impl Sweep {
    /// The placement that counts: two CPUs for an adapter, the one that is better in the middle of the sweep for a transport of the kernel.
    fn placement(&self, transport: Transport) -> Option<Placement> {
        if Transport::ADAPTERS.contains(&transport) {
            Some(Two)
        } else {
            self.answers.better(transport, self.sizes.len() / 2)
        }
    }

    fn call(&self, transport: Transport, placement: Placement, at: usize) -> Option<&Series> {
        Some(&self.answers.of((transport, placement), at)?.median)
    }

    /// A round trip of the same bytes over the raw transport, ns.
    fn trip(&self, transport: Transport, placement: Placement, at: usize) -> Option<Vec<f64>> {
        let raw = RawTransport::under(transport)?;
        let mut sizes = self.answers.others.chunks(RawTransports::count(false));
        let back = RawTransports::of(sizes.next()?, raw, placement)?;
        let there = RawTransports::of(sizes.nth(at)?, raw, placement)?;
        Some(each([&there.values, &back.values], |[there, back]| there + back))
    }

    fn curves(&self, transport: Transport, placement: Placement) -> [Curve; 2] {
        let curve = |name: String, values: &dyn Fn(usize) -> Option<Vec<f64>>| {
            let point = |at: usize| Some((self.sizes[at], Spread::of(&values(at)?)?));
            Curve {
                plot: PLOT.to_owned(),
                name,
                unit: Unit::Ns,
                points: (0..self.sizes.len()).filter_map(point).collect(),
            }
        };
        [
            curve(transport.name().to_owned(), &|at| Some(self.call(transport, placement, at)?.values.clone())),
            curve(format!("transport alone: {}", transport.name()), &|at| self.trip(transport, placement, at)),
        ]
    }

    /// The line of the share of the transport in a call.
    fn part(&self, transport: Transport, placement: Placement, at: usize) -> Option<Line> {
        let (call, trip) = (self.call(transport, placement, at)?, self.trip(transport, placement, at)?);
        let what = format!("the transport's part of a request with {} B, {}", self.sizes[at], transport.name());
        let parts = each([&trip, &call.values], |[trip, call]| trip / call);
        Some(
            Line::new("strings", what)
                .figure(Quantity::of(format!("alone, {}", on(placement)), &trip, Unit::Ns))
                .floors(&call.floors)
                .against(Quantity::of("the call", &call.values, Unit::Ns), &parts)
                .with_motet(transport.with_motet()),
        )
    }

    /// The line of the size at which an adapter gains least.
    fn against_kernel(&self, adapter: Transport) -> Option<Line> {
        let at_size = |at: usize| {
            let plain = self.call(Transport::Tcp, self.answers.better(Transport::Tcp, at)?, at)?;
            let (ours, plain, enough) = counted(self.repetitions, self.call(adapter, Two, at)?, plain);
            let ratios = ours.over(&plain);
            let line = Line::new(
                "strings",
                format!("strings of 1 to 2000 B, {}: worst at {} B", adapter.name(), self.sizes[at]),
            )
            .figure(Quantity::of(adapter.name(), &ours.values, Unit::Ns))
            .floors(&ours.floors)
            .against(Quantity::of("kernel TCP", &plain.values, Unit::Ns), &ratios)
            .bound(Bound::AtMost(0.1))
            .slow_floor(enough);
            Some((self.sizes[at], line, median(&ratios)))
        };
        let all: Vec<_> = (0..self.sizes.len()).filter_map(at_size).collect();
        let reported: Vec<String> = all.iter().map(|(size, _, ratio)| format!("{size} B {ratio:.3}")).collect();
        let worst = all.into_iter().max_by(|a, b| a.2.total_cmp(&b.2));
        worst.map(|(_, line, _)| line.note(reported.join(", ")))
    }
}
