//! An epoll server with many silent peers and an active one.

use crate::Options;
use crate::bench::{Bench, Measurement};
use crate::measure::{call, once};
use crate::pair::{Process, Server, caller, timing};
use crate::place::Placement::{One, Two};
use crate::report::{Bound, Line, Quantity, Unit};
use crate::stats::median;
use anyhow::{Result, bail};

/// Row `many-peers`.
pub fn idle_peers(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    const PEERS: usize = 256;
    let program = bench.program("many_peers")?.with_env(&bench.sockets()?);
    let arguments = call(bench, 64, &[]);
    let on = bench.cpus.of(Two, 0);
    // Two servers run during the whole row. The silent peers of one of them sleep in the kernel.
    let alone = Server::start(&program, &bench.cpus, on[0])?;
    let busy = Server::start(&program, &bench.cpus, on[0])?;
    let mut silent = program.command(1, "idle");
    silent.args(["127.0.0.1", &busy.port, &PEERS.to_string()]);
    let mut silent = Process::start(silent, &bench.cpus, on[1])?;
    if silent.line()? != "idle" {
        bail!("the silent peers did not get ready");
    }
    let active = |server: &Server| -> Result<f64> {
        Ok(timing(caller(&program, &server.port, &arguments, &bench.cpus, on[1])?)?.median)
    };
    let plain = bench.program("pingpong")?;
    let mut measurements: Vec<Measurement<'_>> = vec![
        Box::new(|_| active(&busy)),
        Box::new(|_| active(&alone)),
        Box::new(|turn| once(bench, &plain, One, turn, &arguments)),
    ];
    let series = bench.compare(bench.repetitions, false, &mut measurements)?;
    let [crowded, single, tcp] = &series[..] else { unreachable!() };
    Ok(vec![
        Line::new("many-peers", "epoll server, one active peer beside 256 idle ones, 64 B")
            .figure(Quantity::of("one way", &crowded.values, Unit::Ns))
            .floors(&crowded.floors)
            .against(Quantity::of("without the idle ones", &single.values, Unit::Ns), &crowded.over(single))
            .nearly(Bound::AtMost(1.2))
            .note(format!("a blocking ping-pong without Motet takes {:.0} ns one way on one CPU", median(&tcp.values))),
    ])
}
