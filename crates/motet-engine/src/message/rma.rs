//! Gets, puts and atomics on the regions of peers, as packets.
//!
//! What it is: their beginning. Each is an operation; a refused one has left nothing, and its memory comes back, so that it can be tried
//! again. What it is not: what follows is the protocol's matter (`motet_proto::message::rma`), a region that both ends see
//! [`super::regions::mapped`]'s, and the memory of our own regions [`super::regions`]'.

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

/// Bytes of a region of a peer's, from there on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The link to the peer.
    pub link: LinkId,
    /// The peer's key.
    pub key: Key,
    /// Bytes from the region's beginning.
    pub offset: u64,
}

/// What a link carries at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteLimits {
    /// Longest put whose bytes are free when it has begun, and which is in order with other short operations.
    pub put: usize,
    /// Most bytes of an atomic's operands, those that it compares with included.
    pub operands: usize,
    /// Most bytes of values before that an atomic brings; gets up to that are in order with other short operations.
    pub fetched: usize,
}

impl Node {
    /// Begins to write bytes into a region of the peer's. It ends when they are there. What fits a packet
    /// ([`RemoteLimits::put`]) is free when this returns.
    pub fn put(
        &self,
        link: LinkId,
        key: Key,
        offset: u64,
        memory: OperationMemory,
        notice: CompletionOptions,
    ) -> Result<OperationId, Error> {
        self.lock()?.begin_put(Target { link, key, offset }, memory, notice).map_err(|(error, _)| error)
    }

    /// The same, and waits until it can begin.
    pub fn put_by(
        &self,
        at: Target,
        memory: OperationMemory,
        notice: CompletionOptions,
        deadline: Option<u64>,
    ) -> Result<OperationId, Error> {
        self.begin_by(memory, deadline, |node, memory| node.begin_put(at, memory, notice))
    }

    /// Begins to read bytes of a region of the peer's, as many as fit into the memory.
    pub fn get(
        &self,
        link: LinkId,
        key: Key,
        offset: u64,
        memory: OperationMemory,
        notice: CompletionOptions,
    ) -> Result<OperationId, Error> {
        self.lock()?.begin_get(Target { link, key, offset }, memory, notice).map_err(|(error, _)| error)
    }

    /// The same, and waits until it can begin.
    pub fn get_by(
        &self,
        at: Target,
        memory: OperationMemory,
        notice: CompletionOptions,
        deadline: Option<u64>,
    ) -> Result<OperationId, Error> {
        self.begin_by(memory, deadline, |node, memory| node.begin_get(at, memory, notice))
    }

    /// Begins an atomic on a region of the peer's. If the memory is not empty, the values before go there.
    pub fn atomic(
        &self,
        link: LinkId,
        key: Key,
        offset: u64,
        atomic: &Atomic<'_>,
        before: OperationMemory,
        notice: CompletionOptions,
    ) -> Result<OperationId, Error> {
        self.lock()?.begin_atomic(Target { link, key, offset }, atomic, before, notice).map_err(|(error, _)| error)
    }

    /// The same, and waits until it can begin.
    pub fn atomic_by(
        &self,
        at: Target,
        atomic: &Atomic<'_>,
        before: OperationMemory,
        notice: CompletionOptions,
        deadline: Option<u64>,
    ) -> Result<OperationId, Error> {
        self.begin_by(before, deadline, |node, before| node.begin_atomic(at, atomic, before, notice))
    }

    /// Ends when everything that was begun before it on this link has ended: puts, gets and atomics.
    pub fn fence(&self, link: LinkId, notice: CompletionOptions) -> Result<OperationId, Error> {
        let mut node = self.lock()?;
        let operation = operations::Operation::new(OperationMemory::Owned(Vec::new()), Kind::Send(None), None, notice);
        let name = node.messages.operations.begin(operation)?;
        let begun = node.on_link(link, |proto, _, callbacks| proto.fence(callbacks, u64::from(name.0)));
        node.start_receive(name, begun)
    }

    /// What goes over a link at once.
    pub fn remote_limits(&self, link: LinkId) -> Result<RemoteLimits, Error> {
        self.lock()?.on_link(link, |proto, way, _| {
            Ok(RemoteLimits { put: proto.put_at_once(way), operands: way.largest() - AT, fetched: MAX_REPLY_BYTES })
        })
    }

    /// Begins an operation, as soon as there is room.
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

/// What has begun; or why it has not, and its memory.
pub(super) type Begun = Result<OperationId, (Error, OperationMemory)>;

impl NodeState {
    fn begin_put(&mut self, at: Target, memory: OperationMemory, notice: CompletionOptions) -> Begun {
        let memory = match self.put_directly(at, memory, notice) {
            Ok(done) => return done,
            Err(memory) => memory,
        };
        let Target { link, key, offset } = at;
        let place = self.place_of(link, &memory);
        self.begin_with(link, memory, notice, |proto, way, memory, operation| {
            let body = [memory.bytes(0, usize::MAX)];
            proto.put(way, &Put { key, offset, body: &body, operation, place }).map(drop)
        })
    }

    fn begin_get(&mut self, at: Target, memory: OperationMemory, notice: CompletionOptions) -> Begun {
        let memory = match self.get_directly(at, memory, notice) {
            Ok(done) => return done,
            Err(memory) => memory,
        };
        let Target { link, key, offset } = at;
        let length = memory.len() as u64;
        let direct = length >= COPY && self.reads_memory_of(link);
        self.begin_with(link, memory, notice, |proto, way, _, operation| {
            proto.get(way, &Get { key, offset, length, operation, direct })
        })
    }

    fn begin_atomic(
        &mut self,
        at: Target,
        atomic: &Atomic<'_>,
        before: OperationMemory,
        notice: CompletionOptions,
    ) -> Begun {
        let fetch = !before.is_empty();
        if fetch && before.len() < atomic.length() {
            return Err((Error::TooLong, before));
        }
        let before = match self.change_directly(at, atomic, before, notice) {
            Ok(done) => return done,
            Err(before) => before,
        };
        let Target { link, key, offset } = at;
        self.begin_with(link, before, notice, |proto, way, _, operation| {
            proto.atomic(way, &Update { key, offset, atomic: *atomic, fetch, operation })
        })
    }

    /// Begins what is asked of the peer by a packet. The record gets the memory when that has gone: nothing that the protocol does in a
    /// beginning touches the record.
    #[inline(always)]
    fn begin_with(
        &mut self,
        link: LinkId,
        memory: OperationMemory,
        notice: CompletionOptions,
        begin: impl FnOnce(&mut Link, &mut PacketTx<'_>, &OperationMemory, u64) -> Result<(), Rejected>,
    ) -> Begun {
        let record = operations::Operation::new(OperationMemory::Owned(Vec::new()), Kind::Send(None), None, notice);
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

    /// Where a peer can copy these bytes from, if they are many.
    fn place_of(&mut self, link: LinkId, memory: &OperationMemory) -> RemoteAddress {
        let shown = memory.len() as u64 >= COPY && self.reads_memory_of(link);
        if shown { RemoteAddress { address: memory.address(), key: 0 } } else { RemoteAddress::default() }
    }

    /// Whether this side may copy from the peer's memory, and so most likely the peer from ours.
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

    /// What has begun, or has not.
    pub(super) fn start_receive(&mut self, name: OperationId, begun: Result<(), Error>) -> Result<OperationId, Error> {
        if begun.is_err() {
            self.messages.operations.withdraw(name);
        }
        begun.map(|()| name)
    }
}
