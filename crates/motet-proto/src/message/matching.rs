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

use super::pool::{Fifo, Number, Pool};
use super::{ChannelId, Status};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

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

/// Where messages of one sender on one channel arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scope(Number);

/// Scopes whose messages a receive from any source may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Context(Number);

impl Context {
    /// As a number, for those who hand it through a foreign interface.
    pub fn number(self) -> u32 {
        self.0.0
    }

    /// The context of a number that anybody may have made up: every use of it is checked.
    pub fn from_number(number: u32) -> Self {
        Self(Number(number))
    }
}

/// Whose messages a receive may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// One sender's.
    One(Scope),
    /// Anyone's.
    Any(Context),
}

impl Source {
    #[inline(always)]
    fn number(self) -> Number {
        match self {
            Source::One(Scope(number)) | Source::Any(Context(number)) => number,
        }
    }
}

/// Names a posted receive: its record, or the scope in which it is the first; and its place in the order of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    number: Number,
    sequence: u64,
    first: bool,
}

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

/// A message that nobody waited for. It must be accepted or discarded by its link, which owes the sender for it.
#[derive(Debug)]
pub struct Held {
    /// The link's name for itself.
    pub source: u32,
    /// On which channel it came.
    pub channel: ChannelId,
    /// Bytes of headers at the front of `bytes`.
    pub(super) headers: u16,
    /// Its tag.
    pub tag: u64,
    /// Bytes of its body.
    pub length: u64,
    /// Credit that it uses.
    pub(super) units: u32,
    /// The record of a long message; otherwise the body is here.
    pub(super) long: Option<Number>,
    pub(super) bytes: Box<[u8]>,
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

#[derive(Debug)]
struct Place {
    /// The context of a scope; a context has none.
    parent: Option<u32>,
    posted: Fifo,
    held: Fifo,
    /// Scopes of a context.
    children: u32,
    /// Receives and messages meet in order, whatever their tags.
    ordered: bool,
    /// There, the first receive, if no other was before it when it came: it needs no record.
    first: Option<(Receive, u64)>,
    /// Scopes may be in it.
    is_context: bool,
    /// No message will come any more.
    ended: Option<Status>,
}

#[derive(Debug)]
struct Waiting {
    receive: Receive,
    scope: u32,
    mask: u32,
    tag: u64,
    sequence: u64,
}

#[derive(Debug)]
struct Kept {
    held: Held,
    /// The scope, and its context.
    scopes: [u32; 2],
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
/// Lists through kept messages, of the scope; two further on those of the context.
const LISTS: [[usize; 2]; 2] = [[0, 1], [2, 3]];

/// Receives and messages that wait for each other.
#[derive(Debug)]
pub struct Table {
    scopes: Pool<Place>,
    waiting: Pool<Waiting, 2>,
    kept: Pool<Kept, 4>,
    waiting_by_key: HashMap<Key, Fifo, Seeded>,
    kept_by_key: HashMap<Key, Fifo, Seeded>,
    masks: Vec<Mask>,
    sequence: u64,
    /// Receives without a record.
    firsts: u32,
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
            sequence: 0,
            firsts: 0,
        }
    }

    /// A message arrives in a scope: the receive that gets it, which is out of the table then.
    #[inline]
    pub fn arrive(&mut self, scope: Scope, tag: u64) -> Option<Receive> {
        if self.firsts > 0
            && let Some(index) = self.scopes.find(scope.0)
            && let Some((receive, _)) = self.scopes.get_mut(index)?.first.take()
        {
            self.firsts -= 1;
            return Some(receive);
        }
        if self.waiting.count() == 0 {
            return None;
        }
        let index = self.scopes.find(scope.0)?;
        let place = self.scopes.get(index)?;
        if place.ordered {
            return self.take_waiting(place.posted.first()?);
        }
        let parent = place.parent;
        let mut first: Option<(u64, u32)> = None;
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

    /// A receive that nobody posts: whether it would wait, and no other does. Then this is what it waits for, by
    /// [`Table::admits`].
    #[inline(always)]
    pub fn alone(&self, selector: Selector) -> Option<Selector> {
        if self.waiting.count() > 0 || self.firsts > 0 || self.look(selector).is_some() {
            return None;
        }
        let place = self.scopes.get(self.scopes.find(selector.from.number())?)?;
        let ignore = if place.ordered { u64::MAX } else { selector.ignore };
        place.ended.is_none().then_some(Selector { ignore, ..selector })
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

    /// Posts a receive, unless a message is there already.
    pub fn post(&mut self, selector: Selector, receive: Receive) -> Posted {
        if let Some(held) = self.claim(selector) {
            return Posted::Found(held);
        }
        let Some(scope) = self.scopes.find(selector.from.number()) else { return Posted::Ended(Status::Closed) };
        if let Some(status) = self.scopes.get(scope).and_then(|place| place.ended) {
            return Posted::Ended(status);
        }
        let ordered = self.is_ordered(scope);
        if ordered
            && let Some(place) = self.scopes.get_mut(scope)
            && place.first.is_none()
            && place.posted.is_empty()
        {
            let sequence = self.sequence;
            place.first = Some((receive, sequence));
            (self.sequence, self.firsts) = (sequence + 1, self.firsts + 1);
            return Posted::Waiting(Ticket { number: selector.from.number(), sequence, first: true });
        }
        let (mask, sequence) = (if ordered { 0 } else { self.mask(selector.ignore) }, self.sequence);
        let tag = selector.tag & !selector.ignore;
        let Some(number) = self.waiting.insert(Waiting { receive, scope, mask, tag, sequence }) else {
            return Posted::Ended(Status::Full);
        };
        self.sequence += 1;
        if !ordered {
            self.masks[mask as usize].receives += 1;
            let list = self.waiting_by_key.entry(Key { scope, mask, tag }).or_default();
            self.waiting.append(list, SAME_KEY, number.index());
        }
        if let Some(place) = self.scopes.get_mut(scope) {
            self.waiting.append(&mut place.posted, SAME_SCOPE, number.index());
        }
        Posted::Waiting(Ticket { number, sequence, first: false })
    }

    /// Takes a posted receive back; `None` when it has been matched.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<Receive> {
        if ticket.first {
            let index = self.scopes.find(ticket.number)?;
            let (receive, _) = self.scopes.get_mut(index)?.first.take_if(|first| first.1 == ticket.sequence)?;
            self.firsts -= 1;
            return Some(receive);
        }
        let index = self.waiting.find(ticket.number)?;
        (self.waiting.get(index)?.sequence == ticket.sequence).then(|| self.take_waiting(index))?
    }

    /// The message that a receive would get.
    pub fn peek(&self, selector: Selector) -> Option<&Held> {
        self.kept.get(self.look(selector)?).map(|kept| &kept.held)
    }

    /// Takes it, for `accept` or `discard` of its link.
    pub fn claim(&mut self, selector: Selector) -> Option<Held> {
        let index = self.look(selector)?;
        self.take_kept(index)
    }

    /// Bytes held; what the messages themselves hold is bounded by their links' windows.
    pub fn bytes(&self) -> usize {
        let entry = size_of::<Key>() + size_of::<Fifo>();
        let maps = self.waiting_by_key.capacity() + self.kept_by_key.capacity();
        self.scopes.bytes() + self.waiting.bytes() + self.kept.bytes() + maps * entry
    }

    /// Receives and messages that wait.
    pub fn len(&self) -> (u32, u32) {
        (self.waiting.count() + self.firsts, self.kept.count())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    // ---- scopes -----------------------------------------------------------------------------------------------------

    /// A context; `None` when there are too many.
    pub fn context(&mut self) -> Option<Context> {
        let number = self.add(None, false)?;
        self.scopes.named(number)?.is_context = true;
        Some(Context(number))
    }

    /// Whether there is such a context.
    #[inline(always)]
    pub fn knows(&self, Context(number): Context) -> bool {
        self.scopes.find(number).and_then(|index| self.scopes.get(index)).is_some_and(|place| place.is_context)
    }

    /// A scope in a context, or in none; `None` when there are too many.
    pub fn join(&mut self, context: Option<Context>) -> Option<Scope> {
        let parent = match context {
            Some(context) if self.knows(context) => Some(self.scopes.find(context.0)?),
            Some(_) => return None,
            None => None,
        };
        let number = self.add(parent, false)?;
        if let Some(parent) = parent.and_then(|parent| self.scopes.get_mut(parent)) {
            parent.children += 1;
        }
        Some(Scope(number))
    }

    /// A scope of its own in which messages and receives meet in the order in which they come, whatever their tags: nothing is
    /// looked up.
    pub fn join_ordered(&mut self) -> Option<Scope> {
        self.add(None, true).map(Scope)
    }

    fn add(&mut self, parent: Option<u32>, ordered: bool) -> Option<Number> {
        let (posted, held) = Default::default();
        self.scopes.insert(Place {
            parent,
            posted,
            held,
            children: 0,
            ordered,
            first: None,
            is_context: false,
            ended: None,
        })
    }

    #[inline(always)]
    fn is_ordered(&self, scope: u32) -> bool {
        self.scopes.get(scope).is_some_and(|place| place.ordered)
    }

    /// No message will come from this source: yields its receives one by one, and lets nobody post another.
    pub fn end(&mut self, source: Source, status: Status) -> Option<Receive> {
        let place = self.scopes.named(source.number())?;
        place.ended.get_or_insert(status);
        if let Some((receive, _)) = place.first.take() {
            self.firsts -= 1;
            return Some(receive);
        }
        let first = place.posted.first()?;
        self.take_waiting(first)
    }

    /// Takes the next message of a scope, whatever its tag.
    pub fn drain(&mut self, scope: Scope) -> Option<Held> {
        let first = self.scopes.get(self.scopes.find(scope.0)?)?.held.first()?;
        self.take_kept(first)
    }

    /// Forgets a scope, or a context without scopes. False, and nothing is done, when something waits there.
    pub fn leave(&mut self, source: Source) -> bool {
        let Some(index) = self.scopes.find(source.number()) else { return true };
        let Some(place) = self.scopes.get(index) else { return true };
        if place.children > 0 || place.first.is_some() || !place.posted.is_empty() || !place.held.is_empty() {
            return false;
        }
        let parent = place.parent;
        self.scopes.remove(index);
        if let Some(parent) = parent.and_then(|parent| self.scopes.get_mut(parent)) {
            parent.children -= 1;
        }
        true
    }

    // ---- for links --------------------------------------------------------------------------------------------------

    /// Keeps a message that nobody waits for. The message comes back when there are too many.
    pub(super) fn keep(&mut self, scope: Scope, held: Held) -> Result<Number, Held> {
        let Some(index) = self.scopes.find(scope.0) else { return Err(held) };
        if self.kept.count() == super::pool::MOST {
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
    pub(super) fn withdraw(&mut self, number: Number) -> Option<Held> {
        let index = self.kept.find(number)?;
        self.take_kept(index)
    }

    // ---- inside -----------------------------------------------------------------------------------------------------

    /// The first kept message that a selector matches.
    #[inline(always)]
    fn look(&self, selector: Selector) -> Option<u32> {
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

    fn take_kept(&mut self, index: u32) -> Option<Held> {
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

/// A keyed hash of two words by folded multiplication: a few cycles, and tags that collide cannot be chosen without the seed.
#[derive(Debug, Clone, Copy)]
struct Seeded([u64; 2]);

impl BuildHasher for Seeded {
    type Hasher = Folded;

    #[inline(always)]
    fn build_hasher(&self) -> Folded {
        Folded { state: self.0[0], seed: self.0[1] | 1 }
    }
}

struct Folded {
    state: u64,
    seed: u64,
}

impl Hasher for Folded {
    #[inline(always)]
    fn write_u64(&mut self, word: u64) {
        let wide = u128::from(self.state ^ word) * u128::from(self.seed ^ 0x9e37_79b9_7f4a_7c14);
        self.state = (wide as u64) ^ (wide >> 64) as u64 ^ self.seed.rotate_left(17);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        let wide = u128::from(self.state) * u128::from(self.seed);
        (wide as u64) ^ (wide >> 64) as u64
    }
}

#[cfg(test)]
mod tests;
