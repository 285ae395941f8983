//! Regions in memory that both ends see: got, put and changed by the processor's own loads and stores.
//!
//! What it is: regions that a node makes in memory of its pool ([`Node::alloc_region`]), and what a peer does that has asked where one lies
//! ([`Node::open_region`]): from then on its gets, puts and atomics need no packet and no help of the owner. Key, rights and bounds are
//! checked here, at each access, against what the owner has said; they keep an honest program from mistakes. What keeps a hostile one
//! out is the kernel: each region has a segment of its own, one without PUT and ATOMIC in its rights cannot be written, and when it is
//! revoked its memory is never used for anything else.
//!
//! What it is not: packets to and from regions belong to [`crate::message::regions`]. An access waits behind nothing, so while this side has
//! operations under way as packets on the link, it makes further ones like that, too: all take effect in the order of their beginning.

use super::bytes::Bytes;
use super::local::LocalRegion;
use super::segments::MappedRegion;
use super::{Atomic, Key, Rights, SharedBytes};
use crate::message::node_state::NodeState;
use crate::message::operations::{Kind, Operation};
use crate::message::rma::Begun;
use crate::message::rma::Target;
use crate::message::{CompletionOptions, Error, LinkId, Node, OperationId, Status};
use motet_proto::message::Outcome;
use motet_proto::message::rma::format::{REGION_INFO_BYTES, RegionInfo};
use motet_sys::shm_pool::PeerMapping;
use motet_sys::user_memory::OperationMemory;
use std::sync::Arc;

/// A region of a peer's that is mapped here as long as this, revoked or not.
///
/// Who loads and stores by its address does so behind the engine's back: in no order with operations under way, without checks of
/// rights and bounds, and after the region was revoked in memory that is no longer used.
#[derive(Debug)]
pub struct Mapped {
    link: LinkId,
    key: Key,
    rights: Rights,
    view: SharedBytes,
    _window: Arc<PeerMapping>,
}

impl Mapped {
    /// The peer's key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Over which link.
    pub fn link(&self) -> LinkId {
        self.link
    }

    /// What may be done. Without PUT and ATOMIC a store is a fault (SIGSEGV).
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Its bytes.
    pub fn view(&self) -> SharedBytes {
        self.view
    }
}

impl Node {
    /// Makes a region of zeros in memory that peers of this host may map: peers that get the key may use it as `rights` say, as
    /// any region, and directly once they have opened it. It is this node's until [`Node::revoke`]; the view shows zeros after that.
    pub fn alloc_region(&self, size: usize, rights: Rights) -> Result<(SharedBytes, Key), Error> {
        let mut node = self.lock()?;
        let writable = rights.include(Rights::PUT) || rights.include(Rights::ATOMIC);
        let segment = node.messages.pool.segment(size, writable).map_err(|_| Error::Full)?;
        let view = segment.view(size).ok_or(Error::Full)?;
        let host = LocalRegion { bytes: Bytes::Memory(view), first: 0, keep: None, segment: Some(segment) };
        node.messages.local_regions.add(host, rights).map(|key| (view, key))
    }

    /// Asks the peer where a region lies. True: it is used directly from now on, until the peer revokes it. False: where the peer or the
    /// system does not let us see it, everything goes by packets as before.
    pub fn open_region(&self, link: LinkId, key: Key, deadline: Option<u64>) -> Result<bool, Error> {
        let mut node = self.lock()?;
        let (link_state, _) = node.link(link)?;
        if link_state.shm().is_none()
            || link_state.channel_table.segments.mapped_regions.iter().any(|direct| direct.key == key)
        {
            return Ok(link_state.shm().is_some());
        }
        link_state.channel_table.segments.looks.push((key, true));
        drop(node);
        let seen = self.look(link, key, deadline);
        let mut node = self.lock()?;
        let (link_state, _) = node.link(link)?;
        let segments = &mut link_state.channel_table.segments;
        let look = segments.looks.iter().position(|look| look.0 == key);
        let stands = look.is_some_and(|at| segments.looks.swap_remove(at).1);
        let RegionInfo { place, length, mut rights } = seen?;
        let Some((window, at)) = segments.window(place) else { return Ok(false) };
        let Some(view) = usize::try_from(at).ok().and_then(|at| window.view(at, usize::try_from(length).ok()?)) else {
            return Ok(false);
        };
        if !stands {
            return Err(Error::AccessDenied); // revoked while we asked
        }
        if !window.is_writable() {
            rights = Rights(rights.0 & Rights::GET.0);
        }
        segments.mapped_regions.push(MappedRegion { key, rights, view, window });
        Ok(true)
    }

    /// A region that is used directly, for those who go by its address; `None`: it is not, or not any more.
    pub fn mapped(&self, link: LinkId, key: Key) -> Result<Option<Mapped>, Error> {
        let mut node = self.lock()?;
        let (link_state, _) = node.link(link)?;
        let direct = link_state.channel_table.segments.mapped_regions.iter().find(|direct| direct.key == key);
        Ok(direct.map(|direct| Mapped {
            link,
            key,
            rights: direct.rights,
            view: direct.view,
            _window: direct.window.clone(),
        }))
    }

    fn look(&self, link: LinkId, key: Key, deadline: Option<u64>) -> Result<RegionInfo, Error> {
        let operation = self.wait(self.lock()?, deadline, |node| {
            let memory = OperationMemory::Owned(vec![0; REGION_INFO_BYTES]);
            let operation = Operation::new(memory, Kind::Send(None), None, CompletionOptions::default());
            let name = match node.messages.operations.begin(operation) {
                Ok(name) => name,
                Err(error) => return Some(Err(error)),
            };
            let begun = node.on_link(link, |proto, way, _| proto.query_region(way, key, u64::from(name.0)));
            match node.start_receive(name, begun) {
                Err(Error::WouldBlock) => None,
                begun => Some(begun),
            }
        })??;
        let end = self.wait_for(operation, deadline);
        let end = end.inspect_err(|_| self.let_end(operation))?;
        let gone = self.lock()?.gone(link);
        match Error::of_status(end.status, gone) {
            Some(error) => Err(error),
            None => end.memory.as_deref().and_then(RegionInfo::read).ok_or(Error::InvalidAtomic),
        }
    }

    /// Nobody asks for the end of an operation any more.
    fn let_end(&self, operation: OperationId) {
        if let Ok(mut node) = self.lock() {
            node.let_go_of(operation);
        }
    }

    /// Writes bytes into a region that is used directly. False, and nothing is done: it is not, or not now.
    #[inline]
    pub fn store(&self, link: LinkId, key: Key, offset: u64, bytes: &[u8]) -> Result<bool, Error> {
        let mut node = self.lock()?;
        let Some(view) = node.direct(link, key, Rights::PUT, offset, bytes.len()) else { return Ok(false) };
        view?.write(offset as usize, bytes).map_err(|_| Error::OutOfBounds)?;
        Ok(true)
    }

    /// Reads bytes of a region that is used directly. False, and nothing is done: it is not, or not now.
    #[inline]
    pub fn load(&self, link: LinkId, key: Key, offset: u64, into: &mut [u8]) -> Result<bool, Error> {
        let mut node = self.lock()?;
        let Some(view) = node.direct(link, key, Rights::GET, offset, into.len()) else { return Ok(false) };
        view?.read(offset as usize, into).map_err(|_| Error::OutOfBounds)?;
        Ok(true)
    }

    /// Does an atomic on a region that is used directly; `before` takes the values before, or is empty. False, and nothing is done:
    /// it is not, or not now.
    #[inline]
    pub fn change(
        &self,
        link: LinkId,
        key: Key,
        offset: u64,
        atomic: &Atomic<'_>,
        before: &mut [u8],
    ) -> Result<bool, Error> {
        let mut node = self.lock()?;
        atomic.check(offset, !before.is_empty()).map_err(|_| Error::InvalidAtomic)?;
        let Some(view) = node.direct(link, key, Rights::ATOMIC, offset, atomic.length()) else { return Ok(false) };
        atomic.apply_shared(&view?, offset as usize, before).map_err(|_| Error::InvalidAtomic)?;
        Ok(true)
    }
}

impl NodeState {
    /// A region for direct use, if it is open for that and nothing of ours is under way on the link; or why the access is refused.
    #[inline]
    pub(in crate::message) fn direct(
        &mut self,
        link: LinkId,
        key: Key,
        right: Rights,
        offset: u64,
        length: usize,
    ) -> Option<Result<SharedBytes, Error>> {
        let (link_state, _) = self.link(link).ok()?;
        let direct = link_state.channel_table.segments.mapped_regions.iter().find(|direct| direct.key == key)?;
        if link_state.proto.requests()[0] != 0 {
            return None;
        }
        let end = offset.checked_add(length as u64);
        Some(match (direct.rights.include(right), end) {
            (false, _) => Err(Error::AccessDenied),
            (true, Some(end)) if end <= direct.view.length() as u64 => Ok(direct.view),
            _ => Err(Error::OutOfBounds),
        })
    }

    /// Ends an operation that was done at once.
    fn done_directly(&mut self, operation: Operation, length: usize, result: Result<(), Error>) -> Begun {
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

    /// A put, if it can be done at once; otherwise its memory comes back.
    pub(in crate::message) fn put_directly(
        &mut self,
        at: Target,
        memory: OperationMemory,
        notice: CompletionOptions,
    ) -> Result<Begun, OperationMemory> {
        let Target { link, key, offset } = at;
        let length = memory.len();
        let Some(view) = self.direct(link, key, Rights::PUT, offset, length) else { return Err(memory) };
        let bytes = memory.bytes(0, length);
        let done = view.and_then(|view| view.write(offset as usize, bytes).map_err(|_| Error::OutOfBounds));
        Ok(self.done_directly(Operation::new(memory, Kind::Send(None), None, notice), length, done))
    }

    /// A get, if it can be done at once; otherwise its memory comes back.
    pub(in crate::message) fn get_directly(
        &mut self,
        at: Target,
        mut memory: OperationMemory,
        notice: CompletionOptions,
    ) -> Result<Begun, OperationMemory> {
        let Target { link, key, offset } = at;
        let length = memory.len();
        let Some(view) = self.direct(link, key, Rights::GET, offset, length) else { return Err(memory) };
        let done = view.and_then(|view| {
            memory.write(0, length, |into| view.read(offset as usize, into)).map_err(|_| Error::OutOfBounds)
        });
        Ok(self.done_directly(Operation::new(memory, Kind::Send(None), None, notice), length, done))
    }

    /// An atomic, if it can be done at once; otherwise its memory comes back.
    pub(in crate::message) fn change_directly(
        &mut self,
        at: Target,
        atomic: &Atomic<'_>,
        mut before: OperationMemory,
        notice: CompletionOptions,
    ) -> Result<Begun, OperationMemory> {
        let Target { link, key, offset } = at;
        let (length, fetch) = (atomic.length(), !before.is_empty());
        if atomic.check(offset, fetch).is_err() {
            return Err(before); // refused in the way of packets
        }
        let Some(view) = self.direct(link, key, Rights::ATOMIC, offset, length) else { return Err(before) };
        let done = view.and_then(|view| {
            let into = if fetch { length } else { 0 };
            before
                .write(0, into, |into| atomic.apply_shared(&view, offset as usize, into))
                .map_err(|_| Error::InvalidAtomic)
        });
        Ok(self.done_directly(Operation::new(before, Kind::Send(None), None, notice), length, done))
    }
}
