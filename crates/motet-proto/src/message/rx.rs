//! Arrival: what a packet does to the link that gets it.
//!
//! Each packet is read, checked against the state, and answered by a change of state alone: what the peer must hear goes with
//! the next [`Link::flush`], so that nothing here needs room on the way back (invariant M2).

use super::channels::{OVER_RECEIVING, OVER_SENDING};
use super::link::{Phase, end, land};
use super::matching::Scope;
use super::packet::{self, Head, Hello, Kind, Long, Place};
use super::rendezvous::Payload;
use super::rendezvous::receiver::{CANCELLED, DISCARDED, TAKEN};
use super::slab::{MOST, Number};
use super::{
    Arrival, Broken, ChannelId, Envelope, Event, Held, Link, Outcome, Owner, Reception, ShareRequest, Status, credit,
    header_stack,
};
use motet_wire::message::fifo::payload_ring::Run;

impl Link {
    /// A packet has come. An error breaks the link: everything on it has completed then.
    #[inline]
    pub fn arrived<O: Owner>(&mut self, owner: &mut O, kind: u8, packet: &[u8], now: u64) -> Result<(), Broken> {
        if let Phase::Down(broken) = self.phase {
            return Err(broken);
        }
        self.heard = now;
        let result = self.read(owner, kind, packet);
        if let Err(broken) = result {
            self.reset(owner, broken);
        }
        result
    }

    /// Whether a packet that lies in a ring but for its first bytes can be read from there ([`Link::arrived_with`]).
    #[inline]
    pub fn reads_from_ring(&self, kind: u8, front: &[u8]) -> bool {
        let matched = |number| {
            let channel = self.channels.receiving(number).ok();
            channel.is_some_and(|channel| matches!(channel.reception, Reception::Matched(_)))
        };
        let message = || Head::read(front).is_ok_and(|(head, _)| matched(head.to));
        self.met && (kind == Kind::Piece as u8 || kind == Kind::Message as u8 && message())
    }

    /// The same of a piece, or of a message that is matched, which lies in a ring but for its first [`packet::MESSAGE`] bytes.
    pub fn arrived_with<O: Owner>(
        &mut self,
        owner: &mut O,
        kind: u8,
        front: &[u8],
        run: Run,
        now: u64,
    ) -> Result<(), Broken> {
        if let Phase::Down(broken) = self.phase {
            return Err(broken);
        }
        self.heard = now;
        let result = self.read_in_ring(owner, kind, front, run);
        if let Err(broken) = result {
            self.reset(owner, broken);
        }
        result
    }

    fn read_in_ring<O: Owner>(&mut self, owner: &mut O, kind: u8, front: &[u8], run: Run) -> Result<(), Broken> {
        let (head, rest) = Head::read(front)?;
        let (word, rest) = packet::word(rest)?;
        packet::end(rest)?;
        if head.grant != 0 && self.allowance.granted(u32::from(head.grant))? {
            owner.unblocked();
        }
        if kind == Kind::Piece as u8 {
            return self.inbounds.piece(owner, head.to, word, Payload::Run(run));
        }
        let mut headers = [0; header_stack::MOST];
        let headers = &mut headers[..packet::length_of_headers(head.own, run.len())?];
        run.read(headers);
        self.message(owner, head, word, headers, Payload::Run(run))
    }

    #[inline(always)]
    fn read<O: Owner>(&mut self, owner: &mut O, kind: u8, bytes: &[u8]) -> Result<(), Broken> {
        let kind = Kind::read(kind)?;
        let (head, rest) = Head::read(bytes)?;
        if !self.met {
            return self.hello_came(kind, head, rest);
        }
        if head.grant != 0 && self.allowance.granted(u32::from(head.grant))? {
            owner.unblocked();
        }
        match kind {
            Kind::Message => {
                let (tag, rest) = packet::word(rest)?;
                let (headers, _) = packet::headers(rest, head.own)?;
                self.message(owner, head, tag, headers, Payload::Here(rest))
            }
            Kind::Piece => {
                let (at, bytes) = packet::word(rest)?;
                self.inbounds.piece(owner, head.to, at, Payload::Here(bytes))
            }
            Kind::First | Kind::Announce => self.long(owner, kind, head, rest),
            Kind::Put
            | Kind::Get
            | Kind::Atomic
            | Kind::Took
            | Kind::Result
            | Kind::PutLong
            | Kind::GetLong
            | Kind::Go
            | Kind::Bytes
            | Kind::There
            | Kind::Got
            | Kind::Over
            | Kind::Revoke
            | Kind::Revoked => self.remote_came(owner, kind, head, rest),
            _ => self.control(owner, kind, head, rest),
        }
    }

    /// A whole message: `all` is its headers and its body.
    #[inline(always)]
    fn message<O: Owner>(
        &mut self,
        owner: &mut O,
        head: Head,
        tag: u64,
        headers: &[u8],
        all: Payload<'_>,
    ) -> Result<(), Broken> {
        let length = (all.len() - headers.len()) as u64;
        let units = credit::cost(all.len() as u64).ok_or(Broken("a message longer than any window"))?;
        let channel = self.channels.receiving(head.to)?;
        let (released, reception) = (channel.is_released(), channel.reception);
        self.grants.spend(units)?;
        let (source, channel) = (self.source, ChannelId(head.to));
        let envelope = Envelope { source, channel, tag, length, headers };
        match (reception, all) {
            _ if released => {}
            (Reception::Handler, Payload::Here(all)) => {
                owner.deliver(&envelope, Arrival::Whole(&all[headers.len()..]));
            }
            (Reception::Handler, Payload::Run(_)) => return Err(Broken("a message for a handler in a ring")),
            (Reception::Matched(scope), all) => match owner.matching().arrive(scope, tag) {
                Some(receive) => {
                    let operation = owner.begun(receive);
                    land(owner, operation, receive.capacity, &envelope, all.behind(headers.len()));
                }
                None => {
                    let (headers, bytes) = (head.own, all.to_box());
                    let held = Held { source, channel, headers, tag, length, units, long: None, bytes };
                    self.keep(owner, scope, held)?;
                    owner.event(channel, Event::Queued);
                    return Ok(()); // its units are in use until it is taken
                }
            },
        }
        self.grants.free(units);
        Ok(())
    }

    /// Keeps a whole message that no receive waits for.
    pub(super) fn keep<O: Owner>(&mut self, owner: &mut O, scope: Scope, held: Held) -> Result<(), Broken> {
        owner.matching().keep(scope, held).map(drop).map_err(|held| {
            self.discard(held);
            Broken("more messages than the table can keep")
        })
    }

    /// A long message begins.
    fn long<O: Owner>(&mut self, owner: &mut O, kind: Kind, head: Head, rest: &[u8]) -> Result<(), Broken> {
        let (long, rest) = Long::read(rest)?;
        let &Long { tag, length, number } = &long;
        let (place, rest) = match kind {
            Kind::Announce => Place::read(rest).map(|(place, rest)| (Some(place), rest))?,
            _ => (None, rest),
        };
        let (headers, body) = packet::headers(rest, head.own)?;
        let channel = self.channels.receiving(head.to)?;
        let (released, reception) = (channel.is_released(), channel.reception);
        let record = match place {
            Some(place) => {
                packet::end(body)?;
                self.inbounds.begin(&long, Err(place))?
            }
            None => {
                let units = credit::cost_of_long(head.own, length);
                let units = units.ok_or(Broken("a message longer than any window"))?;
                if body.len() as u64 >= length {
                    return Err(Broken("a long message that is none"));
                }
                self.grants.spend(units)?;
                self.inbounds.begin(&long, Ok(units))?
            }
        };
        let (source, channel) = (self.source, ChannelId(head.to));
        let envelope = Envelope { source, channel, tag, length, headers };
        let held = || {
            let (headers, bytes) = (head.own, headers.into());
            Held { source, channel, headers, tag, length, units: 0, long: Some(record), bytes }
        };
        match reception {
            _ if released => self.inbounds.discard(&mut self.grants, record),
            Reception::Handler => owner.deliver(&envelope, Arrival::Long(held())),
            Reception::Matched(scope) => match owner.matching().arrive(scope, tag) {
                Some(receive) => {
                    let (operation, capacity) = (owner.begun(receive), receive.capacity);
                    owner.matched(operation, &envelope);
                    let _there = self.inbounds.take(owner, &mut self.grants, record, operation, capacity);
                }
                None => match owner.matching().keep(scope, held()) {
                    Ok(kept) => {
                        self.inbounds.keep(record, kept);
                        owner.event(channel, Event::Queued);
                    }
                    Err(held) => {
                        self.discard(held);
                        return Err(Broken("more messages than the table can keep"));
                    }
                },
            },
        }
        if body.is_empty() { Ok(()) } else { self.inbounds.piece(owner, number, 0, Payload::Here(body)) }
    }

    /// Everything that is no payload.
    #[cold]
    fn control<O: Owner>(&mut self, owner: &mut O, kind: Kind, head: Head, rest: &[u8]) -> Result<(), Broken> {
        if kind == Kind::Share {
            let shared = packet::Shared::read(rest)?;
            let operation = self.outbounds.share(head.to, &shared)?;
            owner.share(ShareRequest { operation, shared });
            return Ok(());
        }
        let (word, rest) = match kind {
            Kind::Pull | Kind::Open | Kind::Accept => packet::word(rest)?,
            _ => (0, rest),
        };
        packet::end(rest)?;
        match kind {
            Kind::Pull => self.outbounds.pulled(head.to, word, packet::Route::read(head.own)?),
            Kind::Done => {
                let status = match head.own {
                    TAKEN => Status::Done,
                    DISCARDED => Status::Closed,
                    CANCELLED => Status::Cancelled,
                    _ => return Err(Broken("an end of no known kind")),
                };
                let (operation, length) = self.outbounds.done(head.to, status)?;
                owner.completed(operation, Outcome { status, length });
                owner.unblocked();
                Ok(())
            }
            Kind::Cancel => self.inbounds.cancel(owner.matching(), head.to),
            Kind::Ask => {
                self.grants.ask(head.to.0);
                Ok(())
            }
            Kind::Grant => Ok(()),
            Kind::Open => {
                let channel = self.channels.opened(head.to, word)?;
                owner.event(channel, Event::Offered(word));
                Ok(())
            }
            Kind::Accept => {
                let peer = u32::try_from(word).map_err(|_| Broken("a number too large"))?;
                let channel = self.channels.answered(head.to, Some(Number(peer)))?;
                if self.channels.known(channel).is_some_and(|known| !known.is_released()) {
                    owner.event(channel, Event::Opened);
                }
                Ok(())
            }
            Kind::Refuse => {
                let channel = self.channels.answered(head.to, None)?;
                // One that was released meanwhile is gone now, without a word.
                let Some(known) = self.channels.known(channel) else { return Ok(()) };
                if let Reception::Matched(scope) = known.reception {
                    end(owner, scope, Status::Closed);
                }
                owner.event(channel, Event::Refused);
                Ok(())
            }
            Kind::Close => self.channel_over(owner, head),
            _ => Err(Broken("a greeting in the middle")),
        }
    }

    fn channel_over<O: Owner>(&mut self, owner: &mut O, head: Head) -> Result<(), Broken> {
        let channel = ChannelId(head.to);
        let over = self.channels.closed(head.to, head.own)?;
        let Some(known) = self.channels.known(channel) else { return Ok(()) };
        let (reception, released) = (known.reception, known.is_released());
        if released {
            return Ok(());
        }
        if over & OVER_SENDING != 0 {
            if let Reception::Matched(scope) = reception {
                end(owner, scope, Status::Closed);
            }
            owner.event(channel, Event::EndOfMessages);
        }
        if over & OVER_RECEIVING != 0 {
            owner.event(channel, Event::NotReceived);
        }
        Ok(())
    }

    #[cold]
    fn hello_came(&mut self, kind: Kind, head: Head, rest: &[u8]) -> Result<(), Broken> {
        if kind != Kind::Hello {
            return Err(Broken("a packet before the greeting"));
        }
        let Hello { window, longs, channels, requests } = Hello::read(head, rest)?;
        if window > credit::LARGEST || longs.max(channels).max(requests) > MOST {
            return Err(Broken("limits beyond the protocol's"));
        }
        self.allowance.open(window);
        self.outbounds.allow(longs);
        self.channels.allow(channels);
        self.requests = requests;
        self.met = true;
        Ok(())
    }
}
