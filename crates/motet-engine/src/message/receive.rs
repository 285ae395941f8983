//! The calls by which a program receives messages, peeks at waiting messages, and cancels operations.

use super::link::LinkState;
use super::message_state::{LinkCallbacks, MessageState};
use super::node_state::NodeState;
use super::operations::{Buffer, CompletionOptions, Operation, OperationKind};
use super::{Bias, Channel, Context, Error, LinkId, Node, OperationId};
use crate::reason::Reason;
use motet_proto::message::matching::{PostOutcome, Receive, Selector, Source};
use motet_proto::message::{Outcome, ProtocolViolation, Reception, UnexpectedMessage};
use motet_sys::user_memory::OperationMemory;

/// Where a receive takes its message from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvFrom {
    /// One channel.
    Channel(Channel),
    /// Any channel of a context.
    Any(Context),
}

/// A message that waits to be received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeekedMessage {
    /// The channel on which it has arrived.
    pub channel: Channel,
    /// Its tag.
    pub tag: u64,
    /// Bytes of its body.
    pub length: u64,
    /// Its headers.
    pub headers: Vec<u8>,
}

impl Node {
    /// Posts a receive: `memory` gets the body of the next message whose tag is `tag`, apart from the bits in `ignore`.
    pub fn post(
        &self,
        from: RecvFrom,
        tag: u64,
        ignore: u64,
        memory: OperationMemory,
        options: CompletionOptions,
    ) -> Result<OperationId, Error> {
        self.post_with((from, tag, ignore), memory, options, None)
    }

    /// Posts a receive like [`Node::post`], with the caller's bias if it has one.
    #[inline(always)]
    pub fn post_with(
        &self,
        (from, tag, ignore): (RecvFrom, u64, u64),
        memory: OperationMemory,
        options: CompletionOptions,
        bias: Option<&mut Bias>,
    ) -> Result<OperationId, Error> {
        let (mut node, _) = self.lock_with(bias)?;
        let capacity = memory.len() as u64;
        let make = || Operation::new(memory, OperationKind::Receive(None), None, options);
        let posted = node.post_locked((from, tag, ignore), options, make, capacity);
        node.release();
        posted
    }

    /// Looks at the message that a receive would get, and leaves it waiting.
    pub fn peek(&self, from: RecvFrom, tag: u64, ignore: u64) -> Result<Option<PeekedMessage>, Error> {
        let (mut node, quiet) = self.lock_with(None)?;
        let selector = node.selector(from, tag, ignore)?;
        let peeked = node.messages.table.peek(selector).map(|unexpected| PeekedMessage {
            channel: Channel { link: LinkId(unexpected.source), id: unexpected.channel },
            tag: unexpected.tag,
            length: unexpected.length,
            headers: unexpected.headers().to_vec(),
        });
        node.quiet = quiet;
        node.release();
        Ok(peeked)
    }

    /// Takes the message that a receive would get, so that no other receive gets it. It must be given memory ([`Node::accept_body`]) or be discarded
    /// ([`Node::discard_body`]).
    pub fn claim(&self, from: RecvFrom, tag: u64, ignore: u64) -> Result<Option<UnexpectedMessage>, Error> {
        let mut node = self.lock()?;
        let selector = node.selector(from, tag, ignore)?;
        Ok(node.messages.table.claim(selector))
    }

    /// Gives memory to a message that was claimed, or that a handler has taken. On an error the message is returned.
    pub fn accept_body(
        &self,
        unexpected: UnexpectedMessage,
        memory: OperationMemory,
        options: CompletionOptions,
    ) -> Result<OperationId, (Error, UnexpectedMessage)> {
        let capacity = memory.len() as u64;
        self.accept_with(unexpected, Operation::new(memory, OperationKind::Receive(None), None, options), capacity)
    }

    /// Makes a message that of a receive with room for `capacity` bytes. On an error the message is returned.
    pub(super) fn accept_with(
        &self,
        unexpected: UnexpectedMessage,
        operation: Operation,
        capacity: u64,
    ) -> Result<OperationId, (Error, UnexpectedMessage)> {
        let mut node = match self.lock() {
            Ok(node) => node,
            Err(error) => return Err((error, unexpected)),
        };
        match node.messages.operations.begin(operation) {
            Ok(name) => {
                node.give_message(unexpected, name, capacity);
                Ok(name)
            }
            Err(error) => Err((error, unexpected)),
        }
    }

    /// Discards a message that was claimed, or that a handler has taken.
    pub fn discard_body(&self, unexpected: UnexpectedMessage) -> Result<(), Error> {
        let mut node = self.lock()?;
        let link = LinkId(unexpected.source);
        if let Ok((link_state, _)) = node.link(link) {
            link_state.proto.discard(unexpected);
            node.flush_link(link);
        }
        Ok(())
    }

    /// Cancels an operation. It completes in any case: as cancelled, or as it would have without this call. The memory of a receive that was cancelled is
    /// unchanged, so a receive that has got part of its message goes on.
    ///
    /// Errors: [`Error::Unknown`] if its completion was taken already.
    pub fn cancel(&self, operation: OperationId) -> Result<(), Error> {
        self.cancel_with(operation, false)
    }

    /// Cancels a receive whose memory may change: it is cancelled even if it has got part of its message, which goes to the next receive.
    pub fn cancel_receive(&self, operation: OperationId) -> Result<(), Error> {
        self.cancel_with(operation, true)
    }

    fn cancel_with(&self, operation: OperationId, even_if_begun: bool) -> Result<(), Error> {
        let mut node = self.lock()?;
        let node = &mut *node;
        let Some(known) = node.messages.operations.get(u64::from(operation.0)) else { return Err(Error::Unknown) };
        match (known.kind, known.channel) {
            (OperationKind::Receive(Some(_)), _) if known.begun && !even_if_begun => {}
            (OperationKind::Receive(Some(ticket)), _) if node.messages.table.cancel(ticket).is_some() => {
                let outcome = Outcome { status: super::Status::Cancelled, length: 0 };
                node.messages.operations.complete(u64::from(operation.0), outcome);
                node.notify();
            }
            (OperationKind::Send(Some(number)), Some(channel)) => {
                if let Ok((link_state, messages)) = node.link(channel.link) {
                    link_state.proto.cancel(number);
                    link_state.flush(channel.link, messages);
                    node.schedule_link(channel.link);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes the memory away from an operation that has not completed, and discards its completion. What still arrives for a receive is discarded. A send
    /// loses its link, because the peer may be about to fetch the body.
    pub fn detach(&self, operation: OperationId) -> Result<(), Error> {
        let mut node = self.lock()?;
        let Some(known) = node.messages.operations.get(u64::from(operation.0)) else { return Ok(()) };
        if let (OperationKind::Receive(_), Some(channel)) = (known.kind, known.channel)
            && let Ok((link_state, _)) = node.link(channel.link)
        {
            link_state.end_cooperative_copy_of(u64::from(operation.0)); // the peer may be about to write there
        }
        let Some(known) = node.messages.operations.get(u64::from(operation.0)) else { return Ok(()) };
        known.memory = OperationMemory::Owned(Vec::new());
        known.exchange_rest(Vec::new());
        known.detached = true;
        if let (OperationKind::Send(_), Some(channel)) = (known.kind, known.channel) {
            // The peer may be about to fetch the body.
            if let Ok((link_state, messages)) = node.link(channel.link) {
                link_state.take_down(
                    channel.link,
                    messages,
                    Reason::PEER_GONE,
                    ProtocolViolation("the program has taken back the memory of a send"),
                );
            }
        }
        node.notify();
        drop(node);
        let _ = self.cancel_receive(operation); // an error means that the operation is already removed
        Ok(())
    }
}

impl NodeState {
    /// Posts a receive whose record `make` makes in its place.
    #[inline(always)]
    pub(super) fn post_locked(
        &mut self,
        (from, tag, ignore): (RecvFrom, u64, u64),
        options: CompletionOptions,
        make: impl FnOnce() -> Operation,
        capacity: u64,
    ) -> Result<OperationId, Error> {
        let selector = self.selector(from, tag, ignore)?;
        let MessageState { operations, table, .. } = &mut self.messages;
        let (name, record) = operations.begin_with(options, make)?;
        let receive = Receive { operation: u64::from(name.0), capacity, buffer: Buffer::NONE };
        match table.post_fast(selector, receive) {
            Some(ticket) => record.kind = OperationKind::Receive(Some(ticket)),
            None => self.post_general(selector, name, receive),
        }
        Ok(name)
    }

    #[inline(always)]
    pub(super) fn selector(&mut self, from: RecvFrom, tag: u64, ignore: u64) -> Result<Selector, Error> {
        let from = match from {
            RecvFrom::Any(context) if self.messages.table.has_context(context.0) => Source::Any(context.0),
            RecvFrom::Any(_) => return Err(Error::Unknown),
            RecvFrom::Channel(channel) => {
                match self.channel_state(channel.link, channel.id).map(|state| state.reception) {
                    Some(Reception::Matched(scope)) => Source::One(scope),
                    Some(Reception::Handler) => return Err(Error::Closed),
                    None => return Err(Error::Unknown),
                }
            }
        };
        Ok(Selector { from, tag, ignore })
    }

    /// Posts a receive that has a record, if other receives or messages wait.
    #[inline(never)]
    fn post_general(&mut self, selector: Selector, name: OperationId, receive: Receive<Buffer>) {
        match self.messages.table.post(selector, receive) {
            PostOutcome::Posted(ticket) => {
                if let Some(record) = self.messages.operations.get(u64::from(name.0)) {
                    record.kind = OperationKind::Receive(Some(ticket));
                }
            }
            PostOutcome::Matched(unexpected) => self.give_message(unexpected, name, receive.capacity),
            PostOutcome::Ended(status) => {
                self.messages.operations.complete(u64::from(name.0), Outcome { status, length: 0 });
                self.notify();
            }
        }
    }

    /// Gives an unexpected message to an operation.
    pub(super) fn give_message(&mut self, unexpected: UnexpectedMessage, name: OperationId, capacity: u64) {
        let (link, whole) = (LinkId(unexpected.source), unexpected.is_whole());
        match self.link(link) {
            Ok((link_state, messages)) => {
                let LinkState { proto, channel_table, .. } = link_state;
                proto.accept(
                    &mut LinkCallbacks::of(messages, channel_table, link),
                    unexpected,
                    u64::from(name.0),
                    capacity,
                );
                if link_state.proto.is_due() {
                    self.flush_link(link);
                }
            }
            Err(_) => {
                let outcome = Outcome { status: super::Status::LinkDown, length: 0 };
                self.messages.operations.complete(u64::from(name.0), outcome);
            }
        }
        self.notify();
        // A thread that makes progress copies what must be copied: it must poll this link.
        if !whole && self.links.get(link).is_some_and(|link_state| link_state.channel_table.has_copies()) {
            self.links.activate(link);
            self.schedule_link(link);
        }
    }
}
