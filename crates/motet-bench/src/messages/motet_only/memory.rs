//! The memory of a peer and of a channel, at both ends together.

use super::idle::IdlePeers;
use super::run_command;
use crate::bench::Bench;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result};

const PEERS: usize = 64;
const CHANNELS: usize = 10_000;
/// Peers that are connected first: they bring what all peers share.
const FIRST: usize = 4;

pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let mut idle = IdlePeers::start(bench, FIRST, 0)?;
    idle.open(PEERS)?;
    let before = Held::of(&idle)?;
    idle.connect(PEERS)?;
    let connected = Held::of(&idle)?;
    idle.add_channels(CHANNELS)?;
    let channels = Held::of(&idle)?;
    drop(idle);
    // Peers whose link has ended.
    let mut idle = IdlePeers::start(bench, FIRST, 0)?;
    let was = Held::of(&idle)?;
    idle.open(PEERS)?;
    let opened = Held::of(&idle)?;
    idle.connect(PEERS)?;
    run_command(&mut idle.peers, "leave")?;
    run_command(&mut idle.hub.process, "settle")?;
    let left = Held::of(&idle)?;
    let known = Line::new("memory", "a peer whose link has ended, at the process that knows it")
        .figure(Quantity::of("private memory", &[(left.hub - opened.hub) / PEERS as f64], Unit::Bytes))
        .bound(Bound::AtMost(4096.0))
        .note(format!(
            "after {PEERS} links; an address that was never connected is a string of the program; {:.1} descriptors each remain",
            (left.descriptors[0] - opened.descriptors[0]) / PEERS as f64
        ));
    let peer = (connected.both() - before.both()) / PEERS as f64;
    let (slab, fds) = (connected.slab - before.slab, connected.over(&before, PEERS));
    let idle = Line::new("memory", "a connected idle peer with one channel, both ends together")
        .figure(Quantity::of("Pss of both", &[peer], Unit::Bytes))
        .bound(Bound::AtMost(256.0 * 1024.0))
        .note(format!(
            "{:.0} B at the hub, {:.0} B at the peer; {:.1} and {:.1} descriptors; the kernel's slabs grew by {:.0} B each, for all processes; \
             a node itself takes {:.0} B and {:.1} descriptors",
            (connected.hub - before.hub) / PEERS as f64,
            (connected.peers - before.peers) / PEERS as f64,
            fds[0],
            fds[1],
            slab / PEERS as f64,
            (opened.peers - was.peers) / PEERS as f64,
            (opened.descriptors[1] - was.descriptors[1]) / PEERS as f64,
        ));
    let channel = Line::new("memory", "an idle channel, both ends together")
        .figure(Quantity::of("Pss of both", &[(channels.both() - connected.both()) / CHANNELS as f64], Unit::Bytes))
        .bound(Bound::AtMost(256.0))
        .note(format!(
            "{:.0} B at the hub, {:.0} B at the peer, over {CHANNELS} channels",
            (channels.hub - connected.hub) / CHANNELS as f64,
            (channels.peers - connected.peers) / CHANNELS as f64,
        ));
    Ok(vec![known, idle, channel])
}

/// What the two processes hold, and the kernel for them.
struct Held {
    hub: f64,
    peers: f64,
    descriptors: [f64; 2],
    slab: f64,
}

impl Held {
    fn of(idle: &IdlePeers) -> Result<Self> {
        let (hub, peers) = (idle.hub.process.child.id(), idle.peers.child.id());
        let descriptors =
            |pid: u32| Ok::<_, std::io::Error>(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count() as f64);
        Ok(Self {
            hub: kib(&format!("/proc/{hub}/smaps_rollup"), "Pss:")?,
            peers: kib(&format!("/proc/{peers}/smaps_rollup"), "Pss:")?,
            descriptors: [descriptors(hub)?, descriptors(peers)?],
            slab: kib("/proc/meminfo", "Slab:")?,
        })
    }

    fn both(&self) -> f64 {
        self.hub + self.peers
    }

    fn over(&self, before: &Self, count: usize) -> [f64; 2] {
        [0, 1].map(|at| (self.descriptors[at] - before.descriptors[at]) / count as f64)
    }
}

/// A value of a file of /proc, in bytes, that stands there in KiB after a word.
fn kib(path: &str, word: &str) -> Result<f64> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let line =
        text.lines().find_map(|line| line.strip_prefix(word)).with_context(|| format!("{path} without {word}"))?;
    let number = line.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    Ok(number.with_context(|| format!("{path} has no number"))? * 1024.0)
}
