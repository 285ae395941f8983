//! Completion groups: ends of operations, gathered for one thread.

use super::{Completion, Ended, NONE, OperationId, Operations, Teller};
use crate::message::Error;
use motet_proto::message::Status;
use motet_proto::message::slab::{IntrusiveList, SlabId};

/// A completion group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct GroupId(pub u32);

impl GroupId {
    /// No group's.
    pub const NONE: Self = Self(0);
}

/// Ends that one thread waits for.
#[derive(Debug, Default)]
pub struct Group {
    /// Records of operations that have ended, in that order.
    pub(super) ended: IntrusiveList,
    /// Operations that ended as asked, and others.
    pub counts: [u64; 2],
    /// Operations under way.
    pub under_way: u64,
    /// Whoever waits, or waits next, is to stop.
    pub signalled: bool,
}

impl Operations {
    /// A new completion group; `None` when there are too many.
    pub fn add_group(&mut self) -> Option<GroupId> {
        self.groups.insert(Group::default()).map(|number| GroupId(number.0))
    }

    /// Ends a group, and forgets what nobody has taken note of. [`Error::WouldBlock`], and nothing is done, while operations in it
    /// are under way.
    pub fn remove_group(&mut self, group: GroupId) -> Result<(), Error> {
        let number = SlabId(group.0);
        if group == self.blocking {
            return Err(Error::Unknown); // it is no program's
        }
        if self.groups.get_by_id(number).ok_or(Error::Unknown)?.under_way > 0 {
            return Err(Error::WouldBlock);
        }
        while let Ok(Some(_)) = self.next_end(group) {}
        self.groups.remove(number.index());
        Ok(())
    }

    /// Whether nothing of a group waits to be taken note of.
    #[inline(always)]
    pub fn nothing_has_ended(&mut self, group: GroupId) -> Result<bool, Error> {
        Ok(self.group(group).ok_or(Error::Unknown)?.ended.is_empty())
    }

    /// The next end in a group.
    #[inline]
    pub fn next_end(&mut self, group: GroupId) -> Result<Option<Completion>, Error> {
        let known = self.groups.get_by_id(SlabId(group.0)).ok_or(Error::Unknown)?;
        let Some(index) = known.ended.first() else { return Ok(None) };
        self.pool.unlink(&mut known.ended, 0, index);
        Ok(self.take_record(index))
    }

    /// Tells up to `most` of the next ends in a group, where they lie, and forgets them. How many; and whether it has stopped before one
    /// that the teller does not take, or of which something is the program's to keep: [`Operations::next_end`] takes that.
    #[inline(always)]
    pub fn tell_ends(&mut self, group: GroupId, most: usize, teller: &mut impl Teller) -> Result<(usize, bool), Error> {
        let known = self.groups.get_by_id(SlabId(group.0)).ok_or(Error::Unknown)?;
        let mut told = 0;
        while told < most {
            let Some(index) = known.ended.first() else { break };
            let Some(record) = self.pool.get(index) else { break };
            let operation = if record.nameless { NONE } else { OperationId(self.pool.number(index).0) };
            let (true, Some(outcome)) = (record.is_plain(), record.outcome) else { return Ok((told, true)) };
            if !teller.takes(!record.nameless, outcome.status == Status::Done, &record.headers) {
                return Ok((told, true));
            }
            teller.tell(&Ended {
                operation,
                context: record.notice.context,
                status: outcome.status,
                length: outcome.length,
                tag: record.tag,
                full: record.full,
                headers: &record.headers,
                channel: record.channel,
            });
            self.pool.unlink(&mut known.ended, 0, index);
            self.pool.forget(index);
            told += 1;
        }
        Ok((told, false))
    }

    /// A group.
    #[inline(always)]
    pub fn group(&mut self, group: GroupId) -> Option<&mut Group> {
        self.groups.get_by_id(SlabId(group.0))
    }
}

impl Group {
    /// Whether a wait is to stop; asked once for each time.
    pub fn interrupted<R>(&mut self) -> Option<Result<R, Error>> {
        std::mem::take(&mut self.signalled).then_some(Err(Error::Interrupted))
    }
}
