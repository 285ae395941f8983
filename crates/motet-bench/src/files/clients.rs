//! Many clients of one server, each of which writes 64 KiB at a time to a file of its own: the total rate, and how evenly the clients are served.

use super::scene::{Scene, Way, answer, tell};
use crate::bench::{Bench, Measurement};
use crate::pair::Process;
use crate::report::{Bound, Curve, Line, Quantity, Unit};
use crate::stats::Spread;
use anyhow::Result;
use std::cell::RefCell;

/// How many clients.
const COUNTS: [usize; 6] = [1, 8, 32, 92, 184, 200];
/// The places of 92 and 184 clients, which are compared.
const COMPARED: [usize; 2] = [3, 4];
/// Processes that share the clients.
const PROCESSES: usize = 4;
/// Bytes of a write.
const SIZE: usize = 64 << 10;
/// Twice as many clients keep at least this part of the rate (Goglin and others 2008, figure 9: 163 of 233 MB/s).
const LEAST_KEPT: f64 = 0.95;
/// The most writes of one client over the fewest of another.
const MOST_UNEVEN: f64 = 2.0;

/// Part `clients`. The clients and the server run on any CPU.
pub fn measure(bench: &Bench, curves: &mut Vec<Curve>) -> Result<Vec<Line>> {
    let scene = Scene::new(bench)?;
    let _server = scene.serve(bench, Way::Messages, None)?;
    // Long enough for each of them to run often.
    let ms = if bench.quick { 1000 } else { 4000 };
    let mut first = 0;
    let mut crowds = Vec::new();
    for count in COUNTS {
        let processes = count.min(PROCESSES);
        let mut workers = Vec::new();
        for at in 0..processes {
            let share = count / processes + usize::from(at < count % processes);
            let words = ["writers", Way::Messages.export(), &first.to_string(), &share.to_string()];
            workers.push(scene.worker(bench, &words, None)?);
            first += share;
        }
        crowds.push((RefCell::new(workers), RefCell::new(Vec::new())));
    }
    for (workers, _) in &crowds {
        written(&mut workers.borrow_mut(), 1)?; // the clients are connected then, and their files exist
    }
    let mut measurements: Vec<Measurement<'_>> = crowds
        .iter()
        .map(|(workers, unevenness)| -> Measurement<'_> {
            Box::new(move |_| {
                let counts = written(&mut workers.borrow_mut(), ms)?;
                let (fewest, most) =
                    (counts.iter().copied().fold(f64::MAX, f64::min), counts.iter().copied().fold(0.0, f64::max));
                unevenness.borrow_mut().push(most / fewest);
                Ok(counts.iter().sum::<f64>() * SIZE as f64 / (ms as f64 * 1e6))
            })
        })
        .collect();
    let series = bench.compare(bench.of_programs, false, &mut measurements)?;
    drop(measurements);
    let name = |count: usize| if count == 1 { "1 client".to_owned() } else { format!("{count} clients") };
    let mut lines = Vec::new();
    for ((count, series), (_, unevenness)) in COUNTS.into_iter().zip(&series).zip(&crowds) {
        let what = format!("64 KiB writes by {}, total", name(count));
        lines.push(
            Line::new("clients", what)
                .figure(Quantity::of("by messages", &series.values, Unit::GBs))
                .floors(&series.floors)
                .note(format!("{PROCESSES} processes at most, on {} CPUs", bench.cpus.count())),
        );
        if count > 1 {
            let what = format!("64 KiB writes by {}, most of a client over fewest of one", name(count));
            lines
                .push(Line::new("clients", what).against(None, &unevenness.borrow()).bound(Bound::AtMost(MOST_UNEVEN)));
        }
    }
    let points = COUNTS.into_iter().zip(&series);
    curves.push(Curve {
        plot: "files-clients".to_owned(),
        name: "64 KiB writes by messages, total".to_owned(),
        unit: Unit::GBs,
        points: points.filter_map(|(count, series)| Some((count, Spread::of(&series.values)?))).collect(),
    });
    let [half, whole] = COMPARED;
    let of = |at: usize| Quantity::of(name(COUNTS[at]), &series[at].values, Unit::GBs);
    lines.push(
        Line::new("clients", "64 KiB writes, total, twice as many clients")
            .figure(of(whole))
            .against(of(half), &series[whole].over(&series[half]))
            .bound(Bound::AtLeast(LEAST_KEPT)),
    );
    Ok(lines)
}

/// Lets the clients of these processes write for a time. Returns how many writes each of them has made.
fn written(workers: &mut [Process], ms: usize) -> Result<Vec<f64>> {
    workers.iter_mut().try_for_each(|worker| tell(worker, &format!("{SIZE} {ms}")))?;
    Ok(workers.iter_mut().map(answer).collect::<Result<Vec<_>>>()?.concat())
}
