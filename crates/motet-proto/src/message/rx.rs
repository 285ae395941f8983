//! Arrival: how a packet changes the state of the link that receives it.
//!
//! Each packet is decoded, checked against the state, and changes the state. What is to be sent in answer waits for the next
//! [`Link::flush`], so that arrival never needs room in the other direction (invariant M2).

use super::channels::{CLOSE_RECEIVE, CLOSE_SEND};
use super::link::{LinkPhase, end, land};
use super::matching::Scope;
use super::packet::{self, Head, Hello, Kind, LongHeader, RemoteAddress};
use super::rendezvous::Payload;
use super::rendezvous::receiver::{FIN_CANCELLED, FIN_DISCARDED, FIN_RECEIVED};
use super::slab::{MAX_RECORDS, SlabId};
use super::{
    Arrival, AssistRequest, Callbacks, ChannelId, Envelope, Event, Link, Outcome, ProtocolViolation, Reception, Status,
    UnexpectedMessage, credit, header_stack,
};
use motet_wire::message::fifo::payload_ring::RingSpan;

impl Link {
    /// Handles a packet. An error breaks the link: everything on it has completed then.
    #[inline]
    pub fn arrived<O: Callbacks>(
        &mut self,
        owner: &mut O,
        kind: u8,
        packet: &[u8],
        now: u64,
    ) -> Result<(), ProtocolViolation> {
        if let LinkPhase::Down(broken) = self.phase {
            return Err(broken);
        }
        self.last_packet_at = now;
        let result = self.read(owner, kind, packet);
        if let Err(broken) = result {
            self.reset(owner, broken);
        }
        result
    }

    /// Whether a packet whose payload is in a ring, except for its first bytes, can be read from there ([`Link::arrived_in_ring`]).
    #[inline]
    pub fn reads_from_ring(&self, kind: u8, front: &[u8]) -> bool {
        let matched = |number| {
            let channel = self.channels.receiving(number).ok();
            channel.is_some_and(|channel| matches!(channel.reception, Reception::Matched(_)))
        };
        let message = || Head::read(front).is_ok_and(|(head, _)| matched(head.to));
        self.hello_received && (kind == Kind::Piece as u8 || kind == Kind::Message as u8 && message())
    }

    /// Handles a piece, or a message on a matched channel, whose bytes behind [`packet::MESSAGE_HEAD_BYTES`] are in a ring.
    /// An error breaks the link.
    pub fn arrived_in_ring<O: Callbacks>(
        &mut self,
        owner: &mut O,
        kind: u8,
        front: &[u8],
        run: RingSpan,
        now: u64,
    ) -> Result<(), ProtocolViolation> {
        if let LinkPhase::Down(broken) = self.phase {
            return Err(broken);
        }
        self.last_packet_at = now;
        let result = self.read_in_ring(owner, kind, front, run);
        if let Err(broken) = result {
            self.reset(owner, broken);
        }
        result
    }

    fn read_in_ring<O: Callbacks>(
        &mut self,
        owner: &mut O,
        kind: u8,
        front: &[u8],
        run: RingSpan,
    ) -> Result<(), ProtocolViolation> {
        let (head, rest) = Head::read(front)?;
        let (word, rest) = packet::read_word(rest)?;
        packet::expect_end(rest)?;
        if head.grant != 0 && self.tx_credit.granted(u32::from(head.grant))? {
            owner.unblocked();
        }
        if kind == Kind::Piece as u8 {
            return self.rendezvous_rx.piece(owner, head.to, word, Payload::InRing(run));
        }
        let mut headers = [0; header_stack::MAX_HEADERS_BYTES];
        let headers = &mut headers[..packet::headers_length(head.own, run.len())?];
        run.read(headers);
        self.message(owner, head, word, headers, Payload::InRing(run))
    }

    #[inline(always)]
    fn read<O: Callbacks>(&mut self, owner: &mut O, kind: u8, bytes: &[u8]) -> Result<(), ProtocolViolation> {
        let kind = Kind::read(kind)?;
        let (head, rest) = Head::read(bytes)?;
        if !self.hello_received {
            return self.on_hello(kind, head, rest);
        }
        if head.grant != 0 && self.tx_credit.granted(u32::from(head.grant))? {
            owner.unblocked();
        }
        match kind {
            Kind::Message => {
                let (tag, rest) = packet::read_word(rest)?;
                let (headers, _) = packet::read_headers(rest, head.own)?;
                self.message(owner, head, tag, headers, Payload::InPacket(rest))
            }
            Kind::Piece => {
                let (at, bytes) = packet::read_word(rest)?;
                self.rendezvous_rx.piece(owner, head.to, at, Payload::InPacket(bytes))
            }
            Kind::First | Kind::Rts => self.long(owner, kind, head, rest),
            Kind::Put
            | Kind::Get
            | Kind::Atomic
            | Kind::Ack
            | Kind::FetchReply
            | Kind::PutLong
            | Kind::GetLong
            | Kind::PutCts
            | Kind::Bytes
            | Kind::GetAddr
            | Kind::GetFin
            | Kind::PutFin
            | Kind::Revoke
            | Kind::Revoked => self.on_rma_packet(owner, kind, head, rest),
            _ => self.control(owner, kind, head, rest),
        }
    }

    /// MESSAGE: `all` is the headers and the body.
    #[inline(always)]
    fn message<O: Callbacks>(
        &mut self,
        owner: &mut O,
        head: Head,
        tag: u64,
        headers: &[u8],
        all: Payload<'_>,
    ) -> Result<(), ProtocolViolation> {
        let length = (all.len() - headers.len()) as u64;
        let units = credit::cost(all.len() as u64).ok_or(ProtocolViolation("message longer than any credit window"))?;
        let channel = self.channels.receiving(head.to)?;
        let (released, reception) = (channel.is_released(), channel.reception);
        self.rx_credit.spend(units)?;
        let (source, channel) = (self.source, ChannelId(head.to));
        let envelope = Envelope { source, channel, tag, length, headers };
        match (reception, all) {
            _ if released => {}
            (Reception::Handler, Payload::InPacket(all)) => {
                owner.deliver(&envelope, Arrival::Whole(&all[headers.len()..]));
            }
            (Reception::Handler, Payload::InRing(_)) => {
                return Err(ProtocolViolation("message for a handler in a payload ring"));
            }
            (Reception::Matched(scope), all) => match owner.matching().arrive(scope, tag) {
                Some(receive) => {
                    let operation = owner.start_receive(receive);
                    land(owner, operation, receive.capacity, &envelope, all.behind(headers.len()));
                }
                None => {
                    let (headers, bytes) = (head.own, all.to_box());
                    let message = UnexpectedMessage { source, channel, headers, tag, length, units, long: None, bytes };
                    self.add_unexpected(owner, scope, message)?;
                    owner.event(channel, Event::Queued);
                    return Ok(()); // its units are in use until it is received
                }
            },
        }
        self.rx_credit.free(units);
        Ok(())
    }

    /// Keeps a whole message as unexpected.
    pub(super) fn add_unexpected<O: Callbacks>(
        &mut self,
        owner: &mut O,
        scope: Scope,
        message: UnexpectedMessage,
    ) -> Result<(), ProtocolViolation> {
        owner.matching().add_unexpected(scope, message).map(drop).map_err(|message| {
            self.discard(message);
            ProtocolViolation("more unexpected messages than the table has records")
        })
    }

    /// FIRST or RTS.
    fn long<O: Callbacks>(
        &mut self,
        owner: &mut O,
        kind: Kind,
        head: Head,
        rest: &[u8],
    ) -> Result<(), ProtocolViolation> {
        let (long, rest) = LongHeader::read(rest)?;
        let &LongHeader { tag, length, number } = &long;
        let (place, rest) = match kind {
            Kind::Rts => RemoteAddress::read(rest).map(|(place, rest)| (Some(place), rest))?,
            _ => (None, rest),
        };
        let (headers, body) = packet::read_headers(rest, head.own)?;
        let channel = self.channels.receiving(head.to)?;
        let (released, reception) = (channel.is_released(), channel.reception);
        let record = match place {
            Some(place) => {
                packet::expect_end(body)?;
                self.rendezvous_rx.begin(&long, Err(place))?
            }
            None => {
                let units = credit::cost_of_long(head.own, length);
                let units = units.ok_or(ProtocolViolation("message longer than any credit window"))?;
                if body.len() as u64 >= length {
                    return Err(ProtocolViolation("FIRST that contains the whole body"));
                }
                self.rx_credit.spend(units)?;
                self.rendezvous_rx.begin(&long, Ok(units))?
            }
        };
        let (source, channel) = (self.source, ChannelId(head.to));
        let envelope = Envelope { source, channel, tag, length, headers };
        let message = || {
            let (headers, bytes) = (head.own, headers.into());
            UnexpectedMessage { source, channel, headers, tag, length, units: 0, long: Some(record), bytes }
        };
        match reception {
            _ if released => self.rendezvous_rx.discard(&mut self.rx_credit, record),
            Reception::Handler => owner.deliver(&envelope, Arrival::Long(message())),
            Reception::Matched(scope) => match owner.matching().arrive_long(scope, tag) {
                Some(receive) => {
                    let (operation, capacity) = (owner.start_receive(receive), receive.capacity);
                    owner.matched(operation, &envelope);
                    let _there = self.rendezvous_rx.take(owner, &mut self.rx_credit, record, operation, capacity);
                }
                None => match owner.matching().add_unexpected(scope, message()) {
                    Ok(kept) => {
                        self.rendezvous_rx.set_unexpected(record, kept);
                        owner.event(channel, Event::Queued);
                    }
                    Err(message) => {
                        self.discard(message);
                        return Err(ProtocolViolation("more unexpected messages than the table has records"));
                    }
                },
            },
        }
        if body.is_empty() { Ok(()) } else { self.rendezvous_rx.piece(owner, number, 0, Payload::InPacket(body)) }
    }

    /// Packets without payload.
    #[cold]
    fn control<O: Callbacks>(
        &mut self,
        owner: &mut O,
        kind: Kind,
        head: Head,
        rest: &[u8],
    ) -> Result<(), ProtocolViolation> {
        if kind == Kind::CopyAssist {
            let shared = packet::CopyAssist::read(rest)?;
            let operation = self.rendezvous_tx.on_copy_assist(head.to, &shared)?;
            owner.assist_copy(AssistRequest { operation, shared });
            return Ok(());
        }
        let (word, rest) = match kind {
            Kind::Cts | Kind::Open | Kind::Accept => packet::read_word(rest)?,
            _ => (0, rest),
        };
        packet::expect_end(rest)?;
        match kind {
            Kind::Cts => self.rendezvous_tx.on_cts(head.to, word, packet::Route::read(head.own)?),
            Kind::Fin => {
                let status = match head.own {
                    FIN_RECEIVED => Status::Done,
                    FIN_DISCARDED => Status::Closed,
                    FIN_CANCELLED => Status::Cancelled,
                    _ => return Err(ProtocolViolation("FIN with an unknown status")),
                };
                let (operation, length) = self.rendezvous_tx.on_fin(head.to, status)?;
                owner.completed(operation, Outcome { status, length });
                owner.unblocked();
                Ok(())
            }
            Kind::Cancel => self.rendezvous_rx.cancel(owner.matching(), head.to),
            Kind::Ask => {
                self.rx_credit.ask(head.to.0);
                Ok(())
            }
            Kind::Grant => Ok(()),
            Kind::Open => {
                let channel = self.channels.on_open(head.to, word)?;
                owner.event(channel, Event::Offered(word));
                Ok(())
            }
            Kind::Accept => {
                let peer = u32::try_from(word)
                    .map_err(|_| ProtocolViolation("ACCEPT with a channel number beyond 32 bits"))?;
                let channel = self.channels.on_answer(head.to, Some(SlabId(peer)))?;
                if self.channels.known(channel).is_some_and(|known| !known.is_released()) {
                    owner.event(channel, Event::Opened);
                }
                Ok(())
            }
            Kind::Refuse => {
                let channel = self.channels.on_answer(head.to, None)?;
                // A channel that was released in the meantime is gone, without an event.
                let Some(known) = self.channels.known(channel) else { return Ok(()) };
                if let Reception::Matched(scope) = known.reception {
                    end(owner, scope, Status::Closed);
                }
                owner.event(channel, Event::Refused);
                Ok(())
            }
            Kind::Close => self.on_channel_close(owner, head),
            _ => Err(ProtocolViolation("second HELLO on a link")),
        }
    }

    fn on_channel_close<O: Callbacks>(&mut self, owner: &mut O, head: Head) -> Result<(), ProtocolViolation> {
        let channel = ChannelId(head.to);
        let over = self.channels.on_close(head.to, head.own)?;
        let Some(known) = self.channels.known(channel) else { return Ok(()) };
        let (reception, released) = (known.reception, known.is_released());
        if released {
            return Ok(());
        }
        if over & CLOSE_SEND != 0 {
            if let Reception::Matched(scope) = reception {
                end(owner, scope, Status::Closed);
            }
            owner.event(channel, Event::EndOfMessages);
        }
        if over & CLOSE_RECEIVE != 0 {
            owner.event(channel, Event::NotReceived);
        }
        Ok(())
    }

    #[cold]
    fn on_hello(&mut self, kind: Kind, head: Head, rest: &[u8]) -> Result<(), ProtocolViolation> {
        if kind != Kind::Hello {
            return Err(ProtocolViolation("packet before HELLO"));
        }
        let Hello { window, max_rendezvous, channels, requests } = Hello::read(head, rest)?;
        if window > credit::MAX_WINDOW || max_rendezvous.max(channels).max(requests) > MAX_RECORDS {
            return Err(ProtocolViolation("HELLO with limits beyond the protocol"));
        }
        self.tx_credit.open(window);
        self.rendezvous_tx.allow(max_rendezvous);
        self.channels.allow(channels);
        self.requests = requests;
        self.hello_received = true;
        Ok(())
    }
}
