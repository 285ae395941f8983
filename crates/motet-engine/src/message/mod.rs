//! The message half of the engine: nodes, links, channels, messages and remote memory.
//!
//! A [`Node`] connects to other nodes by name or address. It has one *link* to each, with any number of *channels* over it. The protocol
//! (`motet_proto::message`, docs/messages.md) decides which packets are sent; a transport ([`transport`]) carries them to the peer. This module
//! connects the two with a program: operations and their completions, progress, waiting, threads.
//!
//! # Files
//!
//! | file | what it holds |
//! | --- | --- |
//! | [`connect`] | calls to connect to nodes, to serve channels, to wait for completions, and to sleep on a node's descriptor |
//! | [`channels`] | calls to open and to close channels |
//! | [`send`], [`send_cancel`] | calls to send messages; calls that take the body of an unfinished send back |
//! | [`receive`] | calls to receive, to probe, and to cancel operations |
//! | `blocking` | receives whose calling thread waits for the message |
//! | [`port`] | receives without a record, for libraries that post many of them |
//! | [`completions`] | polls of completion queues |
//! | [`loans`], [`loaned`] | messages that the receiver reads in place; such a message at its receiver |
//! | [`regions`] | regions: memory and files that peers reach by key |
//! | `regions/local`, `regions/files` | the memory of this node's regions; regions over files |
//! | `regions/bytes`, `regions/mapped` | reads, writes and atomics on a region's bytes; regions in memory that both processes map |
//! | `regions/segments` | the segments that each end of a link has announced to the other |
//! | [`rma`] | gets, puts and atomics on the regions of peers |
//! | [`error`] | errors |
//! | [`file_bodies`] | messages whose body is a range of a file |
//! | `fast_send`, `fast_receive` | the direct path of a message at the sender and at the receiver |
//! | `pipelined` | messages that the receiver copies while the sender still writes them |
//! | [`operations`] | operations that are under way, and their completions |
//! | `operations/record`, `operations/buffers` | the record of an operation; receives without a record |
//! | `operations/completion_queues`, `operations/blocking` | completion queues; the completion queue of blocking receives |
//! | `operations/tests` | tests of operations |
//! | `copy_strategy` | the choice of how long bodies are copied |
//! | `single_copy`, `single_copy/pending` | copies between the memory of the two processes; those that wait |
//! | `progress`, `progress_state` | the loop that polls links and handles packets; which thread runs it, and what wakes it |
//! | [`progress_thread`] | the thread that makes progress while the program makes none |
//! | `wait`, `spin_policy` | waits for a result; how long a wait spins before it sleeps |
//! | `node_state` | everything that is behind the node's lock |
//! | `links`, `link` | all links of a node; one link |
//! | `connections` | listeners, connects under way, services and handlers |
//! | `message_state` | the state that all links share, and the callbacks of the protocol |
//! | `packets`, [`transport`] | packets on their way into and out of a transport; transports and how drivers make them |
//! | `stats` | the stats page that `motet why` reads |
//!
//! # To follow a short message
//!
//! Read downwards. At the sender, for [`Node::try_inject`]:
//!
//! 1. [`send`]: the call; it takes the lock in `Node::lock_with` of this file.
//! 2. `fast_send`: the direct path.
//! 3. `links` and `link`: from the channel's link to its state and its transport.
//! 4. `motet_proto::message::fast_path`: checks credit and writes the packet head.
//! 5. `motet_wire::message::fifo`: writes the cell, and says whether the peer's doorbell must be rung.
//!
//! At the receiver, for [`Node::post`] or [`Node::post_unrecorded`] followed by [`Node::poll_cq`]:
//!
//! 1. [`receive`] or [`port`]: posts the receive.
//! 2. [`completions`]: the poll of the completion queue.
//! 3. `links`: which active link has a packet.
//! 4. `fast_receive`: the direct path.
//! 5. `motet_wire::message::fifo`: reads the cell.
//! 6. `motet_proto::message::fast_path` and `motet_proto::message::matching`: find the receive that gets the message.
//! 7. [`operations`], `operations/buffers`: copies the body and reports the completion.

mod blocking;
pub mod channels;
mod completion_queue;
pub mod completions;
pub mod connect;
mod connections;
mod copy_strategy;
pub mod error;
mod fast_receive;
mod fast_send;
pub mod file_bodies;
mod link;
mod links;
pub mod loaned;
pub mod loans;
mod message_state;
mod node_state;
pub mod operations;
mod packets;
mod pipelined;
pub mod port;
mod progress;
mod progress_state;
pub mod progress_thread;
pub mod receive;
pub mod regions;
pub mod rma;
pub mod send;
pub mod send_cancel;
mod services;
mod single_copy;
mod sleep;
mod spin_policy;
mod stats;
pub mod transport;
mod wait;

pub use connections::Serve;
pub use error::Error;
pub use motet_proto::message::header_stack::{Stack, pop};
pub use motet_proto::message::{FileRange, Mode, Status};
pub use operations::{Completion, CompletionOptions, CompletionRef, CqId, SinkFn};

use crate::driver::Driver;
use message_state::MessageState;
use motet_proto::message::matching;
use motet_proto::message::{ChannelId, Limits, UnexpectedMessage};
use motet_sys::biased_lock::{BiasToken, BiasedLock};
use motet_sys::fork_detect::ForkMark;
use motet_sys::private_fds::{self, PrivateFd};
use motet_sys::rustix::event::epoll;
use motet_sys::{cpu_contention, memory, socket};
use node_state::{EventSource, NodeGuard, NodeState};
use stats::StatsPage;
use std::net::SocketAddr;
use transport::{Identity, NodeId, Secret};

/// The number of a link of a node. After the link was closed or forgotten, it names no link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// The numbers of a channel of a node. After the channel was closed, they name no channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel {
    /// The link that it belongs to.
    pub link: LinkId,
    /// The channel's number on that link.
    pub id: ChannelId,
}

/// The number of an operation of a node. After its completion was taken, it names no operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub u32);

/// A set of channels; a receive from the context accepts a message from any of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context(pub(crate) matching::Context);

impl Context {
    /// The number of the context, for foreign interfaces.
    pub fn number(self) -> u32 {
        self.0.number()
    }

    /// The context of a number. The number may be invalid: every use of the context is checked.
    pub fn from_number(number: u32) -> Self {
        Self(matching::Context::from_number(number))
    }
}

/// A task for [`Node::defer`]. It runs outside of any handler, and may wait.
pub type Task = Box<dyn FnOnce(&Node) + Send>;

/// A handler gets the messages of a channel as they arrive, one at a time. It may not wait: work that takes time goes into a task
/// ([`Node::defer`]). It may send; no handler runs inside of a send, and a send that would have to wait fails.
pub trait Handler: Send + Sync {
    /// Handles a message that has arrived.
    fn message(&self, node: &Node, message: Message<'_>);
}

impl<F: Fn(&Node, Message<'_>) + Send + Sync> Handler for F {
    fn message(&self, node: &Node, message: Message<'_>) {
        self(node, message);
    }
}

/// A message for a handler.
#[derive(Debug)]
pub struct Message<'a> {
    /// The channel on which it arrived.
    pub channel: Channel,
    /// Its tag.
    pub tag: u64,
    /// Its headers, the outermost first.
    pub headers: &'a [u8],
    /// Its body.
    pub body: Body<'a>,
}

/// The body of a message for a handler.
#[derive(Debug)]
pub enum Body<'a> {
    /// The whole body; the bytes are valid during the call of the handler.
    Whole(&'a [u8]),
    /// A body that has not arrived. To receive it, take the value ([`Option::take`]) and give it a buffer, now or later ([`Node::accept_body`]). A
    /// value that the handler leaves is discarded with its message.
    Long(&'a mut Option<UnexpectedMessage>),
}

/// How long bodies are transferred to a node over shared memory. A choice of copies applies where senders give the address of the body and the
/// system allows the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BodyPath {
    /// By the strategy that was measured to be the fastest; the measurements are repeated from time to time.
    #[default]
    Measured,
    /// Through the payload ring: copied twice, by the sender and by the receiver.
    Ring,
    /// Copied once, by the receiver, out of the sender's memory.
    SingleCopy,
    /// Copied once, by the receiver and, if it makes progress meanwhile, in part by the sender.
    CooperativeCopy,
}

/// The limits of a node: what it allows each peer, which bounds the memory that a peer can make it hold, and how it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageLimits {
    /// Bytes of eager messages of one link that were not received yet, with their records.
    pub window: u64,
    /// Rendezvous messages of one link at a time, and long eager messages that are still arriving.
    pub max_rendezvous: u32,
    /// Channels that one peer may have open at a time.
    pub channels: u32,
    /// Longest eager body, bytes: over shared memory, and over packet transports.
    pub eager: [u64; 2],
    /// Shortest body, bytes, that its receiver may copy out of the memory of this process.
    pub single_copy: u64,
    /// How long bodies are transferred to this node.
    pub body_path: BodyPath,
    /// Bytes of address space of the node's pool, for loans and regions that peers map. Pages are allocated when they are touched.
    pub pool: usize,
}

impl Default for MessageLimits {
    fn default() -> Self {
        Self {
            window: (1 << 20) + (16 << 10), // 16 bodies of the longest eager length, with what is counted for their records
            max_rendezvous: 1024,
            channels: 16_384,
            eager: [64 << 10, 64 << 10],
            single_copy: 128 << 10,
            body_path: BodyPath::Measured,
            pool: 4 << 30,
        }
    }
}

impl MessageLimits {
    /// The limits of the protocol for a link; `shm`: over shared memory.
    fn of(&self, shm: bool) -> Limits {
        let &Self { window, max_rendezvous, channels, eager, .. } = self;
        let (ahead, reserve) = if shm { (512 << 10, 1024) } else { (1 << 20, 16 << 10) };
        let eager = eager[usize::from(!shm)];
        Limits { window, max_rendezvous, channels, ahead, max_pulls: 4, reserve, eager, requests: 256 }
    }
}

/// The options with which a node is opened.
#[derive(Clone)]
pub struct NodeOptions {
    /// The drivers that it may use, in order of preference.
    pub drivers: Vec<&'static dyn Driver>,
    /// Its name on this host; empty: the node gets a unique name.
    pub name: String,
    /// The address at which it listens for nodes of other hosts; `None`: it does not listen for them.
    pub listen: Option<SocketAddr>,
    /// The secret that nodes of other hosts must know; `None`: a random one. The node's address contains it.
    pub secret: Option<Secret>,
    /// Nodes of other users of this host may connect if they know the secret, and this one connects to theirs. Only for drivers that share no memory.
    pub other_users: bool,
    /// What it allows its peers, and how it sends.
    pub limits: MessageLimits,
    /// Longest time that a wait spins before it sleeps in the kernel, ns.
    pub spin: u64,
}

/// The error (ECHILD) of calls in a forked child on a node that its parent has opened.
const INHERITED: Error = Error::NoNode(10);

/// The right to take a node's biased lock without an atomic exchange ([`Node::bias`]). It may hold no right: then calls with it lock as any other.
#[derive(Debug)]
pub struct Bias(Option<BiasToken>);

/// A node: this process, or a part of it, as a peer of other nodes, with its own links, channels and regions.
pub struct Node {
    node: BiasedLock<NodeState>,
    fork_mark: ForkMark,
    process: u32,
    spin: u64,
    poll: PrivateFd,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Node {
    /// Opens a node for use by any number of threads.
    ///
    /// Errors: [`Error::Unreachable`] if the name is invalid or taken, or if no driver carries messages; [`Error::NoNode`] if the system refuses
    /// descriptors or memory.
    pub fn open(options: &NodeOptions) -> Result<Self, Error> {
        Self::with(options, BiasedLock::new)
    }

    /// Opens a node for use by the calling thread only: calls take no lock, and a call from another thread panics.
    ///
    /// Errors: those of [`Node::open`].
    pub fn open_single(options: &NodeOptions) -> Result<Self, Error> {
        Self::with(options, BiasedLock::single_threaded)
    }

    /// Opens a node whose state is behind the lock that `lock` makes.
    fn with(options: &NodeOptions, lock: impl FnOnce(NodeState) -> BiasedLock<NodeState>) -> Result<Self, Error> {
        let fork_mark = ForkMark::of_this_process().map_err(Error::NoNode)?;
        let system = |e: motet_sys::rustix::io::Errno| Error::NoNode(e.raw_os_error());
        let poll = PrivateFd::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?);
        let outer = PrivateFd::new(private_fds::duplicate(&poll).map_err(system)?);
        let wakeup = PrivateFd::new(socket::eventfd().map_err(Error::NoNode)?);
        let id = NodeId(memory::nonce().map_err(Error::NoNode)?);
        let name = match options.name.as_str() {
            "" => format!("@{:032x}", u128::from_le_bytes(id.0)),
            name => name.to_owned(),
        };
        let secret = options.secret.map_or_else(Secret::random, Ok).map_err(Error::NoNode)?;
        let (listen, other_users) = (options.listen, options.other_users);
        let identity = Identity { id, name, listen, secret, other_users, folder: None };
        let messages = MessageState::new(motet_sys::limits::address_space_share(options.limits.pool))?;
        let mut node = NodeState::new(identity, options.limits, messages, poll, wakeup);
        node.watch(node.progress.wakeup(), EventSource::Wakeup)?;
        node.listen(&options.drivers)?;
        node.stats = StatsPage::open(&node.identity, node.connections.drivers(), &node.connections.shown_address());
        let process = fork_mark.current();
        Ok(Self { node: lock(node), fork_mark, process, spin: options.spin, poll: outer })
    }

    /// Longest time that a wait may spin at present, ns: 0 on oversubscribed CPUs.
    #[inline(always)]
    fn spin(&self) -> u64 {
        if cpu_contention::is_contended() { 0 } else { self.spin }
    }

    /// Whether this process is a forked child of the process that opened the node.
    pub fn is_inherited(&self) -> bool {
        self.fork_mark.current() != self.process
    }

    /// Locks the node's state. [`Error::NoNode`] in a forked child.
    #[inline(always)]
    fn lock(&self) -> Result<NodeGuard<'_>, Error> {
        self.lock_with(None).map(|(node, _)| node)
    }

    /// Locks the node's state, without an atomic exchange for the holder of the [`Bias`]. Also returns the value of [`NodeState::quiet`] and clears
    /// it: a call that leaves the node as quiet as it was sets it again.
    #[inline(always)]
    fn lock_with(&self, bias: Option<&mut Bias>) -> Result<(NodeGuard<'_>, CqId), Error> {
        if self.is_inherited() {
            return Err(INHERITED);
        }
        let mut node = match bias {
            Some(Bias(Some(bias))) => self.node.lock_biased(bias),
            _ => self.node.lock(),
        };
        let quiet = std::mem::replace(&mut node.quiet, CqId::NONE);
        Ok((node, quiet))
    }

    /// Biases the node's lock to the holder of the returned [`Bias`], for one call at a time: calls with it make no atomic exchange while no other
    /// thread uses the node. If the lock is biased already, or if the system has no process-wide memory barrier, they lock as any other call does.
    pub fn bias(&self) -> Result<Bias, Error> {
        if self.is_inherited() { self.lock().map(|_| Bias(None)) } else { Ok(Bias(self.node.bias())) }
    }

    /// Ends a bias of the node's lock.
    pub fn end_bias(&self, bias: Bias) {
        if let (Some(bias), false) = (bias.0, self.is_inherited()) {
            self.node.end_bias(bias);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.is_inherited() {
            self.node.abandon(); // the state and its descriptors belong to the parent
        } else {
            self.node.get_mut().shut_down_links();
        }
    }
}
