//! Bandwidth of each adapter over the size: MPI, CORBA and sockets of Java in one graph, as in figure 5 of the PadicoTM paper.
//!
//! MPI, CORBA and the sockets in C are of one process that has all three open; those in Java are of two virtual machines. Each point
//! is the bytes of one way over half a round trip.

use super::together::{Job, Ready, run};
use crate::bench::Bench;
use crate::jvm;
use crate::report::{Curve, Unit};
use crate::sandbox::{Mode, Ready as Server, SETUPS};
use crate::stats::Spread;
use anyhow::Result;

const ADAPTERS: [(&str, &str); 3] = [("m", "MPI (Open MPI 4)"), ("c", "CORBA (omniORB)"), ("s", "sockets (C)")];
const REPETITIONS: usize = 3;
const MS: f64 = 60.0;

/// The curve of each adapter, and of sockets in Java if Java is installed.
pub fn curves(bench: &Bench, ready: &Ready) -> Result<Vec<Curve>> {
    let step = if bench.quick { 4 } else { 2 };
    let sizes: Vec<usize> = (6..=24).step_by(step).map(|bits| 1 << bits).collect();
    let mut curves = Vec::new();
    for (used, name) in ADAPTERS {
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); sizes.len()];
        for _ in 0..REPETITIONS {
            let found = run(ready, Job { open: "mcs", used, on_motet: true }, MS, &sizes)?;
            for (times, size) in times.iter_mut().zip(&sizes) {
                times.extend(found.iter().filter(|reported| reported.size == *size).map(|reported| reported.median));
            }
        }
        curves.push(curve(name, &sizes, &times));
    }
    match java_sockets(bench, &sizes) {
        Ok(times) => curves.push(curve("sockets (Java)", &sizes, &times)),
        Err(why) => eprintln!("sockets in Java are not in the graph: {why:#}"),
    }
    Ok(curves)
}

/// Round trips over java.net, ns.
fn java_sockets(bench: &Bench, sizes: &[usize]) -> Result<Vec<Vec<f64>>> {
    let sandbox = jvm::compiled(bench)?;
    let server = sandbox.server(
        Mode::WithMotet,
        &jvm::command(&sandbox, &["PingPong", "serve", "net"]),
        Server::Says("port "),
    )?;
    let mut caller =
        sandbox.caller(SETUPS[0], &jvm::command(&sandbox, &["PingPong", "call", "net", &server.said("port")?]))?;
    let mut ask = |size: &usize| {
        caller.ask(&format!("{size} {} echo", jvm::WARM_UP_MS))?; // until the JIT compiler is done
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
