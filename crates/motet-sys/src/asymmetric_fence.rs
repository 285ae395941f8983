//! Fences of a pair of threads, of which one passes often and the other one rarely.
//!
//! Each stores one word and then reads the other's: the frequent one announces that it is inside and reads whether it is kept out; the rare one
//! keeps it out and reads whether it is inside. Of two such threads at least one must see the other's store, which takes a fence on both sides
//! between store and load. Here the frequent side has [`light`], which costs no instruction, and the rare side has [`heavy`], which pays for both:
//! a barrier on every CPU of the process (membarrier(2)), some microseconds. [`heavy_global`] is for a frequent side in another process.
//!
//! Where the system has no such barrier, or a seccomp filter that the program has installed since refuses it, the rare side waits until every
//! earlier store is visible anyway. So the frequent side need not know.

use crate::{clock, thread};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence, fence};
use syscalls::{Sysno, syscall};

const GLOBAL_EXPEDITED: usize = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: usize = 1 << 2;
const PRIVATE_EXPEDITED: usize = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: usize = 1 << 4;

/// Every store is visible to other CPUs after this time, ns.
const STORE_VISIBLE_NS: u64 = 1_000_000;

fn membarrier(command: usize) -> bool {
    // SAFETY: membarrier takes numbers only and changes no memory.
    unsafe { syscall!(Sysno::membarrier, command, 0, 0) }.is_ok()
}

/// Registers this process for the barriers of [`heavy`]. False: the system has none. The kernel keeps the registration across forks.
/// Without it [`heavy`] waits instead.
pub fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(REGISTER_PRIVATE_EXPEDITED))
}

/// Registers this process for the barriers of [`heavy_global`], those of other processes included. Otherwise as [`register`].
pub fn register_global() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(REGISTER_GLOBAL_EXPEDITED))
}

/// The fence of the frequent side, between its store and its load.
#[inline(always)]
pub fn light() {
    compiler_fence(Ordering::SeqCst);
}

/// The fence of the rare side, between its store and its load, if the frequent side is a thread of this process. Either the frequent side's store is
/// visible afterwards, or its load sees the store of this thread. False: there was no barrier, and this thread has slept.
pub fn heavy() -> bool {
    barrier_or_wait(PRIVATE_EXPEDITED)
}

/// [`heavy`] if the frequent side is in another process. Both must have [registered](register_global).
pub fn heavy_global() -> bool {
    barrier_or_wait(GLOBAL_EXPEDITED)
}

fn barrier_or_wait(command: usize) -> bool {
    let has_reached_all = membarrier(command);
    fence(Ordering::SeqCst);
    if !has_reached_all {
        let until = clock::nanoseconds() + STORE_VISIBLE_NS;
        while clock::nanoseconds() < until {
            thread::sleep_ns(STORE_VISIBLE_NS); // a signal ends it early
        }
    }
    has_reached_all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[test]
    fn kernel_accepts_repeated_registration_and_barriers() {
        assert!(register_global() && register_global() && register() && heavy() && heavy_global());
    }

    #[test]
    fn refused_barrier_becomes_a_wait() {
        let began = clock::nanoseconds();
        assert!(!barrier_or_wait(usize::MAX));
        assert!(clock::nanoseconds() - began >= STORE_VISIBLE_NS);
    }

    #[test]
    fn one_side_of_a_pair_sees_the_other() {
        let rounds = 3000;
        assert!(register());
        let [inside, kept_out, round, done] = [const { AtomicU32::new(0) }; 4];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 1..=rounds {
                    while round.load(Ordering::Acquire) != turn {
                        std::hint::spin_loop();
                    }
                    inside.store(turn, Relaxed);
                    light();
                    let seen = kept_out.load(Relaxed) == turn;
                    done.store(turn << 1 | u32::from(seen), Ordering::Release);
                }
            });
            for turn in 1..=rounds {
                round.store(turn, Ordering::Release);
                kept_out.store(turn, Relaxed);
                heavy();
                let seen = inside.load(Relaxed) == turn;
                while done.load(Ordering::Acquire) >> 1 != turn {
                    std::thread::yield_now();
                }
                assert!(seen || done.load(Relaxed) & 1 == 1, "round {turn}");
            }
        });
    }
}
