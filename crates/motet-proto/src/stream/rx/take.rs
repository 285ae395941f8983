//! Consumes what the ring holds, and the TCP bytes that precede it, under the lock of the receiving half.

use super::{MAX_PRODUCER_MOVES, Step};
use crate::stream::broken::break_stream;
use crate::stream::gate::{
    Settlement, close_if_empty, lock_rx, recount_tcp_bytes_locked, settle, switch_to_large_ring,
};
use crate::stream::half_lock::{Acquired, acquire};
use crate::{
    EAGAIN, EBADF, ECONNRESET, Errno,
    stream::{Platform, bulk},
};
use motet_wire::stream::gate::{Advance, INLINE};
use motet_wire::stream::record::{StreamRecord, UNORDERED};
use motet_wire::stream::ring::{Ring, scatter};
use motet_wire::stream::slot::Slot;
use motet_wire::sync::Ordering::Relaxed;
use std::io::IoSliceMut;

/// Bytes after which the producer gets its space back during a large take.
const RELEASE_BYTES: usize = 64 << 10;
/// A payload up to this size is taken without further checks if it is all that the ring holds.
const FAST_TAKE_MAX_BYTES: usize = 4096;
/// A producer that does not finish returning bytes within this time (ns) is stalled. If its connection is gone, too, it has died of it.
const PRODUCER_STALL_NS: u64 = 50_000_000;
/// What a producer that lacks a CPU gets in addition (ns).
const PRODUCER_WITHOUT_CPU_NS: u64 = 250_000_000;
/// What one yield counts of [`PRODUCER_STALL_NS`] at most (ns): where others have the CPU for longer, the producer may be without one as well.
const YIELD_COUNTS_NS: u64 = 1_000_000;

/// What [`take`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Bytes delivered; 0 is TCP's end of file.
    Done(usize),
    /// The ring is empty.
    Empty,
    /// The ring has bytes, but TCP bytes that precede them have not arrived.
    InFlight,
    /// The producer is returning bytes to TCP: try again.
    Retry,
    /// The connection is gone.
    Failed(Errno),
}

/// Consumes the TCP bytes that precede the ring, then what the ring holds. No TCP bytes follow those (invariant 3).
#[inline(always)]
pub fn take<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    bufs: &mut [IoSliceMut<'_>],
    peek: bool,
) -> Take {
    let rx = &record.rx;
    let lines = slot.inward();
    if lines.gate.tail().0 == rx.head.load(Relaxed) {
        return Take::Empty;
    }
    let _held = match acquire(&rx.lock, platform) {
        Acquired::Clean(held) => held,
        Acquired::Orphaned(_held) => return fail_broken(record),
        Acquired::Reentrant => return Take::Failed(EAGAIN),
        Acquired::Stale => return Take::Failed(EBADF),
    };
    let head = rx.head.load(Relaxed);
    let (tail, open) = lines.gate.tail(); // untrusted
    if tail == head {
        return Take::Empty;
    }
    let ring = slot.in_ring(rx.wide.load(Relaxed) != 0);
    let n = tail.wrapping_sub(head);
    if n > ring.size() {
        return fail_broken(record);
    }
    if let [one] = &mut *bufs
        && n <= one.len().min(FAST_TAKE_MAX_BYTES) as u64
        && (open && !peek)
        && rx.mark_known.load(Relaxed) != 0
        && rx.tcp_bytes.load(Relaxed) == rx.mark.load(Relaxed)
        && copy_short(slot, ring, head, &mut one[..n as usize])
    {
        return advance(record, slot, platform, head, n as usize);
    }
    take_slow(record, slot, platform, bufs, (head, tail), peek)
}

/// Copies out all that the ring holds. False: a part of it is in the gate line and the rest in the ring.
#[inline(always)]
fn copy_short(slot: &Slot, ring: Ring, head: u64, into: &mut [u8]) -> bool {
    let mut short = [0; INLINE];
    match slot.inward().gate.read_inline(head, &mut short) {
        Some((from, to)) if to - from == into.len() => into.copy_from_slice(&short[from..to]),
        Some(_) => return false,
        None => ring.read_one(head, into),
    }
    true
}

/// Slow path of [`take`]: all but a whole short payload for one buffer. The lock is held; `head..tail` is a possible range.
#[inline(never)]
fn take_slow<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    bufs: &mut [IoSliceMut<'_>],
    (head, tail): (u64, u64),
    peek: bool,
) -> Take {
    let rx = &record.rx;
    // The known mark may be stale: the producer may have returned bytes since, and they may have been read without the engine.
    if rx.mark_known.load(Relaxed) == 0 || rx.tcp_bytes.load(Relaxed) > rx.mark.load(Relaxed) {
        match settle(record, slot) {
            Settlement::Same if rx.tcp_bytes.load(Relaxed) < rx.mark.load(Relaxed) => {
                recount_tcp_bytes_locked(record, platform);
            }
            Settlement::Same => {}
            Settlement::Moved => return Take::Retry,
            Settlement::Busy => return yield_and_retry(platform),
            Settlement::Broken => return fail_broken(record),
        }
    }
    let (tcp, mark) = (rx.tcp_bytes.load(Relaxed), rx.mark.load(Relaxed));
    if tcp > mark {
        return fail_unordered(record); // bytes bypassed Motet
    }
    let room: usize = bufs.iter().map(|b| b.len()).sum();
    let mut before = 0;
    if tcp < mark {
        match take_tcp(record, platform, bufs, 0, mark - tcp, peek) {
            Take::Done(n) if n as u64 == mark - tcp && n < room => before = n,
            other => return other,
        }
    }
    let wide = rx.wide.load(Relaxed) != 0;
    let began = if wide { platform.now() } else { 0 };
    let result = take_ring(record, slot, platform, (head, tail), bufs, (before, room), peek);
    if let (Take::Done(n), [one], 0, false) = (result, &*bufs, before, peek)
        && wide
        && let Some(arrival_timer) = platform.arrival_timer()
        && let taken = (one.as_ptr() as u64, n, room)
        && let Some(rate) = arrival_timer.note_take(taken, (began, platform.now()), platform.ticks_per_1024ns())
    {
        slot.inward().consumer.landed.store(rate, Relaxed);
    }
    match result {
        Take::Retry if before > 0 && !peek => Take::Done(take_following(record, slot, platform, bufs, before)),
        // The producer has closed the gate, or is returning bytes: more may be in TCP.
        Take::Done(n) if n < room && !peek && (rx.mark_known.load(Relaxed) == 0 || !slot.inward().gate.tail().1) => {
            Take::Done(take_following(record, slot, platform, bufs, n))
        }
        _ => result,
    }
}

/// Takes what follows the first `done` bytes: bytes that the producer returns to TCP, and those that it has sent over TCP since. A program may conclude
/// from a short receive that nothing is left, and the kernel has reported these bytes already perhaps (invariant 8).
#[cold]
fn take_following<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    bufs: &mut [IoSliceMut<'_>],
    mut done: usize,
) -> usize {
    let (rx, room) = (&record.rx, bufs.iter().map(|b| b.len()).sum());
    for _ in 0..MAX_PRODUCER_MOVES {
        if done == room
            || producer_keeps_claim(record, slot, platform)
            || !matches!(settle(record, slot), Settlement::Same | Settlement::Moved)
        {
            break;
        }
        let returned = rx.mark.load(Relaxed).saturating_sub(rx.tcp_bytes.load(Relaxed));
        if returned > 0 {
            let Take::Done(n) = take_tcp(record, platform, bufs, done, returned, false) else { break };
            done += n;
            if n as u64 != returned {
                break;
            }
        }
        let (head, (tail, open)) = (rx.head.load(Relaxed), slot.inward().gate.tail());
        if head == tail {
            // Only this side opens the gate, and it is here: what TCP has is all that follows. An error of the connection is left to the next call.
            if !open
                && rx.kernel_calls.load(Relaxed) == 0
                && platform.tcp_pending() > 0
                && let Take::Done(n) = take_tcp(record, platform, bufs, done, u64::MAX, false)
            {
                done += n;
            }
            break;
        }
        if tail.wrapping_sub(head) > slot.in_ring(rx.wide.load(Relaxed) != 0).size() {
            break;
        }
        match take_ring(record, slot, platform, (head, tail), bufs, (done, room), false) {
            Take::Done(all) => done = all,
            Take::Retry => {}
            _ => break,
        }
    }
    done
}

/// Consumes `head..tail` into `bufs` from byte `done` on, as far as there is room, and releases space in chunks.
#[inline(always)]
fn take_ring<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    (first, tail): (u64, u64),
    bufs: &mut [IoSliceMut<'_>],
    (mut done, room): (usize, usize),
    peek: bool,
) -> Take {
    let lines = slot.inward();
    let mut head = first;
    while head != tail && done < room {
        let mut n = (room - done).min((tail - head) as usize).min(RELEASE_BYTES);
        let mut short = [0; INLINE];
        if let Some((from, to)) = lines.gate.read_inline(head, &mut short) {
            n = n.min(to - from);
            scatter(bufs, done, &short[from..from + n]);
        } else {
            slot.in_ring(record.rx.wide.load(Relaxed) != 0).read(head, bufs, done, n);
        }
        if !peek {
            match advance(record, slot, platform, head, n) {
                Take::Done(_) => {}
                _ if head != first => break,
                other => return other,
            }
        }
        done += n;
        head += n as u64;
    }
    // As in `advance`: what was copied counts only if the producer has not taken it back (and reused its place).
    if peek && lines.consumer.settled() != Some(first) {
        record.rx.mark_known.store(0, Relaxed);
        return Take::Retry;
    }
    Take::Done(done)
}

/// Consumes `n` bytes that were copied out, unless the producer has taken them back.
#[inline(always)]
fn advance<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P, head: u64, n: usize) -> Take {
    let (rx, lines) = (&record.rx, slot.inward());
    match lines.consumer.advance(head, n as u64) {
        Advance::Done => {
            rx.head.store(head + n as u64, Relaxed);
            note_ack(record, lines.gate.ack.load(Relaxed));
            bulk::note_ring_take(record, n);
            if (n >= bulk::LARGE_TRANSFER_BYTES || bulk::is_read_in_parts(record)) && rx.wide.load(Relaxed) == 0 {
                switch_to_large_ring(record, slot, platform);
            }
            Take::Done(n)
        }
        Advance::Taken => {
            rx.mark_known.store(0, Relaxed);
            yield_and_retry(platform)
        }
        Advance::Moved(_) => {
            rx.mark_known.store(0, Relaxed);
            Take::Retry
        }
    }
}

/// Notes how far the peer has read of what this side sent. The number is in a cache line that this side reads anyway.
#[inline(always)]
fn note_ack(record: &StreamRecord, ack: u64) {
    let tx = &record.tx;
    if ack > tx.head_seen.load(Relaxed) && ack <= tx.tail.load(Relaxed) {
        tx.head_seen.store(ack, Relaxed);
    }
}

/// Receives what TCP has, with the gate open: it precedes all later ring bytes, because the ring is empty after the count was read. So a peer that
/// sent over TCP finds the gate open at its next send. `None`: TCP has nothing, or the order is not certain.
///
/// After the first ring byte of an epoch nothing arrives over TCP, except for what the program sends past Motet. The place of such bytes is certain
/// if TCP was seen empty after the last ring byte was taken; otherwise the connection is reset.
pub(super) fn take_pending<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    bufs: &mut [IoSliceMut<'_>],
    peek: bool,
) -> Option<Step> {
    let _held = lock_rx(record, platform)?;
    let (pending, head) = (platform.tcp_pending(), record.rx.head.load(Relaxed));
    if pending == 0 || !slot.inward().gate.still_waiting(head) || record.rx.kernel_calls.load(Relaxed) != 0 {
        return None;
    }
    if record.rx.mark_known.load(Relaxed) != 0 && record.rx.head_at_tcp_empty.load(Relaxed) != head {
        fail_unordered(record);
        return Some(Step::Failed(ECONNRESET));
    }
    match take_tcp(record, platform, bufs, 0, pending, peek) {
        Take::Done(n) if n > 0 => {
            if !peek {
                bulk::note_bytes_past_open_gate(record, n);
            }
            if bulk::bypasses_gate(record) {
                close_if_empty(record, slot);
            }
            Some(Step::Done(n))
        }
        _ => None,
    }
}

/// Receives at most `limit` TCP bytes, `skip` bytes into `bufs`.
#[cold]
fn take_tcp<P: Platform>(
    record: &StreamRecord,
    platform: &mut P,
    bufs: &mut [IoSliceMut<'_>],
    skip: usize,
    limit: u64,
    peek: bool,
) -> Take {
    let (mut slices, count) = slices_of(bufs, skip, usize::try_from(limit).unwrap_or(usize::MAX));
    match platform.tcp_recv(&mut slices[..count], peek) {
        Ok(n) => {
            if !peek {
                record.rx.tcp_bytes.store(record.rx.tcp_bytes.load(Relaxed) + n as u64, Relaxed);
                bulk::note_take(record, n);
            }
            Take::Done(n)
        }
        Err(EAGAIN) => Take::InFlight,
        Err(errno) => Take::Failed(errno),
    }
}

/// Most buffers in one TCP receive.
const MAX_TCP_BUFFERS: usize = 16;

/// At most `limit` bytes of `bufs` from byte `skip` on, and the number of slices in use.
fn slices_of<'a>(
    bufs: &'a mut [IoSliceMut<'_>],
    skip: usize,
    limit: usize,
) -> ([IoSliceMut<'a>; MAX_TCP_BUFFERS], usize) {
    let mut slices = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    let (mut skip, mut left, mut count) = (skip, limit, 0);
    for buf in bufs {
        if skip >= buf.len() {
            skip -= buf.len();
            continue;
        }
        if left == 0 || count == MAX_TCP_BUFFERS {
            break;
        }
        let end = buf.len().min(skip.saturating_add(left));
        left -= end - skip;
        slices[count] = IoSliceMut::new(&mut buf[skip..end]);
        (skip, count) = (0, count + 1);
    }
    (slices, count)
}

/// Receives what a producer that is returning bytes has sent over TCP so far. Those precede all that the ring holds, because the gate is closed and
/// only this side opens it. `None`: nothing has arrived.
#[cold]
pub(super) fn take_returned<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    bufs: &mut [IoSliceMut<'_>],
    peek: bool,
) -> Option<usize> {
    let _held = lock_rx(record, platform)?;
    if slot.inward().gate.tail().1 || record.rx.kernel_calls.load(Relaxed) != 0 {
        return None;
    }
    record.rx.mark_known.store(0, Relaxed); // the mark that the producer publishes at the end counts these bytes
    let pending = platform.tcp_pending();
    match take_tcp(record, platform, bufs, 0, pending, peek) {
        Take::Done(n) if n > 0 && peek => Some(n),
        Take::Done(n) if n > 0 => Some(take_following(record, slot, platform, bufs, n)),
        _ => None,
    }
}

/// Waits for a producer that is returning bytes to TCP. True: it did not finish within several time slices. If the connection is gone, too, the
/// producer has died of it (a connection that is only half-closed does not show that at once).
///
/// While the connection is up, a stalled producer is waited for once, so a program that polls keeps its CPU.
#[cold]
pub(super) fn producer_keeps_claim<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P) -> bool {
    let stalled = &record.connection.producer_stalled;
    let known = stalled.load(Relaxed) != 0 && platform.tcp_alive();
    let (usual, peer) = (platform.ticks(PRODUCER_STALL_NS), record.connection.pid.load(Relaxed));
    let mut limit = if known { 0 } else { usual };
    let (mut waited, mut last) = (0, platform.now());
    while slot.inward().consumer.settled().is_none() {
        if waited >= limit && limit == usual && platform.may_lack_cpu(peer) {
            limit += platform.ticks(PRODUCER_WITHOUT_CPU_NS);
        }
        if waited >= limit {
            stalled.store(1, Relaxed);
            return true;
        }
        platform.yield_now();
        let now = platform.now();
        waited += now.wrapping_sub(last).min(platform.ticks(YIELD_COUNTS_NS));
        last = now;
    }
    false
}

/// The producer holds the claim: lets it run.
#[cold]
fn yield_and_retry<P: Platform>(platform: &mut P) -> Take {
    platform.yield_now();
    Take::Retry
}

/// The place of some bytes is unknown, because they bypassed Motet.
#[cold]
fn fail_unordered(record: &StreamRecord) -> Take {
    record.lifecycle.error.store(UNORDERED, Relaxed);
    fail_broken(record)
}

#[cold]
fn fail_broken(record: &StreamRecord) -> Take {
    break_stream(record);
    Take::Failed(ECONNRESET)
}
