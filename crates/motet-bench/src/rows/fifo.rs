//! FIFOs without the engine: the lowest cost of a message between two processes.

use crate::Options;
use crate::bench::{Bench, Measurement, Series};
use crate::measure::{call, once};
use crate::place::Placement::Two;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::Result;

/// Row `fifo`.
pub fn fifo(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let (ping, rate) = (bench.worker(&["fifo", "ping"]), bench.worker(&["fifo", "rate"]));
    let arguments = [8, 56, 1024].map(|size| call(bench, size, &[]));
    let mut measurements: Vec<Measurement<'_>> = vec![
        Box::new(|turn| once(bench, &ping, Two, turn, &arguments[0])),
        Box::new(|turn| once(bench, &rate, Two, turn, &arguments[0])),
        Box::new(|turn| once(bench, &ping, Two, turn, &arguments[1])),
        Box::new(|turn| once(bench, &ping, Two, turn, &arguments[2])),
        Box::new(|turn| once(bench, &rate, Two, turn, &arguments[2])),
    ];
    let series = bench.compare(bench.repetitions, true, &mut measurements)?;
    drop(measurements);
    let [ping, rate, full, long, long_rate] = &series[..] else { unreachable!() };
    Ok(vec![
        latency_line(ping, "FIFO, 8 B one way, two processes").bound(Bound::AtMost(1.5)),
        rate_line(rate, "messages of 8 B one way").bound(Bound::AtLeast(25e6)),
        latency_line(full, "FIFO, 56 B one way: a full cell"),
        latency_line(long, "FIFO, 1 KiB one way: 19 cells"),
        rate_line(long_rate, "messages of 1 KiB one way"),
    ])
}

/// A line with one way over the floor, from the repetitions in one mode of the floor.
fn latency_line(series: &Series, what: &str) -> Line {
    let (one_mode, remark) = series.one_mode();
    Line::new("fifo", what)
        .figure(Quantity::of("one way", &one_mode.values, Unit::Ns))
        .floors(&one_mode.floors)
        .against(Quantity::of("floor", &one_mode.steady_floors(), Unit::Ns), &one_mode.over_floor())
        .note(remark)
}

/// A line with messages a second.
fn rate_line(series: &Series, what: &str) -> Line {
    let (one_mode, remark) = series.one_mode();
    let rates: Vec<f64> = one_mode.values.iter().map(|ns| 1e9 / ns).collect();
    Line::new("fifo", what).figure(Quantity::of("rate", &rates, Unit::PerSecond)).floors(&one_mode.floors).note(remark)
}
