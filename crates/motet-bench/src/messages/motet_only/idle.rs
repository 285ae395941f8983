//! The cost of silent peers and silent channels for an active one.

use super::{node, run_command, send_command, wait_done};
use crate::bench::{Bench, Measurement};
use crate::pair::{Process, Server, caller, timing};
use crate::place::Placement::Two;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Result, bail};
use std::cell::RefCell;

/// The number of peers, of further channels of the first peer, and a text.
const CASES: [(usize, usize, &str); 2] = [(256, 0, "256 idle peers"), (1, 9_999, "10 000 idle channels")];
const NODE_KIND: &str = "queue-one";

pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    // The servers run during the whole part. Their silent peers sleep in the kernel.
    let alone = RefCell::new(IdlePeers::start(bench, 0, 0)?);
    let cases = CASES.map(|(peers, channels, _)| IdlePeers::start(bench, peers, channels));
    let cases = cases.into_iter().map(|idle| Ok(RefCell::new(idle?))).collect::<Result<Vec<_>>>()?;
    let mut measurements: Vec<Measurement<'_>> = Vec::new();
    for idle in std::iter::once(&alone).chain(&cases) {
        measurements.push(Box::new(move |_| idle.borrow_mut().active(bench)));
    }
    let series = bench.compare(bench.repetitions, true, &mut measurements)?;
    let lines = CASES.iter().zip(&series[1..]).map(|((_, _, what), idle)| {
        Line::new("idle", format!("8 B, half a round trip, beside {what}"))
            .figure(Quantity::of("one way", &idle.values, Unit::Ns))
            .floors(&idle.floors)
            .against(Quantity::of("without", &series[0].values, Unit::Ns), &idle.over(&series[0]))
            .nearly(Bound::AtMost(1.2))
    });
    Ok(lines.collect())
}

/// A hub and its silent peers.
pub struct IdlePeers {
    /// The hub.
    pub hub: Server,
    /// One process with all peers, each a node.
    pub peers: Process,
}

impl IdlePeers {
    /// Starts a hub with peers that have one channel each, the first of them more.
    pub fn start(bench: &Bench, peers: usize, channels: usize) -> Result<Self> {
        let program = node(bench, NODE_KIND, &["many-peers"]);
        let on = bench.cpus.of(Two, 0);
        let hub = Server::start(&program, &bench.cpus, on[0])?;
        let mut process = caller(&program, &hub.port, &[], &bench.cpus, on[1])?;
        if process.line()? != "ready" {
            bail!("the silent peers did not get ready");
        }
        let mut idle = Self { hub, peers: process };
        idle.open(peers)?;
        idle.connect(peers)?;
        idle.add_channels(channels)?;
        Ok(idle)
    }

    /// Makes more peers, without connecting them.
    pub fn open(&mut self, count: usize) -> Result<()> {
        if count > 0 { run_command(&mut self.peers, &format!("open {count}")) } else { Ok(()) }
    }

    /// Connects them.
    pub fn connect(&mut self, count: usize) -> Result<()> {
        self.together(count, "connect")
    }

    /// Opens more channels of the first peer.
    pub fn add_channels(&mut self, count: usize) -> Result<()> {
        self.together(count, &format!("channels {count}"))
    }

    fn together(&mut self, count: usize, run_command: &str) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        send_command(&mut self.hub.process, &format!("take {count}"))?;
        send_command(&mut self.peers, run_command)?;
        wait_done(&mut self.peers, run_command)?;
        wait_done(&mut self.hub.process, "take")
    }

    /// Measures one way of the active peer, ns.
    fn active(&mut self, bench: &Bench) -> Result<f64> {
        send_command(&mut self.hub.process, "serve")?;
        let arguments = ["8".to_owned(), bench.ms.to_string()];
        let active = caller(
            &node(bench, NODE_KIND, &["ping"]),
            &self.hub.port,
            &arguments,
            &bench.cpus,
            bench.cpus.of(Two, 0)[1],
        )?;
        let found = timing(active)?.median;
        wait_done(&mut self.hub.process, "serve")?;
        Ok(found)
    }
}
