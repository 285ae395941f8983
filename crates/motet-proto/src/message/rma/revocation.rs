//! REVOKE and REVOKED: the end of direct access to a region.
//!
//! A peer that maps a region of this side loads and stores there without packets. REVOKE asks it to stop, REVOKED answers; the same
//! holds in the other direction. Until the answer has arrived, or the link is down, the region is held. At most [`MAX_IN_PROGRESS`] are
//! in progress in each direction, which bounds what the peer can make this side keep; further ones wait on the side that revokes.
//!
//! This module knows no mappings. The owner makes sure that a process whose link is down cannot write to a region any more.

use crate::message::packet::{Head, Kind};
use crate::message::regions::{Key, Regions};
use crate::message::{Callbacks, Packets, ProtocolViolation, Rejected};
use std::collections::VecDeque;

/// Most revocations in progress in a direction.
pub const MAX_IN_PROGRESS: usize = 16;

/// The revocations of a link, in both directions.
#[derive(Debug, Default)]
pub struct Revocations {
    /// Regions of this side: REVOKE is due, and REVOKE was sent and not answered.
    unsent: VecDeque<Key>,
    unanswered: Vec<Key>,
    /// Regions of the peer: still in use by this side, and REVOKED is due.
    in_use: Vec<Key>,
    answers: VecDeque<Key>,
}

impl Revocations {
    /// Revokes a region of this side.
    pub fn revoke(&mut self, regions: &mut Regions, key: Key) -> Result<(), Rejected> {
        if !regions.hold(key) {
            return Err(Rejected::Closed);
        }
        self.unsent.push_back(key);
        Ok(())
    }

    /// REVOKE.
    pub fn on_revoke<O: Callbacks>(&mut self, owner: &mut O, key: Key) -> Result<(), ProtocolViolation> {
        if self.in_use.len() + self.answers.len() >= MAX_IN_PROGRESS {
            return Err(ProtocolViolation("REVOKE beyond the limit of revocations in progress"));
        }
        if owner.stop_direct_access(key) {
            self.answers.push_back(key);
        } else {
            self.in_use.push(key);
        }
        Ok(())
    }

    /// This side does not use a region of the peer any more.
    pub fn direct_access_stopped(&mut self, key: Key) {
        if let Some(at) = self.in_use.iter().position(|&known| known == key) {
            self.in_use.swap_remove(at);
            self.answers.push_back(key);
        }
    }

    /// REVOKED.
    pub fn on_revoked<O: Callbacks>(&mut self, owner: &mut O, key: Key) -> Result<(), ProtocolViolation> {
        let at = self.unanswered.iter().position(|&known| known == key);
        self.unanswered.swap_remove(at.ok_or(ProtocolViolation("REVOKED without a REVOKE"))?);
        release(owner, key);
        Ok(())
    }

    /// Whether a packet is due.
    pub fn is_due(&self) -> bool {
        !self.answers.is_empty() || !self.unsent.is_empty() && self.unanswered.len() < MAX_IN_PROGRESS
    }

    /// Whether no revocation is in progress.
    pub fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.unanswered.is_empty() && self.in_use.is_empty() && self.answers.is_empty()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let keys =
            self.unsent.capacity() + self.unanswered.capacity() + self.in_use.capacity() + self.answers.capacity();
        keys * size_of::<Key>()
    }

    /// Sends what is due. Returns false when there is no room for more.
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

    /// The link is down.
    pub fn fail<O: Callbacks>(&mut self, owner: &mut O) {
        let Self { unsent, unanswered, .. } = std::mem::take(self);
        for key in unsent.into_iter().chain(unanswered) {
            release(owner, key);
        }
    }
}

/// Releases a hold of a region, and reports the region as released if it was the last.
pub fn release<O: Callbacks>(owner: &mut O, key: Key) {
    if let Some(region) = owner.regions().release(key) {
        owner.region_released(region);
    }
}
