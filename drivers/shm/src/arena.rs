//! Segments: those that this process made (an *arena* per peer process, growing by larger segments) and those that peers
//! offered. Segments stay mapped for the life of the process; slots are used again.

use motet_engine::engine::lock;
use motet_engine::reason::Reason;
use motet_sys::fds::PrivateFd;
use motet_sys::memory;
use motet_sys::rustix::fd::OwnedFd;
use motet_sys::socket::Credentials;
use motet_sys::thread::process_exists;
use motet_wire::mapping::Mapping;
use motet_wire::segment::{Geometry, HEAD_WORDS, MAX_SLOTS, Refused};
use motet_wire::slot::Slot;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Slots of an arena's first, second, ... segment: one connection stays small, a thousand take few descriptors.
const GROWTH: [usize; 4] = [1, 4, 16, 64];

static ARENAS: Mutex<Option<HashMap<Key, Vec<Segment>>>> = Mutex::new(None);
static OFFERED: Mutex<Option<Offered>> = Mutex::new(None);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Segments that peers have offered, by nonce.
type Offered = HashMap<[u8; 16], (Geometry, Mapping)>;

/// Which peer a segment is for. A pid that is not visible to us (0) shares nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    pid: i32,
    uid: u32,
    alone: u64,
}

struct Segment {
    file: Arc<PrivateFd>,
    mapping: Mapping,
    geometry: Geometry,
    nonce: [u8; 16],
    used: Vec<bool>,
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

/// Finds or makes room for one more connection with a peer.
pub fn place(peer: Credentials, (ring, bulk): (usize, usize), cookies: [u64; 2]) -> Result<Place, Reason> {
    let key = Key { pid: peer.pid, uid: peer.uid, alone: if peer.pid == 0 { cookies[1] } else { 0 } };
    let mut arenas = lock(&ARENAS);
    let arenas = arenas.get_or_insert_default();
    if !arenas.contains_key(&key) {
        arenas.retain(|k, segments| {
            k.pid == 0 || process_exists(k.pid as u32) || segments.iter().any(|s| s.used.contains(&true))
        });
    }
    let segments = arenas.entry(key).or_default();
    for segment in segments.iter_mut() {
        if (segment.geometry.ring, segment.geometry.bulk) == (ring, bulk)
            && let Some(place) = segment.place(cookies)
        {
            return Ok(place);
        }
    }
    let slots = GROWTH[segments.len().min(GROWTH.len() - 1)].min(MAX_SLOTS);
    let mut segment = Segment::new(Geometry { slots, ring, bulk })?;
    let place = segment.place(cookies).ok_or(Reason::NO_MEMORY)?;
    segments.push(segment);
    Ok(place)
}

impl Segment {
    fn new(geometry: Geometry) -> Result<Self, Reason> {
        let nonce = memory::nonce();
        let head = geometry.encode(nonce);
        let (fd, mapping) = memory::create("motet-segment", geometry.bytes(), &head, geometry.dense())
            .map_err(|_| Reason::NO_MEMORY)?;
        BYTES.fetch_add(geometry.dense(), Ordering::Relaxed);
        let file = Arc::new(PrivateFd::new(fd));
        Ok(Self { file, mapping, geometry, nonce, used: vec![false; geometry.slots] })
    }

    fn slot(&self, index: usize, end: usize) -> Option<Slot> {
        slot_of(self.mapping, self.geometry, index, end)
    }

    fn place(&mut self, cookies: [u64; 2]) -> Option<Place> {
        for index in 0..self.geometry.slots {
            let slot = self.slot(index, 0)?;
            if self.used[index] && !both_left(&slot) {
                continue;
            }
            self.used[index] = true;
            slot.prepare(cookies);
            slot.head().attached[0].store(1, Ordering::Release);
            return Some(Place { slot, index: index as u32, nonce: self.nonce, file: self.file.clone() });
        }
        None
    }
}

/// Both ends have left, so the slot may carry another connection. An end that never came is gone when its offer was
/// withdrawn (see [`withdraw`]).
fn both_left(slot: &Slot) -> bool {
    slot.head().left.iter().all(|left| left.load(Ordering::Acquire) != 0)
}

/// An offer that could not be delivered.
pub fn withdraw(place: &Place) {
    for left in &place.slot.head().left {
        left.store(1, Ordering::Release);
    }
}

/// Maps an offered segment, or finds it mapped, and returns the slot as the other end sees it.
pub fn take(file: OwnedFd, index: u32, nonce: [u8; 16]) -> Result<Slot, Reason> {
    // A process that talks to itself already has the segment.
    if let Some(slot) = own(index, nonce) {
        return Ok(slot);
    }
    let mut offered = lock(&OFFERED);
    let offered = offered.get_or_insert_default();
    let (geometry, mapping) = match offered.get(&nonce) {
        Some(known) => *known,
        None => {
            let known = inspect(&file, nonce)?;
            offered.insert(nonce, known);
            known
        }
    };
    slot_of(mapping, geometry, index as usize, 1).ok_or(Reason::BAD_SEGMENT)
}

fn slot_of(mapping: Mapping, geometry: Geometry, index: usize, end: usize) -> Option<Slot> {
    let slot = Slot::over(mapping, geometry.slot(index).ok()?, geometry.ring, end)?;
    if geometry.bulk == 0 { Some(slot) } else { slot.with_bulk(mapping, geometry.bulk(index), geometry.bulk) }
}

fn inspect(file: &OwnedFd, nonce: [u8; 16]) -> Result<(Geometry, Mapping), Reason> {
    let (size, pages, sealed) = memory::inspect(file).map_err(|_| Reason::BAD_SEGMENT)?;
    if !sealed {
        return Err(Reason::BAD_SEGMENT);
    }
    let head = memory::head::<{ HEAD_WORDS * 8 }>(file).map_err(|_| Reason::BAD_SEGMENT)?;
    let (geometry, written) = Geometry::check(&head, size).map_err(|refused| match refused {
        Refused::Version(_) => Reason::VERSION,
        _ => Reason::BAD_SEGMENT,
    })?;
    if written != nonce || pages < geometry.dense() as u64 {
        return Err(Reason::BAD_SEGMENT);
    }
    let mapping = memory::map(file, geometry.bytes()).map_err(|_| Reason::NO_MEMORY)?;
    BYTES.fetch_add(geometry.dense(), Ordering::Relaxed);
    Ok((geometry, mapping))
}

fn own(index: u32, nonce: [u8; 16]) -> Option<Slot> {
    let arenas = lock(&ARENAS);
    let segment = arenas.as_ref()?.values().flatten().find(|s| s.nonce == nonce)?;
    (segment.used.get(index as usize) == Some(&true)).then(|| segment.slot(index as usize, 1))?
}

/// This process has left a slot; when the peer is dead it has left too.
pub fn leave(slot: &Slot) {
    slot.head().left[slot.end()].store(1, Ordering::Release);
    if slot.head().attached[1 - slot.end()].load(Ordering::Acquire) == 0 {
        slot.head().left[1 - slot.end()].store(1, Ordering::Release);
    }
}

/// Bytes of segments mapped here.
pub fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

/// In a forked child: the parent's arenas are the parent's to hand out.
pub fn forget() {
    if let Some(arenas) = lock(&ARENAS).as_mut() {
        arenas.clear();
    }
}
