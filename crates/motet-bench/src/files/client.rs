//! The client that the front ends use, in one thread, beside system calls on the exported directory.

use super::scene::{FILE_BYTES, Scene, Way, ask};
use crate::bench::{Bench, Measurement, Series};
use crate::pair::Process;
use crate::place::Placement;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::Result;
use std::cell::RefCell;

/// What is measured: the worker's operation, its size, and the line.
const OPERATIONS: [(&str, usize, &str); 7] = [
    ("random-read", 4 << 10, "4 KiB random read"),
    ("random-read", 64 << 10, "64 KiB random read"),
    ("read", 1 << 20, "1 MiB sequential read"),
    ("write", 4 << 10, "4 KiB sequential write"),
    ("write", 1 << 20, "1 MiB sequential write"),
    ("stat", 0, "attributes of a file"),
    ("create", 0, "creation and removal of a file"),
];

/// The least rates of a client that uses the directory itself, 1/s.
const LEAST_RATES: [(&str, f64); 3] =
    [("4 KiB random read", 400e3), ("attributes of a file", 500e3), ("creation and removal of a file", 60e3)];

/// Part `client`.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let scene = Scene::new(bench)?;
    let [server, caller] = bench.cpus.of(Placement::Two, 0);
    let _servers = [scene.serve(bench, Way::Messages, server)?, scene.serve(bench, Way::Direct, server)?];
    let (data, bytes) = (scene.data().display().to_string(), FILE_BYTES.to_string());
    let start = |words: [&str; 2]| -> Result<RefCell<Process>> {
        Ok(RefCell::new(scene.worker(bench, &["client", words[0], words[1], &bytes], caller)?))
    };
    let workers = [
        start(["messages", Way::Messages.export()])?,
        start(["direct", Way::Direct.export()])?,
        start(["local", &data])?,
    ];
    let mut lines = Vec::new();
    for (operation, size, what) in OPERATIONS {
        let question = format!("{operation} {size} {}", bench.ms);
        let timed = |worker: &RefCell<Process>| Ok(ask(&mut worker.borrow_mut(), &question)?[0]);
        let mut measurements: Vec<Measurement<'_>> =
            workers.iter().map(|worker| -> Measurement<'_> { Box::new(move |_| timed(worker)) }).collect();
        let series = bench.compare(bench.repetitions, false, &mut measurements)?;
        drop(measurements);
        for (way, times) in [("by messages", &series[0]), ("the directory itself", &series[1])] {
            lines.push(line(&format!("{what}, one thread"), size, (way, times), ("local tmpfs", &series[2])));
        }
        // A line has one bound: that of the rate has no reference.
        if let Some((_, least)) = LEAST_RATES.iter().find(|(of, _)| *of == what) {
            let rates: Vec<f64> = series[1].values.iter().map(|ns| 1e9 / ns).collect();
            lines.push(
                Line::new("client", format!("{what}, one thread, rate"))
                    .figure(Quantity::of("the directory itself", &rates, Unit::PerSecond))
                    .floors(&series[1].floors)
                    .bound(Bound::AtLeast(*least)),
            );
        }
    }
    Ok(lines)
}

/// A line of rates, from times of one operation in ns.
fn line(what: &str, size: usize, (name, times): (&str, &Series), (beside, reference): (&str, &Series)) -> Line {
    let (rate, unit): (fn(usize, f64) -> f64, Unit) =
        if size > 4 << 10 { (|size, ns| size as f64 / ns, Unit::GBs) } else { (|_, ns| 1e9 / ns, Unit::PerSecond) };
    let rates = |series: &Series| series.values.iter().map(|&ns| rate(size, ns)).collect::<Vec<f64>>();
    Line::new("client", what)
        .figure(Quantity::of(name, &rates(times), unit))
        .floors(&times.floors)
        .against(Quantity::of(beside, &rates(reference), unit), &reference.over(times))
        .note(times.distances())
}
