//! Who receives at a server: what an answer takes, and what the server takes of a CPU while nothing comes.

use super::node;
use crate::bench::{Bench, Contestant};
use crate::pair::{Server, caller, timing};
use crate::place::Placement::Two;
use crate::report::{Line, Quantity, Unit};
use crate::rows::idle::used;
use crate::stats::Spread;
use anyhow::Result;
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// How the server's node is meant to be used, the word of the worker, and what it is.
const METHODS: [(&str, &str, &str); 3] = [
    ("handler-many-sleep", "sleeping-thread", "a thread of its own that sleeps"),
    ("handler-one", "caller", "the caller polls"),
    ("handler-many", "polling-thread", "one thread that polls"),
];

pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let idle: [RefCell<Vec<f64>>; 3] = Default::default();
    let mut contestants: Vec<Contestant<'_>> = Vec::new();
    for ((how, method, _), idle) in METHODS.into_iter().zip(&idle) {
        contestants.push(Box::new(move |turn| {
            let on = bench.cpus.of(Two, turn);
            let server = Server::start(&node(bench, how, &["receive", method]), &bench.cpus, on[0])?;
            idle.borrow_mut().push(taken(server.process.child.id())?);
            let program = node(bench, "queue-one", &["ping"]);
            let arguments = ["8".to_owned(), bench.ms.to_string()];
            Ok(timing(caller(&program, &server.port, &arguments, &bench.cpus, on[1])?)?.median)
        }));
    }
    let series = bench.contest(bench.repetitions, false, &mut contestants)?;
    drop(contestants);
    let mut lines = Vec::new();
    for (((_, _, what), series), idle) in METHODS.into_iter().zip(&series).zip(idle) {
        let line = Line::new("receptions", format!("8 B answered by a handler: {what}"))
            .figure(Quantity::of("one way", &series.values, Unit::Ns))
            .floors(&series.floors)
            .against(Quantity::of("floor", &series.steady_floors(), Unit::Ns), &series.over_floor());
        let idle = Spread::of(&idle.into_inner()).map_or(0.0, |spread| spread.median);
        lines.push(line.note(format!("while nothing comes the server takes {idle:.1} % of a CPU")));
    }
    Ok(lines)
}

/// Processor time of a process over some time in which nothing comes, per cent.
fn taken(pid: u32) -> Result<f64> {
    std::thread::sleep(Duration::from_millis(20));
    let (before, begun) = (used(pid)?.0, Instant::now());
    std::thread::sleep(Duration::from_millis(60));
    Ok((used(pid)?.0 - before) as f64 / begun.elapsed().as_nanos() as f64 * 100.0)
}
