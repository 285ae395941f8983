//! The registered buffers.
//!
//! A [`Buffer`] belongs to one read at a time. While the kernel may write into it, its bytes are never looked at: only a completed read has them.

use crate::{BUFFER_BYTES, BUFFERS};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Alignment of all buffers: that of pages, which is enough for every device.
const ALIGNMENT: usize = 4096;
/// What is read from the descriptor that wakes the ring's thread, behind the buffers.
const WAKE_BYTES: usize = 8;

/// The memory of all buffers.
#[derive(Debug)]
pub struct Pool {
    memory: NonNull<u8>,
    free: Mutex<Vec<u16>>,
}

// SAFETY: the memory is reached only through `Buffer`s, each by its one owner, and by the kernel.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

fn layout() -> Layout {
    // The sizes are constants, so this does not fail.
    Layout::from_size_align(BUFFERS * BUFFER_BYTES + WAKE_BYTES, ALIGNMENT).unwrap_or_else(|_| Layout::new::<u64>())
}

impl Pool {
    /// Allocates the buffers.
    pub fn new() -> Arc<Self> {
        // SAFETY: the layout has a size above 0.
        let memory = unsafe { alloc_zeroed(layout()) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout()) };
        let free = (0..BUFFERS).rev().filter_map(|index| u16::try_from(index).ok()).collect();
        Arc::new(Self { memory, free: Mutex::new(free) })
    }

    /// Takes a buffer. `None`: all are in use.
    pub fn take(self: &Arc<Self>) -> Option<Buffer> {
        let index = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Buffer { pool: Arc::clone(self), index })
    }

    /// All buffers, to be registered in the order of their indices.
    pub fn to_register(&self) -> Vec<libc::iovec> {
        (0..BUFFERS)
            .map(|index| libc::iovec { iov_base: self.address(index * BUFFER_BYTES).cast(), iov_len: BUFFER_BYTES })
            .collect()
    }

    /// Where the bytes of the descriptor that wakes the ring's thread are written.
    pub fn wake_memory(&self) -> (*mut u8, u32) {
        (self.address(BUFFERS * BUFFER_BYTES), WAKE_BYTES as u32)
    }

    fn address(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < layout().size());
        self.memory.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout. No read is under way: each has a buffer, which holds the pool; a ring that cannot wait for its reads leaks it.
        unsafe { dealloc(self.memory.as_ptr(), layout()) };
    }
}

/// A buffer. Dropping it gives it back to the pool.
#[derive(Debug)]
pub struct Buffer {
    pool: Arc<Pool>,
    index: u16,
}

impl Buffer {
    /// The number under which it is registered.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Where byte `at` is.
    pub fn address(&self, at: usize) -> *mut u8 {
        debug_assert!(at < BUFFER_BYTES);
        self.pool.address(usize::from(self.index) * BUFFER_BYTES + at)
    }

    /// Its first bytes.
    ///
    /// # Safety
    /// No read into it is under way, as long as what is returned is used.
    pub unsafe fn bytes(&self, length: usize) -> &[u8] {
        let length = length.min(BUFFER_BYTES);
        // SAFETY: the memory is initialised, and the buffer's own; the caller's promise.
        unsafe { std::slice::from_raw_parts(self.address(0), length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_aligned_and_come_back() {
        let pool = Pool::new();
        let taken: Vec<Buffer> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(taken.len(), BUFFERS);
        let mut addresses: Vec<usize> = taken.iter().map(|buffer| buffer.address(0).addr()).collect();
        addresses.sort_unstable();
        assert!(addresses.iter().all(|address| address.is_multiple_of(ALIGNMENT)));
        assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] >= BUFFER_BYTES));
        drop(taken);
        assert_eq!(std::iter::from_fn(|| pool.take()).collect::<Vec<_>>().len(), BUFFERS);
    }
}
