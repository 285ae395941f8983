//! The lock of one half of a stream: held for tens of instructions, never across a sleep (invariant 7). Who waits for it sleeps after a
//! while, so a holder that cannot run for some reason costs no waiter a CPU, and waiters do not keep it from running.
//!
//! It lives in memory shared with forked children, so it names its holder: a process that was killed inside is noticed
//! by the next one who waits, who gets the lock with [`Acquired::Orphaned`] and must reset the stream. A thread that meets
//! its own token (a signal handler inside the engine) gets an error instead of waiting for itself.
//!
//! Closing a stream makes its handle stale and then takes both locks once, before it lets go of the wire. So a thread that gets a
//! lock asks whether its handle is still good ([`Platform::current`]): if so, the wire stays as it is while the lock is held; if
//! not, the record may be another stream's by now, and the wire's memory another segment's.

use crate::stream::Platform;
use motet_wire::sync::{AtomicU64, Ordering, relax};

/// A held lock; given back on drop.
#[derive(Debug)]
pub struct Held<'a>(&'a AtomicU64);

/// How an acquisition went.
#[derive(Debug)]
pub enum Acquired<'a> {
    /// Ours.
    Clean(Held<'a>),
    /// Ours, but the last holder died inside: the state is unknown.
    Orphaned(Held<'a>),
    /// This very thread holds it.
    Reentrant,
    /// The stream that the caller means has ended; nothing is held.
    Stale,
}

/// Takes the lock.
#[inline(always)]
pub fn acquire<'a, B: Platform>(lock: &'a AtomicU64, base: &mut B) -> Acquired<'a> {
    let token = base.lock_token();
    // edge: release -> acquire
    match lock.compare_exchange(0, token, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => held(lock, base),
        Err(holder) => contended(lock, token, holder, base),
    }
}

/// The lock is ours: but is the record still?
#[inline(always)]
fn held<'a, B: Platform>(lock: &'a AtomicU64, base: &B) -> Acquired<'a> {
    let held = Held(lock);
    if base.is_current() { Acquired::Clean(held) } else { Acquired::Stale }
}

/// How long a thread that waits looks, yields, and then sleeps: its holder may be one that the scheduler never prefers to it, so that a
/// yield is no help (SCHED_FIFO, a lower priority), or one that is stopped.
const SPINS: u32 = 100;
const YIELDS: u32 = 64;
/// ns; the longest is 4 ms.
const SHORTEST_NAP: u64 = 16_000;
const DOUBLINGS: u32 = 8;

#[cold]
fn contended<'a, B: Platform>(lock: &'a AtomicU64, token: u64, mut holder: u64, base: &mut B) -> Acquired<'a> {
    let mut round = 0u32;
    loop {
        if holder == token {
            return Acquired::Reentrant;
        }
        round += 1;
        if round < SPINS {
            relax();
        } else if round < SPINS + YIELDS {
            base.yield_now();
        } else {
            let nap = (round - SPINS - YIELDS).min(DOUBLINGS);
            base.sleep(SHORTEST_NAP << nap);
            if nap == DOUBLINGS
                && !base.lock_holder_exists(holder)
                && lock.compare_exchange(holder, token, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return match held(lock, base) {
                    Acquired::Clean(held) => Acquired::Orphaned(held),
                    other => other,
                };
            }
        }
        match lock.compare_exchange_weak(0, token, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return held(lock, base),
            Err(now) if now != 0 => holder = now,
            Err(_) => {}
        }
    }
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
