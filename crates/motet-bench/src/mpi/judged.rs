//! What is asked of MPI on Motet, and lines that say whether that was reached: of near and of far CPUs apart.

use super::Part;
use super::libraries::LIBRARIES;
use crate::floor::Distance;
use crate::messages::Part as Kind;
use crate::messages::contenders::Contender;
use crate::messages::contest::{Best, Measured, Of};
use crate::messages::lines::{of_best, over};
use crate::messages::shape::Shape;
use crate::report::{Bound, Line};
use crate::table::bytes;

/// With what a contender is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Peer {
    /// Whatever peer was best.
    Best,
    /// This library with the same shape, without Motet.
    Itself,
    /// This contender without a variant; the words name that case.
    Plain(&'static str),
    /// This one.
    Named(&'static str),
}

impl Peer {
    fn words(self) -> &'static str {
        match self {
            Peer::Best => "over the best peer",
            Peer::Itself => "over itself without Motet",
            Peer::Plain(words) => words,
            Peer::Named(_) => "over TCP",
        }
    }
}

const TWO_RANKS: Peer = Peer::Plain("over 2 ranks");
const NAMED_SOURCE: Peer = Peer::Plain("over a named source");

/// A comparison, with what is asked of it.
type Asked = (Peer, Option<Bound>);

/// The comparisons of a size.
fn asked(part: Part, kind: Kind, size: usize, name: &str, shape: Shape) -> Vec<Asked> {
    if !LIBRARIES.iter().any(|known| known.ours == name) {
        // What idle ranks cost a library by itself.
        let is_compared = part == Part::Idle && shape != Shape::Plain;
        return is_compared.then_some((TWO_RANKS, None)).into_iter().collect();
    }
    match (part, shape) {
        (Part::Latency, _) => {
            let itself = (Peer::Itself, latency_over_itself(size, name.starts_with("Open MPI")));
            let best = (size == 64 << 10).then_some((Peer::Best, Some(Bound::AtMost(1.1))));
            [itself].into_iter().chain(best).collect()
        }
        (Part::Idle, Shape::Polling(_)) => vec![(TWO_RANKS, Some(Bound::AtMost(1.15))), (Peer::Itself, None)],
        (Part::Idle, Shape::Yielding(_)) => vec![(Peer::Itself, Some(Bound::AtMost(1.0)))],
        (Part::AnySource, Shape::AnySource) => vec![(NAMED_SOURCE, Some(Bound::AtMost(1.1)))],
        (Part::Rate, _) => vec![(Peer::Itself, Some(Bound::AtLeast(1.0)))],
        (Part::Bandwidth, _) => vec![(Peer::Best, Some(Bound::AtLeast(1.0)))],
        (Part::Large, _) => vec![(Peer::Best, Some(Bound::AtLeast(1.3)))],
        (Part::Hosts, _) => {
            let bound = if kind == Kind::Latency { Bound::AtMost(1.0) } else { Bound::AtLeast(1.0) };
            LIBRARIES.iter().filter_map(|known| Some((Peer::Named(known.tcp?), Some(bound)))).collect()
        }
        (Part::Idle | Part::AnySource | Part::Crowd | Part::Corba | Part::Together, _) => Vec::new(),
    }
}

/// Half a round trip over that of the same library by itself.
fn latency_over_itself(size: usize, open: bool) -> Option<Bound> {
    match (open, size) {
        (true, 0..=0x400) => Some(Bound::AtMost(1.0)),
        (true, 0x1000..=0x10000) => Some(Bound::AtMost(0.7)),
        (false, 8) => Some(Bound::AtMost(1.1)),
        _ => None,
    }
}

/// Whether every contender has a line of its own, over what the machine does at best. Where each is compared with another, that says it
/// all; of very many sizes only with some.
fn is_shown(part: Part, size: usize) -> bool {
    match part {
        Part::Idle | Part::Rate | Part::AnySource => false,
        Part::Latency => [8, 1 << 10, 64 << 10, 1 << 20].contains(&size),
        _ => true,
    }
}

/// Every contender over what the machine does at best; then each over those that it is compared with.
pub fn lines(part: Part, kind: Kind, measured: &Measured<'_>) -> Vec<Line> {
    let mut lines = Vec::new();
    for (at, &size) in measured.sizes.iter().enumerate() {
        if is_shown(part, size) {
            let alone = |of| apart(&[of], at, &bytes(size), |_, best| Some(of_best(kind, measured, best, at)));
            lines.extend(measured.of.iter().flat_map(alone));
        }
        for of in &measured.of {
            for (peer, bound) in asked(part, kind, size, of.contender.name, of.contender.shape) {
                let Some(peers) = meant(measured, of.contender, peer) else { continue };
                let what = format!("{}: {}", bytes(size), peer.words());
                let both = [&[of][..], &peers].concat();
                lines.extend(apart(&both, at, &what, |distance, best| {
                    let peer_did = least(&peers, at, distance)?;
                    best.both(&peer_did)?;
                    let line = over(kind, size, best, &peer_did, peer.words());
                    Some(bound.into_iter().fold(line, Line::bound))
                }));
            }
        }
    }
    let failed = measured.of.iter().filter_map(|of| Some((of.contender.called(), of.failed.as_ref()?)));
    lines.extend(failed.map(|(name, why)| Line::not_measured("", name, why)));
    lines.into_iter().map(|line| Line { row: part.word().to_owned(), ..line }).collect()
}

/// A line of the first of these for each distance at which the CPUs were often enough; where there is none, one that says how often they
/// were where.
fn apart<'m>(
    of: &[&'m Of<'_>],
    at: usize,
    what: &str,
    line: impl Fn(Distance, &Best<'m>) -> Option<Line>,
) -> Vec<Line> {
    let Some(first) = of.first().filter(|of| of.failed.is_none()) else { return Vec::new() };
    let of_distance = |distance| Some(line(distance, &first.within(at, distance)?)?.within(distance));
    let lines: Vec<Line> = Distance::ALL.into_iter().filter_map(of_distance).collect();
    if !lines.is_empty() {
        return lines;
    }
    let seen = |of: &&Of<'_>| Some(format!("{}: {}", of.contender.called(), of.places.first()?.1[at].distances()));
    let seen = of.iter().filter_map(seen).collect::<Vec<_>>().join("; ");
    vec![Line::not_measured(
        "",
        format!("{}, {what}", first.contender.called()),
        format!("too few repetitions with the CPUs as far: {seen}"),
    )]
}

/// Those that a contender is compared with, so far as they were measured at all.
fn meant<'m, 'c>(measured: &'m Measured<'c>, contender: &Contender, peer: Peer) -> Option<Vec<&'m Of<'c>>> {
    let is_meant = |of: &&Of<'_>| match peer {
        Peer::Best => !of.contender.ours,
        Peer::Itself => (of.contender.name, of.contender.shape) == (own(contender.name), contender.shape),
        Peer::Plain(_) => (of.contender.name, of.contender.shape) == (contender.name, Shape::Plain),
        Peer::Named(name) => of.contender.name == name,
    };
    let meant: Vec<&Of<'_>> = measured.of.iter().filter(|of| of.failed.is_none()).filter(is_meant).collect();
    (!meant.is_empty()).then_some(meant)
}

/// What the one that took the least time did with a size.
fn least<'m>(of: &[&'m Of<'_>], at: usize, distance: Distance) -> Option<Best<'m>> {
    let did = of.iter().filter_map(|of| of.within(at, distance));
    did.min_by(|a, b| a.median().total_cmp(&b.median()))
}

/// The contender that is the same library without Motet.
fn own(name: &str) -> &'static str {
    LIBRARIES.iter().find(|known| known.ours == name).map_or("", |known| known.own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Series;
    use crate::floor::Around;
    use crate::messages::contenders::Ranks;
    use crate::place::Placement::Two;
    use crate::report::Verdict;
    use clap::ValueEnum;

    const AT_MOST: fn(f64) -> Option<Bound> = |bound| Some(Bound::AtMost(bound));
    const AT_LEAST: fn(f64) -> Option<Bound> = |bound| Some(Bound::AtLeast(bound));

    #[test]
    fn something_is_asked_in_every_part_of_every_library_on_motet() {
        for known in &LIBRARIES {
            for &part in Part::value_variants().iter().filter(|part| !part.questions(true).is_empty()) {
                let shapes = part.shapes().iter().filter(|&&shape| part.shapes().len() == 1 || shape != Shape::Plain);
                for (&shape, (kind, sizes)) in
                    shapes.flat_map(|shape| part.questions(true).into_iter().map(move |of| (shape, of)))
                {
                    let is_bound =
                        |&size: &usize| asked(part, kind, size, known.ours, shape).iter().any(|of| of.1.is_some());
                    assert!(sizes.iter().any(is_bound), "{} {part:?} {shape:?}", known.ours);
                    assert!(
                        sizes
                            .iter()
                            .all(|&size| asked(part, kind, size, known.own, shape).iter().all(|of| of.1.is_none()))
                    );
                }
            }
        }
    }

    #[test]
    fn half_a_round_trip_is_compared_with_the_same_library_at_every_size() {
        let of = |name, size| asked(Part::Latency, Kind::Latency, size, name, Shape::Plain);
        for open in [LIBRARIES[0].ours, LIBRARIES[1].ours] {
            for size in [1, 8, 33, 65, 1000, 1024] {
                assert_eq!(of(open, size), [(Peer::Itself, AT_MOST(1.0))]);
            }
            assert_eq!(of(open, 2048), [(Peer::Itself, None)]);
            assert_eq!(of(open, 4096), [(Peer::Itself, AT_MOST(0.7))]);
            assert_eq!(of(open, 65536), [(Peer::Itself, AT_MOST(0.7)), (Peer::Best, AT_MOST(1.1))]);
            assert_eq!(of(open, 1 << 20), [(Peer::Itself, None)]);
        }
        for other in [LIBRARIES[2].ours, LIBRARIES[3].ours] {
            assert_eq!(of(other, 8), [(Peer::Itself, AT_MOST(1.1))]);
            assert_eq!(of(other, 1024), [(Peer::Itself, None)]);
            assert_eq!(of(other, 65536), [(Peer::Itself, None), (Peer::Best, AT_MOST(1.1))]);
        }
    }

    #[test]
    fn shapes_are_compared_with_what_they_add_to() {
        let of = |part, kind, size, shape| asked(part, kind, size, LIBRARIES[0].ours, shape);
        let polling = [(TWO_RANKS, AT_MOST(1.15)), (Peer::Itself, None)];
        assert_eq!(of(Part::Idle, Kind::Latency, 8, Shape::Polling(3)), polling);
        assert_eq!(of(Part::Idle, Kind::Latency, 8, Shape::Yielding(8)), [(Peer::Itself, AT_MOST(1.0))]);
        assert_eq!(of(Part::Idle, Kind::Latency, 8, Shape::Plain), []);
        let by_itself = asked(Part::Idle, Kind::Latency, 8, LIBRARIES[0].own, Shape::Polling(3));
        assert_eq!(by_itself, [(TWO_RANKS, None)]);
        assert_eq!(of(Part::AnySource, Kind::Latency, 8, Shape::AnySource), [(NAMED_SOURCE, AT_MOST(1.1))]);
        assert_eq!(of(Part::Rate, Kind::Rate, 8, Shape::Windows(65)), [(Peer::Itself, AT_LEAST(1.0))]);
    }

    #[test]
    fn bounds_are_of_times_from_above_and_of_rates_from_below() {
        let of = |part, kind, size| asked(part, kind, size, LIBRARIES[0].ours, Shape::Plain);
        assert_eq!(of(Part::Bandwidth, Kind::Stream, 65536), [(Peer::Best, AT_LEAST(1.0))]);
        assert_eq!(of(Part::Large, Kind::Stream, 64 << 20), [(Peer::Best, AT_LEAST(1.3))]);
        let [four, five] = of(Part::Hosts, Kind::Latency, 1024)[..] else { panic!("two peers over TCP") };
        assert_eq!((four.1, five.1), (AT_MOST(1.0), AT_MOST(1.0)));
        assert!(of(Part::Hosts, Kind::Stream, 1 << 20).iter().all(|asked| asked.1 == AT_LEAST(1.0)));
    }

    /// Lines of 8 B, of a library on Motet and by itself, with these floors around their repetitions.
    fn lines_of(ours: &[(f64, f64)], own: &[(f64, f64)]) -> Vec<Line> {
        let ranks = || Ranks { launcher: vec![], yields: &[], program: "".into(), mpi: None, environment: vec![] };
        let library = &LIBRARIES[0];
        let both =
            [(library.ours, true), (library.own, false)].map(|(name, ours)| Contender::of_ranks(name, ours, ranks()));
        let of = |contender, values: &[(f64, f64)]| {
            let floors = values.iter().map(|&(_, floor)| Around { before: floor, after: floor }).collect();
            let series = Series { values: values.iter().map(|of| of.0).collect(), floors };
            Of { contender, places: vec![(Two, vec![series])], failed: None }
        };
        let measured = Measured { sizes: vec![8], of: vec![of(&both[0], ours), of(&both[1], own)], copies: vec![] };
        let lines = lines(Part::Latency, Kind::Latency, &measured);
        lines.into_iter().filter(|line| line.what.contains("over itself")).collect()
    }

    #[test]
    fn near_and_far_cpus_have_lines_of_their_own() {
        let own = [(100.0, 50.0), (300.0, 250.0)].repeat(3);
        let [near, far] = &lines_of(&[(90.0, 50.0), (600.0, 250.0)].repeat(3), &own)[..] else { panic!("two lines") };
        assert!(near.what.ends_with(", near CPUs") && far.what.ends_with(", far CPUs"), "{} {}", near.what, far.what);
        assert_eq!((near.ratio.unwrap().median, near.verdict), (0.9, Verdict::Met));
        assert_eq!((far.ratio.unwrap().median, far.ratio.unwrap().count, far.verdict), (2.0, 3, Verdict::Missed));
    }

    #[test]
    fn a_kind_of_cpus_that_too_few_repetitions_share_is_not_compared() {
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
    fn every_contender_on_motet_has_itself_as_a_peer() {
        for known in &LIBRARIES {
            assert_eq!(own(known.ours), known.own);
        }
        assert_eq!(own("UCX"), "");
    }
}
