//! Waits of the interface, beside waits through a thread that dispatches completions.

use super::node;
use crate::bench::{Bench, Measurement};
use crate::pair::{Server, caller, timing};
use crate::place::Placement::Two;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::Result;

const WHAT: [(&str, &str); 3] =
    [("one", "for one"), ("any", "for any of eight"), ("cq", "for a completion queue of eight")];
const WAYS: [&str; 2] = ["for", "dispatched"];

pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let mut measurements: Vec<Measurement<'_>> = Vec::new();
    for (word, _) in WHAT {
        for way in WAYS {
            measurements.push(Box::new(move |turn| {
                let on = bench.cpus.of(Two, turn);
                let how = "queue-many";
                let server = Server::start(&node(bench, how, &["ping"]), &bench.cpus, on[0])?;
                let program = node(bench, how, &[&format!("{way}-{word}")]);
                let arguments = ["8".to_owned(), bench.ms.to_string()];
                Ok(timing(caller(&program, &server.port, &arguments, &bench.cpus, on[1])?)?.median)
            }));
        }
    }
    let series = bench.compare(bench.repetitions, false, &mut measurements)?;
    let lines = WHAT.iter().zip(series.chunks(WAYS.len())).map(|((_, what), both)| {
        let [native, dispatched] = both else { unreachable!() };
        Line::new("waits", format!("8 B there and back, waits {what}"))
            .figure(Quantity::of("one way", &native.values, Unit::Ns))
            .floors(&native.floors)
            .against(
                Quantity::of("through a thread that dispatches", &dispatched.values, Unit::Ns),
                &native.over(dispatched),
            )
            .bound(Bound::AtMost(1.0))
    });
    Ok(lines.collect())
}
