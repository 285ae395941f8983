//! The lock of one node: cheap when nobody else wants it, held through long waits, and handed over when somebody does.
//!
//! Taking it is one exchange; giving it back a store, as whoever goes to sleep for it first reaches every CPU with a barrier
//! (`membarrier`) and then looks again. In the single-threaded mode both are plain loads and stores.
//!
//! A holder may say that the value is *calm*: that something it knows of it stays true until somebody takes the lock otherwise than by
//! [`Lock::lock_if_calm`]. Whoever takes it so relies on that, and does nothing that would change it.

use crate::{barrier, thread};
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence, fence};

/// Looks at the lock before a sleep for it.
const PATIENCE: u32 = 200;
/// A sleep ends by itself after so long (ns), where the system has no barrier.
const NAP: i64 = 200_000;

/// The lock.
#[derive(Debug)]
pub struct Lock<T> {
    /// 1: held.
    word: AtomicU32,
    /// Threads that want it.
    wanted: AtomicU32,
    /// One of them may sleep.
    asleep: AtomicU32,
    /// In the single-threaded mode the one thread ([`thread::here`]); otherwise 0.
    owner: usize,
    /// Nobody has had it since it was calm but who takes it as such. Written by holders only.
    calm: AtomicBool,
    /// Giving it back needs no fence.
    barrier: bool,
    /// Never dropped.
    abandoned: bool,
    value: UnsafeCell<ManuallyDrop<T>>,
}

// SAFETY: as for any mutex, a guard is exclusive; in the single-threaded mode as no other thread ever gets one.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The value, while it is ours.
#[derive(Debug)]
pub struct Guard<'a, T>(&'a Lock<T>);

/// Whoever else waits for the lock.
#[derive(Debug, Clone, Copy)]
pub struct Others<'a>(&'a AtomicU32);

impl Others<'_> {
    /// Whether somebody does.
    #[inline(always)]
    pub fn are_waiting(self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

impl<T> Lock<T> {
    /// For any number of threads.
    pub fn new(value: T) -> Self {
        Self::with(value, 0)
    }

    fn with(value: T, owner: usize) -> Self {
        let zero = || AtomicU32::new(0);
        let barrier = owner == 0 && barrier::join_threads();
        let value = UnsafeCell::new(ManuallyDrop::new(value));
        let calm = AtomicBool::new(false);
        Self { word: zero(), wanted: zero(), asleep: zero(), owner, calm, barrier, abandoned: false, value }
    }

    /// For this thread alone: nobody else gets the value.
    pub fn single(value: T) -> Self {
        Self::with(value, thread::here())
    }

    /// The value, which nobody else can have now.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Has the value not be dropped: in a forked child it may be half changed by a thread that is not there, and its descriptors'
    /// numbers somebody else's.
    pub fn abandon(&mut self) {
        self.abandoned = true;
    }

    /// Waits for the value. A thread that has it already waits for ever; in the single-threaded mode it panics, as does a thread that
    /// the lock is not for.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        self.take();
        self.calm.store(false, Ordering::Relaxed);
        Guard(self)
    }

    /// The value, if it is calm; waits for it no longer than [`Lock::lock`].
    #[inline(always)]
    pub fn lock_if_calm(&self) -> Option<Guard<'_, T>> {
        if !self.calm.load(Ordering::Relaxed) {
            return None; // without a look at the lock
        }
        self.take();
        let guard = Guard(self);
        if self.calm.load(Ordering::Relaxed) { Some(guard) } else { None }
    }

    #[inline(always)]
    fn take(&self) {
        if self.owner != 0 {
            let mine = thread::here() == self.owner && self.word.load(Ordering::Relaxed) == 0;
            assert!(mine, "made for one thread, used by another or from within");
            self.word.store(1, Ordering::Relaxed);
        } else if self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let mut looks = 0;
        loop {
            if self.word.load(Ordering::Relaxed) == 0
                && self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                break;
            }
            looks += 1;
            if looks < PATIENCE {
                std::hint::spin_loop();
                continue;
            }
            // edge: asleep <-> word
            self.asleep.store(1, Ordering::Relaxed);
            let all_see = self.barrier && barrier::among_threads();
            fence(Ordering::SeqCst);
            let nap = (!all_see).then_some(rustix::time::Timespec { tv_sec: 0, tv_nsec: NAP });
            if self.word.load(Ordering::Relaxed) == 1 {
                let _ = futex::wait(&self.asleep, futex::Flags::PRIVATE, 1, nap.as_ref());
            }
            looks = PATIENCE / 2;
        }
        self.wanted.fetch_sub(1, Ordering::Relaxed);
    }

    #[inline(always)]
    fn unlock(&self) {
        if self.owner != 0 {
            self.word.store(0, Ordering::Relaxed);
            return;
        }
        self.word.store(0, Ordering::Release);
        // The sleeper's barrier stands for a fence here: see `wait`.
        compiler_fence(Ordering::SeqCst);
        // edge: asleep <-> word
        if self.asleep.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.asleep.store(0, Ordering::Relaxed);
        // All of them, as the word says no more that any sleeps. (The kernel reads the number as signed: more than this is one.)
        let _ = futex::wake(&self.asleep, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}

impl<T> Drop for Lock<T> {
    fn drop(&mut self) {
        if !self.abandoned {
            // SAFETY: once, at the end, and nobody else refers to it.
            unsafe { ManuallyDrop::drop(self.value.get_mut()) }
        }
    }
}

impl<'a, T> Guard<'a, T> {
    /// Whether another thread waits for it.
    #[inline(always)]
    pub fn is_wanted(&self) -> bool {
        self.others().are_waiting()
    }

    /// Gives it back right here: to drop it does the same, by a call.
    #[inline(always)]
    pub fn release(self) {
        self.0.unlock();
        std::mem::forget(self);
    }

    /// Says that the value is calm from now on, or that it is not.
    #[inline(always)]
    pub fn set_calm(&mut self, calm: bool) {
        self.0.calm.store(calm, Ordering::Relaxed);
    }

    /// To ask the same while the value is borrowed.
    #[inline(always)]
    pub fn others(&self) -> Others<'a> {
        Others(&self.0.wanted)
    }

    /// Runs `f` without the lock.
    pub fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        struct Again<'a, T>(&'a Lock<T>);
        impl<T> Drop for Again<'_, T> {
            fn drop(&mut self) {
                std::mem::forget(self.0.lock());
            }
        }
        self.0.unlock();
        let again = Again(self.0);
        let result = f();
        drop(again);
        result
    }

    /// Lets those who wait for it have it.
    #[cold]
    pub fn lend(&mut self) {
        self.unlocked(|| {
            // Until somebody has come: a lock that is free for two instructions only is free for nobody.
            for _ in 0..PATIENCE {
                std::hint::spin_loop();
            }
            thread::yield_now();
        });
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and the guard borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every sleeper is woken: one that is not would wait for ever once the others are done.
    #[test]
    fn no_sleeper_is_forgotten() {
        let lock = Lock::new(0);
        for _ in 0..20 {
            std::thread::scope(|scope| {
                let held = lock.lock();
                for _ in 0..4 {
                    scope.spawn(|| *lock.lock() += 1);
                }
                std::thread::sleep(std::time::Duration::from_millis(5)); // so that they sleep, most likely
                drop(held);
            });
        }
        assert_eq!(*lock.lock(), 80);
    }

    #[test]
    fn threads_take_turns() {
        let counter = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| (0..20_000).for_each(|_| *counter.lock() += 1));
            }
        });
        assert_eq!(*counter.lock(), 120_000);
    }

    #[test]
    fn all_who_sleep_for_it_are_woken() {
        let value = Lock::new(0u32);
        for _ in 0..20 {
            let guard = value.lock();
            std::thread::scope(|scope| {
                (0..6).for_each(|_| drop(scope.spawn(|| *value.lock() += 1)));
                // Until all of them sleep, most likely; it does not matter when not.
                crate::thread::nap(3_000_000);
                drop(guard);
            });
        }
        assert_eq!(*value.lock(), 120);
    }

    #[test]
    fn who_holds_it_long_lends_it() {
        let value = Lock::new(0u32);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut guard = value.lock();
                while *guard < 1000 {
                    if guard.is_wanted() {
                        guard.lend();
                    }
                }
            });
            for _ in 0..2 {
                scope.spawn(|| (0..500).for_each(|_| *value.lock() += 1));
            }
        });
        assert_eq!(*value.lock(), 1000);
    }

    #[test]
    fn a_panic_without_the_lock_leaves_it_held_by_nobody() {
        let value = Lock::new(1);
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut guard = value.lock();
            guard.unlocked(|| panic!("as a handler might"));
        }));
        assert!(caught.is_err());
        assert_eq!(*value.lock(), 1);
    }

    #[test]
    fn it_is_calm_until_somebody_has_it_otherwise() {
        let value = Lock::new(1);
        let calmly = || value.lock_if_calm().map(|value| *value);
        assert_eq!(calmly(), None);
        value.lock().set_calm(true);
        assert_eq!([calmly(), calmly()], [Some(1); 2], "who takes it so leaves it so");
        drop(value.lock());
        assert_eq!(calmly(), None);
        let mut guard = value.lock();
        guard.set_calm(true);
        guard.unlocked(|| assert_eq!(calmly(), Some(1)));
        drop(guard);
        assert_eq!(calmly(), None, "who has lent it comes back as anybody");
        value.lock().set_calm(true);
        if let Some(mut guard) = value.lock_if_calm() {
            guard.set_calm(false);
            guard.release();
        }
        assert_eq!(calmly(), None);
        assert_eq!(*value.lock(), 1);
    }

    #[test]
    fn one_thread_needs_no_exchange_and_nobody_else_gets_in() {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        let value = Lock::single(1);
        *value.lock() += 1;
        let other = std::thread::scope(|scope| scope.spawn(|| *value.lock()).join());
        assert!(other.is_err(), "another thread");
        let guard = value.lock();
        assert_eq!(*guard, 2);
        assert!(catch_unwind(AssertUnwindSafe(|| drop(value.lock()))).is_err(), "from within");
    }
}
