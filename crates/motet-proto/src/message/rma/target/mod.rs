//! The target: operations of the peer on regions of this side, and the answers that are owed.
//!
//! Small operations are done on arrival; their answers are kept, in order, until there is room for them. Long operations have a record
//! until their end was reported to the peer. The peer may have as many in progress as [`super::super::Limits::requests`] says, and each
//! keeps a record or at most [`MAX_REPLY_BYTES`](super::format::MAX_REPLY_BYTES) bytes here (invariant M7). Every access is checked by
//! [`Regions::reach`](crate::message::regions::Regions::reach) and executed by the owner.

mod long;
mod small;

use crate::message::packet::{Head, Kind};
use crate::message::slab::SlabId;
use crate::message::{Callbacks, Limits, Packets, ProtocolViolation};
use long::LongOperations;
pub use long::{LongAccess, LongRequest};
use small::Small;

/// The operations of the peer on regions of this side.
#[derive(Debug, Default)]
pub struct Target {
    small: Small,
    long: LongOperations,
}

impl Target {
    /// Operations of the peer that are in progress.
    pub fn under_way(&self) -> u32 {
        self.small.count() + self.long.count()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.small.bytes() + self.long.bytes()
    }

    /// Checks that the peer may start one more operation.
    fn count(&self, limits: &Limits) -> Result<(), ProtocolViolation> {
        let may = self.under_way() < limits.requests;
        if may { Ok(()) } else { Err(ProtocolViolation("more RMA operations in progress than HELLO allows")) }
    }

    // ---- arrival ----------------------------------------------------------------------------------------------------

    /// PUT, GET or ATOMIC.
    #[inline]
    pub fn small<O: Callbacks>(
        &mut self,
        owner: &mut O,
        limits: &Limits,
        kind: Kind,
        head: Head,
        rest: &[u8],
    ) -> Result<(), ProtocolViolation> {
        self.count(limits)?;
        self.small.on_packet(owner, kind, head, rest)
    }

    /// PUT LONG or GET LONG.
    pub fn long<O: Callbacks>(
        &mut self,
        owner: &mut O,
        limits: &Limits,
        request: LongRequest,
    ) -> Result<(), ProtocolViolation> {
        self.count(limits)?;
        self.long.begin(owner, limits, request)
    }

    /// The owner has copied the bytes of a put, or could not.
    pub fn copied<O: Callbacks>(&mut self, owner: &mut O, record: SlabId, done: bool, broken: bool, ahead: u64) {
        self.long.copied(owner, record, done, broken, ahead);
    }

    /// BYTES of a put.
    pub fn piece<O: Callbacks>(
        &mut self,
        owner: &mut O,
        number: SlabId,
        at: u64,
        bytes: &[u8],
        ahead: u64,
    ) -> Result<(), ProtocolViolation> {
        self.long.piece(owner, number, at, bytes, ahead)
    }

    /// GET_FIN: the initiator has copied the bytes of a get, or could not.
    pub fn on_get_fin<O: Callbacks>(
        &mut self,
        owner: &mut O,
        number: SlabId,
        own: u16,
    ) -> Result<(), ProtocolViolation> {
        self.long.on_get_fin(owner, number, own)
    }

    // ---- packets due ------------------------------------------------------------------------------------------------

    /// Whether a packet is due.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.small.is_due() || self.long.is_due()
    }

    /// Sends the short packets that are due. Returns false when there is no room for more.
    pub fn flush<P: Packets>(&mut self, packets: &mut P) -> bool {
        self.small.flush(packets) && self.long.flush(packets)
    }

    /// Sends bytes of gets, one piece of each in turn.
    pub fn flush_bytes<P: Packets, O: Callbacks>(
        &mut self,
        packets: &mut P,
        owner: &mut O,
        reserve: usize,
        pieces: &mut usize,
    ) {
        self.long.flush_bytes(packets, owner, reserve, pieces);
    }

    /// The link is down: nothing is owed, and only regions into which the owner copies are held.
    pub fn fail<O: Callbacks>(&mut self, owner: &mut O) {
        self.small.fail();
        self.long.fail(owner);
    }
}
