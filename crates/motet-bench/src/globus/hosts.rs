//! Two test hosts: server to server, over the driver and over TCP. No files: the hosts' memory is one machine's.

use super::site::{Programs, Way};
use crate::bench::{Bench, Measurement};
use crate::hosts::Hosts;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

/// The least rate of the driver over TCP's.
const LEAST_OF_TCP: f64 = 0.98;
/// How long a server may take to listen.
const LIMIT: Duration = Duration::from_secs(20);

/// Part `hosts`.
pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let programs = Programs::find(bench)?;
    let hosts = Hosts::up()?;
    let ends = Hosts::NAMES.map(|name| hosts.on(name));
    let bytes: u64 = if bench.quick { 256 << 20 } else { 1 << 30 };
    let ways = [Way::Driver, Way::Tcp];
    let mut servers = Vec::new();
    for way in ways {
        servers.push([programs.serve(way, &ends[0], false)?, programs.serve(way, &ends[1], false)?]);
    }
    // The client is on the sender's host, and the receiver listens.
    let copy = |way: usize, bytes: u64| {
        let [from, to] = [
            format!("127.0.0.1:{}/dev/zero", servers[way][1].1),
            format!("{}:{}/dev/null", hosts.address(), servers[way][0].1),
        ];
        let words = ["-len", &bytes.to_string(), &format!("ftp://{from}"), &format!("ftp://{to}")];
        programs.copy(Way::Tcp, &ends[1], &words, bytes)
    };
    for way in 0..ways.len() {
        let began = Instant::now();
        while let Err(error) = copy(way, 1 << 20) {
            if began.elapsed() > LIMIT {
                return Err(error).context("the servers on test hosts do not answer");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let mut measurements: Vec<Measurement<'_>> = Vec::new();
    for way in 0..ways.len() {
        measurements.push(Box::new(move |_| copy(way, bytes)));
    }
    let series = bench.compare(bench.of_programs, false, &mut measurements)?;
    let quantity = |name: &str, at: usize| Quantity::of(name, &series[at].values, Unit::GBs);
    let what = format!("{} MiB from server to server, between test hosts", bytes >> 20);
    Ok(vec![
        Line::new("hosts", what)
            .figure(quantity("driver", 0))
            .floors(&series[0].floors)
            .against(quantity("TCP", 1), &series[0].over(&series[1]))
            .bound(Bound::AtLeast(LEAST_OF_TCP)),
    ])
}
