//! Memory that others read and write at the same time: a region's.
//!
//! What it is: [`SharedBytes`], a range of bytes with copies in and out and atomic updates of its elements, all checked. An element of 1,
//! 2, 4 or 8 bytes that lies at a multiple of its size is written, read and updated as one; longer runs are copied as they
//! come. Updates are sequentially consistent instructions of the processor, so they are coherent with those of whoever else
//! maps the memory: a peer, and the program itself.
//!
//! What it is not: nothing here knows what an operation means; [`SharedBytes::update`] asks the caller what a value becomes. The memory is no
//! format of Motet's, so it is not modelled under loom: each function is one instruction, or a loop around one.

use crate::mapping::Mapping;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Bytes that do not lie inside, or an element that is not at a multiple of its size, or has no size of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfBounds;

/// A range of memory.
#[derive(Debug, Clone, Copy)]
pub struct SharedBytes {
    base: *mut u8,
    length: usize,
}

// SAFETY: the memory is there whoever looks (see `new`), and nothing but atomics and copies of plain bytes touches it.
unsafe impl Send for SharedBytes {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes {}

/// Does something with the atomic of so many bytes at an address.
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
        // SAFETY: `element` has checked that it lies inside, at a multiple of its size; the memory outlives this view.
        let $atomic = unsafe { <$kind>::from_ptr($address.cast()) };
        $body
    }};
}

// The macro's arms are of four types; for one of them a conversion is none.
#[allow(clippy::useless_conversion)]
impl SharedBytes {
    /// # Safety
    /// `length` bytes from `base` stay mapped, readable and writable for as long as this view or a copy of it is used. Whoever
    /// holds references to them may do so only if nothing is put there meanwhile.
    pub const unsafe fn new(base: *mut u8, length: usize) -> Self {
        Self { base, length }
    }

    /// A part of a mapping, which never goes; it must have been made writable.
    pub fn of(mapping: Mapping, offset: usize, length: usize) -> Option<Self> {
        mapping.at(offset, length).map(|base| Self { base, length })
    }

    /// Words of this process that stay until its end.
    pub fn of_words(words: &'static [AtomicU64]) -> Self {
        Self { base: words.as_ptr().cast_mut().cast(), length: size_of_val(words) }
    }

    /// A part of it.
    pub fn part(&self, at: usize, length: usize) -> Result<Self, OutOfBounds> {
        self.run(at, length).map(|base| Self { base, length })
    }

    /// Bytes.
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Where it begins, for system calls and for peers that copy from it.
    pub const fn base(&self) -> *mut u8 {
        self.base
    }

    /// Its words, for a program that computes in it while others write; `None`: it does not begin and end at a multiple of 8.
    pub fn words(&self) -> Option<&[AtomicU64]> {
        let fits = self.base.addr().is_multiple_of(8) && self.length.is_multiple_of(8);
        // SAFETY: aligned, and mapped as long as this view is used (see `new`); atomics may be written by others meanwhile.
        fits.then(|| unsafe { std::slice::from_raw_parts(self.base.cast(), self.length / 8) })
    }

    /// The address of `length` bytes at `at`.
    fn run(&self, at: usize, length: usize) -> Result<*mut u8, OutOfBounds> {
        let end = at.checked_add(length).filter(|&end| end <= self.length);
        // SAFETY: at <= end <= self.length.
        end.map(|_| unsafe { self.base.add(at) }).ok_or(OutOfBounds)
    }

    /// The address of an element.
    #[inline]
    fn element(&self, at: usize, size: usize) -> Result<*mut u8, OutOfBounds> {
        let address = self.run(at, size)?;
        if matches!(size, 1 | 2 | 4 | 8) && address.addr().is_multiple_of(size) {
            Ok(address)
        } else {
            Err(OutOfBounds)
        }
    }

    /// Writes bytes; those of an element at once.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), OutOfBounds> {
        if let (Ok(address), Some(value)) = (self.element(at, bytes.len()), word(bytes)) {
            with_atomic!(address, bytes.len(), |atomic, Type| atomic.store(value as Type, Ordering::Release));
            return Ok(());
        }
        let to = self.run(at, bytes.len())?;
        // Plain: a program that puts again and again finds the lines in its own cache, unlike the writer of a ring.
        // SAFETY: inside; a view's memory is no slice of Rust's, so `bytes` does not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Reads bytes; those of an element at once.
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
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Makes of an element of `size` bytes what `new` says, as one step, and returns what it was. `new` may be asked more than once.
    /// Sequentially consistent.
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

    /// Adds to an element of 4 or 8 bytes, wrapping, in one instruction, and returns what it was. Sequentially consistent.
    #[inline]
    pub fn add(&self, at: usize, size: usize, value: u64) -> Result<u64, OutOfBounds> {
        let address = self.element(at, size)?;
        Ok(with_atomic!(address, size, |atomic, Type| u64::from(atomic.fetch_add(value as Type, Ordering::SeqCst))))
    }
}

/// The bytes of an element.
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

    /// Memory with a view; the memory must outlive it.
    fn memory() -> (Box<[AtomicU64; 8]>, SharedBytes) {
        let memory: Box<[AtomicU64; 8]> = Box::default();
        let base = memory.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: the box is kept as long as the view, and atomics may be written through a shared reference to them.
        let view = unsafe { SharedBytes::new(base, 64) };
        (memory, view)
    }

    #[test]
    fn nothing_outside_and_no_crooked_element() {
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
    fn what_is_written_is_read_and_nothing_beside_it() {
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
    fn an_update_is_of_its_element_alone() {
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
    fn words_are_those_of_the_memory_and_only_whole_ones() {
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
    fn no_update_is_lost() {
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
