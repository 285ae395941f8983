//! Short connections: what being equipped costs those that end before anything is gained.

use super::{call, once};
use crate::Options;
use crate::bench::{Bench, Contestant};
use crate::place::Placement::{One, Two};
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::Result;

/// Row short.
pub fn short(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let plain = bench.program("connect")?;
    let motet = plain.clone().with_env(&bench.sockets()?);
    let mut lines = Vec::new();
    for (messages, name, bound) in
        [(1, "connect, one message, close", Some(1.15)), (10, "connect, 10 messages, close", None)]
    {
        for (placement, place) in [(One, "one CPU"), (Two, "two CPUs")] {
            let arguments = call(bench, messages, &[]);
            // Near equality: more repetitions, and plain and equipped change places in every second one.
            let both = |turn: usize, first: bool| {
                let program = if (turn & 1 == 0) == first { &motet } else { &plain };
                once(bench, program, placement, turn / 2, &arguments)
            };
            let mut contestants: Vec<Contestant<'_>> =
                vec![Box::new(|turn| both(turn, true)), Box::new(|turn| both(turn, false))];
            let mut series = bench.contest(bench.repetitions * 2, false, &mut contestants)?;
            let [motet, plain] = &mut series[..] else { unreachable!() };
            for turn in (1..motet.values.len()).step_by(2) {
                std::mem::swap(&mut motet.values[turn], &mut plain.values[turn]);
                std::mem::swap(&mut motet.floors[turn], &mut plain.floors[turn]);
            }
            let line = Line::new("short", format!("{name}, {place}"))
                .figure(Quantity::of("under Motet", &motet.values, Unit::Ns))
                .floors(&motet.floors)
                .against(Quantity::of("plain TCP", &plain.values, Unit::Ns), &motet.over(plain));
            lines.push(match bound {
                Some(most) => line.bound(Bound::AtMost(most)),
                None => line,
            });
        }
    }
    Ok(lines)
}
