//! Large payload with one copy: from the sender's memory straight into that of a receiver that already waits.
//!
//! The receiver shows its buffer while it spins ([`post`]); a sender with enough bytes makes the transfer active
//! ([`send`]); then both copy pieces, each claimed by a counter, until none is left ([`receive`] is the receiver's half).
//! A side that the kernel does not let into the other's memory leaves the copying to the other; when neither may, nothing
//! is ever posted and the ring serves.
//!
//! The bytes of a transfer take no part in the ring's counts: it happens only while ring and TCP are both empty between
//! the two ends, which the receiver's posted position proves to the sender.

use crate::{Base, ECONNRESET, Errno};
use motet_wire::record::{Record, State};
use motet_wire::slot::Slot;
use motet_wire::slot::transfer::{ACTIVE, DONE, IDLE, POSTED};
use motet_wire::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use motet_wire::sync::{AtomicU64, relax};

/// Largest piece of a copy that both sides make, bytes. Up to twice this each copies one half: dividing further only costs
/// calls.
const PIECE: usize = 2 << 20;
/// Smallest piece, bytes: below, the call costs more than the copy.
const SMALLEST: usize = 16 << 10;
/// A sender whose last large send met a waiting receiver waits this long (ns) for the next one.
const HOPE: u64 = 3_000;
/// A peer that makes no progress for this long (ns) is looked at.
const LOOK: u64 = 10_000_000;
/// Values of `tx.may_copy`: not yet known, yes, no.
const UNKNOWN: u32 = 0;
const YES: u32 = 1;
const NO: u32 = 2;

/// Where this side's proof lies: the peer reads the two cookies there.
pub fn proof(record: &Record) -> u64 {
    (&raw const record.who.cookies) as u64
}

/// Whether this process may copy from and to the peer's memory; found out once.
fn may_copy<B: Base>(record: &Record, slot: &Slot, base: &mut B) -> bool {
    match record.tx.may_copy.load(Relaxed) {
        UNKNOWN => {
            let transfer = &slot.inward().transfer;
            let address = transfer.proof.load(Acquire);
            if address == 0 {
                return false; // the peer is not ready yet: ask again
            }
            let mut seen = [0; 16];
            let cookies = [1, 0].map(|i| record.who.cookies[i].load(Relaxed).to_ne_bytes());
            let yes =
                base.copy_from(record.who.pid.load(Relaxed), address, &mut seen) && seen == *cookies.as_flattened();
            transfer.may_copy.store(u32::from(yes), Release);
            record.tx.may_copy.store(if yes { YES } else { NO }, Relaxed);
            yes
        }
        known => known == YES,
    }
}

/// Only the process that brought the wire up may take part: the attested pid of a forked child is another.
fn ours<B: Base>(record: &Record, base: &B) -> bool {
    u64::from(record.life.owner.load(Relaxed)) == base.token() >> 32
}

// ---- receiver -------------------------------------------------------------------------------------------------------

/// Shows `buf` to the sender. True when it is posted: the caller must [`withdraw`] or [`receive`].
pub fn post<B: Base>(record: &Record, slot: &Slot, base: &mut B, buf: &[u8]) -> bool {
    let transfer = &slot.inward().transfer;
    let able = may_copy(record, slot, base) || slot.outward().transfer.may_copy.load(Acquire) != 0;
    if !able || !ours(record, base) || transfer.state.load(Acquire) != IDLE {
        return false;
    }
    let Some(_held) = crate::rx::clean(record, base) else { return false };
    if transfer.state.load(Acquire) != IDLE {
        return false; // another thread of this process has posted
    }
    transfer.into.store(buf.as_ptr() as u64, Relaxed);
    transfer.into_length.store(buf.len() as u64, Relaxed);
    transfer.at[0].store(record.rx.head.load(Relaxed), Relaxed);
    transfer.at[1].store(record.rx.tcp.load(Relaxed), Relaxed);
    transfer.next.store(0, Relaxed);
    transfer.finished[0].store(0, Relaxed);
    transfer.finished[1].store(0, Relaxed);
    transfer.state.store(POSTED, Release); // edge: post -> send
    true
}

/// Whether the sender has taken the offer.
#[inline(always)]
pub fn taken(slot: &Slot) -> bool {
    slot.inward().transfer.state.load(Relaxed) != POSTED
}

/// Takes the offer back. False: too late, [`receive`] it.
pub fn withdraw(slot: &Slot) -> bool {
    slot.inward().transfer.state.compare_exchange(POSTED, IDLE, AcqRel, Relaxed).is_ok()
}

/// The receiver's half of an active transfer into the posted `buf`; returns its length.
pub fn receive<B: Base>(record: &Record, slot: &Slot, base: &mut B, buf: &mut [u8]) -> Result<usize, Errno> {
    let transfer = &slot.inward().transfer;
    let _ = transfer.state.load(Acquire); // edge: send -> receive
    let length = transfer.length.load(Relaxed);
    let piece = transfer.piece.load(Relaxed);
    let from = transfer.from.load(Relaxed);
    let Some(plan) = Plan::check(length, piece, buf.len()) else { return broken(record) };
    if may_copy(record, slot, base) && base.tcp_alive() {
        let pid = record.who.pid.load(Relaxed);
        while let Some((start, end)) = plan.claim(&transfer.next) {
            if !base.copy_from(pid, from.wrapping_add(start as u64), &mut buf[start..end]) {
                return broken(record);
            }
            transfer.finished[1].fetch_add(1, Release); // edge: finished
        }
    }
    if !wait(base, || transfer.state.load(Acquire) == DONE) {
        return broken(record);
    }
    transfer.state.store(IDLE, Release);
    record.rx.copied.fetch_add(plan.length as u64, Relaxed);
    Ok(plan.length)
}

// ---- sender, under the lock of its half -----------------------------------------------------------------------------

/// Sends `buf` into a waiting receiver's memory, as much as it takes; from `half` bytes on both sides copy, below one of them.
/// `None`: nobody waits, use the ring.
pub fn send<B: Base>(
    record: &Record,
    slot: &Slot,
    base: &mut B,
    buf: &[u8],
    (tail, half): (u64, usize),
) -> Option<Result<usize, Errno>> {
    let transfer = &slot.outward().transfer;
    let here = || {
        transfer.state.load(Acquire) == POSTED
            && transfer.at[0].load(Relaxed) == tail
            && transfer.at[1].load(Relaxed) == record.tx.tcp.load(Relaxed)
    };
    if !here() && (record.tx.hopeful.load(Relaxed) == 0 || !soon(base, slot, tail, here)) {
        record.tx.hopeful.store(0, Relaxed);
        return None;
    }
    let copies = may_copy(record, slot, base);
    if !ours(record, base) || !(copies || transfer.may_copy.load(Acquire) != 0) {
        return None;
    }
    if !base.tcp_alive() {
        return None; // its pid may be somebody else's by now
    }
    let into = transfer.into.load(Relaxed);
    let length = buf.len().min(usize::try_from(transfer.into_length.load(Relaxed)).unwrap_or(0));
    if length == 0 {
        return None;
    }
    let one = length.max(SMALLEST);
    let piece = if length < half { one } else { (length / 2).next_multiple_of(4096).clamp(SMALLEST, PIECE) };
    transfer.from.store(buf.as_ptr() as u64, Relaxed);
    transfer.length.store(length as u64, Relaxed);
    transfer.piece.store(piece as u64, Relaxed);
    if transfer.state.compare_exchange(POSTED, ACTIVE, AcqRel, Relaxed).is_err() {
        return None; // edge: send -> receive; the receiver has just given up
    }
    let plan = Plan { length, piece };
    let pid = record.who.pid.load(Relaxed);
    while copies && let Some((start, end)) = plan.claim(&transfer.next) {
        if !base.copy_to(pid, into.wrapping_add(start as u64), &buf[start..end]) {
            return Some(broken(record));
        }
        transfer.finished[0].fetch_add(1, Release);
    }
    let all = plan.pieces();
    let finished = || transfer.finished.iter().map(|n| n.load(Acquire)).fold(0, u64::saturating_add) >= all;
    if !wait(base, finished) {
        return Some(broken(record));
    }
    transfer.state.store(DONE, Release);
    record.tx.copied.fetch_add(length as u64, Relaxed);
    record.tx.hopeful.store(1, Relaxed);
    record.events.single_copy.fetch_add(1, Relaxed);
    Some(Ok(length))
}

/// Waits a little for the receiver to come back, as long as it still looks at the ring.
fn soon<B: Base>(base: &mut B, slot: &Slot, tail: u64, here: impl Fn() -> bool) -> bool {
    let (start, limit) = (base.now(), base.ticks(HOPE));
    while base.now().wrapping_sub(start) < limit {
        if here() {
            return true;
        }
        if !matches!(slot.outward().gate.mode(tail), Ok(motet_wire::gate::Mode::Ring | motet_wire::gate::Mode::Wide)) {
            return false;
        }
        relax();
    }
    false
}

/// How a transfer is cut.
struct Plan {
    length: usize,
    piece: usize,
}

impl Plan {
    /// What the sender says, bounded by what the receiver posted.
    fn check(length: u64, piece: u64, posted: usize) -> Option<Self> {
        let (length, piece) = (usize::try_from(length).ok()?, usize::try_from(piece).ok()?);
        ((1..=posted).contains(&length) && (4096..=PIECE.max(posted)).contains(&piece))
            .then_some(Self { length, piece })
    }

    fn pieces(&self) -> u64 {
        self.length.div_ceil(self.piece) as u64
    }

    /// The next piece that nobody has claimed.
    fn claim(&self, next: &AtomicU64) -> Option<(usize, usize)> {
        let n = next.fetch_add(1, Relaxed);
        let start = usize::try_from(n).ok()?.checked_mul(self.piece)?;
        (start < self.length).then(|| (start, (start + self.piece).min(self.length)))
    }
}

/// Spins until `done`; false when the peer is gone.
fn wait<B: Base>(base: &mut B, done: impl Fn() -> bool) -> bool {
    let mut rounds = 0u32;
    let mut looked = base.now();
    loop {
        if done() {
            return true;
        }
        relax();
        rounds += 1;
        if rounds.is_multiple_of(64) {
            if rounds > 4096 {
                base.yield_now();
            }
            let now = base.now();
            if now.wrapping_sub(looked) > base.ticks(LOOK) {
                looked = now;
                if !base.tcp_alive() {
                    return done();
                }
            }
        }
    }
}

#[cold]
fn broken(record: &Record) -> Result<usize, Errno> {
    record.life.state.store(State::Broken as u32, Release);
    Err(ECONNRESET)
}
