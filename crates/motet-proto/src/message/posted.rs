//! The short way of messages of one line, of programs that post their receives and look for the ends of many.
//!
//! What it is: what [`Link::arrived`] does with a short message for the receive that was posted first of all, its words read once each where
//! they lie; and what [`Link::send_short`] does with one that may go. What it is not: it decides nothing. Whatever is not plainly that is
//! left, untouched, to those.

use super::calm::Going;
use super::link::{Link, Phase};
use super::matching::Receive;
use super::packet::{self, Head, Kind};
use super::{ChannelId, Owner, Reception, credit, stack};

/// The message, and who gets it. Its headers come first behind the packet's [`packet::MESSAGE`] bytes, then its body.
#[derive(Debug)]
pub struct Matched {
    /// It is out of the table.
    pub receive: Receive,
    /// On which channel the message came.
    pub channel: ChannelId,
    /// Its tag.
    pub tag: u64,
    /// Bytes of its headers.
    pub headers: usize,
}

impl Link {
    /// A packet has come, of which these are the first words and `length` other bytes follow: the message, if it is a short one for the
    /// receive that was posted first. It has been taken then: the owner puts its body into place, and completes the receive.
    #[inline(always)]
    pub fn match_short<O: Owner>(
        &mut self,
        owner: &mut O,
        kind: u8,
        words: [u64; packet::MESSAGE / 8],
        length: usize,
        now: u64,
    ) -> Option<Matched> {
        if kind != Kind::Message as u8 || !matches!(self.phase, Phase::Up) || !self.met {
            return None;
        }
        let (Head { to, own, grant }, tag) = (Head::of_word(words[0]), words[1]);
        let (headers, units) = (packet::length_of_headers(own, length).ok()?, credit::cost_of_short(length));
        let channel = self.channels.receiving(to).ok()?;
        let Reception::Matched(scope) = channel.reception else { return None };
        if channel.is_released() || !self.grants.covers(units) || !owner.matching().is_for_first(scope, tag) {
            return None;
        }
        // The last thing that may be wrong with it: nothing has been done where it is.
        if grant != 0 && self.allowance.granted(u32::from(grant)).ok()? {
            owner.unblocked();
        }
        let receive = owner.matching().take_first()?;
        self.heard = now;
        self.grants.use_and_free(units);
        Some(Matched { receive, channel: ChannelId(to), tag, headers })
    }
    /// Whether a message with so many bytes of headers, and of both, all of one line, may go now. [`Link::gone`] follows once it has.
    #[inline(always)]
    pub fn may_go_now(&self, channel: ChannelId, tag: u64, headers: usize, length: usize) -> Option<Going> {
        let to = self.channels.sending(channel).ok().filter(|_| matches!(self.phase, Phase::Up))?;
        let (units, grant) = (credit::cost_of_short(length), self.grants.next());
        let fits = (length - headers) as u64 <= self.limits.eager && headers <= stack::MOST;
        let words = Head { to, own: headers as u16, grant }.words(tag);
        (fits && self.allowance.covers(units)).then_some(Going { words, units, grant })
    }
}
