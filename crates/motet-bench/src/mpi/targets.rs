//! The targets of MPI on Motet, and lines that say whether they were met, separately for near and far CPUs.

use super::Part;
use super::libraries::LIBRARIES;
use crate::floor::Distance;
use crate::format::bytes;
use crate::messages::Part as Kind;
use crate::messages::comparison::{BestPlacement, Comparison, PeerResult};
use crate::messages::lines::{of_best, over};
use crate::messages::peers::Peer;
use crate::messages::shape::Shape;
use crate::report::{Bound, Line};

/// What a peer is compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Baseline {
    /// The best library without Motet.
    Best,
    /// This library with the same variant, without Motet.
    Itself,
    /// This peer without a variant. The words describe it.
    Plain(&'static str),
    /// The peer with this name.
    Named(&'static str),
}

impl Baseline {
    fn words(self) -> &'static str {
        match self {
            Baseline::Best => "over the best peer",
            Baseline::Itself => "over itself without Motet",
            Baseline::Plain(words) => words,
            Baseline::Named(_) => "over TCP",
        }
    }
}

const TWO_RANKS: Baseline = Baseline::Plain("over 2 ranks");
const NAMED_SOURCE: Baseline = Baseline::Plain("over a named source");

/// A baseline, and the target of the comparison with it.
type Target = (Baseline, Option<Bound>);

/// The comparisons of a size.
fn targets(part: Part, kind: Kind, size: usize, name: &str, shape: Shape) -> Vec<Target> {
    if !LIBRARIES.iter().any(|known| known.with_motet == name) {
        // The cost of idle ranks without Motet.
        let is_compared = part == Part::Idle && shape != Shape::Plain;
        return is_compared.then_some((TWO_RANKS, None)).into_iter().collect();
    }
    match (part, shape) {
        (Part::Latency, _) => {
            let itself = (Baseline::Itself, latency_over_itself(size, name.starts_with("Open MPI")));
            let best = (size == 64 << 10).then_some((Baseline::Best, Some(Bound::AtMost(1.1))));
            [itself].into_iter().chain(best).collect()
        }
        (Part::Idle, Shape::Polling(_)) => vec![(TWO_RANKS, Some(Bound::AtMost(1.15))), (Baseline::Itself, None)],
        (Part::Idle, Shape::Yielding(_)) => vec![(Baseline::Itself, Some(Bound::AtMost(1.0)))],
        (Part::AnySource, Shape::AnySource) => vec![(NAMED_SOURCE, Some(Bound::AtMost(1.1)))],
        (Part::Rate, _) => vec![(Baseline::Itself, Some(Bound::AtLeast(1.0)))],
        (Part::Bandwidth, _) => vec![(Baseline::Best, Some(Bound::AtLeast(1.0)))],
        (Part::Large, _) => vec![(Baseline::Best, Some(Bound::AtLeast(1.3)))],
        (Part::Hosts, _) => {
            let bound = if kind == Kind::Latency { Bound::AtMost(1.0) } else { Bound::AtLeast(1.0) };
            LIBRARIES.iter().filter_map(|known| Some((Baseline::Named(known.tcp?), Some(bound)))).collect()
        }
        (Part::Idle | Part::AnySource | Part::Oversubscribed | Part::Corba | Part::Together, _) => Vec::new(),
    }
}

/// The target of half a round trip over that of the same library without Motet.
fn latency_over_itself(size: usize, open: bool) -> Option<Bound> {
    match (open, size) {
        (true, 0..=0x400) => Some(Bound::AtMost(1.0)),
        (true, 0x1000..=0x10000) => Some(Bound::AtMost(0.7)),
        (false, 8) => Some(Bound::AtMost(1.1)),
        _ => None,
    }
}

/// Whether each peer has a line over the floor or a copy, besides its comparisons. Parts in which every peer is compared with another
/// have none; of many sizes some have.
fn is_shown(part: Part, size: usize) -> bool {
    match part {
        Part::Idle | Part::Rate | Part::AnySource => false,
        Part::Latency => [8, 1 << 10, 64 << 10, 1 << 20].contains(&size),
        _ => true,
    }
}

/// Lines of every peer over the floor or a copy; then of each over its baselines.
pub fn lines(part: Part, kind: Kind, measured: &Comparison<'_>) -> Vec<Line> {
    let mut lines = Vec::new();
    for (at, &size) in measured.sizes.iter().enumerate() {
        if is_shown(part, size) {
            let alone = |of| by_distance(&[of], at, &bytes(size), |_, best| Some(of_best(kind, measured, best, at)));
            lines.extend(measured.of.iter().flat_map(alone));
        }
        for of in &measured.of {
            for (baseline, bound) in targets(part, kind, size, of.peer.name, of.peer.shape) {
                let Some(baselines) = baselines_of(measured, of.peer, baseline) else { continue };
                let what = format!("{}: {}", bytes(size), baseline.words());
                let both = [&[of][..], &baselines].concat();
                lines.extend(by_distance(&both, at, &what, |distance, best| {
                    let baseline_did = fastest(&baselines, at, distance)?;
                    best.both(&baseline_did)?;
                    let line = over(kind, size, best, &baseline_did, baseline.words());
                    Some(bound.into_iter().fold(line, Line::bound))
                }));
            }
        }
    }
    let failed = measured.of.iter().filter_map(|of| Some((of.peer.called(), of.failed.as_ref()?)));
    lines.extend(failed.map(|(name, why)| Line::not_measured("", name, why)));
    lines.into_iter().map(|line| Line { row: part.word().to_owned(), ..line }).collect()
}

/// A line of the first result for each distance at which there are enough repetitions. If there is none, one line says how many
/// repetitions there were at each distance.
fn by_distance<'m>(
    of: &[&'m PeerResult<'_>],
    at: usize,
    what: &str,
    line: impl Fn(Distance, &BestPlacement<'m>) -> Option<Line>,
) -> Vec<Line> {
    let Some(first) = of.first().filter(|of| of.failed.is_none()) else { return Vec::new() };
    let of_distance = |distance| Some(line(distance, &first.within(at, distance)?)?.within(distance));
    let lines: Vec<Line> = Distance::ALL.into_iter().filter_map(of_distance).collect();
    if !lines.is_empty() {
        return lines;
    }
    let seen = |of: &&PeerResult<'_>| Some(format!("{}: {}", of.peer.called(), of.places.first()?.1[at].distances()));
    let seen = of.iter().filter_map(seen).collect::<Vec<_>>().join("; ");
    vec![Line::not_measured(
        "",
        format!("{}, {what}", first.peer.called()),
        format!("too few repetitions at one distance of the CPUs: {seen}"),
    )]
}

/// The results of a baseline, as far as they were measured.
fn baselines_of<'m, 'c>(
    measured: &'m Comparison<'c>,
    peer: &Peer,
    baseline: Baseline,
) -> Option<Vec<&'m PeerResult<'c>>> {
    let is_baseline = |of: &&PeerResult<'_>| match baseline {
        Baseline::Best => !of.peer.ours,
        Baseline::Itself => (of.peer.name, of.peer.shape) == (without_motet(peer.name), peer.shape),
        Baseline::Plain(_) => (of.peer.name, of.peer.shape) == (peer.name, Shape::Plain),
        Baseline::Named(name) => of.peer.name == name,
    };
    let baselines_of: Vec<&PeerResult<'_>> =
        measured.of.iter().filter(|of| of.failed.is_none()).filter(is_baseline).collect();
    (!baselines_of.is_empty()).then_some(baselines_of)
}

/// The fastest result with a size at a distance.
fn fastest<'m>(of: &[&'m PeerResult<'_>], at: usize, distance: Distance) -> Option<BestPlacement<'m>> {
    let did = of.iter().filter_map(|of| of.within(at, distance));
    did.min_by(|a, b| a.median().total_cmp(&b.median()))
}

/// The name of the same library without Motet.
fn without_motet(name: &str) -> &'static str {
    LIBRARIES.iter().find(|known| known.with_motet == name).map_or("", |known| known.without_motet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Series;
    use crate::floor::FloorSamples;
    use crate::messages::peers::Ranks;
    use crate::place::Placement::Two;
    use crate::report::Verdict;
    use clap::ValueEnum;

    const AT_MOST: fn(f64) -> Option<Bound> = |bound| Some(Bound::AtMost(bound));
    const AT_LEAST: fn(f64) -> Option<Bound> = |bound| Some(Bound::AtLeast(bound));

    #[test]
    fn every_part_has_a_target_for_every_library_on_motet() {
        for known in &LIBRARIES {
            for &part in Part::value_variants().iter().filter(|part| !part.questions(true).is_empty()) {
                let shapes = part.shapes().iter().filter(|&&shape| part.shapes().len() == 1 || shape != Shape::Plain);
                for (&shape, (kind, sizes)) in
                    shapes.flat_map(|shape| part.questions(true).into_iter().map(move |of| (shape, of)))
                {
                    let is_bound = |&size: &usize| {
                        targets(part, kind, size, known.with_motet, shape).iter().any(|of| of.1.is_some())
                    };
                    assert!(sizes.iter().any(is_bound), "{} {part:?} {shape:?}", known.with_motet);
                    assert!(sizes.iter().all(|&size| {
                        targets(part, kind, size, known.without_motet, shape).iter().all(|of| of.1.is_none())
                    }));
                }
            }
        }
    }

    #[test]
    fn latency_is_compared_with_the_same_library() {
        let of = |name, size| targets(Part::Latency, Kind::Latency, size, name, Shape::Plain);
        for open in [LIBRARIES[0].with_motet, LIBRARIES[1].with_motet] {
            for size in [1, 8, 33, 65, 1000, 1024] {
                assert_eq!(of(open, size), [(Baseline::Itself, AT_MOST(1.0))]);
            }
            assert_eq!(of(open, 2048), [(Baseline::Itself, None)]);
            assert_eq!(of(open, 4096), [(Baseline::Itself, AT_MOST(0.7))]);
            assert_eq!(of(open, 65536), [(Baseline::Itself, AT_MOST(0.7)), (Baseline::Best, AT_MOST(1.1))]);
            assert_eq!(of(open, 1 << 20), [(Baseline::Itself, None)]);
        }
        for other in [LIBRARIES[2].with_motet, LIBRARIES[3].with_motet] {
            assert_eq!(of(other, 8), [(Baseline::Itself, AT_MOST(1.1))]);
            assert_eq!(of(other, 1024), [(Baseline::Itself, None)]);
            assert_eq!(of(other, 65536), [(Baseline::Itself, None), (Baseline::Best, AT_MOST(1.1))]);
        }
    }

    #[test]
    fn variants_are_compared_with_the_plain_pattern() {
        let of = |part, kind, size, shape| targets(part, kind, size, LIBRARIES[0].with_motet, shape);
        let polling = [(TWO_RANKS, AT_MOST(1.15)), (Baseline::Itself, None)];
        assert_eq!(of(Part::Idle, Kind::Latency, 8, Shape::Polling(3)), polling);
        assert_eq!(of(Part::Idle, Kind::Latency, 8, Shape::Yielding(8)), [(Baseline::Itself, AT_MOST(1.0))]);
        assert_eq!(of(Part::Idle, Kind::Latency, 8, Shape::Plain), []);
        let by_itself = targets(Part::Idle, Kind::Latency, 8, LIBRARIES[0].without_motet, Shape::Polling(3));
        assert_eq!(by_itself, [(TWO_RANKS, None)]);
        assert_eq!(of(Part::AnySource, Kind::Latency, 8, Shape::AnySource), [(NAMED_SOURCE, AT_MOST(1.1))]);
        assert_eq!(of(Part::Rate, Kind::Rate, 8, Shape::Windows(65)), [(Baseline::Itself, AT_LEAST(1.0))]);
    }

    #[test]
    fn times_have_upper_bounds_and_rates_lower_ones() {
        let of = |part, kind, size| targets(part, kind, size, LIBRARIES[0].with_motet, Shape::Plain);
        assert_eq!(of(Part::Bandwidth, Kind::Stream, 65536), [(Baseline::Best, AT_LEAST(1.0))]);
        assert_eq!(of(Part::Large, Kind::Stream, 64 << 20), [(Baseline::Best, AT_LEAST(1.3))]);
        let [four, five] = of(Part::Hosts, Kind::Latency, 1024)[..] else { panic!("two peers over TCP") };
        assert_eq!((four.1, five.1), (AT_MOST(1.0), AT_MOST(1.0)));
        assert!(of(Part::Hosts, Kind::Stream, 1 << 20).iter().all(|targets| targets.1 == AT_LEAST(1.0)));
    }

    /// Lines of 8 B of a library on Motet and without it, with these floors around their repetitions.
    fn lines_of(ours: &[(f64, f64)], without_motet: &[(f64, f64)]) -> Vec<Line> {
        let ranks = || Ranks { launcher: vec![], yields: &[], program: "".into(), mpi: None, environment: vec![] };
        let library = &LIBRARIES[0];
        let both = [(library.with_motet, true), (library.without_motet, false)]
            .map(|(name, ours)| Peer::of_ranks(name, ours, ranks()));
        let of = |peer, values: &[(f64, f64)]| {
            let floors = values.iter().map(|&(_, floor)| FloorSamples { before: floor, after: floor }).collect();
            let series = Series { values: values.iter().map(|of| of.0).collect(), floors };
            PeerResult { peer, places: vec![(Two, vec![series])], failed: None }
        };
        let measured =
            Comparison { sizes: vec![8], of: vec![of(&both[0], ours), of(&both[1], without_motet)], copies: vec![] };
        let lines = lines(Part::Latency, Kind::Latency, &measured);
        lines.into_iter().filter(|line| line.what.contains("over itself")).collect()
    }

    #[test]
    fn near_and_far_cpus_have_separate_lines() {
        let without_motet = [(100.0, 50.0), (300.0, 250.0)].repeat(3);
        let [near, far] = &lines_of(&[(90.0, 50.0), (600.0, 250.0)].repeat(3), &without_motet)[..] else {
            panic!("two lines")
        };
        assert!(near.what.ends_with(", near CPUs") && far.what.ends_with(", far CPUs"), "{} {}", near.what, far.what);
        assert_eq!((near.ratio.unwrap().median, near.verdict), (0.9, Verdict::Met));
        assert_eq!((far.ratio.unwrap().median, far.ratio.unwrap().count, far.verdict), (2.0, 3, Verdict::Missed));
    }

    #[test]
    fn distance_with_too_few_repetitions_is_not_compared() {
        let [near] = &lines_of(&[(90.0, 50.0); 5], &[(100.0, 50.0); 5])[..] else { panic!("one line") };
        assert!(near.what.ends_with(", near CPUs"), "{}", near.what);
        let (near, far) = ((90.0, 50.0), (90.0, 250.0));
        let [neither] = &lines_of(&[near, near, near, far, far], &[far, far, near, near, near])[..] else {
            panic!("one line")
        };
        assert_eq!((neither.verdict, neither.ratio), (Verdict::NotMeasured, None));
        assert!(neither.note.as_ref().unwrap().contains("3 on near CPUs, 2 on far CPUs"), "{:?}", neither.note);
    }

    #[test]
    fn every_library_on_motet_has_itself_as_a_baseline() {
        for known in &LIBRARIES {
            assert_eq!(without_motet(known.with_motet), known.without_motet);
        }
        assert_eq!(without_motet("UCX"), "");
    }
}
