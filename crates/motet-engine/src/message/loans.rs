//! Loans: messages that the receiver reads in place, in memory of the sender.
//!
//! A block of the node's pool ([`Node::alloc`]) is sent as a message of any length with one packet, an RTS ([`Node::send_loan`]). A receive in place
//! completes with a reference to the message ([`LoanedMessage`]). Its release ([`Node::release_loan`], or its drop) sends a FIN, upon which the
//! sender's pool has the block again. The loss of the link has the same effect.
//!
//! How the receiver maps the block is in `regions::segments`. If it cannot map it, or if the message is short or is not a loan, a receive in place
//! completes with a copy, and only [`LoanCounts`] shows the difference.

use super::link::LinkState;
pub use super::loaned::{Loan, LoanedMessage, PeerBytes, ReleaseQueue};
use super::message_state::{LinkCallbacks, MessageState};
use super::node_state::NodeState;
use super::operations::{InPlaceState, Operation, OperationKind};
use super::receive::RecvFrom;
pub use super::regions::segments::LoanCounts;
use super::send::Outgoing;
use super::single_copy::pending::PendingCopy;
use super::{CompletionOptions, Error, LinkId, Mode, Node, OperationId};
use crate::reason::Reason;
use motet_proto::message::packet::RemoteAddress;
use motet_proto::message::slab::{self, SlabId};
use motet_proto::message::{CopyRequest, ProtocolViolation, Send, UnexpectedMessage};
use motet_sys::clock;
use motet_sys::user_memory::OperationMemory;

/// Longest loan that is sent as an ordinary message, bytes: its block is free as soon as the bytes are sent.
const MAX_SHORT_LOAN_BYTES: usize = 3840;
/// Time between two checks for a free block, ns.
const CHECK_INTERVAL_NS: u64 = 20_000_000;
/// The peer has announced or withdrawn a segment that it cannot have, or refers to one.
const INVALID_SEGMENT_MESSAGE: ProtocolViolation = ProtocolViolation("invalid message about the peer's segments");

impl Node {
    /// Takes a block of the pool, to be filled and sent. Its contents are zeros or those of an earlier block.
    ///
    /// Errors: [`Error::Full`] if the pool is used up: all blocks are loaned or held by the program.
    pub fn alloc(&self, length: usize) -> Result<Loan, Error> {
        self.lock()?.messages.take_block(length).ok_or(Error::Full)
    }

    /// Takes a block of the pool, to be filled and sent, and waits until one is free. So the size of the pool bounds how far a sender can be ahead of
    /// its receivers.
    ///
    /// Errors: [`Error::TooLong`] if the block is larger than the pool; [`Error::TimedOut`]; [`Error::WouldBlock`] in a handler.
    pub fn alloc_until(&self, length: usize, deadline: Option<u64>) -> Result<Loan, Error> {
        let holds = {
            let mut node = self.lock()?;
            match node.messages.take_block(length) {
                Some(block) => return Ok(block),
                None => node.messages.pool.can_hold(length),
            }
        };
        if !holds {
            return Err(Error::TooLong);
        }
        loop {
            // The drop of a block by another thread wakes no waiter, so the wait is short and repeated.
            let check = clock::nanoseconds().saturating_add(CHECK_INTERVAL_NS);
            let until = deadline.map_or(check, |deadline| deadline.min(check));
            match self.wait(self.lock()?, Some(until), |node| node.messages.take_block(length)) {
                Err(Error::TimedOut) if deadline.is_none_or(|deadline| clock::nanoseconds() < deadline) => {}
                taken => return taken,
            }
        }
    }

    /// Sends the first `length` bytes of a loan, and waits until there is room for its RTS. The pool has the block again when the receiver has
    /// released or copied the message, or when the link is lost. A short loan is sent as an ordinary message. `message.mode` is ignored.
    ///
    /// With completion options the operation completes when the block is free, as any send does; without them there is no completion, and the result
    /// is `None`. On an error the loan is returned, unless it has been consumed.
    pub fn send_loan(
        &self,
        message: &Outgoing<'_>,
        mut loan: Loan,
        length: usize,
        options: Option<CompletionOptions>,
        deadline: Option<u64>,
    ) -> Result<Option<OperationId>, (Error, Option<Loan>)> {
        loan.truncate(length);
        let mode = if loan.len() <= MAX_SHORT_LOAN_BYTES { Mode::Automatic } else { Mode::Synchronous };
        let message = Outgoing { mode, ..*message };
        let mut node = match self.lock() {
            Ok(node) => node,
            Err(error) => return Err((error, Some(loan))),
        };
        if (options, mode) == (None, Mode::Synchronous) {
            loan = match node.send_loan_without_record(&message, loan) {
                Ok(()) => return Ok(None),
                Err(loan) => loan, // a send that fails or has no room is tried again below, which finds out why
            };
        }
        let mut left = Some(loan);
        let sent = self.wait(node, deadline, |node| {
            if let Err(error) = node.has_room_for(options) {
                return Some(Err(error));
            }
            let memory = OperationMemory::Loan(left.take()?);
            match self.start_send_locked(node, &message, memory, Vec::new(), options.unwrap_or_default()) {
                Ok(operation) => {
                    if let (None, Some(name)) = (options, operation) {
                        node.discard_completion(name);
                        return Some(Ok(None));
                    }
                    Some(Ok(operation))
                }
                Err((error, memory, _)) => {
                    left = if let OperationMemory::Loan(loan) = memory { Some(loan) } else { None };
                    if error == Error::WouldBlock { None } else { Some(Err(error)) }
                }
            }
        });
        match sent {
            Ok(Ok(operation)) => Ok(operation),
            Ok(Err(error)) | Err(error) => Err((error, left)),
        }
    }

    /// Posts a receive in place. It completes with a loaned message ([`super::Completion::loaned`]), or with a copy of at most `max` bytes
    /// ([`super::Completion::memory`]).
    pub fn post_in_place(
        &self,
        from: RecvFrom,
        tag: u64,
        ignore: u64,
        max: u64,
        options: CompletionOptions,
    ) -> Result<OperationId, Error> {
        let mut node = self.lock()?;
        node.post_locked((from, tag, ignore), options, || in_place(max, options), max)
    }

    /// Receives in place a message that was claimed, or that a handler has taken. The operation completes with a loaned message
    /// ([`super::Completion::loaned`]), or with a copy of at most `max` bytes ([`super::Completion::memory`]).
    pub fn accept_in_place(
        &self,
        unexpected: UnexpectedMessage,
        max: u64,
        options: CompletionOptions,
    ) -> Result<OperationId, (Error, UnexpectedMessage)> {
        self.accept_with(unexpected, in_place(max, options), max)
    }

    /// Releases a loaned message at once: its sender has the block again.
    pub fn release_loan(&self, mut loaned: LoanedMessage) -> Result<(), Error> {
        let mut node = self.lock()?;
        let (link, record) = (loaned.link, loaned.record.take());
        // The drop comes first: its atomic decrements would have to wait for the store of the FIN.
        drop(loaned);
        if let Some(record) = record {
            node.release_loan(link, record);
        }
        Ok(())
    }

    /// Counts how the receives in place on a link have completed: in place, or with a copy.
    pub fn loan_counts(&self, link: LinkId) -> Result<LoanCounts, Error> {
        let mut node = self.lock()?;
        let (link_state, _) = node.link(link)?;
        Ok(link_state.channel_table.segments.counts)
    }

    /// Number of segments of the pool, their bytes, and the bytes of them that are loaned or held by the program.
    pub fn pool_size(&self) -> Result<[usize; 3], Error> {
        let node = self.lock()?;
        let [segments, bytes, out] = node.messages.pool.usage();
        Ok([segments, bytes, out - node.messages.operations.spare_bytes()])
    }
}

/// The operation of a receive in place, with a copy of at most `max` bytes.
fn in_place(max: u64, options: CompletionOptions) -> Operation {
    let mut operation = Operation::new(OperationMemory::Owned(Vec::new()), OperationKind::Receive(None), None, options);
    operation.set_in_place(InPlaceState::Wanted { max });
    operation
}

impl NodeState {
    /// Checks that an operation can get a record: the start of a send without one would consume its memory.
    fn has_room_for(&mut self, options: Option<CompletionOptions>) -> Result<(), Error> {
        if options.and_then(|options| options.cq).is_some_and(|cq| self.messages.operations.cq(cq).is_none()) {
            return Err(Error::Unknown);
        }
        if self.messages.operations.count() < slab::MAX_RECORDS { Ok(()) } else { Err(Error::Full) }
    }

    /// Detaches an operation that has just begun: its completion is discarded.
    pub(super) fn discard_completion(&mut self, name: OperationId) {
        if let Some(operation) = self.messages.operations.get(u64::from(name.0)) {
            operation.detached = true;
        }
    }

    /// Sends the FIN that releases a loaned message.
    fn release_loan(&mut self, link: LinkId, record: SlabId) {
        let Ok((link_state, messages)) = self.link(link) else { return };
        link_state.with(link, messages, |proto, packets, _| proto.release_loan_now(packets, record));
        if link_state.proto.is_due() {
            self.flush_link(link);
        }
    }

    /// Sends a loan without a completion, if its segment can be shown to the peer; otherwise returns the loan.
    fn send_loan_without_record(&mut self, message: &Outgoing<'_>, loan: Loan) -> Result<(), Loan> {
        let &Outgoing { channel, tag, headers, mode } = message;
        let Ok((link_state, messages)) = self.link(channel.link) else { return Err(loan) };
        let Some(address) = link_state.channel_table.segments.address_for_peer(loan.segment(), loan.address()) else {
            return Err(loan);
        };
        let length = loan.len() as u64;
        let operation = messages.operations.keep_loan(loan)?;
        let send = Send { channel: channel.id, tag, headers, body: &[], mode, operation, place: address };
        let sent = link_state.with(channel.link, messages, |proto, packets, _| proto.send_rts(packets, &send, length));
        match sent {
            Ok(_) => Ok(()),
            Err(_) => messages.operations.take_loan(operation).map_or(Ok(()), Err),
        }
    }

    /// Releases the loaned messages that the program has dropped.
    #[cold]
    pub(super) fn release_dropped_loans(&mut self) {
        let releases = self.messages.operations.releases.clone();
        let dropped = releases.map(|releases| std::mem::take(&mut *releases.queue())).unwrap_or_default();
        dropped.into_iter().for_each(|(link, record)| self.release_loan(link, record));
    }

    /// The address by which a peer reads a loan in place; `fallback` if its segment cannot be shown to the peer.
    pub(super) fn address_of_loan(&mut self, link: LinkId, loan: &Loan, fallback: RemoteAddress) -> RemoteAddress {
        let Ok((link_state, _)) = self.link(link) else { return fallback };
        link_state.channel_table.segments.address_for_peer(loan.segment(), loan.address()).unwrap_or(fallback)
    }

    /// Handles the messages that have arrived on the control connection of a link, or its end.
    #[cold]
    pub(super) fn handle_control(&mut self, link: LinkId) {
        use super::regions::segments::ControlResult;
        let Ok((link_state, messages)) = self.link(link) else { return };
        match link_state.channel_table.segments.read_control() {
            ControlResult::Drained => self.watch_control_again(link),
            ControlResult::Closed => {
                link_state.peer_closed = true;
                self.links.activate(link);
            }
            ControlResult::Broken => link_state.take_down(link, messages, Reason::BROKEN, INVALID_SEGMENT_MESSAGE),
        }
    }

    /// Announces to the peers which segments of the pool have been released since the last call.
    #[cold]
    pub(super) fn withdraw_segments(&mut self) {
        self.withdrawn_segments = self.messages.pool.released_segments();
        for link in self.links.all() {
            if let Some(link_state) = self.links.get_mut(link) {
                link_state.channel_table.segments.withdraw_released();
            }
        }
    }
}

impl LinkState {
    /// Gives the first message whose copy is due to the program in place, if its receive asks for that and its memory is mapped. True: there is
    /// nothing to copy.
    pub(super) fn give_in_place(&mut self, id: LinkId, messages: &mut MessageState) -> bool {
        let Some(&PendingCopy { request, done: 0, .. }) = self.channel_table.copies.front() else { return false };
        let CopyRequest { record, operation, address, key, length } = request;
        let Some(operation) = messages.operations.get(operation) else { return false };
        if !matches!(operation.in_place(), InPlaceState::Wanted { .. }) {
            return false;
        }
        let part = self.channel_table.segments.find_mapped(RemoteAddress { address, key }, 0, length as usize);
        if self.channel_table.segments.broken {
            self.take_down(id, messages, Reason::BROKEN, INVALID_SEGMENT_MESSAGE);
            return true;
        }
        let Some(part) = part else {
            operation.make_room();
            return false;
        };
        operation.set_in_place(InPlaceState::Loaned(part, record));
        self.channel_table.segments.counts.in_place += 1;
        self.channel_table.copies.pop_front();
        let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
        self.proto.loan_in_place(&mut callbacks, record);
        true
    }

    /// Copies bytes of a message in a mapped segment of the peer into the buffer of its receive. `None`: the message is not in such a segment, or the
    /// buffer takes no bytes.
    pub(super) fn copy_from_mapping(
        &mut self,
        messages: &mut MessageState,
        request: &CopyRequest,
        done: u64,
        length: usize,
    ) -> Option<u64> {
        let address = RemoteAddress { address: request.address, key: request.key };
        let part = self.channel_table.segments.find_mapped(address, done, length)?;
        let operation = messages.operations.get(request.operation)?;
        let copied = operation.memory.write(done as usize, length, |into| part.read(0, into));
        (copied > 0).then_some(copied as u64)
    }
}
