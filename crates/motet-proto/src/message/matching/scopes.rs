//! Scopes and contexts: where messages arrive, and receives wait.
//!
//! What it is: their records, and how they come and go. What it is not: nothing is matched here.

use super::super::Status;
use super::super::slab::{IntrusiveList, SlabId};
use super::posted::{PostedReceive, PostedRing};
use super::{
    FoundIn, MAX_LINEAR_SCAN, Oldest, Receive, ReceivePosition, Selector, Table, Ticket, UnexpectedMessage, next,
};
use std::num::NonZeroU64;

/// Where messages of one sender on one channel arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scope(pub(super) SlabId);

/// Scopes whose messages a receive from any source may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Context(pub(super) SlabId);

impl Context {
    /// As a number, for those who hand it through a foreign interface.
    pub fn number(self) -> u32 {
        self.0.0
    }

    /// The context of a number that anybody may have made up: every use of it is checked.
    pub fn from_number(number: u32) -> Self {
        Self(SlabId(number))
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
    pub(super) fn number(self) -> SlabId {
        match self {
            Source::One(Scope(number)) | Source::Any(Context(number)) => number,
        }
    }
}

/// One of them.
#[derive(Debug)]
pub struct ScopeEntry<B> {
    /// The context of a scope; a context has none.
    pub(super) parent: Option<u32>,
    /// Receives that are looked through, and behind them those that are found by hash, and how many those are.
    pub(super) ring: PostedRing<B>,
    pub(super) posted: IntrusiveList,
    pub(super) hashed: u32,
    /// Messages that no receive has taken yet, and how many of them are looked through, and found by hash.
    pub(super) unexpected: IntrusiveList,
    pub(super) unexpected_counts: [u32; 2],
    /// Scopes of a context.
    pub(super) children: u32,
    /// Receives and messages meet in order, whatever their tags.
    pub(super) ordered: bool,
    /// Scopes may be in it.
    pub(super) is_context: bool,
    /// No message will come any more.
    pub(super) ended: Option<Status>,
}

impl<B: Copy> ScopeEntry<B> {
    /// Whether the next receive is one of those that are looked through.
    #[inline(always)]
    pub(super) fn ring_has_room(&self) -> bool {
        self.ordered || self.hashed == 0 && self.ring.len() < MAX_LINEAR_SCAN
    }

    /// Adds a receive to the ring: this is the place at `scope`, and these count receives in rows and all that were ever posted.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        scope: u32,
        selector: Selector,
        receive: Receive<B>,
        (ring_receives, sequence): (&mut u32, &mut NonZeroU64),
    ) -> Ticket {
        let Selector { tag, ignore, .. } = selector;
        let (ignore, sequence) = (if self.ordered { u64::MAX } else { ignore }, next(sequence));
        self.ring.push(PostedReceive { sequence: sequence.get(), tag, ignore, receive });
        *ring_receives += 1;
        Ticket { at: ReceivePosition::Ring(scope), sequence }
    }
}

impl<B: Copy> Table<B> {
    /// A context; `None` when there are too many.
    pub fn add_context(&mut self) -> Option<Context> {
        let number = self.add(None, false)?;
        self.scopes.get_by_id(number)?.is_context = true;
        Some(Context(number))
    }

    /// Whether there is such a context.
    #[inline(always)]
    pub fn has_context(&self, Context(number): Context) -> bool {
        self.scopes.find(number).and_then(|index| self.scopes.get(index)).is_some_and(|place| place.is_context)
    }

    /// Whether a scope is in this context, or gone.
    pub fn is_in(&self, Scope(scope): Scope, Context(context): Context) -> bool {
        self.scopes.known(scope).is_none_or(|place| place.parent == self.scopes.find(context) && place.parent.is_some())
    }

    /// A scope in a context, or in none; `None` when there are too many.
    pub fn add_scope(&mut self, context: Option<Context>) -> Option<Scope> {
        let parent = match context {
            Some(context) if self.has_context(context) => Some(self.scopes.find(context.0)?),
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
    pub fn add_ordered_scope(&mut self) -> Option<Scope> {
        self.add(None, true).map(Scope)
    }

    fn add(&mut self, parent: Option<u32>, ordered: bool) -> Option<SlabId> {
        let (ring, posted, unexpected) = Default::default();
        let (hashed, children) = (0, 0);
        self.scopes.insert(ScopeEntry {
            parent,
            ring,
            posted,
            hashed,
            unexpected,
            unexpected_counts: [0; 2],
            children,
            ordered,
            is_context: false,
            ended: None,
        })
    }

    /// No message will come from this source: yields its receives one by one, and lets nobody post another.
    pub fn end_source(&mut self, source: Source, status: Status) -> Option<Receive<B>> {
        let scope = self.scopes.find(source.number())?;
        let place = self.scopes.get_mut(scope)?;
        place.ended.get_or_insert(status);
        let found = match place.ring.position(|_| true) {
            Some(at) => FoundIn::Ring(at),
            None => FoundIn::Hashed(place.posted.first()?),
        };
        self.take(Oldest { scope, found })
    }

    /// Takes the next message of a scope, whatever its tag.
    pub fn drain(&mut self, scope: Scope) -> Option<UnexpectedMessage> {
        let first = self.scopes.get(self.scopes.find(scope.0)?)?.unexpected.first()?;
        self.take_unexpected(first)
    }

    /// Forgets a scope, or a context without scopes. False, and nothing is done, when something waits there.
    pub fn remove_source(&mut self, source: Source) -> bool {
        let Some(index) = self.scopes.find(source.number()) else { return true };
        let Some(place) = self.scopes.get(index) else { return true };
        if place.children > 0 || place.ring.len() > 0 || !place.posted.is_empty() || !place.unexpected.is_empty() {
            return false;
        }
        let parent = place.parent;
        self.scopes.remove(index);
        if let Some(parent) = parent.and_then(|parent| self.scopes.get_mut(parent)) {
            parent.children -= 1;
        }
        true
    }
}
