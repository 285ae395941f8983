//! The shared-memory driver: wires for streams and links for messages, between processes of one host and one user.
//!
//! - [`streams`]: a wire beside a TCP connection, which is a slot in a sealed memfd. Both processes are in one network namespace.
//! - [`messages`]: a link between two nodes, which is a memfd with a FIFO and a payload ring for each direction.
//!
//! What it is not: it moves no payload. Gate, rings and FIFOs are used by the engine.
#![forbid(unsafe_code)]

pub mod messages;
pub mod streams;

use motet_engine::driver::{Capabilities, Connecting, Driver, MessageDriver, Pair, StreamDriver};
use motet_engine::message::transport::{Connector, Identity, Listener};
use motet_engine::reason::Reason;
use motet_wire::stream::slot::Slot;
use std::any::Any;
use streams::{bootstrap, segment_pool};

/// The shared-memory driver.
#[derive(Debug)]
pub struct Shm;

impl Driver for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { shared_memory: true, between_hosts: false, latency: 100, bandwidth: 10_000 }
    }

    fn streams(&self) -> Option<&dyn StreamDriver> {
        Some(self)
    }

    fn messages(&self) -> Option<&dyn MessageDriver> {
        Some(self)
    }

    fn memory(&self) -> usize {
        segment_pool::mapped_bytes()
    }

    fn links(&self) -> [u64; 2] {
        segment_pool::link_counts()
    }

    fn prepare_fork(&self) -> Box<dyn Any> {
        Box::new((segment_pool::lock_for_fork(), bootstrap::lock_for_fork()))
    }

    fn after_fork(&self) {
        segment_pool::after_fork();
        bootstrap::after_fork();
    }
}

impl StreamDriver for Shm {
    fn reach(&self, pair: &Pair) -> Result<(), Reason> {
        // This cheap test rejects most connections to other hosts. Whether the peer is on this host and in this network namespace is
        // decided later, by the kernel (sock_diag).
        let (a, b) = (pair.local.ip().to_canonical(), pair.peer.ip().to_canonical());
        if a == b || (a.is_loopback() && b.is_loopback()) { Ok(()) } else { Err(Reason::OTHER_HOST) }
    }

    fn connect(&self, pair: &Pair) -> Result<Box<dyn Connecting>, Reason> {
        if pair.connected { bootstrap::OfferListener::begin(pair) } else { bootstrap::Offerer::begin(pair) }
    }

    fn close(&self, slot: &Slot) {
        segment_pool::release(slot);
    }

    fn abandon(&self, slot: &Slot) {
        segment_pool::abandon(slot);
    }
}

impl MessageDriver for Shm {
    fn listen(&self, node: &Identity) -> Result<Box<dyn Listener>, Reason> {
        messages::connect::NodeListener::listen(node)
    }

    fn listen_in_folder(&self, node: &Identity) -> Result<Box<dyn Listener>, Reason> {
        messages::connect::NodeListener::listen_in_folder(node)
    }

    fn connect(&self, node: &Identity, address: &str) -> Result<Box<dyn Connector>, Reason> {
        messages::connect::NodeConnector::begin(node, address)
    }
}
