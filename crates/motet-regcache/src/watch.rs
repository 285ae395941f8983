//! The process's one watch over memory that caches have registered.
//!
//! What it is: a descriptor of [`motet_sys::userfaultfd`], the thread that reads it, and the [`Events`] into which that writes. A page
//! can be watched through one descriptor only, so all caches of a process share one watch, which stays until the process ends: a
//! descriptor without its reader would hold threads for ever.
//!
//! What it is not: it decides nothing; caches do, when they are next asked. A child has none and begins its own.
//!
//! Invariants. **W1** The reader allocates nothing, locks nothing and runs no signal handler, so that it depends on no thread that
//! waits for it. **W2** Before an event can be read, and so before the thread that caused it can go on, the round is odd; it is
//! even again once the event is in the ring. **W3** After [`Watch::settle`] said yes, the ring holds every event of memory that was
//! taken before: by a thread that has told ours since (W2), or by one that is still at it while the kernel has given the addresses
//! to another mapping (the kernel counts it, and is asked).

use super::events::Events;
use super::watched::Watched;
use crate::lock;
use motet_sys::fork_detect::ForkMark;
use motet_sys::fork_safe_mutex::ForkSafeMutex;
use motet_sys::thread;
use motet_sys::userfaultfd::{EVENTS_PER_READ, MappingEvent, Userfaultfd};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The watch.
#[derive(Debug)]
pub struct Watch {
    uffd: Userfaultfd,
    events: Events,
    /// Odd while events are read: W2.
    round: AtomicU64,
    /// The descriptor is ours no more, or it is not read.
    lost: AtomicBool,
    /// The kernel's count was above zero for so long that it is not waited for any more.
    stuck: AtomicBool,
    watched: Mutex<Watched>,
    fork_mark: ForkMark,
}

static SHARED: ForkSafeMutex<Option<&'static Watch>> = ForkSafeMutex::new(None);

/// Looks before a waiting thread lets others run, and turns of that before it sleeps a little each time; sleeps before it gives up.
const LOOKS: u32 = 64;
const TURNS: u32 = 64;
const NAPS: u32 = 2000;
const NAP: u64 = 50_000;
/// Of the reader's stack, bytes.
const STACK: usize = 64 << 10;

impl Watch {
    /// This process's. An error (of the system) when it may not have one.
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
            watched: Mutex::new(Watched::default()),
            fork_mark: ForkMark::of_this_process()?,
        }));
        // Without its thread it watches nothing; what is left is a descriptor that hears of nothing.
        thread::spawn_without_signals("motet-watch", STACK, move || watch.run())
            .map_err(|e| e.raw_os_error().unwrap_or(11))?;
        *shared = Some(watch);
        Ok(watch)
    }

    /// The reader: W1.
    fn run(&self) {
        let mut taken = [MappingEvent::default(); EVENTS_PER_READ];
        while self.uffd.wait() {
            // A program may have closed all descriptors, and the number be another file's: that would answer otherwise.
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
                // Whatever it is: who waits for us must not wait for ever, and what we know is not complete any more.
                self.lost.store(true, Release);
                thread::sleep_ns(NAP);
            }
        }
        self.lost.store(true, Release);
    }

    /// What has happened.
    #[inline]
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Whether nothing will be heard any more: nothing that was registered can be relied on.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Acquire)
    }

    /// Waits until the ring is up to date (W3); false when that cannot be said.
    #[inline]
    pub fn settle(&self) -> bool {
        match self.uffd.is_mmap_changing() {
            Ok(false) => {}
            Ok(true) => {
                if !self.wait_for_others() {
                    return false;
                }
            }
            Err(_) => {
                self.lost.store(true, Release);
                return false;
            }
        }
        self.hear()
    }

    /// Waits until the ring holds what was taken by this thread, and by those that have told it so (W2); false when it does not
    /// come to that. No system call, unless the reader is at work.
    #[inline]
    pub fn hear(&self) -> bool {
        let round = self.round.load(Acquire); // W2
        let heard = round.is_multiple_of(2) || patiently(|| self.round.load(Acquire) != round);
        heard && !self.is_lost()
    }

    /// Should a kernel never count back (older ones may not, when an mremap of watched memory fails): it is not waited for a second time.
    #[cold]
    fn wait_for_others(&self) -> bool {
        let quiet = || self.uffd.is_mmap_changing() != Ok(true);
        let settled = if self.stuck.load(Relaxed) { quiet() } else { patiently(quiet) };
        self.stuck.store(!settled, Relaxed);
        settled && self.uffd.is_mmap_changing().is_ok()
    }

    /// Watches whole pages from `start` to `end`.
    pub fn watch(&self, start: u64, end: u64) -> Result<(), i32> {
        // The same lock for the kernel's state and ours: another thread may be giving up a part.
        let mut watched = lock(&self.watched);
        self.uffd.watch(start, end)?;
        watched.add(start, end);
        Ok(())
    }

    /// Gives up the range of a [`Watch::watch`], as far as no other watch covers it. That the memory is gone, or another's, is no error.
    pub fn unwatch(&self, start: u64, end: u64) {
        lock(&self.watched).remove(start, end, |start, end| {
            if !self.is_lost() {
                let _ = self.uffd.unwatch(start, end);
            }
        });
    }
}

/// Waits for something that another thread brings about soon; false when it did not.
fn patiently(done: impl Fn() -> bool) -> bool {
    for _ in 0..LOOKS {
        if done() {
            return true;
        }
        std::hint::spin_loop();
    }
    for _ in 0..TURNS {
        thread::yield_now();
        if done() {
            return true;
        }
    }
    for _ in 0..NAPS {
        thread::sleep_ns(NAP);
        if done() {
            return true;
        }
    }
    false
}
