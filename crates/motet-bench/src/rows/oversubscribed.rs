//! More processes than CPUs: four pairs of a client and a server on two CPUs, all at once.

use crate::Options;
use crate::bench::{Bench, Measurement};
use crate::pair::{Program, Server, caller, timing};
use crate::place::Placement::{self, Free, One};
use crate::report::{Bound, Line, Quantity, Unit};
use crate::stats::median;
use anyhow::Result;

const PAIRS: usize = 4;

/// Row `oversubscribed`.
pub fn oversubscribed(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let env = bench.sockets()?;
    let mut lines = Vec::new();
    for (program, size, name, unit) in
        [("pingpong", 64, "64 B round trips", Unit::PerSecond), ("stream", 65536, "64 KiB writes", Unit::GBs)]
    {
        let plain = bench.program(program)?;
        let motet = plain.clone().with_env(&env);
        let together = |program: &Program, placement, turn| -> Result<f64> {
            let operations = pairs(bench, program, placement, turn, size)?;
            Ok(if unit == Unit::GBs { operations * size as f64 / 1e9 } else { operations / 2.0 })
        };
        let mut measurements: Vec<Measurement<'_>> = vec![
            Box::new(|turn| together(&motet, Free, turn)),
            Box::new(|turn| together(&plain, Free, turn)),
            Box::new(|turn| together(&plain, One, turn)),
        ];
        let series = bench.compare(bench.repetitions * 3 / 2, false, &mut measurements)?;
        let [motet, free, one] = &series[..] else { unreachable!() };
        let (tcp, place) = if median(&free.values) >= median(&one.values) {
            (free, "as scheduled")
        } else {
            (one, "each pair on one CPU")
        };
        lines.push(
            Line::new("oversubscribed", format!("four pairs on two CPUs, {name}, all together"))
                .figure(Quantity::of("under Motet, as scheduled", &motet.values, unit))
                .floors(&motet.floors)
                .against(Quantity::of(format!("without Motet, {place}"), &tcp.values, unit), &motet.over(tcp))
                .nearly(Bound::AtLeast(1.0)),
        );
    }
    Ok(lines)
}

/// Operations a second of all pairs, over the whole time.
fn pairs(bench: &Bench, program: &Program, placement: Placement, turn: usize, size: usize) -> Result<f64> {
    let arguments: Vec<String> = [size, bench.ms * 3].iter().map(ToString::to_string).collect();
    let on = |pair: usize| match placement {
        Free => [None; 2],
        _ => bench.cpus.of(placement, turn + pair),
    };
    let servers: Vec<Server> =
        (0..PAIRS).map(|pair| Server::start(program, &bench.cpus, on(pair)[0])).collect::<Result<_>>()?;
    let mut callers = Vec::new();
    for (pair, server) in servers.iter().enumerate() {
        callers.push(caller(program, &server.port, &arguments, &bench.cpus, on(pair)[1])?);
    }
    let mut operations = 0.0;
    for caller in callers {
        operations += 1e9 / timing(caller)?.mean;
    }
    Ok(operations)
}
