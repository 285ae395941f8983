//! A slot with a hostile peer: the input is a program of the honest end's calls, of writes into the shared memory between them, and of writes during
//! them.
//!
//! ```text
//!   settings 1 byte: see `Settings`, then operations
//!   op 1 byte: 0-3 send · 4-7 receive · 8 raise the gate · 9 close the gate · 10 take back · 11 bytes over TCP · 12 wait
//!     13 the peer has read all · 14 the peer puts bytes · 15 write during calls · 16 hand over · else write
//!   send, receive: length 2 bytes, flags 1 · TCP: length 1 · wait: flags 1 · put: length 2
//!   write: offset 2, value 8 · during calls: every so many steps 1, so many times 1, kind 1 (as the op of a write), then as a write
//!   a write of an even op goes to the words of the two directions, one of an op from 128 on adds to the present value
//! ```
//!
//! Whatever the peer writes: no more is delivered or sent than was asked for, nothing outside of the caller's buffers is written, single copies stay
//! in their block, and every call ends: a wait by itself, other calls at the latest when the peer is gone.

mod hostile_base;
mod seeds;

pub use seeds::seeds;

use hostile_base::{HostileBase, PROOF, Writes};
use motet_driver_loopback::clock::Clock;
use motet_driver_loopback::end::End;
use motet_driver_loopback::memory::ExposedSlot;
use motet_driver_loopback::pipe::Connection;
use motet_driver_loopback::plan::Plan;
use motet_proto::stream::spin::{SpinResult, spin};
use motet_proto::{
    EAGAIN, ECONNRESET, EINTR, EPIPE,
    stream::{bulk, gate, rx, tx},
};
use motet_wire::stream::record::{State, StreamRecord};
use motet_wire::stream::slot::transfer;
use motet_wire::sync::Ordering::Relaxed;
use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};

const RING: usize = 4096;
const BULK: usize = 64 << 10;
/// Most operations of one input.
const MAX_OPERATIONS: usize = 200;
/// Bytes with the words of both directions, and the offset of the second direction.
const WORDS: usize = 2304;
const SECOND: usize = 1024;
/// Offsets in a direction: the mode word, the consumer's head, the word whose upper half is the peer's copy rate, and a transfer's state.
const MODE: usize = 0;
const HEAD: usize = 128;
const LANDED_OFFSET: usize = 144;
const STATE: usize = 192;
/// Bytes of a block that go ahead through the ring, and the bit of `tx.single_copy_skips` that marks this.
const SENT_AHEAD_BYTES: usize = 16 << 10;
const SENT_AHEAD_FLAG: u32 = 1 << 31;
/// Bytes of large puts between measurements of their rate.
const WINDOW: u32 = 1 << 20;
/// Bytes around a receive buffer, which must stay untouched.
const MARGIN_BYTES: usize = 64;
const UNTOUCHED: u8 = 0xee;

/// How often an input reached the paths under test.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// A copy rate of the peer was used.
    pub landed: u64,
    /// A copy rate was published to the peer.
    pub said: u64,
    /// The beginning of a block went ahead.
    pub ahead: u64,
    /// Blocks sent by single copy.
    pub copied_out: u64,
    /// Blocks received by single copy.
    pub copied_in: u64,
    /// Transfers that were abandoned or broken.
    pub unfinished: u64,
    /// Waits prolonged because the peer was reading.
    pub prolonged: u64,
}

impl Reached {
    /// The sums of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            landed: self.landed + other.landed,
            said: self.said + other.said,
            ahead: self.ahead + other.ahead,
            copied_out: self.copied_out + other.copied_out,
            copied_in: self.copied_in + other.copied_in,
            unfinished: self.unfinished + other.unfinished,
            prolonged: self.prolonged + other.prolonged,
        }
    }
}

thread_local! {
    static MEMORY: Option<ExposedSlot> = ExposedSlot::with_bulk(RING, BULK);
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let _reached = play(input);
}

/// Runs one input. Returns what it reached.
pub fn play(input: &[u8]) -> Reached {
    MEMORY.with(|memory| memory.as_ref().map_or_else(Reached::default, |memory| interpret(input, memory)))
}

/// Settings: the history of an honest connection.
struct Settings(u8);

impl Settings {
    /// Time passes slowly from step to step.
    const SLOWLY: u8 = 1;
    /// The peer publishes the address of its proof, so single copies are possible.
    const COPIES: u8 = 2;
    /// Large puts were made, and the next one completes a measurement.
    const WINDOW: u8 = 4;
    /// Few large receives were made, so the large ring is not used.
    const SMALL: u8 = 8;
    /// The ring was measured to be slow.
    const FAR: u8 = 16;

    fn has(&self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

struct Honest<'a> {
    record: StreamRecord,
    memory: &'a ExposedSlot,
    base: HostileBase<'a>,
    clock: Clock,
    reached: Reached,
}

fn interpret(input: &[u8], memory: &ExposedSlot) -> Reached {
    let Some((&settings, input)) = input.split_first() else { return Reached::default() };
    let settings = Settings(settings);
    memory.ends[0].prepare([1, 2]);
    let clock = Clock::new(if settings.has(Settings::SLOWLY) { 400 } else { 2_000 });
    let [end, peer] = End::pair(Connection::new(clock.clone(), 3000, Plan::new()), &clock);
    let record = record(&settings);
    memory.ends[1].outward().mark.ready.store(motet_wire::stream::gate::READY_LARGE, Relaxed);
    if settings.has(Settings::COPIES) {
        memory.ends[1].outward().transfer.proof.store(PROOF, Relaxed);
    }
    let base = HostileBase::new(end, memory, &clock);
    let mut honest = Honest { record, memory, base, clock, reached: Reached::default() };
    let mut input = input.iter().copied();
    let mut word = |bytes: u32| (0..bytes).try_fold(0u128, |n, _| input.next().map(|b| n << 8 | u128::from(b)));
    for _ in 0..MAX_OPERATIONS {
        let Some(op) = word(1) else { break };
        honest.base.begin(op == 12);
        let done = match op {
            0..=3 => word(3).map(|w| honest.send((w >> 8) as usize, w as u8)),
            4..=7 => word(3).map(|w| honest.receive((w >> 8) as usize, w as u8)),
            8..=10 => {
                honest.gate(op as u8);
                Some(())
            }
            11 => word(1).map(|n| {
                let _ = peer.connection(|c| c.send(1, &[7; 255][..n as usize]));
            }),
            12 => word(1).map(|w| honest.wait(w as u8)),
            13 => {
                memory.write(HEAD, &(memory.word(MODE) >> 2 << 1).to_ne_bytes());
                Some(())
            }
            14 => word(2).map(|n| hostile_base::add(memory, SECOND + MODE, (n as u64) << 2)),
            15 => word(3).zip(word(10)).map(|(how, rest)| {
                let [every, times, kind] = [how >> 16, how >> 8, how].map(|byte| byte as u8);
                honest.base.later(every, times, write(memory, kind, rest));
            }),
            16 => {
                honest.hand_over();
                Some(())
            }
            _ => word(10).map(|rest| write(memory, op as u8, rest).apply(memory)),
        };
        if done.is_none() {
            break;
        }
        honest.check();
    }
    honest.reached
}

fn record(settings: &Settings) -> StreamRecord {
    let record = StreamRecord::default();
    let (tx, rx) = (&record.tx, &record.rx);
    tx.mark.store(u64::MAX, Relaxed);
    tx.ready.store(1, Relaxed);
    rx.ready.store(1, Relaxed);
    if !settings.has(Settings::SMALL) {
        rx.bulk_scores.store(bulk::BULK_SCORE, Relaxed);
    }
    if settings.has(Settings::WINDOW) {
        tx.copy_mode.mode.store(1, Relaxed);
        tx.copy_mode.window_bytes.store(WINDOW - bulk::LARGE_TRANSFER_BYTES as u32, Relaxed);
    }
    if settings.has(Settings::FAR) {
        tx.copy_mode.mode.store(1, Relaxed);
        tx.copy_mode.rates[0].store(5_000, Relaxed);
    }
    record.lifecycle.state.store(State::Attached as u32, Relaxed);
    record.lifecycle.owner.store(End::process(0), Relaxed);
    record.connection.pid.store(hostile_base::PID, Relaxed);
    for (word, cookie) in record.connection.cookies.iter().zip(hostile_base::COOKIES) {
        word.store(cookie, Relaxed);
    }
    record
}

/// A write of this kind: offset and value.
fn write(memory: &ExposedSlot, kind: u8, rest: u128) -> Writes {
    let (at, value) = ((rest >> 64) as usize & 0xffff, (rest as u64).swap_bytes());
    let at = if kind & 1 == 0 { at % WORDS / 8 * 8 } else { at % memory.size() };
    Writes { at, value, adds: kind >= 128 }
}

/// The size from which a buffer is large, by two bits.
fn large(flags: u8) -> usize {
    [usize::MAX, 700, 4096, 20_000][usize::from(flags >> 2 & 3)]
}

/// The duration of a wait in ns, by two bits.
fn span(flags: u8) -> u64 {
    [1_000, 0, 6_000, 20_000][usize::from(flags >> 4 & 3)]
}

impl Honest<'_> {
    fn send(&mut self, length: usize, flags: u8) {
        let (slot, record) = (&self.memory.ends[0], &self.record);
        let data = vec![3; length];
        let large = large(flags);
        let large_far = if flags & 32 == 0 { large } else { usize::MAX };
        let half = if flags & 16 == 0 { 0 } else { usize::MAX };
        let ask = tx::Request { kernel_only: flags & 1 != 0, nonblocking: flags & 2 == 0, large, large_far, half };
        let rates = || record.tx.copy_mode.rates.each_ref().map(|rate| rate.load(Relaxed));
        let (landed, before) = ((self.memory.word(LANDED_OFFSET) >> 32) as u32, rates());
        let blocks = record.events.single_copy.load(Relaxed);
        match tx::begin(record, Some(slot), &mut self.base, &[IoSlice::new(&data)], ask) {
            tx::Step::Kernel => {
                let sent = self.base.end.connection(|c| c.send(0, &data)).unwrap_or(0);
                tx::end(record, &mut self.base, sent);
            }
            tx::Step::Done(n) => {
                assert!(n <= length);
                if record.tx.single_copy_skips.load(Relaxed) & SENT_AHEAD_FLAG != 0 {
                    self.reached.ahead += 1;
                    assert!(
                        !ask.nonblocking && n <= SENT_AHEAD_BYTES && length > SENT_AHEAD_BYTES,
                        "{n} of {length} ahead"
                    );
                }
            }
            tx::Step::Full => {} // nothing was sent
            tx::Step::Failed(errno) => known(errno),
        }
        if landed != 0 && !self.base.is_interleaved() && self.memory.word(LANDED_OFFSET) >> 32 == 0 {
            self.reached.landed += 1;
            let noted = rates().into_iter().zip(before).filter(|(now, before)| now != before);
            noted.for_each(|(now, _)| assert!(now <= landed, "{now}, but they land at {landed}"));
        }
        let went = record.events.single_copy.load(Relaxed) - blocks;
        self.reached.copied_out += went;
        let cut = self.memory.word(STATE) as u32 == transfer::CUT;
        self.reached.unfinished += u64::from(self.base.has_copied() && (went == 0 || cut));
        self.base.check(length);
    }

    fn receive(&mut self, length: usize, flags: u8) {
        let (slot, record) = (&self.memory.ends[0], &self.record);
        let mut data = vec![UNTOUCHED; length + 2 * MARGIN_BYTES];
        let peek = flags & 2 != 0;
        let ask =
            rx::Request { blocking: flags & 1 != 0, peek, kernel_only: false, spin: span(flags), large: large(flags) };
        let mut bufs = [IoSliceMut::new(&mut data[MARGIN_BYTES..][..length])];
        let copied = record.rx.single_copy_bytes.load(Relaxed);
        let again = Cell::new(false);
        let may_stay = |_: &mut HostileBase<'_>, may_spin: bool| {
            let stays = may_spin && tx::is_being_read(record, slot);
            again.set(again.get() || stays);
            stays
        };
        match rx::begin(record, Some(slot), &mut self.base, &mut bufs, ask, || true, may_stay) {
            rx::Step::Kernel => {
                let n = self.base.end.connection(|c| c.receive(0, &mut bufs, usize::MAX, peek)).unwrap_or(0);
                rx::end(record, &mut self.base, if peek { 0 } else { n });
            }
            rx::Step::Poll => gate::leave_kernel(record, &mut self.base),
            rx::Step::Done(n) => assert!(n <= length),
            rx::Step::Failed(errno) => known(errno),
        }
        let copied = record.rx.single_copy_bytes.load(Relaxed) - copied;
        assert!(copied <= length as u64);
        self.reached.copied_in += u64::from(copied > 0);
        self.reached.unfinished += u64::from(copied == 0 && self.base.has_copied());
        if !again.get() {
            self.base.check(length); // it has published one buffer at most
        }
        let margins = data[..MARGIN_BYTES].iter().chain(&data[MARGIN_BYTES + length..]);
        assert!(margins.copied().all(|byte| byte == UNTOUCHED), "nothing outside of the buffer is written");
        // Published once per MiB, so by this receive if not earlier.
        if !self.base.is_interleaved() && self.memory.word(SECOND + LANDED_OFFSET) >> 32 != 0 {
            self.reached.said += 1;
            hostile_base::add(
                self.memory,
                SECOND + LANDED_OFFSET,
                (self.memory.word(SECOND + LANDED_OFFSET) >> 32 << 32).wrapping_neg(),
            );
        }
    }

    /// A wait ends while the peer stays, whatever it writes.
    fn wait(&mut self, flags: u8) {
        let (slot, ns, began) = (&self.memory.ends[0], span(flags), self.clock.time());
        let spun = spin(&self.record, slot, &mut self.base, ns, false);
        let took = self.clock.time() - began;
        assert!(took <= 200 * ns + 300_000, "{took} ns for one of {ns}");
        self.reached.prolonged += u64::from(spun == SpinResult::BudgetSpent && took > 3 * ns.max(20_000));
    }

    fn gate(&mut self, op: u8) {
        let (record, slot) = (&self.record, &self.memory.ends[0]);
        match op {
            8 => {
                gate::raise(record, slot, &mut self.base, || true);
            }
            9 => {
                gate::close_gate(record, slot, &mut self.base);
            }
            _ => {
                tx::take_back(record, slot, &mut self.base);
            }
        }
    }

    /// Hands the descriptor over to another reader; the peer's socket takes all returned bytes.
    fn hand_over(&mut self) {
        let (record, slot) = (&self.record, &self.memory.ends[0]);
        let mut returned = 0;
        gate::hand_over(record, slot, &mut self.base);
        rx::return_for_producer(record, slot, &mut self.base, |bytes| {
            returned += bytes.len();
            Ok(bytes.len())
        });
        assert!(returned <= RING.max(BULK), "{returned} bytes were in a ring");
    }

    /// Checks between calls.
    fn check(&self) {
        let tx = &self.record.tx;
        assert!(tx.head_seen.load(Relaxed) <= tx.tail.load(Relaxed), "it has read what was sent at most");
        let hopeless = tx.single_copy_skips.load(Relaxed) & !SENT_AHEAD_FLAG;
        assert!(hopeless >> 8 <= 63 && hopeless & 255 <= 64, "{hopeless:#x}");
        assert!(matches!(self.record.state(), State::Attached | State::Broken));
    }
}

/// Checks the error of a call.
fn known(errno: i32) {
    assert!([EAGAIN, ECONNRESET, EINTR, EPIPE].contains(&errno), "{errno}");
}
