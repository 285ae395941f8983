//! Bulk data: when the large ring is worth its memory, and how payload is copied into it.
//!
//! Two measured facts. A cache line that the other CPU still holds is slow to overwrite, so a stream is fastest through a ring that is larger than
//! the caches: several MiB. Between CPUs that share no cache that ring is slow, unless the writer bypasses the caches. The placement of virtual CPUs
//! changes, so the writer measures its throughput ([`crate::copy_mode`]). The result also decides from which size on a single copy is better, because
//! the ring is several times as fast between CPUs that share a cache.

use crate::copy_mode::{WINDOW_BYTES, mb_per_s};
use crate::stream::Platform;
use motet_wire::stream::gate::READY_LARGE;
use motet_wire::stream::record::StreamRecord;
use motet_wire::stream::slot::Slot;
use motet_wire::sync::AtomicU64;
use motet_wire::sync::Ordering::Relaxed;

/// A transfer of this size or more is large: it counts as bulk, and is timed in the large ring.
pub const LARGE_TRANSFER_BYTES: usize = 8 << 10;
/// A stream is bulk from this score on: plus one for every `LARGE_TRANSFER_BYTES` bytes of large takes, minus one for every small take.
pub const BULK_SCORE: u32 = 64;
/// A take of at least so many bytes is a part. A message that is read in parts is bulk, too: omniORB reads 16 KiB as a header and about three parts.
const PART_MIN_BYTES: usize = 4608;
/// The parts score counts one for every so many bytes of parts.
const PART_SCORE_UNIT_BYTES: usize = 512;
/// The parts score loses so many for every take that is no part.
const SHORT_TAKE_PENALTY: u32 = 6;
/// From this parts score on (512 KiB), a stream gets a large ring if few streams of the process have one.
const PARTS_SCORE: u32 = 1024;
/// Position of the parts score in `rx.bulk_scores`.
const PARTS_SHIFT: u32 = 16;
/// Bits of the bulk score in `rx.bulk_scores`.
const BULK_MASK: u32 = (1 << PARTS_SHIFT) - 1;

/// After so many bytes over TCP past an open gate the sender is assumed to bypass the ring as a rule: it sends files, for example (sendfile).
const PAST_GATE_LIMIT_BYTES: u32 = 1 << 20;
/// A gap of so many times 1024 ns (about 100 us) between two parts of a block was caused by the sender or the reader, not by the transfer.
const MAX_PART_GAP_1024NS: u64 = 98;
/// One byte from the ring cancels so many bytes that passed the open gate.
const RING_BYTE_WEIGHT: u32 = 64;
/// So many bytes over TCP behind a closed gate cancel one byte that passed the open gate, so the gate is tried again.
const BYTES_PER_FORGIVEN_BYTE: u32 = 16;

/// Notes `n` bytes received over TCP while the gate was open.
pub fn note_bytes_past_open_gate(record: &StreamRecord, n: usize) {
    let passed = record.rx.tcp_past_open_gate.load(Relaxed).saturating_add(n as u32);
    record.rx.tcp_past_open_gate.store(passed.min(2 * PAST_GATE_LIMIT_BYTES), Relaxed);
}

/// Whether bulk data bypasses the open gate as a rule. If so, receives do not open the gate, and close it if it is open. Waits open it nevertheless,
/// because the next payload may be short.
pub fn bypasses_gate(record: &StreamRecord) -> bool {
    record.rx.tcp_past_open_gate.load(Relaxed) >= PAST_GATE_LIMIT_BYTES
}

/// Notes `n` bytes received over TCP while the gate was closed.
pub fn note_bytes_behind_closed_gate(record: &StreamRecord, n: usize) {
    reduce_bytes_past_gate(record, n as u32 / BYTES_PER_FORGIVEN_BYTE);
}

/// Notes `n` bytes from the ring.
#[inline(always)]
pub fn note_ring_take(record: &StreamRecord, n: usize) {
    note_take(record, n);
    reduce_bytes_past_gate(record, (n as u32).saturating_mul(RING_BYTE_WEIGHT));
}

#[inline(always)]
fn reduce_bytes_past_gate(record: &StreamRecord, n: u32) {
    let passed = record.rx.tcp_past_open_gate.load(Relaxed);
    if passed > 0 {
        record.rx.tcp_past_open_gate.store(passed.saturating_sub(n), Relaxed);
    }
}

/// Notes a take of `n` bytes.
#[inline(always)]
pub fn note_take(record: &StreamRecord, n: usize) {
    let word = record.rx.bulk_scores.load(Relaxed);
    let (mut score, mut parts) = (word & BULK_MASK, word >> PARTS_SHIFT);
    if n >= LARGE_TRANSFER_BYTES {
        score = score.saturating_add((n / LARGE_TRANSFER_BYTES) as u32).min(2 * BULK_SCORE);
    } else {
        score = score.saturating_sub(1);
    }
    if n >= PART_MIN_BYTES {
        parts = parts.saturating_add((n / PART_SCORE_UNIT_BYTES) as u32).min(PARTS_SCORE);
    } else {
        parts = parts.saturating_sub(SHORT_TAKE_PENALTY);
    }
    let next = score | parts << PARTS_SHIFT;
    if next != word {
        record.rx.bulk_scores.store(next, Relaxed);
    }
}

/// Notes `n` bytes received by single copy: a stream that has its large ring keeps it, because the sender uses both.
#[inline(always)]
pub fn note_single_copy_received(record: &StreamRecord, n: usize) {
    if has_large_ring_pages(record) {
        note_take(record, n);
    }
}

/// Whether the stream carries bulk data, on any path.
#[inline(always)]
pub fn is_bulk(record: &StreamRecord) -> bool {
    record.rx.bulk_scores.load(Relaxed) & BULK_MASK >= BULK_SCORE
}

/// Whether large takes outweigh small ones at all.
#[inline(always)]
pub fn has_large_takes(record: &StreamRecord) -> bool {
    record.rx.bulk_scores.load(Relaxed) & BULK_MASK > 0
}

/// Value of `rx.large_ring_state`: this stream gets no large ring.
const NO_LARGE_RING: u32 = u32::MAX;
/// Value of `rx.large_ring_state`: the pages of the large ring are allocated.
const LARGE_RING_READY: u32 = NO_LARGE_RING - 1;

/// Whether the next epoch should use the large ring. Allocates its pages the first time.
pub fn wants_large_ring<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P) -> bool {
    match record.rx.large_ring_state.load(Relaxed) {
        LARGE_RING_READY => record.rx.bulk_scores.load(Relaxed) > 0,
        NO_LARGE_RING => false,
        _ if !is_bulk(record) => is_read_in_parts(record) && wants_one_of_few_large_rings(record, slot, platform),
        _ => {
            if slot.inward().mark.ready.load(Relaxed) != READY_LARGE {
                return false; // the producer has not mapped it
            }
            let ready = slot.bulk_memory().is_some_and(|memory| platform.populate(memory, false));
            record.rx.large_ring_state.store(if ready { LARGE_RING_READY } else { NO_LARGE_RING }, Relaxed);
            ready
        }
    }
}

/// Whether the program reads its messages in parts.
#[inline(always)]
pub fn is_read_in_parts(record: &StreamRecord) -> bool {
    record.rx.bulk_scores.load(Relaxed) >> PARTS_SHIFT >= PARTS_SCORE
}

/// Whether a stream whose messages are read in parts gets a large ring. If few other streams have one, that halves the time of a message of 8 to
/// 32 KiB. Many such rings, used in turn, do not fit the caches.
#[cold]
fn wants_one_of_few_large_rings<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P) -> bool {
    let score = record.rx.bulk_scores.load(Relaxed) & BULK_MASK;
    record.rx.bulk_scores.store(score, Relaxed); // if there are too many, it asks again later
    let mapped = slot.inward().mark.ready.load(Relaxed) == READY_LARGE;
    let ready = mapped && slot.bulk_memory().is_some_and(|memory| platform.populate(memory, true));
    if ready {
        record.rx.bulk_scores.store(score | PARTS_SCORE << PARTS_SHIFT, Relaxed);
        record.rx.large_ring_state.store(LARGE_RING_READY, Relaxed);
    }
    ready
}

/// Whether this end has populated its large ring.
pub fn has_large_ring_pages(record: &StreamRecord) -> bool {
    record.rx.large_ring_state.load(Relaxed) == LARGE_RING_READY
}

/// Times the arrival of large blocks, from their first bytes to their last ones. Private to the process; guarded by the lock of the receiving half.
///
/// The sender alone cannot measure this: a non-temporal store is over for it long before the bytes can be read.
#[derive(Debug, Default)]
pub struct ArrivalTimer {
    /// The address at which the rest of a block is expected; 0: none.
    next: AtomicU64,
    /// When the last bytes were taken, ticks.
    ended: AtomicU64,
    /// Bytes in the current window.
    bytes: AtomicU64,
    /// Ticks that these bytes took.
    spent: AtomicU64,
}

impl ArrivalTimer {
    /// Notes `n` bytes taken from `began` to `ended` (ticks) to address `at`, with space for `room` bytes. Returns the rate (MB/s) when a window is full.
    pub fn note_take(
        &self,
        (at, n, room): (u64, usize, usize),
        (began, ended): (u64, u64),
        ticks_per_1024ns: u64,
    ) -> Option<u32> {
        // The time between two parts of a block counts, unless one of the ends paused. The time before a block does not.
        let before = self.ended.load(Relaxed);
        let goes_on =
            self.next.load(Relaxed) == at && began.saturating_sub(before) < MAX_PART_GAP_1024NS * ticks_per_1024ns;
        let since = if goes_on { before } else { began };
        let on = n >= LARGE_TRANSFER_BYTES && n < room;
        self.next.store(if on { at.wrapping_add(n as u64) } else { 0 }, Relaxed);
        self.ended.store(ended, Relaxed);
        let bytes = self.bytes.load(Relaxed) + n as u64;
        let spent = self.spent.load(Relaxed) + ended.saturating_sub(since);
        let full = bytes >= u64::from(WINDOW_BYTES);
        self.bytes.store(if full { 0 } else { bytes }, Relaxed);
        self.spent.store(if full { 0 } else { spent }, Relaxed);
        full.then(|| mb_per_s(bytes, spent, ticks_per_1024ns).max(1))
    }
}
