//! The memory of one side: its regions, its operations on the regions of the other side, and how the protocol changes both. Which
//! operations there are, and what must hold, is in [`super::rma_model`].

use crate::rma_model::SLOT_COUNT;
use crate::simulation::Side;
use motet_proto::message::atomic::Atomic;
use motet_proto::message::packet::RemoteAddress;
use motet_proto::message::rma::{PutBytes, RemoteCopy};
use motet_proto::message::{Key, Memory, Outcome, Regions, Status};
use std::collections::BTreeMap;

/// A region of a side, named by its index.
#[derive(Debug)]
pub struct Own {
    pub bytes: Vec<u8>,
    pub key: Key,
    pub revoked: bool,
    pub ended: bool,
    /// Bytes from the front that are still valid: a file may be cut short.
    pub left: usize,
}

/// A region of the other side, as known here.
#[derive(Debug)]
pub struct Theirs {
    pub key: Key,
    pub expected: Vec<u8>,
    pub busy: [bool; SLOT_COUNT],
    /// An operation was denied because the region was revoked: all later small ones must be.
    pub denied: bool,
}

/// An operation in progress.
#[derive(Debug, Default)]
pub struct Running {
    pub region: usize,
    pub slot: Option<usize>,
    /// The status with which it must complete, if the region is not revoked.
    pub status: Option<Status>,
    /// The bytes of a put.
    pub body: Vec<u8>,
    /// The expected result, and the bytes received.
    pub expected: Vec<u8>,
    pub got: Vec<u8>,
    pub length: u64,
    pub fence: bool,
}

/// The memory of a side.
#[derive(Debug, Default)]
pub struct Remote {
    pub regions: Regions,
    pub own: Vec<Own>,
    pub theirs: Vec<Theirs>,
    pub running: BTreeMap<u64, Running>,
    pub ended: Vec<(u64, Running, Outcome)>,
    pub copies: Vec<RemoteCopy>,
    /// Revoked regions of the other side to which this side still has direct access.
    pub forgets: Vec<Key>,
    /// Whether direct access stops at once.
    pub slow: bool,
    pub writes: u64,
}

impl Remote {
    /// The bytes of a region that a peer accesses.
    fn reached(&mut self, region: u64, at: u64, length: usize) -> Result<&mut [u8], Status> {
        let own = &mut self.own[region as usize];
        assert!(!own.ended && !own.revoked, "an access after the end");
        let bytes = &mut own.bytes[at as usize..at as usize + length];
        if at as usize + length <= own.left { Ok(bytes) } else { Err(Status::OutOfBounds) }
    }
}

impl Memory for Side {
    fn regions(&mut self) -> &mut Regions {
        &mut self.remote.regions
    }

    fn region_write(&mut self, region: u64, at: u64, bytes: &[u8]) -> Result<(), Status> {
        assert!(!bytes.is_empty());
        self.remote.writes += 1;
        self.remote.reached(region, at, bytes.len()).map(|into| into.copy_from_slice(bytes))
    }

    fn region_read(&mut self, region: u64, at: u64, length: usize, put: PutBytes<'_>) -> Result<bool, Status> {
        let (front, back) = self.remote.reached(region, at, length)?.split_at(length / 3);
        Ok(put(&[front, back]))
    }

    fn region_atomic(&mut self, region: u64, at: u64, atomic: &Atomic<'_>, result: &mut [u8]) -> Result<(), Status> {
        atomic.apply(self.remote.reached(region, at, atomic.length())?, result).map_err(|_| Status::InvalidAtomic)
    }

    fn region_address(&mut self, region: u64, at: u64, _: u64) -> RemoteAddress {
        if at.is_multiple_of(3) { RemoteAddress::default() } else { RemoteAddress { address: region + 1, key: at } }
    }

    fn region_mapping(&mut self, region: u64) -> RemoteAddress {
        let own = &self.remote.own[region as usize];
        assert!(!own.ended && !own.revoked, "shown after the end");
        RemoteAddress { address: region + 1, key: 9 }
    }

    fn copy_remote(&mut self, request: RemoteCopy) {
        self.remote.copies.push(request);
    }

    fn stop_direct_access(&mut self, key: Key) -> bool {
        self.remote.slow = !self.remote.slow;
        if self.remote.slow {
            self.remote.forgets.push(key);
        }
        !self.remote.slow
    }

    fn region_released(&mut self, region: u64) {
        let own = &mut self.remote.own[region as usize];
        assert!(own.revoked && !own.ended, "ends once, after it was revoked");
        own.ended = true;
    }
}

impl Side {
    /// Handles the completion of an RMA operation. Returns false for other operations.
    pub fn remote_completed(&mut self, operation: u64, outcome: Outcome) -> bool {
        let Some(running) = self.remote.running.remove(&operation) else { return false };
        if running.fence {
            let earlier = self.remote.running.range(..operation).next();
            assert!(earlier.is_none(), "{operation} ends before {earlier:?}");
        }
        self.remote.ended.push((operation, running, outcome));
        true
    }

    /// Handles bytes for an RMA operation. Returns false for other operations.
    pub fn remote_place(&mut self, operation: u64, at: u64, bytes: &[u8]) -> bool {
        let Some(running) = self.remote.running.get_mut(&operation) else { return false };
        assert!(at == running.got.len() as u64 && !bytes.is_empty());
        running.got.extend(bytes);
        assert!(running.got.len() as u64 <= running.length, "it fits");
        true
    }
}
