//! Transports: what carries a link's packets, and how two nodes connect.
//!
//! There are two kinds. The shared-memory transport is memory that both ends map: the sender writes, the receiver polls, and a count in the
//! receiver's eventfd wakes it. A packet transport is anything else that delivers packets whole, in order and once, or reports that it cannot.
//! The engine does not know which driver has made a transport.

use crate::reason::Reason;
use motet_proto::message::Packets;
use motet_sys::private_fds::PrivateFd;
use motet_sys::{memory, socket};
use motet_wire::message::fifo::payload_ring::{PayloadRx, PayloadTx};
use motet_wire::message::fifo::{FifoRx, FifoTx};
use motet_wire::stream::record::Tx;
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// A node's number: random, another one for each node that ever was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub [u8; 16]);

/// The secret part of a node's address: 64 bits that a connector from another host must present, and
/// 64 that only the node can answer with. Where one of the two is wrong, it is a stranger.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret {
    /// What a caller says.
    pub caller: u64,
    /// What is answered to it.
    pub answer: u64,
}

impl Secret {
    /// Digits of one in an address.
    const DIGITS: usize = 32;

    /// A random one, or why the system gives none.
    pub fn random() -> Result<Self, motet_sys::Errno> {
        Ok(Self { caller: memory::random_u64()?, answer: memory::random_u64()? })
    }

    /// Before a place: `SECRET@PLACE`.
    pub fn before(&self, place: &str) -> String {
        format!("{:016x}{:016x}@{place}", self.caller, self.answer)
    }

    /// What is before a place, if anything is; and the place. `None`: what is there is no secret.
    pub fn split(address: &str) -> Option<(Option<Self>, &str)> {
        match address.split_once('@') {
            Some((digits, place)) => Some((Some(Self::read(digits)?), place)),
            None => Some((None, address)),
        }
    }

    /// From its digits.
    pub fn read(digits: &str) -> Option<Self> {
        if digits.len() != Self::DIGITS || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let [caller, answer] = [0, 16].map(|at| u64::from_str_radix(&digits[at..at + 16], 16));
        Some(Self { caller: caller.ok()?, answer: answer.ok()? })
    }

    /// What was said is what a caller must say. One comparison of words: how long it takes says nothing.
    pub fn is_said(&self, said: u64) -> bool {
        said == self.caller
    }

    /// The same of the answer.
    pub fn is_answered(&self, said: u64) -> bool {
        said == self.answer
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The transport is lost, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost(pub Reason);

/// What carries packets.
#[expect(
    clippy::large_enum_variant,
    reason = "each link has one, in a box; another box would be in the way of every packet"
)]
pub enum Transport {
    /// Memory that both ends map.
    SharedMemory(ShmTransport),
    /// Anything else.
    Packet(Box<dyn PacketTransport>),
}

/// A FIFO each way, with a payload ring beside it whose pages are made when they are needed.
pub struct ShmTransport {
    /// To the peer.
    pub outward: FifoTx,
    /// From the peer.
    pub inward: FifoRx,
    /// The ring of bytes beside each.
    pub bulk: (PayloadTx, PayloadRx),
    /// How bytes get into that ring: [`motet_proto::stream::bulk::CopyModeSelector`].
    pub copying: Box<Tx>,
    /// The eventfd that wakes the peer.
    pub tx_doorbell: PrivateFd,
    /// The one that wakes us.
    pub rx_doorbell: PrivateFd,
    /// The connection on which the two have met. It ends with the peer's process.
    pub control: PrivateFd,
    /// The peer's process, as a descriptor that is readable once it has ended, where the system has that.
    pub process: Option<PrivateFd>,
    /// Its number in our PID namespace, for single copy; 0 when it is not visible, or its memory is not ours to read.
    pub pid: u32,
    /// What must stay as long as the FIFOs do.
    pub keep: Box<dyn std::any::Any + Send>,
}

impl ShmTransport {
    /// Wakes the peer.
    #[cold]
    pub fn ring(&self) {
        socket::ring_eventfd(self.tx_doorbell.as_fd().as_raw_fd());
    }
}

/// A transport that is not memory. [`Packets::put`] hands a packet over or refuses it. A packet that was put arrives once and in order, or the
/// transport is lost.
pub trait PacketTransport: Packets + Send {
    /// The next packet that has come: its kind and its bytes.
    fn poll(&mut self, now: u64) -> Result<Option<(u8, &[u8])>, Lost>;
    /// Moves what is under way: called in every round of progress, and must cost little when there is nothing to do.
    fn progress(&mut self, now: u64) -> Result<(), Lost>;
    /// Readable (as poll(2) has it) whenever `poll` or `progress` would do something: an epoll set of its own, for example.
    fn descriptor(&self) -> RawFd;
    /// When `progress` must be called although the descriptor is silent, CLOCK_MONOTONIC nanoseconds.
    fn due(&self) -> Option<u64> {
        None
    }
    /// Bytes put, bytes taken, and how often what carries them was made anew: for people to see.
    fn counts(&self) -> [u64; 3] {
        [0; 3]
    }
    /// Shuts down after the last packet: what was put is delivered if the peer lives. True when nothing is left to do.
    fn close(&mut self, now: u64) -> bool;
}

/// A connection to another node.
pub struct Connected {
    /// Who the other is.
    pub peer: NodeId,
    /// What there is between them.
    pub transport: Transport,
}

/// Who a node is, as its drivers must know it.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its number.
    pub id: NodeId,
    /// The name under which nodes of this host find it.
    pub name: String,
    /// Where nodes of other hosts find it: `ADDRESS:PORT`, port 0 for any; none: they do not.
    pub listen: Option<std::net::SocketAddr>,
    /// What they must know.
    pub secret: Secret,
}

/// Accepts connections from other nodes. Dropping it stops that.
pub trait Listener: Send {
    /// Readable when `step` would do something.
    fn descriptor(&self) -> RawFd;
    /// Accepts the next connection, without blocking. Refused connections are not reported.
    fn step(&mut self, now: u64) -> Option<Connected>;
    /// When `step` must be called although the descriptor is silent.
    fn due(&self) -> Option<u64> {
        None
    }
    /// Where others find the node, as `call` of this driver understands it: secrets and all.
    fn address(&self) -> String;
    /// The same for people to see, without secrets.
    fn place(&self) -> String {
        self.address()
    }
}

/// A connection attempt. Dropping it gives up.
pub trait Connector: Send {
    /// Goes on, without blocking; `None`: not yet.
    fn step(&mut self, now: u64) -> Option<Result<Connected, Reason>>;
    /// Readable when `step` would do something, if there is such a descriptor; otherwise it is called now and then.
    fn descriptor(&self) -> Option<RawFd>;
}
