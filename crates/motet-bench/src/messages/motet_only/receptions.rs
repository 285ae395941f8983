//! Compares the threads that can receive at a server: the time of an answer, and the CPU time of the server while nothing arrives.

use super::node;
use crate::bench::{Bench, Measurement};
use crate::measure::cpu_time;
use crate::pair::{Server, caller, timing};
use crate::place::Placement::Two;
use crate::report::{Line, Quantity, Unit};
use crate::stats::Spread;
use anyhow::Result;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// The kind of the server's node, the word of the worker, and a text.
const METHODS: [(&str, &str, &str); 3] = [
    ("handler-many-sleep", "sleeping-thread", "a thread of its own that sleeps"),
    ("handler-one", "caller", "the caller polls"),
    ("handler-many", "polling-thread", "one thread that polls"),
];

pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let idle: [RefCell<Vec<f64>>; 3] = Default::default();
    let mut measurements: Vec<Measurement<'_>> = Vec::new();
    for ((how, method, _), idle) in METHODS.into_iter().zip(&idle) {
        measurements.push(Box::new(move |turn| {
            let on = bench.cpus.of(Two, turn);
            let server = Server::start(&node(bench, how, &["receive", method]), &bench.cpus, on[0])?;
            idle.borrow_mut().push(idle_cpu_percent(server.process.child.id())?);
            let program = node(bench, "queue-one", &["ping"]);
            let arguments = ["8".to_owned(), bench.ms.to_string()];
            Ok(timing(caller(&program, &server.port, &arguments, &bench.cpus, on[1])?)?.median)
        }));
    }
    let series = bench.compare(bench.repetitions, false, &mut measurements)?;
    drop(measurements);
    let mut lines = Vec::new();
    for (((_, _, what), series), idle) in METHODS.into_iter().zip(&series).zip(idle) {
        let line = Line::new("receptions", format!("8 B answered by a handler: {what}"))
            .figure(Quantity::of("one way", &series.values, Unit::Ns))
            .floors(&series.floors)
            .against(Quantity::of("floor", &series.steady_floors(), Unit::Ns), &series.over_floor());
        let idle = Spread::of(&idle.into_inner()).map_or(0.0, |spread| spread.median);
        lines.push(line.note(format!("while nothing arrives the server takes {idle:.1} % of a CPU")));
    }
    Ok(lines)
}

/// CPU time of a process while nothing arrives, per cent.
fn idle_cpu_percent(pid: u32) -> Result<f64> {
    std::thread::sleep(Duration::from_millis(20));
    let (before, begun) = (cpu_time(pid)?.0, Instant::now());
    std::thread::sleep(Duration::from_millis(60));
    Ok((cpu_time(pid)?.0 - before) as f64 / begun.elapsed().as_nanos() as f64 * 100.0)
}
