//! The fast path of whole messages: matched in place, and completed or kept as they arrive.
//!
//! [`Link::match_message`] does what [`Link::arrived`] does with a whole message on a matched channel, but reads each word of the head
//! once. [`Link::prepare_send`] does what [`Link::send_short`] does with a message that can be sent at once. Anything else is left
//! untouched for the general path.

use super::link::{Link, LinkPhase};
use super::matching::{Oldest, Selector, UnexpectedMessage};
use super::packet::{self, Head, Kind};
use super::slab::SlabId;
use super::{Callbacks, ChannelId, Reception, credit, header_stack};

/// The receive that gets a message.
#[derive(Debug, Clone, Copy)]
pub enum Receiver {
    /// This posted receive, which is still in the table: the owner removes it.
    PostedReceive(Oldest),
    /// The blocking receive that is the [sole receive](super::matching::Table::is_sole_receive) and not posted.
    Unposted,
    /// None: [`Link::keep_message`] follows.
    Unexpected,
}

/// A message that was accepted. Behind the first [`packet::MESSAGE_HEAD_BYTES`] bytes of the packet are its headers, then its body.
#[derive(Debug)]
pub struct Matched {
    /// The receive that gets it.
    pub receiver: Receiver,
    /// The channel on which the message arrived.
    pub channel: ChannelId,
    /// The tag.
    pub tag: u64,
    /// Bytes of the headers.
    pub headers: usize,
}

/// A message that may be sent; [`Link::mark_sent`] follows.
#[derive(Debug, Clone, Copy)]
pub struct PreparedSend {
    /// The first words of the packet.
    pub words: [u64; packet::MESSAGE_HEAD_BYTES / 8],
    units: u32,
    grant: u16,
}

impl Link {
    /// Handles a packet whose first words are `words`, with `length` bytes behind them. If it is a whole message on a matched
    /// channel, it is accepted, and the owner does what its [`Receiver`] asks for: places the body and completes the receive, or
    /// has the message kept. `alone` is the selector of a blocking receive that is not posted. Returns `None`, and does nothing,
    /// for any other packet.
    #[inline(always)]
    pub fn match_message<O: Callbacks>(
        &mut self,
        owner: &mut O,
        kind: u8,
        words: [u64; packet::MESSAGE_HEAD_BYTES / 8],
        length: usize,
        (now, alone): (u64, Option<&Selector>),
    ) -> Option<Matched> {
        let (Head { to, own, grant }, tag) = (Head::from_word(words[0]), words[1]);
        let headers = packet::headers_length(own, length).ok()?;
        let units = credit::cost_of_short(length);
        let message = kind == Kind::Message as u8 && matches!(self.phase, LinkPhase::Up) && self.hello_received;
        if !message || !self.rx_credit.covers(units) {
            return None;
        }
        let channel = self.channels.receiving(to).ok().filter(|channel| !channel.is_released())?;
        let Reception::Matched(scope) = channel.reception else { return None };
        let table = owner.matching();
        let receiver = match alone {
            Some(selector) if table.would_match(selector, scope, tag) => Receiver::Unposted,
            Some(_) => table.can_add_unexpected(scope).then_some(Receiver::Unexpected)?,
            None => match table.oldest(scope, tag) {
                Some(oldest) => Receiver::PostedReceive(oldest),
                None => table.can_add_unexpected(scope).then_some(Receiver::Unexpected)?,
            },
        };
        // The last check: where it fails nothing has been changed.
        if grant != 0 && self.tx_credit.granted(u32::from(grant)).ok()? {
            owner.unblocked();
        }
        self.last_packet_at = now;
        self.rx_credit.use_and_free(units);
        Some(Matched { receiver, channel: ChannelId(to), tag, headers })
    }

    /// Keeps a message as unexpected. `bytes` are its headers and its body. Unlike [`Link::arrived`] this reports no
    /// [`Event::Queued`](super::Event::Queued).
    #[inline(never)]
    pub fn keep_message<O: Callbacks>(&mut self, owner: &mut O, matched: &Matched, bytes: Box<[u8]>) {
        let &Matched { channel, tag, headers, .. } = matched;
        let Ok(Reception::Matched(scope)) = self.channels.receiving(channel.0).map(|channel| channel.reception) else {
            return;
        };
        let units = credit::cost_of_short(bytes.len());
        self.rx_credit.keep_in_use(units);
        let (length, headers) = ((bytes.len() - headers) as u64, headers as u16);
        let message =
            UnexpectedMessage { source: self.source, channel, headers, tag, length, units, long: None, bytes };
        let _there_is_room = self.add_unexpected(owner, scope, message); // checked by `match_message`
    }

    /// The peer's number for a channel on which messages may be sent.
    #[inline(always)]
    pub fn outgoing(&self, channel: ChannelId) -> Option<SlabId> {
        self.channels.sending(channel).ok().filter(|_| matches!(self.phase, LinkPhase::Up))
    }

    /// Checks whether a message may be sent at once; `headers` and `length` are the bytes of its headers, and of headers and body.
    /// [`Link::mark_sent`] follows once it is sent.
    #[inline(always)]
    pub fn prepare_send(&self, to: SlabId, tag: u64, headers: usize, length: usize) -> Option<PreparedSend> {
        let (units, grant) = (credit::cost_of_short(length), self.rx_credit.next_grant());
        let fits = (length - headers) as u64 <= self.limits.eager && headers <= header_stack::MAX_HEADERS_BYTES;
        let words = Head { to, own: headers as u16, grant }.words(tag);
        (fits && self.tx_credit.covers(units)).then_some(PreparedSend { words, units, grant })
    }

    /// The prepared message was sent.
    #[inline(always)]
    pub fn mark_sent(&mut self, PreparedSend { units, grant, .. }: PreparedSend) {
        self.tx_credit.spend(units);
        if grant > 0 {
            self.rx_credit.mark_sent(grant);
        }
    }
}
