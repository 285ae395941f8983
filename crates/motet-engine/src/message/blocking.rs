//! Blocking receives: the calling thread waits until its message has arrived.
//!
//! The wait begins with polls on the direct path ([`super::completions`]). While no other receive is posted, the receive is matched without being
//! posted. If the polls do not find the message, or if it does not arrive whole, the receive is posted without a record ([`super::port`]), in a
//! completion queue that the node reserves for one blocking receive at a time. The protocol (`motet_proto::message::matching`) does the matching.

use super::completions::{NextPoll, is_quiet_for, poll_fifos, take_from_link};
use super::node_state::{NodeGuard, NodeState};
use super::operations::{Blocking, Buffer, ReceiveResult};
use super::port::post_slow;
use super::receive::RecvFrom;
use super::{CqId, Error, Node};
use motet_proto::message::matching::Selector;
use motet_sys::user_memory::UserMemory;

impl Node {
    /// Receives the next message whose tag equals `tag` in all bits that `ignore` does not mask, and waits for it until `deadline`. The headers of
    /// the message, the outermost first, are appended to `headers`.
    ///
    /// Errors: [`Error::Full`] if another blocking receive is under way: post a receive and wait for it instead. After [`Error::Full`],
    /// [`Error::Unknown`] and [`Error::Closed`] no receive is posted. After any other error the receive is still posted: end it with
    /// [`Node::cancel_blocking`] followed by [`Node::wait_blocking`], or with [`Node::abandon_blocking`].
    #[inline(always)]
    pub fn receive(
        &self,
        (from, tag, ignore): (RecvFrom, u64, u64),
        span: UserMemory,
        headers: &mut Option<&mut Vec<u8>>,
        deadline: Option<u64>,
    ) -> Result<ReceiveResult, Error> {
        self.receive_or((from, tag, ignore), span, headers, (CqId::NONE, deadline))
    }

    /// Receives as [`Node::receive`] does. While no message has arrived, the wait ends with [`Error::Interrupted`] when the completion queue `other`
    /// has a completion or was signalled ([`Node::signal_cq`]); the signal is left to the next wait for the queue.
    #[inline(always)]
    pub fn receive_or(
        &self,
        (from, tag, ignore): (RecvFrom, u64, u64),
        span: UserMemory,
        headers: &mut Option<&mut Vec<u8>>,
        (other, deadline): (CqId, Option<u64>),
    ) -> Result<ReceiveResult, Error> {
        let (mut node, quiet) = self.lock_with(None)?;
        let selector = node.selector(from, tag, ignore)?;
        let mut sink = Blocking { unposted_receive: None, headers, result: None };
        let mut polls = Polls::More;
        if node.messages.table.is_sole_receive(&selector) {
            sink.unposted_receive = Some((selector, span));
            polls = self.poll_for_blocking(&mut node, quiet, &mut sink);
            if let Some(result) = sink.result.take() {
                node.release();
                return Ok(result);
            }
            sink.unposted_receive = None;
        }
        self.receive_posted(node, (selector, span), sink, polls, (other, deadline))
    }

    /// Posts the receive, polls for its message on the direct path if that may find it, and then waits with rounds of progress.
    #[inline(never)]
    fn receive_posted(
        &self,
        mut node: NodeGuard<'_>,
        (selector, span): (Selector, UserMemory),
        mut sink: Blocking<'_, '_>,
        polls: Polls,
        (other, deadline): (CqId, Option<u64>),
    ) -> Result<ReceiveResult, Error> {
        let operations = &mut node.messages.operations;
        if operations.has_blocking_receive() {
            return Err(Error::Full);
        }
        let receive = operations.begin_unrecorded(operations.blocking, Buffer { span, user_data: 0 })?;
        if node.messages.table.post_fast(selector, receive).is_none() {
            post_slow(&mut node, selector, receive);
        } else if polls == Polls::More {
            self.poll_for_blocking(&mut node, CqId::NONE, &mut sink);
            if let Some(result) = sink.result.take() {
                return Ok(result);
            }
        }
        self.wait(node, deadline, |node| {
            let operations = &mut node.messages.operations;
            match operations.take_blocking(sink.headers) {
                None if operations.must_look_at(other) => Some(Err(Error::Interrupted)),
                taken => taken.map(Ok),
            }
        })?
    }

    /// Goes on waiting for the blocking receive after [`Node::receive`] has failed and left it posted.
    pub fn wait_blocking(
        &self,
        headers: &mut Option<&mut Vec<u8>>,
        deadline: Option<u64>,
    ) -> Result<ReceiveResult, Error> {
        self.wait(self.lock()?, deadline, |node| node.messages.operations.take_blocking(headers))
    }

    /// Cancels the blocking receive. If its message has been matched already, the receive completes with the message instead.
    pub fn cancel_blocking(&self, from: RecvFrom) -> Result<(), Error> {
        let cq = self.lock()?.messages.operations.blocking;
        self.cancel_unrecorded(cq, from, 0, true).map(drop)
    }

    /// Ends the blocking receive without a completion: its memory belongs to the program again when the call returns.
    pub fn abandon_blocking(&self, from: RecvFrom) -> Result<(), Error> {
        let cq = self.lock()?.messages.operations.blocking;
        let abandoned = self.abandon_unrecorded(cq, from);
        while self.lock()?.messages.operations.next_completion(cq)?.is_some() {}
        abandoned
    }

    /// Polls for the message on the direct path. Stops when the message has arrived, when the number of polls is used up, or when there is
    /// work that the direct path does not do. The received message is in `sink`.
    #[inline(always)]
    fn poll_for_blocking(&self, node: &mut NodeGuard<'_>, quiet: CqId, sink: &mut Blocking<'_, '_>) -> Polls {
        if node.progress.is_running() || node.progress.is_closing() {
            return Polls::Enough;
        }
        let cq = node.messages.operations.blocking;
        let poll_once = |node: &mut NodeState, sink: &mut _| match node.next_to_poll() {
            NextPoll::Nothing => (0, false),
            NextPoll::Link(link) => take_from_link(node, link, (cq, 1), sink),
            NextPoll::RoundIsDue => (0, true),
        };
        let (mut reported, mut more) = match is_quiet_for(quiet, cq) {
            true => poll_once(node, sink),
            false => poll_fifos(node, (cq, 1), sink),
        };
        let all_links_polled = reported == 0 || node.links.active().len() == 1 || is_quiet_for(quiet, cq);
        if !more && reported == 0 {
            let (others, max) = (node.waiters(), node.progress.spin.eager_polls(self.spin()));
            for _ in 1..max {
                std::hint::spin_loop();
                (reported, more) = poll_once(node, sink);
                if more || reported > 0 || others.are_waiting() {
                    break;
                }
            }
        }
        if more {
            if reported > 0 {
                self.poll_all(node);
            }
            return Polls::More;
        }
        if all_links_polled {
            node.quiet = cq;
        }
        if reported > 0 {
            node.progress.spin.note_success();
        }
        Polls::Enough
    }
}

/// Why the polls for the message of a blocking receive have stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Polls {
    /// Another packet has arrived, or other work is due, for a round of progress.
    More,
    /// The number of polls is used up, or the message has arrived.
    Enough,
}
