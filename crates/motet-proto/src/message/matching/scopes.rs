//! Scopes and contexts: where messages arrive and receives wait. Matching is in the parent module.

use super::super::Status;
use super::super::slab::{IntrusiveList, SlabId};
use super::posted::{PostedReceive, PostedRing};
use super::{
    FoundIn, MAX_LINEAR_SCAN, Oldest, Receive, ReceivePosition, Selector, Table, Ticket, UnexpectedMessage, next,
};
use std::num::NonZeroU64;

/// A scope: where messages of one sender on one channel arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scope(pub(super) SlabId);

/// A context: a set of scopes for receives from any source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Context(pub(super) SlabId);

impl Context {
    /// The context as a number, for foreign interfaces.
    pub fn number(self) -> u32 {
        self.0.0
    }

    /// A context from an untrusted number. Every use of it is checked.
    pub fn from_number(number: u32) -> Self {
        Self(SlabId(number))
    }
}

/// The source of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// One sender.
    One(Scope),
    /// Any sender of a context.
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

/// A scope or a context.
#[derive(Debug)]
pub struct ScopeEntry<B> {
    /// The context of a scope; `None` for a context.
    pub(super) parent: Option<u32>,
    /// Posted receives: those in the ring, behind them those that are hashed, and the number of the latter.
    pub(super) ring: PostedRing<B>,
    pub(super) posted: IntrusiveList,
    pub(super) hashed: u32,
    /// Unexpected messages, and how many of them are listed and hashed.
    pub(super) unexpected: IntrusiveList,
    pub(super) unexpected_counts: [u32; 2],
    /// Number of scopes of a context.
    pub(super) children: u32,
    /// Receives and messages match in order, whatever their tags.
    pub(super) ordered: bool,
    /// Whether this is a context.
    pub(super) is_context: bool,
    /// Whether receives of this context take whole messages only.
    pub(super) whole_only: bool,
    /// The status for receives, once no message will arrive any more.
    pub(super) ended: Option<Status>,
}

impl<B: Copy> ScopeEntry<B> {
    /// Whether the next receive goes into the ring.
    #[inline(always)]
    pub(super) fn ring_has_room(&self) -> bool {
        self.ordered || self.hashed == 0 && self.ring.len() < MAX_LINEAR_SCAN
    }

    /// Adds a receive to the ring. The entry is at index `scope`; the other arguments are the counters of receives in rings and of
    /// all receives posted.
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
    /// Adds a context; `None` when there are too many.
    pub fn add_context(&mut self) -> Option<Context> {
        let number = self.add(None, false)?;
        self.scopes.get_by_id(number)?.is_context = true;
        Some(Context(number))
    }

    /// Adds a context whose receives take whole messages only: a message of several packets, whose sender may stop within it, goes
    /// to receives of its scope alone. So no sender can keep a receive that others need. `None` when there are too many.
    pub fn add_whole_message_context(&mut self) -> Option<Context> {
        let context = self.add_context()?;
        self.scopes.get_by_id(context.0)?.whole_only = true;
        Some(context)
    }

    /// Whether a context exists.
    #[inline(always)]
    pub fn has_context(&self, Context(number): Context) -> bool {
        self.scopes.find(number).and_then(|index| self.scopes.get(index)).is_some_and(|place| place.is_context)
    }

    /// Whether a scope is in this context, or gone.
    pub fn is_in(&self, Scope(scope): Scope, Context(context): Context) -> bool {
        self.scopes.known(scope).is_none_or(|place| place.parent == self.scopes.find(context) && place.parent.is_some())
    }

    /// Adds a scope, in a context or in none; `None` when there are too many, or the context does not exist.
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

    /// Adds a scope in which messages and receives match in the order of arrival and posting, whatever their tags; `None` when
    /// there are too many.
    pub fn add_ordered_scope(&mut self) -> Option<Scope> {
        self.add(None, true).map(Scope)
    }

    /// The context in which receives may take a message that arrives in a scope.
    #[inline(always)]
    pub(super) fn context_for(&self, parent: Option<u32>, is_whole: bool) -> Option<u32> {
        parent.filter(|&parent| is_whole || self.scopes.get(parent).is_some_and(|context| !context.whole_only))
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
            whole_only: false,
            ended: None,
        })
    }

    /// Ends a source: no message will arrive and no receive can be posted. Removes and returns one of its posted receives; call it
    /// until it returns `None`.
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

    /// Removes and returns the next unexpected message of a scope, whatever its tag.
    pub fn drain(&mut self, scope: Scope) -> Option<UnexpectedMessage> {
        let first = self.scopes.get(self.scopes.find(scope.0)?)?.unexpected.first()?;
        self.take_unexpected(first)
    }

    /// Removes a scope, or a context without scopes. Returns false, and does nothing, when something waits there.
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
