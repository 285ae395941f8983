//! Large payload with one copy: from the sender's memory straight into that of a receiver that already waits.
//!
//! The receiver shows its buffer while it spins ([`post`]); a sender with enough bytes makes the transfer active
//! ([`send`]); then both copy pieces, each claimed by a counter, until none is left ([`receive`] is the receiver's half).
//! A side that the kernel does not let into the other's memory leaves the copying to the other; when neither may, nothing
//! is ever posted and the ring serves.
//!
//! The receiver stays until the sender has said that it is over, as the sender may be writing into its buffer. The sender
//! need not: when the receiver does not get on (it was stopped, or its CPU is wanted), the sender *cuts* the transfer. What is
//! certainly there up to the first unfinished piece counts as sent; the rest goes through the ring or TCP like any payload.
//! A receiver that comes back in the middle of a piece copies from memory that may hold something else by now, but only to
//! behind the cut, where its buffer means nothing.
//!
//! A pid is a number: [`Platform::is_same_process`] is asked before every write into the peer's memory and after every read from it.
//!
//! The bytes of a transfer take no part in the ring's counts: it happens only while ring and TCP are both empty between
//! the two ends, which the receiver's posted position proves to the sender.

use crate::{
    ECONNRESET, Errno,
    stream::{Platform, bulk},
};
use motet_wire::stream::record::{State, StreamRecord};
use motet_wire::stream::slot::Slot;
use motet_wire::stream::slot::transfer::{ACTIVE, CUT, DONE, IDLE, POSTED};
use motet_wire::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use motet_wire::sync::{AtomicU64, relax};

/// Largest piece of a copy that both sides make, bytes. Up to twice this each copies one half: dividing further only costs
/// calls.
const PIECE: usize = 2 << 20;
/// Smallest piece, bytes: below, the call costs more than the copy.
const SMALLEST: usize = 16 << 10;
/// A sender waits so long (ns) for a receiver that may be about to wait: it has just read what says how much comes, and makes room for it.
/// For a large block a ns for so many bytes, which is a small part of what the copy gains; within bounds.
const HOPE: u64 = 3_000;
const BYTES_OF_HOPE: u64 = 64;
const MOST_HOPE: u64 = 100_000;
/// A failed wait is followed by one large send without, then by twice as many and one, up to this.
const MOST_PASSED: u32 = 63;
const HOPELESS: u32 = 1 << 8;
/// A block's beginning has gone ahead.
const AHEAD: u32 = 1 << 31;
/// A connection on which nothing gets on for this long (ns) is looked at.
const LOOK: u64 = 10_000_000;
/// A sender cuts a transfer whose receiver does not get on for this long (ns).
const PATIENCE: u64 = 20_000_000;
/// The same for a sender that must not block.
const PATIENCE_NONBLOCKING: u64 = 1_000_000;
/// A receiver whose sender does not get on sleeps for this long (ns) between two looks, after the first such time.
const NAP: u64 = 1_000_000;
/// Values of `tx.may_copy`: not yet known, yes, no.
const UNKNOWN: u32 = 0;
const YES: u32 = 1;
const NO: u32 = 2;

/// Where this side's proof lies: the peer reads the two cookies there.
pub fn proof_address(record: &StreamRecord) -> u64 {
    (&raw const record.connection.cookies) as u64
}

/// Whether this process may copy from and to the peer's memory; found out once.
fn may_copy<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) -> bool {
    match record.tx.may_copy.load(Relaxed) {
        UNKNOWN => {
            let transfer = &slot.inward().transfer;
            let address = transfer.proof.load(Acquire);
            if address == 0 {
                return false; // the peer is not ready yet: ask again
            }
            let mut seen = [0; 16];
            let cookies = [1, 0].map(|i| record.connection.cookies[i].load(Relaxed).to_ne_bytes());
            let pid = record.connection.pid.load(Relaxed);
            // Asked first, the process is remembered; asked again, it was the one whose memory was read.
            let yes = base.is_same_process(pid)
                && base.read_peer_memory(pid, address, &mut seen)
                && base.is_same_process(pid)
                && seen == *cookies.as_flattened();
            transfer.may_copy.store(u32::from(yes), Release);
            record.tx.may_copy.store(if yes { YES } else { NO }, Relaxed);
            yes
        }
        known => known == YES,
    }
}

/// Only the process that brought the wire up may take part: the attested pid of a forked child is another.
fn ours<B: Platform>(record: &StreamRecord, base: &B) -> bool {
    u64::from(record.lifecycle.owner.load(Relaxed)) == base.lock_token() >> 32
}

// ---- receiver -------------------------------------------------------------------------------------------------------

/// Shows `buf` to the sender. True when it is posted: the caller must [`withdraw`] or [`receive`].
pub fn post<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B, buf: &[u8]) -> bool {
    let transfer = &slot.inward().transfer;
    let able = may_copy(record, slot, base) || slot.outward().transfer.may_copy.load(Acquire) != 0;
    if !able || !ours(record, base) || transfer.state.load(Acquire) != IDLE {
        return false;
    }
    let Some(_held) = crate::stream::gate::clean(record, base) else { return false };
    if transfer.state.load(Acquire) != IDLE {
        return false; // another thread of this process has posted
    }
    transfer.into.store(buf.as_ptr() as u64, Relaxed);
    transfer.into_length.store(buf.len() as u64, Relaxed);
    transfer.at[0].store(record.rx.head.load(Relaxed), Relaxed);
    transfer.at[1].store(record.rx.tcp_bytes.load(Relaxed), Relaxed);
    transfer.next.store(0, Relaxed);
    transfer.finished.store(0, Relaxed);
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

/// The receiver's half of an active transfer into the posted `buf`; returns the bytes that came. 0: the sender has changed its
/// mind, look at the ring again.
pub fn receive<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B, buf: &mut [u8]) -> Result<usize, Errno> {
    let transfer = &slot.inward().transfer;
    let active = || transfer.state.load(Acquire) == ACTIVE; // edge: send -> receive
    let (mut on, mut failed) = (active(), false);
    let Some(plan) = Plan::check(transfer.length.load(Relaxed), transfer.piece.load(Relaxed), buf.len()) else {
        return broken(record);
    };
    if on && may_copy(record, slot, base) && base.tcp_alive() {
        let (pid, from) = (record.connection.pid.load(Relaxed), transfer.from.load(Relaxed));
        let mut claims = Claims::default();
        while on && let Some((start, end)) = claims.next(&plan, &transfer.next) {
            let whole = base.read_peer_memory(pid, from.wrapping_add(start as u64), &mut buf[start..end])
                && base.is_same_process(pid);
            on = active(); // cut meanwhile: then these bytes do not count, whatever they are
            if on && !whole {
                failed = true;
                break;
            }
            transfer.finished.fetch_add(1, Release); // edge: finished
        }
        failed |= claims.lied;
    }
    let over = || matches!(transfer.state.load(Acquire), DONE | CUT); // edge: cut -> receive
    if !wait(base, None, || 0, over) || failed {
        return broken(record);
    }
    let cut = transfer.state.load(Acquire) == CUT;
    let n = if cut { usize::try_from(transfer.kept.load(Relaxed)).unwrap_or(usize::MAX) } else { plan.length };
    if n > plan.length {
        return broken(record);
    }
    transfer.state.store(IDLE, Release);
    record.rx.single_copy_bytes.fetch_add(n as u64, Relaxed);
    bulk::was_copied(record, n);
    Ok(n)
}

// ---- sender, under the lock of its half -----------------------------------------------------------------------------

/// Sends `buf` into a waiting receiver's memory, as much as it takes; from `half` bytes on both sides copy, below one of them.
/// `None`: no receiver waits, use the ring.
pub fn send<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &mut B,
    (buf, nonblocking, ahead): (&[u8], bool, bool),
    (tail, half): (u64, usize),
) -> Option<Result<usize, Errno>> {
    let transfer = &slot.outward().transfer;
    let here = || {
        transfer.state.load(Acquire) == POSTED
            && transfer.at[0].load(Relaxed) == tail
            && transfer.at[1].load(Relaxed) == record.tx.tcp_bytes.load(Relaxed)
    };
    let shown = here() || ahead && !nonblocking && soon(record, slot, base, (buf.len(), tail), here);
    if !shown {
        return None;
    }
    let copies = may_copy(record, slot, base);
    let into = transfer.into.load(Relaxed);
    let length = buf.len().min(usize::try_from(transfer.into_length.load(Relaxed)).unwrap_or(0));
    // The pid of a peer that is gone may belong to another process by now.
    if length == 0 || !is_possible(record, slot, base, copies) || !base.tcp_alive() {
        lose_hope(record); // nothing need go ahead for it
        return None;
    }
    let one = length.max(SMALLEST);
    let piece = if length < half { one } else { (length / 2).next_multiple_of(4096).clamp(SMALLEST, PIECE) };
    transfer.from.store(buf.as_ptr() as u64, Relaxed);
    transfer.length.store(length as u64, Relaxed);
    transfer.piece.store(piece as u64, Relaxed);
    if transfer.state.compare_exchange(POSTED, ACTIVE, AcqRel, Relaxed).is_err() {
        lose_hope(record);
        return None; // edge: send -> receive; the receiver has just given up
    }
    let plan = Plan { length, piece };
    let pid = record.connection.pid.load(Relaxed);
    let mut claims = Claims::default();
    // A connection that is gone in the middle may mean that the peer is about to become another program.
    while copies
        && base.tcp_alive()
        && let Some((start, end)) = claims.next(&plan, &transfer.next)
    {
        if !base.is_same_process(pid) || !base.write_peer_memory(pid, into.wrapping_add(start as u64), &buf[start..end])
        {
            return Some(broken(record));
        }
    }
    if claims.lied {
        return Some(broken(record));
    }
    let patience = if nonblocking { PATIENCE_NONBLOCKING } else { PATIENCE };
    let finished = || transfer.finished.load(Acquire); // edge: finished
    let all = plan.pieces();
    let sent = if wait(base, Some(patience), finished, || finished() >= all - claims.count) {
        length
    } else {
        let claimed = transfer.next.swap(all, AcqRel).min(all);
        claims.kept(&plan, claimed, finished())
    };
    if sent == length {
        transfer.state.store(DONE, Release);
        record.tx.single_copy_skips.store(0, Relaxed);
    } else {
        transfer.kept.store(sent as u64, Relaxed);
        transfer.state.store(CUT, Release); // edge: cut -> receive
        lose_hope(record);
    }
    record.tx.single_copy_bytes.fetch_add(sent as u64, Relaxed);
    record.events.single_copy.fetch_add(1, Relaxed);
    (sent > 0).then_some(Ok(sent))
}

/// Whether a large block without a waiting receiver should send its beginning ahead through the ring, and then wait for a receiver that shows its
/// memory for the rest: many read a head first, and some of what follows with it. The last such waits say whether another one is due:
/// `tx.single_copy_skips` has the sends that pass without, above them how many did so last, and `AHEAD`.
pub fn goes_ahead<B: Platform>(record: &StreamRecord, slot: &Slot, base: &mut B) -> bool {
    let word = record.tx.single_copy_skips.load(Relaxed);
    if !word.is_multiple_of(HOPELESS) {
        record.tx.single_copy_skips.store(word - 1, Relaxed);
        return false;
    }
    let copies = may_copy(record, slot, base);
    if !is_possible(record, slot, base, copies) {
        lose_hope(record);
        return false;
    }
    record.tx.single_copy_skips.store(word | AHEAD, Relaxed);
    true
}

/// Whether the last step of this half sent the beginning of a block ahead. The next one, whatever it is, learns so once.
pub fn went_ahead(record: &StreamRecord) -> bool {
    let word = record.tx.single_copy_skips.load(Relaxed);
    if word & AHEAD != 0 {
        record.tx.single_copy_skips.store(word & !AHEAD, Relaxed);
    }
    word & AHEAD != 0
}

/// Whether either end may copy for this process, which `copies` or not.
fn is_possible<B: Platform>(record: &StreamRecord, slot: &Slot, base: &B, copies: bool) -> bool {
    ours(record, base) && (copies || slot.outward().transfer.may_copy.load(Acquire) != 0)
}

fn lose_hope(record: &StreamRecord) {
    let passed = (record.tx.single_copy_skips.load(Relaxed) / HOPELESS * 2 + 1).min(MOST_PASSED);
    record.tx.single_copy_skips.store(passed * HOPELESS + passed + 1, Relaxed); // the rest of this block counts, too
}

/// Waits a little for the receiver to come back with its buffer, as long as it still looks at the ring.
fn soon<B: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    base: &mut B,
    (length, tail): (usize, u64),
    here: impl Fn() -> bool,
) -> bool {
    let (start, limit) = (base.now(), base.ticks((length as u64 / BYTES_OF_HOPE).clamp(HOPE, MOST_HOPE)));
    while base.now().wrapping_sub(start) < limit {
        if here() {
            return true;
        }
        if !matches!(
            slot.outward().gate.mode(tail),
            Ok(motet_wire::stream::gate::Mode::Ring | motet_wire::stream::gate::Mode::Wide)
        ) {
            break;
        }
        relax();
    }
    lose_hope(record);
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

    fn piece(&self, n: u64) -> Option<(usize, usize)> {
        let start = usize::try_from(n).ok()?.checked_mul(self.piece)?;
        (start < self.length).then(|| (start, (start + self.piece).min(self.length)))
    }
}

/// Which pieces this side has claimed. Its claims ascend, however the peer rewrites the counter, so there is an end of them.
#[derive(Default)]
struct Claims {
    count: u64,
    /// One past the last one.
    end: u64,
    /// One past the last one below `end` that the other side has claimed; 0: none.
    theirs: u64,
    /// The counter went back.
    lied: bool,
}

impl Claims {
    /// The next unclaimed piece.
    fn next(&mut self, plan: &Plan, next: &AtomicU64) -> Option<(usize, usize)> {
        let n = next.fetch_add(1, Relaxed);
        let piece = plan.piece(n)?;
        if n < self.end {
            self.lied = true;
            return None;
        }
        if n > self.end {
            self.theirs = n;
        }
        self.count += 1;
        self.end = n + 1;
        Some(piece)
    }

    /// Bytes up to the first piece that is not finished, when `claimed` pieces have been claimed by anybody, ours are finished
    /// and so are `finished` of the others. Of those one at most is under way, the last.
    fn kept(&self, plan: &Plan, claimed: u64, finished: u64) -> usize {
        let theirs = if claimed > self.end { claimed } else { self.theirs };
        let first = if finished >= claimed.saturating_sub(self.count) { claimed } else { theirs.saturating_sub(1) };
        plan.piece(first).map_or(plan.length, |(start, _)| start)
    }
}

/// Spins until `done`. False when the connection is gone, or when `progress` has shown the same number for `patience` ns. With
/// no such limit it sleeps in between, so no lock may be held.
fn wait<B: Platform>(base: &mut B, patience: Option<u64>, progress: impl Fn() -> u64, done: impl Fn() -> bool) -> bool {
    let mut rounds = 0u32;
    let mut seen = progress();
    let (mut moved, mut looked) = (base.now(), base.now());
    loop {
        if done() {
            return true;
        }
        relax();
        rounds = rounds.wrapping_add(1);
        if !rounds.is_multiple_of(64) {
            continue;
        }
        if rounds > 4096 {
            base.yield_now();
        }
        let now = base.now();
        if progress() != seen {
            (seen, moved) = (progress(), now);
        }
        let still = now.wrapping_sub(moved);
        match patience {
            Some(patience) if still > base.ticks(patience) => return done(),
            None if still > base.ticks(NAP) => base.sleep(NAP),
            _ => {}
        }
        if now.wrapping_sub(looked) > base.ticks(LOOK) {
            looked = now;
            if !base.tcp_alive() {
                return done();
            }
        }
    }
}

#[cold]
fn broken(record: &StreamRecord) -> Result<usize, Errno> {
    record.lifecycle.state.store(State::Broken as u32, Release);
    Err(ECONNRESET)
}
