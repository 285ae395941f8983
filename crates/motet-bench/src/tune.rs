//! The sizes from which on this machine one way of copying a large message is faster than another, for `motet tune`.
//!
//! What it is: three pairs of processes with streams of the engine. One copies through the ring, one has single copies made by one
//! side, one has them made by both. They send bursts of each size in turn, in three patterns ([`PATTERNS`]). The gain of a size is
//! the median of ratios within one repetition. What it is not: the bench (`motet bench` shows the effect), nor exact: it takes about
//! two seconds, and a size must win by a margin to count. On a machine where other programs run, the sizes vary from one repetition
//! to the next; then the result is marked as not steady. Virtual CPUs may share a cache or not, and that changes: a measurement
//! holds for the distance at which it was made ([`Measured::near`]), and for none if the distance changed meanwhile.

use crate::bench::Bench;
use crate::floor::{self, Write};
use crate::pair::{self, Process, Server};
use crate::place::{Cpus, Placement};
use crate::stats::median;
use anyhow::{Context, Result, bail};
use motet_config::SETTINGS;
use serde::Serialize;
use std::io::Write as _;
use std::time::{Duration, Instant};

/// How a burst is sent: name, whether its buffers are cold, whether each message is answered before the next.
///
/// A receiver that answers waits for the next message, which is best for single copy. A stream of messages keeps the ring full,
/// which is best for the ring.
pub const PATTERNS: [(&str, bool, bool); 3] =
    [("answered", false, true), ("cold", true, true), ("streamed", false, false)];
/// Sizes tried, bytes.
const SIZES: [usize; 7] = [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20];
/// Bytes of a burst, at least two messages.
const BURST_BYTES: usize = 8 << 20;
/// Memory that cold buffers are cut from.
const COLD_BYTES: usize = 32 << 20;
/// Repetitions before the figures may be steady: an even number, for two halves.
const MIN_REPETITIONS: usize = 6;
/// How long repetitions go on if the result is not steady.
const MAX_TIME: Duration = Duration::from_secs(4);
/// The factor that a way of copying must gain to be chosen.
const MIN_GAIN: f64 = 1.1;
/// The factor that it may lose in one pattern if it gains over all of them.
const MAX_LOSS: f64 = 0.95;
/// A size above that of every message, bytes.
const NEVER_BYTES: u64 = 1 << 40;

/// The time of one message for each way of copying, ns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ways {
    /// Through the ring.
    pub ring: f64,
    /// Single copy by one side.
    pub one: f64,
    /// Single copy by both sides, half each.
    pub both: f64,
}

/// The times for one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Size {
    /// Bytes.
    pub size: usize,
    /// By pattern ([`PATTERNS`]), one entry a repetition.
    #[serde(rename = "manners")]
    pub patterns: [Vec<Ways>; 3],
}

/// The result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// One way of a cache line, ns.
    pub floor: f64,
    /// Whether the two CPUs share a cache, as far as the floor tells.
    pub near: bool,
    /// Whether that had changed at the end.
    pub moved: bool,
    /// By size.
    pub sizes: Vec<Size>,
    /// Whether the kernel lets one process copy from the other.
    pub permitted: bool,
    /// Whether two halves of the repetitions lead to the same sizes, and the distance of the CPUs did not change.
    pub steady: bool,
    /// Bytes from which single copy is better at this distance of the CPUs; `None` if it is not permitted.
    pub single_copy_min: Option<u64>,
    /// Bytes from which both sides should make the copy.
    pub half_copy_min: Option<u64>,
    /// The time that the measurement took, seconds.
    pub seconds: f64,
}

/// A pair of processes that copies in one way.
struct SweepPair {
    caller: Process,
    _server: Server,
    copies: u64,
}

impl SweepPair {
    fn start(bench: &Bench, settings: &[(&str, u64)]) -> Result<Self> {
        // Neither settings of the user nor an earlier profile apply.
        let mut env: Vec<(String, std::ffi::OsString)> = SETTINGS.iter().map(|s| (s.env.into(), "".into())).collect();
        env.extend(["MOTET_CONFIG", "MOTET_PROFILE"].map(|name| (name.into(), "/dev/null".into())));
        env.extend(settings.iter().map(|(name, value)| ((*name).into(), value.to_string().into())));
        let program = bench.worker(&["sweep"]).with_env(&env);
        let [serves, calls] = bench.cpus.of(Placement::Two, 0);
        let server = Server::start(&program, &bench.cpus, serves)?;
        let caller = pair::caller(&program, &server.port, &[], &bench.cpus, calls)?;
        Ok(Self { caller, _server: server, copies: 0 })
    }

    /// Sends a burst. Returns the time of one message, ns.
    fn burst(&mut self, size: usize, (_, cold, each): (&str, bool, bool)) -> Result<f64> {
        let (count, distinct) = ((BURST_BYTES / size).max(2), if cold { COLD_BYTES / size } else { 1 });
        let input = self.caller.input.as_mut().context("no input")?;
        writeln!(input, "{size} {count} {distinct} {}", u8::from(each))?;
        let line = self.caller.line()?;
        let Some((ns, copies)) = line.split_once(' ') else { bail!("a measuring program said `{line}`") };
        self.copies += copies.parse::<u64>()?;
        Ok(ns.parse()?)
    }
}

/// A sample of the floor, and whether it is one of CPUs that share a cache.
fn near(cpus: &Cpus) -> (f64, bool) {
    let floor = median(&std::array::from_fn::<_, 5, _>(|_| floor::one_way(cpus, Write::Store)));
    (floor, floor <= floor::NEAR_MAX_NS)
}

/// Whether the two CPUs of a measurement share a cache at present; `None` if there are no two.
pub fn is_near() -> Option<bool> {
    Cpus::find().ok().map(|cpus| near(&cpus).1)
}

/// Measures. `prefix` is the words that lead to the bench in the running executable, as in `motet bench`.
pub fn measure(prefix: &[&str]) -> Result<Measured> {
    let begun = Instant::now();
    let bench = Bench::new(prefix, true, None)?;
    let (floor, near_first) = near(&bench.cpus);
    // Both distances get one size, so that a stream copies by the same path on near and on far CPUs.
    let from = |size: u64| [("MOTET_SINGLE_COPY_MIN", size), ("MOTET_SINGLE_COPY_MIN_FAR", size)];
    let [min, min_far] = from(64 << 10);
    let mut ring = SweepPair::start(&bench, &from(NEVER_BYTES))?;
    let mut one = SweepPair::start(&bench, &[min, min_far, ("MOTET_HALF_COPY_MIN", NEVER_BYTES)])?;
    let mut both = SweepPair::start(&bench, &[min, min_far, ("MOTET_HALF_COPY_MIN", 1)])?;
    let mut sizes: Vec<Size> = SIZES.map(|size| Size { size, patterns: Default::default() }).into();
    let started = Instant::now();
    let mut steady = false;
    // The first repetition upgrades streams and faults memory in, and does not count.
    'all: for repetition in 0.. {
        if repetition > MIN_REPETITIONS && repetition % 2 == 1 {
            steady = agree(&sizes);
            if steady {
                break;
            }
        }
        for size in &mut sizes {
            if repetition > 1 && started.elapsed() > MAX_TIME {
                break 'all;
            }
            for (pattern, found) in PATTERNS.into_iter().zip(&mut size.patterns) {
                let burst = |of: &mut SweepPair| of.burst(size.size, pattern);
                let ways = Ways { ring: burst(&mut ring)?, one: burst(&mut one)?, both: burst(&mut both)? };
                if repetition > 0 {
                    found.push(ways);
                }
            }
        }
    }
    let permitted = one.copies > 0 && both.copies > 0;
    let (single_copy_min, half_copy_min) = if permitted { choose(&sizes) } else { (None, None) };
    let moved = near(&bench.cpus).1 != near_first;
    let seconds = begun.elapsed().as_secs_f64();
    let steady = (steady && !moved) || !permitted;
    Ok(Measured { floor, near: near_first, moved, sizes, permitted, steady, single_copy_min, half_copy_min, seconds })
}

impl Size {
    /// The gain of one way of copying over another: over all patterns, and in the worst of them.
    fn gain(&self, better: impl Fn(&Ways) -> f64, than: impl Fn(&Ways) -> f64) -> (f64, f64) {
        let gain = |ways: &Vec<Ways>| median(&ways.iter().map(|w| than(w) / better(w)).collect::<Vec<_>>());
        let gains = self.patterns.each_ref().map(gain);
        (gains.iter().product::<f64>().cbrt(), gains.into_iter().fold(f64::INFINITY, f64::min))
    }
}

/// The sizes from which single copy, and single copy by both sides, are better: there each wins by a margin (both sides need only
/// not lose), and it loses at no larger size. [`NEVER_BYTES`] if there is none.
fn choose(sizes: &[Size]) -> (Option<u64>, Option<u64>) {
    let from = |wins: &dyn Fn(&Size) -> bool, loses: &dyn Fn(&Size) -> bool| {
        let tail = sizes.iter().rposition(loses).map_or(0, |last| last + 1);
        sizes[tail..].iter().find(|size| wins(size)).map_or(NEVER_BYTES, |size| size.size as u64)
    };
    let lost_by_both = |s: &Size| s.gain(|w| w.one, |w| w.both).0 >= MIN_GAIN;
    let half = from(&|s| !lost_by_both(s), &lost_by_both);
    let single = |s: &Size| s.gain(|w| if s.size as u64 >= half { w.both } else { w.one }, |w| w.ring);
    let min = from(
        &|s| {
            let (over_all, worst) = single(s);
            over_all >= MIN_GAIN && worst >= MAX_LOSS
        },
        &|s| single(s).0 < 1.0,
    );
    (Some(min), Some(half))
}

/// Whether the even and the odd repetitions choose sizes that are at most one step apart.
fn agree(sizes: &[Size]) -> bool {
    let half = |first: usize| {
        let every_other = |ways: &Vec<Ways>| ways.iter().skip(first).step_by(2).copied().collect();
        let sizes = sizes.iter().map(|s| Size { size: s.size, patterns: s.patterns.each_ref().map(every_other) });
        choose(&sizes.collect::<Vec<_>>())
    };
    let step = |chosen: Option<u64>| SIZES.iter().position(|&s| Some(s as u64) == chosen).unwrap_or(SIZES.len());
    let ((single, both), (other_single, other_both)) = (half(0), half(1));
    step(single).abs_diff(step(other_single)) <= 1 && step(both).abs_diff(step(other_both)) <= 1
}

impl Measured {
    /// A line for each size: GB/s for each way of copying in each pattern.
    pub fn lines(&self) -> Vec<String> {
        let heading = format!("{:>8}  {:>14}  {:>14}  {:>14}", "GB/s of", "ring", "one side", "both sides");
        let lines = self.sizes.iter().map(|size| {
            let rate = |way: fn(&Ways) -> f64| {
                let rate = |ways: &Vec<Ways>| {
                    let rates: Vec<f64> = ways.iter().map(|w| size.size as f64 / way(w)).collect();
                    format!("{:4.1}", median(&rates))
                };
                size.patterns.each_ref().map(rate).join(" ")
            };
            format!("{:>4} KiB  {}  {}  {}", size.size >> 10, rate(|w| w.ring), rate(|w| w.one), rate(|w| w.both))
        });
        let last = format!("three figures each: {}", PATTERNS.map(|m| m.0).join(", "));
        [heading].into_iter().chain(lines).chain([last]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gains of single copy over the ring by one side and by both, equal in every pattern.
    fn sizes(gains: [(f64, f64); 7]) -> Vec<Size> {
        let size = |(size, (one, both)): (usize, (f64, f64))| {
            let ways = vec![Ways { ring: 1000.0, one: 1000.0 / one, both: 1000.0 / both }; 3];
            Size { size, patterns: std::array::from_fn(|_| ways.clone()) }
        };
        SIZES.into_iter().zip(gains).map(size).collect()
    }

    #[test]
    fn single_copy_starts_where_it_wins_at_all_larger_sizes() {
        let crossing = [(0.3, 0.5), (0.4, 0.7), (0.5, 1.05), (0.6, 1.2), (0.8, 1.5), (0.8, 1.08), (0.8, 1.4)];
        assert_eq!(choose(&sizes(crossing)), (Some(2 << 20), Some(256 << 10)));
        let mut dip = crossing;
        dip[4] = (0.8, 0.9);
        assert_eq!(choose(&sizes(dip)), (Some(16 << 20), Some(256 << 10)), "not before a size that loses");
        assert_eq!(choose(&sizes([(0.5, 0.9); 7])), (Some(NEVER_BYTES), Some(256 << 10)));
        assert_eq!(choose(&sizes([(1.5, 2.0); 7])), (Some(256 << 10), Some(256 << 10)));
    }

    #[test]
    fn figures_are_steady_when_two_halves_agree() {
        let quiet = [(0.3, 0.5), (0.4, 0.7), (0.5, 1.05), (0.6, 1.2), (0.8, 1.5), (0.8, 1.5), (0.8, 1.5)];
        let mixed = |other: [(f64, f64); 7]| {
            let (mut all, other) = (sizes(quiet), sizes(other));
            for (size, other) in all.iter_mut().zip(&other) {
                for (ways, other) in size.patterns.iter_mut().zip(&other.patterns) {
                    *ways = ways.iter().zip(other).flat_map(|(a, b)| [*a, *b]).collect();
                }
            }
            all
        };
        assert!(agree(&mixed(quiet)));
        let mut near = quiet;
        near[2] = (0.5, 1.15);
        assert!(agree(&mixed(near)), "one step is noise");
        assert!(!agree(&mixed([(0.5, 0.9); 7])), "never, and from 2 MiB");
        assert!(!agree(&mixed([(1.5, 2.0); 7])), "from 256 KiB, and from 2 MiB");
    }

    #[test]
    fn one_side_copies_where_two_hinder_each_other() {
        let gains = [(1.4, 1.0), (1.4, 1.1), (1.4, 1.3), (1.4, 1.5), (1.4, 2.0), (1.4, 2.0), (1.4, 2.0)];
        assert_eq!(choose(&sizes(gains)), (Some(256 << 10), Some(1 << 20)));
        assert_eq!(choose(&sizes([(2.0, 1.0); 7])), (Some(256 << 10), Some(NEVER_BYTES)));
    }

    #[test]
    fn way_that_loses_in_one_pattern_is_not_chosen() {
        let mut sizes = sizes([(0.5, 1.2); 7]);
        for size in &mut sizes[..3] {
            size.patterns[2].iter_mut().for_each(|w| w.both = 1250.0);
            size.patterns[0].iter_mut().for_each(|w| w.both = 300.0);
        }
        assert_eq!(choose(&sizes).0, Some(2 << 20));
    }
}
