//! The honest end's environment: a simulated connection and clock, the peer's partly mapped memory, and the peer's writes during a call.
//!
//! Every step of a call in this environment (to the clock, the connection, the peer's memory) first makes the writes that are due. A hostile peer may
//! keep some calls waiting as long as it lives, so after [`MAX_STEPS`] steps in one call it is killed.

use motet_driver_loopback::clock::Clock;
use motet_driver_loopback::end::End;
use motet_driver_loopback::memory::ExposedSlot;
use motet_driver_loopback::plan::Fault;
use motet_proto::stream::bulk::ArrivalTimer;
use motet_proto::{Errno, stream::Platform};
use motet_wire::mapping::Mapping;
use std::cell::RefCell;
use std::io::IoSliceMut;

/// The address of the peer's proof, its pid, and the cookies of our end and of the peer's.
pub const PROOF: u64 = 0x1000;
pub const PID: u32 = 77;
pub const COOKIES: [u64; 2] = [1, 2];
/// The other mapped memory of the peer.
const PEER_MEMORY: std::ops::Range<u64> = 0x10000..0x10000 + (48 << 10);
/// Steps in one call after which the peer is killed, and steps that may follow.
const MAX_STEPS: u32 = 3_000;
const MAX_STEPS_AFTER_KILL: u32 = 200_000;
/// Steps in one call after which a yield takes long, and its duration in ns.
const SLOW_AFTER_STEPS: u32 = 500;
const SLOW_STEP_NS: u64 = 250_000;

/// A write into the shared memory.
#[derive(Debug, Clone, Copy)]
pub struct Writes {
    pub at: usize,
    pub value: u64,
    /// Adds to the present value.
    pub adds: bool,
}

impl Writes {
    pub fn apply(&self, memory: &ExposedSlot) {
        if self.adds { add(memory, self.at, self.value) } else { memory.write(self.at, &self.value.to_ne_bytes()) }
    }
}

/// Adds to a word.
pub fn add(memory: &ExposedSlot, at: usize, value: u64) {
    memory.write(at, &memory.word(at).wrapping_add(value).to_ne_bytes());
}

/// A repeated write during calls.
struct Later {
    every: u32,
    left: u32,
    times: u8,
    write: Writes,
}

pub struct HostileBase<'a> {
    pub end: End,
    memory: &'a ExposedSlot,
    clock: Clock,
    arrival_timer: ArrivalTimer,
    call: RefCell<Call>,
}

/// The present call, and the writes in this one or later.
#[derive(Default)]
struct Call {
    later: Vec<Later>,
    /// It must end by itself.
    waits: bool,
    steps: u32,
    interleaved: bool,
    /// Copies of the peer's memory in this call.
    copies: Vec<(u64, usize)>,
}

impl<'a> HostileBase<'a> {
    pub fn new(end: End, memory: &'a ExposedSlot, clock: &Clock) -> Self {
        Self { end, memory, clock: clock.clone(), arrival_timer: ArrivalTimer::default(), call: RefCell::default() }
    }

    /// Begins another call. `waits`: it must end while the peer stays.
    pub fn begin(&mut self, waits: bool) {
        let call = self.call.get_mut();
        call.later.retain(|later| later.times > 0);
        (call.steps, call.interleaved, call.waits) = (0, false, waits);
        call.copies.clear();
    }

    pub fn later(&mut self, every: u8, times: u8, write: Writes) {
        let (every, later) = (u32::from(every) + 1, &mut self.call.get_mut().later);
        if later.len() < 8 {
            later.push(Later { every, left: every, times, write });
        }
    }

    /// Whether the peer wrote during this call.
    pub fn is_interleaved(&self) -> bool {
        self.call.borrow().interleaved
    }

    pub fn has_copied(&self) -> bool {
        !self.call.borrow().copies.is_empty()
    }

    /// Checks that the copies of one call are pieces of one block of at most `length` bytes, each once, in order.
    pub fn check(&self, length: usize) {
        let call = self.call.borrow();
        // The peer chooses the block's address, and may copy the first pieces itself.
        let Some(&(first, _)) = call.copies.first() else { return };
        let mut end = 0;
        for &(address, bytes) in &call.copies {
            let at = address.wrapping_sub(first);
            assert!(at >= end && at.checked_add(bytes as u64).is_some_and(|end| end <= length as u64), "{at} {bytes}");
            end = at + bytes as u64;
        }
    }

    /// Makes the due writes. Returns the number of this step.
    fn step(&self) -> u32 {
        let mut call = self.call.borrow_mut();
        let Call { later, waits, steps, interleaved, .. } = &mut *call;
        *steps += 1;
        if *steps == MAX_STEPS {
            assert!(!*waits, "a wait ends, though the peer stays");
            self.end.connection(|c| c.inject(1, Fault::Kill));
        }
        assert!(*steps < MAX_STEPS + MAX_STEPS_AFTER_KILL, "a call ends when the peer is gone");
        for later in later.iter_mut().filter(|later| later.times > 0) {
            later.left -= 1;
            if later.left == 0 {
                (later.left, later.times, *interleaved) = (later.every, later.times - 1, true);
                later.write.apply(self.memory);
            }
        }
        *steps
    }

    fn copy(&mut self, pid: u32, address: u64, length: usize) -> bool {
        assert_eq!(pid, PID, "no other process's memory");
        self.step();
        self.call.get_mut().copies.push((address, length));
        PEER_MEMORY.contains(&address) && address.checked_add(length as u64).is_some_and(|end| end <= PEER_MEMORY.end)
    }
}

impl Platform for HostileBase<'_> {
    fn tcp_recv(&mut self, bufs: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, Errno> {
        self.step();
        self.end.tcp_recv(bufs, peek)
    }

    fn tcp_send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        self.step();
        self.end.tcp_send(bytes)
    }

    fn tcp_readable(&mut self) -> bool {
        self.step();
        self.end.tcp_readable()
    }

    fn tcp_pending(&mut self) -> u64 {
        self.step();
        self.end.tcp_pending()
    }

    fn tcp_bytes_read(&mut self, counted: u64) -> u64 {
        self.end.tcp_bytes_read(counted)
    }

    fn tcp_bytes_written(&mut self, counted: u64) -> u64 {
        self.end.tcp_bytes_written(counted)
    }

    fn tcp_alive(&mut self) -> bool {
        self.step();
        self.end.tcp_alive()
    }

    fn tcp_failed(&mut self, peer: u32) -> bool {
        self.step();
        self.end.tcp_failed(peer)
    }

    fn read_peer_memory(&mut self, pid: u32, address: u64, into: &mut [u8]) -> bool {
        let [ours, theirs] = COOKIES.map(u64::to_ne_bytes);
        let cookies = [theirs, ours];
        if address == PROOF && into.len() == cookies.as_flattened().len() {
            self.step();
            into.copy_from_slice(cookies.as_flattened());
            return true;
        }
        into.fill(0x5a);
        self.copy(pid, address, into.len())
    }

    fn write_peer_memory(&mut self, pid: u32, address: u64, from: &[u8]) -> bool {
        self.copy(pid, address, from.len())
    }

    fn is_same_process(&mut self, pid: u32) -> bool {
        self.step();
        self.end.is_same_process(pid)
    }

    fn populate(&mut self, ring: Mapping, few: bool) -> bool {
        self.end.populate(ring, few)
    }

    fn prefault(&mut self, ring: Mapping) {
        self.end.prefault(ring);
    }

    fn now(&self) -> u64 {
        self.step();
        self.end.now()
    }

    fn ticks_per_1024ns(&self) -> u64 {
        self.end.ticks_per_1024ns()
    }

    fn cpu(&self) -> u32 {
        self.end.cpu()
    }

    fn yield_now(&mut self) {
        let long = self.step() > SLOW_AFTER_STEPS && !self.call.get_mut().waits;
        if long { self.clock.advance(SLOW_STEP_NS) } else { self.end.yield_now() }
    }

    fn sleep(&mut self, ns: u64) {
        self.step();
        self.end.sleep(ns);
    }

    fn lock_token(&self) -> u64 {
        self.end.lock_token()
    }

    fn lock_holder_exists(&self, token: u64) -> bool {
        self.end.lock_holder_exists(token)
    }

    fn arrival_timer(&self) -> Option<&ArrivalTimer> {
        Some(&self.arrival_timer)
    }
}
