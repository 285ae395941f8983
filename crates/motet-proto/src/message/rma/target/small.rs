//! Small operations of the peer: done on arrival.
//!
//! Answers are kept, in order, until there is room for them; a run of successes is one answer. The number of operations is limited by
//! [`super::Target`].

use super::super::format::{self, MAX_REPLY_BYTES, code};
use crate::message::atomic::Atomic;
use crate::message::packet::{self, Head, Kind};
use crate::message::regions::{Key, Rights};
use crate::message::slab::SlabId;
use crate::message::{Callbacks, Packets, ProtocolViolation, Status, UNKNOWN_REGION_KEY};
use std::collections::VecDeque;

/// Bytes for answers that are kept when none is owed.
const MAX_IDLE_BYTES: usize = 8 << 10;

/// An answer that is owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// This many operations are done.
    Ack(u32),
    /// One operation is done; its value is the next bytes of [`Small::values`], this many.
    Value(u32),
    /// One operation failed.
    Failed(Status),
}

/// Operations that are done and not answered.
#[derive(Debug, Default)]
pub struct Small {
    answers: VecDeque<Answer>,
    values: VecDeque<u8>,
    unanswered: u32,
}

impl Small {
    /// Number of operations.
    pub fn count(&self) -> u32 {
        self.unanswered
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.answers.capacity() * size_of::<Answer>() + self.values.capacity()
    }

    /// Whether an answer is due.
    #[inline]
    pub fn is_due(&self) -> bool {
        !self.answers.is_empty()
    }

    /// PUT, GET or ATOMIC.
    #[inline]
    pub fn on_packet<O: Callbacks>(
        &mut self,
        owner: &mut O,
        kind: Kind,
        head: Head,
        rest: &[u8],
    ) -> Result<(), ProtocolViolation> {
        let (key, offset, bytes) = format::read_at(rest)?;
        let done = match kind {
            Kind::Put => {
                let reached = owner.regions().reach(key, Rights::PUT, offset, bytes.len() as u64);
                reached.and_then(|region| {
                    if bytes.is_empty() { Ok(0) } else { owner.region_write(region, offset, bytes).map(|()| 0) }
                })
            }
            Kind::Get => {
                packet::expect_end(bytes)?;
                let length = head.to.0 as usize;
                match head.own {
                    format::VALUE if length <= MAX_REPLY_BYTES => self.get(owner, key, offset, length),
                    format::QUERY_REGION if length == format::REGION_INFO_BYTES => self.query_region(owner, key),
                    _ => return Err(ProtocolViolation("GET of more than 256 bytes, or with an unknown request")),
                }
            }
            _ => match format::read_atomic(head, bytes) {
                Some((atomic, fetch)) => self.atomic(owner, key, offset, &atomic, fetch),
                None => Err(Status::InvalidAtomic),
            },
        };
        if done == Err(Status::AccessDenied) && !owner.regions().was_given_out(key) {
            return Err(UNKNOWN_REGION_KEY);
        }
        self.answer(done);
        Ok(())
    }

    /// Reads the value at once: later writes must not change it.
    fn get<O: Callbacks>(&mut self, owner: &mut O, key: Key, offset: u64, length: usize) -> Result<u32, Status> {
        let region = owner.regions().reach(key, Rights::GET, offset, length as u64)?;
        let values = &mut self.values;
        let before = values.len();
        if length > 0 {
            owner.region_read(region, offset, length, &mut |parts| {
                parts.iter().for_each(|part| values.extend(*part));
                true
            })?;
        }
        values.resize(before + length, 0);
        Ok(length as u32)
    }

    /// The address, length and rights of a region.
    fn query_region<O: Callbacks>(&mut self, owner: &mut O, key: Key) -> Result<u32, Status> {
        let (region, length, rights) = owner.regions().sight(key).ok_or(Status::AccessDenied)?;
        let place = owner.region_mapping(region);
        self.values.extend(format::RegionInfo { place, length, rights }.write());
        Ok(format::REGION_INFO_BYTES as u32)
    }

    fn atomic<O: Callbacks>(
        &mut self,
        owner: &mut O,
        key: Key,
        offset: u64,
        atomic: &Atomic<'_>,
        fetch: bool,
    ) -> Result<u32, Status> {
        let length = atomic.length();
        let region = owner.regions().reach(key, Rights::ATOMIC, offset, length as u64)?;
        atomic.check(offset, fetch).map_err(|_| Status::InvalidAtomic)?;
        let mut result = [0; MAX_REPLY_BYTES];
        let result = result.get_mut(..if fetch { length } else { 0 }).ok_or(Status::InvalidAtomic)?;
        owner.region_atomic(region, offset, atomic, result)?;
        self.values.extend(&*result);
        Ok(result.len() as u32)
    }

    fn answer(&mut self, done: Result<u32, Status>) {
        self.unanswered += 1;
        match (done, self.answers.back_mut()) {
            (Ok(0), Some(Answer::Ack(count))) => *count += 1,
            (Ok(0), _) => self.answers.push_back(Answer::Ack(1)),
            (Ok(length), _) => self.answers.push_back(Answer::Value(length)),
            (Err(status), _) => self.answers.push_back(Answer::Failed(status)),
        }
    }

    /// Sends answers. Returns false when there is no room for more.
    pub fn flush<P: Packets>(&mut self, packets: &mut P) -> bool {
        while let Some(&answer) = self.answers.front() {
            let head = |to: u32, own| Head { to: SlabId(to), own, grant: 0 }.write();
            let (count, length) = match answer {
                Answer::Ack(count) => (count, 0),
                Answer::Value(length) => (1, length as usize),
                Answer::Failed(_) => (1, 0),
            };
            let (front, back) = self.values.as_slices();
            let cut = length.min(front.len());
            let put = match answer {
                Answer::Ack(count) => packets.put(Kind::Ack as u8, &[&head(count, 0)]),
                Answer::Value(_) => {
                    packets.put(Kind::FetchReply as u8, &[&head(0, 0), &front[..cut], &back[..length - cut]])
                }
                Answer::Failed(status) => packets.put(Kind::FetchReply as u8, &[&head(0, code(status))]),
            };
            if !put {
                return false;
            }
            self.answers.pop_front();
            self.values.drain(..length);
            self.unanswered -= count;
        }
        if self.values.capacity() + self.answers.capacity() * size_of::<Answer>() > MAX_IDLE_BYTES {
            (self.answers, self.values) = Default::default();
        }
        true
    }

    /// The link is down: nothing is owed.
    pub fn fail(&mut self) {
        *self = Self::default();
    }
}
