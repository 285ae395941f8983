//! A family: the processes that have one node file, as they were forked from the one that made it.
//!
//! What it is: every member has a number, and every record a bit for each number, set while that member has the stream. So the
//! one that closes it last is known, whichever were killed before; and a wire comes up only while one member alone has the stream,
//! as the others could not look into it.
//!
//! What it is not: a count. A bit is cleared by its member, or by anybody once that process has ended or become another program
//! ([`liveness_lock`]): whatever is asked twice, or never, stays right.
//!
//! The order of a fork: the parent takes a number for the child and sets its bits (`expect_child`), forks, and the child
//! writes down its pid (`become_member`). There are numbers for [`MEMBERS`] processes with streams at the same time;
//! one that comes when they are used up takes no new streams, and never says that it has closed one.

pub(in crate::stream) mod member;

use crate::stream::engine::Engine;
use motet_sys::{clock, liveness_lock, thread};
use motet_wire::stream::record::StreamRecord;
use motet_wire::stream::stats::MEMBERS;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// In place of a pid: a child that has not begun to run.
const EXPECTED: u32 = u32::MAX;
/// The number of those that got none.
const STRANGER: u32 = MEMBERS as u32;
/// A child that is expected for so long (ns) was never born: fork failed.
const BIRTH: u64 = 5_000_000_000;

impl Engine {
    /// The bit of this process.
    pub(crate) fn own_bit(&self) -> u64 {
        1 << self.number()
    }

    /// The number of this process.
    pub(crate) fn number(&self) -> u32 {
        self.place.number.load(Relaxed)
    }

    /// Whether this process has a number, or could get one.
    pub(crate) fn enlists(&self) -> bool {
        self.is_member() || {
            let number = self.free_number(thread::pid());
            number != STRANGER && {
                self.take(number);
                true
            }
        }
    }

    pub(crate) fn is_member(&self) -> bool {
        self.number() != STRANGER
    }

    /// Whether no other living member has the stream.
    pub(crate) fn has_alone(&self, record: &StreamRecord) -> bool {
        let alone = || self.is_member() && record.lifecycle.members.load(Acquire) == self.own_bit();
        alone() || {
            self.forget_the_dead(record);
            alone()
        }
    }

    /// This process no longer has the stream. True when no process has it.
    pub(crate) fn lets_go(&self, record: &StreamRecord) -> bool {
        if !self.is_member() {
            return false;
        }
        self.forget_the_dead(record);
        record.lifecycle.members.fetch_and(!self.own_bit(), AcqRel) & !self.own_bit() == 0
    }

    fn forget_the_dead(&self, record: &StreamRecord) {
        let mut others = record.lifecycle.members.load(Acquire) & !self.own_bit();
        while others != 0 {
            let number = others.trailing_zeros();
            others &= others - 1;
            if number != STRANGER && self.is_dead(number) {
                record.lifecycle.members.fetch_and(!(1 << number), AcqRel);
            }
        }
    }

    /// The process with a number has ended, or has become another program.
    fn is_dead(&self, number: u32) -> bool {
        number != self.number()
            && self.node.head().members[number as usize].load(Acquire) != EXPECTED
            && !liveness_lock::is_held_by_other(&self.node_file, u64::from(number))
    }

    /// A free number; it belongs to `whose` from now on, and in no record.
    fn free_number(&self, whose: u32) -> u32 {
        for (number, member) in (0..).zip(&self.node.head().members) {
            let seen = member.load(Acquire);
            if (seen == 0 || self.is_dead(number)) && member.compare_exchange(seen, whose, AcqRel, Relaxed).is_ok() {
                self.strike(number);
                return number;
            }
        }
        STRANGER
    }

    fn strike(&self, number: u32) {
        self.each_record(|record| {
            record.lifecycle.members.fetch_and(!(1 << number), AcqRel);
        });
    }

    /// A number is ours: shown for as long as this process is what it is.
    fn take(&self, number: u32) {
        let _ = liveness_lock::acquire(&self.node_file, u64::from(number));
        self.node.head().members[number as usize].store(thread::pid(), Release);
        self.place.number.store(number, Relaxed);
    }

    /// When the engine starts. The creator of the node file has the first number.
    pub(crate) fn join_family(&self, number: u32) {
        self.place.child.store(STRANGER, Relaxed);
        self.take(number);
    }

    /// Before a fork, with the engine's locks held: the child has every stream that this process has.
    pub(crate) fn expect_child(&self) {
        self.forget_the_unborn();
        let mut streams = self.each_local().filter(|(_, local)| local.handle.load(Acquire) != 0).peekable();
        // Where nothing is shared the child gets a number when it needs one, or never.
        let number = if streams.peek().is_some() { self.free_number(EXPECTED) } else { STRANGER };
        self.place.child.store(number, Relaxed);
        self.place.forked.store(clock::nanoseconds(), Relaxed);
        for (record, _) in streams {
            record.lifecycle.members.fetch_or(1 << number, AcqRel);
        }
    }

    fn forget_the_unborn(&self) {
        let (child, forked) = (self.place.child.load(Relaxed), self.place.forked.load(Relaxed));
        if child != STRANGER && clock::nanoseconds().saturating_sub(forked) > BIRTH {
            let member = &self.node.head().members[child as usize];
            if member.compare_exchange(EXPECTED, 0, AcqRel, Relaxed).is_ok() {
                self.strike(child);
            }
        }
    }

    /// In the child.
    pub(crate) fn become_member(&self) {
        self.place.number.store(STRANGER, Relaxed);
        let number = self.place.child.swap(STRANGER, Relaxed);
        if number == STRANGER {
            return;
        }
        if self.node.head().members[number as usize].load(Acquire) == EXPECTED {
            self.take(number);
        } else {
            // Born too late: its streams are the others' alone.
            self.each_local().for_each(|(_, local)| local.handle.store(0, Release));
        }
    }
}
