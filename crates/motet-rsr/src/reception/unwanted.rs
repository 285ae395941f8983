//! Data that no handler gets: those of requests that are refused, and of replies that come too late.
//!
//! They are received into no memory, so that their sender does not wait for a receiver. Each such receive is an operation of the node until the data come,
//! so a peer that announces data and does not send them may have few.

use super::{Receiver, UNWANTED, lock};
use crate::sender::ReplyTo;
use crate::wire::{Head, ReplyStatus};
use motet::node::{Channel, Completion, CompletionOptions, LinkId, OperationId, OperationMemory, RecvFrom};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Unwanted data of a link that are under way. A sender has at most 64 messages of data ([`crate::routes::Turns`]), and some whose deadline has passed.
const MAX_OF_A_LINK: usize = 256;
/// Unwanted data of all links that are under way: a 16th of a node's operations.
const MAX_TOGETHER: usize = 1 << 16;

/// Unwanted data that are under way.
#[derive(Default)]
pub struct Unwanted {
    receives: HashMap<OperationId, LinkId>,
    by_link: HashMap<LinkId, usize>,
}

impl Unwanted {
    /// Notes a receive. Returns the link that has more of them than it may.
    fn begin(&mut self, operation: OperationId, link: LinkId) -> Option<LinkId> {
        self.receives.insert(operation, link);
        let of_link = self.by_link.entry(link).or_default();
        *of_link += 1;
        if *of_link > MAX_OF_A_LINK {
            return Some(link);
        }
        let most = || self.by_link.iter().max_by_key(|(_, count)| **count).map(|(link, _)| *link);
        if self.receives.len() > MAX_TOGETHER { most() } else { None }
    }

    fn end(&mut self, operation: OperationId) {
        let Some(link) = self.receives.remove(&operation) else { return };
        if let Some(of_link) = self.by_link.get_mut(&link) {
            *of_link -= 1;
            if *of_link == 0 {
                self.by_link.remove(&link);
            }
        }
    }
}

impl Receiver {
    /// Drops a request: its data, too, so that its sender does not wait; and says so to its caller.
    #[cold]
    pub(super) fn refuse(&self, head: &Head<'_>, channel: Channel, reply_to: Option<ReplyTo>, status: ReplyStatus) {
        if let Some((_, tag)) = head.apart {
            self.receive_unwanted(channel, tag);
        }
        self.shared.sender.answer(reply_to, status);
    }

    /// Receives data into no memory: their send succeeds. A peer that does not send what it has announced is disconnected.
    #[cold]
    pub fn receive_unwanted(&self, channel: Channel, tag: u64) {
        let options = CompletionOptions { cq: Some(self.cq), user_data: UNWANTED, errors_only: false };
        let memory = OperationMemory::Owned(Vec::new());
        // Locked before the completion may be taken.
        let mut unwanted = lock(&self.unwanted);
        let Ok(operation) = self.shared.sender.node.post(RecvFrom::Channel(channel), tag, 0, memory, options) else {
            return;
        };
        self.others.fetch_add(1, Ordering::Relaxed);
        let too_many = unwanted.begin(operation, channel.link);
        drop(unwanted);
        if let Some(link) = too_many {
            self.disconnect(&mut self.lines(), link);
        }
    }

    /// Unwanted data are here, or will not come.
    pub(super) fn unwanted_ended(&self, operation: OperationId) {
        lock(&self.unwanted).end(operation);
    }

    /// Receives the reply to a call that no longer waits for it, so that it does not stay at the engine.
    pub fn expect_late(&self, tag: u64) -> Option<OperationId> {
        let options = CompletionOptions { cq: Some(self.cq), user_data: super::LATE, errors_only: false };
        let (from, memory) = (RecvFrom::Any(self.shared.sender.context), OperationMemory::Owned(vec![0; 64]));
        let posted = self.shared.sender.node.post(from, tag, 0, memory, options).ok()?;
        self.others.fetch_add(1, Ordering::Relaxed);
        Some(posted)
    }

    pub(super) fn drop_late(&self, completion: &Completion) {
        let bytes = completion.memory.as_deref().unwrap_or(&[]);
        let bytes = &bytes[..bytes.len().min(completion.length as usize)];
        if let (Some(channel), Ok((Head { apart: Some((_, tag)), .. }, _))) = (completion.channel, Head::parse(bytes)) {
            self.receive_unwanted(channel, tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_has_a_bounded_number_and_all_together_have() {
        let mut unwanted = Unwanted::default();
        let mut last = 0;
        let mut begin = |unwanted: &mut Unwanted, link| {
            last += 1;
            (OperationId(last), unwanted.begin(OperationId(last), LinkId(link)))
        };
        for link in 0..(MAX_TOGETHER / MAX_OF_A_LINK) as u32 {
            for _ in 0..MAX_OF_A_LINK {
                assert_eq!(begin(&mut unwanted, link).1, None);
            }
        }
        let (operation, ended) = begin(&mut unwanted, 0);
        assert_eq!(ended, Some(LinkId(0)));
        unwanted.end(operation);
        // A link with one is not the one that ends.
        assert!(begin(&mut unwanted, 1 << 20).1.is_some_and(|ended| ended != LinkId(1 << 20)));
        (1..=last).for_each(|operation| unwanted.end(OperationId(operation)));
        assert!(unwanted.receives.is_empty() && unwanted.by_link.is_empty());
    }
}
