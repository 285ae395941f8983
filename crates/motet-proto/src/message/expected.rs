//! The short way of a whole message that somebody waits for right there: no receive is posted, and nothing completes.
//!
//! What it is not: it decides nothing. Whatever is not plainly that message is left, untouched, to [`Link::arrived`].

use super::link::{Link, Phase};
use super::matching::Selector;
use super::packet::{self, Head, Kind};
use super::{ChannelId, Owner, Reception, credit};

/// The message.
#[derive(Debug)]
pub struct Expected<'a> {
    /// On which channel it came.
    pub channel: ChannelId,
    /// Its tag.
    pub tag: u64,
    /// Its headers, the outermost first.
    pub headers: &'a [u8],
    /// Its body.
    pub body: &'a [u8],
}

impl Link {
    /// A packet has come, and a receive waits [alone](super::Table::alone): its message, if that is what the packet is. None: nothing
    /// has been done.
    #[inline(always)]
    pub fn expected<'a, O: Owner>(
        &mut self,
        owner: &mut O,
        selector: &Selector,
        kind: u8,
        packet: &'a [u8],
        now: u64,
    ) -> Option<Expected<'a>> {
        if kind != Kind::Message as u8 || !matches!(self.phase, Phase::Up) || !self.met {
            return None;
        }
        let (head, rest) = Head::read(packet).ok()?;
        let (tag, rest) = packet::word(rest).ok()?;
        let (headers, body) = packet::headers(rest, head.own).ok()?;
        let units = credit::cost(rest.len() as u64)?;
        let channel = self.channels.receiving(head.to).ok()?;
        let Reception::Matched(scope) = channel.reception else { return None };
        if channel.is_released() || !self.grants.covers(units) || !owner.matching().admits(selector, scope, tag) {
            return None;
        }
        if head.grant != 0 && self.allowance.granted(u32::from(head.grant)).ok()? {
            owner.unblocked();
        }
        self.heard = now;
        self.grants.use_and_free(units);
        Some(Expected { channel: ChannelId(head.to), tag, headers, body })
    }

    /// Whether credit must go back that does not wait for a message to ride on.
    #[inline(always)]
    pub fn owes_credit(&self) -> bool {
        self.grants.is_due()
    }
}
