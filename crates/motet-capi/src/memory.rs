//! The global allocator: the C library's, except in signal handlers.
//!
//! A handler may have interrupted malloc(), whose locks and lists are then in any state. The engine itself is never interrupted by one
//! ([`motet_sys::signal_handlers`]). So memory that it allocates in a handler is mapped, block by block, and memory that it frees there waits
//! for a call outside of handlers. Both are rare: sending and receiving messages allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

struct Memory;

#[global_allocator]
static MEMORY: Memory = Memory;

/// Addresses of the blocks that were mapped in handlers and are in use: a list of pages, which grows and stays.
static MAPPED_BLOCKS: BlockPage = BlockPage::new();
static MAPPED_BLOCK_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Blocks of the C library that handlers freed: a list, each holds the address of the next.
static FREED_IN_HANDLERS: AtomicPtr<u8> = AtomicPtr::new(null_mut());
const PAGE: usize = 4096;

// SAFETY: `System` allocates every block, except mapped ones: those are whole pages, listed in `MAPPED_BLOCKS` until they are freed.
unsafe impl GlobalAlloc for Memory {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if motet_sys::signal_handlers::in_handler() {
            return map(layout);
        }
        if !FREED_IN_HANDLERS.load(Relaxed).is_null() {
            free_later_ones();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(roomy(layout)) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if motet_sys::signal_handlers::in_handler() {
            return map(layout); // mapped pages are zeros
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(roomy(layout)) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise, which is passed on to both.
        unsafe {
            let larger = Layout::from_size_align_unchecked(size, layout.align());
            if MAPPED_BLOCK_COUNT.load(Relaxed) == 0 && !motet_sys::signal_handlers::in_handler() {
                return System.realloc(block, layout, roomy(larger).size());
            }
            let moved = self.alloc(larger);
            if !moved.is_null() {
                std::ptr::copy_nonoverlapping(block, moved, layout.size().min(size));
                self.dealloc(block, layout);
            }
            moved
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if MAPPED_BLOCK_COUNT.load(Relaxed) > 0 && unmap(block, layout) {
            return;
        }
        if motet_sys::signal_handlers::in_handler() {
            free_later(block);
            return;
        }
        // SAFETY: the caller's promise: `alloc` got it from `System`, whose free() does not need the size.
        unsafe { System.dealloc(block, layout) }
    }
}

/// A page of the list of mapped blocks. A place holds an address, 0 if it is free, or [`TAKEN`].
#[repr(C)]
struct BlockPage {
    next: AtomicPtr<BlockPage>,
    places: [AtomicUsize; PAGE / size_of::<usize>() - 1],
}

const _: () = assert!(size_of::<BlockPage>() == PAGE);

/// In a place whose block is being mapped: the address of no block.
const TAKEN: usize = 1;

impl BlockPage {
    const fn new() -> Self {
        Self {
            next: AtomicPtr::new(null_mut()),
            places: [const { AtomicUsize::new(0) }; PAGE / size_of::<usize>() - 1],
        }
    }

    fn next(&self) -> Option<&'static BlockPage> {
        // SAFETY: null, or a page of zeros that `add` mapped, which is never unmapped.
        unsafe { self.next.load(Acquire).as_ref() }
    }

    /// Puts a new page behind this one. `None`: there is no memory. Another thread may have been first; its page serves both.
    fn add(&self) -> Option<&'static BlockPage> {
        let page = motet_sys::memory::map_anonymous(PAGE).ok()?;
        if self.next.compare_exchange(null_mut(), page.cast(), AcqRel, Acquire).is_err() {
            // SAFETY: it was mapped just now, and no other thread knows it.
            unsafe { motet_sys::memory::unmap_anonymous(page, PAGE) };
        }
        self.next()
    }
}

fn places() -> impl Iterator<Item = &'static AtomicUsize> {
    std::iter::successors(Some(&MAPPED_BLOCKS), |page| page.next()).flat_map(|page| &page.places)
}

/// Takes a place for a new block.
fn free_place() -> Option<&'static AtomicUsize> {
    let mut page = &MAPPED_BLOCKS;
    loop {
        let is_ours = |place: &&AtomicUsize| place.compare_exchange(0, TAKEN, Acquire, Relaxed).is_ok();
        if let Some(place) = page.places.iter().find(is_ours) {
            return Some(place);
        }
        page = page.next().or_else(|| page.add())?;
    }
}

/// The layout with room for the address that `free_later` may write there.
#[inline]
fn roomy(layout: Layout) -> Layout {
    let size = layout.size().max(size_of::<*mut u8>());
    // SAFETY: the alignment is valid, and a size below 8 grows to 8.
    unsafe { Layout::from_size_align_unchecked(size, layout.align()) }
}

fn pages(layout: Layout) -> usize {
    layout.size().max(1).next_multiple_of(PAGE)
}

/// Maps a block of whole pages.
#[cold]
fn map(layout: Layout) -> *mut u8 {
    if layout.align() > PAGE {
        return null_mut();
    }
    let Some(place) = free_place() else { return null_mut() };
    let block = motet_sys::memory::map_anonymous(pages(layout)).unwrap_or(null_mut());
    place.store(block as usize, Release);
    if !block.is_null() {
        MAPPED_BLOCK_COUNT.fetch_add(1, AcqRel);
    }
    block
}

/// Unmaps the block if it was mapped; returns whether it was.
#[cold]
fn unmap(block: *mut u8, layout: Layout) -> bool {
    let Some(place) = places().find(|place| place.load(Acquire) == block as usize) else { return false };
    // SAFETY: it was mapped with this length, and its owner frees it.
    unsafe { motet_sys::memory::unmap_anonymous(block, pages(layout)) };
    place.store(0, Release);
    MAPPED_BLOCK_COUNT.fetch_sub(1, AcqRel);
    true
}

#[cold]
fn free_later(block: *mut u8) {
    let mut next = FREED_IN_HANDLERS.load(Relaxed);
    loop {
        // SAFETY: the block is freed, aligned for malloc(), and `roomy` made room for an address.
        unsafe { block.cast::<*mut u8>().write_unaligned(next) };
        match FREED_IN_HANDLERS.compare_exchange_weak(next, block, Release, Relaxed) {
            Ok(_) => return,
            Err(now) => next = now,
        }
    }
}

#[cold]
fn free_later_ones() {
    let mut block = FREED_IN_HANDLERS.swap(null_mut(), AcqRel);
    while !block.is_null() {
        // SAFETY: `free_later` wrote the address there; the C library's free() does not need the layout.
        unsafe {
            let next = block.cast::<*mut u8>().read_unaligned();
            System.dealloc(block, Layout::new::<*mut u8>());
            block = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_handlers_have_no_limit_in_number() {
        let layout = Layout::new::<u64>();
        let blocks: Vec<*mut u8> = (0..1200).map(|_| map(layout)).collect();
        assert!(blocks.iter().all(|block| !block.is_null()), "three pages of places");
        for &block in &blocks {
            // SAFETY: a page of its own, mapped above.
            unsafe { block.cast::<u64>().write(block as u64) };
        }
        // SAFETY: as above; no block shares its page with another one.
        assert!(blocks.iter().all(|&block| unsafe { block.cast::<u64>().read() } == block as u64));
        assert!(blocks.iter().all(|&block| unmap(block, layout)));
        let again = map(layout);
        assert!(unmap(again, layout) && !unmap(again, layout), "a place is free once its block is unmapped");
    }
}
