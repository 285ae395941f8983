//! The shared-memory driver.
//!
//! What it is: a wire between two processes of one host, one network namespace and one user, made of a slot in a sealed
//! memfd. [`stream_bootstrap`] finds the other end of *this connection* and passes the memfd; [`links`] keeps the memfds of each
//! pair of processes, so that one more connection costs a slot, and gives them back when they are unused ([`segment_pool`] is this
//! process's own); [`offer`] is the one message that travels.
//!
//! What it is not: it moves no payload; gate and ring are the engine's.
#![forbid(unsafe_code)]

pub mod links;
pub mod message_connect;
pub mod message_handshake;
pub mod offer;
pub mod segment_pool;
pub mod stream_bootstrap;

use motet_engine::driver::{Capabilities, Connecting, Driver, MessageDriver, Pair, StreamDriver};
use motet_engine::message::transport::{Connector, Identity, Listener};
use motet_engine::reason::Reason;
use motet_wire::stream::slot::Slot;
use std::any::Any;

/// The driver.
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
        segment_pool::bytes()
    }

    fn links(&self) -> [u64; 2] {
        segment_pool::counts()
    }

    fn prepare_fork(&self) -> Box<dyn Any> {
        Box::new((segment_pool::quiet(), stream_bootstrap::quiet()))
    }

    fn after_fork(&self) {
        segment_pool::forked();
        stream_bootstrap::forget();
    }
}

impl StreamDriver for Shm {
    fn reach(&self, pair: &Pair) -> Result<(), Reason> {
        // Same host and network namespace is decided by the kernel (sock_diag) when the wire comes up; this is the cheap
        // test that spares every other connection the question.
        let (a, b) = (pair.local.ip().to_canonical(), pair.peer.ip().to_canonical());
        if a == b || (a.is_loopback() && b.is_loopback()) { Ok(()) } else { Err(Reason::OTHER_HOST) }
    }

    fn connect(&self, pair: &Pair) -> Result<Box<dyn Connecting>, Reason> {
        if pair.connected { stream_bootstrap::Listener::begin(pair) } else { stream_bootstrap::Offering::begin(pair) }
    }

    fn close(&self, slot: &Slot) {
        segment_pool::leave(slot);
    }

    fn abandon(&self, slot: &Slot) {
        segment_pool::abandon(slot);
    }
}

impl MessageDriver for Shm {
    fn listen(&self, node: &Identity) -> Result<Box<dyn Listener>, Reason> {
        message_connect::Host::listen(node)
    }

    fn connect(&self, node: &Identity, address: &str) -> Result<Box<dyn Connector>, Reason> {
        message_connect::Guest::call(node, address)
    }
}
