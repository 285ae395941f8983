//! A circuit: messages between the members of a group, by rank.
//!
//! Each member sends on a channel of its own to each member that it sends to, which is opened by the first message. All channels to a member end in
//! one context, where the tag tells who has sent and what for: members of a session are one user's nodes and trust one another. All circuits between two
//! nodes share one link.

use crate::arrivals::{self, MAX_ACTIVE_BYTES};
use crate::channels::Channels;
use crate::end_points::EndPoints;
use crate::error::Error;
use crate::group_state::{MemberId, OpenCircuit, PairLost};
use crate::membership::{Inner, Notice};
use motet::node::{
    Channel, CompletionOptions, Error as NodeError, Mode, Node, OperationId, OperationMemory, Outgoing, RecvFrom,
};
use motet_session::api::Member;
use motet_session::attach::Sender;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A wait checks at this interval whether the members that it needs are still there.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The interval between two looks whether a member has left, by one that cannot send to it.
const TOLD_INTERVAL: Duration = Duration::from_millis(10);
/// How long a collective operation goes on after a member has gone that it does not wait for itself.
const LEAVE_TIME: Duration = Duration::from_millis(500);

/// No deadline.
const NO_DEADLINE: u64 = u64::MAX;

/// Bits of a tag for the program's tag, or the number of a collective operation.
const TAG_BITS: u32 = 32;
/// Bits of a tag for the sender's rank.
const RANK_BITS: u32 = 24;
/// The bits of the sender's rank.
const RANK_MASK: u64 = ((1 << RANK_BITS) - 1) << TAG_BITS;

/// What a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The program's sends.
    Message = 0,
    /// Collective operations: all members are needed, as one that fails stops to take part.
    Collective = 1,
}

/// The tag of a message of a member.
fn tag_of(kind: Kind, from: usize, tag: u32) -> u64 {
    (kind as u64) << (TAG_BITS + RANK_BITS) | (from as u64) << TAG_BITS | u64::from(tag)
}

/// A received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The rank of its sender.
    pub from: usize,
    /// Its length, bytes.
    pub length: usize,
}

/// A circuit. It stays open at this node after a drop while all its members are there: the name can be opened again. One thread at a time calls its
/// collective operations.
#[derive(Debug)]
pub struct Circuit {
    inner: Arc<Inner>,
    sender: Sender,
    group: String,
    /// Taken when the circuit is dropped.
    open: Option<OpenCircuit>,
    rank: usize,
    made: Instant,
    /// The deadline of this handle's calls, ns after `made`; [`NO_DEADLINE`] if they have none.
    deadline: AtomicU64,
}

impl Circuit {
    pub(crate) fn new(inner: Arc<Inner>, sender: Sender, group: &str, open: OpenCircuit) -> Result<Self, Error> {
        let rank = open.view.rank_of(&inner.id);
        let rank = rank.ok_or_else(|| Error::Invalid("the node is no member of the circuit".to_owned()))?;
        let (made, deadline) = (Instant::now(), AtomicU64::new(NO_DEADLINE));
        Ok(Self { inner, sender, group: group.to_owned(), open: Some(open), rank, made, deadline })
    }

    fn open(&self) -> &OpenCircuit {
        self.open.as_ref().expect("a circuit that is not dropped")
    }

    /// The circuit's number in its group: members open circuits in the order of their numbers.
    pub fn number(&self) -> u64 {
        self.open().opening.number
    }

    /// This node's rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.open().view.members.len()
    }

    /// The members, by rank.
    pub fn members(&self) -> &[Member] {
        &self.open().view.members
    }

    /// Sets the deadline of all calls on this handle that have no time limit of their own: sends, receives and collective operations fail with
    /// [`Error::TimedOut`] when it passes. `None`, as at first: they have none. A call that is waiting keeps the deadline with which it began.
    ///
    /// A message whose send fails so does not arrive; [`motet::node::Node::send`] says what becomes of a long one. A collective operation that fails so
    /// has not happened at this member, and perhaps not at others: go on with another circuit.
    pub fn set_deadline(&self, deadline: Option<Instant>) {
        let after = deadline.map(|deadline| deadline.saturating_duration_since(self.made).as_nanos());
        let after = after.map_or(NO_DEADLINE, |after| u64::try_from(after).unwrap_or(NO_DEADLINE));
        self.deadline.store(after, Ordering::Relaxed);
    }

    /// The time that is left until this handle's deadline.
    #[inline]
    pub(crate) fn left(&self) -> Option<Duration> {
        match self.deadline.load(Ordering::Relaxed) {
            NO_DEADLINE => None,
            after => Some(Duration::from_nanos(after).saturating_sub(self.made.elapsed())),
        }
    }

    /// Sends a message to another member, and waits until `bytes` is free.
    pub fn send(&self, to: usize, tag: u32, bytes: &[u8]) -> Result<(), Error> {
        self.send_as(Kind::Message, to, tag, bytes)
    }

    /// Receives a message with this tag from a member. A message that is longer than `buffer` is an error.
    pub fn receive(&self, from: usize, tag: u32, buffer: &mut [u8]) -> Result<Received, Error> {
        self.receive_as(Kind::Message, Some(from), tag, buffer, self.left())
    }

    /// Receives a message with this tag from any member.
    pub fn receive_any(&self, tag: u32, buffer: &mut [u8]) -> Result<Received, Error> {
        self.receive_as(Kind::Message, None, tag, buffer, self.left())
    }

    /// Receives a message with this tag from a member, or from any, within a time limit (`None`: without one, and without a deadline).
    pub fn receive_within(
        &self,
        from: Option<usize>,
        tag: u32,
        buffer: &mut [u8],
        limit: impl Into<Option<Duration>>,
    ) -> Result<Received, Error> {
        self.receive_as(Kind::Message, from, tag, buffer, limit.into())
    }

    /// Runs `function` for each active message that a member sends to this one ([`Circuit::send_active`]): with the rank of its sender, its tag and its
    /// bytes. It runs in the thread that makes progress, as a handler of the node does: it must not wait, nor call this.
    /// Replaces the function that was there before.
    pub fn handle(&self, function: impl Fn(usize, u32, &[u8]) + Send + Sync + 'static) -> Result<(), Error> {
        self.open().shared.active.handle(&self.inner.node, Box::new(function))
    }

    /// Ends [`Circuit::handle`]: the function does not run any more when this returns. Messages that arrive are discarded. Not within the function.
    pub fn unhandle(&self) {
        self.open().shared.active.unhandle();
    }

    /// Sends a message that runs the function of another member, of at most [`MAX_ACTIVE_BYTES`], and waits until `bytes` is free. The first one to a
    /// member waits until it has a function. Short ones to one member run in order; one that is longer than a packet may be overtaken.
    pub fn send_active(&self, to: usize, tag: u32, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > MAX_ACTIVE_BYTES {
            return Err(Error::Invalid(format!("an active message has at most {MAX_ACTIVE_BYTES} bytes")));
        }
        self.send_on(self.open().shared.active.channels(), to, |channel, limit| {
            self.inner.node.send(channel, arrivals::tag_of(self.rank, tag), bytes, limit)
        })
    }

    fn send_as(&self, kind: Kind, to: usize, tag: u32, bytes: &[u8]) -> Result<(), Error> {
        self.send_on(self.channels(), to, |channel, limit| {
            self.inner.node.send(channel, tag_of(kind, self.rank, tag), bytes, limit)
        })
    }

    /// Sends on the channel to a member, within the time that is left.
    #[inline]
    pub(crate) fn send_on(
        &self,
        channels: &Channels,
        to: usize,
        send: impl FnOnce(Channel, Option<Duration>) -> Result<(), NodeError>,
    ) -> Result<(), Error> {
        let channel = self.channel_to(channels, to)?;
        send(channel, self.left()).map_err(|error| self.failed(to, error))
    }

    /// The end points of this member, and the channels to those of others.
    pub(crate) fn end_points(&self) -> &Arc<EndPoints> {
        &self.open().shared.end_points
    }

    /// The node.
    pub(crate) fn node(&self) -> &Node {
        &self.inner.node
    }

    /// Starts a send of a collective operation, which [`Circuit::finish_send`] ends: two members may send to each other.
    pub(crate) fn start_send(&self, to: usize, tag: u32, bytes: &[u8]) -> Result<Option<OperationId>, Error> {
        let channel = self.channel_to(self.channels(), to).map_err(|error| self.failed_for_all(to, error))?;
        let tag = tag_of(Kind::Collective, self.rank, tag);
        let message = Outgoing { channel, tag, headers: &[], mode: Mode::Automatic };
        // Short ones leave at once, and need no memory of their own.
        match self.inner.node.try_inject(&message, &[bytes]) {
            Ok(()) => return Ok(None),
            Err(NodeError::WouldBlock | NodeError::TooLong) => {}
            Err(error) => return Err(self.failed_for_all(to, self.failed(to, error))),
        }
        let mut memory = OperationMemory::Owned(bytes.to_vec());
        let (mut since, mut departure) = (Instant::now(), Departure::default());
        loop {
            match self.inner.node.start_send(&message, memory, Vec::new(), CompletionOptions::default()) {
                Ok(begun) => return Ok(begun),
                Err((NodeError::WouldBlock, same, _)) => memory = same,
                Err((error, ..)) => return Err(self.failed_for_all(to, self.failed(to, error))),
            }
            self.inner.node.progress()?;
            if self.left() == Some(Duration::ZERO) {
                return Err(Error::TimedOut);
            }
            if since.elapsed() > CHECK_INTERVAL {
                departure.check(self, Kind::Collective, Some(to))?;
                since = Instant::now();
            }
        }
    }

    /// Waits for the end of a send of a collective operation.
    pub(crate) fn finish_send(&self, to: usize, operation: Option<OperationId>) -> Result<(), Error> {
        let Some(operation) = operation else { return Ok(()) };
        let mut departure = Departure::default();
        loop {
            let left = self.left();
            let limit = left.map_or(CHECK_INTERVAL, |left| left.min(CHECK_INTERVAL));
            match self.inner.node.finish_operation(operation, Some(limit)) {
                Ok(_) => return Ok(()),
                Err(NodeError::TimedOut) => {
                    let checked = match left {
                        Some(Duration::ZERO) => Err(Error::TimedOut),
                        _ => departure.check(self, Kind::Collective, Some(to)),
                    };
                    if let Err(error) = checked {
                        let _ = self.inner.node.cancel(operation);
                        return Err(error);
                    }
                }
                Err(error) => return Err(self.failed_for_all(to, self.failed(to, error))),
            }
        }
    }

    pub(crate) fn receive_as(
        &self,
        kind: Kind,
        from: Option<usize>,
        tag: u32,
        buffer: &mut [u8],
        limit: Option<Duration>,
    ) -> Result<Received, Error> {
        self.check_rank(from)?;
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        if limit == Some(Duration::ZERO) {
            self.inner.node.progress()?;
        }
        let mut departure = Departure::default();
        let (wanted, ignore) = (tag_of(kind, from.unwrap_or(0), tag), if from.is_some() { 0 } else { RANK_MASK });
        loop {
            let left = until.map_or(CHECK_INTERVAL, |until| until.saturating_duration_since(Instant::now()));
            let source = RecvFrom::Any(self.open().context);
            match self.inner.node.receive_tagged(source, wanted, ignore, buffer, Some(left.min(CHECK_INTERVAL))) {
                Ok(received) => {
                    let from = ((received.tag & RANK_MASK) >> TAG_BITS) as usize;
                    if from < self.size() {
                        self.open().shared.pairs.hear(&self.inner.node, from);
                        return Ok(Received { from, length: received.length });
                    }
                    // No member sends so: the message is dropped.
                }
                Err(NodeError::TimedOut) if until.is_some_and(|until| Instant::now() >= until) => {
                    return Err(Error::TimedOut);
                }
                Err(NodeError::TimedOut) => departure.check(self, kind, from)?,
                // The sender died within its message or its link was lost, or the circuit has ended here, as the node was out of the group.
                Err(error @ (NodeError::Lost(_) | NodeError::Unknown | NodeError::Closed)) => {
                    return Err(from.map_or(Error::MemberGone, |from| self.failed(from, error)));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn check_rank(&self, rank: Option<usize>) -> Result<(), Error> {
        match rank.filter(|rank| *rank >= self.size()) {
            Some(rank) => Err(Error::Invalid(format!("there is no rank {rank}: the circuit has {}", self.size()))),
            None => Ok(()),
        }
    }

    /// The error of a send to a member. A link that is lost takes the pair with it: messages before may be missing, so none may follow.
    fn failed(&self, to: usize, error: NodeError) -> Error {
        match error {
            NodeError::Lost(_) | NodeError::Closed | NodeError::Unknown => {
                self.open().lose(&self.inner.node, to);
                Error::MemberGone
            }
            error => error.into(),
        }
    }

    /// The error of a collective operation. All members have to get it: if the link is lost although the member is there, this sends them a notice.
    #[cold]
    fn failed_for_all(&self, to: usize, error: Error) -> Error {
        while matches!(error, Error::MemberGone) && !self.is_gone(Some(to)) && self.left() != Some(Duration::ZERO) {
            std::thread::sleep(TOLD_INTERVAL);
        }
        self.look_for_losses();
        error
    }

    /// Looks for links that are lost, and tells the other members of pairs that are lost although both members are there.
    fn look_for_losses(&self) {
        let OpenCircuit { opening, view, shared, .. } = self.open();
        let node = &self.inner.node;
        for rank in shared.pairs.look(node, &shared.channels.opened()) {
            self.open().lose(node, rank);
        }
        let id_of = |rank: usize| MemberId::of(&view.members[rank]);
        for rank in shared.pairs.to_tell().into_iter().filter(|rank| !self.has_left(Some(*rank))) {
            let (Some(from), Some(peer)) = (id_of(self.rank), id_of(rank)) else { continue };
            let notice = Notice { from, lost: PairLost { view: opening.view, circuit: opening.number, peer } };
            let Ok(body) = serde_json::to_value(notice) else { continue };
            for to in (0..self.size()).filter(|to| *to != self.rank) {
                // Without a gatekeeper the others wait until one of the two has left.
                let _ = self.sender.send(&self.group, &view.members[to].node, body.clone());
            }
        }
    }

    /// Whether a member, or any, has left the group, or its pair with this one is lost.
    fn is_gone(&self, rank: Option<usize>) -> bool {
        self.open().shared.pairs.is_over(rank) || self.has_left(rank)
    }

    /// Whether a member, or any, has left the group since the circuit was opened. If this node has, all count as gone.
    fn has_left(&self, rank: Option<usize>) -> bool {
        let state = self.inner.lock();
        let Some(group) = state.groups.get(&self.group) else { return true };
        let members = self.members();
        let is_there = |rank: usize| group.is_there(&members[rank]);
        match rank {
            Some(rank) => !is_there(rank) || !is_there(self.rank),
            None => !(0..members.len()).all(is_there),
        }
    }

    fn channels(&self) -> &Channels {
        &self.open().shared.channels
    }

    /// The channel to a member; opens it at first.
    #[inline]
    fn channel_to(&self, channels: &Channels, to: usize) -> Result<Channel, Error> {
        self.check_rank(Some(to))?;
        match channels.get(to) {
            Some(channel) => Ok(channel),
            None => self.open_channel(channels, to),
        }
    }

    #[cold]
    fn open_channel(&self, channels: &Channels, to: usize) -> Result<Channel, Error> {
        let (node, links) = (&*self.inner.node, &self.inner.links);
        channels.open((node, links), (to, &self.members()[to]), self.left(), || {
            self.open().shared.pairs.is_lost(to) || self.has_left(Some(to))
        })
    }

    /// The number of the next collective operation.
    pub(crate) fn next_collective(&self) -> u32 {
        self.open().shared.collectives.fetch_add(1, Ordering::Relaxed)
    }
}

/// What a wait has seen of members that have gone.
#[derive(Default)]
struct Departure(Option<Instant>);

impl Departure {
    /// Fails if the wait is for a member that has gone, or is a part of a collective operation and any has. The wait goes on for a while after that is
    /// seen: what the member has sent before may still be on its way, and a member may leave as soon as its own part is done.
    fn check(&mut self, circuit: &Circuit, kind: Kind, peer: Option<usize>) -> Result<(), Error> {
        circuit.look_for_losses();
        let is_void = kind == Kind::Collective && circuit.open().shared.pairs.is_lost_elsewhere();
        match self.0 {
            Some(since) if peer.is_none_or(|peer| circuit.is_gone(Some(peer))) || since.elapsed() > LEAVE_TIME => {
                return Err(Error::MemberGone);
            }
            Some(_) => {}
            None if is_void || circuit.is_gone(peer.filter(|_| kind == Kind::Message)) => self.0 = Some(Instant::now()),
            None => {}
        }
        Ok(())
    }
}

impl Drop for Circuit {
    fn drop(&mut self) {
        self.open = None;
        if let Some(group) = self.inner.lock().groups.get_mut(&self.group) {
            group.retire_unused(&self.inner.node, &self.sender);
        }
    }
}
