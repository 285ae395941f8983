//! What this driver keeps for a node of this process: its sessions, and the acceptors that its links share.
//!
//! A node that listens has one acceptor for all peers (in its [`crate::listener::NodeListener`]). A node that only connects has one
//! acceptor for each local address that it connects from, so that a peer whose connections have broken can ask whether the connecting
//! side still exists. Where the process is gone, the kernel of its host refuses that connection at once.

use crate::acceptor::Acceptor;
use crate::session_table::{SessionTable, lock};
use motet_engine::message::transport::{Identity, NodeId};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, Weak};

static NODES: Mutex<Vec<(NodeId, Weak<LocalNode>)>> = Mutex::new(Vec::new());

/// A node of this process, as this driver knows it.
#[derive(Debug)]
pub struct LocalNode {
    pub(crate) sessions: SessionTable,
    /// The acceptors of a node that connects; links keep them alive.
    acceptors: Mutex<Vec<Weak<Mutex<Acceptor>>>>,
}

impl LocalNode {
    /// The record of this node: one for each node, however many listeners and connectors ask.
    pub fn of(identity: &Identity) -> Arc<Self> {
        let mut nodes = lock(&NODES);
        nodes.retain(|(_, node)| node.strong_count() > 0);
        if let Some(node) = nodes.iter().find(|(other, _)| *other == identity.id).and_then(|(_, node)| node.upgrade()) {
            return node;
        }
        let node = Arc::new(Self { sessions: SessionTable::new(identity), acceptors: Mutex::default() });
        nodes.push((identity.id, Arc::downgrade(&node)));
        node
    }

    /// The port at which the node answers peers that know it by this local address; 0: none could be opened. Where the node does not
    /// listen there, the answer includes an acceptor: the port is open as long as that exists, and its owner must step it.
    pub fn acceptor_at(&self, local: IpAddr) -> (u16, Option<Arc<Mutex<Acceptor>>>) {
        if let Some(port) = self.sessions.listen_port_at(local) {
            return (port, None);
        }
        let mut acceptors = lock(&self.acceptors);
        acceptors.retain(|acceptor| acceptor.strong_count() > 0);
        for acceptor in acceptors.iter().filter_map(Weak::upgrade) {
            let address = lock(&acceptor).address();
            if address.ip() == local {
                return (address.port(), Some(acceptor));
            }
        }
        let Ok(acceptor) = Acceptor::new(&SocketAddr::new(local, 0)) else { return (0, None) };
        let (port, acceptor) = (acceptor.address().port(), Arc::new(Mutex::new(acceptor)));
        acceptors.push(Arc::downgrade(&acceptor));
        (port, Some(acceptor))
    }
}
