//! All peers of a part in turn, in every placement, with the floor and copies of the machine in the same run.

use super::Part;
use super::peers::Peer;
use crate::bench::{Bench, Measurement, Series};
use crate::floor::{self, Distance};
use crate::place::Placement;
use crate::stats::median;
use anyhow::Result;
use indicatif::ProgressBar;
use std::cell::RefCell;
use std::time::Duration;

/// A placement that took this many times as long as the other with every size is not measured again.
const GIVE_UP_FACTOR: f64 = 3.0;
/// The fewest repetitions from which a median is taken.
const MIN_REPETITIONS: usize = 5;
/// From this many repetitions with a fast floor on, the others do not count.
const MIN_FAST_REPETITIONS: usize = 3;

/// The results of a part.
pub struct Comparison<'a> {
    /// The sizes. All series have their order.
    pub sizes: Vec<usize>,
    /// The results of the peers that have the part.
    pub of: Vec<PeerResult<'a>>,
    /// Copies by one core, ns, in parts about bandwidth.
    pub copies: Vec<Series>,
}

/// The results of one peer.
pub struct PeerResult<'a> {
    /// The peer.
    pub peer: &'a Peer,
    /// By placement: the times of each size, ns.
    pub places: Vec<(Placement, Vec<Series>)>,
    /// Why it failed, if it failed.
    pub failed: Option<String>,
}

/// One peer in one placement, as it is measured.
struct Entry {
    peer: usize,
    placement: Placement,
    /// By repetition, then by size.
    values: Vec<Vec<f64>>,
    over: bool,
    failed: Option<String>,
}

/// Measures a part with these sizes.
pub fn run<'a>(
    bench: &Bench,
    peers: &'a [Peer],
    (part, sizes): (Part, &[usize]),
    bar: &ProgressBar,
) -> Result<Comparison<'a>> {
    let mut entries = Vec::new();
    for (at, peer) in peers.iter().enumerate().filter(|(_, peer)| peer.has(part)) {
        let of = |&placement: &Placement| {
            RefCell::new(Entry { peer: at, placement, values: Vec::new(), over: false, failed: None })
        };
        entries.extend(peer.placements(part).iter().map(of));
    }
    let copied: Vec<RefCell<Vec<f64>>> = sizes.iter().map(|_| RefCell::default()).collect();
    let mut measurements: Vec<Measurement<'_>> = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let entries = &entries;
        measurements.push(Box::new(move |turn| {
            let mut entry = entry.borrow_mut();
            let peer = &peers[entry.peer];
            bar.set_message(format!("{}, repetition {}: {}", part.word(), turn + 1, peer.called()));
            if entry.over {
                entry.values.push(vec![f64::NAN; sizes.len()]);
                return Ok(f64::NAN);
            }
            let found = peer.run(bench, part, sizes, entry.placement, turn).unwrap_or_else(|error| {
                eprintln!("{}, {}: {error:#}", peer.called(), part.word());
                entry.failed = Some(format!("{error:#}"));
                entry.over = true;
                vec![f64::NAN; sizes.len()]
            });
            if let Some(other) = at.checked_sub(1).map(|before| entries[before].borrow())
                && other.peer == entry.peer
                && is_far_slower(&found, &other.values[turn])
            {
                entry.over = true;
            }
            let first = found[0];
            entry.values.push(found);
            Ok(first)
        }));
    }
    let has_copies = ![Part::Latency, Part::Rate].contains(&part);
    if has_copies {
        let buffers = if part == Part::Cold { 4 } else { 1 };
        let time = Duration::from_millis(part.ms(bench) as u64 / 2);
        let copied = &copied;
        measurements.push(Box::new(move |turn| {
            let copy = |size| floor::copy(bench.cpus.pair[turn % 2], size, buffers, time) * 1e9;
            sizes.iter().zip(copied).for_each(|(&size, of)| of.borrow_mut().push(copy(size)));
            Ok(0.0)
        }));
    }
    // Peers that all poll on two CPUs are compared in any mode of the floor.
    let several = entries.iter().any(|entry| entry.borrow().placement != Placement::Two);
    let series = bench.compare(bench.repetitions, !has_copies && several, &mut measurements)?;
    drop(measurements);
    let mut of: Vec<PeerResult<'a>> = Vec::new();
    for (entry, series) in entries.into_iter().map(RefCell::into_inner).zip(&series) {
        let size = |at: usize| Series {
            values: entry.values.iter().map(|values| values[at]).collect(),
            floors: series.floors.clone(),
        };
        let peer = &peers[entry.peer];
        let place = (entry.placement, (0..sizes.len()).map(size).collect());
        match of.last_mut().filter(|last| std::ptr::eq(last.peer, peer)) {
            Some(last) => {
                last.places.push(place);
                last.failed = last.failed.take().or(entry.failed);
            }
            None => of.push(PeerResult { peer, places: vec![place], failed: entry.failed }),
        }
    }
    let floors = series.last().map(|last| last.floors.clone()).unwrap_or_default();
    let copies = copied.into_iter().map(|of| Series { values: of.into_inner(), floors: floors.clone() });
    let copies = copies.filter(|of| !of.values.is_empty()).collect();
    Ok(Comparison { of, copies, sizes: sizes.to_vec() })
}

/// Whether one placement took far longer than another with every size.
fn is_far_slower(found: &[f64], other: &[f64]) -> bool {
    let mut both = found.iter().zip(other).filter(|(a, b)| a.is_finite() && b.is_finite()).peekable();
    both.peek().is_some() && both.all(|(a, b)| *a > *b * GIVE_UP_FACTOR)
}

/// The results of one peer with one size in its better placement.
pub struct BestPlacement<'a> {
    /// The peer.
    pub peer: &'a Peer,
    /// The placement.
    pub placement: Placement,
    /// All repetitions.
    pub all: &'a Series,
    /// The repetitions that count.
    pub counted: Vec<usize>,
    /// Description of the repetitions that count.
    pub which: &'static str,
}

impl<'a> PeerResult<'a> {
    /// The better placement with a size.
    pub fn best(&self, size: usize) -> Option<BestPlacement<'_>> {
        self.fastest(size, counted)
    }

    /// The better placement with a size, in the repetitions with the CPUs at this distance; `None` if these are too few.
    pub fn within(&self, size: usize, distance: Distance) -> Option<BestPlacement<'_>> {
        self.fastest(size, |all| Some((all.within(distance)?, distance.words())))
    }

    fn fastest(
        &self,
        size: usize,
        counted: impl Fn(&Series) -> Option<(Vec<usize>, &'static str)>,
    ) -> Option<BestPlacement<'_>> {
        let places = self.places.iter().filter_map(|(placement, series)| {
            let all = &series[size];
            let (counted, which) = counted(all)?;
            Some(BestPlacement { peer: self.peer, placement: *placement, all, counted, which })
        });
        places.min_by(|a, b| a.median().total_cmp(&b.median()))
    }
}

/// The repetitions that count: those with a fast floor if there are enough, so that peers are compared in the same mode of the
/// floor. `None` if too few have a value.
fn counted(series: &Series) -> Option<(Vec<usize>, &'static str)> {
    let valid = |at: &usize| series.values[*at].is_finite();
    let all: Vec<usize> = (0..series.values.len()).filter(valid).collect();
    let fast: Vec<usize> = series.fast().into_iter().filter(valid).collect();
    match (all.len() >= MIN_REPETITIONS, fast.len() >= MIN_FAST_REPETITIONS) {
        (false, _) => None,
        (true, true) => Some((fast, "those with a fast floor")),
        (true, false) => Some((all, "whatever the floor")),
    }
}

impl BestPlacement<'_> {
    /// The values of the repetitions that count.
    pub fn series(&self) -> Series {
        self.all.at(&self.counted)
    }

    /// The median of the repetitions that count.
    pub fn median(&self) -> f64 {
        median(&self.series().values)
    }

    /// The repetitions that count for both; `None` if there are too few.
    pub fn both(&self, other: &BestPlacement<'_>) -> Option<Vec<usize>> {
        let both: Vec<usize> = self.counted.iter().copied().filter(|at| other.counted.contains(at)).collect();
        (both.len() >= MIN_FAST_REPETITIONS).then_some(both)
    }

    /// The repetitions that count for both; if there are too few, those that count for this one.
    pub fn with(&self, other: &BestPlacement<'_>) -> Vec<usize> {
        self.both(other).unwrap_or_else(|| self.counted.clone())
    }

    /// The number of repetitions that count, and a description of them.
    pub fn remark(&self) -> String {
        format!("{} of {} repetitions: {}", self.counted.len(), self.all.values.len(), self.which)
    }
}

impl Comparison<'_> {
    /// The best library without Motet with a size.
    pub fn best_peer(&self, size: usize) -> Option<BestPlacement<'_>> {
        let peers = self.of.iter().filter(|of| !of.peer.ours).filter_map(|of| of.best(size));
        peers.min_by(|a, b| a.median().total_cmp(&b.median()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fast_repetitions_count_if_there_are_enough() {
        let series = |floors: &[f64]| Series {
            values: (0..floors.len()).map(|at| if at == 0 { f64::NAN } else { at as f64 }).collect(),
            floors: floors.iter().map(|&floor| floor::FloorSamples { before: floor, after: floor }).collect(),
        };
        let (fast, any) = ("those with a fast floor", "whatever the floor");
        assert_eq!(counted(&series(&[50.0, 50.0, 50.0, 210.0, 50.0, 210.0])), Some((vec![1, 2, 4], fast)));
        assert_eq!(counted(&series(&[50.0, 50.0, 50.0, 210.0, 210.0, 210.0])), Some((vec![1, 2, 3, 4, 5], any)));
        assert_eq!(counted(&series(&[50.0; 5])), None);
    }

    #[test]
    fn placement_is_given_up_if_far_slower_with_every_size() {
        let nan = f64::NAN;
        assert!(is_far_slower(&[10.0, 40.0, nan], &[3.0, 10.0, 1.0]));
        assert!(!is_far_slower(&[10.0, 20.0], &[3.0, 10.0]));
        assert!(!is_far_slower(&[nan], &[1.0]) && !is_far_slower(&[9.0], &[nan]));
    }
}
