//! The sending half: ring or kernel, decided anew for every send.
//!
//! Reads top-down: [`begin`] and [`end`] bracket every send; [`take_back`] returns unread bytes to TCP (downgrade).
//!
//! Unread ring bytes are always the last bytes of the stream: a send that must use the kernel first returns them to TCP (invariant 3). So a process
//! that reads the socket without the engine gets every byte, in order, from TCP alone.

mod full_ring;
mod take_back;

pub use take_back::{has_taken_back, is_being_read, is_unread, must_linger, take_back};

use crate::copy_mode::CopyModeSelector;
use crate::stream::broken::break_stream;
use crate::stream::half_lock::{Acquired, HalfGuard, acquire};
use crate::stream::spin::{peer_on_this_cpu, publish_cpu};
use crate::{
    EAGAIN, EBADF, ECONNRESET, Errno,
    stream::{Platform, bulk, exchange, single_copy},
};
use motet_wire::stream::gate::{Broken, INLINE, Mode};
use motet_wire::stream::record::StreamRecord;
use motet_wire::stream::ring::gather;
use motet_wire::stream::slot::{Lines, Slot};
use motet_wire::sync::Ordering::Relaxed;
use std::io::IoSlice;
use take_back::{Returned, return_unread};

/// What the caller of [`begin`] does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many bytes are sent. May be fewer than asked for.
    Done(usize),
    /// Make the kernel call now, then call [`end`].
    Kernel,
    /// The ring holds unread bytes, which precede this send, and TCP has no room for them: wait until the kernel can take more, then begin again. (A
    /// call that must not block fails with EAGAIN.) [`end`] is not called.
    Full,
    /// The operation failed.
    Failed(Errno),
}

/// What the program asks for.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The kind of transfer needs the kernel (urgent data, ancillary data, splice).
    pub kernel_only: bool,
    /// The call should not wait long for space.
    pub nonblocking: bool,
    /// A buffer of this size or more may go by single copy, unless the two CPUs are known to be far from each other.
    pub large: usize,
    /// A buffer of this size or more may go by single copy between far CPUs ([`CopyModeSelector::cpus_are_far`]).
    pub large_far: usize,
    /// From this size on both sides make a single copy together (cooperative copy).
    pub half: usize,
}

/// Bytes after which a put is published, so that the consumer can copy at the same time.
const PUBLISH_BYTES: usize = 64 << 10;
/// Bytes after which a put is published to a consumer that has read all but a head, as far as is known. It may be waiting, and gets the first bytes
/// sooner.
const PUBLISH_BYTES_AWAITED: usize = 16 << 10;
/// Value of `tx.ready`: the gate may be used.
pub const READY: u32 = 1;
/// Value of `tx.ready`: the sending direction is shut down.
const FINISHED: u32 = 2;
/// Largest payload of the fast path, bytes: no more than the smallest ring has room for.
const FAST_PUT_MAX_BYTES: usize = 4096;
/// A sender whose bytes stay unread checks the connection at this interval (ns), so a dead peer is noticed.
const ALIVE_CHECK_NS: u64 = 10_000_000;

/// Begins a send of `bufs`.
#[inline(always)]
pub fn begin<P: Platform>(
    record: &StreamRecord,
    slot: Option<&Slot>,
    platform: &mut P,
    bufs: &[IoSlice<'_>],
    request: Request,
) -> Step {
    let tx = &record.tx;
    let held = match acquire(&tx.lock, platform) {
        Acquired::Clean(held) => held,
        Acquired::Orphaned(_held) => return fail_broken(record),
        Acquired::Reentrant => return Step::Failed(EAGAIN),
        Acquired::Stale => return Step::Failed(EBADF),
    };
    let ready = tx.ready.load(Relaxed);
    let slot = slot.filter(|_| ready != 0);
    if let (Some(slot), [one]) = (slot, bufs)
        && one.len() <= FAST_PUT_MAX_BYTES
        && ready == READY
        && !request.kernel_only
        && put_short(record, slot, one, tx.tail.load(Relaxed))
    {
        return Step::Done(one.len());
    }
    begin_slow(record, slot, platform, bufs, request, held)
}

/// Slow path of [`begin`], out of line. `slot`: set if the wire is ready for use. The lock is held.
#[inline(never)]
fn begin_slow<P: Platform>(
    record: &StreamRecord,
    slot: Option<&Slot>,
    platform: &mut P,
    bufs: &[IoSlice<'_>],
    request: Request,
    held: HalfGuard<'_>,
) -> Step {
    let tx = &record.tx;
    let take_sent_ahead = single_copy::take_sent_ahead(record);
    if let Some(slot) = slot {
        let lines = slot.outward();
        let tail = tx.tail.load(Relaxed);
        let is_long = bufs.iter().map(|b| b.len()).sum::<usize>() > FAST_PUT_MAX_BYTES;
        if is_long {
            publish_cpu(slot, platform);
        }
        match lines.gate.mode(tail) {
            Ok(Mode::Tcp) => exchange::note_closed_gate(record),
            Ok(Mode::Ring | Mode::Wide)
                if request.kernel_only || tx.kernel_calls.load(Relaxed) != 0 || tx.ready.load(Relaxed) != READY =>
            {
                if lines.gate.lower_by_producer(tail).is_err() {
                    return fail_broken(record);
                }
            }
            Ok(mode) => {
                let large =
                    if CopyModeSelector(&tx.copy_mode).cpus_are_far() { request.large_far } else { request.large };
                let ahead;
                let mut parts = bufs;
                if let Some(first) = bufs.first()
                    && first.len() >= large
                {
                    let how = (&**first, request.nonblocking, take_sent_ahead);
                    if let Some(sent) = single_copy::send(record, slot, platform, how, (tail, request.half)) {
                        CopyModeSelector(&tx.copy_mode).note_single_copy(sent.unwrap_or(0));
                        return sent.map_or_else(Step::Failed, Step::Done);
                    }
                    if !request.nonblocking
                        && first.len() > large + PUBLISH_BYTES_AWAITED
                        && single_copy::should_send_ahead(record, slot, platform)
                    {
                        ahead = [IoSlice::new(&first[..PUBLISH_BYTES_AWAITED])];
                        parts = &ahead;
                    }
                }
                match put_all(record, slot, platform, parts, (mode, tail), request.nonblocking) {
                    Ok(0) => {}
                    Ok(n) => {
                        drop(held);
                        if is_long {
                            let_waiting_peer_run(slot, platform);
                        }
                        return Step::Done(n);
                    }
                    Err(Broken) => return fail_broken(record),
                }
            }
            Err(Broken) => return fail_broken(record),
        }
        match return_unread(record, slot, platform) {
            Returned::All | Returned::Stuck => {}
            Returned::Part => return Step::Full,
            Returned::Broken => return fail_broken(record),
        }
    }
    tx.last_put.store(0, Relaxed);
    tx.kernel_calls.store(tx.kernel_calls.load(Relaxed) + 1, Relaxed);
    Step::Kernel
}

/// A peer that waits on this CPU runs now, as after a send to the kernel, which wakes it. Its next bytes may be there before this program looks for
/// them; else a server of many threads, such as Apache, hands the connection on to wait for them. After short sends it does not pay: a program that
/// serves many connections (Redis) makes them all in one turn.
fn let_waiting_peer_run<P: Platform>(slot: &Slot, platform: &mut P) {
    if peer_on_this_cpu(slot, platform) && !platform.is_cpu_contended() {
        platform.yield_now();
    }
}

/// Ends a send that went to the kernel with `sent` bytes (0 when it failed).
#[inline]
pub fn end<P: Platform>(record: &StreamRecord, platform: &mut P, sent: usize) {
    let tx = &record.tx;
    let held = acquire(&tx.lock, platform);
    match held {
        Acquired::Stale => return,
        Acquired::Orphaned(_) => drop(fail_broken(record)), // the counters may be wrong
        Acquired::Clean(_) | Acquired::Reentrant => {}
    }
    tx.tcp_bytes.store(tx.tcp_bytes.load(Relaxed) + sent as u64, Relaxed);
    tx.kernel_calls.store(tx.kernel_calls.load(Relaxed).saturating_sub(1), Relaxed);
}

/// Puts a short payload after one that was read. It is written before the mode word is read, so that the cache line changes its owner once. (The ring
/// is empty, so there is space, and it is not being read.) False: the fast path does not apply, and nothing was sent.
#[inline(always)]
fn put_short(record: &StreamRecord, slot: &Slot, bytes: &IoSlice<'_>, tail: u64) -> bool {
    let (tx, lines) = (&record.tx, slot.outward());
    let mode = match tx.last_put.load(Relaxed) {
        1 => Mode::Ring,
        2 => Mode::Wide,
        _ => return false,
    };
    if bytes.is_empty() || tx.head_seen.load(Relaxed) != tail || tx.mark.load(Relaxed) != tx.tcp_bytes.load(Relaxed) {
        return false;
    }
    if bytes.len() <= INLINE {
        lines.gate.write_inline(tail, bytes);
    } else {
        slot.out_ring(mode == Mode::Wide).write_one(tail, bytes);
    }
    lines.gate.ack.store(record.rx.head.load(Relaxed), Relaxed);
    if lines.gate.publish_as(tail, bytes.len() as u64, mode) != Ok(mode) {
        tx.last_put.store(0, Relaxed);
        return false;
    }
    tx.tail.store(tail + bytes.len() as u64, Relaxed);
    true
}

/// Puts what fits, in pieces that the consumer can begin to read. `Ok(0)`: the gate is closed, use TCP.
#[inline(always)]
fn put_all<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    bufs: &[IoSlice<'_>],
    (mut mode, mut tail): (Mode, u64),
    nonblocking: bool,
) -> Result<usize, Broken> {
    let lines = slot.outward();
    let length: usize = bufs.iter().map(|b| b.len()).sum();
    let unheard = tail - record.tx.head_seen.load(Relaxed);
    let limit = if unheard <= 2 * PUBLISH_BYTES_AWAITED as u64 { PUBLISH_BYTES_AWAITED } else { PUBLISH_BYTES };
    let mut done = 0;
    loop {
        let piece = (length - done).min(limit);
        match put(record, slot, platform, (bufs, done, piece), (mode, tail), nonblocking)? {
            Put::Published(n) => {
                done += n;
                tail += n as u64;
                if done == length || n < piece {
                    return Ok(done);
                }
            }
            Put::Changed => {
                mode = lines.gate.mode(tail)?;
                if mode == Mode::Tcp {
                    return Ok(done);
                }
            }
        }
    }
}

/// What [`put`] did with a piece.
enum Put {
    /// So many of its bytes are in the ring.
    Published(usize),
    /// None are in the ring: the gate has changed.
    Changed,
}

/// Puts what fits of `piece` bytes of `bufs` from byte `skip` on.
#[inline(always)]
fn put<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    (bufs, skip, piece): (&[IoSlice<'_>], usize, usize),
    (mode, tail): (Mode, u64),
    nonblocking: bool,
) -> Result<Put, Broken> {
    let (tx, lines) = (&record.tx, slot.outward());
    if piece == 0 || (tx.last_put.load(Relaxed) == 0 && !ring_is_allowed_after_tcp(record, platform)) {
        lines.gate.lower_by_producer(tail)?;
        return Ok(Put::Changed);
    }
    let wide = mode == Mode::Wide;
    let timed = wide && piece >= bulk::LARGE_TRANSFER_BYTES;
    let start = if timed { platform.now() } else { 0 };
    let ring = slot.out_ring(wide);
    let mut limit = ring.size().min(u64::from(tx.unread_limit.load(Relaxed)));
    let mut seen = tx.head_seen.load(Relaxed);
    if seen != tail {
        // The last bytes have not been read, as far as is known: check that the peer lives.
        if !peer_lives(record, platform) {
            lines.gate.lower_by_producer(tail)?;
            return Ok(Put::Changed);
        }
        if tail - seen + piece as u64 > limit {
            seen = read_consumer_head(record, lines, tail)?;
        }
        if tail - seen > ring.size() {
            return Err(Broken); // an epoch begins over an empty ring, whichever of the two rings it is
        }
    }
    if tail - seen >= limit && limit < ring.size() {
        limit = ring.size().min(query_tcp_room(record, platform)); // TCP may have been emptied since
    }
    if tail - seen >= limit {
        seen = full_ring::wait_for_space(record, lines, platform, (tail, limit), (wide, nonblocking))?;
        if tail - seen >= limit {
            if skip > 0 {
                return Ok(Put::Published(0)); // a part of the call is done: the next one may find space
            }
            record.events.spilled.fetch_add(1, Relaxed);
            lines.gate.lower_by_producer(tail)?;
            return Ok(Put::Changed);
        }
    }
    let n = piece.min((limit - (tail - seen)) as usize);
    if n <= INLINE && seen == tail {
        let mut short = [0; INLINE];
        match bufs {
            [one] if skip == 0 => lines.gate.write_inline(tail, &one[..n]),
            _ => {
                gather(bufs, skip, &mut short[..n]);
                lines.gate.write_inline(tail, &short[..n]);
            }
        }
    } else if timed {
        let copying = CopyModeSelector(&tx.copy_mode);
        if copying.start()
            && let Some(memory) = slot.bulk_out_memory()
        {
            platform.prefault(memory);
        }
        ring.bypassing(copying.is_non_temporal()).write(tail, bufs, skip, n);
        let landed = || match lines.consumer.landed.load(Relaxed) {
            0 => 0,
            _ => lines.consumer.landed.swap(0, Relaxed),
        };
        let ticks = platform.now().wrapping_sub(start);
        copying.note_put(|| platform.ticks_per_1024ns(), n, ticks, landed);
    } else {
        ring.write(tail, bufs, skip, n);
    }
    let tcp = tx.tcp_bytes.load(Relaxed);
    if tx.mark.load(Relaxed) != tcp {
        // Invariant 2: only the first put of an epoch finds them different, because nothing goes to TCP while RING is set.
        lines.mark.mark.store(tcp, Relaxed);
        tx.mark.store(tcp, Relaxed);
    }
    lines.gate.ack.store(record.rx.head.load(Relaxed), Relaxed);
    if lines.gate.publish_as(tail, n as u64, mode)? == mode {
        tx.tail.store(tail + n as u64, Relaxed);
        tx.wide.store(u32::from(wide), Relaxed);
        tx.last_put.store(1 + u32::from(wide), Relaxed);
        return Ok(Put::Published(n));
    }
    record.events.lost_puts.fetch_add(1, Relaxed);
    Ok(Put::Changed)
}

/// Whether the first put after sends over TCP may use the ring. The ring holds no more than TCP has room for, because its unread bytes may have to be
/// returned (invariant 6).
#[cold]
fn ring_is_allowed_after_tcp<P: Platform>(record: &StreamRecord, platform: &mut P) -> bool {
    !recount_tcp_bytes(record, platform) && query_tcp_room(record, platform) >= FAST_PUT_MAX_BYTES as u64
}

/// Asks the kernel how many unread bytes the ring may hold. While the gate is open nothing is sent over TCP, so TCP's room only grows.
#[cold]
fn query_tcp_room<P: Platform>(record: &StreamRecord, platform: &mut P) -> u64 {
    let room = platform.tcp_send_room().min(u64::from(u32::MAX));
    record.tx.unread_limit.store(room as u32, Relaxed);
    room
}

/// Whether the program has sent over TCP past the engine. If so, those bytes count from here on, and this send follows them.
#[cold]
fn recount_tcp_bytes<P: Platform>(record: &StreamRecord, platform: &mut P) -> bool {
    let counted = record.tx.tcp_bytes.load(Relaxed);
    let written = platform.tcp_bytes_written(counted);
    record.tx.tcp_bytes.store(written, Relaxed);
    written != counted
}

/// Ends the use of the ring for sending: after a half-close the kernel answers every send, and after a hand-over other programs send past the engine.
pub fn finish<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P) {
    let held = acquire(&record.tx.lock, platform);
    if !matches!(held, Acquired::Stale) {
        record.tx.ready.store(FINISHED, Relaxed);
        slot.outward().mark.ready.store(0, Relaxed);
        if slot.outward().gate.lower_by_producer(record.tx.tail.load(Relaxed)).is_err() {
            fail_broken(record);
        }
    }
}

/// The consumer's head, validated.
#[inline(always)]
fn read_consumer_head(record: &StreamRecord, lines: &Lines, tail: u64) -> Result<u64, Broken> {
    let head = lines.consumer.seen_head();
    if head < record.tx.head_seen.load(Relaxed) || head > tail {
        return Err(Broken);
    }
    record.tx.head_seen.store(head, Relaxed);
    Ok(head)
}

/// False if the connection is known to be gone. Reads the clock at every call and asks the kernel once per [`ALIVE_CHECK_NS`].
#[inline(always)]
fn peer_lives<P: Platform>(record: &StreamRecord, platform: &mut P) -> bool {
    let now = platform.now();
    if now.wrapping_sub(record.tx.peer_alive_at.load(Relaxed)) < platform.ticks(ALIVE_CHECK_NS) {
        return true;
    }
    record.tx.peer_alive_at.store(now, Relaxed);
    platform.tcp_alive()
}

#[cold]
fn fail_broken(record: &StreamRecord) -> Step {
    break_stream(record);
    Step::Failed(ECONNRESET)
}
