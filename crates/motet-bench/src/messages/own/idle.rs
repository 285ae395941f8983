//! What silent peers and silent channels cost the active one.

use super::{begin, done, node, order};
use crate::bench::{Bench, Contestant};
use crate::pair::{Process, Server, caller, timing};
use crate::place::Placement::Two;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Result, bail};
use std::cell::RefCell;

/// Peers, channels of the first one beyond the first, and what that is.
const CROWDS: [(usize, usize, &str); 2] = [(256, 0, "256 idle peers"), (1, 9_999, "10 000 idle channels")];
const HOW: &str = "queue-one";

pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    // The servers live through the whole part; their silent peers sleep in the kernel.
    let alone = RefCell::new(Crowd::start(bench, 0, 0)?);
    let crowds = CROWDS.map(|(peers, channels, _)| Crowd::start(bench, peers, channels));
    let crowds = crowds.into_iter().map(|crowd| Ok(RefCell::new(crowd?))).collect::<Result<Vec<_>>>()?;
    let mut contestants: Vec<Contestant<'_>> = Vec::new();
    for crowd in std::iter::once(&alone).chain(&crowds) {
        contestants.push(Box::new(move |_| crowd.borrow_mut().active(bench)));
    }
    let series = bench.contest(bench.repetitions, true, &mut contestants)?;
    let lines = CROWDS.iter().zip(&series[1..]).map(|((_, _, what), crowd)| {
        Line::new("idle", format!("8 B, half a round trip, beside {what}"))
            .figure(Quantity::of("one way", &crowd.values, Unit::Ns))
            .floors(&crowd.floors)
            .against(Quantity::of("without", &series[0].values, Unit::Ns), &crowd.over(&series[0]))
            .nearly(Bound::AtMost(1.2))
    });
    Ok(lines.collect())
}

/// A hub and its silent peers.
pub struct Crowd {
    /// The hub.
    pub hub: Server,
    /// One process with all peers, each a node.
    pub peers: Process,
}

impl Crowd {
    /// A hub with so many peers, each with a channel, the first with more.
    pub fn start(bench: &Bench, peers: usize, channels: usize) -> Result<Self> {
        let program = node(bench, HOW, &["crowd"]);
        let on = bench.cpus.of(Two, 0);
        let hub = Server::start(&program, &bench.cpus, on[0])?;
        let mut process = caller(&program, &hub.port, &[], &bench.cpus, on[1])?;
        if process.line()? != "ready" {
            bail!("the silent peers did not come up");
        }
        let mut crowd = Self { hub, peers: process };
        crowd.open(peers)?;
        crowd.connect(peers)?;
        crowd.add_channels(channels)?;
        Ok(crowd)
    }

    /// More peers, not connected yet.
    pub fn open(&mut self, count: usize) -> Result<()> {
        if count > 0 { order(&mut self.peers, &format!("open {count}")) } else { Ok(()) }
    }

    /// Connects those.
    pub fn connect(&mut self, count: usize) -> Result<()> {
        self.together(count, "connect")
    }

    /// More channels of the first peer.
    pub fn add_channels(&mut self, count: usize) -> Result<()> {
        self.together(count, &format!("channels {count}"))
    }

    fn together(&mut self, count: usize, order: &str) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        begin(&mut self.hub.process, &format!("take {count}"))?;
        begin(&mut self.peers, order)?;
        done(&mut self.peers, order)?;
        done(&mut self.hub.process, "take")
    }

    /// One way of the active one, ns.
    fn active(&mut self, bench: &Bench) -> Result<f64> {
        begin(&mut self.hub.process, "serve")?;
        let arguments = ["8".to_owned(), bench.ms.to_string()];
        let active =
            caller(&node(bench, HOW, &["ping"]), &self.hub.port, &arguments, &bench.cpus, bench.cpus.of(Two, 0)[1])?;
        let found = timing(active)?.median;
        done(&mut self.hub.process, "serve")?;
        Ok(found)
    }
}
