//! Waiting outside the kernel, as long as that pays.
//!
//! [`spin`] polls the gate, and from time to time the kernel and whether another thread wants the CPU. The other functions keep count of whether
//! spinning paid. If a setting for tests says so ([`Platform::patience`]), a spin without success is followed by a rest behind the open gate.

use crate::spin_policy::{
    Backoff, MAX_FAILURES, POLLS_BEFORE_CLOCK, POLLS_PER_CLOCK_READ, PROBE_INTERVAL_NS, QUICK_WAKE_UP_NS, YieldOutcome,
    is_late,
};
use crate::stream::{Patience, Platform, single_copy};
use motet_wire::stream::record::StreamRecord;
use motet_wire::stream::slot::Slot;
use motet_wire::sync::{Ordering::Relaxed, relax};

/// Failed spins that count beside threads that compute ([`MAX_FAILURES`]). An unsuccessful poll of the gate takes about as long as an exchange through the kernel, and a peer that is
/// on its CPU again should be found soon.
const MAX_FAILURES_CONTENDED: u32 = 6;
/// A peer that has read so many bytes between two checks is busy reading.
const PEER_PROGRESS_BYTES: u64 = 4 << 10;
/// A peer that reads prolongs a spin up to so many budgets.
const MAX_PROLONGED_BUDGETS: u64 = 64;
/// The rate at which TCP delivers, bytes per ns. The time that this takes is no sleep.
const TCP_BYTES_PER_NS: u64 = 2;

/// How a spin ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpinResult {
    /// The gate has changed: look into the ring.
    Ring,
    /// The kernel has something.
    Kernel,
    /// The spin's budget is spent.
    BudgetSpent,
    /// The program's own time limit for a receive has passed.
    ReceiveTimeout,
    /// Another thread woke this one, or the stream was closed.
    Woken,
}

/// Waits outside the kernel for at most `ns`, with the gate open, and keeps count of whether spinning pays. `posted`: a buffer is shown for single
/// copy.
#[inline]
pub fn spin<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P, ns: u64, posted: bool) -> SpinResult {
    match spin_once(record, slot, platform, ns, posted) {
        SpinResult::BudgetSpent => rest_behind_gate(record, slot, platform, posted),
        found => found,
    }
}

/// Inlined, so that the path of a receive that finds its bytes saves no registers for a call.
#[inline(always)]
fn spin_once<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P, ns: u64, posted: bool) -> SpinResult {
    let head = record.rx.head.load(Relaxed);
    let gate = &slot.inward().gate;
    let (budget, probe) = (platform.ticks(ns), platform.ticks(PROBE_INTERVAL_NS));
    let ring = slot.in_ring(false);
    let changed = || {
        ring.prefetch(head); // where the next payload will be
        !gate.still_waiting(head) || posted && single_copy::is_accepted(slot)
    };
    let mut near = record.rx.same_cpu.load(Relaxed) != 0;
    // In the last wait another thread took this CPU and soon gave it back: the threads of this program hand work to each other. A thread that this
    // one has woken since then runs first.
    let contended = platform.is_cpu_contended();
    if record.rx.yield_returned.load(Relaxed) != 0 && !contended && !changed() {
        yield_cpu(record, platform);
    }
    // A running peer answers within these polls, without a look at the clock. (Without the pause instruction this is slower by a tenth.)
    if !near
        && (0..POLLS_BEFORE_CLOCK).any(|_| {
            relax();
            changed()
        })
    {
        note_spin_success(record);
        return SpinResult::Ring;
    }
    if contended {
        note_spin_failure_up_to(record, MAX_FAILURES_CONTENDED);
        return SpinResult::BudgetSpent;
    }
    let first = platform.now();
    let (mut start, mut next_probe) = (first, first); // TCP bytes sent before the gate opened are in the kernel
    // When the wait for an answer began: a peer that still reads what was sent cannot have answered.
    let sent = record.tx.tail.load(Relaxed);
    let (mut asked, mut read) = (first, record.tx.head_seen.load(Relaxed));
    let result = loop {
        let looks = if near { 1 } else { POLLS_PER_CLOCK_READ };
        if (0..looks).any(|_| {
            relax();
            changed()
        }) {
            break SpinResult::Ring;
        }
        let now = platform.now();
        if !platform.is_current() {
            break SpinResult::Woken; // closed by another thread
        }
        if record.lifecycle.woken.load(Relaxed) != 0 {
            record.lifecycle.woken.store(0, Relaxed);
            break SpinResult::Woken;
        }
        let probing = now >= next_probe;
        if probing {
            if platform.tcp_readable() {
                break SpinResult::Kernel;
            }
            record.rx.head_at_tcp_empty.store(head, Relaxed);
            next_probe = now + probe;
            publish_cpu(slot, platform);
            if now.saturating_sub(first) < MAX_PROLONGED_BUDGETS * budget
                && let Some(further) = peer_read_progress(slot, read, sent)
            {
                (start, asked, read) = (now, now, further);
            }
        }
        if now.saturating_sub(start) > budget {
            break SpinResult::BudgetSpent;
        }
        // A peer on this CPU gets it at once, any other thread from time to time. Half of their time does not count against the budget.
        near = peer_on_this_cpu(slot, platform);
        if probing || near {
            let (yielded, outcome) = yield_cpu(record, platform);
            if outcome == YieldOutcome::Computation {
                backoff(record).weigh_failure();
                break if changed() { SpinResult::Ring } else { SpinResult::BudgetSpent };
            }
            if !probing || yielded > probe / 2 {
                start += yielded / 2;
            }
        }
    };
    record.rx.same_cpu.store(u32::from(near), Relaxed);
    let late = is_late(platform.now().saturating_sub(asked), budget);
    match result {
        SpinResult::Ring if late => note_spin_failure(record),
        SpinResult::Ring => note_spin_success(record),
        SpinResult::BudgetSpent => note_spin_failure(record),
        SpinResult::Kernel | SpinResult::Woken | SpinResult::ReceiveTimeout => {}
    }
    result
}

/// The length of the next sleep of a rest that has lasted for `rested` (in any unit): an eighth of it, so a peer is noticed soon and a time limit is
/// kept.
pub fn rest_length(rested: u64, min: u64, max: u64) -> u64 {
    (rested / 8).clamp(min, max)
}

/// The shortest and the longest sleep of a rest, ns.
pub const REST_SLEEP_RANGE_NS: (u64, u64) = (20_000, 1_000_000);

/// Rests behind the open gate for as long as [`Platform::patience`] says, however busy the CPU is, so that tests always take the same path. After
/// that the wait proceeds as any other, so invariants 5 and 6 hold.
#[cold]
fn rest_behind_gate<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P, posted: bool) -> SpinResult {
    let Patience { ns, expires } = platform.patience(record);
    if ns == 0 {
        return SpinResult::BudgetSpent;
    }
    let (start, budget) = (platform.now(), platform.ticks(ns));
    let (min, max) = (platform.ticks(REST_SLEEP_RANGE_NS.0), platform.ticks(REST_SLEEP_RANGE_NS.1));
    let head = record.rx.head.load(Relaxed);
    loop {
        if !slot.inward().gate.still_waiting(head) || posted && single_copy::is_accepted(slot) {
            return SpinResult::Ring;
        }
        if !platform.is_current() || record.lifecycle.woken.swap(0, Relaxed) != 0 {
            return SpinResult::Woken;
        }
        if platform.tcp_readable() {
            return SpinResult::Kernel;
        }
        record.rx.head_at_tcp_empty.store(head, Relaxed);
        let rested = platform.now().saturating_sub(start);
        if rested >= budget {
            return if expires { SpinResult::ReceiveTimeout } else { SpinResult::BudgetSpent };
        }
        let ticks = rest_length(rested, min, max).min(budget - rested);
        let ns = (ticks << 10) / platform.ticks_per_1024ns();
        if !platform.interruptible_sleep(ns) {
            return SpinResult::Woken;
        }
    }
}

/// The position up to which the peer has read what was sent, if it is at least [`PEER_PROGRESS_BYTES`] beyond `read`.
fn peer_read_progress(slot: &Slot, read: u64, sent: u64) -> Option<u64> {
    if read >= sent {
        return None; // all is read: the peer's cache line need not be loaded
    }
    let head = slot.outward().consumer.seen_head();
    (head <= sent && head.saturating_sub(read) >= PEER_PROGRESS_BYTES).then_some(head)
}

/// Yields this CPU; returns for how long other threads had it, ticks, and what ran.
fn yield_cpu<P: Platform>(record: &StreamRecord, platform: &mut P) -> (u64, YieldOutcome) {
    let began = platform.now();
    platform.yield_now();
    let took = platform.now().saturating_sub(began);
    let outcome = YieldOutcome::of(took, platform.ticks_per_1024ns());
    record.rx.yield_returned.store(u32::from(outcome == YieldOutcome::HandOver), Relaxed);
    (took, outcome)
}

/// The stream's count of failed spins.
#[inline(always)]
fn backoff(record: &StreamRecord) -> Backoff<'_> {
    Backoff { skips: &record.rx.spin_skips, failures: &record.rx.failed_spins }
}

/// Whether the next wait should spin at all. Counts a wait that does not.
pub fn should_spin<P: Platform>(record: &StreamRecord, platform: &P) -> bool {
    backoff(record).take_turn() || platform.is_cpu_contended() && last_put_met_open_gate(record)
}

/// Whether bytes were sent since the last wait, and the peer's gate was open. Such a peer is polling on a CPU of its own, so a spin is worthwhile even
/// while the CPUs are contended.
fn last_put_met_open_gate(record: &StreamRecord) -> bool {
    let sent = record.tx.tail.load(Relaxed) as u32;
    if record.tx.last_put.load(Relaxed) == 0 || record.rx.tx_tail_at_wait.load(Relaxed) == sent {
        return false;
    }
    record.rx.tx_tail_at_wait.store(sent, Relaxed);
    true
}

/// Notes that a spin succeeded.
#[inline]
pub fn note_spin_success(record: &StreamRecord) {
    backoff(record).note_success();
}

/// Notes that a spin failed: the more in a row, the fewer of the next waits spin.
pub fn note_spin_failure(record: &StreamRecord) {
    note_spin_failure_up_to(record, MAX_FAILURES);
}

fn note_spin_failure_up_to(record: &StreamRecord, max: u32) {
    backoff(record).note_failure(max);
    record.events.spin_misses.fetch_add(1, Relaxed);
}

/// Whether other threads want the CPUs and the last spin failed. The peer sleeps until its next turn, so this end should sleep, too.
#[inline]
pub(crate) fn last_spin_failed_under_contention<P: Platform>(record: &StreamRecord, platform: &P) -> bool {
    backoff(record).has_failed() && platform.is_cpu_contended()
}

/// Notes the end of a blocking receive in the kernel that delivered `received` bytes. A short sleep is evidence for spinning, except beside threads
/// that compute: there the peer may answer soon on this CPU, which it cannot do while this thread spins.
pub(crate) fn note_kernel_wake_up<P: Platform>(record: &StreamRecord, platform: &P, received: usize) {
    let (rx, slept) = (&record.rx, record.rx.kernel_wait_since.load(Relaxed));
    if slept == 0 {
        return;
    }
    rx.kernel_wait_since.store(0, Relaxed);
    if platform.is_cpu_contended() {
        return;
    }
    if platform.now().wrapping_sub(slept) < platform.ticks(QUICK_WAKE_UP_NS + received as u64 / TCP_BYTES_PER_NS) {
        backoff(record).note_quick_wake_up();
    }
}

/// Shows the peer on which CPU this thread waits, or sends what takes long.
pub fn publish_cpu<P: Platform>(slot: &Slot, platform: &P) {
    let line = &slot.inward().consumer;
    let cpu = platform.cpu() + 1;
    if line.cpu.load(Relaxed) != cpu {
        line.cpu.store(cpu, Relaxed);
    }
}

/// Whether the peer last waited or sent on the CPU that this thread runs on.
pub fn peer_on_this_cpu<P: Platform>(slot: &Slot, platform: &P) -> bool {
    slot.outward().consumer.cpu.load(Relaxed) == platform.cpu() + 1
}
