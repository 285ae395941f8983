//! The lock of one node: cheap when nobody else wants it, held through long waits, and handed over when somebody does.
//!
//! Taking it is one exchange; giving it back a store, as whoever goes to sleep for it first reaches every CPU with a barrier
//! (`membarrier`) and then looks again. In the single-threaded mode both are plain loads and stores.
//!
//! The lock can be *biased* to one user (biased locking), which takes it by a store and a load instead of an exchange. Any other user revokes
//! the bias first: it takes the word, announces the revocation, reaches every CPU with a barrier, and waits until the biased user is out. The
//! bias is restored after a number of turns in which the biased user was alone, so many that the cost of the barrier does not count.

use crate::{membarrier, thread};
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};

/// Looks at the lock before a sleep for it.
const PATIENCE: u32 = 200;
/// Turns of the biased user by the word before the bias is restored.
const TURNS: u32 = 1000;
/// Looks at a biased user inside before a nap, and how long that is, ns: it may have lost its CPU there.
const LOOKS: u32 = 1000;
const MOMENT: u64 = 20_000;
/// No store stays unseen by other CPUs for so long, ns, where the system makes no barrier any more.
const REFUSED: u64 = 1_000_000;
/// States of the biased user's way.
const NO_WAY: u32 = 0;
const CLOSED: u32 = 1;
const OPEN: u32 = 2;
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
    /// Whether the biased user's way is open, and the number of its [`BiasToken`]; 0: there is none. Written by holders of the word only.
    way: AtomicU32,
    biased: AtomicU64,
    /// It has the lock by that way, or is about to find out that it is closed.
    inside: AtomicBool,
    /// Its turns by the word until the way is opened. Of holders of the word.
    turns: AtomicU32,
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
pub struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// Taken by the biased user's way.
    biased: bool,
}

/// The right to take the lock by the biased way, for one turn at a time. Its number is given once.
#[derive(Debug)]
pub struct BiasToken(u64);

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
        let barrier = owner == 0 && membarrier::join_threads();
        let value = UnsafeCell::new(ManuallyDrop::new(value));
        let (word, wanted, asleep, way, turns) = (zero(), zero(), zero(), zero(), zero());
        let (inside, biased) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { biased, word, wanted, asleep, owner, way, inside, turns, barrier, abandoned: false, value }
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
        self.take_word();
        Guard { lock: self, biased: false }
    }

    /// Locks as [`Lock::lock`] does, by the biased way.
    #[inline(always)]
    pub fn lock_biased(&self, bias: &mut BiasToken) -> Guard<'_, T> {
        // That it is exclusive is the borrow's doing: nobody else is on this way.
        if bias.0 != self.biased.load(Ordering::Relaxed) {
            return self.lock(); // another lock's
        }
        self.inside.store(true, Ordering::Relaxed);
        // Whoever closes the way makes a barrier here, between the two: see `close`.
        compiler_fence(Ordering::SeqCst);
        // edge: inside <-> way; edge: revoke -> biased
        let biased = self.way.load(Ordering::Acquire) == OPEN;
        if !biased {
            self.take_otherwise();
        }
        Guard { lock: self, biased }
    }

    /// Biases the lock to the holder of the token that this returns. `None`: it is biased already, or the system has no barrier.
    pub fn bias(&self) -> Option<BiasToken> {
        let _word = self.lock();
        if !self.barrier || self.way.load(Ordering::Relaxed) != NO_WAY {
            return None;
        }
        self.turns.store(TURNS, Ordering::Relaxed);
        self.way.store(CLOSED, Ordering::Relaxed);
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        let number = GIVEN.fetch_add(1, Ordering::Relaxed) + 1;
        self.biased.store(number, Ordering::Relaxed);
        Some(BiasToken(number))
    }

    /// Ends the bias.
    pub fn end_bias(&self, bias: BiasToken) {
        let _word = self.lock(); // which closes the way
        if bias.0 == self.biased.load(Ordering::Relaxed) {
            self.biased.store(0, Ordering::Relaxed);
            self.way.store(NO_WAY, Ordering::Relaxed);
        }
    }

    /// The biased user takes the word, and restores the bias when no other user has come for long.
    #[cold]
    fn take_otherwise(&self) {
        self.inside.store(false, Ordering::Release);
        self.take_word();
        let turns = self.turns.load(Ordering::Relaxed).saturating_sub(1);
        self.turns.store(turns, Ordering::Relaxed);
        if turns == 0 {
            self.way.store(OPEN, Ordering::Relaxed); // for its next turn: it has the word, and is the only one on that way
        }
    }

    /// Revokes the bias. The caller has the word.
    #[cold]
    fn close(&self) {
        self.way.store(CLOSED, Ordering::Release); // edge: revoke -> biased
        // Either the biased user has said that it is inside before the barrier, which is seen below, or it looks at the way behind it.
        // edge: inside <-> way
        let reached = membarrier::among_threads();
        fence(Ordering::SeqCst);
        self.turns.store(if reached { TURNS } else { u32::MAX }, Ordering::Relaxed);
        if !reached {
            thread::nap(REFUSED); // by a filter that the program has put on itself since: this time, and hardly ever again
        }
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let mut looks = 0;
        // edge: biased -> revoke
        while self.inside.load(Ordering::Acquire) {
            looks += 1;
            if looks < LOOKS { std::hint::spin_loop() } else { thread::nap(MOMENT) }
        }
        self.wanted.fetch_sub(1, Ordering::Relaxed);
    }

    #[inline(always)]
    fn take_word(&self) {
        if self.owner != 0 {
            let mine = thread::here() == self.owner && self.word.load(Ordering::Relaxed) == 0;
            assert!(mine, "made for one thread, used by another or from within");
            self.word.store(1, Ordering::Relaxed);
            return;
        }
        if self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.wait();
        }
        if self.way.load(Ordering::Relaxed) == OPEN {
            self.close();
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
            let all_see = self.barrier && membarrier::among_threads();
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
    fn unlock(&self, biased: bool) {
        if biased {
            self.inside.store(false, Ordering::Release); // edge: biased -> revoke
            return;
        }
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
        self.lock.unlock(self.biased);
        std::mem::forget(self);
    }

    /// To ask the same while the value is borrowed.
    #[inline(always)]
    pub fn others(&self) -> Others<'a> {
        Others(&self.lock.wanted)
    }

    /// Runs `f` without the lock.
    pub fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        struct Again<'a, T>(&'a Lock<T>);
        impl<T> Drop for Again<'_, T> {
            fn drop(&mut self) {
                std::mem::forget(self.0.lock());
            }
        }
        self.lock.unlock(std::mem::take(&mut self.biased)); // it comes back as anybody
        let again = Again(self.lock);
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
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and the guard borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.unlock(self.biased);
    }
}

#[cfg(test)]
mod tests;
