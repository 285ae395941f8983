//! Messages: nodes, links, channels, messages and remote memory.
//!
//! A [`Node`] connects to others by name or address, and has a *link* to each, with any number of *channels* over it. What is sent and by which
//! rules is the protocol's matter (`motet_proto::message`, docs/messages.md); how packets reach the peer is a transport's ([`transport`]). This
//! module joins the two to a program: operations and their completions, progress, waiting, threads.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`connect`], [`channels`] | connecting, services, waiting for completions, sleep; opening and closing channels |
//! | [`send`], [`receive`], `blocking` | what a program calls to send and to receive; receives whose thread waits |
//! | [`port`], [`completions`] | what a library calls for every message: unrecorded receives; polls of completion queues |
//! | `fast_send`, `fast_receive`, `pipelined` | the direct path of a message, without an operation |
//! | [`operations`], [`send_cancel`] | operations under way, completions, completion queues; sends that are taken back |
//! | [`loans`], [`loaned`] | messages that are read in the sender's memory |
//! | [`regions`], [`rma`] | memory and files that peers reach by key; gets, puts and atomics on those of peers |
//! | `copy_strategy`, `single_copy` | how long bodies are copied, and copies between the processes |
//! | `progress`, `progress_state`, [`progress_thread`] | the loop that moves everything, which thread runs it, and a thread for when none does |
//! | `wait`, `spin_policy` | waiting for a result, and how long a wait spins |
//! | `node_state`, `links`, `connections`, `message_state` | what is behind the node's lock: all of it, links, connects and services, messages |
//! | `link`, `packets`, [`transport`] | one link; packets on their way in and out; what a driver makes |
//! | `stats`, [`error`] | the stats page that `motet why` reads; errors |
//!
//! To follow a short message that is sent, read [`send`], `fast_send`, `links`, then `motet_proto::message::fast_path` and
//! `motet_wire::message::fifo`. At the receiver read [`completions`], `links`, `fast_receive`, `motet_proto::message::fast_path`, [`operations`].

mod blocking;
pub mod channels;
pub mod completions;
pub mod connect;
mod connections;
mod copy_strategy;
pub mod error;
mod fast_receive;
mod fast_send;
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
mod single_copy;
mod spin_policy;
mod stats;
pub mod transport;
mod wait;

pub use connections::Serve;
pub use error::Error;
pub use motet_proto::message::header_stack::{Stack, pop};
pub use motet_proto::message::{Mode, Status};
pub use operations::{Calls, Completion, CompletionOptions, CompletionRef, CqId};

use crate::driver::Driver;
use message_state::MessageState;
use motet_proto::message::matching;
use motet_proto::message::{ChannelId, Limits, UnexpectedMessage};
use motet_sys::biased_lock::{BiasToken, BiasedLock};
use motet_sys::fork_detect::ForkMark;
use motet_sys::private_fds::{self, PrivateFd};
use motet_sys::rustix::event::epoll;
use motet_sys::{cpu_contention, memory, socket};
use node_state::{Guard, NodeState, Source};
use stats::StatsPage;
use std::net::SocketAddr;
use transport::{Identity, NodeId, Secret};

/// A link of a node, by number. It outlives its link harmlessly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// A channel of a node. It outlives its channel harmlessly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel {
    /// Over which link.
    pub link: LinkId,
    /// Which of that link's.
    pub id: ChannelId,
}

/// An operation of a node. It outlives its operation harmlessly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub u32);

/// Where receives from any channel that was put into it find their messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context(pub(crate) matching::Context);

impl Context {
    /// As a number, for those who hand it through a foreign interface.
    pub fn number(self) -> u32 {
        self.0.number()
    }

    /// The context of a number that anybody may have made up: every use of it is checked.
    pub fn from_number(number: u32) -> Self {
        Self(matching::Context::from_number(number))
    }
}

/// Something for later, outside of any handler. It may wait.
pub type Task = Box<dyn FnOnce(&Node) + Send>;

/// Gets messages as they come, one at a time. It may not wait: what takes time goes into a task ([`Node::defer`]). Sending is
/// allowed and enters no handler; a send that would have to wait is refused.
pub trait Handler: Send + Sync {
    /// A message has come.
    fn message(&self, node: &Node, message: Message<'_>);
}

impl<F: Fn(&Node, Message<'_>) + Send + Sync> Handler for F {
    fn message(&self, node: &Node, message: Message<'_>) {
        self(node, message);
    }
}

/// A message, as a handler sees it.
#[derive(Debug)]
pub struct Message<'a> {
    /// On which channel it came.
    pub channel: Channel,
    /// Its tag.
    pub tag: u64,
    /// Its headers, the outermost first.
    pub headers: &'a [u8],
    /// Its body.
    pub body: Body<'a>,
}

/// The body of a message, as a handler sees it.
#[derive(Debug)]
pub enum Body<'a> {
    /// All of it, for the time of the call.
    Whole(&'a [u8]),
    /// It is still to come: take it ([`Option::take`]) and give it a buffer, now or later ([`Node::accept_body`]); what is left is
    /// discarded.
    Long(&'a mut Option<UnexpectedMessage>),
}

/// How long bodies come to a node over memory that is shared, where their senders show them and the system lets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Bodies {
    /// The way that whole messages have shown to be the fastest, tried anew now and then.
    #[default]
    Measured,
    /// Through the ring: copied by both, once each.
    Ring,
    /// Copied once, by the receiver.
    Copied,
    /// Copied once, some of it by the sender if that makes progress meanwhile.
    CopiedByBoth,
}

/// What a node allows each peer, which bounds what one can cost it, and how it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageLimits {
    /// Bytes of eager messages that were not received yet, with their records, of one link.
    pub window: u64,
    /// Announced messages of one link at a time.
    pub max_rendezvous: u32,
    /// Channels that one peer may have opened at a time.
    pub channels: u32,
    /// Longest eager body, where memory is shared and where it is not.
    pub eager: [u64; 2],
    /// Smallest body that its receiver may copy out of this process's memory; it need not.
    pub single_copy: u64,
    /// How such bodies come to this node.
    pub bodies: Bodies,
    /// Bytes of the node's pool, for loans and regions that peers see: of address space; pages come when they are touched.
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
            bodies: Bodies::Measured,
            pool: 4 << 30,
        }
    }
}

impl MessageLimits {
    /// As the protocol wants them.
    fn of(&self, shm: bool) -> Limits {
        let &Self { window, max_rendezvous, channels, eager, .. } = self;
        let (ahead, reserve) = if shm { (512 << 10, 1024) } else { (1 << 20, 16 << 10) };
        let eager = eager[usize::from(!shm)];
        Limits { window, max_rendezvous, channels, ahead, max_pulls: 4, reserve, eager, requests: 256 }
    }
}

/// What a node is to be.
#[derive(Clone)]
pub struct NodeOptions {
    /// The drivers that it may use, the best first.
    pub drivers: Vec<&'static dyn Driver>,
    /// Its name on this host; empty: a unique one.
    pub name: String,
    /// Where nodes of other regions_here find it; none: they do not.
    pub listen: Option<SocketAddr>,
    /// What those must know; none: a random one, which its address says.
    pub secret: Option<Secret>,
    /// What it allows.
    pub limits: MessageLimits,
    /// Longest wait outside the kernel, ns.
    pub spin: u64,
}

/// The node has been forked from the process that has it (ECHILD).
const INHERITED: Error = Error::NoNode(10);

/// The right to make calls on a node by its lock's biased way ([`Node::bias`]).
#[derive(Debug)]
pub struct Bias(Option<BiasToken>);

/// A process that has joined: the messages' half of the engine.
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
    /// Joins, for any number of threads.
    ///
    /// Errors: [`Error::Unreachable`] when the name is taken or none, or no driver carries messages; [`Error::NoNode`] when the
    /// system refuses descriptors or memory.
    pub fn open(options: &NodeOptions) -> Result<Self, Error> {
        Self::with(options, BiasedLock::new)
    }

    /// Joins, for the thread that calls this alone: its calls pay for no lock, and one from another thread panics.
    pub fn open_single(options: &NodeOptions) -> Result<Self, Error> {
        Self::with(options, BiasedLock::single_threaded)
    }

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
        let identity = Identity { id, name, listen: options.listen, secret };
        let messages = MessageState::new(motet_sys::limits::address_space_share(options.limits.pool))?;
        let mut node = NodeState::new(identity, options.limits, messages, poll, wakeup);
        node.watch(node.progress.wakeup(), Source::Wakeup)?;
        node.listen(&options.drivers)?;
        node.stats = StatsPage::open(&node.identity, node.connections.drivers(), &node.connections.shown_address());
        let process = fork_mark.current();
        Ok(Self { node: lock(node), fork_mark, process, spin: options.spin, poll: outer })
    }

    /// Longest wait outside the kernel now, ns.
    #[inline(always)]
    fn spin(&self) -> u64 {
        if cpu_contention::is_contended() { 0 } else { self.spin }
    }

    /// Whether a fork lies between the process that made it and ours.
    pub fn is_inherited(&self) -> bool {
        self.fork_mark.current() != self.process
    }

    /// The state, locked.
    #[inline(always)]
    fn lock(&self) -> Result<Guard<'_>, Error> {
        self.lock_with(None).map(|(node, _)| node)
    }

    /// Locks the state, without an atomic exchange for the holder of the [`Bias`]. Also returns [`NodeState::quiet`], which is cleared here: a call
    /// that leaves the node as quiet as it was sets it again.
    #[inline(always)]
    fn lock_with(&self, bias: Option<&mut Bias>) -> Result<(Guard<'_>, CqId), Error> {
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

    /// Biases the node's lock to the holder of what this returns, for one call at a time: calls with it make no atomic exchange while no other
    /// thread uses the node. If the lock is biased already, or the system has no barrier, they lock as any other call does.
    pub fn bias(&self) -> Result<Bias, Error> {
        if self.is_inherited() { self.lock().map(|_| Bias(None)) } else { Ok(Bias(self.node.bias())) }
    }

    /// Ends the bias.
    pub fn end_bias(&self, bias: Bias) {
        if let (Some(bias), false) = (bias.0, self.is_inherited()) {
            self.node.end_bias(bias);
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.is_inherited() {
            self.node.abandon(); // it is the parent's
        } else {
            self.node.get_mut().shut_down_links();
        }
    }
}
