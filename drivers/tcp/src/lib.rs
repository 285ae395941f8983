//! The TCP driver: plain kernel TCP, with nothing added and nothing copied that the kernel does not need.
//!
//! It is the *base* of every stream: the program's (or the engine's) own connection. So it brings up no wire; it stands in
//! the table so that `MOTET_DRIVERS`, routes and `motet why` can name it, and it makes connections for those who have none.
#![forbid(unsafe_code)]

use motet_engine::driver::{Capabilities, Connecting, Driver, Pair};
use motet_engine::reason::Reason;
use motet_wire::slot::Slot;

/// The driver.
#[derive(Debug)]
pub struct Tcp;

impl Driver for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { wire: false, shared_memory: false, between_hosts: true, latency: 10_000, bandwidth: 5_000 }
    }

    fn reach(&self, _pair: &Pair) -> Result<(), Reason> {
        Ok(())
    }

    fn connect(&self, _pair: &Pair) -> Result<Box<dyn Connecting>, Reason> {
        Err(Reason::NOT_TCP)
    }

    fn close(&self, _slot: &Slot) {}

    fn memory(&self) -> usize {
        0
    }
}
