//! The memory of this node's regions, by the name that the protocol uses for each.

use super::bytes::RegionBytes;
use super::{Key, Rights};
use crate::message::Error;
use motet_proto::message::Status;
use motet_proto::message::regions::Regions;
use motet_proto::message::slab::{Slab, SlabId};
use motet_sys::memory;
use motet_sys::shm_pool::PoolSegment;
use std::any::Any;
use std::sync::Arc;

/// The memory of all regions of a node.
#[derive(Default)]
pub struct LocalRegions {
    /// The protocol's table.
    pub regions: Regions,
    slots: Slab<LocalRegion>,
}

/// The memory of one region.
pub struct LocalRegion {
    /// The storage.
    pub bytes: RegionBytes,
    /// The offset by which peers name the first byte: 0, or for some regions its address.
    pub first: u64,
    /// A value that is dropped when the region has ended.
    pub keep: Option<Box<dyn Any + Send>>,
    /// The segment of the pool that holds the bytes, if peers may map them.
    pub segment: Option<Arc<PoolSegment>>,
}

impl LocalRegions {
    /// The memory of a region, by the name that the protocol uses for it.
    pub(in crate::message) fn get(&mut self, region: u64) -> Option<&mut LocalRegion> {
        self.slots.get_by_id(SlabId(region as u32))
    }

    /// Removes the memory of a region that has ended.
    pub(in crate::message) fn remove(&mut self, region: u64) -> Option<LocalRegion> {
        self.slots.find(SlabId(region as u32)).and_then(|index| self.slots.remove(index))
    }

    /// Adds a region.
    pub(in crate::message) fn add(&mut self, memory_of: LocalRegion, rights: Rights) -> Result<Key, Error> {
        let (first, length) = (memory_of.first, memory_of.bytes.length());
        let name = self.slots.insert(memory_of).ok_or(Error::Full)?;
        let key = memory::random_u64().map_err(Error::NoNode).and_then(|random| {
            self.regions.register_from(u64::from(name.0), first, length, rights, random).ok_or(Error::Full)
        });
        if key.is_err() {
            self.slots.remove(name.index());
        }
        key
    }

    /// The bytes of a region, and the position among them of the byte that peers name `at`. The protocol has checked the bounds.
    #[inline]
    pub(in crate::message) fn locate(&mut self, region: u64, at: u64) -> Option<(&RegionBytes, u64)> {
        self.get(region).map(|memory_of| (&memory_of.bytes, at.wrapping_sub(memory_of.first)))
    }

    /// The bytes of a region for a remote access, or why the access is refused.
    #[inline]
    pub(in crate::message) fn access(&mut self, region: u64, at: u64) -> Result<(&RegionBytes, u64), Status> {
        self.locate(region, at).ok_or(Status::AccessDenied)
    }
}
