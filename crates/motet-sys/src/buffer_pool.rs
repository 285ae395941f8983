//! Reusable, pre-faulted blocks of memory.
//!
//! Receiving into fresh memory takes a page fault for every page, which costs more than the copy (the receive allocator of
//! HP-CORBA, section 4.5, exists for that reason). Blocks come in powers of two, every page is touched when a block is
//! made, and a block that is given back is kept for the next one, up to a limit.

use crate::memory;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Smallest block.
const SMALLEST: usize = 4096;

/// A block; its memory goes back to the pool when it is dropped.
#[derive(Debug)]
pub struct Block {
    base: *mut u8,
    size: usize,
}

// SAFETY: a block owns its memory.
unsafe impl Send for Block {}
// SAFETY: shared access only reads.
unsafe impl Sync for Block {}

#[derive(Default)]
struct Pool {
    /// Blocks that wait, by size.
    idle: HashMap<usize, Vec<Block>>,
    kept: usize,
    limit: usize,
    /// Size of every block handed out by [`lend`].
    lent: HashMap<usize, usize>,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);

fn pool() -> MutexGuard<'static, Option<Pool>> {
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    pool.get_or_insert_with(|| Pool { limit: 64 << 20, ..Pool::default() });
    pool
}

/// For the time of a fork: a child finds the pool whole.
pub fn quiet() -> impl Sized {
    pool()
}

/// Keeps at most `bytes` of blocks that nobody uses.
pub fn limit(bytes: usize) {
    if let Some(pool) = pool().as_mut() {
        pool.limit = bytes;
    }
}

/// A block of at least `length` bytes; `None` when memory is exhausted.
pub fn take(length: usize) -> Option<Block> {
    let size = length.max(SMALLEST).checked_next_power_of_two()?;
    if let Some(pool) = pool().as_mut()
        && let Some(block) = pool.idle.get_mut(&size).and_then(Vec::pop)
    {
        pool.kept -= size;
        return Some(block);
    }
    memory::anonymous(size).ok().map(|base| Block { base, size })
}

/// A block as a bare address, for C; [`give_back`] ends it.
pub fn lend(length: usize) -> Option<*mut u8> {
    let block = take(length)?;
    let base = block.base;
    pool().as_mut()?.lent.insert(base as usize, block.size);
    std::mem::forget(block);
    Some(base)
}

/// Ends a loan. An address that was not lent is left alone.
pub fn give_back(base: *mut u8) {
    let size = pool().as_mut().and_then(|pool| pool.lent.remove(&(base as usize)));
    if let Some(size) = size {
        drop(Block { base, size });
    }
}

impl std::ops::Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the block owns `size` initialised bytes (the kernel's zeroes or earlier contents).
        unsafe { std::slice::from_raw_parts(self.base, self.size) }
    }
}

impl std::ops::DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.size) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut pool = pool();
        let Some(pool) = pool.as_mut() else { return };
        if pool.kept + self.size <= pool.limit {
            pool.kept += self.size;
            pool.idle.entry(self.size).or_default().push(Block { base: self.base, size: self.size });
        } else {
            memory::unmap(self.base, self.size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_comes_back_is_used_again() {
        let mut block = take(100_000).unwrap();
        assert_eq!(block.len(), 131_072);
        block[131_071] = 7;
        let address = block.as_ptr();
        drop(block);
        let again = take(70_000).unwrap();
        assert_eq!((again.as_ptr(), again[131_071]), (address, 7));
        let lent = lend(5000).unwrap();
        give_back(lent);
        give_back(lent); // once is enough
        give_back(std::ptr::null_mut());
        assert!(take(usize::MAX).is_none());
    }
}
