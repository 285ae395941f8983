//! Requests with a string of 1 to 2000 B: the sweep of the Crisp ORB paper (its figure 8), and the transport's part of each call.

use super::figures::each;
use super::paths::{Answers, Ends, Path, on};
use super::wires::{Wire, Wires};
use crate::bench::Series;
use crate::place::Placement::{self, Two};
use crate::report::{Bound, Curve, Line, Quantity, Unit};
use crate::rows::counted;
use crate::stats::{Spread, median};
use anyhow::Result;

/// The sizes of a run.
fn sizes(quick: bool) -> &'static [usize] {
    if quick { &[1, 200, 1000, 2000] } else { &[1, 10, 50, 100, 200, 500, 1000, 1500, 2000] }
}
/// What a request has beside its string, and about what a reply is: bytes on the wire.
const HEADERS: usize = 64;
/// The name of the plot.
const PLOT: &str = "corba-strings";

/// What the sweep found.
struct Sweep {
    /// To one question for each size.
    answers: Answers,
    sizes: &'static [usize],
    repetitions: usize,
}

/// The lines and the curves.
pub fn measure(ends: &Ends<'_>, wires: &Wires<'_>) -> Result<(Vec<Line>, Vec<Curve>)> {
    let bench = ends.stage.bench;
    let sizes = sizes(bench.quick);
    let questions: Vec<String> = sizes.iter().map(|size| format!("in string {size} {}", bench.ms)).collect();
    let mut others = wires.contestants(HEADERS, false);
    for size in sizes {
        others.extend(wires.contestants(HEADERS + size, false));
    }
    let answers = ends.contest((bench.repetitions, true), ends.places(false), &questions, others)?;
    let sweep = Sweep { answers, sizes, repetitions: bench.repetitions };
    let (mut lines, mut curves) = (Vec::new(), Vec::new());
    for path in Path::ALL {
        if let Some(why) = ends.missing(path) {
            lines.push(Line::not_measured("strings", format!("strings of 1 to 2000 B, {}", path.name()), why));
            continue;
        }
        let Some(placement) = sweep.placement(path) else { continue };
        curves.extend(sweep.curves(path, placement).into_iter().filter(|curve| !curve.points.is_empty()));
        if Path::ADAPTERS.contains(&path) {
            lines.extend(sweep.against_kernel(path));
        }
        for at in [0, sizes.len() - 1] {
            lines.extend(sweep.part(path, placement, at));
        }
    }
    Ok((lines, curves))
}

impl Sweep {
    /// A path of the kernel's counts with the placement that is better in the middle of the sweep.
    fn placement(&self, path: Path) -> Option<Placement> {
        if Path::ADAPTERS.contains(&path) { Some(Two) } else { self.answers.better(path, self.sizes.len() / 2) }
    }

    fn call(&self, path: Path, placement: Placement, at: usize) -> Option<&Series> {
        Some(&self.answers.of((path, placement), at)?.median)
    }

    /// The same bytes there and back over the transport alone, ns.
    fn trip(&self, path: Path, placement: Placement, at: usize) -> Option<Vec<f64>> {
        let wire = Wire::under(path)?;
        let mut sizes = self.answers.others.chunks(Wires::count(false));
        let back = Wires::of(sizes.next()?, wire, placement)?;
        let there = Wires::of(sizes.nth(at)?, wire, placement)?;
        Some(each([&there.values, &back.values], |[there, back]| there + back))
    }

    fn curves(&self, path: Path, placement: Placement) -> [Curve; 2] {
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
            curve(path.name().to_owned(), &|at| Some(self.call(path, placement, at)?.values.clone())),
            curve(format!("transport alone: {}", path.name()), &|at| self.trip(path, placement, at)),
        ]
    }

    /// The transport's part of a call.
    fn part(&self, path: Path, placement: Placement, at: usize) -> Option<Line> {
        let (call, trip) = (self.call(path, placement, at)?, self.trip(path, placement, at)?);
        let what = format!("the transport's part of a request with {} B, {}", self.sizes[at], path.name());
        let parts = each([&trip, &call.values], |[trip, call]| trip / call);
        Some(
            Line::new("strings", what)
                .figure(Quantity::of(format!("alone, {}", on(placement)), &trip, Unit::Ns))
                .floors(&call.floors)
                .against(Quantity::of("the call", &call.values, Unit::Ns), &parts)
                .with_motet(path.with_motet()),
        )
    }

    /// The size at which an adapter gains least.
    fn against_kernel(&self, adapter: Path) -> Option<Line> {
        let at_size = |at: usize| {
            let plain = self.call(Path::Tcp, self.answers.better(Path::Tcp, at)?, at)?;
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
        let told: Vec<String> = all.iter().map(|(size, _, ratio)| format!("{size} B {ratio:.3}")).collect();
        let worst = all.into_iter().max_by(|a, b| a.2.total_cmp(&b.2));
        worst.map(|(_, line, _)| line.note(told.join(", ")))
    }
}
