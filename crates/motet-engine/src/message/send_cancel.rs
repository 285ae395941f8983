//! Cancelling of sends whose bodies have not been taken in time: the program gets the memory back, and the peer delivers no wrong bytes.
//!
//! First the peer is asked ([`Node::recall`]); it answers as soon as it makes progress. If it does not, the link is given up ([`Node::abort_link`]): nothing
//! less takes an announced body away from a peer that may read it at any time. Such a peer checks after each copy, before it uses the bytes, that the link is
//! still connected (`single_copy`), so it never delivers what it copies later. The caller decides how long to wait.

use super::operations::OperationKind;
use super::{Error, Node, OperationId};
use crate::reason::Reason;
use motet_proto::message::ProtocolViolation;
use motet_sys::user_memory::OperationMemory;

/// What is left to do for a send that was called back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recall {
    /// The operation has completed, or completes as soon as the peer makes progress: as cancelled if it was not too late.
    Requested,
    /// The message is eager, and the rest of it is sent from a copy. The operation ends without a completion; its memory is free.
    ContinuesFromCopy,
}

impl Node {
    /// Asks the peer to stop using a message that is still being sent.
    ///
    /// Errors: [`Error::Unknown`] if there is no such operation.
    pub fn recall(&self, operation: OperationId) -> Result<Recall, Error> {
        let mut node = self.lock()?;
        let node = &mut *node;
        let known = node.messages.operations.get(u64::from(operation.0)).ok_or(Error::Unknown)?;
        let (OperationKind::Send(Some(number)), Some(channel)) = (known.kind, known.channel) else {
            return Ok(Recall::Requested);
        };
        let (link_state, messages) = node.link(channel.link)?;
        if link_state.gone.is_some() || link_state.proto.cancel(number) || messages.operations.has_ended(operation) {
            link_state.flush(channel.link, messages);
            node.schedule_link(channel.link);
            return Ok(Recall::Requested);
        }
        // The message is eager: the peer has granted space for all of it, and has received the first packet.
        let Some(known) = messages.operations.get(u64::from(operation.0)) else { return Ok(Recall::Requested) };
        let mut copy = Vec::new();
        let parts = std::iter::once(&known.memory).chain(known.rest());
        if copy.try_reserve_exact(parts.clone().map(OperationMemory::len).sum()).is_err() {
            return Ok(Recall::Requested); // it may still be sent in time
        }
        parts.for_each(|part| copy.extend_from_slice(part.bytes(0, usize::MAX)));
        (known.memory, known.detached) = (OperationMemory::Owned(copy), true);
        known.exchange_rest(Vec::new());
        Ok(Recall::ContinuesFromCopy)
    }

    /// Gives up the link of a send that has not completed, so that this operation and all others on the link complete. The link is down with
    /// [`Reason::UNANSWERED`].
    pub fn abort_link(&self, operation: OperationId) -> Result<(), Error> {
        let mut node = self.lock()?;
        let channel = node.messages.operations.get(u64::from(operation.0)).ok_or(Error::Unknown)?.channel;
        if node.messages.operations.has_ended(operation) {
            return Ok(()); // it has completed just in time
        }
        let Some(channel) = channel else { return Ok(()) };
        let (link_state, messages) = node.link(channel.link)?;
        link_state.take_down(
            channel.link,
            messages,
            Reason::UNANSWERED,
            ProtocolViolation("the peer has not taken a message in time"),
        );
        node.notify();
        Ok(())
    }
}
