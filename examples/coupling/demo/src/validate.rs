//! The validations: figures that must hold for the two codes. The caller compares them with limits.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::case::{Case, Layout};
use crate::exact::TwoSlabs;
use crate::field::Field;
use crate::outcome::Outcome;
use crate::run::Runner;

const ONE_BY_ONE: Layout = Layout { fluid: 1, solid: 1 };

/// Errors of a steady state of two slabs against the exact solution.
#[derive(Clone, Debug, Serialize)]
pub struct SlabErrors {
    /// Rows of cells in the wall (and as many or proportionally many in the gas).
    pub rows: u32,
    /// Root mean square over both codes, relative to the difference of the outer temperatures.
    pub mean: f64,
    /// Largest, likewise.
    pub largest: f64,
    /// Energies and checksums.
    pub outcome: Outcome,
}

/// Runs a case of two slabs and compares both fields with the exact solution.
pub fn slab(runner: &Runner, case: &Case, layout: Layout, directory: &Path) -> Result<SlabErrors> {
    let outcome = runner.run(case, layout, directory)?;
    let exact = TwoSlabs::of(case)?;
    let (mut mean, mut largest) = (0.0f64, 0.0f64);
    for code in ["fluid", "solid"] {
        let field = Field::read_last(directory, code)?;
        mean = mean.max(field.mean_error(|y| exact.temperature(y)) / exact.span());
        largest = largest.max(field.largest_error(|y| exact.temperature(y)) / exact.span());
    }
    Ok(SlabErrors { rows: case.number("solid.rows")? as u32, mean, largest, outcome })
}

/// The Kirchhoff case on grids of 8, 16 and 32 rows.
pub fn grid_convergence(runner: &Runner, case: &Case, directory: &Path) -> Result<Vec<SlabErrors>> {
    let run = |rows: u32| {
        let mut case = case.clone();
        case.set("fluid", "rows", i64::from(rows));
        case.set("solid", "rows", i64::from(rows));
        slab(runner, &case, ONE_BY_ONE, &directory.join(format!("rows-{rows}")))
    };
    [8, 16, 32].into_iter().map(run).collect()
}

/// Order of convergence observed between neighbouring grids or time steps, each half of the one before.
pub fn orders(errors: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let errors: Vec<f64> = errors.into_iter().collect();
    errors.windows(2).map(|pair| (pair[0] / pair[1]).log2()).collect()
}

/// Error of the final state for one time step.
#[derive(Clone, Debug, Serialize)]
pub struct TimeError {
    /// s
    pub step: f64,
    /// Root mean square over both codes, K, against an extrapolation to no time step at all.
    pub error: f64,
}

/// The demo on a coarse grid, to one moment, with time steps each half of the one before. The reference is the
/// Richardson extrapolation of the two finest, so the order is observed on the coarser ones.
pub fn time_convergence(runner: &Runner, demo: &Case, directory: &Path) -> Result<Vec<TimeError>> {
    let mut case = demo.clone();
    case.set("grid", "columns", 32);
    case.set("fluid", "rows", 12);
    case.set("solid", "rows", 8);
    // No flow: the advection scheme's own error in time would hide the coupling's.
    case.set("fluid", "mean_velocity", 0.0);
    case.set("fluid", "initial_temperature", 900.0);
    case.set("solid", "heat_capacity_factor", 0.1);
    let coarsest = 0.08;
    let mut states = Vec::new();
    for level in 0..6u32 {
        let step = coarsest / f64::from(1 << level);
        case.set("time", "step", step);
        case.set("time", "steps", 25 << level);
        let at = directory.join(format!("step-{level}"));
        runner.run(&case, ONE_BY_ONE, &at)?;
        let mut state = Field::read_last(&at, "fluid")?.values;
        state.extend(Field::read_last(&at, "solid")?.values);
        states.push((step, state));
    }
    let (finest, before) = (states.pop().context("no state")?.1, states.last().context("no state")?.1.clone());
    let limit: Vec<f64> = finest.iter().zip(&before).map(|(fine, coarse)| 2.0 * fine - coarse).collect();
    let error = |state: &[f64]| {
        let sum: f64 = state.iter().zip(&limit).map(|(a, b)| (a - b).powi(2)).sum();
        (sum / limit.len() as f64).sqrt()
    };
    Ok(states.iter().map(|(step, state)| TimeError { step: *step, error: error(state) }).collect())
}
