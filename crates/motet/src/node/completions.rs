//! Completions of started operations: of one, of any of several, or of many through a completion queue.

use super::{Completion, CompletionRef, CqId, Error, Node, OperationId, Status, deadline};
use std::time::Duration;

impl Node {
    /// Waits for an operation and takes its completion; the operation is forgotten then.
    #[inline]
    pub fn wait_for(&self, operation: OperationId, deadline: Option<u64>) -> Result<Completion, Error> {
        self.0.wait_for(operation, deadline)
    }

    /// Takes the completion of an operation if it has completed. Makes no progress.
    #[inline]
    pub fn test(&self, operation: OperationId) -> Result<Option<Completion>, Error> {
        self.0.test(operation)
    }

    /// Waits for any of these operations. Returns its index and its completion.
    #[inline]
    pub fn wait_any(&self, operations: &[OperationId], deadline: Option<u64>) -> Result<(usize, Completion), Error> {
        self.0.wait_any(operations, deadline)
    }

    /// Waits for an operation and returns its memory, if it owns some. Fails when the operation did not succeed.
    pub fn finish_operation(&self, operation: OperationId, limit: Option<Duration>) -> Result<Vec<u8>, Error> {
        let Completion { status, channel, memory, .. } = self.0.wait_for(operation, deadline(limit))?;
        match status {
            Status::Done => Ok(memory.unwrap_or_default()),
            status => Err(self.failed(status, channel)),
        }
    }

    /// Asks for an operation to be cancelled. It completes in any case, as cancelled or with its normal result; a receive that has part of its
    /// message continues. [`Error::Unknown`]: its completion was reported already.
    #[inline]
    pub fn cancel(&self, operation: OperationId) -> Result<(), Error> {
        self.0.cancel(operation)
    }

    /// Cancels a receive even if its memory holds part of the message; the next receive gets the whole message.
    #[inline]
    pub fn cancel_receive(&self, operation: OperationId) -> Result<(), Error> {
        self.0.cancel_receive(operation)
    }

    /// Takes the memory away from an operation that has not completed; the operation is forgotten when it does. Bytes that still arrive for a
    /// receive are dropped. A send that has begun takes its link down.
    #[inline]
    pub fn detach(&self, operation: OperationId) -> Result<(), Error> {
        self.0.detach(operation)
    }

    /// A new completion queue.
    #[inline]
    pub fn add_cq(&self) -> Result<CqId, Error> {
        self.0.add_cq()
    }

    /// Frees a completion queue. [`Error::WouldBlock`] while operations of it are outstanding.
    #[inline]
    pub fn remove_cq(&self, cq: CqId) -> Result<(), Error> {
        self.0.remove_cq(cq)
    }

    /// Waits for the next completion of a queue.
    #[inline]
    pub fn wait_cq(&self, cq: CqId, deadline: Option<u64>) -> Result<Completion, Error> {
        self.0.wait_cq(cq, deadline)
    }

    /// Takes the next completion of a queue, if there is one. Makes no progress.
    #[inline]
    pub fn test_cq(&self, cq: CqId) -> Result<Option<Completion>, Error> {
        self.0.test_cq(cq)
    }

    /// Interrupts one thread that waits for a completion queue, with [`Error::Interrupted`]; if none does, the next wait for it.
    pub fn signal_cq(&self, cq: CqId) -> Result<(), Error> {
        self.0.signal_cq(cq)
    }

    /// Hands up to `max` completions to `each`, without copying them; makes one round of progress when the queue is empty. `each` must not use the
    /// node. Returns how many, and whether the next one owns memory or a message in place: [`Node::wait_cq`] takes that.
    #[inline]
    pub fn poll_cq(&self, cq: CqId, max: usize, each: impl FnMut(&CompletionRef<'_>)) -> Result<(usize, bool), Error> {
        self.0.poll_cq(cq, max, each)
    }

    /// The queue's operations that succeeded, that failed, and that are outstanding.
    #[inline]
    pub fn cq_counts(&self, cq: CqId) -> Result<[u64; 3], Error> {
        self.0.cq_counts(cq)
    }
}
