//! Eight processes on two CPUs that pass tokens round a ring, over nodes and over Unix sockets.

use super::numbers;
use crate::bench::{Bench, Measurement};
use crate::pair::Process;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result, bail};
use std::io::Write;

const PROCESSES: usize = 8;
const TOKEN_COUNTS: [(usize, &str); 2] = [(1, "one token"), (PROCESSES, "a token each")];

pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let folder = crate::cleanup::folder()?;
    let path = &folder.path().join("ring").to_string_lossy().into_owned();
    let mut measurements: Vec<Measurement<'_>> = Vec::new();
    for (tokens, _) in TOKEN_COUNTS {
        for how in ["queue-one", "unix"] {
            measurements.push(Box::new(move |turn| {
                let prefix = match how {
                    "unix" => format!("{path}-{tokens}-{turn}"),
                    _ => format!("ring-{}-{tokens}-{turn}", std::process::id()),
                };
                one(bench, how, &prefix, tokens)
            }));
        }
    }
    let series = bench.compare(bench.repetitions, false, &mut measurements)?;
    let lines = TOKEN_COUNTS.iter().zip(series.chunks(2)).map(|((_, what), both)| {
        let [node, unix] = both else { unreachable!() };
        Line::new("ring", format!("{PROCESSES} processes on two CPUs, {what} goes round, a message of 8 B"))
            .figure(Quantity::of("one way", &node.values, Unit::Ns))
            .floors(&node.floors)
            .against(Quantity::of("Unix sockets", &unix.values, Unit::Ns), &node.over(unix))
            .nearly(Bound::AtMost(1.0))
    });
    Ok(lines.collect())
}

/// The time between two messages of a ring, ns.
fn one(bench: &Bench, how: &str, prefix: &str, tokens: usize) -> Result<f64> {
    let mut ring = Vec::new();
    for at in 0..PROCESSES {
        let words = [at, PROCESSES, tokens, bench.ms * 2].map(|number| number.to_string());
        let mut all = vec!["node", how, "ring", prefix];
        all.extend(words.iter().map(String::as_str));
        let program = bench.worker(&all);
        let mut command = std::process::Command::new(&program.words[0]);
        command.args(&program.words[1..]).env_remove("LD_PRELOAD");
        ring.push(bench.cpus.on_pair(|| Process::start(command, &bench.cpus, None))?);
    }
    for process in &mut ring {
        if process.line()? != "joined" {
            bail!("a process of the ring did not join");
        }
    }
    for process in &mut ring {
        process.input.as_mut().context("the process has no input")?.write_all(b"\n")?;
    }
    let [_, mean, _] = numbers(&ring[0].line()?)?;
    for process in &mut ring {
        process.child.wait()?;
    }
    Ok(mean)
}
