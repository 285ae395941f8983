//! Two simulated processes at the ends of one connection, stepped one at a time.
//!
//! It holds the records, the slot and the threads of both ends, what each end has sent and received, and the rules that must hold after every step
//! ([`World::check`]). Every byte of a direction is a function of its position, so one comparison shows loss, duplication and disorder. Inside a step the
//! other end may run, too ([`InterleavedPlatform`]): wherever the protocol reads the clock, yields or uses TCP. Random steps are in `schedule`.
#![allow(dead_code)]

pub mod prng;
pub mod schedule;

use motet_driver_loopback::clock::Clock;
use motet_driver_loopback::end::End;
use motet_driver_loopback::memory::ExposedSlot;
use motet_driver_loopback::pipe::Connection;
use motet_driver_loopback::plan::Plan;
use motet_proto::{
    EAGAIN, EINTR, Errno,
    stream::{Patience, Platform, gate, rx, single_copy, tx},
};
use motet_wire::stream::record::{State, StreamRecord};
use motet_wire::stream::slot::Slot;
use motet_wire::sync::Ordering::Relaxed;
use prng::Prng;
use std::cell::{Cell, RefCell};
use std::io::{IoSlice, IoSliceMut};

/// Threads of a process: one writes, two read.
pub const THREADS: usize = 3;
/// A step with so many calls of the platform counts as an endless loop.
const MAX_CALLS_PER_STEP: u64 = 3_000_000;

/// What a thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadState {
    /// Nothing.
    Idle,
    /// A kernel send of so many bytes; `begin` has been called, `end` not yet.
    Sending(usize),
    /// Asleep in a kernel receive of so many bytes.
    Receiving(usize),
    /// Asleep in poll, after [`rx::Step::Poll`].
    Polling,
    /// Asleep in the kernel without the protocol's knowledge.
    Blind,
}

/// One process.
#[derive(Debug)]
pub struct Side {
    pub record: StreamRecord,
    pub slot: Slot,
    pub end: End,
    pub sent: Cell<u64>,
    /// Bytes of the put in progress: some of them may be read before it returns.
    pub putting: Cell<u64>,
    pub received: Cell<u64>,
    pub threads: [Cell<ThreadState>; THREADS],
    /// No more sends.
    pub shut: Cell<bool>,
    /// End of file was seen.
    pub eof: Cell<bool>,
    /// The descriptor was handed over: other programs may read it without the engine.
    pub handed_over: Cell<bool>,
    /// Bytes were put into the ring after the last [`World::before_sleep`].
    pub unswept: Cell<bool>,
    /// The stream failed.
    pub failed: Cell<Option<Errno>>,
}

/// What a hostile peer does between two steps.
pub type Scribble = Box<dyn Fn(&World)>;

/// Both processes, and what happens to them from outside.
pub struct World {
    pub sides: [Side; 2],
    pub clock: Clock,
    pub prng: RefCell<Prng>,
    /// One in so many calls of the platform lets the other end run; 0: none does.
    pub weave: u64,
    /// Runs whenever an end is about to take a lock.
    pub at_lock: Option<Box<dyn Fn()>>,
    /// Largest send and receive, bytes.
    pub most: usize,
    /// Threads that read at each end: 1 or 2.
    pub readers: usize,
    /// Ends may hand over their descriptors. TCP then accepts what it has room for, and the protocol knows how much that is.
    pub hands_over: bool,
    /// Bytes that TCP holds in each direction.
    pub room: u64,
    /// Runs before every copy between the processes.
    pub on_copy: Option<Scribble>,
    /// The pids of both ends were reused by other processes.
    pub replaced: Cell<bool>,
    /// Whether the other end is running inside a step.
    inside: Cell<bool>,
    pub calls: Cell<u64>,
    /// How long other threads have the CPU at every yield, ns.
    pub yield_ns: Cell<u64>,
    /// Whether other threads compute on every CPU.
    pub contended: Cell<bool>,
    /// The next time it is asked, the peer lacks a CPU.
    pub lacks_cpu: Cell<bool>,
    /// How long receives rest behind their open gates.
    pub patience: Cell<Patience>,
    pub interrupted: Cell<bool>,
    /// Bytes that TCP certainly accepts.
    pub certain_room: Cell<u64>,
    /// Called instead of the other end's random step: a hostile peer.
    pub scribble: Option<Scribble>,
}

/// The byte at a position of what `side` sends.
pub fn byte(side: usize, position: u64) -> u8 {
    (position ^ position >> 8 ^ position >> 16).wrapping_mul(31).wrapping_add(side as u64 * 101) as u8
}

/// `length` bytes of what `side` sends, from a position on.
pub fn bytes(side: usize, position: u64, length: usize) -> Vec<u8> {
    (position..position + length as u64).map(|p| byte(side, p)).collect()
}

/// A send that must not block, without single copy.
pub const SEND: tx::Request =
    tx::Request { kernel_only: false, nonblocking: true, large: usize::MAX, large_far: usize::MAX, half: 0 };
/// A receive that may sleep, without spinning.
pub const SLEEP: rx::Request =
    rx::Request { blocking: true, peek: false, kernel_only: false, spin: 0, large: usize::MAX };
/// A receive that may not sleep.
pub const RECEIVE_WITHOUT_SLEEP: rx::Request =
    rx::Request { blocking: false, peek: false, kernel_only: false, spin: 0, large: usize::MAX };

/// A new record, attached to a slot.
pub fn attach(record: &StreamRecord, slot: &Slot, side: usize, single_copy: bool) {
    record.tx.mark.store(u64::MAX, Relaxed);
    record.tx.ready.store(1, Relaxed);
    record.rx.ready.store(1, Relaxed);
    record.lifecycle.state.store(State::Attached as u32, Relaxed);
    record.lifecycle.owner.store(End::process(side), Relaxed);
    record.connection.pid.store(std::process::id(), Relaxed);
    record.connection.cookies[0].store(10 + side as u64, Relaxed);
    record.connection.cookies[1].store(11 - side as u64, Relaxed);
    slot.outward().mark.ready.store(motet_wire::stream::gate::READY_LARGE, Relaxed);
    if single_copy {
        slot.outward().transfer.proof.store(single_copy::proof_address(record), Relaxed);
    }
}

impl World {
    /// A fresh connection over `memory`. Single copy needs the addresses of the records, so [`World::single_copy`] is called after the world is in its box.
    pub fn new(memory: &ExposedSlot, prng: Prng, room: usize, plan: Plan) -> Box<Self> {
        let clock = Clock::new(50);
        memory.ends[0].prepare([10, 11]);
        let ends = End::pair(Connection::new(clock.clone(), room, plan), &clock);
        let mut ends = ends.into_iter();
        let sides = [0, 1].map(|side| Side {
            record: StreamRecord::default(),
            slot: memory.ends[side],
            end: ends.next().unwrap(),
            sent: Cell::new(0),
            putting: Cell::new(0),
            received: Cell::new(0),
            threads: [const { Cell::new(ThreadState::Idle) }; THREADS],
            shut: Cell::new(false),
            eof: Cell::new(false),
            handed_over: Cell::new(false),
            unswept: Cell::new(false),
            failed: Cell::new(None),
        });
        let world = Box::new(Self {
            sides,
            clock,
            prng: RefCell::new(prng),
            weave: 0,
            at_lock: None,
            most: 6000,
            readers: 2,
            hands_over: false,
            room: room as u64,
            on_copy: None,
            replaced: Cell::new(false),
            inside: Cell::new(false),
            calls: Cell::new(0),
            yield_ns: Cell::new(0),
            contended: Cell::new(false),
            lacks_cpu: Cell::new(false),
            patience: Cell::new(Patience::NONE),
            interrupted: Cell::new(false),
            certain_room: Cell::new(u64::MAX),
            scribble: None,
        });
        for (at, side) in world.sides.iter().enumerate() {
            attach(&side.record, &side.slot, at, false);
        }
        world
    }

    /// Lets large payload go by single copy.
    pub fn single_copy(&self) {
        for side in &self.sides {
            side.slot.outward().transfer.proof.store(single_copy::proof_address(&side.record), Relaxed);
        }
    }

    pub fn platform(&self, side: usize, thread: usize) -> InterleavedPlatform<'_> {
        InterleavedPlatform { end: self.sides[side].end.thread(thread as u32), world: self }
    }

    /// Bytes for `side` that it has not received.
    pub fn undelivered(&self, side: usize) -> u64 {
        self.sides[1 - side].sent.get().saturating_sub(self.sides[side].received.get())
    }

    /// Bytes in the ring for `side`.
    pub fn in_ring(&self, side: usize) -> u64 {
        let lines = self.sides[side].slot.inward();
        lines.gate.tail().0 - lines.consumer.seen_head()
    }

    pub fn gate_is_up(&self, side: usize) -> bool {
        self.sides[side].slot.inward().gate.tail().1
    }

    // ---- steps ----------------------------------------------------------------------------------------------------

    /// Begins a send of `length` bytes.
    pub fn send(&self, side: usize, length: usize, ask: tx::Request) -> tx::Step {
        let me = &self.sides[side];
        let data = bytes(side, me.sent.get(), length);
        let cut = length / 3;
        let two = [IoSlice::new(&data[..cut]), IoSlice::new(&data[cut..])];
        let one = [IoSlice::new(&data)];
        let bufs: &[IoSlice<'_>] = if length % 5 == 4 { &two } else { &one };
        me.putting.set(length as u64);
        let step = tx::begin(&me.record, Some(&me.slot), &mut self.platform(side, 0), bufs, ask);
        me.putting.set(0);
        match step {
            tx::Step::Done(n) => {
                assert!(n > 0 && n <= length, "a put of {n} of {length} bytes");
                me.sent.set(me.sent.get() + n as u64);
                me.unswept.set(true);
            }
            tx::Step::Kernel => me.threads[0].set(ThreadState::Sending(length)),
            tx::Step::Full => {} // as a kernel send that finds TCP full
            tx::Step::Failed(errno) => self.fail(side, errno),
        }
        step
    }

    /// Continues a kernel send; true if it has ended.
    pub fn send_on(&self, side: usize, blocking: bool) -> bool {
        let me = &self.sides[side];
        let ThreadState::Sending(length) = me.threads[0].get() else { return true };
        let result = me.end.connection(|c| c.send(side, &bytes(side, me.sent.get(), length)));
        if result == Err(EAGAIN) && blocking {
            return false;
        }
        me.threads[0].set(ThreadState::Idle);
        me.sent.set(me.sent.get() + result.unwrap_or(0) as u64);
        tx::end(&me.record, &mut self.platform(side, 0), result.unwrap_or(0));
        if let Err(errno) = result
            && errno != EAGAIN
        {
            self.fail(side, errno);
        }
        true
    }

    /// What the engine does before a thread of this process sleeps.
    pub fn before_sleep(&self, side: usize, thread: usize) {
        let me = &self.sides[side];
        me.unswept.set(false);
        if me.shut.get() {
            return; // end of file wakes the peer
        }
        tx::take_back(&me.record, &me.slot, &mut self.platform(side, thread));
    }

    /// Begins a receive of at most `length` bytes.
    pub fn receive(&self, side: usize, thread: usize, length: usize, ask: rx::Request) -> rx::Step {
        let me = &self.sides[side];
        let mut data = vec![0; length];
        let cut = length / 4;
        let mut platform = self.platform(side, thread);
        let sweep = |_: &mut InterleavedPlatform<'_>, may_spin: bool| {
            let linger = may_spin && tx::is_being_read(&me.record, &me.slot);
            if !linger {
                self.before_sleep(side, thread);
            }
            linger
        };
        let step = if length % 3 == 1 {
            let (a, b) = data.split_at_mut(cut);
            rx::begin(
                &me.record,
                Some(&me.slot),
                &mut platform,
                &mut [IoSliceMut::new(a), IoSliceMut::new(b)],
                ask,
                || true,
                sweep,
            )
        } else {
            rx::begin(&me.record, Some(&me.slot), &mut platform, &mut [IoSliceMut::new(&mut data)], ask, || true, sweep)
        };
        match step {
            rx::Step::Done(n) => self.deliver(side, &data[..n], length, ask.peek),
            // A kernel receive that peeks is not simulated: it sleeps like one of no bytes.
            rx::Step::Kernel => me.threads[thread].set(ThreadState::Receiving(if ask.peek { 0 } else { length })),
            rx::Step::Poll => me.threads[thread].set(ThreadState::Polling),
            rx::Step::Failed(EAGAIN) => {
                assert!(!ask.blocking || self.patience.get().expires, "EAGAIN from a blocking receive");
            }
            rx::Step::Failed(EINTR) if self.interrupted.get() => {}
            rx::Step::Failed(errno) => self.fail(side, errno),
        }
        step
    }

    /// Wakes a thread that sleeps in the kernel, if the kernel would; true if its call has ended.
    pub fn receive_on(&self, side: usize, thread: usize, blocking: bool) -> bool {
        let me = &self.sides[side];
        let doing = me.threads[thread].get();
        let readable = me.end.connection(|c| c.readable(side));
        if !readable && blocking {
            return false;
        }
        match doing {
            ThreadState::Receiving(length) => {
                let mut data = vec![0; length];
                let result =
                    me.end.connection(|c| c.receive(side, &mut [IoSliceMut::new(&mut data)], usize::MAX, false));
                me.threads[thread].set(ThreadState::Idle);
                rx::end(&me.record, &mut self.platform(side, thread), result.unwrap_or(0));
                match result {
                    Ok(n) => self.deliver(side, &data[..n], length, false),
                    Err(EAGAIN) => {}
                    Err(errno) => self.fail(side, errno),
                }
            }
            ThreadState::Polling => {
                me.threads[thread].set(ThreadState::Idle);
                gate::leave_kernel(&me.record, &mut self.platform(side, thread));
            }
            ThreadState::Blind => me.threads[thread].set(ThreadState::Idle),
            ThreadState::Idle | ThreadState::Sending(_) => {}
        }
        true
    }

    /// Half-close, as the engine does it: nothing stays in the ring of a reader outside the engine. False: TCP is full.
    pub fn shut(&self, side: usize) -> bool {
        let me = &self.sides[side];
        self.before_sleep(side, 0);
        if tx::must_linger(&me.record, &me.slot) {
            return false;
        }
        me.shut.set(true);
        me.end.connection(|c| c.finish(side));
        true
    }

    /// Hands over the end's descriptor, as the engine does it. `reaches`: the kernel lets it use the peer's socket.
    pub fn hand_over(&self, side: usize, reaches: bool) {
        let (me, peer) = (&self.sides[side], &self.sides[1 - side]);
        me.handed_over.set(true);
        me.record.lifecycle.tcp_only.store(1, Relaxed);
        let mut platform = self.platform(side, 2);
        tx::take_back(&me.record, &me.slot, &mut platform);
        tx::finish(&me.record, &me.slot, &mut platform);
        gate::hand_over(&me.record, &me.slot, &mut platform);
        if reaches {
            rx::return_for_producer(&me.record, &me.slot, &mut platform, |bytes| {
                peer.end.connection(|c| c.send(1 - side, bytes))
            });
        }
    }

    /// A receive without the engine; returns the number of bytes.
    pub fn read_elsewhere(&self, side: usize, length: usize) -> usize {
        let mut data = vec![0; length];
        let got =
            self.sides[side].end.connection(|c| c.receive(side, &mut [IoSliceMut::new(&mut data)], usize::MAX, false));
        if let Ok(got) = got {
            self.deliver(side, &data[..got], length, false);
        }
        got.unwrap_or(0)
    }

    fn deliver(&self, side: usize, data: &[u8], wanted: usize, peek: bool) {
        let me = &self.sides[side];
        if self.scribble.is_some() {
            return; // the stream of a hostile peer may contain anything
        }
        if data.is_empty() {
            if wanted > 0 {
                assert!(
                    self.sides[1 - side].shut.get() && self.undelivered(side) == 0,
                    "end of file before the last byte"
                );
                me.eof.set(true);
            }
            return;
        }
        let expected = bytes(1 - side, me.received.get(), data.len());
        let peer = &self.sides[1 - side];
        let most = peer.sent.get() + peer.putting.get();
        assert!(me.received.get() + data.len() as u64 <= most, "more bytes than were sent");
        assert_eq!(data, expected, "bytes at position {} of what end {} receives", me.received.get(), side);
        if !peek {
            me.received.set(me.received.get() + data.len() as u64);
        }
    }

    fn fail(&self, side: usize, errno: Errno) {
        self.sides[side].failed.set(Some(errno));
    }

    /// Describes one direction in one line.
    pub fn describe(&self, to: usize) -> String {
        let (rx, tx) = (&self.sides[to].record.rx, &self.sides[1 - to].record.tx);
        let lines = self.sides[to].slot.inward();
        format!(
            "{:?}, {} undelivered; gate {:?}, shared head {:?}, mark {}; rx head {} tcp {} mark {} known {} busy {}; tx tail {} tcp {} mark {} busy {}",
            self.sides[to].threads.each_ref().map(Cell::get),
            self.undelivered(to),
            lines.gate.tail(),
            lines.consumer.settled(),
            lines.mark.mark.load(Relaxed),
            rx.head.load(Relaxed),
            rx.tcp_bytes.load(Relaxed),
            rx.mark.load(Relaxed),
            rx.mark_known.load(Relaxed),
            rx.kernel_calls.load(Relaxed),
            tx.tail.load(Relaxed),
            tx.tcp_bytes.load(Relaxed),
            tx.mark.load(Relaxed),
            tx.kernel_calls.load(Relaxed),
        )
    }

    // ---- rules ----------------------------------------------------------------------------------------------------

    /// What must hold between any two steps of honest ends.
    pub fn check(&self) {
        for (at, me) in self.sides.iter().enumerate() {
            assert_eq!(me.failed.get(), None, "end {at} failed");
            assert_eq!(me.record.rx.lock.load(Relaxed), 0, "invariant 7: no lock is held while threads are elsewhere");
            assert_eq!(me.record.tx.lock.load(Relaxed), 0, "invariant 7: no lock is held while threads are elsewhere");
            let peer = &self.sides[1 - at];
            let in_flight = me.end.connection(|c| c.in_flight(1 - at));
            // A reader that is awake may have taken what would have woken the other one: then it must receive.
            let all_asleep = me.threads[1..=self.readers].iter().all(|t| t.get() != ThreadState::Idle);
            let all_told = peer.threads[0].get() == ThreadState::Idle && !peer.unswept.get() && all_asleep;
            for thread in &me.threads {
                match thread.get() {
                    ThreadState::Receiving(_) => {
                        assert!(
                            !self.gate_is_up(at),
                            "invariant 5: RING is set while a thread of end {at} sleeps in the kernel"
                        );
                        assert_eq!(self.in_ring(at), 0, "a thread of end {at} sleeps over bytes in the ring");
                    }
                    ThreadState::Polling | ThreadState::Blind if all_told && self.undelivered(at) > 0 => {
                        assert!(in_flight > 0, "lost wake-up: end {at} sleeps, none in TCP: {}", self.describe(at));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// An end whose calls may let the other end run.
pub struct InterleavedPlatform<'a> {
    pub end: End,
    world: &'a World,
}

impl InterleavedPlatform<'_> {
    fn pause(&self) {
        let world = self.world;
        world.calls.set(world.calls.get() + 1);
        assert!(world.calls.get() < MAX_CALLS_PER_STEP, "an endless loop");
        if world.weave == 0 || world.inside.get() || !world.prng.borrow_mut().one_in(world.weave) {
            return;
        }
        world.inside.set(true);
        match &world.scribble {
            Some(scribble) => scribble(world),
            None => schedule::step(world, 1 - self.end.side),
        }
        world.inside.set(false);
    }
}

impl Platform for InterleavedPlatform<'_> {
    fn tcp_recv(&mut self, bufs: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, Errno> {
        self.pause();
        self.end.tcp_recv(bufs, peek)
    }
    fn tcp_send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        self.pause();
        let sent = self.end.tcp_send(bytes);
        self.pause();
        sent
    }
    fn tcp_readable(&mut self) -> bool {
        self.pause();
        self.end.tcp_readable()
    }
    fn tcp_pending(&mut self) -> u64 {
        self.pause();
        self.end.tcp_pending()
    }
    fn tcp_bytes_read(&mut self, counted: u64) -> u64 {
        self.pause();
        self.end.tcp_bytes_read(counted)
    }
    fn tcp_bytes_written(&mut self, counted: u64) -> u64 {
        self.pause();
        self.end.tcp_bytes_written(counted)
    }
    fn tcp_send_room(&mut self) -> u64 {
        self.pause();
        match self.world.hands_over {
            true => self.world.room - self.end.connection(|c| c.in_flight(self.end.side)),
            false => self.world.certain_room.get(),
        }
    }
    fn tcp_alive(&mut self) -> bool {
        self.pause();
        self.end.tcp_alive()
    }
    fn tcp_failed(&mut self, peer: u32) -> bool {
        self.pause();
        self.end.tcp_failed(peer)
    }
    fn may_lack_cpu(&mut self, _peer: u32) -> bool {
        self.world.lacks_cpu.take()
    }
    fn read_peer_memory(&mut self, pid: u32, address: u64, into: &mut [u8]) -> bool {
        self.pause();
        self.world.on_copy.iter().for_each(|run| run(self.world));
        match &self.world.scribble {
            // A hostile peer's addresses are those of another process; here they would be memory of this process.
            Some(_) if address != single_copy::proof_address(&self.world.sides[1].record) => {
                into.fill(0x5a);
                address % 8 != 3
            }
            _ => self.end.read_peer_memory(pid, address, into),
        }
    }
    fn write_peer_memory(&mut self, pid: u32, address: u64, from: &[u8]) -> bool {
        self.pause();
        self.world.on_copy.iter().for_each(|run| run(self.world));
        if self.world.scribble.is_some() { address % 8 != 3 } else { self.end.write_peer_memory(pid, address, from) }
    }
    fn prefault(&mut self, ring: motet_wire::mapping::Mapping) {
        self.end.prefault(ring)
    }
    fn is_same_process(&mut self, pid: u32) -> bool {
        self.pause();
        !self.world.replaced.get() && self.end.is_same_process(pid)
    }
    fn populate(&mut self, ring: motet_wire::mapping::Mapping, few: bool) -> bool {
        self.end.populate(ring, few)
    }
    fn now(&self) -> u64 {
        self.pause();
        self.end.now()
    }
    fn ticks_per_1024ns(&self) -> u64 {
        self.end.ticks_per_1024ns()
    }
    fn cpu(&self) -> u32 {
        self.end.cpu()
    }
    fn is_cpu_contended(&self) -> bool {
        self.world.contended.get()
    }
    fn yield_now(&mut self) {
        self.pause();
        self.world.clock.advance(self.world.yield_ns.get());
        self.end.yield_now();
    }
    fn sleep(&mut self, ns: u64) {
        self.pause();
        self.end.sleep(ns);
    }
    fn patience(&self, _record: &StreamRecord) -> Patience {
        self.world.patience.get()
    }
    fn interruptible_sleep(&mut self, ns: u64) -> bool {
        self.sleep(ns);
        !self.world.interrupted.get()
    }
    fn lock_token(&self) -> u64 {
        if let Some(at_lock) = &self.world.at_lock {
            at_lock();
        }
        self.end.lock_token()
    }
    fn lock_holder_exists(&self, token: u64) -> bool {
        self.end.lock_holder_exists(token)
    }
}
