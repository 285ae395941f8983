//! Remote memory access (RMA): get, put and atomics on the regions of the peer.
//!
//! The operations of a link on the peer's [`super::regions`], and the answers to the peer's operations on this side. *Small* operations
//! are one packet with their bytes. They are done on arrival, in the order in which they were started, and answered in that order: a
//! run of successes by one ACK, a value by FETCH_REPLY. *Long* operations begin with a packet without their bytes. Then the owner of
//! the memory that is *written* copies by itself, if the system allows it: the target of a put reads the initiator's memory, the
//! initiator of a get reads the region. No side writes to memory of the other, so the buffer of a completed operation stays untouched,
//! also when the link broke. Where a copy is not possible the bytes are sent in pieces. A put has completed when its bytes are in the
//! region.
//!
//! This module has no memory and copies nothing ([`Memory`] does). Peers that map a region and load and store there directly use it
//! only for the revocation of regions.
//!
//! Reading order for an operation: `operations` (what the owner calls), [`initiator`]; [`format`](mod@format); `state` (arrival),
//! [`target`], [`super::atomic`]; and back by [`super::Link::flush`] to [`initiator`].

pub mod format;
pub mod initiator;
mod operations;
pub mod revocation;
pub(super) mod state;
pub mod target;

use super::atomic::Atomic;
use super::packet::{self, RemoteAddress};
use super::regions::{Key, Regions};
use super::slab::SlabId;
use super::{Packets, Status};
use format::{ACCESS_HEAD_BYTES, PUT_LONG_BYTES};

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

/// A copy out of the peer's memory. The destination must stay valid until [`super::Link::copied_remote`] has been called, even if the link
/// breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteCopy {
    /// The record to pass to [`super::Link::copied_remote`].
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
    /// Requests a copy; [`super::Link::copied_remote`] reports its end.
    fn copy_remote(&mut self, request: RemoteCopy);
    /// The peer revokes a region: direct loads and stores there must stop. Returns true when there are none; otherwise
    /// [`super::Link::direct_access_stopped`] must be called once there are none.
    fn stop_direct_access(&mut self, key: Key) -> bool;
    /// Nothing uses a revoked region any more: its memory belongs to its user again.
    fn region_released(&mut self, region: u64);
}

/// The length of the next piece, if there is room for it and for `reserve` bytes beside it.
fn room<P: Packets>(packets: &mut P, left: u64, reserve: usize) -> Option<usize> {
    let length = left.min(packets.longest_piece().min(packets.largest() - packet::MESSAGE_HEAD_BYTES) as u64) as usize;
    packets.piece_fits(length, reserve).then_some(length)
}

const _: () = assert!(PUT_LONG_BYTES <= 56 && ACCESS_HEAD_BYTES + 8 + 8 <= 56, "one cell of the FIFO");
