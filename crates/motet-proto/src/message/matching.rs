//! Matching: which posted receive gets which message.
//!
//! What it is: a table of receives that wait for messages and of messages that wait for receives, for any number of links:
//! it lies with their owner, so that a receive from any source finds a message of any link. It keeps both orders that MPI
//! demands: a message goes to the receive that was posted first among those that match, a receive takes the message that
//! came first (invariant M6).
//!
//! What it is not: it moves no bytes and knows no link.
//!
//! A *scope* is where messages of one sender on one channel arrive; its parent, a *context*, is where receives from any source
//! wait. A tag matches when it agrees in the bits that a receive does not ignore.
//!
//! Receives wait in a list for each scope and one for each context, in the order of posting: an arriving message looks through both, and
//! goes to the older of the two that it finds. So receives of one channel are never in the way of another's messages. Where a list is long,
//! receives beyond the first 32 are found by hash of what they do not ignore, one table for each distinct mask in use (tuple space
//! search: Srinivasan, Suri, Varghese, SIGCOMM 1999), each bucket in the order of posting: an arriving message costs one look-up per mask,
//! not one per receive. Messages are kept by hash of scope and tag and in order of arrival; only a receive that ignores bits walks the
//! latter. An *ordered* scope ignores tags, and is a plain queue of receives or of messages.
//!
//! Where messages arrive is in `scopes`, those that wait are in `held`; here are the receives, and who meets whom.

mod hash;
mod held;
mod scopes;

use super::Status;
use super::pool::{Fifo, Number, Pool};
use hash::Seeded;
pub use held::Held;
use held::Kept;
use scopes::Place;
pub use scopes::{Context, Scope, Source};
use std::collections::HashMap;
use std::hash::Hasher;
use std::num::NonZeroU64;

/// A receive: what the owner posts and gets back with the match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// The owner's name for it.
    pub operation: u64,
    /// Bytes that its buffer takes.
    pub capacity: u64,
}

/// What a receive, a peek or a claim asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selector {
    /// From where.
    pub from: Source,
    /// The tag.
    pub tag: u64,
    /// Bits of it that do not matter.
    pub ignore: u64,
}

/// Names a posted receive: its record, and its place in the order of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    number: Number,
    sequence: NonZeroU64,
}

/// Most receives of a list that are looked through one by one; few where the tables are to be tested.
const LISTED: u32 = if cfg!(test) { 3 } else { 32 };
/// [`Waiting::mask`] of one of them.
const NO_MASK: u32 = u32::MAX;

/// What has become of a posted receive.
#[derive(Debug)]
pub enum Posted {
    /// It waits.
    Waiting(Ticket),
    /// A message was there already: hand it to `accept` of its link.
    Found(Held),
    /// No message can come any more: complete it with this status.
    Ended(Status),
}

#[derive(Debug)]
struct Waiting {
    receive: Receive,
    tag: u64,
    ignore: u64,
    sequence: NonZeroU64,
    /// A scope or a context.
    scope: u32,
    /// The table that it is found by, or [`NO_MASK`].
    mask: u32,
}

impl Waiting {
    #[inline(always)]
    fn admits(&self, tag: u64) -> bool {
        (tag ^ self.tag) & !self.ignore == 0
    }
}

/// Receives and messages of one scope whose tags agree where it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    scope: u32,
    mask: u32,
    tag: u64,
}

impl std::hash::Hash for Key {
    #[inline(always)]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.scope) << 32 | u64::from(self.mask));
        state.write_u64(self.tag);
    }
}

/// Distinct bits that waiting receives ignore, and by how many.
#[derive(Debug)]
struct Mask {
    ignore: u64,
    receives: u32,
}

/// Lists through waiting receives.
const SAME_KEY: usize = 0;
const SAME_SCOPE: usize = 1;
/// Receives and messages that wait for each other.
#[derive(Debug)]
pub struct Table {
    scopes: Pool<Place>,
    waiting: Pool<Waiting, 2>,
    kept: Pool<Kept, 4>,
    waiting_by_key: HashMap<Key, Fifo, Seeded>,
    kept_by_key: HashMap<Key, Fifo, Seeded>,
    masks: Vec<Mask>,
    sequence: NonZeroU64,
}

/// A scope and its context (if it has none, itself), as long as both are there.
#[derive(Debug, Clone, Copy)]
pub struct Home {
    scope: u32,
    parent: u32,
}

/// Where receives from one source wait, as long as messages may come from there.
#[derive(Debug, Clone, Copy)]
pub struct Aim {
    scope: u32,
    ordered: bool,
}

impl Table {
    /// Bytes of one scope.
    pub const SCOPE: usize = Pool::<Place>::RECORD;

    /// An empty table. `seed` should be hard to guess: peers choose tags.
    pub fn new(seed: [u64; 2]) -> Self {
        let seeded = Seeded(seed);
        Self {
            scopes: Pool::default(),
            waiting: Pool::default(),
            kept: Pool::default(),
            waiting_by_key: HashMap::with_hasher(seeded),
            kept_by_key: HashMap::with_hasher(seeded),
            masks: vec![Mask { ignore: 0, receives: 0 }],
            sequence: NonZeroU64::MIN,
        }
    }

    /// A message arrives in a scope: the receive that gets it, which is out of the table then.
    #[inline]
    pub fn arrive(&mut self, scope: Scope, tag: u64) -> Option<Receive> {
        let (_, node) = self.oldest_for(scope, tag)?;
        self.take_waiting(node)
    }

    /// The receive that [`Table::arrive`] would give, where it is from this scope alone. It stays posted, and unless it is cancelled no other
    /// one gets the next message of the scope.
    #[inline]
    pub fn foresee(&self, scope: Scope, tag: u64) -> Option<Receive> {
        let (at, node) = self.oldest_for(scope, tag)?;
        (at == scope.0.index()).then(|| self.waiting.get(node).map(|waiting| waiting.receive))?
    }

    /// The scope or context, and the record there, of the receive that gets a message.
    #[inline(always)]
    fn oldest_for(&self, scope: Scope, tag: u64) -> Option<(u32, u32)> {
        if self.waiting.count() == 0 {
            return None;
        }
        let index = self.scopes.find(scope.0)?;
        let parent = self.scopes.get(index)?.parent;
        let own = self.oldest_in(index, tag);
        let any = parent.and_then(|parent| self.oldest_in(parent, tag));
        match (own, any) {
            (Some((older, _)), Some((sequence, node))) if sequence < older => Some((parent?, node)),
            (Some((_, node)), _) => Some((index, node)),
            (None, Some((_, node))) => Some((parent?, node)),
            (None, None) => None,
        }
    }

    /// The oldest receive of a scope or context that a tag matches, and its place in the order of all.
    #[inline]
    fn oldest_in(&self, scope: u32, tag: u64) -> Option<(NonZeroU64, u32)> {
        let place = self.scopes.get(scope)?;
        let mut next = place.posted.first();
        for _ in 0..place.listed {
            let waiting = self.waiting.get(next?)?;
            if waiting.admits(tag) {
                return next.map(|node| (waiting.sequence, node));
            }
            next = self.waiting.after(SAME_SCOPE, next?);
        }
        next.and_then(|_| self.oldest_in_tables(scope, tag))
    }

    /// The same of those that are found by hash.
    #[inline(never)]
    fn oldest_in_tables(&self, scope: u32, tag: u64) -> Option<(NonZeroU64, u32)> {
        let known = self.masks.iter().enumerate().filter(|(_, mask)| mask.receives > 0);
        let firsts = known.filter_map(|(at, mask)| {
            let key = Key { scope, mask: at as u32, tag: tag & !mask.ignore };
            let node = self.waiting_by_key.get(&key)?.first()?;
            Some((self.waiting.get(node)?.sequence, node))
        });
        firsts.min()
    }

    /// Where messages of a scope find their receives.
    #[inline(always)]
    pub fn home(&self, scope: Scope) -> Option<Home> {
        let (at, place) = (scope.0.index(), self.scopes.known(scope.0)?);
        Some(Home { scope: at, parent: place.parent.unwrap_or(at) })
    }

    /// The record of the receive that [`Table::arrive`] would give, where that is the first of its list and none of the other list is older:
    /// [`Table::take`] may follow.
    #[inline(always)]
    pub fn first_for(&self, home: Home, tag: u64) -> Option<u32> {
        let first = |scope: u32| {
            let node = self.scopes.get(scope)?.posted.first()?;
            self.waiting.get(node).map(|waiting| (waiting, node))
        };
        let any = if home.parent == home.scope { None } else { first(home.parent) };
        let (waiting, node) = match (first(home.scope), any) {
            (Some(own), Some(any)) if any.0.sequence < own.0.sequence => any,
            (Some(own), _) => own,
            (None, any) => any?,
        };
        waiting.admits(tag).then_some(node)
    }

    /// Takes a receive out.
    #[inline(always)]
    pub fn take(&mut self, node: u32) -> Option<Receive> {
        self.take_waiting(node)
    }

    /// A receive that nobody posts: whether it would wait, and no other does. Then this is what it waits for, by
    /// [`Table::admits`].
    #[inline(always)]
    pub fn alone(&self, selector: Selector) -> Option<Selector> {
        if self.waiting.count() > 0 || self.look(selector).is_some() {
            return None;
        }
        let place = self.scopes.get(self.scopes.find(selector.from.number())?)?;
        let ignore = if place.ordered { u64::MAX } else { selector.ignore };
        place.ended.is_none().then_some(Selector { ignore, ..selector })
    }

    /// While no receive and no message waits: whether a scope's messages come in order, whatever their tags, and its context. `None`: some
    /// do, or none come any more.
    pub fn calm(&self, scope: Scope) -> Option<(bool, Option<Context>)> {
        if self.waiting.count() > 0 || self.kept.count() > 0 {
            return None;
        }
        let place = self.scopes.get(self.scopes.find(scope.0)?)?;
        let open = |context: &u32| self.scopes.get(*context).is_some_and(|place| place.ended.is_none());
        let context = place.parent.filter(open).map(|context| Context(self.scopes.number(context)));
        place.ended.is_none().then_some((place.ordered, context))
    }

    /// Whether a message that arrives in a scope is for a receive that waits [alone](Table::alone).
    #[inline(always)]
    pub fn admits(&self, selector: &Selector, scope: Scope, tag: u64) -> bool {
        let source = match selector.from {
            Source::One(one) => one == scope,
            Source::Any(Context(context)) => {
                let place = self.scopes.find(scope.0).and_then(|index| self.scopes.get(index));
                place.is_some_and(|place| place.parent == Some(context.index()))
            }
        };
        source && (tag ^ selector.tag) & !selector.ignore == 0
    }

    /// Posts a receive, where no message waits for one from there and its list is short. `None`, and nothing is done: [`Table::post`].
    #[inline(always)]
    pub fn post_simply(&mut self, selector: Selector, receive: Receive) -> Option<(Aim, Ticket)> {
        let number = selector.from.number();
        let place = self.scopes.known(number).filter(|place| place.ended.is_none())?;
        let aim = Aim { scope: number.index(), ordered: place.ordered };
        let simple = place.held.is_empty() && place.lists_more();
        let ticket = simple.then(|| self.post_at(aim, selector.tag, selector.ignore, receive))??;
        Some((aim, ticket))
    }

    /// Whether no message waits for a receive from there, and its list is short: [`Table::post_at`] may follow.
    #[inline(always)]
    pub fn takes_more(&self, aim: Aim) -> bool {
        let place = self.scopes.get(aim.scope);
        place.is_some_and(|place| place.held.is_empty() && place.lists_more())
            && self.waiting.count() < super::pool::MOST
    }

    /// Posts a receive at the end of a short list, to wait where another one from the same source does or did. `None`: there are too many.
    #[inline(always)]
    pub fn post_at(&mut self, aim: Aim, tag: u64, ignore: u64, receive: Receive) -> Option<Ticket> {
        let (ignore, sequence) = (if aim.ordered { u64::MAX } else { ignore }, self.next());
        let make = || Waiting { receive, tag, ignore, sequence, scope: aim.scope, mask: NO_MASK };
        let (number, _) = self.waiting.insert_here(make)?;
        let place = self.scopes.get_mut(aim.scope)?;
        place.listed += 1;
        self.waiting.append(&mut place.posted, SAME_SCOPE, number.index());
        Some(Ticket { number, sequence })
    }

    /// Posts a receive, unless a message is there already.
    pub fn post(&mut self, selector: Selector, receive: Receive) -> Posted {
        if let Some(held) = self.claim(selector) {
            return Posted::Found(held);
        }
        let Some(scope) = self.scopes.find(selector.from.number()) else { return Posted::Ended(Status::Closed) };
        let Some(place) = self.scopes.get(scope) else { return Posted::Ended(Status::Closed) };
        if let Some(status) = place.ended {
            return Posted::Ended(status);
        }
        let aim = Aim { scope, ordered: place.ordered };
        let posted = if place.lists_more() {
            self.post_at(aim, selector.tag, selector.ignore, receive)
        } else {
            self.post_in_tables(selector, scope, receive)
        };
        posted.map_or(Posted::Ended(Status::Full), Posted::Waiting)
    }

    /// The same at the end of a long list.
    #[inline(never)]
    fn post_in_tables(&mut self, selector: Selector, scope: u32, receive: Receive) -> Option<Ticket> {
        let Selector { tag, ignore, .. } = selector;
        let (sequence, mask) = (self.next(), self.mask(ignore));
        let number = self.waiting.insert(Waiting { receive, tag, ignore, sequence, scope, mask })?;
        self.masks[mask as usize].receives += 1;
        let list = self.waiting_by_key.entry(Key { scope, mask, tag: tag & !ignore }).or_default();
        self.waiting.append(list, SAME_KEY, number.index());
        let place = self.scopes.get_mut(scope)?;
        self.waiting.append(&mut place.posted, SAME_SCOPE, number.index());
        place.hashed += 1;
        Some(Ticket { number, sequence })
    }

    /// Takes a posted receive back; `None` when it has been matched.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<Receive> {
        let index = self.waiting.find(ticket.number)?;
        (self.waiting.get(index)?.sequence == ticket.sequence).then(|| self.take_waiting(index))?
    }

    /// Bytes held; what the messages themselves hold is bounded by their links' windows.
    pub fn bytes(&self) -> usize {
        let entry = size_of::<Key>() + size_of::<Fifo>();
        let maps = self.waiting_by_key.capacity() + self.kept_by_key.capacity();
        self.scopes.bytes() + self.waiting.bytes() + self.kept.bytes() + maps * entry
    }

    /// Receives and messages that wait.
    pub fn len(&self) -> (u32, u32) {
        (self.waiting.count(), self.kept.count())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    // ---- inside -----------------------------------------------------------------------------------------------------

    /// The next place in the order of posting.
    #[inline(always)]
    fn next(&mut self) -> NonZeroU64 {
        let next = self.sequence;
        self.sequence = next.saturating_add(1);
        next
    }

    #[inline(always)]
    fn take_waiting(&mut self, index: u32) -> Option<Receive> {
        let &Waiting { receive, scope, mask, .. } = self.waiting.get(index)?;
        let place = self.scopes.get_mut(scope)?;
        self.waiting.unlink(&mut place.posted, SAME_SCOPE, index);
        if mask == NO_MASK {
            place.listed -= 1;
        } else {
            place.hashed -= 1;
            self.leave_tables(index);
        }
        self.waiting.forget_bare(index);
        Some(receive)
    }

    #[inline(never)]
    fn leave_tables(&mut self, index: u32) {
        let Some(&Waiting { scope, mask, tag, ignore, .. }) = self.waiting.get(index) else { return };
        let key = Key { scope, mask, tag: tag & !ignore };
        if let Some(list) = self.waiting_by_key.get_mut(&key) {
            self.waiting.unlink(list, SAME_KEY, index);
            if list.is_empty() {
                self.waiting_by_key.remove(&key);
            }
        }
        self.masks[mask as usize].receives -= 1;
        shrink(&mut self.waiting_by_key);
    }

    /// The table of receives that ignore these bits; one that nobody uses any more serves for others.
    fn mask(&mut self, ignore: u64) -> u32 {
        let same = self.masks.iter().position(|mask| mask.ignore == ignore);
        let at = same.or_else(|| self.masks.iter().skip(1).position(|mask| mask.receives == 0).map(|at| at + 1));
        let at = at.unwrap_or_else(|| {
            self.masks.push(Mask { ignore, receives: 0 });
            self.masks.len() - 1
        });
        self.masks[at].ignore = ignore;
        at as u32
    }
}

/// An empty map gives large memory back.
fn shrink(map: &mut HashMap<Key, Fifo, Seeded>) {
    if map.is_empty() && map.capacity() > 256 {
        map.shrink_to(0);
    }
}

#[cfg(test)]
mod tests;
