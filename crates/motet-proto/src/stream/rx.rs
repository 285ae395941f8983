//! The receiving half: one order out of TCP and ring.
//!
//! Reads top-down: [`begin`] and [`end`] bracket every receive; [`take`] consumes. The gate is [`crate::stream::gate`]'s, waiting
//! [`crate::stream::spin`]'s.

use crate::stream::gate::{
    Settled, clean, close_gate, enter, enter_kernel, enter_kernel_over_bytes, hold, is_up, leave, raise, recount,
    recount_locked, settle, shut, widen,
};
use crate::stream::half_lock::{Acquired, acquire};
use crate::stream::spin::{SpinResult, paid, should_spin, spin, spins_in_vain, woke};
use crate::{
    EAGAIN, EBADF, ECONNRESET, EINTR, Errno,
    stream::{Platform, bulk, single_copy},
};
use motet_wire::stream::gate::{Advance, INLINE};
use motet_wire::stream::record::{State, StreamRecord, UNORDERED};
use motet_wire::stream::ring::{Ring, scatter};
use motet_wire::stream::slot::Slot;
use motet_wire::sync::{Ordering::Relaxed, Ordering::Release};
use std::io::IoSliceMut;

/// How a receive goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many bytes are in the caller's buffers; 0 only for end of file.
    Done(usize),
    /// The gate is closed and the ring empty: make the kernel call now, then call [`end`].
    Kernel,
    /// TCP bytes that precede the ring are on their way: wait for the kernel to be readable, call [`crate::stream::gate::leave_kernel`],
    /// then begin again.
    Poll,
    /// The operation failed (EAGAIN included).
    Failed(Errno),
}

/// What the caller asks for.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Sleeping is allowed.
    pub blocking: bool,
    /// Leave the bytes where they are.
    pub peek: bool,
    /// The kind of transfer needs the kernel (urgent data, ancillary data).
    pub kernel_only: bool,
    /// Longest spin, ns; 0 never spins.
    pub spin: u64,
    /// A buffer of this size and more is shown to the sender while we wait.
    pub large: usize,
}

/// Bytes after which the producer gets its space back while a large take goes on.
const PIECE: usize = 64 << 10;
/// A payload up to this is taken without further questions when it is all there is.
const SHORT: usize = 4096;
/// Looks at a producer that is taking bytes back before leaving the wait to the kernel.
const PATIENCE: u32 = 64;
/// So often in a row may a call that does not wait find that the producer has moved bytes: an honest one moves them once, before it sends
/// again.
const MOVES: u32 = 64;
/// A producer whose connection is gone and that does not finish taking bytes back within this (ns) has died of it.
const ABANDONED: u64 = 50_000_000;

/// Begins a receive into `bufs`. `may_raise` is asked before the gate opens; `before_sleep` runs before [`Step::Kernel`] or
/// [`Step::Poll`] of a blocking call (invariant 6). It learns whether this receive could wait outside the kernel instead, and answers
/// whether that is better for now; only then may it leave bytes unread.
#[inline(always)]
pub fn begin<B: Platform>(
    record: &StreamRecord,
    slot: Option<&Slot>,
    base: &mut B,
    bufs: &mut [IoSliceMut<'_>],
    ask: Request,
    may_raise: impl Fn() -> bool,
    before_sleep: impl FnMut(&mut B, bool) -> bool,
) -> Step {
    let slot = slot.filter(|_| record.rx.ready.load(Relaxed) != 0);
    let mut spun = None;
    // What an exchange does every time: it takes what is there, or waits behind the open gate and then takes it.
    if let Some(slot) = slot {
        match take(record, slot, base, bufs, ask.peek) {
            Take::Done(n) => return Step::Done(n),
            Take::Empty if waits_simply(record, slot, base, bufs, ask) => {
                let found = spin(record, slot, base, ask.spin, false);
                if found == SpinResult::Ring
                    && let Take::Done(n) = take(record, slot, base, bufs, ask.peek)
                {
                    return Step::Done(n);
                }
                spun = Some(found);
            }
            _ => {}
        }
    }
    begin_in_full(record, slot, base, bufs, ask, spun, may_raise, before_sleep)
}

/// Whether a receive that found the ring empty has nothing to do but to spin.
#[inline(always)]
fn waits_simply<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &B,
    bufs: &[IoSliceMut<'_>],
    ask: Request,
) -> bool {
    ask.blocking
        && !ask.kernel_only
        && ask.spin > 0
        && bufs.first().is_some_and(|first| first.len() < ask.large)
        && !bulk::flows(record)
        && is_up(record, slot)
        && should_spin(record, base)
}

/// The same with all its cases. `slot`: a wire that is ready for use; `spun`: how a spin of this call has ended.
#[allow(clippy::too_many_arguments)]
#[inline(never)]
fn begin_in_full<B: Platform>(
    record: &StreamRecord,
    slot: Option<&Slot>,
    base: &mut B,
    bufs: &mut [IoSliceMut<'_>],
    ask: Request,
    spun: Option<SpinResult>,
    may_raise: impl Fn() -> bool,
    mut before_sleep: impl FnMut(&mut B, bool) -> bool,
) -> Step {
    let Some(slot) = slot else {
        return match hold(record, base) {
            Acquired::Reentrant => Step::Failed(EAGAIN),
            Acquired::Stale => Step::Failed(EBADF),
            _held => {
                enter(record);
                Step::Kernel
            }
        };
    };
    match spun {
        Some(SpinResult::Woken) => return Step::Failed(EINTR),
        Some(SpinResult::Expired) => return Step::Failed(EAGAIN),
        Some(SpinResult::Kernel) => {
            if let Some(step) = take_pending(record, slot, base, bufs, ask.peek) {
                return step;
            }
        }
        Some(SpinResult::Ring | SpinResult::BudgetSpent) | None => {}
    }
    let mut spun = spun.is_some();
    let mut stay = false;
    let (mut retries, mut moves) = (0, 0);
    loop {
        match take(record, slot, base, bufs, ask.peek) {
            Take::Done(n) => return Step::Done(n),
            Take::Failed(errno) => return Step::Failed(errno),
            // A producer that takes bytes back sends them over TCP, so the kernel will wake us.
            Take::Retry if retries < PATIENCE => {
                retries += 1;
                continue;
            }
            // One that must not block was told that there is data: it waits for the few calls that move them.
            Take::Retry if !ask.blocking || !base.tcp_alive() => {
                moves += 1;
                if unsettled(record, slot, base) || moves > MOVES {
                    if base.tcp_alive() {
                        return Step::Failed(EAGAIN);
                    }
                    broken(record);
                    return Step::Failed(ECONNRESET);
                }
                retries = 0;
                continue;
            }
            Take::InFlight if moves <= MOVES && recount(record, base) => {
                moves += 1;
                continue;
            }
            Take::InFlight if !ask.blocking => return Step::Failed(EAGAIN),
            Take::InFlight | Take::Retry => {
                before_sleep(base, false);
                enter_kernel_over_bytes(record, base);
                return Step::Poll;
            }
            Take::Empty => {}
        }
        if bulk::flows(record)
            && !ask.kernel_only
            && (ask.blocking || record.rx.evidence_left.load(Relaxed) > 0)
            && !slot.inward().gate.tail().1
            && !bulk::passes(record)
            && !spins_in_vain(record, base)
            && base.tcp_pending() > 0
            && raise(record, slot, base, &may_raise)
            && let Some(step) = take_pending(record, slot, base, bufs, ask.peek)
        {
            return step; // from its next send on, the peer finds the gate open
        }
        if !ask.blocking && slot.inward().gate.tail().1 && !ask.kernel_only {
            let head = record.rx.head.load(Relaxed);
            if !base.tcp_readable() {
                record.rx.head_at_tcp_empty.store(head, Relaxed);
                return not_ready(record, slot, base);
            }
            if let Some(step) = take_pending(record, slot, base, bufs, ask.peek) {
                return step;
            }
        }
        if ask.blocking
            && !spun
            && !ask.kernel_only
            && ask.spin > 0
            && (stay || should_spin(record, base) || base.patience(record).ns > 0)
            && raise(record, slot, base, &may_raise)
        {
            spun = true;
            match wait(record, slot, base, bufs, ask) {
                Waited::Look => continue,
                Waited::Done(step) => return step,
                Waited::Kernel => {
                    if let Some(step) = take_pending(record, slot, base, bufs, ask.peek) {
                        return step;
                    }
                }
                Waited::Sleep => {}
            }
        }
        if ask.blocking {
            let linger = before_sleep(base, ask.spin > 0 && !ask.kernel_only);
            if record.state() == State::Broken {
                return Step::Failed(ECONNRESET);
            }
            if linger {
                (spun, stay) = (false, true);
                continue;
            }
        }
        if enter_kernel(record, slot, base) {
            if ask.blocking {
                record.rx.kernel_wait_since.store(base.now(), Relaxed);
            }
            return Step::Kernel;
        }
    }
}

enum Waited {
    Look,
    Kernel,
    Sleep,
    Done(Step),
}

/// Spins with the gate open; a large buffer is shown to the sender meanwhile.
#[inline]
fn wait<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &mut B,
    bufs: &mut [IoSliceMut<'_>],
    ask: Request,
) -> Waited {
    let large = !ask.peek && bufs.first().is_some_and(|b| b.len() >= ask.large);
    let posted = large && single_copy::post(record, slot, base, &bufs[0]);
    let spun = spin(record, slot, base, ask.spin, posted);
    if posted && !single_copy::withdraw(slot) {
        paid(record);
        return match single_copy::receive(record, slot, base, &mut bufs[0]) {
            Ok(0) => Waited::Look,
            came => Waited::Done(came.map_or_else(Step::Failed, Step::Done)),
        };
    }
    match spun {
        SpinResult::Ring => Waited::Look,
        SpinResult::Woken => Waited::Done(Step::Failed(EINTR)),
        SpinResult::Expired => Waited::Done(Step::Failed(EAGAIN)),
        SpinResult::Kernel => Waited::Kernel,
        SpinResult::BudgetSpent => Waited::Sleep,
    }
}

/// Ends a receive that went to the kernel with `received` bytes (0 for none; peeked bytes do not count).
#[inline]
pub fn end<B: Platform>(record: &StreamRecord, base: &mut B, received: usize) {
    let held = hold(record, base);
    if !matches!(held, Acquired::Stale) {
        record.rx.tcp_bytes.store(record.rx.tcp_bytes.load(Relaxed) + received as u64, Relaxed);
        leave(record);
        bulk::took(record, received);
        bulk::came_behind(record, received);
    }
    woke(record, base, received);
}

/// Bytes returned to TCP in one step.
const RETURNED: usize = 2048;

/// Returns what the ring holds to TCP in the producer's place, by `send`, which sends on the producer's socket without blocking. The stream is
/// plain by now, so the gate stays closed. True when the ring is empty.
///
/// The claim excludes the producer, which sends nothing over TCP while bytes are unread (invariant 3): so TCP holds what precedes the ring,
/// and nothing else.
pub fn return_for_producer<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &mut B,
    mut send: impl FnMut(&[u8]) -> Result<usize, Errno>,
) -> bool {
    let Some(_held) = clean(record, base) else { return false };
    let (rx, lines) = (&record.rx, slot.inward());
    if rx.ready.load(Relaxed) == 0 || shut(record, slot) {
        return true;
    }
    lines.gate.lower();
    let Some(first) = lines.consumer.claim() else { return false }; // the producer is at it
    let tail = lines.gate.tail().0;
    let ring = slot.in_ring(rx.wide.load(Relaxed) != 0);
    if first != rx.head.load(Relaxed) || tail.wrapping_sub(first) > ring.size() {
        lines.consumer.release(first);
        return false;
    }
    let mut head = first;
    let mut piece = [0; RETURNED];
    while head != tail {
        let mut n = piece.len().min((tail - head) as usize);
        let mut short = [0; INLINE];
        if let Some((from, to)) = lines.gate.read_inline(head, &mut short) {
            n = n.min(to - from);
            piece[..n].copy_from_slice(&short[from..from + n]);
        } else {
            ring.read(head, &mut [IoSliceMut::new(&mut piece[..n])], 0, n);
        }
        let sent = send(&piece[..n]).unwrap_or(0);
        head += sent as u64;
        if sent < n {
            break;
        }
    }
    let mark = lines.mark.mark.load(Relaxed) + (head - first);
    lines.mark.mark.store(mark, Relaxed);
    rx.mark.store(mark, Relaxed);
    rx.mark_known.store(1, Relaxed);
    rx.returned_bytes.fetch_add(head - first, Relaxed);
    rx.head.store(head, Relaxed);
    lines.consumer.release(head); // edge: release -> settled
    head == tail
}

/// What [`take`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// Bytes delivered; 0 is TCP's end of file.
    Done(usize),
    /// The ring is empty.
    Empty,
    /// The ring has bytes, but TCP bytes that precede them have not arrived.
    InFlight,
    /// The producer is moving bytes: look again.
    Retry,
    /// The connection is gone.
    Failed(Errno),
}

/// Consumes what the ring holds, after the TCP bytes that precede it. None follow it (invariant 3).
#[inline(always)]
pub fn take<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &mut B,
    bufs: &mut [IoSliceMut<'_>],
    peek: bool,
) -> Take {
    let rx = &record.rx;
    let lines = slot.inward();
    if lines.gate.tail().0 == rx.head.load(Relaxed) {
        return Take::Empty;
    }
    let _held = match acquire(&rx.lock, base) {
        Acquired::Clean(held) => held,
        Acquired::Orphaned(_held) => return broken(record),
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
        return broken(record);
    }
    if let [one] = &mut *bufs
        && n <= one.len().min(SHORT) as u64
        && (open && !peek)
        && rx.mark_known.load(Relaxed) != 0
        && rx.tcp_bytes.load(Relaxed) == rx.mark.load(Relaxed)
        && copy_short(slot, ring, head, &mut one[..n as usize])
    {
        return advance(record, slot, base, head, n as usize);
    }
    take_more(record, slot, base, bufs, (head, tail), peek)
}

/// Copies out all that the ring holds, unless that is in two places.
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

/// The cases of [`take`] that are not a whole short payload for one buffer. Under the lock; `head..tail` are bytes that there can be.
#[inline(never)]
fn take_more<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &mut B,
    bufs: &mut [IoSliceMut<'_>],
    (head, tail): (u64, u64),
    peek: bool,
) -> Take {
    let rx = &record.rx;
    // More TCP bytes than precede the ring: as far as we know. The producer may have taken bytes back since, and they were read without the engine.
    if rx.mark_known.load(Relaxed) == 0 || rx.tcp_bytes.load(Relaxed) > rx.mark.load(Relaxed) {
        match settle(record, slot) {
            Settled::Same if rx.tcp_bytes.load(Relaxed) < rx.mark.load(Relaxed) => {
                recount_locked(record, base);
            }
            Settled::Same => {}
            Settled::Moved => return Take::Retry,
            Settled::Busy => return busy(base),
            Settled::Broken => return broken(record),
        }
    }
    let (tcp, mark) = (rx.tcp_bytes.load(Relaxed), rx.mark.load(Relaxed));
    if tcp > mark {
        return unordered(record); // bytes were moved past us
    }
    let room: usize = bufs.iter().map(|b| b.len()).sum();
    let mut before = 0;
    if tcp < mark {
        match take_tcp(record, base, bufs, 0, mark - tcp, peek) {
            Take::Done(n) if n as u64 == mark - tcp && n < room => before = n,
            other => return other,
        }
    }
    let wide = rx.wide.load(Relaxed) != 0;
    let began = if wide { base.now() } else { 0 };
    let result = take_ring(record, slot, base, (head, tail), bufs, (before, room), peek);
    if let (Take::Done(n), [one], 0, false) = (result, &*bufs, before, peek)
        && wide
        && let Some(arrival_timer) = base.arrival_timer()
        && let taken = (one.as_ptr() as u64, n, room)
        && let Some(rate) = arrival_timer.took(taken, (began, base.now()), base.ticks_per_1024ns())
    {
        slot.inward().consumer.landed.store(rate, Relaxed);
    }
    match result {
        Take::Retry if before > 0 && !peek => Take::Done(take_returned(record, slot, base, bufs, before)),
        // The same between two pieces.
        Take::Done(n) if n < room && !peek && rx.mark_known.load(Relaxed) == 0 => {
            Take::Done(take_returned(record, slot, base, bufs, n))
        }
        _ => result,
    }
}

/// The producer returns what is behind the first `done` bytes, which the program may have been promised: it comes over TCP now, in several steps
/// where it is much.
#[cold]
fn take_returned<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &mut B,
    bufs: &mut [IoSliceMut<'_>],
    mut done: usize,
) -> usize {
    let (rx, room) = (&record.rx, bufs.iter().map(|b| b.len()).sum());
    for _ in 0..MOVES {
        if unsettled(record, slot, base) || !matches!(settle(record, slot), Settled::Same | Settled::Moved) {
            break;
        }
        let returned = rx.mark.load(Relaxed).saturating_sub(rx.tcp_bytes.load(Relaxed));
        if returned > 0 {
            let Take::Done(n) = take_tcp(record, base, bufs, done, returned, false) else { break };
            done += n;
            if n as u64 != returned {
                break;
            }
        }
        let (head, tail) = (rx.head.load(Relaxed), slot.inward().gate.tail().0);
        let ring = slot.in_ring(rx.wide.load(Relaxed) != 0);
        if head == tail || done == room || tail.wrapping_sub(head) > ring.size() {
            break;
        }
        match take_ring(record, slot, base, (head, tail), bufs, (done, room), false) {
            Take::Done(all) => done = all,
            Take::Retry => continue,
            _ => break,
        }
        if rx.mark_known.load(Relaxed) != 0 {
            break; // all that was there
        }
    }
    done
}

/// Consumes `head..tail` as far as there is room, `done` bytes into `bufs`, giving space back piece by piece.
#[inline(always)]
fn take_ring<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &mut B,
    (first, tail): (u64, u64),
    bufs: &mut [IoSliceMut<'_>],
    (mut done, room): (usize, usize),
    peek: bool,
) -> Take {
    let lines = slot.inward();
    let mut head = first;
    while head != tail && done < room {
        let mut n = (room - done).min((tail - head) as usize).min(PIECE);
        let mut short = [0; INLINE];
        if let Some((from, to)) = lines.gate.read_inline(head, &mut short) {
            n = n.min(to - from);
            scatter(bufs, done, &short[from..from + n]);
        } else {
            slot.in_ring(record.rx.wide.load(Relaxed) != 0).read(head, bufs, done, n);
        }
        if !peek {
            match advance(record, slot, base, head, n) {
                Take::Done(_) => {}
                _ if head != first => break,
                other => return other,
            }
        }
        done += n;
        head += n as u64;
    }
    // As in `advance`: what was copied counts only if the producer had not taken it back (and used its place anew).
    if peek && lines.consumer.settled() != Some(first) {
        record.rx.mark_known.store(0, Relaxed);
        return Take::Retry;
    }
    Take::Done(done)
}

/// Consumes `n` bytes that were copied out, if the producer has not taken them back.
#[inline(always)]
fn advance<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B, head: u64, n: usize) -> Take {
    let (rx, lines) = (&record.rx, slot.inward());
    match lines.consumer.advance(head, n as u64) {
        Advance::Done => {
            rx.head.store(head + n as u64, Relaxed);
            hear(record, lines.gate.ack.load(Relaxed));
            bulk::took_from_ring(record, n);
            if (n >= bulk::LARGE || bulk::has_parts(record)) && rx.wide.load(Relaxed) == 0 {
                widen(record, slot, base);
            }
            Take::Done(n)
        }
        Advance::Taken => {
            rx.mark_known.store(0, Relaxed);
            busy(base)
        }
        Advance::Moved(_) => {
            rx.mark_known.store(0, Relaxed);
            Take::Retry
        }
    }
}

/// Whether a receive would have bytes now that the kernel may not tell of. Does not lock.
///
/// Bytes that the producer returns to TCP just now count: a program that asked the kernel a moment ago saw none, and a receive waits for them.
/// After one receive that waited without success they do not, until the producer has gone on: a program that polls would never sleep.
#[inline]
pub fn ready(record: &StreamRecord, slot: &Slot) -> bool {
    let (tail, _) = slot.inward().gate.tail();
    let rx = &record.rx;
    let head = rx.head.load(Relaxed);
    if tail == head {
        return false;
    }
    // Until TCP has delivered what precedes the ring, the kernel's own readiness decides.
    if rx.mark_known.load(Relaxed) != 0 {
        return rx.tcp_bytes.load(Relaxed) >= rx.mark.load(Relaxed);
    }
    let lines = slot.inward();
    match lines.consumer.settled() {
        Some(at) if at == head => lines.mark.mark.load(Relaxed) <= rx.tcp_bytes.load(Relaxed),
        Some(_) => true,
        None => record.connection.producer_stalled.load(Relaxed) == 0,
    }
}

/// TCP bytes that precede the ring and have not been received.
pub fn missing_tcp_bytes(record: &StreamRecord, slot: &Slot) -> u64 {
    let rx = &record.rx;
    let known = rx.mark_known.load(Relaxed) != 0;
    let mark = if known { rx.mark.load(Relaxed) } else { slot.inward().mark.mark.load(Relaxed) };
    mark.saturating_sub(rx.tcp_bytes.load(Relaxed))
}

/// Receives what TCP has now, with the gate open: it precedes whatever comes into the ring, as the ring is empty after the
/// count was read. So a stream that began on TCP finds the gate open at its next send. `None`: not that simple.
///
/// After the first ring byte of an epoch nothing comes over TCP, but for what the program sends past Motet. Such bytes are in their
/// place if TCP was seen empty since ring bytes were taken; otherwise the order is unknown.
fn take_pending<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &mut B,
    bufs: &mut [IoSliceMut<'_>],
    peek: bool,
) -> Option<Step> {
    let _held = clean(record, base)?;
    let (pending, head) = (base.tcp_pending(), record.rx.head.load(Relaxed));
    if pending == 0 || !slot.inward().gate.still_waiting(head) || record.rx.kernel_calls.load(Relaxed) != 0 {
        return None;
    }
    if record.rx.mark_known.load(Relaxed) != 0 && record.rx.head_at_tcp_empty.load(Relaxed) != head {
        unordered(record);
        return Some(Step::Failed(ECONNRESET));
    }
    match take_tcp(record, base, bufs, 0, pending, peek) {
        Take::Done(n) if n > 0 => {
            if !peek {
                bulk::passed(record, n);
            }
            if bulk::passes(record) {
                shut(record, slot);
            }
            Some(Step::Done(n))
        }
        _ => None,
    }
}

/// Receives at most `limit` TCP bytes, `skip` bytes into `bufs`.
#[cold]
fn take_tcp<B: Platform>(
    record: &StreamRecord,
    base: &mut B,
    bufs: &mut [IoSliceMut<'_>],
    skip: usize,
    limit: u64,
    peek: bool,
) -> Take {
    let (mut part, count) = part(bufs, skip, usize::try_from(limit).unwrap_or(usize::MAX));
    match base.tcp_recv(&mut part[..count], peek) {
        Ok(n) => {
            if !peek {
                record.rx.tcp_bytes.store(record.rx.tcp_bytes.load(Relaxed) + n as u64, Relaxed);
                bulk::took(record, n);
            }
            Take::Done(n)
        }
        Err(EAGAIN) => Take::InFlight,
        Err(errno) => Take::Failed(errno),
    }
}

/// Buffers in one call to TCP.
const FEW: usize = 16;

/// At most `limit` bytes of `bufs` from `skip` on, and how many buffers that are.
fn part<'a>(bufs: &'a mut [IoSliceMut<'_>], skip: usize, limit: usize) -> ([IoSliceMut<'a>; FEW], usize) {
    let mut part = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    let (mut skip, mut left, mut count) = (skip, limit, 0);
    for buf in bufs {
        if skip >= buf.len() {
            skip -= buf.len();
            continue;
        }
        if left == 0 || count == FEW {
            break;
        }
        let end = buf.len().min(skip.saturating_add(left));
        left -= end - skip;
        part[count] = IoSliceMut::new(&mut buf[skip..end]);
        (skip, count) = (0, count + 1);
    }
    (part, count)
}

/// The peer's answer to what we sent, read from a line that we have in hand anyway.
#[inline(always)]
fn hear(record: &StreamRecord, ack: u64) {
    let tx = &record.tx;
    if ack > tx.head_seen.load(Relaxed) && ack <= tx.tail.load(Relaxed) {
        tx.head_seen.store(ack, Relaxed);
    }
}

fn not_ready<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) -> Step {
    let left = record.rx.evidence_left.load(Relaxed);
    if left > 0 {
        record.rx.evidence_left.store(left - 1, Relaxed);
    } else {
        close_gate(record, slot, base); // readiness is learned elsewhere (invariant 4)
    }
    Step::Failed(EAGAIN)
}

/// Waits for a producer that takes bytes back; true when it did not finish within several time slices. If the connection
/// is gone too it has died of it (a connection that is half-closed only does not say so at once).
///
/// While the connection is up, a producer is waited for once. A program that receives without waiting keeps its CPU then.
#[cold]
fn unsettled<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) -> bool {
    let stalled = &record.connection.producer_stalled;
    let known = stalled.load(Relaxed) != 0 && base.tcp_alive();
    let (start, limit) = (base.now(), if known { 0 } else { base.ticks(ABANDONED) });
    while slot.inward().consumer.settled().is_none() {
        if base.now().wrapping_sub(start) >= limit {
            stalled.store(1, Relaxed);
            return true;
        }
        base.yield_now();
    }
    false
}

#[cold]
fn busy<B: Platform>(base: &mut B) -> Take {
    base.yield_now();
    Take::Retry
}

#[cold]
fn unordered(record: &StreamRecord) -> Take {
    record.lifecycle.error.store(UNORDERED, Relaxed);
    broken(record)
}

#[cold]
pub(crate) fn broken(record: &StreamRecord) -> Take {
    record.lifecycle.state.store(State::Broken as u32, Release);
    Take::Failed(ECONNRESET)
}
