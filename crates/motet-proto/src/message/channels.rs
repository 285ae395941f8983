//! Channels: logical ways over one link, and how they begin and end.
//!
//! What it is: the records of a link's channels, by this side's numbers, and the packets that each still owes the peer. OPEN
//! names a service and the opener's number; ACCEPT answers with the acceptor's, and from then on packets carry the number
//! of whoever receives them. Each side says once that it will not send, and once that it will not receive ([`OVER_SENDING`],
//! [`OVER_RECEIVING`] of CLOSE); when both have said both, the number is free on both sides (invariant M5).
//!
//! What it is not: what arrives on a channel is no matter of this module.

use super::matching::Scope;
use super::packet::{Head, Kind};
use super::slab::{Fifo, Number, Pool};
use super::{Broken, ChannelId, Packets, Refusal};

/// Said in CLOSE: no message follows on this channel.
pub const OVER_SENDING: u16 = 1;
/// Said in CLOSE: whatever comes on this channel is discarded.
pub const OVER_RECEIVING: u16 = 2;
const BOTH: u16 = OVER_SENDING | OVER_RECEIVING;

/// How messages of a channel are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reception {
    /// Each is delivered as it comes.
    Handler,
    /// They are matched with posted receives in this scope, or wait there to be claimed: a queue is a scope without receives.
    Matched(Scope),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// OPEN is due or under way.
    Opening,
    /// The peer would like it; the owner has not decided.
    Offered,
    /// Both know each other's number.
    Open,
    /// It was refused, or the link is broken: nothing is owed to the peer any more.
    Void,
}

/// One channel.
#[derive(Debug)]
pub struct Channel {
    /// The peer's number.
    peer: Number,
    phase: Phase,
    /// How its messages are received.
    pub reception: Reception,
    service: u64,
    /// Counted against the limit that this side gave.
    by_peer: bool,
    /// ACCEPT is due.
    accept: bool,
    /// What this side has decided, has said, and has heard.
    over: u16,
    said: u16,
    heard: u16,
    queued: bool,
}

impl Channel {
    /// Whether the owner wants no more messages.
    pub fn is_released(&self) -> bool {
        self.over & OVER_RECEIVING != 0
    }

    /// Whether the peer has said that it will not send.
    pub fn is_ended(&self) -> bool {
        self.heard & OVER_SENDING != 0
    }
}

/// The channels of a link.
#[derive(Debug, Default)]
pub struct Channels {
    pool: Pool<Channel, 1>,
    /// Those that owe the peer a packet.
    due: Fifo,
    ours: u32,
    theirs: u32,
    /// Limits: the peer's for ours, ours for the peer's.
    ours_most: u32,
    theirs_most: u32,
}

impl Channels {
    /// None yet; the peer may open so many.
    pub fn new(theirs_most: u32) -> Self {
        Self { theirs_most, ..Self::default() }
    }

    /// The peer has said how many this side may open.
    pub fn allow(&mut self, most: u32) {
        self.ours_most = most;
    }

    /// Channels, and bytes held for them.
    pub fn size(&self) -> (u32, usize) {
        (self.pool.count(), self.pool.bytes())
    }

    /// Bytes of one channel.
    pub const RECORD: usize = Pool::<Channel, 1>::RECORD;

    // ---- this side --------------------------------------------------------------------------------------------------

    /// A new channel to a service of the peer.
    pub fn open(&mut self, service: u64, reception: Reception) -> Result<ChannelId, Refusal> {
        if self.ours >= self.ours_most {
            return Err(Refusal::WouldBlock);
        }
        let number = self.add(service, reception, false).ok_or(Refusal::WouldBlock)?;
        self.ours += 1;
        self.owe(number.index());
        Ok(ChannelId(number))
    }

    fn add(&mut self, service: u64, reception: Reception, by_peer: bool) -> Option<Number> {
        let phase = if by_peer { Phase::Offered } else { Phase::Opening };
        let (over, said, heard, peer) = (0, 0, 0, Number(0));
        let (accept, queued) = (false, false);
        self.pool.insert(Channel { peer, phase, reception, service, by_peer, accept, over, said, heard, queued })
    }

    /// Takes an offered channel.
    pub fn accept(&mut self, channel: ChannelId, reception: Reception) -> Result<(), Refusal> {
        let (index, channel) = self.get(channel)?;
        if channel.phase != Phase::Offered || channel.accept {
            return Err(Refusal::Closed);
        }
        channel.reception = reception;
        channel.accept = true;
        self.owe(index);
        Ok(())
    }

    /// To whom a message on this channel goes.
    #[inline(always)]
    pub fn sending(&self, channel: ChannelId) -> Result<Number, Refusal> {
        let channel = self.pool.known(channel.0).ok_or(Refusal::Closed)?;
        if channel.phase == Phase::Open && channel.over & OVER_SENDING == 0 && !channel.accept {
            return Ok(channel.peer);
        }
        let begins = channel.phase != Phase::Void && channel.over & OVER_SENDING == 0;
        Err(if begins { Refusal::WouldBlock } else { Refusal::Closed })
    }

    /// This side will not send, or not receive, any more. True when the latter is new.
    pub fn close(&mut self, channel: ChannelId, over: u16) -> Result<bool, Refusal> {
        let (index, channel) = self.get(channel)?;
        let released = !channel.over & over & OVER_RECEIVING != 0;
        channel.over |= over;
        self.owe(index);
        Ok(released)
    }

    fn get(&mut self, channel: ChannelId) -> Result<(u32, &mut Channel), Refusal> {
        let index = self.pool.find(channel.0).ok_or(Refusal::Closed)?;
        self.pool.get_mut(index).map(|channel| (index, channel)).ok_or(Refusal::Closed)
    }

    /// How a channel is received; `None` once it is gone.
    pub fn known(&self, channel: ChannelId) -> Option<&Channel> {
        self.pool.get(self.pool.find(channel.0)?)
    }

    // ---- the peer ---------------------------------------------------------------------------------------------------

    /// The channel for which a message has come.
    #[inline(always)]
    pub fn receiving(&self, number: Number) -> Result<&Channel, Broken> {
        let channel = self.pool.known(number);
        let channel = channel.filter(|channel| channel.phase == Phase::Open && !channel.is_ended());
        channel.ok_or(Broken("a message for no open channel"))
    }

    /// OPEN.
    pub fn opened(&mut self, peer: Number, service: u64) -> Result<ChannelId, Broken> {
        if self.theirs >= self.theirs_most {
            return Err(Broken("more channels than allowed"));
        }
        let number = self.add(service, Reception::Handler, true).ok_or(Broken("more channels than numbers"))?;
        self.theirs += 1;
        if let Some(channel) = self.pool.named(number) {
            channel.peer = peer;
        }
        Ok(ChannelId(number))
    }

    /// ACCEPT, or REFUSE without a number.
    pub fn answered(&mut self, number: Number, peer: Option<Number>) -> Result<ChannelId, Broken> {
        let channel = self.pool.named(number).filter(|channel| channel.phase == Phase::Opening && channel.said != 0);
        let channel = channel.ok_or(Broken("an answer to no offer"))?;
        channel.said = 0;
        match peer {
            Some(peer) => (channel.peer, channel.phase) = (peer, Phase::Open),
            None => (channel.phase, channel.heard) = (Phase::Void, BOTH),
        }
        self.owe(number.index());
        Ok(ChannelId(number))
    }

    /// CLOSE. Returns what is new.
    pub fn closed(&mut self, number: Number, over: u16) -> Result<u16, Broken> {
        let channel = self.pool.named(number).filter(|channel| channel.phase == Phase::Open);
        let channel = channel.ok_or(Broken("the end of no open channel"))?;
        if over == 0 || over & !BOTH != 0 || channel.heard & over != 0 {
            return Err(Broken("a channel's end said twice"));
        }
        channel.heard |= over;
        if over & OVER_RECEIVING != 0 {
            channel.over |= OVER_SENDING; // in vain from now on: answered, so that the number gets free
        }
        if channel.said == BOTH && channel.heard == BOTH {
            self.remove(number.index()); // at once: the peer has one less already, and may open another
        } else {
            self.owe(number.index());
        }
        Ok(over)
    }

    /// The link is broken. Returns all channels, which stay until they are released.
    pub fn void(&mut self) -> impl Iterator<Item = ChannelId> + use<> {
        let all: Vec<u32> = self.pool.indices().collect();
        self.due = Fifo::default();
        let mut left = Vec::with_capacity(all.len());
        for index in all {
            let number = self.pool.number(index);
            let Some(channel) = self.pool.get_mut(index) else { continue };
            channel.queued = false;
            // One that the owner has not accepted is nothing to it yet; one that it has released, nothing any more.
            if channel.phase == Phase::Offered && !channel.accept || channel.is_released() {
                self.pool.remove(index);
                continue;
            }
            (channel.phase, channel.heard, channel.accept) = (Phase::Void, BOTH, false);
            left.push(ChannelId(number));
        }
        (self.ours, self.theirs) = (0, 0);
        left.into_iter()
    }

    // ---- packets due ------------------------------------------------------------------------------------------------

    fn owe(&mut self, index: u32) {
        let Some(channel) = self.pool.get_mut(index) else { return };
        if channel.phase == Phase::Void {
            if channel.is_released() {
                self.remove(index);
            }
        } else if !channel.queued {
            channel.queued = true;
            self.pool.append(&mut self.due, 0, index);
        }
    }

    /// Puts what channels owe the peer; false when there is no room for more.
    pub fn flush<P: Packets>(&mut self, packets: &mut P) -> bool {
        while let Some(index) = self.due.first() {
            let number = self.pool.number(index);
            let Some(channel) = self.pool.get_mut(index) else { return true };
            while let Some((kind, head, word)) = channel.next(number) {
                let put = match word {
                    Some(word) => packets.put(kind as u8, &[&head.write_word(word)]),
                    None => packets.put(kind as u8, &[&head.write()]),
                };
                if !put {
                    return false;
                }
                channel.gone(kind, head.own);
            }
            channel.queued = false;
            let over =
                channel.phase == Phase::Void && channel.is_released() || channel.said == BOTH && channel.heard == BOTH;
            self.pool.unlink(&mut self.due, 0, index);
            if over {
                self.remove(index);
            }
        }
        true
    }

    fn remove(&mut self, index: u32) {
        let Some(channel) = self.pool.get_mut(index) else { return };
        if channel.queued {
            self.pool.unlink(&mut self.due, 0, index);
        }
        let Some(channel) = self.pool.remove(index) else { return };
        let count = if channel.by_peer { &mut self.theirs } else { &mut self.ours };
        *count = count.saturating_sub(1);
    }

    /// Whether something is owed.
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }
}

impl Channel {
    /// The next packet that it owes.
    fn next(&self, number: Number) -> Option<(Kind, Head, Option<u64>)> {
        let head = |own| Head { to: self.peer, own, grant: 0 };
        match self.phase {
            Phase::Opening if self.said == 0 => {
                Some((Kind::Open, Head { to: number, own: 0, grant: 0 }, Some(self.service)))
            }
            Phase::Offered if self.accept => Some((Kind::Accept, head(0), Some(u64::from(number.0)))),
            Phase::Offered if self.is_released() => Some((Kind::Refuse, head(0), None)),
            Phase::Open if self.over & !self.said != 0 => Some((Kind::Close, head(self.over & !self.said), None)),
            _ => None,
        }
    }

    /// It is on its way.
    fn gone(&mut self, kind: Kind, own: u16) {
        match kind {
            Kind::Open => self.said = BOTH,
            Kind::Accept => (self.phase, self.accept) = (Phase::Open, false),
            Kind::Refuse => self.phase = Phase::Void,
            _ => self.said |= own,
        }
    }
}
