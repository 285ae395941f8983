//! The direct path of whole messages, of programs that post their receives: matched where they lie, and completed as they are taken.
//!
//! What it is: what [`Link::arrived`] does with a message for which a receive is posted, its head's words read once each; and what
//! [`Link::send_short`] does with one that may go. What it is not: it decides nothing. Whatever is not such a message is left, untouched, to
//! those.

use super::link::{Link, Phase};
use super::matching::{Oldest, Selector};
use super::packet::{self, Head, Kind};
use super::pool::Number;
use super::{ChannelId, Owner, Reception, credit, stack};

/// The message, and who gets it. Its headers come first behind the packet's [`packet::MESSAGE`] bytes, then its body.
#[derive(Debug)]
pub struct Matched {
    /// It is still in the table: the owner takes it out. None: the one that is not posted.
    pub receive: Option<Oldest>,
    /// On which channel the message came.
    pub channel: ChannelId,
    /// Its tag.
    pub tag: u64,
    /// Bytes of its headers.
    pub headers: usize,
}

/// A message that may go.
#[derive(Debug, Clone, Copy)]
pub struct Going {
    /// Its packet begins with these.
    pub words: [u64; packet::MESSAGE / 8],
    units: u32,
    grant: u16,
}

impl Link {
    /// A packet has come, of which these are the first words and `length` other bytes follow: the message, if it is one for which a receive
    /// is posted, or for the one that is [alone](super::matching::Table::is_alone) and not posted. It has been taken then: the owner takes the
    /// receive out of the table, puts the body into place, and completes the receive.
    #[inline(always)]
    pub fn match_message<O: Owner>(
        &mut self,
        owner: &mut O,
        kind: u8,
        words: [u64; packet::MESSAGE / 8],
        length: usize,
        (now, alone): (u64, Option<&Selector>),
    ) -> Option<Matched> {
        let (Head { to, own, grant }, tag) = (Head::of_word(words[0]), words[1]);
        let headers = packet::length_of_headers(own, length).ok()?;
        let units = credit::cost_of_short(length);
        let message = kind == Kind::Message as u8 && matches!(self.phase, Phase::Up) && self.met;
        if !message || !self.grants.covers(units) {
            return None;
        }
        let channel = self.channels.receiving(to).ok().filter(|channel| !channel.is_released())?;
        let Reception::Matched(scope) = channel.reception else { return None };
        let receive = match alone {
            Some(selector) if owner.matching().admits(selector, scope, tag) => None,
            Some(_) => return None,
            None => Some(owner.matching().oldest(scope, tag)?),
        };
        // The last thing that may be wrong with it: nothing has been done where it is.
        if grant != 0 && self.allowance.granted(u32::from(grant)).ok()? {
            owner.unblocked();
        }
        self.heard = now;
        self.grants.use_and_free(units);
        Some(Matched { receive, channel: ChannelId(to), tag, headers })
    }

    /// To whom messages on this channel go, if any may.
    #[inline(always)]
    pub fn outgoing(&self, channel: ChannelId) -> Option<Number> {
        self.channels.sending(channel).ok().filter(|_| matches!(self.phase, Phase::Up))
    }

    /// Whether a message with so many bytes of headers, and of both, all of one line, may go there now. [`Link::gone`] follows once it has.
    #[inline(always)]
    pub fn may_go_now(&self, to: Number, tag: u64, headers: usize, length: usize) -> Option<Going> {
        let (units, grant) = (credit::cost_of_short(length), self.grants.next());
        let fits = (length - headers) as u64 <= self.limits.eager && headers <= stack::MOST;
        let words = Head { to, own: headers as u16, grant }.words(tag);
        (fits && self.allowance.covers(units)).then_some(Going { words, units, grant })
    }

    /// It has gone.
    #[inline(always)]
    pub fn gone(&mut self, Going { units, grant, .. }: Going) {
        self.allowance.spend(units);
        if grant > 0 {
            self.grants.gone(grant);
        }
    }
}
