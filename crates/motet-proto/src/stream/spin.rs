//! Waiting outside the kernel, as long as that pays.
//!
//! [`spin`] looks at the gate, now and then at the kernel and at who else wants the CPU; the rest keeps count of whether it paid. Where a
//! setting for tests says so ([`Platform::patience`]), a spin that found nothing is followed by a rest behind the open gate.

use crate::stream::{Patience, Platform, single_copy};
use motet_wire::stream::record::StreamRecord;
use motet_wire::stream::slot::Slot;
use motet_wire::sync::{Ordering::Relaxed, relax};

/// Kernel readiness is looked at this often (ns) while spinning.
pub const PROBE: u64 = 5_000;
/// A yield that takes this long (ns) ran a thread that computes: waiting in the kernel is better.
const HOG: u64 = 200_000;
/// A yield that takes this long (ns) ran another thread.
const LENT: u64 = 1_500;
/// Looks at the gate before the first look at the clock.
const EAGER: u32 = 200;
/// Failed spins are followed by up to `2^MAX_FAILED - 1` waits without.
const MAX_FAILED: u32 = 9;
/// The limit beside threads that compute: an empty poll takes as long as an exchange by the kernel does, and a peer that has come back to its
/// CPU should be met soon.
const MAX_FAILED_IN_CROWD: u32 = 6;
/// A peer that reads so many bytes between two looks is at it.
const READS: u64 = 4 << 10;
/// Its reading prolongs a spin up to so many times.
const PROLONGED: u64 = 64;
/// A sleep in the kernel that was as short as this (ns) should have been a spin. What was received has taken its time, too: so many bytes a
/// ns come over TCP.
const WAKE_UP: u64 = 20_000;
const TCP: u64 = 2;

/// How a spin ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpinResult {
    /// The gate changed: look into the ring.
    Ring,
    /// The kernel has something.
    Kernel,
    /// Time is up.
    BudgetSpent,
    /// So is the program's own.
    Expired,
    /// Somebody called wake.
    Woken,
}

/// Waits outside the kernel for at most `ns`, with the gate open (and a buffer `posted`). Keeps count of whether spinning pays.
#[inline]
pub fn spin<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B, ns: u64, posted: bool) -> SpinResult {
    match spin_once(record, slot, base, ns, posted) {
        SpinResult::BudgetSpent => rest_behind_gate(record, slot, base, posted),
        found => found,
    }
}

fn spin_once<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B, ns: u64, posted: bool) -> SpinResult {
    let head = record.rx.head.load(Relaxed);
    let gate = &slot.inward().gate;
    let (budget, probe, hog) = (base.ticks(ns), base.ticks(PROBE), base.ticks(HOG));
    let ring = slot.in_ring(false);
    let changed = || {
        ring.prefetch(head); // what comes will lie there
        !gate.still_waiting(head) || posted && single_copy::taken(slot)
    };
    // A running peer answers within this: no clock, nothing to undo. (Without the pause it is slower by a tenth.)
    let mut near = record.rx.same_cpu.load(Relaxed) != 0;
    // Somebody had this CPU in the last wait, and gave it back: threads of a program that hand its work around. Whom this thread has woken
    // since the last wait goes first.
    let crowded = base.is_cpu_contended();
    if record.rx.yield_returned.load(Relaxed) != 0 && !crowded && !changed() {
        lend(record, base);
    }
    if !near
        && (0..EAGER).any(|_| {
            relax();
            changed()
        })
    {
        paid(record);
        return SpinResult::Ring;
    }
    if crowded {
        failed_up_to(record, MAX_FAILED_IN_CROWD);
        return SpinResult::BudgetSpent;
    }
    let first = base.now();
    let (mut start, mut next_probe) = (first, first); // TCP bytes sent before the gate rose are in the kernel
    // When the wait for an answer began: a peer that still reads what we sent before cannot have given any.
    let sent = record.tx.tail.load(Relaxed);
    let (mut asked, mut read) = (first, record.tx.head_seen.load(Relaxed));
    let result = loop {
        let looks = if near { 1 } else { 32 };
        if (0..looks).any(|_| {
            relax();
            changed()
        }) {
            break SpinResult::Ring;
        }
        let now = base.now();
        if !base.is_current() {
            break SpinResult::Woken; // closed by another thread
        }
        if record.lifecycle.woken.load(Relaxed) != 0 {
            record.lifecycle.woken.store(0, Relaxed);
            break SpinResult::Woken;
        }
        let probing = now >= next_probe;
        if probing {
            if base.tcp_readable() {
                break SpinResult::Kernel;
            }
            record.rx.head_at_tcp_empty.store(head, Relaxed);
            next_probe = now + probe;
            publish_cpu(slot, base);
            if now.saturating_sub(first) < PROLONGED * budget
                && let Some(further) = reads_on(slot, read, sent)
            {
                (start, asked, read) = (now, now, further);
            }
        }
        if now.saturating_sub(start) > budget {
            break SpinResult::BudgetSpent;
        }
        // The peer needs this CPU at once; anybody else gets it now and then. Their time is not spun away.
        near = same_cpu(slot, base);
        if probing || near {
            let lent = lend(record, base);
            if lent > hog {
                record.rx.failed_spins.store(record.rx.failed_spins.load(Relaxed) + 3, Relaxed); // dear: try it less often than other spins
                break if changed() { SpinResult::Ring } else { SpinResult::BudgetSpent };
            }
            if !probing || lent > probe / 2 {
                start += lent / 2;
            }
        }
    };
    record.rx.same_cpu.store(u32::from(near), Relaxed);
    // Found at last, but a sleep would have been as quick and would have left the CPU to others.
    let late = base.now().saturating_sub(asked) > 2 * budget;
    match result {
        SpinResult::Ring if late => failed(record),
        SpinResult::Ring => paid(record),
        SpinResult::BudgetSpent => failed(record),
        SpinResult::Kernel | SpinResult::Woken | SpinResult::Expired => {}
    }
    result
}

/// One rest between two looks, after this time (in any unit): an eighth of it, so a peer is met soon and a time limit is kept.
pub fn pause(rested: u64, least: u64, most: u64) -> u64 {
    (rested / 8).clamp(least, most)
}

/// The shortest and the longest rest between two looks, ns.
pub const PAUSES: (u64, u64) = (20_000, 1_000_000);

/// Rests behind the open gate for as long as [`Platform::patience`] says, however busy the CPU is, so that the path of payload does not depend on chance.
/// After that the wait goes on as any other, so invariants 5 and 6 hold.
#[cold]
fn rest_behind_gate<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B, posted: bool) -> SpinResult {
    let Patience { ns, expires } = base.patience(record);
    if ns == 0 {
        return SpinResult::BudgetSpent;
    }
    let (start, budget) = (base.now(), base.ticks(ns));
    let (least, most) = (base.ticks(PAUSES.0), base.ticks(PAUSES.1));
    let head = record.rx.head.load(Relaxed);
    loop {
        if !slot.inward().gate.still_waiting(head) || posted && single_copy::taken(slot) {
            return SpinResult::Ring;
        }
        if !base.is_current() || record.lifecycle.woken.swap(0, Relaxed) != 0 {
            return SpinResult::Woken;
        }
        if base.tcp_readable() {
            return SpinResult::Kernel;
        }
        record.rx.head_at_tcp_empty.store(head, Relaxed);
        let rested = base.now().saturating_sub(start);
        if rested >= budget {
            return if expires { SpinResult::Expired } else { SpinResult::BudgetSpent };
        }
        let ticks = pause(rested, least, most).min(budget - rested);
        let ns = (ticks << 10) / base.ticks_per_1024ns();
        if !base.interruptible_sleep(ns) {
            return SpinResult::Woken;
        }
    }
}

/// How far the peer has read of what was sent, if that is a good deal further than `read`.
fn reads_on(slot: &Slot, read: u64, sent: u64) -> Option<u64> {
    if read >= sent {
        return None; // without a look at its line
    }
    let head = slot.outward().consumer.seen_head();
    (head <= sent && head.saturating_sub(read) >= READS).then_some(head)
}

/// Lets others have this CPU; how long they had it, ticks.
fn lend<B: Platform>(record: &StreamRecord, base: &mut B) -> u64 {
    let began = base.now();
    base.yield_now();
    let took = base.now().saturating_sub(began);
    let soon = took > base.ticks(LENT) && took <= base.ticks(HOG);
    record.rx.yield_returned.store(u32::from(soon), Relaxed);
    took
}

/// Whether the next wait should spin at all.
pub fn should_spin<B: Platform>(record: &StreamRecord, base: &B) -> bool {
    let skip = record.rx.spin_skips.load(Relaxed);
    if skip > 0 {
        record.rx.spin_skips.store(skip - 1, Relaxed);
    }
    skip == 0 || base.is_cpu_contended() && met_peer(record)
}

/// Whether what was sent since the last wait went behind the peer's open gate: it has a CPU of its own just now and looks, so both meet although
/// each of them looks but now and then.
fn met_peer(record: &StreamRecord) -> bool {
    let sent = record.tx.tail.load(Relaxed);
    if record.tx.last_put.load(Relaxed) == 0 || record.rx.tx_tail_at_wait.load(Relaxed) == sent {
        return false;
    }
    record.rx.tx_tail_at_wait.store(sent, Relaxed);
    true
}

/// Spinning paid.
#[inline]
pub fn paid(record: &StreamRecord) {
    if record.rx.failed_spins.load(Relaxed) != 0 {
        record.rx.failed_spins.store(0, Relaxed);
    }
}

/// Spinning did not pay.
pub fn failed(record: &StreamRecord) {
    failed_up_to(record, MAX_FAILED);
}

fn failed_up_to(record: &StreamRecord, most: u32) {
    let times = (record.rx.failed_spins.load(Relaxed) + 1).min(most);
    record.rx.failed_spins.store(times, Relaxed);
    record.rx.spin_skips.store((1 << times) - 1, Relaxed);
    record.events.spin_misses.fetch_add(1, Relaxed);
}

/// Whether the CPUs are others' and the last look brought nothing: the peer sleeps when its turn comes, and so does this end.
#[inline]
pub(crate) fn spins_in_vain<B: Platform>(record: &StreamRecord, base: &B) -> bool {
    record.rx.failed_spins.load(Relaxed) != 0 && base.is_cpu_contended()
}

/// After a blocking receive that was left to the kernel and has brought `received` bytes: what came soon speaks for spinning. Not among others
/// who compute: there a peer on this very CPU answers as soon, which it cannot while this one spins.
pub(crate) fn woke<B: Platform>(record: &StreamRecord, base: &B, received: usize) {
    let (rx, slept) = (&record.rx, record.rx.kernel_wait_since.load(Relaxed));
    if slept == 0 {
        return;
    }
    rx.kernel_wait_since.store(0, Relaxed);
    if base.is_cpu_contended() {
        return;
    }
    if base.now().wrapping_sub(slept) < base.ticks(WAKE_UP + received as u64 / TCP) {
        rx.spin_skips.store(rx.spin_skips.load(Relaxed) / 4, Relaxed);
        rx.failed_spins.store(rx.failed_spins.load(Relaxed) / 2, Relaxed);
    }
}

/// Tells the peer on which CPU we wait.
pub fn publish_cpu<B: Platform>(slot: &Slot, base: &B) {
    let line = &slot.inward().consumer;
    let cpu = base.cpu() + 1;
    if line.cpu.load(Relaxed) != cpu {
        line.cpu.store(cpu, Relaxed);
    }
}

/// Whether the peer was last seen waiting on the CPU that this thread runs on.
pub fn same_cpu<B: Platform>(slot: &Slot, base: &B) -> bool {
    slot.outward().consumer.cpu.load(Relaxed) == base.cpu() + 1
}
