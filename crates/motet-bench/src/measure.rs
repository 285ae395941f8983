//! What rows and tools share: one call of a program, two nearly equal programs in turn, and the choice of what counts.

use crate::bench::{Bench, Measurement, Series};
use crate::pair::{Program, measure};
use crate::place::Placement;
use crate::stats::{Spread, median};
use anyhow::{Context, Result};

/// Runs both ends of `program` once in this placement. Returns the median time of one operation, ns.
pub fn once(bench: &Bench, program: &Program, placement: Placement, turn: usize, arguments: &[String]) -> Result<f64> {
    Ok(measure(program, arguments, &bench.cpus, bench.cpus.of(placement, turn))?.median)
}

/// Compares `motet` with `plain`, which are nearly equal: more repetitions, and the order changes from one to the next.
pub fn nearly_equal(
    bench: &Bench,
    (motet, plain): (&Program, &Program),
    placement: Placement,
    arguments: &[String],
) -> Result<[Series; 2]> {
    let both = |turn: usize, first: bool| {
        let program = if (turn & 1 == 0) == first { motet } else { plain };
        once(bench, program, placement, turn / 2, arguments)
    };
    let mut measurements: Vec<Measurement<'_>> =
        vec![Box::new(|turn| both(turn, true)), Box::new(|turn| both(turn, false))];
    let mut series = bench.compare(bench.repetitions * 2, false, &mut measurements)?;
    let [motet, plain] = &mut series[..] else { unreachable!() };
    for turn in (1..motet.values.len()).step_by(2) {
        std::mem::swap(&mut motet.values[turn], &mut plain.values[turn]);
        std::mem::swap(&mut motet.floors[turn], &mut plain.floors[turn]);
    }
    Ok([std::mem::take(motet), std::mem::take(plain)])
}

/// Runs [`once`] on two CPUs, for streams of the engine. Adds to `shared` the part of the payload that shared memory carried.
pub fn engine_once(
    bench: &Bench,
    program: &Program,
    turn: usize,
    arguments: &[String],
    shared: &mut Vec<f64>,
) -> Result<f64> {
    let timing = measure(program, arguments, &bench.cpus, bench.cpus.of(Placement::Two, turn))?;
    shared.extend(timing.shared);
    Ok(timing.median)
}

/// A note on how much of the payload shared memory carried. The engine decides that, and the figure depends on it.
pub fn shared_memory_remark(shared: &[f64]) -> String {
    let percent = Spread::of(shared).map(|s| s.over(0.01));
    percent.map_or(String::new(), |s| {
        format!("through shared memory: {:.0} % of the payload [{:.0} .. {:.0}]", s.median, s.min, s.max)
    })
}

/// The arguments of a caller: size, milliseconds, and more.
pub fn call(bench: &Bench, size: usize, more: &[usize]) -> Vec<String> {
    [size, bench.ms].iter().chain(more).map(ToString::to_string).collect()
}

/// The bandwidth in GB/s, from the time of one message in ns.
pub fn rate(size: usize) -> impl Fn(&f64) -> f64 {
    move |ns| size as f64 / ns
}

/// The bandwidths of a series of times.
pub fn rates(series: &Series, size: usize) -> Series {
    Series { values: series.values.iter().map(rate(size)).collect(), floors: series.floors.clone() }
}

/// The repetitions that count in a ratio to TCP: those with a fast floor, with Motet and on TCP. If there are fewer than `enough`
/// (five at most), all are returned, and `false`.
pub fn counted(enough: usize, motet: &Series, tcp: &Series) -> (Series, Series, bool) {
    let fast = motet.fast();
    if fast.len() >= enough.min(5) {
        (motet.at(&fast), tcp.at(&fast), true)
    } else {
        (motet.clone(), tcp.clone(), false)
    }
}

/// The faster of two placements of TCP, and its name.
pub fn better<'a>(one: &'a Series, two: &'a Series) -> (&'a Series, &'static str) {
    if median(&one.values) <= median(&two.values) { (one, "one CPU") } else { (two, "two CPUs") }
}

/// CPU time of a process: ns by the scheduler's clock, and ticks of user and system time.
pub fn cpu_time(pid: u32) -> Result<(u64, u64)> {
    let mut ns = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        ns += text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).context("schedstat")?;
    }
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<u64> = after_name.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
    Ok((ns, fields.get(11).zip(fields.get(12)).map_or(0, |(user, system)| user + system)))
}
