//! The segments that this process shares with each peer process.
//!
//! For each peer it holds the segments that this process made (later ones have more slots) and those that the peer offered, and which slots
//! the streams of this process use. The segments of one peer are a *link*: it opens with the first stream that needs it. A segment
//! without streams is closed when its peer has ended, or after [`IDLE_TIMEOUT_NS`]: its descriptor and pages go back to the system, its
//! addresses to [`AddressRanges`]. There is no thread and no timer: every call visits a few peers, so that a process that opens and closes
//! streams soon visits all.
//!
//! What it is not: it reads no clock and does not find out whether a process exists; both are arguments.
//!
//! Each process closes a segment without asking the peer. The peer has a mapping of its own, with all bytes that it has yet to read, and every
//! offer carries the memfd, so a segment that was closed here can be mapped again. To be wrong about a peer's end costs a mapping, never a
//! byte. A *slot* is used again only when both ends have left it.

use motet_engine::reason::Reason;
use motet_sys::limits;
use motet_sys::memory::{self, AddressRanges};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::fd::{AsFd, OwnedFd};
use motet_sys::rustix::io::Errno;
use motet_wire::mapping::Mapping;
use motet_wire::stream::segment::{Geometry, HEAD, HEAD_WORDS, HUGE_PAGE, MAX_SLOTS, Refused};
use motet_wire::stream::slot::Slot;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A segment without streams is closed after this time, ns. Connections that follow one another within it share a segment.
pub const IDLE_TIMEOUT_NS: u64 = 10_000_000_000;
/// Slots of the first, second, ... segment made for a peer: one connection takes little memory, ten thousand take some forty descriptors.
const SLOTS_BY_SEGMENT: [usize; 5] = [1, 4, 16, 64, 256];
/// A segment with more slots has no large rings: two processes rarely have so many bulk streams.
const MAX_SLOTS_WITH_LARGE_RINGS: usize = 16;
/// Most bytes of address space for large rings, most of which are never touched; and at most 1/LARGE_RING_SHARE of the limit for all
/// segments.
const MAX_LARGE_RING_BYTES: usize = 1 << 30;
const LARGE_RING_SHARE: usize = 4;
/// Free slots of a segment that one call examines: those that this process left first, which the peer has most likely left too.
const SLOTS_TRIED: usize = 4;
/// Peers that one call visits, and how many of them it checks for existence, which takes system calls.
const PEERS_VISITED_PER_CALL: usize = 64;
const PEERS_CHECKED_PER_CALL: usize = 2;
/// Time between two thorough checks of a peer, ns: in a loop of short connections not every one pays for it.
const THOROUGH_CHECK_INTERVAL_NS: u64 = 10_000_000;

/// A peer process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerProcess {
    /// Its number; 0: it is not visible in our PID namespace.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// When it started, 0 if unknown: it distinguishes processes with the same number.
    pub start_time: u64,
    /// Distinguishes invisible processes; 0 for visible ones.
    pub invisible_id: u64,
}

/// A reserved slot, with what an offer of it needs.
#[derive(Debug)]
pub struct SlotRef {
    /// The slot, prepared.
    pub slot: Slot,
    /// Its index in the segment.
    pub index: u32,
    /// The segment's nonce.
    pub nonce: [u8; 16],
    /// The segment's memfd.
    pub file: Arc<PrivateFd>,
}

/// The shape of new segments, and the limit for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentShape {
    /// Bytes of each ring.
    pub ring: usize,
    /// Bytes of each large ring, 0 for none.
    pub bulk: usize,
    /// Most bytes of mapped segments, large rings aside.
    pub limit: usize,
    /// Huge pages for the large rings, where the system has them.
    pub huge: bool,
}

/// The segments of a process, by peer.
#[derive(Debug)]
pub struct SegmentTable {
    links: BTreeMap<PeerProcess, PeerSegments>,
    /// The peer of the segment that begins at an address.
    owners: BTreeMap<usize, PeerProcess>,
    ranges: AddressRanges,
    /// The peer that was visited last.
    last_visited: Option<PeerProcess>,
    bytes: usize,
    /// Bytes of address space for large rings, in use.
    bulk_bytes: usize,
    link_counts: [u64; 2],
    is_alive: fn(&PeerProcess, bool) -> bool,
}

#[derive(Debug, Default)]
struct PeerSegments {
    segments: Vec<Segment>,
    /// Opened by this process rather than by one that it was forked from.
    opened_here: bool,
    /// When the peer was last checked thoroughly, and whether it existed.
    last_check: Option<(u64, bool)>,
}

#[derive(Debug)]
struct Segment {
    /// The memfd, if this process made the segment and hands out its slots.
    file: Option<Arc<PrivateFd>>,
    mapping: Mapping,
    geometry: Geometry,
    /// Bytes of large rings that are mapped: all of them, or none.
    bulk_bytes: usize,
    nonce: [u8; 16],
    /// This process's end of the slots: 0 if this process (or the one that it was forked from) made the segment.
    end: usize,
    /// By slot, the number of streams of this process that use it; `None`: none ever did.
    slots: Vec<Option<u32>>,
    /// Slots to hand out that no stream of this process uses; a stream of the peer may still use them.
    free: VecDeque<u32>,
    /// Streams of this process on all slots.
    streams: u32,
    /// When a stream last left, or when the segment was mapped.
    idle_since: u64,
}

impl SegmentTable {
    /// No segments. `is_alive(peer, thorough)` says whether a process still exists; wrong answers are harmless.
    pub const fn new(is_alive: fn(&PeerProcess, bool) -> bool) -> Self {
        Self {
            links: BTreeMap::new(),
            owners: BTreeMap::new(),
            ranges: AddressRanges::new(),
            last_visited: None,
            bytes: 0,
            bulk_bytes: 0,
            link_counts: [0; 2],
            is_alive,
        }
    }

    /// Reserves a slot for one more connection with a peer, in a new segment if no existing one has a free slot of this shape.
    pub fn reserve(
        &mut self,
        peer: PeerProcess,
        shape: SegmentShape,
        cookies: [u64; 2],
        now: u64,
    ) -> Result<SlotRef, Reason> {
        let SegmentShape { ring, bulk, .. } = shape;
        self.tidy(None, now);
        let made_here = |link: &PeerSegments| link.segments.iter().filter(|s| s.file.is_some()).count();
        if let Some(link) = self.links.get_mut(&peer) {
            let fits = |s: &&mut Segment| s.geometry.ring == ring && [0, bulk].contains(&s.geometry.bulk);
            if let Some(slot) = link.segments.iter_mut().filter(fits).find_map(|s| s.reserve(cookies)) {
                return Ok(slot);
            }
        }
        let made = self.links.get(&peer).map_or(0, made_here).min(SLOTS_BY_SEGMENT.len() - 1);
        let (share, room, file) =
            (limits::address_space_share(shape.limit), self.large_ring_room(shape), limits::max_file_size());
        let geometry = |slots: usize, bulk: usize| Geometry { slots: slots.min(MAX_SLOTS), ring, bulk };
        let geometries = SLOTS_BY_SEGMENT[..=made].iter().rev().flat_map(|&slots| {
            let large = (bulk > 0 && slots <= MAX_SLOTS_WITH_LARGE_RINGS).then(|| geometry(slots, bulk));
            let large = large.filter(|large| large.bytes() - large.dense() <= room);
            large.into_iter().chain([geometry(slots, 0)])
        });
        let mut reason = Reason::LIMITED;
        let geometry = geometries.filter(|geometry| geometry.bytes() as u64 <= file).find(|geometry| {
            let fits = |limit: usize| geometry.dense() <= limit.saturating_sub(self.bytes);
            reason = if fits(shape.limit) { Reason::LIMITED } else { Reason::MEMORY_LIMIT };
            fits(share)
        });
        let geometry = geometry.ok_or(reason)?;
        let nonce = memory::nonce().map_err(|_| Reason::NO_RANDOM)?;
        let fd = memory::create_memfd("motet-segment", geometry.bytes(), &geometry.encode(nonce), HEAD);
        let fd = fd.map_err(|errno| if errno == Errno::FBIG { Reason::LIMITED } else { Reason::NO_MEMORY })?;
        let segment = self.open(peer, &fd, (geometry, nonce, 0), shape, now)?;
        segment.file = Some(Arc::new(PrivateFd::new(fd)));
        segment.free.extend(0..geometry.slots as u32);
        segment.reserve(cookies).ok_or(Reason::NO_MEMORY)
    }

    /// Maps an offered segment unless it is mapped already, and returns the slot as the offered end sees it. `is_self`: the peer is this
    /// process, which has the segment already.
    pub fn map_offered(
        &mut self,
        (peer, is_self): (PeerProcess, bool),
        file: &OwnedFd,
        (index, nonce): (u32, [u8; 16]),
        shape: SegmentShape,
        now: u64,
    ) -> Result<Slot, Reason> {
        self.tidy(None, now);
        let known = self.links.get_mut(&peer).and_then(|link| link.segments.iter_mut().find(|s| s.nonce == nonce));
        let segment = match known {
            Some(known) if known.end == 1 || is_self => known,
            Some(_) => return Err(Reason::BAD_SEGMENT), // a peer offers memory of this process
            None => {
                let (geometry, written) = inspect(file)?;
                if written != nonce {
                    return Err(Reason::BAD_SEGMENT);
                }
                let fits = |limit: usize| geometry.dense() <= limit.saturating_sub(self.bytes);
                if !fits(limits::address_space_share(shape.limit)) {
                    return Err(if fits(shape.limit) { Reason::LIMITED } else { Reason::MEMORY_LIMIT });
                }
                self.open(peer, file, (geometry, nonce, 1), shape, now)?
            }
        };
        segment.add_stream(index as usize, 1)
    }

    /// Releases a slot whose stream has ended here, and marks this end as left. If the peer never attached, its end is marked too.
    pub fn release(&mut self, slot: &Slot, now: u64) {
        // First in this table, then in shared memory: the peer may offer the slot again at once.
        let peer = self.remove_stream(slot, now);
        let (near, far) = (slot.end(), 1 - slot.end());
        slot.head().left[near].store(1, Ordering::Release);
        if slot.head().attached[far].load(Ordering::Acquire) == 0 {
            slot.head().left[far].store(1, Ordering::Release);
        }
        self.tidy(peer, now);
    }

    /// Stops the use of a slot by this process without marking this end as left: another process ends the stream.
    pub fn abandon(&mut self, slot: &Slot, now: u64) {
        let peer = self.remove_stream(slot, now);
        self.tidy(peer, now);
    }

    /// Frees the slot of an offer that could not be delivered.
    pub fn withdraw(&mut self, reserved: &SlotRef, now: u64) {
        for left in &reserved.slot.head().left {
            left.store(1, Ordering::Release);
        }
        self.abandon(&reserved.slot, now);
    }

    /// In a forked child: only the parent hands out slots of the parent's segments. The child has mappings of its own, which are closed when
    /// the inherited streams are closed in the child.
    pub fn after_fork(&mut self) {
        for link in self.links.values_mut() {
            link.opened_here = false;
            for segment in &mut link.segments {
                segment.file = None;
            }
        }
        self.link_counts = [0; 2];
    }

    /// Bytes of mapped segments, large rings aside.
    pub fn mapped_bytes(&self) -> usize {
        self.bytes
    }

    /// Links that this process has opened, and closed.
    pub fn link_counts(&self) -> [u64; 2] {
        self.link_counts
    }

    /// Address space that further large rings may take. The ranges of closed ones are kept for the next.
    fn large_ring_room(&self, shape: SegmentShape) -> usize {
        match shape.limit {
            usize::MAX => usize::MAX,
            limit => MAX_LARGE_RING_BYTES
                .min(limits::address_space_share(limit) / LARGE_RING_SHARE)
                .saturating_sub(self.bulk_bytes),
        }
    }

    fn open(
        &mut self,
        peer: PeerProcess,
        fd: impl AsFd,
        (geometry, nonce, end): (Geometry, [u8; 16], usize),
        shape: SegmentShape,
        now: u64,
    ) -> Result<&mut Segment, Reason> {
        let bulk_bytes = Some(geometry.bytes() - geometry.dense())
            .filter(|bytes| *bytes <= self.large_ring_room(shape))
            .unwrap_or(0);
        let huge = shape.huge && geometry.bulk >= HUGE_PAGE && bulk_bytes > 0;
        let mapping = self.ranges.map(fd, geometry.dense() + bulk_bytes, if huge { HUGE_PAGE } else { 4096 });
        let mapping = mapping.map_err(|_| Reason::NO_MEMORY)?;
        if huge {
            memory::advise_huge_pages(mapping, geometry.bulk(0));
        }
        self.owners.insert(mapping.base() as usize, peer);
        self.bytes += geometry.dense();
        self.bulk_bytes += bulk_bytes;
        let link = self.links.entry(peer).or_default();
        if !link.opened_here {
            link.opened_here = true;
            self.link_counts[0] += 1;
        }
        let (slots, free) = (vec![None; geometry.slots], VecDeque::new());
        link.segments.push(Segment {
            file: None,
            mapping,
            geometry,
            bulk_bytes,
            nonce,
            end,
            slots,
            free,
            streams: 0,
            idle_since: now,
        });
        link.segments.last_mut().ok_or(Reason::NO_MEMORY)
    }

    /// Counts one stream less on a slot; returns the peer of its segment.
    fn remove_stream(&mut self, slot: &Slot, now: u64) -> Option<PeerProcess> {
        let (&base, &peer) = self.owners.range(..=slot.address()).next_back()?;
        let segment = self.links.get_mut(&peer)?.segments.iter_mut().find(|s| s.mapping.base() as usize == base)?;
        let index = segment.geometry.index(slot.address() - base)?;
        if let Some(streams @ 1..) = &mut segment.slots[index] {
            *streams -= 1;
            segment.streams -= 1;
            segment.idle_since = now;
            if *streams == 0 && segment.file.is_some() {
                segment.free.push_back(index as u32);
            }
        }
        Some(peer)
    }

    /// Closes segments that are due: visits `first`, then further peers from the last visited one on.
    fn tidy(&mut self, first: Option<PeerProcess>, now: u64) {
        let (mut checked, mut begun) = (0, None);
        if let Some(peer) = first {
            self.tidy_peer(peer, now, &mut checked);
        }
        for _ in 0..PEERS_VISITED_PER_CALL {
            let after = self.last_visited.map_or(Unbounded, Excluded);
            let next = self.links.range((after, Unbounded)).next().or_else(|| self.links.iter().next());
            let Some((&peer, _)) = next else { break };
            if begun == Some(peer) || checked == PEERS_CHECKED_PER_CALL {
                break;
            }
            begun = begun.or(Some(peer));
            self.last_visited = Some(peer);
            if first != Some(peer) {
                self.tidy_peer(peer, now, &mut checked);
            }
        }
    }

    fn tidy_peer(&mut self, peer: PeerProcess, now: u64, checked: &mut usize) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        let expired = |s: &Segment| s.streams == 0 && now.saturating_sub(s.idle_since) >= IDLE_TIMEOUT_NS;
        let due = |s: &Segment, ended: bool| s.streams == 0 && (ended || expired(s));
        if link.segments.iter().all(|s| s.streams > 0) {
            return;
        }
        // The table cannot find an invisible peer again, so its segments serve one offer only.
        let mut ended = peer.invisible_id != 0;
        if !ended && !link.segments.iter().all(|s| s.streams > 0 || expired(s)) && *checked < PEERS_CHECKED_PER_CALL {
            *checked += 1;
            let recent = link.last_check.filter(|(then, _)| now.saturating_sub(*then) < THOROUGH_CHECK_INTERVAL_NS);
            let (_, alive) = *link.last_check.insert(recent.unwrap_or_else(|| (now, (self.is_alive)(&peer, true))));
            ended = !alive || recent.is_some() && !(self.is_alive)(&peer, false);
        }
        for at in (0..link.segments.len()).rev() {
            let segment = &link.segments[at];
            if due(segment, ended) && self.ranges.retire(segment.mapping) {
                self.owners.remove(&(segment.mapping.base() as usize));
                self.bytes -= segment.geometry.dense();
                self.bulk_bytes -= segment.bulk_bytes;
                link.segments.remove(at);
            }
        }
        if link.segments.is_empty() {
            self.link_counts[1] += u64::from(link.opened_here);
            self.links.remove(&peer);
        }
    }
}

impl Segment {
    fn slot(&self, index: usize, end: usize) -> Option<Slot> {
        let slot = Slot::over(self.mapping, self.geometry.slot(index).ok()?, self.geometry.ring, end)?;
        if self.bulk_bytes == 0 {
            return Some(slot);
        }
        slot.with_bulk(self.mapping, self.geometry.bulk(index), self.geometry.bulk)
    }

    /// Reserves a free slot that both ends have left.
    fn reserve(&mut self, cookies: [u64; 2]) -> Option<SlotRef> {
        let file = self.file.as_ref()?;
        for _ in 0..self.free.len().min(SLOTS_TRIED) {
            let index = self.free.pop_front()?;
            let slot = self.slot(index as usize, 0)?;
            match self.slots[index as usize] {
                None if !memory::populate(slot.control_memory()) => {
                    self.free.push_front(index);
                    return None;
                }
                Some(1..) => continue, // offered to this process itself and in use: freed when that stream ends
                Some(0) if !both_left(&slot) => {
                    self.free.push_back(index);
                    continue;
                }
                _ => {}
            }
            self.slots[index as usize] = Some(1);
            self.streams += 1;
            slot.prepare(cookies);
            slot.head().attached[0].store(1, Ordering::Release);
            return Some(SlotRef { slot, index, nonce: self.nonce, file: file.clone() });
        }
        None
    }

    /// Counts one stream more on an offered slot.
    fn add_stream(&mut self, index: usize, end: usize) -> Result<Slot, Reason> {
        let slot = self.slot(index, end).ok_or(Reason::BAD_SEGMENT)?;
        if self.slots[index].is_none() && !memory::populate(slot.control_memory()) {
            return Err(Reason::NO_MEMORY);
        }
        *self.slots[index].get_or_insert(0) += 1;
        self.streams += 1;
        Ok(slot)
    }
}

fn both_left(slot: &Slot) -> bool {
    slot.head().left.iter().all(|left| left.load(Ordering::Acquire) != 0)
}

/// Checks a segment from a peer before it is mapped; returns its geometry and nonce.
fn inspect(file: impl AsFd) -> Result<(Geometry, [u8; 16]), Reason> {
    let (size, sealed, ordinary) = memory::inspect(&file).map_err(|_| Reason::BAD_SEGMENT)?;
    if !sealed || !ordinary {
        return Err(Reason::BAD_SEGMENT);
    }
    let head = memory::read_head::<{ HEAD_WORDS * 8 }>(file).map_err(|_| Reason::BAD_SEGMENT)?;
    let (geometry, nonce) = Geometry::check(&head, size).map_err(|refused| match refused {
        Refused::Version(_) => Reason::VERSION,
        _ => Reason::BAD_SEGMENT,
    })?;
    Ok((geometry, nonce))
}

#[cfg(test)]
mod tests;
