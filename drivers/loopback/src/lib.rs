//! The loopback driver: both ends in one process.
//!
//! It has two parts, which share the slots of [`memory`]:
//!
//! - [`Loopback`], a driver: a wire between two streams of this process, without a bootstrap socket ([`wire`]).
//! - a *simulated connection* for tests: [`pipe`] simulates TCP, [`clock`] time, [`plan`] is a list of faults and when they happen, and
//!   [`end`] offers all of it as the protocol's [`motet_proto::stream::Platform`].
//!
//! What it is not: a driver of a shipped program. An address does not show whether the peer is in this process, so the code that lists this
//! driver must guarantee it.
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

/// The loopback driver.
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
        memory::mapped_bytes()
    }

    fn prepare_fork(&self) -> Box<dyn Any> {
        Box::new((wire::lock_for_fork(), memory::lock_for_fork())) // the lock order of `PendingWire::step`
    }

    fn after_fork(&self) {
        memory::after_fork();
        wire::after_fork();
    }
}

impl StreamDriver for Loopback {
    fn reach(&self, pair: &Pair) -> Result<(), Reason> {
        let (a, b) = (pair.local.ip().to_canonical(), pair.peer.ip().to_canonical());
        if a == b || (a.is_loopback() && b.is_loopback()) { Ok(()) } else { Err(Reason::OTHER_HOST) }
    }

    fn connect(&self, pair: &Pair) -> Result<Box<dyn Connecting>, Reason> {
        wire::PendingWire::begin(pair)
    }

    fn close(&self, slot: &Slot) {
        wire::release(slot);
    }
}
