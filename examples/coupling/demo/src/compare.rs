//! The comparison: each case without Motet and with Motet, alternating, medians over the repetitions.
//!
//! It reports only what it measured: if Motet is not given there is no second column, and links that Motet did not report are
//! "not measured".

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::case::Case;
use crate::machine_load::MachineLoad;
use crate::outcome::Outcome;
use crate::paths::{self, Measured};
use crate::run::Runner;

/// Medians over the repetitions of one way of running a case, in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Medians {
    /// From starting the codes to their end.
    pub run: f64,
    /// From the first exchange to the last.
    pub stepping: f64,
    /// Inside coupling calls, the slowest gas rank's.
    pub coupling: f64,
    /// Inside coupling calls, in the fastest and in the slowest repetition.
    pub coupling_spread: [f64; 2],
    /// Of which the wall took its own steps.
    pub solving: f64,
    /// What is left of the coupling calls without these steps: the broker, transport, waiting for one another.
    pub transport: f64,
    /// User and system time of all ranks.
    pub cpu: f64,
}

/// One case, compared.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The case's name.
    pub case: String,
    /// The case's title.
    pub title: String,
    /// Ranks of gas and wall.
    pub ranks: [u32; 2],
    /// Number of exchanges.
    pub exchanges: u64,
    /// Values on the boundary.
    pub columns: u64,
    /// Remote calls of all gas ranks.
    pub calls: f64,
    /// Boundary values in both directions, bytes.
    pub bytes: f64,
    /// Without Motet.
    pub plain: Medians,
    /// With Motet, if it was given.
    pub motet: Option<Medians>,
    /// All runs gave the same bits.
    pub identical: bool,
    /// Runs compared for that.
    pub runs: usize,
    /// Largest error of the energy balances, relative.
    pub balance_error: f64,
    /// CPUs that other programs used on average during the timed runs.
    pub used_by_others: f64,
    /// What Motet reported about the links, in a run that was not timed.
    pub links: Measured,
    /// The directory of the run without Motet.
    #[serde(skip)]
    pub directory: PathBuf,
}

impl Comparison {
    /// How many times shorter a quantity is with Motet.
    pub fn ratio(&self, quantity: impl Fn(&Medians) -> f64) -> Option<f64> {
        Some(quantity(&self.plain) / quantity(self.motet.as_ref()?))
    }
}

/// A runner with `motet run --`.
pub fn with_motet(plain: &Runner, motet: &Path) -> Result<Runner> {
    let motet = motet.canonicalize().with_context(|| format!("{} does not exist", motet.display()))?;
    Ok(Runner { prefix: vec![motet.to_string_lossy().into(), "run".into(), "--".into()], ..plain.clone() })
}

/// Runs one case `repetitions` times each way, alternating.
pub fn compare(
    plain: &Runner,
    motet: Option<&Path>,
    case: &Case,
    repetitions: usize,
    directory: &Path,
) -> Result<Comparison> {
    let layout = case.layout();
    let under = motet.map(|motet| with_motet(plain, motet)).transpose()?;
    let name = case.name()?.to_owned();
    let each = if under.is_some() { 2 } else { 1 };
    let bar = ProgressBar::new((repetitions * each + usize::from(under.is_some())) as u64)
        .with_style(ProgressStyle::with_template("{msg:28} {bar:30} {pos}/{len}  {elapsed}")?);
    let (mut plain_runs, mut motet_runs) = (Vec::new(), Vec::new());
    let machine = MachineLoad::begin();
    for _ in 0..repetitions {
        bar.set_message(format!("{name}: without Motet"));
        plain_runs.push(plain.run(case, layout, &directory.join(format!("{name}-plain")))?);
        bar.inc(1);
        if let Some(under) = &under {
            bar.set_message(format!("{name}: with Motet"));
            motet_runs.push(under.run(case, layout, &directory.join(format!("{name}-motet")))?);
            bar.inc(1);
        }
    }
    let own = plain_runs.iter().chain(&motet_runs).map(Outcome::cpu_seconds).sum();
    let used_by_others = machine.used_by_others(own);
    let mut links = Measured::default();
    if let (Some(under), Some(motet)) = (&under, motet) {
        bar.set_message(format!("{name}: links"));
        let stop = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| paths::watch(motet, &stop));
            let outcome = under.run(case, layout, &directory.join(format!("{name}-links")));
            stop.store(true, Ordering::SeqCst);
            links = watcher.join().unwrap_or_default();
            outcome
        })?;
        // It counts for identity, not for time, as questions take time.
        let identical_only = outcome;
        bar.inc(1);
        bar.finish_and_clear();
        return assemble(
            case,
            name,
            layout,
            &plain_runs,
            &motet_runs,
            Some(&identical_only),
            links,
            used_by_others,
            directory,
        );
    }
    bar.finish_and_clear();
    assemble(case, name, layout, &plain_runs, &motet_runs, None, links, used_by_others, directory)
}

#[allow(clippy::too_many_arguments)] // one private caller; a struct would only repeat Comparison
fn assemble(
    case: &Case,
    name: String,
    layout: crate::case::Layout,
    plain: &[Outcome],
    motet: &[Outcome],
    untimed: Option<&Outcome>,
    links: Measured,
    used_by_others: f64,
    directory: &Path,
) -> Result<Comparison> {
    let first = plain.first().context("no repetition")?;
    let all = || plain.iter().chain(motet).chain(untimed);
    let errors = all().flat_map(|o| [o.fluid.balance_error(), o.solid.balance_error(), o.interface_error()]);
    Ok(Comparison {
        directory: directory.join(format!("{name}-plain")),
        case: name,
        title: case.text("title").unwrap_or_default().to_owned(),
        ranks: [layout.fluid, layout.solid],
        exchanges: case.number("time.steps")? as u64,
        columns: case.number("grid.columns")? as u64,
        calls: first.fluid.calls,
        bytes: first.fluid.bytes,
        plain: medians(plain).context("no repetition")?,
        motet: medians(motet),
        identical: all().all(|outcome| outcome.checksums() == first.checksums()),
        runs: all().count(),
        balance_error: errors.fold(0.0, f64::max),
        used_by_others,
        links,
    })
}

fn medians(runs: &[Outcome]) -> Option<Medians> {
    let of = |quantity: fn(&Outcome) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(quantity).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            odd if odd % 2 == 1 => Some(values[middle]),
            _ => Some(0.5 * (values[middle - 1] + values[middle])),
        }
    };
    let coupling = runs.iter().map(|o| o.fluid.coupling_seconds);
    Some(Medians {
        coupling_spread: [coupling.clone().fold(f64::MAX, f64::min), coupling.fold(0.0, f64::max)],
        run: of(|o| o.run_seconds)?,
        stepping: of(|o| o.fluid.wall_seconds)?,
        coupling: of(|o| o.fluid.coupling_seconds)?,
        solving: of(|o| o.fluid.solve_seconds)?,
        transport: of(|o| o.fluid.coupling_seconds - o.fluid.solve_seconds)?,
        cpu: of(Outcome::cpu_seconds)?,
    })
}
