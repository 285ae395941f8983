//! The results of a part as lines of the table and as curves.

use super::Part;
use super::comparison::{BestPlacement, Comparison, PeerResult};
use super::peers::Peer;
use crate::bench::Series;
use crate::format::bytes;
use crate::place::Placement;
use crate::report::{Bound, Curve, Line, Quantity, Unit, WithMotet};
use crate::stats::Spread;

/// The sizes that have lines. Curves have all sizes.
const LINE_SIZES: [usize; 5] = [8, 1 << 10, 64 << 10, 1 << 20, 4 << 20];

/// Lines of every peer over the floor or a copy; then of Motet over the best peer.
pub fn of(part: Part, measured: &Comparison<'_>) -> Vec<Line> {
    let mut lines = Vec::new();
    for (at, &size) in measured.sizes.iter().enumerate() {
        if measured.sizes.len() > 1 && !LINE_SIZES.contains(&size) {
            continue;
        }
        for of in &measured.of {
            lines.extend(line(part, measured, of, at));
        }
        if let Some(other) = measured.best_peer(at) {
            let ours = measured.of.iter().filter(|of| of.peer.ours);
            lines.extend(ours.filter_map(|of| of.best(at)).map(|best| over_peer(part, size, &best, &other)));
        }
    }
    let failed = measured.of.iter().filter_map(|of| Some((of.peer.name, of.failed.as_ref()?)));
    lines.extend(failed.map(|(name, why)| Line::not_measured(part.word(), format!("{name}, a placement"), why)));
    lines
}

/// The line of one peer over the floor or a copy.
fn line(part: Part, measured: &Comparison<'_>, of: &PeerResult<'_>, at: usize) -> Option<Line> {
    Some(of_best(part, measured, &of.best(at)?, at))
}

/// The line of a peer over the repetitions that count of it.
pub fn of_best(part: Part, measured: &Comparison<'_>, best: &BestPlacement<'_>, at: usize) -> Line {
    let (size, series) = (measured.sizes[at], best.series());
    let line = Line::new(part.word(), format!("{}, {}", best.peer.called(), what(part, size)));
    let line = line.figure(figure(part, size, &series)).floors(&series.floors);
    let line = match measured.copies.get(at).map(|copy| copy.at(&best.counted)) {
        Some(copy) => line.against(named("copy, one core", rate(size, &copy)), &ratio(part, &series, &copy)),
        None => line.against(Quantity::of("floor", &series.steady_floors(), Unit::Ns), &series.over_floor()),
    };
    let line = line.note(best.remark()).note(where_it_was(part, best.placement)).with_motet(side(best.peer));
    match target(part, size).filter(|_| best.peer.name == super::peers::NODES) {
        None => line,
        Some(Target::Ratio(bound)) => line.bound(bound),
        Some(Target::Figure(bound)) => {
            // Of the figure alone: the ratio stays as a remark.
            let ratio = line.ratio.map_or(f64::NAN, |ratio| ratio.median);
            let reference = line.reference.as_ref().map_or("the reference", |reference| &reference.name).to_owned();
            Line { ratio: None, reference: None, ..line }.bound(bound).note(format!("{ratio:.2} x {reference}"))
        }
    }
}

/// The target for nodes of Motet.
enum Target {
    Ratio(Bound),
    Figure(Bound),
}

fn target(part: Part, size: usize) -> Option<Target> {
    Some(match (part, size) {
        (Part::Latency, 8) => Target::Ratio(Bound::AtMost(1.5)),
        (Part::Latency, 0x10000) => Target::Figure(Bound::AtMost(1300.0)),
        (Part::Rate, 8) => Target::Figure(Bound::AtLeast(25e6)),
        (Part::Bandwidth, 0x10000 | 0x100000) => Target::Ratio(Bound::AtLeast(0.7)),
        _ => return None,
    })
}

/// Motet over the best peer, repetition by repetition.
fn over_peer(part: Part, size: usize, ours: &BestPlacement<'_>, other: &BestPlacement<'_>) -> Line {
    let line = over(part, size, ours, other, "over the best peer");
    // Peers copy cold bodies once, by one side.
    if part == Part::Cold && ours.peer.name == super::peers::NODES { line.bound(Bound::AtLeast(1.2)) } else { line }
}

/// One peer over another, repetition by repetition.
pub fn over(part: Part, size: usize, ours: &BestPlacement<'_>, other: &BestPlacement<'_>, which: &str) -> Line {
    let both = ours.with(other);
    let (own, theirs) = (ours.all.at(&both), other.all.at(&both));
    Line::new(part.word(), format!("{}, {}: {which}", ours.peer.called(), what(part, size)))
        .figure(figure(part, size, &own))
        .floors(&own.floors)
        .against(named(&other.peer.called(), figure(part, size, &theirs)), &ratio(part, &own, &theirs))
        .with_motet(side(ours.peer))
        .note(format!("{} repetitions that count for both", both.len()))
}

/// Whether the figure of a peer is measured with Motet.
fn side(peer: &Peer) -> WithMotet {
    if peer.ours { WithMotet::Figure } else { WithMotet::Neither }
}

fn what(part: Part, size: usize) -> String {
    let size = bytes(size);
    match part {
        Part::Latency => format!("{size}, half a round trip"),
        Part::Rate => format!("{size}, one way"),
        Part::Bandwidth => format!("{size}, buffers reused"),
        Part::Stream => format!("{size}, full windows"),
        Part::Cold => format!("{size}, cold buffers"),
        Part::Server => format!("{size} from four clients"),
        _ => size,
    }
}

fn where_it_was(part: Part, placement: Placement) -> &'static str {
    match placement {
        Placement::One => "both ends on one CPU",
        Placement::Two if part == Part::Server => "clients on one CPU, the server on another",
        Placement::Two => "ends on two CPUs",
        Placement::Free => "ends where the scheduler puts them",
    }
}

/// The figure of a part in its unit, from the times of a message in ns.
fn figure(part: Part, size: usize, series: &Series) -> Option<Quantity> {
    match part {
        Part::Latency => Quantity::of("one way", &series.values, Unit::Ns),
        Part::Rate => {
            let a_second: Vec<f64> = series.values.iter().map(|ns| 1e9 / ns).collect();
            Quantity::of("rate", &a_second, Unit::PerSecond)
        }
        _ => rate(size, series),
    }
}

fn rate(size: usize, series: &Series) -> Option<Quantity> {
    let rates: Vec<f64> = series.values.iter().map(|ns| size as f64 / ns).collect();
    Quantity::of("bandwidth", &rates, Unit::GBs)
}

fn named(name: &str, quantity: Option<Quantity>) -> Option<Quantity> {
    quantity.map(|quantity| Quantity { name: name.to_owned(), ..quantity })
}

/// Ratios of figures, repetition by repetition: of times, or of rates.
fn ratio(part: Part, series: &Series, to: &Series) -> Vec<f64> {
    if part == Part::Latency { series.over(to) } else { to.over(series) }
}

/// Curves of half a round trip and of bandwidth over the size.
pub fn curves(part: Part, measured: &Comparison<'_>) -> Vec<Curve> {
    let (plot, unit) = match part {
        Part::Latency => ("messages-latency", Unit::Ns),
        Part::Bandwidth => ("messages-bandwidth", Unit::GBs),
        _ => return Vec::new(),
    };
    let curve = |name: &str, points: Vec<(usize, Spread)>| Curve { plot: plot.into(), name: name.into(), unit, points };
    let shown = |at: usize, series: &Series| {
        let size = measured.sizes[at];
        figure(part, size, series).map(|quantity| (size, quantity.spread))
    };
    let all = || 0..measured.sizes.len();
    let machine = if part == Part::Latency {
        let floors = |at: usize| {
            let each = measured.of.iter().flat_map(|of| of.places.first()).flat_map(|(_, series)| &series[at].floors);
            Spread::of(&each.map(|floor| floor.before).collect::<Vec<_>>()).map(|spread| (measured.sizes[at], spread))
        };
        curve("floor: one cache line to the other CPU", all().filter_map(floors).collect())
    } else {
        let copies = all().filter_map(|at| shown(at, measured.copies.get(at)?));
        curve("copy by one core, reused buffers", copies.collect())
    };
    let of =
        |of: &PeerResult<'_>| curve(of.peer.name, all().filter_map(|at| shown(at, &of.best(at)?.series())).collect());
    let mut curves: Vec<Curve> = std::iter::once(machine).chain(measured.of.iter().map(of)).collect();
    curves.retain(|curve| !curve.points.is_empty());
    curves
}
