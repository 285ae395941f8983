//! Links: what exists between this process and one other.
//!
//! What it is: for each peer process the segments that are mapped here, those that we made for it (its *arena*, growing by
//! larger segments) and those that it offered to us, and which of their slots our streams use. A link opens with the first
//! stream that needs it. A segment that none of our streams uses is closed when its peer has ended, or after [`IDLE`]: its
//! descriptor and its pages go back to the system, its addresses to [`AddressRanges`]. There is no thread and no timer: every call
//! looks at a few links more, so a process that opens or closes streams has soon looked at all.
//!
//! What it is not: it reads no clock and does not ask whether a process lives; both are arguments.
//!
//! Closing is this process's own affair. The peer has a mapping of its own, with all bytes that it has still to read; when it
//! offers a slot of a segment that was closed here, the memfd comes with the offer. So no word is agreed on beforehand, and being
//! wrong about a peer's end costs a mapping, never a byte. A *slot* is handed out again only when both ends have left it.

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

/// A segment that no stream has used for this long (ns) is closed. Connections that come one after another share a segment.
pub const IDLE: u64 = 10_000_000_000;
/// Slots of an arena's first, second, ... segment: one connection stays small, ten thousand take some forty descriptors.
const GROWTH: [usize; 5] = [1, 4, 16, 64, 256];
/// Segments of more slots have no large rings: so many bulk streams between two processes are more than they bring large rings into being.
const LARGE_UP_TO: usize = 16;
/// Most bytes of address space for large rings, most of which is never touched; and at most this part of the limit for all segments.
const BULK_SPACE: usize = 1 << 30;
const BULK_SHARE: usize = 4;
/// Slots of a segment that one connection looks at: those that our stream left first, most likely left by the peer's, too.
const LOOKS: usize = 4;
/// Links that one call looks at, and peers that it asks after: asking takes system calls.
const LOOKED_AT: usize = 64;
const ASKED: usize = 2;
/// A peer is asked after thoroughly this often (ns) at most: a loop of short connections need not pay for it each time.
const THOROUGH: u64 = 10_000_000;

/// Which process a link is to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Its number; 0 when it is not visible to us.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// When it was born, 0 when unknown: numbers are given out again.
    pub born: u64,
    /// Tells invisible processes apart.
    pub alone: u64,
}

/// A slot to offer.
#[derive(Debug)]
pub struct Place {
    /// The slot, prepared.
    pub slot: Slot,
    /// Its number.
    pub index: u32,
    /// The segment's nonce.
    pub nonce: [u8; 16],
    /// The segment's memfd.
    pub file: Arc<PrivateFd>,
}

/// How segments are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of each ring.
    pub ring: usize,
    /// Bytes of each large ring, 0 for none.
    pub bulk: usize,
    /// Most bytes of segments mapped here, large rings aside.
    pub limit: usize,
    /// Huge pages for the large rings, where the system has them.
    pub huge: bool,
}

/// Every link of a process.
#[derive(Debug)]
pub struct Links {
    links: BTreeMap<Peer, Link>,
    /// Whose segment begins at an address.
    owners: BTreeMap<usize, Peer>,
    ranges: AddressRanges,
    /// Where the last call stopped looking.
    looked_at: Option<Peer>,
    bytes: usize,
    /// Of address space for large rings, in use.
    bulk_bytes: usize,
    counts: [u64; 2],
    lives: fn(&Peer, bool) -> bool,
}

#[derive(Debug, Default)]
struct Link {
    segments: Vec<Segment>,
    /// Opened by this process rather than by one that it was forked from.
    ours: bool,
    /// When the peer was asked after thoroughly, and whether it was there.
    asked: Option<(u64, bool)>,
}

#[derive(Debug)]
struct Segment {
    /// The memfd, when the slots are ours to hand out.
    file: Option<Arc<PrivateFd>>,
    mapping: Mapping,
    geometry: Geometry,
    /// Bytes of large rings that are mapped: all of them, or none.
    bulk_bytes: usize,
    nonce: [u8; 16],
    /// Which end of its slots we are: 0 when we (or the process that we were forked from) made it.
    end: usize,
    /// Streams of ours that use a slot; `None`: none ever did.
    slots: Vec<Option<u32>>,
    /// Slots to hand out that none of our streams uses; the peer's may.
    free: VecDeque<u32>,
    /// All of them.
    streams: u32,
    /// When the last one left, or when the segment was mapped.
    since: u64,
}

impl Links {
    /// No links. `lives` tells whether a process is still there, thoroughly or at a glance; wrong answers are harmless.
    pub const fn new(lives: fn(&Peer, bool) -> bool) -> Self {
        Self {
            links: BTreeMap::new(),
            owners: BTreeMap::new(),
            ranges: AddressRanges::new(),
            looked_at: None,
            bytes: 0,
            bulk_bytes: 0,
            counts: [0; 2],
            lives,
        }
    }

    /// Finds or makes room for one more connection with a peer.
    pub fn place(&mut self, peer: Peer, shape: Shape, cookies: [u64; 2], now: u64) -> Result<Place, Reason> {
        let Shape { ring, bulk, .. } = shape;
        self.tidy(None, now);
        let made = |link: &Link| link.segments.iter().filter(|s| s.file.is_some()).count();
        if let Some(link) = self.links.get_mut(&peer) {
            let fits = |s: &&mut Segment| s.geometry.ring == ring && [0, bulk].contains(&s.geometry.bulk);
            if let Some(place) = link.segments.iter_mut().filter(fits).find_map(|s| s.place(cookies)) {
                return Ok(place);
            }
        }
        let grown = self.links.get(&peer).map_or(0, made).min(GROWTH.len() - 1);
        let (share, room, file) =
            (limits::address_space_share(shape.limit), self.bulk_room(shape), limits::max_file_size());
        let geometry = |slots: usize, bulk: usize| Geometry { slots: slots.min(MAX_SLOTS), ring, bulk };
        let geometries = GROWTH[..=grown].iter().rev().flat_map(|&slots| {
            let large = (bulk > 0 && slots <= LARGE_UP_TO).then(|| geometry(slots, bulk));
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
        segment.place(cookies).ok_or(Reason::NO_MEMORY)
    }

    /// Maps an offered segment, or finds it mapped, and returns the slot as the other end sees it. `myself`: the peer is this
    /// very process, which has the segment already.
    pub fn take(
        &mut self,
        (peer, myself): (Peer, bool),
        file: &OwnedFd,
        (index, nonce): (u32, [u8; 16]),
        shape: Shape,
        now: u64,
    ) -> Result<Slot, Reason> {
        self.tidy(None, now);
        let known = self.links.get_mut(&peer).and_then(|link| link.segments.iter_mut().find(|s| s.nonce == nonce));
        let segment = match known {
            Some(known) if known.end == 1 || myself => known,
            Some(_) => return Err(Reason::BAD_SEGMENT), // our own memory, offered back to us
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
        segment.use_slot(index as usize, 1)
    }

    /// A stream of ours has ended: so much the peer learns, too. An end that never came has left with us.
    pub fn leave(&mut self, slot: &Slot, now: u64) {
        // First here, then in shared memory: the slot may be offered to us again at once.
        let peer = self.release(slot, now);
        let (near, far) = (slot.end(), 1 - slot.end());
        slot.head().left[near].store(1, Ordering::Release);
        if slot.head().attached[far].load(Ordering::Acquire) == 0 {
            slot.head().left[far].store(1, Ordering::Release);
        }
        self.tidy(peer, now);
    }

    /// We use a slot no more, and it is not ours to say that its stream has ended.
    pub fn abandon(&mut self, slot: &Slot, now: u64) {
        let peer = self.release(slot, now);
        self.tidy(peer, now);
    }

    /// An offer that could not be delivered.
    pub fn withdraw(&mut self, place: &Place, now: u64) {
        for left in &place.slot.head().left {
            left.store(1, Ordering::Release);
        }
        self.abandon(&place.slot, now);
    }

    /// In a forked child: the parent's arenas are the parent's to hand out. The child has mappings of its own, which go when the
    /// streams that it inherited are closed here.
    pub fn forked(&mut self) {
        for link in self.links.values_mut() {
            link.ours = false;
            for segment in &mut link.segments {
                segment.file = None;
            }
        }
        self.counts = [0; 2];
    }

    /// Bytes of segments mapped here, large rings aside.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Links that this process has opened, and closed.
    pub fn counts(&self) -> [u64; 2] {
        self.counts
    }

    /// Address space that large rings may take yet. What earlier ones took is there still, for the next ones.
    fn bulk_room(&self, shape: Shape) -> usize {
        match shape.limit {
            usize::MAX => usize::MAX,
            limit => BULK_SPACE.min(limits::address_space_share(limit) / BULK_SHARE).saturating_sub(self.bulk_bytes),
        }
    }

    fn open(
        &mut self,
        peer: Peer,
        fd: impl AsFd,
        (geometry, nonce, end): (Geometry, [u8; 16], usize),
        shape: Shape,
        now: u64,
    ) -> Result<&mut Segment, Reason> {
        let bulk_bytes =
            Some(geometry.bytes() - geometry.dense()).filter(|bytes| *bytes <= self.bulk_room(shape)).unwrap_or(0);
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
        if !link.ours {
            link.ours = true;
            self.counts[0] += 1;
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
            since: now,
        });
        link.segments.last_mut().ok_or(Reason::NO_MEMORY)
    }

    /// One stream less on a slot; whose link it is.
    fn release(&mut self, slot: &Slot, now: u64) -> Option<Peer> {
        let (&base, &peer) = self.owners.range(..=slot.address()).next_back()?;
        let segment = self.links.get_mut(&peer)?.segments.iter_mut().find(|s| s.mapping.base() as usize == base)?;
        let index = segment.geometry.index(slot.address() - base)?;
        if let Some(streams @ 1..) = &mut segment.slots[index] {
            *streams -= 1;
            segment.streams -= 1;
            segment.since = now;
            if *streams == 0 && segment.file.is_some() {
                segment.free.push_back(index as u32);
            }
        }
        Some(peer)
    }

    /// Closes what is due: looks at `first`, and goes on where it stopped the last time.
    fn tidy(&mut self, first: Option<Peer>, now: u64) {
        let (mut asked, mut begun) = (0, None);
        if let Some(peer) = first {
            self.tidy_one(peer, now, &mut asked);
        }
        for _ in 0..LOOKED_AT {
            let after = self.looked_at.map_or(Unbounded, Excluded);
            let next = self.links.range((after, Unbounded)).next().or_else(|| self.links.iter().next());
            let Some((&peer, _)) = next else { break };
            if begun == Some(peer) || asked == ASKED {
                break;
            }
            begun = begun.or(Some(peer));
            self.looked_at = Some(peer);
            if first != Some(peer) {
                self.tidy_one(peer, now, &mut asked);
            }
        }
    }

    fn tidy_one(&mut self, peer: Peer, now: u64, asked: &mut usize) {
        let Some(link) = self.links.get_mut(&peer) else { return };
        let expired = |s: &Segment| s.streams == 0 && now.saturating_sub(s.since) >= IDLE;
        let due = |s: &Segment, ended: bool| s.streams == 0 && (ended || expired(s));
        if link.segments.iter().all(|s| s.streams > 0) {
            return;
        }
        // Nothing else ever comes to the link of an invisible peer that we offered a slot.
        let mut ended = peer.alone != 0;
        if !ended && !link.segments.iter().all(|s| s.streams > 0 || expired(s)) && *asked < ASKED {
            *asked += 1;
            let known = link.asked.filter(|(then, _)| now.saturating_sub(*then) < THOROUGH);
            let (_, there) = *link.asked.insert(known.unwrap_or_else(|| (now, (self.lives)(&peer, true))));
            ended = !there || known.is_some() && !(self.lives)(&peer, false);
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
            self.counts[1] += u64::from(link.ours);
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

    fn place(&mut self, cookies: [u64; 2]) -> Option<Place> {
        let file = self.file.as_ref()?;
        for _ in 0..self.free.len().min(LOOKS) {
            let index = self.free.pop_front()?;
            let slot = self.slot(index as usize, 0)?;
            match self.slots[index as usize] {
                None if !memory::populate(slot.control_memory()) => {
                    self.free.push_front(index);
                    return None;
                }
                Some(1..) => continue, // offered to ourselves, and still in use: it comes back when that stream ends
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
            return Some(Place { slot, index, nonce: self.nonce, file: file.clone() });
        }
        None
    }

    fn use_slot(&mut self, index: usize, end: usize) -> Result<Slot, Reason> {
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

/// Checks a segment from a peer before it is mapped.
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
