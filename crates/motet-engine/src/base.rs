//! The kernel's TCP under a stream, and the processor's clock: [`motet_proto::Base`] in production.

use crate::peer::Peer;
use motet_proto::{Base, Errno};
use motet_sys::{clock, copy, memory, socket, thread};
use motet_wire::mapping::Mapping;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const MSG_DONTWAIT: i32 = 0x40;

/// Buffers of one receive from TCP.
const MOST: usize = 16;
/// Bytes of large rings that this process may bring into being.
const BULK_LIMIT: usize = 128 << 20;
static BULK: AtomicUsize = AtomicUsize::new(0);

/// Gives the pages of a large ring back to the system.
pub fn give_back(ring: Mapping) {
    memory::give_back(ring);
    BULK.fetch_sub(ring.length(), Relaxed);
}

/// A TCP descriptor, and the process at its other end where that matters.
#[derive(Debug)]
pub struct Kernel<'a>(pub i32, pub Option<&'a Peer>);

impl Base for Kernel<'_> {
    #[inline]
    fn tcp_recv(&mut self, bufs: &mut [IoSliceMut<'_>], limit: usize, peek: bool) -> Result<usize, Errno> {
        let flags = MSG_DONTWAIT | if peek { motet_proto::MSG_PEEK } else { 0 };
        // As many of the buffers as `limit` reaches; a receive may be short anyway, should there be more of them.
        let mut some: [IoSliceMut<'_>; MOST] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
        let (mut count, mut left) = (0, limit);
        for (to, from) in some.iter_mut().zip(bufs.iter_mut().filter(|b| !b.is_empty())) {
            let n = from.len().min(left);
            *to = IoSliceMut::new(&mut from[..n]);
            (count, left) = (count + 1, left - n);
            if left == 0 {
                break;
            }
        }
        if count == 0 { Ok(0) } else { socket::receive(self.0, &mut some[..count], flags) }
    }

    fn tcp_send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        socket::send(self.0, &[IoSlice::new(bytes)], MSG_DONTWAIT)
    }

    fn tcp_readable(&mut self) -> bool {
        socket::readable(self.0)
    }

    fn tcp_pending(&mut self) -> u64 {
        socket::pending(self.0)
    }

    fn tcp_alive(&mut self) -> bool {
        socket::alive(self.0)
    }

    fn tcp_failed(&mut self) -> bool {
        socket::failed(self.0)
    }

    fn copy_from(&mut self, pid: u32, address: u64, into: &mut [u8]) -> bool {
        copy::read_from(pid, address, into) == Ok(into.len())
    }

    fn copy_to(&mut self, pid: u32, address: u64, from: &[u8]) -> bool {
        copy::write_to(pid, address, from) == Ok(from.len())
    }

    fn same_process(&mut self, pid: u32) -> bool {
        self.1.is_some_and(|peer| peer.is_still(pid))
    }

    fn populate(&mut self, ring: Mapping) -> bool {
        let taken = BULK.fetch_add(ring.length(), Relaxed);
        if taken + ring.length() <= BULK_LIMIT && memory::populate(ring) {
            return true;
        }
        BULK.fetch_sub(ring.length(), Relaxed);
        false
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        clock::ticks()
    }

    #[inline(always)]
    fn ticks_per_1024ns(&self) -> u64 {
        clock::ticks_per_1024ns()
    }

    #[inline(always)]
    fn cpu(&self) -> u32 {
        clock::cpu()
    }

    fn yield_now(&mut self) {
        thread::yield_now();
    }

    fn nap(&mut self, ns: u64) {
        thread::nap(ns);
    }

    #[inline(always)]
    fn token(&self) -> u64 {
        thread::token()
    }

    fn exists(&self, token: u64) -> bool {
        thread::exists(token)
    }
}
