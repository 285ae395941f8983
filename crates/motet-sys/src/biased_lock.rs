//! The lock of one node: a mutex that can be biased to one user, that can be held through long waits, and that yields to waiters.
//!
//! What it is not: fair, recursive or poisoned by a panic.
//!
//! **Unbiased.** To lock is one compare-exchange on the lock word, to unlock one store. Unlock needs no fence, because a thread that is about
//! to sleep pays for both sides: it announces itself in `sleeper`, executes the heavy side of an [`asymmetric_fence`], and reads the word
//! again. In the single-threaded mode lock and unlock are plain loads and stores.
//!
//! **Biased.** One user, the holder of the [`BiasToken`], locks by a store and a load instead of an exchange (biased locking). `bias_state` is
//! written only by holders of the lock word and has three values:
//!
//! | state | the biased user locks by | any other user locks by |
//! | --- | --- | --- |
//! | UNBIASED | the word (there is no biased user) | the word |
//! | REVOKED | the word; after `TURNS_TO_RESTORE_BIAS` turns it sets BIASED | the word |
//! | BIASED | `biased_held` alone | the word, then revokes the bias |
//!
//! The biased user sets `biased_held`, then reads `bias_state`. If that is BIASED it has the lock; else it clears `biased_held` and takes the
//! word. A revoker, which has the word, sets REVOKED, executes the heavy fence, and waits until `biased_held` is clear. One of the two sees
//! the other's store, so they never have the lock at the same time.
//!
//! A revocation costs a barrier (microseconds). The bias is restored only after so many turns without another user that this cost does not
//! count.

use crate::{asymmetric_fence, thread};
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Polls of the word before a waiter sleeps.
const SPINS_BEFORE_SLEEP: u32 = 200;
/// Locks by the biased user that find the bias revoked before the bias is restored.
const TURNS_TO_RESTORE_BIAS: u32 = 1000;
/// Polls of `biased_held` by a revoker before it sleeps between polls: the biased user may have been preempted.
const SPINS_BEFORE_REVOKER_SLEEPS: u32 = 1000;
/// One sleep of a revoker, ns.
const REVOKER_SLEEP_NS: u64 = 20_000;

/// Values of `bias_state`.
const UNBIASED: u32 = 0;
const REVOKED: u32 = 1;
const BIASED: u32 = 2;

/// A mutex that can be biased to one user.
#[derive(Debug)]
pub struct BiasedLock<T> {
    /// 1: held by a user other than the biased one, or by the biased user while the bias is revoked.
    word: AtomicU32,
    /// Threads that wait for the lock.
    waiters: AtomicU32,
    /// 1: a waiter may sleep.
    sleeper: AtomicU32,
    /// In the single-threaded mode the one thread ([`thread::id_in_process`]); otherwise 0.
    owner: usize,
    /// UNBIASED, REVOKED or BIASED. Written by holders of the word only.
    bias_state: AtomicU32,
    /// The number of the [`BiasToken`]; 0: none. Written by holders of the word only.
    token: AtomicU64,
    /// The biased user has the lock without the word, or is about to read `bias_state`.
    biased_held: AtomicBool,
    /// Turns of the biased user until the bias is restored. Used by holders of the word only.
    turns_to_bias: AtomicU32,
    /// The value is not dropped.
    abandoned: bool,
    value: UnsafeCell<ManuallyDrop<T>>,
}

// SAFETY: a guard is exclusive, as in any mutex. In the single-threaded mode no other thread ever gets one.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

/// Access to the value; unlocks when dropped.
#[derive(Debug)]
pub struct BiasedLockGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    /// Held by `biased_held`, without the word.
    biased: bool,
}

/// The right to lock as the biased user ([`BiasedLock::lock_biased`]). Its number is unique in the process.
#[derive(Debug)]
pub struct BiasToken(u64);

/// The number of threads that wait for a lock. It does not borrow the guard, so it can be read while the value is borrowed.
#[derive(Debug, Clone, Copy)]
pub struct LockWaiters<'a>(&'a AtomicU32);

impl LockWaiters<'_> {
    /// Whether a thread waits.
    #[inline(always)]
    pub fn are_waiting(self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

impl<T> BiasedLock<T> {
    /// A lock for any number of threads, without a bias.
    pub fn new(value: T) -> Self {
        Self::with(value, 0)
    }

    fn with(value: T, owner: usize) -> Self {
        let zero = || AtomicU32::new(0);
        if owner == 0 {
            asymmetric_fence::register(); // early: in a process with many threads it takes milliseconds
        }
        let value = UnsafeCell::new(ManuallyDrop::new(value));
        let (word, waiters, sleeper, bias_state, turns_to_bias) = (zero(), zero(), zero(), zero(), zero());
        let (biased_held, token) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { token, word, waiters, sleeper, owner, bias_state, biased_held, turns_to_bias, abandoned: false, value }
    }

    /// A lock for the calling thread alone. Lock calls of another thread panic.
    pub fn single_threaded(value: T) -> Self {
        Self::with(value, thread::id_in_process())
    }

    /// The value, without locking: the exclusive borrow shows that no guard exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Leaks the value: it will not be dropped. For a forked child, where a thread that does not exist there may have left the value half
    /// changed, and where the numbers of its descriptors may belong to other files.
    pub fn abandon(&mut self) {
        self.abandoned = true;
    }

    /// Locks; waits as long as another user has the lock. A thread that has it already waits for ever. In the single-threaded mode a
    /// second lock panics, and so does a lock by another thread.
    #[inline(always)]
    pub fn lock(&self) -> BiasedLockGuard<'_, T> {
        self.take_word();
        BiasedLockGuard { lock: self, biased: false }
    }

    /// Locks as the biased user. With the token of another lock this is [`BiasedLock::lock`].
    #[inline(always)]
    pub fn lock_biased(&self, bias: &mut BiasToken) -> BiasedLockGuard<'_, T> {
        // The exclusive borrow of the token shows that there is one biased user at a time.
        if bias.0 != self.token.load(Ordering::Relaxed) {
            return self.lock_with_stale_token();
        }
        self.biased_held.store(true, Ordering::Relaxed);
        asymmetric_fence::light(); // the heavy side: `revoke_bias`
        // edge: biased_held <-> bias_state; edge: revoke -> biased
        let biased = self.bias_state.load(Ordering::Acquire) == BIASED;
        if !biased {
            self.lock_biased_slow();
        }
        BiasedLockGuard { lock: self, biased }
    }

    #[cold]
    #[inline(never)]
    fn lock_with_stale_token(&self) -> BiasedLockGuard<'_, T> {
        self.lock()
    }

    /// Biases the lock to the holder of the token that this returns. `None`: it is biased already, or the system has no barrier.
    ///
    /// The state is REVOKED at first: the user has to show that it is alone.
    pub fn bias(&self) -> Option<BiasToken> {
        let _word = self.lock();
        let has_barrier = self.owner == 0 && asymmetric_fence::register();
        if !has_barrier || self.bias_state.load(Ordering::Relaxed) != UNBIASED {
            return None;
        }
        self.turns_to_bias.store(TURNS_TO_RESTORE_BIAS, Ordering::Relaxed);
        self.bias_state.store(REVOKED, Ordering::Relaxed);
        static TOKENS_GIVEN: AtomicU64 = AtomicU64::new(0);
        let number = TOKENS_GIVEN.fetch_add(1, Ordering::Relaxed) + 1;
        self.token.store(number, Ordering::Relaxed);
        Some(BiasToken(number))
    }

    /// Ends the bias. The token of another lock changes nothing.
    pub fn end_bias(&self, bias: BiasToken) {
        let _word = self.lock(); // this revokes the bias
        if bias.0 == self.token.load(Ordering::Relaxed) {
            self.token.store(0, Ordering::Relaxed);
            self.bias_state.store(UNBIASED, Ordering::Relaxed);
        }
    }

    /// Locks by the word for the biased user, and restores the bias after enough turns.
    #[cold]
    fn lock_biased_slow(&self) {
        self.biased_held.store(false, Ordering::Release);
        self.take_word();
        let turns = self.turns_to_bias.load(Ordering::Relaxed).saturating_sub(1);
        self.turns_to_bias.store(turns, Ordering::Relaxed);
        if turns == 0 {
            // From its next turn on. It has the word, and no other thread uses the token.
            self.bias_state.store(BIASED, Ordering::Relaxed);
        }
    }

    /// Revokes the bias and waits until the biased user has unlocked. The caller has the word.
    #[cold]
    fn revoke_bias(&self) {
        self.bias_state.store(REVOKED, Ordering::Release); // edge: revoke -> biased
        // Now either the biased user's store of `biased_held` is visible here, or its load of `bias_state` reads REVOKED.
        // edge: biased_held <-> bias_state
        let has_barrier = asymmetric_fence::heavy();
        // Where the barrier is refused, 2^32 turns: the bias is hardly ever restored.
        self.turns_to_bias.store(if has_barrier { TURNS_TO_RESTORE_BIAS } else { u32::MAX }, Ordering::Relaxed);
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let mut spins = 0;
        // edge: biased -> revoke
        while self.biased_held.load(Ordering::Acquire) {
            spins += 1;
            if spins < SPINS_BEFORE_REVOKER_SLEEPS {
                std::hint::spin_loop();
            } else {
                thread::sleep_ns(REVOKER_SLEEP_NS);
            }
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes the word, and revokes the bias if there is one.
    #[inline(always)]
    fn take_word(&self) {
        if self.owner != 0 {
            let is_free = thread::id_in_process() == self.owner && self.word.load(Ordering::Relaxed) == 0;
            assert!(is_free, "a single-threaded lock is used by another thread, or is locked twice");
            self.word.store(1, Ordering::Relaxed);
            return;
        }
        if self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.take_word_slow();
        }
        if self.bias_state.load(Ordering::Relaxed) == BIASED {
            self.revoke_bias();
        }
    }

    /// Waits for the word: polls it for a while, then sleeps.
    #[cold]
    fn take_word_slow(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let mut spins = 0;
        loop {
            if self.word.load(Ordering::Relaxed) == 0
                && self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                break;
            }
            spins += 1;
            if spins < SPINS_BEFORE_SLEEP {
                std::hint::spin_loop();
                continue;
            }
            // After the fence either an unlock sees `sleeper`, or its store of the word is visible here.
            // edge: sleeper <-> word
            self.sleeper.store(1, Ordering::Relaxed);
            asymmetric_fence::heavy();
            if self.word.load(Ordering::Relaxed) == 1 {
                let _ = futex::wait(&self.sleeper, futex::Flags::PRIVATE, 1, None);
            }
            spins = SPINS_BEFORE_SLEEP / 2;
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    #[inline(always)]
    fn unlock(&self, biased: bool) {
        if biased {
            self.biased_held.store(false, Ordering::Release); // edge: biased -> revoke
            return;
        }
        if self.owner != 0 {
            self.word.store(0, Ordering::Relaxed);
            return;
        }
        self.word.store(0, Ordering::Release);
        asymmetric_fence::light(); // the heavy side: `take_word_slow`
        // edge: sleeper <-> word
        if self.sleeper.load(Ordering::Relaxed) != 0 {
            self.wake_sleepers();
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        self.sleeper.store(0, Ordering::Relaxed);
        // All of them, as `sleeper` does not count. (The kernel reads the number as signed.)
        let _ = futex::wake(&self.sleeper, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}

impl<T> Drop for BiasedLock<T> {
    fn drop(&mut self) {
        if !self.abandoned {
            // SAFETY: dropped once, here; `&mut self` shows that no guard refers to the value.
            unsafe { ManuallyDrop::drop(self.value.get_mut()) }
        }
    }
}

impl<'a, T> BiasedLockGuard<'a, T> {
    /// Whether another thread waits for the lock.
    #[inline(always)]
    pub fn has_waiters(&self) -> bool {
        self.waiters().are_waiting()
    }

    /// Unlocks, inlined into the caller. To drop the guard unlocks by a call.
    #[inline(always)]
    pub fn release(self) {
        self.lock.unlock(self.biased);
        std::mem::forget(self);
    }

    /// The lock's waiters, for use while the value is borrowed.
    #[inline(always)]
    pub fn waiters(&self) -> LockWaiters<'a> {
        LockWaiters(&self.lock.waiters)
    }

    /// Runs `f` without the lock, and locks again, also when `f` panics. The lock is taken again by the word, without the bias.
    pub fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        struct Relock<'a, T>(&'a BiasedLock<T>);
        impl<T> Drop for Relock<'_, T> {
            fn drop(&mut self) {
                std::mem::forget(self.0.lock());
            }
        }
        self.lock.unlock(std::mem::take(&mut self.biased));
        let relock = Relock(self.lock);
        let result = f();
        drop(relock);
        result
    }

    /// Unlocks for long enough that a waiter can take the lock, then locks again.
    #[cold]
    pub fn yield_to_waiters(&mut self) {
        self.unlocked(|| {
            // A lock that is free for two instructions only is never seen free.
            for _ in 0..SPINS_BEFORE_SLEEP {
                std::hint::spin_loop();
            }
            thread::yield_now();
        });
    }
}

impl<T> Deref for BiasedLockGuard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so its user has the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for BiasedLockGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists, so its user has the lock; it is borrowed exclusively, so there is one reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for BiasedLockGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.unlock(self.biased);
    }
}

#[cfg(test)]
mod tests;
