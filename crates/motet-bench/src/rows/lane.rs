//! Lanes alone, without the engine: what the messages of two processes cost at the bottom.

use super::{call, once};
use crate::Options;
use crate::bench::{Bench, Contestant, Series};
use crate::place::Placement::Two;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::Result;

/// Row lane.
pub fn lane(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let (ping, rate) = (bench.worker(&["lane", "ping"]), bench.worker(&["lane", "rate"]));
    let arguments = [8, 56, 1024].map(|size| call(bench, size, &[]));
    let mut contestants: Vec<Contestant<'_>> = vec![
        Box::new(|turn| once(bench, &ping, Two, turn, &arguments[0])),
        Box::new(|turn| once(bench, &rate, Two, turn, &arguments[0])),
        Box::new(|turn| once(bench, &ping, Two, turn, &arguments[1])),
        Box::new(|turn| once(bench, &ping, Two, turn, &arguments[2])),
        Box::new(|turn| once(bench, &rate, Two, turn, &arguments[2])),
    ];
    let series = bench.contest(bench.repetitions, true, &mut contestants)?;
    drop(contestants);
    let [ping, rate, full, long, long_rate] = &series[..] else { unreachable!() };
    Ok(vec![
        latency(ping, "lane, 8 B one way, two processes").bound(Bound::AtMost(1.5)),
        a_second(rate, "messages of 8 B one way").bound(Bound::AtLeast(25e6)),
        latency(full, "lane, 56 B one way: a full line"),
        latency(long, "lane, 1 KiB one way: 19 lines"),
        a_second(long_rate, "messages of 1 KiB one way"),
    ])
}

/// One way over the floor, of the repetitions in one mode of it.
fn latency(series: &Series, what: &str) -> Line {
    let (one_mode, remark) = series.one_mode();
    Line::new("lane", what)
        .figure(Quantity::of("one way", &one_mode.values, Unit::Ns))
        .floors(&one_mode.floors)
        .against(Quantity::of("floor", &one_mode.steady_floors(), Unit::Ns), &one_mode.over_floor())
        .note(remark)
}

/// How many go through in a second.
fn a_second(series: &Series, what: &str) -> Line {
    let (one_mode, remark) = series.one_mode();
    let rates: Vec<f64> = one_mode.values.iter().map(|ns| 1e9 / ns).collect();
    Line::new("lane", what).figure(Quantity::of("rate", &rates, Unit::PerSecond)).floors(&one_mode.floors).note(remark)
}
