//! The shortest way: messages on a channel of which is known that they may go and come.
//!
//! What it is: what [`Link::send_short`] and [`Link::expects`] look up for every message, looked up once. It stays true as long as the link
//! is used for nothing but what is here, which is for its owner to see to: a call of any other kind ends it. What changes with every
//! message, credit above all, is looked at each time. What it is not: it decides nothing. Whatever is not plainly such a message is left,
//! untouched, to the other ways.

use super::expected::Expected;
use super::link::Link;
use super::matching::Scope;
use super::packet::{self, Head, Kind};
use super::pool::Number;
use super::{ChannelId, Packets, Reception, credit, stack};

/// A channel as it is while its link is calm.
#[derive(Debug, Clone, Copy)]
pub struct Calm {
    channel: ChannelId,
    /// The peer's number for it.
    to: Number,
    /// Headers and body of a message that goes in one packet are shorter; 0: none may go.
    below: usize,
    /// Where its messages wait, if any may come.
    scope: Option<Scope>,
}

/// A message that may go.
#[derive(Debug, Clone, Copy)]
pub struct Going {
    /// Its packet begins with these.
    pub words: [u64; 2],
    pub(super) units: u32,
    pub(super) grant: u16,
}

impl Calm {
    /// Where its messages wait, if any may come.
    #[inline(always)]
    pub fn scope(&self) -> Option<Scope> {
        self.scope
    }
}

impl Link {
    /// What is known of a channel now, on a medium with such packets.
    pub fn calm(&self, channel: ChannelId, packets: &impl Packets) -> Option<Calm> {
        self.up().ok()?;
        let known = self.channels.receiving(channel.0).ok();
        let known = known.filter(|known| self.met && !known.is_released() && !self.is_due());
        let scope = known.and_then(|known| match known.reception {
            Reception::Matched(scope) => Some(scope),
            Reception::Handler => None,
        });
        let most = (packets.largest() - packet::MESSAGE).min(usize::try_from(self.limits.eager).unwrap_or(usize::MAX));
        let (to, below) = self.channels.sending(channel).map_or_else(|_| Default::default(), |to| (to, most + 1));
        Some(Calm { channel, to, below, scope })
    }

    /// Whether a message with so many bytes of headers, and of both, may go in one packet. [`Link::gone`] follows once it has.
    #[inline(always)]
    pub fn may_go(&self, calm: &Calm, tag: u64, headers: usize, length: usize) -> Option<Going> {
        let (units, grant) = (credit::cost_of_short(length), self.grants.next());
        let words = Head { to: calm.to, own: headers as u16, grant }.words(tag);
        let may = length < calm.below && headers <= stack::MOST && self.allowance.covers(units);
        may.then_some(Going { words, units, grant })
    }

    /// It has gone.
    #[inline(always)]
    pub fn gone(&mut self, Going { units, grant, .. }: Going) {
        self.allowance.spend(units);
        if grant > 0 {
            self.grants.gone(grant);
        }
    }

    /// A packet has come, of which these are the first words and `length` other bytes follow: the message, if it is one on this channel.
    /// [`Link::take_expected`] follows.
    #[inline(always)]
    pub fn expects_calmly(&self, calm: &Calm, kind: u8, words: [u64; 2], length: usize) -> Option<Expected> {
        let Head { to, own, grant } = Head::of_word(words[0]);
        let headers = packet::length_of_headers(own, length).ok()?;
        let units = credit::cost_of_short(length);
        let ours = kind == Kind::Message as u8 && to == calm.channel.0;
        (ours && self.grants.covers(units)).then_some(Expected {
            channel: calm.channel,
            tag: words[1],
            headers,
            units,
            grant,
        })
    }
}
