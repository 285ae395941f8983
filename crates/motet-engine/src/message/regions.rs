//! Regions: memory and parts of files of this process that peers access by key.
//!
//! The owner of the memory that is written copies: the target fetches the bytes of a put, and the initiator the bytes of a get, out of the other process's
//! memory if the system permits it. Otherwise the bytes are sent in packets. The protocol checks each access (`motet_proto::message::regions` and `rma`,
//! docs/messages.md). Gets, puts and atomics on the regions of peers begin in [`super::rma`]; regions over files are made in [`super::regions::files`].

pub(in crate::message) mod bytes;
pub mod files;
pub(in crate::message) mod local;
pub mod mapped;
pub mod segments;

use local::LocalRegion;

use super::message_state::{ChannelTable, LinkCallbacks, MessageState};
use super::node_state::NodeState;
use super::regions::bytes::RegionBytes;
use super::{Error, Node};
pub use motet_proto::message::atomic::{Atomic, Datatype, Operation};
pub use motet_proto::message::regions::{Key, Rights};

use motet_proto::message::Status;
use motet_proto::message::packet::RemoteAddress;
use motet_proto::message::regions::{Regions, Revoked};
use motet_proto::message::rma::{CopyTo, Memory as Remote, PutBytes, RemoteCopy};
pub use motet_wire::shared_memory::SharedBytes;
use std::any::Any;

/// Shortest put or get that is copied out of the other side's memory, bytes. It is less than for messages, whose pieces have a ring.
pub const MIN_SINGLE_COPY_BYTES: u64 = 16 << 10;
/// Longest piece of a region that is read into a buffer on the stack, bytes.
const READ_BUFFER_BYTES: usize = 4096;

impl Remote for LinkCallbacks<'_> {
    fn regions(&mut self) -> &mut Regions {
        &mut self.messages.local_regions.regions
    }

    fn region_write(&mut self, region: u64, at: u64, bytes: &[u8]) -> Result<(), Status> {
        let (region, at) = self.messages.local_regions.access(region, at)?;
        region.write(at, bytes)
    }

    fn region_read(&mut self, region: u64, at: u64, length: usize, put: PutBytes<'_>) -> Result<bool, Status> {
        let (mut short, mut long) = ([0; READ_BUFFER_BYTES], Vec::new());
        let bytes = match short.get_mut(..length) {
            Some(bytes) => bytes,
            None => {
                long.resize(length, 0);
                &mut long[..]
            }
        };
        let (region, at) = self.messages.local_regions.access(region, at)?;
        region.read(at, bytes)?;
        Ok(put(&[bytes]))
    }

    fn region_atomic(&mut self, region: u64, at: u64, atomic: &Atomic<'_>, result: &mut [u8]) -> Result<(), Status> {
        let (region, at) = self.messages.local_regions.access(region, at)?;
        region.apply_atomic(at, atomic, result)
    }

    fn region_address(&mut self, region: u64, at: u64, length: u64) -> RemoteAddress {
        if length < self.channel_table.single_copy {
            return RemoteAddress::default();
        }
        let address = self.messages.local_regions.locate(region, at).and_then(|(bytes, at)| bytes.address(at, length));
        address.map_or(RemoteAddress::default(), |address| RemoteAddress { address, key: 0 })
    }

    fn region_mapping(&mut self, region: u64) -> RemoteAddress {
        let segment = self.messages.local_regions.get(region).and_then(|region| region.segment.clone());
        let place =
            segment.and_then(|segment| self.channel_table.segments.address_for_peer(&segment, segment.address()));
        place.unwrap_or_default()
    }

    fn copy_remote(&mut self, request: RemoteCopy) {
        self.channel_table.remote_copies.push_back((request, 0));
    }

    fn stop_direct_access(&mut self, key: Key) -> bool {
        self.channel_table.segments.forget_region(key);
        true // nothing is under way: direct access to a region happens under the node's lock
    }

    fn region_released(&mut self, region: u64) {
        finish_region(self.messages, region);
    }
}

/// Releases the memory of a revoked region that no access uses any more.
fn finish_region(messages: &mut MessageState, region: u64) {
    let Some(LocalRegion { bytes, keep, segment, .. }) = messages.local_regions.remove(region) else { return };
    messages.deferred_drops.extend(keep);
    if bytes.file().is_some() {
        messages.deferred_drops.push(Box::new(bytes)); // to be closed without the node's lock
    }
    if segment.is_some() {
        messages.pool.note_released();
    }
    messages.wake_pending = true; // a thread may wait for this
}

/// Copies bytes of a remote copy out of the peer's memory: up to `length`, from byte `done` of the request on. Returns how many; `None`: they cannot be
/// copied.
pub(super) fn copy_remote_part(
    messages: &mut MessageState,
    pid: u32,
    request: &RemoteCopy,
    done: u64,
    length: usize,
) -> Option<u64> {
    let from = request.from.address.checked_add(done)?;
    if pid == 0 {
        return None;
    }
    let copied = match request.to {
        CopyTo::Operation(operation) => {
            let operation = messages.operations.get(operation)?;
            operation.memory.write(done as usize, length, |into| motet_sys::process_vm::read_from(pid, from, into)).ok()
        }
        CopyTo::Region { region, at, .. } => {
            let (region, at) = messages.local_regions.locate(region, at + done)?;
            region.copy_from(pid, from, at, length)
        }
    };
    copied.filter(|&copied| copied > 0).map(|copied| copied as u64)
}

impl Node {
    /// Registers memory as a region: peers that get the key may access it as `rights` permit. `keep` is dropped when no access uses the memory any more. For
    /// atomics the memory must begin at a multiple of 8.
    pub fn register(
        &self,
        memory: SharedBytes,
        rights: Rights,
        keep: Option<Box<dyn Any + Send>>,
    ) -> Result<Key, Error> {
        let mut node = self.lock()?;
        if rights.include(Rights::ATOMIC) && !memory.base().addr().is_multiple_of(8) {
            return Err(Error::InvalidAtomic);
        }
        node.messages
            .local_regions
            .add(LocalRegion { bytes: RegionBytes::Memory(memory), first: 0, keep, segment: None }, rights)
    }

    /// Registers memory as a region whose bytes peers count from `first` on, which may be its address. The memory may begin anywhere: an atomic is refused if
    /// its elements are not at multiples of their size.
    pub fn register_from(&self, memory: SharedBytes, first: u64, rights: Rights) -> Result<Key, Error> {
        self.lock()?
            .messages
            .local_regions
            .add(LocalRegion { bytes: RegionBytes::Memory(memory), first, keep: None, segment: None }, rights)
    }

    /// Revokes a region: no access begins any more. Waits until none is under way and every peer that could have direct access has answered or has lost its
    /// link. Then the memory is the caller's alone.
    ///
    /// Errors: [`Error::TimedOut`], and [`Error::WouldBlock`] in a handler: the memory is still in use, and the call must be repeated. [`Error::Unknown`]:
    /// there is no such region, or it has ended meanwhile.
    pub fn revoke(&self, key: Key, deadline: Option<u64>) -> Result<(), Error> {
        let mut node = self.lock()?;
        let (name, revoked) = node.messages.local_regions.regions.name(key).ok_or(Error::Unknown)?;
        if !revoked {
            node.revoke(key, name);
        }
        self.wait(node, deadline, |node| node.messages.local_regions.regions.name(key).is_none().then_some(()))
    }
}

impl NodeState {
    fn revoke(&mut self, key: Key, name: u64) {
        let segment = self.messages.local_regions.get(name).and_then(|region| region.segment.clone());
        for link in self.links.all() {
            let Ok((link_state, messages)) = self.link(link) else { continue };
            // A peer that never got its address has nothing to answer, and is not waited for.
            if segment.as_ref().is_some_and(|segment| link_state.channel_table.segments.is_announced(segment)) {
                // A link that is gone has no access.
                let _ = link_state.with(link, messages, |proto, _, callbacks| proto.revoke(callbacks, key));
                self.flush_link(link);
            }
        }
        if self.messages.local_regions.regions.revoke(key) == Some(Revoked::Ended) {
            finish_region(&mut self.messages, name);
        }
    }
}

impl ChannelTable {
    /// The next remote copy, and how many of its bytes are copied.
    pub fn remote_copy(&self) -> Option<(RemoteCopy, u64)> {
        self.remote_copies.front().copied()
    }
}
