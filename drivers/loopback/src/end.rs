//! One end of a simulated connection, behind the platform trait of the protocol.

use crate::clock::Clock;
use crate::pipe::Connection;
use motet_engine::lock;
use motet_proto::{Errno, stream::Platform};
use motet_sys::process_vm;
use motet_wire::mapping::Mapping;
use std::io::IoSliceMut;
use std::sync::{Arc, Mutex};

/// A thread of a simulated process at one end of a connection.
#[derive(Debug, Clone)]
pub struct End {
    connection: Arc<Mutex<Connection>>,
    clock: Clock,
    /// 0 or 1.
    pub side: usize,
    /// The thread's number in its process, from 0.
    pub thread: u32,
    /// The CPU it runs on.
    pub cpu: u32,
}

impl End {
    /// Both ends of a connection, each on its own CPU.
    pub fn pair(connection: Connection, clock: &Clock) -> [End; 2] {
        let connection = Arc::new(Mutex::new(connection));
        [0, 1].map(|side| End {
            connection: connection.clone(),
            clock: clock.clone(),
            side,
            thread: 0,
            cpu: side as u32,
        })
    }

    /// Another thread of the same process.
    #[must_use]
    pub fn thread(&self, thread: u32) -> Self {
        Self { thread, ..self.clone() }
    }

    /// Calls a function with the locked connection.
    pub fn connection<T>(&self, with: impl FnOnce(&mut Connection) -> T) -> T {
        with(&mut lock(&self.connection))
    }

    /// The process number of an end, which is the upper half of its lock tokens.
    pub fn process(side: usize) -> u32 {
        1000 + side as u32
    }
}

impl Platform for End {
    fn tcp_recv(&mut self, bufs: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, Errno> {
        self.connection(|c| c.receive(self.side, bufs, usize::MAX, peek))
    }

    fn tcp_send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        self.connection(|c| c.send(self.side, bytes))
    }

    fn tcp_readable(&mut self) -> bool {
        self.connection(|c| c.readable(self.side))
    }

    fn tcp_pending(&mut self) -> u64 {
        self.connection(|c| c.pending(self.side))
    }

    fn tcp_bytes_read(&mut self, counted: u64) -> u64 {
        self.connection(|c| c.positions(self.side).1).max(counted)
    }

    fn tcp_bytes_written(&mut self, counted: u64) -> u64 {
        self.connection(|c| c.positions(self.side).0).max(counted)
    }

    fn tcp_alive(&mut self) -> bool {
        self.connection(|c| c.alive(self.side))
    }

    fn tcp_failed(&mut self, _peer: u32) -> bool {
        self.connection(|c| c.is_reset())
    }

    fn read_peer_memory(&mut self, pid: u32, address: u64, into: &mut [u8]) -> bool {
        process_vm::read_from(pid, address, into) == Ok(into.len())
    }

    fn write_peer_memory(&mut self, pid: u32, address: u64, from: &[u8]) -> bool {
        process_vm::write_to(pid, address, from) == Ok(from.len())
    }

    fn is_same_process(&mut self, _pid: u32) -> bool {
        !self.connection(|c| c.is_dead(1 - self.side))
    }

    fn populate(&mut self, _ring: Mapping, _few: bool) -> bool {
        true
    }

    fn prefault(&mut self, _ring: Mapping) {}

    fn now(&self) -> u64 {
        self.clock.read()
    }

    fn ticks_per_1024ns(&self) -> u64 {
        1024
    }

    fn cpu(&self) -> u32 {
        self.cpu
    }

    fn yield_now(&mut self) {
        self.clock.advance(1_000);
    }

    fn sleep(&mut self, ns: u64) {
        self.clock.advance(ns);
    }

    fn lock_token(&self) -> u64 {
        u64::from(Self::process(self.side)) << 32 | u64::from(self.thread * 2 + 1)
    }

    fn lock_holder_exists(&self, token: u64) -> bool {
        let process = (token >> 32) as u32;
        (0..2).any(|side| Self::process(side) == process && !self.connection(|c| c.is_dead(side)))
    }
}
