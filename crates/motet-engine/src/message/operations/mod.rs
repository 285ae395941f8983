//! Operations: what a program has started and waits for the completion of.
//!
//! This module has their records and the completion queues. An operation completes once. Its record stays until the program has taken the completion: by a
//! wait for this operation or for any of several, or, if the operation has a completion queue, by a poll of the queue. Nothing here waits.

mod blocking;
mod buffers;
mod completion_queues;
mod record;

pub use blocking::Blocking;
pub use buffers::Buffer;
pub use completion_queues::{CompletionQueue, CqId};
pub use record::{InPlaceState, Operation, OperationKind};

use super::loaned::{Loan, LoanedMessage, ReleaseQueue};
use super::{Channel, Error, OperationId};
use motet_proto::message::matching::{Receive, Selector};
use motet_proto::message::slab::{self, Slab, SlabId};
use motet_proto::message::{Envelope, Outcome, Status};
use motet_sys::user_memory::{OperationMemory, UserMemory};
use std::sync::Arc;

/// How the completion of an operation is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CompletionOptions {
    /// The completion queue that gets the completion; `None`: the program waits for the operation itself.
    pub cq: Option<CqId>,
    /// The program's user data, which the completion returns.
    pub user_data: u64,
    /// Errors-only: successes are counted but not reported. Needs a completion queue.
    pub errors_only: bool,
}

/// The completion of an operation.
#[derive(Debug)]
pub struct Completion {
    /// The operation that has completed.
    pub operation: OperationId,
    /// The program's user data.
    pub user_data: u64,
    /// The status of the completion.
    pub status: Status,
    /// Bytes of the body that were sent, or that are in the buffer.
    pub length: u64,
    /// The tag of the received message.
    pub tag: u64,
    /// Whole length of the received body, before truncation, bytes.
    pub message_length: u64,
    /// The headers of the received message, the outermost first.
    pub headers: Vec<u8>,
    /// The channel of the message.
    pub channel: Option<Channel>,
    /// The memory of the operation, if the operation owned it.
    pub memory: Option<Vec<u8>>,
    /// The loaned message that a receive in place has got.
    pub loaned: Option<LoanedMessage>,
}

/// A completion, borrowed from its record.
#[derive(Debug, Clone, Copy)]
pub struct CompletionRef<'a> {
    /// The operation that has completed.
    pub operation: OperationId,
    /// The program's user data.
    pub user_data: u64,
    /// The status of the completion.
    pub status: Status,
    /// Bytes of the body that were sent, or that are in the buffer.
    pub length: u64,
    /// The tag of the received message.
    pub tag: u64,
    /// Whole length of the received body, before truncation, bytes.
    pub message_length: u64,
    /// The headers of the received message, the outermost first.
    pub headers: &'a [u8],
    /// The channel of the message.
    pub channel: Option<Channel>,
}

/// Receives completions. It is a trait and not a closure, because a closure cannot be marked for inlining.
pub trait CompletionSink {
    /// Whether the sink takes the next completion; if not, the completion is queued. `named`: the program has a name for the operation. `whole`: the
    /// operation succeeds, and a received message is not truncated. `headers`: the headers of the message.
    #[inline(always)]
    fn takes(&self, named: bool, whole: bool, headers: &[u8]) -> bool {
        let _ = (named, whole, headers);
        true
    }
    /// The selector and the memory of a blocking receive that is not posted, because no other receive waits.
    #[inline(always)]
    fn unposted_receive(&self) -> Option<(&Selector, UserMemory)> {
        None
    }
    /// Reports the completion of an operation.
    fn report(&mut self, end: &CompletionRef<'_>);
}

/// A sink that calls a closure for each completion.
pub struct SinkFn<F>(pub F);

impl<F: FnMut(&CompletionRef<'_>)> CompletionSink for SinkFn<F> {
    #[inline(always)]
    fn report(&mut self, end: &CompletionRef<'_>) {
        self.0(end);
    }
}

/// The result of a blocking receive.
#[derive(Debug)]
pub struct ReceiveResult {
    /// The status of the receive.
    pub status: Status,
    /// Bytes in the buffer.
    pub length: u64,
    /// The tag of the message.
    pub tag: u64,
    /// Whole length of the received body, before truncation, bytes.
    pub message_length: u64,
    /// The channel on which the message arrived.
    pub channel: Option<Channel>,
}

/// The operation in the completion of a receive that was posted without a record ([`super::Node::post_unrecorded`]).
pub const NO_OPERATION: OperationId = OperationId(0);

/// All operations of a node.
#[derive(Debug, Default)]
pub struct Operations {
    pool: Slab<Operation, 1>,
    completion_queues: Slab<CompletionQueue>,
    /// The completion queue of blocking receives.
    pub blocking: CqId,
    /// Number of receives that are posted without a record.
    unrecorded: u32,
    /// Loans under way that were sent without a completion.
    loans: Slab<Loan>,
    /// The loan without a completion that was released last, for a further use.
    spare: Option<Loan>,
    /// The queue of loaned messages that the program has dropped and the node has not released.
    pub releases: Option<Arc<ReleaseQueue>>,
}

/// A bit in the protocol's name of an operation: the operation is a loan without a completion, which has no record.
const LOAN_FLAG: u64 = 1 << 32;
/// A bit in the name of a posted receive: the receive has no record, and the low 32 bits are its completion queue.
const UNRECORDED_FLAG: u64 = 1 << 33;

impl Operations {
    /// Adds a record.
    ///
    /// Errors: [`Error::Full`] if there are too many operations; [`Error::Unknown`] if there is no such completion queue.
    #[inline(always)]
    pub fn begin(&mut self, operation: Operation) -> Result<OperationId, Error> {
        if self.pool.count() + self.unrecorded >= slab::MAX_RECORDS {
            return Err(Error::Full);
        }
        let Some(cq) = operation.options.cq else {
            return self.pool.insert(operation).map(|number| OperationId(number.0)).ok_or(Error::Full);
        };
        let known = self.completion_queues.get_by_id(SlabId(cq.0)).ok_or(Error::Unknown)?;
        let number = self.pool.insert(operation).ok_or(Error::Full)?;
        known.under_way += 1;
        Ok(OperationId(number.0))
    }

    /// Adds a record that `make` makes in its place, and returns it with its number. [`Error::Full`] if there are too many operations; [`Error::Unknown`] if
    /// there is no such completion queue.
    #[inline(always)]
    pub fn begin_with(
        &mut self,
        options: CompletionOptions,
        make: impl FnOnce() -> Operation,
    ) -> Result<(OperationId, &mut Operation), Error> {
        let Self { pool, completion_queues, unrecorded, .. } = self;
        let cq = match options.cq {
            Some(cq) => Some(completion_queues.get_by_id(SlabId(cq.0)).ok_or(Error::Unknown)?),
            None => None,
        };
        if pool.count() + *unrecorded >= slab::MAX_RECORDS {
            return Err(Error::Full);
        }
        let (number, record) = pool.insert_and_get(make).ok_or(Error::Full)?;
        if let Some(cq) = cq {
            cq.under_way += 1;
        }
        Ok((OperationId(number.0), record))
    }

    /// The record of an operation by its name in the protocol. `None`: there is none, or its completion is queued.
    #[inline(always)]
    pub fn get(&mut self, name: u64) -> Option<&mut Operation> {
        if name >= LOAN_FLAG {
            return None;
        }
        self.pool.get_by_id(SlabId(name as u32)).filter(|operation| !operation.is_queued)
    }

    /// Removes the record of an operation that has not begun.
    pub fn withdraw(&mut self, operation: OperationId) -> Option<Operation> {
        self.get(u64::from(operation.0))?;
        let operation = self.pool.remove(SlabId(operation.0).index())?;
        if let Some(cq) = operation.options.cq.and_then(|cq| self.cq(cq)) {
            cq.under_way -= 1;
        }
        Some(operation)
    }

    /// Notes the message with which a receive has been matched.
    #[inline(always)]
    pub fn matched(&mut self, name: u64, channel: Channel, envelope: &Envelope<'_>) {
        let Some(operation) = self.get(name) else { return };
        (operation.tag, operation.message_length, operation.channel) = (envelope.tag, envelope.length, Some(channel));
        if let OperationKind::Receive(ticket) = &mut operation.kind {
            *ticket = None;
        }
        if !envelope.headers.is_empty() {
            operation.headers.extend_from_slice(envelope.headers);
        }
    }

    /// Completes an operation.
    #[inline(always)]
    pub fn complete(&mut self, name: u64, outcome: Outcome) {
        if name >= LOAN_FLAG {
            if let Some(loan) = self.take_loan(name).filter(Loan::is_suballocated) {
                self.spare = Some(loan);
            }
            return;
        }
        let Some(operation) = self.get(name) else { return };
        operation.outcome = Some(outcome);
        self.queue_completion(name, outcome);
    }

    /// Completes a receive of `cq` whose message has arrived, and reports the completion instead of queueing it. `fill` copies the body of
    /// `message_length` bytes into the receive's memory, as far as there is room. False, and nothing is done: completions are already queued in
    /// `cq`, the receive has another completion queue, its memory is not the program's, or the sink does not take the completion.
    #[inline(always)]
    pub fn report_message(
        &mut self,
        (receive, channel, tag, headers): (&Receive<Buffer>, Channel, u64, &[u8]),
        message_length: usize,
        cq: CqId,
        sink: &mut impl CompletionSink,
        fill: impl FnOnce(UserMemory) -> usize,
    ) -> bool {
        let known = SlabId(cq.0);
        let Self { pool, completion_queues, unrecorded, .. } = self;
        let Some(cq) = completion_queues.get_by_id(known).filter(|cq| cq.completed.is_empty()) else { return false };
        let (name, number) = (receive.operation, SlabId(receive.operation as u32));
        let (span, user_data, named) = if name & UNRECORDED_FLAG != 0 {
            let Buffer { span, user_data } = receive.buffer;
            if number != known || !sink.takes(false, message_length <= span.len(), headers) {
                return false;
            }
            *unrecorded -= 1;
            (span, user_data, false)
        } else {
            let Some(operation) = pool.get_by_id(number).filter(|_| name < LOAN_FLAG) else { return false };
            let ours = operation.options.cq.is_some_and(|cq| cq.0 == known.0) && operation.may_skip_record();
            let (&OperationMemory::User(span), true) = (&operation.memory, ours) else { return false };
            let (user_data, named) = (operation.options.user_data, !operation.nameless);
            if !sink.takes(named, message_length <= span.len(), headers) {
                return false;
            }
            pool.forget_without_drop(number.index()); // there is nothing to drop: its memory is a span, and it has no headers
            (span, user_data, named)
        };
        let copied = fill(span);
        let status = if copied < message_length { Status::Truncated } else { Status::Done };
        cq.under_way -= 1;
        cq.counts[usize::from(status != Status::Done)] += 1;
        let operation = if named { OperationId(number.0) } else { NO_OPERATION };
        let (length, message_length) = (copied as u64, message_length as u64);
        sink.report(&CompletionRef {
            operation,
            user_data,
            status,
            length,
            tag,
            message_length,
            headers,
            channel: Some(channel),
        });
        true
    }

    /// Completes a receive whose whole message has arrived, and copies the body into its buffer.
    #[inline(always)]
    pub fn receive(&mut self, (name, capacity): (u64, u64), channel: Channel, envelope: &Envelope<'_>, body: &[u8]) {
        let Some(operation) = self.get(name) else { return };
        (operation.tag, operation.message_length, operation.channel) = (envelope.tag, envelope.length, Some(channel));
        operation.kind = OperationKind::Receive(None);
        if !envelope.headers.is_empty() {
            operation.headers.extend_from_slice(envelope.headers);
        }
        let fits = capacity.min(body.len() as u64) as usize;
        if fits > 0 {
            operation.place(0, &body[..fits]);
        }
        let status = if fits < body.len() { Status::Truncated } else { Status::Done };
        let outcome = Outcome { status, length: fits as u64 };
        operation.outcome = Some(outcome);
        self.queue_completion(name, outcome);
    }

    /// Queues the completion, if the operation has a completion queue.
    #[inline(always)]
    fn queue_completion(&mut self, name: u64, outcome: Outcome) {
        let index = SlabId(name as u32).index();
        let Some(operation) = self.pool.get_mut(index) else { return };
        let Some(cq) = operation.options.cq else {
            if operation.detached {
                self.pool.forget(index);
            }
            return;
        };
        let (forgotten, done) = (operation.detached, operation.status(outcome) == Status::Done);
        let errors_only = operation.options.errors_only && done;
        operation.is_queued = true;
        let Some(cq) = self.completion_queues.get_by_id(SlabId(cq.0)) else { return self.pool.forget(index) };
        cq.under_way -= 1;
        cq.counts[usize::from(!done)] += 1;
        if forgotten || errors_only {
            self.pool.forget(index);
        } else {
            self.pool.append(&mut cq.completed, 0, index);
        }
    }

    /// Whether an operation has completed. An unknown operation counts as completed.
    #[inline(always)]
    pub fn has_ended(&mut self, operation: OperationId) -> bool {
        self.get(u64::from(operation.0)).is_none_or(|known| known.outcome.is_some())
    }

    /// Takes the completion of an operation, and removes its record. `None`: the operation has not completed.
    #[inline(always)]
    pub fn take(&mut self, operation: OperationId) -> Option<Completion> {
        let name = u64::from(operation.0);
        self.get(name)?.outcome?;
        self.take_record(SlabId(operation.0).index())
    }

    /// Removes the record of an operation that has completed, and returns the completion.
    #[inline(always)]
    fn take_record(&mut self, index: u32) -> Option<Completion> {
        let operation = OperationId(self.pool.number(index).0);
        let outcome = self.pool.get(index)?.outcome?;
        let mut known = self.pool.remove(index)?;
        let operation = if known.nameless { NO_OPERATION } else { operation };
        let status = known.status(outcome);
        let loaned = match (known.take_in_place(), known.channel, &self.releases) {
            (InPlaceState::Loaned(part, record), Some(channel), Some(releases)) => {
                Some(LoanedMessage::new(part, channel.link, record, releases.clone()))
            }
            _ => None,
        };
        let Operation { memory, options, tag, message_length, headers, channel, .. } = known;
        let memory = match memory {
            OperationMemory::Owned(bytes) => Some(bytes),
            OperationMemory::User(_) | OperationMemory::Loan(_) => None,
        };
        let (user_data, length, headers) = (options.user_data, outcome.length, headers.into_vec());
        Some(Completion { operation, user_data, status, length, tag, message_length, headers, channel, memory, loaned })
    }

    /// Number of operations and of loans without a completion.
    pub fn count(&self) -> u32 {
        self.pool.count() + self.loans.count()
    }

    // ---- loans without a completion ---------------------------------------------------------------------------

    /// Keeps a loan, and returns its name in the protocol. If there are too many, the loan is returned.
    #[inline]
    pub fn keep_loan(&mut self, loan: Loan) -> Result<u64, Loan> {
        if self.loans.count() == slab::MAX_RECORDS {
            return Err(loan);
        }
        Ok(self.loans.insert(loan).map_or(0, |number| LOAN_FLAG | u64::from(number.0)))
    }

    /// Removes a loan that was not sent, or that has been released.
    #[inline]
    pub fn take_loan(&mut self, name: u64) -> Option<Loan> {
        let index = self.loans.find(SlabId((name & !LOAN_FLAG) as u32))?;
        self.loans.remove(index)
    }

    /// A loan without a completion, by its name in the protocol.
    pub fn loan(&mut self, name: u64) -> Option<&Loan> {
        if name < LOAN_FLAG {
            None
        } else {
            self.loans.get_by_id(SlabId((name & !LOAN_FLAG) as u32)).map(|loan| &*loan)
        }
    }

    /// Takes the loan that was released last. A further use of it costs the pool nothing.
    #[inline]
    pub fn take_spare(&mut self) -> Option<Loan> {
        self.spare.take()
    }

    /// Size of the loan that was released last, bytes. They are free although the pool does not have them.
    pub fn spare_bytes(&self) -> usize {
        self.spare.as_ref().map_or(0, Loan::size)
    }
}

#[cfg(test)]
mod tests;
