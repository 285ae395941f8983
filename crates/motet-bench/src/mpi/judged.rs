//! What is asked of MPI on Motet, and lines that say whether that was reached.

use super::Part;
use super::libraries::LIBRARIES;
use crate::messages::Part as Kind;
use crate::messages::contest::{Best, Measured};
use crate::messages::lines::{line, over};
use crate::report::{Bound, Line};

/// With what a contender on Motet is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Peer {
    /// Whatever peer was best.
    Best,
    /// The same library on what it chooses itself.
    Itself,
    /// This one.
    Named(&'static str),
}

/// The comparisons of a size, each with what is asked.
fn asked(part: Part, kind: Kind, size: usize, name: &str) -> Vec<(Peer, Option<Bound>)> {
    let open = name.starts_with("Open MPI");
    match (part, kind) {
        (Part::Latency, _) if size == 8 => vec![(Peer::Itself, open.then_some(Bound::AtMost(1.0))), (Peer::Best, None)],
        (Part::Latency, _) => vec![(Peer::Best, Some(Bound::AtMost(1.1)))],
        (Part::Rate, _) => vec![(Peer::Best, Some(Bound::AtLeast(1.0)))],
        (Part::Bandwidth, _) => vec![(Peer::Best, Some(Bound::AtLeast(0.9)))],
        (Part::Large, _) => vec![(Peer::Best, Some(Bound::AtLeast(1.1)))],
        (Part::Hosts, kind) => {
            let bound = if kind == Kind::Latency { Bound::AtMost(1.0) } else { Bound::AtLeast(1.0) };
            LIBRARIES.iter().filter_map(|known| Some((Peer::Named(known.tcp?), Some(bound)))).collect()
        }
        (Part::Crowd | Part::Corba | Part::Together, _) => Vec::new(),
    }
}

/// Every contender over what the machine does at best; then each on Motet over its peers.
pub fn lines(part: Part, kind: Kind, measured: &Measured<'_>) -> Vec<Line> {
    let mut lines = Vec::new();
    for (at, &size) in measured.sizes.iter().enumerate() {
        lines.extend(measured.of.iter().filter_map(|of| line(kind, measured, of, at)));
        for ours in measured.of.iter().filter(|of| of.contender.ours) {
            let Some(best) = ours.best(at) else { continue };
            for (peer, bound) in asked(part, kind, size, best.name) {
                let (found, which) = match peer {
                    Peer::Best => (measured.best_peer(at), "over the best peer"),
                    Peer::Itself => (of(measured, own(best.name), at), "over itself without Motet"),
                    Peer::Named(name) => (of(measured, name, at), "over TCP"),
                };
                lines.extend(found.map(|peer| judged(over(kind, size, &best, &peer, which), bound)));
            }
        }
    }
    let failed = measured.of.iter().filter_map(|of| Some((of.contender.name, of.failed.as_ref()?)));
    lines.extend(failed.map(|(name, why)| Line::not_measured(part.word(), name, why)));
    lines.into_iter().map(|line| Line { row: part.word().to_owned(), ..line }).collect()
}

fn judged(line: Line, bound: Option<Bound>) -> Line {
    match bound {
        Some(bound) => line.bound(bound),
        None => line,
    }
}

/// The contender that is the same library without Motet.
fn own(name: &str) -> &'static str {
    LIBRARIES.iter().find(|known| known.ours == name).map_or("", |known| known.own)
}

fn of<'m>(measured: &'m Measured<'_>, name: &str, size: usize) -> Option<Best<'m>> {
    measured.of.iter().find(|of| of.contender.name == name)?.best(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn what_is_asked_is_asked_of_every_library_on_motet() {
        for known in &LIBRARIES {
            for &part in Part::value_variants() {
                for &(kind, sizes) in part.questions() {
                    for &size in sizes {
                        let asked = asked(part, kind, size, known.ours);
                        let bound = asked.iter().any(|(_, bound)| bound.is_some());
                        let open = known.ours.starts_with("Open MPI");
                        // Of 8 bytes there and back only Open MPI is asked anything.
                        assert_eq!(bound, open || (part, size) != (Part::Latency, 8), "{} {part:?} {size}", known.ours);
                    }
                }
            }
        }
    }

    #[test]
    fn bounds_are_of_times_from_above_and_of_rates_from_below() {
        let of = |part: Part, kind, size| asked(part, kind, size, LIBRARIES[0].ours);
        assert_eq!(of(Part::Latency, Kind::Latency, 8)[0], (Peer::Itself, Some(Bound::AtMost(1.0))));
        assert_eq!(of(Part::Latency, Kind::Latency, 65536), [(Peer::Best, Some(Bound::AtMost(1.1)))]);
        assert_eq!(of(Part::Rate, Kind::Rate, 8), [(Peer::Best, Some(Bound::AtLeast(1.0)))]);
        assert_eq!(of(Part::Bandwidth, Kind::Stream, 65536), [(Peer::Best, Some(Bound::AtLeast(0.9)))]);
        assert_eq!(of(Part::Large, Kind::Stream, 64 << 20), [(Peer::Best, Some(Bound::AtLeast(1.1)))]);
        let [four, five] = of(Part::Hosts, Kind::Latency, 8)[..] else { panic!("two peers over TCP") };
        assert_eq!((four.1, five.1), (Some(Bound::AtMost(1.0)), Some(Bound::AtMost(1.0))));
        assert!(of(Part::Hosts, Kind::Stream, 1 << 20).iter().all(|asked| asked.1 == Some(Bound::AtLeast(1.0))));
    }

    #[test]
    fn every_contender_on_motet_has_itself_as_a_peer() {
        for known in &LIBRARIES {
            assert_eq!(own(known.ours), known.own);
        }
        assert_eq!(own("UCX"), "");
    }
}
