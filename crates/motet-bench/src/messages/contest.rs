//! All contenders of a part in turn, in every placement, with what the machine itself does beside them.

use super::Part;
use super::contenders::Contender;
use crate::bench::{Bench, Contestant, Series};
use crate::floor::{self, Distance};
use crate::place::Placement;
use crate::stats::median;
use anyhow::Result;
use indicatif::ProgressBar;
use std::cell::RefCell;
use std::time::Duration;

/// A placement that took so many times longer than the other with every size is not measured again.
const HOPELESS: f64 = 3.0;
/// So many repetitions make a median.
const ENOUGH: usize = 5;
/// Where the floor was fast around so many of them, the others do not count.
const FAST_ENOUGH: usize = 3;

/// What a part found.
pub struct Measured<'a> {
    /// The sizes; all series are in their order.
    pub sizes: Vec<usize>,
    /// By contender: those that have the part.
    pub of: Vec<Of<'a>>,
    /// A copy by one core, ns: in parts where bytes count.
    pub copies: Vec<Series>,
}

/// What one contender did.
pub struct Of<'a> {
    /// Who.
    pub contender: &'a Contender,
    /// In every placement: ns of each size.
    pub places: Vec<(Placement, Vec<Series>)>,
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

/// One contender in one placement, as it is measured.
struct Entry {
    contender: usize,
    placement: Placement,
    /// By repetition, then by size.
    values: Vec<Vec<f64>>,
    over: bool,
    failed: Option<String>,
}

/// Measures a part with these sizes.
pub fn run<'a>(
    bench: &Bench,
    contenders: &'a [Contender],
    (part, sizes): (Part, &[usize]),
    bar: &ProgressBar,
) -> Result<Measured<'a>> {
    let mut entries = Vec::new();
    for (at, contender) in contenders.iter().enumerate().filter(|(_, contender)| contender.has(part)) {
        let of = |&placement: &Placement| {
            RefCell::new(Entry { contender: at, placement, values: Vec::new(), over: false, failed: None })
        };
        entries.extend(contender.placements(part).iter().map(of));
    }
    let copied: Vec<RefCell<Vec<f64>>> = sizes.iter().map(|_| RefCell::default()).collect();
    let mut contestants: Vec<Contestant<'_>> = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let entries = &entries;
        contestants.push(Box::new(move |turn| {
            let mut entry = entry.borrow_mut();
            let contender = &contenders[entry.contender];
            bar.set_message(format!("{}, repetition {}: {}", part.word(), turn + 1, contender.called()));
            if entry.over {
                entry.values.push(vec![f64::NAN; sizes.len()]);
                return Ok(f64::NAN);
            }
            let found = contender.run(bench, part, sizes, entry.placement, turn).unwrap_or_else(|error| {
                eprintln!("{}, {}: {error:#}", contender.called(), part.word());
                entry.failed = Some(format!("{error:#}"));
                entry.over = true;
                vec![f64::NAN; sizes.len()]
            });
            if let Some(other) = at.checked_sub(1).map(|before| entries[before].borrow())
                && other.contender == entry.contender
                && hopeless(&found, &other.values[turn])
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
        contestants.push(Box::new(move |turn| {
            let copy = |size| floor::copy(bench.cpus.pair[turn % 2], size, buffers, time) * 1e9;
            sizes.iter().zip(copied).for_each(|(&size, of)| of.borrow_mut().push(copy(size)));
            Ok(0.0)
        }));
    }
    // Who all poll on two CPUs are compared in any mode of the machine.
    let several = entries.iter().any(|entry| entry.borrow().placement != Placement::Two);
    let series = bench.contest(bench.repetitions, !has_copies && several, &mut contestants)?;
    drop(contestants);
    let mut of: Vec<Of<'a>> = Vec::new();
    for (entry, series) in entries.into_iter().map(RefCell::into_inner).zip(&series) {
        let size = |at: usize| Series {
            values: entry.values.iter().map(|values| values[at]).collect(),
            floors: series.floors.clone(),
        };
        let contender = &contenders[entry.contender];
        let place = (entry.placement, (0..sizes.len()).map(size).collect());
        match of.last_mut().filter(|last| std::ptr::eq(last.contender, contender)) {
            Some(last) => {
                last.places.push(place);
                last.failed = last.failed.take().or(entry.failed);
            }
            None => of.push(Of { contender, places: vec![place], failed: entry.failed }),
        }
    }
    let floors = series.last().map(|last| last.floors.clone()).unwrap_or_default();
    let copies = copied.into_iter().map(|of| Series { values: of.into_inner(), floors: floors.clone() });
    let copies = copies.filter(|of| !of.values.is_empty()).collect();
    Ok(Measured { of, copies, sizes: sizes.to_vec() })
}

/// Whether there is nothing to hope for from `found` where `other` is possible.
fn hopeless(found: &[f64], other: &[f64]) -> bool {
    let mut both = found.iter().zip(other).filter(|(a, b)| a.is_finite() && b.is_finite()).peekable();
    both.peek().is_some() && both.all(|(a, b)| *a > *b * HOPELESS)
}

/// What one contender did with one size, where that took less time.
pub struct Best<'a> {
    /// Who.
    pub contender: &'a Contender,
    /// Where.
    pub placement: Placement,
    /// All repetitions.
    pub all: &'a Series,
    /// Those that count.
    pub counted: Vec<usize>,
    /// Which repetitions count, in words.
    pub which: &'static str,
}

impl<'a> Of<'a> {
    /// What it did with a size.
    pub fn best(&self, size: usize) -> Option<Best<'_>> {
        self.least(size, counted)
    }

    /// What it did with a size in the repetitions whose CPUs were at this distance; `None` where these are too few.
    pub fn within(&self, size: usize, distance: Distance) -> Option<Best<'_>> {
        self.least(size, |all| Some((all.within(distance)?, distance.words())))
    }

    fn least(&self, size: usize, counted: impl Fn(&Series) -> Option<(Vec<usize>, &'static str)>) -> Option<Best<'_>> {
        let places = self.places.iter().filter_map(|(placement, series)| {
            let all = &series[size];
            let (counted, which) = counted(all)?;
            Some(Best { contender: self.contender, placement: *placement, all, counted, which })
        });
        places.min_by(|a, b| a.median().total_cmp(&b.median()))
    }
}

/// The repetitions that count: those with a fast floor where there are enough, or the contenders would be compared in different modes of
/// the machine. `None` where too few have a value at all.
fn counted(series: &Series) -> Option<(Vec<usize>, &'static str)> {
    let valid = |at: &usize| series.values[*at].is_finite();
    let all: Vec<usize> = (0..series.values.len()).filter(valid).collect();
    let fast: Vec<usize> = series.fast().into_iter().filter(valid).collect();
    match (all.len() >= ENOUGH, fast.len() >= FAST_ENOUGH) {
        (false, _) => None,
        (true, true) => Some((fast, "those with a fast floor")),
        (true, false) => Some((all, "whatever the floor")),
    }
}

impl Best<'_> {
    /// What counts.
    pub fn series(&self) -> Series {
        self.all.at(&self.counted)
    }

    /// Their median.
    pub fn median(&self) -> f64 {
        median(&self.series().values)
    }

    /// The repetitions that count of both, where these are enough.
    pub fn both(&self, other: &Best<'_>) -> Option<Vec<usize>> {
        let both: Vec<usize> = self.counted.iter().copied().filter(|at| other.counted.contains(at)).collect();
        (both.len() >= FAST_ENOUGH).then_some(both)
    }

    /// The repetitions that count of both; where these are too few, those that count of this one.
    pub fn with(&self, other: &Best<'_>) -> Vec<usize> {
        self.both(other).unwrap_or_else(|| self.counted.clone())
    }

    /// Which they are, in words.
    pub fn remark(&self) -> String {
        format!("{} of {} repetitions: {}", self.counted.len(), self.all.values.len(), self.which)
    }
}

impl Measured<'_> {
    /// The best peer with a size.
    pub fn best_peer(&self, size: usize) -> Option<Best<'_>> {
        let peers = self.of.iter().filter(|of| !of.contender.ours).filter_map(|of| of.best(size));
        peers.min_by(|a, b| a.median().total_cmp(&b.median()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_fast_mode_counts_where_it_was_seen_often_enough() {
        let series = |floors: &[f64]| Series {
            values: (0..floors.len()).map(|at| if at == 0 { f64::NAN } else { at as f64 }).collect(),
            floors: floors.iter().map(|&floor| floor::Around { before: floor, after: floor }).collect(),
        };
        let (fast, any) = ("those with a fast floor", "whatever the floor");
        assert_eq!(counted(&series(&[50.0, 50.0, 50.0, 210.0, 50.0, 210.0])), Some((vec![1, 2, 4], fast)));
        assert_eq!(counted(&series(&[50.0, 50.0, 50.0, 210.0, 210.0, 210.0])), Some((vec![1, 2, 3, 4, 5], any)));
        assert_eq!(counted(&series(&[50.0; 5])), None);
    }

    #[test]
    fn a_placement_is_given_up_only_where_it_is_slower_with_every_size() {
        let nan = f64::NAN;
        assert!(hopeless(&[10.0, 40.0, nan], &[3.0, 10.0, 1.0]));
        assert!(!hopeless(&[10.0, 20.0], &[3.0, 10.0]));
        assert!(!hopeless(&[nan], &[1.0]) && !hopeless(&[9.0], &[nan]));
    }
}
