//! What a peer and a channel take, at both ends together.

use super::idle::Crowd;
use super::order;
use crate::bench::Bench;
use crate::report::{Bound, Line, Quantity, Unit};
use anyhow::{Context, Result};

const PEERS: usize = 64;
const CHANNELS: usize = 10_000;
/// Connected first: they bring what all share.
const FIRST: usize = 4;

pub fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let mut crowd = Crowd::start(bench, FIRST, 0)?;
    crowd.open(PEERS)?;
    let before = Held::of(&crowd)?;
    crowd.connect(PEERS)?;
    let connected = Held::of(&crowd)?;
    crowd.add_channels(CHANNELS)?;
    let channels = Held::of(&crowd)?;
    drop(crowd);
    // Whoever has been a peer and is one no more is still known by its name, if the program kept that.
    let mut crowd = Crowd::start(bench, FIRST, 0)?;
    let was = Held::of(&crowd)?;
    crowd.open(PEERS)?;
    let opened = Held::of(&crowd)?;
    crowd.connect(PEERS)?;
    order(&mut crowd.peers, "leave")?;
    order(&mut crowd.hub.process, "settle")?;
    let left = Held::of(&crowd)?;
    let known = Line::new("memory", "a peer to which the link has ended, at the one that knows it")
        .figure(Quantity::of("private memory", &[(left.hub - opened.hub) / PEERS as f64], Unit::Bytes))
        .bound(Bound::AtMost(4096.0))
        .note(format!(
            "after {PEERS} links; an address that was never called is only the program's own string; {:.1} descriptors each remain",
            (left.descriptors[0] - opened.descriptors[0]) / PEERS as f64
        ));
    let peer = (connected.both() - before.both()) / PEERS as f64;
    let (slab, fds) = (connected.slab - before.slab, connected.over(&before, PEERS));
    let idle = Line::new("memory", "a connected idle peer with one channel, both ends together")
        .figure(Quantity::of("Pss of both", &[peer], Unit::Bytes))
        .bound(Bound::AtMost(256.0 * 1024.0))
        .note(format!(
            "{:.0} B at the hub, {:.0} B at the peer; {:.1} and {:.1} descriptors; the kernel's slabs grew by {:.0} B each, whoever's; \
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

/// What the two processes hold, and the machine for them.
struct Held {
    hub: f64,
    peers: f64,
    descriptors: [f64; 2],
    slab: f64,
}

impl Held {
    fn of(crowd: &Crowd) -> Result<Self> {
        let (hub, peers) = (crowd.hub.process.child.id(), crowd.peers.child.id());
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

/// The bytes that a file of /proc says in KiB behind a word.
fn kib(path: &str, word: &str) -> Result<f64> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let line =
        text.lines().find_map(|line| line.strip_prefix(word)).with_context(|| format!("{path} without {word}"))?;
    let number = line.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    Ok(number.with_context(|| format!("{path} says no number"))? * 1024.0)
}
