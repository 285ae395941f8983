//! Channels: logical streams of messages over one link, how they open and close.
//!
//! The records of a link's channels, by the numbers of this side, and the packets that each still owes the peer. OPEN names a service
//! and the opener's number. ACCEPT answers with the acceptor's number, and from then on packets carry the number of their receiver.
//! Each side announces once that it will not send and once that it will not receive ([`CLOSE_SEND`], [`CLOSE_RECEIVE`] of CLOSE). When
//! both sides have announced both, the number is free on both sides (invariant M5).
//!
//! Messages of a channel are handled by other modules.

use super::matching::Scope;
use super::packet::{Head, Kind};
use super::slab::{IntrusiveList, Slab, SlabId};
use super::{ChannelId, Packets, ProtocolViolation, Rejected};

/// Bit of CLOSE: the sender of the packet sends no more messages on this channel.
pub const CLOSE_SEND: u16 = 1;
/// Bit of CLOSE: the sender of the packet discards further messages on this channel.
pub const CLOSE_RECEIVE: u16 = 2;
const BOTH: u16 = CLOSE_SEND | CLOSE_RECEIVE;

/// How messages of a channel are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reception {
    /// Each message is delivered to a handler as it arrives.
    Handler,
    /// Messages are matched with posted receives in this scope, or wait there to be claimed. A queue is a scope without receives.
    Matched(Scope),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChannelPhase {
    /// OPEN is due or was sent.
    Opening,
    /// The peer has sent OPEN; the owner has not decided.
    Offered,
    /// Both sides know each other's number.
    Open,
    /// Refused, or the link is down: nothing is owed to the peer.
    Void,
}

/// One channel.
#[derive(Debug)]
pub struct Channel {
    /// The peer's number.
    peer: SlabId,
    phase: ChannelPhase,
    /// How messages of the channel are received.
    pub reception: Reception,
    service: u64,
    /// Counts against the limit that this side gave.
    opened_by_peer: bool,
    /// ACCEPT is due.
    accept: bool,
    /// Bits of CLOSE that this side wants to send, has sent, and has received.
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

    /// Whether the peer sends no more messages.
    pub fn is_ended(&self) -> bool {
        self.close_received & CLOSE_SEND != 0
    }
}

/// The channels of a link.
#[derive(Debug, Default)]
pub struct Channels {
    slab: Slab<Channel, 1>,
    /// Channels that owe the peer a packet.
    due: IntrusiveList,
    ours: u32,
    theirs: u32,
    /// Limits of the channels that this side opens and that the peer opens.
    max_ours: u32,
    max_theirs: u32,
}

impl Channels {
    /// No channels; the peer may open `max_theirs`.
    pub fn new(max_theirs: u32) -> Self {
        Self { max_theirs, ..Self::default() }
    }

    /// Sets the number of channels that this side may open.
    pub fn allow(&mut self, max: u32) {
        self.max_ours = max;
    }

    /// Number of channels, and bytes held for them.
    pub fn size(&self) -> (u32, usize) {
        (self.slab.count(), self.slab.bytes())
    }

    /// Bytes of one channel.
    pub const RECORD_BYTES: usize = Slab::<Channel, 1>::RECORD_BYTES;

    // ---- this side --------------------------------------------------------------------------------------------------

    /// Opens a channel to a service of the peer.
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
        let phase = if opened_by_peer { ChannelPhase::Offered } else { ChannelPhase::Opening };
        let (close_wanted, close_sent, close_received, peer) = (0, 0, 0, SlabId(0));
        let (accept, queued) = (false, false);
        self.slab.insert(Channel {
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

    /// Accepts an offered channel.
    pub fn accept(&mut self, channel: ChannelId, reception: Reception) -> Result<(), Rejected> {
        let (index, channel) = self.get(channel)?;
        if channel.phase != ChannelPhase::Offered || channel.accept {
            return Err(Rejected::Closed);
        }
        channel.reception = reception;
        channel.accept = true;
        self.schedule(index);
        Ok(())
    }

    /// The peer's number for a channel on which a message is to be sent.
    #[inline(always)]
    pub fn sending(&self, channel: ChannelId) -> Result<SlabId, Rejected> {
        let channel = self.slab.known(channel.0).ok_or(Rejected::Closed)?;
        if channel.phase == ChannelPhase::Open && channel.close_wanted & CLOSE_SEND == 0 && !channel.accept {
            return Ok(channel.peer);
        }
        let begins = channel.phase != ChannelPhase::Void && channel.close_wanted & CLOSE_SEND == 0;
        Err(if begins { Rejected::WouldBlock } else { Rejected::Closed })
    }

    /// This side will not send, or not receive, any more. Returns true when the channel is released by this call.
    pub fn close(&mut self, channel: ChannelId, bits: u16) -> Result<bool, Rejected> {
        let (index, channel) = self.get(channel)?;
        let released = !channel.close_wanted & bits & CLOSE_RECEIVE != 0;
        channel.close_wanted |= bits;
        self.schedule(index);
        Ok(released)
    }

    fn get(&mut self, channel: ChannelId) -> Result<(u32, &mut Channel), Rejected> {
        let index = self.slab.find(channel.0).ok_or(Rejected::Closed)?;
        self.slab.get_mut(index).map(|channel| (index, channel)).ok_or(Rejected::Closed)
    }

    /// The channel with this id; `None` once it is gone.
    pub fn known(&self, channel: ChannelId) -> Option<&Channel> {
        self.slab.get(self.slab.find(channel.0)?)
    }

    // ---- the peer ---------------------------------------------------------------------------------------------------

    /// The channel on which a message has arrived.
    #[inline(always)]
    pub fn receiving(&self, number: SlabId) -> Result<&Channel, ProtocolViolation> {
        let channel = self.slab.known(number);
        let channel = channel.filter(|channel| channel.phase == ChannelPhase::Open && !channel.is_ended());
        channel.ok_or(ProtocolViolation("message on a channel that is not open"))
    }

    /// OPEN.
    pub fn on_open(&mut self, peer: SlabId, service: u64) -> Result<ChannelId, ProtocolViolation> {
        if self.theirs >= self.max_theirs {
            return Err(ProtocolViolation("OPEN beyond the limit of channels"));
        }
        let number = self
            .add(service, Reception::Handler, true)
            .ok_or(ProtocolViolation("OPEN beyond the number of channel records"))?;
        self.theirs += 1;
        if let Some(channel) = self.slab.get_by_id(number) {
            channel.peer = peer;
        }
        Ok(ChannelId(number))
    }

    /// ACCEPT with the peer's number, or REFUSE.
    pub fn on_answer(&mut self, number: SlabId, peer: Option<SlabId>) -> Result<ChannelId, ProtocolViolation> {
        let channel = self
            .slab
            .get_by_id(number)
            .filter(|channel| channel.phase == ChannelPhase::Opening && channel.close_sent != 0);
        let channel = channel.ok_or(ProtocolViolation("ACCEPT or REFUSE for a channel that is not being opened"))?;
        channel.close_sent = 0;
        match peer {
            Some(peer) => (channel.peer, channel.phase) = (peer, ChannelPhase::Open),
            None => (channel.phase, channel.close_received) = (ChannelPhase::Void, BOTH),
        }
        self.schedule(number.index());
        Ok(ChannelId(number))
    }

    /// CLOSE. Returns the new bits.
    pub fn on_close(&mut self, number: SlabId, bits: u16) -> Result<u16, ProtocolViolation> {
        let channel = self.slab.get_by_id(number).filter(|channel| channel.phase == ChannelPhase::Open);
        let channel = channel.ok_or(ProtocolViolation("CLOSE of a channel that is not open"))?;
        if bits == 0 || bits & !BOTH != 0 || channel.close_received & bits != 0 {
            return Err(ProtocolViolation("CLOSE with unknown or repeated bits"));
        }
        channel.close_received |= bits;
        if bits & CLOSE_RECEIVE != 0 {
            channel.close_wanted |= CLOSE_SEND; // messages would be discarded; answered, so that the number becomes free
        }
        if channel.close_sent == BOTH && channel.close_received == BOTH {
            self.remove(number.index()); // at once: the peer counts one less already and may open another
        } else {
            self.schedule(number.index());
        }
        Ok(bits)
    }

    /// The link is down. Returns the channels that stay until they are released.
    pub fn fail(&mut self) -> impl Iterator<Item = ChannelId> + use<> {
        let all: Vec<u32> = self.slab.indices().collect();
        self.due = IntrusiveList::default();
        let mut left = Vec::with_capacity(all.len());
        for index in all {
            let number = self.slab.number(index);
            let Some(channel) = self.slab.get_mut(index) else { continue };
            channel.queued = false;
            // Channels that the owner has not accepted, or has released, are unknown to it.
            if channel.phase == ChannelPhase::Offered && !channel.accept || channel.is_released() {
                self.slab.remove(index);
                continue;
            }
            (channel.phase, channel.close_received, channel.accept) = (ChannelPhase::Void, BOTH, false);
            left.push(ChannelId(number));
        }
        (self.ours, self.theirs) = (0, 0);
        left.into_iter()
    }

    // ---- packets due ------------------------------------------------------------------------------------------------

    fn schedule(&mut self, index: u32) {
        let Some(channel) = self.slab.get_mut(index) else { return };
        if channel.phase == ChannelPhase::Void {
            if channel.is_released() {
                self.remove(index);
            }
        } else if !channel.queued {
            channel.queued = true;
            self.slab.append(&mut self.due, 0, index);
        }
    }

    /// Sends the packets that channels owe the peer. Returns false when there is no room for more.
    pub fn flush<P: Packets>(&mut self, packets: &mut P) -> bool {
        while let Some(index) = self.due.first() {
            let number = self.slab.number(index);
            let Some(channel) = self.slab.get_mut(index) else { return true };
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
            let done = channel.phase == ChannelPhase::Void && channel.is_released()
                || channel.close_sent == BOTH && channel.close_received == BOTH;
            self.slab.unlink(&mut self.due, 0, index);
            if done {
                self.remove(index);
            }
        }
        true
    }

    fn remove(&mut self, index: u32) {
        let Some(channel) = self.slab.get_mut(index) else { return };
        if channel.queued {
            self.slab.unlink(&mut self.due, 0, index);
        }
        let Some(channel) = self.slab.remove(index) else { return };
        let count = if channel.opened_by_peer { &mut self.theirs } else { &mut self.ours };
        *count = count.saturating_sub(1);
    }

    /// Whether a packet is due.
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }
}

impl Channel {
    /// The next packet that the channel owes.
    fn next(&self, number: SlabId) -> Option<(Kind, Head, Option<u64>)> {
        let head = |own| Head { to: self.peer, own, grant: 0 };
        match self.phase {
            ChannelPhase::Opening if self.close_sent == 0 => {
                Some((Kind::Open, Head { to: number, own: 0, grant: 0 }, Some(self.service)))
            }
            ChannelPhase::Offered if self.accept => Some((Kind::Accept, head(0), Some(u64::from(number.0)))),
            ChannelPhase::Offered if self.is_released() => Some((Kind::Refuse, head(0), None)),
            ChannelPhase::Open if self.close_wanted & !self.close_sent != 0 => {
                Some((Kind::Close, head(self.close_wanted & !self.close_sent), None))
            }
            _ => None,
        }
    }

    /// The packet was sent.
    fn mark_sent(&mut self, kind: Kind, own: u16) {
        match kind {
            Kind::Open => self.close_sent = BOTH,
            Kind::Accept => (self.phase, self.accept) = (ChannelPhase::Open, false),
            Kind::Refuse => self.phase = ChannelPhase::Void,
            _ => self.close_sent |= own,
        }
    }
}
