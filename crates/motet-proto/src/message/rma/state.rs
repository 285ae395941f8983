//! The RMA state of a link: the operations of both sides, which packet goes to which of them, and what they owe the peer.

use super::format::{self, Range};
use super::initiator::Initiator;
use super::revocation::Revocations;
use super::target::{LongAccess, LongRequest, Target};
use crate::message::packet::{self, Head, Kind, RemoteAddress};
use crate::message::regions::Key;
use crate::message::{Callbacks, Limits, Packets, ProtocolViolation};

/// The RMA state of a link, created at its first use.
#[derive(Debug, Default)]
pub struct RmaState {
    pub(super) initiator: Initiator,
    pub(super) target: Target,
    pub(super) revocations: Revocations,
    /// Whether bytes of puts and gets were sent before pieces of messages in the last turn.
    first: bool,
}

impl RmaState {
    /// Handles a packet of an RMA operation.
    #[inline]
    pub fn on_packet<O: Callbacks>(
        &mut self,
        owner: &mut O,
        limits: &Limits,
        kind: Kind,
        head: Head,
        rest: &[u8],
    ) -> Result<(), ProtocolViolation> {
        let Self { initiator, target, revocations, .. } = self;
        match kind {
            Kind::Put | Kind::Get | Kind::Atomic => target.small(owner, limits, kind, head, rest),
            Kind::PutLong | Kind::GetLong => {
                let (range, rest) = Range::read(rest)?;
                let (access, rest) = match kind {
                    Kind::PutLong => RemoteAddress::read(rest).map(|(from, rest)| (LongAccess::Put { from }, rest))?,
                    _ => (LongAccess::Get { direct: head.own != 0 }, rest),
                };
                packet::expect_end(rest)?;
                target.long(owner, limits, LongRequest { number: head.to, range, access })
            }
            Kind::Bytes => {
                let (at, bytes) = packet::read_word(rest)?;
                match head.own {
                    format::OF_PUT => target.piece(owner, head.to, at, bytes, limits.ahead.max(1)),
                    format::OF_GET => initiator.piece(owner, head.to, at, bytes),
                    _ => Err(ProtocolViolation("BYTES of an unknown direction")),
                }
            }
            Kind::FetchReply => initiator.on_fetch_reply(owner, head.own, rest),
            Kind::GetAddr => {
                let (place, rest) = RemoteAddress::read(rest)?;
                packet::expect_end(rest)?;
                initiator.on_get_addr(owner, head.to, place)
            }
            Kind::PutCts => {
                let (until, rest) = packet::read_word(rest)?;
                packet::expect_end(rest)?;
                initiator.on_put_cts(head.to, until)
            }
            Kind::Revoke | Kind::Revoked => {
                let (key, rest) = packet::read_word(rest)?;
                packet::expect_end(rest)?;
                match kind {
                    Kind::Revoke => revocations.on_revoke(owner, Key(key)),
                    _ => revocations.on_revoked(owner, Key(key)),
                }
            }
            Kind::Ack | Kind::PutFin | Kind::GetFin => {
                packet::expect_end(rest)?;
                match kind {
                    Kind::Ack => initiator.on_ack(owner, head.to.0),
                    Kind::PutFin => initiator.on_put_fin(owner, head.to, head.own),
                    _ => target.on_get_fin(owner, head.to, head.own),
                }
            }
            _ => Err(ProtocolViolation("packet of unknown kind")),
        }
    }
    /// Whether a packet is due.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.target.is_due() || self.initiator.is_due() || self.revocations.is_due()
    }

    /// Whether bytes of puts and gets are sent before pieces of messages: every other time.
    pub fn turn(&mut self) -> bool {
        self.first = !self.first;
        self.first
    }

    /// Whether no operation is in progress.
    pub fn is_idle(&self) -> bool {
        self.initiator.under_way() == 0 && self.target.under_way() == 0 && self.revocations.is_empty()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.initiator.bytes() + self.target.bytes() + self.revocations.bytes()
    }

    /// Sends the short packets that are due. Returns false when there is no room for more.
    pub fn flush<P: Packets, O: Callbacks>(&mut self, packets: &mut P, owner: &mut O) -> bool {
        self.target.flush(packets) && self.initiator.flush(packets, owner) && self.revocations.flush(packets)
    }

    /// Sends pieces, one of each operation in turn, at most `pieces`.
    pub fn flush_bytes<P: Packets, O: Callbacks>(
        &mut self,
        packets: &mut P,
        owner: &mut O,
        reserve: usize,
        pieces: &mut usize,
    ) {
        self.initiator.flush_bytes(packets, owner, reserve, pieces);
        self.target.flush_bytes(packets, owner, reserve, pieces);
    }

    /// The link is down: everything completes but copies in progress.
    pub fn fail<O: Callbacks>(&mut self, owner: &mut O) {
        self.target.fail(owner);
        self.revocations.fail(owner);
        self.initiator.fail(owner);
    }
}
