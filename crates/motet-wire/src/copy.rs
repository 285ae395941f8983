//! Copies between private memory and a ring, in three kinds that differ in their use of the caches.
//!
//! Measured (docs/hot-path.md): into a ring of several MiB, prefetching both sides is a fifth faster than memcpy. Between CPUs that share no cache,
//! non-temporal stores are up to seven times as fast. Into a ring that fits a core's second-level cache, memcpy is up to a half faster: it uses
//! the processor's string moves, which own a line without reading it, whereas prefetches take lines from the other end while it needs them.

/// Copies of fewer bytes are a memcpy.
#[cfg(target_arch = "x86_64")]
const MIN_TUNED_BYTES: usize = 4096;
/// Distance of the prefetch, bytes.
#[cfg(target_arch = "x86_64")]
const PREFETCH_AHEAD_BYTES: usize = 2048;

/// How a copy uses the caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// Source and destination are prefetched.
    Prefetched,
    /// Stores bypass the caches. (Reads are as for `Prefetched`.)
    NonTemporal,
    /// A plain memcpy.
    Memcpy,
}

/// Copies into a ring.
///
/// # Safety
/// `n` bytes are readable at `from` and writable at `to`, and they do not overlap.
#[inline(always)]
pub unsafe fn write(to: *mut u8, from: *const u8, n: usize, kind: StoreKind) {
    #[cfg(target_arch = "x86_64")]
    if kind != StoreKind::Memcpy && n >= MIN_TUNED_BYTES && std::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's contract; the processor has AVX2.
        return unsafe {
            if kind == StoreKind::NonTemporal { avx2::write_nontemporal(to, from, n) } else { avx2::write(to, from, n) }
        };
    }
    let _ = kind;
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(from, to, n) }
}

/// Copies out of a ring.
///
/// # Safety
/// `n` bytes are readable at `from` and writable at `to`, and they do not overlap.
#[inline(always)]
pub unsafe fn read(to: *mut u8, from: *const u8, n: usize, kind: StoreKind) {
    #[cfg(target_arch = "x86_64")]
    if kind != StoreKind::Memcpy && n >= MIN_TUNED_BYTES && std::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's contract; the processor has AVX2.
        return unsafe { avx2::read(to, from, n) };
    }
    let _ = kind;
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy_nonoverlapping(from, to, n) }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::PREFETCH_AHEAD_BYTES;
    use core::arch::x86_64::*;

    /// Bytes of a block: eight cache lines in flight.
    const BLOCK_BYTES: usize = 512;
    const VECTOR_BYTES: usize = size_of::<__m256i>();

    /// # Safety
    /// `n` bytes are readable at `from` and writable at `to`, they do not overlap, and the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn write(to: *mut u8, from: *const u8, n: usize) {
        // SAFETY: the caller's contract; prefetches access no memory.
        unsafe {
            copy_blocks(
                to,
                from,
                n,
                |to, _| _mm_prefetch::<_MM_HINT_ET0>(to.wrapping_add(PREFETCH_AHEAD_BYTES).cast()),
                |to, v| _mm256_storeu_si256(to, v),
            );
        }
    }

    /// # Safety
    /// `n` bytes are readable at `from` and writable at `to`, they do not overlap, and the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn read(to: *mut u8, from: *const u8, n: usize) {
        // SAFETY: the caller's contract; prefetches access no memory.
        unsafe {
            copy_blocks(
                to,
                from,
                n,
                |_, from| _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(PREFETCH_AHEAD_BYTES).cast()),
                |to, v| _mm256_storeu_si256(to, v),
            );
        }
    }

    /// # Safety
    /// `n` bytes are readable at `from` and writable at `to`, they do not overlap, and the processor has AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn write_nontemporal(to: *mut u8, from: *const u8, n: usize) {
        // SAFETY: the caller's contract. After `skip` bytes `to` is aligned for non-temporal stores, which the fence orders before the
        // store that publishes them.
        unsafe {
            let skip = to.align_offset(64).min(n);
            std::ptr::copy_nonoverlapping(from, to, skip);
            copy_blocks(to.add(skip), from.add(skip), n - skip, |_, _| {}, |to, v| _mm256_stream_si256(to, v));
            _mm_sfence();
        }
    }

    /// Copies in blocks. `prefetch` is called with the two addresses of each line, `store` stores a vector.
    ///
    /// # Safety
    /// `n` bytes are readable at `from` and writable at `to`, they do not overlap, the processor has AVX2, and `to` has the alignment that
    /// `store` requires.
    #[inline(always)]
    unsafe fn copy_blocks(
        mut to: *mut u8,
        mut from: *const u8,
        mut n: usize,
        prefetch: impl Fn(*mut u8, *const u8),
        store: impl Fn(*mut __m256i, __m256i),
    ) {
        while n >= BLOCK_BYTES {
            // Not beyond the end: in a ring, the other end is about to write or read the lines there.
            if n >= PREFETCH_AHEAD_BYTES + BLOCK_BYTES {
                for line in 0..BLOCK_BYTES / 64 {
                    prefetch(to.wrapping_add(line * 64), from.wrapping_add(line * 64));
                }
            }
            // SAFETY: BLOCK_BYTES bytes are left on both sides. (AVX2 is the callers' target feature.)
            unsafe {
                let mut v = [_mm256_setzero_si256(); BLOCK_BYTES / VECTOR_BYTES];
                for (i, v) in v.iter_mut().enumerate() {
                    *v = _mm256_loadu_si256(from.add(i * VECTOR_BYTES).cast());
                }
                for (i, v) in v.iter().enumerate() {
                    store(to.add(i * VECTOR_BYTES).cast(), *v);
                }
                to = to.add(BLOCK_BYTES);
                from = from.add(BLOCK_BYTES);
            }
            n -= BLOCK_BYTES;
        }
        // SAFETY: the caller's contract; fewer bytes than a block are left.
        unsafe { std::ptr::copy_nonoverlapping(from, to, n) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::StoreKind;

    const KINDS: [StoreKind; 3] = [StoreKind::Prefetched, StoreKind::NonTemporal, StoreKind::Memcpy];

    #[test]
    fn every_kind_copies_every_length_and_alignment() {
        let from: Vec<u8> = (0..20_000u32).map(|n| (n * 7 + n / 251) as u8).collect();
        for n in [0, 1, 63, 511, 512, 4095, 4096, 4097, 5000, 8191, 16384] {
            for (a, b) in [(0, 0), (1, 0), (0, 3), (17, 40), (63, 64)] {
                for (kind, reads) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
                    let mut to = vec![0xa5u8; 20_000];
                    let copy = if reads { super::read } else { super::write };
                    // SAFETY: both vectors have room for n bytes after the offsets.
                    unsafe { copy(to.as_mut_ptr().add(a), from.as_ptr().add(b), n, kind) };
                    assert_eq!(to[a..a + n], from[b..b + n], "{kind:?}, reads: {reads}, {n} bytes at {a} from {b}");
                    assert!(to[..a].iter().chain(&to[a + n..]).all(|&x| x == 0xa5));
                }
            }
        }
    }
}
