//! The byte ring behind a gate: a power of two of bytes in memory that a peer can write at any time.
//!
//! What it is: bounded copies between the caller's buffers and the ring. What it is not: it has no indices. Positions and lengths are given by the
//! caller, which has validated them against private copies.
//!
//! The peer may write while this side copies, which the language calls a data race. The copies below access only plain bytes through raw pointers,
//! never form a reference into the ring and never use a value that is read twice. So a hostile peer can only put garbage into its own stream.

use crate::copy::{self, StoreKind};
use std::io::{IoSlice, IoSliceMut};

/// A ring in shared memory.
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    base: *mut u8,
    mask: u64,
    bypass: bool,
    memcpy: bool,
}

// SAFETY: a Ring is a pointer into a range that stays mapped for the life of the process, and all access through it is by
// copies of plain bytes.
unsafe impl Send for Ring {}
// SAFETY: as for Send: all access through a shared Ring is by copies of plain bytes.
unsafe impl Sync for Ring {}

impl Ring {
    /// # Safety
    /// `base..base + size` must stay mapped, readable and writable while the ring is used; `size` a power of two.
    pub const unsafe fn new(base: *mut u8, size: usize) -> Self {
        Self { base, mask: size as u64 - 1, bypass: false, memcpy: false }
    }

    /// The ring with writes that bypass the caches, or not.
    pub const fn bypassing(self, bypass: bool) -> Self {
        Self { bypass, ..self }
    }

    /// The ring with copies by memcpy where they do not bypass the caches ([`StoreKind::Memcpy`]).
    pub const fn with_memcpy(self) -> Self {
        Self { memcpy: true, ..self }
    }

    #[inline(always)]
    const fn store_kind(&self) -> StoreKind {
        match (self.bypass, self.memcpy) {
            (true, _) => StoreKind::NonTemporal,
            (false, true) => StoreKind::Memcpy,
            (false, false) => StoreKind::Prefetched,
        }
    }

    /// Bytes of the ring.
    #[inline(always)]
    pub fn size(&self) -> u64 {
        self.mask + 1
    }

    /// Copies `n` bytes, starting `skip` bytes into `bufs`, to stream position `at`. `n <= size`.
    #[inline]
    pub fn write(&self, at: u64, bufs: &[IoSlice<'_>], skip: usize, n: usize) {
        assert!(n as u64 <= self.size());
        let (mut at, mut skip, mut left) = (at, skip, n);
        for buf in bufs {
            if skip >= buf.len() {
                skip -= buf.len();
                continue;
            }
            let part = &buf[skip..];
            let part = &part[..part.len().min(left)];
            skip = 0;
            self.write_part(at, part);
            at += part.len() as u64;
            left -= part.len();
            if left == 0 {
                break;
            }
        }
    }

    /// Copies one whole buffer to stream position `at`. It must not be longer than the ring.
    #[inline(always)]
    pub fn write_one(&self, at: u64, part: &[u8]) {
        assert!(part.len() as u64 <= self.size());
        self.write_part(at, part);
    }

    /// Fills one buffer from stream position `at`. It must not be longer than the ring.
    #[inline(always)]
    pub fn read_one(&self, at: u64, part: &mut [u8]) {
        assert!(part.len() as u64 <= self.size());
        self.read_part(at, part);
    }

    /// Copies `n` bytes from stream position `at` into `bufs`, starting `skip` bytes in. `n <= size`.
    #[inline]
    pub fn read(&self, at: u64, bufs: &mut [IoSliceMut<'_>], skip: usize, n: usize) {
        assert!(n as u64 <= self.size());
        let (mut at, mut skip, mut left) = (at, skip, n);
        for buf in bufs {
            if skip >= buf.len() {
                skip -= buf.len();
                continue;
            }
            let take = (buf.len() - skip).min(left);
            let part = &mut buf[skip..][..take];
            skip = 0;
            self.read_part(at, part);
            at += take as u64;
            left -= take;
            if left == 0 {
                break;
            }
        }
    }

    /// Prefetches the first two cache lines at stream position `at`.
    #[inline(always)]
    pub fn prefetch(&self, at: u64) {
        let start = (at & self.mask) as usize;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint about an address in the ring; it touches nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.base.add(start).cast());
            _mm_prefetch::<_MM_HINT_T0>(self.base.add((start + 64) & self.mask as usize).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = start;
    }

    #[inline(always)]
    fn write_part(&self, at: u64, part: &[u8]) {
        let start = (at & self.mask) as usize;
        let first = part.len().min(self.size() as usize - start);
        // SAFETY: start + first <= size and the wrapped rest is shorter than size, so both are in the ring; `part` is
        // private memory of this process and cannot overlap it.
        unsafe {
            copy::write(self.base.add(start), part.as_ptr(), first, self.store_kind());
            if first < part.len() {
                copy::write(self.base, part.as_ptr().add(first), part.len() - first, self.store_kind());
            }
        }
    }

    #[inline(always)]
    fn read_part(&self, at: u64, part: &mut [u8]) {
        let start = (at & self.mask) as usize;
        let first = part.len().min(self.size() as usize - start);
        // SAFETY: start + first <= size and the wrapped rest is shorter than size, so both are in the ring; `part` is
        // private memory of this process and cannot overlap it.
        unsafe {
            copy::read(part.as_mut_ptr(), self.base.add(start), first, self.store_kind());
            if first < part.len() {
                copy::read(part.as_mut_ptr().add(first), self.base, part.len() - first, self.store_kind());
            }
        }
    }
}

/// Copies `from` into `bufs`, starting `skip` bytes in; returns the number of bytes that had room.
#[inline]
pub fn scatter(bufs: &mut [IoSliceMut<'_>], skip: usize, from: &[u8]) -> usize {
    let (mut skip, mut done) = (skip, 0);
    for buf in bufs {
        if skip >= buf.len() {
            skip -= buf.len();
            continue;
        }
        let take = (buf.len() - skip).min(from.len() - done);
        buf[skip..][..take].copy_from_slice(&from[done..][..take]);
        skip = 0;
        done += take;
        if done == from.len() {
            break;
        }
    }
    done
}

/// Copies up to `into.len()` bytes out of `bufs`, starting `skip` bytes in; returns the number of bytes copied.
#[inline]
pub fn gather(bufs: &[IoSlice<'_>], skip: usize, into: &mut [u8]) -> usize {
    let (mut skip, mut done) = (skip, 0);
    for buf in bufs {
        if skip >= buf.len() {
            skip -= buf.len();
            continue;
        }
        let take = (buf.len() - skip).min(into.len() - done);
        into[done..][..take].copy_from_slice(&buf[skip..][..take]);
        skip = 0;
        done += take;
        if done == into.len() {
            break;
        }
    }
    done
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Against a VecDeque: any mix of gathered writes and scattered reads keeps the bytes and their order.
        #[test]
        fn ring_agrees_with_a_queue(ops in proptest::collection::vec((any::<bool>(), 0usize..90, 1usize..40), 1..200)) {
            let mut memory = vec![0u8; 64];
            // SAFETY: `memory` outlives the ring and is only used through it.
            let ring = unsafe { Ring::new(memory.as_mut_ptr(), 64) };
            let mut oracle = VecDeque::new();
            let (mut head, mut tail, mut next) = (0u64, 0u64, 0u8);
            for (put, length, cut) in ops {
                if put {
                    let n = length.min(64 - (tail - head) as usize);
                    let data: Vec<u8> = (0..n).map(|_| { next = next.wrapping_add(1); next }).collect();
                    let cut = cut.min(n);
                    ring.write(tail, &[IoSlice::new(&data[..cut]), IoSlice::new(&data[cut..])], 0, n);
                    tail += n as u64;
                    oracle.extend(data);
                } else {
                    let n = length.min((tail - head) as usize);
                    let mut out = vec![0u8; n];
                    let (a, b) = out.split_at_mut(cut.min(n));
                    ring.read(head, &mut [IoSliceMut::new(a), IoSliceMut::new(b)], 0, n);
                    head += n as u64;
                    let expected: Vec<u8> = oracle.drain(..n).collect();
                    prop_assert_eq!(out, expected);
                }
            }
        }
    }
}
