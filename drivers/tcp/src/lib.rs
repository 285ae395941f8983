//! The TCP driver: plain kernel TCP, with nothing added and nothing copied that the kernel does not need; and packets over it.
//!
//! It is the *base* of every stream: the program's (or the engine's) own connection. So it brings up no wire; it stands in
//! the table so that `MOTET_DRIVERS`, routes and `motet why` can name it. For messages it is what joins nodes on different
//! hosts: [`listener`] waits for others, [`connect`] goes to them, a [`link`] carries packets between two, once and in order
//! although connections break. The protocol of that is `motet_proto::message::session`; here are the sockets ([`socket`]),
//! connections on their way up ([`dial`]) and in ([`acceptor`], [`incoming`]), who may come in ([`admission`]), and who belongs to which session
//! ([`session_table`]).
#![forbid(unsafe_code)]

pub mod acceptor;
pub mod admission;
pub mod connect;
pub mod dial;
pub mod incoming;
pub mod link;
pub mod listener;
pub mod session_table;
pub mod socket;

use motet_engine::driver::{Capabilities, Driver, MessageDriver};
use motet_engine::message::transport::{Connector, Identity, Listener};
use motet_engine::reason::Reason;

/// The driver.
#[derive(Debug)]
pub struct Tcp;

impl Driver for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { shared_memory: false, between_hosts: true, latency: 10_000, bandwidth: 5_000 }
    }

    fn messages(&self) -> Option<&dyn MessageDriver> {
        Some(self)
    }
}

impl MessageDriver for Tcp {
    fn listen(&self, node: &Identity) -> Result<Box<dyn Listener>, Reason> {
        Ok(Box::new(listener::Acceptor::new(node)?))
    }

    fn connect(&self, node: &Identity, address: &str) -> Result<Box<dyn Connector>, Reason> {
        Ok(Box::new(connect::Call::new(node, address)?))
    }
}
