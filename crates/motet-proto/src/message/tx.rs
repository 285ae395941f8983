//! Sending: which way a message goes, and what a link has to say when there is room.
//!
//! What it is: [`Link::send`] puts the first packet of a message, or refuses, at once: nothing is queued before it, so the
//! order of messages on a channel is the order of successful sends (invariant M1). [`Link::flush`] puts what is owed beyond
//! that: credit, ends, answers, and last of all pieces of long messages, puts and gets, one of each in turn, which leave room
//! for others (invariant M9).
//!
//! What it is not: it keeps no payload. The owner does, and shows it piece by piece ([`Callbacks::body`]).

use super::credit;
use super::link::Link;
use super::packet::{self, Head, Kind, LongHeader, RemoteAddress};
use super::rendezvous::sender::RendezvousSend;
use super::slab::SlabId;
use super::{Callbacks, ChannelId, Packets, Rejected, header_stack};

/// Parts of a packet that need no memory to be put together.
const PARTS: usize = 16;

/// How a message may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Eager if it is short and there is credit, else announced.
    Automatic,
    /// Eager in one packet or not at all: the body is free when [`Link::send`] returns.
    Inject,
    /// Announced: it completes when a receive has got it (MPI's synchronous mode).
    Synchronous,
}

/// A message to send.
#[derive(Debug, Clone, Copy)]
pub struct Send<'a> {
    /// On which channel.
    pub channel: ChannelId,
    /// For the matching.
    pub tag: u64,
    /// Headers, at most [`header_stack::MAX_HEADERS_BYTES`] bytes: a [`header_stack::Stack`]'s.
    pub headers: &'a [u8],
    /// The body, gathered.
    pub body: &'a [&'a [u8]],
    /// How it may go.
    pub mode: Mode,
    /// The owner's name for it, if it does not complete at once.
    pub operation: u64,
    /// Where the peer can copy the body from: has_address if it is announced. `RemoteAddress::default()`: nowhere.
    pub place: RemoteAddress,
}

/// What has become of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way and the body is free: no completion follows.
    Complete,
    /// The body must stay until the operation completes.
    Pending(SlabId),
}

impl Link {
    /// Sends a message, or refuses and does nothing.
    #[inline]
    pub fn send<P: Packets>(&mut self, packets: &mut P, send: &Send<'_>) -> Result<Sent, Rejected> {
        self.up()?;
        let to = self.channels.sending(send.channel)?;
        let length: u64 = send.body.iter().map(|part| part.len() as u64).sum();
        if send.headers.len() > header_stack::MAX_HEADERS_BYTES {
            return Err(Rejected::TooLong);
        }
        let bytes = send.headers.len() as u64 + length;
        let whole = bytes <= (packets.largest() - packet::MESSAGE) as u64;
        if whole && length <= self.limits.eager && send.mode != Mode::Synchronous {
            let units = credit::cost(bytes).ok_or(Rejected::TooLong)?;
            if self.tx_credit.covers(units) {
                let grant = self.rx_credit.next();
                let head = Head { to, own: send.headers.len() as u16, grant }.write_word(send.tag);
                if !put(packets, Kind::Message, &head, send.headers, send.body) {
                    return Err(Rejected::WouldBlock);
                }
                self.tx_credit.spend(units);
                self.rx_credit.mark_sent(grant);
                return Ok(Sent::Complete);
            }
            self.tx_credit.lack(units);
        }
        if send.mode == Mode::Inject {
            return Err(if whole && length <= self.limits.eager { Rejected::WouldBlock } else { Rejected::TooLong });
        }
        self.send_long(packets, send, to, length)
    }

    /// Sends a message of one packet: [`Link::send`] with [`Mode::Inject`], shorter. The first `headers` bytes of `all` are its headers, at
    /// most [`header_stack::MAX_HEADERS_BYTES`].
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
        if all.len() > packets.largest() - packet::MESSAGE || body > self.limits.eager {
            return Err(Rejected::TooLong);
        }
        let units = credit::cost_of_short(all.len());
        if !self.tx_credit.covers(units) {
            self.tx_credit.lack(units);
            return Err(Rejected::WouldBlock);
        }
        let grant = self.rx_credit.next();
        if !packets.put_words(Kind::Message as u8, Head { to, own: headers, grant }.words(tag), all) {
            return Err(Rejected::WouldBlock);
        }
        self.tx_credit.spend(units);
        self.rx_credit.mark_sent(grant);
        Ok(())
    }

    /// Whether a short message with a body of so many bytes would be announced for lack of credit.
    pub fn lacks_credit(&self, length: u64) -> bool {
        let units = credit::cost_of_long(header_stack::MAX_HEADERS_BYTES as u16, length);
        length <= self.limits.eager && units.is_some_and(|units| !self.tx_credit.covers(units))
    }

    /// One that does not go in a packet, or for which there is no credit.
    #[cold]
    fn send_long<P: Packets>(
        &mut self,
        packets: &mut P,
        send: &Send<'_>,
        to: SlabId,
        length: u64,
    ) -> Result<Sent, Rejected> {
        let own = send.headers.len() as u16;
        let first = (packets.largest() - packet::FIRST - send.headers.len()) as u64;
        // A medium with a way of its own for pieces takes all of the body there.
        let apart = packets.has_piece_path();
        let mut cost = None;
        if length > first && length <= self.limits.eager && send.mode == Mode::Automatic {
            let units = credit::cost_of_long(own, length).ok_or(Rejected::TooLong)?;
            if self.tx_credit.covers(units) {
                cost = Some(units);
            } else {
                self.tx_credit.lack(units);
            }
        }
        let Some(units) = cost else {
            return self.put_rts(packets, to, send, length).map(Sent::Pending);
        };
        let sent = if apart { 0 } else { first };
        let transfer =
            RendezvousSend { sent, until: length, eager: true, ..RendezvousSend::rendezvous(send.operation, length) };
        let number = self.rendezvous_tx.add(transfer).ok_or(Rejected::WouldBlock)?;
        let (grant, long) = (self.rx_credit.next(), LongHeader { tag: send.tag, length, number });
        let head = long.write(Head { to, own, grant });
        if !put_front(packets, Kind::First, &head, send.headers, send.body, sent as usize) {
            self.rendezvous_tx.pool.remove(number.index());
            return Err(Rejected::WouldBlock);
        }
        self.rx_credit.mark_sent(grant);
        self.tx_credit.spend(units);
        self.rendezvous_tx.schedule(number.index());
        Ok(Sent::Pending(number))
    }

    /// Announces a message of so many bytes that lies at `send.place`; `send.body` and `send.mode` are not looked at.
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
        let (grant, long) = (self.rx_credit.next(), LongHeader { tag: send.tag, length, number });
        let head = long.write_at(Head { to, own: send.headers.len() as u16, grant }, send.place);
        if !put(packets, Kind::Rts, &head, send.headers, &[]) {
            self.rendezvous_tx.pool.remove(number.index());
            return Err(Rejected::WouldBlock);
        }
        self.rx_credit.mark_sent(grant);
        Ok(number)
    }

    /// Would like an announced message back: it completes as cancelled, or as it would have. False when it is too late
    /// already, or the message is eager.
    pub fn cancel(&mut self, send: SlabId) -> bool {
        self.rendezvous_tx.cancel(send)
    }

    /// Puts what is owed to the peer; of pieces of long messages, at most `pieces`. True when something is left.
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
        // Those whose turn it was not get what is left, so that neither stops the other.
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

    /// Whether [`Link::flush`] has something to put.
    #[inline(always)]
    pub fn is_due(&self) -> bool {
        !self.hello_sent
            || self.rx_credit.is_due()
            || self.rendezvous_rx.is_due()
            || self.channels.is_due()
            || self.rendezvous_tx.is_due()
            || self.tx_credit.to_ask().is_some()
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
        if let Some(units) = self.tx_credit.to_ask() {
            if !bare(Kind::Ask, units, 0) {
                return false;
            }
            self.tx_credit.asked();
        }
        while self.rx_credit.is_due() {
            let grant = self.rx_credit.next();
            if !bare(Kind::Grant, 0, grant) {
                return false;
            }
            self.rx_credit.mark_sent(grant);
        }
        self.rendezvous_rx.flush(packets, &mut self.rx_credit) && self.channels.flush(packets)
    }
}

/// Puts a packet of a head, headers and a gathered body.
#[inline(always)]
pub(super) fn put<P: Packets + ?Sized>(
    packets: &mut P,
    kind: Kind,
    head: &[u8],
    headers: &[u8],
    body: &[&[u8]],
) -> bool {
    let mut parts: [&[u8]; PARTS] = [&[]; PARTS];
    let Some(rest) = parts.get_mut(2..2 + body.len()) else { return put_many(packets, kind, head, headers, body) };
    rest.copy_from_slice(body);
    (parts[0], parts[1]) = (head, headers);
    packets.put(kind as u8, &parts[..2 + body.len()])
}

/// The same with more parts than usual.
#[cold]
fn put_many<P: Packets + ?Sized>(packets: &mut P, kind: Kind, head: &[u8], headers: &[u8], body: &[&[u8]]) -> bool {
    let parts: Vec<&[u8]> = [head, headers].into_iter().chain(body.iter().copied()).collect();
    packets.put(kind as u8, &parts)
}

/// The same with the first `length` bytes of the body.
fn put_front<P: Packets>(
    packets: &mut P,
    kind: Kind,
    head: &[u8],
    headers: &[u8],
    body: &[&[u8]],
    mut length: usize,
) -> bool {
    let mut parts = vec![head, headers];
    for part in body {
        let fits = part.len().min(length);
        parts.push(&part[..fits]);
        length -= fits;
    }
    packets.put(kind as u8, &parts)
}
