//! Remote memory: get, put and atomics on the regions of the other side.
//!
//! What it is: the operations of a link on the peer's [`super::regions`], and this side's answers to the peer's. *Small* ones are
//! one packet with their bytes; they are done as they arrive, in the order in which they were begun, and answered in that order:
//! a run of successes by one ACK, a value by FETCH_REPLY. *Long* ones say what they are about. Then who owns the memory that is
//! *written* copies by itself, if the system lets it: the target of a put out of the initiator's memory, the initiator of a get
//! out of the region. Nobody ever writes to another's memory, so an operation that has ended, and be it because the link broke,
//! leaves its buffer alone. Otherwise the bytes come in pieces. Completion means that a put's bytes are in the region.
//!
//! What it is not: it has no memory and copies nothing ([`Memory`] does), and direct loads and stores by peers that map a
//! region are none of its matters, except that they are told when a region is revoked.
//!
//! To follow an operation read downwards: here ([`Link::put`], [`Link::get`], [`Link::atomic`]) → [`initiator`] → [`format`](mod@format) →
//! [`target`] → [`super::atomic`] → back by [`Link::flush`] and [`initiator`].

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
use target::Target;

/// Bytes for a region of the peer.
#[derive(Debug, Clone, Copy)]
pub struct Put<'a> {
    /// Which, and where in it.
    pub key: Key,
    /// See `key`.
    pub offset: u64,
    /// The bytes, gathered.
    pub body: &'a [&'a [u8]],
    /// The owner's name for it.
    pub operation: u64,
    /// Where the peer can copy the bytes from, should they be many. `RemoteAddress::default()`: nowhere.
    pub place: RemoteAddress,
}

/// Bytes of a region of the peer, for the owner's buffer.
#[derive(Debug, Clone, Copy)]
pub struct Get {
    /// Which, and where in it.
    pub key: Key,
    /// See `key`.
    pub offset: u64,
    /// How many.
    pub length: u64,
    /// The owner's name for it.
    pub operation: u64,
    /// This side could copy them by itself out of the peer's memory, should they be many.
    pub direct: bool,
}

/// An atomic on a region of the peer.
#[derive(Debug, Clone, Copy)]
pub struct Update<'a> {
    /// Which, and where in it.
    pub key: Key,
    /// See `key`.
    pub offset: u64,
    /// What is done.
    pub atomic: Atomic<'a>,
    /// The values before are wanted.
    pub fetch: bool,
    /// The owner's name for it.
    pub operation: u64,
}

/// What is left of a put's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutBuffer {
    /// They are on their way and free.
    Reusable,
    /// They must stay until the operation completes.
    InUse,
}

/// Names a copy of the owner's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteRecord {
    /// For a get of this side.
    Get(SlabId),
    /// For a put of the peer.
    Put(SlabId),
}

/// Where bytes are copied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyTo {
    /// The front of the buffer of a get.
    Operation(u64),
    /// A region, by the owner's name.
    Region {
        /// Which.
        region: u64,
        /// Where in it.
        at: u64,
    },
}

/// Bytes lie in the peer's process and may be copied from there. Their place here must stay until [`Link::copied_remote`] has
/// been called, even if the link breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteCopy {
    /// For [`Link::copied_remote`].
    pub record: RemoteRecord,
    /// To where.
    pub to: CopyTo,
    /// From where: what the peer said.
    pub from: RemoteAddress,
    /// Bytes.
    pub length: u64,
}

/// Takes bytes of a region, gathered, and puts them where they go; false when there is no room.
pub type PutBytes<'a> = &'a mut dyn FnMut(&[&[u8]]) -> bool;

/// The memory of an owner's regions. Key, right and bounds have been checked when one of these is called; none may call the
/// link. An access fails where the memory has gone away (a file that was cut short: outside) or refuses (denied); most never do.
pub trait Memory {
    /// The table for all links of this owner.
    fn regions(&mut self) -> &mut Regions;
    /// Writes to a region.
    fn region_write(&mut self, region: u64, at: u64, bytes: &[u8]) -> Result<(), Status>;
    /// Calls `put` once with `length` bytes of a region; returns what that returns. Where they cannot be had it is not called.
    fn region_read(&mut self, region: u64, at: u64, length: usize, put: PutBytes<'_>) -> Result<bool, Status>;
    /// Does an atomic; `result` takes the values before, or is empty. It has been checked; an owner whose region does not begin
    /// at a multiple of 8 refuses (unfit).
    fn region_atomic(&mut self, region: u64, at: u64, atomic: &Atomic<'_>, result: &mut [u8]) -> Result<(), Status>;
    /// Where the peer can copy these bytes of a region from by itself. `RemoteAddress::default()`: nowhere.
    fn region_address(&mut self, region: u64, at: u64, length: u64) -> RemoteAddress;
    /// Where the peer sees a whole region in memory that it may map, so that it needs no packets. `RemoteAddress::default()`: nowhere.
    fn region_mapping(&mut self, region: u64) -> RemoteAddress;
    /// Copy this, then call [`Link::copied_remote`].
    fn copy_remote(&mut self, request: RemoteCopy);
    /// The peer revokes a region: direct loads and stores there must end. True when there are none; otherwise call
    /// [`Link::direct_access_stopped`] as soon as there are none.
    fn stop_direct_access(&mut self, key: Key) -> bool;
    /// A revoked region is used by nobody any more: its memory is its user's again.
    fn region_released(&mut self, region: u64);
}

/// What a link has to do with remote memory. Made when it is first needed.
#[derive(Debug, Default)]
pub struct Remote {
    initiator: Initiator,
    target: Target,
    revocations: Revocations,
    /// Bytes of puts and gets go before pieces of messages this time.
    first: bool,
}

impl Link {
    /// Begins a put, or refuses and does nothing. Completes when the bytes are in the region, or with why they are not.
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

    /// Begins a get, or refuses and does nothing. Its bytes are placed ([`Callbacks::place`]) or copied ([`Memory::copy_remote`]).
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

    /// Asks where a region of the peer's lies, or refuses and does nothing. Completes with [`format::REGION_INFO_BYTES`] bytes, a
    /// [`format::RegionInfo`]; until the peer revokes the region, this side may then use the memory directly if it can.
    pub fn query_region<P: Packets>(&mut self, packets: &mut P, key: Key, operation: u64) -> Result<(), Rejected> {
        let initiator = self.may_begin()?;
        let head = Head { to: SlabId(format::REGION_INFO_BYTES as u32), own: format::QUERY_REGION, grant: 0 };
        if !packets.put(Kind::Get as u8, &[&format::write_at(head, key, 0)]) {
            return Err(Rejected::WouldBlock);
        }
        initiator.add_small(operation, format::REGION_INFO_BYTES as u64, format::REGION_INFO_BYTES as u32);
        Ok(())
    }

    /// Begins an atomic, or refuses and does nothing. The values before, if they are wanted, are placed ([`Callbacks::place`]).
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

    /// Completes when every get, put and atomic that was begun before has completed: perhaps within this call.
    pub fn fence<O: Callbacks>(&mut self, owner: &mut O, operation: u64) -> Result<(), Rejected> {
        self.up()?;
        self.remote_mut().initiator.fence(owner, operation);
        Ok(())
    }

    /// Most bytes of a put that go in one packet, so that they are free at once, and in order with other small operations.
    pub fn put_at_once<P: Packets>(&self, packets: &P) -> usize {
        let one = packets.longest_piece().min(packets.largest() - AT);
        one.min(usize::try_from(self.limits.eager).unwrap_or(usize::MAX))
    }

    /// Whether the peer answers gets, puts and atomics at all.
    pub fn has_remote_memory(&self) -> bool {
        self.requests > 0
    }

    /// Gets, puts and atomics under way: of this side, of the peer.
    pub fn requests(&self) -> [u32; 2] {
        self.remote.as_ref().map_or([0; 2], |remote| [remote.initiator.under_way(), remote.target.under_way()])
    }

    /// The owner has copied what [`Memory::copy_remote`] asked for, or the system did not let it: then it comes in pieces.
    pub fn copied_remote<O: Callbacks>(&mut self, owner: &mut O, record: RemoteRecord, done: bool) {
        let broken = self.broken().is_some();
        let ahead = self.limits.ahead.max(1);
        let Some(remote) = self.remote.as_mut() else { return };
        match record {
            RemoteRecord::Get(number) => remote.initiator.copied(owner, number, done, broken),
            RemoteRecord::Put(number) => remote.target.copied(owner, number, done, broken, ahead),
        }
    }

    /// Tells the peer, which may have direct access to a region, that it must end; until it has answered, or the link is gone, the
    /// region is held. To be called before [`Regions::revoke`].
    pub fn revoke<O: Callbacks>(&mut self, owner: &mut O, key: Key) -> Result<(), Rejected> {
        self.up()?;
        self.remote_mut().revocations.revoke(owner.regions(), key)
    }

    /// This side has no direct access any more to the peer's region that [`Memory::stop_direct_access`] was about.
    pub fn direct_access_stopped(&mut self, key: Key) {
        if let Some(remote) = self.remote.as_mut() {
            remote.revocations.direct_access_stopped(key);
        }
    }

    fn remote_mut(&mut self) -> &mut Remote {
        self.remote.get_or_insert_default()
    }

    /// Whether one more operation may begin now.
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

    /// A packet about remote memory. Apart from the way of messages, which is to stay short.
    #[inline(never)]
    pub(super) fn on_rma_packet<O: Callbacks>(
        &mut self,
        owner: &mut O,
        kind: Kind,
        head: Head,
        rest: &[u8],
    ) -> Result<(), ProtocolViolation> {
        let Self { limits, remote, .. } = self;
        let Remote { initiator, target, revocations, .. } = &mut **remote.get_or_insert_default();
        match kind {
            Kind::Put | Kind::Get | Kind::Atomic => target.small(owner, limits, kind, head, rest),
            Kind::PutLong | Kind::GetLong => {
                let (range, rest) = Range::read(rest)?;
                let (place, rest) = match kind {
                    Kind::PutLong => RemoteAddress::read(rest)?,
                    _ => (RemoteAddress::default(), rest),
                };
                packet::expect_end(rest)?;
                let get = (kind == Kind::GetLong).then_some(head.own != 0);
                target.long(owner, limits, head.to, range, get, place)
            }
            Kind::Bytes => {
                let (at, bytes) = packet::read_word(rest)?;
                match head.own {
                    format::OF_PUT => target.piece(owner, head.to, at, bytes, limits.ahead.max(1)),
                    format::OF_GET => initiator.piece(owner, head.to, at, bytes),
                    _ => Err(ProtocolViolation("bytes of no known kind")),
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
            _ => Err(ProtocolViolation("a packet of no known kind")),
        }
    }
}

impl Remote {
    /// Whether there is something to put.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.target.is_due() || self.initiator.is_due() || self.revocations.is_due()
    }

    /// Whether bytes of puts and gets go before pieces of messages: every other time.
    pub fn turn(&mut self) -> bool {
        self.first = !self.first;
        self.first
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.initiator.under_way() == 0 && self.target.under_way() == 0 && self.revocations.is_empty()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.initiator.bytes() + self.target.bytes() + self.revocations.bytes()
    }

    /// Puts answers and what else is short; false when there is no room for more.
    pub fn flush<P: Packets, O: Callbacks>(&mut self, packets: &mut P, owner: &mut O) -> bool {
        self.target.flush(packets) && self.initiator.flush(packets, owner) && self.revocations.flush(packets)
    }

    /// Puts pieces, one of each operation in turn, at most `pieces`.
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

    /// The link is broken: everything completes but copies under way.
    pub fn fail<O: Callbacks>(&mut self, owner: &mut O) {
        self.target.fail(owner);
        self.revocations.fail(owner);
        self.initiator.fail(owner);
    }
}

/// Room for a piece of so many bytes, and for what is short beside it.
fn room<P: Packets>(packets: &mut P, left: u64, reserve: usize) -> Option<usize> {
    let length = left.min(packets.longest_piece().min(packets.largest() - packet::MESSAGE) as u64) as usize;
    packets.piece_fits(length, reserve).then_some(length)
}

const _: () = assert!(LONG <= 56 && AT + 8 + 8 <= 56, "one line of a lane");
