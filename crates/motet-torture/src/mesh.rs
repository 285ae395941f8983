//! A node with a [`Side`] on each of its links, whichever end connected.

use crate::traffic::{self, NUMBERED_SERVICE, Side, UNRECEIVED_SERVICE};
use motet::node::{BodyPath, Channel, Context, Error, LinkId, Node};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A node and its sides.
pub struct Mesh {
    /// The node.
    pub node: Arc<Node>,
    /// The side of each link that is up.
    pub sides: HashMap<LinkId, Side>,
    /// Lost links, and the time from the first failed operation until all had completed.
    pub lost: Vec<(LinkId, Duration)>,
    leaving: HashMap<LinkId, Instant>,
    context: Context,
    half: HashMap<LinkId, [Option<Channel>; 2]>,
    seed: u64,
    steps: u64,
    /// Operations that completed successfully on sides that are gone.
    before: u64,
}

impl Mesh {
    /// A mesh with a new node of that name, on this host and at a free port.
    pub fn new(name: &str, seed: u64) -> Result<Self, Error> {
        let mut options = motet::node::options(name, Some("127.0.0.1:0".parse().map_err(|_| Error::Closed)?));
        options.limits.body_path =
            [BodyPath::Measured, BodyPath::CooperativeCopy, BodyPath::CooperativeCopy][seed as usize % 3];
        Self::of(Arc::new(Node::with(&options)?), seed)
    }

    /// A mesh over an existing node.
    pub fn of(node: Arc<Node>, seed: u64) -> Result<Self, Error> {
        let context = traffic::serve(&node)?;
        let (sides, leaving, half) = Default::default();
        Ok(Self { node, sides, lost: Vec::new(), leaving, context, half, seed, steps: 0, before: 0 })
    }

    /// The part of the node's address that belongs to one driver.
    pub fn address(&self, driver: &str) -> String {
        address_for(&self.node.address().expect("a node"), driver)
    }

    /// Connects to another mesh and begins traffic.
    pub fn connect(&mut self, address: &str) -> Result<LinkId, Error> {
        let link = self.node.connect(address, Some(crate::HANG_LIMIT))?;
        self.seed += 1;
        match Side::begin(&self.node, link, self.context, self.seed) {
            Ok(side) => drop(self.sides.insert(link, side)),
            Err(error) => {
                let _ = self.node.disconnect(link);
                return Err(error);
            }
        }
        Ok(link)
    }

    /// Accepts new links, makes a step on every side and a round of progress. Links that are gone are forgotten when all their operations have
    /// completed.
    pub fn step(&mut self) {
        self.steps += 1;
        if self.steps.is_multiple_of(8) {
            self.take();
        }
        for side in self.sides.values_mut() {
            side.step();
        }
        let gone = |side: &Side| side.is_gone().then_some(side.link);
        for link in self.sides.values().filter_map(gone).collect::<Vec<_>>() {
            let since = *self.leaving.entry(link).or_insert_with(Instant::now);
            let side = &self.sides[&link];
            if side.pending_count() == 0 {
                if !side.has_stopped() {
                    self.lost.push((link, since.elapsed()));
                }
                self.leaving.remove(&link);
                self.forget(link);
            } else {
                assert!(since.elapsed() < crate::HANG_LIMIT, "{} operations never end", side.pending_count());
            }
        }
        if !self.node.progress().expect("a node") {
            std::thread::sleep(Duration::from_micros(20)); // other processes may need the CPU
        }
    }

    /// Ends a side and disconnects its link.
    pub fn forget(&mut self, link: LinkId) {
        if let Some(side) = self.sides.remove(&link) {
            self.before += side.done;
            side.end();
        }
        let _ = self.node.disconnect(link);
    }

    fn take(&mut self) {
        // The two channels of a link may arrive in any order.
        for (at, service) in [NUMBERED_SERVICE, UNRECEIVED_SERVICE].into_iter().enumerate() {
            while let Ok(channel) = self.node.accept(service, Some(Duration::ZERO)) {
                let half = self.half.entry(channel.link).or_default();
                half[at] = Some(channel);
                let [Some(numbered), Some(idle)] = *half else { continue };
                self.half.remove(&channel.link);
                self.seed += 1;
                let side = Side::over(&self.node, numbered, idle, self.seed).expect("room for a side");
                self.sides.insert(channel.link, side);
            }
        }
    }

    /// Forgets links that were lost before they had a side.
    pub fn sweep(&mut self) {
        for link in self.node.links().expect("a node") {
            if !self.sides.contains_key(&link) && self.node.link_info(link).is_ok_and(|info| info.gone.is_some()) {
                let _ = self.node.disconnect(link);
            }
        }
        let node = &self.node;
        self.half.retain(|link, _| node.link_info(*link).is_ok());
    }

    /// Makes progress until the peers have taken all links. A peer that gets the command to stop before that has no side that it could stop.
    pub fn wait_for_peers(&mut self) {
        let began = Instant::now();
        while !self.sides.values().all(|side| side.has_peer() || side.is_gone()) {
            assert!(began.elapsed() < crate::HANG_LIMIT, "a peer never takes its link: {:?}", self.sides.values());
            self.step();
        }
    }

    /// Ends all traffic in order. Both ends must do so at the same time.
    pub fn stop(&mut self) {
        self.sides.values_mut().for_each(Side::stop);
        let began = Instant::now();
        while !self.sides.values().all(|side| side.is_over() || side.is_gone() && side.pending_count() == 0) {
            assert!(began.elapsed() < crate::HANG_LIMIT, "the traffic never ends: {:?}", self.sides.values());
            self.step();
            self.sides.values_mut().for_each(Side::stop);
        }
    }

    /// The number of operations that completed successfully.
    pub fn done(&self) -> u64 {
        self.before + self.sides.values().map(|side| side.done).sum::<u64>()
    }
}

/// The part of an address that belongs to one driver.
pub fn address_for(address: &str, driver: &str) -> String {
    let found = address.split(',').find(|way| way.starts_with(driver));
    found.unwrap_or_else(|| panic!("{address} has no address for {driver}")).to_owned()
}
