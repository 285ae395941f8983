//! Bandwidth of each adapter over the size, under Motet: MPI, CORBA and Java's sockets on one graph, as PadicoTM's paper has it (figure 5).
//!
//! MPI, CORBA and the sockets of C are those of one process that has all three open; Java's belong to two virtual machines. Each point
//! is the bytes of one way over half of a round trip.

use super::together::{Job, Ready, run};
use crate::bench::Bench;
use crate::report::{Curve, Unit};
use crate::rows::programs::java;
use crate::stage::{Mode, Ready as Server, WAYS};
use crate::stats::Spread;
use anyhow::Result;

const ADAPTERS: [(&str, &str); 3] = [("m", "MPI (Open MPI 4)"), ("c", "CORBA (omniORB)"), ("s", "sockets (C)")];
const REPETITIONS: usize = 3;
const MS: f64 = 60.0;

/// Of each adapter, and of Java where there is one.
pub fn curves(bench: &Bench, ready: &Ready) -> Result<Vec<Curve>> {
    let step = if bench.quick { 4 } else { 2 };
    let sizes: Vec<usize> = (6..=24).step_by(step).map(|bits| 1 << bits).collect();
    let mut curves = Vec::new();
    for (used, name) in ADAPTERS {
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); sizes.len()];
        for _ in 0..REPETITIONS {
            let found = run(ready, Job { open: "mcs", used, ours: true }, MS, &sizes)?;
            for (times, size) in times.iter_mut().zip(&sizes) {
                times.extend(found.iter().filter(|told| told.size == *size).map(|told| told.median));
            }
        }
        curves.push(curve(name, &sizes, &times));
    }
    match java_sockets(bench, &sizes) {
        Ok(times) => curves.push(curve("sockets (Java)", &sizes, &times)),
        Err(why) => eprintln!("sockets of Java are not on the graph: {why:#}"),
    }
    Ok(curves)
}

/// Round trips over java.net, ns.
fn java_sockets(bench: &Bench, sizes: &[usize]) -> Result<Vec<Vec<f64>>> {
    let stage = java::compiled(bench)?;
    let server =
        stage.server(Mode::Motet, &java::java(&stage, &["PingPong", "serve", "net"]), Server::Says("port "))?;
    let mut caller = stage.caller(WAYS[0], &java::java(&stage, &["PingPong", "call", "net", &server.said("port")?]))?;
    let mut ask = |size: &usize| {
        caller.ask(&format!("{size} {} echo", java::COMPILED))?; // its compiler is done then
        (0..REPETITIONS).map(|_| Ok(caller.ask(&format!("{size} {MS} echo"))?.median)).collect()
    };
    sizes.iter().map(&mut ask).collect()
}

fn curve(name: &str, sizes: &[usize], times: &[Vec<f64>]) -> Curve {
    let rate = |(&size, times): (&usize, &Vec<f64>)| {
        let rates: Vec<f64> = times.iter().map(|ns| 2.0 * size as f64 / ns).collect();
        Some((size, Spread::of(&rates)?))
    };
    let points = sizes.iter().zip(times).filter_map(rate).collect();
    Curve { plot: "adapters-bandwidth".to_owned(), name: name.to_owned(), unit: Unit::GBs, points }
}
