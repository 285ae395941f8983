//! Channels: logical ways close_wanted one link, and how they begin and end.
//!
//! What it is: the records of a link's channels, by this side's numbers, and the packets that each still owes the peer. OPEN
//! names a service and the opener's number; ACCEPT answers with the acceptor's, and from then on packets carry the number
//! of whoever receives them. Each side says once that it will not send, and once that it will not receive ([`CLOSE_SEND`],
//! [`CLOSE_RECEIVE`] of CLOSE); when both have close_sent both, the number is free on both sides (invariant M5).
//!
//! What it is not: what arrives on a channel is no matter of this module.

use super::matching::Scope;
use super::packet::{Head, Kind};
use super::slab::{IntrusiveList, Slab, SlabId};
use super::{ChannelId, Packets, ProtocolViolation, Rejected};

/// Said in CLOSE: no message follows on this channel.
pub const CLOSE_SEND: u16 = 1;
/// Said in CLOSE: whatever comes on this channel is discarded.
pub const CLOSE_RECEIVE: u16 = 2;
const BOTH: u16 = CLOSE_SEND | CLOSE_RECEIVE;

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
    peer: SlabId,
    phase: Phase,
    /// How its messages are received.
    pub reception: Reception,
    service: u64,
    /// Counted against the limit that this side gave.
    opened_by_peer: bool,
    /// ACCEPT is due.
    accept: bool,
    /// What this side has decided, has close_sent, and has close_received.
    close_wanted: u16,
    close_sent: u16,
    close_received: u16,
    queued: bool,
}

impl Channel {
    /// Whether the owner wants no more messages.
    pub fn is_released(&self) -> bool {
        self.close_wanted & CLOSE_RECEIVE != 0
    }

    /// Whether the peer has close_sent that it will not send.
    pub fn is_ended(&self) -> bool {
        self.close_received & CLOSE_SEND != 0
    }
}

/// The channels of a link.
#[derive(Debug, Default)]
pub struct Channels {
    pool: Slab<Channel, 1>,
    /// Those that owe the peer a packet.
    due: IntrusiveList,
    ours: u32,
    theirs: u32,
    /// Limits: the peer's for ours, ours for the peer's.
    max_ours: u32,
    max_theirs: u32,
}

impl Channels {
    /// None yet; the peer may open so many.
    pub fn new(max_theirs: u32) -> Self {
        Self { max_theirs, ..Self::default() }
    }

    /// The peer has close_sent how many this side may open.
    pub fn allow(&mut self, most: u32) {
        self.max_ours = most;
    }

    /// Channels, and bytes held for them.
    pub fn size(&self) -> (u32, usize) {
        (self.pool.count(), self.pool.bytes())
    }

    /// Bytes of one channel.
    pub const RECORD: usize = Slab::<Channel, 1>::RECORD;

    // ---- this side --------------------------------------------------------------------------------------------------

    /// A new channel to a service of the peer.
    pub fn open(&mut self, service: u64, reception: Reception) -> Result<ChannelId, Rejected> {
        if self.ours >= self.max_ours {
            return Err(Rejected::WouldBlock);
        }
        let number = self.add(service, reception, false).ok_or(Rejected::WouldBlock)?;
        self.ours += 1;
        self.schedule(number.index());
        Ok(ChannelId(number))
    }

    fn add(&mut self, service: u64, reception: Reception, opened_by_peer: bool) -> Option<SlabId> {
        let phase = if opened_by_peer { Phase::Offered } else { Phase::Opening };
        let (close_wanted, close_sent, close_received, peer) = (0, 0, 0, SlabId(0));
        let (accept, queued) = (false, false);
        self.pool.insert(Channel {
            peer,
            phase,
            reception,
            service,
            opened_by_peer,
            accept,
            close_wanted,
            close_sent,
            close_received,
            queued,
        })
    }

    /// Takes an offered channel.
    pub fn accept(&mut self, channel: ChannelId, reception: Reception) -> Result<(), Rejected> {
        let (index, channel) = self.get(channel)?;
        if channel.phase != Phase::Offered || channel.accept {
            return Err(Rejected::Closed);
        }
        channel.reception = reception;
        channel.accept = true;
        self.schedule(index);
        Ok(())
    }

    /// To whom a message on this channel goes.
    #[inline(always)]
    pub fn sending(&self, channel: ChannelId) -> Result<SlabId, Rejected> {
        let channel = self.pool.known(channel.0).ok_or(Rejected::Closed)?;
        if channel.phase == Phase::Open && channel.close_wanted & CLOSE_SEND == 0 && !channel.accept {
            return Ok(channel.peer);
        }
        let begins = channel.phase != Phase::Void && channel.close_wanted & CLOSE_SEND == 0;
        Err(if begins { Rejected::WouldBlock } else { Rejected::Closed })
    }

    /// This side will not send, or not receive, any more. True when the latter is new.
    pub fn close(&mut self, channel: ChannelId, close_wanted: u16) -> Result<bool, Rejected> {
        let (index, channel) = self.get(channel)?;
        let released = !channel.close_wanted & close_wanted & CLOSE_RECEIVE != 0;
        channel.close_wanted |= close_wanted;
        self.schedule(index);
        Ok(released)
    }

    fn get(&mut self, channel: ChannelId) -> Result<(u32, &mut Channel), Rejected> {
        let index = self.pool.find(channel.0).ok_or(Rejected::Closed)?;
        self.pool.get_mut(index).map(|channel| (index, channel)).ok_or(Rejected::Closed)
    }

    /// How a channel is received; `None` once it is gone.
    pub fn known(&self, channel: ChannelId) -> Option<&Channel> {
        self.pool.get(self.pool.find(channel.0)?)
    }

    // ---- the peer ---------------------------------------------------------------------------------------------------

    /// The channel for which a message has come.
    #[inline(always)]
    pub fn receiving(&self, number: SlabId) -> Result<&Channel, ProtocolViolation> {
        let channel = self.pool.known(number);
        let channel = channel.filter(|channel| channel.phase == Phase::Open && !channel.is_ended());
        channel.ok_or(ProtocolViolation("a message for no open channel"))
    }

    /// OPEN.
    pub fn on_open(&mut self, peer: SlabId, service: u64) -> Result<ChannelId, ProtocolViolation> {
        if self.theirs >= self.max_theirs {
            return Err(ProtocolViolation("more channels than allowed"));
        }
        let number =
            self.add(service, Reception::Handler, true).ok_or(ProtocolViolation("more channels than numbers"))?;
        self.theirs += 1;
        if let Some(channel) = self.pool.get_by_id(number) {
            channel.peer = peer;
        }
        Ok(ChannelId(number))
    }

    /// ACCEPT, or REFUSE without a number.
    pub fn on_answer(&mut self, number: SlabId, peer: Option<SlabId>) -> Result<ChannelId, ProtocolViolation> {
        let channel =
            self.pool.get_by_id(number).filter(|channel| channel.phase == Phase::Opening && channel.close_sent != 0);
        let channel = channel.ok_or(ProtocolViolation("an answer to no offer"))?;
        channel.close_sent = 0;
        match peer {
            Some(peer) => (channel.peer, channel.phase) = (peer, Phase::Open),
            None => (channel.phase, channel.close_received) = (Phase::Void, BOTH),
        }
        self.schedule(number.index());
        Ok(ChannelId(number))
    }

    /// CLOSE. Returns what is new.
    pub fn on_close(&mut self, number: SlabId, close_wanted: u16) -> Result<u16, ProtocolViolation> {
        let channel = self.pool.get_by_id(number).filter(|channel| channel.phase == Phase::Open);
        let channel = channel.ok_or(ProtocolViolation("the end of no open channel"))?;
        if close_wanted == 0 || close_wanted & !BOTH != 0 || channel.close_received & close_wanted != 0 {
            return Err(ProtocolViolation("a channel's end close_sent twice"));
        }
        channel.close_received |= close_wanted;
        if close_wanted & CLOSE_RECEIVE != 0 {
            channel.close_wanted |= CLOSE_SEND; // in vain from now on: answered, so that the number gets free
        }
        if channel.close_sent == BOTH && channel.close_received == BOTH {
            self.remove(number.index()); // at once: the peer has one less already, and may open another
        } else {
            self.schedule(number.index());
        }
        Ok(close_wanted)
    }

    /// The link is broken. Returns all channels, which stay until they are released.
    pub fn fail(&mut self) -> impl Iterator<Item = ChannelId> + use<> {
        let all: Vec<u32> = self.pool.indices().collect();
        self.due = IntrusiveList::default();
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
            (channel.phase, channel.close_received, channel.accept) = (Phase::Void, BOTH, false);
            left.push(ChannelId(number));
        }
        (self.ours, self.theirs) = (0, 0);
        left.into_iter()
    }

    // ---- packets due ------------------------------------------------------------------------------------------------

    fn schedule(&mut self, index: u32) {
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
                channel.mark_sent(kind, head.own);
            }
            channel.queued = false;
            let close_wanted = channel.phase == Phase::Void && channel.is_released()
                || channel.close_sent == BOTH && channel.close_received == BOTH;
            self.pool.unlink(&mut self.due, 0, index);
            if close_wanted {
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
        let count = if channel.opened_by_peer { &mut self.theirs } else { &mut self.ours };
        *count = count.saturating_sub(1);
    }

    /// Whether something is owed.
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }
}

impl Channel {
    /// The next packet that it owes.
    fn next(&self, number: SlabId) -> Option<(Kind, Head, Option<u64>)> {
        let head = |own| Head { to: self.peer, own, grant: 0 };
        match self.phase {
            Phase::Opening if self.close_sent == 0 => {
                Some((Kind::Open, Head { to: number, own: 0, grant: 0 }, Some(self.service)))
            }
            Phase::Offered if self.accept => Some((Kind::Accept, head(0), Some(u64::from(number.0)))),
            Phase::Offered if self.is_released() => Some((Kind::Refuse, head(0), None)),
            Phase::Open if self.close_wanted & !self.close_sent != 0 => {
                Some((Kind::Close, head(self.close_wanted & !self.close_sent), None))
            }
            _ => None,
        }
    }

    /// It is on its way.
    fn mark_sent(&mut self, kind: Kind, own: u16) {
        match kind {
            Kind::Open => self.close_sent = BOTH,
            Kind::Accept => (self.phase, self.accept) = (Phase::Open, false),
            Kind::Refuse => self.phase = Phase::Void,
            _ => self.close_sent |= own,
        }
    }
}
