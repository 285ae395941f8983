//! Regions: memory of this process that peers reach by key; and gets, puts and atomics on theirs.
//!
//! Whoever owns the memory that is written copies: bytes of a put are fetched by the target, bytes of a get by the initiator, out of
//! the other's memory where the system lets it, else they come in packets. What is checked when, is the protocol's matter
//! (`motet_proto::message::regions` and `remote`, docs/messages.md).

use super::core::Core;
use super::desk::{Back, Desk, View};
use super::operations::{self, Kind, Notice};
use super::{Error, LinkId, Node, OperationId};
pub use motet_proto::message::atomic::{Atomic, Datatype, Operation};
pub use motet_proto::message::regions::{Key, Rights};

use motet_proto::message::atomic::Unfit;
use motet_proto::message::packet::Place;
use motet_proto::message::pool::{Number, Pool};
use motet_proto::message::regions::{Regions, Revoked};
use motet_proto::message::remote::{CopyTo, Get, Memory as Remote, Put, RemoteCopy, Update};
use motet_proto::message::{Outcome, Status};
use motet_sys::lending::Segment;
use motet_sys::memory;
use motet_sys::span::Memory;
pub use motet_wire::shared::Shared;
use std::any::Any;
use std::sync::Arc;

/// From so many bytes on a put or a get is copied from the other side's memory: less than for messages, whose pieces have a ring.
pub const COPY: u64 = 16 << 10;
/// Bytes read from a region at a time, to be put into a packet.
const PIECE: usize = 4096;

/// The memory of regions.
#[derive(Default)]
pub struct Hosts {
    /// The protocol's table.
    pub regions: Regions,
    hosts: Pool<Host>,
}

/// The memory of one region.
pub(super) struct Host {
    pub memory: Shared,
    /// What must stay as long as the region.
    pub keep: Option<Box<dyn Any + Send>>,
    /// Memory of the pool, which peers may see.
    pub segment: Option<Arc<Segment>>,
    /// It was revoked, and this tells whoever waits that nobody uses it any more.
    pub ending: Option<OperationId>,
}

impl Hosts {
    /// The memory of a region, by the name that the protocol knows it by.
    fn get(&mut self, region: u64) -> Option<&mut Host> {
        self.hosts.named(Number(region as u32))
    }

    /// A new region.
    pub(super) fn add(&mut self, host: Host, rights: Rights) -> Result<Key, Error> {
        let length = host.memory.length() as u64;
        let name = self.hosts.insert(host).ok_or(Error::Full)?;
        let random = memory::nonce();
        let random = u32::from_le_bytes([random[0], random[1], random[2], random[3]]);
        self.regions.register(u64::from(name.0), length, rights, random).ok_or_else(|| {
            self.hosts.remove(name.index());
            Error::Full
        })
    }

    /// The memory of a region.
    pub fn memory(&mut self, region: u64) -> Option<Shared> {
        self.get(region).map(|host| host.memory)
    }
}

impl Remote for View<'_> {
    fn regions(&mut self) -> &mut Regions {
        &mut self.desk.hosts.regions
    }

    fn region_write(&mut self, region: u64, at: u64, bytes: &[u8]) {
        if let Some(memory) = self.desk.hosts.memory(region) {
            let _ = memory.write(at as usize, bytes); // the bounds were checked
        }
    }

    fn region_read(&mut self, region: u64, at: u64, length: usize, put: &mut dyn FnMut(&[&[u8]]) -> bool) -> bool {
        let Some(memory) = self.desk.hosts.memory(region) else { return put(&[]) };
        let (mut short, mut long) = ([0; PIECE], Vec::new());
        let bytes = match short.get_mut(..length) {
            Some(bytes) => bytes,
            None => {
                long.resize(length, 0);
                &mut long[..]
            }
        };
        let _ = memory.read(at as usize, bytes);
        put(&[bytes])
    }

    fn region_atomic(&mut self, region: u64, at: u64, atomic: &Atomic<'_>, result: &mut [u8]) -> Result<(), Unfit> {
        let memory = self.desk.hosts.memory(region).ok_or(Unfit)?;
        atomic.apply_shared(&memory, at as usize, result)
    }

    fn region_place(&mut self, region: u64, at: u64, length: u64) -> Place {
        if length < self.back.single_copy {
            return Place::default();
        }
        let memory = self.desk.hosts.memory(region);
        memory.map_or(Place::default(), |memory| Place { address: memory.base() as u64 + at, key: 0 })
    }

    fn region_seen(&mut self, region: u64) -> Place {
        let segment = self.desk.hosts.get(region).and_then(|host| host.segment.clone());
        let place = segment.and_then(|segment| self.back.segments.show(&segment, segment.address()));
        place.unwrap_or_default()
    }

    fn copy_remote(&mut self, request: RemoteCopy) {
        self.back.remote_copies.push_back((request, 0));
    }

    fn forget(&mut self, key: Key) -> bool {
        self.back.segments.forget(key);
        true // nothing is under way: whoever uses a region directly has the node's lock meanwhile
    }

    fn region_ended(&mut self, region: u64) {
        end(self.desk, region);
    }
}

/// Nobody uses the memory of a revoked region any more.
fn end(desk: &mut Desk, region: u64) {
    let host = desk.hosts.hosts.find(Number(region as u32)).and_then(|index| desk.hosts.hosts.remove(index));
    let Some(Host { keep, ending, segment, .. }) = host else { return };
    desk.spent.extend(keep);
    if segment.is_some() {
        desk.pool.note_gone();
    }
    if let Some(operation) = ending {
        desk.operations.complete(u64::from(operation.0), Outcome { status: Status::Done, length: 0 });
        desk.stirred = true;
    }
}

/// Where bytes of a remote copy go: the rest of what was asked for from `done` on, `length` of it.
pub(super) fn copy_some(desk: &mut Desk, pid: u32, request: &RemoteCopy, done: u64, length: usize) -> Option<u64> {
    let from = request.from.address.checked_add(done)?;
    if pid == 0 {
        return None;
    }
    let copied = match request.to {
        CopyTo::Operation(operation) => {
            let operation = desk.operations.get(operation)?;
            operation.memory.write(done as usize, length, |into| motet_sys::copy::read_from(pid, from, into))
        }
        CopyTo::Region { region, at, .. } => {
            let part = desk.hosts.memory(region)?.part((at + done) as usize, length).ok()?;
            motet_sys::copy::read_into(pid, from, &part)
        }
    };
    copied.ok().filter(|&copied| copied > 0).map(|copied| copied as u64)
}

impl Node {
    /// Makes memory known: peers that are told the key may do to it what `rights` say. `keep` is dropped when nobody uses the memory
    /// any more. For atomics it must begin at a multiple of 8.
    pub fn register(&self, memory: Shared, rights: Rights, keep: Option<Box<dyn Any + Send>>) -> Result<Key, Error> {
        let mut core = self.core()?;
        if rights != Rights::GET && rights != Rights::PUT && !memory.base().addr().is_multiple_of(8) {
            return Err(Error::Unfit);
        }
        core.desk.hosts.add(Host { memory, keep, segment: None, ending: None }, rights)
    }

    /// Ends a region: no access begins any more. Waits until none is under way and every peer that could have direct access has
    /// answered, or its link is gone: then the memory is the caller's alone again.
    pub fn revoke(&self, key: Key, deadline: Option<u64>) -> Result<(), Error> {
        let mut core = self.core()?;
        let name = core.desk.hosts.regions.reach(key, Rights(0), 0, 0).map_err(|_| Error::Closed)?;
        let operation =
            operations::Operation::new(Memory::Owned(Vec::new()), Kind::Send(None), None, Notice::default());
        let operation = core.desk.operations.begin(operation)?;
        if let Some(host) = core.desk.hosts.get(name) {
            host.ending = Some(operation);
        }
        for index in core.links.indices() {
            let link = LinkId(core.links.number(index).0);
            if let Ok((joined, desk)) = core.link(link) {
                // A link that is gone has no access.
                let _ = joined.with(link, desk, |proto, _, view| proto.revoke(view, key));
                joined.flush(link, desk);
            }
        }
        if core.desk.hosts.regions.revoke(key) == Some(Revoked::Ended) {
            end(&mut core.desk, name);
        }
        drop(core);
        self.wait_for(operation, deadline).map(drop)
    }

    /// Begins to write bytes into a region of the peer's. It ends when they are there.
    pub fn put(
        &self,
        link: LinkId,
        key: Key,
        offset: u64,
        memory: Memory,
        notice: Notice,
    ) -> Result<OperationId, Error> {
        let mut core = self.core()?;
        let core = &mut *core;
        let memory = match core.put_directly(link, key, offset, memory, notice) {
            Ok(done) => return done,
            Err(memory) => memory,
        };
        let place = core.place_of(link, &memory);
        let name = core.desk.operations.begin(operations::Operation::new(memory, Kind::Send(None), None, notice))?;
        let operation = u64::from(name.0);
        // Lent for the call: nothing that the protocol does in a put touches the record.
        let memory = match core.desk.operations.get(operation) {
            Some(record) => std::mem::replace(&mut record.memory, Memory::Owned(Vec::new())),
            None => return Err(Error::Full),
        };
        let begun = core.on_link(link, |proto, way, _| {
            let body = [memory.bytes(0, usize::MAX)];
            proto.put(way, &Put { key, offset, body: &body, operation, place })
        });
        if let Some(record) = core.desk.operations.get(operation) {
            record.memory = memory;
        }
        core.begun(name, begun.map(drop))
    }

    /// Begins to read bytes of a region of the peer's, as many as fit into the memory.
    pub fn get(
        &self,
        link: LinkId,
        key: Key,
        offset: u64,
        memory: Memory,
        notice: Notice,
    ) -> Result<OperationId, Error> {
        let mut core = self.core()?;
        let memory = match core.get_directly(link, key, offset, memory, notice) {
            Ok(done) => return done,
            Err(memory) => memory,
        };
        let length = memory.len() as u64;
        let direct = length >= COPY && core.reads_memory_of(link);
        let name = core.desk.operations.begin(operations::Operation::new(memory, Kind::Send(None), None, notice))?;
        let get = Get { key, offset, length, operation: u64::from(name.0), direct };
        let begun = core.on_link(link, |proto, way, _| proto.get(way, &get));
        core.begun(name, begun)
    }

    /// Begins an atomic on a region of the peer's. If the memory is not empty, the values before go there.
    pub fn atomic(
        &self,
        link: LinkId,
        key: Key,
        offset: u64,
        atomic: &Atomic<'_>,
        before: Memory,
        notice: Notice,
    ) -> Result<OperationId, Error> {
        let mut core = self.core()?;
        let fetch = !before.is_empty();
        if fetch && before.len() < atomic.length() {
            return Err(Error::TooLong);
        }
        let before = match core.change_directly(link, key, offset, atomic, before, notice) {
            Ok(done) => return done,
            Err(before) => before,
        };
        let name = core.desk.operations.begin(operations::Operation::new(before, Kind::Send(None), None, notice))?;
        let update = Update { key, offset, atomic: *atomic, fetch, operation: u64::from(name.0) };
        let begun = core.on_link(link, |proto, way, _| proto.atomic(way, &update));
        core.begun(name, begun)
    }

    /// Ends when everything that was begun before it on this link has ended: puts, gets and atomics.
    pub fn fence(&self, link: LinkId, notice: Notice) -> Result<OperationId, Error> {
        let mut core = self.core()?;
        let operation = operations::Operation::new(Memory::Owned(Vec::new()), Kind::Send(None), None, notice);
        let name = core.desk.operations.begin(operation)?;
        let begun = core.on_link(link, |proto, _, view| proto.fence(view, u64::from(name.0)));
        core.begun(name, begun)
    }
}

impl Core {
    /// Where a peer can copy these bytes from, if they are many.
    fn place_of(&mut self, link: LinkId, memory: &Memory) -> Place {
        let shown = memory.len() as u64 >= COPY && self.reads_memory_of(link);
        if shown { Place { address: memory.address(), key: 0 } } else { Place::default() }
    }

    /// Whether this side may copy from the peer's memory, and so most likely the peer from ours.
    fn reads_memory_of(&mut self, link: LinkId) -> bool {
        self.link(link).is_ok_and(|(joined, _)| joined.lanes().is_some_and(|lanes| lanes.pid != 0))
    }

    pub(super) fn on_link<R>(
        &mut self,
        link: LinkId,
        f: impl FnOnce(
            &mut motet_proto::message::Link,
            &mut super::packets::Way<'_>,
            &mut View<'_>,
        ) -> Result<R, motet_proto::message::Refusal>,
    ) -> Result<R, Error> {
        let (joined, desk) = self.link(link)?;
        let result = joined.with(link, desk, f);
        joined.flush(link, desk);
        result.map_err(|refusal| self.refused_on(link, refusal))
    }

    /// What has begun, or has not.
    pub(super) fn begun(&mut self, name: OperationId, begun: Result<(), Error>) -> Result<OperationId, Error> {
        if begun.is_err() {
            self.desk.operations.withdraw(name);
        }
        begun.map(|()| name)
    }
}

impl Back {
    /// The copy to go on with.
    pub fn remote_copy(&self) -> Option<(RemoteCopy, u64)> {
        self.remote_copies.front().copied()
    }
}
