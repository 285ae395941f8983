//! The lock of one half of a stream: held for tens of instructions, never across a sleep (invariant 7).
//!
//! A waiter sleeps after a while, so a holder that cannot run costs it no CPU, and waiters do not keep the holder from running.
//!
//! The lock is in memory shared with forked children, so it names its holder. If a process was killed inside, the next waiter notices that, gets the
//! lock with [`Acquired::Orphaned`] and must reset the stream. A thread that finds its own token (a signal handler inside the engine) gets an error
//! instead of waiting for itself.
//!
//! Closing a stream makes its handle stale and then takes both locks once, before it releases the wire. So a thread that gets a lock checks its
//! handle ([`Platform::is_current`]). If the handle is good, the wire stays as long as the lock is held. If not, the record may belong to another
//! stream, and the wire's memory to another segment.

use crate::stream::Platform;
use motet_wire::sync::{AtomicU64, Ordering, relax};

/// A held lock; released on drop.
#[derive(Debug)]
pub struct HalfGuard<'a>(&'a AtomicU64);

/// How an acquisition went.
#[derive(Debug)]
pub enum Acquired<'a> {
    /// The lock is held.
    Clean(HalfGuard<'a>),
    /// The lock is held, but its last holder died inside: the state of the half is unknown.
    Orphaned(HalfGuard<'a>),
    /// This thread holds the lock already.
    Reentrant,
    /// The stream of the caller's handle has ended; nothing is held.
    Stale,
}

/// Takes the lock.
#[inline(always)]
pub fn acquire<'a, P: Platform>(lock: &'a AtomicU64, platform: &mut P) -> Acquired<'a> {
    let token = platform.lock_token();
    // edge: release -> acquire
    match lock.compare_exchange(0, token, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => held(lock, platform),
        Err(holder) => contended(lock, token, holder, platform),
    }
}

/// The lock is taken: checks whether the record still belongs to the caller's stream.
#[inline(always)]
fn held<'a, P: Platform>(lock: &'a AtomicU64, platform: &P) -> Acquired<'a> {
    let held = HalfGuard(lock);
    if platform.is_current() { Acquired::Clean(held) } else { Acquired::Stale }
}

/// Rounds of a wait that spin, then rounds that yield; after these it sleeps. A yield does not help if the holder has a lower priority (SCHED_FIFO)
/// or is stopped.
const SPIN_ROUNDS: u32 = 100;
const YIELD_ROUNDS: u32 = 64;
/// The first sleep, ns. It is doubled up to [`MAX_SLEEP_DOUBLINGS`] times, to 4 ms.
const SHORTEST_SLEEP_NS: u64 = 16_000;
const MAX_SLEEP_DOUBLINGS: u32 = 8;

#[cold]
fn contended<'a, P: Platform>(lock: &'a AtomicU64, token: u64, mut holder: u64, platform: &mut P) -> Acquired<'a> {
    let mut round = 0u32;
    loop {
        if holder == token {
            return Acquired::Reentrant;
        }
        round += 1;
        if round < SPIN_ROUNDS {
            relax();
        } else if round < SPIN_ROUNDS + YIELD_ROUNDS {
            platform.yield_now();
        } else {
            let doublings = (round - SPIN_ROUNDS - YIELD_ROUNDS).min(MAX_SLEEP_DOUBLINGS);
            platform.sleep(SHORTEST_SLEEP_NS << doublings);
            if doublings == MAX_SLEEP_DOUBLINGS
                && !platform.lock_holder_exists(holder)
                && lock.compare_exchange(holder, token, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return match held(lock, platform) {
                    Acquired::Clean(held) => Acquired::Orphaned(held),
                    other => other,
                };
            }
        }
        match lock.compare_exchange_weak(0, token, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return held(lock, platform),
            Err(now) if now != 0 => holder = now,
            Err(_) => {}
        }
    }
}

impl Drop for HalfGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
