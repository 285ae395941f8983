//! Large payload with one copy: from the sender's memory straight into that of a receiver that already waits.
//!
//! The receiver shows its buffer while it spins ([`post`]). A sender with enough bytes makes the transfer active ([`send`]). Then both copy pieces,
//! each claimed by a counter, until none is left ([`receive`] is the receiver's half). If the kernel does not let one side access the other's
//! memory, the other side copies alone; if neither may, nothing is posted and the ring is used.
//!
//! The receiver stays until the sender has ended the transfer, because the sender may be writing into its buffer. The sender need not stay: if the
//! receiver makes no progress (it was stopped, or its CPU is wanted), the sender *cuts* the transfer. The bytes up to the first unfinished piece
//! count as sent; the others go through the ring or TCP like any payload. A receiver that resumes in the middle of a piece copies from memory that
//! may hold something else, but only to the part of its buffer behind the cut, which holds nothing.
//!
//! A pid may be reused: [`Platform::is_same_process`] is asked before every write into the peer's memory and after every read from it.
//!
//! The bytes of a transfer are not counted as ring bytes. A transfer happens only while ring and TCP are both empty between the two ends, which the
//! receiver's posted position proves to the sender.

mod pieces;

use crate::stream::broken::break_stream;
use crate::stream::gate::lock_rx;
use crate::{
    ECONNRESET, Errno,
    stream::{Platform, bulk},
};
use motet_wire::stream::gate::Mode;
use motet_wire::stream::record::StreamRecord;
use motet_wire::stream::slot::Slot;
use motet_wire::stream::slot::transfer::{ACTIVE, CUT, DONE, IDLE, POSTED};
use motet_wire::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use motet_wire::sync::relax;
use pieces::{Claims, MAX_PIECE_BYTES, Plan};

/// Smallest piece, bytes: for less, the system call costs more than the copy.
const MIN_PIECE_BYTES: usize = 16 << 10;
/// A sender waits at least this long (ns) for a receiver that has just read the head of a message and is about to show its buffer.
const MIN_RECEIVER_WAIT_NS: u64 = 3_000;
/// For a large block the sender waits one ns for so many bytes, a small part of what the single copy saves.
const BYTES_PER_WAIT_NS: u64 = 64;
/// The longest such wait, ns.
const MAX_RECEIVER_WAIT_NS: u64 = 100_000;
/// A failed wait is followed by one large send that does not wait, the next one by twice as many and one, up to this number.
const MAX_SKIPS: u32 = 63;
/// `tx.single_copy_skips` holds the sends that are still to skip, and, in this unit, the number that the last failure set.
const LAST_SKIPS_UNIT: u32 = 1 << 8;
/// Bit of `tx.single_copy_skips`: the beginning of a block was sent ahead.
const SENT_AHEAD: u32 = 1 << 31;
/// During a wait without progress the connection is checked at this interval, ns.
const ALIVE_CHECK_NS: u64 = 10_000_000;
/// A sender cuts a transfer whose receiver makes no progress for this long, ns.
const STALL_NS: u64 = 20_000_000;
/// A sender that must not block cuts a transfer whose receiver makes no progress for this long, ns.
const STALL_NONBLOCKING_NS: u64 = 1_000_000;
/// A receiver whose sender makes no progress for this long (ns) sleeps for as long between two checks.
const STALLED_SLEEP_NS: u64 = 1_000_000;
/// Value of `tx.may_copy`: not yet known.
const COPY_UNKNOWN: u32 = 0;
/// Value of `tx.may_copy`: this process may copy.
const COPY_ALLOWED: u32 = 1;
/// Value of `tx.may_copy`: this process may not copy.
const COPY_REFUSED: u32 = 2;

/// The address of this side's two cookies. A peer that can read them may copy from this process.
pub fn proof_address(record: &StreamRecord) -> u64 {
    (&raw const record.connection.cookies) as u64
}

/// Whether this process may copy from and to the peer's memory; determined once.
fn may_copy<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P) -> bool {
    match record.tx.may_copy.load(Relaxed) {
        COPY_UNKNOWN => {
            let transfer = &slot.inward().transfer;
            let address = transfer.proof.load(Acquire);
            if address == 0 {
                return false; // the peer is not ready yet: ask again
            }
            let mut seen = [0; 16];
            let cookies = [1, 0].map(|i| record.connection.cookies[i].load(Relaxed).to_ne_bytes());
            let pid = record.connection.pid.load(Relaxed);
            // The first question remembers the process; the second one confirms that its memory was read.
            let yes = platform.is_same_process(pid)
                && platform.read_peer_memory(pid, address, &mut seen)
                && platform.is_same_process(pid)
                && seen == *cookies.as_flattened();
            transfer.may_copy.store(u32::from(yes), Release);
            record.tx.may_copy.store(if yes { COPY_ALLOWED } else { COPY_REFUSED }, Relaxed);
            yes
        }
        known => known == COPY_ALLOWED,
    }
}

/// Whether this process brought the wire up. Only it may take part: a forked child has another pid than the attested one.
fn is_owner<P: Platform>(record: &StreamRecord, platform: &P) -> bool {
    u64::from(record.lifecycle.owner.load(Relaxed)) == platform.lock_token() >> 32
}

// ---- receiver -------------------------------------------------------------------------------------------------------

/// Shows `buf` to the sender. True: it is posted, and the caller must [`withdraw`] or [`receive`].
pub fn post<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P, buf: &[u8]) -> bool {
    let transfer = &slot.inward().transfer;
    let able = may_copy(record, slot, platform) || slot.outward().transfer.may_copy.load(Acquire) != 0;
    if !able || !is_owner(record, platform) || transfer.state.load(Acquire) != IDLE {
        return false;
    }
    let Some(_held) = lock_rx(record, platform) else { return false };
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

/// Whether the sender has made the transfer active.
#[inline(always)]
pub fn is_accepted(slot: &Slot) -> bool {
    slot.inward().transfer.state.load(Relaxed) != POSTED
}

/// Withdraws the posted buffer. False: the transfer is active, so the caller must [`receive`] it.
pub fn withdraw(slot: &Slot) -> bool {
    slot.inward().transfer.state.compare_exchange(POSTED, IDLE, AcqRel, Relaxed).is_ok()
}

/// The receiver's half of an active transfer into the posted `buf`; returns the bytes received. 0: the sender has cut the transfer before the first
/// piece, so the caller looks at the ring again.
pub fn receive<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    buf: &mut [u8],
) -> Result<usize, Errno> {
    let transfer = &slot.inward().transfer;
    let active = || transfer.state.load(Acquire) == ACTIVE; // edge: send -> receive
    let (mut on, mut failed) = (active(), false);
    let Some(plan) = Plan::check(transfer.length.load(Relaxed), transfer.piece.load(Relaxed), buf.len()) else {
        return broken(record);
    };
    if on && may_copy(record, slot, platform) && platform.tcp_alive() {
        let (pid, from) = (record.connection.pid.load(Relaxed), transfer.from.load(Relaxed));
        let mut claims = Claims::default();
        while on && let Some((start, end)) = claims.next(&plan, &transfer.next) {
            let whole = platform.read_peer_memory(pid, from.wrapping_add(start as u64), &mut buf[start..end])
                && platform.is_same_process(pid);
            on = active(); // if it was cut meanwhile, these bytes do not count
            if on && !whole {
                failed = true;
                break;
            }
            transfer.finished.fetch_add(1, Release); // edge: finished
        }
        failed |= claims.counter_ran_back;
    }
    let over = || matches!(transfer.state.load(Acquire), DONE | CUT); // edge: cut -> receive
    if !wait_until(platform, None, || 0, over) || failed {
        return broken(record);
    }
    let cut = transfer.state.load(Acquire) == CUT;
    let n = if cut { usize::try_from(transfer.kept.load(Relaxed)).unwrap_or(usize::MAX) } else { plan.length };
    if n > plan.length {
        return broken(record);
    }
    transfer.state.store(IDLE, Release);
    record.rx.single_copy_bytes.fetch_add(n as u64, Relaxed);
    bulk::note_single_copy_received(record, n);
    Ok(n)
}

// ---- sender, under the lock of its half -----------------------------------------------------------------------------

/// Sends `buf` into a waiting receiver's memory, as much as it can take. From `half` bytes on both sides copy, below it one of them. `ahead`: the
/// beginning of this block was sent ahead. `None`: no receiver waits, use the ring.
pub fn send<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    (buf, nonblocking, ahead): (&[u8], bool, bool),
    (tail, half): (u64, usize),
) -> Option<Result<usize, Errno>> {
    let transfer = &slot.outward().transfer;
    let here = || {
        transfer.state.load(Acquire) == POSTED
            && transfer.at[0].load(Relaxed) == tail
            && transfer.at[1].load(Relaxed) == record.tx.tcp_bytes.load(Relaxed)
    };
    let shown = here() || ahead && !nonblocking && wait_for_receiver(record, slot, platform, (buf.len(), tail), here);
    if !shown {
        return None;
    }
    let copies = may_copy(record, slot, platform);
    let into = transfer.into.load(Relaxed);
    let length = buf.len().min(usize::try_from(transfer.into_length.load(Relaxed)).unwrap_or(0));
    // The pid of a peer that is gone may belong to another process.
    if length == 0 || !is_possible(record, slot, platform, copies) || !platform.tcp_alive() {
        skip_next_sends(record); // it is not worth sending a beginning ahead
        return None;
    }
    let one = length.max(MIN_PIECE_BYTES);
    let piece =
        if length < half { one } else { (length / 2).next_multiple_of(4096).clamp(MIN_PIECE_BYTES, MAX_PIECE_BYTES) };
    transfer.from.store(buf.as_ptr() as u64, Relaxed);
    transfer.length.store(length as u64, Relaxed);
    transfer.piece.store(piece as u64, Relaxed);
    if transfer.state.compare_exchange(POSTED, ACTIVE, AcqRel, Relaxed).is_err() {
        skip_next_sends(record);
        return None; // edge: send -> receive; the receiver has just withdrawn the buffer
    }
    let plan = Plan { length, piece };
    let pid = record.connection.pid.load(Relaxed);
    let mut claims = Claims::default();
    // A connection that fails during the transfer may mean that the peer is about to execute another program.
    while copies
        && platform.tcp_alive()
        && let Some((start, end)) = claims.next(&plan, &transfer.next)
    {
        if !platform.is_same_process(pid)
            || !platform.write_peer_memory(pid, into.wrapping_add(start as u64), &buf[start..end])
        {
            return Some(broken(record));
        }
    }
    if claims.counter_ran_back {
        return Some(broken(record));
    }
    let stall_ns = if nonblocking { STALL_NONBLOCKING_NS } else { STALL_NS };
    let finished = || transfer.finished.load(Acquire); // edge: finished
    let all = plan.pieces();
    let sent = if wait_until(platform, Some(stall_ns), finished, || finished() >= all - claims.count) {
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
        skip_next_sends(record);
    }
    record.tx.single_copy_bytes.fetch_add(sent as u64, Relaxed);
    record.events.single_copy.fetch_add(1, Relaxed);
    (sent > 0).then_some(Ok(sent))
}

/// Whether a large block without a waiting receiver should send its beginning ahead through the ring, and then wait for a receiver that shows its
/// memory for the rest. Many programs read a head first, with some of what follows it. After failed waits some blocks do without:
/// `tx.single_copy_skips` counts them.
pub fn should_send_ahead<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &mut P) -> bool {
    let word = record.tx.single_copy_skips.load(Relaxed);
    if !word.is_multiple_of(LAST_SKIPS_UNIT) {
        record.tx.single_copy_skips.store(word - 1, Relaxed);
        return false;
    }
    let copies = may_copy(record, slot, platform);
    if !is_possible(record, slot, platform, copies) {
        skip_next_sends(record);
        return false;
    }
    record.tx.single_copy_skips.store(word | SENT_AHEAD, Relaxed);
    true
}

/// Whether the previous step of this half sent the beginning of a block ahead. Clears the mark.
pub fn take_sent_ahead(record: &StreamRecord) -> bool {
    let word = record.tx.single_copy_skips.load(Relaxed);
    if word & SENT_AHEAD != 0 {
        record.tx.single_copy_skips.store(word & !SENT_AHEAD, Relaxed);
    }
    word & SENT_AHEAD != 0
}

/// Whether one of the ends may copy: this process (`copies`), or the peer.
fn is_possible<P: Platform>(record: &StreamRecord, slot: &Slot, platform: &P, copies: bool) -> bool {
    is_owner(record, platform) && (copies || slot.outward().transfer.may_copy.load(Acquire) != 0)
}

/// Notes that a large send found no receiver: the next ones do not wait, twice as many as after the last failure.
fn skip_next_sends(record: &StreamRecord) {
    let passed = (record.tx.single_copy_skips.load(Relaxed) / LAST_SKIPS_UNIT * 2 + 1).min(MAX_SKIPS);
    record.tx.single_copy_skips.store(passed * LAST_SKIPS_UNIT + passed + 1, Relaxed); // plus one for the rest of this block
}

/// Waits for the receiver to show its buffer, as long as its gate is open.
fn wait_for_receiver<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &mut P,
    (length, tail): (usize, u64),
    here: impl Fn() -> bool,
) -> bool {
    let (start, limit) = (
        platform.now(),
        platform.ticks((length as u64 / BYTES_PER_WAIT_NS).clamp(MIN_RECEIVER_WAIT_NS, MAX_RECEIVER_WAIT_NS)),
    );
    while platform.now().wrapping_sub(start) < limit {
        if here() {
            return true;
        }
        if !matches!(slot.outward().gate.mode(tail), Ok(Mode::Ring | Mode::Wide)) {
            break;
        }
        relax();
    }
    skip_next_sends(record);
    false
}

/// Spins until `done`. False: the connection is gone, or `progress` has returned the same number for `stall_ns`. Without such a limit it sleeps in
/// between, so no lock may be held.
fn wait_until<P: Platform>(
    platform: &mut P,
    stall_ns: Option<u64>,
    progress: impl Fn() -> u64,
    done: impl Fn() -> bool,
) -> bool {
    let mut rounds = 0u32;
    let mut seen = progress();
    let (mut moved, mut looked) = (platform.now(), platform.now());
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
            platform.yield_now();
        }
        let now = platform.now();
        if progress() != seen {
            (seen, moved) = (progress(), now);
        }
        let still = now.wrapping_sub(moved);
        match stall_ns {
            Some(stall_ns) if still > platform.ticks(stall_ns) => return done(),
            None if still > platform.ticks(STALLED_SLEEP_NS) => platform.sleep(STALLED_SLEEP_NS),
            _ => {}
        }
        if now.wrapping_sub(looked) > platform.ticks(ALIVE_CHECK_NS) {
            looked = now;
            if !platform.tcp_alive() {
                return done();
            }
        }
    }
}

#[cold]
fn broken(record: &StreamRecord) -> Result<usize, Errno> {
    break_stream(record);
    Err(ECONNRESET)
}
