//! Many at once: more processes than CPUs, and many peers that are silent.

use super::{call, once};
use crate::Options;
use crate::bench::{Bench, Contestant};
use crate::pair::{Process, Program, Server, caller, timing};
use crate::place::Placement::{self, Free, One, Two};
use crate::report::{Bound, Line, Quantity, Unit};
use crate::stats::median;
use anyhow::{Result, bail};

const PAIRS: usize = 4;

/// Row g.
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
        let mut contestants: Vec<Contestant<'_>> = vec![
            Box::new(|turn| together(&motet, Free, turn)),
            Box::new(|turn| together(&plain, Free, turn)),
            Box::new(|turn| together(&plain, One, turn)),
        ];
        let series = bench.contest(bench.repetitions * 3 / 2, false, &mut contestants)?;
        let [motet, free, one] = &series[..] else { unreachable!() };
        let (tcp, place) = if median(&free.values) >= median(&one.values) {
            (free, "as scheduled")
        } else {
            (one, "each pair on one CPU")
        };
        lines.push(
            Line::new("g", format!("four pairs on two CPUs, {name}, all together"))
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

/// Row j.
pub fn idle_peers(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    const PEERS: usize = 256;
    let program = bench.program("crowd")?.with_env(&bench.sockets()?);
    let arguments = call(bench, 64, &[]);
    let on = bench.cpus.of(Two, 0);
    // Two servers live through the whole row; the silent peers of one of them sleep in the kernel.
    let alone = Server::start(&program, &bench.cpus, on[0])?;
    let crowded = Server::start(&program, &bench.cpus, on[0])?;
    let mut silent = program.command(1, "idle");
    silent.args(["127.0.0.1", &crowded.port, &PEERS.to_string()]);
    let mut silent = Process::start(silent, &bench.cpus, on[1])?;
    if silent.line()? != "idle" {
        bail!("the silent peers did not come up");
    }
    let active = |server: &Server| -> Result<f64> {
        Ok(timing(caller(&program, &server.port, &arguments, &bench.cpus, on[1])?)?.median)
    };
    let plain = bench.program("pingpong")?;
    let mut contestants: Vec<Contestant<'_>> = vec![
        Box::new(|_| active(&crowded)),
        Box::new(|_| active(&alone)),
        Box::new(|turn| once(bench, &plain, One, turn, &arguments)),
    ];
    let series = bench.contest(bench.repetitions, false, &mut contestants)?;
    let [crowd, single, tcp] = &series[..] else { unreachable!() };
    Ok(vec![
        Line::new("j", "epoll server, one active peer beside 256 idle ones, 64 B")
            .figure(Quantity::of("one way", &crowd.values, Unit::Ns))
            .floors(&crowd.floors)
            .against(Quantity::of("without the idle ones", &single.values, Unit::Ns), &crowd.over(single))
            .nearly(Bound::AtMost(1.2))
            .note(format!("a blocking ping-pong without Motet takes {:.0} ns one way on one CPU", median(&tcp.values))),
    ])
}
