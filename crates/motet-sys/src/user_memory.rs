//! Memory of operations: buffers of the program, which it keeps valid until the operation completes, and buffers that an operation owns.

use crate::shm_pool::ShmBlock;

/// A buffer of the program, by address and length. Its creator guarantees that it stays valid ([`UserMemory::new`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserMemory {
    base: *mut u8,
    length: usize,
}

// SAFETY: by the contract of `new` the bytes may be used from any thread until the operation completes.
unsafe impl Send for UserMemory {}

impl UserMemory {
    /// A buffer of zero bytes.
    pub const EMPTY: UserMemory = UserMemory { base: std::ptr::null_mut(), length: 0 };

    /// The buffer of `length` bytes at `base`.
    ///
    /// # Safety
    /// Until the operation that gets the buffer has completed, its bytes are valid for reads, and for writes if the operation fills them.
    /// Meanwhile no other code writes them, nor reads them if the operation fills them.
    pub const unsafe fn new(base: *mut u8, length: usize) -> Self {
        Self { base, length }
    }

    /// Length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the length is 0.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies bytes to offset `at`, as many as fit; returns how many.
    #[inline(always)]
    pub fn fill(&self, at: usize, bytes: &[u8]) -> usize {
        let fits = self.length.saturating_sub(at).min(bytes.len());
        if let (8, Some(word)) = (fits, bytes.first_chunk::<8>()) {
            // Most short messages have 8 bytes: one store instead of a call of memcpy.
            // SAFETY: at + 8 <= length, and by the contract of `new` the operation may write these bytes.
            unsafe { self.base.wrapping_add(at).cast::<[u8; 8]>().write_unaligned(*word) };
            return fits;
        }
        // SAFETY: at + fits <= length, and by the contract of `new` the operation may write these bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.wrapping_add(at), fits) };
        fits
    }

    /// The bytes from `at` on, at most `length`, for reading.
    #[inline(always)]
    pub fn bytes(&self, at: usize, length: usize) -> &[u8] {
        let length = self.length.saturating_sub(at).min(length);
        if length == 0 {
            return &[];
        }
        // SAFETY: at + length <= self.length, and by the contract of `new` no other code writes these bytes.
        unsafe { std::slice::from_raw_parts(self.base.add(at), length) }
    }

    /// Calls `with` with the bytes from `at` on, at most `length`, for writing.
    pub fn write<R>(&self, at: usize, length: usize, with: impl FnOnce(&mut [u8]) -> R) -> R {
        let length = self.length.saturating_sub(at).min(length);
        if length == 0 {
            return with(&mut []);
        }
        // SAFETY: at + length <= self.length, and by the contract of `new` no other code uses these bytes.
        with(unsafe { std::slice::from_raw_parts_mut(self.base.add(at), length) })
    }
}

/// The memory of an operation: its source, or the place that it fills.
#[derive(Debug)]
pub enum OperationMemory {
    /// A buffer of the program.
    User(UserMemory),
    /// A buffer that the operation owns.
    Owned(Vec<u8>),
    /// A loan that is being sent; released to its pool when the operation completes.
    Loan(ShmBlock),
}

impl OperationMemory {
    /// Length in bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        match self {
            Self::User(user) => user.length,
            Self::Owned(bytes) => bytes.len(),
            Self::Loan(block) => block.len(),
        }
    }

    /// Whether the length is 0.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its address in this process.
    pub fn address(&self) -> u64 {
        match self {
            Self::User(user) => user.base as u64,
            Self::Owned(bytes) => bytes.as_ptr() as u64,
            Self::Loan(block) => block.address(),
        }
    }

    /// Copies bytes to offset `at`, as many as fit; returns how many.
    #[inline(always)]
    pub fn fill(&mut self, at: usize, bytes: &[u8]) -> usize {
        match self {
            Self::User(user) => user.fill(at, bytes),
            _ => self.write(at, bytes.len(), |into| {
                into.copy_from_slice(&bytes[..into.len()]);
                into.len()
            }),
        }
    }

    /// The bytes from `at` on, at most `length`, for reading.
    #[inline(always)]
    pub fn bytes(&self, at: usize, length: usize) -> &[u8] {
        match self {
            Self::User(user) => user.bytes(at, length),
            Self::Owned(bytes) => {
                let bytes = bytes.get(at..).unwrap_or(&[]);
                &bytes[..length.min(bytes.len())]
            }
            Self::Loan(block) => {
                let bytes = block.get(at..).unwrap_or(&[]);
                &bytes[..length.min(bytes.len())]
            }
        }
    }

    /// Calls `with` with the bytes from `at` on, at most `length`, for writing.
    pub fn write<R>(&mut self, at: usize, length: usize, with: impl FnOnce(&mut [u8]) -> R) -> R {
        match self {
            Self::User(user) => user.write(at, length, with),
            Self::Owned(bytes) => {
                let bytes = bytes.get_mut(at..).unwrap_or(&mut []);
                let length = length.min(bytes.len());
                with(&mut bytes[..length])
            }
            Self::Loan(block) => {
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
    fn accesses_beyond_the_end_are_cut_off() {
        let mut bytes = [0; 8];
        // SAFETY: the array outlives the buffer, and no other code uses it meanwhile.
        let user = unsafe { UserMemory::new(bytes.as_mut_ptr(), 8) };
        let block = crate::shm_pool::ShmPool::new(crate::shm_pool::SEGMENT_BYTES).take(8).unwrap();
        for mut memory in
            [OperationMemory::User(user), OperationMemory::Owned(vec![0; 8]), OperationMemory::Loan(block)]
        {
            assert_eq!((memory.fill(6, &[1; 8]), memory.fill(8, &[1]), memory.fill(usize::MAX, &[1])), (2, 0, 0));
            assert_eq!(memory.bytes(5, 100), [0, 1, 1]);
            memory.write(0, 2, |bytes| bytes.fill(9));
            assert_eq!(memory.write(9, 1, |bytes| bytes.len()), 0);
            assert_eq!(memory.bytes(0, 8), [9, 9, 0, 0, 0, 0, 1, 1]);
        }
        assert_eq!(UserMemory::EMPTY.fill(0, &[1]), 0);
    }
}
