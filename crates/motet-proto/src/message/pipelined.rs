//! Pipelined messages: a posted receive gets a message whose bytes are still arriving; and the direct path of a message that a blocking
//! receive waits for.
//!
//! A message that is not certainly the awaited one is left untouched for [`Link::arrived`].

use super::link::{Link, LinkPhase};
use super::matching::{Receive, Scope, Table, Ticket};
use super::packet::{self, Head, Kind};
use super::{Callbacks, ChannelId, Envelope, Outcome, ProtocolViolation, Reception, Status, credit};

/// The message. Behind the first [`packet::MESSAGE_HEAD_BYTES`] bytes of the packet are its headers, then its body.
#[derive(Debug)]
pub struct ExpectedMessage {
    /// The channel on which the message arrived.
    pub channel: ChannelId,
    /// The tag.
    pub tag: u64,
    /// Bytes of the headers.
    pub headers: usize,
    pub(super) units: u32,
    pub(super) grant: u16,
}

/// A message of which not all bytes have arrived, and the posted receive that will get it.
#[derive(Debug)]
pub struct PipelinedReceive<B> {
    /// The message.
    pub message: ExpectedMessage,
    /// The receive.
    pub receive: Receive<B>,
    /// Where the receive waits.
    pub ticket: Ticket,
    /// Bytes of the body.
    pub body: usize,
    scope: Scope,
}

impl Link {
    /// Decodes the head of a message on a matched channel that breaks no rule, and returns its scope.
    #[inline(always)]
    fn plain_message(
        &self,
        kind: u8,
        front: &[u8; packet::MESSAGE_HEAD_BYTES],
        length: usize,
    ) -> Option<(ExpectedMessage, Scope)> {
        if kind != Kind::Message as u8 || !matches!(self.phase, LinkPhase::Up) || !self.hello_received {
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

    /// Matches a packet whose first bytes are `front`, and of which `length` more will arrive, with the posted receive that will
    /// get it. `None`: that is not certain yet ([`Table::peek_match`]), or the buffer has no room for all of it.
    #[inline]
    pub fn match_pipelined<B: Copy>(
        &self,
        table: &Table<B>,
        kind: u8,
        front: &[u8; packet::MESSAGE_HEAD_BYTES],
        length: usize,
    ) -> Option<PipelinedReceive<B>> {
        let (message, scope) = self.plain_message(kind, front, length)?;
        let (receive, ticket) = table.peek_match(scope, message.tag)?;
        let body = length - message.headers;
        (receive.capacity >= body as u64).then_some(PipelinedReceive { message, receive, ticket, scope, body })
    }

    /// All bytes have arrived and the body is in the buffer of the receive. An error is a violation of the protocol.
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
            return Err(ProtocolViolation("the receive of a pipelined message is gone"));
        };
        let length = *body as u64;
        let (source, channel, tag) = (self.source, message.channel, message.tag);
        let operation = owner.start_receive(receive);
        owner.matched(operation, &Envelope { source, channel, tag, length, headers });
        owner.completed(operation, Outcome { status: Status::Done, length });
        Ok(())
    }

    /// Accounts for the credit of a message that was received. An error is a violation of the protocol; nothing has been done then.
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

    /// Whether a grant is to be sent without waiting for another packet.
    #[inline(always)]
    pub fn owes_credit(&self) -> bool {
        self.rx_credit.is_due()
    }
}
