//! The consumer's side of the gate: when it opens, when it closes, and who sleeps behind it (invariants 1, 4 and 5).
//!
//! All of it happens under the lock of the receiving half. The words themselves are `motet_wire::stream::gate`.

use crate::stream::half_lock::{Acquired, Held, acquire};
use crate::stream::rx::broken;
use crate::stream::{Platform, bulk, exchange};
use motet_wire::stream::record::{State, StreamRecord};
use motet_wire::stream::slot::Slot;
use motet_wire::sync::Ordering::Relaxed;

/// Whether the gate is open over an empty ring, no thread sleeps on this stream and nothing speaks for the large ring or for a closed gate:
/// then [`raise`] has nothing to do.
#[inline(always)]
pub(crate) fn is_up(record: &StreamRecord, slot: &Slot) -> bool {
    let rx = &record.rx;
    slot.inward().gate.still_waiting(rx.head.load(Relaxed))
        && rx.kernel_calls.load(Relaxed) == 0
        && (!bulk::has_large_takes(record) || rx.wide.load(Relaxed) != 0)
        && exchange::is_mutual(record)
}

/// Opens the gate, if no thread sleeps on this stream, both ends are ready, the ring is empty and `allowed` (asked under the
/// lock) agrees. True when the gate is open now.
#[inline]
pub fn raise<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B, allowed: impl FnOnce() -> bool) -> bool {
    is_up(record, slot) || raise_anew(record, slot, base, allowed)
}

#[inline(never)]
fn raise_anew<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B, allowed: impl FnOnce() -> bool) -> bool {
    let (rx, lines) = (&record.rx, slot.inward());
    if exchange::keeps_gate_closed(record, base) {
        return false;
    }
    let wide = bulk::wants_wide(record, slot, base);
    if lines.gate.still_waiting(rx.head.load(Relaxed))
        && rx.kernel_calls.load(Relaxed) == 0
        && (rx.wide.load(Relaxed) != 0 || !wide)
    {
        return true;
    }
    let Some(_held) = clean(record, base) else { return false };
    if rx.ready.load(Relaxed) == 0
        || rx.kernel_calls.load(Relaxed) != 0
        || record.lifecycle.tcp_only.load(Relaxed) != 0
        || lines.mark.ready.load(Relaxed) == 0
        || record.state() != State::Attached
        || !resync(record, slot)
        || !allowed()
    {
        return false;
    }
    let head = rx.head.load(Relaxed);
    let (tail, up) = lines.gate.tail();
    if tail != head {
        return false;
    }
    if !up {
        // Before the gate opens: once a byte is in the ring, its mark must be read anew.
        rx.mark_known.store(0, Relaxed);
        if !lines.gate.raise(head) {
            return false;
        }
        rx.wide.store(0, Relaxed);
        record.events.raised.fetch_add(1, Relaxed);
    }
    if wide && rx.wide.load(Relaxed) == 0 {
        widen(record, slot, base);
    }
    true
}

/// Turns to the large ring if it is time and the ring is empty: right after a take, before a producer that waited for space
/// has written more.
#[cold]
pub(crate) fn widen<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) {
    if bulk::wants_wide(record, slot, base) && slot.inward().gate.widen(record.rx.head.load(Relaxed)) {
        record.rx.wide.store(1, Relaxed);
    }
}

/// Closes the gate over an empty ring and registers a kernel receive (or sleep): until [`leave_kernel`] or [`crate::stream::rx::end`] the
/// gate stays closed. False when the ring has bytes; nothing is registered then.
pub fn enter_kernel<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) -> bool {
    let Some(_held) = clean(record, base) else { return true };
    if record.rx.ready.load(Relaxed) != 0 && !shut(record, slot) {
        return false;
    }
    enter(record);
    true
}

/// Registers a kernel sleep although the ring has bytes: TCP bytes that precede them will wake the sleeper.
pub fn enter_kernel_over_bytes<B: Platform>(record: &StreamRecord, base: &mut B) {
    let held = hold(record, base);
    if !matches!(held, Acquired::Stale) {
        enter(record);
    }
}

/// While TCP bytes that precede the ring are missing: whether some of them were read without the engine.
#[cold]
pub(crate) fn recount<B: Platform>(record: &StreamRecord, base: &mut B) -> bool {
    let counted = record.rx.tcp_bytes.load(Relaxed);
    clean(record, base).is_none_or(|_held| recount_locked(record, base) != counted)
}

/// TCP bytes that were read, those past us included. If they are more than precede the ring, the order is broken.
#[cold]
pub(crate) fn recount_locked<B: Platform>(record: &StreamRecord, base: &mut B) -> u64 {
    let counted = record.rx.tcp_bytes.load(Relaxed);
    if record.rx.kernel_calls.load(Relaxed) != 0 {
        return counted;
    }
    let read = base.tcp_bytes_read(counted);
    record.rx.tcp_bytes.store(read, Relaxed);
    read
}

/// Undoes [`enter_kernel`] after a sleep that received nothing.
pub fn leave_kernel<B: Platform>(record: &StreamRecord, base: &mut B) {
    let held = hold(record, base);
    if !matches!(held, Acquired::Stale) {
        leave(record);
    }
}

/// Closes the gate over an empty ring. False when the ring has bytes.
pub fn close_gate<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) -> bool {
    let Some(_held) = clean(record, base) else { return true };
    record.rx.ready.load(Relaxed) == 0 || shut(record, slot)
}

/// Closes the gate whatever the ring holds: its bytes stay readable, what follows them goes over TCP, and the kernel
/// reports that. False when the ring has bytes.
pub fn close_gate_over_bytes<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) -> bool {
    let Some(_held) = clean(record, base) else { return true };
    record.rx.ready.load(Relaxed) == 0 || {
        let empty = shut(record, slot);
        if !empty {
            slot.inward().gate.lower();
        }
        empty
    }
}

/// The descriptor gets readers outside of the engine: the gate closes whatever the ring holds, and the producer learns that nothing may be left
/// there when it ends. False when the ring has bytes.
pub fn hand_over<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) -> bool {
    slot.inward().consumer.handed_over.store(1, Relaxed);
    close_gate_over_bytes(record, slot, base)
}

/// Whether the producer has still to return bytes of our ring to TCP, for readers outside of the engine: its memory must stay until then.
pub fn is_awaited_elsewhere(slot: &Slot) -> bool {
    let lines = slot.inward();
    lines.consumer.handed_over.load(Relaxed) != 0 && lines.consumer.seen_head() != lines.gate.tail().0
}

pub(crate) fn clean<'a, B: Platform>(record: &'a StreamRecord, base: &mut B) -> Option<Held<'a>> {
    match acquire(&record.rx.lock, base) {
        Acquired::Clean(held) => Some(held),
        Acquired::Orphaned(_) => {
            broken(record);
            None
        }
        Acquired::Reentrant | Acquired::Stale => None,
    }
}

/// The lock, for what must be done in any case. Its last holder may have died inside: then the stream is broken.
pub(crate) fn hold<'a, B: Platform>(record: &'a StreamRecord, base: &mut B) -> Acquired<'a> {
    let held = acquire(&record.rx.lock, base);
    if matches!(held, Acquired::Orphaned(_)) {
        broken(record);
    }
    held
}

pub(crate) fn enter(record: &StreamRecord) {
    record.rx.kernel_calls.store(record.rx.kernel_calls.load(Relaxed) + 1, Relaxed);
}

pub(crate) fn leave(record: &StreamRecord) {
    record.rx.kernel_calls.store(record.rx.kernel_calls.load(Relaxed).saturating_sub(1), Relaxed);
}

/// Closes the gate, under the lock; false when the ring has bytes.
pub(crate) fn shut(record: &StreamRecord, slot: &Slot) -> bool {
    resync(record, slot) && slot.inward().gate.lower_empty(record.rx.head.load(Relaxed))
}

/// Catches up with a producer that took bytes back. False while it is at it, or when it broke the protocol.
fn resync(record: &StreamRecord, slot: &Slot) -> bool {
    let tail = slot.inward().gate.tail().0;
    if tail == record.rx.head.load(Relaxed) {
        return true;
    }
    match settle(record, slot) {
        Settled::Same | Settled::Moved => true,
        Settled::Busy => false,
        Settled::Broken => {
            broken(record);
            true
        }
    }
}

pub(crate) enum Settled {
    Same,
    Moved,
    Busy,
    Broken,
}

/// Reads the shared head (the producer may have moved it) and then the mark that belongs to it. The tail that bounds it is read after it: the
/// producer may have put more, and taken that back too, since anybody looked at the tail before.
pub(crate) fn settle(record: &StreamRecord, slot: &Slot) -> Settled {
    let lines = slot.inward();
    let rx = &record.rx;
    let Some(shared) = lines.consumer.settle() else { return Settled::Busy }; // edge: release -> settled
    let head = rx.head.load(Relaxed);
    if shared < head || shared > lines.gate.tail().0 {
        return Settled::Broken;
    }
    rx.mark.store(lines.mark.mark.load(Relaxed), Relaxed);
    rx.mark_known.store(1, Relaxed);
    record.connection.producer_stalled.store(0, Relaxed);
    if shared == head {
        return Settled::Same;
    }
    rx.returned_bytes.fetch_add(shared - head, Relaxed);
    rx.head.store(shared, Relaxed);
    Settled::Moved
}
