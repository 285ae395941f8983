//! The TCP driver: the kernel's TCP as it is for streams, and packets over TCP for messages.
//!
//! Streams: a program's own TCP connection carries the payload, so this driver brings up no wire. It stands in the driver table so that
//! `MOTET_DRIVERS`, routes and `motet why` can name it.
//!
//! Messages: it joins nodes on different hosts.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`listener`], [`connect`] | the two sides of connection establishment: accept a node, connect to a node |
//! | [`link`] | carries packets between two nodes, once and in order although connections break |
//! | [`acceptor`], [`incoming`] | a listening socket and the connections that have not sent a valid handshake yet |
//! | [`outgoing`] | one connection attempt, up to the answer to its handshake |
//! | [`admission`] | which connections may begin a session |
//! | [`session_table`], [`node`] | which sessions a node of this process has, and which acceptors |
//! | [`socket`] | sockets and epoll sets |
//! | [`congestion`] | the congestion control of connections between near peers |
//! | [`file_body`] | bodies that are ranges of files, sent by sendfile |
//!
//! The protocol is `motet_proto::message::session`; only sockets are here.
#![forbid(unsafe_code)]

pub mod acceptor;
pub mod admission;
pub mod congestion;
pub mod connect;
pub mod file_body;
pub mod incoming;
pub mod link;
pub mod listener;
pub mod node;
pub mod outgoing;
pub mod session_table;
pub mod socket;

use motet_engine::driver::{Capabilities, Driver, MessageDriver};
use motet_engine::message::transport::{Connector, Identity, Listener};
use motet_engine::reason::Reason;

/// The TCP driver.
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
        Ok(Box::new(listener::NodeListener::new(node)?))
    }

    fn connect(&self, node: &Identity, address: &str) -> Result<Box<dyn Connector>, Reason> {
        Ok(Box::new(connect::NodeConnector::new(node, address)?))
    }
}
