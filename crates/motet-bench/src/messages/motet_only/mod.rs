//! Measurements of Motet only, beside something else that the machine offers. Each module is a part, or a piece of one.

mod clients;
mod idle;
mod layers;
mod memory;
mod receptions;
mod ring;
mod tcp;
mod waits;

use super::Part;
use crate::bench::{Bench, Series};
use crate::pair::{Program, Server, caller};
use crate::place::Placement::Two;
use crate::report::Line;
use anyhow::{Context, Result, anyhow};

/// How a part is measured.
type Measure = fn(&Bench) -> Result<Vec<Line>>;

/// The measurement of Motet only that a part has, if any.
pub fn of(part: Part) -> Option<Measure> {
    Some(match part {
        Part::Layers => layers::measure,
        Part::Waits => waits::measure,
        Part::Receptions => receptions::measure,
        Part::Server => clients::measure,
        Part::Tcp => tcp::measure,
        Part::Idle => idle::measure,
        Part::Ring => ring::measure,
        Part::Memory => memory::measure,
        Part::Latency | Part::Rate | Part::Bandwidth | Part::Stream | Part::Cold => return None,
    })
}

/// A worker with nodes.
fn node(bench: &Bench, how: &str, what: &[&str]) -> Program {
    bench.worker(&[&["node", how], what].concat())
}

/// The numbers in a line.
fn numbers<const N: usize>(line: &str) -> Result<[f64; N]> {
    let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().map_err(|_| anyhow!("a measuring program printed `{line}`"))
}

/// Runs a server and a caller, each on its own CPU. Returns the numbers that the caller printed.
fn printed_numbers<const N: usize>(
    bench: &Bench,
    program: &Program,
    turn: usize,
    arguments: &[usize],
) -> Result<[f64; N]> {
    let on = bench.cpus.of(Two, turn);
    let server = Server::start(program, &bench.cpus, on[0])?;
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let mut caller = caller(program, &server.port, &arguments, &bench.cpus, on[1])?;
    numbers(&caller.line()?)
}

/// Values with the floors of a measurement that was made at the same time.
fn with_floors(values: Vec<f64>, of: &Series) -> Series {
    Series { values, floors: of.floors.clone() }
}

/// Sends a command to a process, and waits until it is done.
fn run_command(process: &mut crate::pair::Process, words: &str) -> Result<()> {
    send_command(process, words)?;
    wait_done(process, words)
}

fn send_command(process: &mut crate::pair::Process, words: &str) -> Result<()> {
    use std::io::Write;
    let input = process.input.as_mut().context("the process has no input")?;
    Ok(writeln!(input, "{words}")?)
}

fn wait_done(process: &mut crate::pair::Process, words: &str) -> Result<()> {
    let said = process.line()?;
    if said != "done" { Err(anyhow!("a process answered `{said}` to `{words}`")) } else { Ok(()) }
}
