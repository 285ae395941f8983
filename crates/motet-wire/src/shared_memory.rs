//! The memory of a region, which other threads and processes read and write at the same time.
//!
//! What it is: [`SharedBytes`], a range of bytes with copies in and out and atomic updates of its elements, all bounds-checked. An element of 1,
//! 2, 4 or 8 bytes at a multiple of its size is written, read and updated atomically; other ranges are copied bytewise. Updates are sequentially
//! consistent instructions of the processor, so they are coherent with those of a peer and of the program itself.
//!
//! What it is not: it does not know the meaning of an operation; [`SharedBytes::update`] takes a function from the caller. The memory has no format
//! of Motet, so it is not modelled under loom: each function is one instruction, or a loop around one.

use crate::mapping::Mapping;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// The range is not inside the memory; or, for an element, its offset is no multiple of its size or its size is not 1, 2, 4 or 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfBounds;

/// A range of memory that others may access at the same time.
#[derive(Debug, Clone, Copy)]
pub struct SharedBytes {
    base: *mut u8,
    length: usize,
}

// SAFETY: the memory stays mapped for all threads (contract of `new`), and it is accessed only by atomics and by copies of plain bytes.
unsafe impl Send for SharedBytes {}
// SAFETY: as for Send: a shared view accesses the memory only by atomics and by copies of plain bytes.
unsafe impl Sync for SharedBytes {}

/// Evaluates an expression with the atomic of the given size at an address.
macro_rules! with_atomic {
    ($address:expr, $size:expr, |$atomic:ident, $type:ident| $body:expr) => {
        match $size {
            1 => with_atomic!(@ $address, AtomicU8, u8, $atomic, $type, $body),
            2 => with_atomic!(@ $address, AtomicU16, u16, $atomic, $type, $body),
            4 => with_atomic!(@ $address, AtomicU32, u32, $atomic, $type, $body),
            _ => with_atomic!(@ $address, AtomicU64, u64, $atomic, $type, $body),
        }
    };
    (@ $address:expr, $kind:ty, $plain:ty, $atomic:ident, $type:ident, $body:expr) => {{
        type $type = $plain;
        // SAFETY: `element` has checked that it is inside and aligned; the memory outlives this view (contract of `new`).
        let $atomic = unsafe { <$kind>::from_ptr($address.cast()) };
        $body
    }};
}

// The macro's arms have four types, for one of which the conversion to u64 does nothing.
#[allow(clippy::useless_conversion)]
impl SharedBytes {
    /// # Safety
    /// `length` bytes from `base` stay mapped, readable and writable for as long as this view or a copy of it is used. References to them may
    /// exist only while nothing is written through a view.
    pub const unsafe fn new(base: *mut u8, length: usize) -> Self {
        Self { base, length }
    }

    /// A part of a mapping, which must be writable; `None` if it is not inside.
    pub fn of(mapping: Mapping, offset: usize, length: usize) -> Option<Self> {
        mapping.at(offset, length).map(|base| Self { base, length })
    }

    /// Static words of this process.
    pub fn of_words(words: &'static [AtomicU64]) -> Self {
        Self { base: words.as_ptr().cast_mut().cast(), length: size_of_val(words) }
    }

    /// A part of this range.
    pub fn part(&self, at: usize, length: usize) -> Result<Self, OutOfBounds> {
        self.run(at, length).map(|base| Self { base, length })
    }

    /// Bytes of the range.
    pub const fn length(&self) -> usize {
        self.length
    }

    /// The first address, for system calls and for peers that copy from it.
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// The range as words, for a program that computes in it while others write. `None` if its address or its length is no multiple of 8.
    pub fn words(&self) -> Option<&[AtomicU64]> {
        let fits = self.base.addr().is_multiple_of(8) && self.length.is_multiple_of(8);
        // SAFETY: aligned, and mapped as long as this view is used (contract of `new`); atomics may be written by others.
        fits.then(|| unsafe { std::slice::from_raw_parts(self.base.cast(), self.length / 8) })
    }

    /// The address of `length` bytes at `at`.
    fn run(&self, at: usize, length: usize) -> Result<*mut u8, OutOfBounds> {
        let end = at.checked_add(length).filter(|&end| end <= self.length);
        // SAFETY: at <= end <= self.length.
        end.map(|_| unsafe { self.base.add(at) }).ok_or(OutOfBounds)
    }

    /// The address of an element of `size` bytes at `at`.
    #[inline]
    fn element(&self, at: usize, size: usize) -> Result<*mut u8, OutOfBounds> {
        let address = self.run(at, size)?;
        if matches!(size, 1 | 2 | 4 | 8) && address.addr().is_multiple_of(size) {
            Ok(address)
        } else {
            Err(OutOfBounds)
        }
    }

    /// Writes bytes; an element is written atomically.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        if let (Ok(address), Some(value)) = (self.element(at, bytes.len()), word(bytes)) {
            with_atomic!(address, bytes.len(), |atomic, Type| atomic.store(value as Type, Ordering::Release));
            return Ok(());
        }
        let to = self.run(at, bytes.len())?;
        // A plain memcpy: a program that writes the same memory repeatedly has it in its cache, unlike the writer of a ring.
        // SAFETY: `run` checked the bounds. No reference to the view's memory exists during a write (contract of `new`), so `bytes` does not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Reads bytes; an element is read atomically.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) -> Result<(), OutOfBounds> {
        if let Ok(address) = self.element(at, bytes.len()) {
            let value = with_atomic!(address, bytes.len(), |atomic, Type| {
                let value: Type = atomic.load(Ordering::Acquire);
                u64::from(value)
            });
            let length = bytes.len();
            bytes.copy_from_slice(&value.to_le_bytes()[..length]);
            return Ok(());
        }
        let from = self.run(at, bytes.len())?;
        // SAFETY: `run` checked the bounds; `bytes` is a unique reference, so it does not overlap the view's memory (contract of `new`).
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Replaces an element of `size` bytes by `new` of its value, atomically and sequentially consistent, and returns the old value. `new` may be
    /// called more than once.
    #[inline]
    pub fn update(&self, at: usize, size: usize, mut new: impl FnMut(u64) -> u64) -> Result<u64, OutOfBounds> {
        let address = self.element(at, size)?;
        Ok(with_atomic!(address, size, |atomic, Type| {
            let mut old = atomic.load(Ordering::SeqCst);
            loop {
                let value = new(u64::from(old)) as Type;
                match atomic.compare_exchange_weak(old, value, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(old) => break u64::from(old),
                    Err(now) => old = now,
                }
            }
        }))
    }

    /// Adds to an element of `size` bytes, wrapping, in one sequentially consistent instruction, and returns the old value.
    #[inline]
    pub fn add(&self, at: usize, size: usize, value: u64) -> Result<u64, OutOfBounds> {
        let address = self.element(at, size)?;
        Ok(with_atomic!(address, size, |atomic, Type| u64::from(atomic.fetch_add(value as Type, Ordering::SeqCst))))
    }
}

/// Up to eight bytes as a word; `None` for more.
#[inline(always)]
fn word(bytes: &[u8]) -> Option<u64> {
    let mut word = [0; 8];
    word.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Memory and a view of it. The memory must outlive the view.
    fn memory() -> (Box<[AtomicU64; 8]>, SharedBytes) {
        let memory: Box<[AtomicU64; 8]> = Box::default();
        let base = memory.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: the callers keep the box as long as the view, and atomics may be written through a shared reference to them.
        let view = unsafe { SharedBytes::new(base, 64) };
        (memory, view)
    }

    #[test]
    fn out_of_bounds_and_misaligned_are_refused() {
        let (_memory, view) = memory();
        for (at, length) in [(0, 65), (64, 1), (65, 0), (usize::MAX, 2), (60, 8)] {
            assert_eq!(view.write(at, &vec![1; length]), Err(OutOfBounds));
            assert_eq!(view.read(at, &mut vec![1; length]), Err(OutOfBounds));
        }
        for (at, size) in [(1, 2), (2, 4), (4, 8), (0, 3), (0, 0), (0, 16), (64, 1), (usize::MAX, 8)] {
            assert_eq!(view.update(at, size, |old| old), Err(OutOfBounds), "{at} {size}");
            assert_eq!(view.add(at, size, 1), Err(OutOfBounds));
        }
        assert_eq!((view.write(64, &[]), view.read(64, &mut [])), (Ok(()), Ok(())));
    }

    #[test]
    fn write_and_read_touch_exactly_their_range() {
        for length in 0..40 {
            for at in 0..24 {
                let (memory, view) = memory();
                let bytes: Vec<u8> = (1..=length as u8).collect();
                view.write(at, &bytes).unwrap();
                let mut all = [0; 64];
                view.read(0, &mut all).unwrap();
                assert_eq!(&all[at..at + length], bytes);
                assert_eq!(all.iter().filter(|&&byte| byte != 0).count(), length);
                let mut part = vec![0; length];
                view.read(at, &mut part).unwrap();
                assert_eq!(part, bytes);
                let whole: Vec<u8> =
                    memory.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
                assert_eq!(whole, all);
            }
        }
    }

    #[test]
    fn update_touches_only_its_element() {
        for size in [1, 2, 4, 8] {
            let (_memory, view) = memory();
            view.write(0, &[0xff; 64]).unwrap();
            let ones = u64::MAX >> (64 - 8 * size);
            assert_eq!(view.update(8, size, |old| old.wrapping_add(1)), Ok(ones), "it wraps");
            assert_eq!(view.add(8, size, u64::MAX), Ok(0));
            assert_eq!(view.update(8, size, |_| 0), Ok(ones));
            let mut all = [0; 64];
            view.read(0, &mut all).unwrap();
            assert_eq!(all.iter().filter(|&&byte| byte == 0).count(), size);
        }
    }

    #[test]
    fn words_require_alignment() {
        let (memory, view) = memory();
        view.words().unwrap()[3].store(7, Ordering::Relaxed);
        assert_eq!((memory[3].load(Ordering::Relaxed), view.words().unwrap().len()), (7, 8));
        assert_eq!(view.part(24, 16).unwrap().words().unwrap()[0].load(Ordering::Relaxed), 7);
        for (at, length) in [(4, 8), (8, 12), (1, 16), (0, 63)] {
            assert!(view.part(at, length).unwrap().words().is_none(), "{at} {length}");
        }
        assert!(view.part(64, 0).unwrap().words().unwrap().is_empty());
    }

    #[test]
    fn concurrent_updates_are_not_lost() {
        const EACH: u64 = if cfg!(miri) { 50 } else { 20_000 };
        for size in [1, 2, 4, 8] {
            let (_memory, view) = memory();
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(move || {
                        for _ in 0..EACH {
                            view.update(16, size, |old| old + 1).unwrap();
                            view.add(16, size, 2).unwrap();
                        }
                    });
                }
            });
            let expected = (6 * EACH) & (u64::MAX >> (64 - 8 * size));
            assert_eq!(view.update(16, size, |old| old), Ok(expected));
        }
    }
}
