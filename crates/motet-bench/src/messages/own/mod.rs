//! What is measured of our nodes alone, beside something else that the machine offers: each module is a part or a piece of one.

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

/// What a part has beyond contenders, or instead of them.
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

/// A worker of nodes.
fn node(bench: &Bench, how: &str, what: &[&str]) -> Program {
    bench.worker(&[&["node", how], what].concat())
}

/// The numbers of a line.
fn numbers<const N: usize>(line: &str) -> Result<[f64; N]> {
    let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().map_err(|_| anyhow!("a measuring program said `{line}`"))
}

/// What a caller of a server of its own says, each on a CPU.
fn said<const N: usize>(bench: &Bench, program: &Program, turn: usize, arguments: &[usize]) -> Result<[f64; N]> {
    let on = bench.cpus.of(Two, turn);
    let server = Server::start(program, &bench.cpus, on[0])?;
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    let mut caller = caller(program, &server.port, &arguments, &bench.cpus, on[1])?;
    numbers(&caller.line()?)
}

/// The values of one of several contestants, with the floors around it.
fn with_floors(values: Vec<f64>, of: &Series) -> Series {
    Series { values, floors: of.floors.clone() }
}

/// Tells a process something, and waits until it has done it.
fn order(process: &mut crate::pair::Process, words: &str) -> Result<()> {
    begin(process, words)?;
    done(process, words)
}

fn begin(process: &mut crate::pair::Process, words: &str) -> Result<()> {
    use std::io::Write;
    let input = process.input.as_mut().context("a process without input")?;
    Ok(writeln!(input, "{words}")?)
}

fn done(process: &mut crate::pair::Process, words: &str) -> Result<()> {
    let said = process.line()?;
    if said != "done" { Err(anyhow!("asked for `{words}`, a process said `{said}`")) } else { Ok(()) }
}
