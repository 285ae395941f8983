//! Bulk data: when the large ring is worth its memory, and how payload is copied into it.
//!
//! Two measured facts. A line that the other CPU's cache still holds is slow to overwrite, so a stream is fastest through a
//! ring larger than the caches between two uses of a line: several MiB. And between CPUs that share no cache that ring is
//! slow, unless the writer bypasses the caches. Which of the two holds changes with the placement of virtual CPUs, so the
//! writer measures what it gets through: [`CopyModeSelector`]. What it found also says from which size on a single copy is the better
//! way, as the ring's best case is several times as fast where a cache is shared.

use crate::stream::Platform;
use motet_wire::mapping::Mapping;
use motet_wire::stream::gate::READY_LARGE;
use motet_wire::stream::record::{StreamRecord, Tx};
use motet_wire::stream::slot::Slot;
use motet_wire::sync::AtomicU64;
use motet_wire::sync::Ordering::Relaxed;

/// A transfer of this size speaks for bulk, and is timed in the large ring.
pub const LARGE: usize = 8 << 10;
/// A stream is bulk from this score on: one for every `LARGE` bytes of large takes, less one for every small take.
pub const BULK: u32 = 64;
/// A message that is read in parts is bulk, too: omniORB reads 16 KiB as a header and about three parts, as they come. A take of at least this
/// many bytes is a part.
const PART: usize = 4608;
/// The second score, beside the first one in `rx.bulk_scores`: one for every so many bytes of parts, less [`SHORT`] for every shorter take.
const UNIT: usize = 512;
const SHORT: u32 = 6;
/// From this second score on (512 KiB), a stream gets a large ring if few streams of the process have one.
const PARTS: u32 = 1024;
/// Where the second score lies.
const SECOND: u32 = 16;
const FIRST: u32 = (1 << SECOND) - 1;
/// Bytes of large puts in a window.
const WINDOW: u32 = 1 << 20;
/// Bytes copied one way before the other is tried again; doubled by every try that changes nothing.
const REVIEW: u64 = 16 << 20;
/// A stream through the caches that is as fast as this (MB/s) needs no other way.
const FAST: u32 = 12_000;

/// So many bytes that went over TCP past an open gate show that the sender means it: it sends files, say, whose heads alone would fit the ring.
const PASSING: u32 = 1 << 20;
/// A pause of so many times 1024 ns between two parts of a block is its sender's or its reader's own: some 100 us.
const PAUSE: u64 = 98;
/// A byte from the ring outweighs so many of those.
const USE: u32 = 64;
/// Of bytes received over TCP behind a closed gate, one in so many speaks for another look.
const FORGET: u32 = 16;

/// Notes `n` bytes that came over TCP while the gate was open.
pub fn passed(record: &StreamRecord, n: usize) {
    let passed = record.rx.tcp_past_open_gate.load(Relaxed).saturating_add(n as u32);
    record.rx.tcp_past_open_gate.store(passed.min(2 * PASSING), Relaxed);
}

/// Whether bulk data comes past the gate as a rule: then receives do not open it, and shut it when they find it open. Waits open it all the
/// same: what comes first may be short.
pub fn passes(record: &StreamRecord) -> bool {
    record.rx.tcp_past_open_gate.load(Relaxed) >= PASSING
}

/// Notes `n` bytes received over TCP while the gate was closed.
pub fn came_behind(record: &StreamRecord, n: usize) {
    forgive(record, n as u32 / FORGET);
}

/// Notes `n` bytes from the ring.
#[inline(always)]
pub fn took_from_ring(record: &StreamRecord, n: usize) {
    took(record, n);
    forgive(record, (n as u32).saturating_mul(USE));
}

#[inline(always)]
fn forgive(record: &StreamRecord, n: u32) {
    let passed = record.rx.tcp_past_open_gate.load(Relaxed);
    if passed > 0 {
        record.rx.tcp_past_open_gate.store(passed.saturating_sub(n), Relaxed);
    }
}

/// Notes a take of `n` bytes.
#[inline(always)]
pub fn took(record: &StreamRecord, n: usize) {
    let word = record.rx.bulk_scores.load(Relaxed);
    let (mut score, mut parts) = (word & FIRST, word >> SECOND);
    if n >= LARGE {
        score = score.saturating_add((n / LARGE) as u32).min(2 * BULK);
    } else {
        score = score.saturating_sub(1);
    }
    if n >= PART {
        parts = parts.saturating_add((n / UNIT) as u32).min(PARTS);
    } else {
        parts = parts.saturating_sub(SHORT);
    }
    let next = score | parts << SECOND;
    if next != word {
        record.rx.bulk_scores.store(next, Relaxed);
    }
}

/// Notes `n` bytes that came by single copy: a stream that has its large ring keeps it, as the sender comes back to it.
#[inline(always)]
pub fn was_copied(record: &StreamRecord, n: usize) {
    if is_populated(record) {
        took(record, n);
    }
}

/// Whether bulk data flows, by whatever path.
#[inline(always)]
pub fn flows(record: &StreamRecord) -> bool {
    record.rx.bulk_scores.load(Relaxed) & FIRST >= BULK
}

/// Whether large takes outweigh small ones at all.
#[inline(always)]
pub fn has_large_takes(record: &StreamRecord) -> bool {
    record.rx.bulk_scores.load(Relaxed) & FIRST > 0
}

/// Values of `rx.large_ring_state`: there is no large ring for this stream; its pages are there.
const NEVER: u32 = u32::MAX;
const READY: u32 = NEVER - 1;

/// Whether the next epoch should use the large ring. The first time, its pages are brought into being.
pub fn wants_wide<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) -> bool {
    match record.rx.large_ring_state.load(Relaxed) {
        READY => record.rx.bulk_scores.load(Relaxed) > 0,
        NEVER => false,
        _ if !flows(record) => has_parts(record) && wants_one_of_few(record, slot, base),
        _ => {
            if slot.inward().mark.ready.load(Relaxed) != READY_LARGE {
                return false; // its producer has not mapped it
            }
            let ready = slot.bulk_memory().is_some_and(|memory| base.populate(memory, false));
            record.rx.large_ring_state.store(if ready { READY } else { NEVER }, Relaxed);
            ready
        }
    }
}

/// Whether messages come that are read in parts.
#[inline(always)]
pub fn has_parts(record: &StreamRecord) -> bool {
    record.rx.bulk_scores.load(Relaxed) >> SECOND >= PARTS
}

/// Whether a stream whose messages are read in parts gets a large ring. Where few others have one, that halves the time of a message of 8 to
/// 32 KiB; many such rings in turn do not fit the caches.
#[cold]
fn wants_one_of_few<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) -> bool {
    let score = record.rx.bulk_scores.load(Relaxed) & FIRST;
    record.rx.bulk_scores.store(score, Relaxed); // if there are too many now, it asks again later
    let mapped = slot.inward().mark.ready.load(Relaxed) == READY_LARGE;
    let ready = mapped && slot.bulk_memory().is_some_and(|memory| base.populate(memory, true));
    if ready {
        record.rx.bulk_scores.store(score | PARTS << SECOND, Relaxed);
        record.rx.large_ring_state.store(READY, Relaxed);
    }
    ready
}

/// Whether this end has populated its large ring.
pub fn is_populated(record: &StreamRecord) -> bool {
    record.rx.large_ring_state.load(Relaxed) == READY
}

/// Large blocks on their way into a receiver's memory, timed from the first bytes that are there to the last ones. It is this process's own,
/// and guarded by the lock of the receiving half.
///
/// A sender alone cannot tell: a store around the caches is over for it long before its bytes can be read. (A stream whose sender waits for
/// space tells it all the same.)
#[derive(Debug, Default)]
pub struct ArrivalTimer {
    /// Where the rest of a block is wanted; 0: nothing is.
    next: AtomicU64,
    /// When its last bytes were taken, ticks.
    ended: AtomicU64,
    /// The window: bytes, and ticks that they took.
    bytes: AtomicU64,
    spent: AtomicU64,
}

impl ArrivalTimer {
    /// Notes `n` bytes taken from `began` to `ended` (ticks) to address `at`, where `room` were wanted. Now and then: the rate, MB/s.
    pub fn took(
        &self,
        (at, n, room): (u64, usize, usize),
        (began, ended): (u64, u64),
        ticks_per_1024ns: u64,
    ) -> Option<u32> {
        // What its sender did before a block is not the block's time; what passes between its parts is, but for pauses of either end.
        let before = self.ended.load(Relaxed);
        let goes_on = self.next.load(Relaxed) == at && began.saturating_sub(before) < PAUSE * ticks_per_1024ns;
        let since = if goes_on { before } else { began };
        let on = n >= LARGE && n < room;
        self.next.store(if on { at.wrapping_add(n as u64) } else { 0 }, Relaxed);
        self.ended.store(ended, Relaxed);
        let bytes = self.bytes.load(Relaxed) + n as u64;
        let spent = self.spent.load(Relaxed) + ended.saturating_sub(since);
        let full = bytes >= u64::from(WINDOW);
        self.bytes.store(if full { 0 } else { bytes }, Relaxed);
        self.spent.store(if full { 0 } else { spent }, Relaxed);
        let rate = || u128::from(bytes) * 1000 * u128::from(ticks_per_1024ns) / 1024 / u128::from(spent.max(1));
        full.then(|| u32::try_from(rate()).unwrap_or(u32::MAX).max(1))
    }
}

/// How the writer copies large puts into the large ring: through its caches or around them, whichever has moved more bytes a
/// second lately, waiting for the reader included. The first windows of a try bring the ring's lines where they are used; only
/// the one after them counts.
pub struct CopyModeSelector<'a>(pub &'a Tx);

/// Bits of `tx.copy_mode`: the way in use; TRYING while the other way is the one to go back to; windows that do not count yet, times
/// SETTLING; how many tries in a row have changed nothing, times CONFIRMED; FELL after a window of less than half the rate before.
const THROUGH: u32 = 1;
const AROUND: u32 = 2;
const TRYING: u32 = 4;
const SETTLING: u32 = 8;
const CONFIRMED: u32 = 64;
const MOST_CONFIRMED: u32 = 6;
const FELL: u32 = 1024;

/// A way that begins now. Around the caches the first window counts for nothing; through them it takes all of the large ring
/// until its lines are where they are used.
fn beginning(way: u32) -> u32 {
    way | (SETTLING * if way == THROUGH { 4 } else { 1 })
}

impl CopyModeSelector<'_> {
    /// Around the caches?
    #[inline(always)]
    pub fn is_non_temporal(&self) -> bool {
        self.0.copy_mode.load(Relaxed) & AROUND != 0
    }

    /// Whether the way around the caches is in use, and not only as a try.
    #[inline(always)]
    pub fn is_settled_non_temporal(&self) -> bool {
        self.0.copy_mode.load(Relaxed) & (AROUND | TRYING) == AROUND
    }

    /// Whether the two CPUs seem to share no cache that would do: neither way through the ring is fast. (During a try of either
    /// way they count as near, so that what could go by single copy earlier is put into the ring, and timed.)
    #[inline(always)]
    pub fn cpus_are_far(&self) -> bool {
        let tx = self.0;
        let way = tx.copy_mode.load(Relaxed);
        let slow = || (1..FAST).contains(&tx.copy_rates[THROUGH as usize - 1].load(Relaxed));
        way & TRYING == 0 && (way & AROUND != 0 || way & (CONFIRMED - SETTLING) == 0 && slow())
    }

    /// Notes a single copy of `n` bytes. Where such copies take the place of puts around the caches, no put would ever tell that
    /// the CPUs have become near; so they bring the next try through the caches closer, and begin it.
    #[inline(always)]
    pub fn note_single_copy(&self, n: usize) {
        if self.cpus_are_far() && !self.later(n as u64) {
            self.try_other(self.0.copy_mode.load(Relaxed) % FELL / CONFIRMED);
        }
    }

    /// Whoever receives says which way is the better one.
    #[inline(always)]
    pub fn set_mode(&self, around: bool) {
        let way = if around { AROUND } else { THROUGH };
        if self.0.copy_mode.load(Relaxed) != way {
            self.0.copy_mode.store(way, Relaxed);
        }
    }

    /// Before a large put into `ring`; at the first one its pages are there, but not yet in this process's page tables.
    #[inline(always)]
    pub fn begin<B: Platform>(&self, ring: Option<Mapping>, base: &mut B) {
        if self.start()
            && let Some(ring) = ring
        {
            base.prefault(ring);
        }
    }

    /// The same; true at the first one.
    #[inline(always)]
    pub fn start(&self) -> bool {
        let first = self.0.copy_mode.load(Relaxed) == 0;
        if first {
            self.0.copy_mode.store(beginning(THROUGH), Relaxed);
        }
        first
    }

    /// Notes a large put of `n` bytes that took `ticks`, and decides anew when a window is full: by that, or by the rate at which such bytes
    /// have `landed` (0: unknown) where that is less.
    #[inline(always)]
    pub fn note_put<B: Platform>(&self, base: &B, n: usize, ticks: u64, landed: impl FnOnce() -> u32) {
        self.note_put_at_rate(|| base.ticks_per_1024ns(), n, ticks, landed);
    }

    /// The same with the clock's rate alone.
    #[inline(always)]
    pub fn note_put_at_rate(
        &self,
        ticks_per_1024ns: impl FnOnce() -> u64,
        n: usize,
        ticks: u64,
        landed: impl FnOnce() -> u32,
    ) {
        let tx = self.0;
        let bytes = tx.window_bytes.load(Relaxed).saturating_add(n as u32);
        tx.window_bytes.store(bytes, Relaxed);
        tx.window_ticks.store(tx.window_ticks.load(Relaxed) + ticks, Relaxed);
        if bytes >= WINDOW {
            self.decide(ticks_per_1024ns(), bytes, landed());
        }
    }

    #[cold]
    fn decide(&self, ticks_per_1024ns: u64, bytes: u32, landed: u32) {
        let tx = self.0;
        let ns = ((tx.window_ticks.load(Relaxed) << 10) / ticks_per_1024ns.max(1)).max(1);
        let rate = u32::try_from(u64::from(bytes) * 1000 / ns).unwrap_or(u32::MAX);
        let rate = if landed == 0 { rate } else { rate.min(landed) };
        tx.window_bytes.store(0, Relaxed);
        tx.window_ticks.store(0, Relaxed);
        let way = tx.copy_mode.load(Relaxed);
        let (here, trying, confirmed) = (way & (THROUGH | AROUND), way & TRYING != 0, way % FELL / CONFIRMED);
        let there = here ^ (THROUGH | AROUND);
        let other = tx.copy_rates[there as usize - 1].load(Relaxed);
        let hopeless = trying && rate < other / 2;
        if way & (CONFIRMED - SETTLING) != 0 && !hopeless {
            return tx.copy_mode.store(way - SETTLING, Relaxed);
        }
        let before = tx.copy_rates[here as usize - 1].load(Relaxed);
        // One such window is another process's time slice, two are a changed machine.
        let falls = !trying && rate < before / 2;
        if falls && way & FELL == 0 {
            return tx.copy_mode.store(way | FELL, Relaxed);
        }
        tx.copy_rates[here as usize - 1].store(rate, Relaxed);
        let fast = here == THROUGH && rate >= FAST;
        let next = if trying {
            let better = fast || rate > other + other / 4;
            let confirmed = if better { 0 } else { (confirmed + 1).min(MOST_CONFIRMED) };
            tx.bytes_until_retry.store(REVIEW << confirmed, Relaxed);
            (confirmed * CONFIRMED) | if better { here } else { beginning(there) }
        } else if fast || !falls && self.later(u64::from(bytes)) {
            way & !FELL
        } else {
            return self.try_other(if falls { 0 } else { confirmed });
        };
        tx.copy_mode.store(next, Relaxed);
    }

    /// Begins a try of the way that is not in use.
    #[cold]
    fn try_other(&self, confirmed: u32) {
        let tx = self.0;
        let way = tx.copy_mode.load(Relaxed);
        let there = (way & (THROUGH | AROUND)) ^ (THROUGH | AROUND);
        tx.window_bytes.store(0, Relaxed);
        tx.window_ticks.store(0, Relaxed);
        tx.copy_mode.store((confirmed * CONFIRMED) | beginning(there) | TRYING, Relaxed);
    }

    /// Whether the next try of the other way is still to come.
    fn later(&self, bytes: u64) -> bool {
        let left = self.0.bytes_until_retry.load(Relaxed).saturating_sub(bytes);
        self.0.bytes_until_retry.store(left, Relaxed);
        left > 0
    }
}
