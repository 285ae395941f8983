//! Ports: receives and polls for a library that posts many receives and polls for their completions, as libfabric and MPI do.
//!
//! A receive posted through a port has no record of its own ([`super::operations::Buffer`]); the program knows it by its user data. Sends are those of
//! [`super::send`], polls those of [`super::completions`]. A receive whose message does not arrive whole becomes an ordinary operation, and completes in its
//! completion queue.

use super::node_state::{NodeGuard, NodeState};
use super::operations::{Buffer, OperationKind, Operations};
use super::receive::RecvFrom;
use super::{Bias, CqId, Error, Node, OperationId, Status};
use motet_proto::message::matching::{PostOutcome, Receive, Selector};
use motet_proto::message::slab::SlabId;
use motet_proto::message::{Outcome, Reception};

impl Node {
    /// Posts a receive without a record, which completes in `cq`. Its completion is reported by [`Node::poll_cq_with`], or as that of an operation without a
    /// name.
    #[inline(always)]
    pub fn post_unrecorded(
        &self,
        (from, tag, ignore): (RecvFrom, u64, u64),
        buffer: Buffer,
        cq: CqId,
        bias: Option<&mut Bias>,
    ) -> Result<(), Error> {
        let (mut node, quiet) = self.lock_with(bias)?;
        let selector = node.selector(from, tag, ignore)?;
        let receive = node.messages.operations.begin_unrecorded(cq, buffer)?;
        if node.messages.table.post_fast(selector, receive).is_none() {
            post_slow(&mut node, selector, receive);
            return Ok(());
        }
        node.quiet = quiet;
        node.release();
        Ok(())
    }

    /// Cancels one unrecorded receive of `cq` from a source, with this user data. A receive that has got part of its message is cancelled only with
    /// `even_if_begun`, because its memory has changed. False: no such receive waits for its message.
    pub fn cancel_unrecorded(
        &self,
        cq: CqId,
        from: RecvFrom,
        user_data: u64,
        even_if_begun: bool,
    ) -> Result<bool, Error> {
        let mut node = self.lock()?;
        let source = node.selector(from, 0, 0)?.from;
        // A receive that was chosen for a pipelined message has a record.
        let posted = node.messages.operations.nameless_of(cq, |known| {
            matches!(known.kind, OperationKind::Receive(Some(_)))
                && (even_if_begun || !known.begun)
                && known.user_data() == user_data
        });
        let ours = |known: &Receive<Buffer>| {
            let unrecorded = Operations::is_unrecorded(known, cq) && known.buffer.user_data == user_data;
            unrecorded || posted.iter().any(|number| known.operation == u64::from(number.0))
        };
        let Some(receive) = node.messages.table.cancel_one(Some(source), ours) else { return Ok(false) };
        complete_unposted(&mut node, receive, Status::Cancelled);
        Ok(true)
    }

    /// Drops all unrecorded receives of `cq` that are posted for a channel, or for any channel of a context, and those whose message is under way there.
    /// Their memory is the program's again.
    pub fn abandon_unrecorded(&self, cq: CqId, from: RecvFrom) -> Result<(), Error> {
        let mut node = self.lock()?;
        let posted =
            node.messages.operations.nameless_of(cq, |known| matches!(known.kind, OperationKind::Receive(Some(_))));
        let ours = |known: &Receive<Buffer>| {
            Operations::is_unrecorded(known, cq) || posted.iter().any(|number| known.operation == u64::from(number.0))
        };
        // No receive waits on a channel that does not exist.
        let source = node.selector(from, 0, 0).map(|selector| selector.from);
        while let Ok(source) = source
            && let Some(receive) = node.messages.table.cancel_one(Some(source), ours)
        {
            complete_unposted(&mut node, receive, Status::Cancelled);
        }
        let under_way = node.messages.operations.nameless_of(cq, |known| known.channel.is_some());
        let arriving = under_way.into_iter().filter(|&number| node.arrives_from(number, from)).collect::<Vec<_>>();
        drop(node);
        arriving.into_iter().try_for_each(|SlabId(number)| self.detach(OperationId(number)))?;
        source.map(drop)
    }
}

impl NodeState {
    /// Whether the message of an operation arrives on this channel, or on a channel of this context. A channel that is gone may have been of any context.
    fn arrives_from(&mut self, SlabId(operation): SlabId, from: RecvFrom) -> bool {
        let known = self.messages.operations.get(u64::from(operation)).and_then(|known| known.channel);
        let (Some(channel), RecvFrom::Any(context)) = (known, from) else {
            return matches!((known, from), (Some(known), RecvFrom::Channel(channel)) if known == channel);
        };
        match self.channel_state(channel.link, channel.id).map(|state| state.reception) {
            Some(Reception::Matched(scope)) => self.messages.table.is_in(scope, context.0),
            Some(Reception::Handler) => false,
            None => true,
        }
    }
}

/// Posts a receive if a message waits already, if many receives do, or if no message can arrive.
#[inline(never)]
pub(super) fn post_slow(node: &mut NodeGuard<'_>, selector: Selector, receive: Receive<Buffer>) {
    match node.messages.table.post(selector, receive) {
        PostOutcome::Posted(_) => {}
        PostOutcome::Matched(held) => {
            let name = node.messages.operations.name_of(receive);
            node.give_message(held, OperationId(name as u32), receive.capacity);
        }
        PostOutcome::Ended(status) => complete_unposted(node, receive, status),
    }
}

/// Completes a receive that has been removed from the matching table.
fn complete_unposted(node: &mut NodeGuard<'_>, receive: Receive<Buffer>, status: Status) {
    let name = node.messages.operations.name_of(receive);
    node.messages.operations.complete(name, Outcome { status, length: 0 });
    node.notify();
}
