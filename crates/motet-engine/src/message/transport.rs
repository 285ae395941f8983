//! Transports: what carries a link's packets, and how two nodes connect.
//!
//! There are two kinds. The shared-memory transport is memory that both ends map: the sender writes, the receiver polls, and a count in the
//! receiver's eventfd wakes it. A packet transport is anything else that delivers packets whole, in order and once, or reports that it cannot.
//! The engine does not know which driver has made a transport.

use crate::reason::Reason;
use motet_proto::message::Packets;
use motet_sys::private_fds::PrivateFd;
use motet_sys::{memory, socket};
use motet_wire::copy_mode::CopyMode;
use motet_wire::message::fifo::payload_ring::{PayloadRx, PayloadTx};
use motet_wire::message::fifo::{FifoRx, FifoTx};
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// The number of a node: random, and different from that of every other node that ever existed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub [u8; 16]);

/// The secret part of a node's address: 64 bits that a connector from another host must present, and 64 bits that only the node can answer with. A side that
/// gets wrong bits rejects the connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret {
    /// The bits that a connector presents.
    pub caller: u64,
    /// The bits that the node answers.
    pub answer: u64,
}

impl Secret {
    /// Hexadecimal digits of a secret in an address.
    const DIGITS: usize = 32;

    /// A random secret, or why the system gives none.
    pub fn random() -> Result<Self, motet_sys::Errno> {
        Ok(Self { caller: memory::random_u64()?, answer: memory::random_u64()? })
    }

    /// An address with this secret: `SECRET@PLACE`.
    pub fn prefix_to(&self, place: &str) -> String {
        format!("{:016x}{:016x}@{place}", self.caller, self.answer)
    }

    /// Splits an address into its secret, if it has one, and the place. `None`: the part before `@` is no secret.
    pub fn split(address: &str) -> Option<(Option<Self>, &str)> {
        match address.split_once('@') {
            Some((digits, place)) => Some((Some(Self::parse(digits)?), place)),
            None => Some((None, address)),
        }
    }

    /// Reads a secret from its digits.
    pub fn parse(digits: &str) -> Option<Self> {
        if digits.len() != Self::DIGITS || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let [caller, answer] = [0, 16].map(|at| u64::from_str_radix(&digits[at..at + 16], 16));
        Some(Self { caller: caller.ok()?, answer: answer.ok()? })
    }

    /// Whether a connector has presented the right bits. They are compared as one word, so the duration reveals nothing.
    pub fn matches_caller(&self, presented: u64) -> bool {
        presented == self.caller
    }

    /// Whether a node has answered with the right bits. They are compared as one word, so the duration reveals nothing.
    pub fn matches_answer(&self, presented: u64) -> bool {
        presented == self.answer
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The loss of a transport, and its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost(pub Reason);

/// The transport of a link.
#[expect(
    clippy::large_enum_variant,
    reason = "each link has one, in a box; another box would be in the way of every packet"
)]
pub enum Transport {
    /// Memory that both ends map.
    SharedMemory(ShmTransport),
    /// A packet transport.
    Packet(Box<dyn PacketTransport>),
}

/// Shared memory of two nodes: a FIFO each way, with a payload ring beside it whose pages are allocated when they are needed.
pub struct ShmTransport {
    /// The FIFO to the peer.
    pub fifo_tx: FifoTx,
    /// The FIFO from the peer.
    pub fifo_rx: FifoRx,
    /// The payload rings to the peer and from the peer.
    pub payload_rings: (PayloadTx, PayloadRx),
    /// State of the choice how bytes are copied into the payload ring: [`motet_proto::copy_mode::CopyModeSelector`].
    pub copy_mode: CopyMode,
    /// The eventfd that wakes the peer.
    pub tx_doorbell: PrivateFd,
    /// The eventfd that wakes this node.
    pub rx_doorbell: PrivateFd,
    /// The connection over which the link was established. It ends with the peer's process.
    pub control: PrivateFd,
    /// A descriptor of the peer's process, readable once the process has ended; `None` if the system has no such descriptors.
    pub process: Option<PrivateFd>,
    /// The number of the peer's process in our PID namespace, for single copies; 0 if it is not visible, or if its memory is not readable.
    pub pid: u32,
    /// A value that exists as long as the FIFOs do.
    pub keep: Box<dyn std::any::Any + Send>,
}

impl ShmTransport {
    /// Wakes the peer.
    #[cold]
    pub fn ring_doorbell(&self) {
        socket::ring_eventfd(self.tx_doorbell.as_fd().as_raw_fd());
    }
}

/// A transport that carries whole packets and is not shared memory. [`Packets::put`] takes a packet or refuses it. A packet that was put arrives once and in
/// order, or the transport is lost.
pub trait PacketTransport: Packets + Send {
    /// The next packet that has arrived: its kind and its bytes.
    fn poll(&mut self, now: u64) -> Result<Option<(u8, &[u8])>, Lost>;
    /// Moves what is under way. It is called in every round of progress, and must cost little when there is nothing to do.
    fn progress(&mut self, now: u64) -> Result<(), Lost>;
    /// A descriptor that is readable (in the sense of poll(2)) whenever `poll` or `progress` would do something: an epoll set of the transport, for example.
    fn descriptor(&self) -> RawFd;
    /// When `progress` must be called although the descriptor is not readable, CLOCK_MONOTONIC nanoseconds.
    fn due(&self) -> Option<u64> {
        None
    }
    /// Bytes put, bytes taken, and number of reconnects, for the stats page.
    fn counts(&self) -> [u64; 3] {
        [0; 3]
    }
    /// Shuts down after the last packet: what was put is delivered if the peer lives. True: nothing is left to do.
    fn close(&mut self, now: u64) -> bool;
}

/// A new connection to another node.
pub struct Connected {
    /// The number of the other node.
    pub peer: NodeId,
    /// The transport between the two nodes.
    pub transport: Transport,
}

/// What drivers must know of a node.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The number of the node.
    pub id: NodeId,
    /// The name by which nodes of this host find it.
    pub name: String,
    /// Where nodes of other hosts find it: `ADDRESS:PORT`, port 0 for any; `None`: they cannot connect to it.
    pub listen: Option<std::net::SocketAddr>,
    /// The secret that nodes of other hosts must know.
    pub secret: Secret,
    /// Nodes of other users of this host may connect to it if they know its secret, and it to theirs.
    pub other_users: bool,
    /// The folder in which the nodes of its session meet, also those of other network namespaces.
    pub folder: Option<std::path::PathBuf>,
}

/// Accepts connections from other nodes, until it is dropped.
pub trait Listener: Send {
    /// A descriptor that is readable when `step` would do something.
    fn descriptor(&self) -> RawFd;
    /// Accepts the next connection, without blocking. Refused connections are not reported.
    fn step(&mut self, now: u64) -> Option<Connected>;
    /// When `step` must be called although the descriptor is not readable, CLOCK_MONOTONIC nanoseconds.
    fn due(&self) -> Option<u64> {
        None
    }
    /// The address of the node for connections by this driver, with its secret.
    fn address(&self) -> String;
    /// The address of the node for display, without its secret.
    fn shown_address(&self) -> String {
        self.address()
    }
}

/// A connection attempt. To drop it gives the attempt up.
pub trait Connector: Send {
    /// Continues the attempt, without blocking; `None`: it is still under way.
    fn step(&mut self, now: u64) -> Option<Result<Connected, Reason>>;
    /// A descriptor that is readable when `step` would do something; `None`: `step` is called at intervals.
    fn descriptor(&self) -> Option<RawFd>;
}
