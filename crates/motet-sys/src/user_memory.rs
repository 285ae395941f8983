//! Memory of a user's that an operation reads or fills later, while other things happen.

use crate::shm_pool::Block;

/// Some bytes of this process, by address. Whoever made it vouches that they stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    base: *mut u8,
    length: usize,
}

// SAFETY: whoever made the span has promised that the bytes may be used from any thread until the operation ends.
unsafe impl Send for Span {}

impl Span {
    /// No bytes.
    pub const EMPTY: Span = Span { base: std::ptr::null_mut(), length: 0 };

    /// # Safety
    /// Until the operation that gets it has ended, `length` bytes from `base` are valid: for reads, and, when the operation
    /// fills it, for writes; and nobody else writes them (or, when it fills them, reads them).
    pub const unsafe fn new(base: *mut u8, length: usize) -> Self {
        Self { base, length }
    }

    /// How many bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies bytes in, as many as fit behind `at`; returns how many.
    #[inline(always)]
    pub fn fill(&self, at: usize, bytes: &[u8]) -> usize {
        let fits = self.length.saturating_sub(at).min(bytes.len());
        if let (8, Some(word)) = (fits, bytes.first_chunk::<8>()) {
            // What most short messages are, without a call.
            // SAFETY: at + 8 <= length, and those bytes are ours to write by the promise of `new`.
            unsafe { self.base.wrapping_add(at).cast::<[u8; 8]>().write_unaligned(*word) };
            return fits;
        }
        // SAFETY: at + fits <= length, and those bytes are ours to write by the promise of `new`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.wrapping_add(at), fits) };
        fits
    }

    /// The bytes from `at` on, at most `length`, to read.
    #[inline(always)]
    pub fn bytes(&self, at: usize, length: usize) -> &[u8] {
        let length = self.length.saturating_sub(at).min(length);
        if length == 0 {
            return &[];
        }
        // SAFETY: at + length <= self.length, which by the promise of `new` nobody writes as long as the operation has the span.
        unsafe { std::slice::from_raw_parts(self.base.add(at), length) }
    }

    /// The bytes from `at` on, at most `length`, to write.
    pub fn write<R>(&self, at: usize, length: usize, with: impl FnOnce(&mut [u8]) -> R) -> R {
        let length = self.length.saturating_sub(at).min(length);
        if length == 0 {
            return with(&mut []);
        }
        // SAFETY: at + length <= self.length, which by the promise of `new` is ours alone meanwhile.
        with(unsafe { std::slice::from_raw_parts_mut(self.base.add(at), length) })
    }
}

/// The memory of an operation: a span of its user's, or a vector that the operation has.
#[derive(Debug)]
pub enum Memory {
    /// Somebody vouches for it.
    Span(Span),
    /// It is the operation's own.
    Owned(Vec<u8>),
    /// A loan on its way: it goes back to its pool with the operation's end.
    Block(Block),
}

impl Memory {
    /// How many bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        match self {
            Self::Span(span) => span.length,
            Self::Owned(bytes) => bytes.len(),
            Self::Block(block) => block.len(),
        }
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it lies.
    pub fn address(&self) -> u64 {
        match self {
            Self::Span(span) => span.base as u64,
            Self::Owned(bytes) => bytes.as_ptr() as u64,
            Self::Block(block) => block.address(),
        }
    }

    /// Copies bytes in, as many as fit behind `at`; returns how many.
    #[inline(always)]
    pub fn fill(&mut self, at: usize, bytes: &[u8]) -> usize {
        match self {
            Self::Span(span) => span.fill(at, bytes),
            _ => self.write(at, bytes.len(), |into| {
                into.copy_from_slice(&bytes[..into.len()]);
                into.len()
            }),
        }
    }

    /// The bytes from `at` on, at most `length`, to read.
    #[inline(always)]
    pub fn bytes(&self, at: usize, length: usize) -> &[u8] {
        match self {
            Self::Span(span) => span.bytes(at, length),
            Self::Owned(bytes) => {
                let bytes = bytes.get(at..).unwrap_or(&[]);
                &bytes[..length.min(bytes.len())]
            }
            Self::Block(block) => {
                let bytes = block.get(at..).unwrap_or(&[]);
                &bytes[..length.min(bytes.len())]
            }
        }
    }

    /// The bytes from `at` on, at most `length`, to write.
    pub fn write<R>(&mut self, at: usize, length: usize, with: impl FnOnce(&mut [u8]) -> R) -> R {
        match self {
            Self::Span(span) => span.write(at, length, with),
            Self::Owned(bytes) => {
                let bytes = bytes.get_mut(at..).unwrap_or(&mut []);
                let length = length.min(bytes.len());
                with(&mut bytes[..length])
            }
            Self::Block(block) => {
                let bytes = block.get_mut(at..).unwrap_or(&mut []);
                let length = length.min(bytes.len());
                with(&mut bytes[..length])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_touched_beyond_the_end() {
        let mut bytes = [0; 8];
        // SAFETY: the array outlives the span, and nobody else uses it meanwhile.
        let span = unsafe { Span::new(bytes.as_mut_ptr(), 8) };
        let block = crate::shm_pool::Pool::new(crate::shm_pool::SEGMENT).take(8).unwrap();
        for mut memory in [Memory::Span(span), Memory::Owned(vec![0; 8]), Memory::Block(block)] {
            assert_eq!((memory.fill(6, &[1; 8]), memory.fill(8, &[1]), memory.fill(usize::MAX, &[1])), (2, 0, 0));
            assert_eq!(memory.bytes(5, 100), [0, 1, 1]);
            memory.write(0, 2, |bytes| bytes.fill(9));
            assert_eq!(memory.write(9, 1, |bytes| bytes.len()), 0);
            assert_eq!(memory.bytes(0, 8), [9, 9, 0, 0, 0, 0, 1, 1]);
        }
        assert_eq!(Span::EMPTY.fill(0, &[1]), 0);
    }
}
