//! A pool of reusable, pre-faulted receive buffers.
//!
//! A receive into fresh memory takes a page fault for every page, which costs more than the copy (the receive allocator of HP-CORBA,
//! section 4.5, exists for that reason). Buffer sizes are powers of two. All pages of a buffer are touched when it is made. A released
//! buffer is kept for reuse, up to a limit on the bytes of idle buffers.

use crate::memory;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Smallest buffer, bytes.
const MIN_BUFFER_BYTES: usize = 4096;

/// A buffer of the pool; released when it is dropped.
#[derive(Debug)]
pub struct PooledBuffer {
    base: *mut u8,
    size: usize,
}

// SAFETY: a buffer owns its memory.
unsafe impl Send for PooledBuffer {}
// SAFETY: `&PooledBuffer` gives shared slices only.
unsafe impl Sync for PooledBuffer {}

#[derive(Default)]
struct Pool {
    /// Idle buffers by size.
    idle: HashMap<usize, Vec<PooledBuffer>>,
    /// Bytes of idle buffers, and the most that are kept.
    idle_bytes: usize,
    limit: usize,
    /// Size of each buffer that [`take_raw`] handed out, by address.
    raw: HashMap<usize, usize>,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);

fn pool() -> MutexGuard<'static, Option<Pool>> {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    pool.get_or_insert_with(|| Pool { limit: 64 << 20, ..Pool::default() });
    pool
}

/// Locks the pool until the returned guard is dropped: a child that is forked meanwhile finds the pool consistent.
pub fn lock_for_fork() -> impl Sized {
    pool()
}

/// Sets the most bytes of idle buffers that are kept.
pub fn set_limit(bytes: usize) {
    if let Some(pool) = pool().as_mut() {
        pool.limit = bytes;
    }
}

/// A buffer of at least `length` bytes; `None` when memory is exhausted.
pub fn take(length: usize) -> Option<PooledBuffer> {
    let size = length.max(MIN_BUFFER_BYTES).checked_next_power_of_two()?;
    if let Some(pool) = pool().as_mut()
        && let Some(buffer) = pool.idle.get_mut(&size).and_then(Vec::pop)
    {
        pool.idle_bytes -= size;
        return Some(buffer);
    }
    memory::map_anonymous(size).ok().map(|base| PooledBuffer { base, size })
}

/// A buffer of at least `length` bytes as an address, for C; to be released by [`release_raw`].
pub fn take_raw(length: usize) -> Option<*mut u8> {
    let buffer = take(length)?;
    let base = buffer.base;
    pool().as_mut()?.raw.insert(base as usize, buffer.size);
    std::mem::forget(buffer);
    Some(base)
}

/// Releases a buffer of [`take_raw`]. Any other address is ignored.
pub fn release_raw(base: *mut u8) {
    let size = pool().as_mut().and_then(|pool| pool.raw.remove(&(base as usize)));
    if let Some(size) = size {
        drop(PooledBuffer { base, size });
    }
}

impl std::ops::Deref for PooledBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer owns `size` initialised bytes (the kernel's zeroes or earlier contents).
        unsafe { std::slice::from_raw_parts(self.base, self.size) }
    }
}

impl std::ops::DerefMut for PooledBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the buffer owns `size` initialised bytes, and is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.size) }
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let mut pool = pool();
        let Some(pool) = pool.as_mut() else { return };
        if pool.idle_bytes + self.size <= pool.limit {
            pool.idle_bytes += self.size;
            pool.idle.entry(self.size).or_default().push(PooledBuffer { base: self.base, size: self.size });
        } else {
            memory::unmap_buffer(self.base, self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_buffer_is_reused() {
        let mut buffer = take(100_000).unwrap();
        assert_eq!(buffer.len(), 131_072);
        buffer[131_071] = 7;
        let address = buffer.as_ptr();
        drop(buffer);
        let again = take(70_000).unwrap();
        assert_eq!((again.as_ptr(), again[131_071]), (address, 7));
        let raw = take_raw(5000).unwrap();
        release_raw(raw);
        release_raw(raw); // no buffer any more: ignored
        release_raw(std::ptr::null_mut());
        assert!(take(usize::MAX).is_none());
    }
}
