//! One wait on several streams at once: under poll and select (an array), under epoll (a [`EpollSet`]).
//!
//! The adapter drives it: [`Wait::step`] says READY (look at the streams), PROBE (ask the kernel with timeout 0) or SLEEP
//! (sleep in the kernel: every gate is closed). Between the steps the wait spins outside the kernel while that pays.

use crate::stream::EVIDENCE;
use crate::stream::engine::{Engine, Handle, Up};
use crate::stream::epoll_set::{EpollSet, HotList};
use crate::stream::exchange_pace::{Pace, ticks};
use motet_proto::stream::{gate, rx, spin};
use motet_sys::{clock, cpu_contention, thread};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// What the adapter does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Step {
    /// Some stream may have data on the wire.
    Ready = 1,
    /// Ask the kernel with timeout 0; if it has nothing, step again.
    Probe = 2,
    /// Sleep in the kernel, then call [`Wait::slept`].
    Sleep = 3,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Fresh,
    Spinning,
    Asked,
    Tired,
    Asleep,
}

/// One wait.
pub struct Wait<'a> {
    streams: &'a [Handle],
    set: Option<Arc<EpollSet>>,
    /// Whether this wait watches its set: see [`crate::stream::epoll_set`].
    watching: bool,
    phase: Phase,
    start: u64,
    /// When the kernel is asked next, and whether it has been asked since the spin began.
    probe: u64,
    asked: bool,
    /// When the spin began, and how often another thread took the CPU that it offered.
    began: u64,
    taken: u32,
}

/// Waits over several streams that skip spinning, and failures in a row: one pair for the process.
static SKIP: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);
/// Whether the last wait that spun found something before this (ns) was over: then the next one looks as long before it asks the
/// kernel, which takes a good part of such an exchange.
static QUICK: AtomicBool = AtomicBool::new(false);
const EAGER: u64 = 2_000;
/// The waits of the process that found nothing; those among them that only looked.
static PACE: Pace = Pace::new();
static LOOKS: Pace = Pace::new();
const MAX_FAILED: u32 = 9;
/// So many times others take the CPU before a spin is given up.
const CROWD: u32 = 2;

impl<'a> Wait<'a> {
    /// A wait on these streams.
    pub fn on(engine: &Engine, streams: &'a [Handle]) -> Self {
        Self::new(engine, streams, None)
    }

    /// A wait on a set.
    pub fn on_set(engine: &Engine, set: Arc<EpollSet>) -> Self {
        engine.set_cool(&set);
        Self::new(engine, &[], Some(set))
    }

    fn new(engine: &Engine, streams: &'a [Handle], set: Option<Arc<EpollSet>>) -> Self {
        let wait = Self {
            streams,
            set,
            watching: false,
            phase: Phase::Fresh,
            start: 0,
            probe: 0,
            asked: false,
            began: 0,
            taken: 0,
        };
        wait.each(engine, |up| {
            if up.record.rx.ready.load(Relaxed) == 0 {
                engine.attach_rx(&up);
            }
            up.record.rx.evidence_left.store(EVIDENCE, Relaxed);
        });
        wait
    }

    /// Goes on.
    pub fn step(&mut self, engine: &Engine, may_block: bool) -> Step {
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
            return Step::Ready;
        }
        if !may_block {
            // A program that does nothing but look spins already: what it waits for may come through the ring.
            if engine.options.spin > 0 && (engine.options.is_patient() || LOOKS.is_lively(|| true)) {
                self.raise(engine);
            }
            return Step::Probe;
        }
        loop {
            match self.phase {
                Phase::Fresh => {
                    if engine.options.spin > 0
                        && (engine.options.is_patient() || self.is_lively(engine) && !skips())
                        && self.raise(engine)
                    {
                        self.begin_spin();
                        // TCP bytes sent before the gates rose are in the kernel, so it is asked soon.
                        self.probe = self.start + if QUICK.load(Relaxed) { ticks(EAGER) } else { 0 };
                        continue;
                    }
                    // What the program waits for may be room to write: then there is nothing to close the hot streams' gates for.
                    let unarmed = self.set.as_ref().is_some_and(|set| set.has_unarmed());
                    self.phase = if unarmed { Phase::Asked } else { Phase::Tired };
                    if unarmed {
                        return Step::Probe;
                    }
                }
                Phase::Asked => self.phase = Phase::Tired,
                Phase::Spinning => match self.spin(engine) {
                    Some(step) => return step,
                    None if engine.options.is_patient() && self.rests(engine) => return Step::Probe,
                    None => self.phase = Phase::Tired,
                },
                Phase::Tired => {
                    if engine.may_linger(true) {
                        if self.raise(engine) {
                            self.begin_spin();
                            continue;
                        }
                        engine.before_sleep();
                    }
                    self.phase = Phase::Asleep;
                    if self.fall_asleep(engine) {
                        return Step::Sleep;
                    }
                    self.phase = Phase::Tired;
                    if self.any_ready(engine) {
                        return Step::Ready;
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
            engine.set_leave(set, std::mem::take(&mut self.watching));
        }
    }

    fn begin_spin(&mut self) {
        self.phase = Phase::Spinning;
        self.start = clock::ticks();
        (self.began, self.taken, self.asked) = (self.start, 0, false);
    }

    /// Spins until the next probe at most. `None`: it does not pay.
    fn spin(&mut self, engine: &Engine) -> Option<Step> {
        let mut watched = [const { None::<Up<'_>> }; 8];
        let mut more = false;
        let mut n = 0;
        let left = self.each(engine, |up| {
            if n < watched.len() {
                watched[n] = Some(up);
                n += 1;
            } else {
                more = true;
            }
        });
        let (watched, more) = (&watched[..n], more || left);
        let near = || watched.iter().flatten().any(Up::is_near);
        let (budget, hog) = (ticks(engine.options.spin), ticks(200_000));
        loop {
            for _ in 0..16 {
                for Up { record, slot, .. } in watched.iter().flatten() {
                    if !slot.inward().gate.still_waiting(record.rx.head.load(Relaxed)) {
                        if rx::ready(record, slot) {
                            self.found(budget);
                            return Some(Step::Ready);
                        }
                        return None; // closed by the sender, or bytes that follow TCP's: the kernel knows
                    }
                }
                std::hint::spin_loop();
            }
            if more && self.any_ready(engine) {
                self.found(budget);
                return Some(Step::Ready);
            }
            let now = clock::ticks();
            if now.wrapping_sub(self.start) > budget {
                failed();
                return None;
            }
            if now >= self.probe {
                self.probe = now + ticks(spin::PROBE);
                for up in watched.iter().flatten() {
                    up.record.rx.head_at_tcp_probe.store(up.record.rx.head.load(Relaxed), Relaxed);
                    spin::publish_cpu(&up.slot, &up.kernel_tcp());
                }
                if !std::mem::replace(&mut self.asked, true) {
                    return Some(Step::Probe);
                }
                // Anybody else who wants this CPU gets it now and then; their time is not spun away.
                let lent = cpu_contention::yield_now();
                if lent > hog && !self.any_ready(engine) {
                    failed();
                    return None;
                }
                if lent > ticks(spin::PROBE / 2) {
                    self.start += lent / 2;
                    self.taken += 1;
                    // Many want this CPU, and the peer is not who takes it: among many, those who sleep are served better.
                    if self.taken >= CROWD && !near() && !self.any_ready(engine) {
                        failed();
                        return None;
                    }
                }
                return Some(Step::Probe);
            }
            if near() && cpu_contention::yield_now() > hog {
                failed();
                return None;
            }
        }
    }

    /// Rests for a moment behind open gates, unless it has for long: a setting for tests (`Options::patience`). The kernel is asked next.
    #[cold]
    fn rests(&mut self, engine: &Engine) -> bool {
        let rested = clock::ticks().wrapping_sub(self.began);
        if rested > ticks(engine.options.patience) || !self.raise(engine) {
            return false;
        }
        let (least, most) = (ticks(spin::PAUSES.0), ticks(spin::PAUSES.1));
        thread::sleep_ns((spin::pause(rested, least, most) << 10) / clock::ticks_per_1024ns());
        self.each(engine, |up| up.record.rx.head_at_tcp_probe.store(up.record.rx.head.load(Relaxed), Relaxed));
        true
    }

    /// Found at last; but after so long, a sleep would have been as quick and would have left the CPU to others.
    fn found(&self, budget: u64) {
        let waited = clock::ticks().wrapping_sub(self.began);
        if waited > 2 * budget {
            failed()
        } else {
            paid()
        }
        let quick = waited < ticks(EAGER);
        if QUICK.load(Relaxed) != quick {
            QUICK.store(quick, Relaxed);
        }
    }

    /// Whether this wait may gain something by spinning.
    fn is_lively(&self, engine: &Engine) -> bool {
        PACE.is_lively(|| {
            let (mut any, mut all) = (false, true);
            let left = self.each(engine, |up| (any, all) = (true, all && up.is_near()));
            any && all && !left
        })
    }

    /// Opens the gates. Not where another thread watches the set already.
    fn raise(&mut self, engine: &Engine) -> bool {
        if let Some(set) = &self.set
            && !self.watching
        {
            self.watching = set.watch();
            if !self.watching {
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
            return engine.set_sleep(set, &mut self.watching);
        }
        let mut asleep = 0;
        let mut ready = false;
        self.each(engine, |up| {
            if !ready {
                engine.reset(up.record, up.local); // a peer that broke the protocol may never wake anybody
                let mut base = up.kernel_tcp();
                asleep += 1;
                if !gate::enter_kernel(up.record, &up.slot, &mut base) {
                    if rx::ready(up.record, &up.slot) {
                        ready = true;
                        asleep -= 1;
                    } else {
                        gate::enter_kernel_over_bytes(up.record, &mut base);
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

    /// The streams of this wait whose wire is up: all of an array, of a set those that it looks at ([`Engine::set_hot`], whose answer
    /// is returned).
    fn each<'e>(&self, engine: &'e Engine, mut each: impl FnMut(Up<'e>)) -> bool {
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
    /// Opens the gate of a stream if its sets, if any, agree.
    pub(crate) fn raise(&self, up: &Up<'_>) -> bool {
        gate::raise(up.record, &up.slot, &mut up.kernel_tcp(), || up.local.sets_may_raise(up.handle))
    }
}

/// Whether this wait is one of those that do not spin, because earlier spins failed.
pub(crate) fn skips() -> bool {
    let skip = SKIP.load(Relaxed);
    if skip > 0 {
        SKIP.store(skip - 1, Relaxed);
    }
    skip > 0
}

fn paid() {
    if FAILED.load(Relaxed) != 0 {
        FAILED.store(0, Relaxed);
    }
}

fn failed() {
    let times = (FAILED.load(Relaxed) + 1).min(MAX_FAILED);
    FAILED.store(times, Relaxed);
    SKIP.store((1 << times) - 1, Relaxed);
}
