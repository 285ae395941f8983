//! The receiving half: puts the bytes of TCP and of the ring back into one order.
//!
//! Reads top-down: [`begin`] and [`end`] bracket every receive, [`take`] consumes. The gate is in [`crate::stream::gate`], the wait outside the
//! kernel in [`crate::stream::spin`].

mod readiness;
mod return_bytes;
mod take;

pub use readiness::{has_bytes, missing_tcp_bytes, ready};
pub use return_bytes::return_for_producer;
pub use take::{Take, take};

use crate::stream::broken::break_stream;
use crate::stream::gate::{
    begin_kernel_call, close_gate, end_kernel_call, enter_kernel, enter_kernel_over_bytes, is_raised, lock_rx_always,
    raise, recount_tcp_bytes,
};
use crate::stream::half_lock::Acquired;
use crate::stream::spin::{
    SpinResult, last_spin_failed_under_contention, note_kernel_wake_up, note_spin_success, should_spin, spin,
};
use crate::{
    EAGAIN, EBADF, ECONNRESET, EINTR, Errno,
    stream::{Platform, bulk, single_copy},
};
use motet_wire::stream::record::{State, StreamRecord};
use motet_wire::stream::slot::Slot;
use motet_wire::sync::Ordering::Relaxed;
use std::io::IoSliceMut;
use take::{producer_keeps_claim, take_pending, take_returned};

/// What the caller of [`begin`] does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// So many bytes are in the caller's buffers; 0 only for end of file.
    Done(usize),
    /// The gate is closed and the ring empty: make the kernel call now, then call [`end`].
    Kernel,
    /// TCP bytes that precede the ring have not arrived: wait until the kernel is readable, call [`crate::stream::gate::leave_kernel`], then begin
    /// again.
    Poll,
    /// The operation failed (EAGAIN included).
    Failed(Errno),
}

/// What the program asks for.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Sleeping is allowed.
    pub blocking: bool,
    /// The bytes stay where they are.
    pub peek: bool,
    /// The kind of transfer needs the kernel (urgent data, ancillary data).
    pub kernel_only: bool,
    /// Longest spin, ns; 0 never spins.
    pub spin: u64,
    /// A buffer of this size or more is shown to the sender during the wait, for single copy.
    pub large: usize,
}

/// Attempts to take bytes from a producer that is returning them to TCP, before the wait is left to the kernel.
const MAX_TAKE_RETRIES: u32 = 64;
/// Times that a call may find that the producer has moved bytes: a producer that keeps the protocol moves them once before it sends again.
const MAX_PRODUCER_MOVES: u32 = 64;

/// Begins a receive into `bufs`. `may_raise` is asked before the gate opens. `before_sleep` runs before [`Step::Kernel`] or [`Step::Poll`] of a
/// blocking call (invariant 6). Its argument says whether this receive could wait outside the kernel instead; it returns true if it should, and only
/// then may it leave bytes unread.
#[inline(always)]
pub fn begin<P: Platform>(
    record: &StreamRecord,
    slot: Option<&Slot>,
    platform: &mut P,
    bufs: &mut [IoSliceMut<'_>],
    request: Request,
    may_raise: impl Fn() -> bool,
    before_sleep: impl FnMut(&mut P, bool) -> bool,
) -> Step {
    let slot = slot.filter(|_| record.rx.ready.load(Relaxed) != 0);
    let mut spun = None;
    // The path of every exchange of short messages: take what is there, or spin behind the open gate and take it then.
    if let Some(slot) = slot {
        match take(record, slot, platform, bufs, request.peek) {
            Take::Done(n) => return Step::Done(n),
            Take::Empty if can_spin_at_once(record, slot, platform, bufs, request) => {
                let found = spin(record, slot, platform, request.spin, false);
                if found == SpinResult::Ring
                    && let Take::Done(n) = take(record, slot, platform, bufs, request.peek)
                {
                    return Step::Done(n);
                }
                spun = Some(found);
            }
            _ => {}
        }
    }
    begin_slow(record, slot, platform, bufs, request, spun, may_raise, before_sleep)
}

/// Whether a receive that found the ring empty has nothing to do before it spins.
#[inline(always)]
fn can_spin_at_once<P: Platform>(
    record: &StreamRecord,
    slot: &Slot,
    platform: &P,
    bufs: &[IoSliceMut<'_>],
    request: Request,
) -> bool {
    request.blocking
        && !request.kernel_only
        && request.spin > 0
        && bufs.first().is_some_and(|first| first.len() < request.large)
        && !bulk::is_bulk(record)
        && is_raised(record, slot)
        && should_spin(record, platform)
}

/// Slow path of [`begin`], out of line. `slot`: set if the wire is ready for use; `spun`: how a spin of this call has ended.
#[expect(clippy::too_many_arguments, reason = "scalars: the fast path would have to build a struct in memory")]
#[inline(never)]
fn begin_slow<P: Platform>(
    record: &StreamRecord,
    slot: Option<&Slot>,
    platform: &mut P,
    bufs: &mut [IoSliceMut<'_>],
    request: Request,
    spun: Option<SpinResult>,
    may_raise: impl Fn() -> bool,
    mut before_sleep: impl FnMut(&mut P, bool) -> bool,
) -> Step {
    let Some(slot) = slot else { return begin_on_tcp(record, platform) };
    let may_spin = request.spin > 0 && !request.kernel_only;
    let mut receive = Receive {
        record,
        slot,
        platform,
        bufs,
        request,
        may_raise: &may_raise,
        before_sleep: &mut before_sleep,
        may_spin,
        has_spun: spun.is_some(),
        lingers: false,
        retries: 0,
        moves: 0,
    };
    match spun {
        Some(SpinResult::Woken) => return Step::Failed(EINTR),
        Some(SpinResult::ReceiveTimeout) => return Step::Failed(EAGAIN),
        Some(SpinResult::Kernel) => {
            if let Some(step) = receive.take_pending() {
                return step;
            }
        }
        Some(SpinResult::Ring | SpinResult::BudgetSpent) | None => {}
    }
    receive.run()
}

/// A receive on a stream without a wire that is ready: only the kernel's call is counted.
fn begin_on_tcp<P: Platform>(record: &StreamRecord, platform: &mut P) -> Step {
    match lock_rx_always(record, platform) {
        Acquired::Reentrant => Step::Failed(EAGAIN),
        Acquired::Stale => Step::Failed(EBADF),
        _held => {
            begin_kernel_call(record);
            Step::Kernel
        }
    }
}

/// A receive that did not end on the fast path.
struct Receive<'r, 'b, P, Raise, Sleep> {
    record: &'r StreamRecord,
    slot: &'r Slot,
    platform: &'r mut P,
    bufs: &'r mut [IoSliceMut<'b>],
    request: Request,
    // References: a struct that held the closures would make the fast path build them in memory.
    may_raise: &'r Raise,
    before_sleep: &'r mut Sleep,
    /// The request allows a spin.
    may_spin: bool,
    /// This call has spun: it does so once, and again each time that `before_sleep` says so.
    has_spun: bool,
    /// `before_sleep` said that this receive should wait outside the kernel: the peer is reading what this process sent.
    lingers: bool,
    /// Attempts in a row to take bytes from a producer that is returning them.
    retries: u32,
    /// Times that the producer had moved bytes.
    moves: u32,
}

/// What a step of [`Receive::run`] decided.
enum Next {
    /// Look into the ring again.
    Take,
    /// Go on with the next step.
    Proceed,
    /// The receive has ended.
    Return(Step),
}

impl<P: Platform, Raise: Fn() -> bool, Sleep: FnMut(&mut P, bool) -> bool> Receive<'_, '_, P, Raise, Sleep> {
    /// Takes what there is, or waits outside the kernel as long as that pays, or closes the gate for a kernel call.
    fn run(&mut self) -> Step {
        loop {
            let next = match take(self.record, self.slot, self.platform, self.bufs, self.request.peek) {
                Take::Done(n) => return Step::Done(n),
                Take::Failed(errno) => return Step::Failed(errno),
                Take::Retry => self.producer_returns_bytes(),
                Take::InFlight => self.tcp_bytes_are_missing(),
                Take::Empty => self.ring_is_empty(),
            };
            if let Next::Return(step) = next {
                return step;
            }
        }
    }

    /// The producer is returning ring bytes to TCP. It does so over TCP, so the kernel will wake this thread.
    fn producer_returns_bytes(&mut self) -> Next {
        if self.retries < MAX_TAKE_RETRIES {
            self.retries += 1;
            return Next::Take;
        }
        if let Some(n) = take_returned(self.record, self.slot, self.platform, self.bufs, self.request.peek) {
            return Next::Return(Step::Done(n));
        }
        // A call that must not block waits for the few calls that move the bytes: the program has learned that there is data.
        if !self.request.blocking || !self.platform.tcp_alive() {
            self.moves += 1;
            if producer_keeps_claim(self.record, self.slot, self.platform) || self.moves > MAX_PRODUCER_MOVES {
                if self.platform.tcp_alive() {
                    return Next::Return(Step::Failed(EAGAIN));
                }
                break_stream(self.record);
                return Next::Return(Step::Failed(ECONNRESET));
            }
            self.retries = 0;
            return Next::Take;
        }
        self.poll_kernel()
    }

    /// The ring has bytes, but TCP bytes that precede them have not arrived.
    fn tcp_bytes_are_missing(&mut self) -> Next {
        if self.moves <= MAX_PRODUCER_MOVES && recount_tcp_bytes(self.record, self.platform) {
            self.moves += 1;
            return Next::Take;
        }
        if !self.request.blocking {
            return Next::Return(Step::Failed(EAGAIN));
        }
        self.poll_kernel()
    }

    /// Leaves the wait for TCP bytes that precede the ring to the kernel.
    fn poll_kernel(&mut self) -> Next {
        (self.before_sleep)(self.platform, false);
        enter_kernel_over_bytes(self.record, self.platform);
        Next::Return(Step::Poll)
    }

    /// The ring is empty: receive what TCP has, wait outside the kernel, or leave the receive to the kernel.
    fn ring_is_empty(&mut self) -> Next {
        if let Some(step) = self.take_bulk_from_tcp() {
            return Next::Return(step);
        }
        if let Some(step) = self.poll_behind_open_gate() {
            return Next::Return(step);
        }
        match self.spin_once() {
            Next::Proceed => {}
            next => return next,
        }
        self.enter_kernel()
    }

    /// Bulk data over TCP: opens the gate, so that the peer finds it open at its next send, and receives what TCP has.
    fn take_bulk_from_tcp(&mut self) -> Option<Step> {
        let record = self.record;
        let wanted = bulk::is_bulk(record)
            && !self.request.kernel_only
            && (self.request.blocking || record.rx.evidence_left.load(Relaxed) > 0)
            && !self.slot.inward().gate.tail().1
            && !bulk::bypasses_gate(record)
            && !last_spin_failed_under_contention(record, self.platform)
            && self.platform.tcp_pending() > 0
            && self.raise();
        if wanted { self.take_pending() } else { None }
    }

    /// A call that must not block, behind an open gate: receives what TCP has.
    fn poll_behind_open_gate(&mut self) -> Option<Step> {
        if self.request.blocking || !self.slot.inward().gate.tail().1 || self.request.kernel_only {
            return None;
        }
        let head = self.record.rx.head.load(Relaxed);
        if !self.platform.tcp_readable() {
            self.record.rx.head_at_tcp_empty.store(head, Relaxed);
            return Some(self.note_empty_poll());
        }
        self.take_pending()
    }

    /// Nothing has arrived. Without evidence that the program waits where Motet sees it, the gate closes: readiness is learned elsewhere
    /// (invariant 4).
    fn note_empty_poll(&mut self) -> Step {
        let left = self.record.rx.evidence_left.load(Relaxed);
        if left > 0 {
            self.record.rx.evidence_left.store(left - 1, Relaxed);
        } else {
            close_gate(self.record, self.slot, self.platform);
        }
        Step::Failed(EAGAIN)
    }

    /// Opens the gate and spins, if this call may and has not done so. A large buffer is shown to the sender meanwhile.
    fn spin_once(&mut self) -> Next {
        let wanted = self.request.blocking
            && !self.has_spun
            && self.may_spin
            && (self.lingers || should_spin(self.record, self.platform) || self.platform.patience(self.record).ns > 0)
            && self.raise();
        if !wanted {
            return Next::Proceed;
        }
        self.has_spun = true;
        let large = !self.request.peek && self.bufs.first().is_some_and(|b| b.len() >= self.request.large);
        let posted = large && single_copy::post(self.record, self.slot, self.platform, &self.bufs[0]);
        let spun = spin(self.record, self.slot, self.platform, self.request.spin, posted);
        if posted && !single_copy::withdraw(self.slot) {
            note_spin_success(self.record);
            return match single_copy::receive(self.record, self.slot, self.platform, &mut self.bufs[0]) {
                Ok(0) => Next::Take,
                Ok(n) => Next::Return(Step::Done(n)),
                Err(errno) => Next::Return(Step::Failed(errno)),
            };
        }
        match spun {
            SpinResult::Ring => Next::Take,
            SpinResult::Woken => Next::Return(Step::Failed(EINTR)),
            SpinResult::ReceiveTimeout => Next::Return(Step::Failed(EAGAIN)),
            SpinResult::Kernel => self.take_pending().map_or(Next::Proceed, Next::Return),
            SpinResult::BudgetSpent => Next::Proceed,
        }
    }

    /// Closes the gate for the kernel's call; before the sleep of a blocking one, what the peer has not read goes back to TCP.
    fn enter_kernel(&mut self) -> Next {
        if self.request.blocking {
            let lingers = (self.before_sleep)(self.platform, self.may_spin);
            if self.record.state() == State::Broken {
                return Next::Return(Step::Failed(ECONNRESET));
            }
            if lingers {
                (self.has_spun, self.lingers) = (false, true);
                return Next::Take;
            }
        }
        if !enter_kernel(self.record, self.slot, self.platform) {
            return Next::Take; // bytes are in the ring
        }
        if self.request.blocking {
            self.record.rx.kernel_wait_since.store(self.platform.now(), Relaxed);
        }
        Next::Return(Step::Kernel)
    }

    fn raise(&mut self) -> bool {
        raise(self.record, self.slot, self.platform, self.may_raise)
    }

    fn take_pending(&mut self) -> Option<Step> {
        take_pending(self.record, self.slot, self.platform, self.bufs, self.request.peek)
    }
}

/// Ends a receive that went to the kernel with `received` bytes (0 for none; peeked bytes do not count).
#[inline]
pub fn end<P: Platform>(record: &StreamRecord, platform: &mut P, received: usize) {
    let held = lock_rx_always(record, platform);
    if !matches!(held, Acquired::Stale) {
        record.rx.tcp_bytes.store(record.rx.tcp_bytes.load(Relaxed) + received as u64, Relaxed);
        end_kernel_call(record);
        bulk::note_take(record, received);
        bulk::note_bytes_behind_closed_gate(record, received);
    }
    note_kernel_wake_up(record, platform, received);
}
