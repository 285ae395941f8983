//! The completion queue of blocking receives, which one thread at a time uses.

use super::{CompletionRef, CompletionSink, CqId, Operations, ReceiveResult};
use motet_proto::message::matching::Selector;
use motet_proto::message::slab::SlabId;
use motet_sys::user_memory::UserMemory;

/// The sink of a blocking receive: it gets the completion when the message arrives.
#[derive(Debug)]
pub struct Blocking<'a, 'b> {
    /// The selector and the memory of the receive, while it is not posted.
    pub unposted_receive: Option<(Selector, UserMemory)>,
    /// Where the message's headers go, if they are wanted.
    pub headers: &'a mut Option<&'b mut Vec<u8>>,
    /// The result, if the receive has completed.
    pub result: Option<ReceiveResult>,
}

impl CompletionSink for Blocking<'_, '_> {
    #[inline(always)]
    fn unposted_receive(&self) -> Option<(&Selector, UserMemory)> {
        self.unposted_receive.as_ref().map(|(selector, span)| (selector, *span))
    }

    #[inline(always)]
    fn report(&mut self, end: &CompletionRef<'_>) {
        let &CompletionRef { status, length, tag, message_length, channel, headers, .. } = end;
        if let (Some(into), false) = (&mut *self.headers, headers.is_empty()) {
            into.extend_from_slice(headers);
        }
        self.result = Some(ReceiveResult { status, length, tag, message_length, channel });
    }
}

impl Operations {
    /// The operations of a new node, with the completion queue for blocking receives.
    pub fn new() -> Self {
        let mut operations = Self::default();
        operations.blocking = operations.add_cq().unwrap_or(CqId::NONE);
        operations
    }

    /// Whether a blocking receive is under way, or has completed and its completion has not been taken.
    #[inline(always)]
    pub fn has_blocking_receive(&mut self) -> bool {
        let cq = self.completion_queues.get_by_id(SlabId(self.blocking.0));
        cq.is_none_or(|cq| cq.under_way > 0 || !cq.completed.is_empty())
    }

    /// Whether the blocking receive has completed and its completion has not been taken.
    #[inline(always)]
    pub fn blocking_has_completed(&mut self) -> bool {
        self.completion_queues.get_by_id(SlabId(self.blocking.0)).is_some_and(|cq| !cq.completed.is_empty())
    }

    /// Whether a completion queue has a completion, or was signalled. [`CqId::NONE`]: never.
    #[inline(always)]
    pub fn must_look_at(&mut self, cq: CqId) -> bool {
        cq != CqId::NONE && self.cq(cq).is_some_and(|known| known.signalled || !known.completed.is_empty())
    }

    /// Takes the completion of the blocking receive. `None`: it has not completed.
    #[inline(always)]
    pub fn take_blocking(&mut self, headers: &mut Option<&mut Vec<u8>>) -> Option<ReceiveResult> {
        let mut sink = Blocking { unposted_receive: None, headers, result: None };
        self.report_completions(self.blocking, 1, &mut sink).ok()?;
        sink.result
    }
}
