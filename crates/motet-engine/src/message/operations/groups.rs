//! Completion groups: ends of operations, gathered for one thread.

use super::{Completion, Operations};
use crate::message::Error;
use motet_proto::message::pool::Number;
use std::collections::VecDeque;

/// A completion group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupId(pub u32);

/// Ends that one thread waits for.
#[derive(Debug, Default)]
pub struct Group {
    pub(super) ended: VecDeque<Completion>,
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
        let number = Number(group.0);
        if self.groups.named(number).ok_or(Error::Unknown)?.under_way > 0 {
            return Err(Error::WouldBlock);
        }
        self.groups.remove(number.index());
        Ok(())
    }

    /// A group.
    #[inline(always)]
    pub fn group(&mut self, group: GroupId) -> Option<&mut Group> {
        self.groups.named(Number(group.0))
    }
}

impl Group {
    /// The next end in it.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Completion> {
        self.ended.pop_front()
    }

    /// Whether there is one.
    #[inline(always)]
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Whether a wait is to stop; asked once for each time.
    pub fn interrupted<R>(&mut self) -> Option<Result<R, Error>> {
        std::mem::take(&mut self.signalled).then_some(Err(Error::Interrupted))
    }
}
