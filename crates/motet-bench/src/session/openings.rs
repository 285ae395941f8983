//! Circuits: how long 16 processes take to open one, and 1000 of them in contention.

use super::scene::Scene;
use crate::bench::Bench;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Result, ensure};

/// Processes.
const SIZE: usize = 16;
/// Circuits that are opened one after the other in a repetition.
const OPENINGS: &str = "25";
/// Circuits that each process opens in contention; two more are opened by all.
const CONTENDED: usize = 63;

/// Part `circuit`.
pub fn circuit(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::up(bench)?;
    let opened = |_| Ok(scene.members(SIZE, &["open", OPENINGS])?[0]);
    let series = bench.compare(bench.of_programs, false, &mut [Box::new(opened)])?;
    Ok(vec![
        Line::new("circuit", format!("circuit of {SIZE} processes, opened by all at once, until the last one has it"))
            .figure(Quantity::of(format!("median of {OPENINGS}"), &series[0].values, Unit::Ms))
            .bound(Bound::AtMost(5.0))
            .note(contention(bench, SIZE)),
    ])
}

/// Part `contended`. It fails if a circuit is lost, opened twice, or in another order at a member.
pub fn contended(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::up(bench)?;
    let total = SIZE * CONTENDED + 2;
    let opened = |_| {
        let found = scene.members(SIZE, &["contend", &CONTENDED.to_string()])?;
        let (each, count, is_same) = (found[0], found[1], found[2]);
        ensure!(count == total as f64, "{count} circuits are open, not {total}");
        ensure!(is_same == 1.0, "members have opened the circuits in different orders");
        Ok(each)
    };
    let series = bench.compare(bench.of_programs, false, &mut [Box::new(opened)])?;
    Ok(vec![
        Line::new("contended", format!("{total} openings by {SIZE} processes at once, the time of each"))
            .figure(Quantity::of("none lost, none twice, same order everywhere", &series[0].values, Unit::Ms))
            .note(contention(bench, SIZE)),
    ])
}

/// A remark where processes share CPUs.
pub fn contention(bench: &Bench, size: usize) -> String {
    let cpus = bench.cpus.count();
    if size > cpus { format!("{size} processes on {cpus} CPUs") } else { format!("a CPU for each of {size} processes") }
}
