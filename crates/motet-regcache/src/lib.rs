//! The registration cache: registrations of memory with a driver, kept for the next use of the same memory. No driver uses it yet.
//!
//! [`Cache::acquire`] returns a [`Lease`] on a registration that covers a range: an existing one, or a new one. An existing registration is
//! returned only while its pages are those that were registered. The kernel reports what removes pages (munmap, mremap, madvise, MAP_FIXED,
//! a heap that shrinks; see [`watch`]); there are no hooks on the program's calls. A lease whose pages were removed keeps its token, and
//! the registration is deregistered when its last lease is dropped.
//!
//! What it is not: it registers nothing itself. Its driver does ([`Register`]), on the calling thread and under no lock. Where memory cannot
//! be watched (the kernel forbids it, the memory is a file's, the cache is off), the cache keeps nothing: every lease is a new registration,
//! counted with the reason ([`Counts`], [`CacheMode`]).
//!
//! **What the kernel does not report.** Pages removed through a file's descriptor (a punched hole, a truncation), and System V memory of huge
//! pages that is detached: the caller that does this calls [`Cache::forget`]. If a program discards pages while it passes the same pages to
//! the cache, later users of those pages may get an old registration.
//!
//! A forked child has no registrations, not even with its parent's cache ([`Refused::Forked`]). Leases that it inherited have no effect.
//!
//! To follow a hit, read downwards: [`Cache::acquire`] → [`watch::Watch::settle`] → [`entries::Entries::take`]. The reasons for this design,
//! with figures, are in `docs/adr/0016-registrations-stay-valid.md`.

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
use shared::{KeepOutcome, Registrations, Shared};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use watch::Watch;

/// What a driver does for a cache. Its functions are called by the thread that acquires, drops a lease or tidies, under no lock.
pub trait Register: Send + Sync {
    /// The driver's handle of a registration.
    type Token: Copy + Send + Sync + std::fmt::Debug;
    /// Registers these pages, and allocates those that do not exist yet: the kernel would not report their allocation later. The error is
    /// one of the system; after [`ENOMEM`] and [`EAGAIN`] the cache gives up other registrations and tries again.
    fn register(&self, range: Range) -> Result<Self::Token, i32>;
    /// Deregisters. The addresses may belong to other memory by then, or to none: do not access them.
    fn deregister(&self, range: Range, token: Self::Token);
}

/// ENOMEM: no room for a registration.
pub const ENOMEM: i32 = 12;
/// EAGAIN: no registration at the moment.
pub const EAGAIN: i32 = 11;

/// How much a cache keeps. Leases in use may hold more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most registrations. Each takes up to two of the process's mappings (vm.max_map_count).
    pub entries: usize,
    /// Most bytes of all registrations.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: 4096, bytes: 4 << 30 }
    }
}

/// Whether a cache keeps registrations, or why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheMode {
    /// It keeps registrations.
    Keeps,
    /// It is switched off by the user.
    Off,
    /// The kernel does not permit to watch memory; the error.
    NotPermitted(i32),
    /// The watch is lost: its descriptor was closed.
    Lost,
}

impl std::fmt::Display for CacheMode {
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

/// Why an acquisition failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The range is empty, or exceeds the address space.
    Range,
    /// The cache is of the process that this one was forked from.
    Forked,
    /// The driver could not register; an error of the system.
    Driver(i32),
}

/// A registration cache. Clones share the registrations.
#[derive(Debug)]
pub struct Cache<R: Register>(Arc<Shared<R>>);

impl<R: Register> Clone for Cache<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<R: Register> Cache<R> {
    /// An empty cache. `on`: the setting `registration_cache`. The error is one of the system, for lack of memory.
    pub fn new(driver: R, limits: Limits, on: bool) -> Result<Self, i32> {
        let watch = if on { Watch::shared().map_err(CacheMode::NotPermitted) } else { Err(CacheMode::Off) };
        let next_event = watch.map_or(0, |watch| watch.events().count());
        let registrations = Mutex::new(Registrations { entries: Entries::default(), next_event });
        let (counters, fork_mark) = (Counters::default(), ForkMark::of_this_process()?);
        Ok(Self(Arc::new(Shared { driver, limits, watch, registrations, counters, fork_mark })))
    }

    /// A lease on a registration of the pages of these bytes, all of which must be mapped.
    pub fn acquire(&self, address: u64, length: u64) -> Result<Lease<R>, Refused> {
        let shared = &self.0;
        let range = Range::of_pages(address, length).ok_or(Refused::Range)?;
        if !shared.fork_mark.is_own() {
            return Err(Refused::Forked);
        }
        let Ok(watch) = shared.watch.as_ref() else { return self.register_uncached(range, Count::NotKeeping) };
        if !watch.settle() {
            return self.acquire_unsettled(watch, range);
        }
        let mut given_up = Vec::new();
        let (found, plan) = {
            let mut registrations = lock(&shared.registrations);
            shared.apply_events(watch, &mut registrations, &mut given_up);
            let found = registrations.entries.take(&range);
            (found, if found.is_some() { range } else { registrations.entries.plan(range) })
        };
        if !given_up.is_empty() {
            shared.deregister_all(given_up);
        }
        match found {
            Some((at, range, token)) => {
                shared.counters.add(Count::Hits, 1);
                Ok(Lease::new(self.0.clone(), range, token, Some(at)))
            }
            None => self.register_cached(watch, range, plan),
        }
    }

    /// Deregisters what is stale: for an owner that is idle. Costs two loads and a lock when nothing happened.
    pub fn tidy(&self) {
        let shared = &self.0;
        let Ok(watch) = shared.watch.as_ref() else { return };
        if !shared.fork_mark.is_own() {
            return;
        }
        watch.wait_for_reader();
        let mut given_up = Vec::new();
        shared.apply_events(watch, &mut lock(&shared.registrations), &mut given_up);
        shared.deregister_all(given_up);
    }

    /// Gives up the registrations of these pages: for removals that the kernel does not report.
    pub fn forget(&self, address: u64, length: u64) {
        let Some(range) = Range::of_pages(address, length).filter(|_| self.0.fork_mark.is_own()) else { return };
        let mut given_up = Vec::new();
        let count = lock(&self.0.registrations).entries.invalidate(&range, &mut given_up);
        self.0.counters.add(Count::Stale, count);
        self.0.deregister_all(given_up);
    }

    /// The number of kept registrations, and their bytes.
    pub fn size(&self) -> (usize, u64) {
        if self.0.fork_mark.is_own() { lock(&self.0.registrations).entries.size() } else { (0, 0) }
    }

    /// Whether registrations are kept, or why not.
    pub fn mode(&self) -> CacheMode {
        match self.0.watch {
            Ok(watch) if watch.is_lost() => CacheMode::Lost,
            Ok(_) => CacheMode::Keeps,
            Err(mode) => mode,
        }
    }

    /// The counters so far.
    pub fn counts(&self) -> Counts {
        self.0.counters.read()
    }

    /// The driver.
    pub fn driver(&self) -> &R {
        &self.0.driver
    }

    /// Registers `plan`, which covers `range`, and keeps that if it can.
    #[cold]
    fn register_cached(&self, watch: &Watch, range: Range, plan: Range) -> Result<Lease<R>, Refused> {
        let shared = &self.0;
        // Events from here on concern the new registration.
        let born = watch.events().count();
        if plan.length() > shared.limits.bytes || shared.limits.entries == 0 {
            return if plan == range {
                self.register_uncached(range, Count::Full)
            } else {
                self.register_cached(watch, range, range)
            };
        }
        // In this order: watch, check that all is mapped, register. Then a removal after the check is reported.
        let watched = watch.watch(plan.start, plan.end).is_ok();
        if !watched || !motet_sys::memory::is_mapped(plan.start, plan.end) {
            if watched {
                watch.unwatch(plan.start, plan.end);
            }
            return if plan == range {
                self.register_uncached(range, Count::Unwatchable)
            } else {
                self.register_cached(watch, range, range)
            };
        }
        let token = match shared.register(plan) {
            Ok(token) => token,
            Err(refused) => {
                watch.unwatch(plan.start, plan.end);
                return if plan == range { Err(refused) } else { self.register_cached(watch, range, range) };
            }
        };
        let mut given_up = Vec::new();
        let outcome = shared.keep(watch, range, plan, token, born, &mut given_up);
        shared.deregister_all(given_up);
        if !matches!(outcome, KeepOutcome::Kept(_)) {
            watch.unwatch(plan.start, plan.end);
        }
        match outcome {
            KeepOutcome::Kept(at) => Ok(Lease::new(shared.clone(), plan, token, Some(at))),
            KeepOutcome::Duplicate(at, other, other_token) => {
                shared.driver.deregister(plan, token);
                Ok(Lease::new(shared.clone(), other, other_token, Some(at)))
            }
            KeepOutcome::NotKept(why) => {
                shared.counters.add(why, 1);
                Ok(Lease::new(shared.clone(), plan, token, None))
            }
        }
    }

    /// Registers a range for one lease.
    #[cold]
    fn register_uncached(&self, range: Range, why: Count) -> Result<Lease<R>, Refused> {
        let token = self.0.register(range)?;
        self.0.counters.add(why, 1);
        Ok(Lease::new(self.0.clone(), range, token, None))
    }

    /// Acquires although it is not known whether all events have been read.
    #[cold]
    fn acquire_unsettled(&self, watch: &Watch, range: Range) -> Result<Lease<R>, Refused> {
        if !watch.is_lost() {
            return self.register_uncached(range, Count::Unsettled);
        }
        self.tidy();
        self.register_uncached(range, Count::NotKeeping)
    }
}

/// Locks a mutex, even if a thread has panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
