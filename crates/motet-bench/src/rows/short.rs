//! Short connections: the cost of Motet for connections that end before they are upgraded.

use crate::Options;
use crate::bench::Bench;
use crate::measure::{call, nearly_equal};
use crate::place::Placement::{One, Two};
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::Result;

/// Row `short`.
pub fn short(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let plain = bench.program("connect")?;
    let motet = plain.clone().with_env(&bench.sockets()?);
    let mut lines = Vec::new();
    for (messages, name, bound) in
        [(1, "connect, one message, close", Some(1.15)), (10, "connect, 10 messages, close", None)]
    {
        for (placement, place) in [(One, "one CPU"), (Two, "two CPUs")] {
            let arguments = call(bench, messages, &[]);
            let [motet, plain] = nearly_equal(bench, (&motet, &plain), placement, &arguments)?;
            let line = Line::new("short", format!("{name}, {place}"))
                .figure(Quantity::of("under Motet", &motet.values, Unit::Ns))
                .floors(&motet.floors)
                .against(Quantity::of("without Motet", &plain.values, Unit::Ns), &motet.over(&plain));
            lines.push(match bound {
                Some(most) => line.bound(Bound::AtMost(most)),
                None => line,
            });
        }
    }
    Ok(lines)
}
