//! What a run found: lines with figures, floors, ratios, bounds and verdicts; and curves over the size.

use crate::bar::Bar;
use crate::floor::{Distance, FAST_MAX_NS, FloorSamples};
use crate::stats::Spread;
use serde::Serialize;

/// Everything that one run found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The machine.
    pub machine: Machine,
    /// The table.
    pub lines: Vec<Line>,
    /// The plots.
    pub curves: Vec<Curve>,
}

/// What a run was measured on, and how.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Processor model.
    pub processor: String,
    /// Kernel release.
    pub kernel: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// One-way floor over all samples of the run, ns.
    pub floor: Option<Spread>,
    /// One-way floor over the samples on near CPUs and over those on far CPUs, ns; for the figures pages.
    #[serde(skip)]
    pub floor_by_distance: [Option<Spread>; 2],
    /// One-way floor by locked exchanges instead of stores, ns.
    pub exchange: Option<Spread>,
    /// Part of the samples in the fast mode, 0 to 1.
    pub floor_fast: f64,
    /// One core's copy of 64 KiB buffers in its cache, GB/s.
    pub copy: Option<Spread>,
    /// Repetitions, and milliseconds of each.
    pub repetitions: (usize, usize),
}

/// A unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Ns,
    /// 10^9 bytes a second.
    #[serde(rename = "GB/s")]
    GBs,
    /// Operations a second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Ms,
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// Instructions executed.
    #[serde(rename = "instructions")]
    Instructions,
}

/// A target.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The ratio (the figure, where there is no ratio) is at most this.
    AtMost(f64),
    /// The ratio (the figure, where there is no ratio) is at least this.
    AtLeast(f64),
    /// The ratio differs from 1 by at most this.
    Within(f64),
}

/// Whether a target was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It was met: by the whole interval of the median.
    Met,
    /// It was not met, by no part of the interval.
    Missed,
    /// The interval of the median contains the bound.
    Undecided,
    /// Too few repetitions saw the fast floor for this comparison to count.
    SlowFloor,
    /// Nothing was measured; the note says why.
    NotMeasured,
    /// There is no target.
    Shown,
}

/// A figure or a reference: a name and values.
#[derive(Debug, Clone, Serialize)]
pub struct Quantity {
    /// Its name.
    pub name: String,
    /// Its values.
    pub spread: Spread,
    /// Their unit.
    pub unit: Unit,
}

impl Quantity {
    /// A quantity with these values; `None` if there are none.
    pub fn of(name: impl Into<String>, values: &[f64], unit: Unit) -> Option<Self> {
        Some(Self { name: name.into(), spread: Spread::of(values)?, unit })
    }
}

/// The one of the two quantities of a line that is measured with Motet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WithMotet {
    /// The figure; the reference is what it is compared with.
    #[default]
    Figure,
    /// The reference; the ratio says how many times as fast it is.
    Reference,
    /// Neither: the line is about another library.
    Neither,
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// The name of its row.
    pub row: String,
    /// What was measured.
    pub what: String,
    /// The figure.
    pub figure: Option<Quantity>,
    /// What it is compared with.
    pub reference: Option<Quantity>,
    /// One-way floor of the same repetitions, ns.
    pub floor: Option<Spread>,
    /// Figure over reference, repetition by repetition.
    pub ratio: Option<Spread>,
    /// The target.
    pub bound: Option<Bound>,
    /// Whether it was met.
    pub verdict: Verdict,
    /// A remark.
    pub note: Option<String>,
    /// The quantity that is measured with Motet; the figures pages need it.
    #[serde(skip)]
    pub with_motet: WithMotet,
    /// Its place in the overview picture.
    #[serde(skip)]
    pub bar: Option<Bar>,
}

impl Line {
    /// A line without figures.
    pub fn new(row: &str, what: impl Into<String>) -> Self {
        Self {
            row: row.to_owned(),
            what: what.into(),
            figure: None,
            reference: None,
            floor: None,
            ratio: None,
            bound: None,
            verdict: Verdict::Shown,
            note: None,
            with_motet: WithMotet::Figure,
            bar: None,
        }
    }

    /// A line that says why nothing was measured.
    pub fn not_measured(row: &str, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { verdict: Verdict::NotMeasured, note: Some(why.into()), ..Self::new(row, what) }
    }

    /// Sets the figure.
    pub fn figure(mut self, figure: Option<Quantity>) -> Self {
        self.figure = figure;
        self
    }

    /// Sets the reference, and the ratios to it.
    pub fn against(mut self, reference: Option<Quantity>, ratios: &[f64]) -> Self {
        self.reference = reference;
        self.ratio = Spread::of(ratios);
        self
    }

    /// Names the quantity that is measured with Motet.
    pub fn with_motet(self, which: WithMotet) -> Self {
        Self { with_motet: which, ..self }
    }

    /// Shows the line in the overview picture.
    pub fn bar(self, bar: Bar) -> Self {
        Self { bar: Some(bar), ..self }
    }

    /// Sets the floors of its repetitions.
    pub fn floors(mut self, floors: &[FloorSamples]) -> Self {
        let values: Vec<f64> = floors.iter().flat_map(|f| [f.before, f.after]).collect();
        self.floor = Spread::of(&values);
        self
    }

    /// Says in its text that the CPUs were at this distance.
    pub fn within(self, distance: Distance) -> Self {
        Self { what: format!("{}, {}", self.what, distance.words()), ..self }
    }

    /// Adds a remark.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        let note = note.into();
        self.note = match self.note {
            Some(before) => Some(format!("{before}; {note}")),
            None => Some(note),
        };
        self
    }

    /// Sets a target for the median of the ratio (of the figure, where there is no ratio). What decides is the interval of the median.
    pub fn bound(mut self, bound: Bound) -> Self {
        self.bound = Some(bound);
        self.verdict = match self.ratio.or(self.figure.as_ref().map(|f| f.spread)) {
            None => Verdict::NotMeasured,
            Some(Spread { interval: (low, high), .. }) => {
                let (is_met, is_missed) = match bound {
                    Bound::AtMost(b) => (high <= b, low > b),
                    Bound::AtLeast(b) => (low >= b, high < b),
                    Bound::Within(b) => (low >= 1.0 - b && high <= 1.0 + b, low > 1.0 + b || high < 1.0 - b),
                };
                match (is_met, is_missed) {
                    (true, _) => Verdict::Met,
                    (_, true) => Verdict::Missed,
                    _ => Verdict::Undecided,
                }
            }
        };
        self
    }

    /// Sets a target that the ratio comes close to: the interval is noted.
    pub fn nearly(self, bound: Bound) -> Self {
        let line = self.bound(bound);
        match line.ratio {
            Some(Spread { interval: (low, high), .. }) => {
                line.note(format!("95 % interval of the ratio: {low:.3} .. {high:.3}"))
            }
            None => line,
        }
    }

    /// Marks a comparison with too few repetitions on a fast floor.
    pub fn slow_floor(mut self, enough: bool) -> Self {
        if !enough && self.verdict != Verdict::NotMeasured {
            self.verdict = Verdict::SlowFloor;
            return self.note(format!("the floor was above {FAST_MAX_NS} ns: a ratio to TCP does not count"));
        }
        self
    }
}

/// One line of a plot.
#[derive(Debug, Clone, Serialize)]
pub struct Curve {
    /// The name of its plot. Curves of a plot without a picture are in the JSON output only.
    pub plot: String,
    /// What it shows.
    pub name: String,
    /// Unit of the values.
    pub unit: Unit,
    /// Size in bytes, and the value at it.
    pub points: Vec<(usize, Spread)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_of_the_median_decides() {
        let ratios = [0.97, 0.99, 0.985, 0.96, 1.01, 0.975, 0.97, 0.982, 0.978]; // interval 0.97 .. 0.99
        let line = Line::new("d", "").against(None, &ratios);
        let verdict = |bound| line.clone().bound(bound).verdict;
        assert_eq!(verdict(Bound::AtLeast(0.97)), Verdict::Met);
        assert_eq!(verdict(Bound::AtLeast(0.98)), Verdict::Undecided);
        assert_eq!(verdict(Bound::AtLeast(1.0)), Verdict::Missed, "although one value meets it");
        assert_eq!(verdict(Bound::AtMost(0.99)), Verdict::Met);
        assert_eq!(verdict(Bound::AtMost(0.98)), Verdict::Undecided);
        assert_eq!(verdict(Bound::AtMost(0.96)), Verdict::Missed);
        let near = line.clone().nearly(Bound::AtLeast(0.98));
        assert_eq!((near.verdict, near.note.unwrap().contains("0.970 .. 0.990")), (Verdict::Undecided, true));
        assert_eq!(Line::new("d", "").bound(Bound::AtLeast(0.98)).verdict, Verdict::NotMeasured);
    }

    #[test]
    fn model_may_err_to_both_sides() {
        let within = |ratio| Line::new("d", "").against(None, &[ratio]).bound(Bound::Within(0.15)).verdict;
        assert_eq!(
            [0.84, 0.86, 1.14, 1.16].map(within),
            [Verdict::Missed, Verdict::Met, Verdict::Met, Verdict::Missed]
        );
        let wide = Line::new("d", "").against(None, &[0.9, 1.2]).bound(Bound::Within(0.15));
        assert_eq!(wide.verdict, Verdict::Undecided);
    }
}
