//! A round trip by a startpoint in the request, beside omniORB's empty call on Motet.

use super::pair::{ONE_PACKET, Pair};
use super::ratio_line;
use crate::bench::{Bench, Measurement};
use crate::corba::transports::{Ends, OrbProgram, Transport, Variant};
use crate::place::Placement::Two;
use crate::report::{Bound, Line, Quantity, Unit};
use crate::sandbox::Sandbox;
use anyhow::{Context, Result};

/// Part `call`.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let pair = Pair::start(bench, "caller", ONE_PACKET)?;
    match beside_orb(bench, &pair) {
        Ok(line) => Ok(vec![line]),
        Err(error) => {
            let mut own: Vec<Measurement<'_>> = vec![Box::new(|_| pair.ask(&format!("call 0 {}", bench.ms)))];
            let series = bench.compare(bench.repetitions, false, &mut own)?;
            let line = Line::new("call", "round trip by a startpoint in the request");
            let line = line.figure(Quantity::of("call", &series[0].values, Unit::Ns)).floors(&series[0].floors);
            Ok(vec![line.note(format!("omniORB: {error:#}"))])
        }
    }
}

fn beside_orb(bench: &Bench, pair: &Pair) -> Result<Line> {
    let sandbox = Sandbox::new(bench)?;
    let program = OrbProgram::of(&sandbox, None)?;
    let ends = Ends::open(&sandbox, &program, Variant::USUAL)?;
    let place = (Transport::Corba, Two);
    if let Some(why) = ends.missing(Transport::Corba) {
        anyhow::bail!("{why}");
    }
    let question = format!("null - 0 {}", bench.ms);
    let own: Measurement<'_> = Box::new(|_| pair.ask(&format!("call 0 {}", bench.ms)));
    let found = ends.compare((bench.repetitions, false), vec![place], &[question], vec![own])?;
    let orb = &found.of(place, 0).context("omniORB answered nothing")?.median;
    Ok(ratio_line(
        "round trip by a startpoint in the request",
        "call",
        ("call", &found.others[0]),
        ("omniORB's empty call on Motet", orb),
        Some(Bound::AtMost(0.8)),
    ))
}
