//! What a library calls that posts receives with buffers of the program's, and polls for the ends of many: libfabric's way, and MPI's.
//!
//! What it is: receives without a record of their own ([`super::operations::Buffer`]), known by the program's word for them. Sends are those of
//! [`super::send`], looks for ends those of [`super::completions`]. What it is not: another protocol. A receive whose message does not come whole
//! becomes an operation as any other, and ends in its group.

use super::node_state::{Core, Guard};
use super::operations::{Buffer, Kind, Operations};
use super::receive::RecvFrom;
use super::{Bias, Error, GroupId, Node, OperationId, Status};
use motet_proto::message::matching::{PostOutcome, Receive, Selector};
use motet_proto::message::slab::SlabId;
use motet_proto::message::{Outcome, Reception};

impl Node {
    /// Posts a receive of this group without a record. Its end is told by [`Node::take_ends_by`], or as that of an operation without a name.
    #[inline(always)]
    pub fn post_bare(
        &self,
        (from, tag, ignore): (RecvFrom, u64, u64),
        buffer: Buffer,
        group: GroupId,
        bias: Option<&mut Bias>,
    ) -> Result<(), Error> {
        let (mut core, quiet) = self.core_by(bias)?;
        let selector = core.selector(from, tag, ignore)?;
        let receive = core.state.operations.begin_bare(group, buffer)?;
        if core.state.table.post_fast(selector, receive).is_none() {
            post_otherwise(&mut core, selector, receive);
            return Ok(());
        }
        core.quiet = quiet;
        core.release();
        Ok(())
    }

    /// Cancels a receive of this group that was posted so from there, with this word of the program's; one that has got part of its message
    /// only where its memory need not be as it was. False: there is none without its message.
    pub fn cancel_bare(&self, group: GroupId, from: RecvFrom, context: u64, begun_too: bool) -> Result<bool, Error> {
        let mut core = self.core()?;
        let source = core.selector(from, 0, 0)?.from;
        // One for which a message was awaited has a record.
        let posted = core.state.operations.nameless_of(group, |known| {
            matches!(known.kind, Kind::Receive(Some(_))) && (begun_too || !known.begun) && known.context() == context
        });
        let ours = |known: &Receive<Buffer>| {
            let bare = Operations::is_bare(known, group) && known.buffer.context == context;
            bare || posted.iter().any(|number| known.operation == u64::from(number.0))
        };
        let Some(receive) = core.state.table.cancel_one(Some(source), ours) else { return Ok(false) };
        end(&mut core, receive, Status::Cancelled);
        Ok(true)
    }

    /// Ends all receives of this group that were posted so and wait there, and forgets those whose message is on its way there: over that
    /// channel, or any of that context. Their memory is the program's again.
    pub fn abandon_bare(&self, group: GroupId, from: RecvFrom) -> Result<(), Error> {
        let mut core = self.core()?;
        let posted = core.state.operations.nameless_of(group, |known| matches!(known.kind, Kind::Receive(Some(_))));
        let ours = |known: &Receive<Buffer>| {
            Operations::is_bare(known, group) || posted.iter().any(|number| known.operation == u64::from(number.0))
        };
        // None wait on a channel that is gone.
        let source = core.selector(from, 0, 0).map(|selector| selector.from);
        while let Ok(source) = source
            && let Some(receive) = core.state.table.cancel_one(Some(source), ours)
        {
            end(&mut core, receive, Status::Cancelled);
        }
        let under_way = core.state.operations.nameless_of(group, |known| known.channel.is_some());
        let there = under_way.into_iter().filter(|&number| core.comes_by(number, from)).collect::<Vec<_>>();
        drop(core);
        there.into_iter().try_for_each(|SlabId(number)| self.detach(OperationId(number)))?;
        source.map(drop)
    }
}

impl Core {
    /// Whether a message is on its way to an operation over this channel, or any of this context. Of a channel that is gone it may be.
    fn comes_by(&mut self, SlabId(operation): SlabId, from: RecvFrom) -> bool {
        let known = self.state.operations.get(u64::from(operation)).and_then(|known| known.channel);
        let (Some(channel), RecvFrom::Any(context)) = (known, from) else {
            return matches!((known, from), (Some(known), RecvFrom::Channel(channel)) if known == channel);
        };
        match self.place(channel.link, channel.id).map(|place| place.reception) {
            Some(Reception::Matched(scope)) => self.state.table.is_in(scope, context.0),
            Some(Reception::Handler) => false,
            None => true,
        }
    }
}

/// Posts a receive where a message waits already, or many receives do, or none will come.
#[inline(never)]
pub(super) fn post_otherwise(core: &mut Guard<'_>, selector: Selector, receive: Receive<Buffer>) {
    match core.state.table.post(selector, receive) {
        PostOutcome::Posted(_) => {}
        PostOutcome::Matched(held) => {
            let name = core.state.operations.name_of(receive);
            core.give(held, OperationId(name as u32), receive.capacity);
        }
        PostOutcome::Ended(status) => end(core, receive, status),
    }
}

/// Ends a receive that is out of the table.
fn end(core: &mut Guard<'_>, receive: Receive<Buffer>, status: Status) {
    let name = core.state.operations.name_of(receive);
    core.state.operations.complete(name, Outcome { status, length: 0 });
    core.alert();
}
