//! What the preload object of `motet run --files` costs a program that opens no exported file: its start, and reads of a local file. Beside it is `motet run`, which
//! preloads the sockets adapter alone.

use super::scene::{FILE, FILE_BYTES, Scene, Way, ask};
use crate::bench::{Bench, Measurement};
use crate::pair::Process;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::Result;
use std::cell::RefCell;

/// The most time over that without the object.
const MOST: f64 = 1.02;
/// Bytes of a local read.
const SIZE: usize = 4 << 10;
/// Reads of a run of which the total time is shown.
const READS: f64 = 1e6;

/// Part `preload`.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::new(bench)?;
    let _server = scene.serve(bench, Way::Direct, None)?;
    let local = scene.path("local");
    std::fs::create_dir(&local)?;
    std::fs::hard_link(scene.data().join(FILE), local.join(FILE))?;
    let (local, file_bytes) = (local.display().to_string(), FILE_BYTES.to_string());
    let words = ["client", "local", &local, &file_bytes];
    let prefix = scene.path("prefix").display().to_string();
    let workers = [
        RefCell::new(scene.preloaded(bench, &prefix, &words)?),
        RefCell::new(scene.under_run(bench, &words)?),
        RefCell::new(scene.worker(bench, &words, None)?),
    ];
    let mut lines = Vec::new();
    for (operation, what) in
        [("start", "start and end of a program"), ("random-read", "10^6 reads of 4 KiB by a program")]
    {
        let question = format!("{operation} {SIZE} {}", 4 * bench.ms);
        let timed = |worker: &RefCell<Process>| Ok(ask(&mut worker.borrow_mut(), &question)?[0]);
        let mut measurements: Vec<Measurement<'_>> =
            workers.iter().map(|worker| -> Measurement<'_> { Box::new(move |_| timed(worker)) }).collect();
        let series = bench.compare(2 * bench.repetitions, false, &mut measurements)?;
        drop(measurements);
        let quantity = |name: &str, at: usize| match operation {
            "start" => Quantity::of(name, &series[at].values, Unit::Ns),
            _ => {
                let seconds: Vec<f64> = series[at].values.iter().map(|ns| ns * READS / 1e9).collect();
                Quantity::of(name, &seconds, Unit::Seconds)
            }
        };
        let line = |beside: &str, at: usize| {
            Line::new("preload", format!("{what} that opens no exported file"))
                .figure(quantity("motet run --files", 0))
                .floors(&series[0].floors)
                .against(quantity(beside, at), &series[0].over(&series[at]))
        };
        lines.push(line("motet run", 1).bound(Bound::AtMost(MOST)));
        lines.push(line("without Motet", 2));
    }
    Ok(lines)
}
