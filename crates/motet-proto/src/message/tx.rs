//! Sending: how a message is sent, and what a link sends when there is room.
//!
//! [`Link::send`] sends the first packet of a message at once, or rejects the call. Nothing is queued, so the order of messages on a
//! channel is the order of successful sends (invariant M1). [`Link::flush`] sends what is owed beyond that: credit, CLOSE, answers, and
//! last the pieces of long messages, puts and gets, one of each in turn, which leave room for other packets (invariant M9).
//!
//! This module stores no payload. The owner keeps it and provides it piece by piece ([`Callbacks::body`]).

use super::credit;
use super::gather::{put, put_front};
use super::link::Link;
use super::packet::{self, Head, Kind, LongHeader, RemoteAddress};
use super::rendezvous::sender::RendezvousSend;
use super::slab::SlabId;
use super::{Callbacks, ChannelId, Packets, Rejected, header_stack};

/// How a message may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Eager if it is short and credit covers it, else rendezvous.
    Automatic,
    /// Eager in one packet, or rejected: the body is free when [`Link::send`] returns. Too long is what no packet, or no credit, can take.
    Inject,
    /// Rendezvous: completes when a receive has the message (synchronous mode of MPI).
    Synchronous,
}

/// A message to send.
#[derive(Debug, Clone, Copy)]
pub struct Send<'a> {
    /// The channel.
    pub channel: ChannelId,
    /// The tag, for matching.
    pub tag: u64,
    /// The headers, at most [`header_stack::MAX_HEADERS_BYTES`] bytes: see [`header_stack::Stack`].
    pub headers: &'a [u8],
    /// The body, gathered.
    pub body: &'a [&'a [u8]],
    /// How it may be sent.
    pub mode: Mode,
    /// The owner's name for the operation, if it does not complete at once.
    pub operation: u64,
    /// Where the peer can copy the body from; sent in RTS. `RemoteAddress::default()`: nowhere.
    pub place: RemoteAddress,
}

/// The result of a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// The message was sent and the body is free: no completion follows.
    Complete,
    /// The body must stay valid until the operation completes.
    Pending(SlabId),
}

impl Link {
    /// Sends a message, or rejects it and does nothing.
    #[inline]
    pub fn send<P: Packets>(&mut self, packets: &mut P, send: &Send<'_>) -> Result<Sent, Rejected> {
        self.up()?;
        let to = self.channels.sending(send.channel)?;
        let length: u64 = send.body.iter().map(|part| part.len() as u64).sum();
        if send.headers.len() > header_stack::MAX_HEADERS_BYTES {
            return Err(Rejected::TooLong);
        }
        let bytes = send.headers.len() as u64 + length;
        let whole = bytes <= (packets.largest() - packet::MESSAGE_HEAD_BYTES) as u64;
        if whole && length <= self.limits.eager && send.mode != Mode::Synchronous {
            let units = credit::cost(bytes).ok_or(Rejected::TooLong)?;
            if self.tx_credit.covers(units) {
                let grant = self.rx_credit.next_grant();
                let head = Head { to, own: send.headers.len() as u16, grant }.write_word(send.tag);
                if !put(packets, Kind::Message, &head, send.headers, send.body) {
                    return Err(Rejected::WouldBlock);
                }
                self.tx_credit.spend(units);
                self.rx_credit.mark_sent(grant);
                return Ok(Sent::Complete);
            }
            self.tx_credit.record_shortfall(units);
            if send.mode == Mode::Inject {
                return Err(self.tx_credit.rejection(units));
            }
        }
        if send.mode == Mode::Inject {
            return Err(Rejected::TooLong);
        }
        self.send_long(packets, send, to, length)
    }

    /// Sends a message of one packet: a shorter path of [`Link::send`] with [`Mode::Inject`]. The first `headers` bytes of `all`
    /// are the headers, at most [`header_stack::MAX_HEADERS_BYTES`].
    #[inline(always)]
    pub fn send_short<P: Packets>(
        &mut self,
        packets: &mut P,
        channel: ChannelId,
        tag: u64,
        headers: u16,
        all: &[u8],
    ) -> Result<(), Rejected> {
        self.up()?;
        let to = self.channels.sending(channel)?;
        let body = all.len().saturating_sub(usize::from(headers)) as u64;
        if all.len() > packets.largest() - packet::MESSAGE_HEAD_BYTES || body > self.limits.eager {
            return Err(Rejected::TooLong);
        }
        let units = credit::cost_of_short(all.len());
        if !self.tx_credit.covers(units) {
            self.tx_credit.record_shortfall(units);
            return Err(self.tx_credit.rejection(units));
        }
        let grant = self.rx_credit.next_grant();
        if !packets.put_words(Kind::Message as u8, Head { to, own: headers, grant }.words(tag), all) {
            return Err(Rejected::WouldBlock);
        }
        self.tx_credit.spend(units);
        self.rx_credit.mark_sent(grant);
        Ok(())
    }

    /// Whether an eager message with a body of `length` bytes would be sent by rendezvous for lack of credit.
    pub fn lacks_credit(&self, length: u64) -> bool {
        let units = credit::cost_of_long(header_stack::MAX_HEADERS_BYTES as u16, length);
        length <= self.limits.eager && units.is_some_and(|units| !self.tx_credit.covers(units))
    }

    /// Sends a message that does not fit a packet, or that credit does not cover.
    #[cold]
    fn send_long<P: Packets>(
        &mut self,
        packets: &mut P,
        send: &Send<'_>,
        to: SlabId,
        length: u64,
    ) -> Result<Sent, Rejected> {
        let own = send.headers.len() as u16;
        let first = (packets.largest() - packet::FIRST_HEAD_BYTES - send.headers.len()) as u64;
        // A transport with a path for pieces takes all of the body there.
        let apart = packets.has_piece_path();
        let mut cost = None;
        if length > first && length <= self.limits.eager && send.mode == Mode::Automatic {
            let units = credit::cost_of_long(own, length).ok_or(Rejected::TooLong)?;
            if self.tx_credit.covers(units) {
                cost = Some(units);
            } else {
                self.tx_credit.record_shortfall(units);
            }
        }
        let Some(units) = cost else {
            return self.put_rts(packets, to, send, length).map(Sent::Pending);
        };
        let sent = if apart { 0 } else { first };
        let transfer =
            RendezvousSend { sent, until: length, eager: true, ..RendezvousSend::rendezvous(send.operation, length) };
        let number = self.rendezvous_tx.add(transfer).ok_or(Rejected::WouldBlock)?;
        let (grant, long) = (self.rx_credit.next_grant(), LongHeader { tag: send.tag, length, number });
        let head = long.write(Head { to, own, grant });
        if !put_front(packets, Kind::First, &head, send.headers, send.body, sent as usize) {
            self.rendezvous_tx.slab.remove(number.index());
            return Err(Rejected::WouldBlock);
        }
        self.rx_credit.mark_sent(grant);
        self.tx_credit.spend(units);
        self.rendezvous_tx.schedule(number.index());
        Ok(Sent::Pending(number))
    }

    /// Sends RTS for a message of `length` bytes at `send.place`; `send.body` and `send.mode` are ignored.
    #[inline]
    pub fn send_rts<P: Packets>(&mut self, packets: &mut P, send: &Send<'_>, length: u64) -> Result<SlabId, Rejected> {
        self.up()?;
        let to = self.channels.sending(send.channel)?;
        if send.headers.len() > header_stack::MAX_HEADERS_BYTES {
            return Err(Rejected::TooLong);
        }
        self.put_rts(packets, to, send, length)
    }

    #[inline]
    fn put_rts<P: Packets>(
        &mut self,
        packets: &mut P,
        to: SlabId,
        send: &Send<'_>,
        length: u64,
    ) -> Result<SlabId, Rejected> {
        let transfer =
            RendezvousSend { has_address: send.place.is_plain(), ..RendezvousSend::rendezvous(send.operation, length) };
        let number = self.rendezvous_tx.add(transfer).ok_or(Rejected::WouldBlock)?;
        let (grant, long) = (self.rx_credit.next_grant(), LongHeader { tag: send.tag, length, number });
        let head = long.write_at(Head { to, own: send.headers.len() as u16, grant }, send.place);
        if !put(packets, Kind::Rts, &head, send.headers, &[]) {
            self.rendezvous_tx.slab.remove(number.index());
            return Err(Rejected::WouldBlock);
        }
        self.rx_credit.mark_sent(grant);
        Ok(number)
    }

    /// Asks to cancel a rendezvous send: it completes as cancelled, or as it would have. Returns false when it has completed, or
    /// the message is eager.
    pub fn cancel(&mut self, send: SlabId) -> bool {
        self.rendezvous_tx.cancel(send)
    }

    /// Sends what is owed to the peer, with at most `pieces` pieces of long messages. Returns true when something is left.
    pub fn flush<P: Packets, O: Callbacks>(&mut self, packets: &mut P, owner: &mut O, pieces: usize) -> bool {
        if self.broken().is_some() || !self.is_due() {
            return false;
        }
        let mut left = pieces;
        let Some(remote) = self.remote.as_deref_mut() else {
            if self.flush_control(packets) {
                self.rendezvous_tx.flush(packets, owner, &mut self.rx_credit, self.limits.reserve, &mut left);
            }
            return self.is_due();
        };
        // Pieces of messages and of puts and gets go first in turn, so that neither starves.
        let (turn, reserve) = (remote.turn(), self.limits.reserve);
        if self.flush_control(packets)
            && let Some(remote) = self.remote.as_deref_mut()
            && remote.flush(packets, owner)
        {
            if turn {
                remote.flush_bytes(packets, owner, reserve, &mut left);
            }
            self.rendezvous_tx.flush(packets, owner, &mut self.rx_credit, reserve, &mut left);
            if !turn {
                remote.flush_bytes(packets, owner, reserve, &mut left);
            }
        }
        self.is_due()
    }

    /// Whether [`Link::flush`] has something to send.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        !self.hello_sent
            || self.rx_credit.is_due()
            || self.rendezvous_rx.is_due()
            || self.channels.is_due()
            || self.rendezvous_tx.is_due()
            || self.tx_credit.request_due().is_some()
            || self.remote.as_ref().is_some_and(|remote| remote.is_due())
    }

    fn flush_control<P: Packets>(&mut self, packets: &mut P) -> bool {
        if !self.hello_sent {
            if !packets.put(Kind::Hello as u8, &[&self.hello().write()]) {
                return false;
            }
            self.hello_sent = true;
            self.rx_credit.announce_window();
        }
        let mut bare =
            |kind: Kind, to, grant| packets.put(kind as u8, &[&Head { to: SlabId(to), own: 0, grant }.write()]);
        if let Some(units) = self.tx_credit.request_due() {
            if !bare(Kind::Ask, units, 0) {
                return false;
            }
            self.tx_credit.requested();
        }
        while self.rx_credit.is_due() {
            let grant = self.rx_credit.next_grant();
            if !bare(Kind::Grant, 0, grant) {
                return false;
            }
            self.rx_credit.mark_sent(grant);
        }
        self.rendezvous_rx.flush(packets, &mut self.rx_credit) && self.channels.flush(packets)
    }
}
