//! Regions: memory of this side that peers may get from, put to, and change by atomics.
//!
//! [`Regions`] is the one table of an owner for all of its links, like [`super::matching::Table`]. A region has a length, [`Rights`], a
//! name given by the owner, and a key for peers: 64 random bits, which reveal nothing about the region or about other keys. Every
//! access of a peer goes through [`Regions::reach`], which checks key, right and bounds. A key that was never given out
//! ([`Regions::was_given_out`]) is a guess and breaks the link on which it arrives. The key of a region that has ended is late, and is
//! denied.
//!
//! The table has no memory and knows no address; the owner does.
//!
//! A region ends in two steps. From [`Regions::revoke`] on no access begins and pieces in progress are refused. Its memory must stay
//! valid until nothing holds it: a copy by this side, a peer that knows the address of the bytes, a peer that has not answered REVOKE.
//! [`Regions::release`] reports the end of the last hold.

use super::Status;
use super::slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Keys of ended regions that are remembered, so that a late access is not taken for a guess.
const REMEMBERED_KEYS: usize = 4096;

/// What peers may do with a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rights(pub u8);

impl Rights {
    /// Read.
    pub const GET: Rights = Rights(1);
    /// Write.
    pub const PUT: Rights = Rights(2);
    /// Change by atomics, with or without the previous value.
    pub const ATOMIC: Rights = Rights(4);
    /// All rights.
    pub const ALL: Rights = Rights(7);

    /// The union of both.
    pub const fn and(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// Whether all rights of `other` are included.
    pub const fn include(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The name of a region for peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u64);

/// Keys are random, so each is its own hash. Peers choose the keys that are looked up, never those that are stored.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    #[inline]
    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

#[derive(Debug)]
struct Region {
    name: u64,
    /// The offset of the first byte.
    first: u64,
    length: u64,
    rights: Rights,
    revoked: bool,
    /// Number of users for which the memory must stay valid.
    holds: u32,
}

/// The result of a revocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revoked {
    /// Nothing uses the memory.
    Ended,
    /// This many holds are left: [`super::Memory::region_released`] follows.
    StillHeld(u32),
}

/// The regions of one owner.
#[derive(Debug, Default)]
pub struct Regions {
    slab: Slab<Region>,
    /// The index of each region.
    by_key: HashMap<Key, u32, BuildHasherDefault<IdentityHasher>>,
    /// Keys of ended regions, oldest first.
    ended: VecDeque<Key>,
}

impl Regions {
    /// Registers a region whose offsets begin at 0. `random`, 64 bits that no peer can guess, becomes the key. `None`: there are
    /// too many regions, the key is in use, or it is 0.
    pub fn register(&mut self, name: u64, length: u64, rights: Rights, random: u64) -> Option<Key> {
        self.register_from(name, 0, length, rights, random)
    }

    /// Registers a region whose offsets begin at `first`, so that offsets may be addresses of the owner. `None` as in
    /// [`Regions::register`], or if the last offset would overflow.
    pub fn register_from(&mut self, name: u64, first: u64, length: u64, rights: Rights, random: u64) -> Option<Key> {
        first.checked_add(length)?;
        let key = Key(random);
        if random == 0 || self.by_key.contains_key(&key) {
            return None;
        }
        let number = self.slab.insert(Region { name, first, length, rights, revoked: false, holds: 0 })?;
        self.by_key.insert(key, number.index());
        Some(key)
    }

    /// Whether this is or was the key of a region, as far back as keys are remembered. Not for the path of an access that succeeds.
    #[cold]
    pub fn was_given_out(&self, key: Key) -> bool {
        self.by_key.contains_key(&key) || self.ended.contains(&key)
    }

    /// The owner's name for the region, if a peer may access these bytes at the moment; `offset` as peers count. An error reveals
    /// no more about a wrong key than that it is wrong.
    #[inline]
    pub fn reach(&self, key: Key, right: Rights, offset: u64, length: u64) -> Result<u64, Status> {
        let region = self.find(key).filter(|region| !region.revoked && region.rights.include(right));
        let region = region.ok_or(Status::AccessDenied)?;
        let from = offset.checked_sub(region.first).ok_or(Status::OutOfBounds)?;
        let end = from.checked_add(length).ok_or(Status::OutOfBounds)?;
        if end <= region.length { Ok(region.name) } else { Err(Status::OutOfBounds) }
    }

    /// The owner's name for a region, and whether it was revoked. `None`: no such region, or it has ended.
    pub fn name(&self, key: Key) -> Option<(u64, bool)> {
        self.find(key).map(|region| (region.name, region.revoked))
    }

    /// The owner's name for a region, its length and its rights. `None`: no such region, or it was revoked.
    pub fn sight(&self, key: Key) -> Option<(u64, u64, Rights)> {
        let region = self.find(key).filter(|region| !region.revoked)?;
        Some((region.name, region.length, region.rights))
    }

    /// Revokes a region: no access begins from here on. `None`: no such region, or it was revoked before.
    pub fn revoke(&mut self, key: Key) -> Option<Revoked> {
        let region = self.find_mut(key).filter(|region| !region.revoked)?;
        region.revoked = true;
        if region.holds > 0 {
            return Some(Revoked::StillHeld(region.holds));
        }
        self.remove(key);
        Some(Revoked::Ended)
    }

    /// Holds the memory of a region, revoked or not, until [`Regions::release`]. Returns false if there is no such region.
    pub fn hold(&mut self, key: Key) -> bool {
        let region = self.find_mut(key);
        region.is_some_and(|region| {
            region.holds += 1;
            true
        })
    }

    /// Releases a hold. Returns the owner's name for the region when that was the last hold of a revoked region, which has ended by
    /// that.
    #[must_use]
    pub fn release(&mut self, key: Key) -> Option<u64> {
        let region = self.find_mut(key)?;
        region.holds = region.holds.checked_sub(1)?;
        if !region.revoked || region.holds > 0 {
            return None;
        }
        self.remove(key).map(|region| region.name)
    }

    fn remove(&mut self, key: Key) -> Option<Region> {
        let index = self.by_key.remove(&key)?;
        if self.by_key.is_empty() {
            self.by_key.shrink_to_fit();
        }
        if self.ended.len() == REMEMBERED_KEYS {
            self.ended.pop_front();
        }
        self.ended.push_back(key);
        self.slab.remove(index)
    }

    /// Number of regions, and bytes held for them.
    pub fn size(&self) -> (u32, usize) {
        let entry = size_of::<(Key, u32)>() + 1;
        let keys = self.by_key.capacity() * entry + self.ended.capacity() * size_of::<Key>();
        (self.slab.count(), self.slab.bytes() + keys)
    }

    #[inline]
    fn find(&self, key: Key) -> Option<&Region> {
        self.slab.get(*self.by_key.get(&key)?)
    }

    fn find_mut(&mut self, key: Key) -> Option<&mut Region> {
        self.slab.get_mut(*self.by_key.get(&key)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANDOM: u64 = 0x1234_5678_9abc_def0;

    #[test]
    fn bounds_do_not_overflow() {
        let mut regions = Regions::default();
        let key = regions.register(7, 100, Rights::GET, RANDOM).unwrap();
        let reach = |offset, length| regions.reach(key, Rights::GET, offset, length);
        for (offset, length) in [(0, 100), (100, 0), (0, 0), (99, 1)] {
            assert_eq!(reach(offset, length), Ok(7));
        }
        for (offset, length) in [(0, 101), (101, 0), (100, 1), (u64::MAX, 2), (1, u64::MAX), (u64::MAX, u64::MAX)] {
            assert_eq!(reach(offset, length), Err(Status::OutOfBounds));
        }
    }

    #[test]
    fn offsets_begin_at_the_first_one() {
        let mut regions = Regions::default();
        let first = u64::MAX - 100;
        let key = regions.register_from(7, first, 100, Rights::GET, RANDOM).unwrap();
        let reach = |offset, length| regions.reach(key, Rights::GET, offset, length);
        for (offset, length) in [(first, 100), (first + 100, 0), (first + 99, 1)] {
            assert_eq!(reach(offset, length), Ok(7));
        }
        for (offset, length) in
            [(0, 1), (0, 0), (first - 1, 1), (first - 1, 0), (first, 101), (first + 100, 1), (first, u64::MAX)]
        {
            assert_eq!(reach(offset, length), Err(Status::OutOfBounds));
        }
        assert_eq!(regions.register_from(7, first, 102, Rights::GET, RANDOM + 1), None);
    }

    #[test]
    fn key_must_match_in_every_bit_and_right() {
        let mut regions = Regions::default();
        let key = regions.register(7, 100, Rights::GET.and(Rights::ATOMIC), RANDOM).unwrap();
        for bit in 0..64 {
            assert_eq!(regions.reach(Key(key.0 ^ 1 << bit), Rights::GET, 0, 1), Err(Status::AccessDenied));
        }
        assert_eq!(regions.reach(key, Rights::ATOMIC, 0, 1), Ok(7));
        assert_eq!(regions.reach(key, Rights::PUT, 0, 1), Err(Status::AccessDenied));
        assert_eq!(regions.reach(key, Rights::ALL, 0, 1), Err(Status::AccessDenied));
    }

    #[test]
    fn revoked_region_ends_with_its_last_hold() {
        let mut regions = Regions::default();
        let key = regions.register(7, 100, Rights::ALL, RANDOM).unwrap();
        assert!(regions.hold(key) && regions.hold(key));
        assert_eq!(regions.release(key), None);
        assert_eq!(regions.sight(key), Some((7, 100, Rights::ALL)));
        assert_eq!(regions.revoke(key), Some(Revoked::StillHeld(1)));
        assert_eq!((regions.sight(key), regions.sight(Key(key.0 ^ 1 << 40))), (None, None));
        assert_eq!((regions.name(key), regions.name(Key(key.0 ^ 1 << 40))), (Some((7, true)), None));
        assert_eq!(regions.revoke(key), None, "once");
        assert_eq!(regions.reach(key, Rights::GET, 0, 1), Err(Status::AccessDenied));
        assert_eq!(regions.release(key), Some(7));
        assert_eq!(regions.name(key), None);
        assert!(!regions.hold(key));
        assert_eq!((regions.release(key), regions.size().0), (None, 0));
        let next = regions.register(8, 100, Rights::ALL, RANDOM + 1).unwrap();
        assert_eq!(regions.release(next), None, "nothing is held");
        assert_eq!(regions.revoke(next), Some(Revoked::Ended));
    }

    #[test]
    fn late_key_differs_from_unknown_key() {
        let mut regions = Regions::default();
        assert_eq!(regions.register(1, 8, Rights::ALL, 0), None, "no region has the key 0");
        let keys: Vec<Key> =
            (1..=REMEMBERED_KEYS as u64 + 10).filter_map(|n| regions.register(n, 8, Rights::ALL, n << 40)).collect();
        assert!(regions.register(1, 8, Rights::ALL, 1 << 40).is_none(), "in use");
        assert_eq!(keys.len(), REMEMBERED_KEYS + 10);
        for key in &keys {
            assert!(regions.was_given_out(*key));
            assert!(!regions.was_given_out(Key(key.0 ^ 1)));
            assert_eq!(regions.revoke(*key), Some(Revoked::Ended));
            assert!(regions.was_given_out(*key));
            assert_eq!(regions.reach(*key, Rights::GET, 0, 1), Err(Status::AccessDenied));
        }
        let remembered = keys.iter().filter(|key| regions.was_given_out(**key)).count();
        assert_eq!((remembered, regions.size().0), (REMEMBERED_KEYS, 0));
        assert!(regions.size().1 < 2 * REMEMBERED_KEYS * size_of::<Key>() + 4096, "what is remembered is bounded");
    }
}
