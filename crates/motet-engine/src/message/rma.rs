//! Gets, puts and atomics on the regions of peers: how they begin.
//!
//! Each is an operation. One that is refused has no effect and returns its memory, so that it can be tried again. What follows the beginning is in the
//! protocol (`motet_proto::message::rma`), direct access in [`super::regions::mapped`], and the memory of this node's regions in [`super::regions`].

use super::message_state::LinkCallbacks;
use super::node_state::NodeState;
use super::operations::{self, CompletionOptions, Kind};
use super::packets::PacketTx;
use super::regions::{Atomic, COPY, Key};
use super::{Error, LinkId, Node, OperationId};
use motet_proto::message::packet::RemoteAddress;
use motet_proto::message::rma::format::{AT, MAX_REPLY_BYTES};
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
    pub fn put(
        &self,
        link: LinkId,
        key: Key,
        offset: u64,
        memory: OperationMemory,
        options: CompletionOptions,
    ) -> Result<OperationId, Error> {
        self.lock()?.begin_put(Target { link, key, offset }, memory, options).map_err(|(error, _)| error)
    }

    /// Begins to write bytes into a region of the peer as [`Node::put`] does, and waits until there is room.
    pub fn put_by(
        &self,
        at: Target,
        memory: OperationMemory,
        options: CompletionOptions,
        deadline: Option<u64>,
    ) -> Result<OperationId, Error> {
        self.begin_by(memory, deadline, |node, memory| node.begin_put(at, memory, options))
    }

    /// Begins to read bytes of a region of the peer, as many as fit into the memory.
    pub fn get(
        &self,
        link: LinkId,
        key: Key,
        offset: u64,
        memory: OperationMemory,
        options: CompletionOptions,
    ) -> Result<OperationId, Error> {
        self.lock()?.begin_get(Target { link, key, offset }, memory, options).map_err(|(error, _)| error)
    }

    /// Begins to read bytes of a region of the peer as [`Node::get`] does, and waits until there is room.
    pub fn get_by(
        &self,
        at: Target,
        memory: OperationMemory,
        options: CompletionOptions,
        deadline: Option<u64>,
    ) -> Result<OperationId, Error> {
        self.begin_by(memory, deadline, |node, memory| node.begin_get(at, memory, options))
    }

    /// Begins an atomic on a region of the peer. Memory that is not empty gets the previous values.
    pub fn atomic(
        &self,
        link: LinkId,
        key: Key,
        offset: u64,
        atomic: &Atomic<'_>,
        before: OperationMemory,
        options: CompletionOptions,
    ) -> Result<OperationId, Error> {
        self.lock()?.begin_atomic(Target { link, key, offset }, atomic, before, options).map_err(|(error, _)| error)
    }

    /// Begins an atomic on a region of the peer as [`Node::atomic`] does, and waits until there is room.
    pub fn atomic_by(
        &self,
        at: Target,
        atomic: &Atomic<'_>,
        before: OperationMemory,
        options: CompletionOptions,
        deadline: Option<u64>,
    ) -> Result<OperationId, Error> {
        self.begin_by(before, deadline, |node, before| node.begin_atomic(at, atomic, before, options))
    }

    /// Begins a fence, which completes when all puts, gets and atomics that were begun before it on this link have completed.
    pub fn fence(&self, link: LinkId, options: CompletionOptions) -> Result<OperationId, Error> {
        let mut node = self.lock()?;
        let operation = operations::Operation::new(OperationMemory::Owned(Vec::new()), Kind::Send(None), None, options);
        let name = node.messages.operations.begin(operation)?;
        let begun = node.on_link(link, |proto, _, callbacks| proto.fence(callbacks, u64::from(name.0)));
        node.start_receive(name, begun)
    }

    /// How much a link carries in one packet of an operation on regions.
    pub fn remote_limits(&self, link: LinkId) -> Result<RemoteLimits, Error> {
        self.lock()?.on_link(link, |proto, way, _| {
            Ok(RemoteLimits { put: proto.put_at_once(way), operands: way.largest() - AT, fetched: MAX_REPLY_BYTES })
        })
    }

    /// Begins an operation as soon as there is room.
    fn begin_by(
        &self,
        memory: OperationMemory,
        deadline: Option<u64>,
        mut begin: impl FnMut(&mut NodeState, OperationMemory) -> Begun,
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
pub(super) type Begun = Result<OperationId, (Error, OperationMemory)>;

impl NodeState {
    fn begin_put(&mut self, at: Target, memory: OperationMemory, options: CompletionOptions) -> Begun {
        let memory = match self.put_directly(at, memory, options) {
            Ok(done) => return done,
            Err(memory) => memory,
        };
        let Target { link, key, offset } = at;
        let place = self.place_of(link, &memory);
        self.begin_with(link, memory, options, |proto, way, memory, operation| {
            let body = [memory.bytes(0, usize::MAX)];
            proto.put(way, &Put { key, offset, body: &body, operation, place }).map(drop)
        })
    }

    fn begin_get(&mut self, at: Target, memory: OperationMemory, options: CompletionOptions) -> Begun {
        let memory = match self.get_directly(at, memory, options) {
            Ok(done) => return done,
            Err(memory) => memory,
        };
        let Target { link, key, offset } = at;
        let length = memory.len() as u64;
        let direct = length >= COPY && self.reads_memory_of(link);
        self.begin_with(link, memory, options, |proto, way, _, operation| {
            proto.get(way, &Get { key, offset, length, operation, direct })
        })
    }

    fn begin_atomic(
        &mut self,
        at: Target,
        atomic: &Atomic<'_>,
        before: OperationMemory,
        options: CompletionOptions,
    ) -> Begun {
        let fetch = !before.is_empty();
        if fetch && before.len() < atomic.length() {
            return Err((Error::TooLong, before));
        }
        let before = match self.change_directly(at, atomic, before, options) {
            Ok(done) => return done,
            Err(before) => before,
        };
        let Target { link, key, offset } = at;
        self.begin_with(link, before, options, |proto, way, _, operation| {
            proto.atomic(way, &Update { key, offset, atomic: *atomic, fetch, operation })
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
    ) -> Begun {
        let record = operations::Operation::new(OperationMemory::Owned(Vec::new()), Kind::Send(None), None, options);
        let name = match self.messages.operations.begin(record) {
            Ok(name) => name,
            Err(error) => return Err((error, memory)),
        };
        let operation = u64::from(name.0);
        match self.on_link(link, |proto, way, _| begin(proto, way, &memory, operation)) {
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
    fn place_of(&mut self, link: LinkId, memory: &OperationMemory) -> RemoteAddress {
        let shown = memory.len() as u64 >= COPY && self.reads_memory_of(link);
        if shown { RemoteAddress { address: memory.address(), key: 0 } } else { RemoteAddress::default() }
    }

    /// Whether this side may copy out of the peer's memory, in which case the peer most likely may copy out of ours.
    fn reads_memory_of(&mut self, link: LinkId) -> bool {
        self.link(link).is_ok_and(|(link_state, _)| link_state.shm().is_some_and(|shm| shm.pid != 0))
    }

    pub(super) fn on_link<R>(
        &mut self,
        link: LinkId,
        f: impl FnOnce(&mut Link, &mut PacketTx<'_>, &mut LinkCallbacks<'_>) -> Result<R, Rejected>,
    ) -> Result<R, Error> {
        let (link_state, messages) = self.link(link)?;
        let result = link_state.with(link, messages, f);
        self.flush_link(link);
        result.map_err(|refusal| self.refused_on(link, refusal))
    }

    /// The operation, if it has begun; otherwise removes its record.
    pub(super) fn start_receive(&mut self, name: OperationId, begun: Result<(), Error>) -> Result<OperationId, Error> {
        if begun.is_err() {
            self.messages.operations.withdraw(name);
        }
        begun.map(|()| name)
    }
}
