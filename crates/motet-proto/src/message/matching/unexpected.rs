//! Unexpected messages: those that arrived before a matching receive was posted.
//!
//! Their records are listed by arrival, in their scope and in its context. A receive compares the first [`MAX_LINEAR_SCAN`] of a list
//! one by one; behind those, an exact tag is found by hash. Credit and further processing of a message are handled by its link.

use super::super::ChannelId;
use super::super::slab::SlabId;
use super::scopes::ScopeEntry;
use super::{MAX_LINEAR_SCAN, MatchKey, Scope, Selector, Source, Table, shrink};

/// A message that no receive waited for. It must be passed to `accept` or `discard` of its link, which returns its credit.
#[derive(Debug)]
pub struct UnexpectedMessage {
    /// The name that the owner gave to the link.
    pub source: u32,
    /// The channel on which the message arrived.
    pub channel: ChannelId,
    /// Bytes of headers at the front of `bytes`.
    pub(in crate::message) headers: u16,
    /// The tag.
    pub tag: u64,
    /// Bytes of the body.
    pub length: u64,
    /// Credit in use by the message.
    pub(in crate::message) units: u32,
    /// The record of a long message. `None`: the body is in `bytes`.
    pub(in crate::message) long: Option<SlabId>,
    pub(in crate::message) bytes: Box<[u8]>,
}

impl UnexpectedMessage {
    /// The headers, outermost first.
    pub fn headers(&self) -> &[u8] {
        &self.bytes[..usize::from(self.headers)]
    }

    /// Whether the body is here.
    pub fn is_whole(&self) -> bool {
        self.long.is_none()
    }

    /// The body, if it is here.
    pub fn body(&self) -> Option<&[u8]> {
        self.is_whole().then(|| &self.bytes[usize::from(self.headers)..])
    }
}

/// An unexpected message in the table.
#[derive(Debug)]
pub struct UnexpectedRecord {
    pub(super) message: UnexpectedMessage,
    /// The scope, and its context if receives of that may take the message.
    pub(super) scopes: [u32; 2],
    /// Whether the message is hashed in the scope, and in the context.
    hashed: [bool; 2],
}

/// Lists of unexpected messages: by key and by scope, for the scope and for the context.
const LISTS: [[usize; 2]; 2] = [[0, 1], [2, 3]];

impl<B> ScopeEntry<B> {
    /// Whether the next message is to be hashed: all messages behind the first hashed one are.
    fn hashes_unexpected(&self) -> bool {
        let [listed, hashed] = self.unexpected_counts;
        !self.ordered && (hashed > 0 || listed >= MAX_LINEAR_SCAN)
    }
}

impl<B: Copy> Table<B> {
    /// The unexpected message that a receive would get.
    pub fn peek(&self, selector: Selector) -> Option<&UnexpectedMessage> {
        self.unexpected.get(self.first_match(selector)?).map(|record| &record.message)
    }

    /// Removes and returns the unexpected message that a receive would get, for `accept` or `discard` of its link.
    pub fn claim(&mut self, selector: Selector) -> Option<UnexpectedMessage> {
        let index = self.first_match(selector)?;
        self.take_unexpected(index)
    }

    /// Whether the scope exists and the table has a record for one more message.
    #[inline(always)]
    pub(in crate::message) fn can_add_unexpected(&self, scope: Scope) -> bool {
        self.scopes.known(scope.0).is_some() && self.unexpected.count() < super::super::slab::MAX_RECORDS
    }

    /// Adds an unexpected message. Returns the message when there are too many.
    pub(in crate::message) fn add_unexpected(
        &mut self,
        scope: Scope,
        message: UnexpectedMessage,
    ) -> Result<SlabId, UnexpectedMessage> {
        let (true, Some(place)) = (self.can_add_unexpected(scope), self.scopes.known(scope.0)) else {
            return Err(message);
        };
        let context = self.context_for(place.parent, message.is_whole());
        let (tag, scopes) = (message.tag, [scope.0.index(), context.unwrap_or(u32::MAX)]);
        let hashed = scopes.map(|scope| self.scopes.get(scope).is_some_and(|place| place.hashes_unexpected()));
        let Some(number) = self.unexpected.insert(UnexpectedRecord { message, scopes, hashed }) else {
            unreachable!("fewer than the most")
        };
        for ((scope, hashed), [by_key, by_scope]) in scopes.into_iter().zip(hashed).zip(LISTS) {
            let Some(place) = self.scopes.get_mut(scope) else { continue };
            self.unexpected.append(&mut place.unexpected, by_scope, number.index());
            place.unexpected_counts[usize::from(hashed)] += 1;
            if hashed {
                let list = self.unexpected_by_key.entry(MatchKey { scope, mask: 0, tag }).or_default();
                self.unexpected.append(list, by_key, number.index());
            }
        }
        Ok(number)
    }

    /// Removes an unexpected message, if it is still there.
    pub(in crate::message) fn remove_unexpected(&mut self, number: SlabId) -> Option<UnexpectedMessage> {
        let index = self.unexpected.find(number)?;
        self.take_unexpected(index)
    }

    /// The first unexpected message that matches a selector.
    #[inline(always)]
    pub(super) fn first_match(&self, selector: Selector) -> Option<u32> {
        if self.unexpected.count() == 0 { None } else { self.find_unexpected(selector) }
    }

    fn find_unexpected(&self, selector: Selector) -> Option<u32> {
        let scope = self.scopes.find(selector.from.number())?;
        let place = self.scopes.get(scope)?;
        let mut at = place.unexpected.first();
        if place.ordered {
            return at;
        }
        let which = usize::from(matches!(selector.from, Source::Any(_)));
        while let Some(index) = at {
            let record = self.unexpected.get(index)?;
            if record.hashed[which] && selector.ignore == 0 {
                return self.unexpected_by_key.get(&MatchKey { scope, mask: 0, tag: selector.tag })?.first();
            }
            if (record.message.tag ^ selector.tag) & !selector.ignore == 0 {
                return Some(index);
            }
            at = self.unexpected.after(LISTS[which][1], index);
        }
        None
    }

    pub(super) fn take_unexpected(&mut self, index: u32) -> Option<UnexpectedMessage> {
        let &UnexpectedRecord { scopes, hashed, message: UnexpectedMessage { tag, .. } } =
            self.unexpected.get(index)?;
        for ((scope, hashed), [by_key, by_scope]) in scopes.into_iter().zip(hashed).zip(LISTS) {
            let Some(place) = self.scopes.get_mut(scope) else { continue };
            self.unexpected.unlink(&mut place.unexpected, by_scope, index);
            place.unexpected_counts[usize::from(hashed)] -= 1;
            let key = MatchKey { scope, mask: 0, tag };
            let Some(list) = hashed.then(|| self.unexpected_by_key.get_mut(&key)).flatten() else { continue };
            self.unexpected.unlink(list, by_key, index);
            if list.is_empty() {
                self.unexpected_by_key.remove(&key);
                shrink(&mut self.unexpected_by_key);
            }
        }
        self.unexpected.remove(index).map(|record| record.message)
    }
}
