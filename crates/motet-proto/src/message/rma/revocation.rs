//! REVOKE and REVOKED: direct access to a region ends on both sides.
//!
//! What it is: for a peer that maps a region of this side and loads and stores there without a packet, the word that it must not
//! any more, and its answer; and the same the other way. Until the answer has come, or the link is gone, the region is held.
//! At most [`MAX_IN_PROGRESS`] are under way in each direction, which bounds what the peer can make this side keep; further ones wait
//! with the side that revokes.
//!
//! What it is not: it knows nothing of mappings. That a process whose link is gone cannot write any more is the owner's to see to.

use crate::message::packet::{Head, Kind};
use crate::message::regions::{Key, Regions};
use crate::message::{Callbacks, Packets, ProtocolViolation, Rejected};
use std::collections::VecDeque;

/// Most that are under way in a direction.
pub const MAX_IN_PROGRESS: usize = 16;

/// Those of a link, in both directions.
#[derive(Debug, Default)]
pub struct Revocations {
    /// Of this side's regions: to be unanswered, and unanswered but not answered.
    unsent: VecDeque<Key>,
    unanswered: Vec<Key>,
    /// Of the peer's: still in use by this side, and to be answered.
    in_use: Vec<Key>,
    answers: VecDeque<Key>,
}

impl Revocations {
    /// One of this side's regions.
    pub fn revoke(&mut self, regions: &mut Regions, key: Key) -> Result<(), Rejected> {
        if !regions.hold(key) {
            return Err(Rejected::Closed);
        }
        self.unsent.push_back(key);
        Ok(())
    }

    /// REVOKE has come.
    pub fn on_revoke<O: Callbacks>(&mut self, owner: &mut O, key: Key) -> Result<(), ProtocolViolation> {
        if self.in_use.len() + self.answers.len() >= MAX_IN_PROGRESS {
            return Err(ProtocolViolation("more revocations than allowed"));
        }
        if owner.stop_direct_access(key) {
            self.answers.push_back(key);
        } else {
            self.in_use.push(key);
        }
        Ok(())
    }

    /// This side does not use one any more.
    pub fn direct_access_stopped(&mut self, key: Key) {
        if let Some(at) = self.in_use.iter().position(|&known| known == key) {
            self.in_use.swap_remove(at);
            self.answers.push_back(key);
        }
    }

    /// REVOKED has come.
    pub fn on_revoked<O: Callbacks>(&mut self, owner: &mut O, key: Key) -> Result<(), ProtocolViolation> {
        let at = self.unanswered.iter().position(|&known| known == key);
        self.unanswered.swap_remove(at.ok_or(ProtocolViolation("an answer to no revocation"))?);
        release(owner, key);
        Ok(())
    }

    /// Whether there is something to put.
    pub fn is_due(&self) -> bool {
        !self.answers.is_empty() || !self.unsent.is_empty() && self.unanswered.len() < MAX_IN_PROGRESS
    }

    /// Whether nothing is under way.
    pub fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.unanswered.is_empty() && self.in_use.is_empty() && self.answers.is_empty()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let keys =
            self.unsent.capacity() + self.unanswered.capacity() + self.in_use.capacity() + self.answers.capacity();
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
        while self.unanswered.len() < MAX_IN_PROGRESS
            && let Some(&key) = self.unsent.front()
        {
            if !put(Kind::Revoke, key) {
                return false;
            }
            self.unsent.pop_front();
            self.unanswered.push(key);
        }
        true
    }

    /// The link is gone.
    pub fn fail<O: Callbacks>(&mut self, owner: &mut O) {
        let Self { unsent, unanswered, .. } = std::mem::take(self);
        for key in unsent.into_iter().chain(unanswered) {
            release(owner, key);
        }
    }
}

/// Takes a hold back, and says so when it was the last.
pub fn release<O: Callbacks>(owner: &mut O, key: Key) {
    if let Some(region) = owner.regions().release(key) {
        owner.region_released(region);
    }
}
