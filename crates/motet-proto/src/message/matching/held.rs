//! Messages that nobody waited for, until a receive, a claim or their link takes them.
//!
//! What it is: their records, listed by arrival and by exact tag, in their scope and in its context. What it is not: what a message
//! costs, and what becomes of it, is its link's matter.

use super::super::ChannelId;
use super::super::pool::Number;
use super::{Key, Scope, Selector, Source, Table, shrink};

/// A message that nobody waited for. It must be accepted or discarded by its link, which owes the sender for it.
#[derive(Debug)]
pub struct Held {
    /// The link's name for itself.
    pub source: u32,
    /// On which channel it came.
    pub channel: ChannelId,
    /// Bytes of headers at the front of `bytes`.
    pub(in crate::message) headers: u16,
    /// Its tag.
    pub tag: u64,
    /// Bytes of its body.
    pub length: u64,
    /// Credit that it uses.
    pub(in crate::message) units: u32,
    /// The record of a long message; otherwise the body is here.
    pub(in crate::message) long: Option<Number>,
    pub(in crate::message) bytes: Box<[u8]>,
}

impl Held {
    /// Its headers, the outermost first.
    pub fn headers(&self) -> &[u8] {
        &self.bytes[..usize::from(self.headers)]
    }

    /// Its body, when that has come with it.
    pub fn body(&self) -> Option<&[u8]> {
        self.long.is_none().then(|| &self.bytes[usize::from(self.headers)..])
    }
}

/// In the table.
#[derive(Debug)]
pub struct Kept {
    pub(super) held: Held,
    /// The scope, and its context.
    pub(super) scopes: [u32; 2],
}

/// Lists through kept messages, of the scope; two further on those of the context.
const LISTS: [[usize; 2]; 2] = [[0, 1], [2, 3]];

impl<B: Copy> Table<B> {
    /// The message that a receive would get.
    pub fn peek(&self, selector: Selector) -> Option<&Held> {
        self.kept.get(self.look(selector)?).map(|kept| &kept.held)
    }

    /// Takes it, for `accept` or `discard` of its link.
    pub fn claim(&mut self, selector: Selector) -> Option<Held> {
        let index = self.look(selector)?;
        self.take_kept(index)
    }

    /// Keeps a message that nobody waits for. The message comes back when there are too many.
    pub(in crate::message) fn keep(&mut self, scope: Scope, held: Held) -> Result<Number, Held> {
        let Some(index) = self.scopes.find(scope.0) else { return Err(held) };
        if self.kept.count() == super::super::pool::MOST {
            return Err(held);
        }
        let parent = self.scopes.get(index).and_then(|place| place.parent);
        let (tag, scopes) = (held.tag, [index, parent.unwrap_or(u32::MAX)]);
        let Some(number) = self.kept.insert(Kept { held, scopes }) else { unreachable!("fewer than the most") };
        for (scope, [by_key, by_scope]) in scopes.into_iter().zip(LISTS) {
            let Some(place) = self.scopes.get_mut(scope) else { continue };
            self.kept.append(&mut place.held, by_scope, number.index());
            if place.ordered {
                break;
            }
            let list = self.kept_by_key.entry(Key { scope, mask: 0, tag }).or_default();
            self.kept.append(list, by_key, number.index());
        }
        Ok(number)
    }

    /// Takes a kept message out, if it is still there.
    pub(in crate::message) fn withdraw(&mut self, number: Number) -> Option<Held> {
        let index = self.kept.find(number)?;
        self.take_kept(index)
    }

    /// The first kept message that a selector matches.
    #[inline(always)]
    pub(super) fn look(&self, selector: Selector) -> Option<u32> {
        if self.kept.count() == 0 { None } else { self.find_kept(selector) }
    }

    fn find_kept(&self, selector: Selector) -> Option<u32> {
        let scope = self.scopes.find(selector.from.number())?;
        if self.is_ordered(scope) {
            return self.scopes.get(scope)?.held.first();
        }
        if selector.ignore == 0 {
            return self.kept_by_key.get(&Key { scope, mask: 0, tag: selector.tag })?.first();
        }
        let by_scope = LISTS[usize::from(matches!(selector.from, Source::Any(_)))][1];
        let mut at = self.scopes.get(scope)?.held.first();
        while let Some(index) = at {
            let tag = self.kept.get(index)?.held.tag;
            if (tag ^ selector.tag) & !selector.ignore == 0 {
                return Some(index);
            }
            at = self.kept.after(by_scope, index);
        }
        None
    }

    pub(super) fn take_kept(&mut self, index: u32) -> Option<Held> {
        let &Kept { scopes, held: Held { tag, .. } } = self.kept.get(index)?;
        for (scope, [by_key, by_scope]) in scopes.into_iter().zip(LISTS) {
            let Some(place) = self.scopes.get_mut(scope) else { continue };
            self.kept.unlink(&mut place.held, by_scope, index);
            if place.ordered {
                break;
            }
            let key = Key { scope, mask: 0, tag };
            let Some(list) = self.kept_by_key.get_mut(&key) else { continue };
            self.kept.unlink(list, by_key, index);
            if list.is_empty() {
                self.kept_by_key.remove(&key);
            }
        }
        shrink(&mut self.kept_by_key);
        self.kept.remove(index).map(|kept| kept.held)
    }
}
