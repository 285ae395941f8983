//! Messages between nodes, in Rust: the calls of a [`Node`], with memory that the compiler checks.
//!
//! ```
//! use motet::node::{Node, Serve};
//! use std::time::Duration;
//!
//! let (near, far) = (Node::open("")?, Node::open("")?);
//! far.serve(7, Serve::Queue)?;
//! std::thread::scope(|scope| {
//!     scope.spawn(|| {
//!         let channel = far.accept(7, Some(Duration::from_secs(10)))?;
//!         let mut bytes = [0; 16];
//!         let received = far.receive(channel, &mut bytes, None)?;
//!         far.send(channel, received.tag + 1, &bytes[..received.length], None)
//!     });
//!     let link = near.connect(&far.address()?, Some(Duration::from_secs(10)))?;
//!     let channel = near.open_channel(link, 7, Serve::Queue, Some(Duration::from_secs(10)))?;
//!     near.send(channel, 1, b"hello", None)?;
//!     let mut bytes = [0; 16];
//!     let received = near.receive(channel, &mut bytes, None)?;
//!     assert_eq!((received.tag, &bytes[..received.length]), (2, &b"hello"[..]));
//!     Ok::<(), motet::node::Error>(())
//! })?;
//! # Ok::<(), motet::node::Error>(())
//! ```
//!
//! Calls that wait take a time limit (`None`: wait without one) or a deadline in nanoseconds of CLOCK_MONOTONIC ([`deadline_in`]); both fail
//! with [`Error::TimedOut`].
//!
//! | module | calls |
//! | --- | --- |
//! | this one | open a node, make progress, sleep, shut down |
//! | `links` | links, services, channels, contexts, handlers |
//! | `messages` | send and receive |
//! | `completions` | started operations and completion queues |
//! | `regions` | memory that peers access by key, and theirs |
//! | `loans` | messages that are sent and received without a copy |

mod borrowed_memory;
mod completions;
mod links;
mod loans;
mod messages;
mod regions;

pub use loans::{Content, InPlace};
pub use messages::Received;
pub use motet_engine::message::file_bodies::is_cached;
pub use motet_engine::message::loans::{Loan, LoanCounts, LoanedMessage, PeerBytes};
pub use motet_engine::message::operations::{Buffer, CompletionSink, ReceiveResult};
pub use motet_engine::message::receive::{PeekedMessage, RecvFrom};
pub use motet_engine::message::regions::mapped::Mapped;
pub use motet_engine::message::regions::{Atomic, Datatype, Key, Operation, Rights, SharedBytes};
pub use motet_engine::message::rma::{RemoteLimits, Target};
pub use motet_engine::message::send::Outgoing;
pub use motet_engine::message::transport::{NodeId, Secret};
pub use motet_engine::message::{
    Bias, Body, BodyPath, Channel, Completion, CompletionOptions, CompletionRef, Context, CqId, Error, FileRange,
    LinkId, Message, MessageLimits, Mode, NodeOptions, OperationId, Serve, Stack, Status, pop,
};
pub use motet_proto::message::UnexpectedMessage;
pub use motet_sys::user_memory::{OperationMemory, UserMemory};

use crate::driver_table;
use motet_engine::message::Node as EngineNode;
use motet_engine::now;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// An endpoint of this process for messages and remote memory. Dropping it closes every link, channel and operation of it.
#[derive(Debug)]
#[repr(transparent)] // borrowed_memory::node_of
pub struct Node(EngineNode);

impl Node {
    /// Opens a node with the settings of environment and file, under a name of this host: 1 to 64 letters, digits and `. _ - @`. An empty
    /// name stands for a unique one.
    pub fn open(name: &str) -> Result<Self, Error> {
        Self::with(&options(name, None))
    }

    /// Opens a node that nodes of other hosts can connect to at `listen` (port 0: any), otherwise as [`Node::open`] does.
    pub fn listen(name: &str, listen: SocketAddr) -> Result<Self, Error> {
        Self::with(&options(name, Some(listen)))
    }

    /// Opens a node with these options; [`options`] makes the default ones.
    pub fn with(options: &NodeOptions) -> Result<Self, Error> {
        EngineNode::open(options).map(Self)
    }

    /// Opens a node for this thread only. Its calls take no lock; a call from another thread panics.
    pub fn single(options: &NodeOptions) -> Result<Self, Error> {
        EngineNode::open_single(options).map(Self)
    }

    /// The engine's node as one of this crate (motet-capi).
    pub fn of_engine(node: Arc<EngineNode>) -> Arc<Self> {
        borrowed_memory::shared_node_of(node)
    }

    /// Its identity, which no other node has.
    #[inline]
    pub fn id(&self) -> Result<NodeId, Error> {
        self.0.id()
    }

    /// The name under which nodes of this host find it.
    #[inline]
    pub fn name(&self) -> Result<String, Error> {
        self.0.name()
    }

    /// Listens for nodes that meet in this folder, too, and finds them there. Processes that see the folder, such as those of two containers of one
    /// user, reach each other although their network namespaces differ.
    pub fn listen_in(&self, folder: &Path) -> Result<(), Error> {
        self.0.listen_in(folder)
    }

    /// The full address, for [`Node::connect`] of other nodes. It contains the secret: give it only to processes that may connect.
    #[inline]
    pub fn address(&self) -> Result<String, Error> {
        self.0.address()
    }

    /// Listens for nodes of other hosts at this address (port 0: any), from now on; [`Node::address`] then includes it. A node that listens for them
    /// already goes on as it is.
    pub fn listen_for_hosts(&self, address: SocketAddr) -> Result<(), Error> {
        self.0.listen_for_hosts(address)
    }

    /// Makes one round of progress, unless another thread makes progress. True: something arrived or was done.
    #[inline]
    pub fn progress(&self) -> Result<bool, Error> {
        self.0.progress()
    }

    /// Makes progress until `ready` returns true, which is called after every round; it must not use the node. Rounds happen while something
    /// arrives at this node. An event elsewhere in the process does not wake this call; [`Node::defer`] does.
    #[inline]
    pub fn progress_until(&self, ready: impl FnMut() -> bool, deadline: Option<u64>) -> Result<(), Error> {
        self.0.progress_until(ready, deadline)
    }

    /// Runs `task` once, outside of any handler, in the thread that makes progress next. It may wait.
    #[inline]
    pub fn defer(&self, task: impl FnOnce(&Self) + Send + 'static) -> Result<(), Error> {
        self.0.defer(Box::new(move |node| task(borrowed_memory::node_of(node))))
    }

    /// A descriptor for poll and epoll. It becomes readable when there is progress to make, once [`Node::arm`] has returned true. Do not read
    /// from it.
    #[inline]
    pub fn descriptor(&self) -> RawFd {
        self.0.descriptor()
    }

    /// Prepares a sleep on [`Node::descriptor`]. False: there is progress to make already.
    #[inline]
    pub fn arm(&self) -> Result<bool, Error> {
        self.0.arm()
    }

    /// Makes progress whenever the program has made none for 10 ms, until [`Node::shut_down`]: call it in a thread of its own. Handlers and
    /// deferred tasks run in that thread.
    #[inline]
    pub fn run_progress_thread(&self) {
        self.0.run_progress_thread();
    }

    /// Ends all waits, those of other threads and later ones: they fail with [`Error::NoNode`]. Tells peers what they still wait for, such as
    /// that their long messages were received.
    #[inline]
    pub fn shut_down(&self) -> Result<(), Error> {
        self.0.shut_down()
    }
}

/// The default options of a node: the settings of environment and file.
pub fn options(name: &str, listen: Option<SocketAddr>) -> NodeOptions {
    let config = crate::config();
    let drivers = driver_table::DRIVERS.iter().copied().filter(|driver| config.drivers.allows(driver.name())).collect();
    NodeOptions {
        drivers,
        name: name.to_owned(),
        listen,
        secret: None,
        other_users: false,
        limits: MessageLimits::default(),
        spin: config.spin,
    }
}

/// The deadline `ns` nanoseconds from now, in nanoseconds of CLOCK_MONOTONIC.
pub fn deadline_in(ns: u64) -> u64 {
    now().saturating_add(ns)
}

#[inline(always)]
fn deadline(limit: Option<Duration>) -> Option<u64> {
    limit.map(|limit| now().saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)))
}

/// The two calls of the C interface on the engine's node that lend memory for the time of a call (motet-capi).
pub mod blocking {
    use super::{EngineNode, Error, Mode, Outgoing, ReceiveResult, RecvFrom, UserMemory, borrowed_memory};

    /// Sends as [`super::Node::send_with`] does, until CLOCK_MONOTONIC passes `deadline` (ns).
    #[inline]
    pub fn send_until(
        node: &EngineNode,
        message: &Outgoing<'_>,
        body: &[&[u8]],
        deadline: Option<u64>,
    ) -> Result<(), Error> {
        if message.mode != Mode::Synchronous {
            match node.inject(message, body, deadline) {
                Err(Error::TooLong) if message.mode == Mode::Automatic => {}
                sent => return sent,
            }
        }
        borrowed_memory::send(node, message, body, deadline)
    }

    /// Receives into `span`, which the caller guarantees until this returns, until CLOCK_MONOTONIC passes `deadline` (ns). How the receive has
    /// completed is its status: a message that is too long is no error here.
    #[inline]
    pub fn receive_until(
        node: &EngineNode,
        selector: (RecvFrom, u64, u64),
        span: UserMemory,
        headers: Option<&mut Vec<u8>>,
        deadline: Option<u64>,
    ) -> Result<ReceiveResult, Error> {
        borrowed_memory::receive(node, selector, span, headers, deadline)
    }
}
