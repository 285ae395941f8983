//! Completion queues: completions of operations, for one thread to poll or wait for.

use super::{Completion, CompletionRef, CompletionSink, NO_OPERATION, OperationId, Operations};
use crate::message::Error;
use motet_proto::message::Status;
use motet_proto::message::slab::{IntrusiveList, SlabId};

/// The number of a completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CqId(pub u32);

impl CqId {
    /// The number that no completion queue has.
    pub const NONE: Self = Self(0);
}

/// A completion queue: completions for one thread to poll or wait for.
#[derive(Debug, Default)]
pub struct CompletionQueue {
    /// Records of operations that have completed, in that order.
    pub(super) completed: IntrusiveList,
    /// Numbers of operations that have succeeded, and that have completed with another status.
    pub counts: [u64; 2],
    /// Number of operations under way.
    pub under_way: u64,
    /// The wait that is under way, or the next one, is to stop.
    pub signalled: bool,
}

impl Operations {
    /// Adds a completion queue; `None` if there are too many.
    pub fn add_cq(&mut self) -> Option<CqId> {
        self.completion_queues.insert(CompletionQueue::default()).map(|number| CqId(number.0))
    }

    /// Removes a completion queue, and drops the completions that were not polled. [`Error::WouldBlock`], and nothing is done, while operations of the queue
    /// are under way.
    pub fn remove_cq(&mut self, cq: CqId) -> Result<(), Error> {
        let number = SlabId(cq.0);
        if cq == self.blocking {
            return Err(Error::Unknown); // it belongs to the node, not to the program
        }
        if self.completion_queues.get_by_id(number).ok_or(Error::Unknown)?.under_way > 0 {
            return Err(Error::WouldBlock);
        }
        while let Ok(Some(_)) = self.next_completion(cq) {}
        self.completion_queues.remove(number.index());
        Ok(())
    }

    /// Whether a completion queue is empty.
    #[inline(always)]
    pub fn is_cq_empty(&mut self, cq: CqId) -> Result<bool, Error> {
        Ok(self.cq(cq).ok_or(Error::Unknown)?.completed.is_empty())
    }

    /// Takes the next completion of a completion queue.
    #[inline]
    pub fn next_completion(&mut self, cq: CqId) -> Result<Option<Completion>, Error> {
        let known = self.completion_queues.get_by_id(SlabId(cq.0)).ok_or(Error::Unknown)?;
        let Some(index) = known.completed.first() else { return Ok(None) };
        self.pool.unlink(&mut known.completed, 0, index);
        Ok(self.take_record(index))
    }

    /// Reports up to `max` completions of a completion queue to `sink`, and removes them. Returns how many, and whether it has stopped before a completion
    /// that the sink does not take, or that returns memory or a loaned message to the program: [`Operations::next_completion`] takes such a completion.
    #[inline(always)]
    pub fn report_completions(
        &mut self,
        cq: CqId,
        max: usize,
        sink: &mut impl CompletionSink,
    ) -> Result<(usize, bool), Error> {
        let known = self.completion_queues.get_by_id(SlabId(cq.0)).ok_or(Error::Unknown)?;
        let mut reported = 0;
        while reported < max {
            let Some(index) = known.completed.first() else { break };
            let Some(record) = self.pool.get(index) else { break };
            let operation = if record.nameless { NO_OPERATION } else { OperationId(self.pool.number(index).0) };
            let (true, Some(outcome)) = (record.is_reportable(), record.outcome) else { return Ok((reported, true)) };
            if !sink.takes(!record.nameless, outcome.status == Status::Done, &record.headers) {
                return Ok((reported, true));
            }
            sink.report(&CompletionRef {
                operation,
                user_data: record.options.user_data,
                status: outcome.status,
                length: outcome.length,
                tag: record.tag,
                message_length: record.message_length,
                headers: &record.headers,
                channel: record.channel,
            });
            self.pool.unlink(&mut known.completed, 0, index);
            self.pool.forget(index);
            reported += 1;
        }
        Ok((reported, false))
    }

    /// The completion queue with this number.
    #[inline(always)]
    pub fn cq(&mut self, cq: CqId) -> Option<&mut CompletionQueue> {
        self.completion_queues.get_by_id(SlabId(cq.0))
    }
}

impl CompletionQueue {
    /// The result of a wait that is to stop, if it is. Each signal stops one wait.
    pub fn interrupted<R>(&mut self) -> Option<Result<R, Error>> {
        std::mem::take(&mut self.signalled).then_some(Err(Error::Interrupted))
    }
}
