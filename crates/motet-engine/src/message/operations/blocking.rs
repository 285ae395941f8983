//! The completion queue of blocking receives: of one thread at a time.

use super::{CompletionRef, CompletionSink, CqId, Operations, ReceiveResult};
use motet_proto::message::matching::Selector;
use motet_proto::message::slab::SlabId;
use motet_sys::user_memory::UserMemory;

/// The end of a blocking receive, reported as its message comes.
#[derive(Debug)]
pub struct Blocking<'a, 'b> {
    /// While it is not posted: what it wants, and its memory.
    pub alone: Option<(Selector, UserMemory)>,
    /// Where the message's headers go, if they are wanted.
    pub headers: &'a mut Option<&'b mut Vec<u8>>,
    /// How it has ended, once it has.
    pub got: Option<ReceiveResult>,
}

impl CompletionSink for Blocking<'_, '_> {
    #[inline(always)]
    fn alone(&self) -> Option<(&Selector, UserMemory)> {
        self.alone.as_ref().map(|(selector, span)| (selector, *span))
    }

    #[inline(always)]
    fn report(&mut self, end: &CompletionRef<'_>) {
        let &CompletionRef { status, length, tag, full, channel, headers, .. } = end;
        if let (Some(into), false) = (&mut *self.headers, headers.is_empty()) {
            into.extend_from_slice(headers);
        }
        self.got = Some(ReceiveResult { status, length, tag, full, channel });
    }
}

impl Operations {
    /// No blocking receive, with the completion queue for them.
    pub fn new() -> Self {
        let mut operations = Self::default();
        operations.blocking = operations.add_cq().unwrap_or(CqId::NONE);
        operations
    }

    /// Whether a thread receives so.
    #[inline(always)]
    pub fn is_blocked(&mut self) -> bool {
        let cq = self.completion_queues.get_by_id(SlabId(self.blocking.0));
        cq.is_none_or(|cq| cq.under_way > 0 || !cq.ended.is_empty())
    }

    /// Whether the receive of that thread has ended.
    #[inline(always)]
    pub fn blocking_has_ended(&mut self) -> bool {
        self.completion_queues.get_by_id(SlabId(self.blocking.0)).is_some_and(|cq| !cq.ended.is_empty())
    }

    /// How that has ended: then there is none any more.
    #[inline(always)]
    pub fn take_blocking(&mut self, headers: &mut Option<&mut Vec<u8>>) -> Option<ReceiveResult> {
        let mut sink = Blocking { alone: None, headers, got: None };
        self.report_completions(self.blocking, 1, &mut sink).ok()?;
        sink.got
    }
}
