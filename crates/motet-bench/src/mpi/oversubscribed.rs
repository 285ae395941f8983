//! More ranks than CPUs that all work: a token round all ranks, an exchange with neighbours, synchronous sends to them, a sum, an
//! exchange of all with all, a barrier.
//!
//! With few ranks each of these is compared with Open MPI whose ranks yield (`mpi_yield_when_idle`); with many ranks, one of each
//! together. The scheduler places the ranks. The program (`tests/mpi/oversubscribed.c`) checks every value.

use super::libraries::Libraries;
use crate::bench::{Bench, Measurement, Series};
use crate::messages::peers::Ranks;
use crate::report::{Bound, Line, Quantity, Unit, WithMotet};
use crate::stats::median;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use std::cell::RefCell;
use std::process::{Command, Stdio};

const ROW: &str = "oversubscribed";
/// The largest number of ranks that are few.
const MAX_FEW_RANKS: usize = 8;
/// Rounds of a run with few ranks, and with many. The program prints medians of rounds.
const ROUNDS: [&str; 2] = ["301", "5"];
/// The words in front of a job: it ends after three minutes.
const TIMEOUT_COMMAND: [&str; 4] = ["timeout", "-k", "5", "180"];

/// The times of one job: its parts in their order, us.
type JobTimes = Vec<(String, f64)>;

pub fn measure(bench: &Bench, libraries: &Libraries, bar: &ProgressBar) -> Result<Vec<Line>> {
    let libraries = libraries.oversubscribed();
    if libraries.is_empty() {
        bail!("skipped: there is no MPI");
    }
    let counts: &[usize] = if bench.quick { &[4, 8, 64] } else { &[4, 8, 64, 256] };
    let mut lines = Vec::new();
    for &ranks in counts {
        lines.extend(of(bench, &libraries, ranks, bar)?);
    }
    Ok(lines)
}

fn of(bench: &Bench, libraries: &[(&'static str, bool, Ranks)], ranks: usize, bar: &ProgressBar) -> Result<Vec<Line>> {
    let reported: Vec<RefCell<(Vec<JobTimes>, Option<String>)>> =
        libraries.iter().map(|_| RefCell::default()).collect();
    let mut measurements: Vec<Measurement<'_>> = Vec::new();
    for ((name, ours, library), state) in libraries.iter().zip(&reported) {
        measurements.push(Box::new(move |turn| {
            bar.set_message(format!("{ranks} ranks, repetition {}: {name}", turn + 1));
            let mut state = state.borrow_mut();
            if state.1.is_some() {
                return Ok(f64::NAN); // it has failed before
            }
            match run(library, ranks, *ours) {
                Ok(reported) => {
                    let all = reported.iter().map(|(_, us)| us).sum::<f64>() * 1e3;
                    state.0.push(reported);
                    Ok(all)
                }
                Err(error) => {
                    eprintln!("{name}, {ranks} ranks: {error:#}");
                    state.1 = Some(format!("{error:#}"));
                    Ok(f64::NAN)
                }
            }
        }));
    }
    let series = bench.compare(bench.repetitions, false, &mut measurements)?;
    drop(measurements);
    let reported: Vec<(Vec<JobTimes>, Option<String>)> = reported.into_iter().map(RefCell::into_inner).collect();
    let peers: Vec<usize> = (0..libraries.len()).filter(|&at| !libraries[at].1 && reported[at].1.is_none()).collect();
    let best = peers.into_iter().min_by(|&a, &b| median(&series[a].values).total_cmp(&median(&series[b].values)));
    let mut lines = Vec::new();
    for (at, (name, ours, _)) in libraries.iter().enumerate() {
        let side = if *ours { WithMotet::Figure } else { WithMotet::Neither };
        if let (0..=MAX_FEW_RANKS, (jobs, None)) = (ranks, &reported[at]) {
            let best = best.filter(|_| *ours).map(|best| (libraries[best].0, &reported[best].0));
            let all = each((name, ranks), &series[at], jobs, best);
            lines.extend(all.into_iter().map(|line| line.with_motet(side)));
            continue;
        }
        let what = format!("{name}, {ranks} ranks: one of each");
        lines.push(match &reported[at] {
            (_, Some(why)) => Line::not_measured(ROW, what, why.clone()),
            (reported, None) => {
                let best = best.filter(|_| *ours).map(|best| (libraries[best].0, &series[best]));
                shown(what, &series[at], best).with_motet(side).note(parts(reported))
            }
        });
    }
    Ok(lines)
}

/// A line for each part of the jobs of a few ranks.
fn each(
    (name, ranks): (&str, usize),
    all: &Series,
    jobs: &[JobTimes],
    best: Option<(&str, &Vec<JobTimes>)>,
) -> Vec<Line> {
    let of = |jobs: &[JobTimes], part: &str| {
        let us = |job: &JobTimes| job.iter().find(|(name, _)| name == part).map_or(f64::NAN, |(_, us)| us * 1e3);
        Series { values: jobs.iter().map(us).collect(), floors: all.floors.clone() }
    };
    let parts = jobs.first().into_iter().flatten();
    let line = |(part, _): &(String, f64)| {
        let best = best.map(|(name, jobs)| (name, of(jobs, part)));
        shown(
            format!("{name}, {ranks} ranks: {part}"),
            &of(jobs, part),
            best.as_ref().map(|(name, series)| (*name, series)),
        )
    };
    parts.map(line).collect()
}

fn shown(what: String, series: &Series, best: Option<(&str, &Series)>) -> Line {
    let line = Line::new(ROW, what).figure(Quantity::of("all", &series.values, Unit::Ns)).floors(&series.floors);
    match best {
        None => line,
        Some((name, best)) => {
            line.against(Quantity::of(name, &best.values, Unit::Ns), &series.over(best)).bound(Bound::AtMost(1.0))
        }
    }
}

/// The parts as text: medians over the jobs.
fn parts(reported: &[JobTimes]) -> String {
    let Some(first) = reported.first() else { return String::new() };
    let of = |at: usize| median(&reported.iter().filter_map(|reported| Some(reported.get(at)?.1)).collect::<Vec<_>>());
    let words = first.iter().enumerate().map(|(at, (name, _))| format!("{name} {:.0} us", of(at)));
    words.collect::<Vec<_>>().join(", ")
}

fn run(library: &Ranks, ranks: usize, ours: bool) -> Result<JobTimes> {
    let mut command = Command::new(TIMEOUT_COMMAND[0]);
    command
        .args(&TIMEOUT_COMMAND[1..])
        .args(&library.launcher)
        .args(["-n", &ranks.to_string()])
        .arg(&library.program)
        .arg(ROUNDS[usize::from(ranks > MAX_FEW_RANKS)]);
    command.env_remove("LD_PRELOAD").stdin(Stdio::null());
    if let Some(mpi) = &library.mpi {
        mpi.set_environment(&mut command);
    }
    command.envs(library.environment.iter().map(|(name, value)| (name, value)));
    let output = crate::cleanup::output(&mut command).context("timeout")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        bail!("{}: {last}", output.status);
    }
    parse(&String::from_utf8_lossy(&output.stdout), ranks, ours)
}

/// Parses `ok RANKS, carried by CARRIED`, then `MICROSECONDS NAME` for each part. A job on Motet counts only if Motet carried all ranks.
fn parse(text: &str, ranks: usize, ours: bool) -> Result<JobTimes> {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let carried = if ours { ranks } else { 0 };
    if first != format!("ok {ranks}, carried by {carried}") {
        bail!("ranks printed `{first}`");
    }
    let part = |line: &str| {
        let (us, name) = line.split_once(' ')?;
        Some((name.to_owned(), us.parse().ok().filter(|us| *us > 0.0)?))
    };
    let reported: Option<JobTimes> = lines.map(part).collect();
    reported.filter(|reported| !reported.is_empty()).with_context(|| format!("ranks printed `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_counts_for_motet_only_if_motet_carried_all() {
        let ours = "ok 64, carried by 64\n12.5 ring\n3.0 barrier\n";
        assert_eq!(parse(ours, 64, true).unwrap(), [("ring".to_owned(), 12.5), ("barrier".to_owned(), 3.0)]);
        let own = "ok 64, carried by 0\n12.5 ring\n";
        assert!(parse(own, 64, false).is_ok());
        for (text, ranks, is_ours) in [
            (ours, 64, false),
            (own, 64, true),
            (ours, 256, true),
            ("ok 64, carried by 64\n", 64, true),
            ("ok 64, carried by 64\nsoon ring\n", 64, true),
            ("ok 64, carried by 64\n-1 ring\n", 64, true),
            ("", 64, true),
        ] {
            assert!(parse(text, ranks, is_ours).is_err(), "{text}");
        }
    }

    #[test]
    fn target_is_the_time_of_the_best_peer_that_yields() {
        let series = |values: [f64; 5]| Series { values: values.into(), floors: Vec::new() };
        let (own, other) = (series([90.0, 95.0, 91.0, 94.0, 93.0]), series([100.0; 5]));
        let verdict = |a: &Series, b: &Series| shown(String::new(), a, Some(("peer", b))).verdict;
        assert_eq!(verdict(&own, &other), crate::report::Verdict::Met);
        assert_eq!(verdict(&other, &own), crate::report::Verdict::Missed);
        assert_eq!(shown(String::new(), &own, None).verdict, crate::report::Verdict::Shown);
    }

    #[test]
    fn parts_are_medians_over_jobs() {
        let reported = |us| vec![("ring".to_owned(), us), ("sum".to_owned(), 2.0 * us)];
        assert_eq!(parts(&[reported(3.0), reported(1.0), reported(2.0)]), "ring 2 us, sum 4 us");
        assert_eq!(parts(&[]), "");
    }
}
