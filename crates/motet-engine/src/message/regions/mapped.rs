//! Regions in memory that both ends map: gets, puts and atomics are the processor's own loads and stores.
//!
//! A node makes such a region in memory of its pool ([`Node::alloc_region`]). A peer that has opened it ([`Node::open_region`]) needs no packet and no help
//! of the owner for its gets, puts and atomics. Key, rights and bounds are checked here at each access, against what the owner has reported: this protects an
//! honest program from mistakes. The kernel protects against a hostile one: each region has a segment of its own, a segment without PUT and ATOMIC in its
//! rights cannot be written, and the memory of a revoked region is never used for anything else.
//!
//! Packets to and from regions are handled in [`crate::message::regions`]. A direct access waits for nothing, so while this side has operations under way as
//! packets on the link, further ones go as packets, too: all take effect in the order in which they begin.

use super::bytes::RegionBytes;
use super::local::LocalRegion;
use super::segments::MappedRegion;
use super::{Atomic, Key, Rights, SharedBytes};
use crate::message::node_state::NodeState;
use crate::message::operations::{Operation, OperationKind};
use crate::message::rma::BeginResult;
use crate::message::rma::Target;
use crate::message::{CompletionOptions, Error, LinkId, Node, OperationId, Status};
use motet_proto::message::Outcome;
use motet_proto::message::rma::format::{REGION_INFO_BYTES, RegionInfo};
use motet_sys::shm_pool::PeerMapping;
use motet_sys::user_memory::OperationMemory;
use std::sync::Arc;

/// A region of a peer that stays mapped here as long as this value exists, even if it is revoked.
///
/// Loads and stores by its address bypass the engine: they have no order with operations under way, rights and bounds are not checked, and after the region
/// was revoked they reach memory that is not used any more.
#[derive(Debug)]
pub struct Mapped {
    link: LinkId,
    key: Key,
    rights: Rights,
    view: SharedBytes,
    _mapping: Arc<PeerMapping>,
}

impl Mapped {
    /// The peer's key of the region.
    pub fn key(&self) -> Key {
        self.key
    }

    /// The link to the owner of the region.
    pub fn link(&self) -> LinkId {
        self.link
    }

    /// The permitted accesses. Without PUT and ATOMIC a store is a fault (SIGSEGV).
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The bytes of the region.
    pub fn view(&self) -> SharedBytes {
        self.view
    }
}

impl Node {
    /// Makes a region of zeros in memory that peers of this host may map. Peers that get the key may access it as `rights` permit, like any region, and
    /// directly once they have opened it. The region exists until [`Node::revoke`]; the view shows zeros after that.
    pub fn alloc_region(&self, size: usize, rights: Rights) -> Result<(SharedBytes, Key), Error> {
        let mut node = self.lock()?;
        let writable = rights.include(Rights::PUT) || rights.include(Rights::ATOMIC);
        let segment = node.messages.pool.segment(size, writable).map_err(|_| Error::Full)?;
        let view = segment.view(size).ok_or(Error::Full)?;
        let region = LocalRegion { bytes: RegionBytes::Memory(view), first: 0, keep: None, segment: Some(segment) };
        node.messages.local_regions.add(region, rights).map(|key| (view, key))
    }

    /// Asks the peer for the address of a region, to access the region directly. True: it is accessed directly from now on, until the peer revokes it. False:
    /// the peer or the system does not let this process map it, and all accesses go as packets.
    pub fn open_region(&self, link: LinkId, key: Key, deadline: Option<u64>) -> Result<bool, Error> {
        let mut node = self.lock()?;
        let (link_state, _) = node.link(link)?;
        if link_state.shm().is_none()
            || link_state.channel_table.segments.mapped_regions.iter().any(|mapped| mapped.key == key)
        {
            return Ok(link_state.shm().is_some());
        }
        link_state.channel_table.segments.open_queries.push((key, true));
        drop(node);
        let seen = self.query_region(link, key, deadline);
        let mut node = self.lock()?;
        let (link_state, _) = node.link(link)?;
        let segments = &mut link_state.channel_table.segments;
        let query = segments.open_queries.iter().position(|query| query.0 == key);
        let is_valid = query.is_some_and(|at| segments.open_queries.swap_remove(at).1);
        let RegionInfo { place, length, mut rights } = seen?;
        let Some((mapping, at)) = segments.mapping_of(place) else { return Ok(false) };
        let Some(view) = usize::try_from(at).ok().and_then(|at| mapping.view(at, usize::try_from(length).ok()?)) else {
            return Ok(false);
        };
        if !is_valid {
            return Err(Error::AccessDenied); // revoked meanwhile
        }
        if !mapping.is_writable() {
            rights = Rights(rights.0 & Rights::GET.0);
        }
        segments.mapped_regions.push(MappedRegion { key, rights, view, mapping });
        Ok(true)
    }

    /// A region that is accessed directly, for loads and stores by its address; `None`: it is not accessed directly.
    pub fn mapped(&self, link: LinkId, key: Key) -> Result<Option<Mapped>, Error> {
        let mut node = self.lock()?;
        let (link_state, _) = node.link(link)?;
        let mapped = link_state.channel_table.segments.mapped_regions.iter().find(|mapped| mapped.key == key);
        Ok(mapped.map(|mapped| Mapped {
            link,
            key,
            rights: mapped.rights,
            view: mapped.view,
            _mapping: mapped.mapping.clone(),
        }))
    }

    fn query_region(&self, link: LinkId, key: Key, deadline: Option<u64>) -> Result<RegionInfo, Error> {
        let operation = self.wait(self.lock()?, deadline, |node| {
            let memory = OperationMemory::Owned(vec![0; REGION_INFO_BYTES]);
            let operation = Operation::new(memory, OperationKind::Send(None), None, CompletionOptions::default());
            let name = match node.messages.operations.begin(operation) {
                Ok(name) => name,
                Err(error) => return Some(Err(error)),
            };
            let begun = node.with_link(link, |proto, way, _| proto.query_region(way, key, u64::from(name.0)));
            match node.withdraw_on_error(name, begun) {
                Err(Error::WouldBlock) => None,
                begun => Some(begun),
            }
        })??;
        let end = self.wait_for(operation, deadline);
        let end = end.inspect_err(|_| self.discard_completion(operation))?;
        let gone = self.lock()?.gone(link);
        match Error::of_status(end.status, gone) {
            Some(error) => Err(error),
            None => end.memory.as_deref().and_then(RegionInfo::read).ok_or(Error::InvalidAtomic),
        }
    }

    /// Detaches an operation: its completion is discarded.
    fn discard_completion(&self, operation: OperationId) {
        if let Ok(mut node) = self.lock() {
            node.discard_completion(operation);
        }
    }

    /// Writes bytes into a region that is accessed directly. False, and nothing is done: it is not accessed directly, or operations are under way on the
    /// link.
    #[inline]
    pub fn store(&self, at: Target, bytes: &[u8]) -> Result<bool, Error> {
        let mut node = self.lock()?;
        let Some(view) = node.view_if_mapped(at, Rights::PUT, bytes.len()) else { return Ok(false) };
        view?.write(at.offset as usize, bytes).map_err(|_| Error::OutOfBounds)?;
        Ok(true)
    }

    /// Reads bytes of a region that is accessed directly. False, and nothing is done: it is not accessed directly, or operations are under way on the link.
    #[inline]
    pub fn load(&self, at: Target, into: &mut [u8]) -> Result<bool, Error> {
        let mut node = self.lock()?;
        let Some(view) = node.view_if_mapped(at, Rights::GET, into.len()) else { return Ok(false) };
        view?.read(at.offset as usize, into).map_err(|_| Error::OutOfBounds)?;
        Ok(true)
    }

    /// Applies an atomic to a region that is accessed directly; `fetched` gets the previous values, or is empty. False, and nothing is done: it is not
    /// accessed directly, or operations are under way on the link.
    #[inline]
    pub fn change(&self, at: Target, atomic: &Atomic<'_>, fetched: &mut [u8]) -> Result<bool, Error> {
        let mut node = self.lock()?;
        atomic.check(at.offset, !fetched.is_empty()).map_err(|_| Error::InvalidAtomic)?;
        let Some(view) = node.view_if_mapped(at, Rights::ATOMIC, atomic.length()) else {
            return Ok(false);
        };
        atomic.apply_shared(&view?, at.offset as usize, fetched).map_err(|_| Error::InvalidAtomic)?;
        Ok(true)
    }
}

impl NodeState {
    /// The bytes of a region for a direct access, or why the access is refused. `None`: the region is not accessed directly, or operations of this side are
    /// under way on the link.
    #[inline]
    pub(in crate::message) fn view_if_mapped(
        &mut self,
        at: Target,
        right: Rights,
        length: usize,
    ) -> Option<Result<SharedBytes, Error>> {
        let (link_state, _) = self.link(at.link).ok()?;
        let mapped = link_state.channel_table.segments.mapped_regions.iter().find(|mapped| mapped.key == at.key)?;
        if link_state.proto.requests()[0] != 0 {
            return None;
        }
        let end = at.offset.checked_add(length as u64);
        Some(match (mapped.rights.include(right), end) {
            (false, _) => Err(Error::AccessDenied),
            (true, Some(end)) if end <= mapped.view.length() as u64 => Ok(mapped.view),
            _ => Err(Error::OutOfBounds),
        })
    }

    /// Completes an operation that has been done by direct access.
    fn complete_at_once(&mut self, operation: Operation, length: usize, result: Result<(), Error>) -> BeginResult {
        let name =
            self.messages.operations.begin(operation).map_err(|error| (error, OperationMemory::Owned(Vec::new())))?;
        let (status, length) = match result {
            Ok(()) => (Status::Done, length as u64),
            Err(Error::AccessDenied) => (Status::AccessDenied, 0),
            Err(Error::InvalidAtomic) => (Status::InvalidAtomic, 0),
            Err(_) => (Status::OutOfBounds, 0),
        };
        self.messages.operations.complete(u64::from(name.0), Outcome { status, length });
        self.wake_waiters();
        Ok(name)
    }

    /// Does a put by direct access, if that is possible; otherwise returns its memory.
    pub(in crate::message) fn put_mapped(
        &mut self,
        at: Target,
        memory: OperationMemory,
        options: CompletionOptions,
    ) -> Result<BeginResult, OperationMemory> {
        let length = memory.len();
        let Some(view) = self.view_if_mapped(at, Rights::PUT, length) else { return Err(memory) };
        let bytes = memory.bytes(0, length);
        let done = view.and_then(|view| view.write(at.offset as usize, bytes).map_err(|_| Error::OutOfBounds));
        Ok(self.complete_at_once(Operation::new(memory, OperationKind::Send(None), None, options), length, done))
    }

    /// Does a get by direct access, if that is possible; otherwise returns its memory.
    pub(in crate::message) fn get_mapped(
        &mut self,
        at: Target,
        mut memory: OperationMemory,
        options: CompletionOptions,
    ) -> Result<BeginResult, OperationMemory> {
        let length = memory.len();
        let Some(view) = self.view_if_mapped(at, Rights::GET, length) else { return Err(memory) };
        let done = view.and_then(|view| {
            memory.write(0, length, |into| view.read(at.offset as usize, into)).map_err(|_| Error::OutOfBounds)
        });
        Ok(self.complete_at_once(Operation::new(memory, OperationKind::Send(None), None, options), length, done))
    }

    /// Does an atomic by direct access, if that is possible; otherwise returns its memory.
    pub(in crate::message) fn atomic_mapped(
        &mut self,
        at: Target,
        atomic: &Atomic<'_>,
        mut fetched: OperationMemory,
        options: CompletionOptions,
    ) -> Result<BeginResult, OperationMemory> {
        let (length, fetch) = (atomic.length(), !fetched.is_empty());
        if atomic.check(at.offset, fetch).is_err() {
            return Err(fetched); // the packet path refuses it
        }
        let Some(view) = self.view_if_mapped(at, Rights::ATOMIC, length) else { return Err(fetched) };
        let done = view.and_then(|view| {
            let into = if fetch { length } else { 0 };
            fetched
                .write(0, into, |into| atomic.apply_shared(&view, at.offset as usize, into))
                .map_err(|_| Error::InvalidAtomic)
        });
        Ok(self.complete_at_once(Operation::new(fetched, OperationKind::Send(None), None, options), length, done))
    }
}
