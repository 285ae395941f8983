//! A program's calls to connect to other nodes, to disconnect, and to read the properties of links.
//!
//! Deadlines are CLOCK_MONOTONIC nanoseconds; `None` means that the call waits without limit.
//!
//! A node's address is one or more driver addresses `DRIVER://WHERE`, separated by commas; an address without `://` is a node name on this host.
//! All of them are tried, that of the driver with the lowest latency first. If all fail, the error is that of the last one.

use super::connections::PendingConnect;
use super::stats::ConnectHistory;
use super::transport::NodeId;
use super::{Error, LinkId, Node};
use crate::driver::Driver;
use crate::reason::Reason;
use motet_proto::message::slab::SlabId;
use motet_sys::clock;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;

/// The driver of an address without `://`.
const NAME_DRIVER: &str = "shm";
/// Time between two attempts to connect to a node that does not exist yet, ns.
const RETRY_INTERVAL_NS: u64 = 1_000_000;

/// The properties and counts of a link, as [`Node::link_info`] reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkInfo {
    /// The node at the other end.
    pub peer: NodeId,
    /// The name of the driver that has made its transport.
    pub driver: &'static str,
    /// Why the link is gone, if it is.
    pub gone: Option<Reason>,
    /// Most bytes of headers and body together that [`Node::inject`] accepts.
    pub inject: usize,
    /// Numbers of channels, of long messages that arrive, and of long messages that are sent.
    pub counts: [u32; 3],
    /// Bytes of memory held: for records, and for eager messages that were not received yet.
    pub bytes: [usize; 2],
    /// Number of bodies copied out of the peer's memory, and number of these that the peer has helped to copy.
    pub copied: [u64; 2],
}

impl Node {
    /// The number of this node.
    pub fn id(&self) -> Result<NodeId, Error> {
        Ok(self.lock()?.identity.id)
    }

    /// The name by which nodes of this host connect to this node.
    pub fn name(&self) -> Result<String, Error> {
        Ok(self.lock()?.identity.name.clone())
    }

    /// The addresses of this node, as [`Node::connect`] of another node takes them.
    pub fn address(&self) -> Result<String, Error> {
        Ok(self.lock()?.connections.address())
    }

    /// Listens for nodes of other hosts at this address (port 0: any), from now on. A node that listens for them already goes on as it is.
    ///
    /// Errors: [`Error::Unreachable`] with the reason, for example that the address is in use.
    pub fn listen_for_hosts(&self, address: SocketAddr) -> Result<(), Error> {
        self.lock()?.listen_for_hosts(address)
    }

    /// Listens for nodes that meet in this folder, and finds them there: processes that see the folder reach each other although their network
    /// namespaces differ. Only processes of this user may enter the folder; the kernel attests the user of each peer.
    pub fn listen_in(&self, folder: &Path) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.listen_in(folder)?;
        node.notify();
        Ok(())
    }

    // ---- links -------------------------------------------------------------------------------------------------------

    /// Connects to the node at `address`. With a deadline, the call also waits for a node that does not exist yet.
    ///
    /// Errors: [`Error::Unreachable`] with the reason of the last address that was tried; [`Error::TimedOut`]; [`Error::Full`].
    pub fn connect(&self, address: &str, deadline: Option<u64>) -> Result<LinkId, Error> {
        self.connect_or_retry(address, deadline, deadline)
    }

    /// Connects as [`Node::connect`] does, to a node that is there: fails at once where there is none.
    pub fn connect_existing(&self, address: &str, deadline: Option<u64>) -> Result<LinkId, Error> {
        self.connect_or_retry(address, deadline, None)
    }

    /// Connects until `deadline`. Tries again until `retry_until` where there is no node.
    fn connect_or_retry(
        &self,
        address: &str,
        deadline: Option<u64>,
        retry_until: Option<u64>,
    ) -> Result<LinkId, Error> {
        loop {
            let pending = self.begin_connect(address)?;
            match self.wait(self.lock()?, deadline, |node| node.connections.take_result(pending)) {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(Reason::NO_SUCH_NODE)) if retry_until.is_some_and(|until| clock::nanoseconds() < until) => {
                    let again = clock::nanoseconds() + RETRY_INTERVAL_NS;
                    let _ = self.wait(self.lock()?, Some(again), |_| None::<()>);
                }
                Ok(Err(reason)) => {
                    self.lock()?.stats.connect_failed(reason);
                    return Err(Error::Unreachable(reason));
                }
                Err(error) => {
                    let mut node = self.lock()?;
                    // Another thread may have completed the connect after the wait failed.
                    if let Some(Ok(link)) = node.connections.take_result(pending) {
                        return Ok(link);
                    }
                    node.connections.drop_pending(pending);
                    return Err(error);
                }
            }
        }
    }

    /// Starts a connect with the first address whose driver accepts it.
    fn begin_connect(&self, address: &str) -> Result<SlabId, Error> {
        let mut node = self.lock()?;
        let mut history = ConnectHistory { is_connector: true, failures: Vec::new() };
        let mut driver_addresses = driver_addresses(node.connections.drivers(), address, &mut history)?;
        let mut reason = Reason::NO_SUCH_NODE;
        while let Some((driver, place)) = driver_addresses.pop_front() {
            match driver.connect_node(&node.identity, &place) {
                Ok(connector) => {
                    let pending = PendingConnect {
                        connector: Some(connector),
                        driver,
                        remaining: driver_addresses,
                        history,
                        result: None,
                    };
                    let number = node.connections.add_pending(pending).ok_or(Error::Full)?;
                    self.step_connects(&mut node);
                    return Ok(number);
                }
                Err(refused) => {
                    history.add_failure(driver.name(), refused);
                    reason = refused;
                }
            }
        }
        node.stats.connect_failed(reason);
        Err(Error::Unreachable(reason))
    }

    /// All links that were not closed, including those that are gone. A link that a peer has opened needs no [`Node::disconnect`] once it is gone:
    /// the node forgets it when no message of it waits and the program has closed every channel that it had opened or accepted on it.
    pub fn links(&self) -> Result<Vec<LinkId>, Error> {
        Ok(self.lock()?.links.all())
    }

    /// Reports the properties and counts of a link.
    pub fn link_info(&self, link: LinkId) -> Result<LinkInfo, Error> {
        use motet_proto::message::{Packets, packet};
        let mut node = self.lock()?;
        let eager = node.limits.eager;
        let (link_state, messages) = node.link(link)?;
        let eager = eager[usize::from(link_state.shm().is_none())] as usize;
        let largest = link_state.with(link, messages, |_, one, _| one.largest());
        let (records, window) = link_state.proto.bytes();
        Ok(LinkInfo {
            peer: link_state.peer,
            driver: link_state.driver,
            gone: link_state.gone,
            inject: (largest - packet::MESSAGE_HEAD_BYTES).min(eager),
            counts: link_state.proto.counts(),
            bytes: [records, window],
            copied: [link_state.copy_counts.done[0], link_state.copy_counts.assisted],
        })
    }

    /// Closes a link; operations under way on it fail. Messages that were sent completely before still reach the peer if its process lives.
    pub fn disconnect(&self, link: LinkId) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.link(link)?;
        node.remove_link(link);
        node.notify();
        Ok(())
    }
}

/// Splits an address into driver addresses with their drivers, the lowest latency first. Drivers that this node may not use are noted as refused.
fn driver_addresses(
    drivers: &[&'static dyn Driver],
    address: &str,
    history: &mut ConnectHistory,
) -> Result<VecDeque<(&'static dyn Driver, String)>, Error> {
    let mut driver_addresses = Vec::new();
    for one in address.split(',') {
        let (name, place) = one.split_once("://").unwrap_or((NAME_DRIVER, one));
        match drivers.iter().find(|driver| driver.name() == name) {
            Some(&driver) => driver_addresses.push((driver, place.to_owned())),
            None if address.contains(',') => history.add_failure(name, Reason::FORBIDDEN),
            None => return Err(Error::Unreachable(Reason::FORBIDDEN)),
        }
    }
    driver_addresses.sort_by_key(|(driver, _)| driver.capabilities().latency);
    Ok(driver_addresses.into())
}
