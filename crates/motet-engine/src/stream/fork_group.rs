//! The fork group: the processes that share a stats file because one was forked from another.
//!
//! Every member has a number, and every record has a bit for each number, set while that member has the stream. So the member that closes a stream
//! last is known, even if others were killed. A wire comes up only while one member alone has the stream, because the others could not use it.
//!
//! The bits are no count: a bit is cleared by its member, or by another process after the member has ended or executed another program
//! ([`liveness_lock`]). Clearing a bit twice, or late, does no harm.
//!
//! The order of a fork: the parent reserves a number for the child and sets its bits (`expect_child`), forks, and the child writes its pid
//! (`become_member`). There are numbers for [`MEMBERS`] processes with streams at the same time. A process without a number takes no new streams,
//! and never reports that it was the last one to close a stream.

pub(in crate::stream) mod member;

use crate::stream::engine::Engine;
use motet_sys::{clock, liveness_lock, thread};
use motet_wire::stream::record::StreamRecord;
use motet_wire::stream::stats::MEMBERS;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// In place of a pid: a child that has not started to run.
const EXPECTED_CHILD: u32 = u32::MAX;
/// The number of a process that has none.
const NO_NUMBER: u32 = MEMBERS as u32;
/// A child that has not started after this time (ns) does not exist: fork failed.
const CHILD_START_NS: u64 = 5_000_000_000;

impl Engine {
    /// The bit of this process.
    pub(crate) fn own_member_bit(&self) -> u64 {
        1 << self.number()
    }

    /// The number of this process.
    pub(crate) fn number(&self) -> u32 {
        self.member.number.load(Relaxed)
    }

    /// Whether this process has a number, or could get one.
    pub(crate) fn ensure_member(&self) -> bool {
        self.is_member() || {
            let number = self.free_number(thread::pid());
            number != NO_NUMBER && {
                self.occupy(number);
                true
            }
        }
    }

    /// Whether this process has a number.
    pub(crate) fn is_member(&self) -> bool {
        self.number() != NO_NUMBER
    }

    /// Whether this process is the only living member that has the stream.
    pub(crate) fn is_sole_member(&self, record: &StreamRecord) -> bool {
        let alone = || self.is_member() && record.lifecycle.members.load(Acquire) == self.own_member_bit();
        alone() || {
            self.clear_dead_members(record);
            alone()
        }
    }

    /// This process no longer has the stream. True when no process has it.
    pub(crate) fn leave_stream(&self, record: &StreamRecord) -> bool {
        if !self.is_member() {
            return false;
        }
        self.clear_dead_members(record);
        record.lifecycle.members.fetch_and(!self.own_member_bit(), AcqRel) & !self.own_member_bit() == 0
    }

    /// Clears the bits of members that have ended.
    fn clear_dead_members(&self, record: &StreamRecord) {
        let mut others = record.lifecycle.members.load(Acquire) & !self.own_member_bit();
        while others != 0 {
            let number = others.trailing_zeros();
            others &= others - 1;
            if number != NO_NUMBER && self.is_dead(number) {
                record.lifecycle.members.fetch_and(!(1 << number), AcqRel);
            }
        }
    }

    /// Whether the process with a number has ended, or has executed another program.
    fn is_dead(&self, number: u32) -> bool {
        number != self.number()
            && self.stats_file.head().members[number as usize].load(Acquire) != EXPECTED_CHILD
            && !liveness_lock::is_held_by_other(&self.stats_descriptor, u64::from(number))
    }

    /// Reserves a free number for `whose`; its bit is clear in every record.
    fn free_number(&self, whose: u32) -> u32 {
        for (number, member) in (0..).zip(&self.stats_file.head().members) {
            let seen = member.load(Acquire);
            if (seen == 0 || self.is_dead(number)) && member.compare_exchange(seen, whose, AcqRel, Relaxed).is_ok() {
                self.clear_number(number);
                return number;
            }
        }
        NO_NUMBER
    }

    /// Clears the bit of a number in every record.
    fn clear_number(&self, number: u32) {
        self.each_record(|record| {
            record.lifecycle.members.fetch_and(!(1 << number), AcqRel);
        });
    }

    /// Takes a number. It is shown as alive until this process ends or executes another program.
    fn occupy(&self, number: u32) {
        let _ = liveness_lock::acquire(&self.stats_descriptor, u64::from(number));
        self.stats_file.head().members[number as usize].store(thread::pid(), Release);
        self.member.number.store(number, Relaxed);
    }

    /// Called when the engine starts. The creator of the stats file has the first number.
    pub(crate) fn join_fork_group(&self, number: u32) {
        self.member.child.store(NO_NUMBER, Relaxed);
        self.occupy(number);
    }

    /// Called before a fork, with the engine's locks held: gives the child a number, and every stream that this process has.
    pub(crate) fn expect_child(&self) {
        self.drop_unborn_child();
        let mut streams = self.each_local().filter(|(_, local)| local.handle.load(Acquire) != 0).peekable();
        // A child without streams gets a number when it needs one.
        let number = if streams.peek().is_some() { self.free_number(EXPECTED_CHILD) } else { NO_NUMBER };
        self.member.child.store(number, Relaxed);
        self.member.forked.store(clock::nanoseconds(), Relaxed);
        for (record, _) in streams {
            record.lifecycle.members.fetch_or(1 << number, AcqRel);
        }
    }

    /// Frees the number of a child that did not start.
    fn drop_unborn_child(&self) {
        let (child, forked) = (self.member.child.load(Relaxed), self.member.forked.load(Relaxed));
        if child != NO_NUMBER && clock::nanoseconds().saturating_sub(forked) > CHILD_START_NS {
            let member = &self.stats_file.head().members[child as usize];
            if member.compare_exchange(EXPECTED_CHILD, 0, AcqRel, Relaxed).is_ok() {
                self.clear_number(child);
            }
        }
    }

    /// Called in the child: takes the number that the parent has reserved.
    pub(crate) fn become_member(&self) {
        self.member.number.store(NO_NUMBER, Relaxed);
        let number = self.member.child.swap(NO_NUMBER, Relaxed);
        if number == NO_NUMBER {
            return;
        }
        if self.stats_file.head().members[number as usize].load(Acquire) == EXPECTED_CHILD {
            self.occupy(number);
        } else {
            // It started too late, and has lost its number: the streams belong to the other members.
            self.each_local().for_each(|(_, local)| local.handle.store(0, Release));
        }
    }
}
