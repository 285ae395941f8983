//! The watch of a process: it reports when memory that caches have registered is removed.
//!
//! It consists of a [`motet_sys::userfaultfd`] descriptor, a thread that reads it, and the [`Events`] that the thread writes. A page can be
//! watched through one descriptor only, so all caches of a process share one watch. It exists until the process ends: without its reader,
//! the descriptor would block threads for ever.
//!
//! What it is not: it does not deregister anything; caches do at their next use. A forked child has no watch until it makes its own.
//!
//! Invariants. **W1** The reader allocates nothing, locks nothing and runs no signal handler, so it depends on no thread that waits for it.
//! **W2** Before an event can be read, and so before the thread that caused it continues, the round is odd; it is even again once the event is
//! in the ring. **W3** After [`Watch::settle`] returned true, the ring holds every event of memory that was removed before. There are two
//! cases. The thread that removed it has synchronized with this one since (W2). Or it is still in its system call, and the kernel has given
//! the addresses to another mapping: the kernel counts such calls, and `settle` asks for the count.

use super::events::Events;
use super::watched::WatchedRanges;
use crate::lock;
use motet_sys::fork_detect::ForkMark;
use motet_sys::fork_safe_mutex::ForkSafeMutex;
use motet_sys::thread;
use motet_sys::userfaultfd::{EVENTS_PER_READ, MappingEvent, Userfaultfd};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The watch of a process.
#[derive(Debug)]
pub struct Watch {
    uffd: Userfaultfd,
    events: Events,
    /// Odd while events are read: W2.
    round: AtomicU64,
    /// The descriptor was closed, or its reader has ended.
    lost: AtomicBool,
    /// The kernel's count stayed above zero for the whole of a wait; further calls do not wait for it.
    stuck: AtomicBool,
    watched: Mutex<WatchedRanges>,
    fork_mark: ForkMark,
}

static SHARED: ForkSafeMutex<Option<&'static Watch>> = ForkSafeMutex::new(None);

/// A waiting thread first spins, then yields, then sleeps, this often each, and then gives up.
const MAX_SPINS: u32 = 64;
const MAX_YIELDS: u32 = 64;
const MAX_SLEEPS: u32 = 2000;
/// Duration of one sleep, ns.
const SLEEP_NS: u64 = 50_000;
/// Bytes of the reader's stack.
const READER_STACK_BYTES: usize = 64 << 10;

impl Watch {
    /// The watch of this process. The error is one of the system: the process may have none.
    pub fn shared() -> Result<&'static Self, i32> {
        let mut shared = SHARED.lock();
        if let Some(watch) = shared.filter(|watch| watch.fork_mark.is_own() && !watch.is_lost()) {
            return Ok(watch);
        }
        let watch: &'static Self = Box::leak(Box::new(Self {
            uffd: Userfaultfd::open()?,
            events: Events::default(),
            round: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            watched: Mutex::new(WatchedRanges::default()),
            fork_mark: ForkMark::of_this_process()?,
        }));
        // If the thread cannot start, the watch is leaked; its descriptor watches nothing.
        thread::spawn_without_signals("motet-watch", READER_STACK_BYTES, move || watch.run())
            .map_err(|e| e.raw_os_error().unwrap_or(11))?;
        *shared = Some(watch);
        Ok(watch)
    }

    /// The loop of the reader (W1).
    fn run(&self) {
        let mut taken = [MappingEvent::default(); EVENTS_PER_READ];
        while self.uffd.wait() {
            // The program may have closed all descriptors, and the number may be another file's; that answers with an error here.
            match self.uffd.is_mmap_changing() {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) => break,
            }
            self.round.fetch_add(1, Release); // W2
            let count = self.uffd.read_events(&mut taken);
            for event in &taken[..count.unwrap_or(0)] {
                self.events.add(*event);
            }
            self.round.fetch_add(1, Release); // W2
            if count.is_err() {
                // Whatever the error is: no thread may wait for this reader for ever, and the events are incomplete.
                self.lost.store(true, Release);
                thread::sleep_ns(SLEEP_NS);
            }
        }
        self.lost.store(true, Release);
    }

    /// The events so far.
    #[inline]
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Whether events may be missing: then no registration is valid.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Acquire)
    }

    /// Waits until the ring holds all events (W3); false: it is not known whether it does.
    #[inline]
    pub fn settle(&self) -> bool {
        match self.uffd.is_mmap_changing() {
            Ok(false) => {}
            Ok(true) => {
                if !self.wait_for_removals() {
                    return false;
                }
            }
            Err(_) => {
                self.lost.store(true, Release);
                return false;
            }
        }
        self.wait_for_reader()
    }

    /// Waits until the ring holds the events of this thread, and of threads that have synchronized with it (W2); false: it timed out, or the
    /// watch is lost. Makes no system call unless the reader is active.
    #[inline]
    pub fn wait_for_reader(&self) -> bool {
        let round = self.round.load(Acquire); // W2
        let is_read = round.is_multiple_of(2) || wait_briefly(|| self.round.load(Acquire) != round);
        is_read && !self.is_lost()
    }

    /// Waits until no thread is in a call that removes watched memory. If the kernel's count never returns to zero (in older kernels after a failed
    /// mremap of watched memory), only the first call waits.
    #[cold]
    fn wait_for_removals(&self) -> bool {
        let is_idle = || self.uffd.is_mmap_changing() != Ok(true);
        let settled = if self.stuck.load(Relaxed) { is_idle() } else { wait_briefly(is_idle) };
        self.stuck.store(!settled, Relaxed);
        settled && self.uffd.is_mmap_changing().is_ok()
    }

    /// Watches whole pages from `start` to `end`.
    pub fn watch(&self, start: u64, end: u64) -> Result<(), i32> {
        // One lock for the kernel's state and this one: another thread may be giving up a part of the range.
        let mut watched = lock(&self.watched);
        self.uffd.watch(start, end)?;
        watched.add(start, end);
        Ok(())
    }

    /// Ends a [`Watch::watch`] of a range; parts that other calls cover stay watched. It is no error if the memory was removed or replaced.
    pub fn unwatch(&self, start: u64, end: u64) {
        lock(&self.watched).remove(start, end, |start, end| {
            if !self.is_lost() {
                let _ = self.uffd.unwatch(start, end);
            }
        });
    }
}

/// Waits for a condition that another thread fulfils soon; false: it timed out.
fn wait_briefly(done: impl Fn() -> bool) -> bool {
    for _ in 0..MAX_SPINS {
        if done() {
            return true;
        }
        std::hint::spin_loop();
    }
    for _ in 0..MAX_YIELDS {
        thread::yield_now();
        if done() {
            return true;
        }
    }
    for _ in 0..MAX_SLEEPS {
        thread::sleep_ns(SLEEP_NS);
        if done() {
            return true;
        }
    }
    false
}
