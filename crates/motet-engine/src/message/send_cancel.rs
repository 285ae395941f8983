//! Sends whose time is over although their bodies have not been taken: getting the memory back without deceiving the peer.
//!
//! What it is: first the peer is asked ([`Node::call_back`]); it answers as soon as it makes progress. When it does not, the link is given up
//! ([`Node::give_up`]): nothing less takes an announced body away from a peer that may read it at any time. Such a peer looks, behind each
//! copy and before it believes in it, whether the link still stands (`links`), so what it copies after that is never delivered.
//! What it is not: how long to wait is the caller's matter.

use super::operations::Kind;
use super::{Error, Node, OperationId};
use crate::reason::Reason;
use motet_proto::message::ProtocolViolation;
use motet_sys::user_memory::OperationMemory;

/// What is left to do for a send that was called back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CalledBack {
    /// Its end is there, or comes as soon as the peer makes progress: as cancelled if it was not too late.
    Asked,
    /// It is eager and goes on by itself, from a copy. The operation ends by itself, without a completion; its memory is free.
    OnItsWay,
}

impl Node {
    /// Asks the peer to stop using a message that is still being sent.
    ///
    /// Errors: [`Error::Unknown`] for what is no operation, any more or at all.
    pub fn call_back(&self, operation: OperationId) -> Result<CalledBack, Error> {
        let mut node = self.lock()?;
        let node = &mut *node;
        let known = node.messages.operations.get(u64::from(operation.0)).ok_or(Error::Unknown)?;
        let (Kind::Send(Some(number)), Some(channel)) = (known.kind, known.channel) else {
            return Ok(CalledBack::Asked);
        };
        let (link_state, messages) = node.link(channel.link)?;
        if link_state.gone.is_some() || link_state.proto.cancel(number) || messages.operations.has_ended(operation) {
            link_state.flush(channel.link, messages);
            node.schedule_link(channel.link);
            return Ok(CalledBack::Asked);
        }
        // An eager one: the peer has granted space for all of it, and has got the first packet.
        let Some(known) = messages.operations.get(u64::from(operation.0)) else { return Ok(CalledBack::Asked) };
        let mut copy = Vec::new();
        let parts = std::iter::once(&known.memory).chain(known.rest());
        if copy.try_reserve_exact(parts.clone().map(OperationMemory::len).sum()).is_err() {
            return Ok(CalledBack::Asked); // it may still go in time
        }
        parts.for_each(|part| copy.extend_from_slice(part.bytes(0, usize::MAX)));
        (known.memory, known.detached) = (OperationMemory::Owned(copy), true);
        known.exchange_rest(Vec::new());
        Ok(CalledBack::OnItsWay)
    }

    /// Gives up the link of a send that has not ended, and with it everything on it: then it has. The link is gone for
    /// [`Reason::UNANSWERED`].
    pub fn give_up(&self, operation: OperationId) -> Result<(), Error> {
        let mut node = self.lock()?;
        let channel = node.messages.operations.get(u64::from(operation.0)).ok_or(Error::Unknown)?.channel;
        if node.messages.operations.has_ended(operation) {
            return Ok(()); // just in time
        }
        let Some(channel) = channel else { return Ok(()) };
        let (link_state, messages) = node.link(channel.link)?;
        link_state.lose(
            channel.link,
            messages,
            Reason::UNANSWERED,
            ProtocolViolation("a message was not taken in time"),
        );
        node.notify();
        Ok(())
    }
}
