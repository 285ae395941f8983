//! Gets, puts and atomics on the regions of peers: how they begin.
//!
//! Each is an operation. One that is refused has no effect and returns its memory, so that it can be tried again. What follows the beginning is in the
//! protocol (`motet_proto::message::rma`), direct access in [`super::regions::mapped`], and the memory of this node's regions in [`super::regions`].

use super::message_state::LinkCallbacks;
use super::node_state::NodeState;
use super::operations::{self, CompletionOptions, OperationKind};
use super::packets::PacketTx;
use super::regions::{Atomic, Key, MIN_SINGLE_COPY_BYTES};
use super::{Error, LinkId, Node, OperationId};
use motet_proto::message::packet::RemoteAddress;
use motet_proto::message::rma::format::{ACCESS_HEAD_BYTES, MAX_REPLY_BYTES};
use motet_proto::message::{Get, Link, Packets, Put, Rejected, Update};
use motet_sys::user_memory::OperationMemory;

/// A position in a region of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The link to the peer.
    pub link: LinkId,
    /// The peer's key.
    pub key: Key,
    /// Offset from the region's beginning, bytes.
    pub offset: u64,
}

/// How much a link carries in one packet of an operation on regions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteLimits {
    /// Longest put whose bytes are free when the call returns, and which is in order with other short operations.
    pub put: usize,
    /// Most bytes of an atomic's operands, including those that it compares with.
    pub operands: usize,
    /// Most bytes of previous values that an atomic returns. Gets of up to so many bytes are in order with other short operations.
    pub fetched: usize,
}

impl Node {
    /// Begins to write bytes into a region of the peer. The operation completes when they are there. Memory that fits a packet ([`RemoteLimits::put`]) is
    /// free when this returns.
    pub fn put(&self, at: Target, memory: OperationMemory, options: CompletionOptions) -> Result<OperationId, Error> {
        self.lock()?.begin_put(at, memory, options).map_err(|(error, _)| error)
    }

    /// Begins to write bytes into a region of the peer as [`Node::put`] does, and waits until there is room.
    pub fn put_until(
        &self,
        at: Target,
        memory: OperationMemory,
        options: CompletionOptions,
        deadline: Option<u64>,
    ) -> Result<OperationId, Error> {
        self.begin_until(memory, deadline, |node, memory| node.begin_put(at, memory, options))
    }

    /// Begins to read bytes of a region of the peer, as many as fit into the memory.
    pub fn get(&self, at: Target, memory: OperationMemory, options: CompletionOptions) -> Result<OperationId, Error> {
        self.lock()?.begin_get(at, memory, options).map_err(|(error, _)| error)
    }

    /// Begins to read bytes of a region of the peer as [`Node::get`] does, and waits until there is room.
    pub fn get_until(
        &self,
        at: Target,
        memory: OperationMemory,
        options: CompletionOptions,
        deadline: Option<u64>,
    ) -> Result<OperationId, Error> {
        self.begin_until(memory, deadline, |node, memory| node.begin_get(at, memory, options))
    }

    /// Begins an atomic on a region of the peer. Memory that is not empty gets the previous values.
    pub fn atomic(
        &self,
        at: Target,
        atomic: &Atomic<'_>,
        fetched: OperationMemory,
        options: CompletionOptions,
    ) -> Result<OperationId, Error> {
        self.lock()?.begin_atomic(at, atomic, fetched, options).map_err(|(error, _)| error)
    }

    /// Begins an atomic on a region of the peer as [`Node::atomic`] does, and waits until there is room.
    pub fn atomic_until(
        &self,
        at: Target,
        atomic: &Atomic<'_>,
        fetched: OperationMemory,
        options: CompletionOptions,
        deadline: Option<u64>,
    ) -> Result<OperationId, Error> {
        self.begin_until(fetched, deadline, |node, fetched| node.begin_atomic(at, atomic, fetched, options))
    }

    /// Begins a fence, which completes when all puts, gets and atomics that were begun before it on this link have completed.
    pub fn fence(&self, link: LinkId, options: CompletionOptions) -> Result<OperationId, Error> {
        let mut node = self.lock()?;
        let operation =
            operations::Operation::new(OperationMemory::Owned(Vec::new()), OperationKind::Send(None), None, options);
        let name = node.messages.operations.begin(operation)?;
        let begun = node.with_link(link, |proto, _, callbacks| proto.fence(callbacks, u64::from(name.0)));
        node.withdraw_on_error(name, begun)
    }

    /// How much a link carries in one packet of an operation on regions.
    pub fn remote_limits(&self, link: LinkId) -> Result<RemoteLimits, Error> {
        self.lock()?.with_link(link, |proto, packets, _| {
            Ok(RemoteLimits {
                put: proto.put_at_once(packets),
                operands: packets.largest() - ACCESS_HEAD_BYTES,
                fetched: MAX_REPLY_BYTES,
            })
        })
    }

    /// Begins an operation as soon as there is room.
    fn begin_until(
        &self,
        memory: OperationMemory,
        deadline: Option<u64>,
        mut begin: impl FnMut(&mut NodeState, OperationMemory) -> BeginResult,
    ) -> Result<OperationId, Error> {
        let mut left = Some(memory);
        self.wait(self.lock()?, deadline, |node| match begin(node, left.take()?) {
            Ok(operation) => Some(Ok(operation)),
            Err((Error::WouldBlock, memory)) => {
                left = Some(memory);
                None
            }
            Err((error, _)) => Some(Err(error)),
        })?
    }
}

/// The operation that has begun; or why it has not, and its memory.
pub(super) type BeginResult = Result<OperationId, (Error, OperationMemory)>;

impl NodeState {
    fn begin_put(&mut self, at: Target, memory: OperationMemory, options: CompletionOptions) -> BeginResult {
        let memory = match self.put_mapped(at, memory, options) {
            Ok(done) => return done,
            Err(memory) => memory,
        };
        let Target { link, key, offset } = at;
        let place = self.address_for_peer(link, &memory);
        self.begin_with(link, memory, options, |proto, packets, memory, operation| {
            let body = [memory.bytes(0, usize::MAX)];
            proto.put(packets, &Put { key, offset, body: &body, operation, place }).map(drop)
        })
    }

    fn begin_get(&mut self, at: Target, memory: OperationMemory, options: CompletionOptions) -> BeginResult {
        let memory = match self.get_mapped(at, memory, options) {
            Ok(done) => return done,
            Err(memory) => memory,
        };
        let Target { link, key, offset } = at;
        let length = memory.len() as u64;
        let direct = length >= MIN_SINGLE_COPY_BYTES && self.can_read_memory_of(link);
        self.begin_with(link, memory, options, |proto, packets, _, operation| {
            proto.get(packets, &Get { key, offset, length, operation, direct })
        })
    }

    fn begin_atomic(
        &mut self,
        at: Target,
        atomic: &Atomic<'_>,
        fetched: OperationMemory,
        options: CompletionOptions,
    ) -> BeginResult {
        let fetch = !fetched.is_empty();
        if fetch && fetched.len() < atomic.length() {
            return Err((Error::TooLong, fetched));
        }
        let fetched = match self.atomic_mapped(at, atomic, fetched, options) {
            Ok(done) => return done,
            Err(fetched) => fetched,
        };
        let Target { link, key, offset } = at;
        self.begin_with(link, fetched, options, |proto, packets, _, operation| {
            proto.atomic(packets, &Update { key, offset, atomic: *atomic, fetch, operation })
        })
    }

    /// Begins an operation with a packet to the peer. The record gets the memory after the packet was put: the protocol does not touch the record of an
    /// operation that begins.
    #[inline(always)]
    fn begin_with(
        &mut self,
        link: LinkId,
        memory: OperationMemory,
        options: CompletionOptions,
        begin: impl FnOnce(&mut Link, &mut PacketTx<'_>, &OperationMemory, u64) -> Result<(), Rejected>,
    ) -> BeginResult {
        let record =
            operations::Operation::new(OperationMemory::Owned(Vec::new()), OperationKind::Send(None), None, options);
        let name = match self.messages.operations.begin(record) {
            Ok(name) => name,
            Err(error) => return Err((error, memory)),
        };
        let operation = u64::from(name.0);
        match self.with_link(link, |proto, packets, _| begin(proto, packets, &memory, operation)) {
            Ok(()) => {
                if let Some(record) = self.messages.operations.get(operation) {
                    record.memory = memory;
                }
                Ok(name)
            }
            Err(error) => {
                self.messages.operations.withdraw(name);
                Err((error, memory))
            }
        }
    }

    /// The remote address from which the peer can copy these bytes, if they are many.
    fn address_for_peer(&mut self, link: LinkId, memory: &OperationMemory) -> RemoteAddress {
        let has_address = memory.len() as u64 >= MIN_SINGLE_COPY_BYTES && self.can_read_memory_of(link);
        if has_address { RemoteAddress { address: memory.address(), key: 0 } } else { RemoteAddress::default() }
    }

    /// Whether this side may copy out of the peer's memory, in which case the peer most likely may copy out of ours.
    fn can_read_memory_of(&mut self, link: LinkId) -> bool {
        self.link(link).is_ok_and(|(link_state, _)| link_state.shm().is_some_and(|shm| shm.pid != 0))
    }

    pub(super) fn with_link<R>(
        &mut self,
        link: LinkId,
        f: impl FnOnce(&mut Link, &mut PacketTx<'_>, &mut LinkCallbacks<'_>) -> Result<R, Rejected>,
    ) -> Result<R, Error> {
        let (link_state, messages) = self.link(link)?;
        let result = link_state.with(link, messages, f);
        self.flush_link(link);
        result.map_err(|rejection| self.link_error(link, rejection))
    }

    /// The operation, if it has begun; otherwise removes its record.
    pub(super) fn withdraw_on_error(
        &mut self,
        name: OperationId,
        begun: Result<(), Error>,
    ) -> Result<OperationId, Error> {
        if begun.is_err() {
            self.messages.operations.withdraw(name);
        }
        begun.map(|()| name)
    }
}
