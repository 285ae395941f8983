//! More ranks than CPUs that all work: a token round all of them, an exchange of neighbours, synchronous sends to them, a sum, an exchange of all
//! with all, a barrier.
//!
//! What is compared is each of these of a few ranks, and one of each together of many, with what Open MPI needs whose ranks yield (`mpi_yield_when_idle`). Ranks are where the
//! scheduler puts them; the program (`tests/mpi/crowd.c`) checks every value.

use super::libraries::Libraries;
use crate::bench::{Bench, Contestant, Series};
use crate::messages::contenders::Ranks;
use crate::report::{Bound, Line, Quantity, Unit, WithMotet};
use crate::stats::median;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use std::cell::RefCell;
use std::process::{Command, Stdio};

const ROW: &str = "crowd";
/// So many ranks are a few. Rounds of a run of a few, and of many; the program takes their medians.
const FEW: usize = 8;
const ROUNDS: [&str; 2] = ["301", "5"];
/// A job that takes longer has hung.
const LIMIT: [&str; 4] = ["timeout", "-k", "5", "180"];

/// What one job said: its parts in their order, us.
type Told = Vec<(String, f64)>;

pub fn measure(bench: &Bench, libraries: &Libraries, bar: &ProgressBar) -> Result<Vec<Line>> {
    let crowds = libraries.crowds();
    if crowds.is_empty() {
        bail!("skipped: there is no MPI");
    }
    let counts: &[usize] = if bench.quick { &[4, 8, 64] } else { &[4, 8, 64, 256] };
    let mut lines = Vec::new();
    for &ranks in counts {
        lines.extend(of(bench, &crowds, ranks, bar)?);
    }
    Ok(lines)
}

fn of(bench: &Bench, crowds: &[(&'static str, bool, Ranks)], ranks: usize, bar: &ProgressBar) -> Result<Vec<Line>> {
    let told: Vec<RefCell<(Vec<Told>, Option<String>)>> = crowds.iter().map(|_| RefCell::default()).collect();
    let mut contestants: Vec<Contestant<'_>> = Vec::new();
    for ((name, ours, crowd), state) in crowds.iter().zip(&told) {
        contestants.push(Box::new(move |turn| {
            bar.set_message(format!("{ranks} ranks, repetition {}: {name}", turn + 1));
            let mut state = state.borrow_mut();
            if state.1.is_some() {
                return Ok(f64::NAN); // it failed once
            }
            match run(crowd, ranks, *ours) {
                Ok(told) => {
                    let all = told.iter().map(|(_, us)| us).sum::<f64>() * 1e3;
                    state.0.push(told);
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
    let series = bench.contest(bench.repetitions, false, &mut contestants)?;
    drop(contestants);
    let told: Vec<(Vec<Told>, Option<String>)> = told.into_iter().map(RefCell::into_inner).collect();
    let peers: Vec<usize> = (0..crowds.len()).filter(|&at| !crowds[at].1 && told[at].1.is_none()).collect();
    let best = peers.into_iter().min_by(|&a, &b| median(&series[a].values).total_cmp(&median(&series[b].values)));
    let mut lines = Vec::new();
    for (at, (name, ours, _)) in crowds.iter().enumerate() {
        let side = if *ours { WithMotet::Figure } else { WithMotet::Neither };
        if let (0..=FEW, (jobs, None)) = (ranks, &told[at]) {
            let best = best.filter(|_| *ours).map(|best| (crowds[best].0, &told[best].0));
            let all = each((name, ranks), &series[at], jobs, best);
            lines.extend(all.into_iter().map(|line| line.with_motet(side)));
            continue;
        }
        let what = format!("{name}, {ranks} ranks: one of each");
        lines.push(match &told[at] {
            (_, Some(why)) => Line::not_measured(ROW, what, why.clone()),
            (told, None) => {
                let best = best.filter(|_| *ours).map(|best| (crowds[best].0, &series[best]));
                shown(what, &series[at], best).with_motet(side).note(parts(told))
            }
        });
    }
    Ok(lines)
}

/// A line for each part of the jobs of a few ranks.
fn each((name, ranks): (&str, usize), all: &Series, jobs: &[Told], best: Option<(&str, &Vec<Told>)>) -> Vec<Line> {
    let of = |jobs: &[Told], part: &str| {
        let us = |job: &Told| job.iter().find(|(name, _)| name == part).map_or(f64::NAN, |(_, us)| us * 1e3);
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

/// The parts in words: medians over the jobs.
fn parts(told: &[Told]) -> String {
    let Some(first) = told.first() else { return String::new() };
    let of = |at: usize| median(&told.iter().filter_map(|told| Some(told.get(at)?.1)).collect::<Vec<_>>());
    let words = first.iter().enumerate().map(|(at, (name, _))| format!("{name} {:.0} us", of(at)));
    words.collect::<Vec<_>>().join(", ")
}

fn run(crowd: &Ranks, ranks: usize, ours: bool) -> Result<Told> {
    let mut command = Command::new(LIMIT[0]);
    command
        .args(&LIMIT[1..])
        .args(&crowd.launcher)
        .args(["-n", &ranks.to_string()])
        .arg(&crowd.program)
        .arg(ROUNDS[usize::from(ranks > FEW)]);
    command.env_remove("LD_PRELOAD").stdin(Stdio::null());
    if let Some(mpi) = &crowd.mpi {
        mpi.equip(&mut command);
    }
    command.envs(crowd.environment.iter().map(|(name, value)| (name, value)));
    let output = crate::ending::output(&mut command).context("timeout")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        bail!("{}: {last}", output.status);
    }
    parse(&String::from_utf8_lossy(&output.stdout), ranks, ours)
}

/// `ok RANKS, carried by CARRIED`, then `MICROSECONDS NAME` for each part. Ours count only where Motet carried all.
fn parse(text: &str, ranks: usize, ours: bool) -> Result<Told> {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let carried = if ours { ranks } else { 0 };
    if first != format!("ok {ranks}, carried by {carried}") {
        bail!("ranks said `{first}`");
    }
    let part = |line: &str| {
        let (us, name) = line.split_once(' ')?;
        Some((name.to_owned(), us.parse().ok().filter(|us| *us > 0.0)?))
    };
    let told: Option<Told> = lines.map(part).collect();
    told.filter(|told| !told.is_empty()).with_context(|| format!("ranks said `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_say_is_read_and_must_be_of_motet_where_it_counts_as_ours() {
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
    fn a_crowd_is_judged_by_the_time_of_the_best_that_yields() {
        let series = |values: [f64; 5]| Series { values: values.into(), floors: Vec::new() };
        let (own, other) = (series([90.0, 95.0, 91.0, 94.0, 93.0]), series([100.0; 5]));
        let verdict = |a: &Series, b: &Series| shown(String::new(), a, Some(("peer", b))).verdict;
        assert_eq!(verdict(&own, &other), crate::report::Verdict::Met);
        assert_eq!(verdict(&other, &own), crate::report::Verdict::Missed);
        assert_eq!(shown(String::new(), &own, None).verdict, crate::report::Verdict::Shown);
    }

    #[test]
    fn parts_are_medians_over_jobs() {
        let told = |us| vec![("ring".to_owned(), us), ("sum".to_owned(), 2.0 * us)];
        assert_eq!(parts(&[told(3.0), told(1.0), told(2.0)]), "ring 2 us, sum 4 us");
        assert_eq!(parts(&[]), "");
    }
}
