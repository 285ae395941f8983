//! What the owner of a link asks of RMA: puts, gets, atomics, fences, and the revocation of its regions.
//!
//! A call sends the first packet of an operation at once, or is rejected. The operation is then in the [`Initiator`] until it completes.

use super::format::{self, ACCESS_HEAD_BYTES, MAX_REPLY_BYTES, Range};
use super::initiator::Initiator;
use super::state::RmaState;
use super::{Get, Put, PutBuffer, RemoteRecord, Update};
use crate::message::link::Link;
use crate::message::packet::{Head, Kind};
use crate::message::regions::Key;
use crate::message::slab::SlabId;
use crate::message::{Callbacks, Packets, ProtocolViolation, Rejected, gather};

impl Link {
    /// Starts a put, or rejects it and does nothing. It completes when the bytes are in the region, or with the reason of its
    /// failure.
    pub fn put<P: Packets>(&mut self, packets: &mut P, put: &Put<'_>) -> Result<PutBuffer, Rejected> {
        let length: u64 = put.body.iter().map(|part| part.len() as u64).sum();
        let whole = length <= self.put_at_once(packets) as u64;
        let initiator = self.may_begin()?;
        let &Put { key, offset, operation, place, .. } = put;
        if whole {
            let head = format::write_at(Head::default(), key, offset);
            if !gather::put(packets, Kind::Put, &head, &[], put.body) {
                return Err(Rejected::WouldBlock);
            }
            initiator.add_small(operation, length, 0);
            return Ok(PutBuffer::Reusable);
        }
        initiator.add_long(operation, length, None, |number| {
            let range = Range { key, offset, length };
            packets.put(Kind::PutLong as u8, &[&range.write_at(Head { to: number, ..Head::default() }, place)])
        })?;
        Ok(PutBuffer::InUse)
    }

    /// Starts a get, or rejects it and does nothing. Its bytes are placed ([`Callbacks::place`]) or copied
    /// ([`super::Memory::copy_remote`]).
    pub fn get<P: Packets>(&mut self, packets: &mut P, get: &Get) -> Result<(), Rejected> {
        let &Get { key, offset, length, operation, direct } = get;
        let initiator = self.may_begin()?;
        if length <= MAX_REPLY_BYTES as u64 {
            let head = Head { to: SlabId(length as u32), ..Head::default() };
            if !packets.put(Kind::Get as u8, &[&format::write_at(head, key, offset)]) {
                return Err(Rejected::WouldBlock);
            }
            initiator.add_small(operation, length, length as u32);
            return Ok(());
        }
        initiator.add_long(operation, length, Some(direct), |number| {
            let head = Head { to: number, own: u16::from(direct), grant: 0 };
            packets.put(Kind::GetLong as u8, &[&Range { key, offset, length }.write(head)])
        })
    }

    /// Asks for the address of a region of the peer, or rejects the call and does nothing. Completes with
    /// [`format::REGION_INFO_BYTES`] bytes, a [`format::RegionInfo`]. Until the peer revokes the region this side may then access
    /// the memory directly, if it can map it.
    pub fn query_region<P: Packets>(&mut self, packets: &mut P, key: Key, operation: u64) -> Result<(), Rejected> {
        let initiator = self.may_begin()?;
        let head = Head { to: SlabId(format::REGION_INFO_BYTES as u32), own: format::QUERY_REGION, grant: 0 };
        if !packets.put(Kind::Get as u8, &[&format::write_at(head, key, 0)]) {
            return Err(Rejected::WouldBlock);
        }
        initiator.add_small(operation, format::REGION_INFO_BYTES as u64, format::REGION_INFO_BYTES as u32);
        Ok(())
    }

    /// Starts an atomic, or rejects it and does nothing. Fetched values are placed ([`Callbacks::place`]).
    pub fn atomic<P: Packets>(&mut self, packets: &mut P, update: &Update<'_>) -> Result<(), Rejected> {
        let &Update { key, offset, atomic, fetch, operation } = update;
        let bytes = atomic.operand.len() + atomic.compare.len();
        let too_long = bytes > packets.largest() - ACCESS_HEAD_BYTES || fetch && atomic.length() > MAX_REPLY_BYTES;
        if atomic.check(offset, fetch).is_err() {
            return Err(Rejected::InvalidAtomic);
        }
        if too_long {
            return Err(Rejected::TooLong);
        }
        let initiator = self.may_begin()?;
        let head = format::write_at(format::atomic_head(&atomic, fetch), key, offset);
        if !gather::put(packets, Kind::Atomic, &head, &[], &[atomic.operand, atomic.compare]) {
            return Err(Rejected::WouldBlock);
        }
        let length = atomic.length();
        initiator.add_small(operation, length as u64, if fetch { length as u32 } else { 0 });
        Ok(())
    }

    /// Completes when every get, put and atomic that was started before has completed, possibly within this call.
    pub fn fence<O: Callbacks>(&mut self, owner: &mut O, operation: u64) -> Result<(), Rejected> {
        self.up()?;
        self.remote_mut().initiator.fence(owner, operation);
        Ok(())
    }

    /// Longest put that is sent in one packet, so that its buffer may be reused at once and it is ordered with other small
    /// operations.
    pub fn put_at_once<P: Packets>(&self, packets: &P) -> usize {
        let one = packets.longest_piece().min(packets.largest() - ACCESS_HEAD_BYTES);
        one.min(usize::try_from(self.limits.eager).unwrap_or(usize::MAX))
    }

    /// Whether the peer accepts gets, puts and atomics.
    pub fn has_remote_memory(&self) -> bool {
        self.requests > 0
    }

    /// Gets, puts and atomics in progress: of this side, and of the peer.
    pub fn requests(&self) -> [u32; 2] {
        self.remote.as_ref().map_or([0; 2], |remote| [remote.initiator.under_way(), remote.target.under_way()])
    }

    /// Reports the end of a copy that [`super::Memory::copy_remote`] requested. If it was not possible (`done` is false), the bytes are
    /// sent in pieces.
    pub fn copied_remote<O: Callbacks>(&mut self, owner: &mut O, record: RemoteRecord, done: bool) {
        let broken = self.broken().is_some();
        let ahead = self.limits.ahead.max(1);
        let Some(remote) = self.remote.as_mut() else { return };
        match record {
            RemoteRecord::Get(number) => remote.initiator.copied(owner, number, done, broken),
            RemoteRecord::Put(number) => remote.target.copied(owner, number, done, broken, ahead),
        }
    }

    /// Asks the peer to stop direct access to a region. Until it has answered, or the link is down, the region is held. To be
    /// called before [`Regions::revoke`](crate::message::Regions::revoke).
    pub fn revoke<O: Callbacks>(&mut self, owner: &mut O, key: Key) -> Result<(), Rejected> {
        self.up()?;
        self.remote_mut().revocations.revoke(owner.regions(), key)
    }

    /// This side has stopped the direct access that [`super::Memory::stop_direct_access`] asked about.
    pub fn direct_access_stopped(&mut self, key: Key) {
        if let Some(remote) = self.remote.as_mut() {
            remote.revocations.direct_access_stopped(key);
        }
    }

    fn remote_mut(&mut self) -> &mut RmaState {
        self.remote.get_or_insert_default()
    }

    /// The initiator, if one more operation may be started.
    fn may_begin(&mut self) -> Result<&mut Initiator, Rejected> {
        self.up()?;
        if !self.hello_sent || !self.hello_received {
            return Err(Rejected::WouldBlock);
        }
        if self.requests == 0 {
            return Err(Rejected::Closed);
        }
        let most = self.requests;
        let initiator = &mut self.remote_mut().initiator;
        if initiator.may_begin(most) { Ok(initiator) } else { Err(Rejected::WouldBlock) }
    }

    /// Handles a packet of an RMA operation. Out of line, to keep the path of messages short.
    #[inline(never)]
    pub(in crate::message) fn on_rma_packet<O: Callbacks>(
        &mut self,
        owner: &mut O,
        kind: Kind,
        head: Head,
        rest: &[u8],
    ) -> Result<(), ProtocolViolation> {
        self.remote.get_or_insert_default().on_packet(owner, &self.limits, kind, head, rest)
    }
}
