//! The direct path of whole messages: matched where they lie, and completed or kept as they are taken.
//!
//! [`Link::match_message`] does what [`Link::arrived`] does with a whole message on a channel whose messages are matched; it reads each word of
//! the head once. [`Link::prepare_send`] does what [`Link::send_short`] does with a message that may go at once. Anything else is left untouched
//! to those two.

use super::link::{Link, Phase};
use super::matching::{Oldest, Selector, UnexpectedMessage};
use super::packet::{self, Head, Kind};
use super::slab::SlabId;
use super::{Callbacks, ChannelId, Reception, credit, header_stack};

/// Which receive gets a message.
#[derive(Debug, Clone, Copy)]
pub enum Receiver {
    /// This one, which is still in the table: the owner takes it out.
    PostedReceive(Oldest),
    /// The blocking receive that is [alone](super::matching::Table::is_sole_receive), and not posted.
    Unposted,
    /// None yet: [`Link::keep_message`] follows.
    Unexpected,
}

/// A message that has been taken. Its headers come first behind the packet's [`packet::MESSAGE`] bytes, then its body.
#[derive(Debug)]
pub struct Matched {
    /// Who gets it.
    pub receiver: Receiver,
    /// On which channel the message came.
    pub channel: ChannelId,
    /// Its tag.
    pub tag: u64,
    /// Bytes of its headers.
    pub headers: usize,
}

/// A message that may go.
#[derive(Debug, Clone, Copy)]
pub struct PreparedSend {
    /// Its packet begins with these.
    pub words: [u64; packet::MESSAGE / 8],
    units: u32,
    grant: u16,
}

impl Link {
    /// A packet has come, of which these are the first words and `length` other bytes follow. If it is a whole message on a channel whose
    /// messages are matched, it is taken, and the owner does what its [`Receiver`] asks for: puts the body into place and completes the receive,
    /// or has the message kept. `alone` is the selector of a blocking receive that is not posted. `None`: the packet is something else, and
    /// nothing has been done.
    #[inline(always)]
    pub fn match_message<O: Callbacks>(
        &mut self,
        owner: &mut O,
        kind: u8,
        words: [u64; packet::MESSAGE / 8],
        length: usize,
        (now, alone): (u64, Option<&Selector>),
    ) -> Option<Matched> {
        let (Head { to, own, grant }, tag) = (Head::from_word(words[0]), words[1]);
        let headers = packet::headers_length(own, length).ok()?;
        let units = credit::cost_of_short(length);
        let message = kind == Kind::Message as u8 && matches!(self.phase, Phase::Up) && self.hello_received;
        if !message || !self.rx_credit.covers(units) {
            return None;
        }
        let channel = self.channels.receiving(to).ok().filter(|channel| !channel.is_released())?;
        let Reception::Matched(scope) = channel.reception else { return None };
        let table = owner.matching();
        let receiver = match alone {
            Some(selector) if table.would_match(selector, scope, tag) => Receiver::Unposted,
            Some(_) => table.can_keep(scope).then_some(Receiver::Unexpected)?,
            None => match table.oldest(scope, tag) {
                Some(oldest) => Receiver::PostedReceive(oldest),
                None => table.can_keep(scope).then_some(Receiver::Unexpected)?,
            },
        };
        // The last thing that may be wrong with it: nothing has been done where it is.
        if grant != 0 && self.tx_credit.granted(u32::from(grant)).ok()? {
            owner.unblocked();
        }
        self.last_packet_at = now;
        self.rx_credit.use_and_free(units);
        Some(Matched { receiver, channel: ChannelId(to), tag, headers })
    }

    /// Keeps a message that no receive waits for. These are the bytes of its headers and of its body. Unlike [`Link::arrived`] this tells the
    /// owner no [`Event::Queued`](super::Event::Queued).
    #[inline(never)]
    pub fn keep_message<O: Callbacks>(&mut self, owner: &mut O, matched: &Matched, bytes: Box<[u8]>) {
        let &Matched { channel, tag, headers, .. } = matched;
        let Ok(Reception::Matched(scope)) = self.channels.receiving(channel.0).map(|channel| channel.reception) else {
            return;
        };
        let units = credit::cost_of_short(bytes.len());
        self.rx_credit.use_on(units);
        let (length, headers) = ((bytes.len() - headers) as u64, headers as u16);
        let held = UnexpectedMessage { source: self.source, channel, headers, tag, length, units, long: None, bytes };
        let _there_is_room = self.keep(owner, scope, held); // `match_message` has asked
    }

    /// To whom messages on this channel go, if any may.
    #[inline(always)]
    pub fn outgoing(&self, channel: ChannelId) -> Option<SlabId> {
        self.channels.sending(channel).ok().filter(|_| matches!(self.phase, Phase::Up))
    }

    /// Whether a message with so many bytes of headers, and of both, all of one line, may go there now. [`Link::gone`] follows once it has.
    #[inline(always)]
    pub fn prepare_send(&self, to: SlabId, tag: u64, headers: usize, length: usize) -> Option<PreparedSend> {
        let (units, grant) = (credit::cost_of_short(length), self.rx_credit.next());
        let fits = (length - headers) as u64 <= self.limits.eager && headers <= header_stack::MAX_HEADERS_BYTES;
        let words = Head { to, own: headers as u16, grant }.words(tag);
        (fits && self.tx_credit.covers(units)).then_some(PreparedSend { words, units, grant })
    }

    /// It has gone.
    #[inline(always)]
    pub fn mark_sent(&mut self, PreparedSend { units, grant, .. }: PreparedSend) {
        self.tx_credit.spend(units);
        if grant > 0 {
            self.rx_credit.mark_sent(grant);
        }
    }
}
