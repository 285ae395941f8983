//! Medians, spreads and intervals of a few repetitions. Nothing here knows what was measured.

use serde::Serialize;

/// A median with its spread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// The middle value.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// An interval that holds the true median with a probability of at least 95 % (all values, when they are fewer than 6).
    pub interval: (f64, f64),
    /// How many values.
    pub count: usize,
}

impl Spread {
    /// The spread of these values; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let n = sorted.len();
        let median = if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 };
        let cut = ranks_to_cut(n);
        Some(Self { median, min, max, interval: (sorted[cut], sorted[n - 1 - cut]), count: n })
    }

    /// This spread with every value divided by `by`.
    pub fn over(self, by: f64) -> Self {
        Self {
            median: self.median / by,
            min: self.min / by,
            max: self.max / by,
            interval: (self.interval.0 / by, self.interval.1 / by),
            count: self.count,
        }
    }
}

/// How many of the smallest and of the largest of `n` values may be left out so that the rest still spans the true median
/// with 95 %: the sign test, so nothing is assumed of the distribution. The rest fails to span it if no more values than those left out lie on one side of it.
fn ranks_to_cut(n: usize) -> usize {
    let mut term = 0.5f64.powi(n as i32); // P(exactly k of n values lie below the median)
    let mut below = 0.0;
    let mut cut = 0;
    for k in 0..n / 2 {
        below += term;
        if below > 0.025 {
            break;
        }
        cut = k;
        term *= (n - k) as f64 / (k + 1) as f64;
    }
    cut.min(n.saturating_sub(1) / 2)
}

/// The median of a few values, 0 of none.
pub fn median(values: &[f64]) -> f64 {
    Spread::of(values).map_or(0.0, |s| s.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_has_its_spread() {
        let s = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((s.median, s.min, s.max, s.count), (2.0, 1.0, 3.0, 3));
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn intervals_are_those_of_the_sign_test() {
        // Tables of the sign test, two-sided 5 %: n = 5 has none, 6 to 8 cut nothing, 9 to 11 one, 12 to 14 two.
        for (n, cut) in [(5, 0), (6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (14, 2), (15, 3), (17, 4)] {
            assert_eq!(ranks_to_cut(n), cut, "{n} values");
        }
        let values: Vec<f64> = (1..=9).map(f64::from).collect();
        assert_eq!(Spread::of(&values).unwrap().interval, (2.0, 8.0));
    }
}
