//! Data that come apart from their requests: memory for them, their receives, and the lines behind them.

use super::{FIRST_REQUEST, Receiver, Shared, lock};
use crate::counters::count;
use crate::error::Error;
use crate::lines::{Lines, Waiting};
use crate::memory::give_back_first;
use crate::request::Data;
use motet::node::{Channel, Completion, CompletionOptions, OperationMemory, RecvFrom, Status};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Receiver {
    pub(super) fn lines(&self) -> MutexGuard<'_, Lines> {
        lock(&self.lines)
    }

    /// Notes what threads look at without the lock.
    pub(super) fn note(&self, lines: &Lines) {
        self.in_line.store(lines.count(), Ordering::Relaxed);
        if lines.is_full() {
            self.is_full.store(true, Ordering::Relaxed); // until `look_at_lines`
        }
    }

    pub(super) fn announce(&self, channel: Channel, waiting: Waiting) {
        let mut lines = self.lines();
        if !lines.push(channel, waiting) {
            self.disconnect(&mut lines, channel);
        }
        self.receive_data(&mut lines, channel);
        self.note(&lines);
        drop(lines);
        self.run_next(channel);
    }

    /// Ends the link to a peer that keeps to no bounds. Its receives end with that, also those that have got a part of their data: a closed channel would leave them.
    #[cold]
    fn disconnect(&self, lines: &mut Lines, channel: Channel) {
        lines.abandon(channel);
        if self.shared.sender.node.disconnect(channel.link).is_ok() {
            count(&self.shared.sender.counters.malformed);
        }
    }

    /// Begins to receive the data of a line for which there is memory.
    fn receive_data(&self, lines: &mut Lines, channel: Channel) {
        let Shared { sender, memory, .. } = &*self.shared;
        let (waits, gone) = lines.receive(channel, |length, tag| {
            let lease = memory.lease(channel, length)?;
            let number = self.last_number.fetch_add(1, Ordering::Relaxed).max(FIRST_REQUEST);
            let options = CompletionOptions { cq: Some(self.cq), user_data: number, errors_only: false };
            let into = OperationMemory::Owned(memory.long(length));
            let posted = sender.node.post(RecvFrom::Channel(channel), tag, 0, into, options);
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
            self.note(&lines);
            drop(lines);
            let Some(job) = next else { return };
            if let Some(first) = self.dispatch(job) {
                give_back_first(first);
            }
        }
    }

    /// Looks for memory again, ends links to peers whose lines are stuck or whose data hold it and do not arrive, and receives again when no line is full any more.
    #[cold]
    pub(super) fn look_at_lines(&self) -> Result<(), Error> {
        let mut lines = self.lines();
        self.waits.store(false, Ordering::Relaxed);
        let waiting = lines.without_memory();
        waiting.iter().for_each(|channel| self.receive_data(&mut lines, *channel));
        let limit = Duration::from_nanos(self.shared.sender.options.reply_limit_ns);
        let mut stuck = lines.stuck(limit);
        if self.waits.load(Ordering::Relaxed) {
            stuck.extend(self.shared.memory.overdue(limit));
        }
        stuck.into_iter().for_each(|channel| self.disconnect(&mut lines, channel));
        self.is_full.store(lines.is_full(), Ordering::Relaxed);
        self.note(&lines);
        drop(lines);
        waiting.into_iter().for_each(|channel| self.run_next(channel));
        if !self.is_full.load(Ordering::Relaxed) {
            let unposted = std::mem::take(&mut *lock(&self.unposted));
            unposted.into_iter().try_for_each(|(at, memory)| self.post_first(at, memory))?;
        }
        Ok(())
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
