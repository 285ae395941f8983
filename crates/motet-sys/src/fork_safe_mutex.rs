//! A mutex that a forked child never finds taken for good.
//!
//! What it is: for values that a child can do without, and that are too many to lock them all before each fork. Who takes it
//! writes down in which [generation](thread::generation) of processes that was. In a child, what an earlier generation has
//! taken was taken by a thread that does not exist there: nobody knows how far that thread came, so the value is not looked
//! at again (not even dropped) and an empty one takes its place.
//!
//! What it is not: for values that the child must find whole. Their locks are held by the thread that forks.

use crate::thread;
use rustix::thread::futex;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

const WAITED_FOR: u32 = 1;
const PATIENCE: u32 = 100;

/// The mutex.
#[derive(Debug, Default)]
pub struct Forkable<T> {
    /// 0: free; otherwise twice the holder's generation, counted from 1, and whether somebody sleeps.
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: as for any mutex, a guard is exclusive.
unsafe impl<T: Send> Sync for Forkable<T> {}

/// The value, while it is ours. Stays with its thread: a fork would take it along with no other.
#[derive(Debug)]
pub struct Guard<'a, T>(&'a Forkable<T>, PhantomData<*const ()>);

impl<T> Forkable<T> {
    /// Holds this.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }
}

impl<T: Default> Forkable<T> {
    /// Waits for the value.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let mine = mine();
        match self.word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Guard(self, PhantomData),
            Err(seen) => self.contended(mine, seen),
        }
    }

    /// The value, unless another thread of this process has it.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        let mine = mine();
        match self.word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(Guard(self, PhantomData)),
            Err(seen) => self.inherit(mine, seen),
        }
    }

    #[cold]
    fn contended(&self, mine: u32, mut seen: u32) -> Guard<'_, T> {
        let mut round = 0;
        loop {
            if let Some(guard) = self.inherit(mine, seen) {
                return guard;
            }
            round += 1;
            if seen == 0 {
                // Others may sleep, for all we know.
                match self.word.compare_exchange(0, mine | WAITED_FOR, Ordering::Acquire, Ordering::Relaxed) {
                    Ok(_) => return Guard(self, PhantomData),
                    Err(now) => seen = now,
                }
                continue;
            }
            if round < PATIENCE {
                std::hint::spin_loop();
            } else if self.word.compare_exchange(mine, mine | WAITED_FOR, Ordering::Relaxed, Ordering::Relaxed)
                != Err(0)
            {
                let _ = futex::wait(&self.word, futex::Flags::PRIVATE, mine | WAITED_FOR, None);
            }
            seen = self.word.load(Ordering::Relaxed);
        }
    }

    /// Takes what nobody in this process holds.
    fn inherit(&self, mine: u32, seen: u32) -> Option<Guard<'_, T>> {
        if seen == 0 || seen & !WAITED_FOR == mine {
            return None;
        }
        self.word.compare_exchange(seen, mine | WAITED_FOR, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // SAFETY: the holder is a thread of a process that we were forked from, as generations pass by `thread::next_generation`
        // only: in this memory nobody refers to the value. The exchange made it ours. What was there is not dropped.
        unsafe { self.value.get().write(T::default()) };
        Some(Guard(self, PhantomData))
    }
}

fn mine() -> u32 {
    (thread::generation() + 1) << 1
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the mutex is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the mutex is held, and the guard borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.0.word.swap(0, Ordering::Release) & WAITED_FOR != 0 {
            let _ = futex::wake(&self.0.word, futex::Flags::PRIVATE, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns() {
        let counter = Forkable::<u64>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *counter.lock() += 1));
            }
        });
        assert_eq!(*counter.lock(), 80_000);
    }

    #[test]
    fn what_this_process_holds_is_not_taken() {
        let value = Forkable::<Vec<u8>>::default();
        let mut held = value.lock();
        held.push(1);
        assert!(value.try_lock().is_none());
        drop(held);
        assert_eq!(*value.try_lock().unwrap(), [1]);
    }

    #[test]
    fn what_a_thread_of_the_parent_held_is_empty() {
        let value = Forkable::<Vec<u8>>::default();
        value.lock().push(1);
        // As a child sees a lock that some thread of its parent's parent had taken, and one slept for.
        for word in [mine() + 2, mine() + 3] {
            value.word.store(word, Ordering::Relaxed);
            assert!(value.lock().is_empty());
            value.lock().push(1);
            value.word.store(word, Ordering::Relaxed);
            assert!(value.try_lock().is_some_and(|inner| inner.is_empty()));
            assert!(value.try_lock().is_some());
        }
    }
}
