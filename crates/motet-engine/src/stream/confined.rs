//! A stream in a process that has confined its system calls: what its ring still holds, by memory alone.
//!
//! Before the confinement the stream is made plain ([`Engine::plain`]), so the gate is closed for good in all processes that have it.

use crate::stream::engine::{Engine, Handle, Local};
use motet_proto::stream::confined::{self, Remaining};
use motet_proto::{EAGAIN, Errno, stream::Platform};
use motet_sys::clock;
use motet_wire::mapping::Mapping;
use std::io::IoSliceMut;
use std::sync::atomic::Ordering::Relaxed;

impl Engine {
    /// Takes what the ring of a plain stream still holds, if that comes next. Makes no system call.
    pub fn drain(&self, handle: Handle, bufs: &mut [IoSliceMut<'_>], peek: bool) -> Remaining {
        let Some((record, local)) = self.look_up(handle) else { return Remaining::RingEmpty };
        let Some(slot) = local.slot.slot() else { return Remaining::RingEmpty };
        confined::begin(record, &slot, &mut Silent::new(local, handle), bufs, peek)
    }

    /// The kernel has given the program so many bytes of those that precede the ring. Makes no system call.
    pub fn drain_received(&self, handle: Handle, received: usize) {
        if let Some((record, local)) = self.look_up(handle) {
            let _ = confined::came(record, &mut Silent::new(local, handle), received);
        }
    }
}

/// A base that leaves the kernel alone.
struct Silent<'a> {
    local: &'a Local,
    handle: Handle,
    lock_token: u64,
    /// How often the holder of a lock was asked after.
    asked: std::cell::Cell<u32>,
}

/// So often, a thousand looks apart, a lock is found taken before its holder counts as dead.
const PATIENCE: u32 = 1 << 14;
/// In place of this process's number, which only the kernel knows after a fork: the one that is always there.
const SOMEBODY: u64 = 1;

impl<'a> Silent<'a> {
    fn new(local: &'a Local, handle: Handle) -> Self {
        // A handler does not come here while its thread does, so nothing but uniqueness is asked of the lock_token.
        let lock_token = SOMEBODY << 32 | (clock::ticks() & 0xffff_fffe) | 1;
        Self { local, handle, lock_token, asked: std::cell::Cell::new(0) }
    }
}

impl Platform for Silent<'_> {
    fn tcp_recv(&mut self, _: &mut [IoSliceMut<'_>], _: bool) -> Result<usize, Errno> {
        Err(EAGAIN)
    }

    fn tcp_send(&mut self, _: &[u8]) -> Result<usize, Errno> {
        Err(EAGAIN)
    }

    fn tcp_readable(&mut self) -> bool {
        false
    }

    fn tcp_pending(&mut self) -> u64 {
        0
    }

    fn tcp_bytes_read(&mut self, counted: u64) -> u64 {
        counted
    }

    fn tcp_bytes_written(&mut self, counted: u64) -> u64 {
        counted
    }

    fn tcp_alive(&mut self) -> bool {
        true
    }

    fn tcp_failed(&mut self, _: u32) -> bool {
        false
    }

    fn read_peer_memory(&mut self, _: u32, _: u64, _: &mut [u8]) -> bool {
        false
    }

    fn write_peer_memory(&mut self, _: u32, _: u64, _: &[u8]) -> bool {
        false
    }

    fn is_same_process(&mut self, _: u32) -> bool {
        false
    }

    fn populate(&mut self, _: Mapping, _: bool) -> bool {
        false
    }

    fn prefault(&mut self, _: Mapping) {}

    fn now(&self) -> u64 {
        clock::ticks()
    }

    fn ticks_per_1024ns(&self) -> u64 {
        clock::ticks_per_1024ns()
    }

    fn cpu(&self) -> u32 {
        clock::cpu()
    }

    fn yield_now(&mut self) {
        std::hint::spin_loop();
    }

    fn sleep(&mut self, _: u64) {
        std::hint::spin_loop();
    }

    fn lock_token(&self) -> u64 {
        self.lock_token
    }

    fn lock_holder_exists(&self, _: u64) -> bool {
        self.asked.set(self.asked.get() + 1);
        self.asked.get() < PATIENCE
    }

    fn is_current(&self) -> bool {
        self.local.handle.load(Relaxed) == self.handle
    }
}
