//! Bulk data: when the large ring is worth its memory, and how payload is copied into it.
//!
//! Two measured facts. A line that the other CPU's cache still holds is slow to overwrite, so a stream is fastest through a
//! ring larger than the caches between two uses of a line: several MiB. And between CPUs that share no cache that ring is
//! slow, unless the writer bypasses the caches. Which of the two holds changes with the placement of virtual CPUs, so both
//! ends measure their copies: [`Copying`] is the writer's decision.

use crate::Base;
use motet_wire::record::{Record, Tx};
use motet_wire::slot::{Lines, Slot};
use motet_wire::sync::Ordering::Relaxed;

/// A transfer of this size speaks for bulk, and is timed.
pub const LARGE: usize = 8 << 10;
/// Large takes in excess of small ones that make a stream bulk.
const BULK: u32 = 32;
/// Bytes that decide how to copy.
const WINDOW: u64 = 256 << 10;
/// Bytes copied around the caches before the other way is tried again.
const REVIEW: u64 = 128 << 20;
/// Copies slower than this (MB/s) cross between caches that share nothing.
const SLOW: u32 = 4_000;

/// Notes a take of `n` bytes.
#[inline(always)]
pub fn took(record: &Record, n: usize) {
    let score = record.rx.bulk.load(Relaxed);
    if n >= LARGE {
        if score < 2 * BULK {
            record.rx.bulk.store(score + 1, Relaxed);
        }
    } else if score > 0 {
        record.rx.bulk.store(score - 1, Relaxed);
    }
}

/// Whether the next epoch should use the large ring. The first time, its pages are brought into being.
pub fn wants_wide<B: Base>(record: &Record, slot: &Slot, base: &mut B) -> bool {
    const NEVER: u32 = u32::MAX;
    const READY: u32 = NEVER - 1;
    match record.rx.bulk_ring.load(Relaxed) {
        READY => record.rx.bulk.load(Relaxed) > 0,
        NEVER => false,
        _ if record.rx.bulk.load(Relaxed) < BULK => false,
        _ => {
            let ready = slot.bulk_memory().is_some_and(|memory| base.populate(memory));
            record.rx.bulk_ring.store(if ready { READY } else { NEVER }, Relaxed);
            ready
        }
    }
}

/// Whether this end has populated its large ring.
pub fn is_populated(record: &Record) -> bool {
    record.rx.bulk_ring.load(Relaxed) == u32::MAX - 1
}

/// MB/s of `n` bytes in `ticks`.
pub fn rate<B: Base>(base: &B, n: usize, ticks: u64) -> u32 {
    let ns = ((ticks << 10) / base.ticks_per_1024ns().max(1)).max(1);
    u32::try_from(n as u64 * 1000 / ns).unwrap_or(u32::MAX)
}

/// How the writer copies large puts.
pub struct Copying<'a>(pub &'a Tx);

impl Copying<'_> {
    /// Around the caches?
    #[inline(always)]
    pub fn bypass(&self) -> bool {
        self.0.bypass.load(Relaxed) != 0
    }

    /// Notes a large put of `n` bytes at `rate`, and decides anew when enough has passed.
    pub fn note(&self, lines: &Lines, n: usize, rate: u32) {
        let tx = self.0;
        tx.rate.store(tx.rate.load(Relaxed).max(rate), Relaxed);
        let left = tx.review.load(Relaxed);
        if left > n as u64 {
            tx.review.store(left - n as u64, Relaxed);
            return;
        }
        if self.bypass() {
            tx.bypass.store(0, Relaxed); // one window through the caches shows whether that is better by now
            tx.review.store(WINDOW, Relaxed);
        } else {
            let reader = lines.consumer.rate.load(Relaxed); // a hint: a lie slows down the liar
            let slow = tx.rate.load(Relaxed) < SLOW || (1..SLOW).contains(&reader);
            tx.bypass.store(u32::from(slow), Relaxed);
            tx.review.store(if slow { REVIEW } else { WINDOW }, Relaxed);
        }
        tx.rate.store(0, Relaxed);
    }
}
