//! A mutex that stays usable in a forked child although another thread of the parent held it at the fork.
//!
//! What it is: a mutex for values that a child can lose, and of which there are too many to lock them all before each fork. The lock word
//! holds the [fork generation](thread::generation) of its holder. A word of an earlier generation was written by a thread that does
//! not exist in this process, and the value may be half changed. The next user in the child takes the mutex over: the old value is
//! overwritten by a default one, without a drop.
//!
//! What it is not: a mutex for values that a child must find consistent. The thread that forks holds the locks of those.

use crate::thread;
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

/// Bit of the lock word: a thread may sleep.
const HAS_WAITERS: u32 = 1;
/// Polls of the lock word before a sleep.
const SPINS_BEFORE_SLEEP: u32 = 100;

/// A mutex that a forked child can take over.
#[derive(Debug, Default)]
pub struct ForkSafeMutex<T> {
    /// 0: free. Otherwise twice the holder's generation plus one, and `HAS_WAITERS`.
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: a guard is exclusive, as in any mutex.
unsafe impl<T: Send> Sync for ForkSafeMutex<T> {}

/// Access to the value; unlocks when dropped. It is not `Send`: the thread that forks keeps its guards in the child, other threads do not.
#[derive(Debug)]
pub struct ForkSafeMutexGuard<'a, T>(&'a ForkSafeMutex<T>, PhantomData<*const ()>);

impl<T> ForkSafeMutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }
}

impl<T: Default> ForkSafeMutex<T> {
    /// Locks; waits as long as another thread of this process has the mutex.
    #[inline]
    pub fn lock(&self) -> ForkSafeMutexGuard<'_, T> {
        let own = own_word();
        match self.word.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => ForkSafeMutexGuard(self, PhantomData),
            Err(seen) => self.lock_slow(own, seen),
        }
    }

    /// Locks, unless a thread of this process has the mutex.
    #[inline]
    pub fn try_lock(&self) -> Option<ForkSafeMutexGuard<'_, T>> {
        let own = own_word();
        match self.word.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(ForkSafeMutexGuard(self, PhantomData)),
            Err(seen) => self.take_over(own, seen),
        }
    }

    #[cold]
    fn lock_slow(&self, own: u32, mut seen: u32) -> ForkSafeMutexGuard<'_, T> {
        let mut round = 0;
        loop {
            if let Some(guard) = self.take_over(own, seen) {
                return guard;
            }
            round += 1;
            if seen == 0 {
                // Other threads may sleep: the unlock has to wake them.
                match self.word.compare_exchange(0, own | HAS_WAITERS, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return ForkSafeMutexGuard(self, PhantomData),
                    Err(now) => seen = now,
                }
                continue;
            }
            if round < SPINS_BEFORE_SLEEP {
                std::hint::spin_loop();
            } else if self.word.compare_exchange(own, own | HAS_WAITERS, Ordering::Relaxed, Ordering::Relaxed) != Err(0)
            {
                let _ = futex::wait(&self.word, futex::Flags::PRIVATE, own | HAS_WAITERS, None);
            }
            seen = self.word.load(Ordering::Relaxed);
        }
    }

    /// Takes a mutex that a thread of an earlier generation held.
    fn take_over(&self, own: u32, seen: u32) -> Option<ForkSafeMutexGuard<'_, T>> {
        if seen == 0 || seen & !HAS_WAITERS == own {
            return None;
        }
        self.word.compare_exchange(seen, own | HAS_WAITERS, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: the holder was a thread of a parent process, as generations change by `thread::next_generation` only. In this process
        // no thread refers to the value, and the exchange made this thread the holder. The old value is not dropped.
        unsafe { self.value.get().write(T::default()) };
        Some(ForkSafeMutexGuard(self, PhantomData))
    }
}

/// The lock word of a holder in this process.
fn own_word() -> u32 {
    (thread::generation() + 1) << 1
}

impl<T> Deref for ForkSafeMutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so its thread has the mutex.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for ForkSafeMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists, so its thread has the mutex; it is borrowed exclusively, so there is one reference.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for ForkSafeMutexGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.0.word.swap(0, Ordering::Release) & HAS_WAITERS != 0 {
            let _ = futex::wake(&self.0.word, futex::Flags::PRIVATE, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_by_many_threads_are_exclusive() {
        let counter = ForkSafeMutex::<u64>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *counter.lock() += 1));
            }
        });
        assert_eq!(*counter.lock(), 80_000);
    }

    #[test]
    fn mutex_held_in_this_process_is_not_taken_over() {
        let value = ForkSafeMutex::<Vec<u8>>::default();
        let mut held = value.lock();
        held.push(1);
        assert!(value.try_lock().is_none());
        drop(held);
        assert_eq!(*value.try_lock().unwrap(), [1]);
    }

    #[test]
    fn mutex_held_by_a_parent_thread_becomes_empty() {
        let value = ForkSafeMutex::<Vec<u8>>::default();
        value.lock().push(1);
        // Lock words of another generation, without and with waiters, as a child finds them.
        for word in [own_word() + 2, own_word() + 3] {
            value.word.store(word, Ordering::Relaxed);
            assert!(value.lock().is_empty());
            value.lock().push(1);
            value.word.store(word, Ordering::Relaxed);
            assert!(value.try_lock().is_some_and(|inner| inner.is_empty()));
            assert!(value.try_lock().is_some());
        }
    }
}
