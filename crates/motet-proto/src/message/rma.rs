//! Remote memory access (RMA): get, put and atomics on the regions of the peer.
//!
//! The operations of a link on the peer's [`super::regions`], and the answers to the peer's operations on this side. *Small* operations
//! are one packet with their bytes. They are done on arrival, in the order in which they were started, and answered in that order: a
//! run of successes by one ACK, a value by FETCH_REPLY. *Long* operations begin with a packet without their bytes. Then the owner of the memory that is
//! *written* copies by itself, if the system allows it: the target of a put reads the initiator's memory, the initiator of a get reads
//! the region. No side writes to memory of the other, so the buffer of a completed operation stays untouched, also when the link broke.
//! Where a copy is not possible the bytes are sent in pieces. A put has completed when its bytes are in the region.
//!
//! This module has no memory and copies nothing ([`Memory`] does). Peers that map a region and load and store there directly use it
//! only for the revocation of regions.
//!
//! Reading order for an operation: [`Link::put`], [`Link::get`], [`Link::atomic`]; [`initiator`]; [`format`](mod@format); [`target`];
//! [`super::atomic`]; and back by [`Link::flush`] to [`initiator`].

pub mod format;
pub mod initiator;
pub mod revocation;
pub mod target;

use super::atomic::Atomic;
use super::link::Link;
use super::packet::{self, Head, Kind, RemoteAddress};
use super::regions::{Key, Regions};
use super::slab::SlabId;
use super::tx::put;
use super::{Callbacks, Packets, ProtocolViolation, Rejected, Status};
use format::{AT, LONG, MAX_REPLY_BYTES, Range};
use initiator::Initiator;
use revocation::Revocations;
use target::{LongAccess, LongRequest, Target};

/// A put: bytes for a region of the peer.
#[derive(Debug, Clone, Copy)]
pub struct Put<'a> {
    /// The region.
    pub key: Key,
    /// The offset in the region.
    pub offset: u64,
    /// The bytes, gathered.
    pub body: &'a [&'a [u8]],
    /// The owner's name for the operation.
    pub operation: u64,
    /// Where the peer can copy the bytes of a long put from. `RemoteAddress::default()`: nowhere.
    pub place: RemoteAddress,
}

/// A get: bytes of a region of the peer, for a buffer of the owner.
#[derive(Debug, Clone, Copy)]
pub struct Get {
    /// The region.
    pub key: Key,
    /// The offset in the region.
    pub offset: u64,
    /// Bytes to get.
    pub length: u64,
    /// The owner's name for the operation.
    pub operation: u64,
    /// Whether this side can copy the bytes of a long get out of the peer's memory.
    pub direct: bool,
}

/// An atomic on a region of the peer.
#[derive(Debug, Clone, Copy)]
pub struct Update<'a> {
    /// The region.
    pub key: Key,
    /// The offset in the region.
    pub offset: u64,
    /// The operation and its operands.
    pub atomic: Atomic<'a>,
    /// Whether the previous values are to be fetched.
    pub fetch: bool,
    /// The owner's name for the operation.
    pub operation: u64,
}

/// The state of the bytes of a put that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutBuffer {
    /// They were sent: the buffer may be reused.
    Reusable,
    /// They must stay valid until the operation completes.
    InUse,
}

/// Names a copy that the owner makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteRecord {
    /// For a get of this side.
    Get(SlabId),
    /// For a put of the peer.
    Put(SlabId),
}

/// The destination of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyTo {
    /// The front of the buffer of a get.
    Operation(u64),
    /// A region of this side.
    Region {
        /// The owner's name for the region.
        region: u64,
        /// The offset in the region.
        at: u64,
    },
}

/// A copy out of the peer's memory. The destination must stay valid until [`Link::copied_remote`] has been called, even if the link
/// breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteCopy {
    /// The record to pass to [`Link::copied_remote`].
    pub record: RemoteRecord,
    /// The destination.
    pub to: CopyTo,
    /// The source, as given by the peer.
    pub from: RemoteAddress,
    /// Bytes to copy.
    pub length: u64,
}

/// Takes gathered bytes of a region. Returns false when there is no room for them.
pub type PutBytes<'a> = &'a mut dyn FnMut(&[&[u8]]) -> bool;

/// The memory of an owner's regions. Key, right and bounds are checked before one of these is called, and none may call the link. An
/// access fails if the memory is gone ([`Status::OutOfBounds`]: a file that was cut short) or refuses it ([`Status::AccessDenied`]);
/// most memory never fails.
pub trait Memory {
    /// The table of the regions of this owner, for all of its links.
    fn regions(&mut self) -> &mut Regions;
    /// Writes to a region.
    fn region_write(&mut self, region: u64, at: u64, bytes: &[u8]) -> Result<(), Status>;
    /// Calls `put` once with `length` bytes of a region and returns its result. On an error `put` is not called.
    fn region_read(&mut self, region: u64, at: u64, length: usize, put: PutBytes<'_>) -> Result<bool, Status>;
    /// Executes a checked atomic. `result` receives the previous values, or is empty. An owner whose region does not begin at a
    /// multiple of 8 returns [`Status::InvalidAtomic`].
    fn region_atomic(&mut self, region: u64, at: u64, atomic: &Atomic<'_>, result: &mut [u8]) -> Result<(), Status>;
    /// Where the peer can copy these bytes of a region from. `RemoteAddress::default()`: nowhere.
    fn region_address(&mut self, region: u64, at: u64, length: u64) -> RemoteAddress;
    /// Where a whole region is in memory that the peer may map, so that it needs no packets. `RemoteAddress::default()`: nowhere.
    fn region_mapping(&mut self, region: u64) -> RemoteAddress;
    /// Requests a copy; [`Link::copied_remote`] reports its end.
    fn copy_remote(&mut self, request: RemoteCopy);
    /// The peer revokes a region: direct loads and stores there must stop. Returns true when there are none; otherwise
    /// [`Link::direct_access_stopped`] must be called once there are none.
    fn stop_direct_access(&mut self, key: Key) -> bool;
    /// Nothing uses a revoked region any more: its memory belongs to its user again.
    fn region_released(&mut self, region: u64);
}

/// The RMA state of a link, created at its first use.
#[derive(Debug, Default)]
pub struct RmaState {
    initiator: Initiator,
    target: Target,
    revocations: Revocations,
    /// Whether bytes of puts and gets were sent before pieces of messages in the last turn.
    first: bool,
}

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
            if !super::tx::put(packets, Kind::Put, &head, &[], put.body) {
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
    /// ([`Memory::copy_remote`]).
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
        let too_long = bytes > packets.largest() - AT || fetch && atomic.length() > MAX_REPLY_BYTES;
        if atomic.check(offset, fetch).is_err() {
            return Err(Rejected::InvalidAtomic);
        }
        if too_long {
            return Err(Rejected::TooLong);
        }
        let initiator = self.may_begin()?;
        let head = format::write_at(format::atomic_head(&atomic, fetch), key, offset);
        if !put(packets, Kind::Atomic, &head, &[], &[atomic.operand, atomic.compare]) {
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
        let one = packets.longest_piece().min(packets.largest() - AT);
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

    /// Reports the end of a copy that [`Memory::copy_remote`] requested. If it was not possible (`done` is false), the bytes are
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
    /// called before [`Regions::revoke`].
    pub fn revoke<O: Callbacks>(&mut self, owner: &mut O, key: Key) -> Result<(), Rejected> {
        self.up()?;
        self.remote_mut().revocations.revoke(owner.regions(), key)
    }

    /// This side has stopped the direct access that [`Memory::stop_direct_access`] asked about.
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
    pub(super) fn on_rma_packet<O: Callbacks>(
        &mut self,
        owner: &mut O,
        kind: Kind,
        head: Head,
        rest: &[u8],
    ) -> Result<(), ProtocolViolation> {
        let Self { limits, remote, .. } = self;
        let RmaState { initiator, target, revocations, .. } = &mut **remote.get_or_insert_default();
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
}

impl RmaState {
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

/// The length of the next piece, if there is room for it and for `reserve` bytes beside it.
fn room<P: Packets>(packets: &mut P, left: u64, reserve: usize) -> Option<usize> {
    let length = left.min(packets.longest_piece().min(packets.largest() - packet::MESSAGE) as u64) as usize;
    packets.piece_fits(length, reserve).then_some(length)
}

const _: () = assert!(LONG <= 56 && AT + 8 + 8 <= 56, "one cell of the FIFO");
