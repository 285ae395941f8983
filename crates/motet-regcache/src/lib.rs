//! The registration cache: address ranges of this process that a driver has a handle for, kept for the next time.
//!
//! What it is: [`Cache::acquire`] gives a [`Lease`] on a registration that covers a range, an earlier one where there is one. A
//! registration is given out only while its pages are the ones that were registered: what takes pages away (munmap, mremap, madvise,
//! MAP_FIXED, a heap that shrinks) is reported by the kernel ([`watch`]), not by hooks on the program's calls. A lease that is out when
//! its pages go keeps its token; the registration is deregistered when the last lease is dropped.
//!
//! What it is not: it registers nothing itself, its driver does ([`Register`]), on the thread that asks and under no lock. And where
//! memory cannot be watched (the kernel forbids it, it is a file's, the cache is off) it keeps nothing: every lease is a new
//! registration, counted with the reason ([`Counts`], [`Standing`]).
//!
//! **What the kernel does not tell.** Pages that go through a file's descriptor (a hole punched, a truncation), and System V memory of
//! huge pages that is detached: the caller that does that calls [`Cache::forget`]. A program that discards pages while it
//! hands the same ones to us gets what it asked for; later users of the page may then get an old one.
//!
//! A forked child has no registrations, even of its parent's cache: [`Refused::Forked`]; leases that it inherited do nothing.
//!
//! To follow a hit read downwards: [`Cache::acquire`] → [`watch::Watch::settle`] → [`entries::Entries::take`]. Why like this, with
//! figures: `docs/adr/0016-registrations-stay-valid.md`.

#![forbid(unsafe_code)]

mod counts;
pub mod entries;
pub mod events;
mod lease;
mod shared;
pub mod watch;
mod watched;

pub use counts::Counts;
use counts::{Count, Counters};
use entries::Entries;
pub use entries::Range;
pub use lease::Lease;
use motet_sys::fork_detect::ForkMark;
use shared::{Kept, Made, Shared};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use watch::Watch;

/// What a driver does for a cache. Called by the thread that acquires, drops a lease or tidies, under no lock.
pub trait Register: Send + Sync {
    /// What the driver needs to know of a registration.
    type Token: Copy + Send + Sync + std::fmt::Debug;
    /// Registers these pages, those that are there now, and brings into being those that are not there yet: what has no page has
    /// none to lose, and would get one unheard. An error number of the system; after [`NO_MEMORY`] and [`AGAIN`] it is tried
    /// again with fewer other registrations.
    fn register(&self, range: Range) -> Result<Self::Token, i32>;
    /// Deregisters. The addresses may belong to other memory by now, or to none: they must not be touched.
    fn deregister(&self, range: Range, token: Self::Token);
}

/// ENOMEM: there is no room for a registration.
pub const NO_MEMORY: i32 = 12;
/// EAGAIN: not now.
pub const AGAIN: i32 = 11;

/// How much a cache keeps. What leases hold may be more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Registrations. Each takes up to two of the process's mappings (vm.max_map_count).
    pub entries: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: 4096, bytes: 4 << 30 }
    }
}

/// Whether a cache keeps registrations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Keeps,
    /// The user has switched it off.
    Off,
    /// The kernel does not let us watch memory: this error.
    NotPermitted(i32),
    /// The watch is lost: its descriptor was closed.
    Lost,
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Keeps => f.write_str("registrations are kept"),
            Self::Off => f.write_str("registrations are not kept: registration_cache is off"),
            Self::NotPermitted(errno) => write!(
                f,
                "registrations are not kept: userfaultfd is not permitted here ({})",
                std::io::Error::from_raw_os_error(*errno)
            ),
            Self::Lost => f.write_str(
                "registrations are not kept any more: the program closed the descriptor that watches memory",
            ),
        }
    }
}

/// An acquisition that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// No bytes, or more than there are.
    Range,
    /// This process was forked from the cache's.
    Forked,
    /// The driver could not register: an error of the system.
    Driver(i32),
}

/// A cache. Clones are the same one.
#[derive(Debug)]
pub struct Cache<R: Register>(Arc<Shared<R>>);

impl<R: Register> Clone for Cache<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R: Register> Cache<R> {
    /// An empty one. `on`: the setting `registration_cache`. An error of the system when there is no memory for it.
    pub fn new(driver: R, limits: Limits, on: bool) -> Result<Self, i32> {
        let watch = if on { Watch::shared().map_err(Standing::NotPermitted) } else { Err(Standing::Off) };
        let next = watch.map_or(0, |watch| watch.events().count());
        let kept = Mutex::new(Kept { entries: Entries::default(), next });
        let (counters, fork_mark) = (Counters::default(), ForkMark::of_this_process()?);
        Ok(Self(Arc::new(Shared { driver, limits, watch, kept, counters, fork_mark })))
    }

    /// A lease on a registration of the pages that hold these bytes. All of them must be mapped by now.
    pub fn acquire(&self, address: u64, length: u64) -> Result<Lease<R>, Refused> {
        let shared = &self.0;
        let range = Range::of_pages(address, length).ok_or(Refused::Range)?;
        if !shared.fork_mark.is_own() {
            return Err(Refused::Forked);
        }
        let Ok(watch) = shared.watch.as_ref() else { return self.once(range, Count::NotKeeping) };
        if !watch.settle() {
            return self.unsettled(watch, range);
        }
        let mut graves = Vec::new();
        let (found, plan) = {
            let mut kept = lock(&shared.kept);
            shared.catch_up(watch, &mut kept, &mut graves);
            let found = kept.entries.take(&range);
            (found, if found.is_some() { range } else { kept.entries.plan(range) })
        };
        if !graves.is_empty() {
            shared.bury(graves);
        }
        match found {
            Some((at, range, token)) => {
                shared.counters.add(Count::Hits, 1);
                Ok(Lease::new(self.0.clone(), range, token, Some(at)))
            }
            None => self.make(watch, range, plan),
        }
    }

    /// Gives up what is stale: for an owner who has nothing else to do. Costs two loads and a lock when nothing happened.
    pub fn tidy(&self) {
        let shared = &self.0;
        let Ok(watch) = shared.watch.as_ref() else { return };
        if !shared.fork_mark.is_own() {
            return;
        }
        watch.hear();
        let mut graves = Vec::new();
        shared.catch_up(watch, &mut lock(&shared.kept), &mut graves);
        shared.bury(graves);
    }

    /// As if these pages had been taken away: for those that the kernel does not tell of.
    pub fn forget(&self, address: u64, length: u64) {
        let Some(range) = Range::of_pages(address, length).filter(|_| self.0.fork_mark.is_own()) else { return };
        let mut graves = Vec::new();
        let gone = lock(&self.0.kept).entries.take_away(&range, &mut graves);
        self.0.counters.add(Count::Stale, gone);
        self.0.bury(graves);
    }

    /// Registrations that are kept, and their bytes.
    pub fn size(&self) -> (usize, u64) {
        if self.0.fork_mark.is_own() { lock(&self.0.kept).entries.size() } else { (0, 0) }
    }

    /// Whether registrations are kept, or why not.
    pub fn standing(&self) -> Standing {
        match self.0.watch {
            Ok(watch) if watch.is_lost() => Standing::Lost,
            Ok(_) => Standing::Keeps,
            Err(standing) => standing,
        }
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        self.0.counters.read()
    }

    /// The driver.
    pub fn driver(&self) -> &R {
        &self.0.driver
    }

    /// Registers `plan`, which covers `range`, and keeps that if it can.
    #[cold]
    fn make(&self, watch: &Watch, range: Range, plan: Range) -> Result<Lease<R>, Refused> {
        let shared = &self.0;
        // What happens from here on counts for what is registered from here on.
        let born = watch.events().count();
        if plan.length() > shared.limits.bytes || shared.limits.entries == 0 {
            return if plan == range { self.once(range, Count::Full) } else { self.make(watch, range, range) };
        }
        // Watched first, then looked at, then registered: what goes after the look is heard of.
        let watched = watch.watch(plan.start, plan.end).is_ok();
        if !watched || !motet_sys::memory::is_mapped(plan.start, plan.end) {
            if watched {
                watch.unwatch(plan.start, plan.end);
            }
            return if plan == range { self.once(range, Count::Unwatchable) } else { self.make(watch, range, range) };
        }
        let token = match shared.register(plan) {
            Ok(token) => token,
            Err(refused) => {
                watch.unwatch(plan.start, plan.end);
                return if plan == range { Err(refused) } else { self.make(watch, range, range) };
            }
        };
        let mut graves = Vec::new();
        let made = shared.keep(watch, range, plan, token, born, &mut graves);
        shared.bury(graves);
        if !matches!(made, Made::Kept(_)) {
            watch.unwatch(plan.start, plan.end);
        }
        match made {
            Made::Kept(at) => Ok(Lease::new(shared.clone(), plan, token, Some(at))),
            Made::Twice(at, other, others) => {
                shared.driver.deregister(plan, token);
                Ok(Lease::new(shared.clone(), other, others, Some(at)))
            }
            Made::ForOnce(why) => {
                shared.counters.add(why, 1);
                Ok(Lease::new(shared.clone(), plan, token, None))
            }
        }
    }

    /// A registration for one lease.
    #[cold]
    fn once(&self, range: Range, why: Count) -> Result<Lease<R>, Refused> {
        let token = self.0.register(range)?;
        self.0.counters.add(why, 1);
        Ok(Lease::new(self.0.clone(), range, token, None))
    }

    #[cold]
    fn unsettled(&self, watch: &Watch, range: Range) -> Result<Lease<R>, Refused> {
        if !watch.is_lost() {
            return self.once(range, Count::Unsettled);
        }
        self.tidy();
        self.once(range, Count::NotKeeping)
    }
}

/// Locks; a panic of another thread does not make the cache unusable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
