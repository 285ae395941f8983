//! What the last calls have shown, for those that come next: a program that posts receives, sends, and looks for ends asks for the same
//! channel, context and group again and again.
//!
//! What it is: written down by calls that leave a node [still](super::vain), for calls that find it still: whoever takes the lock for
//! anything else, or looks for anything else than the message that comes next, ends that it is, and a node is called still anew only after
//! all of this has been forgotten. What it is not: it holds nothing that those calls themselves change: neither credit nor room, neither
//! receives nor messages.

use super::operations::GroupId;
use super::receiving::From;
use super::{Channel, LinkId};
use motet_proto::message::matching::Aim;
use motet_proto::message::pool::Number;
use motet_proto::message::posted::Incoming;

/// All of it.
#[derive(Debug, Default)]
pub struct Lately {
    /// What was told last. Then the link is the only busy one, and nothing is to be done for it but to look at its next line.
    pub told: Option<Told>,
    /// From where a receive was posted last, and where it waits.
    posted: Option<(From, Aim)>,
    /// On which channel a message was injected last, and to whom it goes.
    injected: Option<(Channel, Number)>,
}

/// A message whose end was told as it came.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    /// The group that was asked, of which nothing else has ended.
    pub group: GroupId,
    /// Where it came.
    pub link: LinkId,
    /// On which channel.
    pub incoming: Incoming,
}

impl Lately {
    /// Nothing but what was told last.
    pub fn of(told: Option<Told>) -> Self {
        Self { told, ..Self::default() }
    }

    /// Where a receive from here waits, if one was posted lately.
    #[inline(always)]
    pub fn aim(&self, from: From) -> Option<Aim> {
        self.posted.as_ref().filter(|(known, _)| *known == from).map(|&(_, aim)| aim)
    }

    /// One from here waits there.
    pub fn note_aim(&mut self, from: From, aim: Aim) {
        self.posted = Some((from, aim));
    }

    /// To whom messages on this channel go, if one went lately.
    #[inline(always)]
    pub fn way(&self, channel: Channel) -> Option<Number> {
        self.injected.as_ref().filter(|(known, _)| *known == channel).map(|&(_, to)| to)
    }

    /// They go there.
    pub fn note_way(&mut self, channel: Channel, to: Number) {
        self.injected = Some((channel, to));
    }
}
