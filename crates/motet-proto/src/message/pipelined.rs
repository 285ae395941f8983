//! The short way of a message that somebody waits for right there, a whole one or one that is lent: no receive is posted, and nothing
//! completes.
//!
//! What it is not: it decides nothing. Whatever is not plainly that message is left, untouched, to [`Link::arrived`].

use super::link::{Link, Phase};
use super::matching::{Receive, Scope, Table, Ticket};
use super::packet::{self, Head, Kind};
use super::{Callbacks, ChannelId, Envelope, Outcome, ProtocolViolation, Reception, Status, credit};

/// The message: its headers come first behind the packet's [`packet::MESSAGE`] bytes, then its body.
#[derive(Debug)]
pub struct ExpectedMessage {
    /// On which channel it came.
    pub channel: ChannelId,
    /// Its tag.
    pub tag: u64,
    /// Bytes of its headers.
    pub headers: usize,
    pub(super) units: u32,
    pub(super) grant: u16,
}

/// A message that a posted receive will get, and that is not all there yet.
#[derive(Debug)]
pub struct PipelinedReceive<B> {
    /// The message.
    pub message: ExpectedMessage,
    /// The receive, and where it waits.
    pub receive: Receive<B>,
    /// See `receive`.
    pub ticket: Ticket,
    /// Bytes of its body.
    pub body: usize,
    scope: Scope,
}

impl Link {
    /// A message that is matched and breaks no rule, and its scope.
    #[inline(always)]
    fn plain_message(
        &self,
        kind: u8,
        front: &[u8; packet::MESSAGE],
        length: usize,
    ) -> Option<(ExpectedMessage, Scope)> {
        if kind != Kind::Message as u8 || !matches!(self.phase, Phase::Up) || !self.hello_received {
            return None;
        }
        let (head, rest) = Head::read(front).ok()?;
        let (tag, _) = packet::read_word(rest).ok()?;
        let (headers, units) = (packet::headers_length(head.own, length).ok()?, credit::cost(length as u64)?);
        let channel = self.channels.receiving(head.to).ok()?;
        let Reception::Matched(scope) = channel.reception else { return None };
        let plain = !channel.is_released() && self.rx_credit.covers(units);
        plain
            .then_some((ExpectedMessage { channel: ChannelId(head.to), tag, headers, units, grant: head.grant }, scope))
    }

    /// A packet comes, of which these are the first bytes and `length` others will follow: the posted receive that will get it, if
    /// that is plain before all of it is there ([`Table::peek_match`]) and has room for all of it.
    #[inline]
    pub fn match_pipelined<B: Copy>(
        &self,
        table: &Table<B>,
        kind: u8,
        front: &[u8; packet::MESSAGE],
        length: usize,
    ) -> Option<PipelinedReceive<B>> {
        let (message, scope) = self.plain_message(kind, front, length)?;
        let (receive, ticket) = table.peek_match(scope, message.tag)?;
        let body = length - message.headers;
        (receive.capacity >= body as u64).then_some(PipelinedReceive { message, receive, ticket, scope, body })
    }

    /// All of it is there, and its body is where the receive wants it. An error: the packet says what cannot be.
    #[inline]
    pub fn finish_pipelined<O: Callbacks>(
        &mut self,
        owner: &mut O,
        awaited: &PipelinedReceive<O::Buffer>,
        headers: &[u8],
        now: u64,
    ) -> Result<(), ProtocolViolation> {
        let PipelinedReceive { message, scope, body, .. } = awaited;
        self.take_expected(owner, message, now)?;
        let Some(receive) = owner.matching().arrive(*scope, message.tag) else {
            return Err(ProtocolViolation("a receive that is gone"));
        };
        let length = *body as u64;
        let (source, channel, tag) = (self.source, message.channel, message.tag);
        let operation = owner.start_receive(receive);
        owner.matched(operation, &Envelope { source, channel, tag, length, headers });
        owner.completed(operation, Outcome { status: Status::Done, length });
        Ok(())
    }

    /// It is taken. An error: the packet says what cannot be; nothing has been done.
    #[inline(always)]
    pub fn take_expected<O: Callbacks>(
        &mut self,
        owner: &mut O,
        message: &ExpectedMessage,
        now: u64,
    ) -> Result<(), ProtocolViolation> {
        if message.grant != 0 && self.tx_credit.granted(u32::from(message.grant))? {
            owner.unblocked();
        }
        self.last_packet_at = now;
        self.rx_credit.use_and_free(message.units);
        Ok(())
    }

    /// Whether credit must go back that does not wait for a message to ride on.
    #[inline(always)]
    pub fn owes_credit(&self) -> bool {
        self.rx_credit.is_due()
    }
}
