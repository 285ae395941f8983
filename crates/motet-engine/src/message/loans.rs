//! Loans: messages that the receiver reads where the sender has put them.
//!
//! A block of the node's pool ([`Node::alloc`]) is sent as a message of any length by one packet, an RTS ([`Node::send_loan`]). A receive in place
//! completes with a reference to the message ([`LoanedMessage`]). Its release ([`Node::release_loan`], or dropping it) informs the sender, whose pool
//! has the block again then; so does the loss of the link.
//!
//! How the receiver maps the block is in [`super::regions::segments`]. Where it cannot, or where the message is short or no loan, a receive in
//! place completes with a copy, and only [`LoanCounts`] shows the difference.

use super::link::LinkState;
pub use super::loaned::{Loan, LoanedMessage, PeerBytes, ReleaseQueue};
use super::message_state::{LinkCallbacks, MessageState};
use super::node_state::NodeState;
use super::operations::{Kind, Operation, Seen};
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

/// Longest loan that goes with its bytes, so that the block is free at once.
const SHORT: usize = 3840;
/// Longest time between two checks for a free block, ns.
const LOOK: u64 = 20_000_000;
const NONSENSE: ProtocolViolation = ProtocolViolation("the peer says what cannot be of its memory");

impl Node {
    /// A block of the pool, to be filled and sent. It holds what an earlier one held, or zeros.
    ///
    /// Errors: [`Error::Full`] when the pool is used up: all blocks are loaned or held by the program.
    pub fn alloc(&self, length: usize) -> Result<Loan, Error> {
        self.lock()?.messages.take_block(length).ok_or(Error::Full)
    }

    /// The same, and waits until there is one: blocks come back. So the pool bounds how far a sender is ahead of its receivers.
    ///
    /// Errors: [`Error::TooLong`] when the pool could never have it; [`Error::TimedOut`]; [`Error::WouldBlock`] in a handler.
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
            // A block that another thread drops wakes no waiter.
            let look = clock::nanoseconds().saturating_add(LOOK);
            let until = deadline.map_or(look, |deadline| deadline.min(look));
            match self.wait(self.lock()?, Some(until), |node| node.messages.take_block(length)) {
                Err(Error::TimedOut) if deadline.is_none_or(|deadline| clock::nanoseconds() < deadline) => {}
                taken => return taken,
            }
        }
    }

    /// Sends the first `length` bytes of a loan. The block is the pool's again when the receiver has given it back, or copied it, or the
    /// link is lost. Waits until there is room for the announcement.
    ///
    /// With completion options the operation completes then, as any send; without one there is no completion and no name. A short loan goes with its
    /// bytes. `message.mode` is not looked at. On an error the loan comes back, if it is still whole.
    pub fn send_loan(
        &self,
        message: &Outgoing<'_>,
        mut loan: Loan,
        length: usize,
        notice: Option<CompletionOptions>,
        deadline: Option<u64>,
    ) -> Result<Option<OperationId>, (Error, Option<Loan>)> {
        loan.truncate(length);
        let mode = if loan.len() <= SHORT { Mode::Automatic } else { Mode::Synchronous };
        let message = Outgoing { mode, ..*message };
        let mut node = match self.lock() {
            Ok(node) => node,
            Err(error) => return Err((error, Some(loan))),
        };
        if (notice, mode) == (None, Mode::Synchronous) {
            loan = match node.lend_shown(&message, loan) {
                Ok(()) => return Ok(None),
                Err(loan) => loan, // or it would break, or block: that is seen again
            };
        }
        let mut left = Some(loan);
        let sent = self.wait(node, deadline, |node| {
            if let Err(error) = node.has_room_for(notice) {
                return Some(Err(error));
            }
            let memory = OperationMemory::Loan(left.take()?);
            match self.start_send_here(node, &message, memory, Vec::new(), notice.unwrap_or_default()) {
                Ok(operation) => {
                    if let (None, Some(name)) = (notice, operation) {
                        node.let_go_of(name);
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

    /// Posts a receive in place: it completes with a loaned message ([`super::Completion::lent`]), or with a copy of at most `most`
    /// bytes ([`super::Completion::memory`]).
    pub fn post_in_place(
        &self,
        from: RecvFrom,
        tag: u64,
        ignore: u64,
        most: u64,
        notice: CompletionOptions,
    ) -> Result<OperationId, Error> {
        let mut node = self.lock()?;
        node.post_here((from, tag, ignore), notice, || in_place(most, notice), most)
    }

    /// The same for a message that was claimed, or that a handler has taken.
    pub fn accept_in_place(
        &self,
        held: UnexpectedMessage,
        most: u64,
        notice: CompletionOptions,
    ) -> Result<OperationId, (Error, UnexpectedMessage)> {
        self.accept_as(held, in_place(most, notice), most)
    }

    /// Gives a message back to its sender, at once.
    pub fn release_loan(&self, mut lent: LoanedMessage) -> Result<(), Error> {
        let mut node = self.lock()?;
        let (link, record) = (lent.link, lent.record.take());
        // Its references first: counting them atomically after the store of FIN would wait for that store.
        drop(lent);
        if let Some(record) = record {
            node.release_loan(link, record);
        }
        Ok(())
    }

    /// How receives in place on a link went.
    pub fn loan_counts(&self, link: LinkId) -> Result<LoanCounts, Error> {
        let mut node = self.lock()?;
        let (link_state, _) = node.link(link)?;
        Ok(link_state.channel_table.segments.counts)
    }

    /// Segments of the pool, their bytes, and bytes of them that are loaned or held by the program.
    pub fn pool_size(&self) -> Result<[usize; 3], Error> {
        let node = self.lock()?;
        let [segments, bytes, out] = node.messages.pool.usage();
        Ok([segments, bytes, out - node.messages.operations.spare_bytes()])
    }
}

fn in_place(most: u64, notice: CompletionOptions) -> Operation {
    let mut operation = Operation::new(OperationMemory::Owned(Vec::new()), Kind::Receive(None), None, notice);
    operation.sees(Seen::Wanted { most });
    operation
}

impl NodeState {
    /// Whether an operation can have a record: one that has none takes its memory with it.
    fn has_room_for(&mut self, notice: Option<CompletionOptions>) -> Result<(), Error> {
        if notice.and_then(|notice| notice.cq).is_some_and(|cq| self.messages.operations.cq(cq).is_none()) {
            return Err(Error::Unknown);
        }
        if self.messages.operations.count() < slab::MAX_RECORDS { Ok(()) } else { Err(Error::Full) }
    }

    /// Nobody will ask for the end of an operation that has just begun.
    pub(super) fn let_go_of(&mut self, name: OperationId) {
        if let Some(operation) = self.messages.operations.get(u64::from(name.0)) {
            operation.detached = true;
        }
    }

    fn release_loan(&mut self, link: LinkId, record: SlabId) {
        let Ok((link_state, messages)) = self.link(link) else { return };
        link_state.with(link, messages, |proto, way, _| proto.release_loan_now(way, record));
        if link_state.proto.is_due() {
            self.flush_link(link);
        }
    }

    /// Sends a loan without a completion, if the peer has mapped its memory; otherwise returns the loan.
    fn lend_shown(&mut self, message: &Outgoing<'_>, loan: Loan) -> Result<(), Loan> {
        let &Outgoing { channel, tag, headers, mode } = message;
        let Ok((link_state, messages)) = self.link(channel.link) else { return Err(loan) };
        let Some(place) = link_state.channel_table.segments.show(loan.segment(), loan.address()) else {
            return Err(loan);
        };
        let length = loan.len() as u64;
        let operation = messages.operations.keep_loan(loan)?;
        let send = Send { channel: channel.id, tag, headers, body: &[], mode, operation, place };
        let sent = link_state.with(channel.link, messages, |proto, way, _| proto.send_rts(way, &send, length));
        match sent {
            Ok(_) => Ok(()),
            Err(_) => messages.operations.take_loan(operation).map_or(Ok(()), Err),
        }
    }

    /// Gives back what was dropped.
    #[cold]
    pub(super) fn take_returns(&mut self) {
        let releases = self.messages.operations.releases.clone();
        let dropped = releases.map(|releases| std::mem::take(&mut *releases.queue())).unwrap_or_default();
        dropped.into_iter().for_each(|(link, record)| self.release_loan(link, record));
    }

    /// Where a peer sees a loan; `otherwise` where it does not.
    pub(super) fn place_of_loan(&mut self, link: LinkId, loan: &Loan, otherwise: RemoteAddress) -> RemoteAddress {
        let Ok((link_state, _)) = self.link(link) else { return otherwise };
        link_state.channel_table.segments.show(loan.segment(), loan.address()).unwrap_or(otherwise)
    }

    /// The control connection of a link has something.
    #[cold]
    pub(super) fn hear(&mut self, link: LinkId) {
        use super::regions::segments::ControlResult;
        let Ok((link_state, messages)) = self.link(link) else { return };
        match link_state.channel_table.segments.hear() {
            ControlResult::All => self.watch_control_again(link),
            ControlResult::End => {
                link_state.peer_closed = true;
                self.links.activate(link);
            }
            ControlResult::Broken => link_state.lose(link, messages, Reason::BROKEN, NONSENSE),
        }
    }

    /// Tells peers which segments have gone since this was last called.
    #[cold]
    pub(super) fn withdraw_segments(&mut self) {
        self.gone = self.messages.pool.released_segments();
        for link in self.links.all() {
            if let Some(link_state) = self.links.get_mut(link) {
                link_state.channel_table.segments.withdraw();
            }
        }
    }
}

impl LinkState {
    /// Lends the message whose copy is due to the program, if it was asked for in place and we see it. True: there is nothing to copy.
    pub(super) fn lend(&mut self, id: LinkId, messages: &mut MessageState) -> bool {
        let Some(&PendingCopy { request, done: 0, .. }) = self.channel_table.copies.front() else { return false };
        let CopyRequest { record, operation, address, key, length } = request;
        let Some(operation) = messages.operations.get(operation) else { return false };
        if !matches!(operation.seen(), Seen::Wanted { .. }) {
            return false;
        }
        let part = self.channel_table.segments.find(RemoteAddress { address, key }, 0, length as usize);
        if self.channel_table.segments.broken {
            self.lose(id, messages, Reason::BROKEN, NONSENSE);
            return true;
        }
        let Some(part) = part else {
            operation.make_room();
            return false;
        };
        operation.sees(Seen::LoanedMessage(part, record));
        self.channel_table.segments.counts.lent += 1;
        self.channel_table.copies.pop_front();
        let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
        self.proto.loan_in_place(&mut callbacks, record);
        true
    }

    /// Copies bytes of a message that we see into the buffer of its receive; `None`: we do not.
    pub(super) fn copy_seen(
        &mut self,
        messages: &mut MessageState,
        request: &CopyRequest,
        done: u64,
        length: usize,
    ) -> Option<u64> {
        let place = RemoteAddress { address: request.address, key: request.key };
        let part = self.channel_table.segments.find(place, done, length)?;
        let operation = messages.operations.get(request.operation)?;
        let copied = operation.memory.write(done as usize, length, |into| part.read(0, into));
        (copied > 0).then_some(copied as u64)
    }
}
