//! The loopback driver: both ends in one process.
//!
//! What it is, in two halves that share nothing but memory:
//!
//! - [`Loopback`], a real driver: a wire between two streams of this process, without any rendezvous socket. Its slots
//!   come from [`memory`].
//! - a *simulated connection* for tests: [`pipe`] stands for TCP, [`clock`] for time, [`plan`] says declaratively what goes
//!   wrong and when, and [`end`] offers all of it as the protocol's [`motet_proto::stream::Platform`].
//!
//! What it is not: it is in no table of a shipped program. An address does not tell whether the peer lives in this
//! process, so the code that lists this driver guarantees that it does.
#![forbid(unsafe_code)]

pub mod clock;
pub mod end;
pub mod memory;
pub mod pipe;
pub mod plan;
pub mod wire;

use motet_engine::driver::{Capabilities, Connecting, Driver, Pair, StreamDriver};
use motet_engine::reason::Reason;
use motet_wire::stream::slot::Slot;
use std::any::Any;

/// The driver.
#[derive(Debug)]
pub struct Loopback;

impl Driver for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { shared_memory: true, between_hosts: false, latency: 80, bandwidth: 12_000 }
    }

    fn streams(&self) -> Option<&dyn StreamDriver> {
        Some(self)
    }

    fn memory(&self) -> usize {
        memory::bytes()
    }

    fn prepare_fork(&self) -> Box<dyn Any> {
        Box::new((wire::quiet(), memory::quiet())) // in this order, as a meeting takes them
    }

    fn after_fork(&self) {
        memory::forget();
        wire::forget();
    }
}

impl StreamDriver for Loopback {
    fn reach(&self, pair: &Pair) -> Result<(), Reason> {
        let (a, b) = (pair.local.ip().to_canonical(), pair.peer.ip().to_canonical());
        if a == b || (a.is_loopback() && b.is_loopback()) { Ok(()) } else { Err(Reason::OTHER_HOST) }
    }

    fn connect(&self, pair: &Pair) -> Result<Box<dyn Connecting>, Reason> {
        wire::Meeting::begin(pair)
    }

    fn close(&self, slot: &Slot) {
        wire::leave(slot);
    }
}
