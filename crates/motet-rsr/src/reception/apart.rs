//! Data that come apart from their requests: memory for them, their receives, and the lines behind them.

use super::{FIRST_REQUEST, Receiver, Shared, lock};
use crate::counters::count;
use crate::error::Error;
use crate::lines::{Lines, Waiting};
use crate::memory::give_back_first;
use crate::request::Data;
use motet::node::{
    Channel, Completion, CompletionOptions, Error as NodeError, LinkId, OperationMemory, RecvFrom, Status,
};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Receiver {
    pub(super) fn lines(&self) -> MutexGuard<'_, Lines> {
        lock(&self.lines)
    }

    /// Notes what threads look at without the lock.
    pub(super) fn note(&self, lines: &Lines, channel: Channel) {
        self.in_line.store(lines.count(), Ordering::Relaxed);
        if lines.is_full(channel.link) {
            self.is_paused.store(true, Ordering::Relaxed); // until `look_at_lines`
        }
    }

    pub(super) fn announce(&self, channel: Channel, waiting: Waiting) {
        let mut lines = self.lines();
        if !lines.push(channel, waiting) {
            self.disconnect(&mut lines, channel.link);
        }
        self.receive_data(&mut lines, channel);
        self.note(&lines, channel);
        drop(lines);
        self.run_next(channel);
    }

    /// Ends the link to a peer that keeps to no bounds. Its receives end with that, also those that have got a part of their data: a closed channel would leave them.
    #[cold]
    pub(super) fn disconnect(&self, lines: &mut Lines, link: LinkId) {
        lines.abandon(link);
        if self.shared.sender.node.disconnect(link).is_ok() {
            count(&self.shared.sender.counters.malformed);
        }
    }

    /// Begins to receive the data of a line for which there is memory.
    fn receive_data(&self, lines: &mut Lines, channel: Channel) {
        let Shared { sender, memory, .. } = &*self.shared;
        let (waits, gone) = lines.receive(channel, |length, tag| {
            let lease = memory.lease(channel.link, length, &self.is_busy)?;
            let number = self.last_number.fetch_add(1, Ordering::Relaxed).max(FIRST_REQUEST);
            let options = CompletionOptions { cq: Some(self.cq), user_data: number, errors_only: false };
            let into = OperationMemory::Owned(memory.long(length));
            let posted = sender.node.post(RecvFrom::Channel(channel), tag, 0, into, options);
            if posted == Err(NodeError::Full) {
                return None; // later
            }
            self.others.fetch_add(usize::from(posted.is_ok()), Ordering::Relaxed);
            Some(posted.ok().map(|_| (number, lease)))
        });
        if waits {
            self.waits.store(true, Ordering::Relaxed);
        }
        (0..gone).for_each(|_| count(&sender.counters.incomplete));
    }

    /// Handles the requests at the front of a line whose data are here.
    fn run_next(&self, channel: Channel) {
        loop {
            let mut lines = self.lines();
            let next = lines.next(channel);
            self.note(&lines, channel);
            drop(lines);
            let Some(job) = next else { return };
            if let Some(first) = self.dispatch(job) {
                give_back_first(first);
            }
        }
    }

    /// Looks for memory again, ends links to peers whose data do not arrive while other data wait for memory or requests behind them fill their line, and receives
    /// first packets again when no link is full any more.
    #[cold]
    pub(super) fn look_at_lines(&self) -> Result<(), Error> {
        let mut lines = self.lines();
        self.waits.store(false, Ordering::Relaxed);
        let waiting = lines.without_memory();
        waiting.iter().for_each(|channel| self.receive_data(&mut lines, *channel));
        let limit = Duration::from_nanos(self.shared.sender.options.reply_limit_ns);
        let waits = self.waits.load(Ordering::Relaxed);
        let overdue = self.shared.memory.overdue(limit, |link| waits || lines.is_full(link));
        overdue.into_iter().for_each(|link| self.disconnect(&mut lines, link));
        drop(lines);
        waiting.into_iter().for_each(|channel| self.run_next(channel));
        let lines = self.lines();
        self.in_line.store(lines.count(), Ordering::Relaxed);
        self.resume(&lines)
    }

    /// The data of a request are here, or will not come.
    pub(super) fn data(&self, number: u64, completion: Completion) {
        let Completion { status, message_length, memory, .. } = completion;
        let mut memory = memory.unwrap_or_default();
        let mut lines = self.lines();
        let channel = lines.received(number, |length, format, lease| {
            let is_whole = status == Status::Done && message_length == length as u64 && memory.len() >= length;
            let memory = std::mem::take(&mut memory);
            if is_whole {
                lease.arrived();
                return Some(Data { memory, range: 0..length, format, is_first: false, lease: Some(lease) });
            }
            count(&self.shared.sender.counters.incomplete);
            self.shared.memory.give_back(memory);
            None
        });
        drop(lines);
        if let Some(channel) = channel {
            self.run_next(channel);
        }
    }
}
