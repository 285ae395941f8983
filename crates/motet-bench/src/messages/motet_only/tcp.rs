//! Nodes of two hosts over TCP, beside plain TCP with the same kind of wait: asleep in the kernel, or polling.

use super::node;
use crate::bench::{Bench, Measurement};
use crate::hosts::Hosts;
use crate::measure::once;
use crate::pair::Program;
use crate::place::Placement::Two;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::Result;

/// Kinds of nodes and of plain TCP that wait alike.
const WAITS: [(&str, &str, &str); 2] =
    [("queue-one-tcp-sleep", "tcp", "waits sleep"), ("queue-one-tcp-poll", "tcp-polling", "waits poll")];

pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let hosts = match Hosts::up() {
        Ok(hosts) => hosts,
        Err(error) => return Ok(vec![Line::not_measured("tcp", "nodes of two hosts", format!("{error:#}"))]),
    };
    let mut lines = Vec::new();
    for (how, kind, waits) in WAITS {
        for (what, size) in [("ping", 64), ("stream", 64 << 10)] {
            lines.push(beside(bench, &hosts, (how, kind, waits), what, size)?);
        }
    }
    Ok(lines)
}

fn beside(bench: &Bench, hosts: &Hosts, wait: (&str, &str, &str), what: &str, size: usize) -> Result<Line> {
    let (how, kind, waits) = wait;
    let ours = hosts.spread(node(bench, how, &[what]));
    let plain = hosts.spread(bench.worker(&[what, kind]));
    let arguments = [size.to_string(), (bench.ms * 4).to_string()];
    let run = |program: &Program, turn| once(bench, program, Two, turn, &arguments);
    let mut measurements: Vec<Measurement<'_>> =
        vec![Box::new(|turn| run(&ours, turn)), Box::new(|turn| run(&plain, turn))];
    let series = bench.compare(bench.repetitions, false, &mut measurements)?;
    let [ours, plain] = &series[..] else { unreachable!() };
    let line =
        |name: &str| Line::new("tcp", format!("nodes of two hosts over TCP, {name}, {waits}")).floors(&ours.floors);
    Ok(if what == "ping" {
        line("64 B, half a round trip")
            .figure(Quantity::of("one way", &ours.values, Unit::Ns))
            .against(Quantity::of("kernel TCP", &plain.values, Unit::Ns), &ours.over(plain))
            .nearly(Bound::AtMost(1.15))
    } else {
        let rate = |values: &[f64]| values.iter().map(|ns| size as f64 / ns).collect::<Vec<_>>();
        line("64 KiB one way")
            .figure(Quantity::of("bandwidth", &rate(&ours.values), Unit::GBs))
            .against(Quantity::of("kernel TCP", &rate(&plain.values), Unit::GBs), &plain.over(ours))
            .nearly(Bound::AtLeast(0.97))
    })
}
