//! The plots: latency and bandwidth over the size of a message.

use crate::bench::{Bench, Measurement, Series};
use crate::floor;
use crate::measure::{better, call, once, rate};
use crate::pair::Program;
use crate::place::Placement::{One, Two};
use crate::report::{Curve, Unit};
use crate::stats::Spread;
use anyhow::Result;
use std::time::Duration;

/// The curves of both plots. A measurement that cannot run has no curve; the reason goes to standard error.
pub fn curves(bench: &Bench) -> Vec<Curve> {
    let step = if bench.quick { 2 } else { 1 };
    let latency: Vec<usize> = (3..=16).step_by(step).chain((step > 1).then_some(16)).map(|bits| 1 << bits).collect();
    let bandwidth: Vec<usize> = (6..=26).step_by(2 * step).map(|bits| 1 << bits).collect();
    let mut curves = Vec::new();
    let mut add = |plot, sizes: &[usize]| match measure(bench, plot, sizes) {
        Ok(found) => curves.extend(found),
        Err(error) => eprintln!("no curve of {plot}: {error:#}"),
    };
    add("latency", &latency);
    add("bandwidth", &bandwidth);
    curves
}

/// Names of the lines, in the order in which they are measured.
const FLOOR_NAMES: [&str; 2] = ["floor: one cache line to the other CPU", "copy by one core, reused buffers"];
const LINE_NAMES: [&str; 3] =
    ["engine stream, shared memory", "C sockets under Motet", "C sockets without Motet (better placement)"];

fn measure(bench: &Bench, plot: &'static str, sizes: &[usize]) -> Result<Vec<Curve>> {
    let latency = plot == "latency";
    let (worker, program) = if latency { ("ping", "pingpong") } else { ("stream", "stream") };
    let engine = bench.worker(&[worker, "engine"]);
    let plain = bench.program(program)?;
    let sockets = bench.sockets().map(|env| plain.clone().with_env(&env));
    if let Err(error) = &sockets {
        eprintln!("{plot}: no line of C sockets under Motet: {error:#}");
    }
    let unit = if latency { Unit::Ns } else { Unit::GBs };
    let curve = |name: &str| Curve { plot: plot.to_owned(), name: name.to_owned(), unit, points: Vec::new() };
    let mut curves: Vec<Curve> =
        [FLOOR_NAMES[usize::from(!latency)], LINE_NAMES[0], LINE_NAMES[1], LINE_NAMES[2]].map(curve).into();
    for &size in sizes {
        let arguments = call(bench, size, &[]);
        let run = |program: &Program, placement, turn| once(bench, program, placement, turn, &arguments);
        let time = Duration::from_millis(bench.ms as u64 / 2);
        let mut measurements: Vec<Measurement<'_>> = vec![
            Box::new(|turn| run(&engine, Two, turn)),
            Box::new(|turn| run(&plain, One, turn)),
            Box::new(|turn| run(&plain, Two, turn)),
        ];
        if !latency {
            measurements.push(Box::new(|turn| Ok(floor::copy(bench.cpus.pair[turn % 2], size, 1, time) * 1e9)));
        }
        if let Ok(sockets) = &sockets {
            measurements.push(Box::new(|turn| run(sockets, Two, turn)));
        }
        let series = bench.compare(5, false, &mut measurements)?;
        let shown = |series: &Series| {
            let values: Vec<f64> = series.values.iter().map(|ns| if latency { *ns } else { rate(size)(ns) }).collect();
            Spread::of(&values).map(|spread| (size, spread))
        };
        if latency {
            let floors: Vec<f64> = series.iter().flat_map(|s| s.floors.iter().map(|f| f.before)).collect();
            curves[0].points.extend(Spread::of(&floors).map(|spread| (size, spread)));
        } else {
            curves[0].points.extend(shown(&series[3]));
        }
        curves[1].points.extend(shown(&series[0]));
        if sockets.is_ok() {
            curves[2].points.extend(series.last().and_then(shown));
        }
        curves[3].points.extend(shown(better(&series[1], &series[2]).0));
    }
    curves.retain(|curve| !curve.points.is_empty());
    Ok(curves)
}
