//! The owner of the honest side of a link to a hostile peer: it trusts nothing that messages contain, and checks that the protocol lets
//! no invalid access through. The hostile peer is in [`super::hostile`].

use crate::simulation::Side;
use motet_proto::message::atomic::Atomic;
use motet_proto::message::matching::Table;
use motet_proto::message::packet::RemoteAddress;
use motet_proto::message::rma::{CopyTo, PutBytes, RemoteCopy};
use motet_proto::message::{
    Arrival, AssistRequest, Callbacks, ChannelId, CopyRequest, Envelope, Event, Key, Memory, Outcome, Regions, Status,
    UnexpectedMessage,
};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An owner that trusts nothing that messages contain.
#[derive(Debug)]
pub struct Wary {
    pub side: Side,
    pub held: Vec<UnexpectedMessage>,
    pub copies: Vec<CopyRequest>,
    pub offers: Vec<ChannelId>,
    /// Operations in progress, and the number of those that completed.
    pub operations: Vec<u64>,
    pub memory: Ours,
}

/// Accesses that forged packets have made, and copies that they have started: there must be many, or nothing was tested.
pub static ACCESSES: AtomicU64 = AtomicU64::new(0);
pub static COPIES: AtomicU64 = AtomicU64::new(0);
/// Copies that this side has assisted.
pub static SHARED: AtomicU64 = AtomicU64::new(0);
/// Bytes of every region, and of every get.
pub const REGION: u64 = 3000;

/// Regions of the honest side.
#[derive(Debug, Default)]
pub struct Ours {
    pub regions: Regions,
    pub keys: Vec<Key>,
    /// Names of regions that were revoked, and that have ended.
    pub revoked: Vec<u64>,
    pub ended: Vec<u64>,
    pub copies: Vec<RemoteCopy>,
    pub forgets: Vec<Key>,
    pub next: u64,
}

impl Ours {
    fn reached(&self, region: u64, at: u64, length: u64) {
        ACCESSES.fetch_add(1, Relaxed);
        assert!(!self.revoked.contains(&region), "an access after the end");
        assert!(region < self.next && at.checked_add(length).is_some_and(|end| end <= REGION), "inside");
    }

    /// Some of the memory is gone, or refuses accesses.
    fn lost(&self, region: u64, at: u64) -> Result<(), Status> {
        match (region % 4, at) {
            (3, 64..) => Err(Status::OutOfBounds),
            (2, 1000..) => Err(Status::AccessDenied),
            _ => Ok(()),
        }
    }
}

impl Memory for Wary {
    fn regions(&mut self) -> &mut Regions {
        &mut self.memory.regions
    }

    fn region_write(&mut self, region: u64, at: u64, bytes: &[u8]) -> Result<(), Status> {
        self.memory.reached(region, at, bytes.len() as u64);
        self.memory.lost(region, at)
    }

    fn region_read(&mut self, region: u64, at: u64, length: usize, put: PutBytes<'_>) -> Result<bool, Status> {
        self.memory.reached(region, at, length as u64);
        self.memory.lost(region, at)?;
        Ok(put(&[&vec![0; length]]))
    }

    fn region_atomic(&mut self, region: u64, at: u64, atomic: &Atomic<'_>, result: &mut [u8]) -> Result<(), Status> {
        self.memory.reached(region, at, atomic.length() as u64);
        assert_eq!(at % atomic.datatype.size() as u64, 0);
        assert_eq!(atomic.apply(&mut vec![0; atomic.length()], result), Ok(()), "it was checked");
        self.memory.lost(region, at)
    }

    fn region_mapping(&mut self, region: u64) -> RemoteAddress {
        RemoteAddress { address: region + 1, key: 1 }
    }

    fn region_address(&mut self, region: u64, at: u64, length: u64) -> RemoteAddress {
        self.memory.reached(region, at, length);
        RemoteAddress { address: at % 2, key: 1 }
    }

    fn copy_remote(&mut self, request: RemoteCopy) {
        assert!(request.from.address != 0);
        match request.to {
            CopyTo::Operation(operation) => assert!(self.operations.contains(&operation) && request.length <= REGION),
            CopyTo::Region { region, at } => self.memory.reached(region, at, request.length),
        }
        COPIES.fetch_add(1, Relaxed);
        self.memory.copies.push(request);
    }

    fn stop_direct_access(&mut self, key: Key) -> bool {
        self.memory.forgets.push(key);
        key.0.is_multiple_of(2)
    }

    fn region_released(&mut self, region: u64) {
        assert!(self.memory.revoked.contains(&region) && !self.memory.ended.contains(&region));
        let held = |copy: &RemoteCopy| matches!(copy.to, CopyTo::Region { region: name, .. } if name == region);
        assert!(!self.memory.copies.iter().any(held), "a region stays while it is copied to");
        self.memory.ended.push(region);
    }
}

impl Callbacks for Wary {
    type Buffer = ();
    fn matching(&mut self) -> &mut Table {
        &mut self.side.table
    }

    fn deliver(&mut self, envelope: &Envelope<'_>, arrival: Arrival<'_>) {
        match arrival {
            Arrival::Whole(body) => assert_eq!(body.len() as u64, envelope.length),
            Arrival::Long(held) => self.held.push(held),
        }
    }

    fn matched(&mut self, operation: u64, _: &Envelope<'_>) {
        assert!(self.operations.contains(&operation));
    }

    fn place(&mut self, operation: u64, at: u64, bytes: &[u8]) {
        assert!(self.operations.contains(&operation) && at + bytes.len() as u64 <= REGION);
    }

    fn copy(&mut self, request: CopyRequest) {
        assert!(request.length <= 100 && request.address != 0);
        self.copies.push(request);
    }

    fn assist_copy(&mut self, request: AssistRequest) {
        assert!(self.operations.contains(&request.operation) && request.shared.length <= 5000);
        SHARED.fetch_add(1, Relaxed);
    }

    fn body(&mut self, operation: u64, at: u64, length: usize, put: &mut dyn FnMut(&[&[u8]]) -> bool) -> bool {
        assert!(self.operations.contains(&operation) && at + length as u64 <= 5000);
        put(&[&vec![0; length]])
    }

    fn completed(&mut self, operation: u64, _: Outcome) {
        let at = self.operations.iter().position(|&known| known == operation).expect("completes once");
        self.operations.swap_remove(at);
    }

    fn event(&mut self, channel: ChannelId, event: Event) {
        if let Event::Offered(_) = event {
            self.offers.push(channel);
        }
    }

    fn unblocked(&mut self) {}
}
