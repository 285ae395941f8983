//! Takes back what the peer has not read: returns it from the ring to TCP (downgrade).

use super::FINISHED;
use crate::stream::Platform;
use crate::stream::broken::break_stream;
use crate::stream::half_lock::{Acquired, acquire};
use crate::{ECONNRESET, EPIPE};
use motet_wire::stream::gate::INLINE;
use motet_wire::stream::record::{State, StreamRecord};
use motet_wire::stream::slot::{Lines, Slot};
use motet_wire::sync::Ordering::Relaxed;
use std::io::IoSliceMut;
use std::sync::Mutex;

/// Most attempts to take bytes back from a consumer that finds TAKEN again and again.
const MAX_TAKE_BACK_PASSES: u32 = 64;
/// A consumer that returns bytes in the producer's place needs less time than this (ns), or it has died of it.
const CONSUMER_RETURN_LIMIT_NS: u64 = 2_000_000_000;

/// Whether the peer has read at least a quarter of the ring since the last call. If so, a thread that wants to sleep may wait for the peer instead of
/// taking the bytes back.
pub fn is_being_read(record: &StreamRecord, slot: &Slot) -> bool {
    let tx = &record.tx;
    let (head, tail) = (slot.outward().consumer.seen_head(), tx.tail.load(Relaxed));
    let before = tx.head_at_wait.swap(head as u32, Relaxed);
    head < tail && u64::from((head as u32).wrapping_sub(before)) >= slot.out_ring(false).size() / 4
}

/// Whether the outward ring holds unread bytes. Takes no lock.
pub fn is_unread(record: &StreamRecord, slot: &Slot) -> bool {
    record.tx.ready.load(Relaxed) != 0 && slot.outward().consumer.seen_head() < record.tx.tail.load(Relaxed)
}

/// Whether the end of the stream must wait: the ring holds unread bytes, and the peer's reader sees TCP only. TCP is full, or the peer is returning
/// the bytes itself.
pub fn must_linger(record: &StreamRecord, slot: &Slot) -> bool {
    slot.outward().consumer.handed_over.load(Relaxed) != 0
        && is_unread(record, slot)
        && record.state() == State::Attached
}

/// Whether the last bytes that went over TCP were returned from the ring.
pub fn has_taken_back(record: &StreamRecord) -> bool {
    let (tcp, mark) = (record.tx.tcp_bytes.load(Relaxed), record.tx.mark.load(Relaxed));
    record.tx.returned_bytes.load(Relaxed) != 0 && tcp == mark
}

/// Returns bytes that the peer has not read to TCP, as many as TCP accepts. True: none is left in the ring.
///
/// Called before this process sleeps, ends its part in the stream, or hands its descriptor over (invariant 6), so a consumer that waits where Motet
/// cannot see it is woken by the kernel.
pub fn take_back<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P) -> bool {
    let tx = &record.tx;
    let _held = match acquire(&tx.lock, platform) {
        Acquired::Clean(held) => held,
        Acquired::Orphaned(_held) => {
            break_stream(record);
            return false;
        }
        Acquired::Reentrant | Acquired::Stale => return false,
    };
    if tx.ready.load(Relaxed) == 0 {
        tx.head_seen.store(tx.tail.load(Relaxed), Relaxed);
        return true;
    }
    match return_unread(record, slot, platform) {
        Returned::All => true,
        Returned::Part | Returned::Stuck => false,
        Returned::Broken => {
            break_stream(record);
            false
        }
    }
}

/// Where the bytes are that the peer had not read.
pub(super) enum Returned {
    /// None is in the ring: they were read, or are in TCP.
    All,
    /// Some are in the ring, because TCP is full. So the kernel is readable at the other end, and no reader sleeps over them.
    Part,
    /// They stay in the ring: the connection has failed, or TCP bytes were sent past the engine after them.
    Stuck,
    /// The peer broke the protocol.
    Broken,
}

/// Returns what the peer has not read to TCP. The lock is held.
#[inline]
pub(super) fn return_unread<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P) -> Returned {
    let tail = record.tx.tail.load(Relaxed);
    if slot.outward().consumer.seen_head() == tail {
        record.tx.head_seen.store(tail, Relaxed);
        return Returned::All;
    }
    return_unread_slow(record, slot, platform, tail)
}

/// Slow path of [`return_unread`]: there are unread bytes.
#[cold]
fn return_unread_slow<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P, tail: u64) -> Returned {
    let (tx, lines) = (&record.tx, slot.outward());
    if tx.kernel_calls.load(Relaxed) != 0 {
        return Returned::Stuck;
    }
    if lines.gate.lower_by_producer(tail).is_err() {
        return Returned::Broken;
    }
    if platform.tcp_failed(record.connection.pid.load(Relaxed)) {
        return Returned::Stuck; // unread bytes stay unread, so that the end of the stream is a reset
    }
    record.events.downgraded.fetch_add(1, Relaxed);
    tx.last_put.store(0, Relaxed); // TCP has less room: ask it before the next put
    for _ in 0..MAX_TAKE_BACK_PASSES {
        let met = lines.consumer.met();
        let Some(claimed) = claim_unread(lines, platform) else { return Returned::Broken };
        if !ring_bytes_are_last(record, lines, platform) {
            lines.consumer.release(claimed);
            return Returned::Stuck;
        }
        let Some(head) = return_bytes(record, slot, platform, claimed, tail) else {
            lines.consumer.release(claimed);
            return Returned::Broken;
        };
        if head != claimed {
            platform.tcp_push();
        }
        lines.mark.mark.store(tx.tcp_bytes.load(Relaxed), Relaxed);
        tx.mark.store(tx.tcp_bytes.load(Relaxed), Relaxed);
        lines.consumer.release(head); // edge: release -> settled (the mark travels with it)
        tx.head_seen.store(head, Relaxed);
        if head == tail {
            return Returned::All;
        }
        if lines.consumer.met() == met {
            break; // TCP is full, so the kernel is readable, and the consumer did not go to sleep meanwhile
        }
    }
    Returned::Part
}

/// Claims what is unread. A consumer that is returning it itself needs some microseconds, and the CPU. A consumer that keeps the claim longer breaks
/// the protocol.
fn claim_unread<P: Platform>(lines: &Lines, platform: &mut P) -> Option<u64> {
    let start = platform.now();
    loop {
        match lines.consumer.claim() {
            None if platform.now().wrapping_sub(start) < platform.ticks(CONSUMER_RETURN_LIMIT_NS) => {
                platform.yield_now()
            }
            claimed => return claimed,
        }
    }
}

/// Whether the ring's bytes are the last of the stream. TCP bytes that follow them were sent past the engine; if the descriptor was handed over, the
/// kernel is asked. The claim is held.
fn ring_bytes_are_last<P: Platform>(record: &StreamRecord, lines: &Lines, platform: &mut P) -> bool {
    let tx = &record.tx;
    let (tcp, shared) = (tx.tcp_bytes.load(Relaxed), lines.mark.mark.load(Relaxed));
    if shared != tx.mark.load(Relaxed) && platform.tcp_bytes_written(tcp) == shared {
        // The consumer has handed its descriptor over, and returned bytes in the producer's place.
        tx.tcp_bytes.store(shared, Relaxed);
        tx.mark.store(shared, Relaxed);
        return true;
    }
    tcp == tx.mark.load(Relaxed) && (tx.ready.load(Relaxed) != FINISHED || platform.tcp_bytes_written(tcp) == tcp)
}

/// Buffer for bytes on their way back to TCP. There is one for the process, because a thread's stack may be small. A thread that finds it in use (or a
/// child that was forked while it was) uses [`SMALL_RETURN_BYTES`] of its stack.
static RETURN_BUFFER: Mutex<[u8; 16 << 10]> = Mutex::new([0; 16 << 10]);
const SMALL_RETURN_BYTES: usize = 512;

/// Sends `head..tail` to TCP; returns the new head. `None`: the peer's head is impossible.
#[inline(never)]
fn return_bytes<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    mut head: u64,
    tail: u64,
) -> Option<u64> {
    let tx = &record.tx;
    if head < tx.head_seen.load(Relaxed) || head > tail {
        return None;
    }
    let (mut small, mut large) = ([0u8; SMALL_RETURN_BYTES], RETURN_BUFFER.try_lock().ok());
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
                slot.out_ring(tx.wide.load(Relaxed) != 0).read(head, &mut [IoSliceMut::new(&mut piece[..n])], 0, n);
                n
            }
        };
        match platform.tcp_send(&piece[..n]) {
            Ok(sent) => {
                head += sent as u64;
                tx.tcp_bytes.store(tx.tcp_bytes.load(Relaxed) + sent as u64, Relaxed);
                tx.returned_bytes.fetch_add(sent as u64, Relaxed);
                if sent < n {
                    break;
                }
            }
            // The error is consumed, so the next call must report it. (After a shutdown of this side EPIPE means nothing: the peer still reads the ring.)
            Err(errno) => {
                let shut = tx.ready.load(Relaxed) == FINISHED || platform.tcp_alive();
                if errno == ECONNRESET || errno == EPIPE && !shut {
                    break_stream(record);
                }
                break;
            }
        }
    }
    Some(head)
}
