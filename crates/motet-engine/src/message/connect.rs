//! A program's calls to connect to other nodes, to serve their channels, to wait for completions, and to sleep on a node's descriptor.
//!
//! Deadlines are CLOCK_MONOTONIC nanoseconds; `None` means that the call waits without limit.
//!
//! A node's address is one or more driver addresses `DRIVER://WHERE`, separated by commas; an address without `://` is a node name on this host.
//! All of them are tried, that of the driver with the lowest latency first. If all fail, the error is that of the last one.

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

/// The driver of an address without `://`.
const BY_NAME: &str = "shm";
/// Time between two attempts to connect to a node that does not exist yet, ns.
const RETRY: u64 = 1_000_000;

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

    // ---- links -------------------------------------------------------------------------------------------------------

    /// Connects to the node at `address`. With a deadline, the call also waits for a node that does not exist yet.
    ///
    /// Errors: [`Error::Unreachable`] with the reason of the last address that was tried; [`Error::TimedOut`]; [`Error::Full`].
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
                    // Another thread may have completed the connect after the wait failed.
                    if let Some(Ok(link)) = node.connections.take_result(call) {
                        return Ok(link);
                    }
                    node.connections.drop_pending(call);
                    return Err(error);
                }
            }
        }
    }

    /// Starts a connect with the first address whose driver accepts it.
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

    /// Closes a link; operations under way on it fail. Messages that were sent completely before still reach the peer if its process lives.
    pub fn disconnect(&self, link: LinkId) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.link(link)?;
        node.forget(link);
        node.notify();
        Ok(())
    }

    // ---- services ----------------------------------------------------------------------------------------------------

    /// Makes a context, for receives from any of the channels that are in it.
    pub fn context(&self) -> Result<Context, Error> {
        self.lock()?.messages.table.add_context().map(Context).ok_or(Error::Full)
    }

    /// Removes a context. While channels or receives are in it, nothing is done and the error is [`Error::WouldBlock`].
    pub fn remove_context(&self, context: Context) -> Result<(), Error> {
        let mut node = self.lock()?;
        let table = &mut node.messages.table;
        match table.has_context(context.0) {
            false => Err(Error::Unknown),
            true if table.remove_source(Source::Any(context.0)) => Ok(()),
            true => Err(Error::WouldBlock),
        }
    }

    /// Registers a handler and returns the [`Serve::Handler`] with its number.
    pub fn handler(&self, handler: Arc<dyn Handler>) -> Result<Serve, Error> {
        self.lock()?.connections.add_handler(handler).map(Serve::Handler).ok_or(Error::Full)
    }

    /// Removes a handler: it is not called for further messages, which are discarded. It may still be running when this returns.
    pub fn remove_handler(&self, handler: u32) -> Result<(), Error> {
        let mut node = self.lock()?;
        let handler = node.connections.remove_handler(handler).ok_or(Error::Unknown)?;
        drop(node);
        drop(handler); // without the lock: the drop runs code of the program
        Ok(())
    }

    /// Lets peers open channels to a service, whose messages are received as `serve` says. A later call for the same service replaces this one;
    /// channels that are open already do not change.
    pub fn serve(&self, service: u64, serve: Serve) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.can_serve(serve)?;
        node.connections.set_service(service, serve);
        Ok(())
    }

    /// Refuses further channels to a service.
    pub fn withdraw(&self, service: u64) -> Result<(), Error> {
        self.lock()?.connections.remove_service(service);
        Ok(())
    }

    /// Waits for the next channel that a peer opens to a service. [`Error::Refused`] if this node does not serve it.
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

    /// Queues a task. The next thread that makes progress runs it, outside of any handler.
    pub fn defer(&self, task: Task) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.progress.add_task(task);
        node.notify();
        Ok(())
    }

    // ---- progress and waiting ----------------------------------------------------------------------------------------

    /// Makes one round of progress, unless another thread makes progress. True: something has arrived, or was done.
    pub fn progress(&self) -> Result<bool, Error> {
        let mut node = self.lock()?;
        Ok(!node.progress.is_running() && self.poll_all(&mut node))
    }

    /// Makes one round of progress. The caller has checked that no other thread makes progress.
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

    /// Waits for the completion of an operation and takes it, which ends the operation's name. [`Error::Unknown`] if there is no such operation.
    #[inline]
    pub fn wait_for(&self, operation: OperationId, deadline: Option<u64>) -> Result<Completion, Error> {
        self.wait(self.lock()?, deadline, |node| match node.messages.operations.take(operation) {
            Some(completion) => Some(Ok(completion)),
            None if node.messages.operations.has_ended(operation) => Some(Err(Error::Unknown)),
            None => None,
        })?
    }

    /// Waits for the completion of any of `operations` and takes it. Returns it with its operation's index in `operations`. [`Error::Unknown`] if
    /// none of them exists.
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

    /// Takes the next completion of a completion queue, if there is one. Makes no progress.
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

    /// Interrupts one thread that waits for a completion queue; if none does, the next wait for it.
    pub fn signal_cq(&self, cq: CqId) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.messages.operations.cq(cq).ok_or(Error::Unknown)?.signalled = true;
        node.notify();
        Ok(())
    }

    /// Prepares for the drop of the node: sends what it owes to peers, such as FIN packets for long messages, and ends all waits. These and later
    /// waits fail with [`Error::NoNode`].
    pub fn shut(&self) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.progress.close();
        node.flush_all();
        node.wake_waiters();
        node.progress.ring_wakeup(); // unconditionally: no sleep may outlast this call
        Ok(())
    }

    /// Makes progress until `ready` returns true, for example because a handler has set a variable. `ready` is called after every round of progress
    /// and may not use the node; its panics are passed on to the caller, and other threads go on. While nothing arrives for this node the call
    /// sleeps: a change that comes from elsewhere, such as from another node of this process, wakes it only by [`Node::defer`].
    pub fn until(&self, mut ready: impl FnMut() -> bool, deadline: Option<u64>) -> Result<(), Error> {
        let asked = self.wait(self.lock()?, deadline, |_| match catch_unwind(AssertUnwindSafe(&mut ready)) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(panic) => Some(Err(panic)),
        })?;
        asked.map_err(|panic| resume_unwind(panic))
    }

    /// Takes the completion of an operation if it has completed. Makes no progress. [`Error::Unknown`] if there is no such operation.
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

    /// Numbers of operations of a completion queue that have succeeded, that have failed, and that are under way.
    pub fn cq_counts(&self, cq: CqId) -> Result<[u64; 3], Error> {
        let mut node = self.lock()?;
        let known = node.messages.operations.cq(cq).ok_or(Error::Unknown)?;
        Ok([known.counts[0], known.counts[1], known.under_way])
    }

    /// Removes a completion queue. [`Error::WouldBlock`] while operations that complete in it are under way.
    pub fn remove_cq(&self, cq: CqId) -> Result<(), Error> {
        self.lock()?.messages.operations.remove_cq(cq)
    }

    /// A descriptor that becomes readable when [`Node::progress`] has something to do, after [`Node::prepare_sleep`] has returned true.
    pub fn descriptor(&self) -> RawFd {
        self.poll.as_fd().as_raw_fd()
    }

    /// Arms the doorbells of all links before a sleep on [`Node::descriptor`] (poll, epoll). False: do not sleep, there is something to do already.
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

    /// The result of opening a channel; `None` while the peer has not answered.
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

/// Splits an address into driver addresses with their drivers, the lowest latency first. Drivers that this node may not use are noted as refused.
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
