//! Streams in a process that has confined its system calls: takes what the ring still holds, with loads and stores alone.
//!
//! Before the confinement the stream returns to TCP ([`Engine::stay_on_tcp`]), so its gate is closed for good in all processes that have it.

use crate::stream::engine::{Engine, Handle, Local};
use motet_proto::stream::confined::{self, Remaining};
use motet_proto::{EAGAIN, Errno, stream::Platform};
use motet_sys::clock;
use motet_wire::mapping::Mapping;
use std::io::IoSliceMut;
use std::sync::atomic::Ordering::Relaxed;

impl Engine {
    /// Takes what the ring of a stream that stays on TCP still holds, unless TCP bytes come first. Makes no system call.
    pub fn drain(&self, handle: Handle, bufs: &mut [IoSliceMut<'_>], peek: bool) -> Remaining {
        let Some((record, local)) = self.look_up(handle) else { return Remaining::RingEmpty };
        let Some(slot) = local.slot.slot() else { return Remaining::RingEmpty };
        confined::drain(record, &slot, &mut MemoryOnly::new(local, handle), bufs, peek)
    }

    /// Notes that the program has received so many of the TCP bytes that precede the ring. Makes no system call.
    pub fn drain_received(&self, handle: Handle, received: usize) {
        if let Some((record, local)) = self.look_up(handle) {
            let _ = confined::note_received(record, &mut MemoryOnly::new(local, handle), received);
        }
    }
}

/// A [`Platform`] that makes no system call.
struct MemoryOnly<'a> {
    local: &'a Local,
    handle: Handle,
    lock_token: u64,
    /// How often it was asked whether the holder of a lock exists.
    holder_checks: std::cell::Cell<u32>,
}

/// The holder of a lock that is held at so many checks in a row counts as dead.
const MAX_HOLDER_CHECKS: u32 = 1 << 14;
/// In place of this process's pid, which only the kernel knows after a fork: a pid that always exists.
const PLACEHOLDER_PID: u64 = 1;

impl<'a> MemoryOnly<'a> {
    fn new(local: &'a Local, handle: Handle) -> Self {
        // A signal handler does not call this while its thread does, so the token only has to be unique.
        let lock_token = PLACEHOLDER_PID << 32 | (clock::ticks() & 0xffff_fffe) | 1;
        Self { local, handle, lock_token, holder_checks: std::cell::Cell::new(0) }
    }
}

impl Platform for MemoryOnly<'_> {
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
        self.holder_checks.set(self.holder_checks.get() + 1);
        self.holder_checks.get() < MAX_HOLDER_CHECKS
    }

    fn is_current(&self) -> bool {
        self.local.handle.load(Relaxed) == self.handle
    }
}
