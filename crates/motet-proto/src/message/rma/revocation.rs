//! REVOKE and REVOKED: direct access to a region ends on both sides.
//!
//! What it is: for a peer that maps a region of this side and loads and stores there without a packet, the word that it must not
//! any more, and its answer; and the same the other way. Until the answer has come, or the link is gone, the region is held.
//! At most [`MOST`] are under way in each direction, which bounds what the peer can make this side keep; further ones wait
//! with the side that revokes.
//!
//! What it is not: it knows nothing of mappings. That a process whose link is gone cannot write any more is the owner's to see to.

use crate::message::packet::{Head, Kind};
use crate::message::regions::{Key, Regions};
use crate::message::{Broken, Owner, Packets, Refusal};
use std::collections::VecDeque;

/// Most that are under way in a direction.
pub const MOST: usize = 16;

/// Those of a link, in both directions.
#[derive(Debug, Default)]
pub struct Revocations {
    /// Of this side's regions: to be said, and said but not answered.
    ours: VecDeque<Key>,
    said: Vec<Key>,
    /// Of the peer's: still in use by this side, and to be answered.
    theirs: Vec<Key>,
    answers: VecDeque<Key>,
}

impl Revocations {
    /// One of this side's regions.
    pub fn revoke(&mut self, regions: &mut Regions, key: Key) -> Result<(), Refusal> {
        if !regions.hold(key) {
            return Err(Refusal::Closed);
        }
        self.ours.push_back(key);
        Ok(())
    }

    /// REVOKE has come.
    pub fn asked<O: Owner>(&mut self, owner: &mut O, key: Key) -> Result<(), Broken> {
        if self.theirs.len() + self.answers.len() >= MOST {
            return Err(Broken("more revocations than allowed"));
        }
        if owner.forget(key) {
            self.answers.push_back(key);
        } else {
            self.theirs.push(key);
        }
        Ok(())
    }

    /// This side does not use one any more.
    pub fn forgotten(&mut self, key: Key) {
        if let Some(at) = self.theirs.iter().position(|&known| known == key) {
            self.theirs.swap_remove(at);
            self.answers.push_back(key);
        }
    }

    /// REVOKED has come.
    pub fn answered<O: Owner>(&mut self, owner: &mut O, key: Key) -> Result<(), Broken> {
        let at = self.said.iter().position(|&known| known == key);
        self.said.swap_remove(at.ok_or(Broken("an answer to no revocation"))?);
        release(owner, key);
        Ok(())
    }

    /// Whether there is something to put.
    pub fn is_due(&self) -> bool {
        !self.answers.is_empty() || !self.ours.is_empty() && self.said.len() < MOST
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.ours.is_empty() && self.said.is_empty() && self.theirs.is_empty() && self.answers.is_empty()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let keys = self.ours.capacity() + self.said.capacity() + self.theirs.capacity() + self.answers.capacity();
        keys * size_of::<Key>()
    }

    /// Puts what is due; false when there is no room for more.
    pub fn flush<P: Packets>(&mut self, packets: &mut P) -> bool {
        let mut put = |kind: Kind, key: Key| packets.put(kind as u8, &[&Head::default().write_word(key.0)]);
        while let Some(&key) = self.answers.front() {
            if !put(Kind::Revoked, key) {
                return false;
            }
            self.answers.pop_front();
        }
        while self.said.len() < MOST
            && let Some(&key) = self.ours.front()
        {
            if !put(Kind::Revoke, key) {
                return false;
            }
            self.ours.pop_front();
            self.said.push(key);
        }
        true
    }

    /// The link is gone.
    pub fn fail<O: Owner>(&mut self, owner: &mut O) {
        let Self { ours, said, .. } = std::mem::take(self);
        for key in ours.into_iter().chain(said) {
            release(owner, key);
        }
    }
}

/// Takes a hold back, and says so when it was the last.
pub fn release<O: Owner>(owner: &mut O, key: Key) {
    if let Some(region) = owner.regions().release(key) {
        owner.region_ended(region);
    }
}
