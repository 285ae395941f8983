//! The short way of messages of one line, of programs that post their receives and look for the ends of many.
//!
//! What it is: what [`Link::arrived`] does with a short message for the first receive of its list, its words read once each where
//! they lie; and what [`Link::send_short`] does with one that may go. What it is not: it decides nothing. Whatever is not plainly that is
//! left, untouched, to those.

use super::calm::Going;
use super::link::{Link, Phase};
use super::matching::{Home, Receive};
use super::packet::{self, Head, Kind};
use super::pool::Number;
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

/// A channel whose messages are matched with receives, and where: true until a call changes the channel, its scope or the link. Messages
/// that go and come, and receives that are posted, change none of them.
#[derive(Debug, Clone, Copy)]
pub struct Incoming {
    channel: ChannelId,
    home: Home,
}

impl Incoming {
    /// Whether a packet that begins with this word is for the channel.
    #[inline(always)]
    pub fn is_for(&self, word: u64) -> bool {
        Head::of_word(word).to == self.channel.0
    }
}

impl Link {
    /// The channel that a packet which begins with this word is for, if that is up and its messages are matched with receives.
    #[inline(always)]
    pub fn incoming<O: Owner>(&self, owner: &mut O, word: u64) -> Option<Incoming> {
        if !matches!(self.phase, Phase::Up) || !self.met {
            return None;
        }
        let to = Head::of_word(word).to;
        let channel = self.channels.receiving(to).ok().filter(|channel| !channel.is_released())?;
        let Reception::Matched(scope) = channel.reception else { return None };
        Some(Incoming { channel: ChannelId(to), home: owner.matching().home(scope)? })
    }

    /// A packet has come for this channel, of which these are the first words and `length` other bytes follow: the message, if it is a short
    /// one for the receive that was posted first. It has been taken then: the owner puts its body into place, and completes the receive.
    #[inline(always)]
    pub fn match_short<O: Owner>(
        &mut self,
        owner: &mut O,
        incoming: Incoming,
        kind: u8,
        words: [u64; packet::MESSAGE / 8],
        length: usize,
        now: u64,
    ) -> Option<Matched> {
        let (Head { to, own, grant }, tag) = (Head::of_word(words[0]), words[1]);
        let (headers, units) = (packet::length_of_headers(own, length).ok()?, credit::cost_of_short(length));
        let ours = kind == Kind::Message as u8 && to == incoming.channel.0;
        if !ours || !self.grants.covers(units) {
            return None;
        }
        let first = owner.matching().first_for(incoming.home, tag)?;
        // The last thing that may be wrong with it: nothing has been done where it is.
        if grant != 0 && self.allowance.granted(u32::from(grant)).ok()? {
            owner.unblocked();
        }
        let receive = owner.matching().take(first)?;
        self.heard = now;
        self.grants.use_and_free(units);
        Some(Matched { receive, channel: incoming.channel, tag, headers })
    }

    /// To whom messages on this channel go, if any may. True until a call changes the channel or the link.
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
}
