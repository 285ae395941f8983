//! Matching of messages with posted receives.
//!
//! A table of posted receives and of unexpected messages, for any number of links: it belongs to their owner, so that a receive from
//! any source finds a message of any link. It keeps both orders that MPI demands: a message goes to the matching receive that was
//! posted first, and a receive takes the matching message that arrived first (invariant M6). The table moves no bytes and knows no
//! link.
//!
//! A *scope* is where messages of one sender on one channel arrive. Its parent, a *context*, is where receives from any source wait. A
//! tag matches when it agrees in the bits that a receive does not ignore.
//!
//! Receives wait in one ring for each scope and one for each context, in the order of posting. An arriving message searches both and
//! goes to the older match, so receives of one channel never delay messages of another. Where a ring is long, receives beyond the first
//! 256 are found by a hash of the bits that they do not ignore, with one table for each distinct mask in use (tuple space search:
//! Srinivasan, Suri, Varghese, SIGCOMM 1999). Each bucket is in the order of posting, so an arriving message costs one look-up for each
//! mask. Messages wait in the order of arrival, and beyond the first 256 also by a hash of scope and tag; only a receive that ignores
//! bits walks beyond those. An *ordered* scope ignores tags: it is a queue of receives or of messages.
//!
//! Scopes are in `scopes`, the ring of receives in `posted`, unexpected messages in `unexpected`.

mod hash;
mod posted;
mod scopes;
mod unexpected;

use super::Status;
use super::slab::{IntrusiveList, Slab, SlabId};
use hash::Seeded;
use scopes::ScopeEntry;
pub use scopes::{Context, Scope, Source};
use std::collections::HashMap;
use std::hash::Hasher;
use std::num::NonZeroU64;
pub use unexpected::UnexpectedMessage;
use unexpected::UnexpectedRecord;

/// A posted receive: what the owner posts and gets back with the match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive<B = ()> {
    /// The owner's name for the operation.
    pub operation: u64,
    /// Bytes of the buffer.
    pub capacity: u64,
    /// What the owner stores with the receive.
    pub buffer: B,
}

/// What a receive, a peek or a claim asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selector {
    /// The source.
    pub from: Source,
    /// The tag.
    pub tag: u64,
    /// Bits of the tag that are ignored.
    pub ignore: u64,
}

/// Names a posted receive: where it waits, and its sequence number in the order of posting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    at: ReceivePosition,
    sequence: NonZeroU64,
}

/// Where a posted receive waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReceivePosition {
    /// In the ring of this scope or context.
    Ring(u32),
    /// In the hash table, as this record.
    Hashed(SlabId),
}

/// The posted receive that a message would get. Valid until the table changes.
#[derive(Debug, Clone, Copy)]
pub struct Oldest {
    /// The scope or context.
    scope: u32,
    found: FoundIn,
}

#[derive(Debug, Clone, Copy)]
enum FoundIn {
    /// At this position of the ring.
    Ring(u32),
    /// In the hash table, as this record.
    Hashed(u32),
}

/// Receives or messages of one scope that are compared one by one; the others are hashed. Small in unit tests, to test the hash tables.
const MAX_LINEAR_SCAN: u32 = if cfg!(test) { 3 } else { 256 };

/// The result of posting a receive.
#[derive(Debug)]
pub enum PostOutcome {
    /// The receive waits.
    Posted(Ticket),
    /// An unexpected message matches: pass it to `accept` of its link.
    Matched(UnexpectedMessage),
    /// No message can arrive from the source: complete the receive with this status.
    Ended(Status),
}

/// A posted receive that is found by hash.
#[derive(Debug)]
struct HashedReceive<B> {
    receive: Receive<B>,
    tag: u64,
    ignore: u64,
    sequence: NonZeroU64,
    /// The scope or context.
    scope: u32,
    /// The index of its mask.
    mask: u32,
}

/// The key of a hash table: receives, or messages, of one scope that agree in the tag bits of one mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MatchKey {
    scope: u32,
    mask: u32,
    tag: u64,
}

impl std::hash::Hash for MatchKey {
    #[inline(always)]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.scope) << 32 | u64::from(self.mask));
        state.write_u64(self.tag);
    }
}

/// A set of ignored bits, and the number of hashed receives that use it.
#[derive(Debug)]
struct Mask {
    ignore: u64,
    receives: u32,
}

/// Lists of hashed receives.
const SAME_KEY_LIST: usize = 0;
const SAME_SCOPE: usize = 1;
/// Posted receives and unexpected messages.
#[derive(Debug)]
pub struct Table<B = ()> {
    scopes: Slab<ScopeEntry<B>>,
    waiting: Slab<HashedReceive<B>, 2>,
    /// Number of receives in rings.
    ring_receives: u32,
    unexpected: Slab<UnexpectedRecord, 4>,
    hashed_by_key: HashMap<MatchKey, IntrusiveList, Seeded>,
    unexpected_by_key: HashMap<MatchKey, IntrusiveList, Seeded>,
    masks: Vec<Mask>,
    sequence: NonZeroU64,
}

impl<B: Copy> Table<B> {
    /// Bytes of one scope.
    pub const SCOPE_BYTES: usize = Slab::<ScopeEntry<B>>::RECORD_BYTES;

    /// An empty table. `seed` should be hard to guess, because peers choose tags.
    pub fn new(seed: [u64; 2]) -> Self {
        let seeded = Seeded(seed);
        Self {
            scopes: Slab::default(),
            waiting: Slab::default(),
            ring_receives: 0,
            unexpected: Slab::default(),
            hashed_by_key: HashMap::with_hasher(seeded),
            unexpected_by_key: HashMap::with_hasher(seeded),
            masks: vec![Mask { ignore: 0, receives: 0 }],
            sequence: NonZeroU64::MIN,
        }
    }

    /// A message arrives in a scope. Removes and returns the receive that gets it.
    #[inline]
    pub fn arrive(&mut self, scope: Scope, tag: u64) -> Option<Receive<B>> {
        let oldest = self.oldest(scope, tag)?;
        self.take(oldest)
    }

    /// A message of several packets begins to arrive in a scope. Removes and returns the receive that gets it.
    pub fn arrive_long(&mut self, scope: Scope, tag: u64) -> Option<Receive<B>> {
        let oldest = self.oldest_for(scope, tag, false)?;
        self.take(oldest)
    }

    /// The receive that [`Table::arrive`] would return, if it receives from this scope alone. It stays posted. Unless it is
    /// cancelled, it gets the next message of the scope.
    #[inline]
    pub fn peek_match(&self, scope: Scope, tag: u64) -> Option<(Receive<B>, Ticket)> {
        let oldest = self.oldest(scope, tag).filter(|oldest| oldest.scope == scope.0.index())?;
        match oldest.found {
            FoundIn::Ring(_) => {
                let (_, posted) = self.scopes.get(oldest.scope)?.ring.oldest(tag)?;
                let sequence = NonZeroU64::new(posted.sequence)?;
                Some((posted.receive, Ticket { at: ReceivePosition::Ring(oldest.scope), sequence }))
            }
            FoundIn::Hashed(node) => {
                let &HashedReceive { receive, sequence, .. } = self.waiting.get(node)?;
                Some((receive, Ticket { at: ReceivePosition::Hashed(self.waiting.number(node)), sequence }))
            }
        }
    }

    /// Replaces a posted receive. Returns false when it has been matched.
    pub fn rename(&mut self, ticket: Ticket, receive: Receive<B>) -> bool {
        let known = match ticket.at {
            ReceivePosition::Ring(scope) => self.scopes.get_mut(scope).and_then(|place| {
                let at = place.ring.position(|posted| posted.sequence == ticket.sequence.get())?;
                place.ring.get_mut(at).map(|posted| &mut posted.receive)
            }),
            ReceivePosition::Hashed(number) => self.waiting.get_by_id(number).map(|waiting| &mut waiting.receive),
        };
        known.map(|known| *known = receive).is_some()
    }

    /// The receive that [`Table::arrive`] would return, for [`Table::take`].
    #[inline(always)]
    pub fn oldest(&self, scope: Scope, tag: u64) -> Option<Oldest> {
        self.oldest_for(scope, tag, true)
    }

    #[inline(always)]
    fn oldest_for(&self, scope: Scope, tag: u64, is_whole: bool) -> Option<Oldest> {
        let (scope, place) = (scope.0.index(), self.scopes.known(scope.0)?);
        let own = self.oldest_in(place, scope, tag);
        let Some(parent) = self.context_for(place.parent, is_whole) else { return own.map(|(_, oldest)| oldest) };
        let any = self.scopes.get(parent).and_then(|place| self.oldest_in(place, parent, tag));
        match (own, any) {
            (Some((older, _)), Some((sequence, oldest))) if sequence < older => Some(oldest),
            (own, any) => own.or(any).map(|(_, oldest)| oldest),
        }
    }

    /// The oldest receive of a scope or context that matches a tag, and its sequence number.
    #[inline(always)]
    fn oldest_in(&self, place: &ScopeEntry<B>, scope: u32, tag: u64) -> Option<(u64, Oldest)> {
        match place.ring.oldest(tag) {
            Some((at, posted)) => Some((posted.sequence, Oldest { scope, found: FoundIn::Ring(at) })),
            None if place.hashed > 0 => self.oldest_hashed(scope, tag),
            None => None,
        }
    }

    /// The oldest hashed receive of a scope or context that matches a tag, and its sequence number.
    #[inline(never)]
    fn oldest_hashed(&self, scope: u32, tag: u64) -> Option<(u64, Oldest)> {
        let known = self.masks.iter().enumerate().filter(|(_, mask)| mask.receives > 0);
        let firsts = known.filter_map(|(at, mask)| {
            let key = MatchKey { scope, mask: at as u32, tag: tag & !mask.ignore };
            let node = self.hashed_by_key.get(&key)?.first()?;
            Some((self.waiting.get(node)?.sequence, node))
        });
        let (sequence, node) = firsts.min()?;
        Some((sequence.get(), Oldest { scope, found: FoundIn::Hashed(node) }))
    }

    /// Removes and returns a posted receive.
    #[inline(always)]
    pub fn take(&mut self, oldest: Oldest) -> Option<Receive<B>> {
        match oldest.found {
            FoundIn::Ring(at) => {
                let receive = self.scopes.get_mut(oldest.scope)?.ring.take(at)?;
                self.ring_receives -= 1;
                Some(receive)
            }
            FoundIn::Hashed(node) => self.take_hashed(node),
        }
    }

    /// A posted receive.
    #[inline(always)]
    pub fn get(&self, oldest: Oldest) -> Option<&Receive<B>> {
        match oldest.found {
            FoundIn::Ring(at) => self.scopes.get(oldest.scope)?.ring.get(at).map(|posted| &posted.receive),
            FoundIn::Hashed(node) => self.waiting.get(node).map(|waiting| &waiting.receive),
        }
    }

    /// Removes a posted receive.
    #[inline(always)]
    pub fn remove(&mut self, oldest: Oldest) {
        if let (FoundIn::Ring(at), Some(place)) = (oldest.found, self.scopes.get_mut(oldest.scope)) {
            place.ring.remove(at);
            self.ring_receives -= 1;
        } else {
            self.take(oldest);
        }
    }

    /// Number of posted receives.
    #[inline(always)]
    fn receives(&self) -> u32 {
        self.ring_receives + self.waiting.count()
    }

    /// Whether a receive with this selector would wait and no other receive is posted. Then it gets the next message that [would
    /// match](Table::would_match) and need not be posted.
    #[inline(always)]
    pub fn is_sole_receive(&self, selector: &Selector) -> bool {
        let place = self.scopes.known(selector.from.number());
        self.receives() == 0 && place.is_some_and(|place| place.ended.is_none() && place.unexpected.is_empty())
    }

    /// Whether a message that arrives in a scope matches a receive that is the [sole receive](Table::is_sole_receive).
    #[inline(always)]
    pub fn would_match(&self, selector: &Selector, scope: Scope, tag: u64) -> bool {
        let Some(place) = self.scopes.known(scope.0) else { return false };
        let source = match selector.from {
            Source::One(one) => one == scope,
            Source::Any(Context(context)) => place.parent == Some(context.index()),
        };
        source && (place.ordered || (tag ^ selector.tag) & !selector.ignore == 0)
    }

    /// Posts a receive if no message waits in its source and the ring has room. Returns `None`, and does nothing, otherwise: use
    /// [`Table::post`].
    #[inline(always)]
    pub fn post_fast(&mut self, selector: Selector, receive: Receive<B>) -> Option<Ticket> {
        let number = selector.from.number();
        let Self { scopes, ring_receives, sequence, .. } = self;
        let place = scopes.get_by_id(number).filter(|place| place.ended.is_none())?;
        let simple = place.unexpected.is_empty() && place.ring_has_room();
        simple.then(|| place.post(number.index(), selector, receive, (ring_receives, sequence)))
    }

    /// Posts a receive, unless an unexpected message matches.
    pub fn post(&mut self, selector: Selector, receive: Receive<B>) -> PostOutcome {
        if let Some(message) = self.claim(selector) {
            return PostOutcome::Matched(message);
        }
        let Some(scope) = self.scopes.find(selector.from.number()) else {
            return PostOutcome::Ended(Status::Closed);
        };
        let Self { scopes, ring_receives, sequence, .. } = self;
        let Some(place) = scopes.get_mut(scope) else { return PostOutcome::Ended(Status::Closed) };
        if let Some(status) = place.ended {
            return PostOutcome::Ended(status);
        }
        if place.ring_has_room() {
            return PostOutcome::Posted(place.post(scope, selector, receive, (ring_receives, sequence)));
        }
        self.post_hashed(selector, scope, receive).map_or(PostOutcome::Ended(Status::Exhausted), PostOutcome::Posted)
    }

    /// Posts a receive in the hash table.
    #[inline(never)]
    fn post_hashed(&mut self, selector: Selector, scope: u32, receive: Receive<B>) -> Option<Ticket> {
        let Selector { tag, ignore, .. } = selector;
        let (sequence, mask) = (next(&mut self.sequence), self.mask(ignore));
        let number = self.waiting.insert(HashedReceive { receive, tag, ignore, sequence, scope, mask })?;
        self.masks[mask as usize].receives += 1;
        let list = self.hashed_by_key.entry(MatchKey { scope, mask, tag: tag & !ignore }).or_default();
        self.waiting.append(list, SAME_KEY_LIST, number.index());
        let place = self.scopes.get_mut(scope)?;
        self.waiting.append(&mut place.posted, SAME_SCOPE, number.index());
        place.hashed += 1;
        Some(Ticket { at: ReceivePosition::Hashed(number), sequence })
    }

    /// Removes a posted receive; `None` when it has been matched.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<Receive<B>> {
        match ticket.at {
            ReceivePosition::Ring(scope) => {
                let ring = &self.scopes.get(scope)?.ring;
                let at = ring.position(|posted| posted.sequence == ticket.sequence.get())?;
                self.take(Oldest { scope, found: FoundIn::Ring(at) })
            }
            ReceivePosition::Hashed(number) => {
                let index = self.waiting.find(number)?;
                (self.waiting.get(index)?.sequence == ticket.sequence).then(|| self.take_hashed(index))?
            }
        }
    }

    /// Removes and returns a posted receive for which `which` is true, of one source or of any.
    pub fn cancel_one(&mut self, from: Option<Source>, which: impl Fn(&Receive<B>) -> bool) -> Option<Receive<B>> {
        let scopes: Vec<u32> = match from {
            Some(source) => self.scopes.find(source.number()).into_iter().collect(),
            None => self.scopes.indices().collect(),
        };
        for scope in scopes {
            let place = self.scopes.get(scope)?;
            if let Some(at) = place.ring.position(|posted| which(&posted.receive)) {
                return self.take(Oldest { scope, found: FoundIn::Ring(at) });
            }
            let mut next = place.posted.first();
            while let Some(node) = next {
                if which(&self.waiting.get(node)?.receive) {
                    return self.take_hashed(node);
                }
                next = self.waiting.after(SAME_SCOPE, node);
            }
        }
        None
    }

    /// Bytes held. The bytes of the messages are bounded by the windows of their links.
    pub fn bytes(&self) -> usize {
        let entry = size_of::<MatchKey>() + size_of::<IntrusiveList>();
        let maps = self.hashed_by_key.capacity() + self.unexpected_by_key.capacity();
        let rows: usize = self.scopes.indices().filter_map(|at| Some(self.scopes.get(at)?.ring.bytes())).sum();
        self.scopes.bytes() + rows + self.waiting.bytes() + self.unexpected.bytes() + maps * entry
    }

    /// Number of posted receives and of unexpected messages.
    pub fn len(&self) -> (u32, u32) {
        (self.receives(), self.unexpected.count())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }

    // ---- inside -----------------------------------------------------------------------------------------------------

    #[inline(never)]
    fn take_hashed(&mut self, index: u32) -> Option<Receive<B>> {
        let &HashedReceive { receive, scope, .. } = self.waiting.get(index)?;
        let place = self.scopes.get_mut(scope)?;
        self.waiting.unlink(&mut place.posted, SAME_SCOPE, index);
        place.hashed -= 1;
        self.unhash(index);
        self.waiting.remove(index);
        Some(receive)
    }

    fn unhash(&mut self, index: u32) {
        let Some(&HashedReceive { scope, mask, tag, ignore, .. }) = self.waiting.get(index) else { return };
        let key = MatchKey { scope, mask, tag: tag & !ignore };
        if let Some(list) = self.hashed_by_key.get_mut(&key) {
            self.waiting.unlink(list, SAME_KEY_LIST, index);
            if list.is_empty() {
                self.hashed_by_key.remove(&key);
            }
        }
        self.masks[mask as usize].receives -= 1;
        shrink(&mut self.hashed_by_key);
    }

    /// The index of the mask of these ignored bits. An unused mask is reused.
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

/// The next sequence number in the order of posting.
#[inline(always)]
fn next(sequence: &mut NonZeroU64) -> NonZeroU64 {
    let next = *sequence;
    *sequence = next.saturating_add(1);
    next
}

/// Releases the memory of a large empty map.
fn shrink(map: &mut HashMap<MatchKey, IntrusiveList, Seeded>) {
    if map.is_empty() && map.capacity() > 256 {
        map.shrink_to(0);
    }
}

#[cfg(test)]
mod tests;
