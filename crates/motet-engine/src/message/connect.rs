//! Connecting to other nodes, services for their channels, waiting for completions, and sleep on a node's descriptor.
//!
//! Deadlines are CLOCK_MONOTONIC nanoseconds; `None` means for ever.
//!
//! An address is one or more addresses of drivers, separated by commas, each `DRIVER://WHERE`; a bare word is a name on this host. Every
//! address is tried, that of the fastest driver first. If all fail, the error is that of the last one.

use super::connections::PendingConnect;
use super::message_state::ChannelPhase;
use super::node_state::{Guard, NodeState};
use super::operations::{Completion, CompletionQueue, CqId};
use super::stats::ConnectHistory;
use super::transport::NodeId;
use super::{Channel, Context, Error, Handler, LinkId, Node, OperationId, Serve, Task};
use crate::driver::Driver;
use crate::reason::Reason;
use motet_proto::message::matching::Source;
use motet_proto::message::slab::SlabId;
use motet_sys::clock;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// The driver of a bare word.
const BY_NAME: &str = "shm";
/// Between two tries to reach a node that is not there yet, ns.
const RETRY: u64 = 1_000_000;

/// What a link is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkInfo {
    /// Who is at the other end.
    pub peer: NodeId,
    /// The driver that carries it.
    pub driver: &'static str,
    /// Why it is gone, if it is.
    pub gone: Option<Reason>,
    /// Most bytes of headers and body that [`Node::inject`] takes.
    pub inject: usize,
    /// Channels, long messages coming, long messages going.
    pub counts: [u32; 3],
    /// Bytes held for it: records, and eager messages that were not received yet.
    pub bytes: [usize; 2],
    /// Bodies copied out of the peer's memory, and those of which the peer has copied some.
    pub copied: [u64; 2],
}

impl Node {
    /// The node's number.
    pub fn id(&self) -> Result<NodeId, Error> {
        Ok(self.lock()?.identity.id)
    }

    /// Under which name nodes of this host find it.
    pub fn name(&self) -> Result<String, Error> {
        Ok(self.lock()?.identity.name.clone())
    }

    /// The addresses of this node, as [`Node::connect`] of another node takes them.
    pub fn address(&self) -> Result<String, Error> {
        Ok(self.lock()?.connections.address())
    }

    // ---- links -------------------------------------------------------------------------------------------------------

    /// A link to the node at `address`. With a deadline, one that is not there yet is waited for.
    pub fn connect(&self, address: &str, deadline: Option<u64>) -> Result<LinkId, Error> {
        loop {
            let call = self.begin_connect(address)?;
            match self.wait(self.lock()?, deadline, |node| node.connections.take_result(call)) {
                Ok(Ok(link)) => return Ok(link),
                Ok(Err(Reason::NO_SUCH_NODE)) if deadline.is_some_and(|until| clock::nanoseconds() < until) => {
                    let again = clock::nanoseconds() + RETRY;
                    let _ = self.wait(self.lock()?, Some(again), |_| None::<()>);
                }
                Ok(Err(reason)) => {
                    self.lock()?.stats.failed(reason);
                    return Err(Error::Unreachable(reason));
                }
                Err(error) => {
                    let mut node = self.lock()?;
                    // Another thread may have driven it to its end meanwhile.
                    if let Some(Ok(link)) = node.connections.take_result(call) {
                        return Ok(link);
                    }
                    node.connections.drop_pending(call);
                    return Err(error);
                }
            }
        }
    }

    fn begin_connect(&self, address: &str) -> Result<SlabId, Error> {
        let mut node = self.lock()?;
        let mut how = ConnectHistory { called: true, refused: Vec::new() };
        let mut ways = ways(node.connections.drivers(), address, &mut how)?;
        let mut reason = Reason::NO_SUCH_NODE;
        while let Some((driver, place)) = ways.pop_front() {
            match driver.connect_node(&node.identity, &place) {
                Ok(calling) => {
                    let call = PendingConnect { connector: Some(calling), driver, rest: ways, how, result: None };
                    let number = node.connections.add_pending(call).ok_or(Error::Full)?;
                    self.step_connects(&mut node);
                    return Ok(number);
                }
                Err(refused) => {
                    how.refused(driver.name(), refused);
                    reason = refused;
                }
            }
        }
        node.stats.failed(reason);
        Err(Error::Unreachable(reason))
    }

    /// Links, up or gone and not closed yet. One that a peer has begun and that is gone is forgotten by itself once no message of it waits and
    /// the program has no channel of it that it has opened or accepted.
    pub fn links(&self) -> Result<Vec<LinkId>, Error> {
        Ok(self.lock()?.links.all())
    }

    /// What a link is like.
    pub fn link_info(&self, link: LinkId) -> Result<LinkInfo, Error> {
        use motet_proto::message::{Packets, packet};
        let mut node = self.lock()?;
        let eager = node.limits.eager;
        let (link_state, messages) = node.link(link)?;
        let eager = eager[usize::from(link_state.shm().is_none())] as usize;
        let largest = link_state.with(link, messages, |_, way, _| way.largest());
        let (records, window) = link_state.proto.bytes();
        Ok(LinkInfo {
            peer: link_state.peer,
            driver: link_state.driver,
            gone: link_state.gone,
            inject: (largest - packet::MESSAGE).min(eager),
            counts: link_state.proto.counts(),
            bytes: [records, window],
            copied: [link_state.copies.done[0], link_state.copies.helped],
        })
    }

    /// Ends a link, with all that is under way on it. What was sent before and is complete reaches the peer if it lives.
    pub fn disconnect(&self, link: LinkId) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.link(link)?;
        node.forget(link);
        node.notify();
        Ok(())
    }

    // ---- services ----------------------------------------------------------------------------------------------------

    /// A context, for receives from any of its channels.
    pub fn context(&self) -> Result<Context, Error> {
        self.lock()?.messages.table.add_context().map(Context).ok_or(Error::Full)
    }

    /// Forgets a context. [`Error::WouldBlock`], and nothing is done, while channels or receives are in it.
    pub fn remove_context(&self, context: Context) -> Result<(), Error> {
        let mut node = self.lock()?;
        let table = &mut node.messages.table;
        match table.has_context(context.0) {
            false => Err(Error::Unknown),
            true if table.remove_source(Source::Any(context.0)) => Ok(()),
            true => Err(Error::WouldBlock),
        }
    }

    /// Keeps a handler, for [`Serve::Handler`].
    pub fn handler(&self, handler: Arc<dyn Handler>) -> Result<Serve, Error> {
        self.lock()?.connections.add_handler(handler).map(Serve::Handler).ok_or(Error::Full)
    }

    /// Forgets a handler: it is not entered any more, and messages for it are discarded. It may be running.
    pub fn remove_handler(&self, handler: u32) -> Result<(), Error> {
        let mut node = self.lock()?;
        let handler = node.connections.remove_handler(handler).ok_or(Error::Unknown)?;
        drop(node);
        drop(handler); // whatever that does, it does without the lock
        Ok(())
    }

    /// Lets peers open channels to a service. The latest call wins; channels that are open stay as they are.
    pub fn serve(&self, service: u64, serve: Serve) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.can_serve(serve)?;
        node.connections.set_service(service, serve);
        Ok(())
    }

    /// Refuses channels to a service from now on.
    pub fn withdraw(&self, service: u64) -> Result<(), Error> {
        self.lock()?.connections.remove_service(service);
        Ok(())
    }

    /// The next channel that a peer has opened to a service.
    pub fn accept(&self, service: u64, deadline: Option<u64>) -> Result<Channel, Error> {
        let known = |node: &mut NodeState| {
            let opened = node.connections.next_opened(service)?;
            if let Some(place) = opened.and_then(|channel| node.place(channel.link, channel.id)) {
                place.taken = true;
            }
            Some(opened)
        };
        self.wait(self.lock()?, deadline, |node| match known(node) {
            Some(channel) => channel.map(Ok),
            None => Some(Err(Error::Refused)),
        })?
    }

    /// Runs a task later, outside of any handler, in the next thread that makes progress.
    pub fn defer(&self, task: Task) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.progress.add_task(task);
        node.notify();
        Ok(())
    }

    // ---- progress and waiting ----------------------------------------------------------------------------------------

    /// One round of progress, unless another thread makes some. True: something has come.
    pub fn progress(&self) -> Result<bool, Error> {
        let mut node = self.lock()?;
        Ok(!node.progress.is_running() && self.poll_all(&mut node))
    }

    /// Makes one round of progress. No other thread may be making any.
    #[inline(never)]
    pub(super) fn poll_all(&self, node: &mut Guard<'_>) -> bool {
        node.progress.start();
        node.progress.program_wakes();
        if node.progress.wake() {
            self.ask(node, Some(0)); // the caller has slept on the node's descriptor
            node.links.resume_parked();
        }
        let came = self.round(node);
        node.progress.stop();
        node.progress.wake_one();
        came
    }

    /// Waits for the end of one operation; it is forgotten then.
    #[inline]
    pub fn wait_for(&self, operation: OperationId, deadline: Option<u64>) -> Result<Completion, Error> {
        self.wait(self.lock()?, deadline, |node| match node.messages.operations.take(operation) {
            Some(completion) => Some(Ok(completion)),
            None if node.messages.operations.has_ended(operation) => Some(Err(Error::Unknown)),
            None => None,
        })?
    }

    /// Waits for the end of any of these; it is forgotten then. With it, its place among them.
    pub fn wait_any(&self, operations: &[OperationId], deadline: Option<u64>) -> Result<(usize, Completion), Error> {
        self.wait(self.lock()?, deadline, |node| {
            let mut known = false;
            for (at, &operation) in operations.iter().enumerate() {
                if let Some(completion) = node.messages.operations.take(operation) {
                    return Some(Ok((at, completion)));
                }
                known |= !node.messages.operations.has_ended(operation);
            }
            if known { None } else { Some(Err(Error::Unknown)) }
        })?
    }

    /// Waits for the next completion of a completion queue. [`Error::Interrupted`] after [`Node::signal_cq`].
    #[inline]
    pub fn wait_cq(&self, cq: CqId, deadline: Option<u64>) -> Result<Completion, Error> {
        self.wait(self.lock()?, deadline, |node| match node.messages.operations.next_completion(cq) {
            Ok(None) => node.messages.operations.cq(cq).and_then(CompletionQueue::interrupted),
            end => end.transpose(),
        })?
    }

    /// The next completion of a completion queue, if there is one. Makes no progress.
    pub fn test_cq(&self, cq: CqId) -> Result<Option<Completion>, Error> {
        self.lock()?.messages.operations.next_completion(cq)
    }

    /// Waits until `done` operations of a completion queue have succeeded, or more than `failed` have failed.
    pub fn wait_counts(&self, cq: CqId, done: u64, failed: u64, deadline: Option<u64>) -> Result<(), Error> {
        self.wait(self.lock()?, deadline, |node| match node.messages.operations.cq(cq) {
            Some(known) if known.counts[0] >= done || known.counts[1] > failed => Some(Ok(())),
            Some(known) => known.interrupted(),
            None => Some(Err(Error::Unknown)),
        })?
    }

    /// Interrupts one thread that waits for a completion queue, or the next one that would.
    pub fn signal_cq(&self, cq: CqId) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.messages.operations.cq(cq).ok_or(Error::Unknown)?.signalled = true;
        node.notify();
        Ok(())
    }

    /// To be called before the node is dropped: sends what peers are owed, such as that their long messages were received, and ends all waits,
    /// present and later ones: they fail with [`Error::NoNode`].
    pub fn shut(&self) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.progress.close();
        node.flush_all();
        node.wake_waiters();
        node.progress.ring_wakeup(); // whether or not anybody is known to sleep
        Ok(())
    }

    /// Makes progress until `ready` says so, which is asked after every round: what a handler has set, say. There are rounds as long as
    /// something comes to this node; of what changes elsewhere, in another node of this process say, nothing wakes it ([`Node::defer`]
    /// does). `ready` may not use the node. When it panics, so does this call, and others go on.
    pub fn until(&self, mut ready: impl FnMut() -> bool, deadline: Option<u64>) -> Result<(), Error> {
        let asked = self.wait(self.lock()?, deadline, |_| match catch_unwind(AssertUnwindSafe(&mut ready)) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(panic) => Some(Err(panic)),
        })?;
        asked.map_err(|panic| resume_unwind(panic))
    }

    /// The end of an operation, if it has ended; progress is not made.
    pub fn test(&self, operation: OperationId) -> Result<Option<Completion>, Error> {
        let mut node = self.lock()?;
        match node.messages.operations.take(operation) {
            None if node.messages.operations.has_ended(operation) => Err(Error::Unknown),
            completion => Ok(completion),
        }
    }

    /// Makes a completion queue, for one thread to poll or wait for.
    pub fn add_cq(&self) -> Result<CqId, Error> {
        self.lock()?.messages.operations.add_cq().ok_or(Error::Full)
    }

    /// Operations of a completion queue that have succeeded, that have failed, and that are under way.
    pub fn cq_counts(&self, cq: CqId) -> Result<[u64; 3], Error> {
        let mut node = self.lock()?;
        let known = node.messages.operations.cq(cq).ok_or(Error::Unknown)?;
        Ok([known.counts[0], known.counts[1], known.under_way])
    }

    /// Removes a completion queue. [`Error::WouldBlock`] while operations of it are under way.
    pub fn remove_cq(&self, cq: CqId) -> Result<(), Error> {
        self.lock()?.messages.operations.remove_cq(cq)
    }

    /// A descriptor that is readable when [`Node::progress`] would do something, once [`Node::prepare_sleep`] has said yes.
    pub fn descriptor(&self) -> RawFd {
        self.poll.as_fd().as_raw_fd()
    }

    /// To be called before a sleep on [`Node::descriptor`] (poll, epoll). False: there is something to do already.
    pub fn prepare_sleep(&self) -> Result<bool, Error> {
        let mut node = self.lock()?;
        let may = !node.progress.is_running() && self.arm_for_program_sleep(&mut node);
        if may {
            node.progress.program_falls_asleep();
        }
        Ok(may)
    }
}

impl NodeState {
    /// Has every thread that waits, or sleeps on the descriptor, check what it waits for, because something has happened elsewhere.
    #[inline(always)]
    pub(super) fn notify(&mut self) {
        self.wake_waiters();
        if self.progress.is_asleep() {
            self.progress.ring_wakeup();
        }
    }

    /// Has the running thread poll a link that has something left to send or to copy, and wakes it if it sleeps.
    pub(super) fn schedule_link(&mut self, link: LinkId) {
        self.links.activate(link);
        if self.progress.is_asleep() {
            self.progress.ring_wakeup();
        }
    }

    /// Sends what a link owes. If there is no room, the link is activated, so that a later round sends the rest.
    #[inline]
    pub(super) fn flush_link(&mut self, link: LinkId) {
        let Ok((link_state, messages)) = self.link(link) else { return };
        link_state.flush(link, messages);
        if link_state.proto.is_due() && link_state.transport.is_some() {
            self.schedule_link(link);
        }
    }

    /// Whether a channel has been answered, and how.
    pub(super) fn answered(&mut self, channel: Channel) -> Option<Result<(), Error>> {
        let gone = self.gone(channel.link);
        match self.place(channel.link, channel.id).map(|place| place.phase) {
            None => Some(Err(Error::Unknown)),
            Some(ChannelPhase::Opening) => None,
            Some(ChannelPhase::Open) => Some(Ok(())),
            Some(ChannelPhase::Refused) => Some(Err(Error::Refused)),
            Some(ChannelPhase::Broken) => Some(Err(Error::Lost(gone.unwrap_or(Reason::PEER_GONE)))),
        }
    }
}

/// The parts of an address with their drivers, the fastest first. Drivers that this node may not use are noted as refused.
fn ways(
    drivers: &[&'static dyn Driver],
    address: &str,
    how: &mut ConnectHistory,
) -> Result<VecDeque<(&'static dyn Driver, String)>, Error> {
    let mut ways = Vec::new();
    for way in address.split(',') {
        let (name, place) = way.split_once("://").unwrap_or((BY_NAME, way));
        match drivers.iter().find(|driver| driver.name() == name) {
            Some(&driver) => ways.push((driver, place.to_owned())),
            None if address.contains(',') => how.refused(name, Reason::FORBIDDEN),
            None => return Err(Error::Unreachable(Reason::FORBIDDEN)),
        }
    }
    ways.sort_by_key(|(driver, _)| driver.capabilities().latency);
    Ok(ways.into())
}
