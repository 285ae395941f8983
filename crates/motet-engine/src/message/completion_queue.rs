//! Calls on completion queues, and waits for the completions of single operations.
//!
//! Polls of a completion queue are in [`super::completions`]; the queues themselves are in [`super::operations`].

use super::operations::{Completion, CompletionQueue, CqId};
use super::{Error, Node, OperationId};

impl Node {
    /// Waits for the completion of an operation and takes it, which ends the operation's name. [`Error::Unknown`] if there is no such operation.
    #[inline]
    pub fn wait_for(&self, operation: OperationId, deadline: Option<u64>) -> Result<Completion, Error> {
        self.wait(self.lock()?, deadline, |node| match node.messages.operations.take(operation) {
            Some(completion) => Some(Ok(completion)),
            None if node.messages.operations.has_ended(operation) => Some(Err(Error::Unknown)),
            None => None,
        })?
    }

    /// Waits for the completion of any of `operations` and takes it. Returns it with its operation's index in `operations`. [`Error::Unknown`] if
    /// none of them exists.
    pub fn wait_any(&self, operations: &[OperationId], deadline: Option<u64>) -> Result<(usize, Completion), Error> {
        self.wait(self.lock()?, deadline, |node| {
            let mut known = false;
            for (at, &operation) in operations.iter().enumerate() {
                if let Some(completion) = node.messages.operations.take(operation) {
                    return Some(Ok((at, completion)));
                }
                known |= !node.messages.operations.has_ended(operation);
            }
            if known { None } else { Some(Err(Error::Unknown)) }
        })?
    }

    /// Takes the completion of an operation if it has completed. Makes no progress. [`Error::Unknown`] if there is no such operation.
    pub fn test(&self, operation: OperationId) -> Result<Option<Completion>, Error> {
        let mut node = self.lock()?;
        match node.messages.operations.take(operation) {
            None if node.messages.operations.has_ended(operation) => Err(Error::Unknown),
            completion => Ok(completion),
        }
    }

    /// Makes a completion queue, for one thread to poll or wait for.
    pub fn add_cq(&self) -> Result<CqId, Error> {
        self.lock()?.messages.operations.add_cq().ok_or(Error::Full)
    }

    /// Removes a completion queue. [`Error::WouldBlock`] while operations that complete in it are under way.
    pub fn remove_cq(&self, cq: CqId) -> Result<(), Error> {
        self.lock()?.messages.operations.remove_cq(cq)
    }

    /// Numbers of operations of a completion queue that have succeeded, that have failed, and that are under way.
    pub fn cq_counts(&self, cq: CqId) -> Result<[u64; 3], Error> {
        let mut node = self.lock()?;
        let known = node.messages.operations.cq(cq).ok_or(Error::Unknown)?;
        Ok([known.counts[0], known.counts[1], known.under_way])
    }

    /// Waits for the next completion of a completion queue. [`Error::Interrupted`] after [`Node::signal_cq`].
    #[inline]
    pub fn wait_cq(&self, cq: CqId, deadline: Option<u64>) -> Result<Completion, Error> {
        self.wait(self.lock()?, deadline, |node| match node.messages.operations.next_completion(cq) {
            Ok(None) => node.messages.operations.cq(cq).and_then(CompletionQueue::interrupted),
            end => end.transpose(),
        })?
    }

    /// Takes the next completion of a completion queue, if there is one. Makes no progress.
    pub fn test_cq(&self, cq: CqId) -> Result<Option<Completion>, Error> {
        self.lock()?.messages.operations.next_completion(cq)
    }

    /// Waits until `done` operations of a completion queue have succeeded, or more than `failed` have failed.
    pub fn wait_counts(&self, cq: CqId, done: u64, failed: u64, deadline: Option<u64>) -> Result<(), Error> {
        self.wait(self.lock()?, deadline, |node| match node.messages.operations.cq(cq) {
            Some(known) if known.counts[0] >= done || known.counts[1] > failed => Some(Ok(())),
            Some(known) => known.interrupted(),
            None => Some(Err(Error::Unknown)),
        })?
    }

    /// Interrupts one thread that waits for a completion queue; if none does, the next wait for it.
    pub fn signal_cq(&self, cq: CqId) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.messages.operations.cq(cq).ok_or(Error::Unknown)?.signalled = true;
        node.notify();
        Ok(())
    }
}
