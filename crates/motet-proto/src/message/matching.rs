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
//! wait. A tag matches when it agrees in the bits that a receive does not ignore. Receives are kept by hash of what they
//! do not ignore, one table for each distinct mask in use (tuple space search: Srinivasan, Suri, Varghese, SIGCOMM 1999),
//! each bucket in the order of posting: an arriving message costs one look-up per mask, not one per receive. Messages are
//! kept by hash of scope and tag and in order of arrival; only a receive that ignores bits walks the latter. An *ordered* scope
//! ignores tags, and is a plain queue of receives or of messages.
//!
//! The oldest receives, up to `few::MOST` of them, are in no table: they are looked through in the order of posting, which is less than one
//! look-up where the first one is the one, as with programs that post what comes next.
//!
//! Where messages arrive is in `scopes`, those that wait are in `held`; here are the receives, and who meets whom.

mod few;
mod hash;
mod held;
mod scopes;

use super::Status;
use super::pool::{Fifo, Number, Pool};
use few::{Few, Row};
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

/// Names a posted receive: its record, none for one of the few; and its place in the order of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    number: Number,
    sequence: NonZeroU64,
}

/// [`Ticket::number`] of one of the few.
const NO_RECORD: Number = Number(0);

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
    scope: u32,
    mask: u32,
    tag: u64,
    sequence: NonZeroU64,
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
    /// Receives without a record, in the order of posting. Each is older than all others of the same scope or context that are not
    /// here, and, unless the scope is ordered, than all others.
    few: Row,
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
            few: Row::default(),
        }
    }

    /// A message arrives in a scope: the receive that gets it, which is out of the table then.
    #[inline]
    pub fn arrive(&mut self, scope: Scope, tag: u64) -> Option<Receive> {
        if self.few.is_empty() && self.waiting.count() == 0 {
            return None;
        }
        let index = self.scopes.find(scope.0)?;
        let &Place { parent, ordered, posted, .. } = self.scopes.get(index)?;
        let matches =
            |few: &Few| (few.scope == index || Some(few.scope) == parent) && (tag ^ few.tag) & !few.ignore == 0;
        if self.few.front().is_some_and(matches) {
            return self.few.pop_front().map(|few| few.receive);
        }
        if let Some(at) = self.few.position(matches) {
            return self.take_few(at);
        }
        if ordered { self.take_waiting(posted.first()?) } else { self.arrive_in_tables(index, parent, tag) }
    }

    /// The receive that [`Table::arrive`] would give, where it is plain which: the oldest of all, from this scope alone. It stays posted, and
    /// unless it is cancelled no other one gets the next message of the scope.
    #[inline]
    pub fn foresee(&self, scope: Scope, tag: u64) -> Option<Receive> {
        let few = self.few.front()?;
        (few.scope == self.scopes.find(scope.0)? && (tag ^ few.tag) & !few.ignore == 0).then_some(few.receive)
    }

    /// The same of a message for none of the few.
    #[inline(never)]
    fn arrive_in_tables(&mut self, index: u32, parent: Option<u32>, tag: u64) -> Option<Receive> {
        if self.waiting.count() == 0 {
            return None;
        }
        let mut first: Option<(NonZeroU64, u32)> = None;
        for scope in [Some(index), parent].into_iter().flatten() {
            if self.scopes.get(scope).is_none_or(|place| place.posted.is_empty()) {
                continue;
            }
            for (mask, known) in self.masks.iter().enumerate().filter(|(_, mask)| mask.receives > 0) {
                let key = Key { scope, mask: mask as u32, tag: tag & !known.ignore };
                let head = self.waiting_by_key.get(&key).and_then(|list| list.first());
                let head = head.and_then(|node| Some((self.waiting.get(node)?.sequence, node)));
                first = [first, head].into_iter().flatten().min();
            }
        }
        self.take_waiting(first?.1)
    }

    /// Where messages of a scope find their receives.
    #[inline(always)]
    pub fn home(&self, scope: Scope) -> Option<Home> {
        let (at, place) = (scope.0.index(), self.scopes.known(scope.0)?);
        Some(Home { scope: at, parent: place.parent.unwrap_or(at) })
    }

    /// Whether a message that arrives in a scope is for the receive that was posted first of all that wait: [`Table::take_first`] is then
    /// what [`Table::arrive`] would be.
    #[inline(always)]
    pub fn is_for_first(&self, home: Home, tag: u64) -> bool {
        let Some(first) = self.few.front() else { return false };
        (first.scope == home.scope || first.scope == home.parent) && (tag ^ first.tag) & !first.ignore == 0
    }

    /// The receive that was posted first of all that wait without a record.
    #[inline(always)]
    pub fn take_first(&mut self) -> Option<Receive> {
        self.few.pop_front().map(|few| few.receive)
    }

    /// A receive that nobody posts: whether it would wait, and no other does. Then this is what it waits for, by
    /// [`Table::admits`].
    #[inline(always)]
    pub fn alone(&self, selector: Selector) -> Option<Selector> {
        if self.waiting.count() > 0 || !self.few.is_empty() || self.look(selector).is_some() {
            return None;
        }
        let place = self.scopes.get(self.scopes.find(selector.from.number())?)?;
        let ignore = if place.ordered { u64::MAX } else { selector.ignore };
        place.ended.is_none().then_some(Selector { ignore, ..selector })
    }

    /// While no receive and no message waits: whether a scope's messages come in order, whatever their tags, and its context. `None`: some
    /// do, or none come any more.
    pub fn calm(&self, scope: Scope) -> Option<(bool, Option<Context>)> {
        if self.waiting.count() > 0 || !self.few.is_empty() || self.kept.count() > 0 {
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

    /// Posts a receive, where no message waits for any and it is one of the oldest. `None`, and nothing is done: [`Table::post`].
    #[inline(always)]
    pub fn post_simply(&mut self, selector: Selector, receive: Receive) -> Option<(Aim, Ticket)> {
        let number = selector.from.number();
        let place = self.scopes.known(number).filter(|place| place.ended.is_none())?;
        let aim = Aim { scope: number.index(), ordered: place.ordered };
        self.takes_more().then(|| (aim, self.post_at(aim, selector.tag, selector.ignore, receive)))
    }

    /// Whether no message waits for a receive, and the next receive is one of the oldest: [`Table::post_at`] may follow.
    #[inline(always)]
    pub fn takes_more(&self) -> bool {
        self.kept.count() == 0 && self.waiting.count() == 0 && self.few.len() < few::MOST
    }

    /// Posts a receive that is the last of the oldest, to wait where another one from the same source does or did.
    #[inline(always)]
    pub fn post_at(&mut self, aim: Aim, tag: u64, ignore: u64, receive: Receive) -> Ticket {
        let (ignore, sequence) = (if aim.ordered { u64::MAX } else { ignore }, self.next());
        self.few.push_back(Few { receive, scope: aim.scope, tag, ignore, sequence });
        Ticket { number: NO_RECORD, sequence }
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
        let ordered = place.ordered;
        let oldest = self.waiting.count() == 0 || ordered && place.posted.is_empty();
        if oldest && self.few.len() < few::MOST {
            return Posted::Waiting(self.post_at(Aim { scope, ordered }, selector.tag, selector.ignore, receive));
        }
        self.post_in_tables(selector, scope, ordered, receive)
    }

    /// The same where others wait before it.
    #[inline(never)]
    fn post_in_tables(&mut self, selector: Selector, scope: u32, ordered: bool, receive: Receive) -> Posted {
        let sequence = self.next();
        let mask = if ordered { 0 } else { self.mask(selector.ignore) };
        let tag = selector.tag & !selector.ignore;
        let Some(number) = self.waiting.insert(Waiting { receive, scope, mask, tag, sequence }) else {
            return Posted::Ended(Status::Full);
        };
        if !ordered {
            self.masks[mask as usize].receives += 1;
            let list = self.waiting_by_key.entry(Key { scope, mask, tag }).or_default();
            self.waiting.append(list, SAME_KEY, number.index());
        }
        if let Some(place) = self.scopes.get_mut(scope) {
            self.waiting.append(&mut place.posted, SAME_SCOPE, number.index());
        }
        Posted::Waiting(Ticket { number, sequence })
    }

    /// Takes a posted receive back; `None` when it has been matched.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<Receive> {
        if ticket.number == NO_RECORD {
            let at = self.few.position(|few| few.sequence == ticket.sequence)?;
            return self.take_few(at);
        }
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
        (self.waiting.count() + self.few.len() as u32, self.kept.count())
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
    fn take_few(&mut self, at: usize) -> Option<Receive> {
        let few = if at == 0 { self.few.pop_front() } else { self.few.remove(at) };
        few.map(|few| few.receive)
    }

    fn take_waiting(&mut self, index: u32) -> Option<Receive> {
        let &Waiting { receive, scope, mask, tag, .. } = self.waiting.get(index)?;
        let mut ordered = false;
        if let Some(place) = self.scopes.get_mut(scope) {
            self.waiting.unlink(&mut place.posted, SAME_SCOPE, index);
            ordered = place.ordered;
        }
        if !ordered {
            let key = Key { scope, mask, tag };
            let list = self.waiting_by_key.get_mut(&key)?;
            self.waiting.unlink(list, SAME_KEY, index);
            if list.is_empty() {
                self.waiting_by_key.remove(&key);
            }
            self.masks[mask as usize].receives -= 1;
            shrink(&mut self.waiting_by_key);
        }
        self.waiting.remove(index);
        Some(receive)
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
