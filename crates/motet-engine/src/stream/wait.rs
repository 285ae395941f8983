//! One wait on several streams at once: under poll and select (an array), under epoll (a [`EpollSet`]).
//!
//! The adapter drives it: [`Wait::step`] returns READY (look at the streams), PROBE (ask the kernel with timeout 0) or SLEEP (sleep in the kernel:
//! every gate is closed). Between the steps the wait spins outside the kernel as long as that pays.

use crate::stream::RECEIVES_AFTER_WAIT;
use crate::stream::engine::{Engine, Handle, UpgradedStream};
use crate::stream::epoll_set::{EpollSet, HotList};
use crate::stream::exchange_pace::ExchangePace;
use motet_proto::spin_policy::{Backoff, MAX_FAILURES, PROBE_INTERVAL_NS, YieldOutcome, is_late};
use motet_proto::stream::{gate, rx, spin};
use motet_sys::clock::{self, ticks_of};
use motet_sys::{cpu_contention, thread};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// What the adapter does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum WaitStep {
    /// Some stream may have data on the wire.
    Ready = 1,
    /// Ask the kernel with timeout 0; if it has nothing, step again.
    Probe = 2,
    /// Sleep in the kernel, then call [`Wait::end_sleep`].
    Sleep = 3,
}

/// The state of a [`Wait`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It has not spun since it began, or since its last sleep.
    Fresh,
    /// It spins.
    Spinning,
    /// It does not spin, and the kernel was asked once.
    KernelAsked,
    /// It sleeps next.
    SpinEnded,
    /// It sleeps in the kernel.
    Asleep,
}

/// One wait.
pub struct Wait<'a> {
    streams: &'a [Handle],
    set: Option<Arc<EpollSet>>,
    /// Whether this wait is a spinner of its set: see [`crate::stream::epoll_set`].
    spins_for_set: bool,
    phase: Phase,
    /// When the spin began, plus a half of the time that other threads had the CPU, ticks.
    budget_start: u64,
    /// When the kernel is asked next, ticks.
    next_probe: u64,
    /// Whether the kernel has been asked since the spin began.
    kernel_asked: bool,
    /// When the spin began, ticks.
    spin_began: u64,
    /// Yields after which another thread kept the CPU for some time.
    yields_lost: u32,
}

/// Failed spins of waits on several streams, of the whole process.
static BACKOFF: Backoff<'static> = {
    static SKIPS: AtomicU32 = AtomicU32::new(0);
    static FAILURES: AtomicU32 = AtomicU32::new(0);
    Backoff { skips: &SKIPS, failures: &FAILURES }
};
/// Whether the last spin succeeded within [`QUICK_NS`]. If so, the next one polls for as long before it asks the kernel, because asking the kernel
/// takes a good part of such an exchange.
static LAST_WAIT_WAS_QUICK: AtomicBool = AtomicBool::new(false);
/// A spin that succeeds within this time (ns) is quick.
const QUICK_NS: u64 = 2_000;
/// The pace of waits that may block and found nothing.
static WAIT_PACE: ExchangePace = ExchangePace::new();
/// The pace of waits that must not block and found nothing.
static POLL_PACE: ExchangePace = ExchangePace::new();
/// Yields after which another thread kept the CPU that end a spin.
const MAX_YIELDS_LOST: u32 = 2;

impl<'a> Wait<'a> {
    /// A wait on these streams.
    pub fn on(engine: &Engine, streams: &'a [Handle]) -> Self {
        Self::new(engine, streams, None)
    }

    /// A wait on a set.
    pub fn on_set(engine: &Engine, set: Arc<EpollSet>) -> Self {
        engine.set_begin_wait(&set);
        Self::new(engine, &[], Some(set))
    }

    fn new(engine: &Engine, streams: &'a [Handle], set: Option<Arc<EpollSet>>) -> Self {
        let wait = Self {
            streams,
            set,
            spins_for_set: false,
            phase: Phase::Fresh,
            budget_start: 0,
            next_probe: 0,
            kernel_asked: false,
            spin_began: 0,
            yields_lost: 0,
        };
        wait.each(engine, |up| {
            if up.record.rx.ready.load(Relaxed) == 0 {
                engine.attach_rx(&up);
            }
            up.record.rx.evidence_left.store(RECEIVES_AFTER_WAIT, Relaxed);
        });
        wait
    }

    /// Goes on.
    pub fn step(&mut self, engine: &Engine, may_block: bool) -> WaitStep {
        if self.phase == Phase::Asleep {
            self.end_sleep(engine);
        }
        if self.phase == Phase::Spinning {
            // The kernel was asked, and had nothing.
            self.each(engine, |up| {
                up.record.rx.head_at_tcp_empty.store(up.record.rx.head_at_tcp_probe.load(Relaxed), Relaxed)
            });
        }
        if self.any_ready(engine) {
            return WaitStep::Ready;
        }
        if !may_block {
            // A program that polls all the time spins itself: its data may arrive through the ring.
            if engine.options.spin > 0 && (engine.options.is_patient() || POLL_PACE.is_quick(|| true)) {
                self.raise(engine);
            }
            return WaitStep::Probe;
        }
        loop {
            match self.phase {
                Phase::Fresh => {
                    if engine.options.spin > 0
                        && (engine.options.is_patient() || self.is_quick(engine) && !skips_spin())
                        && self.raise(engine)
                    {
                        self.begin_spin();
                        // TCP bytes sent before the gates opened are in the kernel, so it is asked soon.
                        self.next_probe =
                            self.budget_start + if LAST_WAIT_WAS_QUICK.load(Relaxed) { ticks_of(QUICK_NS) } else { 0 };
                        continue;
                    }
                    // The program may wait for room to write. If the kernel has room, the gates of the hot streams need not be closed.
                    let unarmed = self.set.as_ref().is_some_and(|set| set.has_unarmed());
                    self.phase = if unarmed { Phase::KernelAsked } else { Phase::SpinEnded };
                    if unarmed {
                        return WaitStep::Probe;
                    }
                }
                Phase::KernelAsked => self.phase = Phase::SpinEnded,
                Phase::Spinning => match self.spin(engine) {
                    Some(step) => return step,
                    None if engine.options.is_patient() && self.rest_behind_gates(engine) => return WaitStep::Probe,
                    None => self.phase = Phase::SpinEnded,
                },
                Phase::SpinEnded => {
                    if engine.may_wait_for_reader(true) {
                        if self.raise(engine) {
                            self.begin_spin();
                            continue;
                        }
                        engine.before_sleep();
                    }
                    self.phase = Phase::Asleep;
                    if self.fall_asleep(engine) {
                        return WaitStep::Sleep;
                    }
                    self.phase = Phase::SpinEnded;
                    if self.any_ready(engine) {
                        return WaitStep::Ready;
                    }
                    thread::yield_now();
                }
                Phase::Asleep => unreachable!("left above"),
            }
        }
    }

    /// After the kernel's sleep.
    pub fn end_sleep(&mut self, engine: &Engine) {
        if self.phase != Phase::Asleep {
            return;
        }
        self.phase = Phase::Fresh;
        match &self.set {
            Some(set) => set.end_sleep(),
            None => {
                self.each(engine, |up| gate::leave_kernel(up.record, &mut up.kernel_tcp()));
            }
        }
    }

    /// Ends the wait.
    pub fn end(&mut self, engine: &Engine) {
        self.end_sleep(engine);
        if let Some(set) = &self.set {
            engine.set_leave(set, std::mem::take(&mut self.spins_for_set));
        }
    }

    fn begin_spin(&mut self) {
        self.phase = Phase::Spinning;
        self.budget_start = clock::ticks();
        (self.spin_began, self.yields_lost, self.kernel_asked) = (self.budget_start, 0, false);
    }

    /// Spins until the next probe at most. `None`: spinning does not pay.
    fn spin(&mut self, engine: &Engine) -> Option<WaitStep> {
        let mut polled = [const { None::<UpgradedStream<'_>> }; 8];
        let mut more = false;
        let mut n = 0;
        let left = self.each(engine, |up| {
            if n < polled.len() {
                polled[n] = Some(up);
                n += 1;
            } else {
                more = true;
            }
        });
        let (polled, more) = (&polled[..n], more || left);
        let near = || polled.iter().flatten().any(UpgradedStream::peer_on_this_cpu);
        let budget = ticks_of(engine.options.spin);
        let computes = |ticks| YieldOutcome::of(ticks, clock::ticks_per_1024ns()) == YieldOutcome::Computation;
        loop {
            for _ in 0..16 {
                for UpgradedStream { record, slot, .. } in polled.iter().flatten() {
                    if !slot.inward().gate.still_waiting(record.rx.head.load(Relaxed)) {
                        if rx::ready(record, slot) {
                            self.found(budget);
                            return Some(WaitStep::Ready);
                        }
                        return None; // closed by the sender, or bytes that follow TCP bytes: the kernel reports those
                    }
                }
                std::hint::spin_loop();
            }
            if more && self.any_ready(engine) {
                self.found(budget);
                return Some(WaitStep::Ready);
            }
            let now = clock::ticks();
            if now.wrapping_sub(self.budget_start) > budget {
                note_spin_failure();
                return None;
            }
            if now >= self.next_probe {
                self.next_probe = now + ticks_of(PROBE_INTERVAL_NS);
                for up in polled.iter().flatten() {
                    up.record.rx.head_at_tcp_probe.store(up.record.rx.head.load(Relaxed), Relaxed);
                    spin::publish_cpu(&up.slot, &up.kernel_tcp());
                }
                if !std::mem::replace(&mut self.kernel_asked, true) {
                    return Some(WaitStep::Probe);
                }
                // Any other thread that wants this CPU gets it from time to time. Half of its time does not count against the budget.
                let lent = cpu_contention::yield_now();
                if computes(lent) && !self.any_ready(engine) {
                    note_spin_failure();
                    return None;
                }
                if lent > ticks_of(PROBE_INTERVAL_NS / 2) {
                    self.budget_start += lent / 2;
                    self.yields_lost += 1;
                    // Several threads want this CPU, and the peer is not one of them. The scheduler serves sleepers better.
                    if self.yields_lost >= MAX_YIELDS_LOST && !near() && !self.any_ready(engine) {
                        note_spin_failure();
                        return None;
                    }
                }
                return Some(WaitStep::Probe);
            }
            if near() && computes(cpu_contention::yield_now()) {
                note_spin_failure();
                return None;
            }
        }
    }

    /// Rests for a moment behind open gates: a setting for tests (`Options::patience`). True: the kernel is asked next; false: the rest is over.
    #[cold]
    fn rest_behind_gates(&mut self, engine: &Engine) -> bool {
        let rested = clock::ticks().wrapping_sub(self.spin_began);
        if rested > ticks_of(engine.options.patience) || !self.raise(engine) {
            return false;
        }
        let (least, most) = (ticks_of(spin::REST_SLEEP_RANGE_NS.0), ticks_of(spin::REST_SLEEP_RANGE_NS.1));
        thread::sleep_ns((spin::rest_length(rested, least, most) << 10) / clock::ticks_per_1024ns());
        self.each(engine, |up| up.record.rx.head_at_tcp_probe.store(up.record.rx.head.load(Relaxed), Relaxed));
        true
    }

    /// Notes a success.
    fn found(&self, budget: u64) {
        let waited = clock::ticks().wrapping_sub(self.spin_began);
        if is_late(waited, budget) {
            note_spin_failure();
        } else if BACKOFF.has_failed() {
            BACKOFF.note_success(); // other threads read these words: no store without need
        }
        let quick = waited < ticks_of(QUICK_NS);
        if LAST_WAIT_WAS_QUICK.load(Relaxed) != quick {
            LAST_WAIT_WAS_QUICK.store(quick, Relaxed);
        }
    }

    /// Whether the waits are close enough together for a spin to pay.
    fn is_quick(&self, engine: &Engine) -> bool {
        WAIT_PACE.is_quick(|| {
            let (mut any, mut all) = (false, true);
            let left = self.each(engine, |up| (any, all) = (true, all && up.peer_on_this_cpu()));
            any && all && !left
        })
    }

    /// Opens the gates, unless another thread spins for the set. True: a gate is open.
    fn raise(&mut self, engine: &Engine) -> bool {
        if let Some(set) = &self.set
            && !self.spins_for_set
        {
            self.spins_for_set = set.begin_spinning();
            if !self.spins_for_set {
                return false;
            }
        }
        let mut any = false;
        self.each(engine, |up| any |= engine.raise(&up));
        any
    }

    /// Closes every gate; false when bytes have arrived.
    fn fall_asleep(&mut self, engine: &Engine) -> bool {
        if let Some(set) = &self.set {
            return engine.set_sleep(set, &mut self.spins_for_set);
        }
        let mut asleep = 0;
        let mut ready = false;
        self.each(engine, |up| {
            if !ready {
                engine.reset(up.record, up.local); // a peer that broke the protocol may never wake a sleeper
                let mut kernel = up.kernel_tcp();
                asleep += 1;
                if !gate::enter_kernel(up.record, &up.slot, &mut kernel) {
                    if rx::ready(up.record, &up.slot) {
                        ready = true;
                        asleep -= 1;
                    } else {
                        gate::enter_kernel_over_bytes(up.record, &mut kernel);
                    }
                }
            }
        });
        if ready {
            self.each(engine, |up| {
                if asleep > 0 {
                    asleep -= 1;
                    gate::leave_kernel(up.record, &mut up.kernel_tcp());
                }
            });
        }
        !ready
    }

    fn any_ready(&self, engine: &Engine) -> bool {
        if let Some(set) = &self.set {
            return engine.set_any_ready(set);
        }
        let mut any = false;
        self.each(engine, |up| any |= rx::ready(up.record, &up.slot));
        any
    }

    /// Calls `each` for the streams of this wait whose wire is up: all of an array, or those of a set that are polled. Returns what
    /// [`Engine::set_hot`] does.
    fn each<'e>(&self, engine: &'e Engine, mut each: impl FnMut(UpgradedStream<'e>)) -> bool {
        let mut one = |handle: Handle| {
            if let Some(up) = engine.attached(handle) {
                each(up);
            }
        };
        let Some(set) = &self.set else {
            self.streams.iter().for_each(|&h| one(h));
            return false;
        };
        let mut hot = HotList::new();
        let left = engine.set_hot(set, &mut hot);
        hot.into_iter().for_each(one);
        left
    }
}

impl Engine {
    /// Opens the gate of a stream if its sets, if any, allow it.
    pub(crate) fn raise(&self, up: &UpgradedStream<'_>) -> bool {
        gate::raise(up.record, &up.slot, &mut up.kernel_tcp(), || up.local.sets_may_raise(up.handle))
    }
}

/// Whether this wait does not spin, because earlier spins failed. Counts it.
pub(crate) fn skips_spin() -> bool {
    !BACKOFF.take_turn()
}

fn note_spin_failure() {
    BACKOFF.note_failure(MAX_FAILURES);
}
