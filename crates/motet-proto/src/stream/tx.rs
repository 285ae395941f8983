//! The sending half: ring or kernel, decided anew for every send.
//!
//! Reads top-down: [`begin`] and [`end`] bracket every send, [`take_back`] moves unread bytes to TCP (downgrade).
//!
//! Unread ring bytes are always the last bytes of the stream: a send that must use the kernel first returns them to TCP
//! (invariant 3). So a process that reads the socket without the engine gets every byte, in order, from TCP alone.

use crate::stream::half_lock::{Acquired, Held, acquire};
use crate::{
    EAGAIN, EBADF, ECONNRESET, EPIPE, Errno,
    stream::{Platform, bulk, exchange, single_copy},
};
use motet_wire::stream::gate::{Broken, INLINE, Mode};
use motet_wire::stream::record::{State, StreamRecord};
use motet_wire::stream::ring::gather;
use motet_wire::stream::slot::{Lines, Slot};
use motet_wire::sync::{Ordering::Relaxed, Ordering::Release, relax};
use std::io::IoSlice;
use std::sync::Mutex;

/// How a send goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many bytes are in the ring. May be fewer than asked for.
    Done(usize),
    /// Make the kernel call now, then call [`end`].
    Kernel,
    /// The peer has unread bytes in the ring, which precede this send, and TCP has no room for them: wait until the kernel can
    /// take more, then begin again. (A call that must not block says EAGAIN.) [`end`] is not called.
    Full,
    /// The operation failed.
    Failed(Errno),
}

/// What the caller asks for.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The kind of transfer needs the kernel (urgent data, ancillary data, splice).
    pub kernel_only: bool,
    /// The call should not wait long for space.
    pub nonblocking: bool,
    /// A buffer of this size and more may go by single copy while the two CPUs are not known to be far from each other.
    pub large: usize,
    /// The same while they are: [`bulk::CopyModeSelector::is_far`].
    pub large_far: usize,
    /// From this size on both sides make a single copy together.
    pub half: usize,
}

/// Bytes after which a put is published, so that the consumer copies meanwhile.
const PIECE: usize = 64 << 10;
/// The same towards a consumer that has read all but a head, as far as is known, and may be waiting: the first bytes are on their way sooner.
const PIECE_AWAITED: usize = 16 << 10;
/// Values of `tx.ready` beside 0: the gate may be used; the sending direction is shut down.
pub const READY: u32 = 1;
const FINISHED: u32 = 2;
/// Payload up to this may be put on the strength of the last put: no more than the smallest ring has room for.
const SHORT: usize = 4096;
/// A sender that found the ring full waits this long (ns) for space before it spills to TCP: for the large ring, whose
/// consumer may be touching fresh memory (the kernel clears 2 MiB for a huge page), longer.
const FULL_WAIT: u64 = 20_000;
const FULL_WAIT_WIDE: u64 = 500_000;
/// The same for a sender that must not block.
const FULL_WAIT_NONBLOCKING: u64 = 2_000;
/// Waiting for half the ring turns into waiting for any space after this (ns).
const SOME_WAIT: u64 = 2_000;
/// A sender whose bytes stay unread looks at the connection this often (ns), so a dead peer is noticed.
const ALIVE_CHECK: u64 = 10_000_000;
/// Most attempts to take bytes back from a consumer that keeps meeting TAKEN.
const PASSES: u32 = 64;
/// A consumer has done with returning bytes in our place within this (ns), or died of it.
const RETURNING: u64 = 2_000_000_000;

/// Begins a send of `bufs`.
#[inline(always)]
pub fn begin<B: Platform>(
    record: &StreamRecord,
    slot: Option<&Slot>,
    base: &mut B,
    bufs: &[IoSlice<'_>],
    ask: Request,
) -> Step {
    let tx = &record.tx;
    let held = match acquire(&tx.lock, base) {
        Acquired::Clean(held) => held,
        Acquired::Orphaned(_held) => return broken(record),
        Acquired::Reentrant => return Step::Failed(EAGAIN),
        Acquired::Stale => return Step::Failed(EBADF),
    };
    let ready = tx.ready.load(Relaxed);
    let slot = slot.filter(|_| ready != 0);
    if let (Some(slot), [one]) = (slot, bufs)
        && one.len() <= SHORT
        && ready == READY
        && !ask.kernel_only
        && put_short(record, slot, one, tx.tail.load(Relaxed))
    {
        return Step::Done(one.len());
    }
    begin_in_full(record, slot, base, bufs, ask, held)
}

/// The same with all its cases. `slot`: a wire that is ready for use.
#[inline(never)]
fn begin_in_full<B: Platform>(
    record: &StreamRecord,
    slot: Option<&Slot>,
    base: &mut B,
    bufs: &[IoSlice<'_>],
    ask: Request,
    _held: Held<'_>,
) -> Step {
    let tx = &record.tx;
    let went_ahead = single_copy::went_ahead(record);
    if let Some(slot) = slot {
        let lines = slot.outward();
        let tail = tx.tail.load(Relaxed);
        match lines.gate.mode(tail) {
            Ok(Mode::Tcp) => exchange::met_closed_gate(record),
            Ok(Mode::Ring | Mode::Wide)
                if ask.kernel_only || tx.kernel_calls.load(Relaxed) != 0 || tx.ready.load(Relaxed) != READY =>
            {
                if lines.gate.lower_by_producer(tail).is_err() {
                    return broken(record);
                }
            }
            Ok(mode) => {
                let large = if bulk::CopyModeSelector(tx).cpus_are_far() { ask.large_far } else { ask.large };
                let ahead;
                let mut parts = bufs;
                if let Some(first) = bufs.first()
                    && first.len() >= large
                {
                    let how = (&**first, ask.nonblocking, went_ahead);
                    if let Some(sent) = single_copy::send(record, slot, base, how, (tail, ask.half)) {
                        bulk::CopyModeSelector(tx).note_single_copy(sent.unwrap_or(0));
                        return sent.map_or_else(Step::Failed, Step::Done);
                    }
                    if !ask.nonblocking
                        && first.len() > large + PIECE_AWAITED
                        && single_copy::goes_ahead(record, slot, base)
                    {
                        ahead = [IoSlice::new(&first[..PIECE_AWAITED])];
                        parts = &ahead;
                    }
                }
                match put_all(record, slot, base, parts, (mode, tail), ask.nonblocking) {
                    Ok(0) => {}
                    Ok(n) => return Step::Done(n),
                    Err(Broken) => return broken(record),
                }
            }
            Err(Broken) => return broken(record),
        }
        match return_unread(record, slot, base) {
            Returned::All | Returned::Stuck => {}
            Returned::Part => return Step::Full,
            Returned::Broken => return broken(record),
        }
    }
    tx.last_put.store(0, Relaxed);
    tx.kernel_calls.store(tx.kernel_calls.load(Relaxed) + 1, Relaxed);
    Step::Kernel
}

/// Ends a send that went to the kernel with `sent` bytes (0 when it failed).
#[inline]
pub fn end<B: Platform>(record: &StreamRecord, base: &mut B, sent: usize) {
    let tx = &record.tx;
    let held = acquire(&tx.lock, base);
    match held {
        Acquired::Stale => return,
        Acquired::Orphaned(_) => drop(broken(record)), // the counters may be wrong
        Acquired::Clean(_) | Acquired::Reentrant => {}
    }
    tx.tcp_bytes.store(tx.tcp_bytes.load(Relaxed) + sent as u64, Relaxed);
    tx.kernel_calls.store(tx.kernel_calls.load(Relaxed).saturating_sub(1), Relaxed);
}

/// A short payload right after another that was read: written without looking at the mode word first, so that its line
/// changes hands once. (The ring is empty, so there is space, and it is not being read.) False: not that simple, and nothing
/// happened.
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

/// Puts what fits, in pieces that the consumer can begin to read. `Ok(0)`: the gate is closed now, use TCP.
#[inline(always)]
fn put_all<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &mut B,
    bufs: &[IoSlice<'_>],
    (mut mode, mut tail): (Mode, u64),
    nonblocking: bool,
) -> Result<usize, Broken> {
    let lines = slot.outward();
    let length: usize = bufs.iter().map(|b| b.len()).sum();
    let unheard = tail - record.tx.head_seen.load(Relaxed);
    let limit = if unheard <= 2 * PIECE_AWAITED as u64 { PIECE_AWAITED } else { PIECE };
    let mut done = 0;
    loop {
        let piece = (length - done).min(limit);
        match put(record, slot, base, (bufs, done, piece), (mode, tail), nonblocking)? {
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

/// What became of a piece.
enum Put {
    /// So many of its bytes are in the ring.
    Published(usize),
    /// None: the gate has changed.
    Changed,
}

/// Puts what fits of `piece` bytes, `skip` into `bufs`.
#[inline(always)]
fn put<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &mut B,
    (bufs, skip, piece): (&[IoSlice<'_>], usize, usize),
    (mode, tail): (Mode, u64),
    nonblocking: bool,
) -> Result<Put, Broken> {
    let (tx, lines) = (&record.tx, slot.outward());
    if piece == 0 || (tx.last_put.load(Relaxed) == 0 && !after_tcp(record, base)) {
        lines.gate.lower_by_producer(tail)?;
        return Ok(Put::Changed);
    }
    let wide = mode == Mode::Wide;
    let timed = wide && piece >= bulk::LARGE;
    let start = if timed { base.now() } else { 0 };
    let ring = slot.out_ring(wide);
    let mut limit = ring.size().min(u64::from(tx.unread_limit.load(Relaxed)));
    let mut seen = tx.head_seen.load(Relaxed);
    if seen != tail {
        // No sign yet that the last bytes were read: is anybody there?
        if !peer_lives(record, base) {
            lines.gate.lower_by_producer(tail)?;
            return Ok(Put::Changed);
        }
        if tail - seen + piece as u64 > limit {
            seen = look_at_head(record, lines, tail)?;
        }
        if tail - seen > ring.size() {
            return Err(Broken); // an epoch begins over an empty ring, whichever of the two rings it is
        }
    }
    if tail - seen >= limit && limit < ring.size() {
        limit = ring.size().min(look_for_room(record, base)); // TCP may have been emptied since
    }
    if tail - seen >= limit {
        let wait = match (nonblocking, wide) {
            (true, _) => FULL_WAIT_NONBLOCKING,
            (false, _) if !wide || base.is_cpu_contended() => FULL_WAIT,
            (false, _) => FULL_WAIT_WIDE,
        };
        seen = wait_for_space(record, lines, base, tail, limit, wait)?;
        if tail - seen >= limit {
            if skip > 0 {
                return Ok(Put::Published(0)); // part of the call is done: the next one may find space
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
        let copying = bulk::CopyModeSelector(tx);
        copying.begin(slot.bulk_out_memory(), base);
        ring.bypassing(copying.is_non_temporal()).write(tail, bufs, skip, n);
        let landed = || match lines.consumer.landed.load(Relaxed) {
            0 => 0,
            _ => lines.consumer.landed.swap(0, Relaxed),
        };
        copying.note_put(base, n, base.now().wrapping_sub(start), landed);
    } else {
        ring.write(tail, bufs, skip, n);
    }
    let tcp = tx.tcp_bytes.load(Relaxed);
    if tx.mark.load(Relaxed) != tcp {
        // Invariant 2: only the first put of an epoch finds them different, as nothing goes to TCP while RING is set.
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

/// Before the first put after sends over TCP: whether the ring may be used. It holds no more than TCP has room for, or its unread bytes could not
/// be returned (invariant 6).
#[cold]
fn after_tcp<B: Platform>(record: &StreamRecord, base: &mut B) -> bool {
    !recount(record, base) && look_for_room(record, base) >= SHORT as u64
}

/// How many unread bytes there may be in the ring. While the gate is open we send nothing over TCP, so the room there only grows.
#[cold]
fn look_for_room<B: Platform>(record: &StreamRecord, base: &mut B) -> u64 {
    let room = base.tcp_send_room().min(u64::from(u32::MAX));
    record.tx.unread_limit.store(room as u32, Relaxed);
    room
}

/// Whether the program has sent over TCP past us, too. Then the bytes count from now on, and this send follows them.
#[cold]
fn recount<B: Platform>(record: &StreamRecord, base: &mut B) -> bool {
    let counted = record.tx.tcp_bytes.load(Relaxed);
    let written = base.tcp_bytes_written(counted);
    record.tx.tcp_bytes.store(written, Relaxed);
    written != counted
}

/// Nothing goes into the ring any more: after a half-close the kernel answers every send, and from now on others may send past us.
pub fn finish<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) {
    let held = acquire(&record.tx.lock, base);
    if !matches!(held, Acquired::Stale) {
        record.tx.ready.store(FINISHED, Relaxed);
        slot.outward().mark.ready.store(0, Relaxed);
        if slot.outward().gate.lower_by_producer(record.tx.tail.load(Relaxed)).is_err() {
            broken(record);
        }
    }
}

/// Whether the peer is busy reading a good deal of what we sent: then a thread that wants to sleep may as well wait for that,
/// rather than take the bytes back. Looks at what was read since it was asked last.
pub fn is_being_read(record: &StreamRecord, slot: &Slot) -> bool {
    let tx = &record.tx;
    let (head, tail) = (slot.outward().consumer.seen_head(), tx.tail.load(Relaxed));
    let before = tx.head_at_wait.swap(head as u32, Relaxed);
    head < tail && u64::from((head as u32).wrapping_sub(before)) >= slot.out_ring(false).size() / 4
}

/// Whether the peer has left bytes of ours in the ring. Does not lock.
pub fn is_unread(record: &StreamRecord, slot: &Slot) -> bool {
    record.tx.ready.load(Relaxed) != 0 && slot.outward().consumer.seen_head() < record.tx.tail.load(Relaxed)
}

/// Whether the end of the stream must wait: unread bytes are in the ring, and the peer's reader looks at TCP alone. TCP is full, or the
/// peer is returning them itself.
pub fn must_linger(record: &StreamRecord, slot: &Slot) -> bool {
    slot.outward().consumer.handed_over.load(Relaxed) != 0
        && is_unread(record, slot)
        && record.state() == State::Attached
}

/// Whether the last bytes that went over TCP were such as the peer had left unread in the ring.
pub fn has_taken_back(record: &StreamRecord) -> bool {
    let (tcp, mark) = (record.tx.tcp_bytes.load(Relaxed), record.tx.mark.load(Relaxed));
    record.tx.returned_bytes.load(Relaxed) != 0 && tcp == mark
}

/// Moves bytes that the peer has not read back to TCP, as many as TCP accepts now. True when none is left in the ring.
///
/// Called before this process sleeps, ends its part in the stream, or hands its descriptor on (invariant 6), so a consumer that
/// waits where Motet cannot see it is woken by the kernel.
pub fn take_back<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) -> bool {
    let tx = &record.tx;
    let _held = match acquire(&tx.lock, base) {
        Acquired::Clean(held) => held,
        Acquired::Orphaned(_held) => {
            broken(record);
            return false;
        }
        Acquired::Reentrant | Acquired::Stale => return false,
    };
    if tx.ready.load(Relaxed) == 0 {
        tx.head_seen.store(tx.tail.load(Relaxed), Relaxed);
        return true;
    }
    match return_unread(record, slot, base) {
        Returned::All => true,
        Returned::Part | Returned::Stuck => false,
        Returned::Broken => {
            broken(record);
            false
        }
    }
}

/// Where the bytes are that the peer had not read.
enum Returned {
    /// None is in the ring: they were read, or are in TCP now.
    All,
    /// Some are in the ring, as TCP is full. Then the kernel is readable at the other end, so no reader sleeps over them.
    Part,
    /// They stay in the ring: the connection has failed, or others have sent TCP bytes behind them.
    Stuck,
    /// The peer broke the protocol.
    Broken,
}

/// Returns what the peer has not read to TCP. The lock is held.
#[inline]
fn return_unread<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) -> Returned {
    let tail = record.tx.tail.load(Relaxed);
    if slot.outward().consumer.seen_head() == tail {
        record.tx.head_seen.store(tail, Relaxed);
        return Returned::All;
    }
    return_some(record, slot, base, tail)
}

#[cold]
fn return_some<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B, tail: u64) -> Returned {
    let (tx, lines) = (&record.tx, slot.outward());
    if tx.kernel_calls.load(Relaxed) != 0 {
        return Returned::Stuck;
    }
    if lines.gate.lower_by_producer(tail).is_err() {
        return Returned::Broken;
    }
    if base.tcp_failed(record.connection.pid.load(Relaxed)) {
        return Returned::Stuck; // what is unread stays so: it is what makes the end a reset
    }
    record.events.downgraded.fetch_add(1, Relaxed);
    tx.last_put.store(0, Relaxed); // TCP has less room then
    for _ in 0..PASSES {
        let met = lines.consumer.met();
        let Some(claimed) = claim(lines, base) else { return Returned::Broken };
        if !is_last(record, lines, base) {
            lines.consumer.release(claimed);
            return Returned::Stuck;
        }
        let Some(head) = return_bytes(record, slot, base, claimed, tail) else {
            lines.consumer.release(claimed);
            return Returned::Broken;
        };
        if head != claimed {
            base.tcp_push();
        }
        lines.mark.mark.store(tx.tcp_bytes.load(Relaxed), Relaxed);
        tx.mark.store(tx.tcp_bytes.load(Relaxed), Relaxed);
        lines.consumer.release(head); // edge: release -> settled (the mark travels with it)
        tx.head_seen.store(head, Relaxed);
        if head == tail {
            return Returned::All;
        }
        if lines.consumer.met() == met {
            break; // TCP is full, so the kernel is readable, and the consumer has not slept through it
        }
    }
    Returned::Part
}

/// Claims what is unread. A consumer that is returning it itself needs some microseconds, and the CPU; one that keeps it longer breaks the
/// protocol.
fn claim<B: Platform>(lines: &Lines, base: &mut B) -> Option<u64> {
    let start = base.now();
    loop {
        match lines.consumer.claim() {
            None if base.now().wrapping_sub(start) < base.ticks(RETURNING) => base.yield_now(),
            claimed => return claimed,
        }
    }
}

/// Whether the ring's bytes are the last of the stream. TCP bytes that follow them were sent past the engine; where the descriptor has been
/// handed on, the kernel is asked. Under the claim.
fn is_last<B: Platform>(record: &StreamRecord, lines: &Lines, base: &mut B) -> bool {
    let tx = &record.tx;
    let (tcp, shared) = (tx.tcp_bytes.load(Relaxed), lines.mark.mark.load(Relaxed));
    if shared != tx.mark.load(Relaxed) && base.tcp_bytes_written(tcp) == shared {
        // The consumer has handed its end on, and returned bytes in our place.
        tx.tcp_bytes.store(shared, Relaxed);
        tx.mark.store(shared, Relaxed);
        return true;
    }
    tcp == tx.mark.load(Relaxed) && (tx.ready.load(Relaxed) != FINISHED || base.tcp_bytes_written(tcp) == tcp)
}

/// Where bytes lie on their way back to TCP. A thread's stack may be small, so it is one for the process; a thread that finds it in use
/// (or a child that was forked meanwhile) makes do with less.
static RETURNS: Mutex<[u8; 16 << 10]> = Mutex::new([0; 16 << 10]);
const PIECE_SMALL: usize = 512;

/// Sends `head..tail` to TCP; returns the new head, `None` when the peer's head is impossible.
#[inline(never)]
fn return_bytes<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &mut B,
    mut head: u64,
    tail: u64,
) -> Option<u64> {
    let tx = &record.tx;
    if head < tx.head_seen.load(Relaxed) || head > tail {
        return None;
    }
    let (mut small, mut large) = ([0u8; PIECE_SMALL], RETURNS.try_lock().ok());
    let piece: &mut [u8] = large.as_deref_mut().map_or(&mut small, |large| large);
    while head < tail {
        let n = piece.len().min((tail - head) as usize);
        let mut short = [0; INLINE];
        let n = match slot.outward().gate.read_inline(head, &mut short) {
            Some((from, to)) => {
                piece[..to - from].copy_from_slice(&short[from..to]);
                (to - from).min(n)
            }
            None => {
                slot.out_ring(tx.wide.load(Relaxed) != 0).read(
                    head,
                    &mut [std::io::IoSliceMut::new(&mut piece[..n])],
                    0,
                    n,
                );
                n
            }
        };
        match base.tcp_send(&piece[..n]) {
            Ok(sent) => {
                head += sent as u64;
                tx.tcp_bytes.store(tx.tcp_bytes.load(Relaxed) + sent as u64, Relaxed);
                tx.returned_bytes.fetch_add(sent as u64, Relaxed);
                if sent < n {
                    break;
                }
            }
            // Spent after all: the next call tells it. (After a shutdown of our own EPIPE means nothing, and the peer still reads the ring.)
            Err(errno) => {
                let shut = tx.ready.load(Relaxed) == FINISHED || base.tcp_alive();
                if errno == ECONNRESET || errno == EPIPE && !shut {
                    broken(record);
                }
                break;
            }
        }
    }
    Some(head)
}

/// The consumer's head, validated.
#[inline(always)]
fn look_at_head(record: &StreamRecord, lines: &Lines, tail: u64) -> Result<u64, Broken> {
    let head = lines.consumer.seen_head();
    if head < record.tx.head_seen.load(Relaxed) || head > tail {
        return Err(Broken);
    }
    record.tx.head_seen.store(head, Relaxed);
    Ok(head)
}

/// Spins while the consumer is at it; returns the head seen last.
#[cold]
fn wait_for_space<B: Platform>(
    record: &StreamRecord,
    lines: &Lines,
    base: &mut B,
    tail: u64,
    size: u64,
    wait: u64,
) -> Result<u64, Broken> {
    let (wait, some) = (base.ticks(wait), base.ticks(SOME_WAIT));
    let start = base.now();
    let there = lines.consumer.cpu.load(Relaxed);
    if there != 0 && there == base.cpu() + 1 {
        base.yield_now();
    }
    loop {
        let head = look_at_head(record, lines, tail)?;
        // Half the ring at once: fewer, larger transfers than chasing the consumer line by line.
        let waited = base.now().wrapping_sub(start);
        if tail - head <= size / 2 || (tail - head < size && waited > some) || waited > wait {
            return Ok(head);
        }
        if lines.gate.mode(tail)? == Mode::Tcp {
            return Ok(head);
        }
        for _ in 0..16 {
            relax();
        }
    }
}

/// False once the connection is known to be gone. Looks at the clock always, at the kernel rarely.
#[inline(always)]
fn peer_lives<B: Platform>(record: &StreamRecord, base: &mut B) -> bool {
    let now = base.now();
    if now.wrapping_sub(record.tx.peer_alive_at.load(Relaxed)) < base.ticks(ALIVE_CHECK) {
        return true;
    }
    record.tx.peer_alive_at.store(now, Relaxed);
    base.tcp_alive()
}

#[cold]
fn broken(record: &StreamRecord) -> Step {
    record.lifecycle.state.store(State::Broken as u32, Release);
    Step::Failed(ECONNRESET)
}
