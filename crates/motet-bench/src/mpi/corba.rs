//! Bodies there and back: as calls over the omniORB adapter, and as messages of an MPI on Motet.
//!
//! Both are measured in the same repetitions and by the same arithmetic: bytes of one way over half a round trip. Repetitions on near
//! CPUs and on far ones are separate. The call is `sequence<octet>` there and back (`tests/bench/corba.cc`), the messages are a
//! ping-pong (`tests/bench/mpi_messages.c`).

use super::libraries::Libraries;
use crate::bench::{Bench, Measurement, Series};
use crate::corba::transports::{Ends, OrbProgram, Transport, Variant};
use crate::floor::Distance;
use crate::format::bytes;
use crate::messages::Part as Kind;
use crate::place::Placement::Two;
use crate::report::{Bound, Line, Quantity, Unit};
use crate::sandbox::Sandbox;
use anyhow::{Context, Result, bail};
use std::cell::RefCell;

const ROW: &str = "corba";
const SIZES: [usize; 3] = [64 << 10, 1 << 20, 16 << 20];
const PLACE: (Transport, crate::place::Placement) = (Transport::Corba, Two);

pub fn measure(bench: &Bench, libraries: &Libraries) -> Result<Vec<Line>> {
    let peers = libraries.peers();
    let ours: Vec<_> = peers.iter().filter(|peer| peer.ours).collect();
    if ours.is_empty() {
        bail!("skipped: there is no MPI on Motet");
    }
    let sandbox = Sandbox::new(bench)?;
    let pair = OrbProgram::of(&sandbox, None)?;
    let ends = Ends::open(&sandbox, &pair, Variant { transports: &[Transport::Corba], ..Variant::USUAL })?;
    if let Some(why) = ends.missing(Transport::Corba) {
        bail!("{why}");
    }
    let questions = SIZES.map(|size| format!("inout octet {size} {}", bench.ms * 4));
    let found: Vec<RefCell<Vec<Vec<f64>>>> = ours.iter().map(|_| RefCell::default()).collect();
    let mut others: Vec<Measurement<'_>> = Vec::new();
    for (peer, found) in ours.iter().zip(&found) {
        others.push(Box::new(move |turn| {
            let reported = peer.run(bench, Kind::Latency, &SIZES, Two, turn);
            let reported = reported.unwrap_or_else(|error| {
                eprintln!("{}: {error:#}", peer.name);
                vec![f64::NAN; SIZES.len()]
            });
            let first = reported[0];
            found.borrow_mut().push(reported);
            Ok(first)
        }));
    }
    let answers = ends.compare((bench.repetitions, false), vec![PLACE], &questions, others)?;
    let mut lines = Vec::new();
    for (at, &size) in SIZES.iter().enumerate() {
        let calls = &answers.of(PLACE, at).context("the calls failed")?.median;
        for (peer, found) in ours.iter().zip(&found) {
            let one_way: Vec<f64> = found.borrow().iter().map(|reported| reported[at]).collect();
            let apart = Distance::ALL.into_iter().filter_map(|distance| {
                let at = calls.within(distance)?;
                let one_way: Vec<f64> = at.iter().map(|&at| one_way[at]).collect();
                Some(beside(size, &calls.at(&at), peer.name, &one_way).within(distance))
            });
            let apart: Vec<Line> = apart.collect();
            let none = || {
                Line::not_measured(
                    ROW,
                    format!("{}, {}", peer.name, bytes(size)),
                    format!("too few repetitions at one distance of the CPUs: {}", calls.distances()),
                )
            };
            lines.extend(if apart.is_empty() { vec![none()] } else { apart });
        }
    }
    Ok(lines)
}

/// The line of calls there and back over messages there and back, from times in ns.
fn beside(size: usize, calls: &Series, name: &str, one_way: &[f64]) -> Line {
    let of_calls: Vec<f64> = calls.values.iter().map(|ns| 2.0 * size as f64 / ns).collect();
    let of_messages: Vec<f64> = one_way.iter().map(|ns| size as f64 / ns).collect();
    let ratios: Vec<f64> = of_calls.iter().zip(&of_messages).map(|(calls, messages)| calls / messages).collect();
    Line::new(
        ROW,
        format!("sequences of {} there and back, omniORB adapter, beside messages there and back", bytes(size)),
    )
    .figure(Quantity::of("calls", &of_calls, Unit::GBs))
    .floors(&calls.floors)
    .against(Quantity::of(name, &of_messages, Unit::GBs), &ratios)
    .bound(Bound::AtLeast(0.95))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;

    #[test]
    fn call_there_and_back_is_two_ways() {
        let calls = Series { values: vec![2000.0; 5], floors: Vec::new() };
        let line = beside(1000, &calls, "MPI", &[1000.0; 5]);
        assert_eq!(line.figure.unwrap().spread.median, 1.0);
        assert_eq!(line.ratio.unwrap().median, 1.0);
        assert_eq!(beside(1000, &calls, "MPI", &[900.0; 5]).verdict, Verdict::Missed);
        assert_eq!(beside(1000, &calls, "MPI", &[960.0; 5]).verdict, Verdict::Met);
        assert_eq!(beside(1000, &calls, "MPI", &[f64::NAN; 5]).ratio, None);
    }
}
