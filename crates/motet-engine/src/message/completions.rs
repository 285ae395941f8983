//! Polling a completion queue, for a program that posts receives and polls.
//!
//! One poll takes the node's lock once and reports the operations that have completed. A whole message for a posted receive takes the direct path
//! (`fast_receive`) out of the FIFO of its link, and its completion is reported in the same step. Any other packet is handled by a round of
//! progress (`progress`); the completion waits in the completion queue until a poll reports it.

use super::error::Error;
use super::fast_receive::{self, TakeOutcome};
use super::link::LinkState;
use super::message_state::{LinkCallbacks, MessageState};
use super::node_state::{NodeGuard, NodeState};
use super::operations::{CompletionRef, CompletionSink, CqId, SinkFn};
use super::packets::RxPacket;
use super::progress::{INACTIVE_POLL_ROUNDS, SLOW_WORK_ROUNDS};
use super::transport::Transport;
use super::{Bias, LinkId, Node};

/// Most messages that one poll takes.
const MAX_MESSAGES_PER_POLL: usize = 32;

impl Node {
    /// Reports up to `max` completions of a completion queue. If the queue is empty and no other thread makes progress, the call first polls for
    /// messages or makes one round of progress. Returns how many completions were reported, and whether the next one has memory or a loaned message
    /// that the program must take with [`Node::test_cq`]. `report` may not use the node.
    #[inline]
    pub fn poll_cq(
        &self,
        cq: CqId,
        max: usize,
        report: impl FnMut(&CompletionRef<'_>),
    ) -> Result<(usize, bool), Error> {
        self.poll_cq_with(cq, max, &mut SinkFn(report), None)
    }

    /// Does what [`Node::poll_cq`] does, with a [`CompletionSink`] that the compiler can inline. `bias` is the caller's, if it has one.
    #[inline(always)]
    pub fn poll_cq_with(
        &self,
        cq: CqId,
        max: usize,
        sink: &mut impl CompletionSink,
        bias: Option<&mut Bias>,
    ) -> Result<(usize, bool), Error> {
        let (mut node, quiet) = self.lock_with(bias)?;
        let (reported, more) = if is_quiet_for(quiet, cq) {
            match node.next_to_poll() {
                NextPoll::Nothing => (0, false),
                NextPoll::Link(link) => take_from_link(&mut node, link, (cq, max), sink),
                NextPoll::RoundIsDue => (0, true),
            }
        } else if node.progress.is_running() || !node.messages.operations.is_cq_empty(cq)? {
            return node.messages.operations.report_completions(cq, max, sink);
        } else {
            let polled = poll_fifos(&mut node, (cq, max), sink);
            if polled == (max.min(MAX_MESSAGES_PER_POLL), false) {
                node.release();
                return Ok((polled.0, false)); // not all links have been polled: the node is not quiet
            }
            polled
        };
        if more {
            self.poll_all(&mut node);
            return if reported > 0 {
                Ok((reported, false))
            } else {
                node.messages.operations.report_completions(cq, max, sink)
            };
        }
        node.quiet = cq;
        node.release();
        Ok((reported, false))
    }

    /// Reports up to `max` completions of unrecorded receives ([`Node::post_unrecorded`]) whose messages have arrived. Makes one round of progress
    /// if other work is due. Returns whether the queue holds completions that this call does not report: [`Node::poll_cq_with`] reports them.
    #[inline(always)]
    pub fn poll_cq_fast(
        &self,
        cq: CqId,
        max: usize,
        sink: &mut impl CompletionSink,
        bias: Option<&mut Bias>,
    ) -> Result<bool, Error> {
        let (mut node, quiet) = self.lock_with(bias)?;
        if !is_quiet_for(quiet, cq) {
            return self.poll_cq_slow(node, (cq, max), sink);
        }
        let (reported, more) = match node.next_to_poll() {
            NextPoll::Nothing => (0, false),
            NextPoll::Link(link) => take_from_link(&mut node, link, (cq, max), sink),
            NextPoll::RoundIsDue => (0, true),
        };
        if more {
            return self.poll_by_round(node, reported, (cq, max), sink);
        }
        node.quiet = cq;
        node.release();
        Ok(false)
    }

    /// The part of [`Node::poll_cq_fast`] for a node that is not [quiet](NodeState::quiet): polls all active links.
    #[inline(never)]
    fn poll_cq_slow(
        &self,
        mut node: NodeGuard<'_>,
        (cq, max): (CqId, usize),
        sink: &mut impl CompletionSink,
    ) -> Result<bool, Error> {
        if !node.messages.operations.is_cq_empty(cq)? {
            return node.messages.operations.report_completions(cq, max, sink).map(|(_, others)| others);
        }
        if node.progress.is_running() {
            return Ok(false);
        }
        let (reported, more) = poll_fifos(&mut node, (cq, max), sink);
        if more {
            return self.poll_by_round(node, reported, (cq, max), sink);
        }
        if reported < max.min(MAX_MESSAGES_PER_POLL) {
            node.quiet = cq; // all active links have been polled
        }
        Ok(false)
    }

    /// Makes the round of progress that is due. If `reported` is 0, reports what has completed in it. Returns whether the queue holds other
    /// completions.
    #[inline(never)]
    fn poll_by_round(
        &self,
        mut node: NodeGuard<'_>,
        reported: usize,
        (cq, max): (CqId, usize),
        sink: &mut impl CompletionSink,
    ) -> Result<bool, Error> {
        self.poll_all(&mut node);
        if reported > 0 {
            return Ok(false);
        }
        node.messages.operations.report_completions(cq, max, sink).map(|(_, others)| others)
    }
}

/// Whether a node whose [`NodeState::quiet`] was `quiet` is quiet for the completion queue `cq`.
#[inline(always)]
pub(super) fn is_quiet_for(quiet: CqId, cq: CqId) -> bool {
    quiet.0 == cq.0 && quiet.0 != CqId::NONE.0
}

impl NodeState {
    /// Wakes waiting threads if nothing but unexpected messages has arrived. Returns whether a [round](Node::round) of progress must wake them.
    #[inline(always)]
    fn must_wake(&mut self) -> bool {
        if self.messages.new_unexpected && !self.messages.wake_pending {
            self.wake_waiters();
        }
        self.messages.new_unexpected = false;
        self.messages.wake_pending
    }
}

/// What the next poll of a [quiet](NodeState::quiet) node has to do.
pub(super) enum NextPoll {
    /// No active link has a packet.
    Nothing,
    /// This link has a packet.
    Link(LinkId),
    /// A [round](Node::round) of progress is due.
    RoundIsDue,
}

impl NodeState {
    /// Counts a poll and finds the next active link that has a packet. The node is [quiet](NodeState::quiet).
    #[inline(always)]
    pub(super) fn next_to_poll(&mut self) -> NextPoll {
        let round = self.progress.rounds().wrapping_add(1);
        if round.is_multiple_of(INACTIVE_POLL_ROUNDS)
            && (round.is_multiple_of(SLOW_WORK_ROUNDS) || self.links.has_inactive())
        {
            return NextPoll::RoundIsDue;
        }
        self.progress.set_rounds(round);
        self.links.next_with_packet().map_or(NextPoll::Nothing, NextPoll::Link)
    }
}

/// Takes messages from the FIFO of a link and reports the completions of their receives. The node is [quiet](NodeState::quiet). Returns how many
/// were reported, and whether there is more to do.
#[inline(never)]
pub(super) fn take_from_link(
    node: &mut NodeState,
    link: LinkId,
    (cq, max): (CqId, usize),
    sink: &mut impl CompletionSink,
) -> (usize, bool) {
    let now = node.progress.now();
    let NodeState { links, messages, rx_packet, .. } = node;
    let (Some(link_state), Some(rx_packet)) = (links.get_mut(link), rx_packet) else { return (0, true) };
    let (reported, more) = link_state.report_messages(
        link,
        (messages, rx_packet),
        (cq, now),
        (max.min(MAX_MESSAGES_PER_POLL), true),
        sink,
    );
    (reported, more | node.must_wake())
}

/// Takes messages from the FIFOs of all active links and reports the completions of their receives. The node need not be
/// [quiet](NodeState::quiet). Returns how many were reported, and whether there is more to do.
#[inline(never)]
pub(super) fn poll_fifos(
    node: &mut NodeState,
    (cq, max): (CqId, usize),
    sink: &mut impl CompletionSink,
) -> (usize, bool) {
    let NodeState { links, messages, rx_packet, progress, .. } = node;
    let (round, now, max) = (progress.rounds().wrapping_add(1), progress.now(), max.min(MAX_MESSAGES_PER_POLL));
    let until = if links.has_inactive() { INACTIVE_POLL_ROUNDS } else { SLOW_WORK_ROUNDS };
    let busy = progress.is_asleep() || messages.has_work() || progress.has_tasks();
    let (Some(rx_packet), false) = (rx_packet, busy || round.is_multiple_of(until)) else { return (0, true) };
    progress.set_rounds(round);
    let (mut reported, mut more) = (0, false);
    for _ in 0..links.active().len() {
        let Some(link) = links.whose_turn() else { break };
        links.pass_turn();
        let Some(link_state) = links.get_mut(link) else { return (reported, true) };
        let polled = link_state.report_messages(link, (messages, rx_packet), (cq, now), (max - reported, false), sink);
        reported += polled.0;
        more |= polled.1;
        if reported >= max {
            break;
        }
    }
    (reported, more | node.must_wake())
}

impl LinkState {
    /// Takes whole messages from the FIFO of this link and reports the completions of their receives. `quiet`: the node is
    /// [quiet](NodeState::quiet). Returns how many were reported, and whether there is more to do.
    #[inline(always)]
    fn report_messages(
        &mut self,
        id: LinkId,
        (messages, rx_packet): (&mut MessageState, &mut RxPacket),
        (cq, now): (CqId, u64),
        (max, quiet): (usize, bool),
        sink: &mut impl CompletionSink,
    ) -> (usize, bool) {
        let Self { transport: Some(Transport::SharedMemory(shm)), proto, channel_table, empty_polls, .. } = self else {
            return (0, true);
        };
        let mut callbacks = LinkCallbacks::of(messages, channel_table, id);
        let (mut reported, mut queued) = (0, 0);
        let more = loop {
            match fast_receive::report(shm, proto, &mut callbacks, rx_packet, (cq, now), sink) {
                TakeOutcome::Reported => reported += 1,
                TakeOutcome::Unexpected => queued += 1,
                TakeOutcome::Nothing => break false,
                TakeOutcome::CompletionQueued | TakeOutcome::Other => break true, // a queued completion may not be overtaken by later ones
            }
            if reported == max || queued == MAX_MESSAGES_PER_POLL || !shm.fifo_rx.has_next_packet() {
                break false;
            }
        };
        if reported + queued > 0 {
            *empty_polls = 0;
        }
        if shm.fifo_rx.take_wake() {
            shm.ring_doorbell();
        }
        // On a quiet node, reported messages have changed nothing but the credit that this side owes.
        let quiet = if quiet && !more { !proto.owes_credit() } else { self.is_idle() };
        (reported, more || !quiet)
    }
}
