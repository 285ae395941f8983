//! The consumer's side of the gate: when it opens and closes, and which threads sleep behind it (invariants 1, 4 and 5).
//!
//! Every change is made under the lock of the receiving half. The words in shared memory are in `motet_wire::stream::gate`.

use crate::stream::broken::break_stream;
use crate::stream::half_lock::{Acquired, HalfGuard, acquire};
use crate::stream::{Platform, bulk, exchange};
use motet_wire::stream::record::{State, StreamRecord};
use motet_wire::stream::slot::Slot;
use motet_wire::sync::Ordering::Relaxed;

/// Whether [`raise`] has nothing to do: the gate is open over an empty ring, no thread sleeps on this stream, the large ring is in use or not
/// wanted, and sends find the peer's gate open.
#[inline(always)]
pub(crate) fn is_raised(record: &StreamRecord, slot: &Slot) -> bool {
    let rx = &record.rx;
    slot.inward().gate.still_waiting(rx.head.load(Relaxed))
        && rx.kernel_calls.load(Relaxed) == 0
        && (!bulk::has_large_takes(record) || rx.wide.load(Relaxed) != 0)
        && exchange::finds_open_gates(record)
}

/// Opens the gate if no thread sleeps on this stream, both ends are ready, the ring is empty and `allowed` (called under the lock) returns true.
/// True: the gate is open.
#[inline]
pub fn raise<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    allowed: impl FnOnce() -> bool,
) -> bool {
    is_raised(record, slot) || raise_slow(record, slot, platform, allowed)
}

/// Slow path of [`raise`].
#[inline(never)]
fn raise_slow<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    allowed: impl FnOnce() -> bool,
) -> bool {
    let (rx, lines) = (&record.rx, slot.inward());
    if exchange::keeps_gate_closed(record, platform) {
        return false;
    }
    let wide = bulk::wants_large_ring(record, slot, platform);
    if lines.gate.still_waiting(rx.head.load(Relaxed))
        && rx.kernel_calls.load(Relaxed) == 0
        && (rx.wide.load(Relaxed) != 0 || !wide)
    {
        return true;
    }
    let Some(_held) = lock_rx(record, platform) else { return false };
    if rx.ready.load(Relaxed) == 0
        || rx.kernel_calls.load(Relaxed) != 0
        || record.lifecycle.tcp_only.load(Relaxed) != 0
        || lines.mark.ready.load(Relaxed) == 0
        || record.state() != State::Attached
        || !catch_up(record, slot)
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
        // Before the gate opens: the first byte of the new epoch may come with a new mark.
        rx.mark_known.store(0, Relaxed);
        if !lines.gate.raise(head) {
            return false;
        }
        rx.wide.store(0, Relaxed);
        record.events.raised.fetch_add(1, Relaxed);
    }
    if wide && rx.wide.load(Relaxed) == 0 {
        switch_to_large_ring(record, slot, platform);
    }
    true
}

/// Switches to the large ring if that is wanted and the ring is empty. Called right after a take, before a producer that waited for space writes
/// more.
#[cold]
pub(crate) fn switch_to_large_ring<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P) {
    if bulk::wants_large_ring(record, slot, platform) && slot.inward().gate.widen(record.rx.head.load(Relaxed)) {
        record.rx.wide.store(1, Relaxed);
    }
}

/// Closes the gate over an empty ring and registers a kernel receive (or sleep). The gate stays closed until [`leave_kernel`] or
/// [`crate::stream::rx::end`]. False: the ring has bytes, and nothing is registered.
pub fn enter_kernel<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P) -> bool {
    let Some(_held) = lock_rx(record, platform) else { return true };
    if record.rx.ready.load(Relaxed) != 0 && !close_if_empty(record, slot) {
        return false;
    }
    begin_kernel_call(record);
    true
}

/// Registers a kernel sleep although the ring has bytes: TCP bytes that precede them will wake the sleeper.
pub fn enter_kernel_over_bytes<P: Platform>(record: &StreamRecord, platform: &mut P) {
    let held = lock_rx_always(record, platform);
    if !matches!(held, Acquired::Stale) {
        begin_kernel_call(record);
    }
}

/// Whether TCP bytes that precede the ring were read without the engine. Called while some of them are missing.
#[cold]
pub(crate) fn recount_tcp_bytes<P: Platform>(record: &StreamRecord, platform: &mut P) -> bool {
    let counted = record.rx.tcp_bytes.load(Relaxed);
    lock_rx(record, platform).is_none_or(|_held| recount_tcp_bytes_locked(record, platform) != counted)
}

/// Updates and returns the number of TCP bytes that were read, including those that bypassed the engine. More of them than precede the ring mean
/// that the order is unknown.
#[cold]
pub(crate) fn recount_tcp_bytes_locked<P: Platform>(record: &StreamRecord, platform: &mut P) -> u64 {
    let counted = record.rx.tcp_bytes.load(Relaxed);
    if record.rx.kernel_calls.load(Relaxed) != 0 {
        return counted;
    }
    let read = platform.tcp_bytes_read(counted);
    record.rx.tcp_bytes.store(read, Relaxed);
    read
}

/// Undoes [`enter_kernel`] after a sleep that received nothing.
pub fn leave_kernel<P: Platform>(record: &StreamRecord, platform: &mut P) {
    let held = lock_rx_always(record, platform);
    if !matches!(held, Acquired::Stale) {
        end_kernel_call(record);
    }
}

/// Closes the gate over an empty ring. False: the ring has bytes.
pub fn close_gate<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P) -> bool {
    let Some(_held) = lock_rx(record, platform) else { return true };
    record.rx.ready.load(Relaxed) == 0 || close_if_empty(record, slot)
}

/// Closes the gate whatever the ring holds. Its bytes stay readable; what follows them goes over TCP, and the kernel reports that. False: the ring
/// has bytes.
pub fn close_gate_over_bytes<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P) -> bool {
    let Some(_held) = lock_rx(record, platform) else { return true };
    record.rx.ready.load(Relaxed) == 0 || {
        let empty = close_if_empty(record, slot);
        if !empty {
            slot.inward().gate.lower();
        }
        empty
    }
}

/// Prepares the hand-over of the descriptor to readers outside the engine. The gate closes whatever the ring holds, and the producer learns that
/// it may leave nothing in the ring when it ends. False: the ring has bytes.
pub fn hand_over<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P) -> bool {
    slot.inward().consumer.handed_over.store(1, Relaxed);
    close_gate_over_bytes(record, slot, platform)
}

/// Whether the producer has still to return bytes of the inward ring to TCP, for readers outside the engine. The ring's memory must stay until then.
pub fn is_return_pending(slot: &Slot) -> bool {
    let lines = slot.inward();
    lines.consumer.handed_over.load(Relaxed) != 0 && lines.consumer.seen_head() != lines.gate.tail().0
}

/// Takes the lock of the receiving half. `None`: the stream has ended, is broken, or this thread holds the lock.
pub(crate) fn lock_rx<'a, P: Platform>(record: &'a StreamRecord, platform: &mut P) -> Option<HalfGuard<'a>> {
    match acquire(&record.rx.lock, platform) {
        Acquired::Clean(held) => Some(held),
        Acquired::Orphaned(_) => {
            break_stream(record);
            None
        }
        Acquired::Reentrant | Acquired::Stale => None,
    }
}

/// Takes the lock of the receiving half for a change that must be made even if the last holder died inside, which breaks the stream.
pub(crate) fn lock_rx_always<'a, P: Platform>(record: &'a StreamRecord, platform: &mut P) -> Acquired<'a> {
    let held = acquire(&record.rx.lock, platform);
    if matches!(held, Acquired::Orphaned(_)) {
        break_stream(record);
    }
    held
}

/// Counts a receive in the kernel. The lock is held.
pub(crate) fn begin_kernel_call(record: &StreamRecord) {
    record.rx.kernel_calls.store(record.rx.kernel_calls.load(Relaxed) + 1, Relaxed);
}

/// Ends what [`begin_kernel_call`] counted. The lock is held.
pub(crate) fn end_kernel_call(record: &StreamRecord) {
    record.rx.kernel_calls.store(record.rx.kernel_calls.load(Relaxed).saturating_sub(1), Relaxed);
}

/// Closes the gate over an empty ring; false if the ring has bytes. The lock is held.
pub(crate) fn close_if_empty(record: &StreamRecord, slot: &Slot) -> bool {
    catch_up(record, slot) && slot.inward().gate.lower_empty(record.rx.head.load(Relaxed))
}

/// Catches up with a producer that returned bytes to TCP. False: it is returning them now.
fn catch_up(record: &StreamRecord, slot: &Slot) -> bool {
    let tail = slot.inward().gate.tail().0;
    if tail == record.rx.head.load(Relaxed) {
        return true;
    }
    match settle(record, slot) {
        Settlement::Same | Settlement::Moved => true,
        Settlement::Busy => false,
        Settlement::Broken => {
            break_stream(record);
            true
        }
    }
}

/// What [`settle`] found.
pub(crate) enum Settlement {
    /// The producer has not moved the head.
    Same,
    /// The producer has returned bytes to TCP and moved the head.
    Moved,
    /// The producer is returning bytes now.
    Busy,
    /// The head is impossible.
    Broken,
}

/// Reads the shared head, which the producer may have moved, and then the mark that belongs to it. The tail that bounds the head is read after it,
/// because the producer may have put more bytes, and returned them too, since the tail was last read.
pub(crate) fn settle(record: &StreamRecord, slot: &Slot) -> Settlement {
    let lines = slot.inward();
    let rx = &record.rx;
    let Some(shared) = lines.consumer.settle() else { return Settlement::Busy }; // edge: release -> settled
    let head = rx.head.load(Relaxed);
    if shared < head || shared > lines.gate.tail().0 {
        return Settlement::Broken;
    }
    rx.mark.store(lines.mark.mark.load(Relaxed), Relaxed);
    rx.mark_known.store(1, Relaxed);
    record.connection.producer_stalled.store(0, Relaxed);
    if shared == head {
        return Settlement::Same;
    }
    rx.returned_bytes.fetch_add(shared - head, Relaxed);
    rx.head.store(shared, Relaxed);
    Settlement::Moved
}
